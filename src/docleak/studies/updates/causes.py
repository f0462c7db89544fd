"""Why the true pages do not reproduce what a client sent: possible causes, each tried, the most probable first.

A cause whose plan makes the self-test pass is certain; the others are told by what they leave behind in the difference
between what was sent and what the plan gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, permutations, product

import numpy as np

from docleak.attacks.gradients.local_steps import EPSILON, LABELS, LONGEST, UNPADDED, Batching
from docleak.studies.updates.round import ImitatedRound, agreement, assumed, gap
from docleak.studies.updates.traces import (
    ALIKE,
    DIRECTED,
    FITTING,
    MOST_STEPS,
    REPRODUCED,
    TRACED,
    Cause,
    Traces,
    rounded,
)

#: Causes that are named at most.
NAMED = 4
#: Share (squared) by which a replay is off that rounding and wrong signs do not explain: the self-test need not run.
FAR = 0.25
#: Lengths that tokenizers are often told to pad to.
LENGTHS = (64, 128, 256, 384, 512)
#: Norms that gradients are often clipped to.
NORMS = (1.0, 0.5, 0.1, 5.0)
#: What is left to name where nothing that was tried fits, the most probable first.
PRIOR = (
    ("pages", "other pages, questions or answers, or another model"),
    ("order", "another order, number or size of batches, or several added up to one"),
    ("optimiser", "another optimiser, or one with momentum or a state from before, or averaged weights (EMA)"),
    ("learning rate", "another learning rate, perhaps with a schedule"),
    ("dropout", "dropout that was on"),
    ("padding", "texts padded or cut to another length"),
    ("weight decay", "another weight decay, or not of all weights"),
    ("noise", "noise, or clipping of every example's gradient by itself"),
    ("precision", "half precision"),
)


#: Rounds under other plans, and the cause that each would prove.
Tries = Iterator[tuple[Cause, ImitatedRound]]


@dataclass
class Diagnosis(Traces):
    """The traces, and ``others``: the trial with another client's pages, by name."""

    others: Mapping[str, ImitatedRound] = field(default_factory=dict)

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
        spare, lacking, same = self._looked_up
        known = bool(same) and spare + lacking <= 0.1 * same  # the tokens that moved are those of these pages
        prior = sorted(PRIOR, key=lambda one: known and one[0] == "pages")
        weak = (Cause(key, f"{key}: {said}", 0.0) for key, said in prior if key not in best)
        return tuple(islice((*best.values(), *weak), NAMED))

    def _tried(self, trial: ImitatedRound) -> bool:
        """Whether the trial passes the self-test, as long as there are steps left to take; most are off by far."""
        if self.taken + len(trial.batches) > MOST_STEPS:
            return False
        self.taken += len(trial.batches)
        return gap(trial.sent, trial.replayed, self.trial.alive) < FAR and trial.passes

    def _first(self, trials: Callable[[], Tries]) -> Iterator[Cause]:
        """The first of other rounds that passes the self-test."""
        yield from islice((cause for cause, trial in trials() if self._tried(trial)), 1)

    # Other plans, tried.

    def _rates(self) -> Iterator[Cause]:
        factor, cosine = self.factor
        if factor <= 0 or cosine < DIRECTED or abs(factor - 1) < 1e-3:
            return
        trial, rate = self.fitted(self.trial)
        if rate and self._tried(trial):
            yield _reproduced("learning rate", f"learning_rate={rate:g}")
        elif cosine > ALIKE and abs(factor - 1) > 0.02:
            alone = ", or gradients of single examples clipped, as Opacus does" * (factor < 1 and self._batched_up)
            yield Cause("learning rate", f"learning rate, loss scale or smoothed labels{alone}: what was sent is "
                        f"{factor:.3g} times what the plan gives (cosine {cosine:.4f})", FITTING - 1)  # fmt: skip

    @property
    def _batched_up(self) -> bool:
        return max(map(len, self.trial.batches), default=0) > 1

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
        short = rounded(rate)
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
        if self._shrinking and -slack <= self._shrunk < 1 and abs(self._shrunk - stated) > slack:
            yield Cause("weight decay", f"weight decay: weights that no page moves shrank by {self._shrunk:.2g}, as a "
                        f"decay of {self.decay():.2g} at this rate would; the plan says "
                        f"{self.trial.plan.weight_decay:g}", FITTING - 2)  # fmt: skip

    def _batchings(self) -> Iterator[Cause]:
        """Other ways to make a batch's loss; then the most alike of them at the rate and decay that fit it, for the
        plan's may be wrong, too, or were fitted under its own way."""
        closest, alike = DIRECTED, dict[tuple[str, str], ImitatedRound]()
        for key, value, batching in self._ways():
            trial = replace(self.trial, batching=batching)
            if self._tried(trial):
                yield _reproduced(key, f"{key}={value}")
                return
            left = MOST_STEPS - self.taken - len(trial.batches)
            if left >= 0 and (cosine := agreement(trial.sent, trial.replayed, trial.alive)[1]) > closest:
                closest, alike = cosine, {(key, value): trial}
        for (key, value), trial in alike.items():
            trial, rate = self.fitted(trial)
            if rate and self._idle:
                trial, rate = self.fitted(trial.planned(weight_decay=self.decay(rate)))
            if rate and self._tried(trial):
                more = f"learning_rate={rate:g},weight_decay={trial.plan.weight_decay:g}"
                yield _reproduced(key, f"{key}={value},{more}")

    def _ways(self) -> Iterator[tuple[str, str, Batching]]:
        """As --local says them: key and value."""
        now, truth = self.trial.batching, self.trial.truth
        longest = max((len(e.tensors.get("input_ids", ())) for e in truth.inputs), default=0)
        most = int(getattr(truth.model, "max_tokens", 0))
        for length in dict.fromkeys((LONGEST, most, *LENGTHS, UNPADDED)) if hasattr(truth.model, "padded") else ():
            if length != now.padding and (length <= 0 or longest <= length <= most):
                said = {LONGEST: "longest", UNPADDED: "none", most: "max_length"}.get(length, str(length))
                yield "padding", said, replace(now, padding=length)
        for labels in LABELS if hasattr(truth.model, "labelled") else ():
            if labels != now.labels:
                yield "labels", labels, replace(now, labels=labels)
        mean = "tokens" if now.mean == "examples" else "examples"
        if any("labels" in e.tensors for e in truth.inputs) and self._batched_up:
            yield "mean", mean, replace(now, mean=mean)

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
