"""Captures under secure aggregation: one silo's words are noise, their sum is not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docleak.documents.division import divide
from docleak.documents.silos import write_silos
from docleak.errors import FederationError
from docleak.models import load_model
from docleak.report.severity import Severity
from docleak.studies.engine import carry_out
from docleak.studies.registry import report_on
from docleak.studies.updates.case import open_case
from docleak.studies.updates.config import UpdatesConfig
from docleak.studies.updates.secure import hiding
from docleak.studies.updates.study import UpdatesStudy
from docleak.studies.updates.verdict import _of_masks, severity_of
from docleak.training.federated.capture import read_updates, write_update
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.secure.plan import SecurePlan

FEDERATION = Federation(
    rounds=1, holdout=0.0, seed=3, secure=SecurePlan(), local=LocalPlan(max_steps=2, batch_size=8, dropout=False)
)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hidden")
    division = divide(["synthetic"], 2, by="providers", seed=0, count=8)
    write_silos(division.shares, division.sources, out / "silos", by="providers", seed=0)
    silos = {item.name: item for item in sorted((out / "silos").iterdir())}
    train_embedded(FederatedRun.open(out / "run", FEDERATION), silos, evaluate_every=0, capture=out / "updates")
    return out / "updates"


def test_the_audit_says_that_words_are_noise_and_what_the_sum_tells(capture: Path, tmp_path: Path) -> None:
    run = carry_out(UpdatesStudy(UpdatesConfig(str(capture))), tmp_path / "audit")
    records = {record["client"]: record for record in run.units()}
    assert len(records) == 3
    total = records["(sum of 2 silos)"]["words"]
    assert total["precision"] > 0.95 and total["recall"] > 0.5
    assert total["fields"][0] / total["fields"][1] > 2 * total["control"][0] / total["control"][1]
    assert records["(sum of 2 silos)"]["replay"]["distance"] < 1e-4
    for name in ("synthetic-0", "synthetic-1"):
        masked = records[name]["masked"]
        assert masked["hidden"] and abs(masked["correlation"]) < 5 * masked["chance"]
        words = records[name]["words"]
        assert "failed" in words or words["precision"] < 0.6
    page, (said,) = report_on([run.path])
    text, html = "\n".join(said.lines), page.read_text(encoding="utf-8")
    assert "noise to the server" in text and "all that the server learns" in text
    assert "secure aggregation" in html and "not told" not in html
    assert "tokens that the silos trained on" in text and "tokens that the client trained on" not in text
    assert "Each of the two silos takes its own update off it, and has the other's." in text
    assert any("of two, each has the other's" in limit for limit in said.limits)
    assert text.count("What the sum tells of this silo's pages is said of the sum.") == 2


def test_masks_that_hide_nothing_are_found_out(capture: Path, tmp_path: Path) -> None:
    """A planted fault: the true update with a little noise, sent as if it were masked."""
    masked = next(update for update in read_updates(capture) if update.client == "synthetic-0")
    model = load_model("vt5-start")
    case = open_case(masked, model, "synthetic")
    assert hiding(case)["hidden"] and case.replay.trained is not None
    rng = np.random.default_rng(0)
    true = case.replay.trained.update.delta
    noise = 30 * np.std(np.concatenate([value.ravel() for value in true.values()]))
    leaky = {name: (value + rng.normal(0, noise, value.shape)).astype(np.float32) for name, value in true.items()}
    write_update(
        tmp_path / "leaky", round=1, client="synthetic-0", start=masked.start(), received=leaky, kind="delta",
        examples=1, details=masked.details,
    )  # fmt: skip
    (written,) = read_updates(tmp_path / "leaky")
    comparison = hiding(open_case(written, model, f"folder:{capture.parent}/silos/synthetic-0"))
    assert not comparison["hidden"] and comparison["correlation"] > 0.01
    constant = replace(case, update=written)
    assert not hiding(constant)["hidden"]
    trained = case.replay.trained
    nothing = {name: np.zeros_like(value) for name, value in true.items()}
    still = replace(trained, update=replace(trained.update, delta=nothing))
    unmoved = replace(case, replay=replace(case.replay, trained=still))
    assert not hiding(unmoved)["hidden"], "of an update of zeros nothing can be said"


@pytest.mark.parametrize("size", [1, 200, 2000])
def test_a_tensor_that_is_left_out_of_the_masks_is_found_out(size: int, capture: Path, tmp_path: Path) -> None:
    """A planted fault that moves the correlation of all words, and their spread, by less than chance does."""
    masked = next(update for update in read_updates(capture) if update.client == "synthetic-0")
    case = open_case(masked, load_model("vt5-start"), "synthetic")
    assert case.replay.trained is not None
    sent, true = dict(masked.delta()), case.replay.trained.update.delta
    name = min((name for name in sent if sent[name].size >= size), key=lambda name: sent[name].size)
    sent[name] = true[name]
    write_update(tmp_path / "one", round=1, client="synthetic-0", start=masked.start(), received=sent, kind="delta",
                 examples=1, details=masked.details)  # fmt: skip
    (written,) = read_updates(tmp_path / "one")
    told = hiding(replace(case, update=written))
    assert not told["hidden"] and told["least"] == name and told["p_correlation"] > 1e-4
    assert f"NOT HIDDEN: do not trust this aggregation. Over {told['numbers']:,}" in _of_masks(told)
    assert f"{name} looks least like noise" in _of_masks(told)


def test_masks_that_are_used_twice_are_found_out(capture: Path, tmp_path: Path) -> None:
    """A planted fault: each round's words are noise, and less those of the next the silo's own change between them."""
    shutil.copytree(capture, tmp_path / "twice")
    masked, other = (
        next(update for update in read_updates(capture) if update.client == client)
        for client in ("synthetic-0", "synthetic-1")
    )
    case = open_case(masked, load_model("vt5-start"), "synthetic")
    told = hiding(case, [other])
    assert told["hidden"] and "Less 1 other masked update of its round" in _of_masks(told)
    assert "No other masked words were recorded" in _of_masks(hiding(case))
    words, scale = masked.delta(), 2.0**-20
    again = {
        name: value + scale * np.float32(np.sin(np.arange(value.size)).reshape(value.shape))
        for name, value in words.items()
    }
    write_update(tmp_path / "twice", round=2, client="synthetic-0", start=masked.start(), received=again, kind="delta",
                 examples=1, details=masked.details)  # fmt: skip
    asked = UpdatesConfig(
        str(tmp_path / "twice"), documents=str(capture.parent / "silos"), round=1, clients=("synthetic-0",)
    )
    run = carry_out(UpdatesStudy(asked), tmp_path / "audit")
    (record,) = run.units()
    assert record["masked"]["related"] == ["round 2, client synthetic-0"] and not record["masked"]["hidden"]
    (_, (said,)) = report_on([run.path])
    assert "The same masks hide the words of round 2, client synthetic-0" in "\n".join(said.lines)
    assert severity_of(record) is Severity.UNTOLD


@pytest.mark.parametrize("told", [False, True])
def test_an_update_of_zeros_is_refused_as_what_it_is(told: bool, capture: Path, tmp_path: Path) -> None:
    """Not by a division by zero, nor by causes that explain what was not sent."""
    masked = next(update for update in read_updates(capture) if update.client == "synthetic-0")
    start = masked.start()
    details = {**masked.details, "secure": None, "masked": None} if told else {"model": "vt5-start"}
    write_update(
        tmp_path / "zero", round=1, client="synthetic-0", start=start, kind="delta", examples=0, details=details,
        received={name: np.zeros_like(value) for name, value in start.items()},
    )  # fmt: skip
    silos = str(capture.parent / "silos")
    with pytest.raises(FederationError, match=rf"all {len(start)} tensors that came are zero: the client trained"):
        carry_out(UpdatesStudy(UpdatesConfig(str(tmp_path / "zero"), documents=silos)), tmp_path / "audit")


def test_words_that_are_masked_and_an_update_in_the_clear_are_two_audits(capture: Path, tmp_path: Path) -> None:
    """As one, whichever came first would say of both that the server reads nothing, or what it reads."""
    shutil.copytree(capture, tmp_path / "mixed")
    masked = next(update for update in read_updates(capture) if update.client == "synthetic-0")
    start = masked.start()
    write_update(
        tmp_path / "mixed", round=1, client="clear", start=start, received=start, kind="delta", examples=1,
        details={"model": "vt5-start"},
    )  # fmt: skip
    config = UpdatesConfig(str(tmp_path / "mixed"))
    with pytest.raises(FederationError, match="clear sent an update that the server reads, and others words masked"):
        UpdatesStudy(config).units()
    assert [update.client for update in UpdatesStudy(replace(config, clients=("clear",))).chosen] == ["clear"]
    assert len(UpdatesStudy(replace(config, clients=("synthetic-0", "synthetic-1"))).chosen) == 2
