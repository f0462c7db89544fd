"""LayoutLMv3 and LiLT that tag words (``...ForTokenClassification``): fields are what is learned, and nothing is asked.

As in the token classification of ``transformers``, the first token of each word has the word's tag, and the loss is the
mean cross-entropy over those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from docleak.documents.page import Page, Question
from docleak.models.base import IGNORED, Answer, Encoded, Transcript, asked_about, mean_per_example, pad
from docleak.models.encoders.finished import tags_of
from docleak.models.encoders.tasks import entities_of
from docleak.models.files import pretrained
from docleak.models.layoutlmv3 import LayoutLMv3, words_and_boxes
from docleak.models.lilt import Lilt
from docleak.models.loading import config_at


class Tagger(LayoutLMv3):
    """Adapter of ``LayoutLMv3ForTokenClassification``.

    Labels are O and, for each kind of field, B-KIND and I-KIND, in any order, as config.json names them; a field counts
    as its key's kind, and of kinds that the model does not know as O. A question is no input: its key, the last of the
    ``tokens`` of an example, says which field's words ``answer`` returns.
    """

    network = "LayoutLMv3ForTokenClassification"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of fields; tag 1 + 2 k begins kind k, tag 2 + 2 k goes on with it (``rows`` has their labels)."""
        return self._tags[1]

    @property
    def rows(self) -> list[int]:
        """The network's label of each tag."""
        return self._tags[0]

    @property
    def _tags(self) -> tuple[list[int], tuple[str, ...]]:
        return tags_of({"id2label": self.module.config.id2label}, self.name)

    def encode(self, page: Page, question: Question) -> Encoded:
        words, boxes = words_and_boxes(page)
        out = self.tokenizer(words, boxes=boxes, truncation=True, max_length=self.max_tokens)
        kinds, tags = self.kinds, [0] * len(words)
        for entity in entities_of(page):
            if entity.label in kinds:
                kind = kinds.index(entity.label)
                for number, word in enumerate(sorted(entity.words)):
                    tags[word] = (2 if number else 1) + 2 * kind
        owners = [-1 if word is None else word for word in out.word_ids()]
        tensors = {
            "input_ids": torch.tensor(out["input_ids"]),
            "bbox": torch.tensor(out["bbox"]),
            "word_ids": torch.tensor(owners),
        }
        tokens = self.tokenizer.convert_ids_to_tokens(out["input_ids"])
        seen = tuple(sorted({owner for owner in owners if owner >= 0}))
        return self.tagged(Encoded(tensors, (*tokens, *words, question.key or ""), seen), tags)

    def tagged(self, example: Encoded, tags: Sequence[int]) -> Encoded:
        """``example`` with a tag for each word of the page, by its number."""
        owners, rows = example.tensors["word_ids"].tolist(), self.rows
        first = [word >= 0 and word not in owners[:place] for place, word in enumerate(owners)]
        labels = [rows[tags[word]] if begins else IGNORED for word, begins in zip(owners, first, strict=True)]
        return replace(example, tensors={**example.tensors, "labels": torch.tensor(labels)})

    def scramble(self, example: Encoded, *, question: bool, answer: bool, generator: torch.Generator) -> Encoded:
        """Random tags where the answer is not known; a question is no input."""
        labels = example.tensors["labels"]
        drawn = torch.randint(len(self.rows), labels.shape, generator=generator)
        labels = torch.where((labels != IGNORED) & torch.tensor(answer), drawn, labels)
        return replace(example, tensors={**example.tensors, "labels": labels})

    def transcript(self, example: Encoded) -> Transcript:
        """The page's words, and as answer those with the tags of the kind that is asked for."""
        begun = replace(example, tensors={**example.tensors, "start": torch.tensor(-1), "end": torch.tensor(-1)})
        words = super().transcript(begun).words
        return Transcript("", self._said(example, example.tensors["labels"]), words)

    def _said(self, example: Encoded, labels: Tensor) -> str:
        asked, owners = example.tokens[-1], example.tensors["word_ids"].tolist()
        kind = self.kinds.index(asked) if asked in self.kinds else None
        wanted = set() if kind is None else {self.rows[1 + 2 * kind], self.rows[2 + 2 * kind]}
        texts = example.tokens[len(owners) : -1]
        pairs = enumerate(zip(owners, labels.tolist(), strict=True))
        return " ".join(texts[w] for t, (w, label) in pairs if w >= 0 and w not in owners[:t] and label in wanted)

    def _scores(self, pixels: Tensor | None, inputs: Sequence[Encoded]) -> Tensor:
        """(B, T, labels), of the text alone."""
        longest = max(len(e.tensors["input_ids"]) for e in inputs)
        scores: Tensor = self.output(pixels, inputs).logits[:, :longest]
        return scores

    def loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        return self._tag_loss(asked_about(pixels, pages), inputs)

    def text_loss(self, inputs: Sequence[Encoded]) -> Tensor:
        return self._tag_loss(None, inputs)

    def _tag_loss(self, pixels: Tensor | None, inputs: Sequence[Encoded]) -> Tensor:
        scores = self._scores(pixels, inputs)
        return mean_per_example(scores, pad([e.tensors["labels"] for e in inputs], IGNORED, scores.device))

    @torch.no_grad()
    def answer(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> list[Answer]:
        """The words that are tagged with the kind asked for; confidence is the mean of their likeliest tags' shares."""
        best = self._scores(asked_about(pixels, pages), inputs).softmax(-1).max(-1)
        answers = []
        for share, label, example in zip(best.values.cpu(), best.indices.cpu(), inputs, strict=True):
            length, labelled = len(example.tensors["word_ids"]), example.tensors["labels"] != IGNORED
            text = self._said(example, label[:length])
            answers.append(Answer(text, float(share[:length][labelled].mean()) if bool(labelled.any()) else 0.0))
        return answers

    @classmethod
    def load(
        cls, source: str, *, name: str, device: torch.device, revision: str | None, image_size: tuple[int, int] | None,
        seed: int = 0,
    ) -> Self:  # fmt: skip
        """Load a network that has its head; ``seed`` draws nothing. ModelError for other labels."""
        import transformers as t

        from docleak.models.fast import quicken

        tags_of(config_at(source, revision, source), name)
        module = pretrained(getattr(t, cls.network), source, revision=revision, allow_pickle=True)
        return cls.around(quicken(module), source, name, device, revision, image_size)


class LiltTagger(Tagger, Lilt):
    """Adapter of ``LiltForTokenClassification``."""

    network = "LiltForTokenClassification"
