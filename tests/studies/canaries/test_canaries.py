"""The one-run audit on real private trainings: below the claim, above 0 without noise, and it finds planted bugs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from docleak.attacks.weights.canaries import (
    CanaryView,
    Weights,
    dirac_scores,
    loss_scores,
    move_weight,
    own_differences,
    quiet_places,
    weight_scores,
)
from docleak.documents.page import Page
from docleak.errors import AttackError, ContradictionError, PrivacyError
from docleak.models import load_model
from docleak.models.base import DocumentModel
from docleak.privacy.accounting import guarantee
from docleak.privacy.empirical import Guesses, from_one_run, lower_bound, right_guesses
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.privacy.tradeoff import Gaussian
from docleak.recipes import find_recipe
from docleak.recipes.rehearsal import _whole
from docleak.recipes.rows import rows_of, write_table
from docleak.report.page import joined
from docleak.report.policy import Outcome, Policy, Rule, check
from docleak.report.severity import Severity
from docleak.studies.canaries import audit as canaries
from docleak.studies.canaries.audit import Bench, CanaryAudit, audit_canaries, release
from docleak.studies.canaries.config import WITHOUT_NOISE, CanaryConfig
from docleak.studies.canaries.study import CanaryStudy, _part
from docleak.studies.engine import carry_out
from docleak.training.federated.local import train_in_place

SMALL = CanaryConfig(canaries=24, others=2, guesses=16, questions=1)


@pytest.fixture(scope="module")
def model() -> DocumentModel:
    return load_model("vt5-start")


@pytest.fixture(scope="module")
def bench(model: DocumentModel) -> Bench:
    return Bench.of(model, SMALL)


@pytest.fixture(scope="module")
def bare_audit(bench: Bench) -> CanaryAudit:
    """Of a training without noise, seed 0."""
    return audit_canaries(bench, SMALL, SMALL.plan(0.0), seed=0)


def test_the_bound_never_exceeds_the_claim_and_no_noise_is_seen(bench: Bench, bare_audit: CanaryAudit) -> None:
    """14 trainings. With epsilon 0.5, no more than 13 of 16 guesses may be right: there the claim could be broken."""
    seen: dict[float, list[int]] = {}
    for epsilon in (8.0, 2.0, 0.5):
        plan = SMALL.plan_for(epsilon)
        for seed in range(4):
            audit = audit_canaries(bench, SMALL, plan, seed=seed)
            audit.check()
            assert all(0 <= bound.epsilon <= audit.upper.epsilon <= epsilon for bound in audit.lower.values())
            seen.setdefault(epsilon, []).append(audit.right["weights"])
    assert np.mean(seen[8.0]) > np.mean(seen[0.5]) + 2, "more noise must hide more"
    told = 0
    for bare in (bare_audit, audit_canaries(bench, SMALL, SMALL.plan(0.0), seed=1)):
        bare.check()
        assert bare.right["weights"] == 16 and bare.lower["weights"].epsilon > 1.3
        assert bare.as_json()["epsilon_claimed"] is None and np.isinf(bare.upper.epsilon)
        told += bare.right["loss"]
    assert told > 22, "of 32; chance gives 16"


def test_too_little_noise_contradicts_the_claim(bench: Bench) -> None:
    """A share of the noise that is lost: an 18th of it is there. Half of it lost is too little for so few canaries."""
    claimed = SMALL.plan(8.0)
    with pytest.raises(ContradictionError, match="contradicts the accounting"):
        audit_canaries(bench, SMALL, claimed, seed=0, trained_by=SMALL.plan(0.45)).check()
    audit_canaries(bench, SMALL, claimed, seed=0, trained_by=SMALL.plan(4.0)).check()


def test_a_difference_that_is_not_clipped_contradicts_the_claim(model: DocumentModel) -> None:
    """The noise is that of C, and differences are some forty times as long."""
    config = replace(SMALL, clip_norm=0.02)
    claimed = config.plan(8.0)
    loose = 10.0
    unclipped = DpPlan(
        replace(claimed.mechanism, noise_multiplier=8.0 * 0.02 / loose), loose, claimed.denominator, claimed.delta
    )
    bench = Bench.of(model, config)
    assert np.linalg.norm(bench.differences, axis=1) == pytest.approx(np.full(24, 0.02), rel=1e-4)
    with pytest.raises(ContradictionError, match="not clipped"):
        audit_canaries(bench, config, claimed, seed=0, trained_by=unclipped).check()


def test_a_provider_who_counts_as_several_contradicts_the_claim(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: each page of a provider is a unit of its own, though the claim is per provider; canaries have 12."""
    copied = replace(bench, canaries=tuple(pages * 12 for pages in bench.canaries))

    def by_page(bench: Bench, pages: Sequence[Page], *rest: Any, **options: Any) -> Any:
        return release(bench, [replace(p, provider=f"{p.provider} {i}") for i, p in enumerate(pages)], *rest, **options)

    monkeypatch.setattr(canaries, "release", by_page)
    with pytest.raises(ContradictionError):
        audit_canaries(copied, SMALL, SMALL.plan(8.0), seed=0).check()


