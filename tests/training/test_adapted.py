"""Adapters in training: what is trainable is sent, counted, clipped; what cannot move is refused."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import docleak
from docleak.errors import ModelError, PrivacyError
from docleak.models import load_model, trainable
from docleak.models.base import DocumentModel
from docleak.models.lora import Lora, adapt
from docleak.models.shipped import CHECKPOINTS
from docleak.privacy.lineage import PUBLIC, UNKNOWN
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.training.federated.federation import Federation
from docleak.training.federated.party import fresh_model_of
from docleak.training.federated.summary import Cost, network_of
from docleak.training.federated.wire import Compression
from docleak.training.lineage import lineage_of, write_lineage
from docleak.training.private.clipping import clipped_sum
from docleak.training.private.moving import require_moving
from docleak.training.settings import TrainingSettings

pytest.importorskip("peft", reason="the extra adapters is not installed")
START = "lora:layoutlmv3-start,r=2,targets=query+value,seed=3"
#: Two matrices of rank 2 beside 128 x 128, for query and value of 4 layers.
TRAINED = 4 * 2 * 2 * (2 * 128)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of two silos and two rounds over adapters."""
    out = tmp_path_factory.mktemp("run")
    docleak.train(
        model="layoutlmv3-start", lora="r=2,targets=query+value", silos=2, documents=12, rounds=2, max_steps=2,
        batch_size=2, learning_rate=1e-2, holdout=0.2, evaluate_every=0, seed=3, capture=True, out=out,
    )  # fmt: skip
    return out


def test_only_adapters_are_sent_and_counted(run: Path) -> None:
    assert Cost.of(network_of(START)).up(Compression()) == 4 * TRAINED
    for number in (1, 2):
        for file in (run / "updates" / f"round-{number:04}").glob("*.safetensors"):
            arrays = load_file(file)
            assert sum(array.numel() for array in arrays.values()) == TRAINED
            assert all(".lora_" in name for name in arrays)
            if file.stem != "start":
                assert all(array.any() for array in arrays.values())


def test_what_is_trained_are_adapters_on_the_same_base(run: Path) -> None:
    trained, start = load_model(str(run / "model")), load_model(START)
    assert not (run / "model" / "model.safetensors").exists()
    names = {name for name, _ in trainable(start.module)}
    for (name, now), (_, then) in zip(trained.module.named_parameters(), start.module.named_parameters(), strict=True):
        assert torch.equal(now, then) == (name not in names), name
    assert lineage_of(START) == lineage_of("layoutlmv3-start")
    assert lineage_of(str(run / "model")).trainings


def test_a_lineage_of_adapters_is_of_the_base_that_it_was_written_for(tmp_path: Path) -> None:
    base, adapters = tmp_path / "base", tmp_path / "adapters"
    shutil.copytree(CHECKPOINTS / "layoutlmv3-start", base)
    adapt(str(base), adapters, Lora(2, targets=("query",)), seed=0)
    write_lineage(adapters, lineage_of(str(base)))
    assert lineage_of(str(adapters)).origin == PUBLIC
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")  # another training's, put in its place
    assert lineage_of(str(adapters)).origin == UNKNOWN


@pytest.mark.parametrize("private", [{}, {"unit": "record", "noise": 1.0, "denominator": 4}], ids=["plain", "record"])
def test_adapters_that_cannot_be_made_leave_no_run(tmp_path: Path, private: dict[str, Any]) -> None:
    pages = docleak.load_pages("synthetic", count=2, seed=0) if private else None
    for lora, said in (
        ("r=2,targets=qerry", r"targets \(qerry\) among its linear layers"),
        ("rank=2", "cannot be told"),
    ):
        with pytest.raises(ModelError, match=said):
            docleak.train(model="layoutlmv3-start", lora=lora, pages=pages, out=tmp_path / "out", **private)
        assert not (tmp_path / "out" / "run.json").exists()


def test_settings_say_which_adapters() -> None:
    assert TrainingSettings(model="m", lora="r=2", seed=4).start == "lora:m,r=2,seed=4"
    assert TrainingSettings(model="m", lora="r=2,seed=1", seed=4).start == "lora:m,r=2,seed=1"
    assert TrainingSettings(model="m").start == "m"
    for source, said in (
        ("lora:layoutlmv3-start,rank=2", "cannot be told 'rank=2'"),
        ("lora:layoutlmv3-start,r=2,seed=-1", "seed is -1"),
        (f"lora:{START}", "cannot be told|no model|has adapters already"),
        ("lora:vt5-start", "network is docleak's own"),
    ):
        with pytest.raises(ModelError, match=said):
            load_model(source)


def test_only_adapters_are_clipped() -> None:
    model = load_model(START)
    weights = {name: p.detach().clone() for name, p in trainable(model.module)}

    def step() -> None:
        with torch.no_grad():
            for _, p in trainable(model.module):
                p += 1

    clipped = clipped_sum(model.module, weights, [step], 0.5)
    assert clipped.norms[0] == pytest.approx(math.sqrt(TRAINED))
    assert math.sqrt(sum(float(total.square().sum()) for total in clipped.total.values())) == pytest.approx(0.5)

    def thaw() -> None:
        with torch.no_grad():
            next(p for p in model.module.parameters() if not p.requires_grad).add_(1)

    with pytest.raises(PrivacyError, match="which is not clipped"):
        clipped_sum(model.module, weights, [thaw], 0.5)


def first_adapter(model: DocumentModel) -> torch.nn.Module:
    return next(part for name, part in model.module.named_modules() if hasattr(part, "lora_A"))


def test_adapters_that_cannot_move_are_refused_under_privacy() -> None:
    model = load_model(START)
    require_moving(model)
    require_moving(load_model("layoutlmv3-start"))
    layer = first_adapter(model)
    kept = layer.lora_A["default"].weight.detach().clone()
    with torch.no_grad():
        layer.lora_A["default"].weight.zero_()
    with pytest.raises(PrivacyError, match=r"A and B are both 0 in 1 of 8 adapters, first of layoutlmv3.*query"):
        require_moving(model)
    with torch.no_grad():
        layer.lora_A["default"].weight.copy_(kept)
    handle = layer.register_forward_hook(lambda module, given, out: out.detach())
    with pytest.raises(PrivacyError, match="no gradient arrives in 1 of 8 adapters"):
        require_moving(model)
    handle.remove()
    require_moving(model)


def test_a_private_federation_does_not_begin_with_them(tmp_path: Path) -> None:
    model = load_model(START)
    with torch.no_grad():
        first_adapter(model).lora_A["default"].weight.zero_()
    model.save(str(tmp_path / "still"))
    plan = DpPlan(Mechanism(1.0, 1, 1.0), clip_norm=0.5, denominator=10, delta=1e-5)
    with pytest.raises(PrivacyError, match="A and B are both 0"):
        fresh_model_of(Federation(str(tmp_path / "still"), 1, privacy=plan), "cpu")
    fresh_model_of(Federation(str(tmp_path / "still"), 1), "cpu")
