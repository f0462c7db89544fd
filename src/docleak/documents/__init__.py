"""Documents: pages with words, fields and questions; loaders, scrubbing, inspection. No torch in here."""

from typing import TYPE_CHECKING

from docleak.lazy import imported_on_use

if TYPE_CHECKING:
    from docleak.documents.loaders import LOADERS, load_pages
    from docleak.documents.locate import repeats_of
    from docleak.documents.page import Box, Field, Image, Page, Question, Word
    from docleak.documents.pages import LazyPages, provider_names
    from docleak.documents.scrub import blank_template, private_mask

__all__ = [
    "LOADERS",
    "Box",
    "Field",
    "Image",
    "LazyPages",
    "Page",
    "Question",
    "Word",
    "blank_template",
    "load_pages",
    "private_mask",
    "provider_names",
    "repeats_of",
]

__getattr__ = imported_on_use(
    __name__,
    {
        **dict.fromkeys(("LOADERS", "load_pages"), "loaders"),
        **dict.fromkeys(("Box", "Field", "Image", "Page", "Question", "Word"), "page"),
        **dict.fromkeys(("LazyPages", "provider_names"), "pages"),
        "repeats_of": "locate",
        **dict.fromkeys(("blank_template", "private_mask"), "scrub"),
    },
)
