"""Updates, each with those that it holds and those that it does not: made here of pages dealt, or recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch

from docleak.attacks.gradients.algebra.first_layer import Sent
from docleak.attacks.gradients.local_steps import Optimiser
from docleak.documents import Page, load_pages
from docleak.documents.loaders import SYNTHETIC
from docleak.documents.pages import joined, marks_of
from docleak.errors import DocumentError, FederationError
from docleak.models import DocumentModel, load_model
from docleak.spec import counted_words
from docleak.studies.identity import data_hash, weights_hash
from docleak.studies.presence.config import PresenceConfig
from docleak.studies.presence.pages import Dealt, Subject, asked_once, deal
from docleak.studies.updates.case import UpdateCase, federation_of
from docleak.studies.updates.config import UpdatesConfig
from docleak.studies.updates.pages import kept_of, made_up, pages_of
from docleak.studies.updates.secure import is_secure
from docleak.studies.updates.study import UpdatesStudy
from docleak.training.federated.capture import CapturedUpdate
from docleak.training.federated.local import parameters_of, set_parameters, train_locally
from docleak.training.objectives.tasks import QUESTIONS


@dataclass(frozen=True)
class Turn:
    """An update as it arrives, in the units of a gradient: those ``inside`` and ``outside`` of it that are asked about,
    and ``controls`` that the adversary knows to be out. Of AdamW's updates only ``signs`` survive."""

    sent: Sent
    inside: Sequence[Subject]
    outside: Sequence[Subject]
    controls: Sequence[Subject]
    signs: bool
    facts: Mapping[str, Any]


class MadeTurns:
    """One round after the other on pages of its own."""

    def __init__(self, config: PresenceConfig, *, device: str) -> None:
        self.config, self.device = config, device

    @cached_property
    def model(self) -> DocumentModel:
        """As the clients receive it: after the warm-up."""
        model, c = load_model(self.config.model, device=self.device), self.config
        for number in range(c.warm_up):
            pages = self.dealt.warm_up[number * c.batch_size :][: c.batch_size]
            plan = replace(c.plan, epochs=1)
            train_locally(model, pages, plan, client="warm-up", rng=np.random.default_rng(number))
        return model

    @cached_property
    def dealt(self) -> Dealt:
        """Who is asked about, and who is known to be out."""
        return deal(self.config)

    @property
    def names(self) -> Sequence[str]:
        """One a round."""
        return [f"round-{number:04d}" for number in range(self.config.rounds)]

    def turn(self, number: int) -> Turn:
        """A client trains on the pages of those inside, and sends its update."""
        c, model, share = self.config, self.model, 2 * self.config.subjects
        asked = self.dealt.asked[number * share :][:share]
        inside, outside = asked[: c.subjects], asked[c.subjects :]
        start = parameters_of(model)
        pages = [page for subject in inside for page in subject.pages]
        done = train_locally(model, pages, c.plan, client="asked", rng=np.random.default_rng(number))
        set_parameters(model, start)
        delta = {name: torch.from_numpy(value) for name, value in done.update.delta.items()}
        if c.precision == "bfloat16":
            delta = {name: value.bfloat16().float() for name, value in delta.items()}
        optimiser = Optimiser(c.optimiser, c.learning_rate, c.weight_decay)
        weights = {name: torch.from_numpy(value) for name, value in start.items()}
        sent = Sent.of(delta, weights, optimiser, c.local_steps)
        return Turn(sent, inside, outside, self.dealt.controls, c.optimiser == "adamw", {})

    def asked(self) -> list[tuple[Subject, bool]]:
        """Of each round first those inside."""
        c = self.config
        return [(subject, place % (2 * c.subjects) < c.subjects) for place, subject in enumerate(self.dealt.asked)]

    def identity(self) -> dict[str, str]:
        """Weights after the warm-up, and pages."""
        return {"weights": weights_hash(self.model), "pages": data_hash(self.dealt.pages)}

    def facts(self) -> dict[str, Any]:
        """Nothing that the configuration does not say."""
        return {}

    def check(self, say: Callable[[str], None]) -> None:
        """The configuration has."""


