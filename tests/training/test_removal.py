"""Whoever is taken away, a silo sends the same but for what was accounted: over random federations, and planted faults.

``python -m tests.training.removing 5000`` takes more units away, and prints the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docleak.documents.folder import INDEX, save
from docleak.documents.page import Page, Question
from docleak.documents.pages import picked
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated import party
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower import client
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.local import train_in_place
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.scores import SENSITIVITY, DocumentScore, SiloScore
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.silo import Party, open_party
from docleak.training.private import records, rounds
from docleak.training.private.clipping import ClippedSum
from docleak.training.private.records import RecordOptimiser, train_by_record
from tests.training.removing import LETTERS, Case, Tally, TinyModel, random_case, removals, said

#: How many units the tests of this file take away, at least.
ENOUGH = 2000
#: float32, in which updates are sent, and float64, in which they are summed.
ROUNDING = 1e-5
TALLY = Tally()

LOCALS = st.builds(
    LocalPlan, epochs=st.integers(1, 2), batch_size=st.integers(2, 4), max_steps=st.integers(0, 2),
    learning_rate=st.floats(1e-3, 1.0), optimiser=st.sampled_from(["adamw", "sgd"]), dropout=st.just(False),
)  # fmt: skip
CASES = st.builds(
    Case, seed=st.integers(0, 2**31), silos=st.integers(1, 3), providers=st.sampled_from([1, 2, 2, 2, 3, 5]),
    unit=st.sampled_from([Unit.PROVIDER, Unit.PROVIDER, Unit.DOCUMENT, Unit.CLIENT]),
    holdout=st.sampled_from([0.0, 0.3, 0.6]), local=LOCALS, clip_norm=st.floats(1e-3, 10.0),
    denominator=st.integers(1, 8), unit_rate=st.sampled_from([1.0, 0.6]), faults=st.booleans(),
)  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Silos load the tiny model, whatever the federation's model is called."""
    monkeypatch.setattr(party, "load_model", lambda source, **_: TinyModel())
    party._model.cache_clear()
    yield
    party._model.cache_clear()


def examined(case: Case) -> Tally:
    with TemporaryDirectory() as folder:
        return removals(case, Path(folder))


@settings(max_examples=160, deadline=None, suppress_health_check=list(HealthCheck))
@given(CASES)
def test_a_unit_that_is_taken_away_moves_nothing_but_what_was_accounted(case: Case) -> None:
    tally = examined(case)
    TALLY.add(tally)
    assert not tally.other
    assert tally.ratio <= 1 + ROUNDING


# -- records -----------------------------------------------------------------------------------------------------------


def sums_of(pages: Sequence[Page], plan: DpPlan, seed: int, dropout: bool, patch: pytest.MonkeyPatch) -> np.ndarray:
    """What one step of DP-SGD hands to its optimiser, times M: the clipped sum, as there is no noise."""
    seen: list[np.ndarray] = []

    def look(optimiser: torch.optim.AdamW, *_: object) -> None:
        every = [p.grad for group in optimiser.param_groups for p in group["params"]]
        seen.append(torch.cat([gradient.flatten() for gradient in every]).double().numpy())

    patch.setattr(torch.optim.AdamW, "step", look)
    model: Any = TinyModel()
    train_by_record(
        model, pages, plan, RecordOptimiser(dropout=dropout), randomness=Randomness.seeded("records", seed)
    )  # fmt: skip
    (gradient,) = seen
    return gradient * plan.denominator


def record_pages(rng: np.random.Generator) -> list[Page]:
    """Some pages with some questions, of which some are equal, and one may have no gradient."""
    image, made = np.full((4, 4, 3), 90, dtype=np.uint8), []
    for number in range(int(rng.integers(1, 5))):
        texts = ["".join(rng.choice(list(LETTERS[:3]), 2)) for _ in range(int(rng.integers(1, 4)))]
        questions = [Question(text, (str(rng.choice(list(LETTERS[:3]))),)) for text in texts]
        questions += [Question("nan", ("a",))] * (rng.random() < 0.2)
        made.append(Page(f"p{number}", image, questions=tuple(questions), document=f"d{number}", provider="x"))
    return made


