"""A pretrained ResNet as the eye of a bimodal encoder: its features are those of transformers, its statistics fixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from docleak.documents import load_pages
from docleak.errors import ModelError
from docleak.models.encoders.loading import load_encoder, named_weights, save_encoder
from docleak.models.encoders.resnet import IMAGENET, ResNetFeatures, read_resnet
from docleak.models.encoders.vision import VisionConfig

SIZE = (96, 128)


@pytest.fixture(scope="module", params=["basic", "bottleneck"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ResNet of four stages as transformers saves it, with statistics that are not those of the start."""
    out = tmp_path_factory.mktemp("resnet") / request.param
    torch.manual_seed(1)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[2, 1, 2, 1], layer_type=request.param, num_labels=5
    )
    network = transformers.ResNetForImageClassification(config)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for value in (module.running_mean, module.weight, module.bias):
                torch.nn.init.normal_(value, 0.3, 0.5)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
    network.save_pretrained(out)
    return out


def test_features_are_transformers_third_stage(source: Path) -> None:
    described, weights = read_resnet(str(source))
    features = ResNetFeatures(described)
    features.load_state_dict(weights)
    whole = transformers.ResNetModel.from_pretrained(source).eval()
    image = torch.randint(0, 256, (2, 3, SIZE[1], SIZE[0])).float()
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET.mean, IMAGENET.std))
    with torch.no_grad():
        ours = features(image / 127.5 - 1)
        theirs = whole((image / 255 - mean) / std, output_hidden_states=True).hidden_states[3]
    assert ours.shape == theirs.shape == (2, 24, SIZE[1] // 16, SIZE[0] // 16) and features.channels == 24
    assert torch.allclose(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_bimodal_encoder_has_it_and_is_saved_without_its_files(source: Path, tmp_path: Path) -> None:
    vision = VisionConfig(SIZE, resnet=str(source))
    model = load_encoder("layoutlm-tiny", task="mlm", vision=vision, seed=3)
    described, weights = read_resnet(str(source))
    assert model.config.resnet == described and "no layer from its ResNet to words" in model.drawn
    assert all(torch.equal(value, named_weights(model)[f"eye.layers.{key}"]) for key, value in weights.items())
    pages = [model.encode(load_pages("synthetic", count=1, seed=0)[0])]
    batch = model.collate(pages)
    model.module.train()
    model.hidden(batch).square().sum().backward()
    slopes = [p.grad for key, p in model.module.named_parameters() if key.startswith("eye.")]
    assert all(slope is not None and slope.abs().sum() > 0 for slope in slopes), "it is trained with the rest"
    model.module.eval()
    assert not list(model.module.eye.layers.buffers()), "no statistics of the pages are kept"
    save_encoder(model, tmp_path / "saved")
    source.rename(source.with_name("elsewhere"))
    try:
        again = load_encoder(str(tmp_path / "saved"))
    finally:
        source.with_name("elsewhere").rename(source)
    with torch.no_grad():
        np.testing.assert_array_equal(*(one.hidden(batch).numpy() for one in (model, again)))
    other = model.for_task("ee-bio", ("total",), seed=0)
    assert torch.equal(other.module.eye.layers.network.embedder.embedder.convolution.bias,
                       model.module.eye.layers.network.embedder.embedder.convolution.bias)  # fmt: skip


def test_what_is_no_resnet_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"layoutlm-tiny"):
        read_resnet("layoutlm-tiny")
    transformers.ResNetConfig(hidden_sizes=[8, 16], depths=[1, 1]).save_pretrained(tmp_path / "short")
    with pytest.raises(ModelError, match=r"'resnet' with 2 stages; expected a 'resnet' of 3 stages or more"):
        read_resnet(str(tmp_path / "short"))
    lame = tmp_path / "lame"
    network = transformers.ResNetForImageClassification.from_pretrained(source)
    state = {key: value for key, value in network.state_dict().items() if "stages.2" not in key}
    network.save_pretrained(lame, state_dict=state)
    with pytest.raises(ModelError, match=r"its weights lack .*stages\.2"):
        read_resnet(str(lame))
