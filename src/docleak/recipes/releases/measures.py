"""What a row measures of its target, as numbers with intervals: one function per measure, from replies kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from docleak.attacks.answers.asking import AnswersView
from docleak.attacks.answers.attack import MembershipAttack
from docleak.attacks.answers.disclosure import disclosed, draw_absent, items_of
from docleak.attacks.answers.features import Reply, provider_features
from docleak.attacks.answers.memorisation import Asker, Case, hidden_items
from docleak.documents.blue_red import RED_NEGATIVE, TEST
from docleak.documents.blue_red_files import BlueRed
from docleak.documents.silos import read_silo
from docleak.errors import AttackError, RecipeError
from docleak.evidence.answers.cache import remembering
from docleak.evidence.answers.membership import measure, measured_epsilon, needed_groups
from docleak.evidence.answers.memorisation import CONFIDENT, disclosure_table, outcomes_of, write_examples
from docleak.evidence.answers.red import (
    Red,
    memory_cases,
    memory_of,
    outcomes,
    replies_to,
    training_values,
)
from docleak.files import reported, write_atomically
from docleak.metrics.memorisation import Outcome, Remembered, Share, remembered
from docleak.models.loading import load_model
from docleak.privacy.accounting import Accountant
from docleak.privacy.budget import noise_for
from docleak.privacy.empirical import LowerBound, held_against
from docleak.privacy.mechanism import Mechanism, Participation
from docleak.recipes.releases.config import ReleaseConfig
from docleak.recipes.releases.presets import NONE
from docleak.recipes.releases.store import Trained, documents_of, trained

#: The answers to a probe that are looked at (appendix D.1.4).
TOP = 15


@dataclass(frozen=True)
class Cell:
    """A number of a table with its interval; ``more`` is said behind it. ``value`` is None if nothing was measured."""

    value: float | None
    low: float | None = None
    high: float | None = None
    more: str = ""


@dataclass(frozen=True)
class Measured:
    """A row: its cells by metric, what its target cost and guarantees, and remarks for under the table."""

    cells: Mapping[str, Cell]
    target: Trained | None = None
    remarks: Mapping[str, str] = field(default_factory=dict)


class Bench:
    """What measures of one row share: the documents, the trained target, and askers of it and of the public model."""

    def __init__(self, config: ReleaseConfig, store: Path, folder: Path, device: str) -> None:
        self.config, self.store, self.folder, self.device = config, store, folder, device

    @cached_property
    def blue_red(self) -> BlueRed:
        return documents_of(self.config.released().data, self.store)

    @cached_property
    def red(self) -> Red:
        return Red.of(self.blue_red)

    @cached_property
    def target(self) -> Trained:
        return trained(self.config.released(), self.store, self.device)

    def asker(self, model: str) -> Asker:
        """Asks a model with scores; what it said before is on disk."""
        view = AnswersView(load_model(model, device=self.device), scores=True)
        return remembering(view, self.store / "replies")

    @cached_property
    def ask_target(self) -> Asker:
        return self.asker(self.target.model)

    @cached_property
    def ask_public(self) -> Asker:
        return self.ask_target if self.config.target == NONE else self.asker(self.config.model)

    def cases(self, key: str) -> tuple[Case, ...]:
        """The memorisation test of a key, the same for every target; AttackError if nothing can be hidden."""
        drawn = memory_cases(self.red, key, training_values(self.blue_red), seed=self.config.seed)
        if not drawn.cases:
            raise AttackError(
                f"no document's {key!r} is known and found on its page: {len(drawn.unanswered)} without an answer, "
                f"{len(drawn.not_found)} whose words do not show it. Ask for a key that the documents have."
            )
        return drawn.cases

    def rng(self) -> np.random.Generator:
        """For bootstraps: every row draws the same."""
        return np.random.default_rng(self.config.seed)


def measured(config: ReleaseConfig, store: Path, folder: Path, device: str) -> Measured:
    """Measure a row; its target is trained, and asked, as far as that is not on disk."""
    return MEASURED[config.measure](Bench(config, store, folder, device))


def utility(bench: Bench) -> Measured:
    """ACC and ANLS on BLUE's test documents (members' and others'), validation beside it (Tables 3 and 6)."""
    cells: dict[str, Cell] = {}
    for part, suffix in ((TEST, ""), ("validation", "_validation")):
        pages = bench.blue_red.pages(part)
        if len(pages):
            found = outcomes(replies_to(pages, bench.ask_target), {})
            accuracy, anls = together(found, bench.rng())
            cells |= {f"anls{suffix}": cell_of(anls), f"accuracy{suffix}": cell_of(accuracy)}
    if "anls" not in cells:
        if "anls_validation" not in cells:
            raise RecipeError(f"{bench.blue_red.path} keeps nothing for test or validation; divide it with a share.")
        cells = {name.removesuffix("_validation"): cell for name, cell in cells.items()}
    cells["gigabytes"] = Cell(bench.target.bytes / 2**30 if bench.target.bytes else None)
    return Measured(cells, bench.target, _claim(bench))


