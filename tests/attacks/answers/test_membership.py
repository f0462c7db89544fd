"""Attacks on providers: found where they differ, not where they do not, and blind to labels they were not told."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from scipy import special
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture

from docleak.attacks.answers.features import GROUPS, FeatureTable
from docleak.attacks.answers.membership import (
    ApkConfig,
    AzkConfig,
    Clusterer,
    Guess,
    apk,
    azk,
    cls1,
    cls2,
    hard_vote,
)
from docleak.errors import AttackError
from docleak.metrics.membership import draw_known, membership_rates

COLUMNS = tuple(name for group in GROUPS.values() for name in group)
#: How much a member's feature differs, in standard deviations: it is answered better, and changed by the training.
RISE = {"accuracy": 1, "nls": 1, "loss": -1, "confidence": 1, "delta_loss": 1, "delta_confidence": 1,
        "nls_memory": 1, "delta_nls_memory": 1}  # fmt: skip
EVERY = ("G1", "G2", "G3", "G4")


def world(separation: float, seed: int, members: int = 60, others: int = 70) -> tuple[FeatureTable, dict[str, bool]]:
    """Providers in a mixed order, with normal features around 0.5 that differ by ``separation``."""
    rng = np.random.default_rng(seed)
    is_member = rng.permutation(np.arange(members + others) < members)
    names = tuple(f"p{i:03}" for i in range(len(is_member)))
    noise = rng.normal(size=(len(names), len(COLUMNS)))
    rises = np.array([RISE[column] for column in COLUMNS])
    values = 0.5 + 0.05 * (noise + separation * rises * is_member[:, None])
    table = FeatureTable(names, COLUMNS, values, np.full(len(names), 8))
    return table, dict(zip(names, is_member.tolist(), strict=True))


ATTACKS = {
    "azk": lambda table, known, seed: azk(table, seed=seed),
    "azk-mixture": lambda table, known, seed: azk(
        table, AzkConfig(("G1", "G2"), Clusterer.GAUSSIAN_MIXTURE, standardise=True), seed=seed
    ),
    "apk": lambda table, known, seed: apk(table, known, ApkConfig(trees=50), seed=seed),
    "apk-search": lambda table, known, seed: apk(table, known, ApkConfig(EVERY, search=1, folds=2), seed=seed),
    "cls2": lambda table, known, seed: cls2(table, seed=seed),
}


def measured(name: str, separation: float, seed: int = 0) -> tuple[Guess, np.ndarray]:
    table, truth = world(separation, seed)
    drawn = draw_known(truth, 0.3, rng=np.random.default_rng(seed))
    guess = ATTACKS[name](table, drawn.known, seed).of(drawn.evaluated)
    return guess, np.array([truth[provider] for provider in guess.providers])


@pytest.mark.parametrize("name", ATTACKS)
def test_well_separated_members_are_found_with_the_right_sign(name: str) -> None:
    guess, members = measured(name, 6.0)
    assert guess.scores.dtype == np.float64 and guess.members.dtype == bool
    assert roc_auc_score(members, guess.scores) > 0.99
    assert (guess.members == members).mean() > 0.97


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "apk-search"])  # it is slow, and apk after all
def test_exchangeable_members_are_not_found(name: str) -> None:
    """Over ten worlds without any difference, intervals of the AUC hold 1/2 and accuracies do not lean."""
    held, accuracies = 0, []
    for seed in range(10):
        guess, members = measured(name, 0.0, seed)
        rates = membership_rates(guess.scores, guess.members, members, rng=np.random.default_rng(0), resamples=300)
        held += rates["auc"].low <= 0.5 <= rates["auc"].high
        accuracies.append(rates["balanced_accuracy"].value)
    assert held >= 8
    assert abs(np.mean(accuracies) - 0.5) < 0.06


@pytest.mark.parametrize("name", ["azk", "apk"])
def test_a_leak_vanishes_when_the_labels_are_shuffled(name: str) -> None:
    """The control: the same features and guesses of a leak that is found, held against labels that mean nothing."""
    table, truth = world(3.0, 1)
    rng = np.random.default_rng(1)
    accuracies = []
    for seed in range(10):
        shuffled = dict(zip(truth, rng.permutation(list(truth.values())).tolist(), strict=True))
        drawn = draw_known(shuffled, 0.3, rng=rng)
        guess = ATTACKS[name](table, drawn.known, seed).of(drawn.evaluated)
        accuracies.append(np.mean(guess.members == np.array([shuffled[p] for p in guess.providers])))
    assert abs(np.mean(accuracies) - 0.5) < 0.06
    guess, members = measured(name, 3.0, 1)
    assert (guess.members == members).mean() > 0.85


@pytest.mark.parametrize("name", ATTACKS)
def test_a_seed_repeats_its_guess_and_the_order_of_what_is_known_does_not_matter(name: str) -> None:
    table, truth = world(0.7, 2)
    known = draw_known(truth, 0.3, rng=np.random.default_rng(0)).known
    first = ATTACKS[name](table, known, 7)
    again = ATTACKS[name](table, dict(reversed(known.items())), 7)
    assert first.providers == again.providers
    assert np.array_equal(first.scores, again.scores) and np.array_equal(first.members, again.members)
    if name.startswith("apk"):
        assert not np.array_equal(first.scores, ATTACKS[name](table, known, 8).scores)


def test_only_apk_takes_labels() -> None:
    """An attack that cannot be given the truth cannot use it."""
    for function in (azk, cls1, cls2, hard_vote):
        assert "known" not in inspect.signature(function).parameters
    table, truth = world(6.0, 3)
    known = draw_known(truth, 0.3, rng=np.random.default_rng(0)).known
    guess = apk(table, known, seed=0)
    assert set(guess.providers) == set(truth) - set(known)
    turned = apk(table, {name: not is_member for name, is_member in known.items()}, seed=0)
    assert roc_auc_score([truth[p] for p in turned.providers], turned.scores) < 0.05, "apk must believe what it is told"


def test_k_means_agrees_with_a_search_over_all_divisions() -> None:
    """On one column, the best two clusters are a cut of the sorted values: try every one."""
    for seed in range(20):
        table, _ = world(1.0, seed, 7, 8)
        values = table.column("delta_nls_memory")
        ordered = np.sort(values)
        costs = [sum(part.var() * len(part) for part in (ordered[:cut], ordered[cut:])) for cut in range(1, 15)]
        cut = int(np.argmin(costs)) + 1
        guess = cls2(table, AzkConfig(starts=30), seed=0)
        assert guess.members.tolist() == (values >= ordered[cut]).tolist()


def test_the_mixtures_scores_are_log_odds() -> None:
    """Turned into probabilities they are scikit-learn's own, of clusters of unequal size and shape."""
    table, _ = world(3.0, 8, members=30, others=100)
    table.values[:, 1] += 3 * (table.values[:, 0] - 0.5)
    features = table.select(["G1"])
    guess = azk(table, AzkConfig(clusterer=Clusterer.GAUSSIAN_MIXTURE), seed=3)
    mixture = GaussianMixture(2, n_init=10, max_iter=300, random_state=3).fit(features)
    higher = int(np.argmax(mixture.means_[:, 0]))
    assert special.expit(guess.scores) == pytest.approx(mixture.predict_proba(features)[:, higher], abs=1e-6)
    assert np.array_equal(guess.members, mixture.predict(features) == higher)


