"""What the adversary of a pair attack is given: the gradients of both modalities, and what it knows beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from docleak.attacks.gradients.view import GradientView
from docleak.errors import AttackError
from docleak.models.base import DocumentModel, Encoded
from docleak.models.pair.aligner import Aligner
from docleak.models.pair.language import LanguageModel
from docleak.models.pair.model import Modality, PairModel, split_gradient


@dataclass(frozen=True)
class PairView:
    """One client's gradient over named parameters of both networks, averaged over ``batch_size`` pairs.

    ``noise`` is the known standard deviation of what was added to every number, and ``imitate`` what is known to have
    been done to each modality's gradient before (DP-SGD's clipping). Raises GradientError if the gradient cannot be
    split by modality or does not fit the model.
    """

    model: PairModel
    gradient: Mapping[str, Tensor]
    batch_size: int = 1
    noise: float = 0.0
    imitate: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
    parts: Mapping[Modality, Mapping[str, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise AttackError(f"batch size is {self.batch_size}; expected 1 or more pairs.")
        if not self.noise >= 0:
            raise AttackError(f"the noise of the gradient is {self.noise}; expected a standard deviation of 0 or more.")
        object.__setattr__(self, "parts", split_gradient(self.model, self.gradient))
        for modality in self.parts:
            self.side(modality, torch.zeros(self.batch_size, len(self.model.classes), device=self.model.device))

    def side(self, modality: Modality, other_logits: Tensor | None = None) -> GradientView:
        """The gradient of one modality as the single-modal attacks take it.

        Without the word table's: it follows from tokens, not from the embeddings that are looked for; see ``words_in``.
        """
        table = word_table(self.model)
        gradient = {name: value for name, value in self.parts[modality].items() if name != table}
        # The attacks use a model's loss, module and name; a side has these, and no pages to encode.
        model = cast(DocumentModel, self.model.side(modality, other_logits))
        return GradientView(model, gradient, self.batch_size, imitate=self.imitate, noise=self.noise)


@dataclass(frozen=True)
class PairKnowledge:
    """``lengths`` are the texts' numbers of tokens without special ones, longest first (taken as known, as in LAMP).

    ``aligner`` is needed for MMGIA's second stage, ``language`` for LAMP's discrete moves. ``words`` are the token
    ids that may occur, where the gradient of the word table names them; all of the vocabulary otherwise. ``told`` is
    what an evaluator gave besides, for a measurement: no adversary has it.
    """

    lengths: tuple[int, ...]
    aligner: Aligner | None = None
    language: LanguageModel | None = None
    words: Tensor | None = None
    told: str = ""

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise AttackError(f"lengths of texts are {self.lengths}; expected one number of 1 or more per text.")

    def sentences(self) -> tuple[str, ...]:
        """The knowledge in plain words, for the report."""
        words = "which words occur, read out of the gradient of the word table" if self.words is not None else ""
        known = [
            "both networks, the client's gradient of each, and how many pairs it is of",
            "how many tokens each text has",
            words,
            f"a public aligner of pictures and texts ({self.aligner.name})" if self.aligner else "",
            f"a public language model ({self.language.name})" if self.language else "",
            f"{self.told}: this measures what a link could give, and no adversary has it" if self.told else "",
        ]
        return tuple(line for line in known if line)


def word_table(model: PairModel) -> str:
    """The name of the text network's word embeddings among the model's parameters."""
    table = model.table
    return next(name for name, parameter in model.module.named_parameters() if parameter is table)


def words_in(view: PairView) -> Tensor | None:
    """Ids (n,) whose row of the word table has a gradient: the words of the batch. None where the table stays out, or
    every row has one, as under noise."""
    rows = view.parts["text"].get(word_table(view.model))
    if rows is None:
        return None
    moved = rows.ne(0).any(1)
    ids = view.model.plain_ids()
    return None if bool(moved[ids].all()) else ids[moved[ids]]


def inputs_of(labels: Sequence[int], masks: Tensor | None = None) -> list[Encoded]:
    """One Encoded per example: its class, and for texts its mask (B, T)."""
    inputs = []
    for number, label in enumerate(labels):
        tensors = {"label": torch.tensor([label])}
        if masks is not None:
            tensors["mask"] = masks[number]
        inputs.append(Encoded(tensors))
    return inputs
