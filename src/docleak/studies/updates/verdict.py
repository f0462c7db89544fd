"""The verdict on a captured update: what its words and pictures told, and whether the checks allow an all-clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from docleak.metrics import PageScore
from docleak.report.measure import FIELDS, Measure, holdings, measured, share_of
from docleak.report.severity import LEAKS, Cell, Part, Severity, judge, worst
from docleak.report.templating import percent
from docleak.spec import counted_words
from docleak.studies.fields import cell_of
from docleak.studies.gradient.findings import FLOORS
from docleak.studies.updates.permuted import p_value_of_fields

#: Share of tokens, with at least this precision, from which the words count as told.
TOLD, SURE = 0.5, 0.8
#: Chance of calling fields told that are not, where the checks have failed.
BY_CHANCE = 0.05
#: Tokens that are read and true, as a share of those that are either, above which a bag may be that of these pages.
SAME_TOKENS = 0.9
#: Whose pages those of a client are held against.
MADE_UP, OTHERS = "made-up", "others"
OLDER = "An older docleak did not hold these words against pages of their kind: audit the update again to tell."
NONE_BESIDE = (
    "No pages of their kind that this client does not have were at hand, so that nothing says what chance reads of "
    "such: --documents with other clients' folders gives them."
)


@dataclass(frozen=True)
class Pictures:
    """Private fields read over all pages of an attack, and the first page's PSNR. ``cells`` say of each field what may
    be counted: what the blank template shows, or an answer that the attacker was given, is no finding."""

    cells: tuple[Cell, ...]
    exact: int
    blank: int
    legible: int
    scored: int
    psnr: float | None
    blank_psnr: float | None

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Pictures | None:
        """From a unit's record; None where nothing was attacked."""
        if "score" not in saved:
            return None
        pages = [[PageScore.from_json(page).fields for page in saved[key]] for key in ("score", "floor", "ceiling")]
        rebuilt, blank, truth = ([f for fields in kind for f in fields] for kind in pages)
        given = [f.value in answers for fields, answers in zip(pages[0], saved["given"], strict=True) for f in fields]
        seen = zip(rebuilt, blank, truth, given, strict=True)
        return cls(
            cells=tuple(cell_of(read, floor, true, given=known) for read, floor, true, known in seen),
            exact=sum(bool(f.exact) for f in rebuilt),
            blank=sum(bool(f.exact) for f in blank),
            legible=sum(bool(f.exact) for f in truth),
            scored=sum(f.exact is not None for f in rebuilt),
            psnr=saved["score"][0]["psnr"],
            blank_psnr=saved["floor"][0]["psnr"],
        )


def severity_of(record: Mapping[str, Any]) -> Severity:
    """The worse of words and pictures; no all-clear where a check failed, an alarm rang, or either was not tried.

    What a route gives is held against the truth, and counts whether the checks passed or not; where they did not, only
    what chance does not explain.
    """
    if "masked" in record:
        return Severity.NONE if record["masked"].get("hidden") else Severity.UNTOLD
    seen, doubts = Pictures.of(record["pictures"]), doubts_of(record)
    if record["pictures"].get("route") in FLOORS:
        seen = None
    routes = (
        _severity_of_words(record["words"], doubts),
        judge(seen.cells, doubts).severity if seen else Severity.UNMEASURED,
    )
    severity = worst(routes)
    if severity is Severity.UNMEASURED and (doubts or Severity.NONE in routes):
        return Severity.UNTOLD
    return severity


def _severity_of_words(words: Mapping[str, Any], doubts: Sequence[str]) -> Severity:
    if "recall" not in words or not words["true"]:
        return Severity.UNMEASURED
    if not words["found"]:
        return Severity.UNTOLD if doubts else Severity.NONE
    sure = words["precision"] >= SURE and (not doubts or beyond_chance(words))
    told = words["recall"] >= TOLD
    if sure and told:
        return Severity.SEVERE
    if sure or beyond_chance(words) or (told and not doubts):
        return Severity.PARTIAL
    return Severity.UNTOLD  # too much of what was read is wrong to call it told, or untold


def beyond_chance(words: Mapping[str, Any]) -> bool:
    """Whether more private fields of these pages are told than of others of their kind, or the tokens read are those of
    these pages, and lack fewer of them than of any set of made-up pages'."""
    if p_value_of_fields(words.get("beside", {})) <= BY_CHANCE:
        return True
    right, true, missed = words["right"], words["true"], words.get("control_missed", ())
    return bool(missed) and right > SAME_TOKENS * (words["found"] + true - right) and 1 - right / true < min(missed)


