"""One call for every model: a shipped tiny checkpoint, a local directory or a hub name."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch

from docleak.documents.ranges import SEED, check_path, check_whole, short
from docleak.documents.typed import plain
from docleak.errors import DocleakError, ModelError
from docleak.files import parse_json
from docleak.models.base import DocumentModel
from docleak.models.device import pick_device
from docleak.models.published.made import asked_for, made_at
from docleak.models.shipped import CHECKPOINTS, SHIPPED, SHIPPED_ENCODERS
from docleak.models.sizes import parse_size
from docleak.registry import Given, resolve
from docleak.spec import nearest

#: architecture -> "module:adapter"; an adapter's ``load`` reads a checkpoint.
ARCHITECTURES: dict[str, str] = {
    "donut": "docleak.models.donut:Donut",
    "layoutlmv3": "docleak.models.layoutlmv3:LayoutLMv3",
    "lilt": "docleak.models.lilt:Lilt",
    "layoutlmv3 that tags words": "docleak.models.tagging:Tagger",
    "lilt that tags words": "docleak.models.tagging:LiltTagger",
    "vt5": "docleak.models.vt5:VT5",
    "fedocvqa": "docleak.models.fedocvqa:FeDocVQA",
    "udop": "docleak.models.vlm.udop:Udop",
    "pix2struct": "docleak.models.vlm.pix2struct:Pix2Struct",
    "vision-language model": "docleak.models.vlm.model:VisionLanguage",
}
#: Families that transformers counts among vision-language models and docleak refuses, and why.
REFUSED = {"kosmos-2.5": "its processor normalises every page by its own contrast"}
#: What finds adapters on a model in a folder, and what loads the model with them.
ADAPTERS, ADAPTED = "docleak.models.lora:adapter_file", "docleak.models.lora:load_adapted"
FILES = "the files save_pretrained writes: config.json, model.safetensors, and the tokenizer's files"


def load_model(
    source: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    image_size: tuple[int, int] | str | None = None,
    seed: int = 0,
) -> DocumentModel:
    """Load a model for auditing: evaluation mode, float32, eager attention (needed for double backward).

    ``source`` is a name of SHIPPED, a directory written by ``save_pretrained`` (or of adapters, by ``peft``: see
    ``lora``), a published checkpoint to be made with random weights (``make:donut-base``, see ``published.made``), or a
    hub name, with ``@`` and a revision (branch, tag or commit) where it is not to be the main one. A name that brings
    its model along (``registry.Given``) gives a copy of it. ``image_size`` (width, height), or "320x608", is the size
    of the pages the model is run on, by default the checkpoint's own. What a published base checkpoint lacks for
    question answering (a head, tags in the vocabulary) is drawn with ``seed``, and the model's ``drawn`` says so.

    Raises DocleakError for a device that cannot be used here, and ModelError if there is no such model, if it is of an
    architecture docleak does not know, or if its network cannot take pages of that size.
    """
    check_path("the model", source, "a name, a directory, or a hub name", ModelError)
    source = source if isinstance(source, str) else os.fspath(source)
    seed = check_whole("seed", seed, SEED, ModelError)
    device, image_size = torch.device(pick_device(str(device))), size_of(image_size)
    if isinstance(source, Given):
        return _copy(source, device, image_size)
    where, revision = locate(source)
    if source in SHIPPED and image_size is None:
        model = deepcopy(_shipped(source, where))
        model.module.to(device)
        return model
    if file := resolve(ADAPTERS)(where, revision):
        return cast(
            DocumentModel,
            resolve(ADAPTED)(file, source, where, revision, device=device, image_size=image_size, seed=seed),
        )
    return _loaded(source, where, revision, device=device, image_size=image_size, seed=seed)


@lru_cache(maxsize=len(SHIPPED))
def _shipped(source: str, where: str) -> DocumentModel:
    """A shipped model, which is small, as it was first loaded in this process: copying is faster."""
    return _loaded(source, where, None, device=torch.device("cpu"), image_size=None, seed=0)


def _loaded(
    source: str, where: str, revision: str | None, *, device: torch.device, image_size: tuple[int, int] | None,
    seed: int,
) -> DocumentModel:  # fmt: skip
    architecture = _architecture(config_at(where, revision, source), source)
    import transformers  # half a second that a party which only looks at pages need not wait

    transformers.utils.logging.disable_progress_bar()
    with loadable(f"model {source!r}, a {architecture} by its config.json,"):
        model = resolve(ARCHITECTURES[architecture]).load(
            where, name=short_name(source), device=device, revision=revision, image_size=image_size,
            seed=seed,
        )  # fmt: skip
    return cast(DocumentModel, model)


def size_of(size: object) -> tuple[int, int] | None:
    """Width and height, of two numbers or of a text such as 320x608; ModelError for anything else."""
    if size is None:
        return None
    if isinstance(size, str):
        return parse_size(size)
    sides = tuple(map(plain, size)) if isinstance(size, Sequence) else ()
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ModelError(f"image_size is {short(size)}; expected (width, height) in pixels, or '320x608'.")
    return sides[0], sides[1]


def _copy(source: Given, device: torch.device, image_size: tuple[int, int] | None) -> DocumentModel:
    model: DocumentModel = deepcopy(source.thing)  # type: ignore[assignment]
    if image_size not in (None, model.image_size):
        width, height = model.image_size
        raise ModelError(
            f"model {str(source)!r} came as an object, which takes pages of {width} x {height} pixels; image_size is "
            f"{image_size}. Leave it out, and load the model with that size."
        )
    model.module.to(device).eval()
    return model


@contextmanager
def loadable(what: str, *, expected: str = FILES) -> Iterator[None]:
    """Turn what the libraries raise for files that they cannot read, anything it may be, into a ModelError."""
    try:
        yield
    except DocleakError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip()}"
        advice = "Install what it asks for" if isinstance(error, ImportError) else f"Expected {expected}"
        raise ModelError(f"{what} could not be loaded ({reason}). {advice}.") from error


def config_of(source: str) -> dict[str, Any]:
    """config.json of a directory or hub name; ModelError if there is none, or if it is no JSON object."""
    where, revision = locate(source)
    return config_at(where, revision, source)


def split_revision(source: str) -> tuple[str, str | None]:
    """``name@revision`` as (name, revision); the revision is None without one, or if ``source`` is a path that exists.

    The first ``@`` counts: hub names hold none, but revisions may hold anything. What is to be made is made, and its
    directory returned.
    """
    made = made_at(source)
    if made is not None:
        return str(made), None
    name, at, revision = source.partition("@")
    if not at or Path(source).expanduser().exists():
        return source, None
    return name, revision


def _require_readable(folder: Path, what: str) -> None:
    """ModelError for files that one may not read, which some of the libraries call not there."""
    for file in sorted(file for ending in ("json", "safetensors", "bin") for file in folder.glob(f"*.{ending}")):
        try:
            file.open("rb").close()
        except PermissionError as fault:
            why = f"{file.name} of the {what} {str(folder)!r} may not be read ({fault.strerror})"
            raise ModelError(
                f"{why}. Expected files that you may read: change their permissions, or copy them."
            ) from fault
        except OSError:
            continue  # what else is wrong with it is said where it is read


def short_name(source: str) -> str:
    """The last part of a path or hub name, with the revision behind it where one is asked for; of what is to be made
    its name and what of it is not by default."""
    if made := asked_for(source):
        return made.short
    name, revision = split_revision(source)
    return name.rstrip("/").split("/")[-1] + (f"@{revision}" if revision is not None else "")


def title_of(source: str) -> str:
    """A readable title: the shipped checkpoint's, what was made of random weights, or the last part of the path."""
    if made := asked_for(source):
        return made.title
    return SHIPPED.get(source, short_name(source))


