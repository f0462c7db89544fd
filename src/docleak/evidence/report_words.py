"""The sentences of a report: verdicts, what they mean and do not mean, notices, advice, limits.

Every sentence is computed from the numbers, or is general and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docleak.evidence.report_data import MOMENTS, AttackResult, Counts, ModelResult, ReportData, mark
from docleak.metrics import Estimate

#: Share of the private fields read exactly from which a leak is called severe.
SEVERE = 0.5
#: Share read exactly on the true pages below which little can be concluded from what was not read.
LEGIBLE = 0.5
#: PSNR in dB from which private pixels are usually legible, where the original is.
ALIKE = 20
#: severity -> the words beside its colour.
LABELS = {
    "severe": "Severe leak",
    "partial": "Partial leak",
    "none": "No field read",
    "unreadable": "No conclusion by reading",
    "unknown": "Not measured",
}

#: Short heading -> what a column of the table means.
METRICS = (
    ("Read exactly", "Binary: share of private fields whose text an OCR engine reads back with no character wrong."),
    ("Fuzz ratio", "How much of a field's text was read back, 1 = all of it, 0 = none (edit similarity)."),
    (
        "PSNR",
        f"Likeness of the private pixels in decibels; higher is more alike. {ALIKE} dB and more is usually legible, if "
        "the true page is.",
    ),
    ("FFT2D", "Distance of the spectra of the private pixels; lower is more alike, 0 = identical."),
    ("MSE", "Mean squared error of the private pixels on the scale 0-255; lower is more alike."),
    (
        "Own confidence",
        "Share of the gradient that the blank template does not explain and the reconstruction does; 1 = all, below 0 "
        "= it explains less than the blank template. The attacker can compute it without knowing the page. Only values "
        "close to 1 tell them to trust the picture.",
    ),
    ("Evaluations", "Gradient evaluations spent: the attacker's cost, the same budget for every attack."),
)

LARGER = (
    "Audit at a size at which the true page can be read: --image-size WIDTHxHEIGHT with Donut, otherwise a model with "
    "a larger input. And look at the pictures."
)

ADVICE = (
    "Do not let anyone see one client's gradient of the first rounds. Use secure aggregation, so that the server only "
    "learns the sum over many clients, or differential privacy per provider, with noise added before the update "
    "leaves the client.",
    "Make updates coarser: larger batches and several local steps per update mix more pages into each number. That "
    "makes it harder, though not impossible, to take one page out.",
    "Do not publish the blank templates of the forms you train on: they give the attacker all pixels that are public.",
    "Keep logs, crash dumps and debugging copies of single updates as confidential as the pages themselves.",
)

LIMITS = (
    "A picture that stayed blurred is no proof of safety: it shows that these attacks, with this budget, did not "
    "succeed. A later attack may.",
    "The attack named in a verdict is the one that recovered most here. It was picked after seeing the results, so its "
    "number leans to the high side when several attacks are close.",
    "Each attack was given the knowledge listed under the threat model, no less. An attacker with less would do worse; "
    "one who knows more, for example other pages of the same customer, could do better.",
    "Text is what one OCR engine reads. A person can read more than it does from the same picture: look at them.",
    "Intervals describe other pages like these. They do not carry over to other kinds of documents or other models.",
)


@dataclass(frozen=True)
class Verdict:
    """One model's answer: ``sentence`` first and what belongs to it (``more``, often ""), ``severity`` a key of LABELS,
    then how it came about and its meaning."""

    sentence: str
    more: str
    severity: str
    label: str
    how: str
    meaning: tuple[str, ...]


def verdict(model: ModelResult, engines: Sequence[str]) -> Verdict:
    """From the numbers of the attack that recovered most on average."""
    best, counts = model.best, model.best.counts
    severity = severity_of(counts)
    if severity == "none" and model.ceiling["binary"].value == 0:
        severity = "unreadable"
    told, of = fields_in_words(model)
    if told > counts.exact:  # the words give more away than the picture
        severity = "severe" if told >= SEVERE * of else "partial"
    how = f"By {best.attack}" if told <= counts.exact else f"By linear algebra; the picture by {best.attack}"
    if len(model.attacks) > 1:
        average = " on average" if len(best.units) > 1 else ""
        how += f", the attack that recovered most{average} of the {len(model.attacks)} tried"
    if best.evaluations.mean is not None:
        how += f", after {best.evaluations.mean:,.0f} gradient evaluations"
        how += f" ({duration(best.seconds.mean)})" if best.seconds.mean is not None else ""
        how += " per page" if len(best.units) > 1 else ""
    return Verdict(
        sentence=_sentence(model, severity) if told <= counts.exact else _words_sentence(model, told, of),
        more=f"{_likeness(best)}. Audit at a larger size." if severity == "unreadable" else "",
        severity=severity,
        label=LABELS[severity],
        how=how + ".",
        meaning=tuple(_meaning(model, severity, engines)),
    )


def severity_of(counts: Counts) -> str:
    """What was read of the scored fields; what the blank template already tells does not count."""
    if not counts.scored:
        return "unknown"
    recovered = counts.exact + counts.near - counts.blank
    if recovered <= 0:
        return "none"
    return "severe" if counts.exact >= SEVERE * counts.scored else "partial"


def fields_in_words(model: ModelResult) -> tuple[int, int]:
    """(read word for word, in all) private fields in the text side, on the pages where the model takes words."""
    fields = [bool(read) for text in model.texts if text["words"] for read in text["fields_read"]]
    return sum(fields), len(fields)


def _words_sentence(model: ModelResult, told: int, of: int) -> str:
    counts = model.best.counts
    fields = f"{told} of {of} private {'field' if of == 1 else 'fields'}"
    pages = f", on {len(model.texts)} pages" if len(model.texts) > 1 else ""
    picture = f"{counts.exact or 'none'} of {counts.scored}"
    return (
        f"From one client's gradient {MOMENTS[model.moment]}, the server read {fields} exactly{pages}, out of "
        f"the words that the model takes beside the picture; out of the picture alone, {picture}."
    )


def _sentence(model: ModelResult, severity: str) -> str:
    counts, sizes = model.best.counts, model.batch_sizes
    batch = (
        f" over a batch of {' to '.join(str(s) for s in {sizes[0]: 0, sizes[-1]: 0})} pages" if sizes[-1] > 1 else ""
    )
    begin = f"From one client's gradient{batch} {MOMENTS[model.moment]}, the server"
    pages = f", on {len(model.best.units)} pages" if len(model.best.units) > 1 else ""
    if severity == "unknown":
        return f"{begin} made the pictures below; whether their text can be read was not measured."
    fields = f"{counts.scored} private {'field' if counts.scored == 1 else 'fields'}"
    if severity == "unreadable":
        true = "page" if len(model.best.units) == 1 else "pages"
        size = f"at {' or '.join(model.sizes)} pixels" if model.sizes else "at this size"
        return (
            f"From one client's gradient{batch} {MOMENTS[model.moment]}, nothing can be concluded by reading: {size} "
            f"the OCR engine reads none of {fields} exactly on the true {true} either."
        )
    if counts.exact:
        near = f" and {counts.near} more nearly" if counts.near else ""
        return f"{begin} read {counts.exact} of {fields} exactly{near}{pages}."
    near = f" but {counts.near} nearly" if counts.near else ""
    return f"{begin} read none of {fields} exactly{near}{pages}."


def _likeness(attack: AttackResult) -> str:
    psnr, explained = attack.estimates["psnr"].value, attack.explained.mean
    known = [f"PSNR {psnr:.1f} dB"] if psnr is not None else []
    known += [f"own confidence {explained:.3f} of 1"] if explained is not None else []
    return ", ".join(known) or "No likeness was measured"


def _unreadable(attack: AttackResult) -> list[str]:
    """What may be said where the engine reads nothing on the true page."""
    psnr = attack.estimates["psnr"].value
    lines = [
        "This is no finding of safety: the engine cannot read the true text at this size, so it would not read a "
        "perfect copy either."
    ]
    if psnr is not None:
        side = "above" if psnr >= ALIKE else "below"
        lines.append(
            f"What can be said: PSNR {psnr:.1f} dB is {side} the {ALIKE} dB from which private pixels are usually "
            "legible where the true page is. The attacker's own confidence needs no reading."
        )
    return [*lines, LARGER]


def _meaning(model: ModelResult, severity: str, engines: Sequence[str]) -> list[str]:
    lines = []
    best, floor, ceiling = model.best, model.floor["binary"], model.ceiling["binary"]
    known = any(unit.record["view"].get("words_known") for unit in model.units)
    if severity == "unknown":
        lines.append("No OCR engine read the fields. Install one and score the run again, or judge the pictures.")
    elif severity == "unreadable":
        lines += _unreadable(best)
    else:
        reader = engines[0] if engines else "the OCR engine"
        true = "page" if len(best.units) == 1 else "pages"
        lines.append(
            f"Yardsticks: on the true {true} {reader} reads {share(ceiling)} of the fields exactly, on the blank "
            f"template {share(floor)}. What lies between came out of the gradient."
        )
    if severity in ("severe", "partial"):
        reach = "read private text" if best.counts.exact else "come close to private text"
        reach = "rebuild what private fields look like" if known else reach
        reach = "read private text" if fields_in_words(model)[0] else reach
        lines.append(f"It means that whoever receives one such update can {reach} without ever seeing the page.")
    if severity == "none":
        lines.append(
            "It does not mean that the gradient is safe: these attacks did not succeed within this budget. Look at the "
            "pictures, too: a person can read more than an OCR engine."
        )
    if severity in ("none", "partial") and ceiling.value is not None and ceiling.value < LEGIBLE:
        lines.append(
            f"The true pages are hardly legible to the engine themselves, so it may miss a good copy. {LARGER}"
        )
    if model.documents < 2:
        lines.append("This is 1 document: an example of what can happen, not a rate at which it happens.")
    elif severity not in ("unknown", "unreadable"):
        lines.append(
            f"Share read exactly: {share(best.estimates['binary'])}, {between(best.estimates['binary'])} over "
            f"{model.documents} documents, as far as other pages are like these."
        )
    if known:
        lines.append(
            "This model reads OCR words beside the picture, and the attacks on the picture were given them, as in the "
            "paper: they show what the picture's part of the gradient alone gives away."
        )
    elif told := sum(mark(f) in ("exact", "near") and unit.given(f) for unit in best.units for f in unit.score.fields):
        what = "1 of the fields read holds" if told == 1 else f"{told} of the fields read hold"
        lines.append(f"{what} the answer to the client's question, which the attacker was given: no secret to it.")
    lines += _of_text(model)
    if best.counts.blank:
        lines.append(f"{best.counts.blank} of the fields read can be read on the blank template too.")
    if best.counts.unscored and severity != "unknown":
        lines.append(f"{best.counts.unscored} private fields have no text or no place on the page and were not scored.")
    return lines


def _of_text(model: ModelResult) -> list[str]:
    """What the text side gives away without any picture."""
    texts = model.texts
    if not texts:
        return _of_batches(model)
    exact = sum(bool(text["exact"]) for text in texts)
    where = "exactly" if len(texts) == 1 else f"exactly on {exact} of {len(texts)} pages"
    if not exact:
        right, tokens = (sum(int(text[key]) for text in texts) for key in ("tokens_right", "tokens"))
        return [f"By linear algebra alone the gradient gives away {right} of {tokens} tokens of the client's text."]
    what = "every word, its place, question and answer" if texts[0]["words"] else "question and answer"
    fields = [read for text in texts for read in text["fields_read"]]
    among = f" {sum(fields)} of {len(fields)} private fields are among the words." if texts[0]["words"] else ""
    return [f"By linear algebra alone, with no text given, the gradient tells {what} {where}.{among}"]


def _of_batches(model: ModelResult) -> list[str]:
    """What the text tables tell of several pages at once, summed over the batches."""
    batches = model.batches
    if not batches:
        return []

    def told(what: str) -> tuple[int, int, int]:
        right, found, true = (sum(int(batch[what][key]) for batch in batches) for key in ("right", "found", "true"))
        return right, found, true

    (tokens, named, there), (edges, read, used) = told("tokens"), told("coordinates")
    (places, claimed, positions), (boxes, drawn, of) = told("places"), told("boxes")
    wrong = named - tokens + read - edges + claimed - places + drawn - boxes
    return [
        f"By linear algebra alone the gradient tells {tokens} of the {there} different tokens in the batch and {edges} "
        f"of the {used} coordinates of its boxes; all tokens at {places} of {positions} positions, and {boxes} of {of} "
        f"tokens with position and box. {wrong} statements were wrong. Which page a token is of, it does not tell."
    ]


def defence_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a comparison of defences found, in a sentence; the first row is no defence."""
    measured = [row for row in rows if row.get("leakage") is not None]
    if len(measured) < 2 or measured[0] is not rows[0]:
        return ""
    plain, tried = measured[0]["leakage"], measured[1:]
    best = min(tried, key=lambda row: float(row["leakage"]))
    if best["leakage"] >= plain - 1e-9:
        return f"None of the {len(tried)} defences tried lowered what was read."
    useless = [str(row["defence"]) for row in tried if row["leakage"] >= plain - 1e-9]
    also = f" These changed nothing: {'; '.join(useless)}." if useless else ""
    return (
        f"Least was read under: {best['defence']} ({100 * best['leakage']:.0f} % of the private text, against "
        f"{100 * plain:.0f} % without).{also}"
    )


