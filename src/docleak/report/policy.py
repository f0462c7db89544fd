"""A gate: rules on what a run measured, and what holds of them: pass, a finding, or no telling.

A rule bounds one measure of ``docleak.report.measure``, or the verdict. It is about the ends of intervals: it passes
where the whole interval keeps to the bound, is a finding where the whole interval breaks it, and could not be told
otherwise; so it is, too, where nothing was measured or a check failed.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from docleak.errors import PolicyError
from docleak.report.measure import CLAIMED, EXPLAINED, FIELDS, MEASURES, SHOWN, Measure, number_of
from docleak.report.schema import MeasureName
from docleak.report.severity import Overall, Part, Severity

VERDICT = "verdict"
#: Beginning of a rule in a policy.
HEAD = "[[rule]]"


class Outcome(StrEnum):
    """What holds of a rule; a policy's is the first that occurs."""

    FINDING = "finding"
    UNTOLD = "could not tell"
    PASS = "pass"

    @property
    def code(self) -> int:
        """The exit code of the command."""
        return {Outcome.PASS: 0, Outcome.FINDING: 1, Outcome.UNTOLD: 2}[self]


class Rule(BaseModel):
    """``measure`` may be ``at_most`` so much, or, of the verdict, ``at_worst`` so bad; ``of`` picks parts by name (*
    stands for anything, | for either)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    measure: Literal[MeasureName, "verdict"]
    of: str = "*"
    at_most: Annotated[float, Field(allow_inf_nan=False, strict=True)] | None = None
    at_worst: Literal["partial", "none"] | None = None
    why: str = ""
    _line: int = PrivateAttr(0)

    @model_validator(mode="after")
    def _bounded(self) -> Rule:
        if (self.at_worst is None) is (self.measure == VERDICT) or (self.at_most is None) is (self.measure != VERDICT):
            raise ValueError("a verdict takes at_worst, every other measure at_most")
        if self.at_most is not None:
            most = math.inf if self.measure in (SHOWN, CLAIMED) else 1.0
            if not 0 <= self.at_most <= most:
                share = ", a share (0.05 is 5 %)" if most == 1 else ""
                expected = f"0 to 1{share}" if most == 1 else "0 or more"
                raise ValueError(f"at_most is {self.at_most:g}; {self.measure} takes {expected}")
        if not all(self.patterns):
            raise ValueError(f"of is {self.of!r}, which has a name of nothing; * stands for anything")
        return self

    @property
    def line(self) -> int:
        """Where it begins in its file; 0 for none."""
        return self._line

    @property
    def id(self) -> str:
        """A short name for machines."""
        bound = self.at_worst or f"{self.at_most:g}"
        of = "" if self.of == "*" else f"-of-{self.of}"
        return f"{self.measure}-at-{'worst' if self.at_worst else 'most'}-{bound}{of}"

    @property
    def sentence(self) -> str:
        """The rule in words."""
        of = "" if self.of == "*" else f" of {self.of}"
        if self.at_most is None:
            return f"the verdict{of} is at worst {str(self.at_worst)!r}"
        head = MEASURES[self.measure].head
        return f"{head[0].lower()}{head[1:]}{of} at most {_bound(self.at_most, self.measure)}"

    @property
    def patterns(self) -> tuple[str, ...]:
        """The names that it is about, * for anything."""
        return tuple(pattern.strip() for pattern in self.of.split("|"))

    def picks(self, part: str) -> bool:
        """Whether the rule is about a part of that name."""
        return any(fnmatchcase(part, pattern) for pattern in self.patterns)


class Policy(BaseModel):
    """``rule``s, all of which have to hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    rule: Annotated[tuple[Rule, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Checked:
    """What holds of a ``rule`` on one ``part``, and why."""

    rule: Rule
    part: str
    outcome: Outcome
    why: str

    @property
    def told(self) -> str:
        """``why``, and, of what does not pass, the policy's own reason for the rule."""
        reason = self.rule.why if self.outcome is not Outcome.PASS else ""
        return f"{self.why} The rule is there for: {reason}" if reason else self.why

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule.id, "requires": self.rule.sentence, "part": self.part, "outcome": str(self.outcome),
                "why": self.why, "rule_is_for": self.rule.why}  # fmt: skip


def read_policy(file: Path) -> Policy:
    """The policy at ``file``; PolicyError, with all faults, for what is none."""
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise PolicyError(f"{file} cannot be read as a policy ({fault}). Expected a TOML file with {HEAD}.") from fault
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.split("#")[0].strip() == HEAD]
    try:
        policy = Policy.model_validate(values)
    except ValidationError as fault:
        faults = fault.errors()
        # With a faulty rule pydantic misses the rules as a whole, too.
        inner = [one for one in faults if len(one["loc"]) > 1]
        faults = inner + [one for one in faults if len(one["loc"]) <= 1 and not (inner and one["loc"] == ("rule",))]
        told = [f"{'.'.join(str(part) for part in one['loc']) or 'the policy'}: {one['msg']}" for one in faults]
        lines_told = "".join(f"\n  - {line}" for line in told)
        raise PolicyError(
            f"{file} is no policy:{lines_told}\nExpected {HEAD} with measure ({', '.join([*MEASURES, VERDICT])}) and "
            "at_most, or at_worst ('partial' or 'none') for the verdict."
        ) from fault
    for number, rule in enumerate(policy.rule):
        rule._line = lines[number] if number < len(lines) else 1
    return policy


