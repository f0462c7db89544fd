"""Any vision-language model that ``transformers`` loads as an AutoModelForImageTextToText, with its processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from docleak.documents.fit import fit_page
from docleak.documents.page import Image, Page, Question
from docleak.errors import ModelError
from docleak.models.base import (
    IGNORED,
    Answer,
    Encoded,
    Transcript,
    asked_about,
    mean_per_example,
    pad,
    redrawn,
    spoken,
)
from docleak.models.files import pretrained, save_network
from docleak.models.stages import Stage
from docleak.models.vlm.picture import Picture, settled_canvas
from docleak.models.vlm.processor import ANSWER_TYPES, Processor, blank, common
from docleak.models.vlm.values import derived_once, losses_of_values, one_prompt

#: How the part that reads text is named inside the networks of transformers.
LANGUAGE = ("language_model", "text_model")
#: What of it acts before pixels and words meet.
TEXT = ("embed_tokens", "embed_positions", "layernorm_embedding", "shared")
#: Prompts that are kept in tokens: a ranking of values asks one question twenty times.
KEPT = 64


class VisionLanguage:
    """Adapter of a vision-language model.

    The question goes through the checkpoint's chat template, or the family's own prompt where it has none; the loss is
    the mean cross-entropy over the answer's tokens and what ends it. Pages are scaled to the one size that the
    processor leaves as it is, with the processor's filter; tiles, patches, overview and normalisation are part of
    ``loss`` (see ``picture``).
    """

    drawn = ""
    #: The class in ``transformers`` that loads the network.
    network = "AutoModelForImageTextToText"

    def __init__(
        self,
        module: Any,
        processor: Processor,
        *,
        image_size: tuple[int, int] | None = None,
        name: str = "vlm",
        max_answer_tokens: int = 64,
    ) -> None:
        self.module = module
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.architecture = str(module.config.model_type)
        self.name = name
        self.max_answer_tokens = max_answer_tokens
        self._prompts: dict[str, dict[str, Tensor]] = {}
        self._prepare(image_size)
        self.two_sided = bool(module.config.is_encoder_decoder)
        self.positions = self._longest()

    def _prepare(self, image_size: tuple[int, int] | None) -> None:
        """Read off the processor what it makes of pages of ``image_size``, or of the size that it settles on."""
        images = self.processor.inner.image_processor
        self.resample = int(images.resample)
        size = settled_canvas(self._of_picture, images, image_size, family=self.architecture)
        self.picture = Picture.learned(self._of_picture, size, resample=self.resample, family=self.architecture)

    def _longest(self) -> int:
        """Tokens that the network has places for."""
        return int(self.module.config.get_text_config().max_position_embeddings)

    @property
    def token_table(self) -> str:
        """The name of the table of tokens among the network's parameters."""
        table = self.module.get_input_embeddings().weight
        return next(str(name) for name, parameter in self.module.named_parameters() if parameter is table)

    @property
    def attention_config(self) -> Any:
        """The configuration that names the kernel of the language model's attention."""
        return self.module.config.get_text_config()

    def tokens_moved(self, example: Encoded) -> set[int]:
        """Ids whose rows of that table an example looks up and moves.

        A picture's placeholders are replaced before the network reads them, and nothing follows the last token.
        """
        tensors = example.tensors
        read = tensors["input_ids"].tolist()
        moved = {*read, *tensors["decoder_input_ids"].tolist()} if self.two_sided else set(read[:-1])
        return moved - {int(self.module.config.image_token_id)}

    def tokens_answered(self, example: Encoded) -> set[int]:
        """Ids that the decoder of a model of two sides reads, which begins with a token of its own."""
        said = example.tensors["labels"]
        return {int(self.module.config.decoder_start_token_id), *said[said != IGNORED][:-1].tolist()}

    @property
    def image_size(self) -> tuple[int, int]:
        return self.picture.size

    def fit(self, page: Page) -> Page:
        """Stretch to the model's size, with the processor's own filter."""
        return fit_page(page, self.image_size, keep_aspect=False, resample=self.resample)

    def _of_picture(self, image: Image) -> dict[str, Tensor]:
        """The processor's inputs that hold the picture and what is said about it."""
        made = self.processor.read(image, "?")
        ids = made["input_ids"].shape
        return {name: value for name, value in made.items() if value.is_floating_point() or value.shape != ids}

    def _prompt(self, question: str) -> dict[str, Tensor]:
        """Ids and types (T,) of a question about a page, with the picture's places; the last ones are kept."""
        if question not in self._prompts:
            if len(self._prompts) == KEPT:
                self._prompts.clear()
            self._prompts[question] = self._read_prompt(question)
        return dict(self._prompts[question])

    def _read_prompt(self, question: str) -> dict[str, Tensor]:
        made = self.processor.read(blank(self.image_size), question)
        ids = made["input_ids"]
        dropped = ("attention_mask", "labels")
        return {
            name: value[0]
            for name, value in made.items()
            if value.shape == ids.shape and name not in dropped and not value.is_floating_point()
        }

    def encode(self, page: Page, question: Question) -> Encoded:
        prompt = self._prompt(question.text)
        asked = prompt.pop("input_ids")
        answer = torch.tensor(self.processor.answer_ids(question.text, question.answers[0] if question.answers else ""))
        head, tail = common(asked, self._prompt("")["input_ids"])
        together = max(len(asked), len(answer)) if self.two_sided else len(asked) + len(answer)
        if together > self.positions:
            raise ModelError(
                f"question {question.text[:40]!r}, the page and the answer take {together} tokens, but {self.name} has "
                f"{self.positions} positions. Shorten the question, or give a smaller --image-size."
            )
        return self._encoded(asked, answer, torch.tensor([head, len(asked) - tail]), prompt)

    def _encoded(self, asked: Tensor, answer: Tensor, at: Tensor, types: Mapping[str, Tensor]) -> Encoded:
        """A prompt's tokens, an answer's, between which places of the prompt the question is, and the prompt's types.

        A decoder reads both as one row; of two sides, the encoder reads the prompt and the decoder what is said.
        """
        if self.two_sided:
            start = torch.tensor([int(self.module.config.get_text_config().decoder_start_token_id)])
            tensors = {"input_ids": asked, "decoder_input_ids": torch.cat([start, answer[:-1]]), "labels": answer}
        else:
            tensors = {
                "input_ids": torch.cat([asked, answer]),
                "labels": torch.cat([torch.full_like(asked, IGNORED), answer]),
                **self._answered(types, len(answer)),
            }
        tensors |= {"prompt_ids": asked, "question_at": at}
        tokens = self.tokenizer.convert_ids_to_tokens([*asked.tolist(), *answer.tolist()])
        return Encoded(tensors, tuple(tokens))

    def _answered(self, types: Mapping[str, Tensor], more: int) -> dict[str, Tensor]:
        """Types (T,) of what is read, with those of so many tokens of an answer behind them."""
        of_answer = ANSWER_TYPES.get(self.architecture, {})
        return {name: F.pad(row, (0, more), value=of_answer.get(name, 0)) for name, row in types.items()}

    def told(self, question: Tensor, answer: Tensor) -> Encoded:
        """The example whose question and answer, without what ends it, have these tokens."""
        prompt, other = self._prompt(""), self._prompt("?")
        asked = prompt.pop("input_ids")
        head, tail = common(other["input_ids"], asked)
        end = torch.tensor(self.processor.answer_ids("", "")[-1:])
        ids = torch.cat([asked[:head], question, asked[len(asked) - tail :]])
        types = {
            name: torch.cat([row[:head], torch.zeros_like(question), row[len(row) - tail :]])
            for name, row in prompt.items()
        }
        return self._encoded(ids, torch.cat([answer, end]), torch.tensor([head, len(ids) - tail]), types)

    def forward_to(self, pixels: Tensor, ids: Tensor, said: Tensor, cache: Any = None) -> None:
        """Run the network on one page (1, 3, H, W), a prompt's first tokens and what is ``said`` behind them, from the
        beginning on, for what its layers read; ``cache`` is filled where one is given."""
        rows = {
            name: F.pad(row, (0, max(0, len(ids) - len(row))))[: len(ids)] for name, row in self._prompt("").items()
        }
        fed = {**self._answered(rows, len(said)), "input_ids": torch.cat([ids, said])}
        fed = {name: row[None].to(pixels.device) for name, row in fed.items()}
        fed["attention_mask"] = torch.ones_like(fed["input_ids"])
        self.module(**fed, **self.picture(pixels), past_key_values=cache, use_cache=cache is not None)

    def scramble(self, example: Encoded, *, question: bool, answer: bool, generator: torch.Generator) -> Encoded:
        """The input with random tokens of equal number for what an adversary does not know (special ones stay)."""
        asked, labels, at = (example.tensors[name] for name in ("prompt_ids", "labels", "question_at"))
        place = torch.arange(len(asked))
        said = labels[labels != IGNORED]
        if question:
            asked = redrawn(asked, (place >= at[0]) & (place < at[1]), self.tokenizer, generator)
        if answer:
            said = redrawn(said, torch.ones_like(said, dtype=torch.bool), self.tokenizer, generator)
        types = {name: example.tensors[name][: len(asked)] for name in self.types_of(example)}
        return self._encoded(asked, said, at, types)

    def transcript(self, example: Encoded) -> Transcript:
        first, last = example.tensors["question_at"].tolist()
        labels = example.tensors["labels"]
        question = spoken(self.tokenizer, example.tensors["prompt_ids"][first:last])
        return Transcript(question, spoken(self.tokenizer, labels[labels != IGNORED]))

    def labelled(self, example: Encoded, *, whole: bool) -> Encoded:
        """``example`` with what the chat template writes behind an answer's last token, read and labelled too; with
        ``whole`` all that is read is labelled, but for the first token, which nothing precedes.

        The encoder of a model of two sides reads the prompt, so that ``whole`` adds nothing to it.
        """
        tensors, tail = dict(example.tensors), torch.tensor(self.processor.behind(), dtype=torch.long)
        if self.two_sided:
            last = tensors["labels"][-1:] if len(tail) else tail
            tensors["decoder_input_ids"] = torch.cat([tensors["decoder_input_ids"], last, tail[:-1]])
        else:
            tensors["input_ids"] = torch.cat([tensors["input_ids"], tail])
            tensors |= self._answered({name: tensors[name] for name in self.types_of(example)}, len(tail))
        tensors["labels"] = torch.cat([tensors["labels"], tail])
        if whole and not self.two_sided:
            tensors["labels"] = torch.cat([torch.tensor([IGNORED]), tensors["input_ids"][1:]])
        return replace(example, tensors=tensors)

    def normalise(self, pixels: Tensor) -> Tensor:
        factor, offset = self.picture.channels
        return pixels * factor.to(pixels)[:, None, None] + offset.to(pixels)[:, None, None]

    def loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        if torch.is_grad_enabled():
            return self._loss(pixels, inputs, pages)
        with derived_once(self):
            if pages is not None and one_prompt(self, inputs, pages):
                return losses_of_values(self, pixels[pages[0], None], inputs)
            return self._loss(pixels, inputs, pages)

    def _loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None) -> Tensor:
        pixels = asked_about(pixels, pages)
        rows, device = [e.tensors for e in inputs], pixels.device
        padding = int(self.tokenizer.pad_token_id)
        read = ["input_ids", *(["decoder_input_ids"] if self.two_sided else [])]
        fed = {name: pad([row[name] for row in rows], padding, device) for name in read}
        fed |= {name: pad([row[name] for row in rows], 0, device) for name in self.types_of(inputs[0])}
        fed["attention_mask"] = pad([torch.ones_like(row["input_ids"]) for row in rows], 0, device)
        labels = pad([row["labels"] for row in rows], IGNORED, device)
        logits = self.module(**fed, **self.picture(pixels), use_cache=False).logits
        if not self.two_sided:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return mean_per_example(logits, labels)

    @staticmethod
    def types_of(example: Encoded) -> list[str]:
        """Names of the inputs, one number a token, beside ids."""
        return [name for name in example.tensors if name.endswith("token_type_ids")]

    @torch.no_grad()
    def answer(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> list[Answer]:
        """Greedy decoding; confidence is the product of the chosen tokens' probabilities."""
        owners = range(len(inputs)) if pages is None else pages
        return [self._answer(pixels[o : o + 1], example) for o, example in zip(owners, inputs, strict=True)]

    def _answer(self, pixels: Tensor, example: Encoded) -> Answer:
        from transformers import GenerationConfig

        asked = self._asked(example, pixels.device)
        read = 0 if self.two_sided else asked["input_ids"].shape[1]
        stops = sorted({int(self.tokenizer.eos_token_id), self.processor.answer_ids("", "")[-1]})
        settings = GenerationConfig(
            max_new_tokens=min(self.max_answer_tokens, self.positions - read), do_sample=False, num_beams=1,
            eos_token_id=stops, pad_token_id=self.tokenizer.pad_token_id, repetition_penalty=1.0,
            return_dict_in_generate=True, output_logits=True,
            decoder_start_token_id=getattr(self.module.config.get_text_config(), "decoder_start_token_id", None),
        )  # fmt: skip
        with derived_once(self):
            out = self.module.generate(**asked, **self._shown(pixels, example), generation_config=settings)
        said = out.sequences[0, -len(out.logits) :]
        shares = torch.stack([row[0].double().softmax(-1)[token] for row, token in zip(out.logits, said, strict=True)])
        return Answer(spoken(self.tokenizer, said), float(shares.prod()))

    def _asked(self, example: Encoded, device: torch.device) -> dict[str, Tensor]:
        """The network's inputs of a question alone, and all that is beside the picture."""
        ids = example.tensors["prompt_ids"][None].to(device)
        types = {name: example.tensors[name][None, : ids.shape[1]].to(device) for name in self.types_of(example)}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **types}

    def _shown(self, pixels: Tensor, example: Encoded) -> dict[str, Tensor]:
        """The network's inputs of one page (1, 3, H, W) that an example asks about."""
        return self.picture(pixels)

    def stage(self, parameter_name: str) -> Stage:
        parts = parameter_name.split(".")
        language = next((parts.index(name) for name in LANGUAGE if name in parts), None)
        if language is None and parts[0] != "lm_head":
            return "vision"
        if any(name in parts for name in TEXT):
            return "text"
        return "fusion" if "layers" in parts else "output"

    def save(self, directory: str) -> None:
        save_network(self.module, directory)
        self.processor.inner.save_pretrained(directory)

    @classmethod
    def load(
        cls, source: str, *, name: str, device: torch.device, revision: str | None, image_size: tuple[int, int] | None,
        seed: int = 0,
    ) -> VisionLanguage:  # fmt: skip
        """Load from a directory or hub name, ready for double backward (eager attention).

        ``image_size`` (width, height) must be one that the processor leaves as it is. ``seed`` draws nothing: a file
        that lacks weights is refused.
        """
        import transformers

        from docleak.models.fast import quicken

        module = pretrained(getattr(transformers, cls.network), source, revision=revision, allow_pickle=True)
        processor = Processor.load(source, str(module.config.model_type), revision)
        return cls(quicken(module.to(device).eval()), processor, image_size=image_size, name=name)
