"""The checkpoints that the papers begin with: what their files are like, and copies of them with random weights."""

from typing import TYPE_CHECKING

from docleak.lazy import imported_on_use

if TYPE_CHECKING:
    from docleak.models.published.making import make
    from docleak.models.published.table import PUBLISHED, Published, published, repositories

__all__ = ["PUBLISHED", "Published", "make", "published", "repositories"]
_HOMES = {**dict.fromkeys(("PUBLISHED", "Published", "published", "repositories"), "table"), "make": "making"}
__getattr__ = imported_on_use(__name__, _HOMES)
