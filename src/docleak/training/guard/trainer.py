"""The guard in front of a Trainer of ``transformers``: it looks at the model before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import TrainerCallback

from docleak.training.guard.guard import Guard, Opinion


class GuardCallback(TrainerCallback):  # type: ignore[misc]
    """``Trainer(..., callbacks=[GuardCallback(Guard(folder))])``: ``train`` raises PrivacyError for a refused model.

    ``loss`` (module -> scalar) runs it on a few examples, which the guard then tries a gradient with. ``opinion`` is
    the last one.
    """

    def __init__(self, guard: Guard, loss: Callable[[Any], Tensor] | None = None) -> None:
        self.guard, self.loss = guard, loss
        self.opinion: Opinion | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Look at what is to be trained."""
        asked = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        loss = self.loss
        tried = None if loss is None else (lambda: loss(model))
        self.opinion = self.guard.check(asked, module=None if loss is None else model, loss=tried)
        self.opinion.require()
