"""Text and picture together (docleak): GI-DQA (Ben Hemo et al., 2025) that begins where the known words would stand.

MMGIA's idea of two stages, on document models: the text of the client's input, which the threat model grants or linear
algebra reads out of the gradient (``algebra``), is drawn onto the blank template; the gradient tells, in a few
evaluations, in which typeface, how dark, and, where the model is given no boxes, at which place. The picture is then
optimised from there instead of from noise.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from docleak.attacks.gradients import gi_dqa
from docleak.attacks.gradients.algebra.recover import recover
from docleak.attacks.gradients.canvas import Canvas
from docleak.attacks.gradients.engine import (
    Finding,
    GradientAttack,
    OnEvaluation,
    explained_share,
    inference_mode_of,
)
from docleak.attacks.gradients.joint.drawing import (
    Ink,
    Line,
    Way,
    boxes_of,
    dressed,
    faces,
    ink_of,
    other_weights,
    private_lines,
    rank,
    regions,
    set_in,
    touched,
)
from docleak.attacks.gradients.matching import dummy_of, relative
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.attacks.protocol import require_evaluations
from docleak.errors import AttackError
from docleak.spec import Said

#: The grey that is tried first: print is black, and what is scanned and scaled down has thinner ink.
FIRST: dict[Way, float] = {"printed": 0.0, "scanned": 0.75}


@dataclass(frozen=True)
class Drawing:
    """Lines, each in its look, with ink of one grey, on one page of the batch."""

    page: int
    lines: tuple[Line, ...]
    grey: float


@dataclass(frozen=True)
class JointAttack:
    """Draws the known words, and lets ``refine`` go on from there; None leaves the words as they are drawn.

    Tried are the ``looks`` that fit the boxes best, the ``greys`` (0 is black) of the best of them, and, for an answer
    whose place is not known, ``places``; each try is one of the budget's evaluations, and counts as much as one of
    ``refine``'s, though it needs no second derivative. Private places without words begin at random, as in ``refine``.
    A drawing that explains ``enough`` of the gradient is not optimised, and one that explains more than what follows
    stays. Of ``typefaces`` only those are tried (empty: all that are installed). With ``keep_words`` the words stay as
    they were drawn, and what was optimised is shown in the other places only: easier to read than the page itself where
    that is faint, and further from its pixels.
    """

    name: str
    paper: str
    summary: str
    refine: GradientAttack | None = field(default=gi_dqa.PLAIN)
    looks: int = 3
    greys: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 0.9)
    places: int = 6
    enough: float = 0.9999
    typefaces: tuple[str, ...] = ()
    keep_words: Annotated[bool, Said("words", {"kept": True})] = False

    def __post_init__(self) -> None:
        if self.typefaces and (unknown := set(self.typefaces) - set(faces())):
            raise AttackError(
                f"attack {self.name!r}: typefaces={'+'.join(sorted(unknown))} is not installed; expected "
                f"typefaces=NAME+NAME, of {', '.join(faces())}."
            )

    def run(
        self,
        view: GradientView,
        knowledge: Knowledge,
        *,
        budget: int,
        generator: torch.Generator,
        on_evaluation: OnEvaluation = lambda number, loss, pixels: None,
    ) -> Finding:
        """Reconstruct the private pixels with at most ``budget`` gradient evaluations, with those of the drawing."""
        require_evaluations(budget)
        started = time.perf_counter()
        known = text_of(view, knowledge)
        with inference_mode_of(view):
            easel = Easel(view, known, budget - self._reserve, self.typefaces or faces(), on_evaluation)
            for page in range(view.batch_size):
                self._draw(easel, page)
            drawn = easel.picture(easel.chosen)
            explained = explained_share(view, known, drawn)
            if self.refine is None or explained > self.enough or budget - easel.evaluations <= self._draws:
                return Finding(drawn, easel.best, explained, easel.evaluations, time.perf_counter() - started)
            start, there = easel.start(self.refine, generator)
        finding = self.refine.run(
            view, known, budget=budget - easel.evaluations, generator=generator, start_at=start,
            on_evaluation=lambda number, loss, pixels: on_evaluation(number + easel.evaluations, loss, pixels),
        )  # fmt: skip
        history = tuple((number + easel.evaluations, loss) for number, loss in finding.history)
        if finding.explained < explained:  # the drawing was better, by all that the adversary can tell
            finding = replace(finding, pixels=drawn, explained=explained, matching=easel.best)
        if self.keep_words:
            pixels = torch.where(there[:, None], drawn, finding.pixels)
            with inference_mode_of(view):
                finding = replace(finding, pixels=pixels, explained=explained_share(view, known, pixels))
        evaluations, seconds = finding.evaluations + easel.evaluations, time.perf_counter() - started
        return replace(finding, evaluations=evaluations, seconds=seconds, history=history)

    @property
    def _draws(self) -> int:
        """Evaluations that the refining attack spends before it begins."""
        return 0 if self.refine is None else self.refine.draws

    @property
    def _reserve(self) -> int:
        """Evaluations that drawing leaves to the refining attack, if the budget has them."""
        return 0 if self.refine is None else self._draws + 1

    def _draw(self, easel: Easel, page: int) -> None:
        """Find the page's words their look, or its answer a place and a look; then the grey of the ink."""
        transcript = easel.view.model.transcript(easel.knowledge.inputs[page])
        lines = private_lines(transcript, easel.knowledge.private[page])
        if transcript.words and lines:
            ranked = rank(lines, stretched=True, tried=easel.typefaces)[: self.looks]
            first, *others = [
                Drawing(page, dressed(lines, look, easel.typefaces), FIRST[look.way]) for look, _ in ranked
            ]
            easel.begin(first)  # where each word stands is known, so blank paper is no choice
            easel.try_all(others)
        else:
            places = easel.placings(page, transcript.answer)[: self.places]
            easel.try_all(looks[0] for looks in places)
            there = easel.chosen.get(page)
            easel.try_all(look for looks in places if looks[0] is there for look in looks[1 : self.looks])
        if page in easel.chosen:
            best = easel.chosen[page]
            easel.try_all(replace(best, grey=grey) for grey in self.greys if grey != best.grey)
            easel.try_weights(page)


