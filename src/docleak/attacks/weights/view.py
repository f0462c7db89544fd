"""What an adversary has who reads scrubbed fields back: published weights, one scrubbed page, public data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from docleak.errors import AttackError
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.tokens import TokenPage


@dataclass(frozen=True, eq=False)
class WeightsView:
    """The target's weights, and one page of its training with one field scrubbed (Dentan et al., 2024, section 3.1).

    ``page`` holds [MASK] at the field's ``positions`` (their number is known), a white patch in the picture, and the
    page's labels, or questions with the places of their answers, which are public. With ``answers_only`` the target is
    served and not published: the adversary may ask it anything and is told its likeliest answer, without any
    confidence. Raises AttackError if a position still shows a token.
    """

    target: EncoderModel
    page: TokenPage
    positions: tuple[int, ...]
    answers_only: bool = False

    def __post_init__(self) -> None:
        there = self.page.ids[list(self.positions)].tolist() if self.positions else []
        mask = self.target.tokenizer.mask_token_id
        if not there or any(token != mask for token in there):
            shown = sum(token != mask for token in there)
            raise AttackError(
                f"page {self.page.name!r}: {shown} of the field's {len(there)} tokens are not scrubbed. Expected a "
                "field of one token or more, all [MASK]; use models.encoders.scrubbing.scrub."
            )
        if self.target.task != "mlm" and not (self.page.labels or self.page.questions):
            raise AttackError(
                f"page {self.page.name!r} has no labels, which the loss of a model trained for {self.target.task} "
                "needs. Encode it with the target."
            )

    @property
    def text(self) -> str:
        """The threat model in a sentence."""
        picture = ", its picture with a white patch" if self.target.bimodal else ""
        labels = "; the page's labels" if self.page.labels else ""
        public = "; the page's questions and where their answers stand" if self.page.questions else labels
        given = "the likeliest answers, without confidences," if self.answers_only else "weights"
        return (
            f"{given} of a model trained for {self.target.task}; a page in tokens and boxes{picture}, one "
            f"field masked but for its number of tokens{public}"
        )


@lru_cache(maxsize=8)
def _same_pieces(ours: Any, theirs: Any) -> bool:
    """Of two tokenizers, which nobody changes: they are compared once, and not for each field that is attacked."""
    return bool(ours.get_vocab() == theirs.get_vocab())


@dataclass(frozen=True, eq=False)
class PublicKnowledge:
    """A masked language model trained on public pages like the private ones: the paper's PUB-MLM."""

    model: EncoderModel

    def check(self, view: WeightsView) -> None:
        """AttackError unless it guesses tokens of the target's own vocabulary, and sees what the target sees."""
        ours, theirs = self.model.tokenizer, view.target.tokenizer
        if self.model.task != "mlm":
            raise AttackError(
                f"the public model {self.model.name!r} was trained for {self.model.task}; expected 'mlm'."
            )
        if not _same_pieces(ours, theirs):
            raise AttackError(
                f"the public model has a vocabulary of {len(ours)} pieces, the target one of {len(theirs)}, and they "
                "are not the same: a guess of one means nothing to the other. Train both from the same start."
            )
        if self.model.bimodal and view.page.image is None:
            raise AttackError("the public model is bimodal and the view has no picture; use a unimodal one.")
        if len(view.page) > self.model.max_tokens:
            raise AttackError(
                f"page {view.page.name!r} has {len(view.page)} tokens, the public model takes {self.model.max_tokens}."
            )
