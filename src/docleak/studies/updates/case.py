"""The evaluator's side of a captured update: the client's pages, how it trained, and a replay that proves both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from docleak.attacks.gradients.local_steps import Batching
from docleak.documents import Page
from docleak.errors import DocumentError, FederationError
from docleak.models.base import DocumentModel, dropout_rate, trainable
from docleak.studies.updates.inferred import Inferred, inferred
from docleak.studies.updates.pages import names_of, pages_of
from docleak.studies.updates.round import Batches, ImitatedRound, Truth, assumed
from docleak.studies.updates.told import (
    ANY,
    OF_TRANSFORMERS,
    batches_told,
    batching_of,
    lacking,
    plan_of,
    told_plan,
    undecayed_of,
)
from docleak.training.federated.capture import CapturedUpdate
from docleak.training.federated.federation import Federation
from docleak.training.federated.local import LocalRound, set_parameters, train_locally
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.wire import Compression, pack, unpack
from docleak.training.objectives.objective import Example, objective_of
from docleak.training.objectives.tasks import QUESTIONS
from docleak.training.taps.weights import names_in

#: Examples up to which it is inferred how a client trained.
INFERRED = 64
#: Steps up to which a client's round is trained again.
REPLAYED = 500
#: Largest relative distance between what was sent and the replay: other threads or machines round differently, which
#: AdamW blows up; other pages give about 1.
SAME = 0.05


@dataclass(frozen=True)
class Replay:
    """The client's round trained again from the recorded seed: ``distance`` is |sent - replayed| / |sent|.

    ``trained`` is None where there was no replay, and ``why`` says so.
    """

    trained: LocalRound | None
    distance: float | None
    why: str = ""


@dataclass(frozen=True)
class UpdateCase:
    """One captured update with the truth. ``model`` holds the weights the client started from.

    ``examples`` are all that the client may have trained on; ``batches`` the numbers of those that each step saw, as
    the replay tells, or in the pages' order where that is not known.
    """

    update: CapturedUpdate
    model: DocumentModel
    plan: LocalPlan
    pages: Sequence[Page]
    examples: Sequence[Example]
    batches: Batches
    replay: Replay
    batching: Batching = Batching()
    rates: tuple[float, ...] = ()
    inferred: Inferred | None = None

    @cached_property
    def round(self) -> ImitatedRound:
        """What was sent, of the model's trainable parameters, and how it came about; a gradient is the delta of a step
        at a rate of 1."""
        return ImitatedRound.of(
            self.model, _tensors(self.update, self.model), self.plan, self.batching, self.pages, self.examples,
            self.batches, self.rates, undecayed_of(self.update),
        )  # fmt: skip

    @property
    def unsent(self) -> tuple[str, ...]:
        """Trainable parameters that the client did not send."""
        there = self.update.shapes()
        return tuple(name for name, _ in trainable(self.model.module) if name not in there)

    @property
    def dropout(self) -> bool:
        """Whether the client drew masks that nobody else knows."""
        return self.plan.dropout and dropout_rate(self.model.module) > 0

    def described(self) -> dict[str, Any]:
        """What a unit's record says of the round."""
        truth = self.round.truth
        return {
            "round": self.update.round, "client": self.update.client,
            "partition": next(iter(names_of(self.update)[1:]), None), "sent": self.update.kind,
            "examples": len(truth.examples), "pages": len(truth.pages), "steps": len(self.batches),
            "categories": sorted({field.key for page in truth.pages for field in page.private_fields}),
            "hidden_by": str(self.update.details.get("hidden_by") or ""), "alien": list(self.update.alien),
            "plan": asdict(self.plan), "dropout": self.dropout,
            "replay": {"distance": self.replay.distance, "why": self.replay.why},
            "inferred": None if self.inferred is None else asdict(self.inferred),
        }  # fmt: skip


