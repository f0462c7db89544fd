"""Was this page, or provider, in this update? By projection residual (ProjRes, arXiv 2604.21197) and by alignment.

ProjRes is read by its abstract. The gradient of a linear layer lies in the span of what went into it. So the page's
own gradient, which whoever has the weights can compute, lies in the span of a client's update if the page was in its
batch: the *residual* is what is left of it outside. *Alignment* needs no free width: the cosine of the update with the
step that the page alone would cause. A provider is asked about by the mean over several pages of it. Decisions are made
against pages that the adversary knows to be out; the loss of the page, which sees no update, stands beside both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from docleak.attacks.gradients.algebra.first_layer import Sent
from docleak.attacks.gradients.algebra.subspace import Rows, Subspace
from docleak.documents import Page
from docleak.documents.names import provider_key
from docleak.errors import AttackError
from docleak.metrics.estimate import Estimate
from docleak.models import DocumentModel, pixels_of, trainable
from docleak.report.page import Reading
from docleak.runs.run import Run
from docleak.studies.presence.config import PresenceConfig
from docleak.studies.presence.reading import OTHERS, SCORES, read_presence
from docleak.studies.presence.turns import MadeTurns, RecordedTurns, Turn, Turns
from docleak.studies.study import Study, Tell, Unit
from docleak.training.update import client_gradient

#: Root mean square error of rounding to bfloat16, as a share of the number.
BFLOAT16 = 2.0**-9 / 3**0.5


class PresenceStudy(Study[PresenceConfig]):
    """A unit is one round: an update, the pages in it, as many others, and controls."""

    kind = "presence"
    Config = PresenceConfig

    @cached_property
    def turns(self) -> Turns:
        """Where updates come from."""
        return (RecordedTurns if self.config.updates else MadeTurns)(self.config, device=self.device)

    @property
    def model(self) -> DocumentModel:
        """As the clients receive it."""
        return self.turns.model

    def check(self, say: Callable[[str], None]) -> None:
        """What the updates can be known to lack."""
        self.turns.check(say)

    def identity(self) -> dict[str, str]:
        """Weights, and pages."""
        return self.turns.identity()

    def units(self) -> list[Unit]:
        """One an update."""
        return [Unit(name, what=number) for number, name in enumerate(self.turns.names)]

    def facts(self) -> dict[str, Any]:
        """The layer that is looked at, and what a classifier tells that sees neither model nor update."""
        blind, layer = self.blind, self._layer(self.turns.turn(0).sent)
        return {"layer": layer, **({"blind": blind.to_json()} if blind else {}), **self.turns.facts()}

    @property
    def blind(self) -> Estimate | None:
        """AUC of no model; None for too few to train a classifier on."""
        from docleak.metrics.blind import FOLDS, blind_auc

        asked = self.turns.asked()
        inside = np.array([held for _, held in asked])
        if min(inside.sum(), (~inside).sum()) < FOLDS:
            return None
        return blind_auc([(*one.pages, *one.others) for one, _ in asked], inside, seed=self.config.seed)

    def _layer(self, sent: Sent) -> str:
        """The linear layer's weight that has most room beside what the update spans."""
        linear = {f"{name}.weight" for name, part in self.model.module.named_modules() if isinstance(part, nn.Linear)}
        weights = [name for name, _ in trainable(self.model.module) if name in linear]
        if self.config.layer:
            if self.config.layer not in weights:
                raise AttackError(
                    f"model {self.model.name!r} trains no linear layer's weight {self.config.layer!r}; it trains "
                    f"{', '.join(weights[:5])} ... Leave out --layer to take the one with most room."
                )
            return self.config.layer
        spaces = {name: self._space(sent, name) for name in weights if name in sent.update}
        room = {name: space.width - space.rank for name, space in spaces.items() if space.rank}
        if not room:
            raise AttackError(
                "no linear layer moved: these are LoRA's first step (take --warm-up 2), or everything is frozen."
            )
        return max(room, key=lambda name: room[name])

    def _space(self, sent: Sent, name: str) -> Subspace:
        values = sent.update[name].double()
        noise = torch.as_tensor(sent.noise.get(name, 0.0), dtype=torch.float64)
        if self.config.precision == "bfloat16":
            noise = noise + BFLOAT16 * values.abs()
        return Subspace.of([Rows(values, noise.expand(values.shape).square().mean(1).sqrt())])

    def _scores(self, page: Page, turn: Turn, layer: str, space: Subspace) -> dict[str, float]:
        """Higher says "in": minus the logarithm of the residual, the cosine, minus the loss."""
        page = self.model.fit(page)
        pixels, inputs = pixels_of(page.image, self.device)[None], [self.model.encode(page, page.questions[0])]
        gradient = client_gradient(self.model, pixels, inputs)
        rows = gradient[layer].double().cpu()
        outside = (rows - rows @ space.directions.T @ space.directions).norm() / rows.norm().clamp_min(1e-300)
        with torch.no_grad():
            loss = float(self.model.loss(pixels, inputs))
        return {
            "residual": -float(outside.clamp_min(1e-12).log()),
            "alignment": _cosine(gradient, turn),
            "loss": -loss,
        }

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Any]]:
        """Scores of those in the update, of as many others, and of the controls."""
        c, turn, layer = self.config, self.turns.turn(unit.what), str(run.info["layer"])
        if layer not in turn.sent.update:
            raise AttackError(f"{unit.id}: the update holds no {layer!r}. Name a --layer that each of them holds.")
        space = self._space(turn.sent, layer)
        kinds = {"inside": turn.inside, "outside": turn.outside, "controls": turn.controls}
        record: dict[str, Any] = {"rank": space.rank, "width": space.width, **turn.facts}
        for kind, subjects in kinds.items():
            record[kind] = [self._joined(subject.pages, turn, layer, space) for subject in subjects]
            if c.per_provider:
                record[kind + OTHERS] = [self._joined(subject.others, turn, layer, space) for subject in subjects]
        return record, {}

    def _joined(self, pages: Sequence[Page], turn: Turn, layer: str, space: Subspace) -> dict[str, Any]:
        """The mean of each score over pages that stand for one provider, and whose they are, or of which document."""
        scored, whose = [self._scores(page, turn, layer, space) for page in pages], pages[0]
        means = {score: float(np.mean([one[score] for one in scored])) for score in SCORES}
        return {**means, "whose": provider_key(whose.provider) or whose.document}

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """A row per run, two where providers are asked about; those of all rounds together."""
        return read_presence(runs, rng)


def _cosine(gradient: Mapping[str, Tensor], turn: Turn) -> float:
    """Of the update and what the page alone would send; AdamW's are compared as signs, which is what survives."""
    dot, one, other = 0.0, 0.0, 0.0
    for name, value in gradient.items():
        if name not in turn.sent.update:
            continue
        a, b = value.double().cpu(), turn.sent.update[name].double()
        a, b = (a.sign(), b.sign()) if turn.signs else (a, b)
        dot, one, other = dot + float((a * b).sum()), one + float((a * a).sum()), other + float((b * b).sum())
    return dot / max(math.sqrt(one * other), 1e-300)
