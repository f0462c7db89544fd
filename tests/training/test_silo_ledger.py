"""A silo's own floor and ledger: rounds below it are refused whatever the server sends, and what is sent counts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from docleak.errors import PrivacyError
from docleak.privacy.accounting import guarantee
from docleak.privacy.mechanism import Mechanism, Relation, Unit
from docleak.privacy.plan import DpPlan
from docleak.training.federated.deploy.check import _spent
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower.client import _count_evaluation
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.scores import SENSITIVITY, evaluation_noise
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.silo_ledger import BegunRound, SiloLedger, begin, change_limits, composed_epsilon
from docleak.training.federated.silo_limits import SiloLimits, has_limits
from docleak.training.federated.wire import Compression

PLAN = DpPlan(Mechanism(1.2, 3, unit_rate=0.5), clip_norm=0.5, denominator=4, delta=1e-5)
FEDERATION = Federation(rounds=3, holdout=0.0, privacy=PLAN, local=LocalPlan(max_steps=1))
LIMITS = SiloLimits.of(FEDERATION, 4, rounds=3)


def kept(folder: Path, limits: SiloLimits = LIMITS) -> Path:
    limits.save(folder)
    SiloLedger(limits).save(folder)
    return folder


def begin_round(folder: Path, federation: Federation, *, number: int, shares: int, known: int = 0) -> int:
    return begin(folder, lambda ledger: ledger.with_round(federation, number=number, shares=shares), known=known)


def changed(**plan: Any) -> Federation:
    mechanism = {
        key: plan.pop(key) for key in list(plan) if key in ("noise_multiplier", "unit", "unit_rate", "relation")
    }
    return replace(FEDERATION, privacy=replace(PLAN, mechanism=replace(PLAN.mechanism, **mechanism), **plan))


def test_the_limits_made_for_a_plan_let_it_run_and_not_one_round_more(tmp_path: Path) -> None:
    kept(tmp_path)
    assert LIMITS.clients == 4 and LIMITS.noise_std == pytest.approx(1.2 * 0.5 / 2, rel=1e-5)
    for number in (1, 2, 3):
        assert begin_round(tmp_path, FEDERATION, number=number, shares=4) == number
    ledger = SiloLedger.load(tmp_path)
    whole = guarantee(PLAN.mechanism, 1e-5).epsilon
    assert ledger.epsilon() == pytest.approx(whole) == pytest.approx(LIMITS.epsilon, rel=1e-5)
    alone = guarantee(replace(PLAN.mechanism, noise_multiplier=0.6), 1e-5).epsilon
    assert ledger.epsilon_alone() == pytest.approx(alone) and alone > 2 * whole
    before = (tmp_path / "ledger.json").read_bytes()
    with pytest.raises(PrivacyError, match=r"4 private rounds cost epsilon .* expected at most"):
        begin_round(tmp_path, FEDERATION, number=3, shares=4)  # the same round again is another release
    assert (tmp_path / "ledger.json").read_bytes() == before
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in tmp_path.iterdir())


def test_what_was_spent_on_documents_is_not_said_of_providers(tmp_path: Path) -> None:
    """The limits' unit is the owner's to change, but rounds that were begun hide what they hid."""
    kept(tmp_path, replace(LIMITS, unit=Unit.DOCUMENT))
    begin_round(tmp_path, changed(unit=Unit.DOCUMENT), number=1, shares=4)
    with pytest.raises(PrivacyError, match="1 line of its ledger protects documents, and its limits providers"):
        change_limits(tmp_path, {"unit": "provider"})
    begin_round(tmp_path, changed(unit=Unit.DOCUMENT), number=2, shares=4)
    replace(LIMITS, unit=Unit.PROVIDER).save(tmp_path)
    with pytest.raises(PrivacyError, match="2 lines of its ledger protect documents"):
        SiloLedger.load(tmp_path)
    assert change_limits(tmp_path, {"unit": "document"}).rounds == 2, "an owner who changed it takes it back"


def test_rounds_of_two_relations_are_no_one_epsilon(tmp_path: Path) -> None:
    kept(tmp_path, replace(LIMITS, epsilon=100.0))
    begin_round(tmp_path, changed(relation=Relation.REPLACE_ONE), number=1, shares=4)
    assert "replaced by another's" in SiloLedger.load(tmp_path).sentence()
    with pytest.raises(PrivacyError, match="does not add up to one epsilon"):
        begin_round(tmp_path, FEDERATION, number=2, shares=4)


def test_a_share_of_the_least_noise_hides_nothing_of_a_silo() -> None:
    row = BegunRound("", 1, 1e-9, 1.0, Unit.PROVIDER, Relation.ADD_OR_REMOVE_ONE, 1.0, 1, 4, False, "train")
    assert SiloLedger(LIMITS, (row,)).epsilon_alone() == math.inf


def test_two_nodes_on_one_folder_are_counted_together(tmp_path: Path) -> None:
    kept(tmp_path)

    def begun(number: int) -> bool:
        try:
            return begin_round(tmp_path, FEDERATION, number=number, shares=4) > 0
        except PrivacyError:
            return False

    with ThreadPoolExecutor(5) as pool:
        assert sum(pool.map(begun, range(5))) == 3
    assert len(SiloLedger.load(tmp_path).begun) == 3


@pytest.mark.parametrize(
    ("federation", "shares", "said"),
    [
        (FEDERATION, 5, "5 silos share the noise; expected 1 to 4"),
        (FEDERATION, 10**12, "share the noise"),
        (FEDERATION, 0, "0 silos share the noise"),
        (changed(noise_multiplier=1.1), 4, "noise would have the standard deviation 0.275; expected at least 0.3"),
        (changed(clip_norm=5.0), 4, "clips to 5; expected at most 0.5"),
        (changed(clip_norm=0.1), 4, "standard deviation 0.06"),
        (changed(denominator=3), 4, "divides by 3; expected at least 4"),
        (changed(unit=Unit.DOCUMENT), 4, "protects documents; expected providers"),
        (replace(FEDERATION, compression=Compression.of("topk:0.001")), 4, "compressed by topk:0.001, one of 4 shares"),
        (changed(unit_rate=1.0), 4, "1 private round cost epsilon"),
        (replace(FEDERATION, privacy=None), 4, "no privacy plan"),
    ],
)
def test_a_round_below_the_floor_is_refused_and_not_counted(
    federation: Federation, shares: int, said: str, tmp_path: Path
) -> None:
    limits = replace(LIMITS, epsilon=1.05 * guarantee(replace(PLAN.mechanism, rounds=1), 1e-5).epsilon)
    kept(tmp_path, limits)
    with pytest.raises(PrivacyError, match=said):
        begin_round(tmp_path, federation, number=1, shares=shares)
    assert SiloLedger.load(tmp_path).begun == ()
    assert begin_round(tmp_path, FEDERATION, number=1, shares=4) == 1


def test_a_plan_that_promises_more_is_counted_by_what_it_does(tmp_path: Path) -> None:
    """Rounds, client rate and delta are the server's words; the silo takes part, and counts that."""
    kept(tmp_path)
    rosy = replace(PLAN, delta=0.9, mechanism=replace(PLAN.mechanism, rounds=3, client_rate=0.01))
    sent = replace(FEDERATION, participation=0.01, privacy=rosy)
    for _ in range(3):
        begin_round(tmp_path, sent, number=1, shares=1)
    assert SiloLedger.load(tmp_path).epsilon() == pytest.approx(guarantee(PLAN.mechanism, 1e-5).epsilon)
    with pytest.raises(PrivacyError, match="this silo's own ledger"):
        begin_round(tmp_path, sent, number=1, shares=1)


