"""The evaluator's imitation of a client's round, from the true pages, under any plan: does it give what was sent?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from docleak.attacks.gradients.local_steps import Batching, ImitatedSteps
from docleak.attacks.gradients.matching import informative
from docleak.attacks.gradients.observed import observe
from docleak.attacks.gradients.selftest import SelfTest, measured, self_test
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.documents import Page
from docleak.errors import GradientError
from docleak.evidence.update_case import imitated
from docleak.models.base import DocumentModel, Encoded, pixels_of, trainable
from docleak.training.federated.local import LocalPlan
from docleak.training.objectives.objective import Example

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """What was ``sent`` (theta_0 - theta_K by name, of the parameters that came) against an imitation of the round.

    ``model`` holds theta_0; ``pixels`` (P, 3, H, W) are the true pages, ``inputs`` the ``examples`` as the model reads
    them, ``batches`` their numbers.
    """

    model: DocumentModel
    sent: Named
    plan: LocalPlan
    batching: Batching
    pixels: Tensor
    inputs: tuple[Encoded, ...]
    examples: tuple[Example, ...]
    batches: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls,
        model: DocumentModel,
        sent: Named,
        plan: LocalPlan,
        batching: Batching,
        pages: Sequence[Page],
        examples: Sequence[Example],
        batches: Sequence[Sequence[int]],
    ) -> Trial:
        """Of ``pages`` of any size, which the ``examples`` number."""
        fitted_pages = [model.fit(page) for page in pages]
        asked = [e for e in examples if e.question is not None]
        device = next(model.module.parameters()).device
        pixels = torch.stack([pixels_of(page.image, device) for page in fitted_pages])
        inputs = tuple(model.encode(fitted_pages[e.page], e.question) for e in asked if e.question is not None)
        return cls(model, sent, plan, batching, pixels, inputs, tuple(asked), tuple(tuple(b) for b in batches))

    @property
    def steps(self) -> ImitatedSteps:
        """As the adversary takes them."""
        return imitated(self.batches, self.examples, self.plan, self.batching)

    def view(self) -> GradientView | None:
        """What the server sees under this plan; None where nothing of the update rises above rounding."""
        whole = torch.ones_like(self.pixels[:, 0], dtype=torch.bool)
        try:
            return observe(
                self.model, self.sent, self.steps, Knowledge(self.pixels, whole, self.inputs), train_mode=False
            )
        except GradientError:
            return None

    def test(self, *, causes: bool = False) -> SelfTest | None:
        """The self-test of the true pages, with the ``causes`` that a single gradient tells; None without a view."""
        view = self.view()
        if view is None:
            return None
        return (self_test if causes else measured)(view, self.pixels, self.inputs)

    @property
    def passes(self) -> bool:
        """Whether this plan reproduces what was sent."""
        test = self.test()
        return test is not None and test.passed

    @cached_property
    def start(self) -> dict[str, Tensor]:
        """theta_0 of what was sent."""
        return {name: p.detach().double() for name, p in trainable(self.model.module) if name in self.sent}

    @cached_property
    def gradient(self) -> dict[str, Tensor]:
        """Of the first batch at theta_0."""
        plain = replace(self.plan, optimiser="sgd", weight_decay=0.0, max_norm=0.0)
        return replace(self, plan=plain)._moved(self.batches[:1], None)

    @cached_property
    def alive(self) -> tuple[str, ...]:
        """Names of what was sent whose gradient is not zero but for rounding."""
        return informative(self.gradient)

    def delta(self, *, masks: int | None = None) -> dict[str, Tensor]:
        """theta_0 - theta_K of this plan (float64), with dropout masks drawn from the seed ``masks``, or without."""
        optimiser, steps = self.steps.optimiser, len(self.batches)
        scale, share = optimiser.learning_rate * steps, optimiser.decayed(steps)
        return {
            name: scale * value.double() + (share * self.start[name] if bool(value.any()) else 0.0)
            for name, value in self._moved(self.batches, masks).items()
        }

    def _moved(self, batches: Sequence[tuple[int, ...]], masks: int | None) -> dict[str, Tensor]:
        with _mode(self.model, masks):
            steps = replace(self.steps, batches=tuple(batches))
            return steps.simulate(self.model, self.pixels, self.inputs, tuple(self.sent), create_graph=False)


def gap(one: Named, other: Named, names: Sequence[str]) -> float:
    """|one - other|² / |one|² over ``names``; infinite where ``one`` is zero."""
    wrong = sum(float((one[n].double() - other[n].double()).square().sum()) for n in names)
    whole = sum(float(one[n].double().square().sum()) for n in names)
    return wrong / whole if whole else float("inf")


def agreement(sent: Named, ours: Named, names: Sequence[str]) -> tuple[float, float]:
    """(factor, cosine): what times ``ours`` comes closest to ``sent``, and how well their directions agree."""
    dot = sum(float((sent[n].double() * ours[n].double()).sum()) for n in names)
    own = sum(float(ours[n].double().square().sum()) for n in names)
    whole = sum(float(sent[n].double().square().sum()) for n in names)
    return (dot / own, dot / (own * whole) ** 0.5) if own and whole else (0.0, 0.0)


@contextmanager
def _mode(model: DocumentModel, masks: int | None) -> Iterator[None]:
    """Training mode with dropout masks of the seed, or evaluation mode; as it was afterwards."""
    before = model.module.training
    with torch.random.fork_rng(devices=[]):
        if masks is not None:
            torch.manual_seed(masks)
        model.module.train(masks is not None)
        try:
            yield
        finally:
            model.module.train(before)
