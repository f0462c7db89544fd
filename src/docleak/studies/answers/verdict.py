"""What one released model gave away: how bad it is, and in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docleak.metrics.estimate import Estimate
from docleak.report.severity import Severity

Record = Mapping[str, Any]
LABELS = {
    Severity.SEVERE: "Remembers providers",
    Severity.PARTIAL: "Tells members from others",
    Severity.NONE: "Nothing found",
}
#: Instead of the label of PARTIAL where membership does not show, and of a control.
DISCLOSES, YARDSTICK = "Says values of its training", "Control: trained on none of them"


@dataclass(frozen=True)
class Best:
    """The attack that is right oftenest, on all providers (s as small as was asked for). ``chance`` is the share of
    them that saying the same of all is right about."""

    name: str
    accuracy: Estimate
    chance: float


def numbers_in(record: Record, measure: str) -> dict[str, dict[str, Estimate]]:
    """A measure's numbers by key or attack and name; {} where it was not measured."""
    found = record.get(measure, {}).get("numbers", {})
    return {part: {key: Estimate.of_json(number) for key, number in of.items()} for part, of in found.items()}


def severity_of(record: Record) -> Severity:
    """Memory is shown by answers, membership by scores, both beyond chance with 95 % confidence.

    Of a control the same is said, under a label of its own (``said_of``): it is no release, and no part of a verdict.
    A value of the training that only the target gives, asked of documents that do not show it, is at least PARTIAL.
    NONE needs all that was asked for to have been measured with an interval, UNTOLD is where some could not be.
    """
    lows = [of["gap_acc"].low for of in numbers_in(record, "memorisation").values()]
    if any((low or 0) > 0 for low in lows):
        return Severity.SEVERE
    if _tells_members(record) or _disclosed(record):
        return Severity.PARTIAL
    measured = [low is not None for low in lows]
    if "membership" in record:
        best = best_attack(record)
        measured.append(best is not None and best.accuracy.low is not None)
    if measured and all(measured):
        return Severity.NONE
    return Severity.UNTOLD if any(measured) else Severity.UNMEASURED


def said_of(record: Record) -> str:
    """The words beside the colour of a release."""
    severity = severity_of(record)
    if record["control"]:
        return YARDSTICK
    if severity is Severity.PARTIAL and not _tells_members(record):
        return DISCLOSES
    return LABELS.get(severity, severity.label)


def headline_of(record: Record) -> str:
    """What the severity rests on: what it remembers, or else what tells members from others."""
    rest = [*_of_disclosure(record), *_of_gap(record), *_of_membership(record)]
    return " ".join(_of_memory(record) if severity_of(record) is Severity.SEVERE or not rest else rest)


def sentences(record: Record) -> list[str]:
    """What one release gave away, in plain words."""
    return [line for of in (_of_memory, _of_disclosure, _of_gap, _of_membership, _of_privacy) for line in of(record)]


def best_attack(record: Record) -> Best | None:
    """The attack with the highest accuracy, if one could be measured."""
    found = []
    for name, numbers in numbers_in(record, "membership").items():
        least = min(int(key.removeprefix("accuracy_s")) for key in numbers if key.startswith("accuracy_s"))
        accuracy, providers = numbers[f"accuracy_s{least}"], numbers[f"providers_s{least}"].value or 0
        inside = numbers[f"members_s{least}"].value or 0
        if accuracy.value is not None:
            found.append(Best(name, accuracy, max(inside, providers - inside) / (providers or 1)))
    return max(found, key=lambda best: best.accuracy.value or 0, default=None)


def _tells_members(record: Record) -> bool:
    """Whether an attack, the gap between answers or the measured epsilon tells members from others."""
    best, gap = best_attack(record), numbers_in(record, "gap").get("", {})
    side = "beyond" if "beyond_acc" in gap else "gap"
    better = any((gap[f"{side}_{of}"].low or 0) > 0 for of in ("acc", "anls") if gap)
    beyond = best is not None and (best.accuracy.low or 0) > best.chance
    return beyond or better or (measured_in(record) or 0) > 0


