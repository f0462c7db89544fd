"""The study of gradients: every chosen model x page x attack is a unit, on what one client sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import docleak
from docleak.attacks.gradients import ATTACKS
from docleak.attacks.gradients.asking import ask
from docleak.attacks.gradients.selftest import self_test
from docleak.documents import repeats_of
from docleak.documents.page import Image
from docleak.errors import RecipeError
from docleak.metrics import Estimate, PageScore, load_engine, page_values, score_page
from docleak.models import DocumentModel, image_of, model_card, trainable
from docleak.models.stages import STAGES
from docleak.models.tagging import Tagger
from docleak.report.page import Reading
from docleak.report.table import Value
from docleak.runs.run import Run
from docleak.spec import split_name
from docleak.studies.gradient.case import Case, build_case, of_truth, read_gradient
from docleak.studies.gradient.config import (
    CLOSED_FORM,
    FLOOR,
    Exposure,
    GradientConfig,
    least_budget,
    threat_model,
    with_closed_form,
)
from docleak.studies.gradient.exposed import signed
from docleak.studies.gradient.memory import held
from docleak.studies.gradient.models import (
    audited_pages,
    inapplicable,
    later_models,
    model_of,
    questions_made,
    require_applicable,
    require_pages,
    said_of_training,
    shortage,
    skipped,
    unchanged,
)
from docleak.studies.gradient.pictures import sheet_of
from docleak.studies.gradient.reading import COLUMNS, read, tokens_read
from docleak.studies.gradient.results import prepare
from docleak.studies.gradient.texts import exact_text, mean_of, text_obstacle, text_record
from docleak.studies.identity import data_hash, model_key, model_title, title_key, weights_hash
from docleak.studies.study import (
    EVALUATIONS,
    PLACEHOLDER,
    Done,
    Needed,
    Picture,
    Settings,
    TableRow,
    TableStudy,
    Tell,
    Unit,
    with_tuples,
)

SNAPSHOTS = 8
EXPOSURE = frozenset(field.name for field in fields(Exposure))


class GradientStudy(TableStudy[GradientConfig]):
    """Page by page, the default attack on every model first, so that pictures come early."""

    kind = "gradient"
    Config = GradientConfig
    permissions = ("allow_failed_self_test",)
    wanted_at = "docs/reproduce.md"
    columns = COLUMNS
    extra: ClassVar = {
        **{field.name: str(field.type) for field in fields(Exposure)}, "attack": "str", "attack_options": "str",
        "image_sizes": "Mapping[str, tuple[int, ...]]",
    }  # fmt: skip
    options = ("models", "image_sizes", "documents", "pages", "budget", "ocr", "seed")
    parts, shares, stoppable = "documents", ("binary", "fuzz_ratio", "text_exact"), True
    footnote = (
        "Ours with 95 % intervals over documents in square brackets; the paper's value in round brackets. MSE is the "
        "true one in 0-255 units; the paper's printed values are not comparable."
    )

    @classmethod
    def of_options(cls, given: Settings, fixed: Settings) -> GradientConfig:
        """Beside attacks that are asked for, the closed form is tried; in a batch it is not, unless it is asked for."""
        chosen, batch = dict(given), given.get("batch_size", 1)
        if "attacks" not in fixed and ("attacks" in given or batch > 1):
            others = [name for name in GradientConfig().attacks if name != CLOSED_FORM]
            chosen["attacks"] = with_closed_form(given.get("attacks", others), batch_size=batch)
        return super().of_options(chosen, fixed)

    def check(self, say: Callable[[str], None]) -> None:
        """Fewer pages than asked for, questions that docleak makes, and attacks that cannot be made on a model. Of the
        closed form, where nobody asked for it, the report says why it is missing."""
        c = self.config
        require_applicable(c, self.device)
        require_pages(c, self.device)
        drawn = (self._model(source).drawn for source in c.models)
        for told in filter(None, (shortage(c, self.device), questions_made(c, self.device), *drawn)):
            say(told)
        beside = CLOSED_FORM if len(c.attacks) > 1 and not c.exposure.recover_text else ""
        for (model, name), why in skipped(c, self.device).items():
            if name != beside:
                say(f"{name} is left out on {model}: {why}.")

    def units(self) -> list[Unit]:
        """The units whose pages there are, and whose attack applies to their model.

        A model that none of the attacks applies to has units of the floor, so that its text is read all the same.
        """
        c = self.config
        left_out = skipped(c, self.device)
        pairs = [(source, attack) for attack in c.attacks for source in c.models if (source, attack) not in left_out]
        bare = [source for source in c.models if source not in {source for source, _ in pairs}]
        pairs += [(source, FLOOR) for source in bare if not text_obstacle(self._model(source), c.batch_size)]
        there = {source: len(audited_pages(source, self.device, c)) - c.batch_size + 1 for source in c.models}
        return [
            Unit(f"{title_key(source)}--{page:03d}--{attack}", c.budget, page, (source, page, attack))
            for source, attack in pairs
            for page in range(min(c.pages, there[source]))
        ]

    def over(self, pages: int) -> Self | None:
        """A gradient is of its own pages, but what is trained on between rounds may be what all of them leave."""
        return None if self.config.rounds > 1 else type(self)(replace(self.config, pages=pages), device=self.device)

    def _model(self, source: str) -> DocumentModel:
        return model_of(self.config, source, self.device)

    def identity(self) -> dict[str, str]:
        """Weights and pages of every model, and the recorded gradient; raises early what can be known early."""
        c = self.config
        require_applicable(c, self.device)
        require_pages(c, self.device)
        load_engine(c.ocr)
        if c.exposure.gradient_file:
            read_gradient(Path(c.exposure.gradient_file))
        hashes = {f"weights of {source}": weights_hash(self._model(source)) for source in c.models}
        return hashes | {"pages": data_hash([page for s in c.models for page in audited_pages(s, self.device, c)])}

    def facts(self) -> dict[str, Any]:
        """Models, threat model, what is left out and why, and the signature that names what was compared."""
        c, identity = self.config, self.identity()
        models = {}
        for source in c.models:
            card = model_card(source)
            models[model_key(source, c.image_size)] = {
                "title": model_title(source, c.image_size),
                "parameters": sum(p.numel() for _, p in trainable(self._model(source).module)),
                "hash": identity[f"weights of {source}"],
                "trained": card.get("recipe", ""),
                "drawn": self._model(source).drawn,
                "anls": card.get("anls"),
            }
        rounds = f", {c.rounds} rounds, {c.round_steps} steps apart" if c.rounds > 1 else ""
        signature = (
            f"docleak {docleak.__version__} | seed {c.seed} | data {identity['pages']} | "
            + " ".join(f"{name}:{entry['hash']}" for name, entry in models.items())
            + f" | gradient view, B = {c.batch_size}{rounds}{signed(vars(c.exposure))}"
            + f" | {', '.join(c.attacks)} | {c.budget} evaluations"
        )
        left_out = skipped(c, self.device)
        return {
            "models": models,
            "threat_model": threat_model(c, [isinstance(self._model(source), Tagger) for source in c.models]),
            "signature": signature,
            "trained_here": said_of_training(c),
            "shortage": shortage(c, self.device),
            "questions_made": questions_made(c, self.device),
            "found": min(len(audited_pages(source, self.device, c)) for source in c.models) - c.batch_size + 1,
            "skipped": [
                {"model": model_key(source, c.image_size), "attack": attack, "why": why}
                for (source, attack), why in left_out.items()
            ],
        }

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """One attack on one page; the self-test comes first and stops it if the truth does not match."""
        c, (source, number, name) = self.config, unit.what
        model = self._model(source)
        batch = audited_pages(source, self.device, c)[number : number + c.batch_size]
        later = later_models(source, self.device, c)
        with unchanged((model, *later), f"defence {c.exposure.defense}"):
            case = build_case(model, batch, c.exposure, seed=c.seed + number, later=later)
        test = self_test(case.clean, case.pixels, case.inputs)
        if not c.allow_failed_self_test:
            test.require()
        step = max(1, c.budget // SNAPSHOTS)

        def on_evaluation(count: int, loss: float, pixels: Tensor) -> None:
            tell(count)
            if count % step == 0 and name != FLOOR:
                run.write_snapshot(unit.id, count, image_of(pixels[0].clamp(0, 1)))

        attack = ATTACKS.load(name)
        generator = torch.Generator().manual_seed(c.seed * 1000 + number)
        with unchanged((model, *later), f"attack {name!r}"):
            finding = ask(
                attack, case.view, case.knowledge, budget=c.budget, generator=generator, on_evaluation=on_evaluation
            )
        images = {
            "truth": batch[0].image,
            "template": image_of(case.knowledge.template[0]),
            "reconstruction": image_of(finding.pixels[0]),
        }
        scores = {"score": "reconstruction", "floor": "template", "ceiling": "truth"}
        # The unit of the first attack that can be made on this model also reads the text.
        first = next((one for one in c.attacks if not inapplicable(model, one, c)), FLOOR)
        record = {
            **self._described(source, name, case),
            "recovered": text_record(case, look=name == first),
            "attack_summary": attack.summary,
            "attack_paper": attack.paper,
            "self_test": {"distance": test.distance, "passed": test.passed, "note": "; ".join(test.causes)},
            "finding": {
                "matching": finding.matching if finding.evaluations else None,
                **{key: getattr(finding, key) for key in ("explained", "evaluations", "seconds", "start", "loss")},
                **of_truth(case),
                "budget": c.budget,
                "history": [list(item) for item in finding.history],
            },
            **{key: score_page(batch[0], images[which], self.engine).to_json() for key, which in scores.items()},
        }
        return record, images

    @cached_property
    def engine(self) -> Any:
        """The OCR engine that reads the pictures."""
        return load_engine(self.config.ocr)

    def _described(self, source: str, attack: str, case: Case) -> dict[str, object]:
        c, page = self.config, case.pages[0]
        moment = next((word for word in ("start", "trained") if source.endswith(f"-{word}")), "other")
        places: dict[str, object] = {
            key: [{"key": f.key, "value": f.value, "boxes": [list(b) for b in page.field_boxes(f)]} for f in group]
            for key, group in (("fields", page.private_fields), ("repeats", repeats_of(page)))
        }
        return {
            "model": model_key(source, c.image_size),
            "model_title": model_title(source, c.image_size),
            "architecture": case.view.model.architecture,
            "moment": moment,
            "attack": attack,
            "page": page.name,
            "document": page.document,
            "provider": page.provider,
            "size": [page.width, page.height],
            "question": case.question.text,
            "answer": case.question.answers[0] if case.answered else "",
            "view": {
                "batch_size": c.batch_size,
                "rounds": c.rounds,
                "train_mode": c.exposure.train_mode,
                "sees": getattr(case.view.model, "sees", True),
                "words_known": case.knowledge.words_known and bool(case.inputs[0].words_seen),
                "answer_known": case.knowledge.answer_known and case.answered,
                "defense": c.exposure.defense,
                "tensors": len(case.view.gradient),
                "numbers": sum(v.numel() for v in case.view.gradient.values()),
            },
            "knowledge": list(case.knowledge.sentences(answered=case.answered)),
            **places,
        }

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """Verdicts on every model, then the evidence field by field; several runs of the same pages are joined."""
        return read(runs, rng)

    def numbers(self, run: Run) -> dict[str, Value]:
        """The picture's scores, what linear algebra read of the text, and the cost."""
        if not run.units():
            return {"documents": f"0 of {self.config.pages}"}
        context = prepare([run], np.random.default_rng(0)).models[0]
        best, documents = context.best, context.documents
        kind = "batches" if self.config.batch_size > 1 else "pages"
        several = f"{documents} ({len(best.units)} {kind})" if documents != len(best.units) else ""
        return {
            **{name: best.estimates[name] for name in ("binary", "fuzz_ratio", "psnr", "fft2d", "mse")},
            "documents": several or Estimate.exactly(documents),
            "evaluations": Estimate.exactly(best.evaluations.value),
            "seconds": Estimate.exactly(best.seconds.value),
            "text": tokens_read(context),
            "text_exact": mean_of([*self.measured(run, "text_exact").values()]),
        }

    def measured(self, run: Run, column: str) -> dict[str, float]:
        """A document's mean, over its fields or pages."""
        by_document: dict[str, list[float]] = {}
        for record in run.units():
            score = PageScore.from_json(record["score"])
            values = exact_text(record) if column == "text_exact" else page_values(score, column)
            by_document.setdefault(score.document, []).extend(values)
        return {document: float(np.mean(values)) for document, values in by_document.items() if values}

    def planned_parts(self) -> int:
        """At most a document per page."""
        return self.config.pages

    def shown(self) -> tuple[str, ...]:
        """All columns; those of the text where it is read."""
        return tuple(name for name in self.columns if self.config.exposure.recover_text or not name.startswith("text"))

    def needed(self, model: str) -> tuple[Needed, ...]:
        """The model, the pages, and the OCR model where one is named."""
        c = self.config
        engine, reader = split_name(c.ocr)
        return (
            Needed("model", c.models[0], f"--model {model}=DIR"),
            Needed("pages", c.documents, f"--documents {c.documents.replace(PLACEHOLDER, 'DIR')}"),
            *([Needed("model", reader, f"--ocr {engine}:DIR")] if engine == "trocr" else []),
        )

    def least(self) -> GradientStudy:
        """One page, and as few evaluations as the attack can begin with."""
        c, steps = self.config, min(1, self.config.fine_tune_steps)
        budget = max(least_budget(name, c.rounds) for name in c.attacks)
        return GradientStudy(replace(c, pages=1, budget=budget, fine_tune_steps=steps), device=self.device)

    def work(self) -> dict[str, int]:
        """Gradient evaluations."""
        return {EVALUATIONS: self.config.pages * self.config.budget}

    def held(self) -> int:
        """What a page's gradients hold."""
        return held(self.config)

    def done(self, unit: Unit, run: Run, seconds: float) -> dict[str, Done]:
        """Pages, with all that comes with one besides the attack, and the attack's evaluations: none of some."""
        pages, finding = self.config.pages, run.record(unit.id)["finding"]
        spent, of = (finding["seconds"], pages * self.config.budget) if (count := finding["evaluations"]) else (0.0, 0)
        return {"pages": Done(1, seconds - spent, pages), EVALUATIONS: Done(count, spent, of)}

    def title(self) -> str:
        """The checkpoint's title."""
        return model_title(self.config.models[0], self.config.image_size)

    def planned(self) -> str:
        """Documents and gradient evaluations."""
        return f"{self.config.pages} documents x {self.config.budget} evaluations"

    @classmethod
    def of_row(cls, source: str, settings: Settings, changes: Settings, *, device: str) -> GradientStudy:
        """A row attacks one model by one ``attack`` with ``attack_options``; settings of Exposure stand beside the
        others. Of the command line's changes documents is one data set, image_sizes are by model."""
        chosen = with_tuples(settings)
        sizes = {**chosen.pop("image_sizes", {}), **changes.get("image_sizes", {})}
        if size := sizes.get(changes["model"]):
            chosen["image_size"] = tuple(size)
        if documents := changes.get("documents"):
            if len(documents) != 1:
                raise RecipeError(f"the recipe attacks pages of one data set, and was given {len(documents)}.")
            chosen["documents"] = documents[0]
        if unknown := [stage for stage in chosen.get("stages", ()) if stage not in STAGES]:
            raise RecipeError(f"unknown stage {', '.join(map(str, unknown))}; expected some of {', '.join(STAGES)}.")
        exposed = {key: chosen.pop(key) for key in list(chosen) if key in EXPOSURE}
        attack, options = chosen.pop("attack", "gi-dqa"), chosen.pop("attack_options", "")
        attack = f"{attack}:{options}" if options else attack
        config = GradientConfig(models=(source,), attacks=(attack,), exposure=Exposure(**exposed), **chosen)
        return cls(config, device=device)

    @classmethod
    def row_facts(cls, rows: Sequence[TableRow]) -> dict[str, str]:
        """Models as in their signatures, seed, documents and reader, which are the same in all rows; what the models
        were trained on here."""
        done = [row.run for row in rows if (row.run.path / "run.json").is_file()]
        if not done:
            return {}
        signatures = dict.fromkeys(str(run.info["signature"]).split(" | ")[3] for run in done)
        first, trained = done[0].config, dict.fromkeys(str(run.info.get("trained_here", "")) for run in done)
        readers = dict.fromkeys(unit["score"]["engine"] for run in done for unit in run.units())
        facts = {"Models": ", ".join(signatures), "Seed": str(first["seed"]), "Documents": str(first["documents"]),
                 "Pictures read by": ", ".join(readers)}  # fmt: skip
        said = "; ".join(filter(None, trained))
        return {**facts, "Training": said} if said else facts

    @classmethod
    def picture(cls, rows: Sequence[TableRow]) -> Picture | None:
        """Of each model the first document that all its rows have."""
        tables = {
            target: [(row.name, row.run) for row in rows if row.target == target]
            for target in dict.fromkeys(row.target for row in rows)
        }
        sheet = sheet_of(tables)
        shows = "Private fields of one document: true page and each row's reconstruction"
        return None if sheet is None else Picture(sheet, "One document", shows)
