"""A token encoder with its head: the one model that extraction is trained, validated and attacked with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from docleak.documents.page import Page
from docleak.errors import ModelError
from docleak.models.encoders.bros import quicken
from docleak.models.encoders.heads import Head, MaskedLanguageHead, make_head
from docleak.models.encoders.questions import ROOM, with_questions
from docleak.models.encoders.tasks import CLASSED, TASKS, Task, labelled
from docleak.models.encoders.tokens import BOX_SCALE, TokenBatch, TokenPage, collate, encode_page
from docleak.models.encoders.vision import Eye, VisionConfig
from docleak.models.files import told_drawn

#: architecture -> (configuration, model) in transformers.
BACKBONES: dict[str, tuple[str, str]] = {
    "layoutlm": ("LayoutLMConfig", "LayoutLMModel"),
    "bros": ("BrosConfig", "BrosModel"),
    "bert": ("BertConfig", "BertModel"),
}


@dataclass(frozen=True)
class EncoderConfig:
    """What config.json says of an encoder that docleak saved, beside ``model_type``.

    ``backbone`` are the values of transformers' configuration of ``architecture``. Without ``vision`` the model is
    unimodal. ``classes`` are the kinds of entity or of page, for the tasks that have them. ``resnet`` describes the
    network of ``vision.resnet``, so that no other files are needed.
    """

    architecture: str
    backbone: Mapping[str, Any]
    task: Task = "mlm"
    classes: tuple[str, ...] = ()
    vision: VisionConfig | None = None
    resnet: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = []
        if bool(self.resnet) != bool(self.vision and self.vision.resnet):
            faults.append("vision.resnet and the resnet's description belong together, and one is missing")
        if self.architecture not in BACKBONES:
            faults.append(f"architecture is {self.architecture!r}, expected one of {', '.join(BACKBONES)}")
        if self.task not in TASKS:
            faults.append(f"task is {self.task!r}, expected one of {', '.join(TASKS)}")
        if self.task in CLASSED and not self.classes:
            faults.append(f"task {self.task} needs classes, found none")
        if faults:
            raise ModelError("the encoder's configuration cannot be used: " + "; ".join(faults) + ".")


class EncoderNetwork(nn.Module):
    """Backbone, head and, where there is one, the eye, whose features are added to the word embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        import transformers

        settings, model = (getattr(transformers, name) for name in BACKBONES[config.architecture])
        values = {key: value for key, value in config.backbone.items() if key != "model_type"}
        # BROS knows eager attention only; the others are faster with PyTorch's own.
        attention = "eager" if config.architecture == "bros" else "sdpa"
        options = {} if config.architecture == "layoutlm" else {"add_pooling_layer": False}
        self.backbone = model._from_config(settings(**values), attn_implementation=attention, **options)
        if config.architecture == "layoutlm":
            self.backbone.pooler = Unpooled()
        if config.architecture == "bros":
            quicken(self.backbone)
        self.embeddings: nn.Embedding = self.backbone.get_input_embeddings()
        self.eye = Eye(config.vision, self.embeddings.embedding_dim, config.resnet) if config.vision else None
        self.head: Head = make_head(config.task, self.embeddings, len(config.classes))
        self.reads_boxes = config.architecture != "bert"
        self.relative_boxes = config.architecture == "bros"

    def see(self, images: Tensor | None, boxes: Tensor) -> Tensor | None:
        """What the picture adds to each token, (B, T, width); None for a unimodal model."""
        if self.eye is None:
            return None
        if images is None:
            raise ModelError("a bimodal encoder was given pages without pictures; encode them with its image size.")
        seen: Tensor = self.eye(images, boxes)
        return seen

    def forward(self, ids: Tensor, boxes: Tensor, mask: Tensor, seen: Tensor | None) -> Tensor:
        """Vectors of tokens (B, T, width), from ids and mask (B, T), boxes (B, T, 4), and what ``see`` gave."""
        places: dict[str, Tensor] = {}
        if self.reads_boxes:
            # BROS takes fractions of the page, LayoutLM whole numbers.
            places["bbox"] = boxes.float() / BOX_SCALE if self.relative_boxes else boxes
        words = self.embeddings(ids)
        out = self.backbone(inputs_embeds=words if seen is None else words + seen, attention_mask=mask.long(), **places)
        hidden: Tensor = out.last_hidden_state
        return hidden


class Unpooled(nn.Module):
    """In the place of LayoutLM's pooler, which no head reads."""

    def forward(self, hidden: Tensor) -> None:
        """Nothing."""


