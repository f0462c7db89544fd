"""The audit of captured updates: what a federated server received, attacked; units are computed once and kept on disk.

A unit is one captured update, or one cell of "how leakage falls with local steps and batch size", which trains the
first client again from the weights that the server sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

import docleak
from docleak.attacks.gradients import load_attack
from docleak.errors import AttackError, DocumentError, FederationError, RunError, SelfTestError
from docleak.evidence.audit import PERMISSIONS
from docleak.evidence.update_case import SAME, UpdateCase, assumed, open_case, pages_of
from docleak.evidence.update_check import TESTED_EXAMPLES, TESTED_STEPS, check, check_of_sum, diagnosed, trial_of
from docleak.evidence.update_leaks import Cell, Sight, cell_of, sight_of, words_of
from docleak.evidence.update_secure import hiding, is_masked, is_secure, open_sum
from docleak.evidence.update_trial import Trial
from docleak.metrics import load_engine, score_page
from docleak.models import DocumentModel, image_of, load_model
from docleak.runs.pool import OnProgress, compute
from docleak.runs.run import Run
from docleak.studies.identity import weights_hash
from docleak.training.federated.capture import CapturedUpdate, read_updates
from docleak.training.objectives.table import objective_of

#: Other clients whose pages are tried where a client's own do not fit.
OTHERS = 4
#: Gradient evaluations of a unit without pictures, for the progress bar.
WORDS_ONLY = 1


@dataclass(frozen=True)
class UpdatesConfig:
    """What is audited of a capture. Everything that changes a number is here, and nothing else.

    ``round`` 0 is the first of the capture; no ``clients`` means each client of the round. ``local`` says how the
    clients trained where the capture does not. ``steps`` and ``batch_sizes`` span the table of how leakage falls:
    words in every cell, pictures where one of the two is the least. ``picture_budget`` are its evaluations.
    """

    updates: str
    model: str = ""
    documents: str = "synthetic"
    round: int = 0
    clients: tuple[str, ...] = ()
    attack: str = "gi-dqa"
    budget: int = 120
    picture_budget: int = 60
    steps: tuple[int, ...] = (1, 2, 4)
    batch_sizes: tuple[int, ...] = (1, 2, 4)
    local: str = ""
    ocr: str = "rapidocr"
    seed: int = 5
    allow_failed_self_test: bool = False
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        load_attack(self.attack)
        if min((self.budget, self.picture_budget, *self.steps, *self.batch_sizes), default=1) < 1 or self.round < 0:
            raise AttackError(
                f"budget {self.budget}, steps {self.steps}, batches {self.batch_sizes}, round {self.round}; expected "
                "budgets, steps and batches of at least 1."
            )


@dataclass(frozen=True)
class UpdateUnit:
    """One captured update, or with ``cell`` one point of the table, and the evaluations it takes."""

    update: CapturedUpdate
    cell: Cell | None
    evaluations: int

    @property
    def id(self) -> str:
        name = f"round-{self.update.round:04d}--{self.update.client}"
        return name if self.cell is None else f"{name}--{self.cell.id}"


def chosen(config: UpdatesConfig) -> list[CapturedUpdate]:
    """The updates to audit; FederationError names what the capture has where it lacks what was asked for."""
    updates = read_updates(Path(config.updates))
    rounds = sorted({update.round for update in updates})
    number = config.round or rounds[0]
    there = [update for update in updates if update.round == number]
    missing = sorted(set(config.clients) - {update.client for update in there})
    if not there or missing:
        raise FederationError(
            f"{config.updates} has the rounds {', '.join(map(str, rounds))} and in round {number} the clients "
            f"{', '.join(update.client for update in there) or '(none)'}; asked for round {number}"
            f"{', client ' + missing[0] if missing else ''}."
        )
    found = [update for update in there if not config.clients or update.client in config.clients]
    if private := [update.client for update in found if update.details.get("privacy")]:
        raise FederationError(
            f"{', '.join(private)} trained under a privacy plan: what they drew and their noise are secret, so no true "
            "input reproduces what they sent and nothing could be measured. Audit a training without --epsilon."
        )
    return found


def units_of(config: UpdatesConfig) -> list[UpdateUnit]:
    """All units: the first captured update and the table's cells on it, then the other updates; of a secure
    aggregation its masked words and sums."""
    updates = chosen(config)
    if is_secure(updates[0]):  # the server holds no silo's own update, of which pictures could be attacked
        return [UpdateUnit(update, None, WORDS_ONLY) for update in updates]
    units = [UpdateUnit(updates[0], None, config.budget)]
    for steps in config.steps:
        for size in config.batch_sizes:
            pictured = steps == min(config.steps) or size == min(config.batch_sizes)
            units.append(UpdateUnit(updates[0], Cell(steps, size), config.picture_budget if pictured else WORDS_ONLY))
    return [*units, *(UpdateUnit(update, None, config.budget) for update in updates[1:])]


def run_updates(
    config: UpdatesConfig, out: Path, *, device: str, on_progress: OnProgress, workers: int = 1, command: str = ""
) -> Run:
    """Run (or resume) the audit of ``config`` in ``out``, in ``workers`` processes of one thread.

    Each process trains the clients of its units again, so that more than one pays where pictures are attacked.
    Raises SelfTestError where a client's round, trained again from the recorded seed, does not give what it sent: then
    pages, model or plan are not those it trained with, and nothing could be measured against them.
    """
    units = units_of(config)
    torch.set_num_threads(1)  # as in worker processes: other numbers of threads round differently
    cases = Cases(config, device)
    run = Run.open(out, {key: v for key, v in asdict(config).items() if key not in PERMISSIONS})
    run.write_info("command", command)
    with run.claimed():
        _write_info(run, config, units, cases.open(units[0].update))
        for unit in (unit for unit in units if run.has(unit.id)):
            on_progress(unit.id, unit.evaluations, unit.evaluations)
        todo = [unit for unit in units if not run.has(unit.id)]
        compute(partial(_work, run, cases), todo, workers=workers, on_progress=on_progress)
    return run


def _work(run: Run, cases: Cases, unit: UpdateUnit, report: OnProgress) -> None:
    _compute(run, cases.config, unit, cases.open(unit.update), report)
    report(unit.id, unit.evaluations, unit.evaluations)


class Cases:
    """Opens the updates of a capture, each once while units of it follow one another.

    The model is shared and holds the start of the last one opened. Pickled, this is only ``config`` and ``device``.
    """

    def __init__(self, config: UpdatesConfig, device: str) -> None:
        self.config, self.device = config, device
        self._model: DocumentModel | None = None
        self._last: UpdateCase | None = None

    def open(self, update: CapturedUpdate) -> UpdateCase:
        """The update with its client's pages and plan; see ``open_case`` for what is raised."""
        if self._last is None or self._last.update != update:
            self._last = None  # its model is about to hold another start
            self._last = self._opened(update)
        return self._last

    def _opened(self, update: CapturedUpdate) -> UpdateCase:
        config = self.config
        if self._model is None:
            self._model = load_model(_source(config, update), device=self.device)
        options: dict[str, Any] = {"local": config.local, "allow_pickle": config.allow_pickle}
        if is_secure(update) and not is_masked(update):
            others = read_updates(Path(config.updates))
            members = [other for other in others if other.folder == update.folder and is_masked(other)]
            return open_sum(update, members, self._model, config.documents, **options)
        return open_case(update, self._model, config.documents, **options)

    def __reduce__(self) -> tuple[type[Cases], tuple[UpdatesConfig, str]]:
        return Cases, (self.config, self.device)