def doubts_of(record: Mapping[str, Any]) -> list[str]:
    """Sentences that forbid an all-clear."""
    if "masked" in record:
        return []
    lines, test = list(record["check"]["doubts"]), record["pictures"].get("self_test")
    if test and not test["passed"] and not any("self-test failed" in line for line in lines):
        lines.append("The self-test failed: the true pages do not reproduce what was sent.")
    words = record["words"]
    if words.get("found") and (lines or (words["precision"] < SURE and words["recall"] < TOLD)):
        lines += [] if beyond_chance(words) else _not_held(words)
    return lines


def _not_held(words: Mapping[str, Any]) -> list[str]:
    """Why words could not be held against pages of their kind, in a sentence; nothing where they were."""
    if "beside" not in words:
        return [OLDER]
    return [] if words["beside"]["whose"] else [NONE_BESIDE]


def part_of(record: Mapping[str, Any]) -> Part:
    """The verdict on one captured update."""
    if "masked" in record:
        return Part(name_of(record), severity_of(record), _of_masks(record["masked"]))
    pictured = [_of_pictures(record["pictures"])] if "score" in record["pictures"] else []
    said = [*_told(record), *pictured, *doubts_of(record)]
    return Part(name_of(record), severity_of(record), " ".join(said), chance=_chance(record))


def _chance(record: Mapping[str, Any]) -> float:
    """How often chance alone calls it a leak, at most, by the two routes of ``beyond_chance`` together: 0 where it was
    held against no other pages, or is a leak without that. Of m sets of made-up pages and these ones each is the best
    as often."""
    words, beside = record["words"], record["words"].get("beside", {})
    sets = len(words.get("control_missed", ()))
    chance = (BY_CHANCE if beside.get("whose") else 0.0) + (1 / (1 + sets) if sets else 0.0)
    if not words.get("found") or not chance:
        return 0.0
    blank = {"control_missed": (), "beside": {"whose": "nobody's", "client": (), "pages": ()}}
    return 0.0 if severity_of({**record, "words": {**words, **blank}}) in LEAKS else chance


def _unwritten(words: Mapping[str, Any]) -> str:
    """What is said of fields that are not counted; nothing where there is none."""
    if not (left := words.get("unwritten")):
        return ""
    fields, they = ("field holds", "it is") if left == 1 else ("fields hold", "they are")
    return f" {left} private {fields} what the vocabulary cannot write: {they} not counted."


def fields_measured(
    records: Sequence[Mapping[str, Any]], whose: str, missing: Sequence[str] = ()
) -> tuple[Measure, ...]:
    """The share of private fields that the better of the two routes gives of the updates of ``whose``: fields all of
    whose tokens are in the set of tokens read, where that is more than chance, though it gives no value as such, or
    that are read from pictures. Where an update gave some by both, which may be different ones, their sum is the
    ``union``. Intervals over clients. ``missing`` are sentences on what of the run is not there."""
    groups, together, doubts = list[tuple[str, float, int]](), list[tuple[str, float, int]](), [*missing]
    tokens, fields, values = 0, 0, 0
    for record in records:
        words, seen = record["words"], Pictures.of(record["pictures"])
        if "masked" in record:
            continue
        told, held, of = "fields" in words, 0, 0
        if told:
            of = words["fields"][1]
            held = words["fields"][0] if beyond_chance(words) or (words["precision"] or 0) >= SURE else 0
        read, tried = (seen.cells.count(Cell.READ), judge(seen.cells).of) if seen else (0, 0)
        client, most = str(record["client"]), max(of, tried)
        groups.append((client, float(max(held, read)), most))
        together.append((client, float(min(held + read, most)), most))
        tokens, fields, values = tokens + held, fields + of, values + read
        doubts += doubts_of(record)
        if told and not held and (by_chance := words["fields"][0]):
            doubts += _not_held(words)
            doubts.append(
                f"{name_of(record)}: all tokens of {by_chance} fields are read, not set apart from chance: not counted."
            )
        doubts += [f"{name_of(record)}:{left}"] if (left := _unwritten(words)) else []
        if _uncounted(words):
            doubts.append(
                f"{name_of(record)}: {words['right']} tokens were read; which fields they make up is not counted."
            )
        if severity_of(record) is Severity.UNTOLD or not (told and seen):
            doubts.append(f"{name_of(record)}: words, pictures or both could not be told.")
    clients = holdings((str(record["client"]), _pages_in(record)) for record in records if "masked" not in record)
    by, both = ({clients[client]: count for client, count in measured(one).items()} for one in (groups, together))
    share, union = share_of(by, np.random.default_rng(0)), None
    if both != by:
        union = share_of(both, np.random.default_rng(0))
        said = f"both together {union.text(1, percent=True)} at most"
        union = replace(union, why=f"Words and pictures may have given different fields: {said}.")
        doubts.append(union.why)
    given = (
        f"{values} {'was' if values == 1 else 'were'} read from pictures" if values else "no value was given as such"
    )
    how = f"all tokens of {tokens} of {fields} fields are in the set of tokens read, without order; {given}"
    measure = Measure(
        FIELDS, whose, share, tuple(dict.fromkeys(doubts)), by, counted=how if tokens else "", union=union
    )
    return (measure,) if groups else ()


