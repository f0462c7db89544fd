"""Whole rounds: exact sums, silos that drop out at every step, too few of them, and what may not begin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docleak.errors import FederationError
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.training.federated.secure.fixed_point import FixedPoint, from_words, to_words, words_of
from docleak.training.federated.secure.keys import Identity, fingerprint, make_identities
from docleak.training.federated.secure.messages import Session
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.secure.primitives import CHUNK
from docleak.training.federated.secure.simulate import STEPS, simulate

Make = Callable[..., Any]
#: Silos that fall silent before these steps are not in the sum; later, their words are already there.
BEFORE_THE_WORDS = STEPS[:3]


@pytest.mark.parametrize(("silos", "threshold"), [(2, 2), (3, 2), (3, 3), (4, 3), (5, 3), (5, 4)])
@pytest.mark.parametrize("step", STEPS)
def test_every_subset_dropping_at_every_step(make_round: Make, silos: int, threshold: int, step: str) -> None:
    """The exact sum of whose words arrived if the threshold is left, else no sum."""
    case = make_round(silos, threshold=threshold)
    for count in range(silos + 1):
        for lost in combinations(case.session.silos, count):
            drop = dict.fromkeys(lost, step)
            if silos - count < threshold:
                with pytest.raises(FederationError, match="There is no sum"):
                    simulate(case.session, case.inputs, case.identities, drop=drop, entropy=case.entropy)
                continue
            outcome = simulate(case.session, case.inputs, case.identities, drop=drop, entropy=case.entropy)
            summed = [s for s in case.session.silos if s not in lost or step not in BEFORE_THE_WORDS]
            assert outcome.survivors == tuple(summed)
            assert outcome.total.tolist() == case.plain_sum(summed)


@given(silos=st.integers(2, 7), seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_mixture_of_drop_outs(make_round: Make, silos: int, seed: int, data: st.DataObject) -> None:
    """Never a wrong sum: the right one, or none."""
    threshold = data.draw(st.integers(silos // 2 + 1, silos))
    case = make_round(silos, threshold=threshold, seed=seed)
    drop = data.draw(st.dictionaries(st.sampled_from(case.session.silos), st.sampled_from(STEPS), max_size=silos))
    left = silos - len(drop)
    if left < threshold:
        with pytest.raises(FederationError, match="There is no sum"):
            simulate(case.session, case.inputs, case.identities, drop=drop, entropy=case.entropy)
        return
    outcome = simulate(case.session, case.inputs, case.identities, drop=drop, entropy=case.entropy)
    summed = [s for s in case.session.silos if drop.get(s) not in BEFORE_THE_WORDS]
    assert outcome.total.tolist() == case.plain_sum(summed)


@pytest.mark.parametrize("words", [1, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_lengths_around_the_chunks(make_round: Make, words: int) -> None:
    case = make_round(4, words=words)
    drop = {"silo-2": "mask"}
    outcome = simulate(case.session, case.inputs, case.identities, drop=drop, entropy=case.entropy)
    assert outcome.total.tolist() == case.plain_sum(["silo-0", "silo-1", "silo-3"])


def test_the_mean_of_real_numbers_with_a_drop_out() -> None:
    """FedAvg of float32 updates against numpy, within the stated error; entropy of the operating system."""
    rng = np.random.default_rng(5)
    shapes = {"w": (40, 25), "b": (11,)}
    names = ["north", "south", "east", "west", "centre"]
    deltas = {s: {n: rng.normal(0, 1e-3, shape).astype(np.float32) for n, shape in shapes.items()} for s in names}
    examples = dict(zip(names, (12, 3, 900, 44, 7), strict=True))
    fixed = FixedPoint.for_limit(20.0, len(names))
    identities = make_identities(names, entropy=np.random.default_rng(1).bytes)
    session = Session.new(
        names, round_number=3, words=words_of(shapes), fixed=fixed, entropy=np.random.default_rng(2).bytes
    )
    inputs = {s: to_words(deltas[s], examples[s], fixed) for s in names}
    outcome = simulate(session, inputs, identities, drop={"east": "mask"})
    sums, count = from_words(outcome.total, shapes, session.fixed)
    left = [s for s in names if s != "east"]
    assert count == sum(examples[s] for s in left)
    for name in shapes:
        expected = sum(examples[s] * deltas[s][name].astype(np.float64) for s in left)
        np.testing.assert_allclose(sums[name], expected, rtol=0, atol=fixed.error(len(left)))


def test_the_upload_is_four_bytes_per_parameter(make_round: Make) -> None:
    case = make_round(4, words=200_000)
    outcome = simulate(case.session, case.inputs, case.identities, entropy=case.entropy)
    assert all(4.0 <= sent / 200_000 <= 4.1 for sent in outcome.uploaded.values())


def test_the_sum_does_not_depend_on_the_keys_and_the_messages_do(make_round: Make) -> None:
    case = make_round(3)
    first, second = (simulate(case.session, case.inputs, case.identities) for _ in range(2))
    assert first.total.tolist() == second.total.tolist() == case.plain_sum(case.session.silos)
    exact = sum(words.view(np.int32).astype(object) for words in case.inputs.values())
    assert first.total.view(np.int32).tolist() == exact.tolist(), "as signed numbers, without a remainder"
    again = [make_round(3).until_masked()[2]["silo-1"] for _ in range(2)]
    assert again[0][0] == again[1][0]
    assert (again[0][1] == again[1][1]).all()
    assert (make_round(3, round_number=2).until_masked()[2]["silo-1"][1] != again[0][1]).all()


@pytest.mark.parametrize("silos", [(), ("silo-0",)])
def test_too_few_silos(make_round: Make, silos: tuple[str, ...]) -> None:
    with pytest.raises(FederationError, match="expected at least 2, since the sum of one is that silo's own update"):
        replace(make_round(3).session, silos=silos, threshold=1)


@pytest.mark.parametrize(("silos", "threshold"), [(3, 1), (4, 2), (5, 2), (3, 4), (2, 1)])
def test_thresholds_that_do_not_protect(make_round: Make, silos: int, threshold: int) -> None:
    with pytest.raises(FederationError, match="threshold"):
        make_round(silos, threshold=threshold)


@pytest.mark.parametrize(("silos", "threshold"), [(2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (10, 7)])
def test_the_default_threshold_is_two_thirds_and_one(make_round: Make, silos: int, threshold: int) -> None:
    assert make_round(silos).session.threshold == threshold


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"silos": ("silo-1", "silo-0", "silo-2")}, "sorted"),
        ({"silos": ("silo-0", "silo-0", "silo-2")}, "sorted"),
        ({"silos": ("", "silo-0", "silo-2")}, "empty"),
        ({"run": "again"}, "hexadecimal"),
        ({"words": 0}, "0 words"),
        ({"round": -1}, "round -1"),
        ({"fraction_bits": 99}, "99 bits"),
    ],
)
def test_sessions_that_make_no_sense(make_round: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(FederationError, match=message):
        replace(make_round(3).session, **change)


def test_a_fixed_point_for_another_number_of_silos() -> None:
    with pytest.raises(FederationError, match="made for 3 silos"):
        Session.new(
            ["a", "b"], round_number=1, words=3, fixed=FixedPoint(16, 3), entropy=np.random.default_rng(0).bytes
        )


def test_what_simulate_refuses(make_round: Make) -> None:
    case = make_round(3)
    for drop in ({"silo-9": "mask"}, {"silo-0": "masking"}):
        with pytest.raises(FederationError, match="expected every silo"):
            simulate(case.session, case.inputs, case.identities, drop=drop)
    with pytest.raises(FederationError, match="expected every silo"):
        simulate(case.session, {"silo-0": case.inputs["silo-0"]}, case.identities)
    with pytest.raises(FederationError, match=r"float64 \(7,\)"):
        simulate(case.session, {**case.inputs, "silo-1": np.zeros(7)}, case.identities)
    with pytest.raises(FederationError, match=r"uint32 \(8,\)"):
        simulate(case.session, {**case.inputs, "silo-1": np.zeros(8, np.uint32)}, case.identities)


@pytest.mark.parametrize("sign", [1, -1])
def test_words_of_another_fixed_point_cannot_wrap_the_sum(make_round: Make, sign: int) -> None:
    """Encoded for two silos and sent in a round of three: refused, not summed modulo 2^32."""
    case = make_round(3)
    wrong = FixedPoint(16, 2)
    words = wrong.encode(np.full(case.session.words, sign * wrong.limit))
    with pytest.raises(FederationError, match="could wrap"):
        simulate(case.session, {**case.inputs, "silo-1": words}, case.identities)


def test_private_keys_and_states_are_not_printed(make_round: Make) -> None:
    case = make_round(3)
    identity = case.identities["silo-0"]
    _, shared, _ = case.until_shared()
    for value in (identity, shared["silo-0"]):
        shown = repr(value)
        for secret in (identity.private_key, shared["silo-0"].seed, shared["silo-0"].keys.mask_secret):
            assert repr(secret) not in shown
            assert secret.hex() not in shown


def test_identities_that_do_not_fit(make_round: Make) -> None:
    case = make_round(3)
    identity = case.identities["silo-0"]
    with pytest.raises(FederationError, match="not that of its private key"):
        Identity("silo-1", identity.private_key, identity.pinned)
    with pytest.raises(FederationError, match="31 bytes"):
        Identity("silo-0", identity.private_key[:-1], identity.pinned)


def test_fingerprints_tell_keys_apart(make_round: Make) -> None:
    pinned = make_round(5).pinned
    shown = {fingerprint(key) for key in pinned.values()}
    assert len(shown) == 5
    assert all(len(text.split()) == 8 for text in shown)


def test_without_cryptography_the_pip_line_is_named() -> None:
    code = (
        "import sys\nsys.modules['cryptography'] = None\n"
        "from docleak.errors import MissingExtraError\n"
        "try:\n    import docleak.training.federated.secure.simulate\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'docleak[federated]'" in run.stdout


@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_a_plans_threshold_and_precision_by_hand(noise: float) -> None:
    """Two thirds and one, all under a privacy plan; 1,000, or 100 max(1, sigma) C / M under one."""
    privacy = DpPlan(Mechanism(noise_multiplier=noise, rounds=2), clip_norm=0.25, denominator=5, delta=1e-5)
    plan = SecurePlan()
    assert [plan.needed(k, None) for k in range(2, 11)] == [2, 3, 3, 4, 5, 5, 6, 7, 7]
    assert [plan.needed(k, privacy) for k in (2, 5, 10)] == [2, 5, 10]
    assert SecurePlan(threshold=4).needed(10, privacy) == SecurePlan(threshold=4).needed(10, None) == 4
    assert plan.fixed_point(7, None) == FixedPoint.for_limit(1000.0, 7)
    limit = 100 * (3.0 if noise == 3.0 else 1.0) * 0.25 / 5
    assert plan.fixed_point(7, privacy) == FixedPoint.for_limit(limit, 7)
    assert SecurePlan(limit=2.5).fixed_point(7, privacy) == FixedPoint.for_limit(2.5, 7)
