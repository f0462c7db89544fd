"""Initialisations for the start of federated training in which position matters.

At the libraries' default initialisation (standard deviation 0.02, zero relative-position bias) a
small transformer is nearly linear in the mean of its patches, and the gradient hardly depends on
where the ink is. ``spread`` draws every matrix with fan-in variance and gives the position tables
the size of the contents they are added to. ``spread_reader`` does the same for a T5 reader, and lays out
its attention so that it copies what it has begun to copy.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from docleak.errors import ModelError

#: Of the tiny LayoutLMv3.
HEAD_WIDTH = 32


@torch.no_grad()
def spread(module: nn.Module, *, generator: torch.Generator) -> None:
    """Re-initialise in place: matrices N(0, 0.7²/fan_in), position tables N(0, 1), biases 0.

    Embedding tables that stand alone (tokens, absolute positions, boxes) are drawn as
    N(0, 1/width), so that the logits of a tied output layer start at unit size.
    """
    for name, parameter in module.named_parameters():
        if "relative_position_bias_table" in name:
            parameter.normal_(0.0, 1.0, generator=generator)
        elif (
            ".rel_pos" in name and "bias" in name
        ):  # LayoutLMv3 divides these by sqrt(head width), and never trains them
            parameter.normal_(0.0, math.sqrt(HEAD_WIDTH), generator=generator)
        elif name.endswith(("cls_token", "pos_embed")):
            parameter.normal_(0.0, 0.5, generator=generator)
        elif "embed" in name and parameter.ndim == 2:
            parameter.normal_(0.0, 1.0 / math.sqrt(parameter.shape[1]), generator=generator)
        elif parameter.ndim >= 2:
            parameter.normal_(0.0, 0.7 / math.sqrt(parameter[0].numel()), generator=generator)
        elif name.endswith("bias"):
            parameter.zero_()


#: T5's buckets of relative positions: this token, the one before it, the one after it, the second before it.
HERE, BEFORE, SECOND_BEFORE, AFTER = 0, 1, 2, 17


@torch.no_grad()
def spread_reader(module: Any, *, generator: torch.Generator, local: float = 7.0, sharpness: float = 0.7) -> None:
    """Re-initialise a ``T5Network`` in place: T5's own scales, filled position tables, and a circuit that copies.

    Matrices are N(0, 0.7²/fan_in), half of that where they write into T5's residual stream; queries and tokens are as
    in T5 (it does not scale attention scores, and the tokens' vectors are the output layer too), coordinates sine
    waves, biases 0; some heads get ``local`` added at one offset.
    The circuit, of random orthogonal maps: encoder heads that look one token back note a rotated copy of it, and the
    last decoder layer looks for the token whose note is the token just written, and passes it on unchanged. Nothing of
    it knows a page or a question: what is to be copied, and how far, is left to training. ModelError for a width that
    is not heads * head width, and for fewer than 4 heads.
    """
    t5 = module.t5
    heads, width, head = t5.config.num_heads, t5.config.d_model, t5.config.d_kv
    if heads < 4 or heads * head != width:
        raise ModelError(
            f"spread weights of a T5 need 4 heads or more that fill its width; found {heads} of {head} in {width}. "
            "Draw the default weights."
        )
    for name, parameter in module.named_parameters():
        if name.endswith(".bias"):
            parameter.zero_()
        elif "relative_attention_bias" in name:
            parameter.normal_(0.0, 0.3, generator=generator)
            looks = (BEFORE, BEFORE, AFTER, SECOND_BEFORE) if "encoder" in name else (HERE, BEFORE, SECOND_BEFORE)
            parameter[list(looks), list(range(len(looks)))] += local
        elif name == "t5.shared.weight":
            parameter.normal_(0.0, 1.0, generator=generator)
        elif name in ("spatial.x.weight", "spatial.y.weight"):
            waves = _waves(*parameter.shape)
            parameter.copy_(waves if ".x." in name else waves @ _orthogonal(waves.shape[1], generator))
        elif name.endswith(("cls_token", "position_embeddings")):
            parameter.normal_(0.0, 0.5, generator=generator)
        elif name.endswith("Attention.q.weight"):
            parameter.normal_(0.0, 1 / math.sqrt(t5.config.d_model * t5.config.d_kv), generator=generator)
        elif parameter.ndim >= 2:
            gain = 0.35 if name.startswith("t5.") and name.endswith((".o.weight", ".wo.weight")) else 0.7
            parameter.normal_(0.0, gain / math.sqrt(parameter[0].numel()), generator=generator)
    notes = t5.encoder.block[0].layer[0].SelfAttention
    notes.v.weight.copy_(_orthogonal(t5.config.d_model, generator))
    notes.o.weight.copy_(2 * _orthogonal(t5.config.d_model, generator))
    for block in t5.decoder.block:
        cross = block.layer[1].EncDecAttention
        cross.v.weight.copy_(_orthogonal(t5.config.d_model, generator))
        cross.o.weight.copy_(cross.v.weight.T)
    last, looking = t5.decoder.block[-1].layer[1].EncDecAttention, 2 * t5.config.d_kv
    last.q.weight[:looking] = sharpness * notes.v.weight[:looking]
    last.k.weight[:looking] = sharpness / 2 * notes.o.weight[:, :looking].T


def _orthogonal(width: int, generator: torch.Generator) -> Tensor:
    q, _ = torch.linalg.qr(torch.empty(width, width).normal_(generator=generator))
    return cast(Tensor, q)


def _waves(count: int, width: int) -> Tensor:
    """(count, width): sines and cosines of half a turn to 128 turns, so that near positions look alike."""
    turns = 2 ** torch.linspace(-1, 7, width // 2)
    angle = 2 * torch.pi * turns * torch.arange(count)[:, None] / count
    return torch.cat([angle.sin(), angle.cos()], 1)
