"""The networks of MMGIA's section 5.1 by name, tiny ones, and any image or text classifier of transformers by path."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from docleak.errors import ModelError
from docleak.models.encoders.tiny import shipped_tokenizer
from docleak.models.files import ImageSettings, image_settings, pretrained_but, tokenizer_of
from docleak.models.loading import loadable, short_name, split_revision
from docleak.models.pair.model import PairModel, PairNetwork
from docleak.models.start import spread

VOCABULARY = Path(__file__).with_name("vocabulary.txt")


class LeNet(nn.Module):
    """LeNet-5 as the gradient-inversion papers have it (Zhu et al., 2019): strided convolutions and sigmoids.

    Twice differentiable everywhere, weights uniform in ±0.5. Pixels (B, 3, H, W) to features (B, F).
    """

    def __init__(self, size: tuple[int, int], *, channels: int = 12) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, channels, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(channels, channels, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(channels, channels, 5, padding=2),
            nn.Sigmoid(),
        )
        self.width = channels * math.ceil(size[0] / 4) * math.ceil(size[1] / 4)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, F)."""
        return cast(Tensor, self.convolutions(pixels).flatten(1))

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Weights and biases uniform in ±0.5."""
        for parameter in self.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)


#: name -> what transformers' ResNet is built from; "lenet5" is ours.
IMAGE_SHAPES: dict[str, dict[str, Any]] = {
    "lenet5": {},
    "resnet-tiny": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
    "resnet18": {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2],
                 "layer_type": "basic"},
    "resnet50": {"embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3],
                 "layer_type": "bottleneck"},
}  # fmt: skip
#: name -> layers, width, heads, width of the feed-forward layers. TinyBERT-4 is Jiao et al.'s (2020).
TEXT_SHAPES: dict[str, tuple[int, int, int, int]] = {
    "bert-tiny": (2, 64, 4, 128),
    "tinybert4": (4, 312, 12, 1200),
    "bert-base": (12, 768, 12, 3072),
    "bert-large": (24, 1024, 16, 4096),
}


def pair_tokenizer() -> Any:
    """The word pieces that ship for pairs (scripts/pair_files.py)."""
    return shipped_tokenizer(VOCABULARY)


def build_pair(
    image: str,
    text: str,
    *,
    classes: Sequence[str],
    image_size: tuple[int, int],
    seed: int,
    fused: bool = False,
    train_embeddings: bool = False,
    device: str | torch.device = "cpu",
) -> PairModel:
    """A pair of IMAGE_SHAPES and TEXT_SHAPES drawn with ``seed``, or classifiers of transformers from a directory.

    Heads are drawn anew for ``classes``. The tables of words, positions and segments stay out of training unless
    ``train_embeddings``, as in TAG and LAMP: their gradient names the words by itself. Raises ModelError for fewer
    than two classes and for a network that is no classifier with a linear head at its end.
    """
    if len(set(classes)) < 2 or len(set(classes)) != len(classes):
        raise ModelError(f"classes are {list(classes)}; expected two or more different ones, or nothing is learned.")
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    image_net, image_width, settings = _image_net(image, image_size, generator)
    text_net, text_width, tokenizer = _text_net(text, generator)
    module = PairNetwork(image_net, text_net, widths=(image_width, text_width), classes=len(classes), fused=fused)
    for part in (cast(nn.Linear, side["head"]) for side in (module.image, module.text)):
        part.weight.data.normal_(0.0, 1 / math.sqrt(part.in_features), generator=generator)
        if part.bias is not None:
            part.bias.data.zero_()
    if not train_embeddings:
        for name, parameter in text_net.named_parameters():
            if name.endswith("embeddings.weight"):
                parameter.requires_grad_(False)
    module.eval().to(device)
    name = f"{short_name(image)}+{short_name(text)}" + (" fused" if fused else "")
    model = PairModel(name, module, tokenizer, tuple(classes), image_size, settings.mean, settings.std)
    _check_widths(model, (image_width, text_width))
    return model


def _image_net(name: str, size: tuple[int, int], generator: torch.Generator) -> tuple[nn.Module, int, ImageSettings]:
    if name == "lenet5":
        lenet = LeNet(size)
        lenet.draw(generator)
        return lenet, lenet.width, ImageSettings()
    import transformers

    if name in IMAGE_SHAPES:
        config = transformers.ResNetConfig(num_channels=3, **IMAGE_SHAPES[name])
        net: Any = transformers.ResNetForImageClassification(config)
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.data.normal_(0.0, math.sqrt(2 / module.weight[0].numel()), generator=generator)
        width = _without_head(net, name)
        _settle(net, size, generator)
        return net, width, ImageSettings()
    net = _from_path("AutoModelForImageClassification", name, IMAGE_SHAPES, head="classifier.")
    where, revision = _where(name)
    return net, _without_head(net, name), image_settings(where, revision=revision)


@torch.no_grad()
def _settle(net: Any, size: tuple[int, int], generator: torch.Generator) -> None:
    """Let the normalisations see noise once, for their averages: without, a deep network's logits grow and grow."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the average of all that is seen, which is once
    net.train()
    net(2 * torch.rand((16, 3, size[1], size[0]), generator=generator) - 1)
    net.eval()


