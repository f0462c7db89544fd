"""The study of attention: where a Donut's decoder looks while it says the answer (GI-DQA, figure 5), page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.documents import Page, Question
from docleak.documents.page import Image
from docleak.errors import AttackError, RecipeError
from docleak.metrics.estimate import ratio_of
from docleak.models import DocumentModel, load_model
from docleak.models.attention import attention_maps, attention_picture, spread_of
from docleak.report.page import Reading
from docleak.report.pictures import png_of
from docleak.report.severity import Part, Severity
from docleak.report.table import Column, Row, Table, Value
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.gradient.case import pages_for, question_of
from docleak.studies.identity import data_hash, model_title, weights_hash
from docleak.studies.study import PLACEHOLDER, Done, Needed, Picture, Settings, TableRow, TableStudy, Tell, Unit, one_of

COLUMNS = {
    "cells": Column("cells looked at", 1), "share": Column("of all cells", 1, percent=True),
    "answer": Column("on the answer", 1, percent=True),
    "place": Column("the answer's part of the page", 1, percent=True),
}  # fmt: skip
#: The picture of a page, in its unit.
MAPS = "maps"


@dataclass(frozen=True)
class AttentionConfig:
    """``model`` answers a question about the field ``key`` (of pages without it: their first question) on each of the
    first ``pages`` with private fields."""

    model: str = "donut-trained"
    documents: str = "synthetic"
    pages: int = 3
    key: str = "date"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pages < 1:
            raise AttackError(f"pages is {self.pages}; expected at least 1.")


class AttentionStudy(TableStudy[AttentionConfig]):
    """A unit is a page: over how many cells the attention is spread, and how much of it falls on the answer."""

    kind = "attention"
    Config = AttentionConfig
    columns = COLUMNS
    of_model = ("model",)
    options = ("documents", "pages", "seed")
    wanted_at = "docs/reproduce.md"
    footnote = (
        "Means over pages with 95 % intervals in square brackets (bootstrap). Cells looked at are the exponential of "
        "the entropy of the last layer's cross-attention, heads averaged, mean over the answer's tokens; on the answer "
        "is the share of the attention that falls on cells which the answer's words touch, where the page says where "
        "it stands."
    )

    @cached_property
    def _model(self) -> DocumentModel:
        return load_model(self.config.model, device=self.device)

    @cached_property
    def _pages(self) -> list[Page]:
        c = self.config
        return pages_for(self._model, c.documents, count=c.pages, seed=c.seed)

    def units(self) -> list[Unit]:
        """The pages there are."""
        return [Unit(f"page-{number:03d}", what=number) for number in range(len(self._pages))]

    def identity(self) -> dict[str, str]:
        """The model's weights, and the pages."""
        return {"weights": weights_hash(self._model), "pages": data_hash(self._pages)}

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """One page's maps, and their picture; ModelError for a model that attends to no picture."""
        page: Page = self._pages[unit.what]
        asked = (q for q in page.questions if q.key == self.config.key and q.answers)
        question = next(asked, None) or question_of(page)
        maps = attention_maps(self._model, page, question)
        place = _place(page, question, maps[0][1].shape)
        record = {
            "page": page.name, "question": question.text, "answer": question.answers[0],
            "tokens": [name for name, _ in maps], "cells": spread_of(maps), "of": int(maps[0][1].size),
            "on_answer": float(np.mean([m[place].sum() for _, m in maps])) if place.any() else None,
            "place": float(place.mean()),
        }  # fmt: skip
        return record, {MAPS: attention_picture([self._model], page, question)}

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """The numbers of one model; nothing is attacked."""
        run = one_of(runs)
        row = Row(str(run.config["model"]), _numbers(run.units(), rng))
        table = Table("Attention", COLUMNS, [row], cls.footnote, first="model")
        pages = counted_words(len(run.units()), "page")
        said = f"Attention maps of {run.config['model']} on {pages}; nothing was attacked."
        part = Part("attention", Severity.UNMEASURED, said)
        return Reading(
            "Where does the model look?", said, (part,), said, (), (table.to_text(),), {}, {"attention": table}
        )

    def numbers(self, run: Run) -> dict[str, Value]:
        """Means over pages."""
        return _numbers(run.units(), np.random.default_rng(self.config.seed))

    def title(self) -> str:
        """The checkpoint's title."""
        return model_title(self.config.model, None)

    def needed(self, model: str) -> tuple[Needed, ...]:
        """The model and the pages."""
        c = self.config
        return (
            Needed("model", c.model, f"--model {model}=DIR"),
            Needed("pages", c.documents, f"--documents {c.documents.replace(PLACEHOLDER, 'DIR')}"),
        )

    def least(self) -> AttentionStudy:
        """One page."""
        return AttentionStudy(replace(self.config, pages=1), device=self.device)

    def work(self) -> dict[str, int]:
        """Pages."""
        return {"pages": self.config.pages}

    def done(self, unit: Unit, run: Run, seconds: float) -> dict[str, Done]:
        """A page."""
        return {"pages": Done(1, seconds, self.config.pages)}

    def planned(self) -> str:
        """Pages."""
        return f"{self.config.pages} documents"

    @classmethod
    def of_row(cls, source: str, settings: Settings, changes: Settings, *, device: str) -> AttentionStudy:
        """``source`` is the model; of the command line's changes documents is one data set."""
        chosen, documents = dict(settings), changes.get("documents", ())
        if len(documents) > 1:
            raise RecipeError(f"the recipe shows pages of one data set, and was given {len(documents)}.")
        return cls(AttentionConfig(model=source, **{**chosen, **({"documents": documents[0]} if documents else {})}),
                   device=device)  # fmt: skip

    @classmethod
    def row_facts(cls, rows: Sequence[TableRow]) -> dict[str, str]:
        """Models, seed and documents."""
        configs = [row.study.config for row in rows]
        return {
            "Models": ", ".join(dict.fromkeys(c.model for c in configs)), "Seed": str(configs[0].seed),
            "Documents": ", ".join(dict.fromkeys(c.documents for c in configs)),
        }  # fmt: skip

    @classmethod
    def picture(cls, rows: Sequence[TableRow]) -> Picture | None:
        """The first page's maps under every model."""
        first = [(row.run, units[0]) for row in rows if (units := row.run.units())]
        strips = [run.read_image(unit["unit"], unit["images"][MAPS]) for run, unit in first]
        if not strips:
            return None
        width = max(strip.shape[1] for strip in strips)
        wide = [np.pad(s, ((0, 0), (0, width - s.shape[1]), (0, 0)), constant_values=255) for s in strips]
        shows = "Attention to the first page for each token of the answer, in red, a row of pictures per model"
        return Picture(png_of(np.concatenate(wide)), "Attention", shows)


def _place(page: Page, question: Question, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which cells (rows, columns) the words of the question's answer touch; none where the page does not say."""
    rows, columns = shape
    place = np.zeros((rows, columns), dtype=bool)
    for field in (field for field in page.fields if field.key == question.key):
        for x0, y0, x1, y1 in page.field_boxes(field):
            left, right = int(x0 * columns / page.width), int(np.ceil(x1 * columns / page.width))
            top, bottom = int(y0 * rows / page.height), int(np.ceil(y1 * rows / page.height))
            place[top:bottom, left:right] = True
    return place


def _numbers(units: Sequence[Mapping[str, Any]], rng: np.random.Generator) -> dict[str, Value]:
    told = [unit for unit in units if unit["on_answer"] is not None]
    values = {
        "cells": [unit["cells"] for unit in units], "share": [unit["cells"] / unit["of"] for unit in units],
        "answer": [unit["on_answer"] for unit in told], "place": [unit["place"] for unit in told],
    }  # fmt: skip
    return {
        name: ratio_of(([number] for number in numbers), rng, share=name != "cells", resamples=10_000, of="pages")
        for name, numbers in values.items()
        if numbers
    }
