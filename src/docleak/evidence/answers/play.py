"""Attack one released model from end to end: ask, measure, and write what came of it. Interrupted, it goes on.

OUT/replies/            what the models said (see ``cache``); keep it as you keep the pages
OUT/table.md            the table, as printed
OUT/result.json         the same numbers for machines
OUT/scores.csv          membership: a line per provider, with its features, its scores, and the truth
OUT/answers.csv         memorisation: a line per hidden answer
OUT/scores.png, OUT/example-000.png ...
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from docleak.attacks.answers.asking import AnswersView
from docleak.attacks.answers.attack import AnswersAttack, MembershipAttack, ProvidersView
from docleak.attacks.answers.disclosure import disclosed, draw_absent, items_of
from docleak.attacks.answers.features import FeatureTable, provider_features
from docleak.attacks.answers.membership import Guess
from docleak.attacks.answers.memorisation import Asker, Case, hidden_items
from docleak.attacks.registries import ANSWERS
from docleak.documents.blue_red import RED_NEGATIVE
from docleak.documents.blue_red_files import BlueRed
from docleak.documents.page import Page
from docleak.documents.phrasings import PHRASINGS
from docleak.errors import AttackError
from docleak.evidence.answers.cache import remembering
from docleak.evidence.answers.membership import Subset, measure, measured_epsilon
from docleak.evidence.answers.memorisation import (
    CONFIDENT,
    disclosed_values,
    disclosure_table,
    memorisation_table,
    outcomes_of,
    write_examples,
)
from docleak.evidence.answers.pictures import draw_scores
from docleak.evidence.answers.red import (
    Red,
    memory_cases,
    memory_of,
    outcomes,
    pages_of,
    replies_to,
    training_values,
)
from docleak.files import reported, write_atomically, write_json
from docleak.metrics.membership import draw_known
from docleak.metrics.memorisation import Remembered, Share, beyond_public, remembered
from docleak.models.loading import load_model
from docleak.registry import Choice

#: Told of (what is done, questions answered so far).
OnProgress = Callable[[str, int], None]
#: Delta of a measured epsilon where no claim says another.
DELTA = 1e-5


@dataclass(frozen=True)
class Release:
    """What is attacked: a ``model`` as ``load_model`` takes it, the ``public`` one that it started from ("" where that
    is unknown), and the division that says whose documents it saw. Replies are kept in ``replies``, by default in the
    folder of an attack. ``providers`` are those it is asked about; None: all."""

    model: str
    public: str
    blue_red: BlueRed
    device: str = "cpu"
    replies: Path | None = None
    providers: frozenset[str] | None = None

    def red(self) -> Red:
        """What the adversary has of the providers, and the truth."""
        return Red.of(self.blue_red, self.providers)

    def pages(self, part: str) -> Sequence[Page]:
        """The pages of a part of the division, of the providers that are asked about."""
        return pages_of(self.blue_red.pages(part), self.providers)

    def asker(self, source: str, out: Path, on_progress: OnProgress) -> Asker:
        """Asks one of the models; what it said before is in ``replies``, or OUT/replies."""
        view = AnswersView(load_model(source, device=self.device), scores=True)
        return remembering(view, self.replies or out / "replies", on_progress=lambda done, _: on_progress(source, done))


@dataclass(frozen=True)
class MembershipPlan:
    """The attacks by name, the numbers of questions s, and so many seeds from ``seed`` on; ``key`` is that of G4, and
    ``delta`` that of the measured epsilon."""

    attacks: Mapping[str, AnswersAttack]
    minimum: tuple[int, ...] = (0, 5, 10)
    seeds: int = 5
    seed: int = 0
    key: str = "provider_name"
    delta: float = DELTA


def attack_membership(release: Release, plan: MembershipPlan, out: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Run the attacks on RED, and write everything; returns what result.json holds, with the table as ``text``.

    Without a public model the attacks do without G3. Raises AttackError as the attacks and ``Red.of``.
    """
    red = release.red()
    asker = release.asker(release.model, out, on_progress)
    target = replies_to(red.pages, asker)
    public = replies_to(red.pages, release.asker(release.public, out, on_progress)) if release.public else None
    memory = None
    if any(attack.votes or "G4" in attack.groups for attack in plan.attacks.values()):
        drawn = memory_cases(red, plan.key, training_values(release.blue_red), seed=plan.seed)
        memory = memory_of(red, drawn.cases, asker)
    table = provider_features(target, public, memory)
    attacks = {name: attack if public else without_public(attack) for name, attack in plan.attacks.items()}
    seeds = range(plan.seed, plan.seed + plan.seeds)
    found = {
        name: [measure(table, red.members, attack, least, seeds=seeds) for least in plan.minimum]
        for name, attack in attacks.items()
    }
    bound = None
    if public is not None:
        bound = measured_epsilon(
            target, public, red.members, coins=release.blue_red.coins, delta=plan.delta, seed=plan.seed
        )
    gap = remembered(outcomes(target, red.members), rng=np.random.default_rng(plan.seed))
    beyond = None
    if public is not None:
        beyond = beyond_public(
            outcomes(target, red.members), outcomes(public, red.members), rng=np.random.default_rng(plan.seed)
        )
    text = membership_text(found, attacks, gap, beyond, bound.sentence() if bound else None)
    value = {
        "model": release.model, "public": release.public, "members": sum(red.members.values()),
        "others": len(red.members) - sum(red.members.values()), "questions": len(target),
        "attacks": {name: [asdict(subset) for subset in subsets] for name, subsets in found.items()},
        "gap": [asdict(share) for share in gap.difference],
        "gap_beyond_public": None if beyond is None else [asdict(share) for share in beyond],
        "measured": bound.sentence() if bound else None,
        "epsilon_measured": bound.epsilon if bound else None,
    }  # fmt: skip
    guesses = guessed(table, red.members, attacks, plan.seed)
    with reported(out):
        write_json(out / "result.json", value)
        write_atomically(out / "table.md", text.encode())
        write_atomically(out / "scores.csv", scores_csv(table, red.members, guesses).encode())
        write_atomically(out / "scores.png", draw_scores(table, red.members, found))
    return {**value, "text": text}


