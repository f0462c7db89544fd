"""What every model adapter offers, whatever architecture is behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docleak.documents.page import Image, Page, Question, Word
from docleak.errors import ModelError
from docleak.models.stages import Stage
from docleak.spec import counted_words

#: Label of a token that no loss is taken of.
IGNORED = -100


@dataclass(frozen=True)
class Encoded:
    """One question about one page as the model reads it, pixels apart.

    ``tensors`` are 1-D (or (T, 4) for boxes), integer, without batch dimension and without
    padding; ``tokens`` is a readable form of the text input for reports.
    """

    tensors: dict[str, Tensor]
    tokens: tuple[str, ...] = ()
    words_seen: tuple[int, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """What a person reads in an ``Encoded``: words (with their places in pixels) only where the model takes them."""

    question: str
    answer: str
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A model's answer and its confidence in [0, 1] (product or mean of softmax maxima)."""

    text: str
    confidence: float


@dataclass(frozen=True)
class AnswerLayers:
    """Names, in a network, of a ``decoder`` whose first layer reads an answer's tokens alone and knows no places:
    within it of that layer's query, key and value (``first``) behind ``norm``, and of the query of cross-attention
    (``second``), which has seen the tokens before and nothing else."""

    decoder: str
    norm: str
    first: tuple[str, ...]
    second: str

    @classmethod
    def of_t5(cls, decoder: str) -> AnswerLayers:
        """As a T5 names them."""
        layer = "block.0.layer.0"
        first = tuple(f"{layer}.SelfAttention.{part}" for part in "qkv")
        return cls(decoder, f"{layer}.layer_norm", first, "block.0.layer.1.EncDecAttention.q")


class DocumentModel(Protocol):
    """A thin adapter over one ``transformers`` document-QA model."""

    architecture: str
    name: str
    module: nn.Module
    #: What the checkpoint did not bring and was drawn at random, in a sentence for reports; mostly empty.
    drawn: str

    @property
    def image_size(self) -> tuple[int, int]:
        """(width, height) of the pixels the model takes."""

    def fit(self, page: Page) -> Page:
        """The page as the model sees it: resized to ``image_size``, boxes moved along."""

    def encode(self, page: Page, question: Question) -> Encoded:
        """Tokens (and boxes, labels) of one question about a fitted page."""

    def scramble(self, example: Encoded, *, question: bool, answer: bool, generator: torch.Generator) -> Encoded:
        """``example`` with random tokens where the question, or the answer, is not known."""

    def transcript(self, example: Encoded) -> Transcript:
        """The text of an encoded input, in words."""

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] as the network takes them: an affine map per channel."""

    def loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        """Per-example training loss, shape (B,), from pixels (P, 3, H, W) in [0, 1].

        ``pages[i]`` is the row of ``pixels`` that example i asks about; without it P = B, in order.
        """

    def answer(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> list[Answer]:
        """The model's own answers; ``pages`` as in ``loss``, labels in ``inputs`` are not looked at."""

    def stage(self, parameter_name: str) -> Stage:
        """Where the parameter acts."""

    def save(self, directory: str) -> None:
        """Write checkpoint and tokenizer in the ``save_pretrained`` layout."""


def pixels_of(image: Image, device: torch.device | str = "cpu") -> Tensor:
    """An image (H, W, 3) uint8 as pixels (3, H, W) float32 in [0, 1]."""
    array = np.ascontiguousarray(image.transpose(2, 0, 1))
    return torch.from_numpy(array).to(device).float() / 255.0


def device_of(model: DocumentModel) -> torch.device:
    """Where its parameters are."""
    return next(model.module.parameters()).device


