"""What one released model gave away: how bad it is, and in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from docleak.documents.pages import gathered
from docleak.documents.phrasings import PHRASINGS
from docleak.metrics.estimate import Estimate
from docleak.report.severity import Severity
from docleak.studies.answers.clear import (
    CLEARLY,
    ERROR,
    counted,
    documents_told,
    no_all_clear,
    providers_not_excluded,
    sure_low,
    unequal,
    worded_apart,
)
from docleak.studies.answers.documents import WORDING
from docleak.studies.answers.record import (
    Record,
    attacks_in,
    best_attack,
    best_score,
    measured_in,
    memories_in,
    memory_in,
    not_measured,
    numbers_in,
    surest_score,
    untaken,
)
from docleak.studies.answers.whose import evidence

LABELS = {
    Severity.SEVERE: "Remembers providers",
    Severity.PARTIAL: "Tells members from others",
    Severity.NONE: "Nothing found",
}
#: The same of documents, and where controls forbid a conclusion.
FIELDS_KNOWN, TOLD, DIFFERENT = (
    "Knows fields of its documents", "Tells its documents from others", "The sets differ without the model"
)  # fmt: skip
#: Instead of the label of PARTIAL where membership does not show, and of a control.
DISCLOSES, YARDSTICK = "Says values of its training", "Control: trained on none of them"
#: And where no attack tells members, but how well they are answered, or the measured epsilon, does.
BETTER, LOSSES = "Answers members better than others", "Its losses tell members from others"


def severity_of(record: Record) -> Severity:
    """Memory is shown by answers, membership by scores, both beyond chance (``confidence_of``).

    Of a control the same is said, under a label of its own (``said_of``): it is no release, and no part of a verdict.
    A value of the training that only the target gives, asked of documents that do not show it, is at least PARTIAL.
    NONE needs all that was asked for to have been measured with intervals that exclude much, else it is UNTOLD.
    """
    return _severity_of_documents(record) if "documents" in record else _severity_of_providers(record)


def confidence_of(records: Sequence[Record]) -> int:
    """With how much confidence, in percent, the label of each release is beyond chance: ERROR for each of what may set
    it, the numbers of providers (all of them together), the measured epsilon and the scores of documents."""
    kinds = (
        any(counted(record) for record in records), any(measured_in(record) is not None for record in records),
        any("documents" in record for record in records),
    )  # fmt: skip
    return round(100 * (1 - ERROR * sum(kinds)))


def _severity_of_documents(record: Record) -> Severity:
    """The fields that are known beyond others' and beyond the public model's, else the best score."""
    if record["documents"]["differs"]:
        return Severity.UNTOLD
    low = best_score(record)[1].low or 0.0
    if fields_known(record) or low >= CLEARLY:
        return Severity.SEVERE
    if documents_told(record):
        return Severity.PARTIAL
    return Severity.UNTOLD if no_all_clear(record) else Severity.NONE


def fields_known(record: Record) -> bool:
    """Whether values taken off members' pages rank first oftener than by chance, than others', and than they did."""
    of = numbers_in(record, "fields").get("", {})
    return bool(of) and (of["known"].low or 0.0) > (of["chance"].value or 1.0) and all(
        (of[name].low or 0.0) > 0 for name in ("gap", "beyond") if name in of
    )  # fmt: skip


def _severity_of_providers(record: Record) -> Severity:
    sure = {key: all(sure_low(one, record) > 0 for one in of) for key, of in memories_in(record).items()}
    if any(sure[key] for key in sure if _asked_alike(record, key)):
        return Severity.SEVERE
    if _tells_members(record) or _disclosed(record):
        return Severity.PARTIAL
    measured = [gap.low is not None for gap in memory_in(record).values()]
    if "membership" in record:
        measured += [one.accuracy.low is not None for one in attacks_in(record)] or [False]
    measured += [False] * len(not_measured(record))
    if measured and all(measured):
        return Severity.UNTOLD if providers_not_excluded(record) else Severity.NONE
    return Severity.UNTOLD if any(measured) else Severity.UNMEASURED


def said_of(record: Record) -> str:
    """The words beside the colour of a release."""
    severity = severity_of(record)
    if record["control"]:
        return YARDSTICK
    if "documents" in record and severity is not Severity.NONE:
        if record["documents"]["differs"] and not _few(record):
            return DIFFERENT
        return severity.label if severity is Severity.UNTOLD else FIELDS_KNOWN if fields_known(record) else TOLD
    if severity is Severity.PARTIAL:
        return next(iter(_telling(record)), DISCLOSES)
    return LABELS.get(severity, severity.label)


def headline_of(record: Record) -> str:
    """What the severity rests on: what it remembers, or else what tells members from others."""
    if "documents" in record:
        return " ".join([*_of_documents(record), *_of_fields(record)])
    severe = severity_of(record) is Severity.SEVERE
    rest = [*_of_disclosure(record), *_of_gap(record), *_of_membership(record), *_of_measured(record)]
    first = _of_memory(record) if severe or not rest else rest
    return " ".join([*first, *([] if severe else _of_unmeasured(record)), *_of_all_clear(record)])


def sentences(record: Record) -> list[str]:
    """What one release gave away, in plain words."""
    every = (
        _of_documents, _of_fields, _of_memory, _of_disclosure, _of_gap, _of_membership, _of_whose, _of_unmeasured,
        _of_all_clear, _of_privacy,
    )  # fmt: skip
    return [line for of in every for line in of(record)]


def _asked_alike(record: Record, key: str) -> bool:
    """Whether members' and others' documents are asked for a key in the same words: docleak's own, if it has some."""
    return key in PHRASINGS or not worded_apart(record)


