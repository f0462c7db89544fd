"""``docleak guard``: an honest checkpoint passes, a manipulated one is refused with reasons and exit code 1."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.models import load_model
from docleak.models.lora import Lora, adapt
from docleak.training.guard.checkpoint import changed_settings

Command = Callable[..., tuple[Any, str, str]]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sent") / "model"
    model = load_model("vt5-start")
    with torch.no_grad():
        matrix = model.module.t5.encoder.block[0].layer[1].DenseReluDense.wi_0.weight
        matrix.copy_(matrix[:1].expand_as(matrix))
    model.save(str(folder))
    return folder


def test_an_honest_model_passes(command: Command) -> None:
    code, out, err = command("guard", "vt5-start", "--last", "vt5-start", "--pages", "2", "--json")
    assert code == 0, err
    value = json.loads(out)
    assert not value["refused"] and {"flat", "leap", "bare"} <= {sign["sign"] for sign in value["signs"]}


@pytest.mark.parametrize("model", ["donut-start", "llava-trained"])
def test_the_tables_of_places_in_a_swin_tower_are_no_bins(command: Command, model: str) -> None:
    code, out, err = command("guard", model, "--pages", "1")
    assert code == 0, err
    assert "relative_position_index" not in out


def test_it_says_what_it_looked_at(command: Command, tmp_path: Path) -> None:
    _, alone, _ = command("guard", "vt5-start", "--pages", "1")
    assert "bare is of 1 page of synthetic" in alone and "No last model is given" in alone
    save(make_pages(1, seed=0), tmp_path / "ok")
    _, beside, _ = command("guard", "vt5-start", "--last", "vt5-start", "--documents", "ok", "--pages", "3")
    assert "bare is of 1 page of ok" in beside and "No last model" not in beside


def test_a_seed_that_draws_no_page_is_refused(command: Command, tmp_path: Path) -> None:
    save(make_pages(1, seed=0), tmp_path / "ok")
    code, out, err = command("guard", "vt5-start", "--documents", "ok", "--pages", "1", "--seed", "77")
    assert code == 1 and not out
    assert "--seed belongs to synthetic pages and drawn tables, and does nothing here. Leave it out." in err


def test_bins_are_refused_with_reasons(command: Command, sent: Path) -> None:
    code, out, err = command("guard", str(sent), "--last", "vt5-start", "--pages", "2")
    assert code == 1 and "Guard: refused." in out
    assert "wi_0.weight is two directions" in err and "Traceback" not in err
    code, out, err = command("guard", str(sent), "--pages", "2", "--json")
    assert code == 1 and json.loads(out)["refused"]


def test_the_frozen_base_of_adapters_is_looked_at(command: Command, tmp_path: Path) -> None:
    """Only the adapters were: "nothing speaks against it", whatever base they were sent on."""
    pytest.importorskip("peft", reason="the extra adapters is not installed")
    adapt("layoutlmv3-start", tmp_path / "last", Lora.parsed("r=4,targets=query"), seed=1)
    model: Any = load_model("layoutlmv3-start")
    with torch.no_grad():
        model.module.layoutlmv3.encoder.layer[0].attention.self.value.weight.mul_(5.0)
    model.save(str(tmp_path / "base"))
    told = json.loads((tmp_path / "last" / "adapter_config.json").read_text())
    for name, more in (("other", {"base_model_name_or_path": str(tmp_path / "base")}), ("heavy", {"lora_alpha": 999})):
        shutil.copytree(tmp_path / "last", tmp_path / name)
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({**told, **more}))
    given = ("--last", str(tmp_path / "last"), "--pages", "1")
    assert command("guard", str(tmp_path / "last"), *given)[0] == 0
    code, _, err = command("guard", str(tmp_path / "other"), *given)
    assert code == 1 and "self.value.weight moved by 4 of its own size" in err
    code, _, err = command("guard", str(tmp_path / "heavy"), *given)
    assert code == 1 and "adapter_config.json says lora_alpha 999, and said 16" in err


def test_what_an_older_peft_does_not_write_is_no_other_scale(tmp_path: Path) -> None:
    """Honest adapters were refused: "adapter_config.json says use_rslora False, and said None"."""
    pytest.importorskip("peft", reason="the extra adapters is not installed")
    adapt("layoutlmv3-start", tmp_path / "now", Lora.parsed("r=4,targets=query"), seed=1)
    shutil.copytree(tmp_path / "now", tmp_path / "old")
    told = json.loads((tmp_path / "now" / "adapter_config.json").read_text())
    assert told.pop("use_rslora") is False and told.pop("alpha_pattern") == {}
    (tmp_path / "old" / "adapter_config.json").write_text(json.dumps(told))
    assert changed_settings(str(tmp_path / "now"), str(tmp_path / "old")) == ()
    (tmp_path / "old" / "adapter_config.json").write_text(json.dumps({**told, "use_rslora": True}))
    (said,) = changed_settings(str(tmp_path / "old"), str(tmp_path / "now"))
    assert said == "adapter_config.json says use_rslora True, and said None"


def test_models_and_pages_that_are_not_there(command: Command) -> None:
    code, out, err = command("guard", "vt5-strt")
    assert (code, out) == (1, "") and "Did you mean 'vt5-start'" in err
    code, out, err = command("guard", "vt5-start", "--documents", "folder:nowhere")
    assert (code, out) == (1, "") and "nowhere" in err


def test_a_setting_within_settings_is_named(tmp_path: Path) -> None:
    """Both sides were cut off before what differs: "decoder {'activation_dropout': 0.0, 'activation_fun..."."""
    load_model("donut-start").save(str(tmp_path))
    told = json.loads((tmp_path / "config.json").read_text())
    told["decoder"]["scale_embedding"] = not told["decoder"]["scale_embedding"]
    (tmp_path / "config.json").write_text(json.dumps(told))
    (said,) = changed_settings(str(tmp_path), "donut-start")
    assert said.startswith("config.json says decoder.scale_embedding ")
