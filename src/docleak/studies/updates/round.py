"""A client's round as the evaluator imitates it, from the true pages, under any plan: does it give what was sent?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from docleak.attacks.gradients.local_steps import Batching, ImitatedSteps, Optimiser, Taken
from docleak.attacks.gradients.matching import informative
from docleak.attacks.gradients.observed import observe
from docleak.attacks.gradients.selftest import SelfTest, self_test
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.documents import Page
from docleak.documents.pages import picked
from docleak.errors import GradientError
from docleak.models.base import DocumentModel, Encoded, device_of, in_mode, pixels_of, trainable
from docleak.models.device import seed_torch
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.objectives.objective import Example

Named = Mapping[str, Tensor]
#: The examples of each step, by number.
Batches = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Truth:
    """Pages that a client trained on, and what it was asked about them; ``examples`` number the pages. As ``model``
    reads them they are made once, when they are asked for: a large client's pixels need not fit into memory."""

    model: DocumentModel
    pages: Sequence[Page]
    examples: Sequence[Example]
    #: Of replays without dropout: rates, decays, norms and optimisers are tried on the same first step.
    taken: Taken = field(default_factory=Taken, compare=False, repr=False)

    @cached_property
    def fitted(self) -> tuple[Page, ...]:
        """The pages at the model's size."""
        return tuple(self.model.fit(page) for page in self.pages)

    @cached_property
    def pixels(self) -> Tensor:
        """Of the fitted pages, (P, 3, H, W) in 0..1."""
        return torch.stack([pixels_of(page.image, self.device) for page in self.fitted])

    @cached_property
    def inputs(self) -> tuple[Encoded, ...]:
        """The examples."""
        asked = [(self.pages[e.page], e.question) for e in self.examples]
        return tuple(self.model.encode(self.model.fit(page), question) for page, question in asked if question)

    @property
    def device(self) -> torch.device:
        """The model's."""
        return device_of(self.model)


