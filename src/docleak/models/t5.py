"""What VT5 and FeDocVQA's model share: T5 (Raffel et al., 2020) reads question, OCR words and patches, and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from docleak.documents.fit import fit_page
from docleak.documents.page import Page, Question
from docleak.errors import ModelError, refuse, those
from docleak.models.base import (
    IGNORED,
    Answer,
    AnswerLayers,
    Encoded,
    mean_per_example,
    normalised,
    pad,
    require_size,
    spoken,
)
from docleak.models.files import (
    HALF,
    ImageSettings,
    config_from,
    drawn_with,
    fill,
    image_settings,
    pretrained,
    save_module,
    tokenizer_of,
    told_drawn,
    values_of,
    weights_in,
)
from docleak.models.layout_tokens import LayoutTokens, add_layout_tokens, layout_tokens_of
from docleak.models.loading import config_at, split_revision
from docleak.models.plain_words import PlainWords
from docleak.models.stages import Stage
from docleak.models.words_beside import FRAME, QUESTION, WordsBeside

PROMPT = "question: {question}  context: "
#: t5-base's T5Config: 222.9 M parameters.
T5_BASE: dict[str, Any] = {
    "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12,
}  # fmt: skip

#: Parameters with these names come from the checkpoints that a model is joined of; the others are drawn.
GIVEN = ("t5.", "dit.", "patch_embed.")


@dataclass(frozen=True)
class ReaderConfig:
    """What config.json says, beside ``model_type``.

    ``text`` and ``vision`` are the values of the two networks' own configurations; or the directories (relative ones
    start at config.json's) or hub names of pretrained ones (t5-base; dit-base or vit-mae-base). In the second case
    there is no model.safetensors, and the layers that join the two are drawn with ``seed``.
    ``box_scale`` is what a page's width and height are scaled to: 1000, or 1 to reproduce the public VT5 code, in whose
    integer tables boxes in [0, 1] all become 0. ``prompt_box`` is the question's box. ``lowercase`` folds words and
    answers, but not questions. ``finetune_vision`` also trains VT5's DiT.
    """

    text: Mapping[str, Any] | str
    vision: Mapping[str, Any] | str
    image_mean: tuple[float, ...] = HALF
    image_std: tuple[float, ...] = HALF
    prompt: str = PROMPT
    prompt_box: tuple[int, ...] = (0, 0, 1000, 1000)
    box_scale: int = 1000
    positions: int = 1024
    lowercase: bool = True
    max_tokens: int = 512
    max_answer_tokens: int = 20
    finetune_vision: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        boxed = len(self.prompt_box) == 4 and all(0 <= v < self.positions for v in self.prompt_box)
        channels = len(self.image_mean) == len(self.image_std) == 3 and min(self.image_std) > 0
        faults = those(
            (self.prompt.count("{question}") != 1, f"prompt is {self.prompt!r}, expected one {{question}} in it"),
            (not 1 <= self.box_scale < self.positions,
             f"box_scale is {self.box_scale}, expected 1..{self.positions - 1} (below positions)"),
            (not boxed, f"prompt_box is {self.prompt_box}, expected four numbers in 0..{self.positions - 1}"),
            (min(self.max_tokens, self.max_answer_tokens) < 1, "max_tokens and max_answer_tokens must be at least 1"),
            (isinstance(self.text, str) != isinstance(self.vision, str),
             "of text and vision, either both are names of checkpoints or neither is"),
            (not channels, "image_mean and image_std are of three channels, and the latter above 0"),
        )  # fmt: skip
        refuse(ModelError, faults, "the model's config.json cannot be used: ")


def t5_of(text: Mapping[str, Any] | str, *, allow_pickle: bool = False) -> Any:
    """A ``T5ForConditionalGeneration`` from its config's values, or from a directory or hub name."""
    import transformers as t

    if not isinstance(text, str):
        return t.T5ForConditionalGeneration._from_config(t.T5Config(**text), attn_implementation="eager")
    return pretrained(t.T5ForConditionalGeneration, text, allow_pickle=allow_pickle)


