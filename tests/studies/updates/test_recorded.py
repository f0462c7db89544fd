"""What taps recorded of real trainings is reproduced by the self-test: Trainer, adapters, two files, no plan told."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, LayoutLMv3ForQuestionAnswering, Trainer, TrainingArguments

import docleak
from docleak.documents.folder import save
from docleak.errors import FederationError
from docleak.models import load_model
from docleak.studies.updates.case import UpdateCase, open_case
from docleak.studies.updates.check import diagnosed
from docleak.studies.updates.config import UpdatesConfig
from docleak.studies.updates.study import UpdatesStudy
from docleak.studies.updates.words import words_of
from docleak.training.federated.capture import read_updates
from docleak.training.taps.weights import weights_pair

pytest.importorskip("flwr")
SCRIPT = Path(__file__).parents[3] / "scripts" / "misdescribed_captures.py"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("misdescribed_captures", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


app = _script()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and three receipts."""
    where = tmp_path_factory.mktemp("recorded")
    app.write_model(where / "model")
    save(app.receipts(1, 3), where / "pages")
    return where


def network(folder: Path) -> Any:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return LayoutLMv3ForQuestionAnswering.from_pretrained(str(folder / "model"), **still)


def trained_by_trainer(folder: Path, out: Path, model: Any, **settings: Any) -> docleak.TrainerTap:
    """An epoch of transformers' Trainer with its own defaults but dropout."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder / "model"))
    arguments = TrainingArguments(
        str(out / "checkpoints"), num_train_epochs=2, learning_rate=1e-3, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, remove_unused_columns=False, **{"per_device_train_batch_size": 2, **settings},
    )  # fmt: skip
    tap = docleak.TrainerTap(out / "updates")
    pages = list(docleak.load_pages(folder / "pages"))
    Trainer(
        model, arguments, train_dataset=pages, data_collator=lambda rows: app.batch_of(tokenizer, rows, True),
        callbacks=[tap],
    ).train()  # fmt: skip
    return tap


def case_of(folder: Path, out: Path) -> UpdateCase:
    (update,) = read_updates(out / "updates")
    return open_case(update, load_model(str(update.details["model"])), str(folder / "pages"))


def test_an_epoch_of_trainer_is_reproduced_with_schedule_order_and_clipping(folder: Path, tmp_path: Path) -> None:
    """Of two epochs the first: what a client would send. Batches were shuffled, and the rate falls with every step."""
    trained_by_trainer(folder, tmp_path, network(folder), gradient_accumulation_steps=1)
    case = case_of(folder, tmp_path)
    told = case.update.details
    assert told["optimiser"] == "adamw" and told["max_norm"] == 1.0 and not told["dropout"]
    assert sorted(n for batch in told["batches"] for n in batch) == [0, 1, 2] and case.update.examples == 3
    assert told["steps"] == 2 and told["learning_rates"][0] > told["learning_rates"][1] > 0
    assert case.batches == tuple(map(tuple, told["batches"])) and len(case.rates) == 2
    assert case.round.passes
    assert not replace(case, rates=()).round.passes, "without the schedule another update"
    words = words_of(case)
    assert words["recall"] == words["precision"] == 1.0


def test_a_frozen_trunk_is_frozen_in_the_audit_too(folder: Path, tmp_path: Path) -> None:
    """Its weights are not recorded: it was refused as another model's, "pass the --model that was trained"."""
    model = network(folder)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("qa_outputs" in name or "encoder.layer.1" in name)
    trained_by_trainer(folder, tmp_path, model, gradient_accumulation_steps=1)
    case = case_of(folder, tmp_path)
    assert case.update.details["frozen"] == sum(not p.requires_grad for p in model.parameters()) > 0
    assert not case.unsent and case.round.passes
    assert {name for name, p in case.model.module.named_parameters() if p.requires_grad} == set(case.update.shapes())
    told = replace(case.update, details={**case.update.details, "frozen": 1})
    with pytest.raises(FederationError, match="the weights sent lack"):
        open_case(told, load_model(str(folder / "model")), str(folder / "pages"))


