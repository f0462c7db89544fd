"""What the scores of pages say: how well those that an update holds are told from others, and what that rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.documents.loaders import SYNTHETIC
from docleak.errors import RunError
from docleak.metrics.clustered import over_providers, share_over_providers
from docleak.metrics.estimate import Estimate
from docleak.metrics.membership import membership_rates
from docleak.report.measure import PRESENCE, RESAMPLES, Measure
from docleak.report.page import Reading, Section, run_facts
from docleak.report.severity import Part, Severity, worst
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.spec import counted_words

FloatArray = NDArray[np.float64]
THREAT = {
    "title": "Honest-but-curious server that suspects a page",
    "adversary": "the server of a federated training: it follows the protocol and looks at what it receives",
    "sees": ["one client's update, unprotected and not aggregated with others", "the weights the client started from"],
    "knows": ["the page it asks about, with its question and answer", "pages that are certainly not in the update",
              "the client's optimiser, learning rate and number of steps"],
    "wants": "to tell whether that page was in the client's batch",
    "cannot": ["change the model or the protocol", "see the client's pages"],
}  # fmt: skip
#: Where residuals fall apart by this factor or more above all controls, the cut goes there ...
APART = math.log(10.0)
#: ... elsewhere a page is called in if its score is so many standard deviations above those of the controls.
BEYOND = 3.0
#: How often chance alone may say that pages are told apart, whichever of the scores tells them.
ERROR = 0.05
SCORES = {"residual": "projection residual", "alignment": "alignment with its own step", "loss": "its loss, no update"}
#: Ends the names of scores by pages of a provider that no update holds.
OTHERS = "_others"
COLUMNS = {
    **{f"{score}_auc": Column(f"AUC by {said}") for score, said in SCORES.items()},
    **{f"{score}_errors": Column(f"share of errors by {score}") for score in SCORES},
    "blind_auc": Column("AUC without model or update"),
    "rank": Column("rank of the update", 1), "width": Column("width of the layer", 0),
}  # fmt: skip
LIMITS = (
    "A page is asked about as it was trained on: same picture, question and answer. A provider's scores are means over "
    "its pages, either those of the update or as many others of it; no page of a provider that is out was trained on.",
    "One is called in if its score is 3 standard deviations above those of pages known to be out, or, where "
    "residuals above all of those fall apart by a factor of 10, if it lies beyond that gap. Errors are of both kinds; "
    "half of those asked about are in, of one recorded update more where fewer others are at hand.",
    "From scores of a recorded update the mean of its own controls is taken: each client's has another level.",
    "Whether they are told apart rests on the best score, with intervals widened so that they hold (95 %) for all that "
    "see the update together; the printed ones are each by itself.",
    "Not tried here: sums over clients and noise.",
)


#: Of runs without "whose".
OLDER = (
    "An older docleak did not record whose these pages are, so that intervals take each for itself, and are too narrow "
    "where a provider has several: ask again."
)


def read_presence(runs: Sequence[Run], rng: np.random.Generator) -> Reading:
    """A row per run, two where providers are asked about; those of all rounds together."""
    told_of = [rows_of(run, rng) for run in runs]
    rows, parts = [row for group, _, _ in told_of for row in group], [part for _, part, _ in told_of]
    what = "provider" if all(run.config.get("per_provider") for run in runs) else "page"
    apart = "those in updates and others apart, also over their providers; those of a round share one update."
    caption = f"95 % intervals over {what}s, {apart}"
    table = Table("Presence in an update", COLUMNS, rows, caption, first="model, optimiser, steps x pages, sent as")
    return Reading(
        question=f"Was this {what} in this update?",
        lead=f"What a server that suspects a {what} can tell of an update.",
        parts=tuple(parts),
        counted=" ".join(part.sentence for part in parts if part.severity is worst(p.severity for p in parts)),
        lines=(table.to_text(),), tables={"presence": table},
        measures=tuple(measure for _, _, measure in told_of),
        sections=(Section("presence", "Membership", "Pages in and out", render("table.html.j2", table=table)),
                  Section("threat-presence", "Threat model", "Threat model: who could do this",
                          render("threat.html.j2", model=THREAT))),
        results={"presence": table.to_json()}, runs=tuple(run_facts(run.path, run.manifest()) for run in runs),
        limits=LIMITS, scope=scope_of(runs),
        synthetic=all(map(_made_up, runs)), shows="",
    )  # fmt: skip


def scope_of(runs: Sequence[Run]) -> Scope:
    """Whose updates were looked at, what they were asked about, and who the adversary is."""
    lacking = [
        f"{len(run.units())} of {counted_words(planned, 'update')}" for run in runs
        if len(run.units()) < (planned := _planned(run))
    ]  # fmt: skip
    return Scope(
        system=f"Federated training of {'; '.join(dict.fromkeys(map(_model, runs)))}",
        material="; ".join(map(asked_about, runs)),
        adversary="an honest-but-curious server: it receives one client's update, and holds the weights that the "
        "client started from, what it asks about, and pages that are certainly not in the update",
        unfinished="; ".join(lacking),
    )


def _planned(run: Run) -> int:
    recorded = run.info.get("recorded")
    return int(recorded["updates"] if recorded else run.config["pages"] // (2 * run.config["batch_size"]))


def _made_up(run: Run) -> bool:
    """Whether nobody's pages were asked about. "synthetic" stands for a capture's silos, which may hold real ones."""
    recorded = run.info.get("recorded")
    return bool(recorded["made_up"] if recorded else run.config["documents"] == SYNTHETIC)


def _model(run: Run) -> str:
    return str((run.info.get("recorded") or run.config)["model"])


def asked_about(run: Run) -> str:
    """How many pages or providers were asked about: in updates, and in none."""
    inside, outside = (sum(len(record[kind]) for record in run.units()) for kind in ("inside", "outside"))
    what = "provider" if run.config.get("per_provider") else "page"
    asked = f"{counted_words(inside, what)} in {counted_words(len(run.units()), 'update')} and {outside}"
    # Of recorded ones these may be in another client's.
    return f"{asked} not in the one they were asked of" if run.info.get("recorded") else f"{asked} in none"


def rows_of(run: Run, rng: np.random.Generator) -> tuple[list[Row], Part, Measure]:
    """A run's rates, what they say, and the number that a policy can bound. RunError of fewer than two finished."""
    records = run.units()
    if sum(len(record["inside"]) for record in records) < 2:
        raise RunError(f"{run.path} has fewer than 2 finished pages in updates. Go on with it, or ask more --pages.")
    c, blind = run.config, Estimate.of_json(run.info.get("blind") or {"value": None})
    name = _called(run, records)
    asked = {"Pages in and out of updates": ("", name)}
    if c.get("per_provider"):
        name += f", providers of {c['per_provider']}"
        asked = {
            "Providers in and out of updates, by the pages that are in": ("", f"{name}, pages in the update"),
            "By other pages of theirs": (OTHERS, f"{name}, other pages of theirs"),
        }
    rows = list[Row]()
    said = [f"An honest-but-curious server of a training of {_model(run)} asked about {asked_about(run)}"]
    said += checked(records)
    for question, (which, title) in asked.items():
        values: dict[str, Any] = {"blind_auc": blind}
        for score in SCORES:
            values[f"{score}_auc"], values[f"{score}_errors"] = told(records, score, rng, which)
        values |= {"rank": float(np.mean([r["rank"] for r in records])), "width": records[0]["width"]}
        rows.append(Row(title, values, facts={"run": str(run.path), "layer": run.info.get("layer", "")}))
        parts = (
            f"by {s} AUC {values[f'{s}_auc'].text(2)}, share of errors {values[f'{s}_errors'].text(3)}" for s in SCORES
        )
        said.append(f"{question}: {'; '.join(parts)}")
    if blind.value is not None:
        said.append(f"Without model or update: AUC {blind.text(2)}")
    seen, fault = aucs(run), _confounded(run)
    best = _best(seen)
    low = best.low or 0.0
    if low > 0.5 and fault:
        low = 0.0
        said.append(fault)
    elif best.low is None:
        said.append(f"There is no interval: {best.why or 'one of a side is too few'}")
    elif low <= 0.5:
        said.append(f"By intervals that hold for all {len(seen)} scores that see the update none is above 1/2")
    pages = [] if c.get("per_provider") else [page for r in records for page in (*r["inside"], *r["outside"])]
    turned = (*_turned(seen), *([OLDER] if any("whose" not in page for page in pages) else []))
    said += [doubt.removesuffix(".") for doubt in turned]
    severity = Severity.SEVERE if low >= 0.75 else Severity.PARTIAL if low > 0.5 else Severity.UNTOLD
    label = f"{'Providers' if c.get('per_provider') else 'Pages'} told apart" if low > 0.5 else ""
    part = Part(name, severity, f"{'. '.join(said)}.", label, "presence", chance=ERROR)
    measured = Estimate(None, why=f"{fault[0].lower()}{fault[1:]}") if fault else best
    return rows, part, Measure(PRESENCE, name, measured, (*_words(run), *turned))


