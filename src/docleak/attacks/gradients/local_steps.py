"""What a client sent after local training: its weight delta as a gradient, and its steps as the adversary takes them.

An update is put in the units of a gradient: (theta_0 - theta_K - decayed) / (learning rate · steps). After one SGD step
it is the gradient; after several, the mean gradient along the client's way, which the adversary reproduces by taking
the same steps itself, differentiably (as Dimitrov et al., 2022, do for FedAvg). One AdamW step can be inverted as far
as float32 carries: see ``SignedStep``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from docleak.errors import AttackError
from docleak.models.base import IGNORED, DocumentModel, Encoded, trainable

EPSILON = torch.finfo(torch.float32).eps
#: Root mean square of rounding a weight, as a share of EPSILON times the weight, over a binade.
ROUNDED = 0.21
#: Keeps the root's derivative finite where a gradient is zero; far below any epsilon.
TINY = 1e-36
#: Largest relative error, by the rounding of a weight, with which a magnitude counts as known.
CERTAIN = 0.02

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Optimiser:
    """The client's optimiser, fresh at the start of its round: ``sgd`` or ``adamw`` with decoupled decay.

    ``schedule`` are the rates of the steps as shares of ``learning_rate``; the last holds on, () is a constant rate.
    ``undecayed`` are names of weights that do not decay, as biases and layer norms of transformers' Trainer.
    """

    kind: str = "sgd"
    learning_rate: float = 0.1
    weight_decay: float = 0.0
    max_norm: float = 0.0  # gradients are clipped to this norm; 0 does not clip
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    schedule: tuple[float, ...] = ()
    undecayed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.kind not in ("sgd", "adamw") or not self.learning_rate > 0:
            raise AttackError(
                f"optimiser {self.kind!r} with learning rate {self.learning_rate}; expected sgd or adamw, and a rate "
                "above 0. Other optimisers are not imitated."
            )

    def share(self, step: int) -> float:
        """The rate of a step, counted from 0, as a share of ``learning_rate``."""
        return self.schedule[min(step, len(self.schedule) - 1)] if self.schedule else 1.0

    def kept(self, step: int, name: str = "") -> float:
        """The share of a weight that decay leaves in a step, counted from 0."""
        return 1.0 if name in self.undecayed else 1 - self.learning_rate * self.share(step) * self.weight_decay

    def decayed(self, steps: float, name: str = "") -> float:
        """The share of a weight that decay alone takes away in ``steps`` steps."""
        if self.schedule:
            return 1 - math.prod(self.kept(step, name) for step in range(round(steps)))
        return float(1 - self.kept(0, name) ** steps)

    def as_gradient(self, delta: Named, start: Named, steps: float) -> dict[str, Tensor]:
        """theta_0 - theta_K less what decay took, per unit of learning rate and step.

        A tensor that did not move at all was not trained, and not decayed either: torch leaves it out.
        """
        scale = self.learning_rate * steps
        return {
            name: ((value.double() - self.decayed(steps, name) * start[name].double()) / scale).float()
            if bool(value.any())
            else torch.zeros_like(value)
            for name, value in delta.items()
        }

    def rounding(self, start: Named) -> dict[str, float]:
        """Root mean square error, per number of each tensor, of ``as_gradient``: weights are kept in float32.

        Where all steps round alike, as on one example trained again and again; less where they differ.
        """
        return {
            name: ROUNDED * EPSILON * float(value.double().square().mean().sqrt()) / self.learning_rate
            for name, value in start.items()
        }


#: ``Batching.padding``: every example as if alone, or padded to the longest of its batch.
UNPADDED, LONGEST = -1, 0
#: ``Batching.labels``: the answer and the token that ends it; also what the chat template writes behind that token, as
#: TRL takes it of prompts and completions; everything that is read, as in language modelling.
LABELS = ("answer", "turn", "all")


@dataclass(frozen=True)
class Batching:
    """How a client makes one loss of a batch.

    ``padding`` is the tokens to which each text is padded, LONGEST to those of the longest in its batch, as
    ``transformers`` does by itself, or UNPADDED as docleak's own clients, whose losses do not depend on neighbours. It
    matters to models whose loss sees padding (LayoutLMv3's). ``mean`` is over "examples", as docleak's own clients
    take it, or over all labelled "tokens" of the batch, as the losses of ``transformers``' generative models.
    ``labels``, one of LABELS, says of which tokens a vision-language model's loss is taken; others have no choice.
    """

    padding: int = UNPADDED
    mean: str = "examples"
    labels: str = "answer"

    def __post_init__(self) -> None:
        if self.padding < UNPADDED or self.mean not in ("examples", "tokens") or self.labels not in LABELS:
            raise AttackError(
                f"padding to {self.padding} tokens, a mean over {self.mean!r}, labels {self.labels!r}; expected a "
                f"number of tokens, examples or tokens, and one of {', '.join(LABELS)}."
            )

    def loss(self, model: DocumentModel, pixels: Tensor, inputs: Sequence[Encoded], owners: Sequence[int]) -> Tensor:
        """The loss of a batch, a tensor of no dimension."""
        padded = getattr(model, "padded", None)
        if padded is not None and self.padding != UNPADDED:
            longest = max(len(example.tensors["input_ids"]) for example in inputs)
            inputs = [padded(example, self.padding or longest) for example in inputs]
        labelled = getattr(model, "labelled", None)
        if labelled is not None and self.labels != "answer":
            inputs = [labelled(example, whole=self.labels == "all") for example in inputs]
        losses = model.loss(pixels, inputs, owners)
        counts = [int((e.tensors["labels"] != IGNORED).sum()) for e in inputs if "labels" in e.tensors]
        if self.mean == "examples" or not counts:
            return losses.mean()
        weights = losses.new_tensor(counts)
        return (losses * weights).sum() / weights.sum()


@dataclass(frozen=True)
class ImitatedSteps:
    """The steps as the adversary takes them: ``batches`` are indices of examples, ``owners`` the page of each.

    ``frozen`` are weights that the client left as they were, though the model would train them.
    """

    optimiser: Optimiser
    batches: tuple[tuple[int, ...], ...]
    owners: tuple[int, ...]
    batching: Batching = Batching()
    frozen: frozenset[str] = frozenset()

    @property
    def steps(self) -> int:
        """K."""
        return len(self.batches)

    def simulate(
        self,
        model: DocumentModel,
        pixels: Tensor,
        inputs: Sequence[Encoded],
        names: Sequence[str],
        *,
        create_graph: bool,
        taken: Taken | None = None,
    ) -> dict[str, Tensor]:
        """The update of ``names`` that ``pixels`` (P, 3, H, W) and ``inputs`` give, in the units of a gradient.

        Every step trains all that is trainable and not ``frozen``, and is a function of the pixels through all steps
        before it where ``create_graph`` says so. The model's own weights stay as they are. ``taken`` keeps the gradient
        of the first step, and where several led, for other calls of the same model, pixels and inputs without a graph:
        other optimisers begin with the same gradient, and more steps of the same go on where fewer ended.
        """
        start = {name: p.detach() for name, p in trainable(model.module) if name not in self.frozen}
        loss, o = _Loss(model, self.batching), self.optimiser
        state = taken.led(self) if taken else None
        if state is None:
            state = _State({name: torch.zeros_like(value) for name, value in start.items()})
        for batch in self.batches[state.count :]:
            first = (batch, self.batching, self.frozen)
            known = taken.of(first) if taken and not state.count else None
            gradient = known.moved if known else None
            if gradient is None:
                weights = {
                    name: (state.kept_of(o, name) * value - o.learning_rate * state.moved[name]).requires_grad_(True)
                    for name, value in start.items()
                }
                given = (pixels, [inputs[i] for i in batch], [self.owners[i] for i in batch])
                value = functional_call(loss, {f"module.{name}": p for name, p in weights.items()}, given)
                grads = torch.autograd.grad(value, list(weights.values()), create_graph=create_graph, allow_unused=True)
                gradient = {
                    name: torch.zeros_like(p) if g is None else g
                    for (name, p), g in zip(weights.items(), grads, strict=True)
                }
                if taken and not state.count:
                    taken.keep(first, _State(gradient))
            state = _STEPS[o.kind](o, state, _clipped(gradient, o.max_norm))
        if taken and self.steps > 1:
            taken.keep(self, state)
        return {name: state.moved[name] / self.steps for name in names}


@dataclass(frozen=True)
class _State:
    """After ``count`` steps: theta_k = ``kept`` · theta_0 - lr · ``moved``, and AdamW's moments.

    The way is added up apart from the weights, so that it is not lost in their rounding.
    """

    moved: Named
    first: Named | None = None
    second: Named | None = None
    count: int = 0
    kept: float = 1.0

    def kept_of(self, o: Optimiser, name: str) -> float:
        return 1.0 if name in o.undecayed else self.kept

    @property
    def size(self) -> int:
        """Bytes."""
        parts = (part.values() for part in (self.moved, self.first, self.second) if part)
        return sum(value.nbytes for part in parts for value in part)


#: How many results ``Taken`` keeps whatever their size, and up to how many bytes more of them.
KEPT, ROOM = 3, 1 << 26
Key = tuple[tuple[int, ...], Batching, frozenset[str]] | ImitatedSteps


@dataclass
class Taken:
    """Gradients at theta_0 by their batch, as ways of a step of 1, and where several steps led by these: the last KEPT,
    for they may be large, and more where there is ROOM."""

    kept: dict[Key, _State] = field(default_factory=dict)

    def of(self, key: Key) -> _State | None:
        """What is kept, from now on as the last, or None."""
        if key in self.kept:
            self.kept[key] = self.kept.pop(key)
        return self.kept.get(key)

    def led(self, steps: ImitatedSteps) -> _State | None:
        """Where these steps led, or the most of the first of them that are kept with all that a next step needs."""
        for count in range(steps.steps, 1, -1):
            state = self.of(replace(steps, batches=steps.batches[:count]))
            if state and (count == steps.steps or state.first or steps.optimiser.kind == "sgd"):
                return state
        return None

    def keep(self, key: Key, state: _State) -> None:
        """``state``; of a large one only where it led."""
        self.kept[key] = state if state.size <= ROOM else replace(state, first=None, second=None)
        while len(self.kept) > KEPT and sum(one.size for one in self.kept.values()) > ROOM:
            del self.kept[next(iter(self.kept))]


class _Loss(nn.Module):
    """A model's loss of a batch as a module, whose parameters ``functional_call`` can exchange."""

    def __init__(self, model: DocumentModel, batching: Batching) -> None:
        super().__init__()
        self.module = model.module
        self.model, self.batching = model, batching

    def forward(self, pixels: Tensor, inputs: Sequence[Encoded], owners: Sequence[int]) -> Tensor:
        return self.batching.loss(self.model, pixels, inputs, owners)


def _sgd(o: Optimiser, state: _State, gradient: Named) -> _State:
    """theta - lr (g + wd theta)."""
    return _State(_further(o, state, gradient), count=state.count + 1, kept=state.kept * o.kept(state.count))


def _adamw(o: Optimiser, state: _State, gradient: Named) -> _State:
    """Loshchilov and Hutter (2019) as torch computes it: bias correction, epsilon outside the root, decay apart."""
    (b1, b2), count = o.betas, state.count + 1
    first = _blend(state.first, gradient, b1)
    second = _blend(state.second, {name: g.square() for name, g in gradient.items()}, b2)
    root = (1 - b2**count) ** 0.5
    step = {name: m / (1 - b1**count) / ((second[name] + TINY).sqrt() / root + o.epsilon) for name, m in first.items()}
    return _State(_further(o, state, step), first, second, count, state.kept * o.kept(state.count))


_STEPS: dict[str, Callable[[Optimiser, _State, Named], _State]] = {"sgd": _sgd, "adamw": _adamw}


def _further(o: Optimiser, state: _State, step: Named) -> dict[str, Tensor]:
    share = o.share(state.count)
    return {name: o.kept(state.count, name) * way + share * step[name] for name, way in state.moved.items()}


def _blend(before: Named | None, new: Named, beta: float) -> dict[str, Tensor]:
    return {name: (1 - beta) * value + (beta * before[name] if before else 0.0) for name, value in new.items()}


def _clipped(gradient: Named, most: float) -> Named:
    if not most:
        return gradient
    norm = torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    return {name: factor * g for name, g in gradient.items()}


@dataclass(frozen=True)
class SignedStep:
    """The gradient behind one AdamW step, where a magnitude survives in float32: a step is lr · g / (|g| + epsilon).

    The sign is always told. |g| = epsilon · s / (1 - s) for s = |step| / lr is known with a relative error of
    |g| · r / (epsilon · lr), r the rounding of the weight; ``most`` is where that is CERTAIN, name by name. Beyond it
    only "at least so much" is known, so ``__call__``, an ``imitate`` of ``GradientView``, brings the adversary's own
    numbers down to that where they have the right sign and are larger: they are not told apart there, and one that is
    too small or has the wrong sign still pulls (cutting both sides off left gi-dqa at 7 dB where this reaches 25).
    Near-zero weights, biases above all, give away almost everything.
    """

    most: Named

    def __call__(self, dummy: Named, observed: Named) -> dict[str, Tensor]:
        return {name: _at_most(g, observed[name], self.most[name]) for name, g in dummy.items()}

    @classmethod
    def invert(cls, step: Named, start: Named, optimiser: Optimiser) -> tuple[dict[str, Tensor], SignedStep]:
        """From ``Optimiser.as_gradient`` of one step (s, signed) and the start: the gradient, and what is sure."""
        gradient, most = {}, {}
        for name, signed in step.items():
            rounding = EPSILON / 2 * start[name].double().abs().clamp_min(optimiser.learning_rate)
            limit = CERTAIN * optimiser.epsilon * optimiser.learning_rate / rounding
            share = signed.double().abs().clamp(max=1.0)
            size = optimiser.epsilon * share / (1 - share).clamp_min(1e-300)
            gradient[name] = (signed.double().sign() * torch.minimum(size, limit)).float()
            most[name] = limit.float()
        return gradient, cls(most)


def _at_most(imitated: Tensor, observed: Tensor, most: Tensor) -> Tensor:
    """``imitated`` as it is where ``observed`` is below ``most``; beyond, no more than ``most`` in its direction."""
    sign = observed.sign()
    return torch.where(observed.abs() < most, imitated, sign * torch.minimum(sign * imitated, most))
