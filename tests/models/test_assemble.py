"""VT5 and FeDocVQA's model put together from a T5 and a picture encoder that transformers saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file

from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import load_model, model_card, pixels_of
from docleak.models.assemble import assemble
from docleak.models.t5 import T5_BASE, ReaderConfig, T5Reader
from docleak.models.vt5 import DIT_BASE, VT5

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
PATCHES = "embeddings.patch_embeddings.projection.weight"
VISION = {"vt5": "dit", "fedocvqa": "mae"}


def tokenizer() -> Any:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    return t.T5TokenizerFast(vocab=[*pieces, *((c, -3.0) for c in "abcdefghijklmnopqrstuvwxyz0123456789?:.,/-@")])


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 (whole, and in shards), a DiT with a classifier's head and a masked autoencoder with its decoder, tiny."""
    folder = tmp_path_factory.mktemp("parts")
    torch.manual_seed(3)
    words = tokenizer()
    config = t.T5Config(
        vocab_size=len(words) + 5, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    t5 = t.T5ForConditionalGeneration(config)
    for name, most in (("t5", "5GB"), ("t5-in-shards", "20KB")):
        t5.save_pretrained(folder / name, max_shard_size=most)
        words.save_pretrained(folder / name)
    dit = t.BeitConfig(**SIZES, image_size=32, patch_size=8, use_absolute_position_embeddings=True, num_labels=3)
    t.BeitForImageClassification(dit).save_pretrained(folder / "dit")
    mae = t.ViTMAEConfig(**SIZES, image_size=32, patch_size=8, decoder_hidden_size=16, decoder_num_hidden_layers=1,
                         decoder_num_attention_heads=2, decoder_intermediate_size=16)  # fmt: skip
    t.ViTMAEForPreTraining(mae).save_pretrained(folder / "mae")
    settings = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    (folder / "mae" / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def assembled(parts: Path, kind: str, out: Path, *, text: str = "t5", seed: int = 7, **options: Any) -> T5Reader:
    assemble(kind, out, text=str(parts / text), vision=str(parts / VISION[kind]), seed=seed, **options)
    model = load_model(str(out))
    assert isinstance(model, T5Reader)
    return model


def weights(model: T5Reader) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.module.named_parameters()}


@pytest.mark.parametrize("kind", ["vt5", "fedocvqa"])
def test_the_two_checkpoints_are_in_it_and_the_rest_is_drawn(kind: str, parts: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    one, other = (assembled(parts, kind, tmp_path / str(seed), seed=seed) for seed in (7, 8))
    assert torch.equal(torch.random.get_rng_state(), state)
    text, vision = load_file(parts / "t5" / "model.safetensors"), load_file(parts / VISION[kind] / "model.safetensors")
    ours, card = weights(one), model_card(str(tmp_path / "7"))
    assert all(torch.equal(ours[f"t5.{name}"], value) for name, value in text.items())
    prefix = {"vt5": "dit.", "fedocvqa": ""}[kind]
    patches = ours[f"dit.{PATCHES}" if prefix else "patch_embed.weight"]
    assert torch.equal(patches, vision[{"vt5": "beit.", "fedocvqa": "vit."}[kind] + PATCHES])
    if prefix:
        backbone = [v for n, v in vision.items() if n.startswith("beit.") and "pooler" not in n]  # some are renamed
        dit = [value for name, value in ours.items() if name.startswith("dit.")]
        assert len(dit) == len(backbone)
        assert all(any(torch.equal(mine, value) for mine in dit) for value in backbone)
    differing = {name for name, value in weights(other).items() if not torch.equal(value, ours[name])}
    constant = {name for name in card["drawn"] if "norm" in name}
    assert differing == set(card["drawn"]) - constant and differing
    assert len(card["drawn"]) == (8 if kind == "vt5" else 2)
    assert card["parameters"] == sum(value.numel() for value in ours.values())
    assert card["trainable"] == sum(p.numel() for p in one.module.parameters() if p.requires_grad)
    assert card["text"] == str(parts / "t5") and card["seed"] == 7 and "seed 7" in card["recipe"]
    assert one.config.image_mean == ((0.5,) * 3 if prefix else (0.485, 0.456, 0.406))
    assert one.config.max_tokens == (512 if prefix else 1024)
    assert one.config.prompt_box == ((0, 0, 1000, 1000) if prefix else (0, 0, 0, 0))


@pytest.mark.parametrize("kind", ["vt5", "fedocvqa"])
def test_it_is_the_model_that_a_config_naming_the_two_gives(kind: str, parts: Path, tmp_path: Path) -> None:
    named = {"model_type": kind, "text": str(parts / "t5"), "vision": str(parts / VISION[kind]), "seed": 7}
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "config.json").write_text(json.dumps(named))
    one, other = assembled(parts, kind, tmp_path / "whole"), load_model(str(tmp_path / "named"))
    assert isinstance(other, T5Reader)
    theirs = weights(other)
    assert all(torch.equal(value, theirs[name]) for name, value in weights(one).items())
    page = one.fit(make_pages(1, seed=1)[0])
    example, pixels = one.encode(page, page.questions[0]), pixels_of(page.image)[None]
    with torch.no_grad():
        assert torch.isfinite(one.loss(pixels, [example])).all()
    assert 0 <= one.answer(pixels, [example])[0].confidence <= 1


def test_shards_are_the_same_model(parts: Path, tmp_path: Path) -> None:
    assert len(list((parts / "t5-in-shards").glob("model-*.safetensors"))) > 1
    whole, joined = (weights(assembled(parts, "vt5", tmp_path / name, text=name)) for name in ("t5", "t5-in-shards"))
    assert all(torch.equal(value, joined[name]) for name, value in whole.items())


class Planted:
    """Unpickled without care, it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.file,)


def pickled(parts: Path, folder: Path) -> Path:
    shutil.copytree(parts / "t5", folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def test_pickled_weights_are_read_when_asked_only_and_run_nothing(parts: Path, tmp_path: Path) -> None:
    text, vision = pickled(parts, tmp_path / "t5"), str(parts / "dit")
    with pytest.raises(ModelError, match=r"t5' could not be loaded .*model\.safetensors.* --allow-pickle"):
        assemble("vt5", tmp_path / "out", text=str(text), vision=vision, seed=7)
    assemble("vt5", tmp_path / "out", text=str(text), vision=vision, seed=7, allow_pickle=True)
    model, same = load_model(str(tmp_path / "out")), assembled(parts, "vt5", tmp_path / "same")
    assert isinstance(model, T5Reader)
    assert all(torch.equal(value, weights(same)[name]) for name, value in weights(model).items())

    torch.save({"shared.weight": Planted(tmp_path / "planted")}, text / "pytorch_model.bin")
    with pytest.raises(ModelError, match="could not be loaded"):
        assemble("vt5", tmp_path / "bad", text=str(text), vision=vision, seed=7, allow_pickle=True)
    assert not (tmp_path / "planted").exists() and not (tmp_path / "bad").exists()
    torch.load(text / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "planted").exists(), "the plant works"


def copied(parts: Path, name: str, folder: Path, **changes: Any) -> str:
    shutil.copytree(parts / name, folder / name)
    file = folder / name / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return str(folder / name)


@pytest.mark.parametrize(
    ("kind", "text", "vision", "said"),
    [
        ("donut", {}, {}, "unknown architecture 'donut'; docleak assembles vt5 and fedocvqa"),
        ("vt5", {"model_type": "mt5"}, {"num_channels": 1}, r"type 'mt5', expected 't5'.*takes 1 channels"),
        ("vt5", {}, {"model_type": "vit"}, r"type 'vit', expected 'beit': a DiT \(BEiT\)"),
        ("fedocvqa", {}, {"model_type": "beit"}, r"type 'beit', expected 'vit_mae'"),
        ("fedocvqa", {}, {"hidden_size": 48}, r"width 48 and the T5 .* 32, expected the same"),
        ("vt5", {}, {"patch_size": 7}, "pictures of 32 in patches of 7, expected a square of whole patches"),
        ("vt5", {}, {"image_size": [32, 64]}, r"pictures of \[32, 64\]"),
        ("vt5", {"vocab_size": 40}, {}, r"tokenizer of .* has 147 tokens, its network 40 rows"),
        ("vt5", {"eos_token_id": 5}, {}, "eos_token_id of .* is 1 by its tokenizer and 5 by its config"),
        ("vt5", {"decoder_start_token_id": None}, {}, "no decoder_start_token_id"),
        ("vt5", {"d_ff": 64}, {}, "could not be loaded"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_written(
    kind: str, text: dict[str, Any], vision: dict[str, Any], said: str, parts: Path, tmp_path: Path
) -> None:
    sources = {"text": copied(parts, "t5", tmp_path, **text),
               "vision": copied(parts, VISION.get(kind, "dit"), tmp_path, **vision)}  # fmt: skip
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ModelError, match=said):
        assemble(kind, tmp_path / "out", seed=0, **sources)
    assert sorted(tmp_path.iterdir()) == before


def test_missing_files_and_full_folders_are_said(parts: Path, tmp_path: Path) -> None:
    text, vision = copied(parts, "t5", tmp_path), str(parts / "dit")
    out = tmp_path / "out"
    for file, said in (("model.safetensors", "could not be loaded"), ("tokenizer.json", "no tokenizer|no vocabulary")):
        content = (Path(text) / file).read_bytes()
        (Path(text) / file).write_bytes(content[: len(content) // 2])
        with pytest.raises(ModelError, match=said):
            assemble("vt5", out, text=text, vision=vision, seed=0)
        (Path(text) / file).write_bytes(content)
    with pytest.raises(ModelError, match=r"has no config\.json"):
        assemble("vt5", out, text=str(tmp_path), vision=vision, seed=0)
    encoder = t.T5EncoderModel.from_pretrained(text)
    encoder.save_pretrained(text)
    with pytest.raises(ModelError, match=r"lacks \d+ of the network's parameters, first: decoder"):
        assemble("vt5", out, text=text, vision=vision, seed=0)
    assert not out.exists()
    out.mkdir()
    assemble("vt5", out, text=str(parts / "t5"), vision=vision, seed=0)
    with pytest.raises(ModelError, match="out is there already"):
        assemble("vt5", out, text=str(parts / "t5"), vision=vision, seed=0)


def test_it_is_written_whole_or_not_at_all(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: VT5, directory: str) -> None:
        (Path(directory) / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(VT5, "save", broken)
    with pytest.raises(KeyboardInterrupt):
        assembled(parts, "vt5", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "trained", "whole"), [("vt5", 225_659_136, 311_465_472),
                                                        ("fedocvqa", 223_497_984, 223_497_984)])  # fmt: skip
def test_base_sizes_are_the_published_ones(kind: str, trained: int, whole: int, tmp_path: Path) -> None:
    """By the configurations alone, on the meta device: there are no weights to read."""
    t.T5Config(**T5_BASE, decoder_start_token_id=0).save_pretrained(tmp_path / "t5-base")
    tokenizer().save_pretrained(tmp_path / "t5-base")
    vision = t.BeitConfig(**DIT_BASE) if kind == "vt5" else t.ViTMAEConfig()
    vision.save_pretrained(tmp_path / "vision")
    sources = {"text": str(tmp_path / "t5-base"), "vision": str(tmp_path / "vision")}
    for place in sources.values():
        (Path(place) / "model.safetensors").touch()  # a plan looks whether weights are there, and reads none
    card = assemble(kind, tmp_path / "out", seed=0, dry_run=True, **sources)
    assert (card["trainable"], card["parameters"]) == (trained, whole)
    assert not (tmp_path / "out").exists()


def test_the_sources_may_be_at_a_revision(parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As hub names have them; what is asked of the libraries is looked at, since there is no network."""
    asked: list[tuple[str, str]] = []

    def from_pretrained(kind: Any, where: str, *, revision: str, **options: Any) -> Any:
        asked.append((where, revision))
        raise OSError("no network")

    monkeypatch.setattr(t.T5ForConditionalGeneration, "from_pretrained", classmethod(from_pretrained))
    with pytest.raises(ModelError, match=r"'owner/t5@v1\.0' could not be loaded \(OSError: no network\)"):
        VT5.build(ReaderConfig("owner/t5@v1.0", str(parts / "dit")))
    with pytest.raises(ModelError, match="could not be loaded"):
        VT5.build(ReaderConfig(str(parts / "t5"), str(parts / "dit")))
    assert asked == [("owner/t5", "v1.0"), (str(parts / "t5"), "main")]


def test_weights_that_are_not_there_are_missed_before_anything_is_made(parts: Path, tmp_path: Path) -> None:
    bare, torn = tmp_path / "bare", tmp_path / "torn"
    shutil.copytree(parts / "dit", bare)
    (bare / "model.safetensors").unlink()
    shutil.copytree(parts / "t5-in-shards", torn)
    shard = min(torn.glob("model-*.safetensors"))
    shard.unlink()
    with pytest.raises(ModelError) as refused:
        assemble("vt5", tmp_path / "out", text=str(torn), vision=str(bare), seed=0, dry_run=True)
    said = str(refused.value)
    assert shard.name in said and "it has no weights; expected one of model.safetensors" in said
    assert not (tmp_path / "out").exists()
