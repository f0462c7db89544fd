"""What a game says: the verdict, numbers with the weights and without them, fields to look at, who could do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from docleak.attacks.weights.membership import perplexity
from docleak.metrics.extraction import EPSILON
from docleak.report.page import Reading, Section, run_facts
from docleak.report.pictures import decoded, picture
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table, Value
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.studies.weights.calibrating import EVENTS, answers_in
from docleak.studies.weights.exhibits import NEAR, WHOLE, shown_fields
from docleak.studies.weights.pictures import draw_curves, draw_reliability
from docleak.studies.weights.table import GameTable, fields_of, likely, published, read_table, score_of
from docleak.studies.weights.verdict import advice, fields_measured, reasons, verdict_of

LIMITS = (
    "An attack that fails is not all attacks. The fields were read token by token, from a guessed vocabulary of one "
    "public model; an adversary with a better one reads more.",
    "The adversary is told how many tokens a field has, and where they stand. Without that it reads less.",
    "Copies are counted among the pages of this audit. What the model's start was trained on is not known here.",
    "“Read exactly” is judged on tokens: a field that differs in one sign counts as not read, though a person may "
    "know it.",
    "With few documents intervals are wide: a rate of 0 of 100 fields still allows a few in a hundred.",
)
#: Of a factor whose denominator is epsilon alone.
UNTOLD_BY_PUBLIC = (
    "Public data alone read none of the fields exactly; no resample shows that they may, and the factor itself "
    "may be smaller than all of its interval."
)
#: Name in the table -> what it is, in the order of the report; baselines have the same names behind "baseline_".
MEASURES = {
    "improvement_factor": "IpF: mean of four ratios to public data alone (exact fields, three distances)",
    "perfect": "Fields read exactly, one attempt",
    "hamming": "A field's tokens wrong, one attempt (Hamming)",
    "levenshtein": "Levenshtein distance, one attempt",
    "jaro_winkler": "Jaro-Winkler distance, one attempt",
    "accuracy_at_100%": "Fields read exactly, best attempt by its own choice",
    "accuracy_at_5%": "among the surest 5 %",
    "accuracy_at_1%": "among the surest 1 %",
    "accuracy_auc": "AccAUC",
    "hamming_aac": "HamAAC",
}
#: Fields that are shown where the reading stands beside others, and that a terminal shows.
SHOWN_BESIDE, TOLD = 3, 5


def read_run(run: Run, rng: np.random.Generator, *, beside: bool = False) -> Reading:
    """Everything recomputed from the run's units and what was kept with them. RunError if no field is finished."""
    table, info, config = read_table(run, rng=rng), run.info, run.config
    units = {str(unit["unit"]): unit for unit in fields_of(run)}
    copies, answers = {name: unit["copies"] for name, unit in units.items()}, answers_in(run)
    name, control = str(config["target"] or config["trained"] or config["model"]), bool(config["control"])
    planned = int(info.get("secrets", 0))
    saw = info.get("saw")
    part = verdict_of(table, copies, of=name, control=control, planned=planned, saw=saw)
    why, todo = reasons(table, copies, answers, planned, saw), advice(part.severity, control=control, saw=saw)
    shown = [field.name for field in shown_fields(table.fields) if (run.folder(field.name) / WHOLE).is_file()]
    exhibits = [
        {**exhibit(run, number, units[field]), "stated": stated_of(answers, field)}
        for number, field in enumerate(shown[: SHOWN_BESIDE if beside else None], 1)
    ]
    numbers = measures(table, float(config["ipf_epsilon"]))
    given = {
        "table": numbers, "exhibits": exhibits, "threat": info.get("threat", ""), "about": about(run),
        "part": part, "reasons": why, "advice": todo, "name": name, "beside": beside, "run": run.path.name,
    }  # fmt: skip
    headings = {"weights": ("Its weights", "And a model's weights: can blacked-out fields be read back?")}
    lines = [f"{name}, weights: {part.sentence}"]
    if not beside:
        ranked = [
            {"field": field, "copies": copies[field.name], "stated": stated_of(answers, field.name)}
            for field in table.fields
        ]
        given |= {
            "ranked": ranked, "answers": answers, "uncalibrated": info.get("uncalibrated", ""),
            "curves": picture(decoded(draw_curves(table)), "AccAt and HamAt of the attack and of public data alone"),
            "diagram": picture(decoded(draw_reliability(answers)), "What was stated and what came true")
            if answers else None,
        }  # fmt: skip
        headings = {
            "numbers": ("Numbers", "Numbers: with the weights, and without them"),
            "answers": ("How sure", "How sure can the adversary be of one field?"),
            "fields": ("Fields", "Fields: look for yourself"),
            "threat": ("Threat model", "Threat model: who could do this"),
            "advice": ("What to do", "What to do"),
        }
        lines = [str(info.get("threat", "")), *why, "", numbers.to_text(), "", f"{numbers.caption} {table.calls} model "
                 f"calls in {table.seconds:.0f} s.", "",
                 "Surest reconstructions (field: read | true)",
                 *(f"  {field.key}: {field.guess} | {field.value}" for field in table.fields[:TOLD])]  # fmt: skip
    factor = table.estimates["improvement_factor"]
    attack = "CDMI" if info.get("attack", "cdmi") == "cdmi" else info["attack"]
    documents = f"{factor.groups} documents that the model never saw" if control else (
        f"{factor.groups} training documents" if not config["target"]
        else f"{factor.groups} documents that it is said to be trained on"
    )  # fmt: skip
    given_of = "the model's answers, without their confidences," if config["answers_only"] else "the model's weights,"
    results = {name: estimate.to_json() for name, estimate in table.estimates.items()}
    return Reading(
        question="Can fields that were blacked out be read back out of the model?",
        lead=f"{len(table.fields)} private fields of {documents} were taken off their pages, one at a time. The attack "
        f"({attack}) had the scrubbed page and {given_of} and tried to fill each in.",
        parts=(part if beside else replace(part, anchor="numbers"),),
        counted=part.sentence,
        sections=tuple(
            Section(anchor, short, heading, render("weights.html.j2", **given, section=anchor),
                    annex=anchor in ("weights", "fields"))
            for anchor, (short, heading) in headings.items()
        ),
        lines=tuple(lines),
        results={"weights": {**results, "threat": info.get("threat", ""), "copies": copies, "calibration": answers}},
        tables={"weights": numbers},
        remarks=() if beside else tuple(why),
        limits=() if beside else LIMITS,
        runs=() if beside else (run_facts(run.path, run.manifest()),),
        synthetic=config["documents"] == "synthetic",
        measures=(fields_measured(
            table, copies, units, name=part.name, planned=planned, rng=rng.spawn(1)[0], control=control, saw=saw
        ),),
        scope=Scope(
            system=f"The weights of {name}", adversary="whoever has the weights, and a page with a field blacked out",
            material=f"{len(table.fields)} private fields of {documents}",
            categories=tuple(sorted({field.key for field in table.fields})), model=True,
            unfinished=f"{len(table.fields)} of {planned} fields" if len(table.fields) < planned else "",
            remedy="docleak reproduce cdmi/defences (on your pages with --documents), which stops such trainings "
            "early, deduplicates their pages, trains with differential privacy, and attacks each",
        ),
    )  # fmt: skip


