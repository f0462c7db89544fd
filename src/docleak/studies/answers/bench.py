"""What all measures of a release share, and what each of them gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from docleak.attacks.answers.asking import AnswersView
from docleak.attacks.answers.features import Reply
from docleak.attacks.answers.memorisation import Asker
from docleak.documents.blue_red_files import BlueRed
from docleak.documents.page import Image, Page
from docleak.metrics.estimate import Estimate
from docleak.models.base import DocumentModel
from docleak.models.loading import load_model
from docleak.studies.answers.config import AnswersConfig, Release
from docleak.studies.answers.documents import Sides, sides_of
from docleak.studies.answers.memorisation import Trained
from docleak.studies.answers.red import Red, draw_providers, pages_of, replies_to, training_values
from docleak.studies.answers.replies import remembering
from docleak.studies.answers.store import Bill, bill_of, division_of, trained

Numbers = dict[str, Estimate]


@dataclass(frozen=True)
class Found:
    """``numbers`` by key or attack ("" where there is but one) and name; ``facts`` are plain values, ``remarks`` lines
    for under a table."""

    numbers: Mapping[str, Numbers]
    facts: Mapping[str, Any] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What a record keeps of it, beside the pictures."""
        numbers = {part: {k: e.to_json() for k, e in known.items()} for part, known in self.numbers.items()}
        return {"numbers": numbers, "remarks": dict(self.remarks), **self.facts}


class Bench:
    """What all measures of a release share: the documents, the model, trained if need be, and whom to ask.

    Divisions, targets and replies are kept in ``place``.
    """

    def __init__(self, config: AnswersConfig, release: Release, place: Path, device: str) -> None:
        self.config, self.release, self.place, self.device = config, release, place, device

    @cached_property
    def blue_red(self) -> BlueRed:
        return division_of(self.config.division, self.place)

    @cached_property
    def chosen(self) -> frozenset[str] | None:
        """The providers that are asked about; None: all."""
        c = self.config
        return draw_providers(self.blue_red, c.providers, seed=c.seed) if c.providers else None

    @cached_property
    def red(self) -> Red:
        return Red.of(self.blue_red, self.chosen)

    @cached_property
    def values(self) -> list[Trained]:
        """What only the owner of the model knows."""
        return training_values(self.blue_red)

    @cached_property
    def bill(self) -> Bill:
        target = self.release.to_train
        return bill_of(str(trained(target, self.place, self.device)) if target else self.release.source)

    @cached_property
    def ask_target(self) -> Asker:
        return self.asker(self.bill.model)

    @cached_property
    def ask_public(self) -> Asker | None:
        """None where the public model is unknown."""
        public = self.config.public
        return self.ask_target if public == self.bill.model else self.asker(public) if public else None

    @cached_property
    def model(self) -> DocumentModel:
        """The release."""
        return load_model(self.bill.model, device=self.device)

    def asker(self, model: str) -> Asker:
        """Asks that model, or finds what it said before."""
        view = AnswersView(load_model(model, device=self.device), scores=True)
        return remembering(view, self.place / "replies")

    @cached_property
    def sides(self) -> Sides:
        """Documents that were trained on, and others."""
        return sides_of(self.config.members, self.config.non_members, seed=self.config.seed)

    @cached_property
    def replies(self) -> tuple[list[Reply], list[Reply] | None]:
        """To the questions on RED: the release's, and the public model's."""
        public = self.ask_public
        return replies_to(self.red.pages, self.ask_target), replies_to(self.red.pages, public) if public else None

    def pages(self, part: str) -> Sequence[Page]:
        """The pages of a part of the division, of the providers that are asked about."""
        return pages_of(self.blue_red.pages(part), self.chosen)

    def rng(self) -> np.random.Generator:
        """For draws and bootstraps: every measure begins with the same."""
        return np.random.default_rng(self.config.seed)
