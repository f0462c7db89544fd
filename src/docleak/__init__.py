"""docleak: train document models together, and measure what they leak. What is in ``__all__`` is public."""

from typing import TYPE_CHECKING

from docleak.lazy import imported_on_use

if TYPE_CHECKING:
    from docleak.documents import Field, Page, Question, Word
    from docleak.errors import DocleakError
    from docleak.front import Reproduction, audit, load_pages, reproduce, train
    from docleak.models import load_model
    from docleak.studies.results import Results, load_run
    from docleak.training.federated.flower.tap import tap, tap_client
    from docleak.training.settings import TrainingSettings
    from docleak.training.taps.trainer import TrainerTap

__version__ = "0.4.0"

__all__ = [
    "DocleakError",
    "Field",
    "Page",
    "Question",
    "Reproduction",
    "Results",
    "TrainerTap",
    "TrainingSettings",
    "Word",
    "audit",
    "load_model",
    "load_pages",
    "load_run",
    "reproduce",
    "tap",
    "tap_client",
    "train",
]


def __dir__() -> list[str]:
    """What is public, for completion."""
    return [*__all__, "__version__"]


__getattr__ = imported_on_use(
    "docleak",
    {
        **dict.fromkeys(__all__, "front"),
        "DocleakError": "errors",
        **dict.fromkeys(("Field", "Page", "Question", "Word"), "documents.page"),
        **dict.fromkeys(("Results", "load_run"), "studies.results"),
        "TrainingSettings": "training.settings",
        "load_model": "models.loading",
        **dict.fromkeys(("tap", "tap_client"), "training.federated.flower.tap"),  # they need Flower
        "TrainerTap": "training.taps.trainer",
    },
)
