"""A checkpoint's own processor: what it makes of one page and one question, and of the answer behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import PIL.Image
from torch import Tensor

from docleak.documents.page import Image
from docleak.errors import ModelError
from docleak.models.files import tokenizer_of

#: Families whose published files have no chat template: how they are asked, and answer, as their fine-tunings word it.
PROMPTS = {
    "paligemma": ("{image}answer en {question}", "{answer}{eos}"),
    "florence2": ("{question}", "{bos}{answer}{eos}"),
    "udop": ("Question answering. {question}", "{answer}{eos}"),
    "pix2struct": ("{question}", "{answer}{eos}"),
    "got_ocr2": (
        "<|im_start|>system\nYou should follow the instructions carefully and explain your answers in detail.<|im_end|>"
        "<|im_start|>user\n<img>{image}</img>\n{question}<|im_end|><|im_start|>assistant\n",
        "{answer}<|im_end|>",
    ),
}
#: SmolVLM's processor asks for a package that only spells the lengths of videos; Idefics3's does the same to pictures.
#: Of GLM-OCR the library's table of processors says nothing; GLM-4.6V's makes the inputs that its network takes.
READ_AS = {"smolvlm": "Idefics3Processor", "glm_ocr": "Glm46VProcessor"}
#: The type of an answer's tokens, by the name of that input; elsewhere 0, which is that of text.
ANSWER_TYPES = {"paligemma": {"token_type_ids": 1}}


class Processor:
    """The processor of a vision-language model without its part for videos, which needs torchvision.

    Pictures are resized by Pillow (``backend="pil"``), whatever else is installed. ``source`` is where it was read.
    """

    def __init__(self, inner: Any, family: str, source: str = "") -> None:
        self.inner = inner
        self.source = source
        self.prompt: str | None = None
        self.said = "{answer}{eos}"
        if _template(inner) is None and family in PROMPTS:
            self.prompt, self.said = PROMPTS[family]
        if _template(inner) is None and self.prompt is None:
            raise ModelError(
                f"this {family} has no chat template, and docleak knows no prompt of that family. Put the "
                "chat_template.jinja that it was trained with beside its config.json."
            )

    @classmethod
    def load(cls, source: str, family: str, revision: str | None) -> Processor:
        """Read the processor of a directory or hub model of that family (``model_type``)."""
        import transformers as t

        version = {"revision": revision or "main"}
        images = t.AutoImageProcessor.from_pretrained(source, backend="pil", **version)
        kind = still(family)
        values, _ = kind.get_processor_dict(source, **version)
        return cls(assembled(kind, images, tokenizer_of(source, revision=revision), values), family, source)

    @property
    def tokenizer(self) -> Any:
        """The text's tokenizer."""
        return self.inner.tokenizer

    def read(self, image: Image, question: str) -> dict[str, Tensor]:
        """All that the processor makes of a page (H, W, 3) uint8 and a question: ids, types, pictures."""
        picture = PIL.Image.fromarray(image)
        if self.prompt is None:
            text = self.inner.apply_chat_template(_turns(question), add_generation_prompt=True)
        else:
            text = self.prompt.format(image=self.inner.image_token, question=question)
        begun = str(self.tokenizer.bos_token or "\0")
        options = {"add_special_tokens": False} if text.startswith(begun) else {}  # the template has begun the text
        return dict(self.inner(images=[picture], text=[text], return_tensors="pt", **options))

    def answer_ids(self, question: str, answer: str) -> list[int]:
        """The tokens of an answer and of what ends it: by the template, or the end of text where there is none."""
        if (said := self._said(question, answer)) is not None:
            return self._ids(said.rstrip("\n"))
        marks = {"bos": self.tokenizer.bos_token, "eos": self.tokenizer.eos_token}
        return self._ids(self.said.format(answer=answer, **marks))

    def behind(self) -> list[int]:
        """The tokens that the template writes behind an answer's last one: a line break, or none."""
        said = self._said("?", "0") or ""
        return self._ids(said)[len(self._ids(said.rstrip("\n"))) :]

    def _said(self, question: str, answer: str) -> str | None:
        """An answer and all that the template writes behind it; None where it does not write it so."""
        if self.prompt is not None:
            return None
        before = self.inner.apply_chat_template(_turns(question), add_generation_prompt=True)
        turns = [*_turns(question), {"role": "assistant", "content": [{"type": "text", "text": answer}]}]
        whole = self.inner.apply_chat_template(turns)
        said = str(whole).removeprefix(str(before))
        return said if said != whole and answer in said else None

    def _ids(self, text: str) -> list[int]:
        asked = "text_target" if hasattr(self.tokenizer, "call_boxes") else "text"  # UDOP's: text has boxes
        return [int(token) for token in self.tokenizer(**{asked: text}, add_special_tokens=False)["input_ids"]]


def still(family: str) -> Any:
    """The class of transformers that processes a family's text and pictures, without its part for videos."""
    import transformers as t
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    named = str(PROCESSOR_MAPPING_NAMES.get(family) or "")
    kind = getattr(t, READ_AS.get(family, named), None)
    if kind is None:
        raise ModelError(f"transformers has no processor of a {family}, so its pictures cannot be prepared here.")
    parts = [part for part in kind.get_attributes() if "video" not in part]
    return type(named or kind.__name__, (kind,), {"get_attributes": classmethod(lambda cls: parts)})


def assembled(kind: Any, images: Any, tokenizer: Any, values: Mapping[str, Any]) -> Any:
    """A processor of a class that ``still`` gives, from its parts and its other settings."""
    given = {"image_processor": images, "tokenizer": tokenizer}
    arguments = [given.get(part) for part in kind.__base__.get_attributes()]
    return kind.from_args_and_dict(arguments, dict(values))


def _turns(question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]


def _template(inner: Any) -> Any:
    return getattr(inner, "chat_template", None) or getattr(inner.tokenizer, "chat_template", None)


def blank(size: tuple[int, int], level: int = 255) -> Image:
    """A grey page of ``size`` (width, height)."""
    return np.full((size[1], size[0], 3), level, dtype=np.uint8)


def common(first: Tensor, second: Tensor) -> tuple[int, int]:
    """How many tokens two rows share at the beginning, and, of what is left of both, at the end."""
    length = min(len(first), len(second))
    same = (first[:length] == second[:length]).int()
    head = int(same.cumprod(0).sum())
    left = length - head
    tail = int((first.flip(0)[:left] == second.flip(0)[:left]).int().cumprod(0).sum()) if left else 0
    return head, tail