def notices(data: ReportData) -> list[str]:
    """What makes the comparison unequal or untrustworthy; printed above everything else."""
    found = []
    for model in data.models:
        most = len(model.best.units)
        for attack in model.attacks:
            if len(attack.units) < most:
                found.append(
                    f"Unfinished: {attack.attack} has done {len(attack.units)} of {most} pages on {model.title}. "
                    "Run the same command again to complete it."
                )
        if model.self_test_failed:
            found.append(
                f"The self test failed on {model.title} for {', '.join(model.self_test_failed[:5])}: the true page "
                "does not reproduce the observed gradient, so a weak result there says nothing about safety."
            )
        if len({attack.budget.mean for attack in model.attacks}) > 1:
            found.append(f"The attacks on {model.title} had different budgets; the table cannot rank them fairly.")
    return found


def share(estimate: Estimate) -> str:
    """A fraction as a whole percentage."""
    return "not measured" if estimate.value is None else f"{100 * estimate.value:.0f}\N{NO-BREAK SPACE}%"


def between(estimate: Estimate, *, percent: bool = True) -> str:
    """The interval in words, or why there is none."""
    if estimate.low is None or estimate.high is None:
        return "no interval from one document"
    factor, unit = (100, " %") if percent else (1, "")
    return f"95 % interval {factor * estimate.low:.0f} to {factor * estimate.high:.0f}{unit}"


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def summary_lines(data: ReportData) -> list[str]:
    """Verdicts and the best rows of the tables, for a terminal."""
    lines = [f"Notice: {notice}" for notice in [*notices(data), *data.shortages][:2]]
    shown = data.models[:4]
    for model in shown:
        found = verdict(model, data.engines)
        lines += [f"{model.title}: {found.label.lower()}.", f"  {found.sentence} {found.more}".rstrip()]
        lines += [f"  {_row(attack)}" for attack in model.attacks[: 1 if len(shown) > 2 else 3]]
    if len(data.models) > len(shown):
        lines.append(f"... and {len(data.models) - len(shown)} more models in the report.")
    if any(model.documents < 2 for model in data.models):
        lines.append("One document is an example, not a rate: audit more pages for an interval.")
    return lines


def _row(attack: AttackResult) -> str:
    columns = attack.estimates
    fuzz, psnr = columns["fuzz_ratio"].value, columns["psnr"].value
    return "  ".join(
        [
            f"{attack.attack:<20}",
            f"exact {attack.counts.exact}/{attack.counts.scored}",
            f"fuzz {'-' if fuzz is None else format(fuzz, '.2f')}",
            f"PSNR {'-' if psnr is None else format(psnr, '.1f')} dB",
            f"confidence {'-' if attack.explained.mean is None else format(attack.explained.mean, '.3f')}",
        ]
    )
