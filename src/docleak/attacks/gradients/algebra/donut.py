"""Question and answer of a Donut client from its gradient, in closed form.

GI-DQA (Ben Hemo et al., 2025, section 3.3) leaves this open. Three facts settle it for one document:

1. The gradient of the position table has one row per position t, the gradient delta_t at the input of the embedding's
   LayerNorm. The rows that are not zero are the positions that were used.
2. delta_t is orthogonal to the vector that was normalised, scale · E_v + P_t for token v (see ``layernorm``). E and P
   are known, so each position tests each token of the vocabulary. Dropout comes after the norm and changes nothing;
   nor do tied weights, the number of tokens or the picture.
3. The token table's gradient is the sum of scale · delta_t over the positions of each token plus, where it is tied to
   the output layer, a dense part of rank S, the number of labels (see ``peeling``). It settles the positions where
   chance lets several tokens pass, carries the load where the gradient is noisy, and proves the whole.

The fixed parts of Donut's prompt say where the question ends and the answer begins.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.layernorm import NormInputs
from docleak.attacks.gradients.algebra.peeling import (
    CANDIDATE,
    Mixture,
    Residue,
    assign,
    contested,
    dense_rank,
    mismatch,
    residue,
)
from docleak.attacks.gradients.algebra.recovered import Condition, Recovered
from docleak.attacks.gradients.view import GradientView
from docleak.errors import AttackError
from docleak.models.base import Encoded, plain_ids
from docleak.models.donut import END, IGNORED, Donut

#: Rounding of a row of the token table's gradient, relative to the norm of the whole table's.
ROW_ROUNDING = 3e-7
#: A fixed token may stand in its place unless another is likelier by more than this (log-odds).
ODDS = 12.0
#: Under noise, log-odds against a fixed token beyond this (3 standard deviations) make another length worth a try.
STRAIN = 4.5
#: At most this many positions at the end are taken to be hidden in the noise,
HIDDEN = 5
#: and each must make the text this much more plausible (found on the shipped models under noise).
LONGER = 1.2
#: The adversary calls a position settled from this probability on,
SETTLED = 0.99
#: and trusts positions whose gradient is at least this many times as long as its noise.
CLEAR = 10.0
#: The output layer's part has the rank it must have if its smallest singular value is this many times the next one;
#: and a token is told from a rival that chance lets pass if that leaves this many times as much unexplained.
GAP = 3.0
#: Rivals of a settled token are those so little behind it (log-odds), of others those that are no further than
#: CANDIDATE. Beyond this number they are not tried, and the text is not believed then.
CLOSE = 7.0
MOST_RIVALS = 200


def recover_text(view: GradientView) -> Recovered:
    """The one example behind ``view`` in the form ``Donut.encode`` makes, read out of the gradient alone.

    Needs the gradient of the decoder's position table; uses that of its token table where it is there. ``exact`` is
    True if every position is settled and clear of noise, the prompt's fixed tokens may stand in their places, no row
    of the token table's gradient is left unexplained, and where chance lets several tokens pass the others leave GAP
    times as much. Raises AttackError for several examples in one gradient, for models other than Donut, and where the
    position table's gradient is missing or drowned in noise.
    """
    started = time.perf_counter()
    tables = _Tables.of(view)
    protocol = _Protocol.of(tables.model)
    best = _likeliest(tables, protocol)
    inputs = (_encoded(tables.model, best.tokens.tolist(), best.place.answer),)
    decisive, others = best.conditions(tables)
    exact = all(c.holds for c in decisive)
    return Recovered(inputs, exact, (*decisive, *others), time.perf_counter() - started)


def _likeliest(tables: _Tables, protocol: _Protocol) -> _Reading:
    """Texts as long as the visible positions, and longer where noise may hide the last ones; the likeliest of them."""
    readings = [_Reading.of(tables, protocol, tables.signal())]
    visible = readings[0].signal.count
    last = min(visible + HIDDEN, len(tables.positions)) if readings[0].signal.noise > 0 else visible
    while not readings[-1].plausible and readings[-1].signal.count < last:
        readings.append(_Reading.of(tables, protocol, tables.signal(readings[-1].signal.count + 1)))
    odds = [(misfit, worst * LONGER**extra) for extra, (misfit, worst) in enumerate(r.implausibility for r in readings)]
    return readings[odds.index(min(odds))]


@dataclass(frozen=True)
class _Tables:
    """The tables of the decoder's embedding, and their gradients in the view."""

    model: Donut
    offset: int  # first row of the position tables that a position uses
    position_gradient: Tensor  # (offset + positions, d)
    word_gradient: Tensor | None  # (V, d)
    head_gradient: Tensor | None  # (V, d), of an output layer of its own
    positions: Tensor  # (positions, d)
    words: Tensor  # (V, d)
    scale: float
    epsilon: float
    tied: bool

    @classmethod
    def of(cls, view: GradientView) -> _Tables:
        model = view.model
        if not isinstance(model, Donut):
            raise AttackError(f"model {model.name!r} is no Donut; its text needs another closed form.")
        if view.batch_size != 1:
            raise AttackError(
                f"the gradient is a mean over {view.batch_size} examples; the closed form reads one. Where examples "
                "overlap, a row of the position table's gradient is a sum that no token explains alone. Audit one "
                "example per gradient, or give question and answer."
            )
        decoder, head = model.module.decoder.model.decoder, model.module.decoder.lm_head.weight
        names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        position, word = names[id(decoder.embed_positions.weight)], names[id(decoder.embed_tokens.weight)]
        if position not in view.gradient:
            raise AttackError(
                f"the closed form needs the gradient of {position} (and is surer with that of {word}), which the "
                f"client has to train and to send; the view has {len(view.names)} other tensors. Otherwise give "
                "question and answer."
            )
        offset = int(getattr(decoder.embed_positions, "offset", 0))
        return cls(
            model=model,
            offset=offset,
            position_gradient=view.gradient[position].cpu(),
            word_gradient=_sent(view, word),
            head_gradient=_sent(view, names[id(head)]),
            positions=decoder.embed_positions.weight.detach().cpu()[offset:],
            words=decoder.embed_tokens.weight.detach().cpu(),
            scale=float(getattr(decoder.embed_tokens, "embed_scale", 1.0)),
            epsilon=float(decoder.layernorm_embedding.eps),
            tied=names[id(head)] == word,
        )

    def signal(self, count: int | None = None) -> NormInputs:
        """delta_t of every position in use."""
        return NormInputs.of(self.position_gradient[self.offset :], self.position_gradient[: self.offset], count)

    def costs(self, signal: NormInputs) -> Tensor:
        """Negative log-likelihood (T, V) of each token by fact 2."""
        places = self.positions[: signal.count]
        return signal.costs(self.words, places, scale=self.scale, epsilon=self.epsilon)

    def mixture(self, signal: NormInputs, labels: int) -> Mixture | None:
        """The token table's gradient as a sum over positions; all ``labels`` but the end token are inputs too."""
        if self.word_gradient is None:
            return None
        rounding = ROW_ROUNDING**2 * float(self.word_gradient.square().mean())
        return Mixture(
            rows=self.word_gradient,
            deltas=signal.deltas,
            scale=self.scale,
            variance=signal.noise**2 + rounding,
            blur=self.scale**2 * signal.blur,
            rank=labels if self.tied else 0,
            first_label=signal.count + 1 - labels,
        )

    def label_count(self, signal: NormInputs, tokens: Tensor) -> int:
        """How many labels there were, by the rank of the output layer's gradient; for prompts that do not fit."""
        if not self.tied and self.head_gradient is not None:
            alone = Mixture(self.head_gradient, signal.deltas[:0], self.scale, signal.noise**2, 0.0)
            count = dense_rank(alone, tokens[:0])
        else:
            mixture = self.mixture(signal, labels=0) if self.tied else None
            count = 1 if mixture is None else dense_rank(mixture, tokens)
        return min(max(count, 1), signal.count)