def record_removals(seed: int, patch: pytest.MonkeyPatch) -> Tally:
    rng, tally = np.random.default_rng(seed), Tally()
    mechanism = Mechanism(0.0, 1, float(rng.choice([1.0, 0.5])), unit=Unit.RECORD)
    plan = DpPlan(mechanism, float(10 ** rng.uniform(-3, 1)), int(rng.integers(1, 9)), 1e-5)
    pages = record_pages(rng)
    whole = sums_of(pages, plan, seed, seed % 2 == 1, patch)
    for number, page in enumerate(pages):
        for i in range(len(page.questions)):
            left = replace(page, questions=page.questions[:i] + page.questions[i + 1 :])
            without = sums_of([*pages[:number], left, *pages[number + 1 :]], plan, seed, seed % 2 == 1, patch)
            tally.removals += 1
            tally.sums = max(tally.sums, float(np.linalg.norm(whole - without)) / plan.clip_norm)
    return tally


def test_a_record_that_is_taken_away_moves_the_sum_by_its_clipped_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        tally = record_removals(seed, monkeypatch)
        TALLY.add(tally)
        assert tally.ratio <= 1 + 1e-4, "gradients are float32"


def test_records_drawn_by_their_place_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "record_names", lambda pages, examples: [str(i) for i in range(len(examples))])
    assert max(record_removals(seed, monkeypatch).ratio for seed in range(8)) > 1.1


# -- whole trainings, with secure aggregation and without --------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_a_whole_training_moves_by_what_was_accounted(secure: bool, tmp_path: Path) -> None:
    """One round over the same engine as a deployment: the model, and every file of the run."""
    for seed in range(3):
        case = random_case(
            np.random.default_rng(seed), silos=2, providers=3, unit=Unit.PROVIDER, holdout=0.3, faults=False,
            unit_rate=1.0,
        )  # fmt: skip
        folder = tmp_path / f"{seed}"
        silos = {f"silo-{n}": folder / f"silo-{n}" for n in range(2)}
        for number, path in enumerate(silos.values()):
            save(case.pages(number), path)
        # a limit of the fixed point that keeps rounding far below C
        federation = case.federation(secure=SecurePlan(limit=20 * case.clip_norm) if secure else None)
        federation = replace(federation, rounds=1)
        whole = trained(federation, silos, folder / "whole")
        index = silos["silo-0"] / INDEX
        lines = index.read_text().splitlines(keepends=True)
        for provider in {case.unit_of(json_of(line), "") for line in lines}:
            index.write_text("".join(line for line in lines if case.unit_of(json_of(line), "") != provider))
            model, files = trained(federation, silos, folder / provider.replace(" ", "-"))
            TALLY.removals += 1
            moved = float(np.linalg.norm(model - whole[0])) * case.denominator * 2 / case.clip_norm
            assert moved <= 1 + (1e-4 if secure else ROUNDING)
            TALLY.sums = max(TALLY.sums, moved)
            assert files == whole[1]


def json_of(line: str) -> dict[str, Any]:
    import json

    entry: dict[str, Any] = json.loads(line)
    return entry


