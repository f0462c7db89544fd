"""What taps recorded of real trainings is reproduced by the self-test: Trainer, adapters, two files, no plan told."""

from __future__ import annotations

import copy
import functools
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from safetensors.torch import save_file, save_model
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler
from transformers import AutoTokenizer, LayoutLMv3ForQuestionAnswering, Trainer, TrainerCallback, TrainingArguments

import docleak
from docleak.documents.folder import save
from docleak.errors import FederationError
from docleak.models import load_model, pixels_of
from docleak.models.vlm.tiny import make_tiny
from docleak.studies.engine import carry_out
from docleak.studies.updates.case import UpdateCase, load_start, named_as, open_case
from docleak.studies.updates.check import _search, check, diagnosed
from docleak.studies.updates.config import UpdatesConfig
from docleak.studies.updates.secure import is_secure
from docleak.studies.updates.sight import unseen
from docleak.studies.updates.study import UpdatesStudy
from docleak.studies.updates.told import unlike
from docleak.studies.updates.verdict import _of_words, sentences
from docleak.studies.updates.words import words_of
from docleak.training.federated.capture import read_updates, write_update
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


def trained_by_trainer(
    folder: Path, out: Path, model: Any, resume: str | None = None, *, callbacks: Sequence[Any] = (),
    again: bool = False, optimizers: tuple[Any, Any] = (None, None),
    compute_loss_func: Any = None, **settings: Any,
) -> docleak.TrainerTap:  # fmt: skip
    """An epoch of transformers' Trainer with its own defaults but dropout; ``again`` after a MemoryError."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder / "model"))
    arguments = TrainingArguments(
        str(out / "checkpoints"), num_train_epochs=2, report_to=[], use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False,
        **{"per_device_train_batch_size": 2, "learning_rate": 1e-3, "save_strategy": "no", **settings},
    )  # fmt: skip
    tap = docleak.TrainerTap(out / "updates")
    pages = list(docleak.load_pages(folder / "pages"))
    trainer = Trainer(
        model, arguments, train_dataset=pages, data_collator=lambda rows: app.batch_of(tokenizer, rows, True),
        callbacks=[tap, *callbacks], optimizers=optimizers, compute_loss_func=compute_loss_func,
    )  # fmt: skip
    with pytest.raises(MemoryError) if again else nullcontext():
        trainer.train(resume_from_checkpoint=resume)
    if again:
        trainer.train()
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
    trained_by_trainer(folder, tmp_path / "all", network(folder), gradient_accumulation_steps=1)
    (other,) = read_updates(tmp_path / "all" / "updates")
    study = UpdatesStudy(
        UpdatesConfig(str(tmp_path / "updates"), documents=str(folder / "pages"), model=str(folder / "model"))
    )
    assert "layoutlmv3.embeddings.word_embeddings.weight" not in study.case(case.update).round.sent
    assert "layoutlmv3.embeddings.word_embeddings.weight" in study.case(other).round.sent, "frozen by the client before"


def test_adapters_are_recorded_with_a_folder_that_loads(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(network(folder), peft.LoraConfig(r=2, target_modules=["query", "value"]))
    trained_by_trainer(folder, tmp_path, model, per_device_train_batch_size=1, gradient_accumulation_steps=3)
    case = case_of(folder, tmp_path)
    assert case.update.details["batch_size"] == 3 and len(case.update.details["batches"][0]) == 3
    assert case.round.sent and all("lora_" in name for name in case.round.sent) and not case.unsent
    assert case.round.passes


def test_adapters_with_a_name_of_their_own_are_recorded_and_several_at_once_are_not(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """peft keeps such in a folder below the one it is given, which the audit called no model."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"])
    model = peft.get_peft_model(network(folder), config, adapter_name="old")
    model.add_adapter("docs", config)
    model.set_adapter("docs")
    trained_by_trainer(folder, tmp_path, model, max_steps=1)
    case = case_of(folder, tmp_path)
    assert case.update.details["model"].endswith("docs") and case.round.passes and not case.unsent
    model.base_model.set_adapter(["old", "docs"])
    trained_by_trainer(folder, tmp_path / "both", model, max_steps=1)
    assert not list((tmp_path / "both").glob("updates/round-*"))
    assert "old and docs are active at once" in caplog.text