@pytest.mark.parametrize("clusterer", Clusterer)
def test_members_are_the_cluster_with_the_higher_accuracy_or_then_nls(clusterer: Clusterer) -> None:
    low, high = np.full(10, 0.2), np.full(10, 0.8)
    mixed = np.concatenate([low, high]) + np.linspace(-0.01, 0.01, 20)
    for columns in ({"accuracy": mixed, "nls": 1 - mixed}, {"accuracy": np.full(20, 0.3), "nls": mixed}):
        table = FeatureTable(
            tuple(map(str, range(20))), tuple(columns), np.stack(list(columns.values()), axis=1), np.ones(20, int)
        )
        for seed in range(5):
            guess = azk(table, AzkConfig(clusterer=clusterer), seed=seed)
            assert guess.members.tolist() == [False] * 10 + [True] * 10


@pytest.mark.parametrize("clusterer", Clusterer)
def test_providers_that_are_all_alike_get_one_score_and_no_suspicion(clusterer: Clusterer) -> None:
    table = FeatureTable(("a", "b", "c"), COLUMNS, np.full((3, len(COLUMNS)), 0.25), np.ones(3, int))
    for guess in (azk(table, AzkConfig(clusterer=clusterer), seed=0), cls2(table, seed=0)):
        assert len(set(guess.scores.tolist())) == 1
        assert not guess.members.any()