def _uncounted(words: Mapping[str, Any]) -> bool:
    """Whether tokens were read of a model that is given no words of a page (Donut, Pix2Struct): they are those of
    questions and answers, and of no field that could be counted."""
    return bool(words.get("right")) and not any(words["fields"])


def _pages_in(record: Mapping[str, Any]) -> list[Any]:
    """What the record says of the client's pages, whatever was read of them."""
    fields = [
        [page.get("page"), [[field.get("key"), field.get("value")] for field in page.get("fields", ())]]
        for page in record["pictures"].get("ceiling", ())
    ]
    told = [record.get(key) for key in ("round", "examples", "pages", "categories")]
    return [*told, record["words"].get("true"), fields]


def counted(records: Sequence[Mapping[str, Any]]) -> str:
    """Private fields over all updates, by either route."""
    words = [record["words"] for record in records if "fields" in record["words"] and "masked" not in record]
    held, control = [one["fields"] for one in words], [one["control"] for one in words]
    seen = [pictures for record in records if (pictures := Pictures.of(record["pictures"]))]
    said = []
    if of := sum(fields[1] for fields in held):
        chance, among = (sum(counts) for counts in zip(*control, strict=True))
        said.append(
            f"All tokens of {sum(fields[0] for fields in held)} of {of} private fields are in the set of tokens read, "
            "without order" + f" (of {among} fields of made-up pages that nobody has, {chance})" * bool(chance)
        )
    if bare := [one for one in words if _uncounted(one)]:
        right, true = (sum(one[key] for one in bare) for key in ("right", "true"))
        said.append(f"{right} of {true} different tokens that were trained on are read, without order")
    if scored := sum(one.scored for one in seen):
        read = sum(one.cells.count(Cell.READ) for one in seen)
        said.append(f"{read} of {scored} private fields are read from pictures")
    return "; ".join(said) + "." if said else "No private field was counted by any route."


def sentences(record: Mapping[str, Any]) -> list[str]:
    """What one captured update gave away, in plain words: its words, its pictures, then what stands against them."""
    if "masked" in record:
        return [_of_masks(record["masked"]), _of_masked_words(record["words"])]
    lines = [*_told(record), _of_pictures(record["pictures"])]
    if alien := record.get("alien"):
        lines.append(
            f"The capture says {', '.join(alien)}, and not all that docleak's own trainings say: it is taken for "
            "another program's word, and what came is audited as if it were neither masked nor noised."
        )
    lines += [told["sentence"]] if (told := record.get("inferred")) else []
    lines += doubts_of(record)
    if severity_of(record) is Severity.UNTOLD:
        lines.append("So what was not read here cannot be called unread.")
    if causes := record["check"].get("causes"):
        said = "; ".join(f"({number}) {cause['sentence']}" for number, cause in enumerate(causes, 1))
        lines.append(f"Possible causes, the most probable first: {said}.")
    return lines


def name_of(record: Mapping[str, Any]) -> str:
    """What a part of the report is called: the client and its round."""
    told = f" (partition {record['partition']})" if record.get("partition") else ""
    return f"Round {record['round']}, client {record['client']}{told}"


def _of_masks(found: Mapping[str, Any]) -> str:
    if "failed" in found:
        return f"Masked words; they could not be compared with the silo's update: {found['failed'].rstrip('.')}."
    verdict = "noise to the server" if found["hidden"] else "NOT HIDDEN: do not trust this aggregation"
    line = (
        f"Masked words: {verdict}. Over {found['numbers']:,} numbers their correlation with the update that this silo "
        f"trained is {found['correlation']:+.5f} (of noise: {found['chance']:.5f} either way). Tensor by tensor "
        f"{found['least']} looks least like noise: one as uneven, or as like that update, is among noise with "
        f"probability {found['p_uniform']:.2g}."
    )
    if related := found["related"]:
        line += f" The same masks hide the words of {'; '.join(related)}: one taken off the other leaves no noise."
    elif found["others"]:
        beside = counted_words(found["others"], "other masked update")
        line += (
            f" Less {beside} of its round, or of this silo's other rounds, they are noise, too: among these no mask is "
            "used twice."
        )
    else:
        line += " No other masked words were recorded, so that a mask that is used twice would not have shown."
    return f"{line} What the sum tells of this silo's pages is said of the sum."


