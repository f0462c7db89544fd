"""The numbers of a report, recomputed from the ``PageScore``s on disk: by model and attack, on equal terms."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from docleak.errors import RunError
from docleak.evidence.run import COMPARISON, DEFENCES, Run
from docleak.metrics import Estimate, FieldScore, PageScore, aggregate

#: Fuzz ratio from which a field that is not exact counts as nearly read.
NEAR = 0.8
#: Order of models, and the words for when their gradient was taken.
MOMENTS = {"start": "at the start of training", "trained": "later in training", "other": "at the audited moment"}
NEEDED = ("model", "model_title", "moment", "attack", "attack_summary", "page", "view", "knowledge", "finding",
          "images", "fields", "score", "floor", "ceiling")  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """One attack on one page with one model, as the audit saved it."""

    run: Run
    record: Mapping[str, Any]
    score: PageScore
    floor: PageScore
    ceiling: PageScore

    @property
    def page(self) -> str:
        return str(self.record["page"])

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells this page from all others: its name and private values. Synthetic pages of two sizes share names
        only; one page scaled for two models is one page."""
        return (self.page, *((field.key, field.value) for field in self.score.fields))

    @property
    def repeats(self) -> int:
        """Places that print a private value again and were blanked with the fields."""
        return len(self.record.get("repeats", ()))

    @property
    def text(self) -> Mapping[str, Any] | None:
        """What linear algebra read of the client's text, if it was looked for and there is a closed form."""
        found = self.record.get("recovered")
        return found if found and "question" in found else None

    def given(self, field: FieldScore) -> bool:
        """Whether the field's value is the answer to the client's question, and the attacker had that."""
        return bool(self.record["view"].get("answer_known")) and field.value == self.record.get("answer")

    @property
    def self_test_passed(self) -> bool:
        """False only if the self test was made and failed."""
        return bool((self.record.get("self_test") or {}).get("passed", True))

    def marks(self) -> list[str]:
        """ "exact", "near", "no" or "unscored" per private field."""
        return [mark(field) for field in self.score.fields]


@dataclass(frozen=True)
class Counts:
    """Private fields by how well they were read, over all pages of an attack; ``blank`` of the exact and near ones
    were read as well from the blank template and do not count as recovered."""

    exact: int
    near: int
    no: int
    unscored: int
    blank: int = 0

    @property
    def scored(self) -> int:
        return self.exact + self.near + self.no

    @classmethod
    def of(cls, units: Sequence[Unit]) -> Counts:
        marks = [m for unit in units for m in unit.marks()]
        blank = sum(
            mark(a) in ("exact", "near") and mark(b) in ("exact", "near")
            for unit in units
            for a, b in zip(unit.score.fields, unit.floor.fields, strict=True)
        )
        return cls(marks.count("exact"), marks.count("near"), marks.count("no"), marks.count("unscored"), blank)


@dataclass(frozen=True)
class Spread:
    """Mean, least and greatest of a number that every unit has; None where no unit has it."""

    mean: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread:
        known = [float(value) for value in values if value is not None]
        return cls(float(np.mean(known)), min(known), max(known)) if known else cls(None, None, None)


@dataclass(frozen=True)
class AttackResult:
    """One row of the table: an attack on all pages with one model."""

    attack: str
    summary: str
    paper: str
    units: tuple[Unit, ...]
    counts: Counts
    estimates: Mapping[str, Estimate]
    explained: Spread
    evaluations: Spread
    seconds: Spread
    budget: Spread

    @property
    def pages(self) -> tuple[str, ...]:
        return tuple(unit.page for unit in self.units)

    def rank(self) -> tuple[float, ...]:
        """Sorts the attack that recovered most first: pages covered, fields read exactly, fuzz ratio, PSNR."""
        columns = [self.estimates[name].value for name in ("binary", "fuzz_ratio", "psnr")]
        return (-len(self.units), *(-1e9 if value is None else -value for value in columns))

    def to_json(self) -> dict[str, Any]:
        spreads = {name: vars(getattr(self, name)) for name in ("explained", "evaluations", "seconds", "budget")}
        counts, columns = vars(self.counts), estimates_json(self.estimates)
        return {"attack": self.attack, "pages": self.pages, "fields": counts, "estimates": columns, **spreads}