@dataclass(frozen=True)
class _Protocol:
    """The tokens every client of this model sends in fixed order."""

    opening: tuple[int, ...]  # from the start token to where the question begins
    middle: tuple[int, ...]  # between question and answer
    closing: tuple[int, ...]  # after the answer
    plain: Tensor  # what questions and answers are made of

    @classmethod
    def of(cls, model: Donut) -> _Protocol:
        before, mark, after = model.prompt.partition("{question}")
        if not mark or not after:
            raise AttackError(
                f"the prompt {model.prompt!r} has no fixed text after the question, so nothing shows where the answer "
                "begins. Use a prompt like Donut's own."
            )
        start = int(model.module.config.decoder_start_token_id)
        opening = (start, *_ids(model, before))
        return cls(opening, _ids(model, after), _ids(model, END), plain_ids(model.tokenizer))

    def place(self, costs: Tensor, mixture: Mixture | None) -> _Place:
        """The likeliest place of the fixed tokens, and whether they may stand there."""
        against = costs - costs.min(1, keepdim=True).values  # log-odds against each token
        last = len(costs) - len(self.closing)
        starts = range(len(self.opening), last - len(self.middle) + 1)
        if not starts:
            return _Place({}, {}, 1, self.plain)
        middle = torch.tensor(self.middle)
        evidence = against[:, middle]
        once = ~torch.isin(middle, self.plain)
        if mixture is not None and bool(once.any()):
            evidence[:, once] += mismatch(mixture, costs, middle[once])
        at = min(starts, key=lambda j: float(evidence[j : j + len(middle)].diagonal().sum()))
        fixed = dict(enumerate(self.opening))
        fixed |= {at + i: token for i, token in enumerate(self.middle)}
        fixed |= {last + i: token for i, token in enumerate(self.closing)}
        strains = {t: float(against[t, token]) for t, token in fixed.items()}
        return _Place(fixed, strains, at + len(middle), self.plain)


