"""What makes results comparable: the version and code of docleak, and the files that a configuration names.

A folder that was begun with other ones is not continued, so that no table mixes two models, page sets or docleaks.

Whatever a configuration calls by a path (a model, pages as PATH or FORMAT:PATH, a capture, a recorded gradient) counts,
with all that is below it. Names of what docleak ships are no paths: the version of docleak stands for those.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import docleak
from docleak.errors import RunError
from docleak.files import read_json_object, reported
from docleak.spec import split_name

#: Of the layout of run folders and of what their files mean. Folders of another one are refused.
SCHEMA = 3
#: What makes a folder one of adapters.
ADAPTER = "adapter_config.json"
#: What only arranges, prints and parses: it may change without a run being another.
PRINTING = ("cli", "report", "recipes")
#: Fields whose single words are names of registries, never folders that happen to be called so where a run begins.
NAMING = frozenset({
    "attack", "attacks", "image_attack", "text_attack", "servers", "defense", "defenses", "measures", "metric",
    "canary", "criterion", "keys", "language", "layer", "ocr", "optimiser", "part", "precision",
})  # fmt: skip


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Ten hexadecimal digits over docleak's own code, apart from PRINTING: what its version number does not tell."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        relative = file.relative_to(package)
        if relative.parts[0] not in PRINTING:
            digest.update(f"{relative.as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:10]


def build() -> dict[str, Any]:
    """Version, schema and code of this docleak, as a run notes them."""
    return {"docleak": docleak.__version__, "schema": SCHEMA, "code": code_digest()}


def other_build(noted: Mapping[str, Any], folder: Path) -> str:
    """Why what another docleak ``noted`` in ``folder`` is not continued by this one; "" where it is this one."""
    if differing := [key for key, value in build().items() if noted.get(key) != value]:
        version, here = noted.get("docleak", "0.1.0"), docleak.__version__
        if differing == ["code"]:
            return (
                f"{folder} was begun by docleak {version} with other code ({noted.get('code')}, now {code_digest()}); "
                "their numbers do not belong in one table. Give another folder (out), or delete the folder."
            )
        does = "goes on with it, and docleak report reads it" if noted.get("schema") == SCHEMA else "reads it"
        return (
            f"{folder} was begun by docleak {version} (schema {noted.get('schema', 1)}), this is {here} (schema "
            f"{SCHEMA}); their numbers do not belong in one table. Docleak {version} {does}; with this one pass "
            "another folder (out), or delete the folder."
        )
    return ""


def sources_of(
    config: Mapping[str, object], *, apart_from: Path | None = None, pictures: bool = True
) -> dict[str, str]:
    """Ten hexadecimal digits for each file or folder that a string of ``config`` names: its files' names and bytes.
    Adapters bring the folder of their base along.

    Without ``pictures`` the sizes of these stand for their bytes: there may be 100,000. What is below ``apart_from``, a
    folder of results, does not count, nor do hidden files. RunError for files that cannot be read.
    """
    texts = {text for text in _strings(config) if _path_in(text) is not None}
    named = sorted(texts | {base for text in texts for base in _base_of(text)})
    away = apart_from.resolve() if apart_from is not None else None
    hashes = {}
    for text in named:
        path = _path_in(text)
        assert path is not None
        if away is None or path.resolve() != away:
            hashes[text] = _hash(path, away, pictures)
    return hashes


def digest_of(settings: Mapping[str, object], *, length: int = 8, files: bool = True) -> str:
    """Hexadecimal digits that tell settings apart, and, with ``files``, the same settings whose files have changed."""
    sources = sources_of(settings) if files else {}
    value = {**settings, "sources": sources} if sources else settings
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:length]


def changed_sources(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """In words, which sources are others than they were; "" if none is."""
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return "".join(
        f"\n  - {name}: {'it has' if name.startswith('code of ') else 'its files have'} the hash "
        f"{before.get(name, '(none)')} there, {now.get(name, '(none)')} now"
        for name in names
    )


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from (text for text in _strings(inner) if name not in NAMING or "/" in text or ":" in text)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _strings(inner)
    elif isinstance(value, str | os.PathLike):
        yield str(value)


def _path_in(text: str) -> Path | None:
    """The path that a string names by itself, behind FORMAT: or as lora:PATH,r=8, if there is something."""
    kind, rest = split_name(text)
    for name in (text, rest, *([rest.partition(",")[0]] if kind == "lora" else [])):
        try:
            if name.strip() and Path(name).exists():
                return Path(name)
        except (OSError, ValueError):  # too long, or not the name of a file
            continue
    return None


def _base_of(text: str) -> list[str]:
    """The folder of the base that adapters name, where ``text`` names a folder of these."""
    path = _path_in(text)
    if path is None or not (path / ADAPTER).is_file():
        return []
    told = read_json_object(path / ADAPTER, error=RunError, advice="Save the adapters again.")
    base = str(told.get("base_model_name_or_path") or "")
    return [base] if _path_in(base) is not None else []


def _hash(path: Path, away: Path | None, pictures: bool) -> str:
    from docleak.documents.files import IMAGE_SUFFIXES  # which imports NumPy

    digest = hashlib.sha256()
    with reported(path):
        for parts, file in sorted(_files(path, away)):
            status, name = os.stat(file), "/".join(parts)
            read = pictures or not file.lower().endswith(IMAGE_SUFFIXES)
            content = _file_hash(file, status.st_size, status.st_mtime_ns) if read else status.st_size
            digest.update(f"{name}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:10]


def _files(path: Path, away: Path | None) -> Iterator[tuple[tuple[str, ...], str]]:
    """The parts of each file's name below ``path``, and the whole of it; as texts, since folders of pages are large."""
    if path.is_file():
        yield (), str(path)
        return
    for place, folders, files in os.walk(path):
        parts = Path(place).relative_to(path).parts
        if away is not None:
            folders[:] = [name for name in folders if Path(place, name).resolve() != away]
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and os.path.isfile(file := os.path.join(place, name)):
                yield (*parts, name), file


@lru_cache(maxsize=100_000)
def _file_hash(path: str, size: int, changed: int) -> str:
    """Of a file's bytes; read again only where its size or time of change is another one."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