def _tells_members(record: Record) -> bool:
    """Whether anything tells members from others."""
    return bool(_telling(record))


def _telling(record: Record) -> list[str]:
    """The labels of what tells members from others, both of whom are asked in the same words: an attack, the gap
    between answers, the measured epsilon; the gap alone where they are asked ``unequal`` numbers of questions."""
    if worded_apart(record):
        return []
    gap = numbers_in(record, "gap").get("", {})
    side = "beyond" if "beyond_acc" in gap else "gap"
    better = any(sure_low(gap[f"{side}_{of}"], record) > 0 for of in ("acc", "anls") if gap)
    alike = not unequal(record)
    attacked = alike and any(
        sure_low(one.accuracy, record) > one.chance and (one.beyond is None or sure_low(one.beyond, record) > 0)
        for one in attacks_in(record)
    )
    told = {LABELS[Severity.PARTIAL]: attacked, BETTER: better, LOSSES: alike and (measured_in(record) or 0) > 0}
    return [label for label, shown in told.items() if shown]


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
            f"{outside.n})" + _beyond_public(of)
        )
    lines = [f"Asked for what was taken off the page, it is right all the same: {'; '.join(parts)}."] if parts else []
    if silent:
        lines.append(
            f"Asked for what was taken off the page ({', '.join(silent)}), it never gave it: {asked[0]} questions "
            f"about members' documents, {asked[1]} about others'."
        )
    why = untaken(record, "memorisation") if parts else ""
    return [*lines, f"{why[0].upper()}{why[1:]}."] if why else lines


def _beyond_public(of: Mapping[str, Estimate]) -> str:
    """What is left of a key's numbers beside the public model's, where it was asked."""
    if "beyond_acc" not in of:
        return ""
    itself = f", beyond what it gives of members' itself {_points(of['gained_acc'])}" if "gained_acc" in of else ""
    return f", {_points(of['beyond_acc'])} of the difference beyond the public model's{itself}"


def _of_documents(record: Record) -> list[str]:
    if "documents" not in record:
        return []
    of, scores, (name, auc) = record["documents"], numbers_in(record, "documents"), best_score(record)
    sizes = f"{of['members']} documents said to be trained on and {of['others']} others"
    blind = "; ".join(f"AUC {Estimate.of_json(told).text(2)} ({what})" for what, told in of["controls"].items())
    if short := _few(record):
        return [
            f"{sizes} are too few: {'; '.join(short)} has no interval, so that nothing says whether the sets differ by "
            "themselves."
        ]
    if of["differs"]:
        mend, piles = {WORDING: "Ask both in the same words."}, "Draw both from one pile, by a coin for each document."
        return [
            f"The two sets of documents differ without asking the model ({blind}), so that no score says what training "
            f"left behind. {' '.join(dict.fromkeys(mend.get(name, piles) for name in of['differs']))}"
        ]
    rate = scores[name]["tpr_at_1_fpr"]
    hits = f"at 1 % false alarms it finds {_range(rate)} of them" if rate.value is not None else (
        f"at 1 % false alarms nothing is measured: {rate.why}"
    )  # fmt: skip
    told, most = (auc.low or 0.0) > 0.5, max(number["auc"].high or 1.0 for number in scores.values())
    line = f"Was a document trained on? The best of {len(scores)} scores, {name}, has AUC {auc.text(2)} over {sizes}; "
    reverse = "which is below chance" if auc.high is not None and auc.high < 0.5 else "chance is within"
    line += hits if told else f"{reverse}, and an AUC up to {most:.2f} is not excluded"
    if not told and (sure := surest_score(record))[1] > 0.01:
        line += f"; yet {sure[0]} finds {_range(scores[sure[0]]['tpr_at_1_fpr'])} of them at 1 % false alarms"
    why = no_all_clear(record) if _severity_of_documents(record) is Severity.UNTOLD else ""
    clear = f" No all-clear: {why}." if why else ""
    return [f"{line}. Without the release every interval holds chance, 1/2: {blind}.{clear}"]


def _few(record: Record) -> list[str]:
    """Controls without an interval."""
    return [what for what, told in record["documents"]["controls"].items() if told["low"] is None]


def _of_fields(record: Record) -> list[str]:
    if not (of := numbers_in(record, "fields").get("")):
        return [f"Fields: {why}." for why in record.get("fields", {}).get("remarks", {}).values()]
    more = "more than all of these" if fields_known(record) else "not told apart from these"
    before = f", before the training {_range(of['before'])}" if "before" in of else ""
    return [
        f"Private fields taken off their page: the true value ranks first among those of other documents in "
        f"{_range(of['known'])} of {of['known'].n} fields of members{before}; of others' in {_range(of['others'])} of "
        f"{of['others'].n}; by chance in {100 * (of['chance'].value or 0):.1f} %: {more}."
    ]


