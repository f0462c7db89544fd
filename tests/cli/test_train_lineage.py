"""What docleak train claims of a model whose start was trained before: with privacy, without, or nobody knows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docleak.documents.names import provider_key
from docleak.privacy.accounting import guarantee
from docleak.privacy.distributions import epsilon_of
from docleak.privacy.mechanism import Mechanism
from docleak.training.lineage import fingerprints_of, record_of

Command = Callable[..., tuple[Any, str, str]]
SMALL = ("--rounds", 1, "--max-steps", 1, "--batch-size", 2, "--evaluate-every", 0, "--holdout", 0, "--no-capture")
PRIVATE = ("--epsilon", 8, "--denominator", 2, "--delta", 1e-3)


@pytest.fixture
def train(command: Command, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The facts of ``docleak train federated`` over the same two silos, from a start model."""

    def run(out: str, model: str, *words: object, silos: str = "silos", fails: bool = False) -> dict[str, Any]:
        if not (tmp_path / silos).exists():
            seed = sum(map(ord, silos))
            assert command("data", "make", silos, "--partition", 2, "--count", 8, "--seed", seed)[0] == 0
        code, out_, err = command(
            "train", "federated", "--silos", silos, "--model", model, "--out", out, *SMALL, *words, "--json"
        )
        assert bool(code) == fails, err
        return dict(json.loads(out_))

    return run


