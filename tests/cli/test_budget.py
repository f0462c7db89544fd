"""``docleak budget``: the three questions, what stands beside the answer, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from docleak.privacy.accounting import guarantee
from docleak.privacy.mechanism import Mechanism


@pytest.fixture
def budget(command: Any) -> Any:
    """Exit code, standard output and standard error of ``docleak budget WORDS``."""
    return partial(command, "budget")


def test_without_arguments_it_is_the_papers_centralised_training(budget: Any) -> None:
    code, out, _ = budget()
    assert code == 0 and out.startswith("Noise multiplier: 0.8313\n")
    assert "PLD accountant of dp-accounting" in out and "RDP accountant" in out and "replaced by another's" in out


def test_the_three_questions_agree(budget: Any) -> None:
    _, out, _ = budget("--noise", 0.9, "--rounds", 12, "--rate", "1/4", "--json")
    cost = json.loads(out)
    assert cost["asked"] == "epsilon" and cost["epsilon"] == guarantee(Mechanism(0.9, 12, 0.25), 1e-5).epsilon
    assert [row.get("accountant") for row in cost["otherwise"]] == ["prv", "rdp", "pld"]
    _, out, _ = budget("--noise", 0.9, "--epsilon", cost["epsilon"] + 1e-6, "--rate", 0.25, "--json")
    assert json.loads(out)["rounds"] == 12 and json.loads(out)["asked"] == "rounds"
    _, out, _ = budget("--rounds", 12, "--epsilon", cost["epsilon"] + 1e-6, "--rate", 0.25, "--json")
    assert json.loads(out)["noise_multiplier"] == pytest.approx(0.9, abs=2e-4) and json.loads(out)["asked"] == "noise"


def test_two_numbers_of_one_accountant_say_what_either_was_allowed_to_err_by(budget: Any) -> None:
    _, out, _ = budget("--noise", 0.8313)
    beside, itself = out.splitlines()[2], next(line for line in out.splitlines() if line.startswith("  - "))
    assert "PRV accountant of opacus" in beside and ", allowed an error of 0.08" in beside
    assert "PRV accountant of opacus" in itself and ", allowed an error of 0.01" in itself


@pytest.mark.parametrize("delta", [0.5, 0.9])
def test_no_epsilon_is_below_0(budget: Any, delta: float) -> None:
    _, out, _ = budget("--noise", 2, "--delta", delta)
    assert "epsilon -" not in out and "counts -" not in out and "WARNING" not in out and "inf" not in out
    rows = json.loads(budget("--noise", 2, "--delta", delta, "--json")[1])["otherwise"]
    assert all(row["epsilon"] >= 0 for row in rows if "epsilon" in row)


def test_help_says_which_deltas_there_are(budget: Any) -> None:
    assert "above 0 and below 1" in budget("--help")[1].replace("\n", " ")


def test_drawn_clients_are_counted_as_known_unless_asked(budget: Any) -> None:
    words = ("--noise", 0.771484375, "--rounds", 10, "--rate", 1, "--client-rate", 0.2, "--json")
    known, published = (json.loads(budget(*words, *more)[1]) for more in ((), ("--published",)))
    assert known["epsilon"] == pytest.approx(14.46, abs=0.01) and "everybody knew" in known["statement"]
    assert published["epsilon"] == pytest.approx(7.984, abs=0.01) and "no bound" in published["statement"]
    errors = [row for row in known["otherwise"] if "error" in row]
    assert len(errors) == 2 and "cannot count clients drawn as a whole" in errors[0]["error"]
    assert published["epsilon"] in [row.get("epsilon") for row in known["otherwise"]]


@pytest.mark.parametrize("more", [(), ("--client-rate", "0.5")])
def test_the_curve_is_drawn(budget: Any, more: tuple[str, ...]) -> None:
    code, out, _ = budget("--noise", 2, "--rounds", 6, "--plot", "curve.png", *more)
    assert code == 0 and "Curve: curve.png" in out
    picture = np.asarray(PIL.Image.open("curve.png").convert("RGB")).reshape(-1, 3)
    assert len(np.unique(picture, axis=0)) > 50, "two coloured lines, smoothed"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which not even root makes files")
def test_a_place_where_no_curve_can_be_written_is_named(budget: Any) -> None:
    code, out, err = budget("--noise", 2, "--rounds", 6, "--plot", "/proc/curve.png")
    assert code == 1 and not out and "cannot write /proc/curve.png: " in err


def test_a_delta_too_large_for_so_many_providers_is_said_aloud(budget: Any) -> None:
    words = ("--noise", 1, "--rounds", 1, "--delta", 1e-2, "--units")
    code, out, err = budget(*words, 100, "--json")
    assert code == 0 and "Warning: delta 0.01 is not below 1/100" in err and json.loads(out)["warning"] in err
    _, out, err = budget(*words, 99, "--json")
    assert json.loads(out)["warning"] == "" and "Warning" not in err
    code, out, err = budget("--epsilon", 8, "--phases", "a:5,b:10", "--delta", 0.3, "--units", 5, "--json")
    assert code == 0 and "Warning: delta 0.3 is not below 1/5" in err and json.loads(out)["warning"] in err


@pytest.mark.parametrize("more", [(), ("--phases", "a:5,b:10", "--epsilon", 8)])
def test_a_delta_that_excuses_everything_stands_beside_the_number_that_is_copied(more: Any, budget: Any) -> None:
    """ "epsilon 0 at delta 0.6" had its warning in another stream."""
    given = ("--delta", 0.6, *(more or ("--noise", 1)))
    code, out, _ = budget(*given)
    assert code == 0 and out.startswith("Warning: delta 0.6 is not below 1/2: publishing everything of one provider")


def test_clients_drawn_as_a_whole_are_not_told_to_be_drawn_on_their_own(budget: Any) -> None:
    words = ("--noise", 1, "--rounds", 3, "--unit", "client", "--client-rate", 0.2, "--accountant", "prv")
    code, _, err = budget(*words)
    assert code == 1 and "Use pld." in err and "draw clients only" not in err


def test_without_noise_there_is_no_number(budget: Any) -> None:
    code, out, _ = budget("--noise", 0, "--rounds", 3, "--json")
    answer = json.loads(out)
    assert code == 0 and answer["epsilon"] is None and answer["statement"].startswith("no differential privacy")
    assert answer["otherwise"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epsilon", 0), "epsilon is 0.0; expected above 0"),
        (("--epsilon", "-1"), "epsilon is -1.0"),
        (("--noise", 0, "--epsilon", 8), "noise multiplier is 0, which spends any epsilon at once"),
        (("--noise", 0, "--rounds", 3, "--plot", "c.png"), "without noise epsilon is infinite"),
        (("--noise", 1, "--epsilon", 8, "--rounds", 3), "leave out the one to be computed"),
        (("--rate", "1.5"), "unit rate is 1.5; expected a probability above 0"),
        (("--rate", "0"), "unit rate is 0.0"),
        (("--rate", "5/0"), "rate is '5/0'; expected a probability such as 0.2"),
        (("--client-rate", "few"), "client rate is 'few'"),
        (("--rounds", 0), "rounds is 0"),
        (("--delta", 0), "delta is 0.0"),
        (("--delta", 1), "delta is 1.0; expected above 0 and below 1"),
        (("--epsilon", 8, "--phases", ""), "--phases is empty; expected NAME:ROUNDS"),
        (("--unit", "page"), "unit is 'page'; expected provider or document or client"),
        (("--unit", "client", "--rate", 0.5), "give the client rate instead"),
        (("--accountant", "gdp"), "accountant is 'gdp'; expected pld or prv or rdp"),
        (("--accountant", "rdp", "--relation", "replace-one"), "use pld for replace-one"),
        (("--plot", "curve.pdf"), "expected a file that ends in .png"),
        (("--noise", 0.3, "--epsilon", 0.5), "one round costs epsilon"),
    ],
)
def test_what_makes_no_sense_is_refused_plainly_and_as_json(budget: Any, words: tuple[object, ...], said: str) -> None:
    code, out, err = budget(*words, "--json")
    assert code == 1 and said in json.loads(out)["error"] and "Traceback" not in err
    assert not list(Path().iterdir())


def test_empty_phases_train_no_unphased_training(command: Any) -> None:
    code, _, err = command("train", "central", "--phases", "", "--epsilon", 8)
    assert code == 1 and "--phases given without a text" in err and not list(Path().iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--noise", 1, "--phases", "a:2,b:3", "--rate", "1000/4149"), "--phases says rounds and rate"),
        (("--noise", 1, "--phases", "a:2,b:3", "--accountant", "pld"), "is counted by pld"),
        (("--noise", 1, "--unit", "client", "--rate", "1000/4149"), "give the client rate instead"),
    ],
)
def test_what_is_typed_is_not_passed_over_because_it_is_the_default(
    words: tuple[object, ...], said: str, budget: Any
) -> None:
    code, _, err = budget(*words)
    assert code == 1 and said in err


def test_a_delta_of_a_half_is_too_large_for_any_number(budget: Any) -> None:
    """Of which nothing was said."""
    code, out, err = budget("--noise", 1, "--rounds", 1, "--delta", 0.5, "--json")
    assert code == 0 and "not below 1/2" in err and "not below 1/2" in json.loads(out)["warning"]
    assert json.loads(budget("--noise", 1, "--rounds", 1, "--delta", 0.4, "--json")[1])["warning"] == ""
