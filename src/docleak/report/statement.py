"""The first page of a report: the verdict in the words of data protection, what was audited, a statement to quote with
what it serves, measures with the effect that this run measured, and a place to sign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from docleak.report.about import About
from docleak.report.severity import Overall, Severity

#: What the verdict says about confidentiality, of runs of any kind.
MEANS = {
    Severity.SEVERE: "Confidentiality is not ensured: private information was obtained.",
    Severity.PARTIAL: "Confidentiality is not fully ensured: part of the private information was obtained.",
    Severity.UNTOLD: "Could not tell: this audit allows no conclusion about confidentiality.",
    Severity.UNMEASURED: "Not measured: this run says nothing about confidentiality.",
    Severity.NONE: "The attacks that were tried obtained no private information. This is no proof of confidentiality.",
}
#: What a statement serves: article, and what it asks for in our words.
SECURITY = (
    ("GDPR Art. 5(1)(f)", "integrity and confidentiality: the finding says whether data can be obtained by "
     "unauthorised parties"),
    ("GDPR Art. 25(1)", "data protection by design: the measures below, with the effect that was measured"),
    ("GDPR Art. 32(1)(d)", "regular testing of the effectiveness of measures: this audit is such a test"),
    ("GDPR Art. 35(7)(c), (d)", "impact assessment: evidence for the risk and for the measures against it"),
)  # fmt: skip
MODELS = (
    "EDPB Opinion 28/2024 (17 December 2024)",
    "a model trained on personal data counts as anonymous only if extracting them from it, and obtaining them by "
    "queries, are both insignificantly likely by all means reasonably likely to be used: this audit tried some of them",
)
NO_ADVICE = (
    "Whether private fields are personal data, and whether an article is complied with, is for the controller to judge."
)


@dataclass(frozen=True)
class Scope:
    """What was audited, for the page that is signed: the ``system``, the ``material`` (pages, documents, providers),
    the ``categories`` of private fields (their keys), who the ``adversary`` is, and whether a finished ``model`` is
    what gives them away. ``remedies`` are what measures of this run did, as sentences; ``remedy`` is the command that
    measures some. ``means``: what a verdict says, where the common words do not fit what was measured. ``sample`` is a
    sentence on how far the numbers hold of other documents: the interval, or that there is none. ``unfinished`` says
    how far a run is that has not come to its end ("1 of 2 pages"); no ``categories`` say nothing of them."""

    system: str
    material: str
    adversary: str
    categories: tuple[str, ...] = ()
    model: bool = False
    remedies: tuple[str, ...] = ()
    remedy: str = ""
    means: Mapping[Severity, str] = field(default_factory=dict)
    sample: str = ""
    unfinished: str = ""

    @property
    def reached(self) -> str:
        """The material, and how far the run is where it is not finished."""
        if not self.unfinished:
            return self.material
        short = f"not finished: {self.unfinished}"
        return f"{self.material} ({short})" if self.material else short


@dataclass(frozen=True)
class Statement:
    """What the first page shows; empty texts are lines to write on. Where nothing was attacked, ``serves`` is empty."""

    means: str
    facts: tuple[tuple[str, str], ...]
    risk: str
    serves: tuple[tuple[str, str], ...]
    measures: tuple[str, ...]
    digest: str


def statement(
    verdict: Overall, scoped: Sequence[tuple[Scope | None, Severity]], runs: Sequence[Mapping[str, Any]], about: About,
    digest: str, *, synthetic: bool,
) -> Statement:  # fmt: skip
    """The first page: ``scoped`` are what was audited, where a run says it, and how bad each run is, ``runs`` as "how
    to rerun" shows them, ``digest`` is the SHA-256 of results.json."""
    scopes = [scope for scope, _ in scoped if scope]
    keys = list(dict.fromkeys(key for scope in scopes for key in scope.categories))
    kinds = [f"{key.replace('_', ' ')}{f' ({about.fields[key]})' if key in about.fields else ''}" for key in keys]
    made = "Made-up pages; nobody's data" if synthetic else ""
    version, begun = (runs[0]["docleak"], runs[0]["created"][:10]) if runs else ("", "")
    system = about.system or _told(scope.system for scope in scopes)
    facts = (
        ("Organisation", about.organisation),
        ("System", system),
        ("Purpose of the audit", about.purpose),
        ("Scope", _told([about.scope, *(scope.reached for scope in scopes)])),
        ("Data", "; ".join(about.data) or made),
        *([("Private fields audited, by category", ", ".join(kinds))] if kinds else []),
        ("Attacker", _told(scope.adversary for scope in scopes)),
        ("Auditor", about.auditor),
        ("Date, tool", ", ".join(filter(None, [about.date or begun, f"docleak {version}" if version else ""]))),
    )
    tested = f"In tests with docleak {version} begun on {begun}" if runs else "In tests with docleak"
    means = _meaning([scope for scope, severity in scoped if severity is verdict.severity], verdict.severity)
    attacked = [scope for scope, severity in scoped if severity is not Severity.UNMEASURED]
    samples = dict.fromkeys(scope.sample for scope in attacked if scope)
    assumed = _told(scope.adversary for scope in attacked if scope)
    risk = " ".join(filter(None, [f"{tested}: {verdict.sentence} {means}", *samples,
                                  f"Attacker assumed: {assumed}." if assumed else ""]))  # fmt: skip
    serves = (*SECURITY, *([MODELS] if any(scope and scope.model for scope in attacked) else [])) if attacked else ()
    return Statement(means, facts, risk, serves, _measures(scopes), digest)


def _meaning(scopes: Sequence[Scope | None], severity: Severity) -> str:
    """What a verdict of that severity, which these runs have, says of confidentiality; of each by name, where runs
    mean different things by it."""
    if len({scope.means.get(severity) if scope else None for scope in scopes}) == 1:
        return scopes[0].means.get(severity, MEANS[severity]) if scopes[0] else MEANS[severity]
    apart = [f"{scope.system}: {scope.means[severity]}" for scope in scopes if scope and severity in scope.means]
    return " ".join(dict.fromkeys([MEANS[severity], *apart]))


def _told(texts: Iterable[str]) -> str:
    """The texts that say something, each once."""
    return "; ".join(filter(None, dict.fromkeys(texts)))


def _measures(scopes: Sequence[Scope]) -> tuple[str, ...]:
    """What measures did in this run, or that none was measured and what would measure one."""
    done = [line for scope in scopes for line in scope.remedies]
    missing = list(dict.fromkeys(
        f"{scope.system}: not measured in this run; run {scope.remedy}." for scope in scopes
        if scope.remedy and not scope.remedies
    ))  # fmt: skip
    return (*done, *missing) or ("Not measured in this run.",)
