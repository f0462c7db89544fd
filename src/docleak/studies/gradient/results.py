"""The numbers of a gradient audit, recomputed from the ``PageScore``s on disk: by model and attack, on equal terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from docleak.documents.pages import grouped
from docleak.errors import RunError
from docleak.metrics import Estimate, FieldScore, PageScore, aggregate
from docleak.report import schema
from docleak.report.severity import Severity, worst
from docleak.runs.run import Run
from docleak.studies.fields import mark
from docleak.studies.gradient.exposed import lags, tested
from docleak.studies.gradient.findings import FLOORS, Findings, answer_given, findings_of

#: Share of a batch's tokens, with at least this precision, from which its words count as told though no field can be
#: counted.
BATCH_TOLD, SURE = 0.5, 0.8
#: What the true page explains at least of a gradient that nobody says is noisy, if the adversary imitates the defence.
IMITATED = 0.5
#: Order of models, and the words for when their gradient was taken.
MOMENTS = {"start": "at the start of training", "trained": "later in training", "other": "at the audited moment"}


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
        recovered = self.record.get("recovered")
        return recovered if recovered and "question" in recovered else None

    def given(self, field: FieldScore) -> bool:
        """Whether the field's value is the answer to the client's question, and the attack worked with that."""
        return answer_given(self.record) and field.value == self.record.get("answer")

    @property
    def self_test_passed(self) -> bool:
        """False only if the self test was made and failed."""
        return bool((self.record.get("self_test") or {}).get("passed", True))


class Counts(schema.Counts):
    """Over all pages of an attack, as they are in the table: what the blank template shows or the attacker was given is
    not taken out (``routes`` does that)."""

    @property
    def scored(self) -> int:
        return self.exact + self.near + self.no

    @classmethod
    def of(cls, units: Sequence[Unit]) -> Counts:
        marks = [mark(field) for unit in units for field in unit.score.fields]
        return cls(**{name: marks.count(name) for name in cls.model_fields})


@dataclass(frozen=True)
class AttackResult:
    """One row of the table: an attack on all pages with one model."""

    attack: str
    summary: str
    paper: str
    units: tuple[Unit, ...]
    counts: Counts
    estimates: Mapping[str, Estimate]
    explained: Estimate  # over pages: mean, least and greatest
    evaluations: Estimate
    seconds: Estimate
    budget: Estimate

    @property
    def pages(self) -> tuple[str, ...]:
        return tuple(unit.page for unit in self.units)

    def rank(self) -> tuple[float, ...]:
        """Sorts the attack that recovered most first: pages covered, fields read exactly, fuzz ratio, PSNR; floors,
        which see no gradient, come last."""
        columns = [self.estimates[name].value for name in ("binary", "fuzz_ratio", "psnr")]
        return (self.attack in FLOORS, -len(self.units), *(-1e9 if value is None else -value for value in columns))

    def to_json(self) -> dict[str, Any]:
        spreads = {name: getattr(self, name).to_json() for name in ("explained", "evaluations", "seconds", "budget")}
        counts, columns = self.counts.model_dump(), estimates_json(self.estimates)
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
    findings: Findings
    skipped: tuple[str, ...] = ()  # attacks that cannot be made on this model, each with the reason

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
        """What was read of the client's text, one entry per page where it was: of several, what was read best."""
        best: dict[tuple[object, ...], Mapping[str, Any]] = {}
        for unit in self.units:
            text, before = unit.text, best.get(unit.identity)
            if text is not None and (before is None or text["tokens_right"] > before["tokens_right"]):
                best[unit.identity] = text
        return list(best.values())

    @property
    def batches(self) -> list[Mapping[str, Any]]:
        """What was read of the text of batches of several pages, one entry per batch where it was."""
        read = [(unit.identity, (unit.record.get("recovered") or {}).get("batch")) for unit in self.units]
        return list({identity: batch for identity, batch in read if batch}.values())

    @property
    def severity(self) -> Severity:
        """That of the fields; at least PARTIAL where a batch's words are told, which belong to no field that counts."""
        tokens = [batch["tokens"] for batch in self.batches]
        told = any(t["right"] >= BATCH_TOLD * t["true"] and t["right"] >= SURE * t["found"] for t in tokens)
        return worst([self.findings.judgement.severity, *([Severity.PARTIAL] if told else [])])

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
            "verdict": {**self.findings.to_json(), "severity": str(self.severity), "label": self.severity.label},
            "skipped": list(self.skipped),
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

    def told(self, key: str) -> list[str]:
        """The sentences of the runs under that key of their info, each once: "shortage", say."""
        return list(dict.fromkeys(str(said) for run in self.runs if (said := run.info.get(key))))

    @property
    def drawn(self) -> list[str]:
        """A sentence for each model of which something was drawn at random, for its checkpoint lacks it."""
        return [str(entry["drawn"]) for entry in self.info["models"].values() if entry.get("drawn")]

    @property
    def engines(self) -> list[str]:
        return sorted({str(u.score.engine) for model in self.models for u in model.units if u.score.engine})

    def to_json(self) -> dict[str, Any]:
        manifests = [run.manifest() for run in self.runs]
        return {
            "docleak": [manifest["docleak"] for manifest in manifests],
            "signature": [manifest["info"].get("signature") for manifest in manifests],
            "ocr_engine": self.engines,
            "shortage": self.told("shortage"),
            "drawn": self.drawn,
            "interval": "95 %, expanded percentile bootstrap over documents; spreads are least and greatest",
            "models": [model.to_json() for model in self.models],
        }


