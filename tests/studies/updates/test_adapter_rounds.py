"""Words of a client that sends adapters alone, over rounds: read in one audit of its captured updates."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.models import load_model
from docleak.models.lora import Lora, adapt
from docleak.studies.engine import carry_out
from docleak.studies.updates.causes import Diagnosis
from docleak.studies.updates.config import UpdatesConfig
from docleak.studies.updates.study import UpdatesStudy
from docleak.studies.updates.told import plan_of
from docleak.training.federated.capture import CapturedUpdate, write_update
from docleak.training.federated.local import parameters_of, set_parameters, train_locally
from docleak.training.federated.local_plan import LocalPlan
from tests.wide import make_wide

pytest.importorskip("peft", reason="the extra adapters is not installed")
SIZE = 56, 84


def small(folder: Path) -> None:
    """A checkpoint's processor told to make pages of SIZE, so that a page is six vectors."""
    file = folder / "preprocessor_config.json"
    if not file.exists():
        file = folder / "processor_config.json"
    settings = json.loads(file.read_text())
    images = settings.get("image_processor", settings)
    images["max_pixels"] = images["size"]["longest_edge"] = SIZE[0] * SIZE[1]
    images["min_pixels"] = images["size"]["shortest_edge"] = 28 * 28
    file.write_text(json.dumps(settings))


def captured(folder: Path, *, rounds: int, plan: LocalPlan) -> Path:
    """A capture of one client over ``rounds``, the server's rate 1."""
    make_wide(
        "qwen2_vl", folder / "base", text={"hidden_size": 96, "num_attention_heads": 8}, vision={"hidden_size": 96}
    )
    small(folder / "base")
    adapt(str(folder / "base"), folder / "adapters", Lora.parsed("r=8,targets=q_proj+k_proj+v_proj"), seed=3)
    pages = make_pages(1, seed=2)
    save(pages, folder / "pages")
    model = load_model(str(folder / "adapters"))
    for number in range(1, rounds + 1):
        start = parameters_of(model)
        done = train_locally(model, pages, plan, client="one", rng=np.random.default_rng(number))
        write_update(
            folder / "capture", round=number, client="one", start=start, received=done.update.delta, kind="delta",
            examples=1, details={**asdict(plan), "model": str(folder / "adapters")},
        )  # fmt: skip
        set_parameters(model, {name: value - done.update.delta[name] for name, value in start.items()})
    return folder / "capture"


def audited(folder: Path, capture: Path, number: int) -> dict[str, Any]:
    config = UpdatesConfig(
        str(capture), documents=str(folder / "pages"), round=number, attack="random", budget=1, steps=(),
        batch_sizes=(), allow_failed_self_test=True,
    )  # fmt: skip
    run = carry_out(UpdatesStudy(config), folder / f"run-{number}")
    return {**run.units()[0]["words"], "reading": UpdatesStudy.read([run], np.random.default_rng(0))}


SGD = LocalPlan(batch_size=1, max_steps=1, optimiser="sgd", learning_rate=0.3, weight_decay=0.0, dropout=False)


def test_words_come_out_of_adapters_over_rounds(tmp_path: Path) -> None:
    """Round 1 alone moves B only; what the other rounds add is used whichever round is audited."""
    words = audited(tmp_path, captured(tmp_path, rounds=6, plan=SGD), 1)
    assert words["rounds"] == 5 and words["found"] == words["right"] == words["true"] and words["exact"], words
    said = " ".join(words["reading"].lines)
    assert "span of its first layer's updates over 5 rounds" in said and "can be sure" in said, "round 1 tells nothing"


def test_what_one_round_lacks_is_read_out_of_the_others(tmp_path: Path) -> None:
    """Of the round that is audited the first layer's adapters did not arrive: those of the others were left aside."""
    capture = captured(tmp_path, rounds=6, plan=SGD)
    sent = capture / "round-0004" / "one.safetensors"
    arrays = load_file(sent)
    save_file({name: value for name, value in arrays.items() if ".layers.0." not in name}, sent)
    words = audited(tmp_path, capture, 4)
    assert words["rounds"] == 4 and words["found"] == words["right"] == words["true"], words


def test_another_round_is_planned_as_it_says_itself() -> None:
    """One that says its epochs alone was given the steps of the round that is audited."""
    audited = {**asdict(SGD), "epochs": 4, "max_steps": 4}
    details = {"optimiser": "sgd", "learning_rate": 0.3, "batch_size": 1, "weight_decay": 0.0}
    for said, epochs, steps in (({"epochs": 2}, 2, 0), ({"steps": 3}, 3, 3), ({"max_steps": 1}, 4, 1), ({}, 4, 4)):
        other = CapturedUpdate(Path("r"), 2, "one", "delta", 1, {**details, **said})
        plan = plan_of(other, guess=audited)
        assert (plan.epochs, plan.max_steps) == (epochs, steps), said


def test_of_the_first_round_alone_the_server_is_not_sure(tmp_path: Path) -> None:
    capture = captured(tmp_path, rounds=1, plan=SGD)
    study = UpdatesStudy(UpdatesConfig(str(capture), documents=str(tmp_path / "pages")))
    idle = Diagnosis(study.case(study.chosen[0]).round, {}, {})._idle
    assert not [name for name in idle if "lora_A" in name], "A stands still at B = 0 alone, and is no row of a table"
    words = audited(tmp_path, capture, 1)
    assert not words["exact"] and words["found"] == words["right"] < words["true"]
    assert "cannot be sure" in " ".join(words["reading"].lines)