def locate(
    source: str, *, what: str = "model", shipped: Collection[str] = SHIPPED, owned: bool = True
) -> tuple[str, str | None]:
    """Directory or hub name of a ``shipped`` name or a source, and the revision of the latter.

    ``what`` it is, for messages; ``owned`` refuses hub names without an owner, which only old models have. Raises
    ModelError for a file, a directory without config.json, and what can be neither a directory nor a hub name.
    """
    if source in shipped:
        path = CHECKPOINTS / source
        if not path.is_dir():
            raise ModelError(f"shipped checkpoint {source!r} is missing at {path}. Reinstall docleak.")
        return str(path), None
    if (made := made_at(source)) is not None:
        return str(made), None
    path = Path(source).expanduser()
    if path.is_file():
        raise ModelError(f"{what} {source!r} is a file; expected the directory that holds config.json.")
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise ModelError(f"directory {source!r} has no config.json; expected a model saved by save_pretrained.")
        _require_readable(path, what)
        return str(path), None
    name, revision = split_revision(source)
    if revision is not None and (not revision or name in shipped or Path(name).expanduser().exists()):
        raise ModelError(
            f"{what} {source!r}: only models of the hub have revisions, as in owner/model@v1.0 or owner/model@COMMIT. "
            f"Pass {name!r} for what is here."
        )
    near = nearest(name, shipped)
    other = {**SHIPPED, **SHIPPED_ENCODERS}.get(name, "")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or ("/" not in name and (owned or near or other)):
        hint = f" That name is of another kind: {other}." if other else near
        hint += " Name one model at a time; where several are taken, repeat --model." * ("," in name)
        raise ModelError(
            f"there is no {what} {source!r}.{hint} Shipped: {', '.join(shipped)}; otherwise give a directory "
            "written by save_pretrained, or a hub name like owner/model, or owner/model@revision."
        )
    return name, revision


