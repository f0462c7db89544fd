"""FL-PROVIDER-DP (Tito et al., 2024, Algorithm 1) for token encoders, in one place: there is a single client.

A unit's own training is one step of gradient descent over all of its pages, with rate 1, so that what is clipped is its
gradient; the server then adapts the step (FedAdam), which costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from docleak.errors import DocumentError, ModelError, PrivacyError
from docleak.models.base import trainable
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import all_asked
from docleak.models.encoders.tokens import TokenPage
from docleak.privacy.budget import noise_for
from docleak.privacy.mechanism import Mechanism, Unit, choice
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.extraction.fit import Epoch, Fitted, masked, validate
from docleak.training.federated.fedopt import ClientUpdate, FedOpt, ServerState
from docleak.training.private.clipping import LeftOutError
from docleak.training.private.rounds import noisy_difference, server_step

CENTRE = "centre"


@dataclass(frozen=True)
class PrivateFit:
    """What a private training claims, and how it is made: each ``unit`` (document or provider) is drawn with ``rate``.

    ``learning_rate`` is the server's. ``vectors_only`` trains biases, scales of norms and the head, and freezes all
    other matrices: the fewer numbers get noise, the more of the signal is left (Bu et al., 2022, train biases alone).
    ``units`` is about how many there are: public, and not counted, since M follows from it.
    """

    epsilon: float = 8.0
    delta: float = 1e-3
    unit: str = "document"
    rounds: int = 200
    rate: float = 0.5
    clip_norm: float = 1.0
    learning_rate: float = 1e-3
    vectors_only: bool = True
    units: int = 50

    def __post_init__(self) -> None:
        if self.kind not in (Unit.DOCUMENT, Unit.PROVIDER):
            raise PrivacyError(f"unit is {self.unit!r}; expected document or provider.")
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise PrivacyError(f"epsilon is {self.epsilon}; expected a finite number above 0.")
        if self.units < 1:
            raise PrivacyError(f"units is {self.units}; expected about how many {self.unit}s there are, at least 1.")
        self.mechanism(), self.server()  # refuse what they refuse

    @property
    def kind(self) -> Unit:
        """The unit as the accounting takes it."""
        return choice(Unit, self.unit, what="unit")

    def mechanism(self) -> Mechanism:
        """The mechanism before its noise is known."""
        return Mechanism(1.0, self.rounds, self.rate, unit=self.kind)

    def server(self) -> FedOpt:
        """What turns noisy sums into steps."""
        return FedOpt("fedadam", self.learning_rate)

    def plan(self) -> DpPlan:
        """The least noise for epsilon; the denominator M is what a round draws on average of ``units``.

        PrivacyError where no noise is enough.
        """
        guarantee = noise_for(self.mechanism(), self.epsilon, self.delta)
        return DpPlan(guarantee.mechanism, self.clip_norm, max(1, round(self.rate * self.units)), self.delta)


def fit_privately(
    model: EncoderModel, units: Mapping[str, Sequence[TokenPage]], validation: Sequence[TokenPage], config: PrivateFit,
    plan: DpPlan, *, validate_every: int, batch_size: int, seed: int, randomness: Randomness,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Fitted:  # fmt: skip
    """Train ``model`` in place on the pages of each unit; epochs of the result are rounds.

    The validation pages are nobody's whom the plan protects, and choosing a round by them costs nothing. ``train_loss``
    is the mean loss of the drawn units, which is private (not a number where none was drawn). ``seed`` is that of the
    validation's masks; all else is drawn from ``randomness``. There is no dropout. Raises DocumentError for an empty
    part, PrivacyError for a gradient that is not finite.
    """
    if not validation or not units or not all(units.values()):
        raise DocumentError(
            f"{len(units)} units ({sum(not pages for pages in units.values())} without pages) to train on and "
            f"{len(validation)} pages to validate with; expected one of each or more."
        )
    for name, parameter in model.module.named_parameters():
        parameter.requires_grad_(parameter.ndim == 1 or name.startswith("head.") or not config.vectors_only)
    fitted, server = Fitted(), config.server()
    named = dict(trainable(model.module))
    state = ServerState.of({name: p.detach().cpu().numpy().copy() for name, p in named.items()})
    model.module.eval()
    for number in range(1, plan.mechanism.rounds + 1):
        losses: list[float] = []
        drawn = plan.draw_units(units, randomness.coins)
        runs = [partial(_one_step, model, units[name], losses, rng) for name, rng in drawn.items()]
        delta, _ = noisy_difference(model.module, state.weights(), runs, plan, clients_drawn=1, randomness=randomness)
        state = server_step(
            state, [ClientUpdate(CENTRE, 1, delta)], plan, server, clients_drawn=1, randomness=randomness
        )
        with torch.no_grad():
            for name, value in state.weights().items():
                named[name].copy_(torch.from_numpy(value))
        if number % validate_every == 0 or number == plan.mechanism.rounds:
            measured = validate(model, validation, batch_size=batch_size, seed=seed)
            if not math.isfinite(measured.loss):
                raise ModelError(f"the loss after round {number} is {measured.loss}. Lower the learning rate.")
            epoch = Epoch(number, float(np.mean(losses or [math.nan])), measured)
            fitted.note(epoch, model)
            on_epoch(epoch)
    model.module.requires_grad_(True)
    return fitted


def _one_step(model: EncoderModel, pages: Sequence[TokenPage], losses: list[float], rng: np.random.Generator) -> None:
    """Descend the mean loss of a unit's pages once, with rate 1; masks are drawn from ``rng``.

    LeftOutError for whatever its pages make go wrong: a training that ends because of one unit would tell of it.
    """
    named = [p for _, p in trainable(model.module)]
    try:
        masks = torch.Generator().manual_seed(int(rng.integers(2**62)))
        ready = masked(model, pages, masks) if model.task == "mlm" else all_asked(pages)
        loss = model.loss(model.collate(ready)).mean()
        gradients = torch.autograd.grad(loss, named, allow_unused=True)
    except Exception as error:  # any, as in private.rounds
        raise LeftOutError from error
    with torch.no_grad():
        for parameter, gradient in zip(named, gradients, strict=True):
            if gradient is not None:
                parameter.sub_(gradient)
    losses.append(float(loss.detach()))