def measures(table: GameTable, epsilon: float = EPSILON) -> Table:
    """The numbers with the weights, and what the same attack without the model gives; ``epsilon`` is IpF's."""
    factor = table.estimates["improvement_factor"]
    columns = {"ours": Column("with the weights"), "theirs": Column("public data only")}
    estimates: dict[str, Value] = {"baseline_improvement_factor": "1 by definition", **table.estimates}
    rows = [
        Row(words, {"ours": estimates[name], "theirs": estimates[f"baseline_{name}"]})
        for name, words in MEASURES.items()
    ]
    caption = (
        f"{factor.n} fields of {factor.groups} documents; 95 % intervals, bootstrap over documents. “Public data only” "
        "is the same attack without the model. The epsilon of IpF, which is added to each of the eight means: "
        f"{epsilon:g}."
    )
    public = table.estimates["baseline_perfect"]
    caption += f" {UNTOLD_BY_PUBLIC}" if public.value == 0 else ""
    return Table("", columns, rows, caption, first="measure", open=True)


def stated_of(answers: Mapping[str, Any] | None, field: str) -> dict[str, float] | None:
    """Event -> the probability that the adversary states for a field; None where it was not calibrated."""
    if answers is None:
        return None
    events = {event: answers["events"][event]["stated"] for event in EVENTS}
    return {event: stated[field] for event, stated in events.items() if field in stated}