def _source(config: UpdatesConfig, update: CapturedUpdate) -> str:
    source = config.model or str(update.details.get("model") or "")
    if not source:
        raise FederationError(f"{update.name}: the capture does not say which model was trained. Pass --model.")
    return source


def _compute(run: Run, config: UpdatesConfig, unit: UpdateUnit, case: UpdateCase, on_progress: OnProgress) -> None:
    _require_replay(case, config)

    def report(number: int) -> None:
        on_progress(unit.id, number, unit.evaluations)

    attack = load_attack(config.attack)
    if is_secure(unit.update):
        why = "the words are masked" if is_masked(unit.update) else "a sum of silos is too many pages"
        record: dict[str, Any] = {
            "kind": "update",
            **_described(case),
            "words": words_of(case),
            "pictures": {"why": why, "self_test": None},
        }
        record |= (
            {"masked": hiding(case)}
            if is_masked(unit.update)
            else {"sum": True, "check": check_of_sum(case, record["words"]).to_json()}
        )
        run.write_unit(unit.id, record, {})
        return
    if unit.cell is None:
        words = words_of(case)
        checked = check(case, words, partial(_other_clients, config, case))
        sight = sight_of(
            case, attack, checked, budget=config.budget, seed=config.seed, allow_failed=config.allow_failed_self_test,
            report=report,
        )  # fmt: skip
        record = {"kind": "update", **_described(case), "check": checked.to_json()}
    else:
        pictured = unit.evaluations > WORDS_ONLY
        words, sight = cell_of(
            case, unit.cell, attack if pictured else None, budget=config.picture_budget, seed=config.seed, report=report
        )
        record = {"kind": "cell", "steps": unit.cell.steps, "batch_size": unit.cell.batch_size}
    pictures, images = _pictured(config, sight)
    run.write_unit(unit.id, {**record, "words": words, "pictures": pictures}, images)


