"""What a cause leaves behind in what a client sent, without another plan tried: kind, sign, precision, noise, pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from statistics import median

import numpy as np
import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.bag import tables_of
from docleak.attacks.gradients.local_steps import EPSILON
from docleak.models.base import dropout_rate, trainable
from docleak.spec import split_name
from docleak.studies.updates.round import ImitatedRound, agreement, gap

#: Weights of a cause: a plan that reproduces what was sent; a trace of its own; a trace that others leave, too.
REPRODUCED, TRACED, FITTING = 12.0, 8.0, 4.0
#: Optimiser steps that all replays of one client may take together.
MOST_STEPS = 150
#: Cosine from which two updates count as the same but for their length.
ALIKE = 0.99
#: Cosine from which one of two updates points where the other does.
DIRECTED = 0.8
#: Cosine below which what was sent points against what any optimiser would make of these pages.
AGAINST = -0.5
#: What Opacus' wrapper puts before the names of parameters.
OPACUS = "_module."
#: Weights that no page moves, or numbers of a tensor, from which something is said of them all.
LEAST = 1000
#: Half precisions: few numbers of fp16 are of bf16, not reversely.
HALF = ((torch.bfloat16, "bf16"), (torch.float16, "fp16"))
#: Matrices of which is asked along how many directions they moved.
MATRICES = 4
#: Different numbers that eight bits write.
LEVELS = 256


@dataclass(frozen=True)
class Cause:
    """``key`` is its name, ``sentence`` what was seen of it; ``reproduces``: a plan with it passes the self-test."""

    key: str
    sentence: str
    weight: float

    @property
    def reproduces(self) -> bool:
        return self.weight >= REPRODUCED


@dataclass
class Traces:
    """``trial`` is the round under the plan as it was described.

    ``received`` are the arrays as they came, called ``kind`` by who recorded them, ``begun`` those that the server
    sent, and ``unsent`` trainable parameters that did not come. ``told`` is what the capture says of the training that
    no plan imitates, and ``names`` are those that arrays came under where they are not the model's.
    """

    trial: ImitatedRound
    received: Mapping[str, np.ndarray]
    begun: Mapping[str, np.ndarray]
    unsent: Sequence[str] = ()
    kind: str = ""
    told: Sequence[str] = ()
    names: Sequence[str] = ()
    taken: int = 0

    @cached_property
    def ours(self) -> dict[str, Tensor]:
        """What the plan gives."""
        return self.trial.replayed

    @cached_property
    def factor(self) -> tuple[float, float]:
        """What times ``ours`` is closest to what was sent, and their cosine."""
        return agreement(self.trial.sent, self.ours, self.trial.alive)

    def _traces(self) -> Iterator[Cause]:
        for said in self.told:
            yield Cause(split_name(said)[0], f"{said}, as recorded, which is not imitated", TRACED + 2)
        yield from self._kind()
        packed = [*self._compressed()]
        yield from packed or self._precision()
        yield from self.left_out()
        merged = [*self._merged()]
        yield from merged
        yield from self._clipped()
        yield from self._by_layer()
        noise = [] if merged else [*self._noise()]
        yield from noise
        if not noise and not packed:
            yield from self._single()
            yield from self._rows()
            yield from self._dropout()
        test = self.trial.test(causes=True)
        for said in test.causes if test else ():
            if said.startswith(("pixel normalisation", "label mask", "tied weights")):
                yield Cause(split_name(said)[0], said, TRACED)

    def left_out(self) -> Iterator[Cause]:
        """What did not come, or did not move."""
        trial, names = self.trial, [name for name, _ in trainable(self.trial.truth.model.module)]
        if self.unsent:
            yield Cause("partial", f"partial send: {len(self.unsent)} of {len(names)} tensors did not come, first "
                        f"{self.unsent[0]}", TRACED + 1)  # fmt: skip
        whole = replace(trial, sent=trial.whole, frozen=frozenset())
        if trial.frozen and (still := [name for name in whole.alive if name in trial.frozen]):
            yield Cause("partial", f"partial training: {len(still)} of {len(names)} tensors did not move, first "
                        f"{still[0]}; they are taken to be frozen, and left aside", FITTING - 2)  # fmt: skip

    def _merged(self) -> Iterator[Cause]:
        """Matrices alone moved, each along fewer directions than the pages' own steps move it."""
        trial, moved = self.trial, self.trial.sent
        if self.kind == "gradient" or not moved or any(value.ndim != 2 for value in moved.values()):
            return
        still = [name for name in replace(trial, sent=trial.whole, frozen=frozenset()).alive if name in trial.frozen]
        looked_at = [name for name in moved if name in trial.alive][:MATRICES]
        ranks = [(self._rank(name, moved[name]), self._rank(name, self.ours[name])) for name in looked_at]
        if still and ranks and all(sent > 0 and 2 * sent <= ours for sent, ours in ranks):
            yield Cause("adapters", f"adapters: {len(moved)} matrices moved and nothing else, {len(still)} tensors "
                        f"that these pages move did not, and {looked_at[0]} moved along {ranks[0][0]} directions where "
                        f"the plan moves it along {ranks[0][1]}: adapters (LoRA) that were merged into their base, "
                        "which is not imitated; record the adapters themselves", TRACED + 2)  # fmt: skip

    def _rank(self, name: str, moved: Tensor) -> int:
        """Directions along which a matrix moved by more than rounding its weights does."""
        rounding = EPSILON * float(self.trial.start[name].square().mean().sqrt())
        return int((torch.linalg.svdvals(moved.double()) > rounding * sum(side**0.5 for side in moved.shape)).sum())

    def _single(self) -> Iterator[Cause]:
        """Gradients of single examples, clipped: Opacus, by the names of its wrapper, or by the row of a padding token,
        which torch keeps still and Opacus does not."""
        said = "is not imitated: it clips the gradient of every example, adds noise, and draws batches by chance"
        if rows := self._padding:
            yield Cause("single", f"Opacus, which {said}: the padding token's row of {rows[0]} moved, which torch "
                        "itself keeps still", TRACED + 1)  # fmt: skip
        elif any(name.startswith(OPACUS) for name in self.names):
            yield Cause("single", f"Opacus, which {said}: names begin with {OPACUS}, as its wrapper's do", FITTING + 1)

    @property
    def _padding(self) -> list[str]:
        """Names of tables whose row for padding moved, beyond decay, while most of what no page looks up did not."""
        tables = []
        for name, part in self.trial.truth.model.module.named_modules():
            table, row = f"{name}.weight", getattr(part, "padding_idx", None)
            if row is not None and table in self._idle:
                left = self._beyond_decay(table)
                if bool(left[row].any()) and float(left[self._idle[table].all(1)].double().mean()) < 0.1:
                    tables.append(table)
        return tables

    def _beyond_decay(self, table: str) -> Tensor:
        """Where (as a mask) numbers moved by more than decay and rounding explain."""
        start, sent = self.trial.start[table], self.trial.sent[table].double()
        share, spread = self._shrinking or (0.0, 0.0)
        # Every step rounds the weights once more, and the spread says how often; of a gradient nothing is rounded.
        rounding = 0.0 if self.kind == "gradient" else 4 * max(EPSILON, 3 * spread)
        return (sent - share * start).abs() > rounding * start.abs().clamp_min(1e-30)

    def _kind(self) -> Iterator[Cause]:
        """Arrays of another kind than they are called, or of the other sign."""
        names = self.received.keys() & self.begun.keys()
        pairs = ((self.received, self.begun), (self.received, self.received), (self.begun, self.begun))
        both, length, begun = (sum(_dot(one[name], other[name]) for name in names) for one, other in pairs)
        same = both / (length * begun) ** 0.5 if length * begun else 0.0
        there = {name: ours.device for name, ours in self.ours.items() if name in self.received}
        came = {name: torch.from_numpy(self.received[name]).to(device) for name, device in there.items()}
        moved = agreement(came, self.ours, [name for name in self.trial.alive if name in came])[1]
        if self.kind == "weights" and same < 0.5 and (abs(moved) > DIRECTED or self._zeros(came)):
            yield Cause("kind", f"kind: what came as weights is not like the weights before (cosine {same:.2f}); it is "
                        "a difference or a gradient: give the weights after, or record it so", TRACED + 3)  # fmt: skip
        elif self.kind in ("delta", "gradient") and same > ALIKE and 0.25 < length / begun < 4:
            yield Cause("kind", f"kind: what came as a {self.kind} is like the weights before (cosine {same:.3f}); it "
                        "is the weights after, and has to be recorded as weights", TRACED + 3)  # fmt: skip
        elif self.factor[1] < AGAINST:
            why = {
                "weights": "were the weights before and after exchanged?",
                "delta": "a delta is the weights before less those after",
                "gradient": "a gradient is that of the loss, and not a step down",
            }
            yield Cause("sign", f"sign: what was sent points against what the plan gives (cosine "
                        f"{self.factor[1]:.2f}); {why.get(self.kind, 'is it the other one?')}", TRACED + 3)  # fmt: skip

    def _zeros(self, came: Mapping[str, Tensor]) -> bool:
        """Whether what came is zero wherever no page moves a weight, and these weights are not."""
        pools = [(came[n][where], self.trial.start[n][where]) for n, where in self._idle.items() if n in came]
        there = sum(int((start != 0).sum()) for _, start in pools)
        return there >= LEAST and not any(bool(value[start != 0].any()) for value, start in pools)

    def _compressed(self) -> Iterator[Cause]:
        """Tensors of few different numbers, or numbers left out one by one where every page moves them."""
        large = [array for array in self.received.values() if array.size >= LEAST and np.ptp(array)]
        if large and all(len(np.unique(array)) <= LEVELS for array in large):
            most = max(len(np.unique(array)) for array in large)
            half = ", or of numbers too small for fp16" * _on_grid(self.received, torch.float16)
            yield Cause("compression", f"compression: no tensor that came has more than {most} different numbers, as "
                        f"of an update in few bits, or of signs{half}; it hides small gradients",
                        TRACED + 2)  # fmt: skip
            return
        if self.kind == "weights" and any(_on_grid(self.received, kind) for kind, _ in HALF):
            return  # which rounds small steps away
        names = [name for name in self.trial.alive if name not in self._idle]
        sent, ours, start = (
            torch.cat([values[name].double().flatten() for name in names] or [torch.zeros(0)])
            for values in (self.trial.sent, self.ours, self.trial.start)
        )
        factor, cosine = agreement({"": sent}, {"": ours * (sent != 0)}, [""])
        wanted = (factor * ours).abs() > 4 * EPSILON * start.abs()
        gone = float((sent[wanted] == 0).double().mean()) if bool(wanted.any()) else 0.0
        if gone > 0.1 and cosine > DIRECTED:
            yield Cause("compression", f"compression: {gone:.0%} of the numbers that the plan moves came as zero, and "
                        f"the others as it moves them (cosine {cosine:.3f}): a part was left out, as of top-k or a "
                        "random mask", TRACED + 2)  # fmt: skip

    def _by_layer(self) -> Iterator[Cause]:
        """Every tensor points where the plan's does, each at a length of its own."""
        pairs = [agreement(self.trial.sent, self.ours, [name]) for name in self.trial.alive]
        factors = sorted(factor for factor, cosine in pairs if cosine > ALIKE)
        if len(factors) > 0.9 * len(pairs) and factors[-1] > 2 * factors[0] > 0:
            yield Cause("optimiser", f"optimiser: tensors point where the plan's do, and are {factors[0]:.2g} to "
                        f"{factors[-1]:.2g} times as long: a rate for each, as of LAMB, LARS or Adafactor, or each "
                        "clipped or scaled by itself", TRACED)  # fmt: skip

    def _precision(self) -> Iterator[Cause]:
        for kind, name in HALF:
            if not self.received or not _on_grid(self.received, kind):
                continue
            if _on_grid(self.begun, kind):
                yield Cause("precision", f"precision: the weights before and what came are all numbers of {name}: what "
                            "a step moves by less than its rounding is lost", TRACED + 1)  # fmt: skip
            else:
                yield Cause("precision", f"precision: every number that came is one of {name}, and the weights that "
                            "were sent are not; the rounding hides small gradients", TRACED + 1)  # fmt: skip
            return
        factor, cosine = self.factor
        if cosine > ALIKE and abs(factor - 1) < 0.02:
            yield Cause("precision", f"precision: what was sent differs from what the plan gives by little (cosine "
                        f"{cosine:.5f}), as after computing in half precision, or with other betas, another epsilon, a "
                        "decay of some weights alone, signs alone (Lion) or packed texts", FITTING)  # fmt: skip

    def _clipped(self) -> Iterator[Cause]:
        """An update that was scaled down as a whole after training."""
        factor, trial = self.factor[0], self.trial
        scaled = {name: factor * value for name, value in self.ours.items()}
        if not 0 < factor < 0.999 or gap(trial.sent, scaled, trial.alive) > 1e-4:
            return
        norm = sum(float(value.double().square().sum()) for value in trial.sent.values()) ** 0.5
        round_norm = abs(rounded(norm) / norm - 1) < 1e-4
        yield Cause("clipping", f"clipping: what was sent is {factor:.4g} times what the plan gives, to a norm of "
                    f"{norm:.5g}", TRACED if round_norm else FITTING - 2)  # fmt: skip

    def _noise(self) -> Iterator[Cause]:
        """What is left is equally large in every tensor, wherever the gradient points, and normally distributed; or
        every weight moves that no page does, up as often as down: what AdamW makes of noise in their gradients."""
        factor, cosine = self.factor
        scale = factor if cosine > 0.5 else 0.0
        left = {name: value.double() - scale * self.ours[name] for name, value in self.trial.sent.items()}
        idle = torch.cat([left[name][where] for name, where in self._idle.items()]) if self._idle else torch.zeros(0)
        size = float(idle.square().mean().sqrt()) if len(idle) >= LEAST else 0.0
        up, still = (float(mask.double().mean()) for mask in (idle > 0, idle.abs() < 0.01 * size))
        if self.trial.plan.optimiser == "adamw" and size > 0.1 * self.trial.plan.learning_rate:
            start = torch.cat([self.trial.start[name][where] for name, where in self._idle.items()])
            signs = float((idle.sign() * start.sign()).mean())
            if still >= 0.1 or self._shrunk:  # most of them moved by decay alone
                return
            if abs(signs) > 0.5:
                yield Cause("pull", f"pull: weights that no page moves moved {'towards' if signs > 0 else 'away from'} "
                            f"zero, as the sign of each tells, by about {size:.2g}: a pull inside the gradient, as "
                            "of torch.optim.Adam's weight_decay or of FedProx, is not imitated", TRACED)  # fmt: skip
            elif abs(up - 0.5) < 0.1:
                yield Cause("noise", f"noise: weights that no page moves moved all the same, up as often as down, by "
                            f"about {size:.2g}, as of noise in their gradients", TRACED)  # fmt: skip
            return
        sizes = sorted(float(value.square().mean().sqrt()) for value in left.values() if value.numel() >= 48)
        if len(sizes) < 4 or sizes[0] == 0 or sizes[(9 * len(sizes)) // 10] > 1.5 * sizes[len(sizes) // 10]:
            return
        pool = idle if len(idle) >= LEAST else torch.cat([value.flatten() for value in left.values()])
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
        spare, lacking, same = self._looked_up
        if spare + lacking <= 0.1 * (same + spare + lacking):
            return
        if not lacking:
            said = f"all tokens and coordinates of these pages moved, and {spare} more: were there more pages or "
            said += "questions, or what others left in it (momentum, SCAFFOLD's control variates)?"
        elif not spare:
            said = f"of the tokens and coordinates of these pages {lacking} did not move, and none of others did: "
            said += "were there fewer pages or questions, or was a part left out?"
        else:
            said = f"of the tokens and coordinates {spare} moved that these pages do not have, and {lacking} of "
            said += "theirs did not; are they other pages or questions?"
        yield Cause("pages", f"pages: {said}", TRACED)

    @cached_property
    def _looked_up(self) -> tuple[int, int, int]:
        """Rows that moved and are none of the pages', that are and did not, and that did; of tables that tell."""
        trial, spare, lacking, same = self.trial, 0, 0, 0
        tokens, axes = tables_of(trial.truth.model)
        for name in (tokens, *axes.values()):
            if name not in trial.sent or name not in self._idle:
                continue
            moved, theirs = self._beyond_decay(name).any(1), ~self._idle[name].all(1)
            if float(moved.double().mean()) < 0.9:  # else the table is the output layer, too, or nothing is told apart
                spare, lacking = spare + int((moved & ~theirs).sum()), lacking + int((theirs & ~moved).sum())
                same += int((moved & theirs).sum())
        return spare, lacking, same

    @property
    def _shrunk(self) -> float:
        """Share of a weight that decay took where no page moves it; 0.0 where it is not about the same of all."""
        return (self._shrinking or (0.0, 0.0))[0]

    @cached_property
    def _shrinking(self) -> tuple[float, float] | None:
        """That share, and how far half of these weights' shares are from it; None where it cannot be told."""
        ratios = [
            (self.trial.sent[name].double()[where] / self.trial.start[name][where]).flatten()
            for name, where in self._idle.items()
        ]
        known = torch.cat(ratios) if ratios else torch.zeros(0)
        known = known[torch.isfinite(known)]
        if len(known) < 100:
            return None
        share = float(known.median()) + 0.0  # no minus zero
        spread = float((known - share).abs().median())
        return (share, spread) if spread < max(EPSILON, 0.5 * abs(share)) else None

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
        longer = median(_power(trial.sent, trial.alive) / _power(one, trial.alive) for one in drawn)  # squared
        if 0.25 < longer < 4 and all(0.6 < ratio < 1.7 for ratio in (away / among, distance / middle)):
            yield Cause("dropout", "dropout: what was sent is as far from replays with dropout as these are from one "
                        f"another ({away**0.5:.2f} and {among**0.5:.2f}); the client's masks cannot be known",
                        TRACED - 1)  # fmt: skip
        elif trial.plan.dropout:
            yield Cause("dropout", "dropout: it is taken to have been on, unless dropout=no is said, and its masks "
                        "cannot be known, but replays with other masks are not as far off", FITTING - 2)  # fmt: skip


def _power(one: Mapping[str, Tensor], names: Sequence[str]) -> float:
    return sum(float(one[name].double().square().sum()) for name in names) or math.inf


def _dot(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.vdot(one.astype(np.float64), other.astype(np.float64)))


def rounded(value: float) -> float:
    """To two digits."""
    return float(f"{value:.1e}")


def _on_grid(arrays: Mapping[str, np.ndarray], kind: torch.dtype) -> bool:
    """Whether every number is one of the half precision ``kind``."""
    tensors = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays.values())
    return all(tensor.dtype == kind or torch.equal(tensor.to(kind).to(tensor.dtype), tensor) for tensor in tensors)
