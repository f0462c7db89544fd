"""Checkpoints made where a model is named: once, as asked, and kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from docleak.documents.issuers import FIRST, make_issuers
from docleak.errors import ModelError, RunError
from docleak.models import load_model, model_card, short_name, title_of
from docleak.models.base import pixels_of, trainable
from docleak.models.encoders.loading import load_encoder
from docleak.models.pair.shapes import build_pair
from docleak.models.published.made import Made, asked_for, folder_of, made_at
from docleak.models.vt5 import VT5
from docleak.privacy.lineage import PUBLIC, UNKNOWN
from docleak.studies.identity import weights_hash
from docleak.training.lineage import DRAWN, lineage_of, write_lineage

NARROW = "make:layoutlmv3-base,narrow=yes"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_is_asked_for_is_read_of_the_text() -> None:
    assert asked_for("make:donut-base") == Made("donut-base")
    assert asked_for("make:donut-base,spread=yes,seed=3") == Made("donut-base", spread=True, seed=3)
    assert asked_for("layoutlmv3-start") is None and asked_for("owner/model@v1:x") is None and made_at("make") is None
    assert short_name("make:donut-base,spread=yes,seed=3") == "donut-base-spread-seed3"
    assert title_of("make:donut-base,spread=yes,seed=3") == (
        "naver-clova-ix/donut-base, random weights (spread initialisation, seed 3)"
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("make:layoutlm3-base", "no published checkpoint 'layoutlm3-base' is known. Did you mean 'layoutlmv3-base'"),
        ("make:donut-base,spread=3", "spread is '3'; expected one of yes, no"),
        ("make:donut-base,sped=yes", "it takes spread=yes|no, seed=0, narrow=yes|no. Did you mean 'spread'"),
        ("make:donut-base,seed=-1", "seed is -1, expected 0 to 4,294,967,295"),
        ("make:donut-base,spread", "cannot be told 'spread'"),
        ("wide:donut-start", "a wider 'donut-start' cannot be made; expected one of vt5-start, fedocvqa-start"),
        ("wide:vt5-start,width=100", "expected a width of 128 to 1024 that 32 divides"),
        ("wide:vt5-start,width=99968", "expected a width of 128 to 1024"),
        ("wide:vt5-start,decoder=0", "and 1 to 24 layers of each"),
        ("wide:vt5-start,depth=3", "it takes base=vt5-start, width=256, layers=6, decoder=4, seed=0"),
        ("wide:vt5-start,seed=-1", "seed is -1, expected 0 to 4,294,967,295"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_written(source: str, said: str, cache: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(source)
    assert said in str(caught.value) and not any(cache.iterdir())


def test_it_is_made_once_and_kept(cache: Path) -> None:
    made = asked_for(NARROW)
    assert made is not None
    folder = folder_of(made)
    assert folder.is_relative_to(cache) and not folder.exists()
    first = weights_hash(load_model(NARROW))
    stamp = (folder / "config.json").stat().st_mtime_ns
    assert weights_hash(load_model(NARROW)) == first
    assert (folder / "config.json").stat().st_mtime_ns == stamp
    assert "random weights (default) drawn with seed 0" in model_card(NARROW)["recipe"]


def test_seed_and_initialisation_are_those_asked_for() -> None:
    sources = (NARROW, f"{NARROW},seed=1", f"{NARROW},spread=yes")
    assert len({weights_hash(load_model(source)) for source in sources}) == 3
    assert "(spread) drawn with seed 0" in model_card(f"{NARROW},spread=yes")["recipe"]


def test_a_wider_reader_reads_the_same_words_with_more_weights() -> None:
    base, source = load_model("vt5-start"), "wide:vt5-start,width=128,layers=3,decoder=2"
    wider = load_model(source)
    assert isinstance(base, VT5) and isinstance(wider, VT5)
    assert wider.ids("Invoice 12") == base.ids("Invoice 12") and wider.image_size == base.image_size
    sizes = [sum(parameter.numel() for parameter in model.module.parameters()) for model in (base, wider)]
    assert sizes[0] < sizes[1] == model_card(source)["parameters"]
    assert wider.module.t5.config.d_model == 128 and len(wider.module.t5.decoder.block) == 2
    assert short_name(source) == wider.name == "vt5-start-wide-128x3+2"
    assert weights_hash(load_model(f"{source},seed=1")) != weights_hash(wider)
    page = make_issuers([FIRST], [1], seed=0)[0]
    gradient = torch.autograd.grad(
        wider.loss(pixels_of(wider.fit(page).image)[None], [wider.encode(wider.fit(page), page.questions[0])]).sum(),
        [value for _, value in trainable(wider.module)],
    )
    assert all(value.isfinite().all() for value in gradient)


def test_encoders_and_pairs_take_them_too() -> None:
    assert load_encoder("make:bros-base-uncased,narrow=yes", task="mlm").name == "bros-base-uncased-narrow"
    image, text = "make:resnet-18,narrow=yes", "make:bert-base-uncased,narrow=yes"
    pair = build_pair(image, text, classes=("a", "b"), image_size=(32, 32), seed=0)
    assert pair.name == "resnet-18-narrow+bert-base-uncased-narrow"


def test_a_cache_that_takes_nothing_says_where_it_is_and_how_to_have_another(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    for source in (NARROW, f"lora:{NARROW}"):
        with pytest.raises(RunError, match=r"file in the way .*kept in your cache folder\. Set .* XDG_CACHE_HOME to a"):
            load_model(source)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_not_be_written_to_says_so(cache: Path) -> None:
    cache.chmod(0o500)
    with pytest.raises(RunError, match=r"Permission denied.*XDG_CACHE_HOME"):
        load_model(NARROW)


@pytest.mark.parametrize("source", [NARROW, "lora:layoutlmv3-start,r=2", "wide:vt5-start,width=160,layers=1"])
def test_a_made_model_that_was_trained_in_its_place_is_not_drawn_at_random(source: str) -> None:
    """An epsilon was claimed of weights in the cache folder, whatever they had become."""
    folder = made_at(source)
    assert folder is not None and lineage_of(source).origin == PUBLIC
    train_in(folder)
    assert lineage_of(source).origin == UNKNOWN and "delete" in lineage_of(source).note


def test_adapters_on_a_made_model_that_was_trained_in_its_place_are_not_either(tmp_path: Path) -> None:
    base, adapters = made_at(NARROW), tmp_path / "adapters"
    assert base is not None
    adapters.mkdir()
    (adapters / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": NARROW}))
    write_lineage(adapters, DRAWN)
    assert lineage_of(str(adapters)) == DRAWN
    train_in(base)
    assert lineage_of(str(adapters)).origin == UNKNOWN


def train_in(folder: Path) -> None:
    (weights,) = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x01\x02\x03\x04")