@dataclass(frozen=True)
class ModelResult:
    """All attacks on one model, the one that recovered most first, with their common floor and ceiling."""

    model: str
    title: str
    moment: str
    facts: Mapping[str, Any]
    attacks: tuple[AttackResult, ...]
    floor: Mapping[str, Estimate]
    ceiling: Mapping[str, Estimate]

    @property
    def best(self) -> AttackResult:
        return self.attacks[0]

    @property
    def units(self) -> list[Unit]:
        return [unit for attack in self.attacks for unit in attack.units]

    @property
    def documents(self) -> int:
        return len({unit.score.document for unit in self.best.units})

    @property
    def pages(self) -> list[Unit]:
        """One unit per audited page."""
        return list({unit.identity: unit for unit in self.units}.values())

    @property
    def sizes(self) -> list[str]:
        """Width x height of the pages as the model saw them, in words; none in runs that did not record them."""
        return sorted({"{} x {}".format(*unit.record["size"]) for unit in self.units if unit.record.get("size")})

    @property
    def texts(self) -> list[Mapping[str, Any]]:
        """What was read of the client's text, one entry per page where it was."""
        return list({unit.identity: unit.text for unit in self.units if unit.text is not None}.values())

    @property
    def batches(self) -> list[Mapping[str, Any]]:
        """What was read of the text of batches of several pages, one entry per batch where it was."""
        read = [(unit.identity, (unit.record.get("recovered") or {}).get("batch")) for unit in self.units]
        return list({identity: batch for identity, batch in read if batch}.values())

    @property
    def batch_sizes(self) -> list[int]:
        return sorted({int(unit.record["view"].get("batch_size", 1)) for unit in self.units})

    @property
    def self_test_failed(self) -> list[str]:
        return sorted({unit.page for unit in self.units if not unit.self_test_passed})

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "title": self.title,
            "moment": self.moment,
            "documents": self.documents,
            "best_attack": self.best.attack,
            "attacks": [attack.to_json() for attack in self.attacks],
            "floor": estimates_json(self.floor),
            "ceiling": estimates_json(self.ceiling),
        }


@dataclass(frozen=True)
class ReportData:
    """What the report, the terminal summary and ``results.json`` are written from."""

    runs: tuple[Run, ...]
    models: tuple[ModelResult, ...]

    @cached_property
    def info(self) -> dict[str, Any]:
        """The runs' info, the first run's word counting where they differ; models are joined."""
        infos = [run.info for run in reversed(self.runs)]
        models = {name: facts for info in infos for name, facts in info.get("models", {}).items()}
        return {**{key: value for info in infos for key, value in info.items()}, "models": models}

    @property
    def shortages(self) -> list[str]:
        """A sentence for each run that had fewer pages than were asked for."""
        return list(dict.fromkeys(str(run.info["shortage"]) for run in self.runs if run.info.get("shortage")))

    @cached_property
    def defences(self) -> dict[str, Any] | None:
        """The comparison of defences that the (only) run ended with, as ``docleak defend`` saved it; None without."""
        file = self.runs[0].path / DEFENCES / COMPARISON
        if len(self.runs) > 1 or not file.is_file():
            return None
        try:
            return dict(json.loads(file.read_text("utf-8")))
        except ValueError as fault:
            raise RunError(f"{file} is not JSON ({fault}). Delete it, or run the comparison again.") from fault

    @property
    def engines(self) -> list[str]:
        return sorted({str(u.score.engine) for model in self.models for u in model.units if u.score.engine})

    def to_json(self) -> dict[str, Any]:
        manifests = [run.manifest() for run in self.runs]
        return {
            "docleak": [manifest["docleak"] for manifest in manifests],
            "signature": [manifest["info"].get("signature") for manifest in manifests],
            "ocr_engine": self.engines,
            "shortage": self.shortages,
            "defences": [
                {k: v for k, v in row.items() if k != "dominated"} for row in (self.defences or {}).get("rows", [])
            ],
            "interval": "95 %, expanded percentile bootstrap over documents; spreads are least and greatest",
            "models": [model.to_json() for model in self.models],
        }


def mark(field: FieldScore) -> str:
    """How well one field was read: "exact", "near" (fuzz ratio of NEAR or more), "no", or "unscored"."""
    if field.exact is None:
        return "unscored"
    return "exact" if field.exact else "near" if (field.fuzz or 0.0) >= NEAR else "no"


