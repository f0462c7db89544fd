"""Was this page, or provider, in this update? By projection residual (ProjRes, arXiv 2604.21197) and by alignment.

ProjRes is read by its abstract. The gradient of a linear layer lies in the span of what went into it. So the page's
own gradient, which whoever has the weights can compute, lies in the span of a client's update if the page was in its
batch: the *residual* is what is left of it outside. *Alignment* needs no free width: the cosine of the update with the
step that the page alone would cause. A provider is asked about by the mean over several pages of it. Decisions are made
against pages that the adversary knows to be out; the loss of the page, which sees no update, stands beside both.
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
from docleak.documents import Page
from docleak.errors import AttackError, RunError
from docleak.metrics.estimate import Estimate
from docleak.metrics.membership import membership_rates
from docleak.models import DocumentModel, load_model, pixels_of, trainable
from docleak.report.page import Reading, Section, run_facts
from docleak.report.severity import Part, Severity, worst
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.identity import data_hash, weights_hash
from docleak.studies.presence.config import PresenceConfig
from docleak.studies.presence.pages import Dealt, Subject, deal
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
#: How often chance alone may say that pages are told apart, whichever of the scores tells them.
ERROR = 0.05
SCORES = {"residual": "projection residual", "alignment": "alignment with its own step", "loss": "its loss, no update"}
#: Ends the names of scores by pages of a provider that no update holds.
OTHERS = "_others"
COLUMNS = {
    **{f"{score}_auc": Column(f"AUC by {said}") for score, said in SCORES.items()},
    **{f"{score}_errors": Column(f"share of errors by {score}") for score in SCORES},
    "blind_auc": Column("AUC without model or update"),
    "rank": Column("rank of the update"), "width": Column("width of the layer", 0),
}  # fmt: skip
LIMITS = (
    "A page is asked about as it was trained on: same picture, question and answer. A provider's scores are means over "
    "its pages, either those of the update or as many others of it; no page of a provider that is out was trained on.",
    "One is called in if its score is 3 standard deviations above those of pages known to be out, or, where "
    "residuals above all of those fall apart by a factor of 10, if it lies beyond that gap. Errors are of both kinds; "
    "half of those asked about are in.",
    "Whether they are told apart rests on the best score, with intervals widened so that they hold (95 %) for all that "
    "see the update together; the printed ones are each by itself.",
    "Not tried here: sums over clients and noise.",
)


class PresenceStudy(Study[PresenceConfig]):
    """A unit is one round: an update, the pages in it, as many others, and controls."""

    kind = "presence"
    Config = PresenceConfig

    @cached_property
    def model(self) -> DocumentModel:
        """As the clients receive it: after the warm-up."""
        model, c = load_model(self.config.model, device=self.device), self.config
        for number in range(c.warm_up):
            pages = self.dealt.warm_up[number * c.batch_size :][: c.batch_size]
            plan = replace(c.local, epochs=1)
            train_locally(model, pages, plan, client="warm-up", rng=np.random.default_rng(number))
        return model

    @cached_property
    def dealt(self) -> Dealt:
        """Who is asked about, and who is known to be out."""
        return deal(self.config)

    def identity(self) -> dict[str, str]:
        """Weights after the warm-up, and pages."""
        return {"weights": weights_hash(self.model), "pages": data_hash(self.dealt.pages)}

    def units(self) -> list[Unit]:
        """One a round."""
        return [Unit(f"round-{number:04d}", what=number) for number in range(self.config.rounds)]

    def facts(self) -> dict[str, Any]:
        """The layer that is looked at, and what a classifier tells that sees neither model nor update."""
        return {"layer": self.layer, **({"blind": self.blind.to_json()} if self.blind else {})}

    @property
    def blind(self) -> Estimate | None:
        """AUC of no model; None for too few to train a classifier on."""
        from docleak.metrics.blind import FOLDS, blind_auc

        c, asked = self.config, self.dealt.asked
        inside = np.arange(len(asked)) % (2 * c.subjects) < c.subjects
        if inside.sum() < FOLDS:
            return None
        return blind_auc([(*subject.pages, *subject.others) for subject in asked], inside, seed=c.seed)

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

    def _asked(self, turn: int) -> list[Subject]:
        share = 2 * self.config.subjects
        return self.dealt.asked[turn * share :][:share]

    def _sent(self, turn: int) -> Sent:
        """The update of a round in the units of a gradient, as it arrives."""
        c, model = self.config, self.model
        start, pages = parameters_of(model), [page for s in self._asked(turn)[: c.subjects] for page in s.pages]
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
        """Scores of those in the round's update, of as many others, and of the controls."""
        c, asked = self.config, self._asked(unit.what)
        sent = self._sent(unit.what)
        space = self._space(sent, self.layer)
        kinds = {"inside": asked[: c.subjects], "outside": asked[c.subjects :], "controls": self.dealt.controls}
        record: dict[str, Any] = {"rank": space.rank, "width": space.width}
        for kind, subjects in kinds.items():
            record[kind] = [self._joined(subject.pages, sent, space) for subject in subjects]
            if c.per_provider:
                record[kind + OTHERS] = [self._joined(subject.others, sent, space) for subject in subjects]
        return record, {}

    def _joined(self, pages: Sequence[Page], sent: Sent, space: Subspace) -> dict[str, float]:
        """The mean of each score over pages that stand for one provider."""
        scored = [self._scores(page, sent, space) for page in pages]
        return {score: float(np.mean([one[score] for one in scored])) for score in SCORES}

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """A row per run, two where providers are asked about; those of all rounds together."""
        told_of = [rows_of(run, rng) for run in runs]
        rows, parts = [row for group, _ in told_of for row in group], [part for _, part in told_of]
        what = "provider" if all(run.config.get("per_provider") for run in runs) else "page"
        caption = f"95 % intervals over {what}s, those in updates and others apart; those of a round share one update."
        table = Table("Presence in an update", COLUMNS, rows, caption, first="model, optimiser, steps x pages, sent as")
        return Reading(
            question=f"Was this {what} in this update?",
            lead=f"What a server that suspects a {what} can tell of an update.",
            parts=tuple(parts),
            counted=" ".join(part.sentence for part in parts if part.severity is worst(p.severity for p in parts)),
            lines=(table.to_text(),), tables={"presence": table},
            sections=(Section("presence", "Membership", "Pages in and out", render("table.html.j2", table=table)),
                      Section("threat-presence", "Threat model", "Threat model: who could do this",
                              render("threat.html.j2", model=THREAT))),
            results={"presence": table.to_json()}, runs=tuple(run_facts(run.path, run.manifest()) for run in runs),
            limits=LIMITS, scope=scope_of(runs),
            synthetic=all(run.config["documents"] == "synthetic" for run in runs), shows="",
        )  # fmt: skip