class EncoderModel:
    """The network with its tokenizer: pages in, losses and predictions out.

    ``max_tokens`` is what the position table holds. The network is in evaluation mode unless training says otherwise.
    ``drawn`` says what a backbone's checkpoint did not bring, in a sentence for reports.
    """

    drawn = ""

    def __init__(self, network: EncoderNetwork, tokenizer: Any, config: EncoderConfig, *, name: str) -> None:
        if len(tokenizer) > network.embeddings.num_embeddings:
            raise ModelError(
                f"model {name!r} has {network.embeddings.num_embeddings} word embeddings and a tokenizer of "
                f"{len(tokenizer)} pieces: the tokenizer belongs to another model. Put the model's own beside it."
            )
        self.module = network
        self.tokenizer = tokenizer
        self.config = config
        self.name = name
        self.max_tokens = int(network.backbone.config.max_position_embeddings)

    @property
    def task(self) -> Task:
        """What the head was made for."""
        return self.config.task

    @property
    def bimodal(self) -> bool:
        """Whether it sees the picture."""
        return self.config.vision is not None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.module.parameters()).device

    def encode(self, page: Page) -> TokenPage:
        """The page in pieces, with the labels of the model's task (none for "mlm"), or its questions ("qa")."""
        size = self.config.vision.size if self.config.vision else None
        if self.task == "qa":
            tokens = encode_page(page, self.tokenizer, max_tokens=self.max_tokens - ROOM, image_size=size)
            return with_questions(tokens, page, self.tokenizer)
        tokens = encode_page(page, self.tokenizer, max_tokens=self.max_tokens, image_size=size)
        return labelled(tokens, page, self.task, self.config.classes)

    def collate(self, pages: Sequence[TokenPage]) -> TokenBatch:
        """One padded batch on the model's device."""
        return collate(pages, pad_id=self.tokenizer.pad_token_id, device=self.device)

    def hidden(self, batch: TokenBatch) -> Tensor:
        """Vectors of tokens, (B, T, width)."""
        seen = self.module.see(batch.images, batch.boxes)
        out: Tensor = self.module(batch.ids, batch.boxes, batch.mask, seen)
        return out

    def loss(self, batch: TokenBatch) -> Tensor:
        """Training loss per page, (B,)."""
        return self.module.head.loss(self.hidden(batch), batch)

    def predict(self, batch: TokenBatch) -> Mapping[str, Tensor]:
        """The most probable labels of each label row, (B, T)."""
        return self.module.head.predict(self.hidden(batch), batch)

    def token_scores(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary of vectors (N, width), (N, V); ModelError for a model without that head."""
        head = self.module.head
        if not isinstance(head, MaskedLanguageHead):
            raise ModelError(f"model {self.name!r} was trained for {self.task}; it has no head that guesses tokens.")
        return head.scores(hidden)

    def for_task(self, task: Task, classes: Sequence[str], *, seed: int, name: str = "") -> EncoderModel:
        """A copy with a head for ``task``: this model's own where it fits, else a new one drawn with ``seed``."""
        config = replace(self.config, task=task, classes=tuple(classes) if task in CLASSED else ())
        other = build(config, self.tokenizer, seed=seed, name=name or self.name)
        state = self.module.state_dict()
        if config != self.config:
            state = {key: value for key, value in state.items() if not key.startswith("head.")}
        other.module.load_state_dict({**other.module.state_dict(), **state})
        other.module.to(self.device)
        other.drawn = told(other, [key for key, _ in other.module.named_parameters() if key not in state], seed=seed)
        return other


def told(model: EncoderModel, drawn: Sequence[str], *, seed: int) -> str:
    """What of a model was drawn, in a sentence for reports."""
    eye = "layer from its ResNet to words" if model.config.resnet else "eye for pictures"
    parts = {"head": f"head for {model.task}", "eye": eye}
    named = [words for part, words in parts.items() if any(key.startswith(f"{part}.") for key in drawn)]
    return told_drawn(model.name, model.module, drawn, seed=seed, parts=" and no ".join(named))


def build(config: EncoderConfig, tokenizer: Any, *, seed: int, name: str) -> EncoderModel:
    """A model with weights drawn from ``seed``, as transformers draws them; evaluation mode."""
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        torch.manual_seed(seed)
        network = EncoderNetwork(config)
    return EncoderModel(network.eval(), tokenizer, config, name=name)