def test_adapters_are_recorded_with_a_folder_that_loads(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(network(folder), peft.LoraConfig(r=2, target_modules=["query", "value"]))
    trained_by_trainer(folder, tmp_path, model, per_device_train_batch_size=1, gradient_accumulation_steps=3)
    case = case_of(folder, tmp_path)
    assert case.update.details["batch_size"] == 3 and len(case.update.details["batches"][0]) == 3
    assert case.round.sent and all("lora_" in name for name in case.round.sent) and not case.unsent
    assert case.round.passes


def test_two_folders_of_adapters_say_which_model_was_trained(folder: Path, tmp_path: Path) -> None:
    """As peft's save_pretrained writes them; a whole state beside the base alone says what to pass."""
    peft = pytest.importorskip("peft")
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model = peft.get_peft_model(network(folder), peft.LoraConfig(r=2, target_modules=["query", "value"]))
    model.save_pretrained(tmp_path / "before")
    torch.save(model.state_dict(), tmp_path / "before.pt")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    model(**app.batch_of(tokenizer, pages, True)).loss.backward()
    optimiser.step()
    model.save_pretrained(tmp_path / "after")
    given = {"documents": str(folder / "pages"), "steps": (1,), "batch_sizes": (1,)}
    config = UpdatesConfig(before=str(tmp_path / "before"), after=str(tmp_path / "after"), **given)
    study = UpdatesStudy(config, device="cpu")
    assert study.trained == str(tmp_path / "before")
    case = study.case(study.chosen[0])
    assert case.round.passes and all("lora_" in name for name in case.round.sent)
    bare = UpdatesStudy(replace(config, before=str(tmp_path / "before.pt")), device="cpu")
    with pytest.raises(FederationError, match=r"Pass --model: .*adapter_config\.json"):
        _ = bare.model
    based = UpdatesStudy(replace(bare.config, model=str(folder / "model")), device="cpu")
    with pytest.raises(FederationError, match=r"with adapters \(LoRA\).*Pass as --model the folder that peft wrote"):
        based.case(based.chosen[0])


def test_a_trainer_that_cannot_be_recorded_goes_on(folder: Path, tmp_path: Path, caplog: Any) -> None:
    model = network(folder)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.qa_outputs.out_proj.bias.requires_grad_(True)
    tap = docleak.TrainerTap(tmp_path / "updates")
    tap.on_train_begin(None, type("State", (), {"is_world_process_zero": True}), None, model=torch.nn.Linear(0, 2))
    tap.on_pre_optimizer_step(None, None, None, optimizer=None)
    tap.on_train_end(None, None, None)
    assert "nothing is recorded" in caplog.text
    with pytest.raises(FederationError, match="holds no update yet"):
        read_updates(tmp_path / "updates")


@pytest.mark.parametrize(
    ("kind", "told", "found"),
    [
        ("sgd", "", {"optimiser": "sgd", "batch_size": 3}),
        ("adamw", "", {"optimiser": "adamw", "batch_size": 3, "learning_rate": 1e-3}),
        ("adamw", "batch_size=2", {"optimiser": "adamw", "batch_size": 2, "weight_decay": 0.01}),
    ],
)
def test_two_files_of_weights_tell_the_optimiser(
    kind: str, told: str, found: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """One epoch over the pages in their order; what is inferred passes the self-test, and is said so."""
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model, size = network(folder), 2 if told else 3
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimiser = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind](
        model.parameters(), lr=0.05 if kind == "sgd" else 1e-3
    )
    for at in range(0, 3, size):
        optimiser.zero_grad()
        model(**app.batch_of(tokenizer, pages[at : at + size], True)).loss.backward()
        optimiser.step()
    save_file(before, tmp_path / "before.safetensors")
    torch.save({f"module.{name}": value for name, value in model.state_dict().items()}, tmp_path / "after.pt")
    update = weights_pair(tmp_path / "before.safetensors", tmp_path / "after.pt")
    case = open_case(update, load_model(str(folder / "model")), str(folder / "pages"), local=told)
    assert case.inferred is not None and case.inferred.confirmed and "self-test passes" in case.inferred.sentence
    for key, value in found.items():
        assert getattr(case.plan, key) == (pytest.approx(value, rel=1e-3) if isinstance(value, float) else value)
    assert case.round.passes and words_of(case)["recall"] == 1.0
    assert np.isclose(case.plan.learning_rate, 0.05 if kind == "sgd" else 1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_padding_is_named_where_the_rate_was_unknown_too(kind: str, folder: Path, tmp_path: Path) -> None:
    """Rate and decay were fitted under the wrong padding, under which no padding reproduces the update."""
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model, rate = network(folder), {"sgd": 0.05, "adamw": 1e-3}[kind]
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimiser = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind](
        model.parameters(), lr=rate, weight_decay=0.01
    )
    for at in range(0, 3, 2):
        optimiser.zero_grad()
        model(**app.batch_of(tokenizer, pages[at : at + 2], "max_length")).loss.backward()
        optimiser.step()
    save_file(before, tmp_path / "before.safetensors")
    torch.save(model.state_dict(), tmp_path / "after.pt")
    update = weights_pair(tmp_path / "before.safetensors", tmp_path / "after.pt")
    model, local = load_model(str(folder / "model")), f"optimiser={kind},batch_size=2"
    case = open_case(update, model, str(folder / "pages"), local=local)
    assert case.inferred is not None and not case.inferred.confirmed
    (cause, *_) = diagnosed(case, dict)
    advised = f"padding=max_length,learning_rate={rate:g},weight_decay=0.01"
    assert cause.reproduces and cause.sentence == f"padding: with --local {advised} the self-test passes"
    assert open_case(update, model, str(folder / "pages"), local=f"{local},{advised}").round.passes


def test_dropout_hides_neither_rate_nor_decay(folder: Path, tmp_path: Path) -> None:
    """A fit along our replay without masks would halve the rate, and double the decay for it."""
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model = network(folder)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    torch.manual_seed(0)
    model.train()(**app.batch_of(tokenizer, pages, True)).loss.backward()
    torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01).step()
    save_file(before, tmp_path / "before.safetensors")
    torch.save(model.state_dict(), tmp_path / "after.pt")
    update = weights_pair(tmp_path / "before.safetensors", tmp_path / "after.pt")
    case = open_case(update, load_model(str(folder / "model")), str(folder / "pages"))
    assert case.inferred is not None and not case.inferred.confirmed
    values = case.inferred.values
    assert (values["optimiser"], values["learning_rate"], values["weight_decay"]) == ("adamw", 5e-5, 0.01)


def test_what_is_not_confirmed_is_an_assumption(folder: Path, tmp_path: Path) -> None:
    """Noise on top: nothing reproduces it, and the record says whose words these are."""
    model = network(folder)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    noise = torch.Generator().manual_seed(0)
    save_file(before, tmp_path / "a.safetensors")
    save_file(
        {n: v + 1e-3 * torch.randn(v.shape, generator=noise) for n, v in before.items()}, tmp_path / "b.safetensors"
    )
    update = weights_pair(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    case = open_case(update, load_model(str(folder / "model")), str(folder / "pages"))
    assert case.inferred is not None and not case.inferred.confirmed
    assert "the self-test does not confirm it" in case.described()["inferred"]["sentence"]
