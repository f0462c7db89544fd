"""Closed-form recovery of a LayoutLMv3 client's page (docleak): patches, text and boxes by linear algebra.

Of a vision-language model the patches, where its tower has a table of positions.

No optimisation where the algebra determines every private pixel; else GI-DQA's parts (Ben Hemo et al., 2025) go on
from what it gives.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from docleak.attacks.gradients import gi_dqa
from docleak.attacks.gradients.algebra.dominant import recover_dominant
from docleak.attacks.gradients.algebra.layoutlmv3 import recover_pixels, recover_text
from docleak.attacks.gradients.algebra.patches import PATCH_TENSORS, pixels_of_system, require_tensors
from docleak.attacks.gradients.algebra.tower import tower_system
from docleak.attacks.gradients.engine import (
    Finding,
    GradientAttack,
    OnEvaluation,
    explained_share,
    inference_mode_of,
)
from docleak.attacks.gradients.matching import distance_at
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.attacks.protocol import require_evaluations
from docleak.errors import AttackError
from docleak.models.base import Encoded
from docleak.models.vlm.model import VisionLanguage


@dataclass(frozen=True)
class ClosedForm:
    """Recovers pixels by ``recover_pixels``; ``refine`` goes on where some of them are not determined.

    Of several pages each patch's gradient is a sum over the pages. Where one page makes nearly all of it
    (``algebra.dominant``), its picture takes the place of the template that it fits; else the pictures are left to
    ``refine`` from a random start. What the text tables tell is read by ``algebra.batch``. Raises AttackError for other
    architectures and gradients that lack the patches' tensors.
    The text of ``Knowledge`` serves only to say how much of the gradient is explained; where the adversary had to make
    it up, it is recovered too.
    """

    name: str
    paper: str
    summary: str
    refine: GradientAttack = field(default=gi_dqa.PLAIN)

    def run(
        self,
        view: GradientView,
        knowledge: Knowledge,
        *,
        budget: int,
        generator: torch.Generator,
        on_evaluation: OnEvaluation = lambda number, loss, pixels: None,
    ) -> Finding:
        """Recover the private pixels; ``budget`` and ``generator`` serve only where some are not determined."""
        require_evaluations(budget)
        started = time.perf_counter()
        if view.batch_size > 1:
            return self._batch(view, knowledge, budget, generator, on_evaluation)
        if isinstance(view.model, VisionLanguage):
            pixels, determined, _ = pixels_of_system(tower_system(view), knowledge.template, knowledge.private)
        elif not getattr(view.model, "sees", True):  # nothing of the picture is in the gradient
            pixels, determined = knowledge.template, knowledge.private
        else:
            pixels, determined, _ = recover_pixels(view, knowledge.template, knowledge.private)
        known = replace(knowledge, inputs=_inputs(view, knowledge))
        with inference_mode_of(view):
            explained = explained_share(view, known, pixels)
        finding = Finding(pixels, 0.0, explained, 0, 0.0)
        if bool((knowledge.private & ~determined).any()) and budget > self.refine.draws:
            refined = self.refine.run(
                view, known, budget=budget, generator=generator, on_evaluation=on_evaluation, start_at=pixels
            )
            better = refined.explained > explained
            finding = refined if better else replace(refined, pixels=pixels, explained=explained)
        matching = _misfit(view, known, finding.pixels)
        return replace(finding, matching=matching, seconds=time.perf_counter() - started)

    def _batch(
        self,
        view: GradientView,
        knowledge: Knowledge,
        budget: int,
        generator: torch.Generator,
        on_evaluation: OnEvaluation,
    ) -> Finding:
        """The page that outweighs the others, if one does; else optimisation of all pages at once, or the templates as
        they are where the budget does not suffice for it."""
        started = time.perf_counter()
        require_tensors(view, PATCH_TENSORS, one_page=False)
        pixels = _outweighing(view, knowledge)
        if pixels is not None:
            with inference_mode_of(view):
                explained = explained_share(view, knowledge, pixels)
            seconds = time.perf_counter() - started
            return Finding(pixels, _misfit(view, knowledge, pixels), explained, 0, seconds)
        if budget > self.refine.draws:
            return self.refine.run(view, knowledge, budget=budget, generator=generator, on_evaluation=on_evaluation)
        return Finding(knowledge.template, _misfit(view, knowledge, knowledge.template), 0.0, 0, 0.0)


def _outweighing(view: GradientView, knowledge: Knowledge) -> Tensor | None:
    """The templates (B, 3, H, W) with the picture of the page that outweighs the others; None where none does."""
    try:
        dominant = recover_dominant(view, knowledge)
    except AttackError:  # a part of the gradient without the text's tables
        return None
    if not dominant.claimed or dominant.recovered.pixels is None:
        return None
    pixels = knowledge.template.clone()
    pixels[dominant.slot] = dominant.recovered.pixels[0]
    return pixels


def _inputs(view: GradientView, knowledge: Knowledge) -> Sequence[Encoded]:
    """The text to explain the gradient with: what is known, or what the gradient says where that is made up."""
    if knowledge.text_known:
        return knowledge.inputs
    try:
        recovered = recover_text(view, knowledge.template, knowledge.private)
    except AttackError:  # a part of the gradient without the text's tables
        return knowledge.inputs
    return recovered.inputs if recovered.exact or not knowledge.words_known else knowledge.inputs


def _misfit(view: GradientView, knowledge: Knowledge, pixels: Tensor) -> float:
    """The relative distance to the observed gradient."""
    with inference_mode_of(view):
        return distance_at(view, pixels, knowledge.inputs)


ATTACK = ClosedForm(
    name="closed-form",
    paper="docleak",
    summary="patches, tokens and boxes of LayoutLMv3, patches of towers with positions, by linear algebra",
)
