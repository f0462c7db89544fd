"""One claim for all trainings of a model: what composes, what does not, and what damaged records come to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from docleak.errors import PrivacyError
from docleak.privacy.accounting import guarantee
from docleak.privacy.distributions import epsilon_of
from docleak.privacy.lineage import (
    BOUND,
    DECLARED,
    NO_GUARANTEE,
    NOT_KNOWN,
    NOTHING_PRIVATE,
    PUBLIC,
    UNKNOWN,
    Fingerprints,
    Lineage,
    Trained,
    claim_of,
    epsilon_with_scores,
    united,
)
from docleak.privacy.mechanism import Mechanism, Relation, Unit
from docleak.privacy.plan import DpPlan

PLAN = DpPlan(Mechanism(1.0, 5, 0.3), 0.5, 2, 1e-5)
OTHER = replace(PLAN, mechanism=Mechanism(2.0, 7, 0.5))
START = Lineage(PUBLIC, "synthetic pages")


def model(*trainings: tuple[str, DpPlan | None, str], origin: str = PUBLIC) -> tuple[Lineage, Fingerprints]:
    """A lineage of (name, plan, providers separated by spaces), with its fingerprints."""
    known, lineage = Fingerprints(), Lineage(origin, "its note")
    for name, plan, providers in trainings:
        known = known.with_names(name, providers.split())
        lineage = lineage.after(Trained(name, f"training {name}", plan, providers=known.digest(name)))
    return lineage, known


def test_one_training_is_its_own_guarantee_and_none_is_none() -> None:
    claim = claim_of(*model(("a", PLAN, "x y")))
    epsilon = guarantee(PLAN.mechanism, 1e-5).epsilon
    assert (claim.kind, claim.epsilon, claim.delta, claim.unit) == (BOUND, epsilon, 1e-5, "provider")
    assert "Its start is public: its note." in claim.sentence
    assert claim_of(START).kind == NOTHING_PRIVATE
    assert claim_of(*model(("a", None, "x"))).kind == NO_GUARANTEE


def test_trainings_with_privacy_compose_unless_their_providers_are_others() -> None:
    both = epsilon_of([PLAN.mechanism, OTHER.mechanism], 1e-5)
    lineage, known = model(("a", PLAN, "x y"), ("b", OTHER, "y z"))
    assert claim_of(lineage, known).epsilon == both == claim_of(lineage).epsilon, "the worst, without them"
    lineage, known = model(("a", PLAN, "x y"), ("b", OTHER, "u z"))
    largest = max(guarantee(plan.mechanism, 1e-5).epsilon for plan in (PLAN, OTHER))
    claim = claim_of(lineage, known)
    assert claim.epsilon == largest < both and "parallel composition" in claim.sentence
    assert claim_of(lineage).epsilon == both
    forged = replace(known, hashes={**known.hashes, "b": frozenset({"0"})})
    assert claim_of(lineage, forged).epsilon == both, "hashes that are not those of the lineage count for nothing"
    assert all(part in claim.sentence for part in ("training a", "training b"))
    clients = [replace(p, mechanism=replace(p.mechanism, unit=Unit.CLIENT, unit_rate=1.0)) for p in (PLAN, OTHER)]
    lineage, known = model(("a", clients[0], "x"), ("b", clients[1], "y"))
    assert "as if each client were in all" in claim_of(lineage, known).sentence


def test_without_privacy_on_the_same_on_others_and_on_nobody_knows_whom() -> None:
    claim = claim_of(*model(("a", None, "x y u"), ("b", PLAN, "y z u")))
    assert claim.kind == NO_GUARANTEE and claim.epsilon is None
    assert "no guarantee: its start was trained on some of these providers without privacy" in claim.sentence
    lineage, known = model(("a", None, "x y"), ("b", PLAN, "z u v"))
    claim = claim_of(lineage, known)
    assert claim.kind == BOUND and claim.epsilon == guarantee(PLAN.mechanism, 1e-5).epsilon
    assert "covers the providers" in claim.sentence and "not those others" in claim.sentence
    assert "nothing shows that this was on other providers" in claim_of(lineage).sentence
    later = claim_of(*model(("a", PLAN, "x"), ("b", None, "x")))
    assert later.kind == NO_GUARANTEE and "it was also trained on some of these providers" in later.sentence


def test_other_providers_are_no_other_clients_and_no_others_than_who_takes_a_place() -> None:
    """A client may have held what was trained on without privacy; whoever replaces one may be of the other training."""
    client = replace(PLAN, mechanism=replace(PLAN.mechanism, unit=Unit.CLIENT, unit_rate=1.0))
    claim = claim_of(*model(("a", None, "x"), ("b", client, "y")))
    assert claim.kind == NO_GUARANTEE and "nothing shows that this was of other clients" in claim.sentence
    plans = [replace(p, mechanism=replace(p.mechanism, relation=Relation.REPLACE_ONE)) for p in (PLAN, OTHER)]
    claim = claim_of(*model(("a", plans[0], "x"), ("b", plans[1], "y")))
    assert claim.epsilon == epsilon_of([plan.mechanism for plan in plans], 1e-5)
    assert "as if each provider were in all" in claim.sentence


def test_what_is_not_known_or_does_not_add_up() -> None:
    lineage, known = model(("a", PLAN, "x"), origin=UNKNOWN)
    claim = claim_of(lineage, known)
    assert claim.kind == NOT_KNOWN and claim.epsilon is None and "nothing says what its start saw" in claim.sentence
    for change in ({"unit": Unit.RECORD}, {"relation": Relation.REPLACE_ONE}):
        mixed = replace(OTHER, mechanism=replace(OTHER.mechanism, **change))  # type: ignore[arg-type]
        claim = claim_of(*model(("a", PLAN, "x"), ("b", mixed, "x")))
        assert claim.kind == NOT_KNOWN and "does not add up to one epsilon" in claim.sentence
    silent = replace(PLAN, mechanism=replace(PLAN.mechanism, noise_multiplier=0.0))
    assert claim_of(*model(("a", PLAN, "x"), ("b", silent, "x"))).kind == NO_GUARANTEE
    seeded = Lineage(PUBLIC, "p", (Trained("a", "t", PLAN, repeatable=True),))
    assert "against nobody who knows it" in claim_of(seeded).sentence


def begun(rounds: int, *sessions: tuple[int, str]) -> Lineage:
    """A training after so many rounds, which was begun and gone on with in these processes."""
    plan = replace(PLAN, mechanism=replace(PLAN.mechanism, rounds=rounds))
    return START.after(Trained("a", "t", plan, sessions=sessions))


@pytest.mark.parametrize(
    ("one", "other", "more"),
    [
        (begun(9, (0, "u"), (5, "v")), begun(5, (0, "u")), 0),  # an earlier state of the same
        (begun(5, (0, "u"), (5, "v")), begun(9, (0, "u")), 0),  # copied, and not gone on with
        (begun(9, (0, "u"), (5, "v")), begun(8, (0, "u"), (5, "w")), 3),  # copied after 5, both gone on with
        (begun(9, (0, "u")), begun(8, (0, "u"), (5, "w")), 3),  # copied while it ran
        (begun(6, (0, "u"), (5, "w")), begun(9, (0, "u"), (2, "v"), (7, "x")), 4),
    ],
)
def test_a_copy_that_was_gone_on_with_spent_rounds_of_its_own(one: Lineage, other: Lineage, more: int) -> None:
    """Both had new noise in each round, and the shorter one counted for nothing."""
    for parts in ([one, other], [other, one]):
        whole = united([*parts, parts[0]])
        rounds = [t.plan.mechanism.rounds for t in whole.trainings if t.plan]
        assert rounds == [9, more][: 1 + bool(more)]
        claim = claim_of(whole)
        assert claim.epsilon == pytest.approx(
            epsilon_of([replace(PLAN.mechanism, rounds=one) for one in rounds], 1e-5), rel=1e-6
        )


def test_nothing_counts_twice_and_parts_are_united() -> None:
    first = Trained("a", "t", PLAN)
    more = replace(first, plan=replace(PLAN, mechanism=replace(PLAN.mechanism, rounds=9)))
    assert START.after(first).after(more).trainings == (more,)
    whole = united([START.after(more), Lineage(DECLARED, "a hub").after(first).after(Trained("b", "u", None))])
    assert whole.origin == DECLARED and [t.identity for t in whole.trainings] == ["a", "b"]
    assert whole.trainings[0] == more, "of one training the later state"
    assert united([START, Lineage(UNKNOWN, "x")]).origin == UNKNOWN
    assert united([START.after(more)] * 2) == START.after(more), "a copy that nobody went on with"
    assert Lineage(UNKNOWN, "x").declared().origin == DECLARED and START.declared() == START
    with pytest.raises(PrivacyError, match="cannot be declared public"):
        START.after(first).declared()


def test_it_travels_as_json_and_damage_is_an_error() -> None:
    lineage, known = model(("a", PLAN, "x"), ("b", None, "y"))
    assert Lineage.from_dict(lineage.to_dict()) == lineage
    assert Fingerprints.from_dict(known.to_dict()) == known
    saved = lineage.to_dict()
    for wrong in (None, {}, {**saved, "origin": "fine"}, {**saved, "trainings": [{}]},
                  {**saved, "trainings": [{**saved["trainings"][0], "plan": "none"}]}):  # fmt: skip
        with pytest.raises(PrivacyError, match="damaged"):
            Lineage.from_dict(wrong)
    with pytest.raises(PrivacyError, match="damaged"):
        Fingerprints.from_dict({"key": "zz"})


def test_whoever_is_trained_on_in_one_training_and_kept_in_another_pays_for_both() -> None:
    """A unit is trained on or kept in each training; what it costs is the worst of these, each composed."""
    lineage, _ = model(("a", PLAN, "x"), ("b", OTHER, "x"))
    both = epsilon_of([PLAN.mechanism, OTHER.mechanism], 1e-5)
    assert epsilon_with_scores(lineage, 1e-5) == both, "no scores were released"
    loud = replace(lineage, trainings=(lineage.trainings[0], replace(lineage.trainings[1], scores=2.0)))
    gaussian = Mechanism(0.5, 1)
    trained_then_kept = epsilon_of([PLAN.mechanism, gaussian], 1e-5)
    assert trained_then_kept > max(both, epsilon_of([gaussian], 1e-5))
    assert epsilon_with_scores(loud, 1e-5) == trained_then_kept
    quiet = replace(lineage, trainings=(lineage.trainings[0], replace(lineage.trainings[1], scores=1e-3)))
    assert epsilon_with_scores(quiet, 1e-5) == both
    assert Lineage.from_dict(loud.to_dict()) == loud


def test_many_trainings_with_scores_are_bounded_as_if_everybody_were_in_all() -> None:
    lineage, _ = model(*((name, OTHER, "x") for name in "abcde"))
    scored = replace(lineage, trainings=tuple(replace(t, scores=0.5) for t in lineage.trainings))
    everything = epsilon_of([OTHER.mechanism, Mechanism(2.0, 1)] * 5, 1e-5)
    assert epsilon_with_scores(scored, 1e-5) == pytest.approx(everything, rel=1e-9)
