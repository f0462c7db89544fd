"""DP-SGD (Abadi et al., 2016) per record, the usual comparison: Opacus' optimiser over single questions and answers.

It protects one question with its answer. A provider with n of them is protected n times less, and more than n times:
``record_claim`` says what is left. Provider-level privacy is ``training.private.rounds``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from docleak.documents.coins import coin, told_apart
from docleak.documents.names import provider_key
from docleak.documents.page import Page
from docleak.documents.pages import document_names, page_names, provider_names
from docleak.errors import FederationError, MissingExtraError, PrivacyError
from docleak.models.base import DocumentModel, trainable
from docleak.models.device import seed_torch
from docleak.privacy.accounting import Guarantee, epsilon_of_group, guarantee, rounded_up
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.privacy.second import Accountant
from docleak.training.federated.local import batch_loss
from docleak.training.objectives.objective import Example
from docleak.training.objectives.table import objective_of

OnStep = Callable[[int], None]


@dataclass(frozen=True)
class RecordOptimiser:
    """AdamW over noisy gradients; a step is a round of the plan. ``dropout``: as the model's configuration says."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    dropout: bool = False


@dataclass(frozen=True)
class RecordTraining:
    """What a training cost: ``claim`` by our accounting of the plan, ``counted`` by Opacus' of the steps it took (PRV).

    ``most_records`` is the greatest number of questions of one provider; it is private, as ``mean_loss`` is.
    """

    claim: Guarantee
    counted: Guarantee
    records: int
    most_records: int
    mean_loss: float


def train_by_record(
    model: DocumentModel,
    pages: Sequence[Page],
    plan: DpPlan,
    optimiser: RecordOptimiser,
    *,
    randomness: Randomness,
    on_step: OnStep | None = None,
) -> RecordTraining:
    """Train ``model`` in place: ``plan.mechanism.rounds`` steps, each over the questions its coins draw.

    Every question's gradient over all trainable parameters together (a tied weight once) is clipped to C; the sum gets
    noise and is divided by the public constant M. Its coin and dropout follow from the step's secret and the question
    itself (``record_names``), so that no question changes what another one does; one whose gradient cannot be made, or
    is not finite, contributes nothing. Gradients are made by a backward pass per question: Opacus' hooks
    count T5's table of relative positions once per query instead of once per example. Raises PrivacyError unless the
    unit is the record.
    """
    objective = objective_of("qa")
    examples = objective.examples(pages)
    names = record_names(pages, examples)
    _check(plan)
    named = [p for _, p in trainable(model.module)]
    inner = torch.optim.AdamW(named, lr=optimiser.learning_rate, weight_decay=optimiser.weight_decay)
    stepper = dp_optimiser(inner, plan, randomness)
    accountant = _opacus("opacus.accountants").create_accountant(mechanism="prv")
    stepper.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=plan.mechanism.rate))
    losses: list[float] = []
    was_training = model.module.training
    with torch.random.fork_rng(devices=[]):
        model.module.train(optimiser.dropout)
        for number in range(plan.mechanism.rounds):
            secret = randomness.coins.bytes(32)
            drawn = [i for i, name in enumerate(names) if coin(secret, "draw", name) < plan.mechanism.rate]
            seeds = [int(2**53 * coin(secret, "dropout", names[i])) for i in drawn]
            losses += _step(model, pages, [examples[i] for i in drawn], stepper, seeds=seeds)
            if on_step is not None:
                on_step(number + 1)
    stepper.zero_grad(set_to_none=True)
    model.module.train(was_training)
    (seen,) = [Mechanism(noise, steps, rate, unit=Unit.RECORD) for noise, rate, steps in accountant.history]
    owners = [provider_key(name) for name in provider_names(pages)]
    most = max(Counter(owners[example.page] for example in examples).values(), default=0)
    counted = guarantee(seen, plan.delta, Accountant.PRV)
    return RecordTraining(plan.guarantee(), counted, len(examples), most, _mean(losses))


def _mean(losses: Sequence[float]) -> float:
    known = [loss for loss in losses if math.isfinite(loss)]
    return float(np.mean(known)) if known else math.nan


def record_names(pages: Sequence[Page], examples: Sequence[Example]) -> list[str]:
    """What each question is told from the others by: its page, its words and its answers, not its place in a list."""
    of_page = list(zip(document_names(pages), page_names(pages), strict=True))
    asked = [(of_page[e.page], e.question.text if e.question else "", e.question.answers if e.question else ())
             for e in examples]  # fmt: skip
    return told_apart([repr(one) for one in asked])


