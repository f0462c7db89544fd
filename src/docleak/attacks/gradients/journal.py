"""What a search has evaluated, kept on disk so that a killed one goes on.

Solvers are deterministic: given the same values and gradients again they come to the same place, whatever they keep in
memory. So no solver's state is saved, only what each evaluation gave, and which unknowns it was of:

    FOLDER/00-00000.safetensors   of a unit's first search the evaluations from number 0 on (``runs.searches``)

Whitening is drawn again, which costs its few gradients.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from docleak.files import drafted

#: Seconds between two writings; a search that takes less leaves nothing.
EVERY = 60.0


class Evaluation(NamedTuple):
    """The objective and its gradient (n,) by the unknowns; the ``matching`` loss alone, and the ``whole`` by which the
    best is chosen."""

    total: float
    matching: float
    whole: float
    gradient: Tensor


@dataclass
class Search:
    """The evaluations of one search, those of an earlier process first; ``seconds`` are what that one took."""

    folder: Path
    number: int
    seconds: float = 0.0
    _begun: float = field(default_factory=time.perf_counter)
    _written: float = field(default_factory=time.perf_counter)
    _at: int = 0
    _known: list[tuple[bytes, Evaluation, float]] = field(default_factory=list)
    _new: list[tuple[bytes, Evaluation, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for file in self._files():
            if self._first(file) != len(self._known) or not (read := _read(file)):
                file.unlink()  # damaged, or after one that was
                continue
            self._known += read

    def known(self, unknowns: Tensor) -> Evaluation | None:
        """What the next evaluation gave, if it is known and was of these unknowns; else it and what follows is not."""
        if self._at >= len(self._known):
            return None
        mark, evaluation, seconds = self._known[self._at]
        if mark != _mark(unknowns):
            self._forget()
            return None
        self._at, self.seconds = self._at + 1, seconds
        self._begun = time.perf_counter()
        return evaluation._replace(gradient=evaluation.gradient.to(unknowns))

    def note(self, unknowns: Tensor, evaluation: Evaluation) -> None:
        """Keep what was evaluated now."""
        now = time.perf_counter()
        self._new.append((_mark(unknowns), evaluation, self.seconds + now - self._begun))
        if now - self._written >= EVERY:
            self._write()
            self._written = time.perf_counter()

    def _write(self) -> None:
        first = len(self._known)
        marks, evaluations, seconds = zip(*self._new, strict=True)
        arrays = {
            "marks": torch.tensor([list(mark) for mark in marks], dtype=torch.uint8),
            "values": torch.tensor([[e.total, e.matching, e.whole] for e in evaluations], dtype=torch.float64),
            "seconds": torch.tensor(seconds, dtype=torch.float64),
            "gradients": torch.stack([e.gradient.detach().cpu() for e in evaluations]),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with drafted(self.folder / f"{self.number:02}-{first:05}.safetensors") as draft:
            save_file(arrays, draft)
        # Of what is on disk only the number is needed: gradients of thousands need not stay in memory.
        self._known += [(b"", Evaluation(0.0, 0.0, 0.0, torch.empty(0)), 0.0)] * len(self._new)
        self._at, self._new = len(self._known), []

    def _forget(self) -> None:
        """On another machine a solver may round otherwise: what came before stays, and is written again."""
        for file in self._files():
            file.unlink()
        kept, self._known = self._known[: self._at], []
        self._at, self._new = 0, kept

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.number:02}-*.safetensors"))

    @staticmethod
    def _first(file: Path) -> int:
        return int(file.stem.partition("-")[2])


def _mark(unknowns: Tensor) -> bytes:
    return hashlib.sha256(unknowns.detach().cpu().contiguous().numpy().tobytes()).digest()


def _read(file: Path) -> list[tuple[bytes, Evaluation, float]]:
    """What a file holds; nothing of one that is damaged."""
    try:
        arrays = load_file(file)
        values, seconds = arrays["values"].tolist(), arrays["seconds"].tolist()
        rows = zip(arrays["marks"].tolist(), values, arrays["gradients"], seconds, strict=True)
        return [
            (bytes(mark), Evaluation(total, matching, whole, gradient), second)
            for mark, (total, matching, whole), gradient, second in rows
        ]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return []
