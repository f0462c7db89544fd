"""Was this page in this update? By projection residual (ProjRes, arXiv 2604.21197, by its abstract) and by alignment.

The gradient of a linear layer lies in the span of what went into it. So the page's own gradient, which whoever has the
weights can compute, lies in the span of a client's update if the page was in its batch: the *residual* is what is left
of it outside. *Alignment* needs no free width: the cosine of the update with the step that the page alone would cause.
Decisions are made against pages that the adversary knows to be out; the loss of the page, which sees no update, stands
beside both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from docleak.attacks.gradients.algebra.first_layer import Sent
from docleak.attacks.gradients.algebra.subspace import Rows, Subspace
from docleak.attacks.gradients.local_steps import Optimiser
from docleak.documents import Page, load_pages
from docleak.errors import AttackError, DocumentError, RunError
from docleak.metrics.estimate import Estimate
from docleak.metrics.membership import membership_rates
from docleak.models import DocumentModel, load_model, pixels_of, trainable
from docleak.report.page import Reading, Section, run_facts
from docleak.report.severity import Part, Severity
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.studies.identity import data_hash, weights_hash
from docleak.studies.presence.config import PresenceConfig
from docleak.studies.study import Study, Tell, Unit
from docleak.training.federated.local import parameters_of, set_parameters, train_locally
from docleak.training.update import client_gradient

FloatArray = NDArray[np.float64]
THREAT = {
    "title": "Honest-but-curious server that suspects a page",
    "adversary": "the server of a federated training: it follows the protocol and looks at what it receives",
    "sees": ["one client's update, unprotected and not aggregated with others", "the weights the client started from"],
    "knows": ["the page it asks about, with its question and answer", "pages that are certainly not in the update",
              "the client's optimiser, learning rate and number of steps"],
    "wants": "to tell whether that page was in the client's batch",
    "cannot": ["change the model or the protocol", "see the client's pages"],
}  # fmt: skip
#: Root mean square error of rounding to bfloat16, as a share of the number.
BFLOAT16 = 2.0**-9 / 3**0.5
#: Where residuals fall apart by this factor or more above all controls, the cut goes there ...
APART = math.log(10.0)
#: ... elsewhere a page is called in if its score is so many standard deviations above those of the controls.
BEYOND = 3.0
SCORES = {"residual": "projection residual", "alignment": "alignment with its own step", "loss": "its loss, no update"}
COLUMNS = {
    **{f"{score}_auc": Column(f"AUC by {said}") for score, said in SCORES.items()},
    **{f"{score}_errors": Column(f"share of errors by {score}") for score in SCORES},
    "rank": Column("rank of the update"), "width": Column("width of the layer", 0),
}  # fmt: skip
LIMITS = (
    "The page is asked about as it was trained on: same picture, question and answer.",
    "A page is called in if its score is 3 standard deviations above those of pages known to be out, or, where "
    "residuals above all of those fall apart by a factor of 10, if it lies beyond that gap. Errors are of both kinds; "
    "half of the pages are in.",
    "Not tried here: sums over clients and noise.",
)


class PresenceStudy(Study[PresenceConfig]):
    """A unit is one round: an update, the pages in it, as many others, and controls."""

    kind = "presence"
    about = "whether a page was in a client's update"
    Config = PresenceConfig

    @cached_property
    def model(self) -> DocumentModel:
        """As the clients receive it: after the warm-up."""
        model, c = load_model(self.config.model, device=self.device), self.config
        first = len(self.pages) - c.warm_up * c.batch_size
        for number in range(c.warm_up):
            pages = self.pages[first + number * c.batch_size :][: c.batch_size]
            plan = replace(c.local, epochs=1)
            train_locally(model, pages, plan, client="warm-up", rng=np.random.default_rng(number))
        return model

    @cached_property
    def pages(self) -> list[Page]:
        """With one question each; those asked about first, then the controls, then the warm-up's."""
        c = self.config
        source = load_pages(c.documents, count=c.needed, seed=c.seed)
        kept = [replace(p, questions=p.questions[:1]) for p in source if p.questions and p.questions[0].answers]
        if len(kept) < c.needed:
            raise DocumentError(
                f"{c.documents!r} has {len(kept)} pages with a question; expected {c.needed}: {c.pages} to ask about, "
                f"{c.controls} controls, and {c.warm_up} rounds of warm-up."
            )
        return kept[: c.needed]

    def identity(self) -> dict[str, str]:
        """Weights after the warm-up, and pages."""
        return {"weights": weights_hash(self.model), "pages": data_hash(self.pages)}

    def units(self) -> list[Unit]:
        """One a round."""
        return [Unit(f"round-{number:04d}", what=number) for number in range(self.config.rounds)]

    def facts(self) -> dict[str, Any]:
        """The layer that is looked at."""
        return {"layer": self.layer}

    @cached_property
    def layer(self) -> str:
        """The linear layer's weight that has most room beside what the first round's update spans."""
        linear = {f"{name}.weight" for name, part in self.model.module.named_modules() if isinstance(part, nn.Linear)}
        weights = [name for name, _ in trainable(self.model.module) if name in linear]
        if self.config.layer:
            if self.config.layer not in weights:
                raise AttackError(
                    f"model {self.config.model!r} trains no linear layer's weight {self.config.layer!r}; it trains "
                    f"{', '.join(weights[:5])} ... Leave out --layer to take the one with most room."
                )
            return self.config.layer
        sent = self._sent(0)
        spaces = {name: self._space(sent, name) for name in weights}
        room = {name: space.width - space.rank for name, space in spaces.items() if space.rank}
        if not room:
            raise AttackError(
                "no linear layer moved: these are LoRA's first step (take --warm-up 2), or everything is frozen."
            )
        return max(room, key=lambda name: room[name])

    def _asked(self, turn: int) -> list[Page]:
        each = 2 * self.config.batch_size
        return self.pages[turn * each :][:each]

    def _sent(self, turn: int) -> Sent:
        """The update of a round in the units of a gradient, as it arrives."""
        c, model = self.config, self.model
        start, pages = parameters_of(model), self._asked(turn)[: c.batch_size]
        done = train_locally(model, pages, c.local, client="asked", rng=np.random.default_rng(turn))
        set_parameters(model, start)
        delta = {name: torch.from_numpy(value) for name, value in done.update.delta.items()}
        if c.precision == "bfloat16":
            delta = {name: value.bfloat16().float() for name, value in delta.items()}
        optimiser = Optimiser(c.optimiser, c.learning_rate, c.weight_decay)
        return Sent.of(delta, {n: torch.from_numpy(value) for n, value in start.items()}, optimiser, c.local_steps)

    def _space(self, sent: Sent, name: str) -> Subspace:
        values = sent.update[name].double()
        noise = torch.as_tensor(sent.noise.get(name, 0.0), dtype=torch.float64)
        if self.config.precision == "bfloat16":
            noise = noise + BFLOAT16 * values.abs()
        return Subspace.of([Rows(values, noise.expand(values.shape).square().mean(1).sqrt())])

    def _scores(self, page: Page, sent: Sent, space: Subspace) -> dict[str, float]:
        """Higher says "in": minus the logarithm of the residual, the cosine, minus the loss."""
        page = self.model.fit(page)
        pixels, inputs = pixels_of(page.image, self.device)[None], [self.model.encode(page, page.questions[0])]
        gradient = client_gradient(self.model, pixels, inputs)
        rows = gradient[self.layer].double().cpu()
        outside = (rows - rows @ space.directions.T @ space.directions).norm() / rows.norm().clamp_min(1e-300)
        with torch.no_grad():
            loss = float(self.model.loss(pixels, inputs))
        return {
            "residual": -float(outside.clamp_min(1e-12).log()),
            "alignment": self._cosine(gradient, sent),
            "loss": -loss,
        }

    def _cosine(self, gradient: Mapping[str, Tensor], sent: Sent) -> float:
        """Of the update and what the page alone would send; AdamW's are compared as signs, which is what survives."""
        dot, one, other = 0.0, 0.0, 0.0
        for name, value in gradient.items():
            a, b = value.double().cpu(), sent.update[name].double()
            a, b = (a.sign(), b.sign()) if self.config.optimiser == "adamw" else (a, b)
            dot, one, other = dot + float((a * b).sum()), one + float((a * a).sum()), other + float((b * b).sum())
        return dot / max(math.sqrt(one * other), 1e-300)

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Any]]:
        """Scores of the pages in the round's update, of as many others, and of the controls."""
        c, asked = self.config, self._asked(unit.what)
        sent = self._sent(unit.what)
        space = self._space(sent, self.layer)
        first = c.rounds * 2 * c.batch_size
        scored = [self._scores(page, sent, space) for page in (*asked, *self.pages[first : first + c.controls])]
        inside, outside, controls = scored[: c.batch_size], scored[c.batch_size : len(asked)], scored[len(asked) :]
        record = {"rank": space.rank, "width": space.width, "inside": inside, "outside": outside, "controls": controls}
        return record, {}

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """A row per run; pages of all rounds together."""
        rows, parts = zip(*(row_of(run, rng) for run in runs), strict=True)
        caption = "95 % intervals over pages, those in updates and others apart; pages of a round share one update."
        table = Table("Presence in an update", COLUMNS, rows, caption, first="model, optimiser, steps x pages, sent as")
        return Reading(
            question="Was this page in this update?", lead="What a server that suspects a page can tell of an update.",
            parts=parts, counted=parts[0].sentence, lines=(table.to_text(),), tables={"presence": table},
            sections=(Section("presence", "Membership", "Pages in and out", render("table.html.j2", table=table)),
                      Section("threat-presence", "Threat model", "Threat model: who could do this",
                              render("threat.html.j2", model=THREAT))),
            results={"presence": table.to_json()}, runs=tuple(run_facts(run.path, run.manifest()) for run in runs),
            limits=LIMITS,
        )  # fmt: skip