def open_case(
    update: CapturedUpdate, model: DocumentModel, documents: str, *, local: str = "",
    folders: Mapping[str, str] | None = None,
) -> UpdateCase:  # fmt: skip
    """Put the update's start into ``model``, find the client's pages and plan, and replay its round.

    ``local`` ("optimiser=sgd,learning_rate=0.1") says what the capture does not, or corrects it; what neither says is
    inferred from the update. ``folders`` are clients' pages by client. Raises FederationError if the arrays are another
    model's, or the plan can be neither told nor inferred, DocumentError without the client's pages.
    """
    update, federation = named_as(model, update), federation_of(update)
    told = told_plan(update, local)
    load_start(model, update)
    pages = pages_of(update, documents, federation, folders)
    examples = objective_of(str(told.get("objective", QUESTIONS))).examples(pages)
    if not examples:
        raise DocumentError(f"{update.name}: {documents!r} has nothing that this client can have trained on.")
    guess = None
    if lacking(told) and len(examples) <= INFERRED:
        guess = _inferred(update, model, pages, examples, local)
    plan = plan_of(update, local, guess.values if guess else {})
    rates = _rates(update, plan)
    replay = _replayed(update, model, plan, federation, pages)
    batches = replay.trained.batches if replay.trained else _batches(update, len(examples), plan)
    batching = batching_of(local, model, Batching() if replay.trained else OF_TRANSFORMERS, update.details)
    return UpdateCase(update, model, plan, pages, examples, batches, replay, batching, rates, guess)


def named_as(model: DocumentModel, update: CapturedUpdate) -> CapturedUpdate:
    """The update with ``model``'s names."""
    names = names_in(model.module, update.start_shapes(), update.shapes())
    return update.called({name: other for name, other in names.items() if name != other})


def _inferred(
    update: CapturedUpdate, model: DocumentModel, pages: Sequence[Page], examples: Sequence[Example], local: str
) -> Inferred:
    sent, batching = _tensors(update, model), batching_of(local, model, OF_TRANSFORMERS, update.details)
    truths: dict[tuple[int, ...], Truth] = {}

    def imitated(plan: LocalPlan) -> ImitatedRound:
        steps = assumed(len(examples), plan)
        return ImitatedRound.of(model, sent, plan, batching, pages, examples, steps, truths=truths)

    told = told_plan(update, local)
    known = {key: getattr(plan_of(update, local, ANY), key) for key in told if key in LocalPlan.__dataclass_fields__}
    return inferred(imitated, known, len(examples))


def _rates(update: CapturedUpdate, plan: LocalPlan) -> tuple[float, ...]:
    """The rates of the steps as shares of the plan's, where they were recorded and differ."""
    rates = update.details.get("learning_rates")
    if not isinstance(rates, list) or not all(isinstance(rate, int | float) for rate in rates):
        return ()
    if len({*rates, plan.learning_rate}) < 2:
        return ()
    return tuple(float(rate) / plan.learning_rate for rate in rates)


def _batches(update: CapturedUpdate, count: int, plan: LocalPlan) -> Batches:
    """The examples of each step as recorded, or in the pages' order."""
    return batches_told(update, count) or assumed(count, plan)


def sent_by(update: CapturedUpdate) -> Mapping[str, np.ndarray]:
    """theta_0 - theta_K, or the gradient where that was sent."""
    return update.received() if update.kind == "gradient" else update.delta()


def _tensors(update: CapturedUpdate, model: DocumentModel) -> dict[str, torch.Tensor]:
    """The same of the trainable parameters."""
    sent, names = sent_by(update), (name for name, _ in trainable(model.module))
    return {name: torch.from_numpy(sent[name].astype(np.float32)) for name in names if name in sent}


def require_moved(update: CapturedUpdate) -> None:
    """FederationError where all that was sent is zero, which no training explains, and which tells of none."""
    sent = sent_by(update)
    if not any(value.any() for value in sent.values()):
        raise FederationError(
            f"{update.name}: all {len(sent)} tensors that came are zero: the client trained nothing, or at a rate of 0 "
            "(a warm-up's first step), or its update was taken from itself. Nothing can be measured of it. Leave it "
            "out (--client names others), or record the round again."
        )


