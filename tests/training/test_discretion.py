"""What leaves a silo besides its update: one sentence that is always the same, whatever was raised, wherever."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.errors import DocumentError, FederationError
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower import app as app_module
from docleak.training.federated.flower import client as client_module
from docleak.training.federated.flower.app import client_app
from docleak.training.federated.flower.discretion import LOG, REDACTED
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.flower.grid import LocalGrid
from docleak.training.federated.flower.messages import config_record
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.record import FederatedRun, load_run
from docleak.training.federated.secure.plan import SecurePlan
from docleak.training.federated.silo_ledger import SiloLedger
from docleak.training.federated.silo_limits import SiloLimits

SECRET = "provider 'ACME secret GmbH' page 7"
PLAN = DpPlan(Mechanism(0.8, 1), clip_norm=0.5, denominator=2, delta=1e-3)
LOCAL = LocalPlan(max_steps=1, batch_size=2, dropout=False)
OPEN = Federation(rounds=1, holdout=0.3, seed=3, local=LOCAL)
PRIVATE = replace(OPEN, privacy=PLAN)
SECURE = replace(OPEN, secure=SecurePlan(limit=10.0))


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("discretion") / "silos"
    division = divide(["synthetic"], 2, by="providers", seed=0, count=10)
    write_silos(division.shares, division.sources, out, by="providers", seed=0)
    return {item.name: item for item in sorted(out.iterdir())}


def failing(*arguments: Any, **more: Any) -> Any:
    """A fault with a cause, as real ones have."""
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ValueError(SECRET) from error


def failing_in_words(*arguments: Any, **more: Any) -> Any:
    raise DocumentError(SECRET)


@pytest.mark.parametrize("fault", [failing, failing_in_words])
@pytest.mark.parametrize(
    ("federation", "where"),
    [
        (PRIVATE, "introduce"), (PRIVATE, "open_party"), (PRIVATE, "private_round"), (PRIVATE, "pack"),
        (PRIVATE, "evaluate_privately"), (SECURE, "train_round"), (SECURE, "evaluate"), (SECURE, "answer_step"),
    ],
)  # fmt: skip
def test_nothing_that_is_raised_reaches_the_server(
    federation: Federation, where: str, fault: Any, silos: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(app_module if where == "answer_step" else client_module, where, fault)
    with caplog.at_level(logging.DEBUG), pytest.raises(FederationError) as error:
        train_embedded(FederatedRun.open(tmp_path / "run", federation), silos, evaluate_every=int("evaluate" in where))
    told = [str(error.value), str(error.value.__cause__), str(error.value.__context__), caplog.text]
    assert REDACTED in told[0] and "'synthetic-0'" in told[0]
    files = [file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert files and not any(b"ACME" in content for content in [*files, *(part.encode() for part in told)])
    captured = capsys.readouterr()
    assert "ACME" not in captured.out and SECRET in captured.err, "the silo's operator reads all of it"


def test_without_a_plan_the_reason_is_said(
    silos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "train_round", failing)
    with pytest.raises(FederationError, match="'synthetic-0': failed: ValueError: provider 'ACME secret"):
        train_embedded(FederatedRun.open(tmp_path, OPEN), silos, evaluate_every=0)


def asked(kind: str, federation: str, config: dict[str, str]) -> dict[str, Any]:
    app = client_app()
    LocalGrid(app, {})  # tells Flower who this process is
    message = Message(
        RecordDict({"config": config_record({"federation": federation, "round": 1, "clients": 2})}), 1, kind
    )
    message.metadata.__dict__["_message_id"] = "1"
    return dict(app(message, Context(1, 1, dict(config), RecordDict(), {})).content["fault"])


def test_a_silo_with_limits_says_nothing_to_a_server_that_asks_without_a_plan(
    silos: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Leaving the plan out, or sending what cannot be read, is no way to an answer or to a reason."""
    limits = SiloLimits.of(PRIVATE, 2, rounds=1)
    limits.save(tmp_path)
    SiloLedger(limits).save(tmp_path)
    config = {"silo": str(silos["synthetic-0"]), "name": "a", "keep": str(tmp_path)}
    for kind, federation, said in (
        ("query", OPEN.to_json(), "this silo takes part under one only"),
        ("evaluate", PRIVATE.to_json(), "this silo gives none"),
        ("train", OPEN.to_json(), "this silo takes part under one only"),
        ("train", replace(PRIVATE, privacy=replace(PLAN, clip_norm=9.0)).to_json(), "clips to 9"),
        ("train", "{", "no JSON"),
    ):
        assert asked(kind, federation, config) == {"silo": "a", "message": REDACTED}
        assert said in capsys.readouterr().err
        assert said in (tmp_path / LOG).read_text().split("silo 'a'")[-1]
    assert (tmp_path / LOG).stat().st_mode & 0o777 == 0o600
    assert asked("query", "{", {"silo": "nowhere", "name": "a"})["message"] == REDACTED, (
        "what cannot be read is private"
    )


def test_a_silo_of_an_embedded_training_keeps_to_limits_in_its_folder(silos: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    copies = {name: Path(shutil.copytree(path, tmp_path / "silos" / name)) for name, path in silos.items()}
    folder = copies["synthetic-1"]
    limits = SiloLimits.of(PRIVATE, 2, rounds=1)
    limits.save(folder)
    SiloLedger(limits).save(folder)
    with pytest.raises(FederationError, match=r"'synthetic-1' keeps limits .*evaluate_every 0"):
        train_embedded(FederatedRun.open(tmp_path / "run", PRIVATE), copies)
    assert not SiloLedger.load(folder).begun and not (tmp_path / "run" / "units").exists()
    train_embedded(FederatedRun.open(tmp_path / "run", PRIVATE), copies, evaluate_every=0)
    assert load_run(tmp_path / "run").last_round() == 1
    assert [one.shares for one in SiloLedger.load(folder).begun] == [2]
    with pytest.raises(FederationError, match="'synthetic-1': it could not take part"):
        train_embedded(FederatedRun.open(tmp_path / "again", PRIVATE), copies, evaluate_every=0)
    assert len(SiloLedger.load(folder).begun) == 1 and "cost epsilon" in (folder / LOG).read_text()
    assert not (copies["synthetic-0"] / "ledger.json").exists(), "no limits, no ledger of its own"