class T5Network(nn.Module):
    """A T5 whose encoder takes embedded rows; subclasses say how text, boxes and pixels become one row.

    ``image_size`` is the side of the square picture.
    """

    def __init__(self, t5: Any, image_size: int) -> None:
        super().__init__()
        self.t5 = t5
        self.width = int(t5.config.d_model)
        self.image_size = image_size

    def rows(
        self, pixels: Tensor | None, owners: Sequence[int], ids: Tensor, boxes: Tensor, lengths: Sequence[int]
    ) -> list[Tensor]:
        """Encoder input per example, (L_i, width) each.

        ``pixels`` (P, 3, H, W) are normalised, or None for words alone; ``owners`` (B,) are their rows; ``ids`` (B, T)
        and ``boxes`` (B, T, 4) are padded, of which the first ``lengths`` (B,) count.
        """
        raise NotImplementedError


class T5Reader(WordsBeside):
    """Adapter of a ``T5Network``: the answer is written token by token.

    The encoder reads the question between the two halves of ``config.prompt``, every OCR word (tokenised on its own)
    with its box in 0..``box_scale``, and the end token; what does not fit in ``max_tokens`` is left out from the page's
    end. The loss is the mean cross-entropy over the answer's tokens and the end token. What belongs to the picture
    stands directly behind the text: a batch's padding comes last, so that no example's loss depends on its neighbours
    (in the public code of both papers the patches come behind the padding).
    """

    architecture: str
    drawn = ""
    module: Any
    answer_layers = AnswerLayers.of_t5("t5.decoder")

    def __init__(self, module: T5Network, tokenizer: Any, config: ReaderConfig, *, name: str) -> None:
        self.module = module
        self.tokenizer = tokenizer
        self.config = config
        self.name = name
        self._plain = PlainWords(tokenizer)
        self._pieces: dict[str, list[int]] = {}
        self._layout: LayoutTokens | None = None

    @property
    def image_size(self) -> tuple[int, int]:
        return self.module.image_size, self.module.image_size

    @property
    def box_scale(self) -> int:
        return self.config.box_scale

    def fit(self, page: Page) -> Page:
        """Stretch to the square input."""
        return fit_page(page, self.image_size, keep_aspect=False)

    def ids(self, text: str, *, lowercase: bool = False) -> list[int]:
        """Tokens of a text, word by word, as SentencePiece would split it; never a special one."""
        words = (text.lower() if lowercase else text).split()
        new = [word for word in dict.fromkeys(words) if word not in self._pieces]
        if new:
            self._pieces.update(zip(new, self._plain.ids(new), strict=True))
        return [piece for word in words for piece in self._pieces[word]]

    def words(self, page: Page) -> Iterator[tuple[list[int], list[int]]]:
        """Every word's tokens and its box in 0..``box_scale``."""
        for word in page.words:
            yield self.ids(word.text, lowercase=self.config.lowercase), self.box_of(word, page)

    @property
    def layout_tokens(self) -> LayoutTokens:
        """The vocabulary's tokens for self-pretraining; ModelError if it has none."""
        if self._layout is None:
            self._layout = layout_tokens_of(self.tokenizer, name=self.name)
        return self._layout

    def add_layout_tokens(self, *, generator: torch.Generator, resolution: int | None = None) -> None:
        """Make ready for self-pretraining: new tokens, and rows for them in T5's table; ``save`` keeps both.

        The parameters grow, so server and silos do this alike. See ``layout_tokens.add_layout_tokens``.
        """
        add_layout_tokens(self.tokenizer, self.module.t5, generator=generator, resolution=resolution)
        self._plain, self._layout = PlainWords(self.tokenizer), None

    def encode(self, page: Page, question: Question) -> Encoded:
        before, after = (self.ids(part) for part in self.config.prompt.split("{question}"))
        asked = self.ids(question.text)
        ids = [*before, *asked, *after]
        if len(ids) >= self.config.max_tokens:
            raise ModelError(
                f"question {question.text[:40]!r} takes {len(ids) + 1} tokens, but {self.name} has "
                f"{self.config.max_tokens} for it and the page's words. Shorten the question."
            )
        owners = [FRAME] * len(before) + [QUESTION] * len(asked) + [FRAME] * len(after)
        boxes = [list(self.config.prompt_box)] * len(ids)
        for index, (pieces, box) in enumerate(self.words(page)):
            ids += pieces
            owners += [index] * len(pieces)
            boxes += [box] * len(pieces)
        room = self.config.max_tokens - 1
        ids = [*ids[:room], self.tokenizer.eos_token_id]
        answer = self.ids(question.answers[0], lowercase=self.config.lowercase) if question.answers else []
        tensors = {
            "input_ids": torch.tensor(ids),
            "bbox": torch.tensor([*boxes[:room], [0, 0, 0, 0]]),
            "word_ids": torch.tensor([*owners[:room], FRAME]),
            "labels": torch.tensor([*answer, self.tokenizer.eos_token_id]),
        }
        seen = tuple(sorted({owner for owner in owners[:room] if owner >= 0}))
        return Encoded(tensors, tuple(self.tokenizer.convert_ids_to_tokens(ids)), seen)

    def normalise(self, pixels: Tensor) -> Tensor:
        return normalised(pixels, self.config.image_mean, self.config.image_std)

    def loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        return self._loss(pixels, inputs, range(len(inputs)) if pages is None else pages)

    def text_loss(self, inputs: Sequence[Encoded]) -> Tensor:
        """``loss`` without the picture, which is faster; pretraining may begin with it."""
        return self._loss(None, inputs, range(len(inputs)))

    def _loss(self, pixels: Tensor | None, inputs: Sequence[Encoded], owners: Sequence[int]) -> Tensor:
        encoded, mask = self._encoded(pixels, inputs, owners)
        labels = pad([e.tensors["labels"] for e in inputs], IGNORED, encoded.device)
        first = torch.full_like(labels[:, :1], self.module.t5.config.decoder_start_token_id)
        given = torch.cat([first, labels[:, :-1]], 1).clamp_min(0)  # padded positions carry no label
        out = self.module.t5(encoder_outputs=(encoded,), attention_mask=mask, decoder_input_ids=given, use_cache=False)
        return mean_per_example(out.logits, labels)

    def _encoded(
        self, pixels: Tensor | None, inputs: Sequence[Encoded], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """The encoder's output (B, L, width) and its mask (B, L)."""
        device = next(self.module.parameters()).device
        ids = pad([e.tensors["input_ids"] for e in inputs], self.tokenizer.pad_token_id, device)
        boxes = pad([e.tensors["bbox"] for e in inputs], 0, device)
        lengths = [len(e.tensors["input_ids"]) for e in inputs]
        rows = self.module.rows(None if pixels is None else self.normalise(pixels), owners, ids, boxes, lengths)
        mask = pad([torch.ones(len(row), dtype=torch.long) for row in rows], 0, device)
        embedded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        out = self.module.t5.encoder(inputs_embeds=embedded, attention_mask=mask)
        return out.last_hidden_state, mask

    @torch.no_grad()
    def answer(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> list[Answer]:
        """Greedy decoding, all examples at once; confidence is the product of the tokens' probabilities, end included.

        At most ``max_answer_tokens`` are written. The public code of VT5 leaves the end token out of the product.
        """
        encoded, mask = self._encoded(pixels, inputs, range(len(inputs)) if pages is None else pages)
        config = self.module.t5.config
        token = torch.full((len(inputs), 1), config.decoder_start_token_id, device=encoded.device)
        confidence = torch.ones(len(inputs), device=encoded.device)
        writing = torch.ones(len(inputs), dtype=torch.bool, device=encoded.device)
        written: list[Tensor] = []
        cache: Any = None
        for _ in range(self.config.max_answer_tokens):
            out = self.module.t5(
                encoder_outputs=(encoded,), attention_mask=mask, decoder_input_ids=token, past_key_values=cache,
                use_cache=True,
            )  # fmt: skip
            cache = out.past_key_values
            probability, best = out.logits[:, -1].softmax(-1).max(-1)
            confidence = torch.where(writing, confidence * probability, confidence)
            best = best.where(writing, config.pad_token_id)
            written.append(best)
            writing = writing & (best != config.eos_token_id)
            if not writing.any():
                break
            token = best[:, None]
        ids = torch.stack(written, 1).cpu()
        return [Answer(spoken(self.tokenizer, row), float(c)) for row, c in zip(ids, confidence, strict=True)]

    def stage(self, parameter_name: str) -> Stage:
        """Decoder block 0's self-attention sees the answer alone and counts as text, as does the (tied) vocabulary."""
        if not parameter_name.startswith(("t5.", "spatial.")):
            return "vision"
        if parameter_name.startswith(("t5.lm_head", "t5.decoder.final_layer_norm")):
            return "output"
        early = ("t5.shared", "spatial.", "t5.decoder.block.0.layer.0.")
        return "text" if parameter_name.startswith(early) else "fusion"

    @staticmethod
    def build(config: ReaderConfig, *, allow_pickle: bool = False) -> T5Network:
        """The network: from the checkpoints that ``config`` names (see ``pretrained``), or as the libraries draw it."""
        raise NotImplementedError

    def vision_values(self) -> dict[str, Any]:
        """What ``build`` needs to know about the picture's part."""
        raise NotImplementedError

    def save(self, directory: str) -> None:
        config = replace(self.config, text=values_of(self.module.t5.config), vision=self.vision_values())
        save_module(Path(directory), self.architecture, config, self.module)
        self.tokenizer.save_pretrained(directory)

    @classmethod
    def load(
        cls, source: str, *, name: str, device: torch.device, revision: str | None, image_size: tuple[int, int] | None,
        seed: int = 0,
    ) -> Self:  # fmt: skip
        """Load what ``save`` wrote, or join the two checkpoints that config.json names (eager attention, float32).

        In the second case the layers between the two are drawn with config.json's own seed, not with ``seed``.
        """
        values = config_at(source, revision, source)
        if values.get("model_type") != cls.architecture:
            model = cls.published(values, source, revision, name=name)
        else:
            model = cls._native(config_from(ReaderConfig, values, source), source, revision, name=name)
        model.module.to(device)
        require_size(name, image_size, model.image_size)
        return model

    @classmethod
    def _native(cls, config: ReaderConfig, source: str, revision: str | None, *, name: str) -> Self:
        if isinstance(config.text, str):
            text, vision = (_beside(str(part), Path(source)) for part in (config.text, config.vision))
            return cls.joined(replace(config, text=text, vision=vision), name=name, allow_pickle=True)
        network = cls.built(config)
        fill(network, weights_in(source, revision), source=source)
        tokenizer = tokenizer_of(source, revision=revision, kind="PreTrainedTokenizerFast")
        return cls(network.eval(), tokenizer, config, name=name)

    @classmethod
    def published(cls, values: Mapping[str, Any], source: str, revision: str | None, *, name: str) -> Self:
        """The model from its authors' own files, ``values`` being their config.json. ModelError if there are none."""
        raise ModelError(f"model {source!r} is of type {values.get('model_type')!r}, expected {cls.architecture!r}.")

    @classmethod
    def joined(cls, config: ReaderConfig, *, name: str, allow_pickle: bool = False) -> Self:
        """The model of the two checkpoints that ``config`` names, in evaluation mode.

        Tokenizer, mean and deviation of the pixels are the checkpoints' own.
        """
        network = cls.built(config, allow_pickle=allow_pickle)
        where, revision = split_revision(str(config.vision))
        settings = image_settings(
            where, revision=revision, default=ImageSettings(None, config.image_mean, config.image_std)
        )
        where, revision = split_revision(str(config.text))
        config = replace(config, image_mean=settings.mean, image_std=settings.std)
        model = cls(network.eval(), tokenizer_of(where, revision=revision), config, name=name)
        drawn = [key for key, _ in network.named_parameters() if not key.startswith(GIVEN)]
        model.drawn = told_drawn(name, network, drawn, seed=config.seed)
        return model

    @classmethod
    def built(cls, config: ReaderConfig, *, allow_pickle: bool = False) -> T5Network:
        """``build``, what it draws from the config's seed; the global generator is left as it was."""
        with drawn_with(config.seed):
            return cls.build(config, allow_pickle=allow_pickle)


def _beside(name: str, folder: Path) -> str:
    """A directory that is named as config.json's ``folder`` sees it, as it is from here; other names as they are."""
    return str(folder / name) if (folder / name).is_dir() else name
