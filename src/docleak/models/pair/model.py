"""A client's image and text classifier with one loss each, or one loss of both; and its gradient by modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docleak.errors import GradientError, ModelError
from docleak.models.base import Encoded, normalised, plain_ids
from docleak.models.files import HALF

Modality = Literal["image", "text"]
MODALITIES: tuple[Modality, ...] = ("image", "text")
#: A fused head over the concatenated features, as others save it; here it is kept as one part per modality.
FUSED_HEAD = ("head.weight", "head.bias")


class PairNetwork(nn.Module):
    """Two networks that end in features, each with a linear head; ``fused`` adds the heads' logits up.

    Adding two heads' logits is a linear head over the concatenation, kept in two parts; the bias is in the image's.
    """

    def __init__(
        self, image: nn.Module, text: nn.Module, *, widths: tuple[int, int], classes: int, fused: bool
    ) -> None:
        super().__init__()
        self.fused = fused
        self.image = nn.ModuleDict({"net": image, "head": nn.Linear(widths[0], classes)})
        self.text = nn.ModuleDict({"net": text, "head": nn.Linear(widths[1], classes, bias=not fused)})

    def image_logits(self, pixels: Tensor) -> Tensor:
        """(B, K) of normalised pixels (B, 3, H, W)."""
        return cast(Tensor, self.image["head"](_values(self.image["net"](pixels))))

    def text_logits(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        """(B, K) of word embeddings (B, T, d) and a mask (B, T) of tokens that are there."""
        net: Any = self.text["net"]
        wide = None
        if not bool(mask.all()):  # (B, 1, T, T), added to the scores: what transformers and vmap both take
            away = torch.zeros_like(mask, dtype=embeddings.dtype).masked_fill(~mask, torch.finfo(embeddings.dtype).min)
            wide = away[:, None, None].expand(-1, 1, mask.shape[1], -1)
        return cast(Tensor, self.text["head"](_values(net(inputs_embeds=embeddings, attention_mask=wide))))


def _values(output: Any) -> Tensor:
    """Features or logits of a network of ours, or of transformers (N, F, 1, 1 is taken as N, F)."""
    value: Tensor = output if isinstance(output, Tensor) else output.logits
    return value.flatten(1)


@dataclass(frozen=True, eq=False)
class PairModel:
    """The adapter: encodes pairs, computes the client's loss, and offers each modality as a ``Side``.

    ``image_size`` is (width, height); ``mean`` and ``std`` normalise pixels in [0, 1] per channel.
    """

    name: str
    module: PairNetwork
    tokenizer: Any
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF

    @property
    def table(self) -> Tensor:
        """The text network's word embeddings (V, d)."""
        net: Any = self.module.text["net"]
        return cast(Tensor, net.get_input_embeddings().weight)

    @property
    def device(self) -> torch.device:
        return self.table.device

    def plain_ids(self) -> Tensor:
        """Ids (n,) of tokens that can stand in a text: no special ones."""
        return plain_ids(self.tokenizer).to(self.device)

    def class_of(self, label: str) -> int:
        """The number of a class; ModelError names the known ones."""
        if label not in self.classes:
            raise ModelError(f"{self.name} knows no class {label!r}; its classes are {', '.join(self.classes[:20])}.")
        return self.classes.index(label)

    def token_ids(self, texts: Sequence[str], *, longest: int) -> tuple[Tensor, Tensor]:
        """Ids (B, T) with special tokens, padded, and their mask (B, T) bool; cut after ``longest`` tokens."""
        rows = self.tokenizer(list(texts), truncation=True, max_length=longest, padding=True, return_tensors="pt")
        return rows["input_ids"].to(self.device), rows["attention_mask"].bool().to(self.device)

    def loss(self, pixels: Tensor, ids: Tensor, mask: Tensor, labels: tuple[Tensor, Tensor]) -> Tensor:
        """What the client minimises, (B,): both cross-entropies, or with ``fused`` that of the summed logits.

        ``labels`` are the classes (B,) of pictures and texts; a fused model learns the pictures'. ModelError for counts
        of pictures and texts that differ, which a fused model would otherwise broadcast.
        """
        classes = [len(side) for side in labels]
        if {len(ids), len(mask), *classes} != {len(pixels)}:
            raise ModelError(
                f"there are {len(pixels)} pictures, {len(ids)} texts, {len(mask)} masks, and classes of {classes[0]} "
                f"pictures and {classes[1]} texts; expected as many of each."
            )
        embeddings = F.embedding(ids, self.table)
        image, text = self.module.image_logits(self.normalise(pixels)), self.module.text_logits(embeddings, mask)
        if self.module.fused:
            return F.cross_entropy(image + text, labels[0], reduction="none")
        first = F.cross_entropy(image, labels[0], reduction="none")
        return first + F.cross_entropy(text, labels[1], reduction="none")

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 1] as the network takes them."""
        return normalised(pixels, self.mean, self.std)

    def side(self, modality: Modality, other_logits: Tensor | None = None) -> Side:
        """One modality as an attack sees it. A fused model needs ``other_logits`` (B, K) of the other modality."""
        if self.module.fused and other_logits is None:
            raise ModelError(f"{self.name} is fused: say what the other modality adds to the logits.")
        return Side(self, modality, other_logits if self.module.fused else None)

    def other_logits(self, modality: Modality, x: Tensor, mask: Tensor) -> Tensor:
        """What ``modality`` adds to a fused model's logits, (B, K), without a graph."""
        with torch.no_grad():
            if modality == "image":
                return self.module.image_logits(self.normalise(x))
            return self.module.text_logits(x, mask)

    def modality(self, parameter_name: str) -> Modality:
        """Whose parameter it is; GradientError if the name does not say."""
        first = parameter_name.partition(".")[0]
        if first not in MODALITIES:
            raise GradientError(
                f"parameter {parameter_name!r} belongs to neither modality; expected names that begin with "
                f"{' or '.join(f'{m}.' for m in MODALITIES)}, so that the gradient can be split."
            )
        return first