def check(policy: Policy, measures: Sequence[Measure], verdict: Overall) -> list[Checked]:
    """Every rule on every part that it picks; a name of a rule that picks none could not be told, and what is about
    all there is, or all of some names, could not where a run is not finished, whose other parts are not there yet; nor
    could a partial leak of such a run, which the rest of it may make a severe one."""
    checked = []
    for rule in policy.rule:
        if rule.measure == VERDICT:
            parts = [part for part in verdict.parts if rule.picks(part.name)]
            told = [_of_verdict(rule, part, verdict.unfinished) for part in parts]
        else:
            told = [_of_measure(rule, one) for one in measures if one.what == rule.measure and rule.picks(one.of)]
        several = [name for name in rule.patterns if set("*?[") & set(name)]
        told += [Checked(rule, name, Outcome.UNTOLD, line) for name in several[:1] for line in verdict.unfinished]
        silent = [name for name in rule.patterns if not any(fnmatchcase(one.part, name) for one in told)]
        checked += told + [
            Checked(rule, name, Outcome.UNTOLD, f"The run did not measure it: no {rule.measure} of {name!r}.")
            for name in silent
        ]  # fmt: skip
    return checked


def overall(checked: Sequence[Checked]) -> Outcome:
    """The worst of them."""
    return next(outcome for outcome in Outcome if outcome in {one.outcome for one in checked})


def _of_verdict(rule: Rule, part: Part, unfinished: Sequence[str]) -> Checked:
    why = f"{part.said}: {part.sentence}"
    if part.severity in (Severity.UNTOLD, Severity.UNMEASURED):
        return Checked(rule, part.name, Outcome.UNTOLD, why)
    bad = list(Severity).index(part.severity) < list(Severity).index(Severity(str(rule.at_worst)))
    if part.severity is Severity.PARTIAL and unfinished and not bad:
        return Checked(rule, part.name, Outcome.UNTOLD, f"{why} {' '.join(unfinished)} What is missing may be worse.")
    return Checked(rule, part.name, Outcome.FINDING if bad else Outcome.PASS, why)


def _of_measure(rule: Rule, one: Measure) -> Checked:
    """PASS needs an upper end at the bound or below and no doubt; FINDING a lower end above it."""
    assert rule.at_most is not None
    estimate, bound = one.estimate, rule.at_most
    if one.unbounded:
        return Checked(rule, one.of, Outcome.FINDING, "No epsilon is claimed at all.")
    if estimate.value is None:
        return Checked(rule, one.of, Outcome.UNTOLD, f"Not measured: {estimate.why or 'no value'}.")
    exact = estimate.low is None and estimate.high is None and estimate.groups == 0
    low, high = (estimate.value, estimate.value) if exact else (estimate.low, estimate.high)
    if not exact and low == high and one.what != EXPLAINED:
        low = high = None  # every resample gave the same: nothing is that certain
    if one.what == EXPLAINED and high is not None and high > bound:
        page = f"{one.text}; the page of which most is explained, {number_of(high, one.what)}, is above the bound."
        return Checked(rule, one.of, Outcome.FINDING, page)
    if low is not None and low > bound:
        how = f" ({one.counted})" if one.counted else ""
        return Checked(rule, one.of, Outcome.FINDING, f"{one.text}: above the bound{how}.")
    if one.what == FIELDS and estimate.value > bound:
        # What was read was read, on however few pages; only how many of others would be needs an interval.
        said = f": {one.counted}." if one.counted else " were read on the audited pages."
        return Checked(rule, one.of, Outcome.FINDING, f"{one.text} of {estimate.n} fields{said}")
    if one.most is not None and bound >= one.most:
        why = f"No more than {number_of(one.most, one.what)} could have been shown {one.most_as}, whatever is true."
        return Checked(rule, one.of, Outcome.UNTOLD, why)
    union = one.union
    kept = union is not None and (bound >= 1 or (union.high is not None and union.high <= bound))
    if doubts := [doubt for doubt in one.doubts if not (union and kept and doubt == union.why)]:
        return Checked(rule, one.of, Outcome.UNTOLD, f"{one.text}, but: {' '.join(doubts)}")
    if one.what == FIELDS and bound >= 1:
        return Checked(rule, one.of, Outcome.PASS, _passed(one))  # of however many others, no more can be
    if high is not None and not math.isnan(high) and high <= bound:
        return Checked(rule, one.of, Outcome.PASS, _passed(one))
    why = estimate.why or "no interval" if high is None else f"the interval reaches {number_of(high, one.what)}"
    return Checked(rule, one.of, Outcome.UNTOLD, f"{one.text}: {why}.")


def _bound(value: float, what: str) -> str:
    """As the measure prints its numbers, or with more digits where these would be another bound."""
    text, scale = number_of(value, what), 100 if MEASURES[what].percent else 1
    exact = f"{scale * value:.10g}"
    return text if float(text.rstrip("%").replace(",", "")) == float(exact) else exact + "%" * (scale == 100)


def _passed(one: Measure) -> str:
    return f"{one.text}: no more was shown, which bounds nothing by itself." if one.what == SHOWN else f"{one.text}."
