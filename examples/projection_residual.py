"""Projection residual: was this page in this update? The idea of ProjRes (arXiv 2604.21197), by its abstract.

The gradient of a linear layer's weight is a sum of outer products, whose row space is spanned by what went into the
layer. So the page's own gradient, which whoever has the weights can compute, lies in the row space of a client's update
if the page was in its batch; what is left of it after projecting tells others apart, as long as the batch does not fill
the layer's width. A study from outside the package: nothing of docleak names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from docleak.documents import Page, load_pages
from docleak.errors import AttackError, DocumentError, RunError
from docleak.metrics.clustered import over_providers
from docleak.metrics.estimate import Estimate
from docleak.metrics.membership import membership_rates
from docleak.models import DocumentModel, load_model, pixels_of
from docleak.report.page import Reading, Section, run_facts
from docleak.report.severity import Part, Severity
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.studies.identity import data_hash, weights_hash
from docleak.studies.study import Study, Tell, Unit
from docleak.training.update import client_gradient

THREAT = {
    "title": "Honest-but-curious server that suspects a page",
    "adversary": "the server of a federated training: it follows the protocol and looks at what it receives",
    "sees": [
        "one client's gradient, unprotected and not aggregated with others",
        "the weights the client started from",
    ],
    "knows": ["the page it asks about, with its question and answer"],
    "wants": "to tell whether that page was in the client's batch",
    "cannot": ["change the model or the protocol", "see the client's pages"],
}
COLUMNS = {
    "auc": Column("AUC of the residual"), "blind": Column("AUC of the loss, without the update"),
    "inside": Column("median residual of pages in the batch", 6), "outside": Column("of other pages", 6),
    "rank": Column("rank of the update"), "width": Column("width of the layer", 0),
}  # fmt: skip


@dataclass(frozen=True)
class ProjectionConfig:
    """``pages`` are dealt into rounds: of ``2 * batch_size``, the first half is in the client's batch. ``layer`` is a
    weight (out, in); singular values below ``tolerance`` times the largest count as rounding."""

    model: str = "donut-start"
    documents: str = "synthetic"
    pages: int = 16
    batch_size: int = 2
    layer: str = "decoder.model.decoder.layers.1.fc1.weight"
    tolerance: float = 1e-5
    seed: int = 5


class ProjectionStudy(Study[ProjectionConfig]):
    """A unit is one page, asked about in its round."""

    kind = "projection_residual:ProjectionStudy"
    Config = ProjectionConfig

    @cached_property
    def model(self) -> DocumentModel:
        return load_model(self.config.model, device=self.device)

    @cached_property
    def pages(self) -> list[Page]:
        source = load_pages(self.config.documents, count=self.config.pages, seed=self.config.seed)
        return [self.model.fit(page) for page in source if page.questions and page.questions[0].answers]

    def identity(self) -> dict[str, str]:
        return {"weights": weights_hash(self.model), "pages": data_hash(self.pages)}

    def units(self) -> list[Unit]:
        c = self.config
        weight = dict(self.model.module.named_parameters()).get(c.layer)
        if weight is None or weight.ndim != 2 or not weight.requires_grad:
            raise AttackError(f"model {c.model!r} trains no matrix {c.layer!r}; name a linear layer's weight as layer.")
        rounds = len(self.pages) // max(1, 2 * c.batch_size)
        if rounds * c.batch_size < 2:
            raise DocumentError(f"{len(self.pages)} pages with a question make {rounds} rounds of 2 x {c.batch_size}; "
                                "expected one or more, of 4 pages or more in all.")  # fmt: skip
        return [Unit(f"page-{number:04d}", what=number) for number in range(rounds * 2 * c.batch_size)]

    def gradient(self, pages: Sequence[Page]) -> torch.Tensor:
        """Of the layer's weight, (out, in), float64, of the batch's mean loss."""
        pixels = torch.stack([pixels_of(page.image, self.device) for page in pages])
        inputs = [self.model.encode(page, page.questions[0]) for page in pages]
        return client_gradient(self.model, pixels, inputs, names=[self.config.layer])[self.config.layer].double().cpu()

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Any]]:
        c, number, page = self.config, unit.what, self.pages[unit.what]
        turn, place = divmod(number, 2 * c.batch_size)
        _, sizes, directions = torch.linalg.svd(self.gradient(self.pages[number - place :][: c.batch_size]))
        rank = int((sizes > c.tolerance * sizes[0]).sum())
        rows, suspect = directions[:rank], self.gradient([page])
        pixels, inputs = pixels_of(page.image, self.device)[None], [self.model.encode(page, page.questions[0])]
        with torch.no_grad():
            loss = self.model.loss(pixels, inputs)
        residual = (suspect - suspect @ rows.T @ rows).norm() / suspect.norm().clamp_min(1e-300)
        record = {"page": page.name, "whose": page.provider, "round": turn, "member": place < c.batch_size,
                  "residual": float(residual), "loss": float(loss), "rank": rank,
                  "width": suspect.shape[1]}  # fmt: skip
        return record, {}

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        rows, parts = [], []
        for run in runs:
            records = run.units()
            inside = np.array([record["member"] for record in records], dtype=bool)
            if min(inside.sum(), (~inside).sum()) < 2:
                raise RunError(f"{run.path} has fewer than 2 finished pages in and out of batches. Go on with it.")
            name = f"{run.config['model']}, batches of {run.config['batch_size']}"
            residual = np.array([record["residual"] for record in records])
            blind = np.array([record["loss"] for record in records])
            whose = [record.get("whose", "") for record in records]
            auc, baseline = (_auc(-scores, inside, whose, rng) for scores in (residual, blind))
            rank, halves = np.mean([record["rank"] for record in records]), (residual[inside], residual[~inside])
            values = {"auc": auc, "blind": baseline, "rank": float(rank), "width": records[0]["width"]}
            values |= {key: float(np.median(half)) for key, half in zip(("inside", "outside"), halves, strict=True)}
            rows.append(Row(name, values, facts={"run": str(run.path)}))
            told = auc.low is not None and auc.low > 0.5
            severity = Severity.SEVERE if told and auc.low >= 0.75 else Severity.PARTIAL if told else Severity.UNTOLD
            label = "Pages told apart" if told else ""
            said = f"AUC {auc.text(2)}, {inside.sum()} of {len(records)} pages in a batch; by loss {baseline.text(2)}."
            parts.append(Part(name, severity, said, label, "projection"))
        caption = "95 % intervals over pages and their providers, those in batches and others apart."
        table = Table("Projection residual", COLUMNS, rows, caption, first="run")
        return Reading(
            question="Was this page in this update?", lead="What projecting pages' gradients onto an update leaves.",
            parts=tuple(parts), counted=parts[0].sentence, lines=(table.to_text(),), tables={"projection": table},
            sections=(Section("projection", "Membership", "Pages in and out", render("table.html.j2", table=table)),
                      Section("threat-projection", "Threat model", "Who could do this",
                              render("threat.html.j2", model=THREAT))),
            results={"projection": table.to_json()}, runs=tuple(run_facts(run.path, run.manifest()) for run in runs),
            limits=("Not tried here: sums over clients, noise, several local steps.",),
        )  # fmt: skip


def _auc(scores: np.ndarray, members: np.ndarray, whose: Sequence[str], rng: np.random.Generator) -> Estimate:
    """Over pages or, if that is wider, over their providers, whose pages stand or fall together."""
    rates = {"auc": membership_rates(scores, scores > np.median(scores), members, rng=rng)["auc"]}
    told = over_providers(rates, scores, members, whose, rng=rng, level=0.95, resamples=2000)["auc"]
    return replace(told, of="pages")
