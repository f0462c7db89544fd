"""A VT5, or FeDocVQA's model, of any size, put together from a published T5 and a published picture encoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from docleak.errors import ModelError
from docleak.models.fedocvqa import FeDocVQA
from docleak.models.files import new_model, taken, tokenizer_of, values_of, weight_files
from docleak.models.loading import config_of, split_revision
from docleak.models.t5 import GIVEN, ReaderConfig, T5Reader
from docleak.models.vt5 import VT5


@dataclass(frozen=True)
class Kind:
    """What an architecture is made of: the adapter, its picture encoder by ``model_type`` and in words, and settings.

    ``settings`` are those of ReaderConfig in which the architecture differs from the defaults.
    """

    adapter: type[T5Reader]
    vision_type: str
    vision: str
    settings: dict[str, Any]


KINDS = {
    "vt5": Kind(VT5, "beit", "DiT (BEiT)", {}),
    "fedocvqa": Kind(
        FeDocVQA, "vit_mae", "masked autoencoder (ViT-MAE)", {"prompt_box": (0, 0, 0, 0), "max_tokens": 1024}
    ),
}


def assemble(
    architecture: str,
    out: Path,
    *,
    text: str,
    vision: str,
    seed: int,
    allow_pickle: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Write the model of two checkpoints (directories or hub names) to ``out``, whole or not at all; returns its card.

    The spatial tables and projections that neither brings are drawn with ``seed``. The card (docleak.json) says where
    the model came from and how large it is. With ``dry_run`` only the configurations and the tokenizer are read, and
    nothing is written. ``allow_pickle``: see ``files.pretrained``. Raises ModelError, with all faults at once, for
    checkpoints of other kinds or that do not fit each other, and for an ``out`` that holds something.
    """
    if architecture not in KINDS:
        raise ModelError(f"unknown architecture {architecture!r}; docleak assembles {' and '.join(KINDS)}.")
    kind = KINDS[architecture]
    values = config_of(text), config_of(vision)
    faults = [*_misfits(kind, text, vision, *values), *_without_weights(text, vision)]
    if not faults:
        faults = [*_tokenizer_faults(text, values[0])]
    if faults := [*faults, *filter(None, [taken(out)])]:
        raise ModelError(f"no {architecture} can be assembled: {'; '.join(faults)}.")
    with torch.device("meta"):
        network = kind.adapter.build(ReaderConfig(*_parts(*values), **kind.settings))
    card = {
        "recipe": f"assembled of {text} (T5) and {vision} ({kind.vision}), what joins them drawn with seed {seed}",
        "text": text,
        "vision": vision,
        "seed": seed,
        "drawn": [name for name, _ in network.named_parameters() if not name.startswith(GIVEN)],
        **_sizes(network),
    }
    if dry_run:
        return card
    config = ReaderConfig(text, vision, seed=seed, **kind.settings)
    model = kind.adapter.joined(config, name=out.name, allow_pickle=allow_pickle)
    with new_model(out, card) as draft:
        model.save(str(draft))
    return card


def _misfits(kind: Kind, text: str, vision: str, t5: dict[str, Any], eye: dict[str, Any]) -> Iterator[str]:
    """Why the two configurations cannot be joined."""
    if t5.get("model_type") != "t5":
        yield f"the text model {text!r} is of type {t5.get('model_type')!r}, expected 't5' (t5-base, for instance)"
    if eye.get("model_type") != kind.vision_type:
        yield (
            f"the vision model {vision!r} is of type {eye.get('model_type')!r}, expected {kind.vision_type!r}: a "
            f"{kind.vision}"
        )
        return
    side, patch, width = eye.get("image_size", 224), eye.get("patch_size", 16), eye.get("hidden_size", 768)
    if not (isinstance(side, int) and isinstance(patch, int) and side % patch == 0):
        yield f"{vision!r} takes pictures of {side} in patches of {patch}, expected a square of whole patches"
    if eye.get("num_channels", 3) != 3:
        yield f"{vision!r} takes {eye['num_channels']} channels, expected 3"
    if kind.adapter is FeDocVQA and width != t5.get("d_model", 512):
        yield f"{vision!r} has width {width} and the T5 {text!r} {t5.get('d_model', 512)}, expected the same"


def _without_weights(*places: str) -> Iterator[str]:
    """Of folders on this machine those whose weights are not there; a hub's are not downloaded for it."""
    for place in places:
        where, revision = split_revision(place)
        if Path(where).is_dir():
            try:
                weight_files(where, revision)
            except ModelError as fault:
                yield str(fault).removesuffix(".")


def _tokenizer_faults(text: str, t5: dict[str, Any]) -> Iterator[str]:
    """Why the tokenizer beside a T5 is not that T5's."""
    import transformers

    config = transformers.T5Config.from_dict(t5)
    where, revision = split_revision(text)
    try:
        tokenizer = tokenizer_of(where, revision=revision)
    except (OSError, ValueError) as error:
        yield f"{text!r} has no tokenizer that can be read ({str(error).splitlines()[0]})"
        return
    if len(tokenizer) > config.vocab_size:
        yield f"the tokenizer of {text!r} has {len(tokenizer)} tokens, its network {config.vocab_size} rows for them"
    for name in ("pad_token_id", "eos_token_id"):
        if getattr(tokenizer, name) != getattr(config, name):
            yield (
                f"{name} of {text!r} is {getattr(tokenizer, name)} by its tokenizer and {getattr(config, name)} by "
                "its config.json"
            )
    if config.decoder_start_token_id is None:
        yield f"config.json of {text!r} has no decoder_start_token_id, which the decoder begins with"


def _parts(t5: dict[str, Any], eye: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configurations as ``ReaderConfig`` has them."""
    import transformers as t

    text = values_of(t.T5Config.from_dict(t5))
    if eye["model_type"] == "beit":
        return text, values_of(t.BeitConfig.from_dict(eye))
    mae = t.ViTMAEConfig.from_dict(eye)
    return text, {"image_size": mae.image_size, "patch_size": mae.patch_size}


def _sizes(network: nn.Module) -> dict[str, int]:
    numbers = [(p.numel(), p.requires_grad) for p in network.parameters()]
    return {"parameters": sum(n for n, _ in numbers), "trainable": sum(n for n, trained in numbers if trained)}
