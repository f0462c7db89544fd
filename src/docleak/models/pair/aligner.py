"""The shared space of pictures and texts: a tiny encoder pair of our own, or CLIP by path.

Texts come as weights over the attacked model's tokens (B, T, V), so that they stay differentiable: one-hot rows are a
real text, softmax rows a text in the making.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from docleak.documents.page import fault_list
from docleak.errors import ModelError
from docleak.files import quietly, write_json
from docleak.models.base import normalised
from docleak.models.files import (
    config_from,
    fill,
    image_settings,
    require_known,
    save_module,
    tokenizer_of,
    weights_in,
)
from docleak.models.loading import config_at, loadable, locate, short_name
from docleak.models.shipped import SHIPPED_ALIGNER, SHIPPED_ALIGNERS, model_card

MODEL_TYPE = "docleak-aligner"
#: Key of an aligner's docleak.json: in what share of unseen pictures it finds the own text among twenty.
FOUND_OF_20 = "own_text_first_of_20"
#: One that was never trained: what alignment in a space without meaning is worth.
RANDOM_ALIGNER = "aligner-random"


class Aligner(Protocol):
    """Maps both modalities into one space; rows have unit length."""

    @property
    def name(self) -> str: ...
    @property
    def scale(self) -> float:
        """What its training multiplied cosines by."""

    def image(self, pixels: Tensor) -> Tensor:
        """(B, D) of pixels (B, 3, H, W) in [0, 1]."""

    def text(self, weights: Tensor, mask: Tensor) -> Tensor:
        """(B, D) of weights over tokens (B, T, V) whose rows sum to 1, and which tokens are there, (B, T) bool."""


@dataclass(frozen=True)
class AlignerConfig:
    """``vocabulary`` tokens, rows of ``height`` x ``width`` pixels; ``longest`` tokens; widths of layers and space."""

    vocabulary: int
    height: int = 32
    width: int = 64
    longest: int = 64
    inner: int = 64
    space: int = 64


class AlignerNetwork(nn.Module):
    """Convolutions over the picture; embeddings, one convolution over neighbours and a mean over the text."""

    def __init__(self, config: AlignerConfig) -> None:
        super().__init__()
        inner, space = config.inner, config.space
        self.config = config
        self.eye = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.GELU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GELU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.GELU(), nn.Flatten(),
        )  # fmt: skip
        self.image_out = nn.Linear(32 * (config.height // 8) * (config.width // 8), space)
        self.words = nn.Embedding(config.vocabulary, inner)
        self.places = nn.Parameter(0.1 * torch.randn(config.longest, inner))
        self.near = nn.Conv1d(inner, inner, 3, padding=1)
        self.text_out = nn.Sequential(nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, space))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def image(self, pixels: Tensor) -> Tensor:
        """(B, D), unit rows."""
        size = (self.config.height, self.config.width)
        small = F.interpolate(pixels, size=size, mode="bilinear", antialias=True)
        return F.normalize(self.image_out(self.eye(2 * small - 1)), dim=1)

    def text(self, weights: Tensor, mask: Tensor) -> Tensor:
        """(B, D), unit rows."""
        if weights.shape[1] > self.config.longest:
            weights, mask = weights[:, : self.config.longest], mask[:, : self.config.longest]
        there = mask[..., None].to(weights.dtype)
        x = (weights @ self.words.weight + self.places[: weights.shape[1]]) * there
        x = (x + F.gelu(self.near(x.transpose(1, 2)).transpose(1, 2))) * there
        return F.normalize(self.text_out(x.sum(1) / there.sum(1).clamp_min(1)), dim=1)


@dataclass(frozen=True, eq=False)
class TinyAligner:
    """An AlignerNetwork with the name it is reported by."""

    name: str
    network: AlignerNetwork

    @property
    def scale(self) -> float:
        """See Aligner."""
        return float(self.network.scale.detach().exp())

    def image(self, pixels: Tensor) -> Tensor:
        """See Aligner."""
        return self.network.image(pixels)

    def text(self, weights: Tensor, mask: Tensor) -> Tensor:
        """See Aligner."""
        return self.network.text(weights, mask)


@dataclass(frozen=True, eq=False)
class ClipAligner:
    """transformers' CLIP. A token of the attacked model stands for the mean of CLIP's tokens of the same characters.

    ``tokens`` (V, d) holds those means; ``start`` and ``end`` (d,) CLIP's marks around a text.
    """

    name: str
    module: Any
    tokens: Tensor
    start: Tensor
    end: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def scale(self) -> float:
        """See Aligner."""
        return float(self.module.logit_scale.detach().exp())

    def image(self, pixels: Tensor) -> Tensor:
        """See Aligner; pictures are resized to CLIP's square, not cropped."""
        side = self.module.config.vision_config.image_size
        resized = F.interpolate(pixels, size=(side, side), mode="bicubic", antialias=True)
        pooled = self.module.vision_model(pixel_values=normalised(resized, self.mean, self.std)).pooler_output
        return F.normalize(self.module.visual_projection(pooled), dim=1)

    def text(self, weights: Tensor, mask: Tensor) -> Tensor:
        """See Aligner; the tokens that are there, between CLIP's marks, read at the mark of the end."""
        tower, rows = self.module.text_model, []
        longest = self.module.config.text_config.max_position_embeddings - 2
        for row, there in zip(weights @ self.tokens, mask, strict=True):
            words = row[there][:longest]
            x = tower.embeddings(inputs_embeds=torch.cat([self.start[None], words, self.end[None]])[None])
            causal = torch.full((x.shape[1],) * 2, float("-inf"), device=x.device, dtype=x.dtype).triu(1)[None, None]
            out = tower.encoder(inputs_embeds=x, attention_mask=causal).last_hidden_state
            rows.append(tower.final_layer_norm(out)[0, -1])
        return F.normalize(self.module.text_projection(torch.stack(rows)), dim=1)


