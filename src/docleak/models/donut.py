"""Donut (Kim et al., 2022): an OCR-free document model, a Swin encoder and an MBart decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from docleak.documents.fit import fit_page
from docleak.documents.page import Page, Question
from docleak.errors import ModelError
from docleak.models.base import IGNORED as IGNORED
from docleak.models.base import (
    Answer,
    Encoded,
    Transcript,
    asked_about,
    mean_per_example,
    normalised,
    pad,
    redrawn,
    require_size,
    spoken,
)
from docleak.models.files import HALF, drawn_with, image_settings, pretrained, save_network, tokenizer_of
from docleak.models.stages import Stage

PROMPT = "<s_docvqa><s_question>{question}</s_question><s_answer>"
END = "</s_answer>"
#: The tokens of their own that it needs; the first one tells the task.
TAGS = ("<s_docvqa>", "<s_question>", "</s_question>", "<s_answer>", END)


class Donut:
    """Adapter of a ``VisionEncoderDecoderModel`` with a Swin encoder and an MBart decoder.

    The prompt holds the question; the loss is the mean cross-entropy over the answer's tokens and
    the closing tokens, as in Donut's DocVQA fine-tuning. Pixels are normalised inside ``loss``.
    """

    architecture = "donut"
    drawn = ""

    def __init__(
        self,
        module: Any,
        tokenizer: Any,
        *,
        image_size: tuple[int, int],
        mean: tuple[float, ...] = HALF,
        std: tuple[float, ...] = HALF,
        name: str = "donut",
        prompt: str = PROMPT,
        max_answer_tokens: int = 64,
    ) -> None:
        self.module = module
        self.tokenizer = tokenizer
        self.name = name
        self.prompt = prompt
        self.max_answer_tokens = max_answer_tokens
        self._image_size = image_size
        self._mean, self._std = mean, std
        self.positions = int(module.config.decoder.max_position_embeddings)

    @property
    def image_size(self) -> tuple[int, int]:
        return self._image_size

    def fit(self, page: Page) -> Page:
        """Donut's own geometry: keep the aspect ratio, centre, pad black."""
        return fit_page(page, self._image_size, keep_aspect=True, fill=0)

    def _ids(self, text: str) -> list[int]:
        return cast(list[int], self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(self, page: Page, question: Question) -> Encoded:
        prompt = self._ids(self.prompt.format(question=question.text))
        answer = [*self._ids(question.answers[0] + END if question.answers else END), self.tokenizer.eos_token_id]
        ids = [int(self.module.config.decoder_start_token_id), *prompt, *answer]
        if len(ids) - 1 > self.positions:
            raise ModelError(
                f"question {question.text[:40]!r} and answer take {len(ids) - 1} tokens, but {self.name} has "
                f"{self.positions} decoder positions. Shorten the question or use a model with more positions."
            )
        labels = [IGNORED] * len(prompt) + answer
        tensors = {
            "decoder_input_ids": torch.tensor(ids[:-1]),
            "labels": torch.tensor(labels),
            "prompt_ids": torch.tensor(ids[: len(prompt) + 1]),
        }
        return Encoded(tensors, tuple(self.tokenizer.convert_ids_to_tokens(ids)))

    def scramble(self, example: Encoded, *, question: bool, answer: bool, generator: torch.Generator) -> Encoded:
        """The input with random tokens of equal number for what an adversary does not know (tags stay)."""
        ids = torch.cat([example.tensors["decoder_input_ids"], example.tensors["labels"][-1:]])
        prompt = len(example.tensors["prompt_ids"])
        unknown = torch.tensor([question] * prompt + [answer] * (len(ids) - prompt))
        ids = redrawn(ids, unknown, self.tokenizer, generator)
        labels = torch.cat([torch.full((prompt - 1,), IGNORED), ids[prompt:]])
        tensors = {"decoder_input_ids": ids[:-1], "labels": labels, "prompt_ids": ids[:prompt]}
        return Encoded(tensors, tuple(self.tokenizer.convert_ids_to_tokens(ids.tolist())))

    def transcript(self, example: Encoded) -> Transcript:
        labels = example.tensors["labels"]
        texts = (example.tensors["prompt_ids"], labels[labels != IGNORED])
        question, answer = (str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True)) for ids in texts)
        for tag in self.tokenizer.get_added_vocab():
            question, answer = question.replace(tag, ""), answer.replace(tag, "")
        return Transcript(question.strip(), answer.strip())

    def normalise(self, pixels: Tensor) -> Tensor:
        return normalised(pixels, self._mean, self._std)

    def loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        return self.decoder_loss(self.encoded(pixels), inputs, pages)

    def encoded(self, pixels: Tensor) -> Tensor:
        """The encoder's output cells, (P, rows * columns, width)."""
        return cast(Tensor, self.module.encoder(pixel_values=self.normalise(pixels)).last_hidden_state)

    def decoder_loss(self, encoded: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        """``loss`` from encoder output on, for callers that need the encoder's cells too."""
        out, labels = self._decoded(encoded, inputs, pages)
        return mean_per_example(out.logits, labels)

    def attending_loss(
        self, encoded: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``decoder_loss``, the last layer's cross-attention (N, heads, T, cells), and the labels (N, T)."""
        out, labels = self._decoded(encoded, inputs, pages, output_attentions=True)
        return mean_per_example(out.logits, labels), out.cross_attentions[-1], labels

    def _decoded(
        self, encoded: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None, **options: bool
    ) -> tuple[Any, Tensor]:
        device = encoded.device
        encoded = asked_about(encoded, pages)  # several questions share a page: it was encoded once
        ids = pad([e.tensors["decoder_input_ids"] for e in inputs], self.module.config.pad_token_id, device)
        labels = pad([e.tensors["labels"] for e in inputs], IGNORED, device)
        # Right padding under a causal mask: no mask is needed, padded positions carry no label.
        out = self.module.decoder(
            input_ids=ids, encoder_hidden_states=self.project(encoded), use_cache=False, **options
        )
        return out, labels

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of the encoder's output cells."""
        stride = _stride(self.module.config.encoder)
        width, height = self._image_size
        return math.ceil(height / stride), math.ceil(width / stride)

    @property
    def cell_width(self) -> int:
        """Width of an output cell of the encoder."""
        return int(self.module.encoder.config.hidden_size)

    def project(self, encoded: Tensor) -> Tensor:
        """Encoder states at the decoder's width (VisionEncoderDecoder adds a layer if they differ)."""
        return self.module.enc_to_dec_proj(encoded) if hasattr(self.module, "enc_to_dec_proj") else encoded

    @torch.no_grad()
    def answer(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> list[Answer]:
        """Greedy decoding, all examples at once; confidence is the product of the chosen tokens' probabilities."""
        encoded = asked_about(self.project(self.encoded(pixels)), pages)
        return self._decode(encoded, [e.tensors["prompt_ids"] for e in inputs])

    def _decode(self, encoded: Tensor, prompts: Sequence[Tensor]) -> list[Answer]:
        """Answers to prompts of any lengths; from the shortest on they are read token by token, so nothing is padded.

        ``encoded`` (B, cells, width). A row that has finished is fed padding, which nothing is read from.
        """
        device, padding = encoded.device, self.module.config.pad_token_id
        stops = torch.tensor([self.tokenizer.eos_token_id, self.tokenizer.convert_tokens_to_ids(END)], device=device)
        given = pad(prompts, padding, device)  # (B, longest)
        starts = torch.tensor([len(prompt) for prompt in prompts], device=device)
        ends = (starts + self.max_answer_tokens).clamp_max(self.positions)
        ids = fed = given[:, : int(starts.min())]
        confidence = torch.ones(len(prompts), dtype=torch.float64, device=device)
        done = starts >= ends
        written = torch.zeros_like(starts)
        cache: Any = None
        while not done.all():
            out = self.module.decoder(
                input_ids=fed, encoder_hidden_states=encoded, past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
            place = ids.shape[1]
            probability, token = out.logits[:, -1].softmax(-1).max(-1)
            answering = (place >= starts) & ~done
            confidence = torch.where(answering, confidence * probability, confidence)
            done = done | (answering & torch.isin(token, stops))
            kept = answering & ~done
            written += kept
            done = done | (place + 1 >= ends)
            fed = token.where(kept, padding)[:, None]
            if place < given.shape[1]:
                fed = given[:, place, None].where((place < starts)[:, None], fed)
            ids = torch.cat([ids, fed], 1)
        rows = zip(ids.cpu(), starts.tolist(), written.tolist(), confidence.tolist(), strict=True)
        return [Answer(spoken(self.tokenizer, row[start : start + size]), c) for row, start, size, c in rows]

    def stage(self, parameter_name: str) -> Stage:
        if parameter_name.startswith("encoder."):
            return "vision"
        if "lm_head" in parameter_name or parameter_name.startswith("decoder.model.decoder.layer_norm."):
            return "output"
        text = ("embed_tokens", "embed_positions", "layernorm_embedding", "layers.0.self_attn")
        return "text" if any(part in parameter_name for part in text) else "fusion"

    def early(self, parameter_name: str, stages: int) -> bool:
        """Whether it is of the patch embedding or of the encoder's first ``stages`` stages, if the encoder has more."""
        first = ("encoder.embeddings.", *(f"encoder.encoder.layers.{number}." for number in range(stages)))
        deeper = len(self.module.config.encoder.depths) > stages
        return not deeper or parameter_name.startswith(first)

    def save(self, directory: str) -> None:
        from transformers import DonutImageProcessorPil

        width, height = self._image_size
        save_network(self.module, directory)
        self.tokenizer.save_pretrained(directory)
        DonutImageProcessorPil(
            size={"height": height, "width": width}, image_mean=list(self._mean), image_std=list(self._std)
        ).save_pretrained(directory)

    @classmethod
    def load(
        cls, source: str, *, name: str, device: torch.device, revision: str | None, image_size: tuple[int, int] | None,
        seed: int = 0,
    ) -> Donut:  # fmt: skip
        """Load from a directory or hub name, ready for double backward (eager attention).

        Swin has no absolute positions, so ``image_size`` (width, height) may be another than the checkpoint's. A
        checkpoint that was never asked questions, as donut-base is published, gets the tags of PROMPT, their rows drawn
        with ``seed``: see ``drawn``.
        """
        from transformers import VisionEncoderDecoderModel

        from docleak.models.fast import quicken

        module = pretrained(VisionEncoderDecoderModel, source, revision=revision, allow_pickle=True)
        tokenizer = tokenizer_of(source, revision=revision)
        tags = add_tags(module, tokenizer, seed=seed)
        prompt = settle_tokens(module, tokenizer)
        settings = image_settings(source, revision=revision)
        height, width = settings.size or _config_size(module)
        if image_size is not None:
            _check_size(module, image_size, native=(width, height), name=name)
        model = cls(
            quicken(module.to(device).eval()),
            tokenizer,
            image_size=image_size or (width, height),
            mean=settings.mean,
            std=settings.std,
            name=name,
            prompt=prompt,
        )
        if tags:
            told = f"the vocabulary of {name} brings no {' '.join(tags)}"
            model.drawn = f"{told}: their rows were drawn with seed {seed}, as where a fine-tuning begins."
        return model


def add_tags(module: Any, tokenizer: Any, *, seed: int) -> list[str]:
    """Add the tags of PROMPT that the vocabulary lacks, and a row of the tied table for each; returns them."""
    known = tokenizer.get_vocab()
    tags = [tag for tag in TAGS if tag not in known]
    tokenizer.add_tokens(tags, special_tokens=True)
    if len(tokenizer) > module.decoder.get_input_embeddings().num_embeddings:
        with drawn_with(seed):
            module.decoder.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return tags


def settle_tokens(module: Any, tokenizer: Any) -> str:
    """Put the tokens that padding and answers begin with into ``module.config``; returns the prompt behind the latter.

    As ``transformers`` converts a Donut, the top level of config.json has neither; the decoder's, or
    generation_config.json, may. Where nothing says what the decoder begins with, it begins with the prompt's own first
    tag, as in Donut's own training. A prompt does not repeat the token that it follows.
    """
    places = (module.config, module.config.decoder, module.generation_config)
    for key, other in (("pad_token_id", tokenizer.pad_token_id), ("decoder_start_token_id", None)):
        given = [value for place in places if (value := getattr(place, key, None)) is not None]
        first = tokenizer.convert_tokens_to_ids(TAGS[0]) if other is None else other
        setattr(module.config, key, int(given[0] if given else first))
    started = tokenizer.convert_ids_to_tokens(module.config.decoder_start_token_id) == TAGS[0]
    return PROMPT.removeprefix(TAGS[0]) if started else PROMPT


def _check_size(module: Any, size: tuple[int, int], *, native: tuple[int, int], name: str) -> None:
    """Raise ModelError unless the encoder takes pages of ``size`` (width, height).

    It pads pages to whole patches and windows itself, but its last stage must be at least one window wide and high.
    """
    config = module.config.encoder
    if config.use_absolute_embeddings:
        require_size(name, size, native)
    stride = _stride(config)
    least = (int(config.window_size) - 1) * stride + 1
    if min(size) < least:
        raise ModelError(
            f"pages of {size[0]} x {size[1]} pixels are too small for model {name!r}: its encoder needs at least "
            f"{least} pixels in width and height. Pass a larger --image-size."
        )


def _stride(config: Any) -> int:
    """Pixels from one output cell of the encoder to the next."""
    return int(config.patch_size) << (len(config.depths) - 1)  # every stage but the first halves the grid


def _config_size(module: Any) -> tuple[int, int]:
    size = module.config.encoder.image_size
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
