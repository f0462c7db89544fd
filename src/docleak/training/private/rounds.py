"""The client's and the server's part of FL-PROVIDER-DP, and both in one process (Tito et al., 2024, Algorithm 1).

Read as docs/privacy.md says: clients and units are drawn by coins, M is a public constant, and each of the |K| drawn
clients adds a share N(0, sigma^2 C^2 / |K|) to its sum, so that the sum over clients has the whole noise. A lone update
is under-noised by sqrt(|K|) unless secure aggregation hides it. Updates are Delta = theta_t - y, as everywhere in
docleak; the paper's u is -Delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from docleak.documents.page import Page
from docleak.errors import PrivacyError
from docleak.models.base import DocumentModel, trainable
from docleak.privacy.ledger import Ledger
from docleak.privacy.mechanism import Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.fedopt import ClientUpdate, FedOpt, ServerState, step
from docleak.training.federated.local import parameters_of, set_parameters, train_in_place
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.private.clipping import LeftOutError, clipped_sum
from docleak.training.private.units import check_silos, units_of

#: Who stands in for a client without an update; begins like no silo's name.
STAND_IN = "(server noise {})"

#: A share of noise is within so many of its standard deviations, but for a probability far below any delta.
WIDEST = 10.0

FloatArray = NDArray[np.float32]
#: What some units do in the place of training on their pages, by name: each changes the model in place, and is clipped.
Instead = Mapping[str, Callable[[DocumentModel], None]]


@dataclass(frozen=True)
class PrivateRound:
    """What a client sends, ``update``; all else is private, and stays in the silo.

    ``update.examples`` is 1: clients count alike, and the number of questions is nobody's business. ``units`` were
    drawn, and ``norms`` are the lengths of their differences, of which ``clipped`` were more than C. ``notes`` say to
    whoever runs the silo what did not go as planned.
    """

    update: ClientUpdate
    units: tuple[str, ...]
    clipped: int
    norms: tuple[float, ...]
    notes: tuple[str, ...] = ()


def client_round(
    model: DocumentModel, pages: Sequence[Page], plan: DpPlan, local: LocalPlan, *, weights: Mapping[str, FloatArray],
    client: str, clients_drawn: int, randomness: Randomness, instead: Instead = MappingProxyType({}),
    most: float = math.inf,
) -> PrivateRound:  # fmt: skip
    """Algorithm 1, lines 10-19: train on each drawn unit from ``weights``, clip, sum, add noise, divide by M.

    ``weights`` is the global model as it was received; ``model`` is overwritten, and holds it at the end.
    ``clients_drawn`` is |K|. ``randomness`` must be the silo's own, and fresh for a guarantee that holds against the
    server. ``instead`` is what units do that send a difference of their own making, ``most`` as in
    ``noisy_difference``. A client none of whose units is drawn sends noise, as one without any does. A unit that cannot
    be trained on (no example, a page that cannot be read, a loss that is not finite) contributes nothing, whatever it
    raises: only ``notes`` say so. Raises PrivacyError for pages that name no unit.
    """
    if clients_drawn < 1:
        raise PrivacyError(f"{clients_drawn} clients were drawn; a client that takes part is one of at least 1.")
    unit, notes = plan.mechanism.unit, list[str]()
    units = units_of(pages, unit, client=client)
    if len(units) < plan.denominator * (unit is not Unit.CLIENT):
        notes.append(f"{len(units)} {unit}s, fewer than M = {plan.denominator}: its part in the model is a small one")
    drawn = plan.draw_units(units, randomness.coins)
    set_parameters(model, dict(weights))
    train_on = partial(_train_on, model, local=local, client=client, notes=notes)
    runs = [
        partial(instead[name], model) if name in instead
        else partial(train_on, units[name], rng=rng, called=f"{unit} {name!r}")
        for name, rng in drawn.items()
    ]  # fmt: skip
    delta, norms = noisy_difference(
        model.module, weights, runs, plan, clients_drawn=clients_drawn, randomness=randomness, most=most
    )
    notes += [f"{unit} {name!r} contributes nothing: its change is not finite"
              for name, norm in zip(drawn, norms, strict=True) if norm == float("inf")]  # fmt: skip
    clipped = sum(norm > plan.clip_norm for norm in norms)
    return PrivateRound(ClientUpdate(client, 1, delta), tuple(drawn), clipped, norms, tuple(notes))


def _train_on(
    model: DocumentModel, pages: Sequence[Page], local: LocalPlan, *, client: str, rng: np.random.Generator,
    called: str, notes: list[str],
) -> None:  # fmt: skip
    """A unit's own training; LeftOutError, and a note, for whatever its pages make go wrong."""
    try:
        train_in_place(model, pages, local, client=client, rng=rng)
    except Exception as error:  # any: a round that fails because of one unit would tell the server of it
        notes.append(f"{called} contributes nothing: {error}")
        raise LeftOutError from error


