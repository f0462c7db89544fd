"""Named arrays kept in files while nobody needs them: what the server holds while clients train in its process."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from docleak.files import TEMPORARY

PREFIX = f"{TEMPORARY}shelf-"

Floats = NDArray[np.float64]


class Shelf(MutableMapping[str, Floats]):
    """float64 arrays by name, each read from its file when it is asked for; files go when the shelf does.

    What comes out is a copy: put it back to change it. Names, and so their number, may be any text.
    """

    def __init__(self, below: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=below))
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Path] = {}
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __setitem__(self, name: str, value: Floats) -> None:
        file = self._files.setdefault(name, self._folder / str(len(self._files)))
        np.ascontiguousarray(value, dtype=np.float64).tofile(file)
        self.shapes[name] = value.shape

    def __getitem__(self, name: str) -> Floats:
        return np.fromfile(self._files[name], dtype=np.float64).reshape(self.shapes[name])

    def __delitem__(self, name: str) -> None:
        self._files.pop(name).unlink()
        del self.shapes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def shelved(arrays: Mapping[str, Floats], below: Path) -> Shelf:
    """The arrays on a shelf in a folder of its own ``below``."""
    shelf = Shelf(below)
    for name, value in arrays.items():
        shelf[name] = value
    return shelf


def shapes_of(arrays: Mapping[str, NDArray[np.floating]]) -> dict[str, tuple[int, ...]]:
    """The shape of each array, without reading what is on a shelf."""
    return arrays.shapes if isinstance(arrays, Shelf) else {name: value.shape for name, value in arrays.items()}


def clear_shelves(below: Path) -> None:
    """Take away what a killed process left."""
    for folder in below.glob(f"{PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