def scope_of(runs: Sequence[Run]) -> Scope:
    """Whose updates were looked at, what they were asked about, and who the adversary is."""
    lacking = [
        f"{len(run.units())} of {counted_words(planned, 'update')}" for run in runs
        if len(run.units()) < (planned := int(run.config["pages"]) // (2 * int(run.config["batch_size"])))
    ]  # fmt: skip
    return Scope(
        system=f"Federated training of {'; '.join(dict.fromkeys(str(run.config['model']) for run in runs))}",
        material="; ".join(map(asked_about, runs)),
        adversary="an honest-but-curious server: it receives one client's update, and holds the weights that the "
        "client started from, what it asks about, and pages that are certainly not in the update",
        unfinished="; ".join(lacking),
    )


def asked_about(run: Run) -> str:
    """How many pages or providers were asked about: in updates, and in none."""
    inside, outside = (sum(len(record[kind]) for record in run.units()) for kind in ("inside", "outside"))
    what = "provider" if run.config.get("per_provider") else "page"
    return f"{counted_words(inside, what)} in {counted_words(len(run.units()), 'update')} and {outside} in none"


def rows_of(run: Run, rng: np.random.Generator) -> tuple[list[Row], Part]:
    """A run's rates, and what they say. RunError of fewer than two that are finished."""
    records = run.units()
    if sum(len(record["inside"]) for record in records) < 2:
        raise RunError(f"{run.path} has fewer than 2 finished pages in updates. Go on with it, or ask more --pages.")
    c, blind = run.config, Estimate.of_json(run.info.get("blind") or {"value": None})
    name = f"{c['model']}, {c['optimiser']}, {c['local_steps']} x {c['batch_size']}, {c['precision']}"
    asked = {"Pages in and out of updates": ("", name)}
    if c.get("per_provider"):
        name += f", providers of {c['per_provider']}"
        asked = {
            "Providers in and out of updates, by the pages that are in": ("", f"{name}, pages in the update"),
            "By other pages of theirs": (OTHERS, f"{name}, other pages of theirs"),
        }
    rows = list[Row]()
    said = [f"An honest-but-curious server of a training of {c['model']} asked about {asked_about(run)}"]
    for question, (which, title) in asked.items():
        values: dict[str, Any] = {"blind_auc": blind}
        for score in SCORES:
            values[f"{score}_auc"], values[f"{score}_errors"] = told(records, score, rng, which)
        values |= {"rank": float(np.mean([r["rank"] for r in records])), "width": records[0]["width"]}
        rows.append(Row(title, values, facts={"run": str(run.path), "layer": run.info.get("layer", "")}))
        parts = (
            f"by {s} AUC {values[f'{s}_auc'].text(2)}, share of errors {values[f'{s}_errors'].text(3)}" for s in SCORES
        )
        said.append(f"{question}: {'; '.join(parts)}")
    if blind.value is not None:
        said.append(f"Without model or update: AUC {blind.text(2)}")
    tried = [(which, score) for which, _ in asked.values() for score in ("residual", "alignment")]
    sure, seed = 1 - ERROR / len(tried), int(c["seed"])
    low = max(told(records, score, np.random.default_rng(seed), which, sure)[0].low or 0.0 for which, score in tried)
    severity = Severity.SEVERE if low >= 0.75 else Severity.PARTIAL if low > 0.5 else Severity.UNTOLD
    label = f"{'Providers' if c.get('per_provider') else 'Pages'} told apart" if low > 0.5 else ""
    return rows, Part(name, severity, f"{'. '.join(said)}.", label, "presence")


def told(
    records: Sequence[Mapping[str, Any]], score: str, rng: np.random.Generator, which: str = "", level: float = 0.95
) -> tuple[Estimate, Estimate]:
    """AUC, and the share of wrong decisions at the cut-off that the controls set, with intervals of ``level``;
    ``which`` is OTHERS or nothing."""
    inside, outside, controls = (
        np.array([page[score] for record in records for page in record[kind + which]])
        for kind in ("inside", "outside", "controls")
    )
    scores, members = np.concatenate([inside, outside]), np.arange(len(inside) + len(outside)) < len(inside)
    rates = membership_rates(scores, scores > cutoff_of(score, scores, controls), members, rng=rng, level=level)
    right = rates["accuracy"]
    value, low, high = (None if one is None else 1 - one for one in (right.value, right.high, right.low))
    of = "providers" if any("inside" + OTHERS in record for record in records) else "pages"
    return replace(rates["auc"], of=of), replace(right, value=value, low=low, high=high, of=of)


def cutoff_of(score: str, scores: FloatArray, controls: FloatArray) -> float:
    """Set by what the adversary sees: the scores of all pages asked about, and those of controls."""
    above = np.sort(np.append(scores[scores > controls.max()], controls.max()))
    gaps = np.diff(above)
    if score == "residual" and len(gaps) and gaps.max() >= APART:
        return float(above[gaps.argmax() :][:2].mean())
    return float(controls.mean() + BEYOND * controls.std())
