"""A token encoder with its head: the one model that extraction is trained, validated and attacked with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from docleak.documents.page import Page
from docleak.errors import ModelError, refuse, those
from docleak.models.encoders import bros
from docleak.models.encoders.heads import Head, MaskedLanguageHead, make_head
from docleak.models.encoders.questions import ROOM, question_first, with_questions
from docleak.models.encoders.tasks import CLASSED, TASKS, Task, labelled
from docleak.models.encoders.tokens import BOX_SCALE, TokenBatch, TokenPage, collate, encode_page
from docleak.models.encoders.vision import Eye, VisionConfig
from docleak.models.files import drawn_with, told_drawn

#: architecture -> (configuration, model) in transformers.
BACKBONES: dict[str, tuple[str, str]] = {
    "layoutlm": ("LayoutLMConfig", "LayoutLMModel"),
    "bros": ("BrosConfig", "BrosModel"),
    "bert": ("BertConfig", "BertModel"),
    "layoutlmv3": ("LayoutLMv3Config", "LayoutLMv3Model"),
}
#: Those of transformers' own attention, which knows no other.
EAGER = ("bros", "layoutlmv3")
#: Labels from which transformers' LayoutLMv3 scores tokens behind a layer of its own.
MANY_LABELS = 10


@dataclass(frozen=True)
class EncoderConfig:
    """What config.json says of an encoder that docleak saved, beside ``model_type``.

    ``backbone`` are the values of transformers' configuration of ``architecture``. Without ``vision`` the model is
    unimodal, but for LayoutLMv3, which reads patches of its own. ``classes`` are the kinds of entity or of page, for
    the tasks that have them. ``resnet`` describes the network of ``vision.resnet``, so that no other files are needed.
    ``question_first``: as transformers' models for question answering were trained.
    """

    architecture: str
    backbone: Mapping[str, Any]
    task: Task = "mlm"
    classes: tuple[str, ...] = ()
    vision: VisionConfig | None = None
    resnet: Mapping[str, Any] = field(default_factory=dict)
    question_first: bool = False

    @property
    def has_patches(self) -> bool:
        """Whether the backbone reads the picture by itself."""
        return self.architecture == "layoutlmv3"

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Width and height of the picture that the model sees."""
        if self.has_patches:
            side = int(self.backbone["input_size"])
            return side, side
        return self.vision.size if self.vision else None

    def __post_init__(self) -> None:
        faults = those(
            (bool(self.resnet) != bool(self.vision and self.vision.resnet),
             "vision.resnet and the resnet's description belong together, and one is missing"),
            (self.architecture not in BACKBONES,
             f"architecture is {self.architecture!r}, expected one of {', '.join(BACKBONES)}"),
            (self.task not in TASKS, f"task is {self.task!r}, expected one of {', '.join(TASKS)}"),
            (self.has_patches and (self.vision or not self.backbone.get("visual_embed", True)),
             "LayoutLMv3 reads the picture in patches: no other eye fits, nor does one without them"),
            (self.task in CLASSED and not self.classes, f"task {self.task} needs classes, found none"),
        )  # fmt: skip
        refuse(ModelError, faults, "the encoder's configuration cannot be used: ")


