"""Why the true pages do not reproduce what a client sent: possible causes, each tried, the most probable first.

A cause whose plan makes the self-test pass is certain; the others are told by what they leave behind in the difference
between what was sent and what the plan gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, permutations, product
from statistics import median

import numpy as np
import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.bag import tables_of
from docleak.attacks.gradients.local_steps import EPSILON, LABELS, LONGEST, UNPADDED, Batching
from docleak.models.base import dropout_rate
from docleak.spec import split_name
from docleak.studies.updates.round import ImitatedRound, agreement, assumed, gap

#: Optimiser steps that all replays of one client may take together.
MOST_STEPS = 150
#: Causes that are named at most.
NAMED = 4
#: Weights of a cause: a plan that reproduces what was sent; a trace of its own; a trace that others leave, too.
REPRODUCED, TRACED, FITTING = 10.0, 8.0, 4.0
#: Share (squared) by which a replay is off that rounding and wrong signs do not explain: the self-test need not run.
FAR = 0.25
#: Cosines from which two updates count as the same but for their length, and from which a rate is fitted to one.
ALIKE, ALONG = 0.99, 0.8
#: Lengths that tokenizers are often told to pad to.
LENGTHS = (64, 128, 256, 384, 512)
#: Norms that gradients are often clipped to.
NORMS = (1.0, 0.5, 0.1, 5.0)
#: What is left to name where nothing that was tried fits, the most probable first.
PRIOR = (
    ("pages", "other pages, questions or answers, or another model"),
    ("order", "another order, number or size of batches"),
    ("optimiser", "another optimiser, or one with momentum or a state from before"),
    ("learning rate", "another learning rate, perhaps with a schedule"),
    ("dropout", "dropout that was on"),
    ("padding", "texts padded or cut to another length"),
    ("weight decay", "another weight decay, or not of all weights"),
    ("noise", "noise or clipping"),
    ("precision", "half precision"),
)


@dataclass(frozen=True)
class Cause:
    """``key`` is its name, ``sentence`` what was seen of it; ``reproduces``: a plan with it passes the self-test."""

    key: str
    sentence: str
    weight: float

    @property
    def reproduces(self) -> bool:
        return self.weight >= REPRODUCED


#: Rounds under other plans, and the cause that each would prove.
Tries = Iterator[tuple[Cause, ImitatedRound]]


@dataclass
class Diagnosis:
    """``trial`` under the plan as it was described; ``others`` the same with another client's pages, by name.

    ``received`` are the arrays as they came, ``begun`` those that the server sent, and ``unsent`` trainable
    parameters that did not come.
    """

    trial: ImitatedRound
    received: Mapping[str, np.ndarray]
    begun: Mapping[str, np.ndarray]
    unsent: Sequence[str] = ()
    others: Mapping[str, ImitatedRound] = field(default_factory=dict)
    taken: int = 0

    def causes(self) -> tuple[Cause, ...]:
        """At least one, and at most NAMED of them."""
        causes = [*self._traces()]
        searches: list[Callable[[], Iterator[Cause]]] = [self._rates, self._clients]
        if all(cause.weight < TRACED for cause in causes):  # else no plan reproduces what was sent
            searches += [self._optimisers, partial(self._first, self._decays), self._decayed, self._batchings]
            searches += [partial(self._first, trials) for trials in (self._orders, self._clippings, self._sizes)]
        for trials in searches:
            if any(cause.reproduces for cause in causes):
                break
            causes += trials()
        best: dict[str, Cause] = {}
        for cause in sorted(causes, key=lambda cause: -cause.weight):
            best.setdefault(cause.key, cause)
        if any(cause.reproduces for cause in best.values()):
            return tuple(best.values())[:NAMED]
        weak = (Cause(key, f"{key}: {said}", 0.0) for key, said in PRIOR if key not in best)
        return tuple(islice((*best.values(), *weak), NAMED))

    @cached_property
    def ours(self) -> dict[str, Tensor]:
        """What the plan gives."""
        return self.trial.replayed

    @cached_property
    def factor(self) -> tuple[float, float]:
        """What times ``ours`` is closest to what was sent, and their cosine."""
        return agreement(self.trial.sent, self.ours, self.trial.alive)

    def _tried(self, trial: ImitatedRound) -> bool:
        """Whether the trial passes the self-test, as long as there are steps left to take; most are off by far."""
        if self.taken + len(trial.batches) > MOST_STEPS:
            return False
        self.taken += len(trial.batches)
        return gap(trial.sent, trial.replayed, self.trial.alive) < FAR and trial.passes

    def _first(self, trials: Callable[[], Tries]) -> Iterator[Cause]:
        """The first of other rounds that passes the self-test."""
        yield from islice((cause for cause, trial in trials() if self._tried(trial)), 1)

    # What a cause leaves behind, without another replay.

    def _traces(self) -> Iterator[Cause]:
        yield from self._partial()
        yield from self._precision()
        yield from self._clipped()
        noise = [*self._noise()]
        yield from noise
        if not noise:
            yield from self._rows()
            yield from self._dropout()
        test = self.trial.test(causes=True)
        for said in test.causes if test else ():
            if said.startswith(("pixel normalisation", "label mask", "tied weights")):
                yield Cause(split_name(said)[0], said, TRACED)

    def _partial(self) -> Iterator[Cause]:
        trial = self.trial
        still = [name for name in trial.alive if not bool(trial.sent[name].any())]
        count = len(trial.sent) + len(self.unsent)
        if self.unsent:
            yield Cause("partial", f"partial send: {len(self.unsent)} of {count} tensors did not come, first "
                        f"{self.unsent[0]}", TRACED + 1)  # fmt: skip
        if still:
            yield Cause("partial", f"partial training: {len(still)} of {count} tensors did not move, first "
                        f"{still[0]}; were they frozen?", TRACED + 1)  # fmt: skip

    def _precision(self) -> Iterator[Cause]:
        for kind, name in ((torch.float16, "fp16"), (torch.bfloat16, "bf16")):
            if _on_grid(self.received, kind) and not _on_grid(self.begun, kind):
                yield Cause("precision", f"precision: every number that came is one of {name}, and the weights that "
                            "were sent are not; the rounding hides small gradients", TRACED + 1)  # fmt: skip
                return
        factor, cosine = self.factor
        if cosine > 0.999 and abs(factor - 1) < 0.02:
            yield Cause("precision", f"precision: what was sent differs from what the plan gives by little (cosine "
                        f"{cosine:.5f}), as after computing in half precision", FITTING)  # fmt: skip

    def _clipped(self) -> Iterator[Cause]:
        """An update that was scaled down as a whole after training."""
        factor, trial = self.factor[0], self.trial
        scaled = {name: factor * value for name, value in self.ours.items()}
        if not 0 < factor < 0.999 or gap(trial.sent, scaled, trial.alive) > 1e-4:
            return
        norm = sum(float(value.double().square().sum()) for value in trial.sent.values()) ** 0.5
        round_norm = abs(_rounded(norm) / norm - 1) < 1e-4
        yield Cause("clipping", f"clipping: what was sent is {factor:.4g} times what the plan gives, to a norm of "
                    f"{norm:.5g}", TRACED if round_norm else FITTING)  # fmt: skip

    def _noise(self) -> Iterator[Cause]:
        """What is left is equally large in every tensor, wherever the gradient points, and normally distributed."""
        factor, cosine = self.factor
        scale = factor if cosine > 0.5 else 0.0
        left = {name: value.double() - scale * self.ours[name] for name, value in self.trial.sent.items()}
        sizes = sorted(float(value.square().mean().sqrt()) for value in left.values() if value.numel() >= 48)
        if len(sizes) < 4 or sizes[0] == 0 or sizes[(9 * len(sizes)) // 10] > 1.5 * sizes[len(sizes) // 10]:
            return
        idle = torch.cat([left[name][where] for name, where in self._idle.items()]) if self._idle else torch.zeros(0)
        pool = idle if len(idle) >= 1000 else torch.cat([value.flatten() for value in left.values()])
        kurtosis = float((pool - pool.mean()).pow(4).mean() / pool.var() ** 2)
        if abs(kurtosis - 3) < 0.5:
            yield Cause("noise", f"noise: every tensor is off by about {median(sizes):.2g}, also where the gradient is "
                        f"zero, as normal noise would be (kurtosis {kurtosis:.2f})", TRACED)  # fmt: skip

    @cached_property
    def _idle(self) -> dict[str, Tensor]:
        """Where (as masks) no page of the client moves a number: rows of tables that nothing looks up."""
        whole = (tuple(range(len(self.trial.truth.examples))),)
        gradient = replace(self.trial, batches=whole).gradient
        still = {name: value == 0 for name, value in gradient.items() if value.ndim > 1}
        # A of LoRA stands still as a whole where B is 0, and moves from the second step on.
        return {name: where for name, where in still.items() if bool(where.any()) and not bool(where.all())}

    def _rows(self) -> Iterator[Cause]:
        """Rows of the tables of tokens and coordinates that moved, beyond decay, against those that the pages use."""
        trial, spare, lacking, either = self.trial, 0, 0, 0
        tokens, axes = tables_of(trial.truth.model)
        for name in (tokens, *axes.values()):
            if name not in trial.sent or name not in self._idle:
                continue
            start, sent = trial.start[name], trial.sent[name].double()
            left = (sent - self._shrunk * start).abs() > 4 * EPSILON * start.abs().clamp_min(1e-30)
            moved, looked_up = left.any(1), ~self._idle[name].all(1)
            if float(moved.double().mean()) < 0.9:  # else the table is the output layer, too, or nothing is told apart
                spare, lacking = spare + int((moved & ~looked_up).sum()), lacking + int((looked_up & ~moved).sum())
                either += int((moved | looked_up).sum())
        if spare + lacking > 0.1 * either:
            yield Cause("pages", f"pages: {spare} tokens or coordinates moved that these pages do not have, and "
                        f"{lacking} of theirs did not; are they other pages or questions?", TRACED)  # fmt: skip

    @cached_property
    def _shrunk(self) -> float:
        """Share of a weight that decay took where no page moves it."""
        ratios = [
            (self.trial.sent[name].double()[where] / self.trial.start[name][where]).flatten()
            for name, where in self._idle.items()
        ]
        known = torch.cat(ratios) if ratios else torch.zeros(0)
        known = known[torch.isfinite(known)]
        return float(known.median()) if len(known) >= 100 else 0.0

    def _dropout(self) -> Iterator[Cause]:
        """Replays with masks drawn here: is what was sent as far from them as they are from one another?"""
        trial = self.trial
        if dropout_rate(trial.truth.model.module) <= 0 or self.taken + 4 * len(trial.batches) > MOST_STEPS:
            return
        self.taken += 4 * len(trial.batches)
        drawn = [trial.delta(masks=seed) for seed in range(4)]
        among = median(gap(one, other, trial.alive) for one, other in permutations(drawn, 2))
        away = median(gap(trial.sent, one, trial.alive) for one in drawn)
        middle = median(gap(one, self.ours, trial.alive) for one in drawn)
        distance = gap(trial.sent, self.ours, trial.alive)
        if all(0.6 < ratio < 1.7 for ratio in (away / among, distance / middle)):
            yield Cause("dropout", "dropout: what was sent is as far from replays with dropout as these are from one "
                        f"another ({away**0.5:.2f} and {among**0.5:.2f}); the client's masks cannot be known",
                        TRACED - 1)  # fmt: skip
        elif trial.plan.dropout:
            yield Cause("dropout", "dropout: it was on, as described, and its masks cannot be known, but replays with "
                        "other masks are not as far off", FITTING - 2)  # fmt: skip

    # Other plans, tried.

    def _rates(self) -> Iterator[Cause]:
        factor, cosine = self.factor
        if factor <= 0 or cosine < ALONG or abs(factor - 1) < 1e-3:
            return
        trial, rate = self.fitted(self.trial)
        if rate and self._tried(trial):
            yield _reproduced("learning rate", f"learning_rate={rate:g}")
        elif cosine > ALIKE:
            yield Cause("learning rate", f"learning rate or loss scale: what was sent is {factor:.3g} times what the "
                        f"plan gives (cosine {cosine:.4f})", FITTING - 1)  # fmt: skip

    def fitted(self, trial: ImitatedRound) -> tuple[ImitatedRound, float]:
        """The trial with the learning rate that comes closest, rounded where that is as close; 0.0 if there is none."""
        for _ in range(6):
            factor, _cosine = agreement(self.trial.sent, trial.replayed, self.trial.alive)
            self.taken += len(trial.batches)
            if factor <= 0 or self.taken > MOST_STEPS:
                return trial, 0.0
            trial = trial.planned(learning_rate=trial.plan.learning_rate * factor)
            if abs(factor - 1) < 1e-4:
                break
        rate = trial.plan.learning_rate
        short = _rounded(rate)
        rate = short if abs(short / rate - 1) < 5e-3 else rate
        return trial.planned(learning_rate=rate), rate

    def _optimisers(self) -> Iterator[Cause]:
        kind = "adamw" if self.trial.plan.optimiser == "sgd" else "sgd"
        for decay in dict.fromkeys((self.trial.plan.weight_decay, 0.0)):
            other = self.trial.planned(optimiser=kind, weight_decay=decay)
            if self._tried(other):
                yield _reproduced("optimiser", f"optimiser={kind}")
                return
            trial, rate = self.fitted(other)
            if rate and self._tried(trial):
                yield _reproduced("optimiser", f"optimiser={kind},learning_rate={rate:g},weight_decay={decay:g}")
                return
            cosine = agreement(self.trial.sent, trial.replayed, self.trial.alive)[1]
            if cosine > max(0.9, self.factor[1] + 0.05):
                yield Cause("optimiser", f"optimiser: a step of {kind} is more alike (cosine {cosine:.3f}) than one of "
                            f"{self.trial.plan.optimiser} ({self.factor[1]:.3f})", FITTING)  # fmt: skip

    def decay(self, rate: float = 0.0) -> float:
        """The weight decay, at a rate (0: the plan's), that weights show which no page moves; rounded where that is as
        good to float32."""
        steps, rate = len(self.trial.batches), rate or self.trial.plan.learning_rate
        share = 1 - (1 - self._shrunk) ** (1 / steps) if 0 <= self._shrunk < 1 else 0.0
        close = 0.02 * share + EPSILON / 2
        near = (round(step * round(share / rate / step), 4) for step in (0.1, 0.01, 0.001, 1e-4)) if share else ()
        return next((it for it in near if abs(rate * it - share) < close), share / rate)

    def _decays(self) -> Tries:
        for decay in dict.fromkeys((self.decay(), 0.0, 0.01, 0.1, 0.05)):
            if decay != self.trial.plan.weight_decay:
                yield _reproduced("weight decay", f"weight_decay={decay:g}"), self.trial.planned(weight_decay=decay)

    def _decayed(self) -> Iterator[Cause]:
        stated = self.trial.steps.optimiser.decayed(len(self.trial.batches))
        slack = 0.02 * max(self._shrunk, stated) + EPSILON
        if self._idle and self._shrunk >= -slack and abs(self._shrunk - stated) > slack:
            yield Cause("weight decay", f"weight decay: weights that no page moves shrank by {self._shrunk:.2g}, as a "
                        f"decay of {self.decay():.2g} at this rate would; the plan says "
                        f"{self.trial.plan.weight_decay:g}", FITTING - 2)  # fmt: skip

    def _batchings(self) -> Iterator[Cause]:
        """Other ways to make a batch's loss; then the most alike of them at the rate and decay that fit it, for the
        plan's may be wrong, too, or were fitted under its own way."""
        closest, alike = ALONG, dict[str, ImitatedRound]()
        for option, batching in self._ways():
            trial = replace(self.trial, batching=batching)
            if self._tried(trial):
                yield _reproduced(option.partition("=")[0], option)
                return
            left = MOST_STEPS - self.taken - len(trial.batches)
            if left >= 0 and (cosine := agreement(trial.sent, trial.replayed, trial.alive)[1]) > closest:
                closest, alike = cosine, {option: trial}
        for option, trial in alike.items():
            trial, rate = self.fitted(trial)
            if rate and self._idle:
                trial, rate = self.fitted(trial.planned(weight_decay=self.decay(rate)))
            if rate and self._tried(trial):
                option += f",learning_rate={rate:g},weight_decay={trial.plan.weight_decay:g}"
                yield _reproduced(option.partition("=")[0], option)

    def _ways(self) -> Iterator[tuple[str, Batching]]:
        """As --local says them."""
        now, truth = self.trial.batching, self.trial.truth
        longest = max((len(e.tensors.get("input_ids", ())) for e in truth.inputs), default=0)
        most = int(getattr(truth.model, "max_tokens", 0))
        for length in dict.fromkeys((LONGEST, most, *LENGTHS, UNPADDED)) if hasattr(truth.model, "padded") else ():
            if length != now.padding and (length <= 0 or longest <= length <= most):
                said = {LONGEST: "longest", UNPADDED: "none", most: "max_length"}.get(length, str(length))
                yield f"padding={said}", replace(now, padding=length)
        for labels in LABELS if hasattr(truth.model, "labelled") else ():
            if labels != now.labels:
                yield f"labels={labels}", replace(now, labels=labels)
        mean = "tokens" if now.mean == "examples" else "examples"
        if any("labels" in e.tensors for e in truth.inputs) and max(map(len, self.trial.batches)) > 1:
            yield f"mean={mean}", replace(now, mean=mean)

    def _clients(self) -> Iterator[Cause]:
        distance = gap(self.trial.sent, self.ours, self.trial.alive)
        for name, trial in self.others.items():
            if self._tried(trial):
                yield Cause("other client", f"pages: those of client {name} reproduce what was sent; were the two "
                            "exchanged?", REPRODUCED)  # fmt: skip
                return
            if self.taken <= MOST_STEPS and gap(trial.sent, trial.replayed, trial.alive) < 0.3 * distance:
                yield Cause("other client", f"pages: those of client {name} come closer", FITTING)

    def _orders(self) -> Tries:
        trial, count = self.trial, len(self.trial.truth.examples)
        if len(trial.batches) < 2 or count < 2:
            return
        drawn = (tuple(np.random.default_rng(seed).permutation(count).tolist()) for seed in range(8))
        orders = permutations(range(count)) if count <= 4 else drawn
        steps = assumed(count, trial.plan)
        taken = {tuple(map(frozenset, trial.batches))}  # a batch's loss is a mean: the order within it says nothing
        for order in (tuple(reversed(range(count))), *orders):
            batches = tuple(tuple(order[number] for number in batch) for batch in steps)
            if (sets := tuple(map(frozenset, batches))) not in taken:
                taken.add(sets)
                said = ", ".join(str(number + 1) for number in order)
                sentence = f"order: the examples in the order {said} reproduce what was sent; sort the pages so"
                yield Cause("order", sentence, REPRODUCED), replace(trial, batches=batches)

    def _clippings(self) -> Tries:
        size = sum(float(value.square().sum()) for value in self.trial.gradient.values()) ** 0.5
        for norm in NORMS:
            if norm < size and norm != self.trial.plan.max_norm:
                yield _reproduced("clipping", f"max_norm={norm:g}"), self.trial.planned(max_norm=norm)

    def _sizes(self) -> Tries:
        count, plan = len(self.trial.truth.examples), self.trial.plan
        sizes = [size for size in dict.fromkeys((1, 2, 4, 8, count)) if size <= count]
        for size, epochs in product(sizes, (1, 2, 3)):
            batches = assumed(count, replace(plan, batch_size=size, epochs=epochs, max_steps=0))
            if batches != self.trial.batches:
                yield _reproduced("steps", f"batch_size={size},epochs={epochs}"), replace(self.trial, batches=batches)


def _reproduced(key: str, option: str) -> Cause:
    return Cause(key, f"{key}: with --local {option} the self-test passes", REPRODUCED)


def _rounded(value: float) -> float:
    """To two digits."""
    return float(f"{value:.1e}")


def _on_grid(arrays: Mapping[str, np.ndarray], kind: torch.dtype) -> bool:
    """Whether every number is one of the half precision ``kind``."""
    tensors = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays.values())
    return all(tensor.dtype == kind or torch.equal(tensor.to(kind).to(tensor.dtype), tensor) for tensor in tensors)
