"""Families of vision-language models as rows of a table: does each load, match ``transformers``' own client, and what
of a page comes out of its gradient and out of its adapters over rounds?
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from docleak.attacks.gradients import ATTACKS
from docleak.attacks.gradients.algebra.first_layer import Words
from docleak.attacks.gradients.algebra.layoutlmv3 import recover_text
from docleak.attacks.gradients.algebra.order import recover_answers
from docleak.attacks.gradients.algebra.patches import pixels_of_system
from docleak.attacks.gradients.algebra.recover import recover_set
from docleak.attacks.gradients.algebra.tower import tower_system
from docleak.attacks.gradients.selftest import self_test
from docleak.attacks.gradients.view import GradientView
from docleak.documents.page import Image
from docleak.errors import AttackError
from docleak.metrics.image import psnr
from docleak.models import image_of, load_model
from docleak.models.lilt import Lilt
from docleak.models.vlm.alone import gradient_alone
from docleak.models.vlm.model import VisionLanguage
from docleak.models.vlm.tiny import make_tiny
from docleak.report.page import Reading
from docleak.report.severity import Part, Severity
from docleak.report.table import Column, Row, Table, Value
from docleak.runs.run import Run
from docleak.studies.adapters.rounds import AdapterConfig, Federation
from docleak.studies.gradient.case import Case, build_case, pages_for
from docleak.studies.gradient.config import Exposure
from docleak.studies.gradient.texts import counted
from docleak.studies.study import Settings, TableRow, TableStudy, Tell, Unit, one_of

GRADIENT, ROUNDS, PICTURE = "gradient", "rounds", "picture"
#: What of the columns each unit fills.
COLUMNS: dict[str, Column] = {
    "parameters": Column("parameters", 0), "self_test": Column("self-test"), "text": Column("words of a gradient"),
    "pixels": Column("pixels, closed form"), "picture": Column("gi-dqa, dB (template)"),
    "near": Column("within 8 levels (template)"), "evaluations": Column("evaluations", 0),
    "words": Column("words of adapters"), "share": Column("share", 3), "false": Column("false", 0),
    "since": Column("all since round"), "page": Column("page, and the nearest of others"),
    "bytes": Column("bytes a round", 0), "loss": Column("unseen loss, before and after"),
}  # fmt: skip
OF = {
    GRADIENT: ("parameters", "self_test", "text", "pixels"),
    ROUNDS: ("words", "share", "false", "since", "page", "bytes", "loss"),
    PICTURE: ("picture", "near", "evaluations"),
}
#: A pixel counts as right within so much of the true one, of a closed form and of a picture by optimisation.
LEVEL, NEAR = 1 / 255, 8 / 255


class AdapterStudy(TableStudy[AdapterConfig]):
    """A unit is a family's whole gradient of a page, or its adapters over rounds."""

    kind = "adapters"
    Config = AdapterConfig
    columns = COLUMNS
    of_model = ("initialisation",)
    options = ("seed",)
    footnote = (
        "Random weights. Self-test: relative distance between docleak's gradient and that of a client that uses "
        "transformers alone. Words: different tokens right, of all that were read and moved; 'sure' where the attack "
        "believes that these are all and no others. Pixels: share of the private ones within 1/255, or why the closed "
        "form is refused. By gi-dqa: of the private ones, beside the blank template's, text known, of the "
        "tiniest model. Page: the share of a page's own gradient outside of the span of what was sent, of the "
        "client's page and of the nearest of others."
    )

    def units(self) -> list[Unit]:
        """Those that are asked for."""
        c = self.config
        units = {GRADIENT: c.gradient, ROUNDS: c.rounds > 0, PICTURE: c.budget > 0}
        return [Unit(name, turn=turn) for turn, (name, asked) in enumerate(units.items()) if asked]

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """One of both; the model is made from its seed and thrown away."""
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "base"
            c = self.config
            drawn: Any = c.initialisation
            make_tiny(c.family, base, seed=c.seed, initialisation=drawn, width=0 if unit.id == PICTURE else c.width)
            if unit.id == ROUNDS:
                return self._rounds(base, Path(folder)), {}
            model = load_model(str(base), device=self.device)
            assert isinstance(model, VisionLanguage | Lilt)
            (page,) = pages_for(model, "synthetic", count=1, seed=c.seed)
            case = build_case(model, [page], Exposure(), seed=c.seed)
            view = replace(case.clean, gradient=gradient_alone(model, page, case.question))
            return (self._gradient if unit.id == GRADIENT else self._picture)(model, case, view), {}

    def _gradient(self, model: VisionLanguage | Lilt, case: Case, view: GradientView) -> dict[str, Any]:
        test = self_test(view, case.pixels, case.inputs)
        if isinstance(model, Lilt):
            return {**self._of_words_and_boxes(model, case, view), "self_test": test.distance}
        private = case.knowledge.private[0]
        record = {
            "parameters": sum(p.numel() for p in model.module.parameters()),
            "self_test": test.distance,
            "text": self._words(view, model.tokens_moved(case.inputs[0])),
        }
        if hasattr(model, "answer_layers"):
            read = recover_answers(view)
            true = tuple(case.inputs[0].tensors["labels"].tolist()[:-1])
            record["answer"] = {"right": read.tokens == (true,), "sure": read.exact}
        try:
            pixels, _, _ = pixels_of_system(tower_system(view), case.knowledge.template, case.knowledge.private)
            near = ((pixels - case.pixels).abs() <= LEVEL).all(1)[0]
            record["pixels"] = {"share": float(near[private].float().mean())}
        except AttackError as fault:
            record["pixels"] = {"refused": str(fault)}
        return record

    @staticmethod
    def _of_words_and_boxes(model: Lilt, case: Case, view: GradientView) -> dict[str, Any]:
        """Of a model without eyes: its tokens in their places, and whether boxes and answer are right, too."""
        recovered, true = recover_text(view), case.inputs[0].tensors
        ids, read = true["input_ids"], recovered.inputs[0].tensors["input_ids"]
        same = all(torch.equal(value, recovered.inputs[0].tensors[name]) for name, value in true.items())
        right = sum(int(one == other) for one, other in zip(ids.tolist(), read.tolist(), strict=False))
        return {
            "parameters": sum(p.numel() for p in model.module.parameters()),
            "text": {"found": len(read), "right": right, "true": len(ids), "sure": recovered.exact},
            "answer": {"right": same, "sure": recovered.exact, "what": "all in place, boxes and answer"},
            "pixels": {"refused": "it reads words and boxes, and no picture"},
        }

    def _picture(self, model: VisionLanguage | Lilt, case: Case, view: GradientView) -> dict[str, Any]:
        generator, mask = torch.Generator().manual_seed(self.config.seed), case.knowledge.private[0].cpu().numpy()
        finding = ATTACKS.load("gi-dqa").run(view, case.knowledge, budget=self.config.budget, generator=generator)
        pictures = finding.pixels.clamp(0, 1), case.knowledge.template
        near = [((one - case.pixels).abs() <= NEAR).all(1)[0][case.knowledge.private[0]] for one in pictures]
        return {
            "picture": [psnr(case.pages[0].image, image_of(one[0]), mask) for one in pictures],
            "near": [float(one.float().mean()) for one in near],
            "evaluations": finding.evaluations,
        }

    @staticmethod
    def _words(view: GradientView, true: set[int]) -> dict[str, Any]:
        try:
            words = recover_set(view)
        except AttackError as fault:
            return {"refused": str(fault)}
        return {**counted(set(words.tokens), true), "sure": words.exact, "route": words.route}

    def _rounds(self, base: Path, folder: Path) -> dict[str, Any]:
        c, generator = self.config, torch.Generator().manual_seed(self.config.seed)
        federation = Federation.of(base, folder / "adapters", c, self.device)
        before, sent, read = federation.loss(), [], []
        true = federation.true()
        for number in range(c.rounds):
            sent.append(federation.round(number, generator))
            reading = federation.read(sent)
            if isinstance(reading, Words):
                read.append({"round": number + 1, **counted(set(reading.tokens), true), "sure": reading.exact,
                             "conditions": [vars(condition) for condition in reading.conditions]})  # fmt: skip
            else:
                read.append({"round": number + 1, "refused": reading})
        return {"true": len(true), "read": read, "residuals": federation.residuals(sent), "bytes": federation.bytes(),
                "loss": [before, federation.loss()]}  # fmt: skip

    def title(self) -> str:
        """How the weights were drawn."""
        return f"Random weights ({self.config.initialisation})"

    def shown(self) -> Sequence[str]:
        """The columns of what was asked for."""
        c = self.config
        names = [name for unit in self.units() for name in OF[unit.id]]
        left_out = {"loss": c.unseen > 0, "page": c.others > 0}
        return [name for name in names if left_out.get(name, True)]

    def numbers(self, run: Run) -> dict[str, Value]:
        """What is finished."""
        numbers: dict[str, Value] = {}
        for record in run.units():
            numbers |= READERS[record["unit"]](record)
        return numbers

    def row_values(self, run: Run) -> dict[str, Any]:
        """All that was measured, with the reasons of what was refused."""
        return {"measured": {record["unit"]: record for record in run.units()}}

    @classmethod
    def of_row(cls, source: str, settings: Settings, changes: Settings, *, device: str) -> Any:
        """``source`` is how weights are drawn."""
        return cls(AdapterConfig(initialisation=source, **settings), device=device)

    @classmethod
    def row_facts(cls, rows: Sequence[TableRow]) -> dict[str, str]:
        """Of all rows, what is the same; of each that refuses something, why."""
        c = rows[0].study.config
        said = f"{c.rounds} rounds, LoRA of rank {c.rank} on {c.targets}, {c.optimiser} at {c.learning_rate:g}"
        facts = {"Models": f"made on the spot, language model {c.width} wide, seed {c.seed}", "Adapters": said}
        for row in rows:
            for record in row.run.units():
                facts |= {f"{row.name}, {what}": why for what, why in _refusals(record).items()}
        return facts

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """The numbers of one family."""
        run = one_of(runs)
        values = cls(AdapterConfig(**run.config)).numbers(run)
        table = Table("Adapters", COLUMNS, [Row(str(run.config["family"]), values)], cls.footnote, first="family")
        said = f"What a {run.config['family']} of random weights and its adapters give away."
        part = Part("adapters", Severity.UNMEASURED, said)
        return Reading("What do adapters give away?", said, (part,), said, (), (table.to_text(),), {},
                       {"adapters": table})  # fmt: skip


