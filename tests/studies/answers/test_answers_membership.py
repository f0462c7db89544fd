"""Membership over seeds and subsets, ablations, and a measured epsilon: on planted leaks, and where nothing leaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from docleak.attacks.answers.attack import MembershipAttack, ProvidersView, only
from docleak.attacks.answers.documents import Asked, DocumentAttack
from docleak.attacks.answers.features import FeatureTable, Reply, provider_features
from docleak.attacks.answers.membership import Guess
from docleak.attacks.registries import ANSWERS
from docleak.errors import AttackError
from docleak.metrics.estimate import Estimate
from docleak.privacy.empirical import COINS, INDEPENDENT
from docleak.studies.answers.config import AnswersConfig, Release
from docleak.studies.answers.documents import score
from docleak.studies.answers.membership import guessed, measure, measured_epsilon, without_public
from docleak.studies.answers.pictures import accuracy_over_minimum

SEEDS = range(5)


def replies(members: dict[str, bool], leak: float, rng: np.random.Generator, questions: int = 6) -> list[Reply]:
    """Members are answered right oftener, and at a lower loss, by ``leak``."""
    answers = []
    for name, inside in members.items():
        for number in range(questions):
            right = float(rng.random() < 0.4 + leak * inside)
            loss = float(abs(rng.normal(2 - 1.5 * leak * inside, 0.2)))
            answers.append(
                Reply(name, f"{name}-{number // 2}", f"k{number}", right, right, loss, min(1.0, 0.3 + 0.6 * right))
            )
    return answers


def case(leak: float, count: int, seed: int) -> tuple[list[Reply], list[Reply], dict[str, bool]]:
    rng = np.random.default_rng(seed)
    members = {f"p{i:03d}": bool(rng.random() < 0.5) for i in range(count)}
    return replies(members, leak, rng), replies(members, 0.0, rng), members


@pytest.mark.parametrize("name", list(ANSWERS))
def test_a_planted_leak_is_found(name: str) -> None:
    target, public, members = case(0.6, 120, 0)
    memory = {p: (0.5 * inside, 0.6 * inside) for p, inside in members.items()}
    attack = replace(ANSWERS.load(name), searched=0)
    subset = measure(provider_features(target, public, memory), members, attack, 0, seeds=SEEDS)
    right = subset.accuracy
    assert right.value is not None and right.low is not None
    assert right.value > 0.9 and right.low > 0.8 and (subset.rates["auc"] or 0) > 0.9
    assert (subset.providers, subset.members, subset.seeds) == (120, sum(members.values()), 5)
    inside, known = sum(members.values()), 120 - subset.accuracy.n // 5
    assert subset.chance == pytest.approx((max(inside, 120 - inside) - known / 2) / (120 - known))


@pytest.mark.parametrize("name", ["AZK", "APK"])
def test_without_a_leak_chance_is_in_the_interval(name: str) -> None:
    """Balanced and exchangeable: over many data sets the interval holds 1/2 about as often as it says."""
    held = 0
    for seed in range(20):
        target, public, _ = case(0.0, 80, seed)
        members = {f"p{i:03d}": i % 2 == 0 for i in range(80)}
        attack = replace(ANSWERS.load(name), searched=0)
        accuracy = measure(provider_features(target, public), members, attack, 0, seeds=range(2)).accuracy
        assert accuracy.low is not None and accuracy.high is not None
        held += accuracy.low <= 0.5 <= accuracy.high
    assert held >= 16


def test_every_attack_is_evaluated_on_the_providers_that_apk_was_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    target, public, members = case(0.3, 60, 1)
    memory = dict.fromkeys(members, (0.1, 0.2))
    table = provider_features(target, public, memory)
    seen: dict[str, list[tuple[str, ...]]] = {}
    original = MembershipAttack.run

    def noting(self: MembershipAttack, *args: object, **settings: object) -> object:
        guess = original(self, *args, **settings)  # type: ignore[arg-type]
        seen.setdefault(str(self), []).append(guess.providers)
        return guess

    monkeypatch.setattr(MembershipAttack, "run", noting)
    for name in ANSWERS:
        attack = replace(ANSWERS.load(name), known=0.2)
        measure(table, members, attack, 0, seeds=SEEDS)
    assert len(seen) == 4 and len({tuple(draws) for draws in seen.values()}) == 1
    counted = Counter(name for providers in next(iter(seen.values())) for name in providers)
    assert set(Counter(len(p) for p in next(iter(seen.values())))) == {48} and max(counted.values()) == 5


def test_the_interval_counts_providers_not_seeds() -> None:
    """Ten times the seeds bring no more providers: the interval hardly shrinks."""
    target, public, members = case(0.2, 60, 2)
    table = provider_features(target, public)
    few, many = (measure(table, members, MembershipAttack(), 0, seeds=range(n)).accuracy for n in (2, 20))
    widths = [(accuracy.high or 0) - (accuracy.low or 0) for accuracy in (few, many)]
    assert 0.8 < widths[1] / widths[0] < 1.25


def test_subsets_leave_out_providers_with_few_questions_and_say_when_nobody_is_left() -> None:
    target, public, members = case(0.6, 60, 0)
    short = {name for i, name in enumerate(members) if i % 3 == 0}
    kept = [r for r in target if r.provider not in short or r.key in ("k0", "k1")]
    table = provider_features(kept, [r for r in public if r.provider not in short or r.key in ("k0", "k1")])
    attack = MembershipAttack()
    assert measure(table, members, attack, 0, seeds=SEEDS).providers == 60
    assert measure(table, members, attack, 2, seeds=SEEDS).providers == 40
    nobody = measure(table, members, attack, 6, seeds=SEEDS)
    assert nobody.accuracy.value is None and nobody.providers == 0 and "share 0.15" in nobody.accuracy.why


def test_an_ablated_column_tells_nothing() -> None:
    target, public, members = case(0.6, 100, 3)
    table = provider_features(target, public)
    full, without = (measure(t, members, MembershipAttack("apk", ("G1", "G2"), searched=0), 0, seeds=SEEDS)
                     for t in (table, only(table, ["confidence"])))  # fmt: skip
    assert (full.accuracy.value or 0) > 0.95
    ablated = MembershipAttack("apk", ("G1", "G2"), ("confidence",), searched=0)
    assert measure(table, members, ablated, 0, seeds=SEEDS) == without
    noise = FeatureTable(table.providers, table.columns, table.values * 0, table.questions)
    flat = measure(noise, members, MembershipAttack("apk", ("G1", "G2"), searched=0), 0, seeds=SEEDS)
    assert 0.35 < (flat.accuracy.value or 0) < 0.65
    with pytest.raises(AttackError, match="has no colour"):
        only(table, ["colour"])


def test_a_measured_epsilon_grows_with_the_leak_and_is_no_more_than_the_truth_without_one() -> None:
    def bound(leak: float, seed: int, coins: float = 0.5) -> float:
        target, public, members = case(leak, 240, seed)
        return measured_epsilon(target, public, members, coins=coins, delta=1e-5, seed=seed).epsilon

    assert bound(0.6, 0) > 2.5 and bound(0.6, 0, coins=0.0) > 1.5
    nothing = [bound(0.0, seed) > 0 for seed in range(30)]
    assert sum(nothing) <= 5, "5 % of 30 are 1.5; 6 or more happen once in 300"
    target, public, members = case(0.3, 40, 0)
    same = [measured_epsilon(public, public, members, coins=0.5, delta=1e-5, seed=seed).epsilon for seed in range(40)]
    assert same == [0.0] * 40, "a model that was not trained shows nothing, whatever ties are broken to"
    said = measured_epsilon(public, public, members, coins=0.5, delta=1e-5, seed=0).sentence()
    assert "by no guess: the scores of all 40 providers are equal" in said and "Clopper" not in said
    silent = [Reply(r.provider, r.document, r.key, r.accuracy, r.nls) for r in target]
    with pytest.raises(AttackError, match="have no loss"):
        measured_epsilon(silent, public, members, coins=0.5, delta=1e-5, seed=0)


def test_what_each_attack_says_of_every_provider() -> None:
    target, public, members = case(0.5, 40, 4)
    table = provider_features(target, public)
    attacks = [ANSWERS.load(name) for name in ("AZK", "APK")]
    guesses = guessed(table, members, attacks, 0)
    assert list(guesses) == ["AZK", "APK"]
    assert all(len(set(table.providers) - set(guess.providers)) == 6 for guess in guesses.values()), (
        "nobody guesses those that APK was told of"
    )
    assert guessed(provider_features(target[:6]), {target[0].provider: True}, attacks, 0) == {}
    attacks[1] = replace(attacks[1], known=0.5)
    assert [len(table.providers) - len(guess.providers) for guess in guessed(table, members, attacks, 0).values()] == [
        6, 20,
    ], "each attack is told of its own share, not of the first one's"  # fmt: skip
    with pytest.raises(AttackError, match="AZK has no forests"):
        MembershipAttack(searched=3)


def test_who_knows_what() -> None:
    assert [ANSWERS.load(name).setting for name in ANSWERS] == ["ZK + U", "PK + S", "ZK + U", "PK + S"]
    assert without_public(ANSWERS.load("APK")).groups == ("G1", "G2")


@pytest.mark.parametrize("coins", [0.0, 0.3, 0.5, 0.7])
def test_only_fair_coins_make_a_proof(coins: float) -> None:
    target, public, members = case(0.6, 80, 0)
    bound = measured_epsilon(target, public, members, coins=coins, delta=1e-5, seed=0)
    assert (bound.assumes == COINS) is (coins == 0.5)
    assert bound.assumes.startswith(INDEPENDENT) is (coins != 0.5)
    assert ("ranks of them" in bound.evidence) is (coins != 0.5)


@pytest.mark.parametrize(
    ("attacks", "said"),
    [
        (("APK:known=0.1", "APK:known=0.3"), "two attacks on answers are called 'APK'"),
        (("AZK", "AZK"), "two attacks on answers are called 'AZK'"),
        (("AZK:groups=G9",), "groups G9"),
        (("AZK:kind=apkk",), "kind is 'apkk'"),
        (("APK:known=0",), "known is 0.0.*between 0 and 1"),
        (("AZK:columns=acuracy",), "columns acuracy"),
    ],
)
def test_attacks_that_would_be_lost_or_fail_later_are_refused_at_once(attacks: tuple[str, ...], said: str) -> None:
    """Of two attacks of one name the first was lost; a wrong group was "too few providers to attack"."""
    with pytest.raises(AttackError, match=said):
        AnswersConfig((Release("a", "b"),), "x", attacks=attacks)


def test_an_own_attack_that_gives_what_cannot_be_stops_the_measurement() -> None:
    """It was "too few providers to attack", or counted on those that it named."""
    target, public, members = case(0.6, 40, 0)

    class Mine(MembershipAttack):
        def run(self, view: ProvidersView, knowledge: Mapping[str, bool], *, seed: int) -> Guess:
            sure = tuple(name for name in view.providers if members[name])[:3]
            return Guess("mine", sure, np.ones(3), np.ones(3, dtype=bool))

    table = provider_features(target, public)
    for ask in (lambda: measure(table, members, Mine(), 0, seeds=SEEDS), lambda: guessed(table, members, [Mine()], 0)):
        with pytest.raises(AttackError, match="providers are 3, 3 of them of the 34 that were asked about"):
            ask()


def test_a_score_of_documents_that_cannot_be_is_refused_by_name() -> None:
    rows = [Asked(f"d{n}", "total", 0.5, 1.0, 0.1, 2) for n in range(4)]
    for made, said in ((np.array([0.1, np.nan, 0, 1]), "1 of 4 scores are NaN"), ([1.0] * 4, "type list"),
                       (np.ones(3), r"float64 and the shape \(3,\)")):  # fmt: skip
        with pytest.raises(AttackError, match=rf"attack 'mine' returned scores that cannot be: .*{said}"):
            score(DocumentAttack("mine", "a test's", "none", lambda asked, made=made: made), rows)


def test_accuracies_over_numbers_of_questions_are_curves_on_one_axis() -> None:
    sure = {least: Estimate(0.6 + least / 100, 0.5, 0.7, 40) for least in (0, 2, 4)}
    unsure = {0: Estimate(0.5), 2: Estimate(None, why="too few providers"), 4: Estimate(0.45, 0.4, 0.5, 9)}
    (axis,) = accuracy_over_minimum({"AZK": sure, "APK": unsure}, clearance=0.5).axes
    curves = {line.get_label(): line.get_xydata().tolist() for line in axis.lines}
    assert curves["AZK"] == [pytest.approx(point) for point in ([-0.25, 60], [1.75, 62], [3.75, 64])]
    assert curves["APK"] == [[0.25, 50], [4.25, 45]], "what could not be measured is left out"
    assert [len(bars.get_segments()) for bars in axis.collections] == [3, 1] and axis.get_xticks().tolist() == [0, 2, 4]