def test_rounds_of_different_plans_are_composed() -> None:
    first, second = Mechanism(1.0, 1), Mechanism(2.0, 1)
    # two Gaussians are one of noise (1 / 1 + 1 / 4) ** -0.5
    together = guarantee(Mechanism((1 + 1 / 4) ** -0.5, 1), 1e-5).epsilon
    assert composed_epsilon([first, second], 1e-5) == pytest.approx(together, rel=1e-3)
    assert composed_epsilon([], 1e-5) == 0
    assert composed_epsilon([Mechanism(0.0, 1), first], 1e-5) == float("inf")


def test_a_round_that_did_not_leave_is_spent_and_a_restart_keeps_the_count(tmp_path: Path) -> None:
    kept(tmp_path)
    begin_round(tmp_path, FEDERATION, number=1, shares=4)
    assert len(SiloLedger.load(tmp_path).begun) == 1
    (tmp_path / "witness.json").write_text(json.dumps({"rounds": 0, "digest": _digest_of_nothing()}))
    assert len(SiloLedger.load(tmp_path).begun) == 1, "killed between ledger and witness: the ledger is ahead"


def _digest_of_nothing() -> str:
    import hashlib

    return hashlib.sha256(b"[]").hexdigest()


def rewound(folder: Path) -> None:
    (folder / "ledger.json").write_text('{"begun": []}')


