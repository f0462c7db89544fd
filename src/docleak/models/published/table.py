"""What is known of published checkpoints: one JSON file each in ``checkpoints/``, facts only, no weights.

A file says where each fact was *seen* and which are *inferred*; nothing here was compared with the hub itself, which
this project cannot reach. Sizes follow from the configuration and are checked by the tests.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from docleak.errors import ModelError
from docleak.files import read_json_object, shaped
from docleak.spec import nearest

HERE = Path(__file__).parent
#: Names that ``make`` and ``published`` know.
PUBLISHED = tuple(sorted(file.stem for file in (HERE / "checkpoints").glob("*.json")))

#: "published" is the true size; "narrow" the same files and tensors with small numbers, for tests.
Scale = Literal["published", "narrow"]
SCALES: tuple[Scale, ...] = ("published", "narrow")


@dataclass(frozen=True)
class Vocabulary:
    """``rows`` is the configuration's key of the table's rows, ``spare`` of which stand for no token.

    ``specials`` are ids by token, negative ones counted from the end; ``added`` are those that the tokenizer's own
    model does not hold. ``files`` maps a file's name to its content, or to None where the vocabulary is in it.
    """

    kind: Literal["word-piece", "layoutlmv3", "roberta", "gpt2", "clip", "t5", "xlm-roberta"]
    rows: str
    specials: Mapping[str, int]
    files: Mapping[str, Mapping[str, Any] | None]
    spare: int = 0
    added: tuple[str, ...] = ()


@dataclass(frozen=True)
class Published:
    """One published checkpoint.

    ``built_by`` is the class of transformers that its file's tensors are of ("VT5": docleak's), ``weights`` the file.
    ``parameters`` counts the numbers of that class, tied ones once; ``bytes`` those of the file's tensors.
    ``names`` are (pattern, replacement) from that class's names to published ones, ``lacks`` patterns of tensors that
    are not in the file, ``adds`` those that only the file has: "ones", "arange" or "tril", then the shape, in which a
    text is a key of the configuration; ``#`` stands for the number of each layer. ``nested`` are parts of ``config``
    that are written with all the keys of ``nested.json``. ``narrow`` are the configuration's values at that scale.
    """

    repository: str
    paper: str
    built_by: str
    seen: str
    inferred: str
    parameters: int
    bytes: int
    weights: Literal["model.safetensors", "pytorch_model.bin"]
    config: dict[str, Any]
    names: tuple[tuple[str, str], ...]
    lacks: tuple[str, ...]
    adds: Mapping[str, tuple[int | str, ...]]
    narrow: Mapping[str, Any]
    nested: tuple[str, ...] = ()
    labels: int = 0
    generation: Mapping[str, Any] | None = None
    processor: Mapping[str, Any] | None = None
    tokenizer: Vocabulary | None = None

    def config_at(self, scale: Scale = "published") -> dict[str, Any]:
        """config.json with the published keys, all of them, in their order."""
        values = copy.deepcopy(self.config)
        for part in self.nested:
            defaults = read_json_object(HERE / "nested.json", error=ModelError, advice="Reinstall docleak.")
            values[part] = dict(sorted({**defaults, **values[part]}.items()))
        if self.labels:
            names = [f"LABEL_{number}" for number in range(self.labels if scale == "published" else 10)]
            values["id2label"] = {str(number): label for number, label in enumerate(names)}
            values["label2id"] = {label: number for number, label in enumerate(names)}
        if scale == "narrow":
            for key, value in self.narrow.items():
                part, _, last = key.rpartition(".")
                (values[part] if part else values)[last] = value
        return values


def published(name: str) -> Published:
    """The checkpoint of that name; ModelError, with the nearest, for a name that is not in PUBLISHED."""
    if name not in PUBLISHED:
        hint = nearest(name, PUBLISHED)
        raise ModelError(f"no published checkpoint {name!r} is known.{hint} Known are {', '.join(PUBLISHED)}.")
    file = HERE / "checkpoints" / f"{name}.json"
    values = read_json_object(file, error=ModelError, advice="Reinstall docleak.")
    return shaped(Published, values, ModelError, str(file), "Reinstall docleak.")


@cache
def repositories() -> Mapping[str, str]:
    """The repository of each published checkpoint, and which it is of."""
    return {published(name).repository: name for name in PUBLISHED}


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key such as "decoder.vocab_size"."""
    part, _, last = key.rpartition(".")
    return (config[part] if part else config)[last]