def estimates_json(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    """Plain JSON of a table's row."""
    return {name: vars(estimate) for name, estimate in estimates.items()}


def prepare(runs: Sequence[Run], rng: np.random.Generator) -> ReportData:
    """Aggregate the finished units of one run, or of several that can be compared.

    Raises RunError if there is no finished unit, a record is damaged, or several runs differ in pages or budgets.
    """
    if not runs:
        raise RunError("no run was given; expected one or more --out directories of an audit.")
    units = [_parse(run, record) for run in runs for record in run.units()]
    if not units:
        raise RunError(f"{runs[0].path} has no finished unit yet, so there is nothing to report. Run the audit first.")
    if len(runs) > 1:
        _check_comparable(units)
    info = [facts for run in runs for facts in run.info.get("models", {}).items()]
    models = [
        _model(name, group, next((dict(facts) for key, facts in info if key == name), {}), rng)
        for name, group in _grouped(units, lambda unit: str(unit.record["model"])).items()
    ]
    order = list(MOMENTS)
    models.sort(key=lambda m: (order.index(m.moment), m.model))
    return ReportData(tuple(runs), tuple(models))


def _parse(run: Run, record: Mapping[str, Any]) -> Unit:
    name = f"{run.path}: unit {record.get('unit')!r}"
    missing = [key for key in NEEDED if key not in record]
    if missing:
        raise RunError(f"{name} lacks {', '.join(missing)}: it is damaged or from another docleak. Rerun the audit.")
    if record["moment"] not in MOMENTS:
        raise RunError(f"{name} has the moment {record['moment']!r}; expected one of {', '.join(MOMENTS)}.")
    score, floor, ceiling = (PageScore.from_json(record[key]) for key in ("score", "floor", "ceiling"))
    if not len(score.fields) == len(floor.fields) == len(ceiling.fields):
        raise RunError(f"{name}: score, floor and ceiling do not have the same fields. Score the page again.")
    return Unit(run, record, score, floor, ceiling)


def _model(name: str, units: Sequence[Unit], facts: Mapping[str, Any], rng: np.random.Generator) -> ModelResult:
    by_attack = _grouped(units, lambda unit: str(unit.record["attack"]))
    attacks = [_attack(attack, group, rng) for attack, group in by_attack.items()]
    attacks.sort(key=AttackResult.rank)
    pages = list({unit.identity: unit for unit in units}.values())
    first = units[0].record
    return ModelResult(
        model=name,
        title=str(first["model_title"]),
        moment=str(first["moment"]),
        facts=facts,
        attacks=tuple(attacks),
        floor=aggregate([unit.floor for unit in pages], rng=rng),
        ceiling=aggregate([unit.ceiling for unit in pages], rng=rng),
    )


def _attack(name: str, units: Sequence[Unit], rng: np.random.Generator) -> AttackResult:
    def spread(key: str) -> Spread:
        return Spread.of([unit.record["finding"].get(key) for unit in units])

    first = units[0].record
    return AttackResult(
        attack=name,
        summary=str(first["attack_summary"]),
        paper=str(first.get("attack_paper", "")),
        units=tuple(sorted(units, key=lambda unit: unit.page)),
        counts=Counts.of(units),
        estimates=aggregate([unit.score for unit in units], rng=rng),
        **{key: spread(key) for key in ("explained", "evaluations", "seconds", "budget")},
    )


def _check_comparable(units: Sequence[Unit]) -> None:
    groups = _grouped(units, lambda unit: f"{unit.record['attack']} on {unit.record['model']}")
    pages = {name: sorted(unit.page for unit in group) for name, group in groups.items()}
    budgets = {name: sorted({unit.record["finding"].get("budget") for unit in group}) for name, group in groups.items()}
    faults = [f"{name}: a page occurs in more than one run" for name, p in pages.items() if len(set(p)) < len(p)]
    for what, values in (("pages", pages), ("budgets", budgets), ("OCR engines", {"all": _engines(units)})):
        if len({str(value) for value in values.values()}) > 1 or (what == "OCR engines" and len(values["all"]) > 1):
            faults.append(f"the {what} differ: " + "; ".join(f"{n}: {_short(v)}" for n, v in values.items()))
    if faults:
        lines = "".join(f"\n  - {fault}" for fault in faults)
        raise RunError(
            f"these runs cannot be joined in one report:{lines}\nReport them one by one, or audit the same pages with "
            "the same budget."
        )


def _engines(units: Sequence[Unit]) -> list[str]:
    return sorted({str(unit.score.engine) for unit in units})


def _short(values: Sequence[object]) -> str:
    return ", ".join(map(str, values[:4])) + (f" and {len(values) - 4} more" if len(values) > 4 else "")


def _grouped(units: Sequence[Unit], key: Callable[[Unit], str]) -> dict[str, list[Unit]]:
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(key(unit), []).append(unit)
    return groups