def _called(run: Run, records: Sequence[Mapping[str, Any]]) -> str:
    """The run as its rows name it."""
    if run.info.get("recorded"):
        how = dict.fromkeys(f"{one['optimiser']}, {counted_words(int(one['steps']), 'step')}" for one in records)
        return f"{_model(run)}, {counted_words(len(records), 'recorded update')} ({'; '.join(how)})"
    c = run.config
    return f"{c['model']}, {c['optimiser']}, {c['local_steps']} x {c['batch_size']}, {c['precision']}"


def checked(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """How it is known which pages recorded updates hold; nothing of those made here."""
    told_of = [bool(one["replayed"]) for one in records if "replayed" in one]
    if not told_of:
        return []
    return [
        f"Which pages an update holds was checked for {sum(told_of)} of {counted_words(len(told_of), 'update')} by "
        "training the client again from its recorded seed"
        + (
            ""
            if all(told_of)
            else "; for the others it is what the folders given say, and a wrong one hides what is there"
        )
    ]


def aucs(run: Run) -> list[Estimate]:
    """The AUC of each score that sees the update; their intervals hold together."""
    which = ("", OTHERS) if run.config.get("per_provider") else ("",)
    tried = [(of, score) for of in which for score in ("residual", "alignment")]
    sure, seed = 1 - ERROR / len(tried), int(run.config["seed"])
    return [told(run.units(), score, np.random.default_rng(seed), of, sure)[0] for of, score in tried]


def _best(told_of: Sequence[Estimate]) -> Estimate:
    """The greatest of them, between the greatest of their ends; without ends where one has none."""
    ends = [[getattr(one, end) for one in told_of] for end in ("value", "low", "high")]
    value, low, high = (None if None in of else max(of) for of in ends)
    return replace(
        told_of[0], value=value, low=low, high=high, why=next(filter(None, (one.why for one in told_of)), "")
    )


def _words(run: Run) -> Iterator[str]:
    """On whose words it rests which pages updates hold, and which not: what makes a low number no all-clear."""
    if any(not one.get("replayed", True) for one in run.units()):
        yield "Which pages the updates hold is what the folders given say, and a wrong one hides what is there."
    if run.config.get("others") not in (None, "", SYNTHETIC):
        yield "That no update holds the other pages is their owner's word, and one that does hides what is there."


def _turned(seen: Sequence[Estimate]) -> tuple[str, ...]:
    """Why a low AUC is no all-clear, as a sentence, where one is surely below 1/2."""
    if any(one.high is not None and one.high < 0.5 for one in seen):
        return (
            "A score is surely lower for those that the updates hold: who sees that turns it round, or the two were "
            "given the wrong way round.",
        )
    return ()


def _confounded(run: Run) -> str:
    """Why what is told apart may be two kinds of pages and not what an update holds; "" where the control says no, and
    where pages were dealt."""
    if not run.info.get("recorded"):
        return ""
    blind = Estimate.of_json(run.info.get("blind") or {"value": None})
    if blind.value is None:
        return (
            "There are too few pages for the control that sees no update, so that nothing is concluded: what is told "
            "apart may be two kinds of pages"
        )
    if (blind.low or 0.0) > 0.5:
        return (
            "The control that sees no update tells them apart, too, so that nothing is concluded: name others of the "
            "same kind (--others)"
        )
    return ""


def told(
    records: Sequence[Mapping[str, Any]], score: str, rng: np.random.Generator, which: str = "", level: float = 0.95
) -> tuple[Estimate, Estimate]:
    """AUC, and the share of wrong decisions at the cut-off that the controls set, with intervals of ``level``;
    ``which`` is OTHERS or nothing."""
    inside, outside, controls = (
        np.array([page[score] - _level(record, score) for record in records for page in record[kind + which]])
        for kind in ("inside", "outside", "controls")
    )
    scores, members = np.concatenate([inside, outside]), np.arange(len(inside) + len(outside)) < len(inside)
    called = scores > cutoff_of(score, scores, controls)
    rates = membership_rates(scores, called, members, rng=rng, level=level)
    whose = [page.get("whose") or "" for kind in ("inside", "outside") for one in records for page in one[kind + which]]
    rates |= over_providers({"auc": rates["auc"]}, scores, members, whose, rng=rng, level=level, resamples=RESAMPLES)
    right = share_over_providers(
        rates["accuracy"], (called == members).astype(float), whose, rng=rng, level=level, resamples=RESAMPLES
    )
    value, low, high = (None if one is None else 1 - one for one in (right.value, right.high, right.low))
    of = "providers" if any("inside" + OTHERS in record for record in records) else "pages"
    return replace(rates["auc"], of=of), replace(right, value=value, low=low, high=high, of=of)


def _level(record: Mapping[str, Any], score: str) -> float:
    """What is taken off the scores of a recorded update: the mean of its own controls, for each client's update has
    another level. Those that are made are alike."""
    return float(np.mean([page[score] for page in record["controls"]])) if "client" in record else 0.0


def cutoff_of(score: str, scores: FloatArray, controls: FloatArray) -> float:
    """Set by what the adversary sees: the scores of all pages asked about, and those of controls."""
    above = np.sort(np.append(scores[scores > controls.max()], controls.max()))
    gaps = np.diff(above)
    if score == "residual" and len(gaps) and gaps.max() >= APART:
        return float(above[gaps.argmax() :][:2].mean())
    return float(controls.mean() + BEYOND * controls.std())