def build_aligner(vocabulary: int, *, seed: int) -> TinyAligner:
    """A tiny one drawn with ``seed``, untrained."""
    torch.manual_seed(seed)
    return TinyAligner(SHIPPED_ALIGNER, AlignerNetwork(AlignerConfig(vocabulary)))


def aligner_told(source: str) -> str:
    """The name, and how often the aligner finds a text among twenty, where its docleak.json says."""
    if source not in SHIPPED_ALIGNERS and not Path(source).expanduser().is_dir():
        return source
    share = model_card(locate(source, what="aligner", shipped=SHIPPED_ALIGNERS, owned=False)[0]).get(FOUND_OF_20)
    if not isinstance(share, float):
        return source
    return f"{source} (by its docleak.json it finds a text of the kind that it learned among 20 in {100 * share:.1f} %)"


def save_aligner(aligner: TinyAligner, directory: Path, card: dict[str, object]) -> None:
    """Write docleak.json (how it was made), model.safetensors and last config.json, each whole or not at all."""
    write_json(directory / "docleak.json", card)
    save_module(directory, MODEL_TYPE, aligner.network.config, aligner.network)


def load_aligner(source: str, tokenizer: Any, *, device: str | torch.device = "cpu") -> Aligner:
    """ "aligner-tiny" (of scenes), "aligner-described", a directory of ours, or a CLIP of transformers (directory or
    hub name).

    "aligner-random" is the tiny one as it was drawn. ``tokenizer`` is the attacked text model's. Raises ModelError if
    there is no such aligner, its towers differ in width, or a tiny one was made for another vocabulary.
    """
    if source == RANDOM_ALIGNER:
        network = build_aligner(len(tokenizer), seed=0).network
        return TinyAligner(source, network.eval().to(device).requires_grad_(False))
    where, revision = locate(source, what="aligner", shipped=SHIPPED_ALIGNERS, owned=False)
    values = config_at(where, revision, source)
    if values.get("model_type") != MODEL_TYPE:
        return _clip(where, revision, source, tokenizer, device)
    network = AlignerNetwork(config_from(AlignerConfig, values, source))
    if network.config.vocabulary != len(tokenizer):
        raise ModelError(
            f"aligner {source!r} was made for {network.config.vocabulary} tokens, the text model has "
            f"{len(tokenizer)}; expected the same tokenizer. Give a CLIP, whose tokens are mapped, by path."
        )
    fill(network, weights_in(where, revision), source=source)
    return TinyAligner(short_name(source), network.eval().to(device).requires_grad_(False))


def _clip(where: str, revision: str | None, source: str, tokenizer: Any, device: str | torch.device) -> ClipAligner:
    import transformers

    expected = f"{SHIPPED_ALIGNER!r}, a directory with a CLIP and its tokenizer, or a hub name that can be reached"
    with loadable(f"aligner {source!r}", expected=expected), quietly():
        module, info = transformers.CLIPModel.from_pretrained(
            where, revision=revision or "main", attn_implementation="eager", dtype=torch.float32, weights_only=True,
            output_loading_info=True, ignore_mismatched_sizes=True,  # told below
        )  # fmt: skip
        clip_tokenizer = tokenizer_of(where, revision=revision)
    _require_clip(source, info, int(module.config.projection_dim))
    require_known(source, [name for name, _ in module.named_parameters()], info["unexpected_keys"])
    module = module.eval().to(device).requires_grad_(False)
    table = module.text_model.embeddings.token_embedding.weight
    settings = image_settings(where, revision=revision)
    start, end = (table[getattr(clip_tokenizer, f"{which}_token_id")] for which in ("bos", "eos"))
    tokens = _mapped(tokenizer, clip_tokenizer, table)
    same = clip_tokenizer.get_vocab() == tokenizer.get_vocab()
    name = short_name(source) + ("" if same else ", its tokens mapped by their characters")
    return ClipAligner(name, module, tokens, start, end, settings.mean, settings.std)


def _require_clip(source: str, info: Mapping[str, Any], width: int) -> None:
    """ModelError unless the weights filled the whole CLIP: what they lack would be drawn at random."""
    faults = [
        f"{name} is of {tuple(shape)}, expected {tuple(wanted)}"
        for name, shape, wanted in sorted(info["mismatched_keys"])
    ]
    faults += [f"{name} is missing" for name in sorted(info["missing_keys"])]
    if faults:
        raise ModelError(
            f"the weights of aligner {source!r} are not those of a CLIP whose two towers end in {width} numbers each, "
            f"as its configuration says:{fault_list(faults)}\nExpected what CLIPModel.save_pretrained wrote."
        )


def _mapped(tokenizer: Any, ours: Any, table: Tensor) -> Tensor:
    """(V, d): each token of ``tokenizer`` as the mean of the embeddings of ``ours``'s tokens of its characters."""
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    rows: Sequence[Sequence[int]] = ours([w.removeprefix("##") for w in words], add_special_tokens=False)["input_ids"]
    return torch.stack([table[list(r)].mean(0) if len(r) else torch.zeros_like(table[0]) for r in rows])


def one_hot(ids: Tensor, vocabulary: int) -> Tensor:
    """(B, T) ids as weights (B, T, V)."""
    return F.one_hot(ids, vocabulary).float()
