"""Features of a page by a pretrained ResNet (He et al., 2016), for the eye of a bimodal encoder.

The map is that of the third of its four stages, a sixteenth of the picture: the "C4" features on which He et al. (2017,
"Mask R-CNN") align regions. Batch normalisation is folded into the convolutions with the statistics that the checkpoint
brings, so that a training on few pages changes weights only and keeps no statistics of them; the folded weights are
trained with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from docleak.errors import ModelError
from docleak.models.base import normalised
from docleak.models.files import ImageSettings, image_settings, weights_in
from docleak.models.loading import config_at, loadable, locate

STAGES = 3
#: Of nn.BatchNorm2d, which transformers' ResNet leaves as it is.
EPSILON = 1e-5
#: Of ImageNet, with which the published ones were trained, where a checkpoint says no other.
IMAGENET = ImageSettings(None, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
#: What of a ResNet's configuration shapes the network.
SHAPE = ("num_channels", "embedding_size", "hidden_sizes", "depths", "layer_type", "hidden_act",
         "downsample_in_first_stage", "downsample_in_bottleneck")  # fmt: skip


class ResNetFeatures(nn.Module):
    """Pictures (B, 3, H, W) in -1..1 to features (B, ``channels``, H / 16, W / 16). ``described`` has the ResNet's
    "config", and "mean" and "std" of its pictures in 0..1, as ``read_resnet`` tells them."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        super().__init__()
        import transformers as t

        values = dict(described["config"])
        cut = {name: list(values[name])[:STAGES] for name in ("hidden_sizes", "depths")}
        self.network = t.ResNetModel._from_config(t.ResNetConfig(**{**values, **cut}))
        for module in self.network.modules():
            if isinstance(getattr(module, "normalization", None), nn.BatchNorm2d):
                module.convolution = _with_bias(module.convolution)
                module.normalization = nn.Identity()
        self.channels = int(cut["hidden_sizes"][-1])
        self.mean, self.std = (tuple(map(float, described[name])) for name in ("mean", "std"))

    def forward(self, pictures: Tensor) -> Tensor:
        stages = self.network(normalised((pictures + 1) / 2, self.mean, self.std), output_hidden_states=True)
        features: Tensor = stages.hidden_states[-1]
        return features


def read_resnet(source: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A ResNet of transformers, from a directory or hub name: its description, and its weights by the names that
    ``ResNetFeatures`` gives them, batch normalisation folded in. ModelError for other checkpoints."""
    where, revision = locate(source, what="ResNet", owned=False)
    with loadable(f"ResNet {source!r}"):
        values = config_at(where, revision, source)
        kind, stages = values.get("model_type"), len(values.get("depths", ()))
        if kind != "resnet" or stages < STAGES:
            raise ModelError(
                f"model {source!r} is of type {kind!r} with {stages} stages; "
                f"expected a 'resnet' of {STAGES} stages or more, such as microsoft/resnet-50."
            )
        saved = {key.removeprefix("resnet."): value for key, value in weights_in(where, revision).items()}
        settings = image_settings(where, revision=revision, default=IMAGENET)
    described = {"config": {key: values[key] for key in SHAPE if key in values}, "mean": list(settings.mean),
                 "std": list(settings.std)}  # fmt: skip
    with torch.device("meta"):
        wanted = ResNetFeatures(described).state_dict()
    names = {key.removeprefix("network.").removesuffix(".convolution.weight").removesuffix(".convolution.bias")
             for key in wanted}  # fmt: skip
    weights: dict[str, Tensor] = {}
    for name in sorted(names):
        parts = [f"{name}.convolution.weight", *(f"{name}.normalization.{part}" for part in
                 ("weight", "bias", "running_mean", "running_var"))]  # fmt: skip
        if missing := [part for part in parts if part not in saved]:
            raise ModelError(f"model {source!r} could not be loaded: its weights lack {missing[0]} of the ResNet.")
        weight, scale, shift, mean, variance = (saved[part].float() for part in parts)
        factor = scale / torch.sqrt(variance + EPSILON)
        weights[f"network.{name}.convolution.weight"] = weight * factor[:, None, None, None]
        weights[f"network.{name}.convolution.bias"] = shift - mean * factor
    if wrong := [key for key, value in weights.items() if value.shape != wanted[key].shape]:
        raise ModelError(f"model {source!r} could not be loaded: {wrong[0]} is not of the shape of its config.json.")
    return described, weights


def _with_bias(old: nn.Conv2d) -> nn.Conv2d:
    """A layer of the same shape with a bias, which the batch normalisation behind it becomes part of."""
    side, step, around = old.kernel_size[0], old.stride[0], int(old.padding[0])
    return nn.Conv2d(old.in_channels, old.out_channels, side, stride=step, padding=around)
