"""Where the answer begins and ends, from the last layer's gradient of a span question-answering client.

With features a_t and probabilities p_t, the gradient of the row that scores first tokens is
c (sum_t p_t a_t - a_start), c > 0, and likewise for last tokens. Everything but the index is known once the input is,
so the index is the one whose direction fits. Only directions are compared: a client may have scaled its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.recovered import Condition
from docleak.attacks.gradients.engine import inference_mode_of
from docleak.attacks.gradients.view import GradientView
from docleak.models.base import Encoded
from docleak.models.tagging import Tagger

HEAD = "qa_outputs.out_proj.weight"
#: A fit counts as sure when its angle's sine is at most this share of the next best one's.
SURE = 0.1


@dataclass(frozen=True)
class Span:
    """First and last token of the answer; ``sines`` (first, last) of the angles left, and of the next best."""

    start: int
    end: int
    sines: tuple[float, float]
    next_sines: tuple[float, float]

    @property
    def sure(self) -> bool:
        return all(best <= SURE * other for best, other in zip(self.sines, self.next_sines, strict=True))


def head_of(view: GradientView) -> str:
    """The weights that score tokens: LayoutLMv3's have a layer before them."""
    known = (HEAD, "qa_outputs.weight", "classifier.out_proj.weight", "classifier.weight")
    return next((name for name in known if name in view.gradient), HEAD)


def recover_span(view: GradientView, pixels: Tensor, example: Encoded, words: Sequence[Sequence[int]]) -> Span:
    """The span of whole words, or token 0 for an answer that is not on the page, that fits best.

    ``pixels`` (1, 3, H, W) in [0, 1] as recovered, ``words`` the token positions of each word. Dropout moves the
    features, so that with it the fit is rough.
    """
    return best_spans(view, pixels, example, words, 1)[0]


def best_spans(
    view: GradientView, pixels: Tensor, example: Encoded, words: Sequence[Sequence[int]], count: int
) -> list[Span]:
    """The ``count`` spans that fit best, or all there are, the best one first."""
    features, scores = _features(view, pixels, example)  # (S, h), (2, S)
    observed = view.gradient[head_of(view)].detach().double().cpu()
    # Rounded as the client's are: where the model is sure, p - 1 is a few roundings of 1.
    mean = scores.log_softmax(-1).exp().double() @ features  # (2, h)
    length = len(example.tensors["input_ids"])
    misfit = torch.stack([_misfit(mean[k] - features[:length], observed[k]) for k in (0, 1)])  # (2, T)
    starts, ends = [0, *(word[0] for word in words)], [0, *(word[-1] for word in words)]
    total = misfit[0][starts][:, None] + misfit[1][ends]  # (W + 1, W + 1)
    allowed = torch.ones_like(total, dtype=torch.bool).triu()
    allowed[0, 1:] = False  # token 0 stands for no answer, first and last alike
    total = total.masked_fill(~allowed, torch.inf)
    pairs = [divmod(int(i), len(ends)) for i in total.flatten().argsort(stable=True)[: min(count, int(allowed.sum()))]]
    return [_span(misfit, (starts, ends), pair) for pair in pairs]


def recover_tags(
    view: GradientView, model: Tagger, pixels: Tensor, example: Encoded, words: Sequence[Sequence[int]]
) -> tuple[Encoded, Condition]:
    """``example`` with the tag of each word, and what speaks for them.

    With features a_t, shares p_t and tags y_t of the first tokens of n words, the weights' gradient is
    1/n sum_t (p_t - y_t) a_tᵀ: linear in the y_t, once the input is known.
    """
    plain = model.tagged(replace(example, tokens=(*example.tokens, "")), [0] * len(words))  # nothing is asked
    features, scores = _features(view, pixels, plain)
    places = [word[0] for word in words]
    read, shares = features[places], scores.T[places].log_softmax(-1).exp().double()  # (n, h), (n, C)
    observed = view.gradient[head_of(view)].detach().double().cpu()
    told = torch.linalg.lstsq(read.T, (shares.T @ read - len(places) * observed).T).solution  # (n, C)
    best = told.argmax(1)
    left = float((told - torch.nn.functional.one_hot(best, told.shape[1])).abs().max())
    tags = [model.rows.index(int(label)) for label in best]
    fit = f"{len(places)} words, {read.shape[1]} numbers each; tags are whole to {left:.1e}"
    return model.tagged(plain, tags), Condition("one tag for each word fits the last layer's rows", fit, left <= SURE)


def _span(misfit: Tensor, places: tuple[Sequence[int], Sequence[int]], pair: tuple[int, int]) -> Span:
    sines, others = zip(*(_best_two(m[c], i) for m, c, i in zip(misfit, places, pair, strict=True)), strict=True)
    return Span(places[0][pair[0]], places[1][pair[1]], sines, others)


def _features(view: GradientView, pixels: Tensor, example: Encoded) -> tuple[Tensor, Tensor]:
    """Inputs (S, h) of the scoring layer over text and patches, and its scores (2, S)."""
    kept: dict[str, Tensor] = {}

    def keep(_: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kept["features"], kept["scores"] = inputs[0][0], output[0].T

    layer = view.model.module.get_submodule(head_of(view).removesuffix(".weight"))
    handle = layer.register_forward_hook(keep)
    try:
        with torch.no_grad(), inference_mode_of(view):
            view.model.loss(pixels, [example])
    finally:
        handle.remove()
    return kept["features"].double().cpu(), kept["scores"].cpu()


def _misfit(directions: Tensor, observed: Tensor) -> Tensor:
    """1 - cosine, (T,), between the directions (T, h) and the observed row (h,)."""
    sizes = (directions.norm(dim=1) * observed.norm()).clamp_min(1e-300)
    cosine: Tensor = directions @ observed / sizes
    return (1 - cosine).clamp_min(0)


def _best_two(misfit: Tensor, chosen: int) -> tuple[float, float]:
    """Sine of the chosen index's angle and the smallest of the others'; 1 - cos x is about sin² x / 2."""
    others = torch.cat([misfit[:chosen], misfit[chosen + 1 :], misfit.new_tensor([2.0])])
    return float((2 * misfit[chosen]).sqrt()), float((2 * others.min()).sqrt())
