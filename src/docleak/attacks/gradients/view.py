"""What the adversary of a gradient attack is given: a GradientView and Knowledge. Nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from docleak.attacks.gradients.local_steps import ImitatedSteps
from docleak.errors import GradientError
from docleak.models.base import DocumentModel, Encoded, broken_weights, trainable

#: The square of a smaller number lies below float32's normal numbers, which some devices take for zero; of a larger
#: one is infinite.
LEAST_NORM, MOST_NORM = math.sqrt(torch.finfo(torch.float32).tiny), math.sqrt(torch.finfo(torch.float32).max)


@dataclass(frozen=True)
class GradientView:
    """One client's gradient as an honest-but-curious server holds it, with the model it was sent.

    ``gradient`` maps parameter names to float tensors of the parameter's shape, averaged over
    ``batch_size`` examples. ``train_mode`` says whether the client ran with dropout on. ``imitate`` is what a known
    defence does to a gradient (dummy, observed) before it is sent; the adversary does it to its own, differentiably.
    ``noise`` is the known standard deviation of what a defence added to every number. With ``local`` the client took
    those steps, and ``gradient`` is its whole update in the units of a gradient (``Optimiser.as_gradient``).
    ``slack`` is the relative distance (``matching.relative``) that the truth keeps because weights are rounded.
    ``later`` are the same client's gradients of the same batch in later rounds, each with the model of that round.
    """

    model: DocumentModel
    gradient: Mapping[str, Tensor]
    batch_size: int = 1
    train_mode: bool = False
    imitate: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
    noise: float = 0.0
    local: ImitatedSteps | None = None
    slack: float = 0.0
    later: tuple[GradientView, ...] = ()

    def __post_init__(self) -> None:
        check_gradient(self.model, self.gradient)
        unlike = [view for view in self.later if view.batch_size != self.batch_size or view.later]
        if unlike:
            raise GradientError(
                f"{len(unlike)} of {len(self.later)} later rounds have another batch size than {self.batch_size}, or "
                "later rounds of their own; expected one plain view of the same batch per round."
            )

    @property
    def rounds(self) -> tuple[GradientView, ...]:
        """This round and the later ones."""
        return (self, *self.later)

    @property
    def largest(self) -> GradientView:
        """The round with the largest gradient, alone: there the model was least sure of the page."""
        if not self.later:
            return self
        return replace(max(self.rounds, key=lambda view: view.norm), later=())

    @property
    def norm(self) -> float:
        """The gradient's Euclidean norm."""
        return _norm(self.gradient)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.gradient)

    def as_sent(self, dummy: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """A gradient of the adversary's own as the client would have sent it."""
        return dummy if self.imitate is None else self.imitate(dummy, self.gradient)


@dataclass(frozen=True)
class Knowledge:
    """What the adversary knows beside the gradient.

    ``template`` (B, 3, H, W) in [0, 1] are the pixels of the public blank forms; ``private``
    (B, H, W) marks the pixels the template does not tell; ``inputs`` is the text side of the
    model's input. ``question_known``, ``answer_known`` and ``words_known`` say which parts of
    ``inputs`` are the client's own and which the adversary had to make up; with ``text_recovered``
    it read them out of the gradient.
    """

    template: Tensor
    private: Tensor
    inputs: Sequence[Encoded]
    question_known: bool = True
    answer_known: bool = True
    words_known: bool = True
    text_recovered: bool = False

    def __post_init__(self) -> None:
        if self.template.shape[0] != self.private.shape[0] or self.template.shape[2:] != self.private.shape[1:]:
            raise GradientError(
                f"template has shape {tuple(self.template.shape)} and private mask {tuple(self.private.shape)}; "
                "expected (B, 3, H, W) and (B, H, W)."
            )
        if not bool(self.private.any()):
            raise GradientError("no pixel is marked private, so there is nothing to reconstruct. Give the page fields.")

    @property
    def text_known(self) -> bool:
        """Whether ``inputs`` are the client's own: they were granted, or read out of the gradient."""
        return self.text_recovered or (self.question_known and self.answer_known and self.words_known)

    def sentences(self, *, answered: bool = True) -> tuple[str, ...]:
        """The knowledge in plain words, for the report; ``answered`` as long as there was an answer to know."""
        if self.text_recovered:
            return (
                "the blank template of the page, and where its private fields are",
                "nothing of the text: question, answer and words were read out of the gradient first",
            )
        known = "the client's question" if self.question_known else "no question (as many random tokens instead)"
        answer = "its answer" if self.answer_known else "no answer (as many random tokens instead)"
        answer = answer if answered else "no answer (the client trained on none)"
        lines = ["the blank template of the page, and where its private fields are", f"{known} and {answer}"]
        if self.inputs and self.inputs[0].words_seen:
            lines.append(
                "the OCR words and boxes that the model reads beside the picture (taken as known)"
                if self.words_known
                else "no OCR words of the private fields (placeholders instead)"
            )
        return tuple(lines)


def check_gradient(model: DocumentModel, gradient: Mapping[str, Tensor]) -> None:
    """Raise GradientError, listing all faults, if the gradient cannot come from the model."""
    parameters = dict(trainable(model.module))
    faults = list(_faults(model, parameters, gradient))
    if faults:
        shown = "\n  - ".join(faults[:15])
        more = f"\n  ... and {len(faults) - 15} more" if len(faults) > 15 else ""
        raise GradientError(
            f"the gradient does not fit model {model.name!r} ({len(parameters)} trainable tensors):\n"
            f"  - {shown}{more}\n"
            "Expected one finite tensor per named parameter (a tied weight once) with the parameter's shape; "
            "to audit a subset, pass exactly those names."
        )


def _faults(model: DocumentModel, parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor]) -> Iterable[str]:
    if not gradient:
        yield "it is empty"
        return
    if broken := broken_weights(model.module):
        yield broken
        return
    for name in sorted(gradient.keys() - parameters.keys()):
        yield f"{name}: the model has no such trainable parameter"
    for name in sorted(gradient.keys() & parameters.keys()):
        value, expected = gradient[name], tuple(parameters[name].shape)
        if tuple(value.shape) != expected:
            yield f"{name}: shape {tuple(value.shape)}, expected {expected}"
        elif not bool(torch.isfinite(value).all()):
            bad = int((~torch.isfinite(value)).sum())
            yield f"{name}: {bad} of {value.numel()} values are NaN or infinite (mixed precision overflow?)"
    norm = _norm(gradient)
    if norm == 0.0:
        yield "all values are zero: the client trained nothing, or the update was subtracted from itself"
    elif norm < LEAST_NORM:
        yield (
            f"its norm is {norm:.0e}, whose square float32 cannot hold, and docleak compares gradients in float32: the "
            "model is as good as certain of what it was asked, or a defence made it so small. What finer arithmetic "
            "reads of it is not measured here"
        )
    elif MOST_NORM < norm < math.inf:
        yield (
            f"its norm is {norm:.0e}, whose square float32 cannot hold, and docleak compares gradients in float32: "
            "training diverged, or a defence made it so large. What finer arithmetic reads of it is not measured here"
        )


def _norm(gradient: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(v.double().square().nansum()) for v in gradient.values()))


def require_all(model: DocumentModel, gradient: Mapping[str, Tensor], allowed_missing: Iterable[str] = ()) -> None:
    """Raise GradientError if trainable parameters are missing that the caller did not leave out on purpose."""
    missing = sorted({n for n, _ in trainable(model.module)} - gradient.keys() - set(allowed_missing))
    if missing:
        raise GradientError(
            f"the gradient lacks {len(missing)} of the model's parameters, first: {', '.join(missing[:5])}. "
            "Record all named parameters, or audit some stages with --stages."
        )
