"""Copies of published checkpoints: the published files, special tokens in place, weights in any form, alike by seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from docleak.errors import ModelError, RunError
from docleak.models.encoders.loading import load_encoder
from docleak.models.files import tokenizer_of, weights_in
from docleak.models.published import PUBLISHED, make, published
from docleak.models.sentencepiece import read, t5_tokenizer
from tests.models.published.mirrors import digests

TEXT = "Invoice total: 12.50 EUR"


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_and_vocabulary(name: str, tmp_path: Path) -> None:
    checkpoint = published(name)
    card = make(name, tmp_path / "out", seed=0, scale="narrow")
    assert checkpoint.repository in card["recipe"] and "narrow" in card["recipe"] and card["seed"] == 0
    files = {"config.json", "docleak.json", checkpoint.weights}
    files |= {"generation_config.json"} if checkpoint.generation else set()
    files |= {"preprocessor_config.json"} if checkpoint.processor else set()
    files |= set(checkpoint.tokenizer.files) if checkpoint.tokenizer else set()
    assert {file.name for file in (tmp_path / "out").iterdir()} == files
    if checkpoint.tokenizer is None:
        return
    tokenizer = tokenizer_of(str(tmp_path / "out"))
    rows = 1400
    assert len(tokenizer) == rows
    for token, number in checkpoint.tokenizer.specials.items():
        assert tokenizer.convert_tokens_to_ids(token) == number % rows
    ids = (
        tokenizer(TEXT, boxes=None, add_special_tokens=False)["input_ids"]
        if name != "layoutlmv3-base"
        else [
            i for i in tokenizer(TEXT.split(), boxes=[[0] * 4] * 4)["input_ids"] if i not in tokenizer.all_special_ids
        ]
    )
    assert len(ids) > 3 and tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids).replace(" ", "").lower() == TEXT.replace(" ", "").lower()


def test_the_true_size_has_the_published_number_of_tokens(tmp_path: Path) -> None:
    make("tinybert-general-4l-312d", tmp_path / "out", seed=0)
    tokenizer = tokenizer_of(str(tmp_path / "out"))
    assert len(tokenizer) == 30522 and (tokenizer.cls_token_id, tokenizer.mask_token_id) == (101, 103)
    size = (tmp_path / "out" / "pytorch_model.bin").stat().st_size
    assert 0 <= size - published("tinybert-general-4l-312d").bytes < 100_000


def test_seeds_and_initialisations(tmp_path: Path) -> None:
    copies = {
        label: digests(weights_in(str(tmp_path / label), None))
        for label, options in {
            "one": {},
            "same": {},
            "other": {"seed": 1},
            "spread": {"initialisation": "spread"},
        }.items()
        if make("layoutlmv3-base", tmp_path / label, scale="narrow", **{"seed": 0, **options})  # type: ignore[arg-type]
    }
    matrix = "layoutlmv3.embeddings.word_embeddings.weight"
    assert copies["one"] == copies["same"]
    assert len({copies[label][matrix] for label in ("one", "other", "spread")}) == 3


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_shards_hold_the_same_tensors_and_must_all_be_there(weights: str, tmp_path: Path) -> None:
    name = "layoutlm-base-uncased"
    make(name, tmp_path / "whole", seed=0, scale="narrow")
    make(name, tmp_path / "shards", seed=0, scale="narrow", weights=weights, shards=3)  # type: ignore[arg-type]
    parts = sorted((tmp_path / "shards").glob("*-of-00003.*"))
    assert len(parts) == 3 and (tmp_path / "shards" / f"{weights}.index.json").is_file()
    whole, joined = (load_encoder(str(tmp_path / label), task="mlm") for label in ("whole", "shards"))
    assert digests(dict(whole.module.named_parameters())) == digests(dict(joined.module.named_parameters()))
    parts[1].unlink()
    with pytest.raises(
        ModelError, match=rf"{weights}\.index\.json names 3 files, of which .*-00002-.* cannot be found"
    ):
        load_encoder(str(tmp_path / "shards"), task="mlm")
    (tmp_path / "shards" / f"{weights}.index.json").write_text('{"weight_map": {"a": "../whole/config.json"}}')
    with pytest.raises(ModelError, match=r"of which \.\./whole/config\.json cannot be found"):
        load_encoder(str(tmp_path / "shards"), task="mlm")


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ModelError, match="is there already; expected a new or empty folder"):
        make("gpt2", tmp_path, seed=0, scale="narrow")


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    make("resnet-18", tmp_path / "out", seed=0, scale="narrow")
    assert torch.equal(before, torch.get_rng_state())


def test_sentencepiece_without_its_library(tmp_path: Path) -> None:
    """The same tokens as tokenizer.json of the same vocabulary; a file that is none is refused in a sentence."""
    make("t5-base", tmp_path / "out", seed=0, scale="narrow")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = t5_tokenizer(tmp_path / "out" / "spiece.model")
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours(TEXT)["input_ids"] == theirs(TEXT)["input_ids"] and ours.eos_token_id == 1
    content = (tmp_path / "out" / "spiece.model").read_bytes()
    pieces, character_map = read(content)
    assert len(pieces) == 1300 and character_map == b"" and pieces[2].text == "<unk>"
    for damaged in (b"", content[:-3], b"not a model", b"\xff" * 40):
        (tmp_path / "spiece.model").write_bytes(damaged)
        with pytest.raises(ModelError, match=r"spiece\.model is no SentencePiece model"):
            t5_tokenizer(tmp_path / "spiece.model")


def test_a_full_disk_is_told_where_torch_meets_it(tmp_path: Path) -> None:
    """ "[enforce fail at inline_container.cc:672] . unexpected pos 24448 vs 24344"."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(RunError, match=r"cannot write .*model: a limit on the size.*same command again\.$"):
            make("donut-base", tmp_path / "model", seed=0, scale="narrow")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
