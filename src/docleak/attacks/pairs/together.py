"""The composition behind every pair attack: an image attack, a text attack, and what joins them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from docleak.attacks.gradients.engine import Finding, Guide, inference_mode_of
from docleak.attacks.gradients.matching import dummy_of
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.attacks.pairs.align import Refinement, align, partners, pull, similarity
from docleak.attacks.pairs.labels import labels_of
from docleak.attacks.pairs.matching import quality
from docleak.attacks.pairs.sentence import Sentences
from docleak.attacks.pairs.span import SpanText
from docleak.attacks.pairs.text import TextAttack
from docleak.attacks.pairs.view import PairKnowledge, PairView, inputs_of
from docleak.errors import AttackError, refuse, those
from docleak.models.base import Encoded
from docleak.models.pair.model import MODALITIES, Modality

#: Called with a modality, its evaluations so far, and its budget.
OnProgress = Callable[[str, int, int], None]
#: Classes of the pictures, and of the texts.
Labels = tuple[tuple[int, ...], tuple[int, ...]]
#: Made-up pictures and texts whose outputs stand in for the batch's, to count its classes.
PROBES = 8


@runtime_checkable
class ImageAttack(Protocol):
    """What a pair attack needs of the attack on its pictures: see GradientAttack."""

    @property
    def name(self) -> str: ...

    def run(
        self,
        view: GradientView,
        knowledge: Knowledge,
        *,
        budget: int,
        generator: torch.Generator,
        start_at: Tensor | None = None,
        guide: Guide | None = None,
    ) -> Finding: ...


@dataclass(frozen=True)
class Round:
    """One turn of the outer loop: qualities after stage 1 (eq. 6), similarity before and after stage 2 (eq. 11)."""

    image_quality: float
    text_quality: float
    before: float
    after: float


@dataclass(frozen=True)
class PairFinding:
    """``pixels`` (B, 3, H, W) in [0, 1], one text per example and its tokens; row i of all belong together.

    ``labels`` are the classes read out of the gradient, of pictures and of texts; ``image_seconds`` and so on say where
    the time went; qualities are eq. 6's, the attack's own confidence.
    """

    pixels: Tensor
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    labels: Labels
    image_quality: float
    text_quality: float
    image_evaluations: int
    text_evaluations: int
    image_seconds: float
    text_seconds: float
    align_seconds: float
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True)
class PairAttack:
    """``refine`` None runs both single-modal attacks side by side; else they are MMGIA's stage 1."""

    name: str
    paper: str
    summary: str
    image: ImageAttack
    text: TextAttack | SpanText
    refine: Refinement | None = None

    @property
    def least_budget(self) -> int:
        """The fewest gradient evaluations of a modality with which it can begin: four for each round."""
        return 4 * (self.refine.rounds if self.refine else 1)

    def run(
        self,
        view: PairView,
        knowledge: PairKnowledge,
        *,
        budget: int,
        generator: torch.Generator,
        on_progress: OnProgress = lambda modality, done, budget: None,
    ) -> PairFinding:
        """Reconstruct with at most ``budget`` gradient evaluations of each modality.

        Raises AttackError for counts of texts and pictures that differ, a budget too small for the rounds, and a
        refinement without an aligner.
        """
        faults = those(
            (len(knowledge.lengths) != view.batch_size,
             f"{len(knowledge.lengths)} texts for {view.batch_size} pictures; expected as many"),
            (budget < self.least_budget,
             f"budget {budget} is too small; expected {self.least_budget} evaluations or more per modality"),
            (self.refine is not None and knowledge.aligner is None,
             "no aligner was given; MMGIA's second stage needs one"),
        )  # fmt: skip
        refuse(AttackError, faults, f"attack {self.name!r} cannot be run: ")
        return _Chase(self, view, knowledge, budget, generator, on_progress).run()


