"""A finished model of the user's own: played on its pages, and refused, in one sentence, where it cannot be."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, LayoutLMv3Config

from docleak.attacks.weights import CdmiConfig
from docleak.documents import Page
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocumentError, ModelError, RunError
from docleak.models.encoders.finished import load_finished
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.model import build
from docleak.models.encoders.tasks import classes_of
from docleak.models.encoders.tiny import SPECIALS, bert_tokenizer, tiny_encoder
from docleak.models.shipped import CHECKPOINTS
from docleak.studies.engine import begin, carry_out
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.game import game_of, ready, view_of
from docleak.studies.weights.study import MODELS, WeightsStudy
from docleak.studies.weights.table import read_table
from docleak.training.extraction import kept
from docleak.training.extraction.fit import FitConfig

QUICK = FitConfig(epochs=1, batch_size=8, learning_rate=1e-3)
PRIVATE, PUBLIC = make_pages(6, seed=1), make_pages(5, seed=2, split="train")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    save(PRIVATE, folder / "private")
    save(PUBLIC, folder / "public")
    start = load_encoder("layoutlm-tiny")
    save_encoder(start.for_task("ee-bio", classes_of([*PRIVATE, *PUBLIC]), seed=3), folder / "model")
    return folder


def config_in(folder: Path, **changes: object) -> WeightsConfig:
    named = {"target": folder / "model", "documents": folder / "private", "public_documents": folder / "public"}
    values = {key: str(value) for key, value in named.items()} | {
        "model": "",
        "pages": 0,
        "fields": 3,
        "attempts": 2,
        "calibrate": False,
        **changes,
    }
    return WeightsConfig(**values, attack=CdmiConfig(candidates=5, top_p=0.9), public_training=QUICK)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_finished_model_is_played(here: Path, tmp_path: Path, workers: int) -> None:
    config = config_in(here)
    run = carry_out(WeightsStudy(config), tmp_path / "a", workers=workers)
    game = ready(config, run.path / MODELS)
    assert game.knowledge is not None and game.target.task == "ee-bio" and game.knowledge.model.task == "mlm"
    assert {secret.page for secret in game.secrets} <= {page.name for page in PRIVATE}
    table = read_table(run, rng=np.random.default_rng(0))
    assert len(table.fields) == 3
    assert sum(game.left_out.values()) + len(game_of(replace(config, fields=0)).secrets) == sum(
        field.private for page in PRIVATE for field in page.fields
    ), "every private field is played or counted"


@pytest.mark.parametrize("family", ["LayoutLMv3ForTokenClassification", "LayoutLMv3ForQuestionAnswering"])
def test_a_layoutlmv3_that_transformers_saved_is_played(here: Path, tmp_path: Path, family: str) -> None:
    """With its picture, of which the field is a white patch; the public model begins with the same pieces."""
    start = str(CHECKPOINTS / "layoutlmv3-start")
    classes = classes_of([*PRIVATE, *PUBLIC])
    labels = ["O", *(f"{part}-{name}" for name in classes for part in "BI")]
    named = {"id2label": dict(enumerate(labels)), "label2id": {}} if "Token" in family else {}
    values = AutoConfig.from_pretrained(start).to_dict() | named
    torch.manual_seed(0)
    getattr(transformers, family)(LayoutLMv3Config(**values)).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(start).save_pretrained(tmp_path / "model")
    config = config_in(here, target=str(tmp_path / "model"), model=start, fields=2, attempts=1)
    run = carry_out(WeightsStudy(config), tmp_path / "run")
    game = ready(config, run.path / MODELS)
    assert game.target.task == ("qa" if "Question" in family else "ee-bio") and game.target.bimodal
    assert game.knowledge is not None and game.knowledge.model.config.architecture == "layoutlmv3"
    view = view_of(game, game.secrets[0])
    before, after = game.pages[game.secrets[0].page].image, view.page.image
    assert (
        before is not None and after is not None and (before != after).any() and (after[before != after] == 255).all()
    )
    assert len(read_table(run, rng=np.random.default_rng(0)).fields) == 2


def test_a_game_is_not_continued_with_a_retrained_model_or_other_pages(here: Path, tmp_path: Path) -> None:
    """An interrupted audit of weights, the model trained again into its folder: two models in one table."""
    for name in ("model", "private", "public"):
        shutil.copytree(here / name, tmp_path / name)
    config = config_in(tmp_path, fields=2, attempts=1)
    carry_out(WeightsStudy(config), tmp_path / "a")
    other = load_encoder("layoutlm-tiny").for_task("ee-bio", classes_of([*PRIVATE, *PUBLIC]), seed=4)
    save_encoder(other, tmp_path / "model")
    with pytest.raises(RunError, match=r"results of other weights.*\n  - .*model: its files have the hash"):
        begin(WeightsStudy(config), tmp_path / "a")
    save_encoder(load_finished(str(here / "model")), tmp_path / "model")
    lines = (tmp_path / "public" / "pages.jsonl").read_text().splitlines()
    (tmp_path / "public" / "pages.jsonl").write_text("".join(f"{line}\n" for line in lines[:-1]))
    with pytest.raises(RunError, match=r"results of other weights, pages or records.*\n  - .*public: its files"):
        begin(WeightsStudy(config), tmp_path / "a")


def test_the_public_model_never_sees_a_private_page(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Page] = []
    real = kept.encoded
    monkeypatch.setattr(kept, "encoded", lambda model, pages: seen.extend(pages) or real(model, pages))
    ready(config_in(here), tmp_path)
    assert {page.name for page in seen} == {page.name for page in PUBLIC}


def refused(config: WeightsConfig) -> str:
    with pytest.raises((AttackError, DocumentError, ModelError)) as stop:
        game_of(config)
    return str(stop.value)


def test_overlapping_pages_are_refused(here: Path, tmp_path: Path) -> None:
    save([*PUBLIC, replace(PRIVATE[0], name="again", document="")], tmp_path / "by-text")
    assert "'again' are the same" in refused(config_in(here, public_documents=str(tmp_path / "by-text")))
    one, other = (replace(page, document="contract 7") for page in (PRIVATE[0], PUBLIC[0]))
    save([one, *PRIVATE[1:]], tmp_path / "private")
    save([other, *PUBLIC[1:]], tmp_path / "public")
    config = config_in(here, documents=str(tmp_path / "private"), public_documents=str(tmp_path / "public"))
    assert "document 'contract 7' are the same" in refused(config)
    with pytest.raises(AttackError, match="both"):
        config_in(here, public_documents=str(here / "private"))


def test_the_target_is_no_start_of_the_public_model(here: Path, tmp_path: Path) -> None:
    """The baseline would know what the target knows, and nothing would seem to leak."""
    for spelled in (here / "model", f"{here}/private/../model"):
        with pytest.raises(AttackError, match="the public model would begin with what the target knows"):
            config_in(here, model=str(spelled))
    for name, seed in (("words", 0), ("copy", 0), ("other", 1)):
        vocabulary = load_encoder("layoutlm-tiny").tokenizer.get_vocab()
        made = tiny_encoder("layoutlm", bert_tokenizer(vocabulary), seed=seed)
        save_encoder(made.for_task("mlm", (), seed=seed), tmp_path / name)
    config = config_in(here, target=str(tmp_path / "words"), model=str(tmp_path / "copy"))
    assert "is the target itself" in refused(config)
    assert game_of(replace(config, model=str(tmp_path / "other"))).secrets


def test_an_empty_public_set_is_refused(here: Path, tmp_path: Path) -> None:
    save([replace(page, words=(), fields=(), questions=()) for page in PUBLIC], tmp_path / "wordless")
    assert "0 of 5 pages have words" in refused(config_in(here, public_documents=str(tmp_path / "wordless")))
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(config_in(here, public_documents=str(tmp_path / "empty")))
    with pytest.raises(AttackError, match="public pages must be named"):
        config_in(here, public_documents="")


def test_pages_with_other_classes_are_refused(here: Path, tmp_path: Path) -> None:
    strange = [replace(p, fields=tuple(replace(f, key="blood_group") for f in p.fields), entities=()) for p in PRIVATE]
    save(strange, tmp_path / "strange")
    message = refused(config_in(here, documents=str(tmp_path / "strange")))
    assert "blood_group" in message and "has no class" in message


def test_another_vocabulary_is_refused(here: Path, tmp_path: Path) -> None:
    words = {piece: i for i, piece in enumerate([*SPECIALS, *"abcdefghijklmnopqrstuvwxyz0123456789"])}
    stranger = tiny_encoder("layoutlm", bert_tokenizer(words), seed=0)
    save_encoder(stranger, tmp_path / "stranger")
    message = refused(config_in(here, target=str(tmp_path / "stranger")))
    assert "vocabulary of 41 pieces" in message and "; no shipped model does. Name with --model" in message
    message = refused(config_in(here, model=str(tmp_path / "stranger")))
    assert "stranger does not" in message


def test_fields_that_cannot_be_played_are_named(here: Path, tmp_path: Path) -> None:
    """None within the model's length: the sentence says why, and how many."""
    start = load_encoder("layoutlm-tiny")
    backbone = {**start.config.backbone, "max_position_embeddings": 8}
    short = build(replace(start.config, backbone=backbone), start.tokenizer, seed=0, name="short")
    save_encoder(short, tmp_path / "short")
    message = refused(config_in(here, target=str(tmp_path / "short")))
    assert "within the model's 8" in message and "beyond the model's length" in message


def test_boxes_that_leave_the_page_are_refused(here: Path, tmp_path: Path) -> None:
    save(PRIVATE, tmp_path / "bad")
    index = tmp_path / "bad" / "pages.jsonl"
    lines = index.read_text().splitlines()
    first = json.loads(lines[0])
    first["words"][0]["box"] = [0, 0, 1200, 1200]
    index.write_text("\n".join([json.dumps(first), *lines[1:]]))
    assert "leaves the page" in refused(config_in(here, documents=str(tmp_path / "bad")))


def test_classes_in_another_case_are_the_same(here: Path, tmp_path: Path) -> None:
    start = load_encoder("layoutlm-tiny")
    loud = tuple(name.upper() for name in classes_of(PRIVATE))
    save_encoder(start.for_task("ee-bio", loud, seed=3), tmp_path / "loud")
    game = game_of(config_in(here, target=str(tmp_path / "loud")))
    assert set(game.target.config.classes) == set(classes_of(PRIVATE))