@dataclass(frozen=True)
class ImitatedRound:
    """What was ``sent`` (theta_0 - theta_K by name, of the parameters that came and moved), and how the client is
    believed to have trained: ``truth``'s model, which holds theta_0, on the examples that ``batches`` number."""

    truth: Truth
    sent: Named
    plan: LocalPlan
    batching: Batching
    batches: Batches
    rates: tuple[float, ...] = ()  # of the steps, as shares of the plan's
    undecayed: frozenset[str] = frozenset()  # weights that do not decay
    frozen: frozenset[str] = frozenset()  # weights that came as they were

    @classmethod
    def of(
        cls, model: DocumentModel, sent: Named, plan: LocalPlan, batching: Batching, pages: Sequence[Page],
        examples: Sequence[Example], batches: Batches, rates: tuple[float, ...] = (),
        undecayed: frozenset[str] = frozenset(), truths: dict[tuple[int, ...], Truth] | None = None,
    ) -> ImitatedRound:  # fmt: skip
        """Of the examples in ``batches`` and the pages that these are about, which are numbered anew.

        ``truths`` keeps what is made of them for other rounds of the same examples.
        """
        used = sorted({number for batch in batches for number in batch})
        shown = sorted({examples[number].page for number in used})
        place = {number: place for place, number in enumerate(used)}
        page = {number: place for place, number in enumerate(shown)}
        asked = [Example(page[examples[number].page], examples[number].question) for number in used]
        steps = tuple(tuple(place[number] for number in batch) for batch in batches)
        truth = Truth(model, picked(pages, shown), asked)
        truth = truth if truths is None else truths.setdefault(tuple(used), truth)
        there = {name: value.to(truth.device) for name, value in sent.items() if bool(value.any())}
        return cls(truth, there, plan, batching, steps, rates, undecayed, frozenset(sent) - frozenset(there))

    @property
    def steps(self) -> ImitatedSteps:
        """As the adversary takes them."""
        owners = tuple(example.page for example in self.truth.examples)
        return ImitatedSteps(self.optimiser, self.batches, owners, self.batching, self.frozen)

    @property
    def optimiser(self) -> Optimiser:
        """The plan's, with the rates of its steps and what it decays."""
        return replace(optimiser_of(self.plan), schedule=self.rates, undecayed=self.undecayed)

    def as_gradient(self, steps: float) -> dict[str, Tensor]:
        """What was sent in the units of a gradient, if the client took so many steps."""
        start = {name: p.detach() for name, p in self.truth.model.module.named_parameters()}
        return self.optimiser.as_gradient(self.sent, start, steps)

    def view(self, knowledge: Knowledge, *, dropout: bool = False, taken: Taken | None = None) -> GradientView | None:
        """What the server sees under this plan; None where nothing of the update rises above rounding."""
        try:
            return observe(self.truth.model, self.sent, self.steps, knowledge, train_mode=dropout, taken=taken)
        except GradientError:
            return None

    def test(self, *, causes: bool = False) -> SelfTest | None:
        """The self-test of the true pages, with the ``causes`` that a single gradient tells; None without a view."""
        pixels, inputs, taken = self.truth.pixels, self.truth.inputs, self.truth.taken
        view = self.view(Knowledge(pixels, torch.ones_like(pixels[:, 0], dtype=torch.bool), inputs), taken=taken)
        return None if view is None else self_test(view, pixels, inputs, causes=causes, taken=taken)

    @property
    def passes(self) -> bool:
        """Whether this plan reproduces what was sent."""
        test = self.test()
        return test is not None and test.passed

    def planned(self, **changes: float | str) -> ImitatedRound:
        """The round under a plan with these changes."""
        return replace(self, plan=replace(self.plan, **changes))  # type: ignore[arg-type]

    @property
    def whole(self) -> dict[str, Tensor]:
        """``sent`` and the zeros of what is frozen."""
        named = dict(self.truth.model.module.named_parameters())
        return {**self.sent, **{name: torch.zeros_like(named[name]) for name in self.frozen}}

    @cached_property
    def start(self) -> dict[str, Tensor]:
        """theta_0 of what was sent."""
        return {name: p.detach().double() for name, p in trainable(self.truth.model.module) if name in self.sent}

    @cached_property
    def gradient(self) -> dict[str, Tensor]:
        """Of the first batch at theta_0."""
        plain = self.planned(optimiser="sgd", weight_decay=0.0, max_norm=0.0)
        return replace(plain, batches=self.batches[:1], rates=())._moved(None)

    @cached_property
    def alive(self) -> tuple[str, ...]:
        """Names of what was sent whose gradient is not zero but for rounding."""
        return informative(self.gradient)

    @cached_property
    def replayed(self) -> dict[str, Tensor]:
        """``delta`` without dropout."""
        return self.delta()

    def delta(self, *, masks: int | None = None) -> dict[str, Tensor]:
        """theta_0 - theta_K of this plan (float64), with dropout masks drawn from the seed ``masks``, or without."""
        optimiser, steps = self.steps.optimiser, len(self.batches)
        scale = optimiser.learning_rate * steps
        return {
            name: scale * value.double()
            + (optimiser.decayed(steps, name) * self.start[name] if bool(value.any()) else 0.0)
            for name, value in self._moved(masks).items()
        }

    def _moved(self, masks: int | None) -> dict[str, Tensor]:
        truth = self.truth
        given = (truth.model, truth.pixels, truth.inputs, tuple(self.sent))
        taken = truth.taken if masks is None else None
        with _mode(truth.model, masks):
            return self.steps.simulate(*given, create_graph=False, taken=taken)


def optimiser_of(plan: LocalPlan) -> Optimiser:
    """The plan's optimiser as the adversary imitates it."""
    return Optimiser(plan.optimiser, plan.learning_rate, plan.weight_decay, plan.max_norm)


def assumed(count: int, plan: LocalPlan) -> Batches:
    """The steps of ``plan`` over ``count`` examples by someone who does not know their order: as they stand."""
    epoch = [tuple(range(at, min(at + plan.batch_size, count))) for at in range(0, count, plan.batch_size)]
    return tuple((epoch * plan.epochs)[: plan.max_steps or None])


def gap(one: Named, other: Named, names: Sequence[str]) -> float:
    """|one - other|² / |one|² over ``names``; infinite where ``one`` is zero."""
    wrong = whole = 0.0
    for n in names:
        there = one[n].double()
        wrong += float((there - other[n].double()).square().sum())
        whole += float(there.square().sum())
    return wrong / whole if whole else float("inf")


def agreement(sent: Named, ours: Named, names: Sequence[str]) -> tuple[float, float]:
    """(factor, cosine): what times ``ours`` comes closest to ``sent``, and how well their directions agree."""
    dot = power = whole = 0.0
    for n in names:
        came, made = sent[n].double(), ours[n].double()
        dot += float((came * made).sum())
        power += float(made.square().sum())
        whole += float(came.square().sum())
    return (dot / power, dot / (power * whole) ** 0.5) if power and whole else (0.0, 0.0)


@contextmanager
def _mode(model: DocumentModel, masks: int | None) -> Iterator[None]:
    """Training mode with dropout masks of the seed, or evaluation mode; as it was afterwards."""
    with torch.random.fork_rng(devices=[]), in_mode(model.module, training=masks is not None):
        if masks is not None:
            seed_torch(masks)
        yield
