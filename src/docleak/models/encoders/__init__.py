"""Token encoders for extraction: LayoutLM v1, BROS and BERT backbones, an optional picture, and four kinds of head."""

from docleak.models.encoders.loading import load_encoder
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.tasks import TASKS, Task
from docleak.models.encoders.tokens import TokenBatch, TokenPage, collate

__all__ = ["TASKS", "EncoderModel", "Task", "TokenBatch", "TokenPage", "collate", "load_encoder"]