def _text_net(name: str, generator: torch.Generator) -> tuple[nn.Module, int, Any]:
    if name not in TEXT_SHAPES:
        net: Any = _from_path("AutoModelForSequenceClassification", name, TEXT_SHAPES, head="classifier.")
        where, revision = _where(name)
        return net, _without_head(net, name), tokenizer_of(where, revision=revision)
    net, tokenizer = text_classifier(name, generator)
    return net, _without_head(net, name), tokenizer


def text_classifier(name: str, generator: torch.Generator) -> tuple[Any, Any]:
    """A classifier of TEXT_SHAPES drawn with ``generator``, and the tokenizer of pairs."""
    import transformers

    layers, width, heads, inner = TEXT_SHAPES[name]
    tokenizer = pair_tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=inner, max_position_embeddings=512, attn_implementation="eager",
    )  # fmt: skip
    net = transformers.BertForSequenceClassification(config)
    spread(net, generator=generator)
    return net, tokenizer


def _where(name: str) -> tuple[str, str | None]:
    where, revision = split_revision(name)
    return str(Path(where).expanduser()) if Path(where).expanduser().is_dir() else where, revision


def _from_path(kind: str, name: str, known: Any, *, head: str) -> Any:
    """A classifier of transformers; of its head, ``head``, nothing is kept, so that it may be missing."""
    import transformers

    where, revision = _where(name)
    expected = f"one of {', '.join(known)}, a directory that save_pretrained wrote, or a hub name that can be reached"
    with loadable(f"classifier {name!r}", expected=expected):
        return pretrained_but(getattr(transformers, kind), where, head=head, allow_pickle=True, revision=revision)[0]


def _without_head(net: nn.Module, name: str) -> int:
    """Put nothing in the place of the last linear layer, and return how many features it took."""
    linear = [path for path, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ModelError(f"{name!r} has no linear layer; expected a classifier with a linear head at its end.")
    parent, _, last = linear[-1].rpartition(".")
    holder = net.get_submodule(parent)
    width = int(cast(nn.Linear, net.get_submodule(linear[-1])).in_features)
    if isinstance(holder, nn.Sequential):
        holder[int(last)] = nn.Identity()
    else:
        setattr(holder, last, nn.Identity())
    return width


@torch.no_grad()
def _check_widths(model: PairModel, widths: tuple[int, int]) -> None:
    rows, tokens = len(model.table), len(model.tokenizer)
    if tokens > rows:
        raise ModelError(
            f"the tokenizer of {model.name} has {tokens} tokens, and its table of words {rows} rows; expected a row "
            "for each. Take the tokenizer that the text classifier was made with."
        )
    width, height = model.image_size
    mask = torch.ones(1, 4, dtype=torch.bool, device=model.device)
    try:
        model.module.image_logits(torch.zeros(1, 3, height, width, device=model.device))
        model.module.text_logits(torch.zeros(1, 4, model.table.shape[1], device=model.device), mask)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ModelError(
            f"{model.name} cannot be run on pictures of {width} x {height} and embeddings of {model.table.shape[1]} "
            f"({str(error).splitlines()[0]}); expected classifiers that end in one linear layer over {widths[0]} and "
            f"{widths[1]} features, and take inputs_embeds."
        ) from error
