"""What a CDMI game says, in words: how bad it is, why, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import binom

from docleak.documents.names import provider_key
from docleak.documents.pages import gathered
from docleak.metrics.estimate import Estimate, clopper_pearson
from docleak.metrics.extraction import first_of
from docleak.report.measure import FIELDS, Measure, holdings, measured, share_of
from docleak.report.severity import Part, Severity
from docleak.spec import counted_words
from docleak.studies.weights.saw import not_shown, shown
from docleak.studies.weights.table import OF_VALUES, GameTable, Ranked

LABELS = {
    Severity.SEVERE: "Fields can be read back",
    Severity.PARTIAL: "More than public data tell",
    Severity.NONE: "Nothing found beyond what public data tell",
}
#: "Nothing found" may be said where IpF's interval ends below this; 1 is no better than public data.
EXCLUDED = 1.5
#: And where so large a share of whole readings is excluded: where none was read, resampling IpF sees no risk of one.
READ_AT_MOST = 0.1
#: Share of tokens that public data alone have to guess: with fewer, the right one is hardly ever among the candidates.
LEAST_GUESSED = 0.1
#: Whole fields count as read where chance explains as many, or more, with at most this probability.
BY_CHANCE = 0.025


def guesses_too_little(table: GameTable) -> bool:
    """Whether public data alone tell too little for "nothing was read" to mean anything of the target."""
    wrong = table.estimates["baseline_hamming"].value
    return wrong is not None and 1 - wrong < LEAST_GUESSED


def told_by_public(table: GameTable, copies: Mapping[str, Any], control: bool) -> set[str]:
    """The fields that public data tell: those that they read alone and, of a ``control``, which was trained on the
    public documents, those that these print (the names of shops). Another target did not see them: what it reads and
    public data alone do not, it has from its own pages, if from others than the field's."""
    printed = {name for name, of in copies.items() if control and of["public"]["printing"]}
    return printed | {field.name for field in table.baseline if field.match.perfect}


def verdict_of(
    table: GameTable, copies: Mapping[str, Any], *, of: str = "", control: bool = False, planned: int = 0,
    saw: Mapping[str, Any] | None = None,
) -> Part:  # fmt: skip
    """SEVERE where a whole field was read that public data do not tell and the weights are significantly better
    than public data (IpF's interval above 1), PARTIAL where they are, or where such fields are more than chance
    explains (``_by_chance``); UNTOLD where they are not, where IpF's interval does not rule out that the weights are
    better (``EXCLUDED``), too few documents have a field that public data do not tell (``READ_AT_MOST``), fewer than
    the ``planned`` fields are finished, or what is known of the pages that a finished target ``saw`` does not show
    these (``studies.weights.saw``)."""
    factor = factor_of(table)
    public = told_by_public(table, copies, control)
    gained = [field for field in table.fields if field.match.perfect and field.name not in public]
    whole = {field.name for field in table.fields if field.match.perfect}
    lost = [field for field in table.baseline if field.match.perfect and field.name not in whole]
    better = factor.low is not None and factor.low > 1
    more = _by_chance(gained, lost) <= BY_CHANCE
    left = [field for field in table.fields if field.name not in public]
    documents, values = ({kind(field) for field in left} for kind in (_document, _value))
    tried, those = (documents, "document") if len(documents) <= len(values) else (values, "different value")
    most = clopper_pearson(0, len(tried))[1]  # the largest share read that as many documents without one do not exclude
    fields, unsure = len(table.fields), _unsure(table, _left(table, planned), saw)
    if not unsure and most > READ_AT_MOST:
        unsure = (
            f"such fields of {counted_words(len(tried), those)} do not exclude that {math.floor(100 * most)} % of "
            "them are read word for word"
            if tried
            else "public data tell every field"
        )
    if better or more:
        severity = Severity.SEVERE if better and gained else Severity.PARTIAL
    elif gained:
        severity = Severity.UNTOLD
    elif factor.value is None:
        severity = Severity.UNMEASURED
    else:
        severity = Severity.UNTOLD if unsure else Severity.NONE
    came = (
        f"{len(gained)} of {fields} scrubbed fields came back word for word that public data do not tell, and public "
        f"data alone tell {len(lost)} that the weights do not"
    )
    sentence = {
        Severity.SEVERE: f"Whoever has the weights reads {len(gained)} of {fields} scrubbed fields word for word that "
        "public data do not tell.",
        Severity.PARTIAL: f"{came}: more than chance explains, though over all fields the weights are not measurably "
        "better than public data."
        if gained
        else f"The weights tell more about the {fields} scrubbed fields than public data do, but no field came back "
        "whole that public data do not tell.",
        Severity.UNTOLD: f"{came}: that may be chance, for over all fields the weights are not measurably better."
        if gained
        else f"None of {fields} scrubbed fields came back that public data do not tell, but whether the "
        f"weights tell more than public data could not be told: {unsure}.",
        Severity.UNMEASURED: f"Whether the weights tell more about the {fields} scrubbed fields than public data do "
        "was not measured.",
        Severity.NONE: f"From the weights these {fields} scrubbed fields were not read measurably better than from "
        f"public data alone; their improvement factor's interval ends at {_most(factor)} (1: no better; where hardly a "
        f"field is read, intervals of it are too narrow); {len(tried)} {those}s exclude that more than "
        f"{math.ceil(1000 * most) / 10:g} % of such fields are read word for word where public data do not tell them.",
    }[severity]
    label = LABELS.get(severity, severity.label)
    if control:
        sentence = f"Control, a model that never saw these pages: {sentence[0].lower()}{sentence[1:]}"
        label = f"Control: {label}"
    return Part(f"weights of {of}", severity, sentence, label, "weights", chance=2 * BY_CHANCE)


