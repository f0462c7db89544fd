"""Tokens of printed text, whatever it spells: a page that shows "</s>" must not end a model's input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

#: Begins what stands in a vocabulary in the place of a special token: no text holds these two.
UNWRITABLE = "\U0010ffff\U0010ffff"


class PlainWords:
    """Tokenises words one by one, as ``tokenizer`` does, but never reads a special token in them.

    Words without one get the tokenizer's own ids. The others are split by a copy of it whose special tokens have no
    spelling: asking for ``split_special_tokens`` is not enough, since T5's vocabulary has them among its pieces, and
    its normalisation can make one out of other characters.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self._special = {*tokenizer.all_special_ids, *(number for number, token in added if token.special)}
        self._copy: Any = None

    def ids(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word; the unknown token's where its vocabulary lacks a character."""
        if not self._tokenizer.is_fast:
            rows = self._tokenizer(list(words), add_special_tokens=False, split_special_tokens=True)["input_ids"]
            return [list(ids) for ids in rows]
        rows = [list(ids) for ids in self._tokenizer(list(words), add_special_tokens=False)["input_ids"]]
        for number, ids in enumerate(rows):
            if not self._special.isdisjoint(ids):
                rows[number] = self._split(words[number])
        return rows

    def _split(self, word: str) -> list[int]:
        if self._copy is None:
            self._copy = _without_specials(self._tokenizer.backend_tokenizer, self._special)
        return list(self._copy.encode(word, add_special_tokens=False).ids)


def _without_specials(backend: Any, special: set[int]) -> Any:
    """A ``tokenizers.Tokenizer`` that differs from ``backend`` in not finding special tokens in a text."""
    from tokenizers import Tokenizer

    values = json.loads(backend.to_str())
    values["truncation"] = values["padding"] = None
    values["added_tokens"] = [token for token in values["added_tokens"] if not token["special"]]
    pieces = values["model"]["vocab"]
    if isinstance(pieces, list):  # Unigram: any piece may be found; pairs of piece and score, the id is the place
        values["model"]["vocab"] = [
            [f"{UNWRITABLE}{number}" if number in special else piece, score]
            for number, (piece, score) in enumerate(pieces)
        ]
    return Tokenizer.from_str(json.dumps(values))