def gap(bench: Bench) -> Measured:
    """ACC and ANLS on RED, and the difference between positive and negative (Tables 1 and 9)."""
    found = outcomes(replies_to(bench.red.pages, bench.ask_target), bench.red.members)
    accuracy, anls = together(found, bench.rng())
    cells = {"red_acc": cell_of(accuracy), "red_anls": cell_of(anls)}
    return Measured(cells | sides(remembered(found, rng=bench.rng())), bench.target, _claim(bench))


def memorisation(bench: Bench) -> Measured:
    """The memorisation test of one key, over all answers and over confident ones (Tables 2, 7 and 8)."""
    cases = bench.cases(bench.config.key)
    said = bench.ask_target(hidden_items(bench.red.pages, cases))
    found = outcomes_of(cases, said, {name for name, inside in bench.red.members.items() if inside})
    write_examples(bench.folder, bench.red.pages, cases, said, count=3)
    every = remembered(found, rng=bench.rng())
    sure = remembered(found, rng=bench.rng(), confidence=CONFIDENT)
    confident = {f"{name}_confident": cell for name, cell in sides(sure).items() if not name.startswith("gap")}
    return Measured({**_counted(every), **sides(every), **confident}, bench.target, _claim(bench))


def disclosure(bench: Bench) -> Measured:
    """What the target says of others' documents when asked for numbers they do not show (appendix D.1.4)."""
    pages, config = bench.blue_red.pages(RED_NEGATIVE), bench.config
    cases = draw_absent(pages, config.keys, rng=bench.rng())
    if not cases:
        raise AttackError(f"every document of {RED_NEGATIVE} shows {', '.join(config.keys)}; ask for other keys.")
    found = disclosed(cases, bench.ask_target(items_of(pages, cases)))
    control = disclosed(cases, bench.ask_public(items_of(pages, cases)))
    known = training_values(bench.blue_red)
    texts = {value.text.lower().strip() for value in known}
    cells: dict[str, Cell] = {}
    parts: list[str] = []
    for key, said in found.items():
        top = [text for text, _ in said.top(TOP)]
        public = {text for text, _ in control[key].answers}
        cells |= {
            f"asked_{key}": Cell(said.asked),
            f"different_{key}": Cell(len(said.answers)),
            f"share_{key}": Cell(said.share),
            f"trained_{key}": Cell(sum(text in texts and text not in public for text in top)),
        }
        parts += [f"## {key}", "", disclosure_table(said, control[key], known)]
    with reported(bench.folder):
        write_atomically(bench.folder / "answers.md", "\n".join(parts).encode())
    return Measured(cells, bench.target, _claim(bench))


def membership(bench: Bench) -> Measured:
    """Attack accuracy per s, and the epsilon that the losses show (Tables 4, 10, 11, 13)."""
    config, red = bench.config, bench.red
    kind, _, votes = config.attack.partition("+")
    attack = MembershipAttack(kind, config.groups, config.columns, bool(votes), config.known, config.searched)
    target, public = (replies_to(red.pages, asker) for asker in (bench.ask_target, bench.ask_public))
    memory = None
    if "G4" in needed_groups([attack]):
        memory = memory_of(red, bench.cases(config.key), bench.ask_target)
    table = provider_features(target, public, memory)
    cells, seeds, remarks = {}, range(config.seed, config.seed + config.seeds), {}
    for number, least in enumerate(config.minimum):
        found = measure(table, red.members, attack, least, seeds=seeds)
        spread = "" if found.std is None else f"± {100 * found.std:.1f}, "
        cells[f"accuracy_s{least}"] = Cell(found.accuracy, found.low, found.high, f"{spread}n = {found.providers}")
        if found.reason:
            remarks[f"s = {least}"] = found.reason
        if number == 0:
            rates = ("balanced_accuracy", "auc", "tpr_at_10_fpr", "tpr_at_3_fpr", "tpr_at_1_fpr")
            cells |= {name: Cell(found.rates.get(name)) for name in rates}
    bound = _lower_bound(bench, target, public)
    cells["epsilon_measured"] = Cell(bound.epsilon)
    cells["epsilon_claimed"] = Cell(bench.target.epsilon)
    return Measured(cells, bench.target, {**remarks, "Measured": bound.sentence(), **_claim(bench)})


