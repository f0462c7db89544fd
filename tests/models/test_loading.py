"""Loading models: what cannot be loaded says why, and checkpoints unlike the shipped ones work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models import load_model, pixels_of, title_of, trainable
from docleak.models.donut import Donut
from docleak.models.files import ImageSettings, image_settings
from docleak.models.loading import loadable, short_name, split_revision
from docleak.models.shipped import CHECKPOINTS


def copy_of(name: str, directory: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINTS / name, directory / name))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("./no/such/directory", "there is no model"),
        (
            "layoutlm-tiny",
            "no model 'layoutlm-tiny'. That name is of another kind: LayoutLM (tiny), trained",
        ),
        ("/no/such/directory", "there is no model"),
        ("donut-trian", "Did you mean 'donut-trained'?"),
        ("layoutlmv3-strat", "Did you mean 'layoutlmv3-start'?"),
        ("donut-start,layoutlmv3-start", "Name one model at a time; where several are taken, repeat --model."),
        ("resnet", "Shipped: donut-start, donut-trained, layoutlmv3-start, layoutlmv3-trained"),
        ("nobody/no-such-model", "can be reached"),
        ("my models/of today", "can be reached"),
    ],
)
def test_a_model_that_is_not_there(source: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(source)
    assert said in str(caught.value)
    assert repr(source) in str(caught.value)


def test_a_name_unlike_any_gets_no_suggestion() -> None:
    with pytest.raises(ModelError) as caught:
        load_model("xyzzy")
    assert "Did you mean" not in str(caught.value)


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match="is a file; expected the directory"):
        load_model(str(file))


def test_a_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{not json", "is not JSON"),
        ("[1, 2]", "holds a list, expected an object"),
        ("\udcff", "is not JSON"),
        ("{}", "architecture None"),
        ('{"model_type": "bert"}', "architecture 'bert'"),
        (
            '{"model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit"}, '
            '"decoder": {"model_type": "gpt2"}}',
            "with encoder 'vit' and decoder 'gpt2'",
        ),
        (
            '{"model_type": "vision-encoder-decoder", "encoder": "swin", "decoder": null}',
            "'vision-encoder-decoder'; docleak",
        ),
    ],
)
def test_a_config_that_is_none(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelError) as caught:
        load_model(str(tmp_path))
    assert said in str(caught.value)


def test_another_architecture(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"'bert'; docleak audits .*donut-swin.*layoutlmv3.*audit weights"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("name", ["donut-start", "layoutlmv3-start"])
@pytest.mark.parametrize("damage", ["truncated", "missing weights", "missing tokenizer", "garbage settings"])
def test_damaged_files(name: str, damage: str, tmp_path: Path) -> None:
    directory = copy_of(name, tmp_path)
    if damage == "truncated":
        weights = directory / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:100_000])
    elif damage == "missing weights":
        (directory / "model.safetensors").unlink()
    elif damage == "missing tokenizer":
        for file in directory.glob("tokenizer*"):
            file.unlink()
    else:
        (directory / "preprocessor_config.json").write_text("{")
    with pytest.raises(ModelError) as caught:
        load_model(str(directory))
    if damage == "garbage settings":
        assert "preprocessor_config.json is not JSON" in str(caught.value)
    else:
        assert "could not be loaded" in str(caught.value) and "model.safetensors" in str(caught.value)


def test_what_a_vision_language_model_lacks_is_said_with_one_full_stop(tmp_path: Path) -> None:
    directory = copy_of("llava-trained", tmp_path)
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"could not be loaded .*model\.safetensors\.$"):
        load_model(str(directory))


def test_a_file_that_may_not_be_read_is_named_as_that() -> None:
    """It was "No such file or directory: model.safetensors", of a file that is there."""
    nobody, before = 65534, os.geteuid()
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are for their owner alone
        directory = copy_of("layoutlmv3-start", Path(place))
        load_model(str(directory))  # imports what it needs
        (directory / "model.safetensors").chmod(0)
        Path(place).chmod(0o755)
        try:
            if before == 0:  # who may read everything
                os.seteuid(nobody)
            with pytest.raises(ModelError, match=r"model\.safetensors .* may not be read .*Permission denied"):
                load_model(str(directory))
        finally:
            os.seteuid(before)


def test_titles() -> None:
    assert title_of("donut-start") == "Donut (tiny), start of federated training"
    assert title_of("/home/me/my-donut/") == "my-donut"


def word_tokenizer() -> Any:
    """A vocabulary with merges, and Donut's tags as ordinary added tokens, as in its published checkpoints."""
    from tokenizers import ByteLevelBPETokenizer

    trainer = ByteLevelBPETokenizer()
    texts = [w.text for page in make_pages(4, seed=0) for w in page.words] + ["What is the total?"] * 3
    trainer.train_from_iterator(
        texts, vocab_size=330, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trainer._tokenizer, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.add_tokens(["<s_docvqa>", "<s_question>", "</s_question>", "<s_answer>", "</s_answer>"])
    return tokenizer


def other_donut(directory: Path, *, decoder_width: int) -> None:
    """A Donut as transformers' own users save one: three stages, another size, another vocabulary, no docleak."""
    tokenizer = word_tokenizer()
    torch.manual_seed(0)
    encoder = transformers.DonutSwinConfig(
        image_size=[72, 120], patch_size=4, embed_dim=8, depths=[1, 2, 1], num_heads=[1, 2, 4], window_size=4
    )
    decoder = transformers.MBartConfig(
        vocab_size=len(tokenizer), d_model=decoder_width, decoder_layers=1, decoder_attention_heads=2,
        decoder_ffn_dim=32, max_position_embeddings=96, is_decoder=True, add_cross_attention=True,
        add_final_layer_norm=True, is_encoder_decoder=False, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    module = transformers.VisionEncoderDecoderModel(
        encoder=transformers.DonutSwinModel(encoder), decoder=transformers.MBartForCausalLM(decoder)
    )
    module.config.decoder_start_token_id, module.config.pad_token_id = 0, 1
    module.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@pytest.mark.parametrize("decoder_width", [32, 24])
def test_a_donut_of_another_configuration(decoder_width: int, tmp_path: Path) -> None:
    other_donut(tmp_path, decoder_width=decoder_width)
    settings = {"size": [80, 64], "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    model = load_model(str(tmp_path))
    assert isinstance(model, Donut)
    assert model.image_size == (80, 64), "the image settings' size counts, not the config's"
    assert hasattr(model.module, "enc_to_dec_proj") == (decoder_width != 32)
    page = model.fit(make_pages(1, seed=0)[0])
    example = model.encode(page, page.questions[0])
    pixels = pixels_of(page.image)[None]
    with torch.no_grad():
        reference = model.module(
            pixel_values=model.normalise(pixels), decoder_input_ids=example.tensors["decoder_input_ids"][None],
            labels=example.tensors["labels"][None],
        ).loss  # fmt: skip
        torch.testing.assert_close(model.loss(pixels, [example])[0], reference, rtol=1e-5, atol=1e-6)
        assert model.encoded(pixels).shape[1] == model.grid[0] * model.grid[1] == 4 * 5
    free = pixels.clone().requires_grad_(True)
    parameters = [p for _, p in trainable(model.module)]
    gradient = torch.autograd.grad(model.loss(free, [example]).mean(), parameters, create_graph=True)
    (second,) = torch.autograd.grad(torch.stack([g.square().sum() for g in gradient]).sum(), free)
    assert torch.isfinite(second).all() and float(second.abs().max()) > 0
    assert 0 <= model.answer(pixels, [example])[0].confidence <= 1
    again = tmp_path / "again"
    model.save(str(again))
    with torch.no_grad():
        assert torch.equal(load_model(str(again)).loss(pixels, [example]), model.loss(pixels, [example]))


def test_tags_that_are_no_special_tokens_survive_a_scramble(tmp_path: Path) -> None:
    other_donut(tmp_path, decoder_width=32)
    model = load_model(str(tmp_path))
    assert model.image_size == (120, 72), "without image settings the config's size counts"
    page = model.fit(make_pages(1, seed=0)[0])
    example = model.encode(page, page.questions[0])
    other = model.scramble(example, question=True, answer=True, generator=torch.Generator().manual_seed(0))
    tags = ["<s_docvqa>", "<s_question>", "</s_question>", "<s_answer>", "</s_answer>"]
    assert [t for t in other.tokens if t in tags] == tags
    assert [other.tokens.index(tag) for tag in tags] == [example.tokens.index(tag) for tag in tags]


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ({"size": [960, 1280]}, ImageSettings((1280, 960))),
        ({"size": {"height": 1280, "width": 960}}, ImageSettings((1280, 960))),
        ({"size": 224}, ImageSettings((224, 224))),
        ({"size": {"shortest_edge": 224}}, ImageSettings()),
        ({}, ImageSettings()),
        (
            {"image_processor": {"size": [3, 4], "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}},
            ImageSettings((4, 3), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
        ),
    ],
)
@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
def test_image_settings(saved: dict[str, object], expected: ImageSettings, file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(json.dumps(saved))
    assert image_settings(str(tmp_path)) == expected


@pytest.mark.parametrize("name", ["donut-start", "layoutlmv3-start"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"do_normalize": False},
        {"do_rescale": False},
        {"do_rescale": False, "do_normalize": False},
        {"rescale_factor": 1 / 127.5},
        {"do_rescale": False, "image_mean": None, "image_std": None},
        {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]},
    ],
)
def test_pixels_are_prepared_as_the_checkpoints_own_processor_does(
    name: str, change: dict[str, Any], tmp_path: Path
) -> None:
    directory = copy_of(name, tmp_path)
    file = directory / "preprocessor_config.json"
    file.write_text(json.dumps({k: v for k, v in {**json.loads(file.read_text()), **change}.items() if v is not None}))
    model = load_model(str(directory))
    kind = transformers.DonutImageProcessorPil if name == "donut-start" else transformers.LayoutLMv3ImageProcessorPil
    page = model.fit(make_pages(1, seed=0, size=(230, 300))[0])
    theirs = kind.from_pretrained(directory)(page.image, return_tensors="pt")["pixel_values"].float()
    torch.testing.assert_close(model.normalise(pixels_of(page.image)[None]), theirs, rtol=1e-5, atol=1e-4)
    model.save(str(tmp_path / "again"))
    again = load_model(str(tmp_path / "again"))
    torch.testing.assert_close(again.normalise(pixels_of(page.image)[None]), theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("change", [{"rescale_factor": 0}, {"rescale_factor": -1}, {"image_std": [0.5, 0, 0.5]}])
def test_impossible_image_settings_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    directory = copy_of("donut-start", tmp_path)
    (directory / "preprocessor_config.json").write_text(json.dumps(change))
    with pytest.raises(ModelError, match=r"preprocessor_config\.json has .* expected values above 0"):
        load_model(str(directory))


def test_a_processor_config_about_other_things_does_not_hide_the_image_settings(tmp_path: Path) -> None:
    """As in many repositories of the hub."""
    (tmp_path / "processor_config.json").write_text('{"processor_class": "DonutProcessor"}')
    (tmp_path / "preprocessor_config.json").write_text('{"size": [960, 1280]}')
    assert image_settings(str(tmp_path)) == ImageSettings((1280, 960))


def test_no_image_settings(tmp_path: Path) -> None:
    assert image_settings(str(tmp_path)) == ImageSettings()
    assert image_settings("nobody/not-in-the-cache") == ImageSettings()


@pytest.mark.parametrize(("name", "lost"), [("donut-start", "encoder.encoder"), ("layoutlmv3-start", "qa_outputs")])
def test_a_checkpoint_without_all_weights_is_not_filled_up_with_random_ones(
    name: str, lost: str, tmp_path: Path
) -> None:
    """Such as a base model without its head, which every worker process would draw anew."""
    from safetensors.torch import load_file, save_file

    directory = copy_of(name, tmp_path)
    weights = load_file(directory / "model.safetensors")
    kept = {key: value for key, value in weights.items() if not key.startswith(lost)}
    assert 0 < len(kept) < len(weights)
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"lacks .* of the network's parameters, first: {lost}"):
        load_model(str(directory))


# -- another size of the pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(320, 608), (742, 960), (57, 57), (193, 131), (192, 256)])
def test_a_donut_runs_on_pages_of_another_size(size: tuple[int, int]) -> None:
    """The encoder pads odd sizes itself; the grid must still be that of its output."""
    model = load_model("donut-start", image_size=size)
    assert isinstance(model, Donut) and model.image_size == size
    page = model.fit(make_pages(1, seed=0)[0])
    assert (page.width, page.height) == size
    pixels = pixels_of(page.image)[None]
    example = model.encode(page, page.questions[0])
    with torch.no_grad():
        assert model.encoded(pixels).shape[1] == model.grid[0] * model.grid[1]
        assert torch.isfinite(model.loss(pixels, [example])).all()
    original = load_model("donut-start")
    for (name, one), (_, other) in zip(trainable(model.module), trainable(original.module), strict=True):
        assert torch.equal(one, other), name


def test_the_grid_of_three_stages_at_odd_sizes(tmp_path: Path) -> None:
    other_donut(tmp_path, decoder_width=32)
    for size in ((120, 72), (119, 73), (742, 960), (49, 50)):
        model = load_model(str(tmp_path), image_size=size)
        assert isinstance(model, Donut)
        with torch.no_grad():
            cells = model.encoded(torch.zeros(1, 3, size[1], size[0])).shape[1]
        assert cells == model.grid[0] * model.grid[1], size


def test_another_size_is_twice_differentiable_and_saved(tmp_path: Path) -> None:
    model = load_model("donut-start", image_size=(71, 90))
    page = model.fit(make_pages(1, seed=0)[0])
    free = pixels_of(page.image)[None].requires_grad_(True)
    parameters = [p for _, p in trainable(model.module)]
    loss = model.loss(free, [model.encode(page, page.questions[0])]).mean()
    gradient = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    power = torch.stack([g.square().sum() for g in gradient if g is not None]).sum()
    (second,) = torch.autograd.grad(power, free)
    assert torch.isfinite(second).all() and float(second.abs().max()) > 0
    model.save(str(tmp_path / "again"))
    assert load_model(str(tmp_path / "again")).image_size == (71, 90)


@pytest.mark.parametrize("size", [(56, 100), (100, 56), (1, 1)])
def test_pages_smaller_than_a_window_of_the_last_stage_are_refused(size: tuple[int, int]) -> None:
    """The network itself fails there, with a message about tensors."""
    with pytest.raises(ModelError, match=rf"{size[0]} x {size[1]} pixels are too small .* at least 57 pixels"):
        load_model("donut-start", image_size=size)


def test_learned_absolute_positions_fix_the_size(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"layoutlmv3.*only takes pages of 224 x 224 pixels, not 320 x 608"):
        load_model("layoutlmv3-start", image_size=(320, 608))
    assert load_model("layoutlmv3-start", image_size=(224, 224)).image_size == (224, 224)
    directory = copy_of("donut-start", tmp_path)
    config = json.loads((directory / "config.json").read_text())
    config["encoder"]["use_absolute_embeddings"] = True
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="lacks 1 of the network's parameters"):
        load_model(str(directory))  # which is why the next one cannot be made from it
    module = transformers.VisionEncoderDecoderModel.from_pretrained(directory)
    module.save_pretrained(directory)
    assert load_model(str(directory), image_size=(192, 256)).image_size == (192, 256)
    with pytest.raises(ModelError, match="learned absolute patch positions"):
        load_model(str(directory), image_size=(320, 608))


# -- revisions of hub models -------------------------------------------------------------------------------------------


def hub_cache(home: Path, repository: str, revisions: dict[str, Path]) -> None:
    """A download cache as huggingface_hub lays it out; each revision is a branch of that name."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    for number, (branch, checkpoint) in enumerate(revisions.items(), start=1):
        commit = f"{number:040x}"
        shutil.copytree(checkpoint, folder / "snapshots" / commit)
        (folder / "refs" / branch).write_text(commit)


REVISIONS = """
import json, sys
from docleak.studies.identity import weights_hash
from docleak.models import load_model
found = {}
for source in sys.argv[1:]:
    model = load_model(source)
    found[source] = [weights_hash(model), model.name, list(model._mean), len(model.tokenizer)]
print(json.dumps(found))
"""


def test_a_revision_of_a_hub_model(tmp_path: Path) -> None:
    """Weights, settings and tokenizer are those of the revision; without a network, from the cache."""
    home = tmp_path / "home"
    other = copy_of("donut-trained", tmp_path)
    settings = json.loads((other / "preprocessor_config.json").read_text())
    (other / "preprocessor_config.json").write_text(json.dumps({**settings, "do_normalize": False}))
    hub_cache(home, "acme/donut", {"main": CHECKPOINTS / "donut-start", "v2": other})
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    names = ["donut-start", "donut-trained", "acme/donut", "acme/donut@v2", f"acme/donut@{2:040x}"]
    done = subprocess.run(
        [sys.executable, "-c", REVISIONS, *names], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    start, trained, main, branch, commit = json.loads(done.stdout).values()
    assert start[0] == main[0] != trained[0] == branch[0] == commit[0]
    assert (main[1], branch[1]) == ("donut", "donut@v2")
    assert (main[2], branch[2], commit[2]) == ([0.5] * 3, [0.0] * 3, [0.0] * 3)


def test_an_existing_directory_with_an_at_sign_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "runs@home" / "donut@v2"
    shutil.copytree(CHECKPOINTS / "donut-start", directory)
    assert load_model(str(directory)).name == "donut@v2"
    assert split_revision(str(directory)) == (str(directory), None)
    assert title_of(str(directory)) == "donut@v2"
    monkeypatch.chdir(tmp_path)
    assert split_revision("runs@home/donut@v2") == ("runs@home/donut@v2", None)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("donut-start@v2", "only models of the hub have revisions"),
        ("owner/model@", "only models of the hub have revisions"),
        ("nobody/no-such-model@v2", "can be reached"),
        ("nobody/no-such-model@refs/pr/3", "can be reached"),
        ("donut-strat@v2", "Did you mean 'donut-start'"),
        ("/no/such/directory@v2", "there is no model"),
    ],
)
def test_revisions_of_what_has_none(source: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(source)
    assert said in str(caught.value) and repr(source) in str(caught.value)


def test_short_names() -> None:
    assert short_name("owner/model@refs/pr/3") == "model@refs/pr/3"
    assert short_name("/home/me/my-donut/") == "my-donut"


def test_a_layoutlmv3_that_tags_needs_names_of_its_labels(tmp_path: Path) -> None:
    saved = {"model_type": "layoutlmv3", "architectures": ["LayoutLMv3ForTokenClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(ModelError, match="expected O and, for each kind of entity"):
        load_model(str(tmp_path))


def test_a_layoutlmv3_that_sorts_whole_pages_is_called_what_it_is(tmp_path: Path) -> None:
    where = copy_of("layoutlmv3-start", tmp_path)
    transformers.LayoutLMv3ForSequenceClassification.from_pretrained(where).save_pretrained(where)
    with pytest.raises(ModelError, match=r"LayoutLMv3ForSequenceClassification; docleak audits .* or as .*lists.$"):
        load_model(str(where))


def test_a_shipped_model_is_read_once_and_each_has_its_own() -> None:
    first, second = load_model("vt5-start"), load_model("vt5-start")
    before = {name: value.clone() for name, value in second.module.state_dict().items()}
    with torch.no_grad():
        for parameter in first.module.parameters():
            parameter.add_(1.0)
    third = load_model("vt5-start")
    for model in (second, third):
        assert all(torch.equal(value, before[name]) for name, value in model.module.state_dict().items())
    assert not {p.data_ptr() for p in first.module.parameters()} & {p.data_ptr() for p in third.module.parameters()}
    assert [p.requires_grad for p in third.module.parameters()] == [p.requires_grad for p in second.module.parameters()]
    assert third.name == "vt5-start" and not third.module.training


def test_a_package_that_is_missing_is_asked_for_and_no_file() -> None:
    """Of pictures whose class needs torchvision the files were said to be lacking."""
    said = "X requires the Torchvision library but it was not found in your environment."
    asked = r"Torchvision library.*\)\. Install what it asks for\.$"
    with pytest.raises(ModelError, match=asked) as caught, loadable("it"):
        raise ImportError(said)
    assert "save_pretrained" not in str(caught.value)