def without_public(attack: AnswersAttack) -> AnswersAttack:
    """The attack of somebody who has no public model to compare with."""
    kept = tuple(group for group in attack.groups if group != "G3")
    return replace(attack, groups=kept) if isinstance(attack, MembershipAttack) else attack


def guessed(
    table: FeatureTable, members: Mapping[str, bool], attacks: Mapping[str, AnswersAttack], seed: int
) -> dict[str, Guess]:
    """What each attack says with the first seed, over all providers; none where there are too few of them."""
    inside = {name: members[name] for name in table.providers}
    share = next(iter(attacks.values())).known
    try:
        drawn = draw_known(inside, share, rng=np.random.default_rng(seed))
        view = ProvidersView(table, drawn.evaluated)
        return {name: attack.run(view, drawn.known, seed=seed) for name, attack in attacks.items()}
    except AttackError:
        return {}


def membership_text(
    found: Mapping[str, Sequence[Subset]], attacks: Mapping[str, AnswersAttack], gap: Remembered,
    beyond: Sequence[Share] | None, bound: str | None,
) -> str:  # fmt: skip
    """Markdown: a row per attack, a column per s, and what else was measured."""
    least = [subset.minimum for subset in next(iter(found.values()))]
    heads = ["attack", "features", "setting", *(f"accuracy, s = {s}" for s in least), "AUC", "TPR at 10 % FPR"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, subsets in found.items():
        attack = attacks[name]
        rates = [subsets[0].rates.get(rate) for rate in ("auc", "tpr_at_10_fpr")]
        cells = [name, " + ".join((*attack.groups, *(["G4"] if attack.votes else []))), attack.setting]
        cells += [_accuracy(subset) for subset in subsets]
        cells += ["-" if rate is None else f"{rate:.3f}" for rate in rates]
        lines.append(f"| {' | '.join(cells)} |")
    subset = next(iter(found.values()))[0]
    share = subset.members / subset.providers if subset.providers else 0.0
    lines += ["", f"{subset.members} of {subset.providers} providers are members: saying nothing else is right in "
              f"{max(share, 1 - share):.1%}.  "]  # fmt: skip
    if gap.difference[0].value is not None:
        lines.append(f"Answers on members' documents are right {_points(gap.difference[0])} oftener.  ")
    if beyond is not None and beyond[0].value is not None:
        lines.append(f"What training mended of the public model's answers: {_points(beyond[0])} more of members'.  ")
    lines += [f"s = {one.minimum}: {one.reason}  " for one in next(iter(found.values())) if one.reason]
    return "\n".join([*lines, f"Measured: {bound}" if bound else "No public model was given: no epsilon measured."])


def _points(share: Share) -> str:
    interval = "" if share.low is None else f" [{100 * share.low:.1f}, {100 * (share.high or 0):.1f}]"
    return f"{100 * (share.value or 0):.1f} points{interval}"


def _accuracy(subset: Subset) -> str:
    if subset.accuracy is None:
        return "-"
    interval = "" if subset.low is None else f" [{100 * subset.low:.1f}, {100 * (subset.high or 0):.1f}]"
    spread = "" if subset.std is None else f" ± {100 * subset.std:.1f}"
    return f"{100 * subset.accuracy:.1f}{spread}{interval} n = {subset.providers}"


def scores_csv(table: FeatureTable, members: Mapping[str, bool], guesses: Mapping[str, Guess]) -> str:
    """A line per provider; a score is empty for those that APK was told of."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["provider", "member", "questions", *table.columns, *guesses])
    scores = {name: dict(zip(guess.providers, guess.scores.tolist(), strict=True)) for name, guess in guesses.items()}
    for row, provider in enumerate(table.providers):
        own = [scores[name].get(provider, "") for name in guesses]
        writer.writerow([provider, int(members[provider]), table.questions[row], *table.values[row].tolist(), *own])
    return buffer.getvalue()


def attack_memorisation(
    release: Release, keys: Sequence[str], out: Path, on_progress: OnProgress, *, seed: int = 0
) -> dict[str, Any]:
    """Hide the answer to each key and ask for it, then ask others' documents for what they do not show.

    Keys that no document of RED shows are left out, and said. Returns what result.json holds, with the table as
    ``text``. Raises AttackError if no key is left.
    """
    red, known = release.red(), training_values(release.blue_red)
    members = {name for name, inside in red.members.items() if inside}
    sources = dict.fromkeys(filter(None, (release.public, release.model)))
    askers = {source: release.asker(source, out, on_progress) for source in sources}
    lines: list[str] = []
    rows: list[list[Any]] = []
    numbers: dict[str, Any] = {}
    for key in keys:
        drawn = memory_cases(red, key, known, seed=seed)
        if not drawn.cases:
            lines += [f"Key `{key}`: no document of RED shows an answer to it.", ""]
            continue
        table = {}
        for source, asker in askers.items():
            said = asker(hidden_items(red.pages, drawn.cases))
            found = outcomes_of(drawn.cases, said, members)
            both = tuple(
                remembered(found, rng=np.random.default_rng(seed), confidence=sure) for sure in (None, CONFIDENT)
            )
            table["public model" if source == release.public else "target"] = (both[0], both[1])
            rows += [[key, source, case.provider, int(case.provider in members), case.document, case.question.text,
                      case.question.answers[0], one.text, one.confidence, score.accuracy, score.anls]
                     for case, one, score in zip(drawn.cases, said, found, strict=True)]  # fmt: skip
            if source == release.model and not numbers:
                write_examples(out, red.pages, drawn.cases, said)
        numbers[key] = {name: asdict(both[0]) for name, both in table.items()}
        lines += [f"Key `{key}`, hidden:", "", memorisation_table(table)]
    if not numbers:
        raise AttackError(f"no document of RED shows an answer to {', '.join(keys)}; ask for keys that it has.")
    tables, counts = _disclosures(release, keys, askers, known, seed)
    text = "\n".join([*lines, *tables])
    value = {"model": release.model, "public": release.public, "keys": numbers, "disclosed": counts}
    with reported(out):
        write_json(out / "result.json", value)
        write_atomically(out / "table.md", text.encode())
        write_atomically(out / "answers.csv", _answers_csv(rows).encode())
    return {**value, "text": text}


def ask_all(
    release: Release, plan: MembershipPlan, keys: Sequence[str], part: str, out: Path, on_progress: OnProgress
) -> None:
    """Ask the model all that both attacks and the pages of ``part`` ask of it, so that its replies are kept."""
    red, asker = release.red(), release.asker(release.model, out, on_progress)
    known = training_values(release.blue_red)
    replies_to(red.pages, asker)
    for key in keys:
        asker(hidden_items(red.pages, memory_cases(red, key, known, seed=plan.seed).cases))
    if any(attack.votes or "G4" in attack.groups for attack in plan.attacks.values()):
        memory_of(red, memory_cases(red, plan.key, known, seed=plan.seed).cases, asker)
    others = release.pages(RED_NEGATIVE)
    asker(items_of(others, _absent(others, keys, plan.seed)))
    replies_to(release.pages(part), asker)


def _absent(pages: Sequence[Page], keys: Sequence[str], seed: int) -> tuple[Case, ...]:
    return draw_absent(pages, [key for key in keys if key in PHRASINGS], rng=np.random.default_rng(seed))


def _disclosures(
    release: Release, keys: Sequence[str], askers: Mapping[str, Asker], known: Sequence[Any], seed: int
) -> tuple[list[str], dict[str, dict[str, int]]]:
    """The probe of D.1.4 for every key that words are known for, where there is a public model to compare with: lines
    of Markdown, and for each key how many questions were asked and how many training values only the target gave."""
    if not release.public:
        return ["No public model was given: what the target says of documents that show nothing is not compared."], {}
    pages = release.pages(RED_NEGATIVE)
    cases = _absent(pages, keys, seed)
    said = {source: disclosed(cases, asker(items_of(pages, cases))) for source, asker in askers.items()}
    lines: list[str] = []
    counts = {}
    for key, found in said[release.model].items():
        control = said[release.public][key]
        table = disclosure_table(found, control, known)
        lines += [f"Key `{key}`, asked of others' documents that do not show it:", "", table]
        counts[key] = {"asked": found.asked, "trained": len(disclosed_values(found, control, known))}
    return lines, counts


def _answers_csv(rows: Sequence[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["key", "model", "provider", "member", "document", "question", "hidden", "answer", "confidence",
                     "accuracy", "anls"])  # fmt: skip
    writer.writerows(rows)
    return buffer.getvalue()


def default_plan(*, known: float, searched: int, **settings: Any) -> MembershipPlan:
    """All attacks of Table 4 that are no ablation, with the share of known providers and of searched forests."""
    return MembershipPlan({name: told(name, known, searched) for name in ANSWERS}, **settings)


def told(choice: Choice, known: float, searched: int) -> AnswersAttack:
    """The attack of that name with the share of known providers and of searched forests; others have their own."""
    attack = ANSWERS.load(choice)
    return replace(attack, known=known, searched=searched) if isinstance(attack, MembershipAttack) else attack
