"""The report of an audit of released models: one self-contained HTML page, its numbers as JSON, and a summary."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from docleak.evidence.answers.audit import ReleasesConfig
from docleak.files import reported, write_atomically
from docleak.report.pictures import picture
from docleak.report.severity import Overall, Part, Severity, overall
from docleak.report.templating import render

PAGE, RESULTS = "report.html", "results.json"
#: Accuracy, and ANLS, of a share [accuracy, ANLS] in the records.
ACCURACY, ANLS = 0, 1
THREAT = (
    "It is anyone who may ask the released model questions: a customer of its interface, or whoever downloads it.",
    "It has documents of its own of each provider, with their answers, none of which was trained on (RED).",
    "AZK sees answers only. APK also sees confidences and losses, has the public model, and knows of 15 % of the "
    "providers whether they took part, as in the published attack.",
    "It does not see the training, its updates, or any page of it.",
)
LIMITS = (
    "An attack that fails is not all attacks: stronger ones exist, and more documents of a provider tell more.",
    "A measured epsilon is a lower bound from one training; 0 proves nothing.",
    "The memorisation test hides what docleak finds; clues that it leaves count as memory: compare both sides.",
    "Intervals are over providers, not over trainings: another training of the same recipe may remember others.",
)
LABELS = {
    Severity.SEVERE: "Remembers providers",
    Severity.PARTIAL: "Tells members from others",
    Severity.UNTOLD: Severity.UNTOLD.label,
    Severity.UNMEASURED: Severity.UNMEASURED.label,
    Severity.NONE: "Nothing found",
}
#: Instead of the label of PARTIAL where membership does not show.
DISCLOSES = "Says values of its training"
CONTROL = "Control: trained on none of them"


def write_report(config: ReleasesConfig, records: Sequence[Mapping[str, Any]], out: Path, *, command: str) -> Path:
    """Write ``report.html`` and ``results.json`` in ``out``; returns the path of the report."""
    html = render(
        "releases.html.j2",
        **section(records, out),
        overall=overview(records),
        chart=chart(records),
        limits=LIMITS,
        command=command,
        blue_red=config.blue_red,
    )
    with reported(out / PAGE):
        write_atomically(out / RESULTS, (json.dumps(list(records), indent=1) + "\n").encode())
        write_atomically(out / PAGE, html.encode("utf-8", "backslashreplace"))
    return out / PAGE


def section(records: Sequence[Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """What templates see of an audit in ``out``: verdicts, rows of the table, pictures, and the adversary."""
    counts = records[-1]["membership"]
    return {
        "releases": [_shown(record, out) for record in records],
        "rows": [comparison(record) for record in records],
        "providers": counts["members"] + counts["others"],
        "members": counts["members"],
        "threat": THREAT,
    }


def overview(records: Sequence[Mapping[str, Any]]) -> Overall:
    """One verdict over the releases; the control is none of them."""
    parts = [
        Part(str(record["label"]), severity_of(record), headline_of(record), said_of(record))
        for record in records if not record["control"]
    ]  # fmt: skip
    counts = records[-1]["membership"]
    providers = counts["members"] + counts["others"]
    return overall(parts, f"{len(parts)} released model{'s' * (len(parts) != 1)}, asked about {providers} providers.")


def verdict_json(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The verdict for machines: the overall one, and that of every release; ``severity`` of a control is its own."""
    found = overview(records)
    releases = [
        {"release": record["label"], "control": record["control"], "severity": severity_of(record),
         "label": said_of(record), "sentence": headline_of(record)}
        for record in records
    ]  # fmt: skip
    return {"severity": found.severity, "label": found.label, "sentence": found.sentence, "releases": releases}


def summary_text(records: Sequence[Mapping[str, Any]]) -> str:
    """What is said of every release."""
    return "\n".join(line for r in records for line in (f"{r['label']}:", *(f"  {s}" for s in sentences(r))))


def severity_of(record: Mapping[str, Any]) -> Severity:
    """Memory is shown by answers, membership by scores, both beyond chance with 95 % confidence.

    Of a control the same is said, under a label of its own (``said_of``): it is no release, and no part of a verdict.
    A value of the training that only the target gives, asked of documents that do not show it, is at least PARTIAL.
    NONE needs every key and membership to have been measured with an interval, UNTOLD is where one could not be.
    """
    if any((found["target"]["difference"][ACCURACY]["low"] or 0) > 0 for found in _remembered(record).values()):
        return Severity.SEVERE
    if _tells_members(record) or _disclosed(record):
        return Severity.PARTIAL
    lows = [found["target"]["difference"][ACCURACY]["low"] for found in _remembered(record).values()]
    measured = [low is not None for low in lows]
    best = best_attack(record)
    guessed = best is not None and best["low"] is not None
    if measured and all(measured) and guessed:
        return Severity.NONE
    return Severity.UNTOLD if any(measured) or guessed else Severity.UNMEASURED


