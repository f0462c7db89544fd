"""What stands in the record of a release: its numbers by name, the best of them, and what could not be measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from docleak.metrics.estimate import Estimate

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Attacked:
    """What an attack is right about, on the providers with more than ``least`` questions (s as small as was asked for);
    where it could be measured, ``chance`` is the share of its guesses that saying the same of all is right about.
    ``beyond`` is how much oftener it is right than by the public model's answers, where no coins chose the members."""

    name: str
    accuracy: Estimate
    chance: float
    least: int
    beyond: Estimate | None = None


def numbers_in(record: Record, measure: str) -> dict[str, dict[str, Estimate]]:
    """A measure's numbers by key or attack and name; {} where it was not measured."""
    numbers = record.get(measure, {}).get("numbers", {})
    return {part: {key: Estimate.of_json(number) for key, number in of.items()} for part, of in numbers.items()}


def best_score(record: Record) -> tuple[str, Estimate]:
    """The score of documents with the highest lower end, and its AUC."""
    aucs = {name: of["auc"] for name, of in numbers_in(record, "documents").items()}
    name = max(aucs, key=lambda one: (aucs[one].low or 0.0, aucs[one].value or 0.0))
    return name, aucs[name]


def surest_score(record: Record) -> tuple[str, float]:
    """The score that surely finds most at 1 % false alarms, and the lower end of how much; 0 where nothing does."""
    rates = {name: of["tpr_at_1_fpr"].low or 0.0 for name, of in numbers_in(record, "documents").items()}
    name = max(rates, key=lambda one: rates[one])
    return name, rates[name]


def best_attack(record: Record) -> Attacked | None:
    """The attack whose accuracy has the highest lower end beyond chance, if one could be measured."""
    measured = attacks_in(record)
    return max(measured, key=lambda one: ((one.accuracy.low or 0) - one.chance, one.accuracy.value or 0), default=None)


def attacks_in(record: Record) -> list[Attacked]:
    """The attacks that could be measured."""
    return [one for one in _attacks(record) if one.accuracy.value is not None]


def _attacks(record: Record) -> list[Attacked]:
    of = [(name, numbers, least_of(numbers)) for name, numbers in numbers_in(record, "membership").items()]
    return [
        Attacked(name, n[f"accuracy_s{s}"], n[f"chance_s{s}"].value or 0.0, s, n.get(f"beyond_s{s}"))
        for name, n, s in of
    ]


def least_of(numbers: Mapping[str, Estimate]) -> int:
    """The smallest s of an attack's accuracies."""
    return min(int(key.removeprefix("accuracy_s")) for key in numbers if key.startswith("accuracy_s"))


def memory_in(record: Record) -> dict[str, Estimate]:
    """Key -> how much oftener hidden values of members are told than others', or what is ``weaker`` of more numbers."""
    return {key: weaker(*of) for key, of in memories_in(record).items()}


def memories_in(record: Record) -> dict[str, list[Estimate]]:
    """Key -> the numbers that show a memory together: how much oftener hidden values of members are told than others';
    where the public model was asked, beyond its own difference, and than it told members' itself."""
    numbers = numbers_in(record, "memorisation")
    both = {key: [of[name] for name in ("gained_acc", "beyond_acc") if name in of] for key, of in numbers.items()}
    return {key: both[key] or [of["gap_acc"]] for key, of in numbers.items()}


def weaker(*numbers: Estimate) -> Estimate:
    """The one with the lowest lower end, or without one; its upper end is the highest, for one of them may be so large
    and the other be low for another reason."""
    highs = [one.high for one in numbers if one.high is not None]
    least = min(numbers, key=lambda one: -math.inf if one.low is None else one.low)
    return replace(least, high=max(highs) if len(highs) == len(numbers) else None)


def untaken(record: Record, measure: str) -> str:
    """Why a measure of who is a member may tell what public data tell; "" where coins or the public model rule it out,
    or it is not known whether they do."""
    numbers = [of for part in numbers_in(record, measure).values() for of in part]
    if record.get(measure, {}).get("coins") != 0 or any(name.startswith("beyond_") for name in numbers):
        return ""
    said = {"memorisation": "what public data tell of these values is not taken out",
            "membership": "whether public data tell them as well is not known"}[measure]  # fmt: skip
    return f"no coins say who is a member, and no public model was given, so that {said}"


def not_measured(record: Record) -> dict[str, str]:
    """What was asked for of providers and could not be measured, key or attack -> why."""
    keys = dict(record.get("memorisation", {}).get("remarks", {}))
    failed = {one.name: one.accuracy.why or "no value" for one in _attacks(record) if one.accuracy.value is None}
    return {**keys, **failed}


def measured_in(record: Record) -> float | None:
    """The epsilon that the losses show to be exceeded."""
    first = next(iter(numbers_in(record, "membership").values()), {})
    return first["epsilon_measured"].value if "epsilon_measured" in first else None