def config_at(where: str, revision: str | None, source: str) -> dict[str, Any]:
    """config.json of a directory or a hub model; ``source`` is what it was called, for messages."""
    path = Path(where) / "config.json"
    if not path.is_file():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            path = Path(hf_hub_download(where, "config.json", revision=revision))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"model {source!r} is neither a directory nor a hub model that can be reached "
                f"({type(error).__name__}). Without a network, download it elsewhere and give its directory."
            ) from error
    try:
        config = parse_json(path.read_text(encoding="utf-8"), strict=False)
    except ValueError as error:
        raise ModelError(f"config.json of {source!r} is not JSON: {error}. Save the model again.") from error
    if not isinstance(config, dict):
        raise ModelError(f"config.json of {source!r} holds a {type(config).__name__}, expected an object.")
    return config


def _architecture(config: dict[str, Any], source: str) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    kind = config.get("model_type")
    tags = [name for name in config.get("architectures") or () if str(name).endswith("ForTokenClassification")]
    if kind in ("layoutlmv3", "lilt") and tags:
        return f"{kind} that tags words"
    if kind in ("layoutlmv3", "lilt", "vt5", "fedocvqa", "udop", "pix2struct"):
        return str(kind)
    if kind == "t5":  # the authors' VT5 is saved as a T5 with parts of its own; its adapter looks for them
        return "vt5"
    parts = (config.get("encoder"), config.get("decoder"))
    inner = [part.get("model_type") if isinstance(part, dict) else None for part in parts]
    if kind == "vision-encoder-decoder" and inner[0] == "donut-swin":
        return "donut"
    if str(kind) in REFUSED:
        raise ModelError(f"a model of the family {kind} is not taken: {REFUSED[str(kind)]}.")
    if str(kind) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and kind != "vision-encoder-decoder":
        return "vision-language model"
    architecture = f"{kind!r}" + (f" with encoder {inner[0]!r} and decoder {inner[1]!r}" if any(inner) else "")
    raise ModelError(
        f"model {source!r} is of architecture {architecture}; docleak audits 'vision-encoder-decoder' with a "
        "'donut-swin' encoder (Donut), 'layoutlmv3' and 'lilt' that answer questions or tag words, VT5 as its authors "
        "publish it ('t5'), "
        "docleak's own 'vt5' and 'fedocvqa', and the vision-language models of docs/vision-language.md. What the "
        "weights of a LayoutLM, BROS or BERT give away is asked by docleak audit weights --target."
    )