def about(run: Run) -> list[str]:
    """What was attacked, what the public model is, and which fields were not played, in sentences."""
    config, info = run.config, run.info
    cards = {unit["unit"]: unit for unit in run.units() if "best" in unit}
    lines = []
    if config["target"]:
        lines.append(f"The model is {config['target']}, as it was given; its pages are {config['documents']}.")
    elif card := cards.get("target"):
        best = published(card, str(config["criterion"]))
        where = "public pages, as a control" if config["control"] else f"{info['split']['private']} private pages"
        lines.append(
            f"The model ({config['model']}, task {config['task']}) was trained by docleak on {where}; it is that of "
            f"epoch {best['number']}, validation accuracy {best['validation']['accuracy']:.3f}."
        )
    if card := cards.get("public"):
        guessed = card["best"]["precision"]["validation"]["accuracy"]
        lines.append(
            f"The adversary's public model was trained on {card['pages']['train']} other pages; it guesses "
            f"{guessed:.0%} of masked tokens on pages that it has not seen."
        )
    if left := info.get("left_out"):
        parts = ", ".join(f"{count} {reason}" for reason, count in left.items())
        lines.append(f"Private fields that were not played: {parts}. Nothing is known of them.")
    return lines


def exhibit(run: Run, number: int, unit: Mapping[str, Any]) -> dict[str, Any]:
    """One field as the adversary saw it, its guesses with their confidence, and for the owner the truth."""
    key = str(unit["key"]).replace("_", " ")
    words = f"the field {key} ({number})"
    return {
        "key": key,
        "page": unit["page"],
        "value": unit["value"],
        "whole": picture(run.read_image(unit["unit"], WHOLE), f"Page {unit['page']} with {words} taken off"),
        "near": picture(run.read_image(unit["unit"], NEAR), f"The lines around {words} of {unit['page']}"),
        "guesses": _guesses(unit, "attempts", partial(score_of, metric=str(run.config["metric"]))),
        "baseline": _guesses(unit, "baseline", likely)[0],
        "attempts": len(unit["attempts"]),
        "copies": unit["copies"],
        "again": len(unit["repeats"]),
    }


def _guesses(unit: Mapping[str, Any], side: str, score: Callable[[Mapping[str, Any]], float]) -> list[dict[str, Any]]:
    """The different readings, the adversary's surest three, of which the first is the one that is counted; ``times`` of
    how many attempts each was made."""
    readings: dict[tuple[int, ...], dict[str, Any]] = {}
    for attempt in unit[side]:
        pieces = [
            {"text": piece.removeprefix("##") if piece.startswith("##") else f" {piece}", "right": ours == theirs}
            for piece, ours, theirs in zip(attempt["pieces"], attempt["tokens"], unit["tokens"], strict=True)
        ]
        guess = readings.setdefault(tuple(attempt["tokens"]), {
            "times": 0, "score": score(attempt), "confidence": 1 / perplexity(attempt["target"]), "pieces": pieces,
            "right": sum(piece["right"] for piece in pieces),
        })  # fmt: skip
        guess["times"] += 1
    return sorted(readings.values(), key=lambda guess: -guess["score"])[:3]
