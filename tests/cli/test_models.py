"""``docleak models assemble``: from two checkpoints on disk to a model that the other commands take."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers as t

from docleak.privacy.lineage import PUBLIC, Lineage, Trained
from docleak.training.lineage import DRAWN, lineage_of, write_lineage


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((c, -3.0) for c in "abcdefghijklmnop:")]
    words = t.T5TokenizerFast(vocab=pieces)
    text = t.T5Config(vocab_size=200, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, decoder_start_token_id=0)
    t.T5ForConditionalGeneration(text).save_pretrained(tmp_path / "t5")
    words.save_pretrained(tmp_path / "t5")
    vision = t.BeitConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    t.BeitModel(vision).save_pretrained(tmp_path / "dit")
    return tmp_path


def test_assemble(command: Callable[..., tuple[Any, str, str]], parts: Path) -> None:
    words = ("models", "assemble", "vt5", "made", "--text", "t5", "--vision", "dit")
    code, out, _ = command(*words, "--dry-run")
    assert code == 0 and "parameters to train, of" in out and "saved" not in out and not (parts / "made").exists()
    code, out, _ = command(*words, "--json")
    card = json.loads(out)
    saved = json.loads((parts / "made" / "docleak.json").read_text())
    assert code == 0 and len(saved["lineage"].pop("weights")) == 64 and card == saved
    code, out, _ = command("train", "federated", "--model", "made", "--dry-run")
    assert code == 0 and f"{card['trainable']:,}" in out, "the federation sends what the card calls trainable"
    code, _, said = command(*words)
    assert code == 1 and "made is there already; expected a new or empty folder" in said
    code, _, said = command("models", "assemble", "vt5", "other", "--text", "dit", "--vision", "t5")
    assert code == 1 and "is of type 'beit', expected 't5'" in said and "is of type 't5', expected 'beit'" in said


def test_a_published_checkpoint_is_made_and_audited_and_what_it_lacks_is_said(
    command: Callable[..., tuple[Any, str, str]], tmp_path: Path
) -> None:
    code, out, _ = command("models", "make", "layoutlmv3-base", "--narrow", "--json")
    assert code == 0 and json.loads(out)["published"] == "microsoft/layoutlmv3-base"
    assert json.loads(out) == json.loads((tmp_path / "layoutlmv3-base" / "docleak.json").read_text())
    assert lineage_of("./layoutlmv3-base") == DRAWN, "no page stands behind random weights"
    code, _, said = command("models", "make", "layoutlmv3-base")
    assert code == 1 and "layoutlmv3-base is there already" in said
    code, out, _ = command("models", "make", "--list")
    assert code == 0 and "layoutlmv3-base " in out and "125.3 M parameters" in out
    code, _, said = command("models", "make", "vt5-base-spdocvqa", "--narrow", "--spread")
    assert code == 1 and "need 4 heads or more" in said and not (tmp_path / "vt5-base-spdocvqa").exists()
    options = ("--attacks", "random", "--budget", "2", "--workers", "1", "--out", "run")
    code, out, said = command("audit", "gradient", "--model", "./layoutlmv3-base", *options)
    sentence = "layoutlmv3-base brings no qa_outputs"
    assert code == 0 and sentence in said and f"Notice: {sentence}" in out
    assert sentence in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("source", ["wide:vt5-start,width=160", "make:donut-base,seed=3", "lora:make:donut-base,r=2"])
def test_weights_drawn_where_a_model_goes_saw_nothing(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert lineage_of(source) == DRAWN


def test_a_vision_language_model_is_made_adapted_and_trained(
    command: Callable[..., tuple[Any, str, str]], tmp_path: Path
) -> None:
    code, out, err = command("models", "make", "qwen2_vl", str(tmp_path / "base"), "--narrow", "--spread", "--json")
    assert code == 0, err
    assert json.loads(out)["recipe"] == "a qwen2_vl made tiny, random weights (spread) drawn with seed 0"
    code, out, err = command("models", "make", "qwen2_vl", str(tmp_path / "large"))
    assert code == 1 and "Pass --narrow" in err and not (tmp_path / "large").exists()
    code, out, err = command("models", "make", "--list")
    assert code == 0 and "qwen2_vl" in out
    pytest.importorskip("peft", reason="the extra adapters is not installed")
    assert lineage_of(str(tmp_path / "base")) == DRAWN
    trained = Lineage(PUBLIC, "drawn", (Trained("a", "central training (qa, 1 round)", None),))
    write_lineage(tmp_path / "base", trained)
    words = ("models", "adapt", str(tmp_path / "base"), str(tmp_path / "lora"), "--lora")
    code, out, err = command(*words, "r=2,targets=q_proj", "--json")
    assert code == 0, err
    assert json.loads(out)["trainable"] == 2 * 2 * (48 + 48)
    assert lineage_of(str(tmp_path / "lora")) == trained, "adapters drawn at random: what the base saw"
    code, out, err = command(*words, "rank=2")
    assert code == 1 and "rank" in err
    code, out, err = command("train", "federated", "--model", str(tmp_path / "lora"), "--dry-run")
    assert code == 0 and "384 numbers are trained and travel" in out, (
        f"the federation sends the adapters alone: {out}{err}"
    )


@pytest.mark.parametrize(("architecture", "maker"), [("layoutlmv3", "make_checkpoints"), ("bros", "make_encoder")])
def test_a_tiny_layoutlmv3_is_a_document_model(
    architecture: str, maker: str, command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be an extraction model's backbone, too, of which docleak makes none."""
    asked: list[str] = []
    for name in ("make_checkpoints", "make_encoder"):
        monkeypatch.setattr(f"docleak.training.checkpoints.{name}",
                            lambda kind, *_, name=name, **__: (asked.append(name), {"recipe": kind})[1])  # fmt: skip
    code, _, err = command("models", "pretrain", architecture, "new")
    assert code == 0 and asked == [maker], err
