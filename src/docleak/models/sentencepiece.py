"""SentencePiece's model files (Kudo & Richardson, 2018) without its library: pieces, their scores, and character maps.

A file is a protocol buffer: field 1 repeats pieces (text, score, kind), field 3 holds the normaliser, whose field 2 is
the compiled character map. transformers reads such files with two packages that docleak does not ask for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docleak.errors import ModelError

NORMAL, UNKNOWN, CONTROL = 1, 2, 3
EXTRA = 100


@dataclass(frozen=True)
class Piece:
    """A token, its log-probability, and whether it is NORMAL, UNKNOWN or CONTROL."""

    text: str
    score: float
    kind: int = NORMAL


def t5_tokenizer(path: Path) -> Any:
    """T5's tokenizer from its spiece.model: the pieces and 100 sentinels. ModelError for a file that is none."""
    import transformers

    try:
        pieces, character_map = read(path.read_bytes())
    except (ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{path} is no SentencePiece model ({error}). Download it again.") from error
    vocabulary = [(piece.text, piece.score) for piece in pieces]
    vocabulary += [(f"<extra_id_{number}>", 0.0) for number in reversed(range(EXTRA))]
    if [text for text, _ in vocabulary[:3]] != ["<pad>", "</s>", "<unk>"]:
        raise ModelError(
            f"{path} begins with {[text for text, _ in vocabulary[:3]]}, expected T5's <pad>, </s>, <unk>."
        )
    return transformers.T5TokenizerFast(vocab=vocabulary, _spm_precompiled_charsmap=character_map or None)


def read(content: bytes) -> tuple[list[Piece], bytes]:
    """The pieces in order, and the compiled character map (empty for none). ValueError for what is no such file."""
    pieces, character_map = [], b""
    for number, value in _fields(content):
        if number == 1 and isinstance(value, bytes):
            parts = dict(_fields(value))
            score = struct.unpack("<f", parts[2])[0] if 2 in parts else 0.0
            pieces.append(Piece(bytes(parts.get(1, b"")).decode("utf-8"), score, int(parts.get(3, NORMAL))))
        elif number == 3 and isinstance(value, bytes):
            character_map = bytes(dict(_fields(value)).get(2, b""))
    if not pieces:
        raise ValueError("it holds no pieces")
    return pieces, character_map


def written(pieces: Iterable[Piece]) -> bytes:
    """A file of these pieces, without a character map."""
    return b"".join(_field(1, _field(1, piece.text.encode()) + b"\x15" + struct.pack("<f", piece.score)
                           + b"\x18" + _varint(piece.kind)) for piece in pieces)  # fmt: skip


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message: integers, or bytes for all else."""
    at = 0
    while at < len(content):
        key, at = _integer(content, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _integer(content, at)
            yield number, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"field {number} at byte {at} is of kind {kind}")
        size, at = _integer(content, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + size > len(content):
            raise ValueError(f"field {number} at byte {at} goes beyond the end")
        yield number, content[at : at + size]
        at += size


def _integer(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content