def factor_of(table: GameTable) -> Estimate:
    """IpF with the interval that holds for documents and for values: pages that print one value are read together."""
    factor, by_value = table.estimates["improvement_factor"], table.estimates.get(OF_VALUES)
    if by_value is None or factor.low is None or factor.high is None:
        return factor
    if by_value.low is None or by_value.high is None:
        return replace(factor, low=None, high=None)
    return replace(factor, low=min(factor.low, by_value.low), high=max(factor.high, by_value.high))


def _document(field: Ranked) -> str:
    return field.document or field.name


def _value(field: Ranked) -> str:
    return provider_key(field.value)  # whatever its spelling


def _by_chance(gained: Sequence[Ranked], lost: Sequence[Ranked]) -> float:
    """How probably as many documents or more have more fields that the weights alone tell than ones that public data
    alone tell, if either is as likely (sign test); of values instead, where those are fewer."""
    chances = []
    for kind in (_document, _value):
        net = [sum(of) for of in gathered((kind(field), side) for side, of in ((1, gained), (-1, lost))
                                          for field in of).values()]  # fmt: skip
        chances.append(float(binom.sf(sum(one > 0 for one in net) - 1, sum(one != 0 for one in net), 0.5)))
    return max(chances)


def _unsure(table: GameTable, left: int, saw: Mapping[str, Any] | None) -> str:
    """Why it is not said that the weights tell no more than public data do; "" where it may be said."""
    factor = factor_of(table)
    if why := not_shown(saw):
        return why
    if left:
        return f"{left} more fields are not finished"
    if factor.low is None or factor.high is None:
        return "one document, or one value on all, gives no interval"
    if guesses_too_little(table):
        right = _right(table.estimates["baseline_hamming"])
        return (
            f"public data alone tell on average {right} of the tokens of a field, too few for nothing read to mean "
            "anything of the weights"
        )
    if factor.high > EXCLUDED:
        return f"so few documents do not exclude an improvement factor of {_most(factor)} (1: no better)"
    return ""