def test_three_starts_three_true_sentences(train: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    first = train("first", "vt5-start", *PRIVATE)["privacy"]
    assert first["kind"] == "bound" and first["epsilon"] <= 8
    assert "Its start is public: synthetic pages" in first["claim"] and "came from a seed" not in first["claim"]

    twice = train("twice", "first/model", *PRIVATE)["privacy"]
    mechanism = Mechanism(guarantee_noise(tmp_path / "twice"), 1)
    assert twice["epsilon"] == pytest.approx(epsilon_of([mechanism, mechanism], 1e-3))
    assert twice["epsilon"] > guarantee(mechanism, 1e-3).epsilon and twice["epsilon_of_this_training"] <= 8
    assert "2 trainings composed, as if each provider were in all of them" in twice["claim"]
    assert train("twice", "first/model", *PRIVATE)["privacy"] == twice, "resumed: nothing counts twice"

    learnt = train("learnt", "vt5-start", *PRIVATE, "--objective", "tm")["privacy"]
    assert learnt["kind"] == "bound"
    tuned = train("tuned", "learnt/model", *PRIVATE)["privacy"]
    assert "central training (tm" in tuned["claim"] or "federated training (tm, 1 round)" in tuned["claim"]
    assert tuned["epsilon"] > 8

    plain = train("plain", "vt5-start")
    assert plain["privacy"] is None and plain["lineage"]["kind"] == "no guarantee"
    after = train("after", "plain/model", *PRIVATE)["privacy"]
    assert after["epsilon"] is None and after["kind"] == "no guarantee"
    said = "no guarantee: its start was trained on "
    assert said in after["claim"] and "of these" in after["claim"] and "providers without privacy" in after["claim"]
    assert len({first["claim"], twice["claim"], tuned["claim"], after["claim"]}) == 4


def guarantee_noise(run: Path) -> float:
    return float(json.loads((run / "ledger.json").read_text())["plan"]["mechanism"]["noise_multiplier"])


def test_other_providers_are_told_from_the_same(train: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Whose data it was is in keyed hashes beside the run, not beside the weights; else the worst is counted."""
    train("first", "vt5-start", *PRIVATE, silos="silos")
    text = (tmp_path / "first" / "providers.json").read_text()
    names = {json.loads(line)["provider"] for file in (tmp_path / "silos").rglob("pages.jsonl")
             for line in file.read_text().splitlines()}  # fmt: skip
    assert names and not any(name in text for name in names)
    assert (tmp_path / "first" / "providers.json").stat().st_mode & 0o077 == 0
    card = (tmp_path / "first" / "model" / "docleak.json").read_text()
    assert not any(one in card for of in json.loads(text)["hashes"].values() for one in of), "nor how many there are"
    others = {p.name for p in (tmp_path / "first").iterdir()}
    assert "providers.json" in others
    rename(tmp_path / "silos", tmp_path / "apart")
    apart = train("apart-run", "first/model", *PRIVATE, silos="apart")["privacy"]
    assert "parallel composition" in apart["claim"] and apart["epsilon"] <= 8
    shutil.copytree(tmp_path / "first" / "model", tmp_path / "copied" / "model")
    unknown = train("unknown-run", "copied/model", *PRIVATE, silos="apart")["privacy"]
    assert "as if each provider were in all of them" in unknown["claim"] and unknown["epsilon"] > 8


def test_whom_no_round_drew_the_model_never_saw(train: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """The claim counts them, for they could have been drawn; who asks whose data the model saw is not told of them."""
    train("run", "vt5-start", "--participation", 0.5)
    (drawn,) = json.loads((tmp_path / "run" / "units" / "round-0001" / "unit.json").read_text())["clients"]
    saw = record_of(str(tmp_path / "run" / "model"))
    known = fingerprints_of(str(tmp_path / "run" / "model"))
    assert saw is not None and known is not None
    silos = {silo.name: providers_in(silo) for silo in (tmp_path / "silos").iterdir() if silo.is_dir()}
    (idle,) = (silo for silo in silos if silo != drawn["silo"])
    assert silos[idle] - silos[drawn["silo"]], "nothing to tell apart"
    assert all(map(saw.knows, silos[drawn["silo"]]))
    assert not any(map(saw.knows, silos[idle] - silos[drawn["silo"]]))
    assert all(map(known.knows, silos[idle]))
    train("run", "vt5-start", "--participation", 0.5, "--rounds", 6)
    saw = record_of(str(tmp_path / "run" / "model"))
    rounds = [json.loads(file.read_text()) for file in (tmp_path / "run" / "units").glob("round-*/unit.json")]
    assert len({client["silo"] for of in rounds for client in of["clients"]}) == 2, "take another number of rounds"
    assert saw is not None and all(map(saw.knows, silos[idle]))


def providers_in(silo: Path) -> set[str]:
    lines = [json.loads(line) for file in silo.rglob("pages.jsonl") for line in file.read_text().splitlines()]
    return {provider_key(line["provider"]) for line in lines}


def rename(silos: Path, out: Path) -> None:
    """The same pages, of other providers."""
    shutil.copytree(silos, out)
    for file in out.rglob("pages.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row["provider"] = f"other {row['provider']}"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_start_of_which_nothing_is_known(train: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    train("first", "vt5-start")
    foreign, card = tmp_path / "foreign", tmp_path / "first" / "model" / "docleak.json"
    shutil.copytree(tmp_path / "first" / "model", foreign)
    (foreign / "docleak.json").unlink()
    said = train("unknown", "foreign", *PRIVATE)["privacy"]
    assert said["kind"] == "unknown" and said["epsilon"] is None and "nothing says what its start saw" in said["claim"]
    declared = train("declared", "foreign", *PRIVATE, "--start-is-public")["privacy"]
    assert declared["epsilon"] <= 8 and "declared public by the user" in declared["claim"]
    assert "declared public" in train("declared", "foreign", *PRIVATE)["privacy"]["claim"], "kept when resumed"
    error = train("refused", "first/model", *PRIVATE, "--start-is-public", fails=True)["error"]
    assert "cannot be declared public" in error
    said = "--start-is-public belongs to a start of which nothing is recorded, and does nothing here. Leave it out."
    assert said in train("idle", "vt5-start", "--start-is-public", fails=True)["error"]
    assert "declared public" in train("declared", "foreign", *PRIVATE, "--start-is-public")["privacy"]["claim"]
    value = json.loads(card.read_text())
    value["lineage"]["weights"] = "0" * 64
    card.write_text(json.dumps(value))
    changed = train("changed", "first/model", *PRIVATE)["privacy"]
    assert changed["kind"] == "unknown" and "not those that its docleak.json was written for" in changed["claim"]
    card.write_text("{")
    assert "docleak.json cannot be read" in train("damaged", "first/model", fails=True)["error"]


def test_a_ledger_that_does_not_fit_its_rounds(train: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Deleted, set back, or with the last state gone: never a smaller claim."""
    words = ("--noise", 1, "--denominator", 2, "--delta", 1e-3, "--rounds", 2)
    before = train("run", "vt5-start", *words)["privacy"]
    assert before["rounds_begun"] == 2
    ledger, rounds = tmp_path / "run" / "ledger.json", tmp_path / "run" / "units"
    text = ledger.read_text()
    (rounds / "round-0002" / "state.safetensors").unlink()
    again = train("run", "vt5-start", *words)["privacy"]
    assert again["rounds_begun"] == 2 and again["epsilon"] == before["epsilon"], "the round is spent, and counted"
    for begun in (0, 1):
        ledger.write_text(json.dumps({**json.loads(text), "begun": begun}))
        error = train("run", "vt5-start", *words, fails=True)["error"]
        assert f"says that {begun} rounds were begun, and there is a round 2" in error and "at most all 2" in error
    ledger.unlink()
    assert "ledger.json is gone" in train("run", "vt5-start", *words, fails=True)["error"]
    shutil.rmtree(rounds)
    assert "ledger.json is gone" in train("run", "vt5-start", *words, fails=True)["error"]
    ledger.write_text(text)
    assert train("run", "vt5-start", *words, "--seed", 1, fails=True)["error"].count("another config")


def test_two_phases_under_one_plan(train: Callable[..., dict[str, Any]], command: Command) -> None:
    both = ("--phases", "first:1,second:1:0.5", "--epsilon", 8, "--denominator", 2, "--delta", 1e-3)
    train("one", "vt5-start", *both, "--phase", "first", "--objective", "lm")
    privacy = train("two", "one/model", *both, "--phase", "second")["privacy"]
    assert 7.9 < privacy["epsilon"] <= 8 and "2 trainings composed" in privacy["claim"]
    code, out, _ = command("budget", "--epsilon", 8, "--delta", 1e-3, "--phases", "first:1,second:1:0.5", "--json")
    planned = json.loads(out)
    assert code == 0 and privacy["epsilon"] == pytest.approx(planned["epsilon"])
    assert [row["phase"] for row in planned["phases"]] == ["first", "second"]
    for words in (("--phases", "a:1"), ("--phase", "a"), ("--phases", "a:1", "--phase", "b", "--epsilon", 8)):
        assert train("no", "vt5-start", *words, "--denominator", 2, fails=True)["error"]