def text_of(view: GradientView, knowledge: Knowledge) -> Knowledge:
    """The knowledge with the text that the gradient gives away, where the adversary had to make it up."""
    if knowledge.text_known:
        return knowledge
    try:
        recovered = recover(view, knowledge)
    except AttackError:  # no closed form for this model, this batch, or this part of the gradient
        return knowledge
    return replace(knowledge, inputs=recovered.inputs, text_recovered=True)


class Easel:
    """The page as it is drawn so far, and how far its gradient is from the observed one.

    ``chosen`` holds one drawing per page that has one; ``best`` is the relative distance with them, at first that of
    the blank template. At most ``limit`` evaluations are spent.
    """

    def __init__(
        self, view: GradientView, knowledge: Knowledge, limit: int, typefaces: Sequence[str], report: OnEvaluation
    ) -> None:
        self.typefaces = typefaces
        self.view, self.knowledge, self.limit, self.report = view, knowledge, limit, report
        self.distance = relative(view)
        self.evaluations = 0
        self.chosen: dict[int, Drawing] = {}
        self.best = float("inf")
        if limit > 0:
            self.best = self._measure(knowledge.template)

    def begin(self, drawing: Drawing) -> None:
        """Take this drawing, whatever its distance."""
        self.chosen[drawing.page] = drawing
        self.best = self._measure(self.picture(self.chosen)) if self.evaluations < self.limit else self.best

    def try_all(self, options: Iterable[Drawing]) -> None:
        """Take the option whose gradient is nearest, if it is nearer than what is chosen."""
        for option in options:
            if self.evaluations >= self.limit:
                return
            tried = {**self.chosen, option.page: option}
            distance = self._measure(self.picture(tried))
            if distance < self.best:
                self.best, self.chosen = distance, tried

    def try_weights(self, page: int) -> None:
        """Each printed line of a page also in the other weight of its typeface, the longest lines first."""
        order = sorted(range(len(self.chosen[page].lines)), key=lambda n: -len(self.chosen[page].lines[n].words))
        for number in order:
            drawing = self.chosen[page]
            others = other_weights(drawing.lines[number], self.typefaces)
            around = drawing.lines[:number], drawing.lines[number + 1 :]
            self.try_all([replace(drawing, lines=(*around[0], line, *around[1])) for line in others])

    def picture(self, drawings: dict[int, Drawing]) -> Tensor:
        """The templates (B, 3, H, W) with these drawings in their private places."""
        pixels = self.knowledge.template.clone()
        for page, drawing in drawings.items():
            ink = torch.from_numpy(self._ink(drawing)).to(pixels) * self.knowledge.private[page]
            pixels[page] = pixels[page] * (1 - ink) + drawing.grey * ink
        return pixels

    def start(self, attack: GradientAttack, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Where to begin (B, 3, H, W), and where of that is drawn (B, H, W).

        Elsewhere private pixels are random, on a drawn page as light as its words are on average.
        """
        template, private = self.knowledge.template, self.knowledge.private
        canvas = Canvas.of(template, private, region=attack.region, grey=attack.grey)
        pixels = canvas.pixels(canvas.start(attack.chosen(self.view)[0], generator))
        drawn = self.picture(self.chosen)
        there = torch.zeros_like(private)
        for page, drawing in self.chosen.items():
            ink = self._ink(drawing)
            there[page] = touched(private[page], ink)
            dark = 2 * (1 - drawing.grey) * float(ink[there[page].cpu().numpy()].mean())
            light = template[page] * (1 - min(dark, 1.0) * (1 - pixels[page]))
            pixels[page] = torch.where(private[page], light, template[page])
        return torch.where(there[:, None], drawn, pixels), there

    def placings(self, page: int, text: str) -> list[list[Drawing]]:
        """``text`` in each private place of a page, best fitting first; for each its looks, best fitting first."""
        private = self.knowledge.private[page]
        if not text.split():
            return []
        places = []
        for box in boxes_of(regions(private), (private.shape[0], private.shape[1])):
            looks = []
            for face in self.typefaces:
                line = set_in(box, text, face)
                look, misfit = rank([line], stretched=False, tried=[face])[0]
                drawing = Drawing(page, (replace(line, look=look),), FIRST[look.way])
                looks.append((look.way != "printed", misfit, drawing))
            places.append(sorted(looks, key=lambda item: item[:2]))
        places.sort(key=lambda place: place[0][:2])
        return [[drawing for _, _, drawing in place] for place in places]

    def _ink(self, drawing: Drawing) -> Ink:
        height, width = self.knowledge.private.shape[1:]
        return ink_of(drawing.lines, (height, width))

    def _measure(self, pixels: Tensor) -> float:
        dummy = dummy_of(self.view, pixels, self.knowledge.inputs, create_graph=False)
        distance = float(self.distance(self.view.as_sent(dummy)))
        self.evaluations += 1
        self.report(self.evaluations, distance, pixels)
        return distance if np.isfinite(distance) else float("inf")


ATTACK = JointAttack(
    name="gi-dqa-joint",
    paper="docleak, after Ben Hemo et al. (2025)",
    summary="GI-DQA from a start with the known words drawn into their places",
)
WORDS = JointAttack(
    name="words-drawn",
    paper="docleak",
    summary="the known words drawn onto the template, no pixel optimised: what the text alone shows",
    refine=None,
)
