"""Whether pages were in updates that a training recorded, instead of ones that the study makes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from docleak.documents.folder import load, save
from docleak.errors import DocleakError, DocumentError, SelfTestError
from docleak.metrics.estimate import Estimate
from docleak.report.severity import Severity
from docleak.studies.presence.config import PresenceConfig
from docleak.studies.presence.reading import SCORES, rows_of, told
from docleak.studies.presence.study import PresenceStudy

Command = Callable[..., tuple[Any, str, str]]
TRAINING = (
    "--model", "layoutlmv3-start", "--clients", 2, "--documents", 36, "--rounds", 1, "--max-steps", 1, "--batch-size",
    8, "--optimiser", "sgd", "--learning-rate", 0.01, "--no-dropout", "--evaluate-every", 0, "--holdout", 0.5,
)  # fmt: skip


@pytest.fixture
def training(command: Command, tmp_path: Path) -> Path:
    """A training of two silos, with its updates."""
    code, _, err = command("train", "federated", *TRAINING, "--out", "fed")
    assert code == 0, err
    return tmp_path / "fed"


def test_pages_of_recorded_updates_are_told_from_what_the_silos_keep(
    training: Path, command: Command, tmp_path: Path
) -> None:
    code, out, err = command("audit", "presence", training / "updates", "--out", "run", "--json", "--workers", 1)
    assert code == 0, err
    (row,) = json.loads(out)["presence"]
    units = [json.loads(file.read_text()) for file in sorted((tmp_path / "run" / "units").glob("*/unit.json"))]
    assert [unit["client"] for unit in units] == ["synthetic-0", "synthetic-1"]
    assert all(unit["replayed"] and len(unit["controls"]) == 4 and unit["rank"] < unit["width"] for unit in units)
    inside = [one["residual"] for unit in units for one in unit["inside"]]
    outside = [one["residual"] for unit in units for one in unit["outside"]]
    assert len(inside) >= 10 and len(inside) == len(outside) and min(inside) > max(outside)
    assert row["ours"]["residual_auc"]["value"] == 1.0
    printed = (tmp_path / "run" / "report.html").read_text()
    assert "Made-up pages; nobody" in printed
    assert "checked for 2 of 2 updates by training the client again" in printed
    assert "not in the one they were asked of" in printed and "in none" not in printed
    assert "Federated training of layoutlmv3-start" in printed and "2 recorded updates (sgd, 1 step)" in printed

    updates = sorted((training / "updates").rglob("synthetic-*.json"))
    (training / "silos" / "synthetic-0" / "silo.json").unlink()
    for file in updates:  # as somebody else's program would have recorded it
        told = json.loads(file.read_text())
        told["details"] = {key: told["details"][key] for key in ("optimiser", "learning_rate", "batch_size")}
        file.write_text(json.dumps({**told, "examples": 8}))
    study = PresenceStudy(PresenceConfig(updates=str(training / "updates"), model="layoutlmv3-start", pages=4))
    turn = study.turns.turn(0)
    assert not study.turns.facts()["recorded"]["made_up"], "nobody says whose these are"
    silo = load(training / "silos" / "synthetic-0")
    seen = {page.image.tobytes() for page in silo}
    assert turn.facts["replayed"] is False and len(turn.inside) == 1, "half of the pages, and two updates"
    assert not any(one.pages[0].image.tobytes() in seen for one in (*turn.outside, *turn.controls)), (
        "it may have held all"
    )


def test_what_is_no_updates_pages_is_refused(training: Path, tmp_path: Path) -> None:
    def opened(**asked: Any) -> None:
        study = PresenceStudy(PresenceConfig(updates=str(training / "updates"), **asked))
        study.check(lambda text: None)
        study.turns.turn(0)

    wrong = f"synthetic-0={training / 'silos' / 'synthetic-1'}"
    with pytest.raises(SelfTestError, match="sends something else") as fault:
        opened(clients=(wrong,))
    assert "--allow" not in str(fault.value), "no option of this command"
    few = save(load(training / "silos" / "synthetic-1")[:2], tmp_path / "few")
    with pytest.raises(DocumentError, match="expected more than the 4 controls"):
        opened(others=str(few))
    again = load(training / "silos" / "synthetic-0")
    stained = [replace(page, image=np.minimum(page.image, 250)) for page in again]  # the same words in another picture
    others = str(save(stained, tmp_path / "stained"))
    turn = PresenceStudy(PresenceConfig(updates=str(training / "updates"), others=others)).turns.turn(0)
    held, out = (
        {tuple(word.text for word in one.pages[0].words) for one in of}
        for of in (turn.inside, (*turn.outside, *turn.controls))
    )
    assert held and out and held.isdisjoint(out)
    six = str(save(load(training / "silos" / "synthetic-1")[:6], tmp_path / "six"))
    turn = PresenceStudy(PresenceConfig(updates=str(training / "updates"), others=six)).turns.turn(0)
    assert len(turn.inside) == len(turn.outside) == 2, "of several updates none counts more on one side"
    with pytest.raises(DocleakError, match="asked for round 3"):
        opened(round=3)


def test_what_is_made_and_what_is_recorded_take_their_own_options(command: Command) -> None:
    code, _, err = command("audit", "presence", "--others", "synthetic")
    assert code == 1 and "--others belongs to recorded updates" in err
    code, _, err = command("audit", "presence", "updates", "--batch-size", 3)
    assert code == 1 and "--batch-size belongs to updates that are made here" in err


@pytest.mark.parametrize(
    ("blind", "severity", "said"),
    [
        (Estimate(0.5, 0.4, 0.6, 40), Severity.SEVERE, ""),
        (Estimate(0.9, 0.8, 0.95, 40), Severity.UNTOLD, "tells them apart, too, so that nothing is concluded"),
        (None, Severity.UNTOLD, "too few pages for the control"),
    ],
)
def test_two_kinds_of_pages_are_no_finding(
    blind: Estimate | None, severity: Severity, said: str, tmp_path: Path
) -> None:
    """Pages of another vendor than the update's are told from these without any update."""
    record: dict[str, Any] = {"rank": 1, "width": 2, "replayed": False, "optimiser": "sgd", "steps": 1, "client": "a"}
    for kind in ("inside", "outside", "controls"):
        record[kind] = [dict.fromkeys(SCORES, n + 50.0 * (kind == "inside")) for n in range(24)]
    info = {"recorded": {"model": "m", "updates": 1}, **({"blind": blind.to_json()} if blind else {})}
    config = {"pages": None, "batch_size": 2, "seed": 5, "per_provider": 0}
    run = SimpleNamespace(path=tmp_path, config=config, info=info, units=lambda: [record])
    _, part, measure = rows_of(run, np.random.default_rng(0))  # type: ignore[arg-type]
    assert part.severity is severity and said in part.sentence
    assert measure.estimate.value == (None if said else 1.0) and "a wrong one hides what is there" in measure.doubts[0]
    assert "checked for 0 of 1 update" in part.sentence and "a wrong one hides what is there" in part.sentence