def _of_disclosure(record: Record) -> list[str]:
    counts = _disclosed(record)
    parts = ", ".join(f"{key.replace('_', ' ')} {told} in {asked} questions" for key, (told, asked) in counts.items())
    return [
        "Asked of others' documents that do not show it, it gives values of its training that the public model does "
        f"not give (different values: {parts})."
    ] if counts else []  # fmt: skip


def _of_gap(record: Record) -> list[str]:
    if "gap" not in record:
        return []
    of = numbers_in(record, "gap")[""]
    share, beyond = of["gap_acc"], of.get("beyond_acc")
    if share.value is None:
        return ["Answers on members' and others' documents could not be compared."]
    line = f"It answers new documents of members right {_oftener(share)} than others'"
    if record["control"] or beyond is None or beyond.value is None:
        return [f"{line}."]
    return [f"{line}; less the public model's own difference {_points(beyond)}."]


def _of_membership(record: Record) -> list[str]:
    if "membership" not in record:
        return []
    if (best := best_attack(record)) is None:
        return ["Membership was not measured."]
    made, more = len(numbers_in(record, "membership")), f" with more than {best.least} questions" * bool(best.least)
    which = f"the best of {made} attacks" if made > 1 else "the attack"
    why = unequal(record) or untaken(record, "membership")
    beside = f"; {why}" if why else "" if best.beyond is None else (
        f"; {_oftener(best.beyond)} than by the public model's answers" if best.beyond.value is not None
        else f"; by the public model's answers it could not be made: {best.beyond.why.removesuffix('.')}"
    )  # fmt: skip
    alone = "the 95 % interval is this attack's alone, not widened for the choice; " * (made > 1)
    return [
        f"Who took part: {which}, {best.name}, is right in {_range(best.accuracy)} of {best.accuracy.n} guesses about "
        f"{best.accuracy.groups} providers{more} ({alone}in each draw those that APK is told of are left out); saying "
        f"the same of all would be right in {100 * best.chance:.1f} %{beside}."
    ]


def _of_unmeasured(record: Record) -> list[str]:
    """What was asked for, and why it was not measured: nothing is known of it."""
    by_why = gathered((why.removesuffix("."), what.replace("_", " ")) for what, why in not_measured(record).items())
    whys = [f"{', '.join(names)}: {why}" for why, names in by_why.items()]
    asked = record.get("disclosure", {}).get("remarks", {}).get("Not asked") if not record["control"] else None
    whys += [f"values of the training on documents that do not show them: {asked}"] if asked else []
    return [f"Not measured, and nothing is known of it: {'; '.join(whys)}."] if whys else []


def _of_measured(record: Record) -> list[str]:
    """The measured epsilon, where it shows something."""
    shown = (measured_in(record) or 0) > 0 and not unequal(record)
    told = record["membership"]["remarks"].get("Measured") if shown else None
    return [f"Measured: {told}"] if told else []


def _of_whose(record: Record) -> list[str]:
    """What shows that the release saw the documents that it is said to be trained on."""
    return [line] if "whose" in record and (line := evidence(record["whose"])) else []


def _of_all_clear(record: Record) -> list[str]:
    untold = _severity_of_providers(record) is Severity.UNTOLD and not record["control"]
    why = providers_not_excluded(record)
    return [f"No all-clear: {why.removesuffix('?')}{'?' if why.endswith('?') else '.'}"] if untold and why else []


def _of_privacy(record: Record) -> list[str]:
    if "membership" not in record:
        return [f"Claimed: {record['bill']['claim']}"] if record["bill"]["epsilon"] is not None else []
    measured, bill = record["membership"]["remarks"].get("Measured"), record["bill"]
    lines = [f"Measured: {measured}" if measured else "Without a public model no epsilon is measured."]
    if bill["epsilon"] is not None:
        lines.append(f"Claimed: {bill['claim']}")
    elif not record["control"]:
        none = "no differential privacy: "
        lines.append(f"It claims {none}{bill['claim'].removeprefix(none)}".removesuffix(": "))
    return lines


def _range(share: Estimate) -> str:
    if share.value is None:
        return "–"
    return f"{100 * share.value:.1f} %{_interval(share)}"


def _points(share: Estimate) -> str:
    return f"{100 * (share.value or 0):+.1f} points{_interval(share)}"


def _oftener(share: Estimate) -> str:
    """ "3.7 points [1.0, 6.4] less often": of a difference below 0 the interval is turned round, too."""
    if (share.value or 0) >= 0:
        return f"{_points(share).removeprefix('+')} more often"
    low, high = (None if end is None else -end for end in (share.high, share.low))
    less = replace(share, value=-(share.value or 0), low=low, high=high)
    return f"{_points(less).removeprefix('+')} less often"


def _interval(share: Estimate) -> str:
    return "" if share.low is None or share.high is None else f" [{100 * share.low:.1f}, {100 * share.high:.1f}]"