def _of_gradient(record: Mapping[str, Any]) -> dict[str, Value]:
    pixels = record["pixels"]
    return {
        "parameters": float(record["parameters"]), "self_test": f"{record['self_test']:.0e}",
        "text": _said(record["text"]) + _answered(record.get("answer")),
        "pixels": "refused" if "refused" in pixels else f"{pixels['share']:.1%}",
    }  # fmt: skip


def _of_picture(record: Mapping[str, Any]) -> dict[str, Value]:
    return {
        "picture": "{:.1f} ({:.1f})".format(*record["picture"]),
        "near": "{:.1%} ({:.1%})".format(*record["near"]),
        "evaluations": float(record["evaluations"]),
    }


def _of_rounds(record: Mapping[str, Any]) -> dict[str, Value]:
    last, read = record["read"][-1], record["read"]
    values: dict[str, Value] = {"words": _said(last), "bytes": float(record["bytes"])}
    if "refused" not in last:
        complete = [one["round"] for one in read if one.get("right") == one.get("true") == one.get("found", -1)]
        values |= {"share": last["right"] / last["true"], "false": float(last["found"] - last["right"]),
                   "since": str(complete[0]) if complete else "-"}  # fmt: skip
    if record["residuals"]:
        its_residual, others = record["residuals"]
        values["page"] = f"{its_residual:.3f}, {min(others):.3f}" if others else f"{its_residual:.3f}"
    if record["loss"][0] is not None:
        values["loss"] = "{:.2f}, {:.2f}".format(*record["loss"])
    return values


READERS = {GRADIENT: _of_gradient, ROUNDS: _of_rounds, PICTURE: _of_picture}


def _said(read: Mapping[str, Any]) -> str:
    if "refused" in read:
        return "refused"
    wrong = read["found"] - read["right"]
    return f"{read['right']} of {read['true']}{f', {wrong} false' * bool(wrong)}{', sure' * read['sure']}"


def _answered(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return ""
    what = answer.get("what", "the answer in order")
    return f"; {what if answer['right'] else f'not {what}'}{', sure' * answer['sure']}"


def _refusals(record: Mapping[str, Any]) -> dict[str, str]:
    places = {"words of a gradient": record.get("text"), "pixels": record.get("pixels"),
              "words of adapters": record["read"][-1] if record.get("read") else None}  # fmt: skip
    return {what: place["refused"] for what, place in places.items() if place and "refused" in place}