@dataclass(frozen=True)
class _Place:
    """Where the fixed tokens stand, log-odds against each, and the first position after the prompt."""

    fixed: dict[int, int]
    strains: dict[int, float]
    answer: int
    plain: Tensor

    @property
    def strain(self) -> float:
        """The largest log-odds against a fixed token."""
        return max(self.strains.values(), default=math.inf)

    @property
    def fits(self) -> bool:
        """Whether no fixed token is out of the question."""
        return self.strain <= ODDS

    def constrained(self, costs: Tensor) -> Tensor:
        """Costs with infinity for what the protocol excludes; as they are where the protocol does not fit."""
        if not self.fits:
            return costs
        allowed = torch.full_like(costs, math.inf)
        allowed[:, self.plain] = costs[:, self.plain]
        for t, token in self.fixed.items():
            allowed[t] = math.inf
            allowed[t, token] = 0.0
        return allowed

    def condition(self, model: Donut) -> Condition:
        """Whether the adversary's idea of the prompt holds."""
        wrong = [str(t) for t, odds in self.strains.items() if odds > ODDS]
        place = f"answer from position {self.answer}" if self.fits else f"not at {', '.join(wrong) or 'any position'}"
        return Condition(f"the fixed tokens of {model.prompt!r} in their places", place, self.fits)