def _of_masked_words(words: Mapping[str, Any]) -> str:
    if "failed" in words:
        return " ".join(_of_words(words))
    return (
        f"Words, attacked all the same: {percent(words['precision'])} of what is read is right; "
        f"{_share(words['fields'])} of the private fields seem told, and {_share(words['control'])} of the fields of "
        "made-up pages that nobody has."
    )


def _share(fields: Sequence[int]) -> str:
    held, of = fields
    return percent(held / of if of else None)


def _of_others(beside: Mapping[str, Any]) -> str:
    if beside.get("whose") != OTHERS:
        return ""
    held, of = (sum(counts) for counts in zip(*beside["pages"], strict=True))
    return f"; of those of {counted_words(len(beside['pages']), 'page')} of others, {_share([held, of])}"


def _told(record: Mapping[str, Any]) -> list[str]:
    """What the words of an update, or of a sum, told and whom."""
    if hidden := record.get("hidden_by"):
        whose = (
            f"Recorded before {hidden} masked it: the server receives masked numbers, and of all clients their sum, "
            "which is not audited here. This is what the update tells by itself. "
        )
        return _of_words(record["words"], whose, reader="who sees it")
    return _of_words(record["words"], _whose(record), "silos" if "sum" in record else "client")


def _whose(record: Mapping[str, Any]) -> str:
    if "sum" not in record:
        return ""
    two = "Each of the two silos takes its own update off it, and has the other's. " * (record.get("silos") == 2)
    return f"The sum of all silos' updates, which is all that the server learns. {two}"


def _of_words(
    words: Mapping[str, Any], whose: str = "", trained: str = "client", reader: str = "the server"
) -> list[str]:
    """What was read, and where there is more to say of it, that; ``whose`` stands first."""
    if "failed" in words:
        return [f"{whose}Words: not read: {words['failed'].rstrip('.')}."]
    line = (
        f"{whose}Words: of {words['true']} different tokens that the {trained} trained on, {reader} "
        f"reads {words['right']} ({percent(words['recall'])}), out of {words['tokens']} of the vocabulary; "
        f"{percent(words['precision'])} of what it reads is right."
    )
    held, of = words["fields"]
    if of:
        line += (
            f" All tokens of {held} of {of} private fields are told; of the fields of made-up pages that nobody has, "
            f"{_share(words['control'])}{_of_others(words.get('beside', {}))}."
        )
    line += _unwritten(words)
    more = []
    if words.get("conditions"):
        rounds, doubtful = words["rounds"], [c for c in words["conditions"] if not c["holds"]]
        lacking = "; ".join(f"{condition['name']}: {condition['found']}" for condition in doubtful)
        sure = f"{reader} cannot be sure of them (not given: {lacking})" if lacking else f"{reader} can be sure of them"
        plural = "s" if rounds > 1 else ""
        more.append(f"They come out of the span of its first layer's updates over {rounds} round{plural}; {sure}.")
    for axis, places in words["places"].items():
        more.append(f"Coordinates {axis}: {places['right']} of {places['found']} read are right.")
    return [line, " ".join(more)] if more else [line]


def _of_pictures(saved: Mapping[str, Any]) -> str:
    seen = Pictures.of(saved)
    if seen is None:
        return f"Pictures: not attacked: {saved['why'].rstrip('.')}."
    psnr = "" if seen.psnr is None else f", {seen.psnr:.1f} dB on the first page"
    blank = "" if seen.blank_psnr is None else f" and {seen.blank_psnr:.1f} dB"
    line = (
        f"Pictures by {saved['route']}: {seen.exact} of {seen.scored} private fields read exactly{psnr} (blank "
        f"template: {seen.blank} fields{blank}; true page: {seen.legible} fields)."
    )
    apart = [
        f"{count} {'was' if count == 1 else 'were'} {how}"
        for cell, how in ((Cell.GIVEN, "given beforehand, as an answer"), (Cell.PUBLIC, "shown by the blank template"))
        if (count := seen.cells.count(cell))
    ]
    if near := seen.cells.count(Cell.NEAR):
        line += f" {near} more {'was' if near == 1 else 'were'} read nearly, with characters wrong."
    return line + (f" Of what is read, or nearly, {' and '.join(apart)}, which is no finding." if apart else "")