@pytest.mark.parametrize(
    ("noise", "kept", "canaries", "seen"),
    [
        (1.0, 2, 1000, False), (1.0, 4, 96, False), (1.0, 4, 1000, True), (1.0, 8, 1000, True),
        (2.0, 2, 1000, False), (2.0, 2, 10_000, True), (2.0, 4, 48, False), (2.0, 4, 1000, True), (2.0, 8, 48, True),
        (4.0, 2, 1000, False), (4.0, 2, 10_000, True), (4.0, 4, 96, False), (4.0, 4, 1000, True), (4.0, 8, 48, True),
        (8.0, 2, 10_000, False), (8.0, 4, 96, False), (8.0, 4, 1000, True), (8.0, 8, 48, False), (8.0, 8, 96, True),
    ],
)  # fmt: skip
def test_how_much_lost_noise_is_seen(noise: float, kept: int, canaries: int, seen: bool) -> None:
    """The table of docs/privacy.md: ideal canaries, the best of four numbers of guesses, the mean of 20 runs."""
    claimed = guarantee(Mechanism(noise, 1), SMALL.delta).epsilon
    rng = np.random.default_rng(0)
    best = 0.0
    for share in (2 / 3, 0.3, 0.1, 0.02):
        guesses = max(int(canaries * share) // 2 * 2, 2)
        epsilons = []
        for _ in range(20):
            coins = rng.random(canaries) < 0.5
            scores = coins + noise / kept * rng.normal(size=canaries)
            right = right_guesses(scores, coins, guesses // 2, guesses // 2, rng=rng)
            epsilons.append(from_one_run(canaries, guesses, right, SMALL.delta, confidence=0.975).epsilon)
        best = max(best, float(np.mean(epsilons)))
    assert (best > claimed) == seen, (best, claimed)


def moved_by(bench: Bench, change: NDArray[np.float32]) -> Weights:
    """The start's weights and the change (d,), parameters sorted by name."""
    after, at = {}, 0
    for name in sorted(bench.start):
        size = bench.start[name].size
        after[name] = bench.start[name] + change[at : at + size].reshape(bench.start[name].shape)
        at += size
    return after


def test_the_decoder_gives_the_coins_back_exactly(bench: Bench) -> None:
    """Without noise and others the estimate is the coin; a plain inner product is not."""
    rng = np.random.default_rng(0)
    coins = rng.random(24) < 0.5
    after = moved_by(bench, coins.astype(np.float32) @ bench.differences)
    view = CanaryView(bench.canaries, (bench.start, after), 1, SMALL.local, SMALL.clip_norm, 1, 0.0)
    scores = weight_scores(bench.model, view, at_start=bench.differences)
    np.testing.assert_allclose(scores + 0.5, coins, atol=0.01)
    assert "does not know the coins" in view.text


def test_what_is_computed_beforehand_changes_no_score(bench: Bench) -> None:
    """The start's losses and differences are the start's alone: later models' are their own."""
    plan = SMALL.plan(0.0)
    models = release(bench, [pages[0] for pages in bench.canaries[:3]], plan, SMALL.local, seed=5)
    shifted = moved_by(bench, np.random.default_rng(0).normal(size=bench.differences.shape[1]).astype(np.float32) / 300)
    view = CanaryView(bench.canaries[:4], (models[0], shifted, models[-1]), 1, SMALL.local, SMALL.clip_norm, 1, 0.0)
    known = loss_scores(bench.model, view, at_start=bench.losses[:4])
    np.testing.assert_allclose(loss_scores(bench.model, view), known, rtol=1e-6)
    assert np.abs(known).max() > 1e-3
    for_start = weight_scores(bench.model, view, at_start=bench.differences[:4])
    np.testing.assert_allclose(weight_scores(bench.model, view), for_start, rtol=1e-5)


def test_the_decoder_does_not_depend_on_the_scale(bench: Bench) -> None:
    """Clipped to a thousandth, everything is a thousandth as long; of two canaries that are alike, each is half."""
    alike = np.vstack([bench.differences[:5], bench.differences[4:5]])
    coins = np.array([0, 1, 1, 0, 1, 1], dtype=np.float32)
    for scale in (1.0, 1e-3):
        zero = {name: np.zeros_like(value) for name, value in bench.start.items()}
        flat = moved_by(replace(bench, start=zero), scale * (coins @ alike))
        view = CanaryView(bench.canaries[:6], (zero, flat), 1, SMALL.local, SMALL.clip_norm, 1, 0.0)
        scores = weight_scores(bench.model, view, at_start=scale * alike)
        np.testing.assert_allclose(scores + 0.5, coins, atol=0.01)


def test_the_best_bound_is_the_highest(bare_audit: CanaryAudit) -> None:
    low, high = (from_one_run(24, 16, right, SMALL.delta, confidence=0.975) for right in (12, 16))
    for lower in ({"a": low, "b": high}, {"a": high, "b": low}):
        assert replace(bare_audit, lower=lower).as_json()["epsilon_at_least"] == high.epsilon > low.epsilon


def test_differences_are_what_the_round_sums(bench: Bench) -> None:
    """The model moves by the sum of the differences of whoever was in, over M."""
    plan = SMALL.plan(0.0)
    inside = [bench.canaries[i][0] for i in (3, 7, 11)]
    start, end = release(bench, inside, plan, SMALL.local, seed=5)
    moved = np.concatenate([(end[name] - start[name]).ravel() for name in sorted(start)])
    np.testing.assert_allclose(moved * plan.denominator, bench.differences[[3, 7, 11]].sum(0), atol=2e-6)


def test_every_round_is_read_from_its_own_weights(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds with a rate: the decoder of all models is right about no fewer than that of the last."""
    trainings: list[list[Weights]] = []

    def once(*about: Any, **options: Any) -> list[Weights]:  # plan, pages and seed are the same for both audits
        trainings.extend([] if trainings else [release(*about, **options)])
        return trainings[0]

    monkeypatch.setattr(canaries, "release", once)
    config = replace(SMALL, rounds=2, every_round=True)
    audit = audit_canaries(bench, config, config.plan(0.0), seed=1)
    assert audit.right["weights"] == 16 and "after every round" in audit.threat
    last = audit_canaries(bench, replace(config, every_round=False), config.plan(0.0), seed=1)
    assert last.right["weights"] <= 16 and "the final model" in last.threat
    again = own_differences(bench.model, bench.canaries[:1], config.local, config.clip_norm, bench.start)
    np.testing.assert_array_equal(again[0], bench.differences[0])


def test_bad_input_is_refused(bench: Bench) -> None:
    for wrong in ({"canaries": 1}, {"guesses": 25}, {"others": 0}, {"canaries": 600}, {"confidence": 1.0}):
        with pytest.raises(PrivacyError, match="expected"):
            replace(SMALL, **wrong)  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="1 released models and 24 canaries"):
        CanaryView(bench.canaries, (bench.start,), 1, SMALL.local, 0.5, 1, 0.0)


def test_two_scores_share_the_error(bare_audit: CanaryAudit) -> None:
    """Each bound fails with half of 5 %, so that both hold with 95 %; and each is that of its guesses."""
    assert len(bare_audit.lower) == 2
    for name, bound in bare_audit.lower.items():
        assert bound.confidence == pytest.approx(0.975)
        seen = Guesses(SMALL.canaries, SMALL.guesses, bare_audit.right[name])
        assert bound == lower_bound(seen, SMALL.delta, confidence=bound.confidence, family=Gaussian())
        anything = bare_audit.also[f"{name}, any mechanism"]
        assert anything == lower_bound(seen, SMALL.delta, confidence=bound.confidence)
        alone = from_one_run(*astuple(seen), SMALL.delta, confidence=bound.confidence)
        assert alone.epsilon <= anything.epsilon <= bound.epsilon


def test_the_higher_of_two_bounds_has_the_confidence_of_both(bare_audit: CanaryAudit) -> None:
    assert bare_audit.best.confidence == pytest.approx(0.95) and "0.95 confidence" in bare_audit.best.sentence()
    contradicted = replace(bare_audit, upper=guarantee(Mechanism(50.0, 1), SMALL.delta))
    with pytest.raises(ContradictionError, match=r"chance does that in 0\.05 of audits"):
        contradicted.check()


def test_a_run_says_what_both_trainings_show_and_fails_where_a_claim_is_contradicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = CanaryStudy(replace(SMALL, canaries=12, guesses=8))
    run = carry_out(study, tmp_path / "run")
    reading = CanaryStudy.read([run], np.random.default_rng(0))
    assert [row.name for row in reading.tables["canaries"].rows] == [
        f"{name}, by {score}{how}"
        for name in (WITHOUT_NOISE, "epsilon 8")
        for how in ("", ", any mechanism")
        for score in ("loss", "weights")
    ]
    (part,) = reading.parts
    assert part.name == "training with epsilon 8" and part.severity in ("partial", "none")
    assert any("Training without noise" in line for line in reading.lines)
    for said in (
        " (the higher of 2 bounds): epsilon at least",
        " 0.95 confidence",
        "by one run",
        "of 8 guesses right about 12 canaries",
        "The adversary sees the final",
    ):
        assert said in part.sentence, said
    assert set(study.numbers(run)) == {"canaries", "guesses", "right", "any", "measured", "claimed"}
    assert "not finished" not in joined([reading]).sentence
    claimed = guarantee(Mechanism(50.0, 1), SMALL.delta)
    monkeypatch.setattr(DpPlan, "guarantee", lambda self: claimed)
    with pytest.raises(ContradictionError, match="contradicts the accounting"):
        study.finish(run, print)
    (run.folder(WITHOUT_NOISE) / "unit.json").unlink()
    half = CanaryStudy.read([run], np.random.default_rng(0))
    assert "The run is not finished: 1 of 2 trainings." in joined([half]).sentence


# -- canaries that send a difference of their own making

DIRAC = replace(SMALL, canary="dirac", canaries=200, guesses=60)


@pytest.fixture(scope="module")
def dirac(model: DocumentModel) -> Bench:
    return Bench.of(model, DIRAC)


def test_weights_of_their_own_tell_half_of_the_claim(dirac: Bench) -> None:
    """Where the same page's canaries tell an eighth; clipping has cut what was ten times too long."""
    bare = audit_canaries(dirac, DIRAC, DIRAC.plan(0.0), seed=0)
    assert bare.right == {"dirac": 60} and set(bare.also) == {"dirac, any mechanism"}
    plan = DIRAC.plan_for(8.0)
    audit = audit_canaries(dirac, DIRAC, plan, seed=0)
    audit.check()
    fitted, anything = audit.also["dirac, fitted"], audit.also["dirac, any mechanism"]
    assert 1 < anything.epsilon < audit.best.epsilon < fitted.epsilon < audit.upper.epsilon
    assert audit.best.epsilon > 2.5 and fitted.epsilon > 4
    assert "chose what every canary provider sends" in audit.threat and "knows every" not in audit.threat


def test_half_of_the_noise_is_seen_by_a_fit_alone(dirac: Bench) -> None:
    """What pages' canaries need 10,000 of, in docs/privacy.md; here the claim's own curve is not refuted yet."""
    claimed = DIRAC.plan(2.0)
    audit = audit_canaries(dirac, DIRAC, claimed, seed=0, trained_by=DIRAC.plan(1.0))
    audit.check()
    assert audit.also["dirac, fitted"].epsilon > audit.upper.epsilon


def test_no_headline_is_milder_than_a_row_beneath(tmp_path: Path) -> None:
    """Four guesses can show nothing; a fit to the same scores is above the claim."""
    run = carry_out(CanaryStudy(replace(DIRAC, canaries=20, others=1, guesses=4, epsilon=1.0)), tmp_path / "run")
    reading = CanaryStudy.read([run], np.random.default_rng(0))
    (part,) = reading.parts
    record = next(record for record in run.units() if record["training"] != WITHOUT_NOISE)
    assert record["also"]["dirac, fitted"]["epsilon"] > record["epsilon_claimed"] and record["most"] == 0
    assert part.severity is Severity.UNTOLD and part.label == "Could not tell: a fit is above the claim"
    assert part.sentence.startswith(
        "By guesses nothing is shown (4 guesses could show 0 at most). By a fit that assumes independent normal scores "
        "epsilon is at least 1.1"
    )
    assert "above the claim of 1: repeat with more canaries." in part.sentence
    (one,) = check(Policy(rule=(Rule(measure="epsilon-measured", at_most=1.0),)), reading.measures, joined([reading]))
    assert one.outcome is Outcome.UNTOLD and "by so few guesses" in one.why

    def said(fitted: float, powerless: bool = False, **changed: Any) -> tuple[Severity, str]:
        also = {"dirac, fitted": {**record["also"]["dirac, fitted"], "epsilon": fitted}}
        part = _part("epsilon 1", {**record, "also": also, **changed}, 4, powerless=powerless)
        assert ("show nothing, either" in part.sentence) == (powerless and not fitted)
        return part.severity, part.label

    assert said(0.5) == (Severity.PARTIAL, "Shows by a fit, within its claim")
    assert said(0.0) == (Severity.UNTOLD, "Could not tell: too few guesses")
    assert said(0.0, most=0.7) == (Severity.NONE, "Nothing shown")
    assert said(0.0, True, most=0.7) == (Severity.UNTOLD, "Could not tell whether these guesses see anything")
    assert said(0.5, True, most=0.7) == (Severity.PARTIAL, "Shows by a fit, within its claim")
    assert said(0.5, most=0.7, epsilon_at_least=0.2) == (Severity.PARTIAL, "Shows, within its claim")
    assert said(1.5, most=0.7, epsilon_at_least=0.2)[0] is Severity.UNTOLD
    assert said(1.5, most=2.0, epsilon_at_least=1.2) == (Severity.SEVERE, "More than it claims")


def test_guesses_that_see_nothing_without_noise_say_nothing_of_noise(tmp_path: Path) -> None:
    """As of a training whose rate is nearly zero: a gate cannot tell, however much the guesses could have shown."""
    run = carry_out(CanaryStudy(replace(DIRAC, canaries=20, others=1, guesses=20, epsilon=1.0)), tmp_path / "run")
    rule = Rule(measure="epsilon-measured", at_most=1.0)

    def gate() -> Outcome:
        reading = CanaryStudy.read([run], np.random.default_rng(0))
        (one,) = check(Policy(rule=(rule,)), reading.measures, joined([reading]))
        return one.outcome

    files = {json.loads(file.read_text())["training"]: file for file in run.path.glob("units/*/unit.json")}
    for file in files.values():
        kept = json.loads(file.read_text())
        kept |= {"epsilon_at_least": 0.0, "most": 3.0}
        for bound in (*kept["lower"].values(), *kept["also"].values()):
            bound["epsilon"] = 0.0
        file.write_text(json.dumps(kept))
    assert gate() is Outcome.UNTOLD
    control = files[WITHOUT_NOISE]
    control.write_text(json.dumps({**json.loads(control.read_text()), "epsilon_at_least": 1.5}))
    assert gate() is Outcome.PASS


def test_a_move_that_is_not_clipped_contradicts_the_claim(dirac: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docleak.training.private.clipping.MARGIN", -1e9)  # as if every length were below C
    with pytest.raises(ContradictionError, match="not clipped"):
        audit_canaries(dirac, DIRAC, DIRAC.plan(4.0), seed=0).check()


def test_each_canary_moves_its_own_weight_by_c(dirac: Bench) -> None:
    assert dirac.places is not None and len(set(dirac.places.tolist())) == 200
    moved = np.abs(dirac.differences).sum(0)
    assert moved[dirac.places].max() <= np.partition(moved, 200)[200]
    names = [pages[0].provider for pages in dirac.canaries[:3]]
    instead = {name: partial(move_weight, place=int(at), by=9.0) for name, at in zip(names, dirac.places, strict=False)}
    pages = [page for pages in dirac.canaries[:2] for page in pages]
    released = release(dirac, pages, DIRAC.plan(0.0), DIRAC.local, seed=1, instead=instead)
    view = CanaryView(dirac.canaries, released, 1, DIRAC.local, DIRAC.clip_norm, 2, 0.0, dirac.places)
    np.testing.assert_allclose(dirac_scores(view)[:4], [1, 1, 0, 0], atol=1e-4)
    with pytest.raises(AttackError, match="expected dirac canaries"):
        dirac_scores(replace(view, places=None))
    with pytest.raises(AttackError, match="one weight for each"):
        quiet_places(dirac.differences[:, :9], 10, rng=np.random.default_rng(0))
    with pytest.raises(AttackError, match="beyond the model's last"):
        move_weight(dirac.model, dirac.differences.shape[1], 1.0)


@pytest.mark.parametrize("seed", range(40))
def test_the_weights_moved_least_are_those_that_sorting_all_of_them_would_put_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 60))
    count, differences = int(rng.integers(1, size + 1)), rng.integers(-2, 3, (2, size)).astype(np.float32)
    ordered = np.lexsort((np.random.default_rng(seed).random(size), np.abs(differences).sum(0)))
    places = quiet_places(differences, count, rng=np.random.default_rng(seed))
    assert places.tolist() == ordered[:count].tolist()


def test_the_number_of_guesses_follows_from_the_claim_and_the_kind() -> None:
    of = CanaryStudy.of_options
    assert (of({}, {}).canaries, of({}, {}).guesses) == (96, 64)
    assert of({"canaries": 18}, {}).guesses == 12
    many, fewer = of({"canary": "dirac"}, {}), of({"canary": "dirac", "epsilon": 1.0}, {})
    assert many.canaries == 1000 and 100 <= many.guesses <= 400 and fewer.guesses >= many.guesses
    assert of({"canary": "dirac", "guesses": 30}, {}).guesses == 30
    with pytest.raises(PrivacyError, match="expected page or dirac"):
        of({"canary": "gradient"}, {})


@pytest.mark.parametrize(
    "config",
    [
        replace(SMALL, canaries=4, guesses=2, rounds=2),
        replace(SMALL, canaries=4, guesses=2, rounds=2, every_round=True),
        replace(SMALL, canaries=6, guesses=2, rounds=3, canary="dirac"),
    ],
    ids=["page", "page, every round", "dirac"],
)
def test_an_estimate_counts_the_trainings_of_providers(
    config: CanaryConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = 0

    def counting(*given: Any, **more: Any) -> Any:
        nonlocal counted
        counted += 1
        return train_in_place(*given, **more)

    for module in ("docleak.training.private.rounds", "docleak.attacks.weights.canaries"):
        monkeypatch.setattr(f"{module}.train_in_place", counting)
    study = CanaryStudy(config)
    run = carry_out(study, tmp_path)
    coins = [record["included"] - config.canaries // 2 for record in run.units()]
    by_chance = config.rounds * sum(coins) if config.canary == "page" else 0
    assert counted == study.work()["trainings of a provider"] + by_chance
    least = study.least().config
    done = [study.done(unit, run, 5.0)["trainings of a provider"] for unit in study.units()]
    assert least.rounds == 1 and sum(one.count for one in done) == least.provider_trainings < done[0].of
    assert _whole(done) == pytest.approx(10.0 * done[0].of / least.provider_trainings)


@pytest.mark.parametrize("name", ["dirac, epsilon 8", "dirac, epsilon 8, 3 rounds", "dirac, epsilon 1"])
def test_a_rehearsal_has_canaries_enough_to_fit_a_curve_to(name: str, tmp_path: Path) -> None:
    recipe = find_recipe("pfl-docvqa/canaries")
    rows = [row for row in rows_of(recipe, recipe.study, "tiny", tmp_path / "rows", {}) if row.name == name]
    run = carry_out(rows[0].study.least(), tmp_path / "least")
    assert len(run.units()) == 2


def test_the_table_says_the_confidence_that_was_used(tmp_path: Path) -> None:
    recipe = find_recipe("pfl-docvqa/canaries")
    rows = rows_of(recipe, recipe.study, "tiny", tmp_path / "rows", {})
    assert "with 0.95 confidence (0.975 for each of two scores)" in CanaryStudy.footnote_of(rows)
    surer = [replace(row, study=CanaryStudy(replace(row.study.config, confidence=0.99))) for row in rows]
    assert "with 0.99 confidence (0.995 for each of two scores)" in CanaryStudy.footnote_of(surer)
    page = write_table(recipe, "tiny", surer, tmp_path / "rows", {}).read_text("utf-8")
    assert "with 0.99 confidence" in page and "95 %" not in page