def _check(plan: DpPlan) -> None:
    mechanism = plan.mechanism
    if mechanism.unit is not Unit.RECORD or mechanism.client_rate != 1:
        raise PrivacyError(
            f"the plan's unit is {mechanism.unit} and its client rate {mechanism.client_rate:.4g}; DP-SGD needs unit "
            "record and client rate 1."
        )
    plan.guarantee(Accountant.PRV)  # refuses what Opacus cannot count, before anything is trained


def _step(
    model: DocumentModel, pages: Sequence[Page], examples: Sequence[Example], stepper: Any, *, seeds: Sequence[int]
) -> list[float]:
    """One step over ``examples``, of which there may be none: noise alone. Returns their losses, NaN of those left out.

    Opacus clips and adds up one gradient after the other, so that memory does not grow with their number. ``seeds`` are
    those of each example's dropout.
    """
    losses: list[float] = []
    for i, (example, seed) in enumerate(zip(examples, seeds, strict=True)):
        seed_torch(seed)
        stepper.zero_grad(set_to_none=True)
        losses.append(_gradient_or_nothing(model, pages, example, stepper.params))
        stepper.signal_skip_step(do_skip=i < len(examples) - 1)
        stepper.step()
    if not examples:
        stepper.zero_grad(set_to_none=True)
        for p in stepper.params:
            p.grad_sample = p.new_zeros((0, *p.shape))
        stepper.step()
    return losses


def _gradient_or_nothing(
    model: DocumentModel, pages: Sequence[Page], example: Example, parameters: Sequence[torch.nn.Parameter]
) -> float:
    """Put the example's gradient where Opacus looks for it, and return its loss; zero and NaN where it has none."""
    try:
        loss = example_gradient(model, pages, example)
    except Exception:  # any: a training that ends because of one record would tell of it
        loss = math.nan
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    usable = math.isfinite(loss) and all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad_sample = (gradient if usable else torch.zeros_like(p))[None]  # type: ignore[attr-defined]
    return loss if usable else math.nan


def example_gradient(model: DocumentModel, pages: Sequence[Page], example: Example) -> float:
    """Put the gradient of one example's loss into the parameters, which have none yet; returns the loss."""
    loss = batch_loss(model, pages, [example], objective_of("qa"), np.random.default_rng(0))
    loss.backward()  # type: ignore[no-untyped-call]
    cost = float(loss.detach())
    if not math.isfinite(cost):
        raise FederationError(f"the loss of an example is {cost}. Lower the learning rate, or look at the pages.")
    return cost


def dp_optimiser(inner: torch.optim.Optimizer, plan: DpPlan, randomness: Randomness) -> Any:
    """Opacus' optimiser, with noise from our cryptographic stream (its own secure mode needs a package of its own)."""
    kind: Any = _opacus("opacus.optimizers.optimizer").DPOptimizer

    class SecretNoise(kind):  # type: ignore[misc]
        def add_noise(self) -> None:
            std = self.noise_multiplier * self.max_grad_norm
            for p in self.params:
                noise = std * randomness.gaussian(p.numel()).reshape(p.shape)
                p.grad = p.summed_grad.view_as(p) + torch.from_numpy(noise).to(p)

    return SecretNoise(
        inner, noise_multiplier=plan.mechanism.noise_multiplier, max_grad_norm=plan.clip_norm,
        expected_batch_size=plan.denominator,
    )  # fmt: skip


def _opacus(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError("record-level training needs Opacus: pip install 'docleak[privacy]'.") from error


def record_claim(found: RecordTraining, *, alone: bool) -> str:
    """What this training adds, by both countings, and what is not protected: sentences for people.

    ``alone`` says that it is all that the model's claim is of, and a bound: only then is it what holds for the model.
    """
    claim, most = found.claim, found.most_records
    together = epsilon_of_group(claim, max(most, 1))
    holds = "It holds for the model" if alone else "It is of this training alone, and not what holds for the model"
    return (
        f"This training adds {claim.sentence()} Opacus {version('opacus')} counts epsilon "
        f"{rounded_up(found.counted.epsilon)} for the "
        f"{found.counted.mechanism.rounds} steps it took (PRV). This protects one question with its answer, not a "
        f"provider: the provider with most has {most} of them, and for all of its questions together epsilon is "
        f"{rounded_up(together)} at the same delta (of a group no second accountant is asked). {holds}; counts and "
        "losses printed here are exact, of the pages themselves, and not for others."
    )