def measured_in(record: Record) -> float | None:
    """The epsilon that the losses show to be exceeded."""
    first = next(iter(numbers_in(record, "membership").values()), {})
    return first["epsilon_measured"].value if "epsilon_measured" in first else None


def _disclosed(record: Record) -> dict[str, tuple[int, int]]:
    """Key -> (training values that only the target gave of documents that do not show them, questions); none of a
    control."""
    counts = {} if record["control"] else numbers_in(record, "disclosure")
    both = {key: (of[f"disclosed_{key}"].value or 0, of[f"asked_{key}"].value or 0) for key, of in counts.items()}
    return {key: (int(told), int(asked)) for key, (told, asked) in both.items() if told}


def _of_memory(record: Record) -> list[str]:
    parts, silent, asked = [], [], [0, 0]
    for key, of in numbers_in(record, "memorisation").items():
        inside, outside, name = of["positive_acc"], of["negative_acc"], key.replace("_", " ")
        if inside.value == outside.value == 0:
            silent.append(name)
            asked = [asked[0] + inside.n, asked[1] + outside.n]
            continue
        parts.append(
            f"{name}: {_range(inside)} on members' documents (n = {inside.n}), {_range(outside)} on others' (n = "
            f"{outside.n})"
        )
    lines = [f"Asked for what was taken off the page, it is right all the same: {'; '.join(parts)}."] if parts else []
    if silent:
        lines.append(
            f"Asked for what was taken off the page ({', '.join(silent)}), it never gave it: {asked[0]} questions "
            f"about members' documents, {asked[1]} about others'."
        )
    return lines


def _of_disclosure(record: Record) -> list[str]:
    found = _disclosed(record)
    parts = ", ".join(f"{key.replace('_', ' ')} {told} in {asked} questions" for key, (told, asked) in found.items())
    return [
        "Asked of others' documents that do not show it, it gives values of its training that the public model does "
        f"not give (different values: {parts})."
    ] if found else []  # fmt: skip


def _of_gap(record: Record) -> list[str]:
    if "gap" not in record:
        return []
    of = numbers_in(record, "gap")[""]
    share, beyond = of["gap_acc"], of.get("beyond_acc")
    if share.value is None:
        return ["Answers on members' and others' documents could not be compared."]
    line = f"It answers new documents of members {_points(share)} oftener right than others'"
    if record["control"] or beyond is None or beyond.value is None:
        return [f"{line}."]
    return [f"{line}, {_points(beyond)} of which the training added to the public model's difference."]


def _of_membership(record: Record) -> list[str]:
    if "membership" not in record:
        return []
    if (best := best_attack(record)) is None:
        return ["Membership: too few providers to attack."]
    return [
        f"Who took part: the best attack, {best.name}, is right about {_range(best.accuracy)} of the providers; saying "
        f"the same of all would be right about {100 * best.chance:.1f} %."
    ]


def _of_privacy(record: Record) -> list[str]:
    if "membership" not in record:
        return []
    measured, bill = record["membership"]["remarks"].get("Measured"), record["bill"]
    lines = [f"Measured: {measured}" if measured else "Without a public model no epsilon is measured."]
    if bill["epsilon"] is not None:
        lines.append(f"Claimed: {bill['claim']}")
    elif not record["control"]:
        lines.append(f"It claims no differential privacy: {bill['claim']}".removesuffix(": "))
    return lines


def _range(share: Estimate) -> str:
    if share.value is None:
        return "–"
    return f"{100 * share.value:.1f} %{_interval(share)}"


def _points(share: Estimate) -> str:
    return f"{100 * (share.value or 0):+.1f} points{_interval(share)}"


def _interval(share: Estimate) -> str:
    return "" if share.low is None or share.high is None else f" [{100 * share.low:.1f}, {100 * share.high:.1f}]"
