"""UDOP (Tang et al., 2023) as ``transformers`` has it: a T5 that reads question, OCR words, boxes and patches at once.

A word's vector has that of the patch under its middle added; patches without a word stand behind the words. Questions
have the prefix of the published fine-tuning for document VQA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import PIL.Image
import torch
from torch import Tensor

from docleak.documents.page import Image, Page, Question
from docleak.errors import ModelError
from docleak.models.base import AnswerLayers, Encoded, mean_per_example
from docleak.models.stages import Stage
from docleak.models.vlm.model import VisionLanguage
from docleak.models.words_beside import FRAME, QUESTION, WordsBeside

#: Tokens of question and page together; what does not fit is left out from the page's end.
MOST_TOKENS = 512


class Udop(VisionLanguage, WordsBeside):
    """Adapter of ``UdopForConditionalGeneration``.

    Its network takes boxes in [0, 1] and clips what is larger, while its tokenizer asks for 0..1000 and passes them on
    as they are. Here they are divided by 1000, so that they mean something; ``"box_range": 1000`` in config.json leaves
    them, as clients do who use both as they come. Each example goes through the network by itself, for the patches
    would stand behind a batch's padding, and no example's loss is to depend on its neighbours.
    """

    network = "UdopForConditionalGeneration"
    answer_layers = AnswerLayers.of_t5("decoder")

    @property
    def box_scale(self) -> int:
        return 1000

    def _longest(self) -> int:
        return MOST_TOKENS

    def _of_picture(self, image: Image) -> dict[str, Tensor]:
        return dict(self.processor.inner.image_processor(images=[PIL.Image.fromarray(image)], return_tensors="pt"))

    def encode(self, page: Page, question: Question) -> Encoded:
        prompt = str(self.processor.prompt)
        words = [word.text for word in page.words] or [""]
        boxes = [self.box_of(word, page) for word in page.words] or [[0, 0, 0, 0]]
        out = self.tokenizer(prompt.format(question=question.text), words, boxes=boxes)
        framing = len(prompt.format(question="").split())
        owners = [
            FRAME if part is None or (part == 0 and word < framing) else QUESTION if part == 0 else word
            for word, part in zip(out.word_ids(), out.sequence_ids(), strict=True)
        ]
        asked = owners.index(FRAME, owners.index(QUESTION)) + 1 if QUESTION in owners else framing
        if asked >= MOST_TOKENS:
            raise ModelError(
                f"question {question.text[:40]!r} takes {asked} tokens, but a UDOP reads {MOST_TOKENS} of it and the "
                "page. Shorten the question."
            )
        kept = [*range(min(len(owners), MOST_TOKENS) - 1), len(owners) - 1]  # the end stays
        answer = self.processor.answer_ids(question.text, question.answers[0] if question.answers else "")
        ids = torch.tensor(out["input_ids"])[kept]
        tensors = {
            "input_ids": ids,
            "bbox": torch.tensor(out["bbox"])[kept],
            "word_ids": torch.tensor(owners)[kept],
            "labels": torch.tensor(answer),
        }
        seen = tuple(sorted({owners[place] for place in kept if owners[place] >= 0}))
        return Encoded(tensors, tuple(self.tokenizer.convert_ids_to_tokens(ids.tolist())), seen)

    scramble = WordsBeside.scramble
    transcript = WordsBeside.transcript

    def labelled(self, example: Encoded, *, whole: bool) -> Encoded:
        """Nothing is written behind an answer, and the encoder reads the rest."""
        return example

    def tokens_moved(self, example: Encoded) -> set[int]:
        """Where the table of tokens is frozen, what adapters show: the answer, which the decoder reads."""
        read = example.tensors["input_ids"].tolist() if self.module.shared.weight.requires_grad else ()
        return {*read, *self.tokens_answered(example)}

    def _asked(self, example: Encoded, device: torch.device) -> dict[str, Tensor]:
        ids, boxes = (example.tensors[name][None].to(device) for name in ("input_ids", "bbox"))
        scale = 1 if getattr(self.module.config, "box_range", 1) == self.box_scale else self.box_scale
        return {"input_ids": ids, "bbox": boxes.float() / scale, "attention_mask": torch.ones_like(ids)}

    def _loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None) -> Tensor:
        owners = range(len(inputs)) if pages is None else pages
        return torch.cat([self._one(pixels[o : o + 1], e) for o, e in zip(owners, inputs, strict=True)])

    def _one(self, pixels: Tensor, example: Encoded) -> Tensor:
        labels = example.tensors["labels"][None].to(pixels.device)
        network: Any = self.module
        asked = {**self._asked(example, pixels.device), **self._shown(pixels, example)}
        return mean_per_example(network(**asked, labels=labels, use_cache=False).logits, labels)

    def stage(self, parameter_name: str) -> Stage:
        """Decoder block 0's self-attention sees the answer alone and counts as text, as does the (tied) vocabulary."""
        if "patch" in parameter_name and not parameter_name.startswith("decoder."):  # the decoder's is not used
            return "vision"
        if parameter_name.startswith(("lm_head", "decoder.final_layer_norm")):
            return "output"
        early = ("shared", "encoder.cell_2d_embedding.", "decoder.block.0.layer.0.")
        return "text" if parameter_name.startswith(early) else "fusion"