@dataclass(frozen=True, eq=False)
class Side:
    """One modality's half of the client's loss, with the interface the gradient attacks need of a model.

    The first argument of ``loss`` is pixels (B, 3, H, W), or word embeddings (B, T, d). Each of ``inputs`` holds
    ``label`` (1,), and for texts ``mask`` (T,).
    """

    pair: PairModel
    of: Modality
    other_logits: Tensor | None = None

    @property
    def name(self) -> str:
        return f"{self.pair.name}, {self.of}"

    @property
    def architecture(self) -> str:
        return f"pair-{self.of}"

    @property
    def module(self) -> nn.Module:
        return self.pair.module

    def normalise(self, x: Tensor) -> Tensor:
        """Pixels as the network takes them; embeddings as they are."""
        return self.pair.normalise(x) if self.of == "image" else x

    def loss(self, x: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        """Cross-entropy per example, (B,)."""
        if pages is not None:
            rows = torch.tensor(pages, device=x.device)
            other = None if self.other_logits is None else self.other_logits[rows]
            return replace(self, other_logits=other).loss(x[rows], inputs)
        logits = self.logits(x, inputs)
        labels = torch.cat([example.tensors["label"] for example in inputs]).to(logits.device)
        return F.cross_entropy(logits, labels, reduction="none")

    def logits(self, x: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """(B, K)."""
        if self.of == "image":
            logits = self.pair.module.image_logits(self.normalise(x))
        else:
            mask = torch.stack([example.tensors["mask"] for example in inputs]).to(x.device)
            logits = self.pair.module.text_logits(x, mask)
        return logits if self.other_logits is None else logits + self.other_logits


def split_gradient(model: PairModel, gradient: Mapping[str, Tensor]) -> dict[Modality, dict[str, Tensor]]:
    """The gradient of each modality. A head over concatenated features (FUSED_HEAD) is split by its columns.

    Raises GradientError for a name of neither modality, a head of another width, and a modality without a gradient.
    """
    rest = dict(gradient)
    if FUSED_HEAD[0] in rest:
        rest |= _split_head(model, rest.pop(FUSED_HEAD[0]), rest.pop(FUSED_HEAD[1], None))
    parts: dict[Modality, dict[str, Tensor]] = {"image": {}, "text": {}}
    for name, value in rest.items():
        parts[model.modality(name)][name] = value
    empty = [m for m in MODALITIES if not parts[m]]
    if empty:
        raise GradientError(
            f"the gradient holds nothing of the {' and the '.join(empty)} modality; expected both, with names that "
            f"begin with {' and '.join(f'{m}.' for m in MODALITIES)}."
        )
    return parts


def _split_head(model: PairModel, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    heads = [cast(nn.Linear, getattr(model.module, m)["head"]).weight for m in MODALITIES]
    widths = [w.shape[1] for w in heads]
    if not model.module.fused or tuple(weight.shape) != (heads[0].shape[0], sum(widths)):
        kind = "fused" if model.module.fused else "not fused"
        raise GradientError(
            f"the gradient's head.weight has shape {tuple(weight.shape)}, and {model.name} is {kind}; expected a fused "
            f"model and shape {(heads[0].shape[0], sum(widths))}: {widths[0]} columns of the image, then {widths[1]}."
        )
    image, text = weight[:, : widths[0]], weight[:, widths[0] :]
    weights = {"image.head.weight": image, "text.head.weight": text}
    return weights if bias is None else {**weights, "image.head.bias": bias}