def _require_replay(case: UpdateCase, config: UpdatesConfig) -> None:
    distance = None if is_masked(case.update) else case.replay.distance
    if distance is None or distance <= SAME or config.allow_failed_self_test:
        return
    trial = None if is_secure(case.update) else trial_of(case)
    causes = diagnosed(case, trial, partial(_other_clients, config, case)) if trial else ()
    said = "; ".join(cause.sentence for cause in causes) or (
        "other pages (--documents), pages in another order, another model, or another plan than the capture says "
        "(--local)"
    )
    raise SelfTestError(
        f"{case.update.name}: trained again from the recorded seed, this client sends something else (relative "
        f"distance {distance:.2e}, expected at most {SAME:.0e}), so nothing could be measured against these pages. "
        f"Possible causes, the most probable first: {said}. Mend it, or pass --allow-failed-self-test to audit all the "
        "same."
    )


def _other_clients(config: UpdatesConfig, case: UpdateCase) -> dict[str, Trial]:
    """The round with the pages of the other clients of the capture, where they have pages of their own."""
    found: dict[str, Trial] = {}
    seen = {page.name for page in case.pages}
    for update in read_updates(Path(config.updates)):
        if update.folder != case.update.folder or update.client == case.update.client or is_secure(update):
            continue
        try:
            pages = pages_of(update, config.documents, None, allow_pickle=config.allow_pickle)
        except DocumentError:  # this client's pages are at hand, those of the others need not be
            continue
        examples = objective_of(case.plan.objective).examples(pages)
        batches = assumed(len(examples), case.plan)
        if seen == {page.name for page in pages} or len(examples) > TESTED_EXAMPLES or len(batches) > TESTED_STEPS:
            continue
        found[update.client] = Trial.of(case.model, case.delta, case.plan, case.batching, pages, examples, batches)
        if len(found) == OTHERS:
            break
    return found


def _described(case: UpdateCase) -> dict[str, Any]:
    update, replay = case.update, case.replay
    return {
        "round": update.round,
        "client": update.client,
        "sent": update.kind,
        "examples": len(case.trained_on),
        "pages": len({example.page for example in case.trained_on}),
        "steps": len(case.batches),
        "plan": asdict(case.plan),
        "dropout": case.dropout,
        "replay": {"distance": replay.distance, "why": replay.why},
    }


def _pictured(config: UpdatesConfig, sight: Sight) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the attack on pictures gave, scored on every page, and the first page's pictures."""
    test = sight.test and {"distance": sight.test.distance, "tolerance": sight.test.tolerance,
                           "passed": sight.test.passed}  # fmt: skip
    if sight.finding is None or sight.knowledge is None:
        return {"why": sight.why, "self_test": test}, {}
    engine = _engine(config.ocr)
    found = sight.finding
    shown = [i for i, page in enumerate(sight.pages) if page.private_fields]
    template, pixels = sight.knowledge.template, found.pixels

    def scores(images: Sequence[Any]) -> list[dict[str, Any]]:
        return [score_page(sight.pages[i], images[i], engine).to_json() for i in shown]

    truth = [page.image for page in sight.pages]
    blank, rebuilt = ([image_of(row) for row in rows] for rows in (template, pixels))
    first = shown[0]
    record = {
        "why": sight.why,
        "route": sight.route,
        "self_test": test,
        "explained": found.explained,
        "evaluations": found.evaluations,
        "seconds": found.seconds,
        "pages": len(sight.pages),
        "knowledge": list(sight.knowledge.sentences()),
        "given": [list(sight.answers[i]) for i in shown],
        "score": scores(rebuilt),
        "floor": scores(blank),
        "ceiling": scores(truth),
    }
    images = {"truth": truth[first], "template": blank[first], "reconstruction": rebuilt[first]}
    return record, images


@lru_cache(maxsize=1)
def _engine(name: str) -> Any:
    return load_engine(name)


def _absent(config: UpdatesConfig, updates: Sequence[CapturedUpdate]) -> list[str]:
    """Clients of other rounds of the capture that sent nothing in this one, where all of it is audited."""
    here = {update.client for update in updates}
    return [] if config.clients else sorted({update.client for update in read_updates(Path(config.updates))} - here)


def _write_info(run: Run, config: UpdatesConfig, units: Sequence[UpdateUnit], case: UpdateCase) -> None:
    signature = (
        f"docleak {docleak.__version__} | updates of {config.updates}, round {units[0].update.round} | "
        f"{case.model.name}:{weights_hash(case.model)} | {config.attack}, {config.budget} and {config.picture_budget} "
        f"evaluations | seed {config.seed}"
    )
    before = run.info.get("signature")
    if before not in (None, signature) and run.units():
        raise RunError(f"{run.path} holds results of other weights:\n  - there: {before}\n  - now: {signature}")
    run.write_info("signature", signature)
    planned = [{"unit": u.id, "round": u.update.round, "client": u.update.client} for u in units if u.cell is None]
    run.write_info("planned", planned)
    run.write_info("cells", sum(unit.cell is not None for unit in units))
    run.write_info("absent", _absent(config, [unit.update for unit in units]))
    run.write_info("model", {"name": case.model.name, "architecture": case.model.architecture})