def _lower_bound(bench: Bench, target: Sequence[Reply], public: Sequence[Reply]) -> LowerBound:
    """The measured epsilon; ContradictionError where it is above what the training claims."""
    delta = bench.target.delta or 1e-5
    bound = measured_epsilon(
        target, public, bench.red.members, coins=bench.blue_red.coins, delta=delta, seed=bench.config.seed
    )
    released = bench.config.released()
    if released.epsilon and bench.blue_red.coins == 0.5:  # else it is an estimate, and may be wrong
        held_against(bound, released.training.plan(released.epsilon).bound())
    return bound


def noise(bench: Bench) -> Measured:
    """The noise multiplier of a private target: by the paper's accountant and counting, by PLD, and by ours."""
    released = bench.config.released()
    if not released.epsilon:
        raise RecipeError("the noise of a target without privacy was asked for; give the row an epsilon.")
    training = released.training
    plain = Mechanism(0.0, training.rounds, training.unit_rate, training.participation)
    hidden = replace(plain, participation=Participation.HIDDEN)
    by = {
        "noise_prv": (hidden, Accountant.PRV),
        "noise_pld": (hidden, Accountant.PLD),
        "noise_ours": (plain, Accountant.PLD),
    }
    found = {name: noise_for(m, released.epsilon, training.delta, accountant) for name, (m, accountant) in by.items()}
    cells = {name: Cell(of.mechanism.noise_multiplier) for name, of in found.items()}
    return Measured(cells, None, {"Ours": found["noise_ours"].sentence()})


def division(bench: Bench) -> Measured:
    """Providers, documents, pages and questions of one part (Table 5)."""
    folders = {**{f"silos/{name}": path for name, path in bench.blue_red.silos.items()}, **bench.blue_red.parts}
    if bench.config.part not in folders:
        raise RecipeError(f"there is no part {bench.config.part!r}; the division has {', '.join(folders)}.")
    silo = read_silo(folders[bench.config.part])
    counts = {"providers": len(silo.providers), "documents": silo.documents, "pages": silo.pages}
    return Measured({name: Cell(float(n)) for name, n in {**counts, "questions": silo.questions}.items()})


def together(found: Sequence[Outcome], rng: np.random.Generator) -> tuple[Share, Share]:
    """ACC and ANLS over all outcomes, whoever they are about; intervals over providers."""
    return remembered([replace(outcome, member=True) for outcome in found], rng=rng).positive


def sides(found: Remembered) -> dict[str, Cell]:
    """Positive, negative and their difference as cells."""
    rows = {"positive": found.positive, "negative": found.negative, "gap": found.difference}
    return {
        f"{side}_{name}": cell_of(share)
        for side, both in rows.items()
        for name, share in zip(("acc", "anls"), both, strict=True)
    }


def _counted(found: Remembered) -> dict[str, Cell]:
    rows = {"positive_n": found.positive[0], "negative_n": found.negative[0]}
    return {name: Cell(float(share.questions), more=f"{share.providers} providers") for name, share in rows.items()}


def cell_of(share: Share) -> Cell:
    """A share as a cell."""
    return Cell(share.value, share.low, share.high)


def _claim(bench: Bench) -> dict[str, str]:
    target = bench.target
    if not target.claim:
        return {}
    released = bench.config.released()
    if released.training.published_counting:
        bound = released.training.plan(released.epsilon).bound()
        return {released.name: f"{target.claim} A bound for the same training: {bound.sentence()}"}
    published = f" The paper's counting would call it epsilon {target.as_published:.3g}, which is no bound."
    return {released.name: target.claim + published * (bench.config.target == "federated")}


MEASURED: dict[str, Callable[[Bench], Measured]] = {
    "utility": utility,
    "gap": gap,
    "memorisation": memorisation,
    "disclosure": disclosure,
    "membership": membership,
    "noise": noise,
    "division": division,
}


def to_json(found: Measured) -> dict[str, Any]:
    """For JSON; ``from_json`` reads it."""
    return asdict(found)


def from_json(saved: Mapping[str, Any]) -> Measured:
    """The inverse of ``to_json``."""
    cells = {name: Cell(**cell) for name, cell in saved["cells"].items()}
    return Measured(cells, Trained(**saved["target"]) if saved["target"] else None, saved["remarks"])


def metrics() -> Iterator[str]:
    """Every metric that a paper may print of some measure."""
    yield from ("anls", "accuracy", "gigabytes", "red_acc", "red_anls", "auc", "balanced_accuracy")
    for side in ("positive", "negative", "gap"):
        yield from (f"{side}_{name}{sure}" for name in ("acc", "anls") for sure in ("", "_confident"))
    yield from ("positive_n", "negative_n", "noise_prv", "providers", "documents", "pages", "questions")
    yield from (f"accuracy_s{least}" for least in range(31))