def test_scores_that_are_surely_lower_for_what_is_inside_are_no_low_number(tmp_path: Path) -> None:
    """Who sees that turns the score round: an AUC of 0 tells as much as one of 1."""
    record: dict[str, Any] = {"rank": 1, "width": 2}
    for kind in ("inside", "outside", "controls"):
        record[kind] = [{**dict.fromkeys(SCORES, n - 50.0 * (kind == "inside")), "whose": ""} for n in range(24)]
    config = {"pages": 48, "batch_size": 24, "seed": 5, "per_provider": 0, "model": "m", "optimiser": "sgd",
              "local_steps": 1, "precision": "float32"}  # fmt: skip
    run = SimpleNamespace(path=tmp_path, config=config, info={}, units=lambda: [record])
    _, part, measure = rows_of(run, np.random.default_rng(0))  # type: ignore[arg-type]
    (doubt,) = measure.doubts
    assert "surely lower for those that the updates hold" in doubt
    assert part.severity is Severity.UNTOLD and doubt in part.sentence


def test_updates_of_different_clients_are_each_read_by_themselves() -> None:
    """Each update tells its own pages without fault; pooled as they are, a third of the pairs are the wrong way."""
    records = [
        {"client": client, "controls": [{"residual": level + 0.1 * n} for n in range(4)],
         "inside": [{"residual": level + 2.0 + 0.1 * n} for n in range(9)],
         "outside": [{"residual": level + 0.1 * n} for n in range(9)]}
        for client, level in (("a", 1.0), ("b", 8.0), ("c", 20.0))
    ]  # fmt: skip
    auc, _ = told(records, "residual", np.random.default_rng(0))
    assert auc.value == 1.0
    pooled = [{kind: of for kind, of in one.items() if kind != "client"} for one in records]
    assert told(pooled, "residual", np.random.default_rng(0))[0].value == pytest.approx(2 / 3)