def trained(federation: Federation, silos: dict[str, Path], out: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """The model after the training, and what its files say but for times, scores and the weights."""
    run = FederatedRun.open(out, federation)
    state = train_embedded(run, silos, randomness=lambda: Randomness.seeded(1), evaluate_every=1)
    (row,) = run.rows()
    files = {
        "silos": run.silos(), "absent": row.absent, "evaluations": run.evaluations(),
        "rows": [replace(c, seconds=0.0, up=0, down=0) for c in row.clients], "bytes": [c.down for c in row.clients],
        "names": sorted(file.name for file in out.rglob("*")),
        "scores": [len(run.scores(n) or ()) for n in (0, 1)],
    }  # fmt: skip
    return np.concatenate([np.ravel(state.parameters[name]) for name in sorted(state.parameters)]), files


# -- the noise that hides it -------------------------------------------------------------------------------------------


def test_the_noise_is_there_and_as_large_as_accounted(tmp_path: Path) -> None:
    """Two trainings on the same pages differ by noise alone: sums by sqrt(2) sigma C / M, scores as their ``std``."""
    updates, scores = [], []
    for seed in range(12):
        case = random_case(np.random.default_rng(seed), silos=1, providers=2, unit=Unit.PROVIDER, holdout=0.6, seed=5)
        federation = case.federation(noise=4.0)
        save(case.pages(0), tmp_path / f"{seed}" / "silo-0")
        one, other = (
            list(said(tmp_path / f"{seed}" / "silo-0", federation, replace(case, seed=5 * number)))
            for number in (2 * seed + 1, 2 * seed + 2)
        )
        std = 4.0 * case.clip_norm / math.sqrt(case.silos) / case.denominator
        # weights follow from the case's seed, so the two rounds begin elsewhere: C bounds what that moves, far below
        for name in one[1].content.array_records["arrays"]:
            pair = [reply[1].content.array_records["arrays"][name].numpy() for reply in (one, other)]
            updates.append((pair[0] - pair[1]).ravel() / (math.sqrt(2) * std))
        metrics = [reply[-1].content.metric_records["metrics"] for reply in (one, other)]
        scores += [(float(metrics[0][k]) - float(metrics[1][k])) / (math.sqrt(2) * float(metrics[0]["std"]))  # type: ignore[arg-type]
                   for k in ("score", "units")]  # fmt: skip
    assert np.std(np.concatenate(updates)) == pytest.approx(1.0, rel=0.1)
    assert 0.5 < np.std(scores) < 1.6, "24 numbers of standard deviation 1, and what 2 providers can move"


# -- planted faults ----------------------------------------------------------------------------------------------------

train_on, noisy, units_of, draw_units = rounds._train_on, rounds.clipped_sum, rounds.units_of, DpPlan.draw_units
Patch = Callable[[pytest.MonkeyPatch], None]


def redrawn(directory: Path, federation: Federation, *, name: str = "") -> Party:
    """As it was: the kept ones are drawn from the sorted list."""
    whole = open_party(directory, replace(federation, holdout=0.0), name=name)
    names = rounds_names(whole.training, federation)
    units = sorted(set(names))
    if not federation.holdout or len(units) < 2:
        return whole
    count = min(max(1, round(federation.holdout * len(units))), len(units) - 1)
    kept = set(np.random.default_rng((federation.seed, 3)).choice(units, size=count, replace=False).tolist())
    sides = [[i for i, n in enumerate(names) if (n in kept) == side] for side in (False, True)]
    return replace(whole, training=picked(whole.training, sides[0]), kept=picked(whole.training, sides[1]))


def rounds_names(pages: Sequence[Page], federation: Federation) -> list[str]:
    assert federation.privacy is not None
    units = units_of(pages, federation.privacy.mechanism.unit, client="silo")
    return [next(name for name, unit in units.items() if page.name in {p.name for p in unit}) for page in pages]


def capped(directory: Path, federation: Federation, *, name: str = "") -> Party:
    whole = open_party(directory, federation, name=name)
    return replace(whole, training=picked(whole.training, range(min(3, len(whole.training)))))


def in_batches(pages: Sequence[Page], unit: Unit, *, client: str) -> dict[str, Sequence[Page]]:
    names = sorted(units := units_of(pages, unit, client=client))
    return {f"batch {i}": [page for name in names[i : i + 2] for page in units[name]] for i in range(0, len(names), 2)}


def by_spelling(pages: Sequence[Page], unit: Unit, *, client: str) -> dict[str, Sequence[Page]]:
    providers: dict[str, list[Page]] = {}
    for page in pages:
        providers.setdefault(page.provider, []).append(page)
    return dict(providers)


def unjoined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("docleak.documents.loaders.one_spelling", lambda pages: pages)
    patch.setattr(rounds, "units_of", by_spelling)


def scaled(by: Callable[[int], float], module: Any, weights: Any, runs: Any, clip_norm: float) -> ClippedSum:
    done = noisy(module, weights, runs, clip_norm)
    return ClippedSum({name: value * by(len(runs)) for name, value in done.total.items()}, done.norms)


def by_place(plan: DpPlan, names: Any, coins: np.random.Generator) -> dict[str, np.random.Generator]:
    streams = {name: np.random.default_rng(int(coins.integers(2**62))) for name in sorted(names)}
    return {name: rng for name, rng in streams.items() if rng.random() < plan.mechanism.unit_rate}


def loud(model: Any, pages: Any, local: LocalPlan, *, client: str, rng: Any, called: str, notes: list[str]) -> None:
    try:
        train_in_place(model, pages, local, client=client, rng=rng)
    except Exception as error:
        raise ValueError(f"{called}: {error}") from error


def every_document(asked: client.Asked) -> Any:
    scores = party.evaluate(asked.party, asked.model, asked.weights())
    columns = {name: [float(getattr(s, name)) for s in scores] for name in client.SCORE_NUMBERS}
    return client.RecordDict({"metrics": client.metric_record(columns)})


def doubled(found: Party, model: Any, weights: Any, federation: Federation, **_: Any) -> SiloScore:
    """Scores are summed over questions, not over each unit's mean."""
    scores: tuple[DocumentScore, ...] = party.evaluate(found, model, weights)
    return SiloScore("", sum(s.anls for s in scores), float(sum(s.questions for s in scores)), 0.0)


def counted(found: Party, model: Any, federation: Federation) -> party.Introduction:
    return party.Introduction(found.name, found.source, len(found.training), len(found.kept), "")


def refused_if_few(*args: Any, **options: Any) -> Any:
    units = units_of(args[0], args[1], client=options["client"])
    if len(units) < 2:
        raise rounds.PrivacyError(f"it has {len(units)} units, fewer than M")
    return units


PLANTED: dict[str, tuple[Patch, dict[str, Any]]] = {
    "the old draw of the kept": (lambda p: p.setattr(client, "open_party", redrawn), {"holdout": 0.3}),
    "a cap over the list": (lambda p: p.setattr(client, "open_party", capped), {}),
    "batches over units": (lambda p: p.setattr(rounds, "units_of", in_batches), {"providers": 4}),
    "a unit per spelling": (unjoined, {}),
    "weights by count": (lambda p: p.setattr(rounds, "clipped_sum", partial(scaled, lambda n: n)), {"providers": 4}),
    "the drawn number as denominator": (
        lambda p: p.setattr(rounds, "clipped_sum", partial(scaled, lambda n: 8 / max(n, 1))), {"denominator": 8}),
    "coins by place": (lambda p: p.setattr(DpPlan, "draw_units", by_place), {"unit_rate": 0.6, "providers": 6}),
    "an error that names a provider": (lambda p: p.setattr(rounds, "_train_on", loud), {"faults": True}),
    "a refusal by count": (lambda p: p.setattr(rounds, "units_of", refused_if_few), {"providers": 2}),
    "exact scores by document": (lambda p: p.setattr(client, "evaluated", every_document), {"holdout": 0.6}),
    "scores by question": (lambda p: p.setattr(client, "evaluate_privately", doubled), {"holdout": 0.6}),
    "counts at the meeting": (lambda p: p.setattr(client, "introduce", counted), {}),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, fixed = PLANTED[fault]
    local = LocalPlan(epochs=1, batch_size=2, learning_rate=0.5, optimiser="sgd", dropout=False)
    options = {"unit": Unit.PROVIDER, "providers": 3, "silos": 1, "unit_rate": 1.0, "holdout": 0.0, "local": local,
               "faults": False, "clip_norm": 1e-3, **fixed}  # fmt: skip
    cases = [random_case(np.random.default_rng(seed), **options) for seed in range(8)]
    assert examined(cases[0]).ratio <= 1 + ROUNDING, "nothing is planted yet"
    plant(monkeypatch)
    assert any(examined(case).ratio > 1.05 for case in cases)


def test_units_enough_were_taken_away(record_property: Callable[[str, object], None]) -> None:
    """Last: tops up what hypothesis left, and states the greatest ratio."""
    rng = np.random.default_rng(1)
    while TALLY.removals < ENOUGH:
        TALLY.add(examined(random_case(rng)))
    record_property("removals", TALLY.removals)
    record_property("largest ratio to the accounted bound", TALLY.ratio)
    print(f"\n{TALLY.removals} units taken away; greatest move over what was accounted: sums {TALLY.sums:.7f}, "
          f"scores {TALLY.scores:.7f}, other {len(TALLY.other)}")  # fmt: skip
    assert TALLY.ratio <= 1 + 1e-4 and TALLY.ratio > 0.999, "no removal came near the bound"
    assert TALLY.scores > 0.999 and math.sqrt(2) == SENSITIVITY
