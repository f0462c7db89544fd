"""LayoutLMv3 (Huang et al., 2022) with a question-answering head: OCR words, boxes and patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from docleak.documents.fit import fit_page
from docleak.documents.page import Page, Question, Word
from docleak.errors import ModelError
from docleak.models.base import (
    IGNORED,
    Answer,
    Encoded,
    Transcript,
    asked_about,
    normalised,
    pad,
    redrawn,
    require_size,
    spoken,
)
from docleak.models.files import (
    HALF,
    ImageSettings,
    image_settings,
    pretrained_but,
    require_weights,
    save_network,
    tokenizer_of,
    told_drawn,
)
from docleak.models.stages import Stage

MAX_ANSWER_TOKENS = 40
#: ``word_ids`` of padding that the client's own code put behind an example.
PADDING = -2


class LayoutLMv3:
    """Adapter of ``LayoutLMv3ForQuestionAnswering``: the answer is a span of the page's words.

    The loss is the mean of the cross-entropies of the first and the last token of the span; an
    answer that is not among the words points at the first token. Boxes are scaled to 0..1000.

    No example's loss depends on its neighbours: what a batch of unequal lengths pads is left out of the span's softmax.
    ``transformers`` leaves it in; ``padded`` makes an example whose loss is computed as there.
    """

    architecture = "layoutlmv3"
    drawn = ""
    #: The class in ``transformers``, and whether it looks at pictures.
    network = "LayoutLMv3ForQuestionAnswering"
    sees = True

    def __init__(
        self,
        module: Any,
        tokenizer: Any,
        *,
        mean: tuple[float, ...] = HALF,
        std: tuple[float, ...] = HALF,
        name: str = "layoutlmv3",
    ) -> None:
        self.module = module
        self.tokenizer = tokenizer
        self.name = name
        self._mean, self._std = mean, std
        self.max_tokens = int(module.config.max_position_embeddings) - 2

    @property
    def image_size(self) -> tuple[int, int]:
        size = int(self.module.config.input_size)
        return size, size

    def fit(self, page: Page) -> Page:
        """LayoutLMv3's own geometry: stretch to the square input."""
        return fit_page(page, self.image_size, keep_aspect=False)

    def encode(self, page: Page, question: Question) -> Encoded:
        asked = len(self.tokenizer(question.text, [""], boxes=[[0, 0, 0, 0]])["input_ids"])
        if asked >= self.max_tokens:
            raise ModelError(
                f"question {question.text[:40]!r} takes {asked} tokens, but {self.name} has {self.max_tokens} "
                "positions for it and the page's words. Shorten the question or use a model with more positions."
            )
        words, boxes = words_and_boxes(page)
        out = self.tokenizer(
            question.text, words, boxes=boxes, truncation="only_second", max_length=self.max_tokens
        )  # fmt: skip
        start, end = self._span(page, question, out.word_ids(), out.sequence_ids())
        tensors = {
            "input_ids": torch.tensor(out["input_ids"]),
            "bbox": torch.tensor(out["bbox"]),
            "start": torch.tensor(start),
            "end": torch.tensor(end),
            "word_ids": torch.tensor(
                [-1 if w is None or s != 1 else w for w, s in zip(out.word_ids(), out.sequence_ids(), strict=True)]
            ),
        }
        seen = tuple(sorted({int(w) for w in tensors["word_ids"] if w >= 0}))
        words_of = tuple(w.text for w in page.words)
        return Encoded({**tensors}, tuple(self.tokenizer.convert_ids_to_tokens(out["input_ids"])) + words_of, seen)

    def padded(self, example: Encoded, length: int) -> Encoded:
        """The example with padding up to ``length`` tokens, which takes part in the span's softmax as in
        ``transformers``; as it is where it has as many. ModelError beyond the model's positions."""
        if length > self.max_tokens:
            raise ModelError(f"padding to {length} tokens; {self.name} has positions for {self.max_tokens}.")
        there = len(example.tensors["input_ids"])
        lacking = max(0, length - there)
        pad_id = int(self.module.config.pad_token_id)
        fill = {"input_ids": pad_id, "bbox": 0, "word_ids": PADDING, "labels": IGNORED}
        tensors = {
            name: F.pad(value, (0, 0) * (value.ndim - 1) + (0, lacking), value=fill[name]) if name in fill else value
            for name, value in example.tensors.items()
        }
        tokens = (*example.tokens[:there], *(lacking * [self.tokenizer.pad_token]), *example.tokens[there:])
        return replace(example, tensors=tensors, tokens=tokens)

    def _span(
        self, page: Page, question: Question, word_ids: Sequence[int | None], sequence_ids: Sequence[int | None]
    ) -> tuple[int, int]:
        """First and last token of the answer's words, or (0, 0) where they are not on the page."""
        wanted = self._answer_words(page, question)
        if not wanted:
            return 0, 0
        pairs = enumerate(zip(word_ids, sequence_ids, strict=True))
        tokens = [i for i, (word, sequence) in pairs if sequence == 1 and word in wanted]
        return (min(tokens), max(tokens)) if tokens else (0, 0)

    @staticmethod
    def _answer_words(page: Page, question: Question) -> set[int]:
        for field in page.fields:
            if field.words and question.key == field.key and field.value in question.answers:
                return set(field.words)
        texts = [w.text.lower() for w in page.words]
        for answer in question.answers:
            parts = answer.lower().split()
            for i in range(len(texts) - len(parts) + 1):
                if parts and texts[i : i + len(parts)] == parts:
                    return set(range(i, i + len(parts)))
        return set()

    def scramble(self, example: Encoded, *, question: bool, answer: bool, generator: torch.Generator) -> Encoded:
        """The input with random question tokens, or a random span, for what an adversary does not know."""
        tensors = dict(example.tensors)
        ids, on_page = tensors["input_ids"].clone(), tensors["word_ids"] >= 0
        shown = example.tokens
        if question:
            tensors["input_ids"] = redrawn(ids, ~on_page, self.tokenizer, generator)
            shown = (*self.tokenizer.convert_ids_to_tokens(tensors["input_ids"].tolist()), *shown[len(ids) :])
        if answer:
            tokens = on_page.nonzero().flatten()
            picked = tokens[torch.randint(len(tokens), (2,), generator=generator)].sort().values
            tensors["start"], tensors["end"] = picked[0], picked[1]
        return replace(example, tensors=tensors, tokens=shown)

    def transcript(self, example: Encoded) -> Transcript:
        ids, places = example.tensors["input_ids"], example.tensors["word_ids"]
        first, last = int(example.tensors["start"]), int(example.tensors["end"])
        width, height = self.image_size
        words, answer = [], []
        for word in sorted({int(w) for w in places if w >= 0}):
            tokens = (places == word).nonzero().flatten()
            x0, y0, x1, y1 = (float(edge) / 1000 for edge in example.tensors["bbox"][tokens[0]])
            text = spoken(self.tokenizer, ids[tokens])
            words.append(Word(text, (x0 * width, y0 * height, x1 * width, y1 * height)))
            if bool(((tokens >= first) & (tokens <= last)).any()):
                answer.append(text)
        return Transcript(spoken(self.tokenizer, ids[places < 0]), " ".join(answer), tuple(words))

    def normalise(self, pixels: Tensor) -> Tensor:
        return normalised(pixels, self._mean, self._std)

    def output(self, pixels: Tensor | None, inputs: Sequence[Encoded]) -> Any:
        """What the network makes of padded inputs, and of pixels (B, 3, H, W) where there are any and it sees."""
        device = next(self.module.parameters()).device
        seen = {"pixel_values": self.normalise(pixels)} if pixels is not None and self.sees else {}
        return self.module(
            input_ids=pad([e.tensors["input_ids"] for e in inputs], self.module.config.pad_token_id, device),
            bbox=pad([e.tensors["bbox"] for e in inputs], 0, device),
            attention_mask=pad([(e.tensors["word_ids"] != PADDING).long() for e in inputs], 0, device),
            **seen,
        )

    def _logits(self, pixels: Tensor | None, inputs: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        out = self.output(pixels, inputs)
        there = pad([torch.ones_like(e.tensors["input_ids"]) for e in inputs], 0, out.start_logits.device)
        # The head also scores the visual tokens behind the text, as in transformers.
        hidden = F.pad(there == 0, (0, out.start_logits.shape[1] - there.shape[1]))
        return out.start_logits.masked_fill(hidden, -1e4), out.end_logits.masked_fill(hidden, -1e4)

    def loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        return self._span_loss(*self._logits(asked_about(pixels, pages), inputs), inputs)

    def text_loss(self, inputs: Sequence[Encoded]) -> Tensor:
        """``loss`` without the picture, four times as fast; pretraining begins with it."""
        return self._span_loss(*self._logits(None, inputs), inputs)

    @staticmethod
    def _span_loss(start_logits: Tensor, end_logits: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        start = torch.stack([e.tensors["start"] for e in inputs]).to(start_logits.device)
        end = torch.stack([e.tensors["end"] for e in inputs]).to(start_logits.device)
        first = F.cross_entropy(start_logits, start, reduction="none")
        return (first + F.cross_entropy(end_logits, end, reduction="none")) / 2

    @torch.no_grad()
    def answer(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> list[Answer]:
        """The best span of words; confidence is the product of its two softmax values."""
        start, end = (x.softmax(-1).cpu() for x in self._logits(asked_about(pixels, pages), inputs))
        return [self._best_span(start[i], end[i], e) for i, e in enumerate(inputs)]

    @staticmethod
    def _best_span(start: Tensor, end: Tensor, example: Encoded) -> Answer:
        word_ids = example.tensors["word_ids"]
        length = len(word_ids)
        score = start[:length, None] * end[None, :length]
        inside = (word_ids >= 0)[:, None] & (word_ids >= 0)[None, :]
        band = torch.ones(length, length).triu().tril(MAX_ANSWER_TOKENS).bool()
        score = score.masked_fill(~(inside & band), 0.0)
        best = int(score.argmax())
        i, j = divmod(best, length)
        words = example.tokens[length:]
        indices = sorted({int(w) for w in word_ids[i : j + 1] if w >= 0})
        return Answer(" ".join(words[w] for w in indices), float(score[i, j]))

    def stage(self, parameter_name: str) -> Stage:
        name = parameter_name.removeprefix("layoutlmv3.").removeprefix("lilt.")
        if name.startswith(("patch_embed.", "cls_token", "pos_embed", "norm.")):
            return "vision"
        if name.startswith(("embeddings.", "layout_embeddings.")):  # of words or boxes alone
            return "text"
        return "output" if name.startswith(("qa_outputs", "classifier")) else "fusion"

    def save(self, directory: str) -> None:
        from transformers import LayoutLMv3ImageProcessorPil

        width, height = self.image_size
        save_network(self.module, directory)
        self.tokenizer.save_pretrained(directory)
        if self.sees:
            LayoutLMv3ImageProcessorPil(
                apply_ocr=False,
                size={"height": height, "width": width},
                image_mean=list(self._mean),
                image_std=list(self._std),
            ).save_pretrained(directory)

    @classmethod
    def load(
        cls, source: str, *, name: str, device: torch.device, revision: str | None, image_size: tuple[int, int] | None,
        seed: int = 0,
    ) -> Self:  # fmt: skip
        """Load from a directory or hub name (eager attention), at no other ``image_size`` than the checkpoint's own.

        A checkpoint without any head, as layoutlmv3-base is published, gets one drawn with ``seed``: see ``drawn``. One
        that was saved with a head, of whatever task, must have this one.
        """
        import transformers

        from docleak.models.fast import quicken

        network = getattr(transformers, cls.network)
        module, drawn = pretrained_but(
            network, source, head="qa_outputs.", revision=revision, allow_pickle=True, seed=seed
        )  # fmt: skip
        if any("For" in kind for kind in module.config.architectures or ()):
            require_weights(source, module, drawn)
        model = cls.around(quicken(module) if cls.sees else module, source, name, device, revision, image_size)
        model.drawn = told_drawn(name, module, drawn, seed=seed)
        return model

    @classmethod
    def around(
        cls, module: Any, source: str, name: str, device: torch.device, revision: str | None,
        image_size: tuple[int, int] | None,
    ) -> Self:  # fmt: skip
        """The adapter of a network that was loaded, with the tokenizer and the settings of pictures beside it."""
        settings = image_settings(source, revision=revision) if cls.sees else ImageSettings()
        tokenizer = tokenizer_of(source, revision=revision)
        model = cls(module.to(device).eval(), tokenizer, mean=settings.mean, std=settings.std, name=name)
        require_size(name, image_size, model.image_size)
        return model


def words_and_boxes(page: Page) -> tuple[list[str], list[list[int]]]:
    """The words as tokenizers take them, with boxes in 0..1000; of a page without any one word without letters."""
    scale = (1000 / page.width, 1000 / page.height) * 2
    boxes = [[min(1000, max(0, int(v * s))) for v, s in zip(w.box, scale, strict=True)] for w in page.words]
    return [w.text for w in page.words] or [""], boxes or [[0, 0, 0, 0]]