@pytest.mark.parametrize("named", ["docs", "encoder"])
def test_adapters_some_of_which_are_frozen_are_frozen_in_the_audit_too(
    named: str, folder: Path, tmp_path: Path
) -> None:
    """They were another model's, "the weights sent lack 4 of the 64 parameters"; called like a module of the network,
    they were still, for its frozen weights were counted, too."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"])
    model = peft.get_peft_model(network(folder), config, adapter_name=named)
    model.add_adapter("other", config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name and f".{named}.weight" in name and "layer.1" in name)
    trained_by_trainer(folder, tmp_path, model, gradient_accumulation_steps=1)
    case = case_of(folder, tmp_path)
    assert case.update.details["frozen"] == 4 and not case.unsent and case.round.passes
    assert {name for name, p in case.model.module.named_parameters() if p.requires_grad} == set(case.update.shapes())


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


def test_pictures_are_not_attacked_of_a_model_that_reads_none(folder: Path, tmp_path: Path) -> None:
    """A LiLT's update ended in torch's "stack expects a non-empty TensorList"."""
    make_tiny("lilt", tmp_path / "before", seed=0)
    model, page = load_model(str(tmp_path / "before")), next(iter(docleak.load_pages(folder / "pages")))
    fitted = model.fit(page)
    model.loss(pixels_of(fitted.image)[None], [model.encode(fitted, fitted.questions[0])]).sum().backward()
    torch.optim.SGD(model.module.parameters(), lr=0.05).step()
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    model.module.save_pretrained(tmp_path / "after")
    save([page], tmp_path / "pages")
    given = {"documents": str(tmp_path / "pages"), "steps": (1,), "batch_sizes": (1,)}
    config = UpdatesConfig(before=str(tmp_path / "before"), after=str(tmp_path / "after"), **given)
    run = carry_out(UpdatesStudy(config, device="cpu"), tmp_path / "run", workers=1)
    assert len(run.units()) == 2
    for unit in run.units():
        assert "no picture" in unit["pictures"]["why"] and unit["words"]["right"] > 0


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


def test_a_step_of_adamw_under_autocast_is_thought_of_as_half_precision(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was called another order, another optimiser, another rate, or dropout."""
    start = Path(docleak.__file__).parent / "models" / "checkpoints" / "layoutlmv3-start"
    reader = load_model("layoutlmv3-start")
    monkeypatch.setattr(app, "SIDE", reader.image_size[0])
    pages = [reader.fit(page) for page in docleak.load_pages(folder / "pages")]
    plan = "optimiser=adamw,learning_rate=1e-3,weight_decay=0.01,batch_size=3,epochs=1,dropout=no"
    model = LayoutLMv3ForQuestionAnswering.from_pretrained(str(start)).eval()
    save_model(model, str(tmp_path / "before.safetensors"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**app.batch_of(AutoTokenizer.from_pretrained(str(start)), pages, True)).loss
    loss.backward()
    torch.optim.AdamW(model.parameters(), lr=1e-3).step()
    torch.save(model.state_dict(), tmp_path / "after.pt")
    update = weights_pair(tmp_path / "before.safetensors", tmp_path / "after.pt")
    case = open_case(update, reader, str(folder / "pages"), local=plan)
    (cause,) = _search(case, {})._precision()
    assert not case.round.passes and "as after computing in half precision" in cause.sentence


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


Arrays = dict[str, torch.Tensor]
SGD = "optimiser=sgd,learning_rate=0.05,batch_size=3,dropout=no"
ADAMW = "optimiser=adamw,learning_rate=1e-3,weight_decay=0,batch_size=3,dropout=no"


@pytest.fixture(scope="module")
def stepped(folder: Path) -> tuple[Arrays, Arrays]:
    """The weights before and after a step of SGD on all three pages."""
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model = network(folder)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    model(**app.batch_of(tokenizer, pages, True)).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    return before, {name: value.detach() for name, value in model.named_parameters()}


def opened(
    folder: Path, out: Path, kind: str, before: Arrays, came: Arrays, local: str = SGD, **details: Any
) -> UpdateCase:
    arrays = [{name: value.float().numpy() for name, value in state.items()} for state in (before, came)]
    write_update(out, round=1, client="c", start=arrays[0], received=arrays[1], kind=kind, examples=3, details=details)
    return open_case(read_updates(out)[0], load_model(str(folder / "model")), str(folder / "pages"), local=local)


def causes_of(case: UpdateCase) -> list[dict[str, Any]]:
    causes: list[dict[str, Any]] = check(case, words_of(case), dict)["causes"]
    return causes


@pytest.mark.parametrize("decay", ["0.01", [0.01, 0.0]])
def test_adams_decay_is_named_however_it_is_written(
    decay: Any, folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """A text, as other settings may be, or one for each group of weights was left out in silence."""
    said = {"optimiser": "Adam", "learning_rate": "0.05", "batch_size": 3, "epochs": 1, "weight_decay": decay}
    case = opened(folder, tmp_path, "weights", *stepped, local="", **said)
    assert f"adam's weight_decay {decay}, which" in unlike(case.update)[0]


def test_rounds_of_which_nobody_said_how_they_trained_are_read(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """How the audited round trained is inferred, and of a client's others it was asked for."""
    before, after = ({name: value.numpy() for name, value in state.items()} for state in stepped)
    for number in (1, 2):
        write_update(
            tmp_path, round=number, client="c", start=before, received=after, kind="weights", examples=3, details={}
        )
    first, second = read_updates(tmp_path)
    case = open_case(first, load_model(str(folder / "model")), str(folder / "pages"))
    assert case.inferred is not None and words_of(case, [second])["recall"] == 1.0


def less(one: Arrays, other: Arrays, scale: float = 1.0) -> Arrays:
    return {name: scale * (value - other[name]) for name, value in one.items()}


#: What came, and what its recorder called it -> the cause that is named first, and a part of its sentence.
WRONG: dict[str, tuple[str, Callable[[Arrays, Arrays], Arrays], str, str]] = {
    "difference": ("weights", lambda a, b: less(a, b), "kind", "not like the weights before"),
    "gradient": ("weights", lambda a, b: less(a, b, 20.0), "kind", "it is a difference or a gradient"),
    "weights": ("delta", lambda a, b: b, "kind", "it is the weights after"),
    "weights, as gradient": ("gradient", lambda a, b: b, "kind", "recorded as weights"),
    "after less before": ("delta", lambda a, b: less(b, a), "sign", "a delta is the weights before less those after"),
    "uphill": ("gradient", lambda a, b: less(b, a, 20.0), "sign", "cosine -1.00"),
}


@pytest.mark.parametrize("case", WRONG)
def test_arrays_of_another_kind_or_sign_are_named_as_that(
    case: str, folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """They were "weight decay: weights that no page moves shrank by 1, as a decay of 0", or other pages."""
    kind, made, key, said = WRONG[case]
    first = causes_of(opened(folder, tmp_path, kind, stepped[0], made(*stepped)))[0]
    assert first["key"] == key and said in first["sentence"] and not first["reproduces"]


def test_weights_kept_in_half_precision_are_not_called_frozen(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    before, after = ({name: value.bfloat16() for name, value in state.items()} for state in stepped)
    first = causes_of(opened(folder, tmp_path, "weights", before, after))[0]
    assert first["key"] == "precision" and "numbers of bf16" in first["sentence"]


def test_what_is_said_of_a_gradients_scale_is_heard(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """The audit advised --local learning_rate=0.05, and did not take it."""
    case = opened(folder, tmp_path, "gradient", stepped[0], less(*stepped), local="dropout=no")
    assert causes_of(case)[0]["sentence"] == "learning rate: with --local learning_rate=0.05 the self-test passes"
    told = opened(folder, tmp_path, "gradient", stepped[0], less(*stepped), local="learning_rate=0.05,dropout=no")
    assert told.round.passes


def test_noise_before_adamw_is_noise_and_no_decay(folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    """As Opacus makes it, names included: it was "a decay of 3.9"."""
    drawn = torch.Generator().manual_seed(0)
    after = {
        name: before - 1e-3 * (before - value + torch.randn(value.shape, generator=drawn)).sign()
        for (name, before), value in zip(stepped[0].items(), stepped[1].values(), strict=True)
    }
    before, after = ({f"_module.{name}": value for name, value in state.items()} for state in (stepped[0], after))
    causes = causes_of(opened(folder, tmp_path, "weights", before, after, local=ADAMW))
    assert causes[0]["key"] == "noise" and "up as often as down" in causes[0]["sentence"]
    assert "shrank" not in " ".join(cause["sentence"] for cause in causes)


def nine_steps(
    folder: Path, optimiser: Callable[..., torch.optim.Optimizer], pull: float = 0.0
) -> tuple[Arrays, Arrays]:
    """Weights before and after three epochs, a page a step; ``pull``: FedProx's mu."""
    tokenizer, model = AutoTokenizer.from_pretrained(str(folder / "model")), network(folder)
    before, steps = copy.deepcopy(dict(model.named_parameters())), optimiser(model.parameters())
    for page in 3 * list(docleak.load_pages(folder / "pages")):
        steps.zero_grad()
        away = sum(((value - before[name].detach()) ** 2).sum() for name, value in model.named_parameters())
        (model(**app.batch_of(tokenizer, [page], True)).loss + pull / 2 * away).backward()
        steps.step()
    states = (before.items(), model.named_parameters())
    return tuple({name: value.detach().clone() for name, value in state} for state in states)  # type: ignore[return-value]


def test_the_decay_of_several_steps_is_neither_opacus_nor_other_pages(folder: Path, tmp_path: Path) -> None:
    """AdamW at its defaults, of which nothing is said: nine roundings were more than one step's slack."""
    before, after = nine_steps(folder, lambda weights: torch.optim.AdamW(weights, lr=1e-3))
    causes = causes_of(opened(folder, tmp_path, "weights", before, after, local=""))
    said = " ".join(cause["sentence"] for cause in causes)
    assert "Opacus" not in said and "that these pages do not have" not in said


@pytest.mark.parametrize(
    ("optimiser", "pull"), [(torch.optim.Adam, 0.0), (torch.optim.AdamW, 0.1)], ids=["decay", "FedProx"]
)
def test_a_pull_inside_the_gradient_is_no_noise(
    optimiser: type[torch.optim.Optimizer], pull: float, folder: Path, tmp_path: Path
) -> None:
    """Every weight moves that no page does, up as often as down, by the sign of the weight itself."""
    made = functools.partial(optimiser, lr=1e-3, weight_decay=0.01)  # type: ignore[call-arg]
    case = opened(folder, tmp_path, "weights", *nine_steps(folder, made, pull), local=ADAMW)
    causes = {cause["key"]: cause["sentence"] for cause in causes_of(case)}
    assert "noise" not in causes
    assert "as the sign of each tells" in causes["pull"]


def test_gradients_that_were_clipped_one_by_one_are_thought_of(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """A step of Opacus without noise: every example's gradient to a norm of 0.1, then their mean."""
    tokenizer, total = AutoTokenizer.from_pretrained(str(folder / "model")), dict.fromkeys(stepped[0], 0.0)
    for page in docleak.load_pages(folder / "pages"):
        model = network(folder)
        model(**app.batch_of(tokenizer, [page], True)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        moved = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        total |= {name: total[name] + value / 3 for name, value in moved.items()}
    after = {name: value - 0.05 * total[name] for name, value in stepped[0].items()}
    first = causes_of(opened(folder, tmp_path, "weights", stepped[0], after))[0]
    assert "or gradients of single examples clipped, as Opacus does: what was sent is 0.0" in first["sentence"]


#: Configurations of other people's servers, under names that docleak has for other things.
FOREIGN: dict[str, Any] = {
    "resolution": 224, "seed": 42, "holdout": 0.5, "compression": "gzip", "privacy": "none", "secure": True,
    "masked": True, "objective": "squad", "dropout": 0.0, "optimizer": "torch.optim.SGD", "lr": 0.05, "batches": 5,
    "batch_size": 3, "max-steps": -1,
}  # fmt: skip


def test_words_of_another_programs_configuration_are_not_taken_for_docleaks(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """A picture's ``resolution`` of 224 was that of a masked sum: of 52 tokens none was read, without a doubt."""
    case = opened(folder, tmp_path, "weights", *stepped, local="", recorded_by="docleak.tap", **FOREIGN)
    words = words_of(case)
    assert words["recall"] == words["precision"] == 1.0 and check(case, words, dict)["doubts"] == []
    config = UpdatesConfig(str(tmp_path), model=str(folder / "model"), documents=str(folder / "pages"))
    assert [update.client for update in UpdatesStudy(config).chosen] == ["c"] and not is_secure(case.update)
    assert len(case.pages) == 3 and case.replay.trained is None
    by_hand = opened(folder, tmp_path, "weights", *stepped, resolution=224)
    assert words_of(by_hand)["recall"] == 1.0


def test_a_capture_without_any_mark_is_not_docleaks_by_a_word_of_its_own(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """Written by hand in the format: it was the sum of a secure aggregation, or refused as under a privacy plan."""
    odd = {"learning_rates": 0.05, "steps": "few"}
    case = opened(folder, tmp_path, "weights", *stepped, local="", **FOREIGN, **odd)
    assert not is_secure(case.update) and case.replay.trained is None and not case.plan.dropout
    assert words_of(case)["recall"] == 1.0 and check(case, words_of(case), dict)["doubts"] == []
    config = UpdatesConfig(str(tmp_path), model=str(folder / "model"), documents=str(folder / "pages"))
    assert [update.client for update in UpdatesStudy(config).chosen] == ["c"]
    record = {"kind": "update", **case.described(), "check": check(case, words_of(case), dict), "words": words_of(case)}
    said = " ".join(sentences({**record, "pictures": unseen("not attacked here")[0]}))
    assert "The capture says privacy, secure, masked, and not all that docleak's own trainings say" in said


def test_what_was_recorded_before_it_was_masked_is_not_said_of_the_server(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    told = {"recorded_by": "docleak.tap_client", "hidden_by": "Flower's SecAgg+"}
    case = opened(folder, tmp_path, "weights", *stepped, **told)
    record = {"kind": "update", **case.described(), "check": check(case, words_of(case), dict), "words": words_of(case)}
    (first, *_) = sentences({**record, "pictures": unseen("not attacked here")[0]})
    assert first.startswith("Recorded before Flower's SecAgg+ masked it: the server receives masked numbers")
    assert "who sees it reads 52" in first and "the server reads" not in first


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"optimizer": "RMSprop"}, "optimiser: RMSprop"), ({"momentum": 0.9}, "optimiser: momentum 0.9"),
        ({"proximal-mu": 1.0}, "optimiser: FedProx's pull towards the start, mu 1"),
        ({"precision": "fp16", "not_imitated": 3}, "precision: fp16"),
    ],
)  # fmt: skip
def test_what_a_capture_says_and_no_plan_imitates_is_the_first_cause(
    told: dict[str, Any], said: str, folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    noise = torch.Generator().manual_seed(0)
    after = {name: value + 1e-3 * torch.randn(value.shape, generator=noise) for name, value in stepped[1].items()}
    local = SGD.replace("optimiser=sgd,", "") if "optimizer" in told else SGD
    case = opened(folder, tmp_path, "weights", stepped[0], after, local=local, recorded_by="docleak.tap", **told)
    assert causes_of(case)[0]["sentence"] == f"{said}, as recorded, which is not imitated"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"adam_beta2": 0.95, "adam_epsilon": 1e-6}, "optimiser: betas (0.9, 0.95), eps 1e-06"),
        ({"optim": "sgd", "optim_args": "momentum=0.9", "learning_rate": 0.05}, "optimiser: momentum 0.9"),
        ({"optim": "adafactor"}, "optimiser: Adafactor"),
        ({"bf16": True}, "precision: bf16"),
        ({"gradient_accumulation_steps": 2}, "padding: steps add up 2 batches of 2, each padded and averaged alone"),
    ],
)  # fmt: skip
def test_what_of_trainer_is_not_imitated_is_recorded_and_the_first_cause(
    settings: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    """It was called half precision where betas differ, and other pages where it was half precision."""
    trained_by_trainer(folder, tmp_path, network(folder), **{"gradient_accumulation_steps": 1, **settings})
    causes = causes_of(case_of(folder, tmp_path))
    assert causes[0]["sentence"] == f"{said}, as recorded, which is not imitated"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"betas": (0.5, 0.9)}, "optimiser: betas (0.5, 0.9)"),
        ({"weight_decay": 0.1}, "optimiser: adam's weight_decay 0.1, which it adds to the gradient"),
    ],
)
def test_what_of_adam_is_not_imitated_is_the_first_cause(
    settings: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    """Other betas of Adam were another rate, and its decay refused the whole audit."""
    model = network(folder)
    optimiser = torch.optim.Adam(model.parameters(), **settings)
    trained_by_trainer(folder, tmp_path, model, optimizers=(optimiser, None), gradient_accumulation_steps=1)
    causes = causes_of(case_of(folder, tmp_path))
    assert causes[0]["sentence"] == f"{said}, as recorded, which is not imitated"


def loss_of_spans(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    """Some loss of the logits that is not the network's."""
    loss: torch.Tensor = outputs.start_logits.float().square().mean()
    return loss


def causes_named(folder: Path, out: Path) -> str:
    return str(causes_of(case_of(folder, out))[0]["sentence"])


def test_a_loss_that_is_not_the_networks_is_recorded(folder: Path, tmp_path: Path) -> None:
    """With Trainer's compute_loss_func the loss that was imitated was another, and other pages the cause."""
    settings = {"gradient_accumulation_steps": 1, "compute_loss_func": loss_of_spans}
    trained_by_trainer(folder, tmp_path, network(folder), **settings)
    said = "loss: not the one the network computes (compute_loss_func, or a Trainer's own compute_loss)"
    assert causes_named(folder, tmp_path) == f"{said}, as recorded, which is not imitated"


def test_adam_with_decoupled_decay_is_adamw(folder: Path, tmp_path: Path) -> None:
    """It was recorded as Adam, and its decay named as what is not imitated."""
    model = network(folder)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True)
    trained_by_trainer(folder, tmp_path, model, optimizers=(optimiser, None), gradient_accumulation_steps=1)
    case = case_of(folder, tmp_path)
    assert case.update.details["optimiser"] == "adamw" and case.plan.weight_decay == 0.1 and case.round.passes


def test_weights_that_the_optimiser_does_not_hold_are_recorded(folder: Path, tmp_path: Path) -> None:
    """Trainer clips by the norm of all gradients, also of those that no optimiser takes: dropout was the cause."""
    model = network(folder)
    head = [value for name, value in model.named_parameters() if "qa_outputs" in name]
    settings = {"optimizers": (torch.optim.SGD(head, lr=0.05), None), "gradient_accumulation_steps": 1}
    trained_by_trainer(folder, tmp_path, model, **settings, max_grad_norm=0.01)
    count = sum(1 for _ in model.parameters())
    said = f"optimiser: it holds {len(head)} of the {count} tensors that are trained"
    assert causes_named(folder, tmp_path) == f"{said}, as recorded, which is not imitated"


@pytest.mark.parametrize("kind", ["pix2struct", "llava"])
def test_how_added_up_batches_make_the_loss_of_a_step_is_recorded(kind: str, folder: Path, tmp_path: Path) -> None:
    """Trainer tells a network the tokens of all batches of a step. A Pix2Struct takes the mean over those of each all
    the same, and the step is their sum: it was described as one over the tokens of all."""
    make_tiny(kind, tmp_path / "model", seed=0)
    model, pages = load_model(str(tmp_path / "model")), list(docleak.load_pages(folder / "pages"))[:2]

    def batch(rows: list[docleak.Page]) -> dict[str, torch.Tensor]:
        fitted = model.fit(rows[0])
        example, pixels = model.encode(fitted, fitted.questions[0]), pixels_of(fitted.image)[None]
        with torch.no_grad():
            asked = {**model._asked(example, pixels.device), **model._shown(pixels, example)}
        if kind == "llava":
            ids = example.tensors["input_ids"][None]
            asked |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return {"labels": example.tensors["labels"][None], **asked}

    settings = {"learning_rate": 0.05, "optim": "sgd", "max_grad_norm": 0.0, "gradient_accumulation_steps": 2}
    arguments = TrainingArguments(
        str(tmp_path / "checkpoints"), num_train_epochs=1, report_to=[], use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False, per_device_train_batch_size=1, save_strategy="no", **settings,
    )  # fmt: skip
    taps = [docleak.TrainerTap(tmp_path / "updates")]
    Trainer(model.module, arguments, train_dataset=pages, data_collator=batch, callbacks=taps).train()
    save(pages, tmp_path / "pages")
    (update,) = read_updates(tmp_path / "updates")
    case = open_case(update, load_model(str(tmp_path / "model")), str(tmp_path / "pages"))
    if kind == "llava":
        assert "not_imitated" not in update.details and case.batching.mean == "tokens" and case.round.passes
    else:
        said = "loss: a step takes the sum of the means of up to 2 batches"
        assert update.details["not_imitated"] == [said] and case.batching.mean == "examples"
        assert case.round.planned(learning_rate=0.1).passes


def test_rates_that_a_schedule_sets_apart_are_recorded(folder: Path, tmp_path: Path) -> None:
    """They were those of the first group of weights alone, and other pages the cause."""
    model = network(folder)
    weights = list(model.parameters())
    optimiser = torch.optim.SGD([{"params": weights[:4]}, {"params": weights[4:]}], lr=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, [lambda step: 1.0, lambda step: 0.1])
    trained_by_trainer(folder, tmp_path, model, optimizers=(optimiser, scheduler), max_steps=1)
    (update,) = read_updates(tmp_path / "updates")
    assert update.details["not_imitated"] == ["learning rate: 0.05 and 0.005, of some weights each"]


def resumed(folder: Path, out: Path, *, steps: int) -> None:
    """A training to the end below ``out / "first"``, and in ``out`` from its checkpoint after so many steps."""
    often = {"save_strategy": "steps", "save_steps": steps, "gradient_accumulation_steps": 1}
    trained_by_trainer(folder, out / "first", network(folder), **often)
    checkpoint = str(out / "first" / "checkpoints" / f"checkpoint-{steps}")
    trained_by_trainer(folder, out, network(folder), resume=checkpoint, gradient_accumulation_steps=1)


def test_a_training_that_goes_on_says_that_its_optimiser_has_a_state(folder: Path, tmp_path: Path) -> None:
    """Rows that earlier steps set moving were "other pages"."""
    resumed(folder, tmp_path, steps=2)
    case = case_of(folder, tmp_path)
    assert causes_of(case)[0]["sentence"].startswith("optimiser: its state after 2 earlier steps, as recorded")


class Ending(TrainerCallback):  # type: ignore[misc]
    """A training that ends after its first step by an error, once."""

    def __init__(self) -> None:
        self.ended = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.ended:
            self.ended = True
            raise MemoryError


def test_the_pages_of_a_resumed_epoch_are_those_it_saw(folder: Path, tmp_path: Path) -> None:
    """Resumed behind its first step, an epoch was said to have seen the pages of that step, which it skips."""
    resumed(folder, tmp_path, steps=1)
    (whole,), (rest,) = read_updates(tmp_path / "first" / "updates"), read_updates(tmp_path / "updates")
    assert rest.details["batches"] == whole.details["batches"][1:] and rest.details["steps"] == 1


def test_a_resumed_training_on_a_stream_of_pages_is_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was said not to be, since nobody knows how many pages a stream has, and was all the same."""

    class Stream(IterableDataset[int]):  # of no length
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    tap, told = docleak.TrainerTap(tmp_path / "updates"), TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    state = SimpleNamespace(is_world_process_zero=True, global_step=3)
    tap.on_train_begin(told, state, None, model=torch.nn.Linear(2, 2), train_dataloader=DataLoader(Stream()))
    assert "not recorded" not in caplog.text


def epoch_of_two(out: Path, count: int, *, twice: bool = False) -> dict[str, Any]:
    """What a tap says of an epoch of ``count`` examples as the first of two processes takes part in it; with ``twice``
    the tap is among the callbacks twice."""
    tap, told = docleak.TrainerTap(out), TrainingArguments(str(out), report_to=[], use_cpu=True, max_grad_norm=0)
    args = SimpleNamespace(**{**vars(told), "world_size": 2, "per_device_train_batch_size": 1, "max_grad_norm": 0})
    sampler = BatchSampler(SequentialSampler(range(count)), batch_size=1, drop_last=False)
    loader = DataLoader(range(count), batch_sampler=BatchSamplerShard(sampler, num_processes=2, process_index=0))
    model = torch.nn.Linear(2, 2)
    state = SimpleNamespace(is_world_process_zero=True, global_step=0)
    said = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1), "train_dataloader": loader}
    tap.on_train_begin(args, state, None, **said)
    for state.global_step, _ in enumerate(loader):
        for _ in range(1 + twice):
            tap.on_pre_optimizer_step(args, state, None, **said)
        torch.nn.init.normal_(model.weight)
    tap.on_train_end(args, state, None, **said)
    (update,) = read_updates(out)
    return {"examples": update.examples, **update.details}


def test_of_several_processes_the_pages_of_all_are_recorded(tmp_path: Path) -> None:
    """Those of the first process alone were: half of what came out was called wrong, half of the fields missed."""
    whole, filled = epoch_of_two(tmp_path / "whole", 4), epoch_of_two(tmp_path / "filled", 3)
    assert (whole["batches"], whole["examples"]) == ([[0, 1], [2, 3]], 4) and "not_imitated" not in whole
    assert filled["examples"] == 3 and "whose shares of every step are not all known" in filled["not_imitated"][0]


def test_a_tap_that_is_given_twice_counts_each_step_once(tmp_path: Path) -> None:
    """An epoch of two steps was said to be one of four."""
    told = epoch_of_two(tmp_path / "updates", 4, twice=True)
    assert (told["steps"], told["learning_rates"]) == (2, [0.1, 0.1])


def test_a_training_that_is_begun_again_after_an_error_is_recorded_alone(folder: Path, tmp_path: Path) -> None:
    """Steps and pages of the one that ended were counted to it, and its optimiser's to "0 earlier steps"."""
    tap = trained_by_trainer(
        folder, tmp_path, network(folder), gradient_accumulation_steps=1, callbacks=[Ending()], again=True
    )
    told = read_updates(tap.recorder.folder)[0].details
    assert told["steps"] == len(told["batches"]) == len(told["learning_rates"]) == 2
    assert told["not_imitated"] == ["optimiser: its state after no one knows how many earlier steps"]


@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_biases_and_norms_that_do_not_decay_are_imitated(optim: str, folder: Path, tmp_path: Path) -> None:
    """Trainer's weight_decay is of matrices alone: it was called half precision, and no picture was attacked."""
    trained_by_trainer(
        folder, tmp_path, network(folder), optim=optim, weight_decay=0.1, gradient_accumulation_steps=1,
        learning_rate=1e-2,
    )  # fmt: skip
    case = case_of(folder, tmp_path)
    names = case.update.details["undecayed"]
    assert any("LayerNorm" in name for name in names) and "layoutlmv3.embeddings.word_embeddings.weight" not in names
    assert "not_imitated" not in case.update.details and case.round.passes
    assert not replace(case.round, undecayed=frozenset()).passes
    assert words_of(case)["recall"] == 1.0


def test_examples_that_a_capture_leaves_out_are_no_alarm(folder: Path, tmp_path: Path) -> None:
    """Trainer's max_steps=1 takes two of three pages, and the capture says which."""
    trained_by_trainer(folder, tmp_path, network(folder), max_steps=1, gradient_accumulation_steps=1)
    case = case_of(folder, tmp_path)
    assert case.update.examples == 2 and len(case.examples) == 3
    assert check(case, words_of(case), dict)["doubts"] == []


def test_what_stood_still_in_a_whole_state_was_frozen(folder: Path, tmp_path: Path) -> None:
    """It was trained on in the audit's second step and counted for the norm, and hid every other cause."""
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model = network(folder)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("encoder.layer.0" not in name and "patch_embed" not in name)
    torch.save(model.state_dict(), tmp_path / "before.pt")
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for page in pages:
        optimiser.zero_grad()
        model(**app.batch_of(tokenizer, [page], True)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    torch.save(model.state_dict(), tmp_path / "after.pt")
    update = weights_pair(tmp_path / "before.pt", tmp_path / "after.pt")
    local, read = "optimiser=sgd,batch_size=1,max_norm=1,dropout=no,learning_rate=", load_model(str(folder / "model"))
    case = open_case(update, read, str(folder / "pages"), local=f"{local}0.05")
    assert case.round.passes and words_of(case)["recall"] == 1.0 and check(case, words_of(case), dict)["causes"] == []
    causes = causes_of(open_case(update, read, str(folder / "pages"), local=f"{local}0.02"))
    assert causes[0]["sentence"] == "learning rate: with --local learning_rate=0.05 the self-test passes"
    causes = causes_of(open_case(update, read, str(folder / "pages"), local=f"{local}0.05,batch_size=3"))
    assert "did not move" not in causes[0]["sentence"]


@pytest.mark.parametrize(
    ("noise", "clip", "poisson", "said"),
    [
        (0.0, 1e6, False, "the padding token's row of layoutlmv3.embeddings.word_embeddings.weight moved"),
        (0.0, 0.5, False, "Opacus, which is not imitated: it clips the gradient of every example"),
        (1.0, 1.0, True, "noise: "),
    ],
)
def test_a_step_of_opacus_itself_is_told_as_that(
    noise: float, clip: float, poisson: bool, said: str, folder: Path, tmp_path: Path
) -> None:
    """Neither what it cannot train, and so freezes, nor other pages: it computes a gradient for padding, too."""
    opacus = pytest.importorskip("opacus")
    torch.manual_seed(0)
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model = network(folder).train()
    model(**app.batch_of(tokenizer, pages, "max_length")).loss.backward()
    for name, parameter in model.named_parameters():  # it refuses some, and wants a gradient of every other
        parameter.requires_grad_(parameter.grad is not None and not name.endswith(("cls_token", "pos_embed")))
    model.zero_grad()
    loader = torch.utils.data.DataLoader(
        [(torch.tensor(number),) for number in range(3)], batch_size=3,
        collate_fn=lambda rows: app.batch_of(tokenizer, [pages[int(row[0])] for row in rows], "max_length"),
    )  # fmt: skip
    private, optimiser, loader = opacus.PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05), data_loader=loader,
        noise_multiplier=noise, max_grad_norm=clip, poisson_sampling=poisson,
    )  # fmt: skip
    torch.save(private.state_dict(), tmp_path / "before.pt")
    for batch in loader:
        private(**batch).loss.backward()
        optimiser.step()
    torch.save(private.state_dict(), tmp_path / "after.pt")
    update = weights_pair(tmp_path / "before.pt", tmp_path / "after.pt")
    local = "optimiser=sgd,learning_rate=0.05,batch_size=3,padding=max_length,dropout=no"
    case = open_case(update, load_model(str(folder / "model")), str(folder / "pages"), local=local)
    assert said in causes_of(case)[0]["sentence"]
    assert bool(check(case, words_of(case), dict)["doubts"])


@pytest.mark.parametrize("name", ["fedocvqa-start", "donut-start"])
def test_a_tied_weight_is_known_by_whichever_of_its_names_was_kept(name: str, tmp_path: Path) -> None:
    """safetensors keeps one of them ("lack 1 of the parameters ... Pass the --model that was trained"), torch.save all
    ("has 3 tensors that the weights before have not")."""
    model = load_model(name)
    for stage in ("before", "after"):
        torch.save(model.module.state_dict(), tmp_path / f"{stage}.pt")
        save_model(model.module, str(tmp_path / f"{stage}.safetensors"))
        with torch.no_grad():
            for number, parameter in enumerate(model.module.parameters(), 1):
                parameter.add_(1.0 / number)
    for one, other in product(("pt", "safetensors"), repeat=2):
        update = named_as(model, weights_pair(tmp_path / f"before.{one}", tmp_path / f"after.{other}"))
        load_start(model, update)
        moved = update.delta()
        for number, (parameter, _) in enumerate(model.module.named_parameters(), 1):
            assert np.allclose(moved[parameter], -1.0 / number, atol=1e-5), (one, other, parameter)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_modules": ["query"], "modules_to_save": ["word_embeddings"]}, ""),
        ({"target_modules": ["query", "word_embeddings"]}, ""),
        (
            {"target_modules": ["query"], "trainable_token_indices": {"word_embeddings": [*range(300)]}},
            "token_adapter.trainable_tokens_delta.default, which is not read: whether it tells the words is unknown",
        ),
    ],
    ids=["whole", "lora", "rows"],
)
def test_a_token_table_that_peft_trains_is_read(
    options: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    """As save_pretrained names it: it was "the weights sent lack 1 ... Pass the --model that was trained"."""
    peft = pytest.importorskip("peft")
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model = peft.get_peft_model(network(folder), peft.LoraConfig(r=2, **options))
    model.save_pretrained(tmp_path / "before")
    model(**app.batch_of(tokenizer, pages, True)).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    model.save_pretrained(tmp_path / "after")
    update = weights_pair(tmp_path / "before", tmp_path / "after")
    case = open_case(update, load_model(str(tmp_path / "before")), str(folder / "pages"), local=SGD)
    words = words_of(case)
    assert case.round.passes
    assert said in words["failed"] if said else words["recall"] == words["precision"] == 1.0
    assert check(case, words, dict)["doubts"] == []


def in_bits(value: torch.Tensor, bits: int) -> torch.Tensor:
    step = value.abs().max() / (2 ** (bits - 1) - 1)
    return step * (value / step.clamp_min(1e-30)).round()


def largest(value: torch.Tensor) -> torch.Tensor:
    """One in ten."""
    return value * (value.abs() >= value.abs().flatten().topk(-(-value.numel() // 10)).values[-1])


#: What is done to a gradient before it is sent, and what the first cause says of it.
PACKED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "top-k": (largest, "of the numbers that the plan moves came as zero"),
    "mask": (lambda v: v * (torch.rand(v.shape, generator=torch.Generator().manual_seed(0)) < 0.1), "came as zero"),
    "8 bits": (functools.partial(in_bits, bits=8), "different numbers, as of an update in few bits"),
    "4 bits": (functools.partial(in_bits, bits=4), "more than 15 different numbers"),
    "signs": (torch.sign, "more than 3 different numbers"),
}


@pytest.mark.parametrize("case", PACKED)
def test_a_compressed_update_is_not_one_of_other_pages(
    case: str, folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """They were "0 tokens moved that these pages do not have, and 70 of theirs did not", or half precision."""
    packed, said = PACKED[case]
    came = {name: packed(value) for name, value in less(*stepped, 20.0).items()}
    causes = causes_of(opened(folder, tmp_path, "gradient", stepped[0], came, local="dropout=no"))
    assert causes[0]["key"] == "compression" and said in causes[0]["sentence"]
    assert ("fp16" in causes[0]["sentence"]) == (case == "signs")
    assert "are they other pages" not in " ".join(cause["sentence"] for cause in causes)


def test_a_rate_for_each_layer_is_no_other_page(folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    """A step of LARS, of which the words were read, and other pages were named first."""
    moved = less(*stepped)
    after = {n: v - 1e-3 * moved[n] * v.norm() / moved[n].norm().clamp_min(1e-9) for n, v in stepped[0].items()}
    causes = causes_of(opened(folder, tmp_path, "weights", stepped[0], after))
    assert causes[0]["key"] == "optimiser" and "a rate for each, as of LAMB, LARS" in causes[0]["sentence"]


def test_where_the_words_are_these_pages_other_pages_are_the_last_thought(folder: Path, tmp_path: Path) -> None:
    """Momentum, of which nothing is said."""
    before, after = nine_steps(folder, lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9))
    case = opened(folder, tmp_path, "weights", before, after, SGD.replace("batch_size=3", "batch_size=1"))
    assert words_of(case)["precision"] == 1.0
    assert "pages" not in [cause["key"] for cause in causes_of(case)]


@pytest.mark.parametrize(
    ("trained", "given", "said"),
    [(2, 3, "did not move, and none of others did: were there fewer pages"),
     (3, 2, "all tokens and coordinates of these pages moved, and")],
)  # fmt: skip
def test_fewer_and_more_pages_are_told_from_others(
    trained: int, given: int, said: str, folder: Path, tmp_path: Path
) -> None:
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model = network(folder)
    before = copy.deepcopy(dict(model.named_parameters()))
    model(**app.batch_of(tokenizer, pages[:trained], True)).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    save(pages[:given], tmp_path / "pages")
    (tmp_path / "model").symlink_to(folder / "model")
    states = ({n: v.detach() for n, v in state} for state in (before.items(), model.named_parameters()))
    first = causes_of(opened(tmp_path, tmp_path / "updates", "weights", *states))[0]
    assert first["key"] == "pages" and said in first["sentence"]


def test_a_larger_decay_than_told_is_no_pull(folder: Path, tmp_path: Path) -> None:
    """It was "a pull inside the gradient, as of torch.optim.Adam's weight_decay"."""
    decayed = nine_steps(folder, lambda weights: torch.optim.AdamW(weights, lr=1e-3, weight_decay=1.0))
    told = ADAMW.replace("batch_size=3", "batch_size=1,epochs=3")
    first = causes_of(opened(folder, tmp_path, "weights", *decayed, local=told))[0]
    assert first["key"] == "weight decay" and "as a decay of 1 at this rate would" in first["sentence"]


def test_of_weights_that_share_no_decay_none_is_told(folder: Path, tmp_path: Path) -> None:
    """Told as SGD they "shrank by 0, as a decay of 0 at this rate would": Adam's decay moves each by its rate."""
    pulled = nine_steps(folder, lambda weights: torch.optim.Adam(weights, lr=1e-3, weight_decay=0.01))
    told = SGD.replace("batch_size=3", "batch_size=1,epochs=3,weight_decay=0.01")
    causes = causes_of(opened(folder, tmp_path, "weights", *pulled, local=told))
    assert "shrank by 0" not in " ".join(cause["sentence"] for cause in causes)


def test_a_value_that_the_vocabulary_cannot_write_is_not_counted_as_told(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """Fields that were all <unk> were "told"; here a token of a shop stands for what cannot be written."""
    case: Any = opened(folder, tmp_path, "weights", *stepped)
    assert words_of(case)["fields"] == [9, 9]
    tokenizer = case.model.tokenizer
    tokenizer.unk_token = tokenizer.convert_ids_to_tokens(tokenizer(["Aldi"], boxes=[[0] * 4]).input_ids)[1]
    words = words_of(case)
    held, of = words["fields"]
    assert held == of < 9 and of + words["unwritten"] == 9
    said, *_ = _of_words({**words, "unwritten": 1})
    assert said.endswith(". 1 private field holds what the vocabulary cannot write: it is not counted.")


def test_small_gradients_are_not_taken_for_the_rounding_of_weights(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """Of a gradient scaled by 1e-7, 14 of 52 tokens were read, the self-test passed, and nothing was doubted."""
    came = less(*stepped, 20e-7)
    case = opened(folder, tmp_path, "gradient", stepped[0], came, local="learning_rate=1e-7,dropout=no")
    words = words_of(case)
    assert case.round.passes and words["recall"] == words["precision"] == 1.0
    causes = causes_of(opened(folder, tmp_path, "gradient", stepped[0], came, local="dropout=no"))
    assert "did not move" not in " ".join(cause["sentence"] for cause in causes)


def test_a_rate_that_fits_is_not_the_cause(folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    """Of numbers a tenth off it was "learning rate or loss scale: what was sent is 1 times what the plan gives"."""
    drawn, moved = torch.Generator().manual_seed(0), less(*stepped)
    came = {n: value * (1.01 + 0.1 * torch.randn(value.shape, generator=drawn)) for n, value in moved.items()}
    causes = causes_of(opened(folder, tmp_path, "delta", stepped[0], came))
    assert "times what the plan gives" not in " ".join(cause["sentence"] for cause in causes)


def test_what_never_moved_has_not_few_numbers(folder: Path, tmp_path: Path) -> None:
    """Of a first step of LoRA, whose A stands still, "no tensor that came has more than 1 different numbers"."""
    peft = pytest.importorskip("peft")
    tokenizer, pages = AutoTokenizer.from_pretrained(str(folder / "model")), list(docleak.load_pages(folder / "pages"))
    model = peft.get_peft_model(network(folder), peft.LoraConfig(r=16, target_modules=["output.dense"]))
    model.save_pretrained(tmp_path / "model")
    model(**app.batch_of(tokenizer, pages[:2], True)).loss.backward()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    start = {name: p.detach().numpy() for name, p in trained.items()}
    came = {name: p.grad.numpy() for name, p in trained.items()}
    write_update(
        tmp_path / "updates", round=1, client="c", start=start, received=came, kind="gradient", examples=3, details={}
    )
    (update,) = read_updates(tmp_path / "updates")
    causes = causes_of(open_case(update, load_model(str(tmp_path / "model")), str(folder / "pages")))
    assert "compression" not in [cause["key"] for cause in causes]


def test_gradients_that_fp16_cannot_hold_may_be_all_that_is_few(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """They were "as of an update in few bits, or of signs" alone: below 6e-8 fp16 has no numbers."""
    came = {name: value.half().float() for name, value in less(*stepped, 20e-5).items()}
    first = causes_of(opened(folder, tmp_path, "gradient", stepped[0], came, local="dropout=no"))[0]
    assert first["key"] == "compression" and "or of numbers too small for fp16" in first["sentence"]


def test_a_part_that_is_reproduced_is_not_of_other_pages(
    folder: Path, stepped: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    """Of an update without its tables, half precision, other pages and another order were named, though what came is
    what these pages give."""
    came = {name: value for name, value in less(*stepped).items() if "embeddings" not in name}
    case = opened(folder, tmp_path, "delta", stepped[0], came)
    assert case.round.passes and case.unsent
    assert [cause["key"] for cause in causes_of(case)] == ["partial"]


def test_what_is_far_longer_than_any_replay_is_no_dropout(folder: Path, tmp_path: Path) -> None:
    """Steps of AdamW times 65,536 were "as far from replays with dropout as these are from one another", and that was
    named before the scale, at a cosine of 1."""
    trained_by_trainer(folder, tmp_path, network(folder), gradient_accumulation_steps=1)
    (update,) = read_updates(tmp_path / "updates")
    write_update(
        tmp_path / "scaled", round=1, client="c", start=update.start(), kind="delta", examples=3,
        received={name: 65536 * value for name, value in update.delta().items()}, details=update.details,
    )  # fmt: skip
    (scaled,) = read_updates(tmp_path / "scaled")
    causes = causes_of(open_case(scaled, load_model(str(folder / "model")), str(folder / "pages")))
    assert causes[0]["key"] == "learning rate" and "6.55e+04 times" in causes[0]["sentence"]