class EncoderNetwork(nn.Module):
    """Backbone, head and, where there is one, the eye, whose features are added to the word embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        import transformers

        settings, model = (getattr(transformers, name) for name in BACKBONES[config.architecture])
        values = {key: value for key, value in config.backbone.items() if key != "model_type"}
        attention = "eager" if config.architecture in EAGER else "sdpa"
        options = {"add_pooling_layer": False} if config.architecture in ("bros", "bert") else {}
        self.backbone = model._from_config(settings(**values), attn_implementation=attention, **options)
        if config.architecture == "layoutlm":
            self.backbone.pooler = Unpooled()
        if config.architecture == "bros":
            bros.quicken(self.backbone)
        if config.architecture == "layoutlmv3":
            from transformers.models.layoutlmv3.modeling_layoutlmv3 import LayoutLMv3Encoder

            from docleak.models.fast import quicken

            quicken(self.backbone, [LayoutLMv3Encoder])  # whose numbers stay what they are bit for bit
        self.embeddings: nn.Embedding = self.backbone.get_input_embeddings()
        self.eye = Eye(config.vision, self.embeddings.embedding_dim, config.resnet) if config.vision else None
        deep = config.has_patches and (config.task == "qa" or 1 + 2 * len(config.classes) >= MANY_LABELS)
        whole = config.question_first
        self.head: Head = make_head(config.task, self.embeddings, len(config.classes), deep=deep, whole=whole)
        self.reads_boxes = config.architecture != "bert"
        self.relative_boxes, self.has_patches = config.architecture == "bros", config.has_patches
        self.question_first = config.question_first and config.task == "qa"
        self.separator = -1  # the tokenizer's, which EncoderModel tells

    def see(self, images: Tensor | None, boxes: Tensor) -> Tensor | None:
        """What the picture adds to each token, (B, T, width); LayoutLMv3's pixels (B, 3, H, W) in -1..1, which it cuts
        into patches by itself; None for a unimodal model."""
        if self.eye is None and not self.has_patches:
            return None
        if images is None:
            raise ModelError("a bimodal encoder was given pages without pictures; encode them with its image size.")
        seen: Tensor = images.float() / 127.5 - 1 if self.eye is None else self.eye(images, boxes)
        return seen

    def forward(self, ids: Tensor, boxes: Tensor, mask: Tensor, seen: Tensor | None) -> Tensor:
        """Vectors of tokens (B, T, width), from ids and mask (B, T), boxes (B, T, 4), and what ``see`` gave.

        Behind them those of the patches where LayoutLMv3 answers questions, since they compete for the answer.
        """
        if self.question_first:
            return self._question_first(ids, boxes, mask, seen)
        return self._read(ids, boxes, mask, seen)

    def _question_first(self, ids: Tensor, boxes: Tensor, mask: Tensor, seen: Tensor | None) -> Tensor:
        order, page = question_first(ids, mask, self.separator)
        if seen is not None and not self.has_patches:
            seen = seen.gather(1, order[..., None].expand_as(seen))
        hidden = self._read(
            ids.gather(1, order), boxes.gather(1, order[..., None].expand_as(boxes)), mask.gather(1, order), seen,
            page.gather(1, order).long(),
        )  # fmt: skip
        words, patches = hidden.tensor_split([ids.shape[1]], dim=1)
        return torch.cat([words.gather(1, order.argsort(1)[..., None].expand_as(words)), patches], dim=1)

    def _read(
        self, ids: Tensor, boxes: Tensor, mask: Tensor, seen: Tensor | None, segments: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        if self.has_patches:  # boxes of special tokens are empty
            special = (ids == self.separator)[..., None]
            out = self.backbone(ids, boxes.masked_fill(special, 0), mask.long(), pixel_values=seen)
            states: Tensor = out.last_hidden_state
            return states if self.question_first else states[:, : ids.shape[1]]
        two = segments is not None and self.backbone.config.type_vocab_size > 1
        places: dict[str, Tensor] = {"token_type_ids": segments} if segments is not None and two else {}
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
        network.separator = int(tokenizer.sep_token_id)
        positions = int(network.backbone.config.max_position_embeddings)
        # RoBERTa's family counts from behind the padding's own position.
        self.max_tokens = positions - 1 - int(tokenizer.pad_token_id) if config.has_patches else positions

    @property
    def task(self) -> Task:
        """What the head was made for."""
        return self.config.task

    @property
    def bimodal(self) -> bool:
        """Whether it sees the picture."""
        return self.config.image_size is not None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.module.parameters()).device

    def encode(self, page: Page) -> TokenPage:
        """The page in pieces, with the labels of the model's task (none for "mlm"), or its questions ("qa")."""
        size = self.config.image_size
        if self.task == "qa":
            tokens = encode_page(page, self.tokenizer, max_tokens=self.max_tokens - ROOM, image_size=size)
            return with_questions(tokens, page, self.tokenizer, ends=2 if self.config.has_patches else 1)
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
        state = self.module.state_dict()
        if config != self.config:
            state = {key: value for key, value in state.items() if not key.startswith("head.")}
        return self.rebuilt(config, state, seed=seed, name=name)

    def rebuilt(self, config: EncoderConfig, state: Mapping[str, Tensor], *, seed: int, name: str = "") -> EncoderModel:
        """A model of another configuration with the weights of ``state``, the others drawn with ``seed``."""
        other = build(config, self.tokenizer, seed=seed, name=name or self.name)
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
    with drawn_with(seed):
        network = EncoderNetwork(config)
    return EncoderModel(network.eval(), tokenizer, config, name=name)