def _most(factor: Estimate) -> str:
    """The upper end of IpF's interval, rounded up."""
    return "any" if factor.high is None else f"{math.ceil(100 * factor.high) / 100:.2f}"


def fields_measured(
    table: GameTable, copies: Mapping[str, Any], units: Mapping[str, Mapping[str, Any]], *, name: str, planned: int,
    rng: np.random.Generator, control: bool = False, saw: Mapping[str, Any] | None = None,
) -> Measure:  # fmt: skip
    """The share of scrubbed fields read word for word that public data do not tell; intervals over documents."""
    public = told_by_public(table, copies, control)
    held, told = [units[field.name] for field in table.fields], ("page", "key", "value")
    groups = holdings((str(unit["document"]), [unit.get(key) for key in told]) for unit in held)
    by = measured([
        (groups[str(units[field.name]["document"])], float(field.match.perfect and field.name not in public), 1)
        for field in table.fields
    ])  # fmt: skip
    left = _left(table, planned)
    doubts = [f"{left} more fields are not finished."] if left else []
    if why := not_shown(saw):
        doubts.append(f"{why[0].upper()}{why[1:]}.")
    factor = factor_of(table)
    if factor.value is None or factor.low is None:
        doubts.append("Whether the weights tell more than public data could not be told.")
    elif guesses_too_little(table):
        doubts.append("Public data tell too little for nothing read to mean anything.")
    elif factor.high is not None and factor.high > EXCLUDED:
        doubts.append(f"An improvement factor of {_most(factor)} is not excluded (1: no better than public data).")
    if factor.low is not None and factor.low > 1:
        doubts.append("The weights tell measurably more about the fields than public data do.")
    return Measure(FIELDS, name, share_of(by, rng), tuple(doubts), by)


def reasons(
    table: GameTable, copies: Mapping[str, Any], answers: Mapping[str, Any] | None, planned: int,
    saw: Mapping[str, Any] | None = None,
) -> list[str]:  # fmt: skip
    """Why that is the verdict, in sentences. ``copies`` are where else each field stands, ``answers`` what the
    adversary itself can say of single readings, ``saw`` what shows that a finished target saw the pages."""
    fields, read = len(table.fields), [field for field in table.fields if field.match.perfect]
    lines = [f"{fields} of {planned} fields are finished; of the others nothing is known yet."] * (planned > fields)
    lines.append(
        f"At a first attempt, on average over {fields} fields, {_right(table.estimates['hamming'])} of a field's "
        f"tokens are right; from public data alone it is {_right(table.estimates['baseline_hamming'])}."
    )
    lines += [_of_factor(table.estimates["improvement_factor"]), *_of_values(table)]
    lines += [*_of_copies(read, copies), *_of_the_surest(table)]
    lines += [line] if (line := shown(saw)) else []
    return [*lines, *(of_answers(answers) if answers else [])]


def _left(table: GameTable, planned: int) -> int:
    return max(0, planned - len(table.fields))


def _right(wrong: Estimate) -> str:
    if wrong.value is None:
        return "nothing"
    interval = ""
    if wrong.low is not None and wrong.high is not None and wrong.low < wrong.high:
        interval = f" [{100 * (1 - wrong.high):.1f}, {100 * (1 - wrong.low):.1f}]"
    return f"{100 * (1 - wrong.value):.1f} %{interval}"


def _of_factor(factor: Estimate) -> str:
    if factor.value is None:
        return "How much better that is could not be computed."
    if factor.low is None or factor.high is None:
        return f"Improvement factor IpF {factor.value:.2f}; one document gives no interval."
    beyond = "above" if factor.low > 1 else "below" if factor.high < 1 else "within its interval no different from"
    return (
        f"Improvement factor IpF {factor.text(2)}, {beyond} 1, which is what public data alone give ({factor.n} fields "
        f"of {factor.groups} documents, 95 % interval)."
    )


