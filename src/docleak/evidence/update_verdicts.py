"""The verdict on a captured update: what its words and pictures told, and whether the checks allow an all-clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docleak.evidence.update_check import beyond_chance
from docleak.metrics import PageScore
from docleak.report.severity import Cell, Overall, Part, Severity, judge, overall, worst
from docleak.report.templating import percent
from docleak.studies.fields import cell_of

#: Share of tokens, with at least this precision, from which the words count as told.
TOLD, SURE = 0.5, 0.8
UNCHECKED = "Recorded by an older docleak: whether the true pages reproduce what was sent was not checked."


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
        given = saved.get("given") or [()] * len(saved["score"])
        told = [f.value in answers for fields, answers in zip(pages[0], given, strict=True) for f in fields]
        return cls(
            cells=tuple(
                cell_of(read, floor, true, given=known)
                for read, floor, true, known in zip(rebuilt, blank, truth, told, strict=True)
            ),
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


def doubts_of(record: Mapping[str, Any]) -> list[str]:
    """Sentences that forbid an all-clear."""
    if "masked" in record:
        return []
    lines = list(record["check"]["doubts"]) if "check" in record else [UNCHECKED]
    test = record["pictures"].get("self_test")
    if test and not test["passed"] and not any("self-test failed" in line for line in lines):
        lines.append("The self-test failed: the true pages do not reproduce what was sent.")
    return lines


def verdict_on(records: Sequence[Mapping[str, Any]], unfinished: Sequence[str] = ()) -> Overall:
    """One verdict over all updates: the worst, and what could not be told; ``unfinished`` ones have no record."""
    parts = [Part(name_of(record), severity_of(record), sentences(record)[0]) for record in records]
    parts += [Part(name, Severity.UNMEASURED, "No unit of it is finished.") for name in unfinished]
    held = [record["words"]["fields"] for record in records if "fields" in record["words"] and "masked" not in record]
    seen = [pictures for record in records if (pictures := Pictures.of(record["pictures"]))]
    counted = []
    if of := sum(fields[1] for fields in held):
        counted.append(f"All tokens of {sum(fields[0] for fields in held)} of {of} private fields are among the words "
                       "read")  # fmt: skip
    if scored := sum(one.scored for one in seen):
        counted.append(f"{sum(one.cells.count(Cell.READ) for one in seen)} of {scored} private fields are read from "
                       "pictures")  # fmt: skip
    return overall(parts, "; ".join(counted) + "." if counted else "No private field was counted by any route.")


def sentences(record: Mapping[str, Any]) -> list[str]:
    """What one captured update gave away, in plain words: its words, its pictures, then what stands against them."""
    if "masked" in record:
        return [_of_masks(record["masked"]), _of_words(record["words"], masked=True)]
    if "sum" in record:
        said = f"The sum of all silos' updates, which is all that the server learns. {_of_words(record['words'])}"
        return [said, _of_pictures(record["pictures"]), *_of_check(record)]
    return [_of_words(record["words"]), _of_pictures(record["pictures"]), *_of_check(record)]


def _of_check(record: Mapping[str, Any]) -> list[str]:
    """Doubts, and the possible causes of a round that the true pages do not reproduce."""
    lines, causes = doubts_of(record), record.get("check", {}).get("causes", ())
    if severity_of(record) is Severity.UNTOLD:
        lines.append("So what was not read here cannot be called unread.")
    if causes:
        said = "; ".join(f"({number}) {cause['sentence']}" for number, cause in enumerate(causes, 1))
        lines.append(f"Possible causes, the most probable first: {said}.")
    return lines


def name_of(record: Mapping[str, Any]) -> str:
    """What a part of the report is called: the client and its round."""
    return f"Round {record['round']}, client {record['client']}"


def _of_masks(found: Mapping[str, Any]) -> str:
    if "failed" in found:
        return f"Masked words; they could not be compared with the silo's update: {found['failed'].rstrip('.')}."
    verdict = "noise to the server" if found["hidden"] else "NOT HIDDEN: do not trust this aggregation"
    return (
        f"Masked words: {verdict}. Over {found['numbers']:,} numbers their correlation with the update that this silo "
        f"trained is {found['correlation']:+.5f} (of noise: {found['chance']:.5f} either way), and they are spread as "
        f"evenly as chance spreads them with probability {found['p_uniform']:.2g}."
    )


def _of_words(words: Mapping[str, Any], *, masked: bool = False) -> str:
    if masked and "failed" not in words:
        chance, among = words["control"]
        held, of = words["fields"]
        return (
            f"Words, attacked all the same: {percent(words['precision'])} of what is read is right; "
            f"{percent(held / of if of else None)} of the private fields seem told, and "
            f"{percent(chance / among if among else None)} of the fields of made-up pages that nobody has."
        )
    if "failed" in words:
        return f"Words: not read: {words['failed'].rstrip('.')}."
    line = (
        f"Words: of {words['true']} different tokens that the client trained on, the server reads {words['right']} "
        f"({percent(words['recall'])}), out of {words['tokens']} of the vocabulary; "
        f"{percent(words['precision'])} of what it reads is right."
    )
    held, of = words["fields"]
    if of:
        chance, among = words["control"]
        line += (
            f" All tokens of {held} of {of} private fields are told; of the fields of made-up pages that nobody has, "
            f"{percent(chance / among if among else None)}."
        )
    for axis, places in words["places"].items():
        line += f" Coordinates {axis}: {places['right']} of {places['found']} read are right."
    return line


def _of_pictures(saved: Mapping[str, Any]) -> str:
    seen = Pictures.of(saved)
    if seen is None:
        return f"Pictures: not attacked: {saved['why'].rstrip('.')}."
    route = f" by {saved['route']}" if saved.get("route") else ""
    psnr = "" if seen.psnr is None else f", {seen.psnr:.1f} dB on the first page"
    blank = "" if seen.blank_psnr is None else f" and {seen.blank_psnr:.1f} dB"
    line = (
        f"Pictures{route}: {seen.exact} of {seen.scored} private fields read exactly{psnr} (blank template: "
        f"{seen.blank} fields{blank}; true page: {seen.legible} fields)."
    )
    apart = [
        f"{count} {'was' if count == 1 else 'were'} {how}"
        for cell, how in ((Cell.GIVEN, "given beforehand, as an answer"), (Cell.PUBLIC, "shown by the blank template"))
        if (count := seen.cells.count(cell))
    ]
    if near := seen.cells.count(Cell.NEAR):
        line += f" {near} more {'was' if near == 1 else 'were'} read nearly, with characters wrong."
    return line + (f" Of what is read, or nearly, {' and '.join(apart)}, which is no finding." if apart else "")
