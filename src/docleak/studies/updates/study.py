"""The audit of captured updates: what a federated server received, attacked.

A unit is one captured update, or one cell of "how leakage falls with local steps and batch size", which trains the
first client again from the weights that the server sent; of a secure aggregation, its masked words and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from docleak.attacks.gradients import ATTACKS
from docleak.documents.loaders import SYNTHETIC
from docleak.documents.page import Image, Page
from docleak.errors import DocleakError, DocumentError, FederationError, SelfTestError
from docleak.models import DocumentModel, load_model, trainable
from docleak.report.page import Reading
from docleak.runs.identity import sources_of
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.gradient.config import require_budget
from docleak.studies.identity import weights_hash
from docleak.studies.study import Study, Tell, Unit, one_of
from docleak.studies.updates.case import (
    SAME,
    UpdateCase,
    federation_of,
    one_question_each,
    open_case,
    require_moved,
    trained_again,
)
from docleak.studies.updates.check import check, diagnosed, imitable
from docleak.studies.updates.config import UpdatesConfig
from docleak.studies.updates.pages import kept_of, made_up, pages_of, told_folders
from docleak.studies.updates.reading import read_run
from docleak.studies.updates.round import ImitatedRound, assumed
from docleak.studies.updates.secure import hiding, is_masked, is_secure, open_sum
from docleak.studies.updates.sight import Sight, attacked, sight_of, unseen
from docleak.studies.updates.words import words_in, words_of
from docleak.training.federated.capture import CapturedUpdate, read_updates
from docleak.training.objectives.objective import objective_of

#: Other clients whose pages are tried where a client's own do not fit.
OTHERS = 4
#: Gradient evaluations of a unit without pictures, for the progress bar.
WORDS_ONLY = 1


class Cell(NamedTuple):
    """One point of "how leakage falls": local steps over batches of so many pages; ``pictured`` where pictures are
    attacked, too."""

    steps: int
    batch_size: int
    pictured: bool


class UpdatesStudy(Study[UpdatesConfig]):
    """Each process trains the clients of its units again, so that more than one pays where pictures are attacked."""

    kind = "updates"
    Config = UpdatesConfig
    permissions = ("allow_failed_self_test",)
    _case: UpdateCase | None = None

    @cached_property
    def captured(self) -> Sequence[CapturedUpdate]:
        """All that the capture holds, or the one update that two files of weights make."""
        if self.config.before:
            from docleak.training.taps.weights import weights_pair

            return [weights_pair(Path(self.config.before), Path(self.config.after))]
        return read_updates(Path(self.config.updates))

    @cached_property
    def folders(self) -> dict[str, str]:
        """Client -> the folder of its pages, where --client says it."""
        return {client: folder for client, folder in self._told.items() if folder}

    @property
    def _told(self) -> dict[str, str]:
        return told_folders(self.config.clients, {update.client for update in self.captured})

    @cached_property
    def chosen(self) -> list[CapturedUpdate]:
        """The updates to audit, all of a secure aggregation or none; where the capture lacks what was asked for, a
        FederationError names what it has."""
        config = self.config
        rounds = sorted({update.round for update in self.captured})
        number = config.round or rounds[0]
        there = [update for update in self.captured if update.round == number]
        wanted = set(self._told)
        missing = sorted(wanted - {update.client for update in there})
        if not there or missing:
            source = config.updates or f"{config.before} and {config.after}"
            raise FederationError(
                f"{source}: there are the rounds {', '.join(map(str, rounds))}, and in round {number} the clients "
                f"{', '.join(update.client for update in there) or '(none)'}; asked for round {number}"
                f"{', client ' + missing[0] if missing else ''}."
            )
        asked = [update for update in there if not wanted or update.client in wanted]
        if private := [update.client for update in asked if update.ours.get("privacy")]:
            raise FederationError(
                f"{', '.join(private)} trained under a privacy plan: what they drew and their noise are secret, so no "
                "true input reproduces what they sent and nothing could be measured. Audit a training without "
                "--epsilon."
            )
        plain = [update.client for update in asked if not is_secure(update)]
        if plain and len(plain) < len(asked):
            raise FederationError(
                f"round {number}: {', '.join(plain)} sent an update that the server reads, and others words masked for "
                f"secure aggregation; these are two audits. Name the clients of one: --client {plain[0]}."
            )
        return asked

    def units(self) -> list[Unit]:
        """The first captured update and the table's cells on it, then the other updates; of a secure aggregation, where
        the server holds no silo's own update of which pictures could be attacked, its masked words and sums."""
        config, (first, *others) = self.config, self.chosen
        if is_secure(first):
            return [Unit(_name(update), WORDS_ONLY, what=(update, None)) for update in self.chosen]
        units = [Unit(_name(first), config.budget, what=(first, None))]
        for steps in config.steps:
            for size in config.batch_sizes:
                pictured = steps == min(config.steps) or size == min(config.batch_sizes)
                name = f"{_name(first)}--steps-{steps:03d}--batch-{size:03d}"
                budget = config.picture_budget if pictured else WORDS_ONLY
                units.append(Unit(name, budget, what=(first, Cell(steps, size, pictured))))
        return [*units, *(Unit(_name(update), config.budget, what=(update, None)) for update in others)]

    @cached_property
    def model(self) -> DocumentModel:
        """The model that was trained. It holds the start of the update that was opened last."""
        first = self.chosen[0]
        if not self.trained:
            raise FederationError(
                f"{first.name}: nothing says which model was trained. Pass --model: its folder or hub name; of "
                "adapters (LoRA) the folder that peft wrote, with adapter_config.json."
            )
        return load_model(self.trained, device=self.device)

    @cached_property
    def _trainable(self) -> tuple[torch.nn.Parameter, ...]:
        """What the model trains before any client's capture freezes some of it."""
        return tuple(parameter for _, parameter in trainable(self.model.module))

    @property
    def trained(self) -> str:
        """The name or folder of the model that was trained; "" where nothing says it."""
        config = self.config
        saved = any((Path(config.before) / name).is_file() for name in ("config.json", "adapter_config.json"))
        began = config.before if saved else ""
        return config.model or str(self.chosen[0].details.get("model") or "") or began

    def check(self, say: Callable[[str], None]) -> None:
        """One message for all that is not told: the model, and the pages of each client; before that one for a budget
        with which the attack cannot begin."""
        if not is_secure(self.chosen[0]):
            for budget, flag in ((self.config.budget, "--budget"), (self.config.picture_budget, "--picture-budget")):
                require_budget((self.config.attack,), budget, flag=flag)
        faults = [] if self.trained else ["--model: nothing says which model was trained"]
        for update in self.chosen:
            try:
                if not is_secure(update):
                    pages_of(update, self.config.documents, federation_of(update), self.folders)
            except DocumentError as fault:
                faults.append(f"--documents: {fault}")
        if len(faults) > 1:
            raise FederationError("the audit lacks\n  - " + "\n  - ".join(faults[:8]))

    def case(self, update: CapturedUpdate) -> UpdateCase:
        """The update with its client's pages and plan, opened once while units of it follow one another; see
        ``open_case`` for what is raised."""
        if self._case is None or self._case.update.called({}) != update:
            torch.set_num_threads(1)  # as in worker processes: other numbers of threads round differently
            self._case = None  # its model is about to hold another start
            if not is_masked(update):
                require_moved(update)
            for parameter in self._trainable:
                parameter.requires_grad_(True)
            options: dict[str, Any] = {"local": self.config.local, "folders": self.folders}
            if is_secure(update) and not is_masked(update):
                self._case = open_sum(update, self._members(update), self.model, self.config.documents, **options)
            else:
                self._case = open_case(update, self.model, self.config.documents, **options)
        return self._case

    def _members(self, update: CapturedUpdate) -> list[CapturedUpdate]:
        """The masked words that a sum is of."""
        return [other for other in self.captured if other.folder == update.folder and is_masked(other)]

    def _masked_beside(self, update: CapturedUpdate) -> list[CapturedUpdate]:
        """The other masked words of its round, and the client's own of other rounds."""
        masked = [other for other in self.captured if is_masked(other) and other.name != update.name]
        return [other for other in masked if other.folder == update.folder or other.client == update.client]

    def identity(self) -> dict[str, str]:
        """All weights, those that are never trained too; those that the server sent are in the capture."""
        given = {"model": weights_hash(self.case(self.chosen[0]).model)}
        return given | {f"pages of {client}": sources_of({"": folder}).get(folder, folder)
                        for client, folder in self.folders.items()}  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """The model, what is planned, and the clients of other rounds that sent nothing in this one, where all of it is
        audited."""
        units, here = self.units(), {update.client for update in self.chosen}
        absent = {update.client for update in self.captured} - here if not self.config.clients else ()
        made = all(made_up(update, self.config.documents, self.folders) for update in self.chosen)
        updates = [(unit.id, unit.what[0]) for unit in units if unit.what[1] is None]
        return {
            "model": {"name": self.model.name, "architecture": self.model.architecture},
            "planned": [{"unit": name, "round": update.round, "client": update.client} for name, update in updates],
            "cells": len(units) - len(updates),
            "absent": sorted(absent),
            **({"source": SYNTHETIC} if made else {}),
        }

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], Mapping[str, Image]]:
        """Words and pictures of the unit against the truth.

        Raises SelfTestError where a client's round, trained again from the recorded seed, does not give what it sent:
        then pages, model or plan are not those it trained with, and nothing could be measured against them.
        """
        config = self.config
        update, cell = unit.what
        case = self.case(update)
        self.require_replay(case)
        if is_secure(update):
            return self._secure(case), {}
        if cell is None:
            words = words_of(case, self._rounds_of(update), config.local, lambda: self.pages_beside(case))
            checked = check(case, words, lambda: self._others(case))
            pictures, images = sight_of(
                case, ATTACKS.load(config.attack), checked, allow_failed=config.allow_failed_self_test,
                budget=config.budget, seed=config.seed, ocr=config.ocr, report=tell,
            )  # fmt: skip
            record = {"kind": "update", **case.described(), "check": checked}
        else:
            words, (pictures, images) = self._fallen(case, cell, tell)
            record = {"kind": "cell", "steps": cell.steps, "batch_size": cell.batch_size}
        return {**record, "words": words, "pictures": pictures}, images

    def _rounds_of(self, update: CapturedUpdate) -> list[CapturedUpdate]:
        """What the same client sent in other rounds that were recorded."""
        same = [other for other in self.captured if other.client == update.client and other.round != update.round]
        return [other for other in same if not is_secure(other) and other.kind == update.kind]

    def pages_beside(self, case: UpdateCase) -> Iterator[list[Page]]:
        """Pages that the client does not have, of all others that are at hand, client by client: what silos of
        docleak's own keep to evaluate on, and what other clients trained on."""
        config, its = self.config, case.update.client
        for update in {update.client: update for update in self.captured}.values():
            with suppress(DocleakError):  # this client's pages are at hand, those of the others need not be
                yield list(kept_of(update, config.documents, federation_of(update)))
            if update.client != its and not is_secure(update):
                with suppress(DocleakError):
                    yield list(pages_of(update, config.documents, federation_of(update), self.folders))

    def _secure(self, case: UpdateCase) -> dict[str, Any]:
        words, masked = words_of(case, beside=lambda: self.pages_beside(case)), is_masked(case.update)
        told = {"masked": hiding(case, self._masked_beside(case.update))} if masked else {
            "sum": True, "silos": len(self._members(case.update)), "check": check(case, words, dict)
        }  # fmt: skip
        pictures, _ = unseen("the words are masked" if masked else "a sum of silos is too many pages")
        return {"kind": "update", **case.described(), "words": words, "pictures": pictures, **told}

    def _fallen(self, case: UpdateCase, cell: Cell, tell: Tell) -> tuple[dict[str, Any], Sight]:
        """What the client would send after the cell's steps, attacked; only words where there are to be no pictures."""
        config = self.config
        pages = one_question_each(case, cell.steps * cell.batch_size)
        if len(pages) < cell.batch_size:
            there = counted_words(len(pages), "page")
            why = f"the client has {there} with questions, fewer than a batch of {cell.batch_size}"
            return {"failed": why}, unseen(why)
        taken = trained_again(case, pages, cell.steps, cell.batch_size, seed=config.seed)
        words = words_in(taken, len(taken.batches))
        if not cell.pictured:
            return words, unseen("only words are looked for")
        return words, attacked(
            taken, ATTACKS.load(config.attack), budget=config.picture_budget, seed=config.seed, ocr=config.ocr,
            report=tell,
        )  # fmt: skip

    def require_replay(
        self, case: UpdateCase, advice: str = "Mend it, or pass --allow-failed-self-test to audit all the same."
    ) -> None:
        """SelfTestError where the round, trained again from the recorded seed, does not give what was sent."""
        distance = None if is_masked(case.update) else case.replay.distance
        if distance is None or distance <= SAME or self.config.allow_failed_self_test:
            return
        told = not is_secure(case.update) and imitable(case.round)
        causes = diagnosed(case, lambda: self._others(case)) if told else ()
        said = "; ".join(cause.sentence for cause in causes) or (
            "other pages (--documents), pages in another order, another model, or another plan than the capture says "
            "(--local)"
        )
        raise SelfTestError(
            f"{case.update.name}: trained again from the recorded seed, this client sends something else (relative "
            f"distance {distance:.2e}, expected at most {SAME:.0e}), so nothing could be measured against these pages. "
            f"Possible causes, the most probable first: {said}. {advice}"
        )

    def _others(self, case: UpdateCase) -> dict[str, ImitatedRound]:
        """The round with the pages of the other clients of the capture, where they have pages of their own."""
        rounds: dict[str, ImitatedRound] = {}
        seen = {page.name for page in case.pages}
        for update in self.captured:
            if update.folder != case.update.folder or update.client == case.update.client or is_secure(update):
                continue
            try:
                pages = pages_of(update, self.config.documents, None, self.folders)
            except DocumentError:  # this client's pages are at hand, those of the others need not be
                continue
            examples = objective_of(case.plan.objective).examples(pages)
            batches = assumed(len(examples), case.plan)
            sent = case.round.whole
            taken = ImitatedRound.of(case.model, sent, case.plan, case.batching, pages, examples, batches)
            if seen != {page.name for page in pages} and imitable(taken):
                rounds[update.client] = taken
            if len(rounds) == OTHERS:
                break
        return rounds

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """A verdict on each update, what was received, and how leakage falls with local steps and batch size."""
        return read_run(one_of(runs))


def _name(update: CapturedUpdate) -> str:
    return f"round-{update.round:04d}--{update.client}"
