"""Documents: pages with words, fields and questions; loaders, scrubbing, inspection. No torch in here."""

from docleak.documents.loaders import LOADERS, load_pages
from docleak.documents.page import Box, Field, Image, Page, Question, Word
from docleak.documents.pages import LazyPages, provider_names
from docleak.documents.repeats import repeats_of
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