class RecordedTurns:
    """What a server received, and was recorded. Pages that are out are what the client's silo keeps to evaluate on and
    what it did not train on in this round, then those of the round's other clients; or others, which are named."""

    def __init__(self, config: PresenceConfig, *, device: str) -> None:
        self.config = config
        self.audit = UpdatesStudy(
            UpdatesConfig(
                updates=config.updates, model=config.model, documents=config.documents, round=config.round,
                clients=config.clients, local=config.local, seed=config.seed,
            ),
            device=device,
        )  # fmt: skip

    @property
    def model(self) -> DocumentModel:
        """As the client of the turn that was opened last received it."""
        return self.audit.model

    @property
    def names(self) -> Sequence[str]:
        """One an update of the round."""
        return [f"round-{update.round:04d}--{update.client}" for update in self.audit.chosen]

    def check(self, say: Callable[[str], None]) -> None:
        """FederationError of updates that the server sees as a sum alone."""
        self.audit.check(say)
        if is_secure(self.audit.chosen[0]):
            raise FederationError(
                f"{self.config.updates} holds updates masked for secure aggregation, and their sum: of one client's "
                "update there is nothing to ask. Record a training without it."
            )

    def identity(self) -> dict[str, str]:
        """Those of an audit of these updates."""
        return self.audit.identity()

    def facts(self) -> dict[str, Any]:
        """The model that was trained, and whether all pages are nobody's."""
        c, chosen = self.config, self.audit.chosen
        made = all(made_up(update, c.documents, self.audit.folders) for update in chosen)
        others = c.others in ("", SYNTHETIC)
        return {"recorded": {"model": self.audit.model.name, "updates": len(chosen), "made_up": made and others}}

    def turn(self, number: int) -> Turn:
        """The update, asked about the pages that it holds and as many others.

        SelfTestError where the client's round, trained again from the recorded seed, gives another update.
        """
        c, update = self.config, self.audit.chosen[number]
        case = self.audit.case(update)
        self.audit.require_replay(case, "Mend it: pages that the update does not hold would be asked about.")
        if case.plan.objective != QUESTIONS:
            raise FederationError(
                f"{update.name} was trained with the objective {case.plan.objective!r}, which masks words at random; "
                "expected questions and answers."
            )
        rng = np.random.default_rng((c.seed, number))
        inside = _held(case)
        if c.pages:
            most = max(1, c.pages // (2 * len(self.audit.chosen)))
            inside = [inside[place] for place in sorted(rng.permutation(len(inside))[:most])]
        wanted = c.controls + len(inside)
        out = self._out(update, case, wanted, rng)
        if len(out) <= c.controls:
            raise DocumentError(
                f"{update.name}: {counted_words(len(out), 'page')} of a question that this update does not hold; "
                f"expected more than the {c.controls} controls. Name others: --others FOLDER."
            )
        if len(self.audit.chosen) > 1:  # an update's level, set off by few controls, would else count for one side
            inside = [inside[place] for place in sorted(rng.permutation(len(inside))[: len(out) - c.controls])]
        start = {n: p.detach() for n, p in case.model.module.named_parameters() if n in case.round.whole}
        sent = Sent.of(case.round.whole, start, case.round.optimiser, len(case.batches))
        told = {
            "client": update.client, "steps": len(case.batches), "optimiser": case.plan.optimiser,
            "replayed": case.replay.trained is not None,
        }  # fmt: skip
        subjects = [Subject((page,)) for page in out]
        return Turn(
            sent, [Subject((page,)) for page in inside], subjects[c.controls :], subjects[: c.controls],
            case.plan.optimiser == "adamw", told,
        )  # fmt: skip

    def asked(self) -> list[tuple[Subject, bool]]:
        """Of each update first those inside; every update is opened."""
        turns = map(self.turn, range(len(self.names)))
        return [
            pair
            for turn in turns
            for pair in (*((one, True) for one in turn.inside), *((one, False) for one in turn.outside))
        ]

    def _out(self, update: CapturedUpdate, case: UpdateCase, wanted: int, rng: np.random.Generator) -> list[Page]:
        """So many pages that the update does not hold, drawn from the first source that has as many, or from all."""
        trained = case.round.truth.pages if case.replay.trained else case.pages
        held = {mark for page in trained for mark in marks_of(page)}
        drawn = list[Page]()
        for pages in self._sources(update, case, wanted):
            for place in rng.permutation(len(pages)).tolist():
                page = asked_once(pages[place])
                if page is not None and held.isdisjoint(marks := marks_of(page)):
                    held.update(marks)
                    drawn.append(page)
                if len(drawn) == wanted:
                    return drawn
        return drawn

    def _sources(self, update: CapturedUpdate, case: UpdateCase, wanted: int) -> Iterator[Sequence[Page]]:
        c = self.config
        if c.others:
            yield (
                load_pages(c.others, count=wanted, seed=c.seed)
                if c.others == SYNTHETIC
                else load_pages(c.others, seed=0)
            )
            return
        unseen = case.pages if case.replay.trained else ()
        yield joined([kept_of(update, c.documents, federation_of(update)), unseen])
        others = [one for one in self.audit.captured if one.round == update.round and one.client != update.client]
        for other in others:
            try:
                yield pages_of(other, c.documents, federation_of(other), self.audit.folders)
            except DocumentError:  # nobody has to have the pages of others
                continue


#: Where updates come from.
Turns: TypeAlias = MadeTurns | RecordedTurns


def _held(case: UpdateCase) -> list[Page]:
    """The pages that the steps saw, each with the first question that was asked about it."""
    truth, asked = case.round.truth, dict[int, Any]()
    for example in truth.examples:
        asked.setdefault(example.page, example.question)
    return [
        replace(truth.pages[place], questions=(question,))
        for place, question in sorted(asked.items(), key=lambda one: one[0])
        if question is not None
    ]