def image_of(pixels: Tensor) -> Image:
    """Pixels (3, H, W) in [0, 1] as an image (H, W, 3) uint8, rounded, clipped."""
    array = (pixels.detach().cpu().clamp(0, 1) * 255.0).round().to(torch.uint8).numpy()
    return np.ascontiguousarray(array.transpose(1, 2, 0))


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Pixels (B, 3, H, W) less the mean of their channel, divided by its deviation."""
    shift, scale = (pixels.new_tensor(list(values))[:, None, None] for values in (mean, std))
    return (pixels - shift) / scale


def require_size(name: str, size: tuple[int, int] | None, native: tuple[int, int]) -> None:
    """ModelError if pages of another size than its ``native`` are asked of a model whose patches have their places."""
    if size not in (None, native):
        raise ModelError(
            f"model {name!r} has learned absolute patch positions, so it only takes pages of {native[0]} x {native[1]} "
            f"pixels, not {size[0]} x {size[1]}. Leave out --image-size, or name only Donut models with --model; pages "
            "of any size are scaled to the model's."
        )


def trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Named parameters that training changes; a tied weight appears once."""
    return ((name, p) for name, p in module.named_parameters() if p.requires_grad)


@contextmanager
def in_mode(module: nn.Module, *, training: bool = False) -> Iterator[None]:
    """In evaluation mode within, or in ``training`` mode; afterwards in the mode that it was in."""
    before = module.training
    module.train(training)
    try:
        yield
    finally:
        module.train(before)


def broken_weights(module: nn.Module) -> str:
    """A phrase about parameters that hold NaN or infinity; "" where none does."""
    broken = [name for name, weight in module.named_parameters() if not bool(torch.isfinite(weight).all())]
    if not broken:
        return ""
    tensors = counted_words(len(broken), "tensor")
    return f"the model itself has weights that are NaN or infinite, in {tensors}, first {broken[0]}"


def require_auditable(model: DocumentModel) -> None:
    """ModelError, with what to do, for a network whose gradients are none, or not the ones that a client would send."""
    module = model.module
    held = [*module.parameters(), *module.buffers()]
    types = sorted({str(weight.dtype).removeprefix("torch.") for weight in module.parameters()} - {"float32"})
    if any(hasattr(part, "_orig_mod") for part in module.modules()):
        fault = "is compiled (torch.compile), so its weights have other names; give the network as it was before that"
    elif any(weight.is_meta for weight in held):
        fault = "has weights on the device meta, which holds no values; load the checkpoint before it is audited"
    elif types:
        fault = f"has weights in {', '.join(types)}, and docleak computes in float32; call model.module.float()"
    elif not any(True for _ in trainable(module)):
        fault = (
            "has no weight that is trained, so a client would send nothing; call requires_grad_(True) on those that "
            "clients train"
        )
    elif not any(weight.any() for weight in module.parameters()):
        fault = "has weights that are all 0, so nothing could be read from its gradients; load a checkpoint into it"
    else:
        return
    raise ModelError(f"model {model.name!r} {fault}.")


def dropout_rate(module: nn.Module) -> float:
    """The largest probability with which training mode drops a number: of layers, and of functions told a rate."""
    rates = [m.p for m in module.modules() if isinstance(m, nn.Dropout)]
    rates += [float(rate) for m in module.modules() if isinstance(rate := getattr(m, "dropout", None), float)]
    return max(rates, default=0.0)


def plain_ids(tokenizer: Any) -> Tensor:
    """The ids of a vocabulary without special tokens and added ones (tags), ascending."""
    fixed = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return torch.tensor([i for i in range(len(tokenizer)) if i not in fixed])


def redrawn(ids: Tensor, where: Tensor, tokenizer: Any, generator: torch.Generator) -> Tensor:
    """Token ids with random ones in the places ``where``, both of one shape; special ones and tags stay."""
    plain = plain_ids(tokenizer)
    others = plain[torch.randint(len(plain), ids.shape, generator=generator)]
    return torch.where(where & torch.isin(ids, plain), others, ids)


def spoken(tokenizer: Any, ids: Tensor) -> str:
    """What token ids (T,) say, without special ones."""
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=True)).strip()


def asked_about(rows: Tensor, pages: Sequence[int] | None) -> Tensor:
    """Of rows that are one per page those that the examples ask about, one per example; as in ``loss``."""
    return rows if pages is None else rows[torch.tensor(pages, device=rows.device)]


def mean_per_example(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over each example's labelled tokens, logits (N, T, V) and labels (N, T) to (N,)."""
    token = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return token.sum(1) / (labels != IGNORED).sum(1)


def pad(rows: Sequence[Tensor], value: int, device: torch.device) -> Tensor:
    """Stack 1-D or (T, k) integer rows of unequal length, right-padded with ``value``."""
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value).to(device)