def noisy_difference(
    module: nn.Module, weights: Mapping[str, FloatArray], runs: Sequence[Callable[[], object]], plan: DpPlan, *,
    clients_drawn: int, randomness: Randomness, most: float = math.inf,
) -> tuple[dict[str, FloatArray], tuple[float, ...]]:  # fmt: skip
    """What the ``runs`` of one client change together, by parameter, and the length of each run's change.

    Each run trains ``module`` on one drawn unit from ``weights``; its change is clipped, their sum gets the client's
    share of noise and is divided by -M. The lengths, before clipping, are private. ``most`` is the largest number that
    can be sent: the sum is brought to what leaves room for the noise, as numbers that were cut with it would have none.
    """
    device = {name: p.device for name, p in trainable(module)}
    before = {name: torch.from_numpy(np.ascontiguousarray(array)).to(device[name]) for name, array in weights.items()}
    summed = clipped_sum(module, before, runs, plan.clip_norm)
    std = plan.noise_std(clients_drawn)
    room = max(most * plan.denominator - WIDEST * std, 0.0)
    delta: dict[str, FloatArray] = {}
    for name in list(summed.total):
        exact = summed.total.pop(name).cpu().numpy()  # given back one by one: no further copy of the whole
        np.clip(exact, -room, room, out=exact)
        exact += std * randomness.gaussian(exact.size).reshape(exact.shape)
        delta[name] = (exact / -plan.denominator).astype(np.float32)
    return delta, summed.norms


def server_step(
    state: ServerState, updates: Sequence[ClientUpdate], plan: DpPlan, optimiser: FedOpt, *, clients_drawn: int,
    randomness: Randomness,
) -> ServerState:  # fmt: skip
    """Algorithm 1, line 7: the mean over the drawn clients, then any server rule, which only processes what is private.

    ``examples`` of an update says how many clients it is the mean of: 1, or more where secure aggregation handed over
    the mean of several. For every drawn client without an update the server adds its share of noise and nothing else,
    and the whole noise where no client was drawn. Raises PrivacyError for more clients than were drawn (as where an
    update is weighted by its questions), and for a rule that divides twice.
    """
    arrived = sum(update.examples for update in updates)
    if arrived > clients_drawn:
        raise PrivacyError(
            f"{len(updates)} updates stand for {arrived} clients, but {clients_drawn} were drawn. Under a privacy plan "
            "clients count alike: weights by questions would move the sum by more than was accounted."
        )
    if optimiser.divide_by_clients:
        raise PrivacyError("divide_by_clients divides the noise twice; leave it off under a privacy plan.")
    missing = max(clients_drawn, 1) - arrived
    noise = [stand_in(state, plan, shares=clients_drawn, number=i, randomness=randomness) for i in range(missing)]
    return step(state, [*updates, *noise], optimiser)


def stand_in(state: ServerState, plan: DpPlan, *, shares: int, number: int, randomness: Randomness) -> ClientUpdate:
    """The update of a client without data: one of ``shares`` shares of noise, divided by M."""
    std = plan.noise_std(shares) / plan.denominator
    delta = {
        name: std * randomness.gaussian(value.size).reshape(value.shape) for name, value in state.parameters.items()
    }
    return ClientUpdate(STAND_IN.format(number), 1, delta)


def train_privately(
    model: DocumentModel, silos: Mapping[str, Sequence[Page]], plan: DpPlan, local: LocalPlan, optimiser: FedOpt, *,
    randomness: Callable[[str], Randomness], ledger: Ledger | None = None,
    on_round: Callable[[Ledger, ServerState], None] | None = None, instead: Instead = MappingProxyType({}),
) -> Ledger:  # fmt: skip
    """Run what is left of the plan in this process; ``model`` holds the result.

    With one silo it is centralised training. ``randomness`` makes the streams of each silo and of "server".
    ``on_round`` sees the ledger before anything of a round is released, so that it can be saved with the state the
    round starts from. Raises PrivacyError for silos that share a unit, and pages that name none.
    """
    check_silos(silos, plan.mechanism.unit)
    ledger = Ledger(plan) if ledger is None else ledger
    if ledger.plan != plan:
        raise PrivacyError("the ledger belongs to another privacy plan; see Ledger.resume.")
    streams = {name: randomness(name) for name in (*silos, "server")}
    state = ServerState.of(parameters_of(model))
    while ledger.left:
        ledger = ledger.begin_round()
        if on_round is not None:
            on_round(ledger, state)
        drawn = plan.draw_clients(silos, streams["server"].coins)
        weights = state.weights()
        updates = [
            client_round(
                model, silos[name], plan, local, weights=weights, client=name, clients_drawn=len(drawn),
                randomness=streams[name], instead=instead,
            ).update
            for name in drawn
        ]  # fmt: skip
        state = server_step(state, updates, plan, optimiser, clients_drawn=len(drawn), randomness=streams["server"])
        set_parameters(model, state.weights())
    return ledger