def _tells_members(record: Mapping[str, Any]) -> bool:
    """Whether an attack, the gap between answers or the measured epsilon tells members from others."""
    best = best_attack(record)
    beyond = best is not None and (best["low"] or 0) > _chance(best)
    gap = record["membership"]["gap_beyond_public"] or record["membership"]["gap"]
    answered_better = any((share["low"] or 0) > 0 for share in gap)
    return beyond or answered_better or (record["membership"]["epsilon_measured"] or 0) > 0


def _disclosed(record: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Key -> (training values that only the target gave of documents that do not show them, questions); none of a
    control, and none in records of before they were counted."""
    counts = {} if record["control"] else record["memorisation"].get("disclosed", {})
    return {key: (found["trained"], found["asked"]) for key, found in counts.items() if found["trained"]}


def headline_of(record: Mapping[str, Any]) -> str:
    """What the severity rests on: what it remembers, or else what tells members from others."""
    if severity_of(record) is Severity.SEVERE:
        return _of_memory(record)
    return " ".join([*_of_disclosure(record), _of_gap(record), _of_membership(record)])


def said_of(record: Mapping[str, Any]) -> str:
    """The words beside the colour of a release."""
    severity = severity_of(record)
    if severity is Severity.PARTIAL and not record["control"] and not _tells_members(record):
        return DISCLOSES
    return CONTROL if record["control"] else LABELS[severity]


def sentences(record: Mapping[str, Any]) -> list[str]:
    """What one release gave away, in plain words."""
    return [_of_memory(record), *_of_disclosure(record), _of_gap(record), _of_membership(record), *_of_privacy(record)]


def best_attack(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The attack with the highest accuracy on all providers (s as small as was asked for), with its name."""
    found = [
        {"name": name, **subsets[0]} for name, subsets in record["membership"]["attacks"].items()
        if subsets and subsets[0]["accuracy"] is not None
    ]  # fmt: skip
    return max(found, key=lambda attack: float(attack["accuracy"]), default=None)


def _chance(attack: Mapping[str, Any]) -> float:
    """The share of the providers that saying the same of all is right about."""
    return float(max(attack["members"], attack["providers"] - attack["members"]) / (attack["providers"] or 1))


def comparison(record: Mapping[str, Any]) -> dict[str, Any]:
    """The release's row beside the others: what it is good for, what it gives away, what it cost."""
    best, utility = best_attack(record), record["utility"]
    key, memory = next(iter(_remembered(record).items()), ("", None))
    return {
        "label": record["label"],
        "control": record["control"],
        "said": said_of(record),
        "chance": _chance(best) if best else None,
        "anls": utility["anls"] if utility else None,
        "gap": record["membership"]["gap"][ACCURACY],
        "beyond": None if record["control"] else (record["membership"]["gap_beyond_public"] or [None])[ACCURACY],
        "key": key.replace("_", " "),
        "memory": memory["target"]["positive"][ACCURACY] if memory else None,
        "others": memory["target"]["negative"][ACCURACY] if memory else None,
        "attack": best,
        "auc": max((subsets[0]["rates"].get("auc") or 0.0 for subsets in record["membership"]["attacks"].values()
                    if subsets), default=None),
        "measured": record["membership"]["epsilon_measured"],
        "claimed": record["epsilon"],
        "bytes": record["bytes"],
        "secure": record["secure"],
    }  # fmt: skip


def chart(records: Sequence[Mapping[str, Any]]) -> str:
    """Usefulness (ANLS) against what the best attack gets right, a point per release (SVG); "" for fewer than two."""
    points = [(comparison(record), record["label"]) for record in records]
    shown = [(row["anls"]["value"], row["attack"], label) for row, label in points if row["anls"] and row["attack"]]
    if len(shown) < 2:
        return ""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    FigureCanvasSVG(figure)
    axis = figure.subplots()
    for number, (useful, attack, label) in enumerate(shown):
        accuracy = 100 * attack["accuracy"]
        near = sum(abs(one - useful) < 0.12 and abs(other["accuracy"] - attack["accuracy"]) < 0.03
                   for one, other, _ in shown[:number])  # fmt: skip
        spread = [[accuracy - 100 * (attack["low"] or attack["accuracy"])],
                  [100 * (attack["high"] or attack["accuracy"]) - accuracy]]  # fmt: skip
        axis.errorbar([100 * useful], [accuracy], yerr=np.abs(spread), fmt="o", capsize=3, color="#24506f")
        axis.annotate(label, (100 * useful, accuracy), textcoords="offset points", xytext=(7, 5 - 12 * near),
                      fontsize=9)  # fmt: skip
    chance = 100 * _chance(shown[0][1])
    axis.axhline(chance, color="#999", linestyle="--", linewidth=1)
    axis.text(0.01, chance, " saying one thing of all", va="bottom", fontsize=8, color="#666",
              transform=axis.get_yaxis_transform())  # fmt: skip
    axis.set(xlabel="useful: ANLS on test documents, %", ylabel="given away: best attack right, %")
    axis.margins(x=0.15)
    axis.grid(alpha=0.3)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "docleak"}):  # ids would be drawn anew in every report
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _remembered(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Key -> {"target": ..., "public model": ...}; of the control its own answers count as the target's."""
    keys = record["memorisation"]["keys"]
    return {key: {"target": found.get("target", found.get("public model")), **found} for key, found in keys.items()}


def _range(share: Mapping[str, Any]) -> str:
    if share["value"] is None:
        return "–"
    interval = "" if share["low"] is None else f" [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"
    return f"{100 * share['value']:.1f} %{interval}"


def _of_memory(record: Mapping[str, Any]) -> str:
    parts, silent, asked = [], [], [0, 0]
    for key, found in _remembered(record).items():
        inside, outside = found["target"]["positive"][ACCURACY], found["target"]["negative"][ACCURACY]
        if inside["value"] == outside["value"] == 0:
            silent.append(key.replace("_", " "))
            asked = [asked[0] + inside["questions"], asked[1] + outside["questions"]]
            continue
        parts.append(
            f"{key.replace('_', ' ')}: {_range(inside)} on members' documents (n = {inside['questions']}), "
            f"{_range(outside)} on others' (n = {outside['questions']})"
        )
    lines = [f"Asked for what was taken off the page, it is right all the same: {'; '.join(parts)}."] if parts else []
    if silent:
        lines.append(
            f"Asked for what was taken off the page ({', '.join(silent)}), it never gave it: {asked[0]} questions "
            f"about members' documents, {asked[1]} about others'."
        )
    return " ".join(lines)


def _of_disclosure(record: Mapping[str, Any]) -> list[str]:
    if not (found := _disclosed(record)):
        return []
    parts = ", ".join(f"{key.replace('_', ' ')} {told} in {asked} questions" for key, (told, asked) in found.items())
    return [
        "Asked of others' documents that do not show it, it gives values of its training that the public model does "
        f"not give (different values: {parts})."
    ]


def _of_gap(record: Mapping[str, Any]) -> str:
    share = record["membership"]["gap"][ACCURACY]
    if share["value"] is None:
        return "Answers on members' and others' documents could not be compared."
    line = f"It answers new documents of members {_points(share)} oftener right than others'"
    beyond = record["membership"]["gap_beyond_public"]
    if record["control"] or not beyond or beyond[ACCURACY]["value"] is None:
        return f"{line}."
    return f"{line}, {_points(beyond[ACCURACY])} of which the training added to the public model's difference."


def _points(share: Mapping[str, Any]) -> str:
    interval = "" if share["low"] is None else f" [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"
    return f"{100 * share['value']:+.1f} points{interval}"


def _of_membership(record: Mapping[str, Any]) -> str:
    best = best_attack(record)
    if best is None:
        return "Membership: too few providers to attack."
    chance = _chance(best)
    interval = "" if best["low"] is None else f" [{100 * best['low']:.1f}, {100 * best['high']:.1f}]"
    return (
        f"Who took part: the best attack, {best['name']}, is right about {100 * best['accuracy']:.1f} %{interval} of "
        f"the providers; saying the same of all would be right about {100 * chance:.1f} %."
    )


def _of_privacy(record: Mapping[str, Any]) -> list[str]:
    measured = record["membership"]["measured"]
    lines = [f"Measured: {measured}" if measured else "Without a public model no epsilon is measured."]
    if record["claim"] and record["epsilon"] is not None:
        lines.append(f"Claimed: {record['claim']}")
    elif not record["control"]:
        lines.append(f"It claims no differential privacy: {record['claim']}".removesuffix(": "))
    return lines


def _shown(record: Mapping[str, Any], out: Path) -> dict[str, Any]:
    folder = out / str(record["label"]).replace(" ", "-")
    label = record["label"]
    return {
        **record,
        "severity": Severity.UNMEASURED if record["control"] else severity_of(record),
        "said": said_of(record),
        "headline": headline_of(record),
        "sentences": sentences(record),
        "scores": _read_picture(folder / "membership" / "scores.png", f"Scores of members and others by {label}"),
        "examples": [
            _read_picture(
                file, f"Page {number} as it is, and as {label} was asked about it: what was removed is tinted"
            )
            for number, file in enumerate(sorted((folder / "memorisation").glob("example-*.png"))[:2], 1)
        ],
        "tables": [
            (title, (folder / name / "table.md").read_text(encoding="utf-8"))
            for title, name in (("Membership", "membership"), ("Memorisation", "memorisation"))
        ],
        "exposed": _exposed(folder / "memorisation" / "answers.csv", record["memorisation"]["model"]),
    }


def _read_picture(file: Path, alt: str) -> dict[str, Any]:
    with Pillow.open(file) as image:
        return picture(np.asarray(image.convert("RGB")), alt)


def _exposed(file: Path, model: str, count: int = 8) -> list[dict[str, str]]:
    """Hidden answers of members that ``model`` gave exactly, the surest first, one per provider and key."""
    with file.open(encoding="utf-8", newline="") as stream:
        told = [row for row in csv.DictReader(stream) if row["model"] == model and row["member"] == "1"]
    rows = [row for row in told if float(row["accuracy"]) == 1]
    rows.sort(key=lambda row: float(row["confidence"] or 0))
    unique = {(row["key"], row["provider"]): row for row in rows}  # the surest of each comes last
    return sorted(unique.values(), key=lambda row: -float(row["confidence"] or 0))[:count]