def rewritten(folder: Path) -> None:
    saved = json.loads((folder / "ledger.json").read_text())
    saved["begun"][0]["noise_multiplier"] = 100.0
    (folder / "ledger.json").write_text(json.dumps(saved))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda folder: (folder / "ledger.json").unlink(), "ledger.json cannot be read"),
        (lambda folder: (folder / "witness.json").unlink(), "witness.json cannot be read"),
        (lambda folder: (folder / "limits.json").unlink(), "limits.json cannot be read"),
        (lambda folder: (folder / "limits.json").write_text("{}"), "epsilon is missing; delta is missing"),
        (rewound, "0 rounds and is not the ledger of 2 rounds"),
        (rewritten, "not the ledger of 2 rounds"),
        (lambda folder: (folder / "ledger.json").write_text("[]"), "expected an object"),
        (lambda folder: (folder / "ledger.json").write_text('{"begun": [{}]}'), "at is missing"),
    ],
)
def test_a_ledger_that_went_missing_or_back_is_refused(how: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    kept(tmp_path)
    for number in (1, 2):
        begin_round(tmp_path, FEDERATION, number=number, shares=4)
    how(tmp_path)
    with pytest.raises(PrivacyError, match=said):
        begin_round(tmp_path, FEDERATION, number=3, shares=4)


def test_both_put_back_are_noticed_by_the_node_that_runs(tmp_path: Path) -> None:
    kept(tmp_path)
    known = begin_round(tmp_path, FEDERATION, number=1, shares=4)
    kept(tmp_path)
    with pytest.raises(PrivacyError, match="this node has begun 1"):
        begin_round(tmp_path, FEDERATION, number=2, shares=4, known=known)


@pytest.mark.parametrize("left", ["limits.json", "ledger.json", "witness.json"])
def test_a_floor_is_not_taken_away_with_its_files(left: str, tmp_path: Path) -> None:
    """Whichever file is left says that there were limits; a new ledger is not begun over rounds that were."""
    kept(tmp_path)
    begin_round(tmp_path, FEDERATION, number=1, shares=4)
    for name in {"limits.json", "ledger.json", "witness.json"} - {left}:
        (tmp_path / name).unlink()
    assert has_limits(tmp_path)
    with pytest.raises(PrivacyError, match="cannot be read"):
        begin_round(tmp_path, FEDERATION, number=2, shares=4)
    with pytest.raises(PrivacyError, match="cannot be read"):
        change_limits(tmp_path, asdict(LIMITS))


def test_a_silo_without_limits_says_what_to_give(tmp_path: Path) -> None:
    every = "--epsilon --delta --noise-std --clients --unit --clip-norm --denominator"
    with pytest.raises(PrivacyError, match=rf"has no limits yet; to set them, give {every}\.$"):
        change_limits(tmp_path, {})
    with pytest.raises(PrivacyError, match=r"to set them, give --noise-std, too\.$"):
        change_limits(tmp_path, {name: value for name, value in asdict(LIMITS).items() if name != "noise_std"})


def test_limits_are_set_where_the_first_setting_was_stopped(tmp_path: Path) -> None:
    for stopped_before in ("limits.json", "witness.json"):
        change_limits(tmp_path, asdict(LIMITS))
        (tmp_path / "limits.json").unlink()
        (tmp_path / stopped_before).unlink(missing_ok=True)
        assert has_limits(tmp_path), "nothing is sent meanwhile"
        assert change_limits(tmp_path, asdict(LIMITS)) == SiloLedger(LIMITS) == SiloLedger.load(tmp_path)
    begin_round(tmp_path, FEDERATION, number=1, shares=4)
    (tmp_path / "limits.json").unlink()
    (tmp_path / "ledger.json").write_text('{"begun": []}')
    with pytest.raises(PrivacyError, match="cannot be read"):
        change_limits(tmp_path, asdict(LIMITS))


def test_what_was_spent_is_never_said_to_be_less_than_it_is(tmp_path: Path) -> None:
    """To four digits, and away from zero: in the sentence, in the refusal, and in docleak deploy check."""
    kept(tmp_path)
    for number in (1, 2, 3):
        begin_round(tmp_path, FEDERATION, number=number, shares=4)
    # delta such that rounding to the nearest would say less, for every number that is printed
    ledger = SiloLedger.load(tmp_path)
    deltas = (10**-exponent for exponent in np.linspace(5, 6, 200))
    ledger = next(
        at for at in (replace(ledger, limits=replace(LIMITS, delta=float(delta))) for delta in deltas)
        if float(f"{at.epsilon():.4g}") < at.epsilon() and float(f"{at.epsilon_alone():.4g}") < at.epsilon_alone()
    )  # fmt: skip
    words = ledger.sentence()
    assert float(re.findall(r"theirs: epsilon ([0-9.]+)", words)[0]) >= ledger.epsilon()
    assert float(re.findall(r"own updates: ([0-9.]+[0-9])", words)[0]) >= ledger.epsilon_alone()
    assert float(re.findall(r"epsilon ([0-9.]+) of", _spent(ledger))[0]) >= ledger.epsilon()
    assert "all documents of one provider added or removed" in words
    assert f"PLD accountant of dp-accounting {version('dp-accounting')}" in words
    assert "towards who sees sums" in _spent(ledger), "no epsilon without the adversary that it holds against"
    assert float(re.findall(r"updates ([0-9.]+[0-9])", _spent(ledger))[0]) >= ledger.epsilon_alone()
    tight = replace(ledger, begun=ledger.begun[:2], limits=replace(ledger.limits, epsilon=ledger.epsilon() / 2))
    with pytest.raises(PrivacyError) as refused:
        tight.with_round(FEDERATION, number=3, shares=4)
    assert float(re.findall(r"cost epsilon ([0-9.]+)", str(refused.value))[0]) >= ledger.epsilon()


def evaluated(folder: Path, federation: Federation, number: int = 0) -> None:
    """What a node of a run that is new counts before it answers."""
    assert federation.privacy is not None
    context = Context(1, 1, {"keep": str(folder)}, RecordDict(), {})
    _count_evaluation(context, federation, federation.privacy, number)


def test_evaluations_count_in_the_silos_own_ledger_whatever_run_asks(tmp_path: Path) -> None:
    """A server may start as many runs as it likes, and say of each how many evaluations it plans."""
    whole = guarantee(PLAN.mechanism, 1e-5).epsilon
    federation = replace(FEDERATION, holdout=0.2, evaluations=2)
    kept(tmp_path, replace(LIMITS, epsilon=whole * 1.001, evaluation=True))
    for _ in range(2):
        evaluated(tmp_path, federation)
    ledger = SiloLedger.load(tmp_path)
    assert (ledger.rounds, ledger.evaluations) == (0, 2) == (ledger.facts()["rounds_begun"], 2)
    # The noise of the two is made for the plan's own epsilon; the accountant is another.
    assert ledger.epsilon() == pytest.approx(whole, rel=1e-3) == ledger.epsilon_alone()
    assert "0 private rounds and 2 evaluations were begun" in ledger.sentence()
    with pytest.raises(PrivacyError, match=r"evaluation 0 is refused .* 0 private rounds and 3 evaluations cost"):
        evaluated(tmp_path, federation)
    with pytest.raises(PrivacyError, match=r"1 private round and 2 evaluations cost epsilon"):
        begin_round(tmp_path, FEDERATION, number=1, shares=4)
    assert SiloLedger.load(tmp_path) == ledger


@pytest.mark.parametrize(
    ("federation", "said"),
    [
        (changed(noise_multiplier=0.0), "cost epsilon inf"),
        (changed(noise_multiplier=0.3), "cost epsilon"),
        (changed(delta=0.5), "cost epsilon"),
        (changed(unit=Unit.DOCUMENT), "protects documents; expected providers"),
    ],
)
def test_an_evaluation_with_less_noise_than_the_limits_ask_for_is_refused(
    federation: Federation, said: str, tmp_path: Path
) -> None:
    kept(tmp_path, replace(LIMITS, evaluation=True))
    with pytest.raises(PrivacyError, match=said):
        evaluated(tmp_path, replace(federation, evaluations=1))
    assert SiloLedger.load(tmp_path).begun == ()


def test_an_evaluation_and_a_round_are_composed_and_read_again(tmp_path: Path) -> None:
    kept(tmp_path, replace(LIMITS, epsilon=50.0, evaluation=True))
    assert begin_round(tmp_path, FEDERATION, number=1, shares=4) == 1
    evaluated(tmp_path, FEDERATION, 1)
    ledger = SiloLedger.load(tmp_path)
    noise = evaluation_noise(PLAN, FEDERATION.scores_at_most) / SENSITIVITY
    both = [replace(PLAN.mechanism, rounds=1), Mechanism(noise, 1)]
    assert ledger.epsilon() == pytest.approx(composed_epsilon(both, 1e-5), rel=1e-9)
    rows = json.loads((tmp_path / "ledger.json").read_text())
    rows["begun"][1]["kind"] = "query"
    (tmp_path / "ledger.json").write_text(json.dumps(rows))
    with pytest.raises(PrivacyError, match=r"\[1\].kind is 'query'"):
        SiloLedger.load(tmp_path)


def test_limits_under_secure_aggregation_and_for_evaluation() -> None:
    secure = replace(FEDERATION, secure=SecurePlan(threshold=3))
    assert SiloLimits.of(secure, 4, rounds=3).clients == 3
    assert LIMITS.refusals(FEDERATION, kind="query") == []
    assert "this silo gives none" in LIMITS.refusals(FEDERATION, kind="evaluate")[0]
    assert replace(LIMITS, evaluation=True).refusals(FEDERATION, kind="evaluate") == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epsilon": float("nan")}, "epsilon is nan"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"noise_std": True}, "noise_std is True"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"clients": 0}, "clients is 0"),
        ({"denominator": 1.5}, "denominator is 1.5"),
        ({"evaluation": "no"}, "evaluation is 'no'"),
    ],
)
def test_limits_that_make_no_sense(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=said):
        change_limits(tmp_path, {**asdict(LIMITS), **change})