def estimates_json(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    """Plain JSON of a table's row."""
    return {name: estimate.to_json() for name, estimate in estimates.items()}


def prepare(runs: Sequence[Run], rng: np.random.Generator) -> ReportData:
    """Aggregate the finished units of one run, or of several that can be compared.

    Raises RunError if there is no finished unit, or several runs differ in pages or budgets.
    """
    records = [(run, record) for run in runs for record in run.units()]
    if not records:
        raise RunError(f"{runs[0].path} has no finished unit yet, so there is nothing to report. Run the audit first.")
    models = model_results(records, rng)
    if len(runs) > 1:
        check_comparable([unit for model in models for unit in model.units], runs)
    return ReportData(tuple(runs), tuple(models))


def model_results(records: Sequence[tuple[Run, Mapping[str, Any]]], rng: np.random.Generator) -> list[ModelResult]:
    """The units' records, each with its run, by model: those at the start of training first."""
    units, runs = [_parse(run, record) for run, record in records], list(dict.fromkeys(run for run, _ in records))
    info = [facts for run in runs for facts in run.info.get("models", {}).items()]
    drawn = rng.spawn(1)[0]  # a stream of its own: the intervals of the tables stay what they were
    models = [
        _model(name, group, next((dict(facts) for key, facts in info if key == name), {}), runs, rng, drawn)
        for name, group in grouped(units, lambda unit: str(unit.record["model"])).items()
    ]
    order = list(MOMENTS)
    return sorted(models, key=lambda m: (order.index(m.moment), m.model))


def _parse(run: Run, record: Mapping[str, Any]) -> Unit:
    score, floor, ceiling = (PageScore.from_json(record[key]) for key in ("score", "floor", "ceiling"))
    if not len(score.fields) == len(floor.fields) == len(ceiling.fields):
        raise RunError(f"{run.path}: unit {record['unit']!r} has scores of different fields. Score the page again.")
    return Unit(run, record, score, floor, ceiling)


def _model(
    name: str, units: Sequence[Unit], facts: Mapping[str, Any], runs: Sequence[Run], rng: np.random.Generator,
    drawn: np.random.Generator,
) -> ModelResult:  # fmt: skip
    by_attack = grouped(units, lambda unit: str(unit.record["attack"]))
    attacks = [_attack(attack, group, rng) for attack, group in by_attack.items()]
    attacks.sort(key=AttackResult.rank)
    pages = list({unit.identity: unit for unit in units}.values())
    first = units[0].record
    left_out = {
        str(one["attack"]): str(one["why"])
        for run in runs for one in run.info.get("skipped", ()) if one.get("model") == name
    }  # fmt: skip
    return ModelResult(
        model=name,
        title=str(first["model_title"]),
        moment=str(first["moment"]),
        facts=facts,
        attacks=tuple(attacks),
        floor=aggregate([unit.floor for unit in pages], rng=rng),
        ceiling=aggregate([unit.ceiling for unit in pages], rng=rng),
        findings=findings_of(units, doubts_of(units, runs), drawn),
        skipped=tuple(f"{attack}: {why}" for attack, why in left_out.items()),
    )


def _attack(name: str, units: Sequence[Unit], rng: np.random.Generator) -> AttackResult:
    def spread(key: str) -> Estimate:
        return Estimate.spread([unit.record["finding"].get(key) for unit in units])

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


def doubts_of(units: Sequence[Unit], runs: Sequence[Run]) -> list[str]:
    """Why what was not read of one model cannot be called unread: its self-test failed, attacks imitate another defence
    than there is, or units are missing."""
    tests: dict[str, bool] = {}
    for unit in units:
        tests[unit.page] = tests.get(unit.page, True) and unit.self_test_passed
    failed = sum(not passed for passed in tests.values())
    doubts = []
    if failed:
        doubts.append(
            f"The self-test failed on {failed} of {len(tests)} pages: the true page does not reproduce "
            f"{tested(units[0].record)}, so an attack that reads nothing says nothing."
        )
    model, records = str(units[0].record["model"]), [unit.record for unit in units]
    plain = [one["finding"]["of_truth"] for one in records if one["finding"].get("noise") == 0]
    if (least := min(plain, default=1.0)) < IMITATED:
        doubts.append(
            f"The true page explains {least:.3f} of what was sent under this defence, which announces no noise: "
            "attacks that imitate it as it says cannot find the page, so one that reads nothing says nothing."
        )
    if short := [lag.attack for lag in lags(runs, records) if lag.model == model]:
        doubts.append(f"The run is not finished: {', '.join(short)} has not been tried on every page.")
    return doubts


def check_comparable(units: Sequence[Unit], runs: Sequence[Run]) -> None:
    """RunError, with every fault, for runs that cannot stand in one report."""
    groups = grouped(units, lambda unit: f"{unit.record['attack']} on {unit.record['model']}")
    pages = {name: sorted(unit.page for unit in group) for name, group in groups.items()}
    budgets = {name: sorted({unit.record["finding"].get("budget") for unit in group}) for name, group in groups.items()}
    faults = [f"{name}: a page occurs in more than one run" for name, p in pages.items() if len(set(p)) < len(p)]
    compared: dict[str, Mapping[str, Sequence[object]]] = {
        "pages": pages, "budgets": budgets, "OCR engines": {"all": sorted({str(unit.score.engine) for unit in units})}
    }  # fmt: skip
    for what, values in compared.items():
        if len({str(value) for value in values.values()}) > 1 or (what == "OCR engines" and len(values["all"]) > 1):
            faults.append(f"the {what} differ: " + "; ".join(f"{n}: {_short(v)}" for n, v in values.items()))
    faults += [
        f"{name.replace('_', ' ')} differs: {', '.join(settings)}"
        for name in sorted({name for run in runs for name in _exposed(run)})
        if len(settings := list(dict.fromkeys(str(_exposed(run).get(name, "not recorded")) for run in runs))) > 1
    ]
    if faults:
        lines = "".join(f"\n  - {fault}" for fault in faults)
        raise RunError(
            f"these runs cannot be joined in one report:{lines}\nReport them one by one, or audit the same pages with "
            "the same budget, exposed alike."
        )


def _exposed(run: Run) -> dict[str, Any]:
    """What the client sends and the server knows: one report has one threat model."""
    settings = {name: run.config[name] for name in ("batch_size", "rounds", "round_steps", "fine_tune_steps")
                if name in run.config}  # fmt: skip
    return {**settings, **{k: v for k, v in (run.config.get("exposure") or {}).items() if k != "gradient_file"}}


def _short(values: Sequence[object]) -> str:
    return ", ".join(map(str, values[:4])) + (f" and {len(values) - 4} more" if len(values) > 4 else "")