def load_start(model: DocumentModel, update: CapturedUpdate) -> None:
    """Put the weights that the server sent into ``model``; frozen ones too, where they were sent.

    Where the capture says that so many parameters as are missing were ``frozen``, they are frozen here. Raises
    FederationError if trainable parameters are missing otherwise. Other arrays are left aside: buffers, and the second
    name of a tied weight.
    """
    start = update.start()
    named = dict(model.module.named_parameters())
    lacking = [name for name, _ in trainable(model.module) if name not in start]
    if lacking and update.details.get("frozen") == len(lacking) < len(named):
        for name in lacking:
            named[name].requires_grad_(False)
    elif lacking:
        advice = "Pass the --model that was trained; arrays must have its parameters' names."
        if any("lora_" in name for name in start) and not any("lora_" in name for name in named):
            advice = (
                "Those are of a model with adapters (LoRA), and this one has none. Pass as --model the folder that "
                "peft wrote, with adapter_config.json."
            )
        raise FederationError(
            f"{update.name}: the weights sent lack {len(lacking)} of the {len(named)} parameters of {model.name!r}, "
            f"first {lacking[0]!r}; they hold {', '.join(sorted(start)[:3])} ... {advice}"
        )
    set_parameters(model, {name: start[name].astype(np.float32) for name, _ in trainable(model.module)})
    with torch.no_grad():
        for name, parameter in named.items():
            if not parameter.requires_grad and name in start and start[name].shape == tuple(parameter.shape):
                parameter.copy_(torch.from_numpy(start[name].astype(np.float32)))


def federation_of(update: CapturedUpdate) -> Federation | None:
    """Of a capture that docleak train made: what tells a silo's random numbers, and the pages it keeps."""
    told = update.ours
    if told.get("seed") is None or told.get("holdout") is None:
        return None
    sent = Compression.of(str(told.get("compression", "none")))
    return Federation(seed=int(told["seed"]), holdout=float(told["holdout"]), compression=sent)


def _replayed(
    update: CapturedUpdate, model: DocumentModel, plan: LocalPlan, federation: Federation | None, pages: Sequence[Page]
) -> Replay:
    seed, steps = update.ours.get("seed"), update.ours.get("steps")
    if federation is None and seed is None:
        return Replay(None, None, "the capture tells no seed, so the client's round cannot be trained again")
    if steps is not None and int(steps) > REPLAYED:
        return Replay(None, None, f"the client took {steps} steps; up to {REPLAYED} are trained again")
    rng = federation.client_rng(update.client, update.round) if federation else np.random.default_rng(int(seed or 0))
    trained = train_locally(model, pages, plan, client=update.client, rng=rng)
    load_start(model, update)
    compression = federation.compression if federation else Compression()
    ours = trained.update.delta
    ours = unpack(pack(ours, compression), {name: value.shape for name, value in ours.items()}, compression)
    return Replay(trained, distance(sent_by(update), ours))


def distance(sent: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]) -> float:
    """|sent - ours| / |sent| over the arrays that were sent; infinite where those are zero."""
    ours = {name: value for name, value in ours.items() if name in sent}
    wrong = sum(float(np.square(sent[name].astype(np.float64) - value).sum()) for name, value in ours.items())
    whole = sum(float(np.square(sent[name].astype(np.float64)).sum()) for name in ours)
    return float(np.sqrt(wrong / whole)) if whole else float("inf")


def one_question_each(case: UpdateCase, count: int) -> list[Page]:
    """So many of the client's pages with one question each, in their order, those with private fields first; fewer
    where it has no more."""
    asked = {e.page: e.question for e in reversed(case.examples)}
    ordered = sorted(asked, key=lambda number: (not case.pages[number].private_fields, number))[:count]
    return [replace(case.pages[n], questions=(question,)) for n in ordered if (question := asked[n]) is not None]


def trained_again(case: UpdateCase, pages: Sequence[Page], steps: int, batch_size: int, *, seed: int) -> ImitatedRound:
    """What the client would send after so many steps on batches of ``pages``, without dropout from the captured start:
    what leaks by steps and batch size alone. Pages that are too few are trained on again."""
    plan = replace(case.plan, epochs=steps, max_steps=steps, batch_size=batch_size, dropout=False)
    load_start(case.model, case.update)
    trained = train_locally(case.model, pages, plan, client=case.update.client, rng=np.random.default_rng(seed))
    load_start(case.model, case.update)
    sent = {name: torch.from_numpy(value) for name, value in trained.update.delta.items()}
    examples = objective_of(QUESTIONS).examples(pages)
    return ImitatedRound.of(case.model, sent, plan, Batching(), pages, examples, trained.batches)
