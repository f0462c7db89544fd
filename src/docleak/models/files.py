"""Checkpoints on disk and on the hub: weights, configurations, image settings, tokenizers; written and read.

docleak's own models are config.json (``model_type`` and the values of a dataclass), model.safetensors (parameters by
name, a tied one once) and, where they have one, a tokenizer's files. Those of transformers are read as it saves them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from docleak.errors import ModelError
from docleak.files import (
    drafted_folder,
    parse_json,
    quietly,
    read_json_object,
    reported,
    shaped,
    write_atomically,
    write_json,
)
from docleak.models.device import seed_torch
from docleak.models.loading import loadable, split_revision

Config = TypeVar("Config")

FILES = ("processor_config.json", "preprocessor_config.json")
#: Files that may hold a checkpoint's tensors, the best first; an index names the files among which they are shared out.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
#: Keys of those files that change what the network is fed.
KEYS = ("size", "image_mean", "image_std", "do_normalize", "do_rescale", "rescale_factor")
#: A warning of transformers that what a tokenizer made "will result in indexing errors": docleak's models cut it.
TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
#: Mean and deviation of transformers' Donut and LayoutLMv3 processors where the files do not say.
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class ImageSettings:
    """size is (height, width), None where the checkpoint does not say; mean and std are of pixels in [0, 1]."""

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF


def image_settings(
    source: str, *, revision: str | None = None, default: ImageSettings = ImageSettings()
) -> ImageSettings:
    """Read the settings from a local directory, or from the hub where one can be reached; or else the ``default``.

    ``do_normalize: false`` is mean 0 and deviation 1. A checkpoint that does not rescale pixels to [0, 1], or rescales
    them otherwise, gets the mean and deviation that do the same to pixels in [0, 1]. Raises ModelError for a file that
    is not JSON or holds impossible values.
    """
    for path in filter(None, [optional_file(source, name, revision=revision) for name in FILES]):
        try:
            values = parse_json(path.read_text(encoding="utf-8"), strict=False)
        except ValueError as error:
            raise ModelError(f"{path} is not JSON ({error}). Save the processor again, or delete the file.") from error
        values = values.get("image_processor", values)
        if any(key in values for key in KEYS):  # a processor_config.json may hold other things only
            return ImageSettings(_size(values), *_normalisation(values, path, default))
    return default


def _size(values: dict[str, Any]) -> tuple[int, int] | None:
    size = values.get("size")
    if isinstance(size, dict) and {"height", "width"} <= size.keys():
        return int(size["height"]), int(size["width"])
    if isinstance(size, int):
        return size, size
    if isinstance(size, list) and len(size) == 2:  # early Donut files: [width, height]
        return int(size[1]), int(size[0])
    return None


def _normalisation(
    values: dict[str, Any], path: Path, default: ImageSettings
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of pixels in [0, 1]: the network gets (factor * pixel - mean) / std."""
    mean, std = tuple(values.get("image_mean") or default.mean), tuple(values.get("image_std") or default.std)
    if values.get("do_normalize") is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    given = values.get("rescale_factor")
    factor = 255.0 * (1.0 if values.get("do_rescale") is False else 1 / 255 if given is None else float(given))
    if factor <= 0 or 0 in std:
        raise ModelError(f"{path} has the rescale_factor {given} and image_std {std}; expected values above 0.")
    if abs(factor - 1) < 1e-9:
        return mean, std
    return tuple(value / factor for value in mean), tuple(value / factor for value in std)


def tokenizer_of(source: str, *, revision: str | None = None, kind: str = "AutoTokenizer") -> Any:
    """The checkpoint's tokenizer; ModelError where its files are missing (transformers makes an empty one then).

    ``kind`` is the class in transformers that reads it: by default, the one that config.json asks for. T5's is read
    from spiece.model where there is no tokenizer.json, and BERT's word pieces from vocab.txt where the files name a
    class that transformers no longer has (BrosTokenizer).
    """
    import transformers

    spiece = None
    if optional_file(source, "tokenizer.json", revision=revision) is None:
        spiece = optional_file(source, "spiece.model", revision=revision)
        named = optional_file(source, "tokenizer_config.json", revision=revision)
        values = parse_json(named.read_text(encoding="utf-8"), strict=False) if named else {}
        if values.get("tokenizer_class") == "BrosTokenizer":
            kind = "BertTokenizerFast"
    if spiece:
        from docleak.models.sentencepiece import t5_tokenizer

        tokenizer = t5_tokenizer(spiece)
    else:
        tokenizer = getattr(transformers, kind).from_pretrained(source, revision=revision or "main")
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ModelError(
            f"model {source!r} could not be loaded: its tokenizer has no vocabulary. Expected the files "
            "save_pretrained writes: config.json, model.safetensors, and the tokenizer's files (tokenizer.json)."
        )
    tokenizer.deprecation_warnings[TOO_LONG] = True
    return tokenizer


