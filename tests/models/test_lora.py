"""Adapters on a model, against peft's own: what moves, what is sent, and that the rest stays."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from docleak.attacks.gradients.selftest import self_test
from docleak.attacks.gradients.view import GradientView
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import DocumentModel, load_model, pixels_of, trainable
from docleak.models.lora import Lora, adapt
from docleak.models.vlm.tiny import make_tiny
from docleak.training.update import client_gradient

peft = pytest.importorskip("peft", reason="the extra adapters is not installed")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("base") / "qwen2_vl"
    make_tiny("qwen2_vl", folder, seed=0)
    return str(folder)


@pytest.fixture
def adapters(base: str, tmp_path: Path) -> Path:
    adapt(base, tmp_path / "adapters", Lora.parsed("r=4,targets=q_proj+v_proj"), seed=3)
    return tmp_path / "adapters"


def case_of(model: DocumentModel) -> tuple[Any, Any]:
    page = model.fit(make_pages(1, seed=2)[0])
    return pixels_of(page.image)[None], [model.encode(page, page.questions[0])]


def moved(folder: Path) -> DocumentModel:
    """The adapters as after some training: B is no longer 0."""
    model = load_model(str(folder))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in trainable(model.module):
            parameter.normal_(0, 0.1, generator=generator)
    return model


def test_only_adapters_are_trainable_and_the_model_is_the_base_at_first(base: str, adapters: Path) -> None:
    model, plain = load_model(str(adapters)), load_model(base)
    names = [name for name, _ in trainable(model.module)]
    assert len(names) == 8 and all(".lora_A." in name or ".lora_B." in name for name in names)
    assert sum(p.numel() for _, p in trainable(model.module)) == 2 * 4 * ((48 + 48) + (48 + 24))
    assert {model.stage(name) for name in names} == {"fusion"}
    assert model.name == "adapters" and model.architecture == "qwen2_vl" and model.image_size == plain.image_size
    pixels, inputs = case_of(model)
    with torch.no_grad():
        assert torch.equal(model.loss(pixels, inputs), plain.loss(pixels, inputs))


def test_saved_and_loaded_again_it_is_the_same_model(base: str, adapters: Path, tmp_path: Path) -> None:
    model = moved(adapters)
    model.save(str(tmp_path / "trained"))
    assert not (tmp_path / "trained" / "model.safetensors").exists(), "the base was saved with its adapters"
    again = load_model(str(tmp_path / "trained"))
    pixels, inputs = case_of(model)
    with torch.no_grad():
        assert torch.equal(model.loss(pixels, inputs), again.loss(pixels, inputs))
        assert not torch.equal(model.loss(pixels, inputs), load_model(base).loss(pixels, inputs))


def test_adapters_on_a_shipped_model_are_saved_without_asking_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = "peft.utils.save_and_load.check_file_exists_on_hf_hub"
    monkeypatch.setattr(hub, lambda *asked: pytest.fail(f"the hub was asked for {asked}"))
    adapt("layoutlmv3-start", tmp_path / "adapters", Lora.parsed("r=2,targets=query"), seed=3)
    told = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert (
        told["base_model_name_or_path"] == "layoutlmv3-start"
        and (tmp_path / "adapters/adapter_model.safetensors").is_file()
    )


def test_what_is_sent_is_what_peft_would_send(adapters: Path, base: str, tmp_path: Path) -> None:
    """A client of peft alone reads the folder and computes its gradient; docleak's fits it to 1e-6."""
    from transformers import AutoModelForImageTextToText

    model = moved(adapters)
    model.save(str(tmp_path / "trained"))
    network = AutoModelForImageTextToText.from_pretrained(base, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(network, str(tmp_path / "trained"), is_trainable=True).eval()
    pixels, inputs = case_of(model)
    row = inputs[0].tensors
    fed = {name: row[name][None] for name in ("input_ids", "labels", "mm_token_type_ids")}
    fed |= model.picture(pixels)  # type: ignore[attr-defined]
    named = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
    values = torch.autograd.grad(theirs(**fed, use_cache=False).loss, list(named.values()))
    sent = {name.removeprefix("base_model.model."): value for name, value in zip(named, values, strict=True)}
    assert set(sent) == {name for name, _ in trainable(model.module)}
    test = self_test(GradientView(model, sent), pixels, inputs)
    assert test.passed and test.distance < 1e-6
    assert self_test(GradientView(model, sent), 1 - pixels, inputs).distance > 1e-3
    assert set(client_gradient(model, pixels, inputs)) == set(sent)


def test_a_first_gradient_moves_b_alone(adapters: Path) -> None:
    model = load_model(str(adapters))
    gradient = client_gradient(model, *case_of(model))
    assert all(bool(value.any()) == (".lora_B." in name) for name, value in gradient.items())


@pytest.mark.parametrize("source", ["donut-start", "layoutlmv3-start"])
def test_shipped_models_take_adapters_too(source: str, tmp_path: Path) -> None:
    card = adapt(source, tmp_path / "adapters", Lora(targets=("query", "value")), seed=0)
    told = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == source and sorted(told["target_modules"]) == ["query", "value"]
    model, plain = load_model(str(tmp_path / "adapters")), load_model(source)
    assert sum(p.numel() for _, p in trainable(model.module)) == card["trainable"]
    pixels, inputs = case_of(model)
    with torch.no_grad():
        torch.testing.assert_close(model.loss(pixels, inputs), plain.loss(pixels, inputs))


def test_without_targets_every_linear_layer_but_the_output_has_one(base: str, tmp_path: Path) -> None:
    adapt(base, tmp_path / "all", Lora(r=1), seed=0)
    model = load_model(str(tmp_path / "all"))
    linear = [n for n, m in load_model(base).module.named_modules() if isinstance(m, torch.nn.Linear)]
    held = {name.partition(".lora_")[0] for name, _ in trainable(model.module)}
    assert held == set(linear) - {"lm_head"}


def test_adapters_are_made_again_from_their_seed(base: str, tmp_path: Path) -> None:
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        adapt(base, tmp_path / name, Lora(r=2, targets=("q_proj",)), seed=seed)
        files.append((tmp_path / name / "adapter_model.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_what_cannot_take_adapters_is_refused(base: str, adapters: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="network is docleak's own"):
        adapt("vt5-start", tmp_path / "x", Lora(), seed=0)
    with pytest.raises(ModelError, match=r"targets \(q_prok\) among its linear layers: .*q_proj"):
        adapt(base, tmp_path / "x", Lora(targets=("q_prok",)), seed=0)
    with pytest.raises(ModelError, match=r"LoRA has r=99999999; the widest layer of .* wide\. Give at most that\."):
        adapt(base, tmp_path / "x", Lora(r=99_999_999), seed=0)
    with pytest.raises(ModelError, match="there already"):
        adapt(base, adapters, Lora(), seed=0)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "said"), [("r=0", "expected 1 or more"), ("rank=8", "cannot be told 'rank=8'"), ("r=x", "whole number")]
)
def test_bad_settings_are_refused(text: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        Lora.parsed(text)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"peft_type": "IA3"}, "expected LORA"), ({"base_model_name_or_path": None}, "name or folder"),
     ({"r": 2}, "could not be loaded|do not fit")],
)  # fmt: skip
def test_folders_that_are_no_lora_of_a_base_are_refused(adapters: Path, changes: dict[str, Any], said: str) -> None:
    file = adapters / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(ModelError, match=said):
        load_model(str(adapters))


def test_adapters_that_lack_weights_are_refused(adapters: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = adapters / "adapter_model.safetensors"
    weights = load_file(file)
    weights.pop(sorted(weights)[0])
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="1 of their tensors are missing"):
        load_model(str(adapters))


def test_a_quantised_base_is_refused(base: str, adapters: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(base, tmp_path / "quantised")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "quantization_config": {"load_in_4bit": True}}))
    file = adapters / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": str(copy)}))
    with pytest.raises(ModelError, match="is quantised"):
        load_model(str(adapters))


def test_dora_is_refused_as_what_it_is(adapters: Path) -> None:
    """It was "4 of their tensors are missing and 4 unknown"."""
    file = adapters / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "use_dora": True}))
    with pytest.raises(ModelError, match=r"are DoRA's .*Train them with use_dora=False"):
        load_model(str(adapters))


def test_without_peft_the_extra_is_named(adapters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"docleak\[adapters\]"):
        load_model(str(adapters))