def row_of(run: Run, rng: np.random.Generator) -> tuple[Row, Part]:
    """A run's rates, and what they say. RunError of fewer than two finished pages."""
    records = run.units()
    if sum(len(record["inside"]) for record in records) < 2:
        raise RunError(f"{run.path} has fewer than 2 finished pages in updates. Go on with it, or ask more --pages.")
    c, said = run.config, []
    values: dict[str, Any] = {}
    for score in SCORES:
        auc, wrong = told(records, score, rng)
        values |= {f"{score}_auc": auc, f"{score}_errors": wrong}
        said.append(f"by {score} AUC {auc.text(2)}, share of errors {wrong.text(3)}")
    values |= {"rank": float(np.mean([r["rank"] for r in records])), "width": records[0]["width"]}
    name = f"{c['model']}, {c['optimiser']}, {c['local_steps']} x {c['batch_size']}, {c['precision']}"
    low = max(values[f"{score}_auc"].low or 0.0 for score in ("residual", "alignment"))
    severity = Severity.SEVERE if low >= 0.75 else Severity.PARTIAL if low > 0.5 else Severity.UNTOLD
    sentence = f"Pages in and out of updates: {'; '.join(said)}."
    part = Part(name, severity, sentence, "Pages told apart" if low > 0.5 else "", "presence")
    return Row(name, values, facts={"run": str(run.path), "layer": run.info.get("layer", "")}), part


def told(records: Sequence[Mapping[str, Any]], score: str, rng: np.random.Generator) -> tuple[Estimate, Estimate]:
    """AUC, and the share of wrong decisions at the cut-off that the controls set."""
    inside, outside, controls = (
        np.array([page[score] for record in records for page in record[kind]])
        for kind in ("inside", "outside", "controls")
    )
    scores, members = np.concatenate([inside, outside]), np.arange(len(inside) + len(outside)) < len(inside)
    rates = membership_rates(scores, scores > cutoff_of(score, scores, controls), members, rng=rng)
    right = rates["accuracy"]
    value, low, high = (None if one is None else 1 - one for one in (right.value, right.high, right.low))
    return replace(rates["auc"], of="pages"), replace(right, value=value, low=low, high=high, of="pages")


def cutoff_of(score: str, scores: FloatArray, controls: FloatArray) -> float:
    """Set by what the adversary sees: the scores of all pages asked about, and those of controls."""
    above = np.sort(np.append(scores[scores > controls.max()], controls.max()))
    gaps = np.diff(above)
    if score == "residual" and len(gaps) and gaps.max() >= APART:
        return float(above[gaps.argmax() :][:2].mean())
    return float(controls.mean() + BEYOND * controls.std())