def require_weights(source: str, module: Any, missing: Iterable[str]) -> None:
    """Raise ModelError if the checkpoint lacks parameters: transformers would draw them at random."""
    lacking = sorted({name for name, _ in module.named_parameters()} & set(missing))
    if lacking:
        network, told = type(module).__name__, getattr(module, "config", None)
        saved = (getattr(told, "architectures", None) or [""])[0]
        why = "Is it a base model without its question-answering head? Save what is trained, head and all."
        if "For" in saved and saved != network:
            why = f"It was saved as {saved}; docleak audits {network}, or as docs/commands.md lists."
        raise ModelError(
            f"model {source!r} could not be loaded: its file of weights lacks {len(lacking)} of the network's "
            f"parameters, first: {', '.join(lacking[:5])}. {why}"
        )


def require_known(source: str, known: Iterable[str], names: Iterable[str]) -> None:
    """Raise ModelError if a file's tensors (``names``) count on where those that the network knows end.

    Heads of other tasks are left aside in silence; a layer more than config.json says is another network.
    """
    patterns = {_numberless(name) for name in known}
    more = sorted(name for name in names if re.search(r"\d", name) and _numberless(name) in patterns)
    if more:
        raise ModelError(
            f"model {source!r} could not be loaded: its weights hold {len(more)} parameters more than the network "
            f"that its config.json describes, first: {more[0]}. Put the config.json beside it that it was saved with."
        )


def _numberless(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def save_network(network: Any, directory: str) -> None:
    """``save_pretrained``; adapters without peft's question to the hub, which does not know the names of shipped bases,
    whether the base's vocabulary is another one (docleak changes none)."""
    adapters = getattr(network, "peft_config", {}).get("default")
    if adapters is None:
        network.save_pretrained(directory)
        return
    base, adapters.base_model_name_or_path = adapters.base_model_name_or_path, None
    try:
        network.save_pretrained(directory)
    finally:
        adapters.base_model_name_or_path = base
    adapters.save_pretrained(directory)


def pretrained(kind: Any, source: str, *, allow_pickle: bool, revision: str | None = None, **options: Any) -> Any:
    """``kind`` from a directory or hub name (with ``@revision``, or at ``revision``), float32, eager attention.

    Weights are read from safetensors; with ``allow_pickle`` also from pytorch_model.bin, by torch's reader of plain
    tensors (``weights_only``). ModelError where the files cannot be read, or weights are missing, or are of a network
    with more layers.
    """
    pickled = "" if allow_pickle else "; or pytorch_model.bin and, if you trust it, --allow-pickle"
    with loadable(f"{source!r}", expected=f"config.json and model.safetensors{pickled}"):
        return pretrained_but(kind, source, head="", allow_pickle=allow_pickle, revision=revision, **options)[0]


def pretrained_but(
    kind: Any, source: str, *, head: str, allow_pickle: bool, revision: str | None = None, seed: int = 0, **options: Any
) -> tuple[Any, list[str]]:
    """``pretrained``, and the parameters that are not in the file: those of ``head``, drawn with ``seed``, or none.

    ``head`` is how their names begin. Either all of them are in the file or none is. What the libraries raise for
    files that cannot be read is left to the caller's ``loadable``.
    """
    where, named = split_revision(source)
    with drawn_with(seed), quietly():  # weights of other heads are left aside; missing ones are looked for below
        module, report = kind.from_pretrained(
            where, revision=revision or named or "main", attn_implementation="eager", dtype=torch.float32,
            weights_only=True, use_safetensors=None if allow_pickle else True, output_loading_info=True, **options,
        )  # fmt: skip
    parameters = [name for name, _ in module.named_parameters()]
    drawn = [name for name in parameters if head and name.startswith(head)]
    if not set(drawn) <= set(report["missing_keys"]):
        drawn = []
    require_weights(source, module, set(report["missing_keys"]) - set(drawn))
    base = f"{module.base_model_prefix}."  # which a file of the bare network has not, or a file with a head has
    known, unexpected = (
        [name.removeprefix(base) for name in names] for names in (parameters, report["unexpected_keys"])
    )
    require_known(source, known, unexpected)
    return module, drawn


def told_drawn(name: str, module: nn.Module, drawn: Sequence[str], *, seed: int, parts: str = "") -> str:
    """A sentence for reports about parameters that a checkpoint does not bring, ``parts`` in words; empty for none."""
    if not drawn:
        return ""
    count = sum(module.get_parameter(parameter).numel() for parameter in drawn)
    parts = parts or " and no ".join(sorted({parameter.partition(".")[0] for parameter in drawn}))
    return f"{name} brings no {parts}: {count:,} numbers were drawn with seed {seed}, as where a fine-tuning begins."


@contextmanager
def drawn_with(seed: int) -> Iterator[None]:
    """What libraries draw in here follows ``seed``; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        yield


def taken(out: Path) -> str:
    """Why no model can be written to ``out``, as a phrase; "" where there is nothing, or an empty folder."""
    held = out.exists() and (not out.is_dir() or any(out.iterdir()))
    return f"{out} is there already; expected a new or empty folder" if held else ""


@contextmanager
def new_model(out: Path, card: Mapping[str, Any]) -> Iterator[Path]:
    """A folder for a model's files, which appears as ``out`` whole or not at all, with the card (docleak.json)."""
    with reported(out), drafted_folder(out) as draft:
        yield draft
        write_json(draft / "docleak.json", dict(card))


def values_of(config: Any) -> dict[str, Any]:
    """The values of a transformers config that differ from its class's defaults."""
    return {
        key: value for key, value in config.to_diff_dict().items() if key not in ("model_type", "transformers_version")
    }


def optional_file(source: str, name: str, *, revision: str | None = None) -> Path | None:
    """A file of a directory, or of a hub model, which is downloaded; None where there is none, or none in reach."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source, name, revision=revision))
    except (EntryNotFoundError, LocalEntryNotFoundError):
        return None  # not every repository has every file


def weights_in(where: str, revision: str | None) -> dict[str, Tensor]:
    """All tensors of a checkpoint, of one file or of those that an index names, safetensors or pickled.

    Pickled ones are read by torch's reader of plain tensors, which runs nothing in them.
    """
    return {key: value for file in weight_files(where, revision) for key, value in tensors_in(file).items()}


def weight_files(where: str, revision: str | None) -> list[Path]:
    """The files that hold a checkpoint's tensors, all there, unread; ModelError where one is missing."""
    for name in WEIGHTS:
        path = optional_file(where, name, revision=revision)
        if path is not None:
            return shards(where, path, revision) if name.endswith(".index.json") else [path]
    raise ModelError(
        f"model {where!r} could not be loaded: it has no weights; expected one of {', '.join(WEIGHTS)}. Save it with "
        "save_pretrained."
    )


def shards(where: str, index: Path, revision: str | None) -> list[Path]:
    """The files that an index names, all there; ModelError where one is missing."""
    advice = "Download it again."
    places = read_json_object(index, error=ModelError, advice=advice).get("weight_map")
    names = sorted({str(name) for name in places.values()}) if isinstance(places, dict) else []
    paths = {name: optional_file(where, name, revision=revision) for name in names if Path(name).name == name}
    missing = [name for name in names if paths.get(name) is None]
    if missing or not names:
        raise ModelError(
            f"model {where!r} could not be loaded: {index.name} names {len(names)} files, of which "
            f"{', '.join(missing[:3]) or 'none'} cannot be found beside it. {advice}"
        )
    return [path for path in paths.values() if path is not None]


def tensors_in(path: Path) -> dict[str, Tensor]:
    """All tensors of one file, safetensors or what torch.save wrote of a state; ModelError where it holds others."""
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as fault:
            raise ModelError(
                f"model {str(path.parent)!r} could not be loaded: its {path.name} is damaged ({fault}). Save the model "
                "again."
            ) from fault
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, TypeError, ValueError, EOFError, OSError) as fault:
        other = re.search(r"GLOBAL (\S+)", str(fault))
        reason = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        raise ModelError(
            f"{path} holds more than plain weights{'' if other else ', or is damaged'} ({other[1] if other else reason}"
            "); nothing in it was run. Where you trust it, load it yourself, and save its state_dict() alone as "
            "model.safetensors."
        ) from fault
    if not isinstance(state, Mapping):
        raise ModelError(f"{path} is a {type(state).__name__}; expected weights by name, as state_dict() gives them.")
    return dict(state)


