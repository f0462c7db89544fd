"""Whether to train a model that a server sends: its signs held against limits, with a reason for every refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from docleak.errors import PrivacyError
from docleak.files import private_folder, write_atomically
from docleak.training.guard import signs
from docleak.training.guard.signs import Sign, Weights

#: What a refusal says of a sign: with its value, its limit and its tensor.
WORDS = {
    "flat": "{value:.0%} of {where} is two directions (at most {limit:.0%}): its rows are bins of one measurement",
    "loud": "the rows of {where} have length {value:.3g} (at most {limit:g})",
    "silent": "all zeros, or next to it, in {value:.0f} of its tensors, first {where}: what they would pass on is "
    "silenced",
    "infinite": "numbers that are not finite in {value:.0f} of its tensors, first {where}",
    "leap": "{where} moved by {value:.3g} of its own size, or the usual one if larger, since the last model (at most "
    "{limit:g})",
    "bare": "{value:.0f} different inputs of {where} would come back as they are (at most {limit:g})",
}
#: The same of a sign that came out as no number.
UNTOLD = "the sign {name!r} could not be told{where}: what it is computed from overflows, or holds no numbers"
#: In a guard's folder: the model that it was last asked to train.
LAST = "last.safetensors"


@dataclass(frozen=True)
class Limits:
    """The most of each sign that is let through. docs/results/guard.md says what honest trainings show."""

    flat: float = 0.9
    loud: float = 100.0
    silent: float = 0
    infinite: float = 0
    leap: float = 0.9
    bare: float = 10


@dataclass(frozen=True)
class Opinion:
    """What was seen of a model, and the ``reasons`` not to train it; none: nothing speaks against it that is looked
    for here."""

    signs: tuple[Sign, ...]
    reasons: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether there is a reason."""
        return bool(self.reasons)

    def require(self) -> None:
        """PrivacyError with all reasons, if there are any."""
        if self.reasons:
            raise PrivacyError(
                "the guard refuses to train the model that was sent: " + "; ".join(self.reasons) + ". No gradient "
                "has left. Ask whoever runs the server why."
            )

    def to_json(self) -> dict[str, Any]:
        """Plain values; None for a sign that came out as no number."""
        return {
            "refused": self.refused, "reasons": list(self.reasons),
            "signs": [{"sign": one.name, "value": one.value if math.isfinite(one.value) else None, "where": one.where}
                      for one in self.signs],
        }  # fmt: skip


def inspect(
    asked: Weights, last: Weights | None = None, *, module: nn.Module | None = None,
    loss: Callable[[], Tensor] | None = None, limits: Limits | None = None,
) -> Opinion:  # fmt: skip
    """The opinion on ``asked``, beside the ``last`` model where there is one.

    With ``module``, which holds ``asked``, and its ``loss`` on a few of the silo's own examples, also on what a
    gradient would show. Without ``last`` no change can be seen, and without a ``loss`` nothing that only data tell.
    """
    limits = limits or Limits()
    evidence = signs.of_weights(asked)
    if last is not None:
        moved = {sign.name: sign for sign in signs.since(asked, last)}
        evidence = [moved.pop(sign.name, sign) for sign in evidence if sign.name != "loud"] + list(moved.values())
    if module is not None and loss is not None:
        evidence.append(signs.of_gradient(module, loss))
    reasons = [] if last is None else [f"the model is built otherwise: {one}" for one in signs.structure(asked, last)]
    for sign in evidence:
        limit = getattr(limits, sign.name)
        if math.isnan(sign.value):
            reasons.append(UNTOLD.format(name=sign.name, where=f" of {sign.where}" if sign.where else ""))
        elif sign.value > limit:
            reasons.append(WORDS[sign.name].format(value=sign.value, where=sign.where, limit=limit))
    return Opinion(tuple(evidence), tuple(reasons))


@dataclass
class Guard:
    """A guard that remembers the model it let through last, in ``folder`` or, without one, as long as it lives.

    A silo has one for each training. A refused model is not remembered.
    """

    folder: Path | None = None
    limits: Limits = field(default_factory=Limits)
    _last: dict[str, np.ndarray] | None = None

    @property
    def last(self) -> Mapping[str, np.ndarray] | None:
        """The model that was let through last; PrivacyError where its file is damaged."""
        if self._last is None and self.folder is not None and (self.folder / LAST).is_file():
            self._last = _loaded(self.folder / LAST)
        return self._last

    def begin(self, start: Weights) -> None:
        """Take ``start``, a public checkpoint, for the last model where there is none."""
        if self.last is None:
            self._remember(start)

    def check(
        self, asked: Weights, *, module: nn.Module | None = None, loss: Callable[[], Tensor] | None = None
    ) -> Opinion:
        """``inspect`` beside the last model, and remember this one unless it is refused."""
        opinion = inspect(asked, self.last, module=module, loss=loss, limits=self.limits)
        if not opinion.refused:
            self._remember(asked)
        return opinion

    def _remember(self, asked: Weights) -> None:
        self._last = {name: _array(value) for name, value in asked.items()}
        if self.folder is not None:
            from safetensors.numpy import save

            private_folder(self.folder)
            write_atomically(self.folder / LAST, save(self._last))


def _array(value: Tensor | np.ndarray) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.detach().to(torch.float32).cpu().numpy().copy()
    return np.array(value, dtype=np.float32)


def _loaded(file: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(file))
    except (OSError, SafetensorError) as fault:
        raise PrivacyError(
            f"{file} cannot be read ({fault}); without the last model no change can be seen. Put it back, or take it "
            "away to begin anew."
        ) from fault
