"""Pix2Struct (Lee et al., 2023) as ``transformers`` has it: the question is written above the page, as part of it.

What its processor does is differentiable in the page's pixels: the sheet of both is brought to mean 0 and deviation 1,
scaled until its patches are as many as the network may take, and cut into them, each with its row and column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from docleak.documents.fonts import BROADEST, font_path
from docleak.documents.page import Page, Question
from docleak.errors import ModelError
from docleak.models.base import IGNORED, AnswerLayers, Encoded, Transcript, mean_per_example, pad, redrawn, spoken
from docleak.models.stages import Stage
from docleak.models.vlm.model import KEPT, VisionLanguage
from docleak.models.vlm.overview import Overview
from docleak.models.vlm.picture import A4_AT_150_DPI
from docleak.models.vlm.processor import blank

#: Pillow's filter where the page is widened to the question's width: that of ``resize`` where none is named.
BICUBIC = 3
#: Where transformers fetches its typeface from, and what is written with where that is out of reach.
FONTS, TYPEFACE = "ybelkada/fonts", "Arial.TTF"
#: Tokens of an answer at most: places are relative.
LONGEST = 512


@dataclass
class Sheet:
    """Pages of ``size`` (width, height) under what ``images``, the image processor, writes in the typeface of ``font``.

    With ``rounds`` a page that is widened is rounded to grey levels, as Pillow does; its derivative is the scaling's.
    """

    images: Any
    size: tuple[int, int]
    font: str
    rounds: bool = True
    _above: dict[str, tuple[Tensor, Overview | None]] = field(default_factory=dict)

    def above(self, question: str) -> tuple[Tensor, Overview | None]:
        """The header (3, h, w) in grey levels, and how pages are scaled to its width; both are kept."""
        if question not in self._above:
            if len(self._above) == KEPT:
                self._above.clear()
            page = np.ascontiguousarray(blank(self.size).transpose(2, 0, 1))
            sheet = self.images.render_header(page, question, font_path=self.font)
            width, height = self.size
            high = int(height * (sheet.shape[2] / width))
            scaled = None if sheet.shape[2] == width else Overview.of((height, width), (high, sheet.shape[2]), BICUBIC)
            self._above[question] = torch.from_numpy(sheet[:, : sheet.shape[1] - high].copy()), scaled
        return self._above[question]

    def __call__(self, pixels: Tensor, question: str) -> Tensor:
        """Patches (rows * columns, 2 + 3 p²) of a page (1, 3, H, W) in [0, 1], each behind its row and its column."""
        if tuple(pixels.shape) != (1, 3, *self.size[::-1]):
            raise ModelError(
                f"pixels are of shape {tuple(pixels.shape)}; expected (1, 3, {self.size[1]}, {self.size[0]})."
            )
        sheet = pixels
        if self.images.is_vqa:
            header, scaled = self.above(question)
            page = pixels if scaled is None else replace(scaled, rounds=self.rounds)(pixels)
            sheet = torch.cat([header[None].to(page) / 255, page], 2)
        sheet = 255 * sheet
        if self.images.do_normalize:
            least = sheet.new_tensor(sheet[0].numel() ** -0.5)
            sheet = (sheet - sheet.mean()) / torch.maximum(sheet.std(correction=0), least)
        side = int(self.images.patch_size["height"])
        rows, columns = grid(sheet.shape[3], sheet.shape[2], int(self.images.max_patches), side)
        scaled_to = (rows * side, columns * side)
        sheet = F.interpolate(sheet, scaled_to, mode="bilinear", align_corners=False, antialias=True)
        patches = sheet.view(3, rows, side, columns, side).permute(1, 3, 2, 4, 0).reshape(rows * columns, -1)
        place = torch.arange(rows * columns, device=patches.device)
        at = torch.stack([place // columns + 1, place % columns + 1], 1)
        return torch.cat([at.to(patches), patches], 1)


def grid(width: int, height: int, most: int, side: int) -> tuple[int, int]:
    """Rows and columns of patches that a picture is scaled to, ``most`` together."""
    scale = (most * (side / height) * (side / width)) ** 0.5
    rows, columns = (max(min(int(scale * length / side), most), 1) for length in (height, width))
    return rows, columns


class Pix2Struct(VisionLanguage):
    """Adapter of ``Pix2StructForConditionalGeneration``; ``prompt_ids`` are the question's letters, by their codes.

    Without ``is_vqa`` in the files of the processor nothing is asked: the decoder writes about the page. The typeface
    is a .ttf file beside config.json, or the one that transformers has fetched, or docleak's.
    """

    network = "Pix2StructForConditionalGeneration"
    answer_layers = AnswerLayers(
        "decoder",
        "layer.0.self_attention.layer_norm",
        tuple(f"layer.0.self_attention.attention.{part}" for part in ("query", "key", "value")),
        "layer.0.encoder_decoder_attention.attention.query",
    )

    def _prepare(self, image_size: tuple[int, int] | None) -> None:
        images = self.processor.inner.image_processor
        side = int(images.patch_size["height"])
        if image_size is None:
            rows, columns = grid(*A4_AT_150_DPI, int(images.max_patches), side)
            image_size = (columns * side, rows * side)
        self.resample = BICUBIC
        self.sheet = Sheet(images, image_size, _typeface(self.processor.source))
        self.picture = self.sheet  # type: ignore[assignment]

    def _longest(self) -> int:
        return LONGEST

    def encode(self, page: Page, question: Question) -> Encoded:
        answer = self.processor.answer_ids(question.text, question.answers[0] if question.answers else "")
        if len(answer) > LONGEST:
            raise ModelError(
                f"the answer to {question.text[:40]!r} takes {len(answer)} tokens; expected {LONGEST} at most."
            )
        asked = question.text if self.processor.inner.image_processor.is_vqa else ""
        return self._written([ord(letter) for letter in asked], answer)

    def _written(self, asked: Sequence[int], answer: Sequence[int]) -> Encoded:
        codes = torch.tensor(list(asked), dtype=torch.long)
        tensors = {"prompt_ids": codes, "labels": torch.tensor(list(answer))}
        return Encoded(tensors, (*map(chr, asked), *self.tokenizer.convert_ids_to_tokens(list(answer))))

    def scramble(self, example: Encoded, *, question: bool, answer: bool, generator: torch.Generator) -> Encoded:
        """Random letters for the question's, and tokens for the answer's, in equal number; spaces and the end stay."""
        codes, labels = example.tensors["prompt_ids"], example.tensors["labels"]
        if question:
            letters = torch.randint(ord("a"), ord("z") + 1, codes.shape, generator=generator)
            codes = torch.where(codes == ord(" "), codes, letters)
        if answer:
            labels = redrawn(labels, torch.ones_like(labels, dtype=torch.bool), self.tokenizer, generator)
        return self._written(codes.tolist(), labels.tolist())

    def transcript(self, example: Encoded) -> Transcript:
        return Transcript(self._question(example), spoken(self.tokenizer, example.tensors["labels"]))

    @staticmethod
    def _question(example: Encoded) -> str:
        return "".join(map(chr, example.tensors["prompt_ids"].tolist()))

    def labelled(self, example: Encoded, *, whole: bool) -> Encoded:
        """Nothing is written behind an answer, and nothing but the answer is read."""
        return example

    def tokens_moved(self, example: Encoded) -> set[int]:
        return self.tokens_answered(example)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Grey levels: what follows depends on the whole sheet."""
        return 255 * pixels

    def _asked(self, example: Encoded, device: torch.device) -> dict[str, Tensor]:
        return {}

    def _shown(self, pixels: Tensor, example: Encoded) -> dict[str, Tensor]:
        patches = self.sheet(pixels, self._question(example))[None]
        return {"flattened_patches": patches, "attention_mask": _there(patches)}

    def _loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None) -> Tensor:
        owners = range(len(inputs)) if pages is None else pages
        shown = [self._shown(pixels[o : o + 1], e)["flattened_patches"][0] for o, e in zip(owners, inputs, strict=True)]
        patches = pad_sequence(shown, batch_first=True)
        labels = pad([example.tensors["labels"] for example in inputs], IGNORED, pixels.device)
        start = torch.full_like(labels[:, :1], int(self.module.config.decoder_start_token_id))
        read = torch.cat([start, labels[:, :-1]], 1).clamp_min(0)  # padded places carry no label
        network: Any = self.module
        out = network(
            flattened_patches=patches, attention_mask=_there(patches), decoder_input_ids=read, use_cache=False
        )
        return mean_per_example(out.logits, labels)

    def stage(self, parameter_name: str) -> Stage:
        """The decoder's first self-attention reads the answer alone and counts as text, as does the vocabulary."""
        if parameter_name.startswith("encoder."):
            return "vision"
        if parameter_name.startswith(("decoder.lm_head", "decoder.final_layer_norm")):
            return "output"
        early = ("decoder.embed_tokens", "decoder.layer.0.self_attention.")
        return "text" if parameter_name.startswith(early) else "fusion"


def _there(patches: Tensor) -> Tensor:
    """Which of the patches (P, N, 2 + 3 p²) are some: as the processor tells them, by a sum that is not 0."""
    return (patches.detach().sum(-1) != 0).to(patches.dtype)


def _typeface(source: str) -> str:
    """The file of the typeface that questions are written in; ModelError where there is none."""
    from huggingface_hub import try_to_load_from_cache

    beside = sorted(Path(source).glob("*.[tT][tT][fF]")) if Path(source).is_dir() else []
    fetched = try_to_load_from_cache(FONTS, TYPEFACE)
    file = beside[0] if beside else fetched if isinstance(fetched, str) else font_path(BROADEST)
    if file is None:
        raise ModelError(
            f"a Pix2Struct writes questions in a typeface, and none is here. Put a .ttf file beside config.json, the "
            f"one that its training had, which is {TYPEFACE} unless told otherwise."
        )
    return str(file)