def save_module(folder: Path, kind: str, config: Any, module: nn.Module) -> None:
    """Write model.safetensors and last config.json, each whole or not at all; ``config`` is a dataclass."""
    weights = {name: value.detach().cpu().contiguous() for name, value in module.named_parameters()}
    write_atomically(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))
    write_json(folder / "config.json", {"model_type": kind, **asdict(config)})


def config_from(kind: type[Config], values: Mapping[str, Any], source: str) -> Config:
    """The dataclass whose values config.json holds; ModelError for missing and unknown keys and for other types."""
    given = {key: value for key, value in values.items() if key != "model_type"}
    what = f"config.json of the {values.get('model_type')} model {source!r}"
    return shaped(kind, given, ModelError, what, "Save the model again.")


@torch.no_grad()
def fill(
    module: nn.Module, weights: Mapping[str, Tensor], *, source: str, required: Collection[str] | None = None
) -> None:
    """Copy tensors into the parameters of the same name.

    ModelError, naming the first, if one of ``required`` is missing or one is of another shape; without ``required``,
    if any is missing or unknown.
    """
    named = dict(module.named_parameters())
    require_weights(source, module, set(named if required is None else required) - set(weights))
    require_known(source, named, set(weights) - set(named))
    unknown = sorted(set(weights) - set(named)) if required is None else []
    other = [name for name in named if name in weights and named[name].shape != weights[name].shape]
    if unknown or other:
        what = f"{len(unknown)} unknown parameters" if unknown else "parameters of another shape"
        raise ModelError(
            f"model {source!r} could not be loaded: its weights hold {what}, first: {(unknown or other)[0]}. "
            "Its config.json belongs to another model; save the model again."
        )
    for name in set(named) & set(weights):
        named[name].copy_(weights[name])
