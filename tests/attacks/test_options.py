"""Attacks with other parts, said in text."""

from __future__ import annotations

import pytest

from docleak.attacks.gradients import ATTACKS
from docleak.attacks.gradients.levenberg import LevenbergMarquardt
from docleak.attacks.gradients.matching import squared_and_cosine, squared_and_cosine_of_all
from docleak.attacks.gradients.solvers import BoundedLBFGS
from docleak.errors import AttackError


def test_options_change_what_they_name_and_nothing_else() -> None:
    plain, other = ATTACKS.load("gi-dqa"), ATTACKS.load("gi-dqa:priors=text@0.2+tv-spatial,schedule=delayed,grey=no")
    assert dict(other.priors) == {"text": 0.2, "tv-spatial": 0.1}
    assert other.schedule == "delayed" and not other.grey
    assert other.solver == plain.solver and other.whitening == plain.whitening
    assert other.name == "gi-dqa:priors=text@0.2+tv-spatial,schedule=delayed,grey=no"


def test_another_start() -> None:
    assert ATTACKS.load("gi-dqa:start=light").start == "light" and ATTACKS.load("gi-dqa").start == "by-size"
    with pytest.raises(AttackError, match="uniform, normal, light, by-size"):
        ATTACKS.load("gi-dqa:start=dark")


def test_another_solver_and_the_rounds() -> None:
    plain, other = ATTACKS.load("gi-dqa"), ATTACKS.load("gi-dqa:solver=lm,rounds=all")
    assert (plain.solver, plain.rounds) == (BoundedLBFGS(), "largest")
    assert (other.solver, other.rounds) == (LevenbergMarquardt(), "all")
    assert ATTACKS.load("gi-dqa:solver=lbfgs").solver == plain.solver
    assert ATTACKS.load("gi-dqa:loss=double").double_loss and plain.double_loss is None
    with pytest.raises(AttackError, match="largest, all"):
        ATTACKS.load("gi-dqa:rounds=first")


def test_other_readings_of_gi_dqa() -> None:
    """Equations 3 to 10 as printed, where docleak reads them otherwise."""
    plain, other = (
        ATTACKS.load(f"gi-dqa-adam{options}")
        for options in ("", ":matching=squared-and-cosine-of-all,schedule=literal,keep=last,priors=tv-spatial-sum")
    )
    assert (plain.matching, plain.schedule, plain.keep) == (squared_and_cosine, "exponential", "best")
    assert (other.matching, other.schedule, other.keep) == (squared_and_cosine_of_all, "literal", "last")
    assert dict(other.priors) == {"tv-spatial-sum": 0.1}
    assert ATTACKS.load("april:matching=whitened").matching is None
    with pytest.raises(AttackError, match="matching is 'nearest'; expected one of whitened, squared, cosine"):
        ATTACKS.load("gi-dqa:matching=nearest")
    with pytest.raises(AttackError, match="expected one of best, last"):
        ATTACKS.load("gi-dqa:keep=worst")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("gi-dqa-adam:learning_rate=-1", "Adam: learning-rate is -1; expected a number above 0"),
        ("gi-dqa-adam:learning_rate=nan", "learning-rate is nan"),
        ("april:final_factor=0", "final-factor is 0"),
        ("dlg:learning_rate=0", "TorchLBFGS: learning-rate is 0"),
        ("gi-dqa:history=0", "BoundedLBFGS: history is 0"),
        ("gi-dqa:solver=lm,damping=-1", "LevenbergMarquardt: damping is -1"),
    ],
)
def test_a_solver_that_cannot_step_is_refused_before_anything_is_computed(spec: str, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        ATTACKS.load(spec)


def test_no_priors() -> None:
    assert dict(ATTACKS.load("gi-dqa-adam:priors=none").priors) == {}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("gi-dqa:colour=red", "it takes matching=whitened"),
        ("gi-dqa:grey", "key=value"),
        ("gi-dqa:grey=perhaps", "yes, no"),
        ("gi-dqa:schedule=never", "schedules"),
        ("gi-dqa:priors=hope@1", "unknown prior"),
        ("gi-dqa:priors=text@much", "expected a number such as 0.1"),
        ("gi-dqa:learning-rate=1", "cannot be told 'learning-rate=1'"),
        ("gi-dq:grey=yes", "Did you mean 'gi-dqa'"),
    ],
)
def test_wrong_options_are_refused(spec: str, named: str) -> None:
    with pytest.raises(AttackError, match=named):
        ATTACKS.load(spec)