@dataclass(frozen=True)
class _Reading:
    """One decoding of all positions, for one number of them, and how well it explains the gradient."""

    signal: NormInputs
    place: _Place
    belief: Tensor  # (T, V)
    mixture: Mixture | None
    residue: Residue | None
    by_costs: bool  # whether fact 2 alone settles every position
    rivalry: float = math.inf  # how many times as much as the text its nearest rival leaves unexplained

    @classmethod
    def of(cls, tables: _Tables, protocol: _Protocol, signal: NormInputs) -> _Reading:
        costs = tables.costs(signal)
        place = protocol.place(costs, tables.mixture(signal, labels=signal.count // 4))
        if not place.fits:
            place = replace(place, answer=signal.count + 1 - tables.label_count(signal, costs.argmin(1)))
        mixture = tables.mixture(signal, labels=signal.count + 1 - place.answer)
        allowed = place.constrained(costs)
        alone = (-allowed).softmax(1)
        by_costs = bool((alone.max(1).values >= SETTLED).all())
        if mixture is None:
            return cls(signal, place, alone, None, None, by_costs)
        first = cls(signal, place, alone, mixture, _residue(mixture, alone.argmax(1)), by_costs)
        done = by_costs and first.plausible
        if signal.noise > 0:
            belief = alone if done else assign(mixture, allowed)
            return replace(first, belief=belief, residue=_residue(mixture, belief.argmax(1)))
        behind = allowed - allowed.min(1, keepdim=True).values
        near = torch.where(alone.max(1).values < SETTLED, CANDIDATE, CLOSE)
        rivals: list[tuple[int, int]] = [(t, v) for t, v in (behind <= near[:, None]).nonzero().tolist()]
        belief = alone if done else assign(mixture, allowed.masked_fill(behind > CANDIDATE, math.inf))
        tokens, rivalry = belief.argmax(1), 0.0
        if len(rivals) <= len(behind) + MOST_RIVALS:
            tokens, rivalry = contested(tokens, rivals, partial(_residue, mixture))
            moved = tokens != belief.argmax(1)
            belief[moved] = torch.nn.functional.one_hot(tokens[moved], belief.shape[1]).to(belief)
        return replace(first, belief=belief, residue=_residue(mixture, tokens), rivalry=rivalry)

    @property
    def tokens(self) -> Tensor:
        """The likeliest token at each position."""
        return self.belief.argmax(1)

    @property
    def tolerance(self) -> float:
        """How large the largest row may be, in units of its noise: one standard deviation above what to expect."""
        rows, width = self.belief.shape[1], self.signal.deltas.shape[1]
        return 1 + (1 + math.sqrt(2 * math.log(rows))) / math.sqrt(2 * width)

    @property
    def implausibility(self) -> tuple[bool, float]:
        """Whether the fixed tokens cannot stand in their places; how badly the worst of them or of the rows fits."""
        left = self.residue.largest_row if self.residue else 0.0
        return not self.place.fits, max(left / self.tolerance, self.place.strain / STRAIN)

    @property
    def plausible(self) -> bool:
        """Whether everything fits as well as noise lets see."""
        return self.implausibility <= (False, 1.0)

    def conditions(self, tables: _Tables) -> tuple[list[Condition], list[Condition]]:
        """Those that the adversary's belief hangs on, and others."""
        decisive = [self._settled(), self.place.condition(tables.model), self._clear()]
        if self.mixture is None or self.residue is None:
            return decisive, [Condition("gradient of the token table sent", "no, positions alone", False)]
        left, width = self.residue, self.signal.deltas.shape[1]
        evidence = f"largest row left is {left.largest_row:.2g} times its noise"
        decisive.append(Condition("token table's gradient explained", evidence, left.largest_row <= self.tolerance))
        if self.signal.noise == 0:
            decisive.append(self._told_apart())
        if not tables.tied:
            return decisive, [Condition("token table serves the input only", "the output layer has its own", True)]
        rank = self.mixture.rank
        evidence = f"singular value {rank} of {width} is {left.last:.1e} times the noise, the next {left.next:.1e}"
        shown = Condition("the answer's share of the token table shows in full", evidence, left.last > GAP * left.next)
        fewer = Condition("fewer answer tokens than the width", f"{rank} of {width}", rank < width)
        if self.by_costs:  # the positions alone settle everything, and nothing speaks against it
            return decisive, [shown, fewer]
        if self.signal.noise == 0:  # few candidates are left, and a wrong one stands out beside the right one
            return [*decisive, fewer], [shown]
        return [*decisive, shown, fewer], []

    def _told_apart(self) -> Condition:
        evidence = f"the nearest rival leaves {self.rivalry:.2g} times as much of the token table"
        evidence = evidence if math.isfinite(self.rivalry) else "no other token passes"
        return Condition("tokens that chance lets pass are told apart", evidence, self.rivalry > GAP)

    def _settled(self) -> Condition:
        least = self.belief.max(1).values
        sure = int((least >= SETTLED).sum())
        evidence = f"{sure} of {len(least)}, least probability {float(least.min()):.3f}"
        return Condition("one token fits each position", evidence, sure == len(least))

    def _clear(self) -> Condition:
        weakest = float(self.signal.deltas.norm(dim=1).min())
        noise = self.signal.noise * math.sqrt(self.signal.deltas.shape[1])
        evidence = (
            f"weakest of {self.signal.count} is {weakest:.1e}, noise {noise:.1e} in {self.signal.unused} unused ones"
        )
        return Condition(f"every position's gradient {CLEAR:.0f} times its noise", evidence, weakest > CLEAR * noise)


def _residue(mixture: Mixture, tokens: Tensor) -> Residue:
    """What the tokens leave, in units of noise and rounding."""
    uses = torch.bincount(tokens, minlength=len(mixture.rows))
    noise = (mixture.deltas.shape[1] * (mixture.variance + uses * mixture.blur)).sqrt()
    return residue(mixture, tokens, noise + ROW_ROUNDING * float(mixture.rows.norm()))


def _encoded(model: Donut, tokens: list[int], answer: int) -> Encoded:
    """The form of ``Donut.encode``: ``tokens`` are all inputs, the answer's begin at ``answer``; ids on the CPU."""
    ids = [*tokens, int(model.tokenizer.eos_token_id)]
    tensors = {
        "decoder_input_ids": torch.tensor(tokens),
        "labels": torch.tensor([IGNORED] * (answer - 1) + ids[answer:]),
        "prompt_ids": torch.tensor(ids[:answer]),
    }
    return Encoded(tensors, tuple(model.tokenizer.convert_ids_to_tokens(ids)))


def _sent(view: GradientView, name: str) -> Tensor | None:
    """The gradient of that tensor, unless it is missing or all zeros (frozen, or pruned away)."""
    value = view.gradient.get(name)
    return None if value is None or not bool(value.any()) else value.detach().cpu()


def _ids(model: Donut, text: str) -> tuple[int, ...]:
    return tuple(int(i) for i in model.tokenizer(text, add_special_tokens=False)["input_ids"])
