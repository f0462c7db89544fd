"""What models share whose encoder reads a question and then OCR words with their boxes, and which write the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from docleak.documents.page import Page, Word
from docleak.models.base import Encoded, Transcript, redrawn, spoken

#: ``word_ids`` of tokens that stand for no word of the page: the question's, and the prompt's around it.
QUESTION, FRAME = -1, -2


class WordsBeside:
    """Reads examples with ``input_ids``, ``bbox`` (T, 4) in 0..``box_scale``, ``word_ids`` (the number of the page's
    word, QUESTION or FRAME) and ``labels`` (the answer's tokens and the end)."""

    tokenizer: Any

    @property
    def box_scale(self) -> int:
        """What a page's width and height are in boxes."""
        raise NotImplementedError

    @property
    def image_size(self) -> tuple[int, int]:
        """(width, height) of the pixels the model takes."""
        raise NotImplementedError

    def box_of(self, word: Word, page: Page) -> list[int]:
        """A word's box as the model takes it."""
        scale = self.box_scale
        sides = (page.width, page.height) * 2
        return [min(scale, max(0, int(v * scale / side))) for v, side in zip(word.box, sides, strict=True)]

    def scramble(self, example: Encoded, *, question: bool, answer: bool, generator: torch.Generator) -> Encoded:
        """The input with random tokens of equal number for what an adversary does not know (prompt and end stay)."""
        tensors = dict(example.tensors)
        ids, said = tensors["input_ids"], tensors["labels"]
        if question:
            tensors["input_ids"] = redrawn(ids, tensors["word_ids"] == QUESTION, self.tokenizer, generator)
        if answer:
            tensors["labels"] = redrawn(said, torch.ones_like(said, dtype=torch.bool), self.tokenizer, generator)
        shown = tuple(self.tokenizer.convert_ids_to_tokens(tensors["input_ids"].tolist()))
        return replace(example, tensors=tensors, tokens=shown)

    def transcript(self, example: Encoded) -> Transcript:
        ids, owners = example.tensors["input_ids"], example.tensors["word_ids"]
        width, height = self.image_size
        words = []
        for word in sorted({int(owner) for owner in owners if owner >= 0}):
            tokens = (owners == word).nonzero().flatten()
            x0, y0, x1, y1 = (float(edge) / self.box_scale for edge in example.tensors["bbox"][tokens[0]])
            text = spoken(self.tokenizer, ids[tokens])
            words.append(Word(text, (x0 * width, y0 * height, x1 * width, y1 * height)))
        question, answer = (
            spoken(self.tokenizer, said) for said in (ids[owners == QUESTION], example.tensors["labels"])
        )
        return Transcript(question, answer, tuple(words))