def _of_values(table: GameTable) -> list[str]:
    by_value = table.estimates.get(OF_VALUES)
    if by_value is None:
        return []
    said = "no interval" if by_value.low is None else by_value.text(2)
    return [
        f"The fields hold {counted_words(by_value.groups, 'different value')}, and pages that print one are read "
        f"together: resampled by value IpF is {said}. The verdict takes the wider of both ends."
    ]


def _of_copies(read: Sequence[Ranked], copies: Mapping[str, Any]) -> list[str]:
    """Whether what was read whole stands elsewhere too: memorised is not copied."""
    if not read or not copies:
        return []
    printing = [[copies[field.name][part]["printing"] for part in ("private", "public")] for field in read]
    alone = sum(not private and not public for private, public in printing)
    elsewhere, open_too = (sum(counts[part] > 0 for counts in printing) for part in (0, 1))
    return [
        f"Of the {len(read)} fields read whole, {alone} stand{'s' if alone == 1 else ''} on no other document of this "
        f"audit; {elsewhere} on other private documents too, {open_too} on public ones, "
        "where it may be no memory of this page."
    ]


def _of_the_surest(table: GameTable) -> list[str]:
    few = table.estimates["accuracy_at_5%"]
    if few.value is None:
        return []
    surest = table.fields[0]
    right = round((1 - surest.match.hamming) * 100)
    words = "which is right" if surest.match.perfect else f"of whose tokens {right} % are right"
    count = first_of(0.05, len(table.fields))
    return [
        f"Of the 5 % of fields that it is surest of ({count} of {len(table.fields)}, rounded up) it read "
        f"{round(few.value * count)} whole. Surest of all it is of “{surest.guess.removeprefix('##')}”, {words}."
    ]


def of_answers(answers: Mapping[str, Any]) -> list[str]:
    """What the adversary itself can say of single readings, and whether that is worth more than one number for all."""
    token, half = answers["events"]["token"], answers["events"]["half"]
    sure = sum(p >= 0.5 for p in half["stated"].values())
    low, high = token["gained"]["low"], token["gained"]["high"]
    worth = (
        "closer to the truth than" if low is not None and low > 0
        else "further from it than" if high is not None and high < 0
        else "not measurably closer to the truth than"
    )  # fmt: skip
    return [
        f"Calibrated on pages of its own, the adversary's probabilities that a token is right are {worth} one number "
        f"for all (Brier score {token['brier']:.3f} against {token['constant_brier']:.3f}). It states for {sure} of "
        f"{half['count']} fields that at least half is probably right; it is so for {half['true']}."
    ]


def advice(severity: Severity, *, control: bool, saw: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """What to do about it."""
    if control:
        return ("Compare with the same game on the model itself: what that reads beyond this is memory.",)
    if severity is Severity.UNTOLD and not_shown(saw):
        return (
            "Give the pages that the target was trained on (--documents), or the target of these pages (--target).",
        )
    if severity in (Severity.UNTOLD, Severity.UNMEASURED):
        return ("Audit more documents before you publish the weights: nothing here says that they are safe.",)
    if severity is Severity.NONE:
        return (
            "This attack gives no reason to hold the weights back; a stronger attack or longer training may.",
            "Audit again after every change of data or training.",
        )
    first = {
        Severity.SEVERE: "Do not publish the weights as they are while the fields are confidential: whoever has a page "
        "with a field blacked out can try to fill it in.",
        Severity.PARTIAL: "Before you publish the weights, decide whether what came back, single words or digits of "
        "the fields at least, may be known; and count on stronger attacks, which may read more.",
    }[severity]
    return (
        first,
        "Take duplicates out of the training pages, and keep the epoch of the best validation loss (--criterion "
        "loss): both cost little. Then audit again, since neither promises anything.",
        "What bounds every attack is training with differential privacy (docleak budget, docs/privacy.md); it costs "
        "accuracy.",
    )