@dataclass(eq=False)
class _Chase:
    """State of one run: what is held to be the best of each modality, and where the next round begins."""

    attack: PairAttack
    view: PairView
    knowledge: PairKnowledge
    budget: int
    generator: torch.Generator
    on_progress: OnProgress

    def __post_init__(self) -> None:
        self.sentences = Sentences.of(self.view.model, self.knowledge.lengths, self.knowledge.words)
        width, height = self.view.model.image_size
        self.size = (self.view.batch_size, 3, height, width)
        self.labels = self._labels()
        self.used: dict[Modality, int] = {"image": 0, "text": 0}
        self.seconds = {"image": 0.0, "text": 0.0, "align": 0.0}
        self.best: dict[Modality, tuple[float, Tensor]] = {}
        self.next: dict[Modality, Tensor | None] = {"image": None, "text": None}
        self.rounds: list[Round] = []

    def run(self) -> PairFinding:
        refine = self.attack.refine
        if refine is not None and refine.how == "prior":
            self._joint(refine)
            return self._finding(self._quality("image"), self._quality("text"))
        ends = [self.budget] if refine is None else _ends(self.budget, refine.rounds, refine.first)
        reached = False
        for number, end in enumerate(ends):
            for modality in MODALITIES:
                self._advance(modality, self.budget if reached else end)
            if refine is None or reached or number == len(ends) - 1:
                break
            reached = self._stage_two(refine)
        return self._finding(self._quality("image"), self._quality("text"))

    def _labels(self) -> Labels:
        """Both modalities' classes, from the gradient alone; the model's usual outputs come from made-up inputs."""
        model, count = self.view.model, PROBES
        probes = torch.rand((count, *self.size[1:]), generator=self.generator).to(model.device)
        with torch.no_grad():
            image = model.module.image_logits(model.normalise(probes))
            words = self.sentences.start(self.generator, count)
            text = torch.cat(
                [model.module.text_logits(self.sentences.embeddings(w), self.sentences.mask) for w in words]
            )
            if model.module.fused:
                image = image + text.mean(0)
        usual = image.softmax(1).mean(0), text.softmax(1).mean(0)
        return labels_of(self.view, "image", usual[0]), labels_of(self.view, "text", usual[1])

    def _side(self, modality: Modality) -> GradientView:
        """The gradient of one modality; a fused model's other half is what is held of it now, or grey and noughts."""
        model = self.view.model
        if not model.module.fused:
            return self.view.side(modality)
        if modality == "text":
            grey = torch.full(self.size, 0.5, device=model.device)
            return self.view.side("text", model.other_logits("image", self._held("image", grey), self.sentences.mask))
        plain = self.sentences.embeddings(
            self.sentences.fixed.new_zeros(int(self.sentences.free.sum()) * self.sentences.width)
        )
        return self.view.side("image", model.other_logits("text", self._held("text", plain), self.sentences.mask))

    def _held(self, modality: Modality, otherwise: Tensor) -> Tensor:
        return self.best[modality][1] if modality in self.best else otherwise

    def _inputs(self, modality: Modality) -> list[Encoded]:
        return inputs_of(self.labels[0]) if modality == "image" else inputs_of(self.labels[1], self.sentences.mask)

    def _advance(self, modality: Modality, end: int, guide: Guide | None = None) -> None:
        """One attack up to ``end`` evaluations; what matches the gradient best so far is held. ``guide`` is added to
        its objective."""
        began, left = time.perf_counter(), end - self.used[modality]
        advance = self._image if modality == "image" else self._text
        x, loss, used, labels = advance(left, guide)
        self.used[modality] += used
        if modality not in self.best or loss < self.best[modality][0]:
            self.best[modality], self.labels = (loss, x), labels
        self.seconds[modality] += time.perf_counter() - began
        self.on_progress(modality, self.used[modality], self.budget)

    def _image(self, budget: int, guide: Guide | None) -> tuple[Tensor, float, int, Labels]:
        template = torch.full(self.size, 0.5, device=self.view.model.device)
        private = torch.ones(self.size[0], *self.size[2:], dtype=torch.bool, device=template.device)
        known = Knowledge(template, private, self._inputs("image"))
        finding = self.attack.image.run(
            self._side("image"), known, budget=budget, generator=self.generator, start_at=self.next["image"],
            guide=guide,
        )  # fmt: skip
        return finding.pixels, finding.matching, finding.evaluations, self.labels

    def _text(self, budget: int, guide: Guide | None) -> tuple[Tensor, float, int, Labels]:
        span = (self.used["text"] / self.budget, (self.used["text"] + budget) / self.budget)
        finding = self.attack.text.run(
            self._side("text"), self._inputs("text"), self.sentences, budget=budget, generator=self.generator,
            language=self.knowledge.language, start_at=self.next["text"], progress=span, guide=guide,
        )  # fmt: skip
        labels = (self.labels[0], finding.labels or self.labels[1])
        return finding.embeddings, finding.matching, finding.evaluations, labels

    def _joint(self, refine: Refinement) -> None:
        """Stage 2 inside stage 1: the text leads the picture, which is made in one go, and it then leads the text."""
        aligner, sentences = self.knowledge.aligner, self.sentences
        assert aligner is not None

        def text_of(embeddings: Tensor) -> Tensor:
            return aligner.text(sentences.weights(embeddings, refine.temperature), sentences.free)

        self._advance("text", max(1, round(self.budget * refine.first)))
        target = text_of(self.best["text"][1]).detach()
        trust = self._quality("text") if refine.target == "fused" else 0.5
        weight, noise = refine.strength * aligner.scale * max(0.0, trust), self.view.noise**2
        guide = partial(pull, target=target, labels=self.labels, weight=weight, open_variance=noise)
        self._advance("image", self.budget, lambda pixels: guide(aligner.image(pixels)))
        before = similarity(aligner, sentences, self.best["image"][1], self.best["text"][1], refine.temperature)
        self._pair(before)
        seen = aligner.image(self.best["image"][1]).detach()
        qualities = self._quality("image"), self._quality("text")
        trust = qualities[0] if refine.target == "fused" else 0.5
        numbers = sum(value.numel() for value in self._side("text").gradient.values())
        back = partial(
            pull, target=seen, labels=(self.labels[1], self.labels[0]), open_variance=self.best["text"][0] / numbers,
            weight=refine.strength * aligner.scale * max(0.0, trust),
        )  # fmt: skip
        self.next["text"] = self.best["text"][1]
        self._advance("text", self.budget, lambda embeddings: back(text_of(embeddings)))
        near = similarity(aligner, sentences, self.best["image"][1], self.best["text"][1], refine.temperature)
        self.rounds.append(Round(*qualities, float(before.diagonal().mean()), float(near.diagonal().mean())))

    def _pair(self, near: Tensor) -> None:
        """Put the held pictures in the order of the texts they go with, by similarities (B, B)."""
        if self.view.batch_size == 1:
            return
        columns = partners(near, self.labels)
        rows = sorted(range(len(columns)), key=columns.__getitem__)  # the picture of each text
        self.labels = (tuple(self.labels[0][r] for r in rows), self.labels[1])
        self.best["image"] = (self.best["image"][0], self.best["image"][1][rows])

    def _stage_two(self, refine: Refinement) -> bool:
        """Align what is held; the next round begins there. Returns whether the threshold is reached."""
        assert self.knowledge.aligner is not None
        qualities = self._quality("image"), self._quality("text")
        began = time.perf_counter()
        near = similarity(
            self.knowledge.aligner, self.sentences, self.best["image"][1], self.best["text"][1], refine.temperature
        )
        self._pair(near)
        pixels, embeddings = self.best["image"][1], self.best["text"][1]
        alignment = align(refine, self.knowledge.aligner, self.sentences, pixels, embeddings, qualities)
        self.next = {"image": alignment.pixels, "text": alignment.embeddings}
        self.rounds.append(Round(*qualities, alignment.before, alignment.after))
        self.seconds["align"] += time.perf_counter() - began
        return alignment.after >= refine.threshold

    def _quality(self, modality: Modality) -> float:
        """Eq. 6 of what is held. It is the distance that stage 1 has just computed, in other units: not counted."""
        side = self._side(modality)
        with inference_mode_of(side):
            dummy = dummy_of(side, self.best[modality][1], self._inputs(modality), create_graph=False)
            return quality(side, side.as_sent(dummy))

    def _finding(self, image_quality: float, text_quality: float) -> PairFinding:
        tokenizer = self.view.model.tokenizer
        rows = self.sentences.tokens(self.best["text"][1])
        return PairFinding(
            self.best["image"][1], tuple(tokenizer.decode(row) for row in rows),
            tuple(map(tuple, rows)), self.labels, image_quality,
            text_quality, self.used["image"], self.used["text"], self.seconds["image"], self.seconds["text"],
            self.seconds["align"], tuple(self.rounds),
        )  # fmt: skip


def _ends(budget: int, rounds: int, first: float) -> list[int]:
    """After how many evaluations each round of stage 1 ends: ``first`` of the budget, then equal parts."""
    if rounds == 1:
        return [budget]
    begin = max(1, round(budget * first))
    return [begin + round((budget - begin) * number / (rounds - 1)) for number in range(rounds)]