def test_standardising_lets_a_small_column_count() -> None:
    """The loss in hundreds hides accuracy from plain k-means, as the authors' code leaves it."""
    table, truth = world(6.0, 4)
    values = table.values.copy()
    values[:, COLUMNS.index("loss")] = np.random.default_rng(0).normal(size=len(values)) * 100
    table = FeatureTable(table.providers, COLUMNS, values, table.questions)
    members = np.array(list(truth.values()))
    plain, scaled = (azk(table, AzkConfig(("G1", "G2"), standardise=s), seed=0).members for s in (False, True))
    assert (plain == members).mean() < 0.7
    assert (scaled == members).mean() > 0.97


def test_cls1_is_a_threshold_at_zero() -> None:
    table, _ = world(1.0, 5)
    table.values[:, COLUMNS.index("nls_memory")] = np.maximum(table.column("nls_memory") - 0.5, 0)
    guess = cls1(table)
    assert np.array_equal(guess.members, table.column("nls_memory") > 0)
    assert 0 < guess.members.mean() < 1
    assert np.array_equal(guess.scores, table.column("nls_memory"))


def test_the_vote_is_the_majority() -> None:
    def one(*members: bool) -> Guess:
        return Guess("X", ("a", "b", "c", "d"), np.array(members, float), np.array(members))

    vote = hard_vote([one(True, True, False, False), one(True, False, True, False), one(True, True, False, False)])
    assert vote.members.tolist() == [True, True, False, False]
    assert vote.scores == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert vote.attack == "X+X+X"
    draw = hard_vote([one(True, True, False, False), one(True, False, True, False)])
    assert draw.members.tolist() == [True, False, False, False]
    with pytest.raises(AttackError, match="same providers"):
        hard_vote([one(True, True, False, False), one(True, True, False, False).of(["b", "a", "c", "d"])])
    with pytest.raises(AttackError, match="0 were given"):
        hard_vote([])


def test_table_fours_ensemble_runs_on_the_providers_that_are_left() -> None:
    table, truth = world(2.0, 6)
    drawn = draw_known(truth, rng=np.random.default_rng(0))
    rest = table.of(drawn.evaluated)
    parts = [azk(rest, seed=0), cls1(rest), cls2(rest, seed=0)]
    others = [apk(table, drawn.known, ApkConfig(EVERY), seed=0).of(drawn.evaluated), *parts[1:]]
    members = np.array([truth[name] for name in drawn.evaluated])
    for guesses in (parts, others):
        vote = hard_vote(guesses)
        assert vote.providers == drawn.evaluated
        assert (vote.members == members).mean() > 0.75


def test_what_an_attack_cannot_do_is_refused() -> None:
    table, truth = world(1.0, 7)
    names = table.providers
    members = [name for name in names if truth[name]]
    with pytest.raises(AttackError, match="3 members and 0 non-members; it needs 1 of each"):
        apk(table, dict.fromkeys(members[:3], True), seed=0)
    with pytest.raises(AttackError, match="0 members and 0 non-members"):
        apk(table, {}, seed=0)
    with pytest.raises(AttackError, match="needs 5 of each"):
        apk(table, draw_known(truth, 0.06, rng=np.random.default_rng(0)).known, ApkConfig(search=5), seed=0)
    with pytest.raises(AttackError, match="leave some"):
        apk(table, truth, seed=0)
    with pytest.raises(AttackError, match="no row, such as 'stranger'"):
        apk(table, {"stranger": True, names[0]: False}, seed=0)
    with pytest.raises(AttackError, match="1 providers"):
        azk(table.of(names[:1]), seed=0)
    with pytest.raises(AttackError, match="0 providers"):
        azk(table.more_than(99), seed=0)
    for wrong in ({"trees": 0}, {"search": -1}, {"folds": 1}):
        with pytest.raises(AttackError, match="APK has"):
            ApkConfig(**wrong)
    with pytest.raises(AttackError, match="AZK has 0 starts"):
        AzkConfig(starts=0)
