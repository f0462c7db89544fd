"""The study of pairs: attacks on clients of pictures with texts, batch by batch, and the client's privacy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np
import torch

from docleak.attacks.pairs import PairAttack
from docleak.attacks.pairs.asking import ask
from docleak.documents.page import Image
from docleak.documents.pairs.loading import MADE, PAGES, PAIR_FORMATS
from docleak.errors import RecipeError
from docleak.metrics.estimate import Estimate
from docleak.models.loading import short_name
from docleak.models.pair.aligner import RANDOM_ALIGNER
from docleak.models.pair.shapes import IMAGE_SHAPES, TEXT_SHAPES
from docleak.models.shipped import SHIPPED_ALIGNERS, SHIPPED_GENERATOR
from docleak.report.page import Reading
from docleak.report.table import Value
from docleak.runs.run import Run
from docleak.spec import split_name
from docleak.studies.pairs.case import pictures_of, score_pairs, self_tests, words_named
from docleak.studies.pairs.client import Setting, forget, privacy_of, set_up
from docleak.studies.pairs.config import GIFD, PairConfig
from docleak.studies.pairs.privacy import LONGEST
from docleak.studies.pairs.reading import ACCURACY, COLUMNS, SCORES, attacked, cost_of, means, privacy_in, read_run
from docleak.studies.pairs.rows import draw, facts_of
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
    one_of,
    with_tuples,
)

#: The unit that says what the client's noise guarantees and costs.
PRIVACY = "privacy"
#: What names no files: networks that are drawn, and the adversary's models that docleak ships or fits.
SHAPES = (*IMAGE_SHAPES, *TEXT_SHAPES)
WITHOUT_FILES = (*SHIPPED_ALIGNERS, RANDOM_ALIGNER, SHIPPED_GENERATOR, "trigrams")
#: Pairs with the classes of scenes.
OF_SCENES = (*MADE, "nlvr", "nlvr-true")
#: Pairs whose texts are public, or that a client trains on, in a rehearsal.
REHEARSED = 16


class PairStudy(TableStudy[PairConfig]):
    """A unit is one attack on one batch; where there is something to tell of the client's privacy, that is one, too."""

    kind = "pairs"
    Config = PairConfig
    columns = COLUMNS
    sparse = True
    printed_sets = ("cifar100", "openi", "flickr30k")
    extra: ClassVar = {"attack": "str", "show": "tuple[str, ...]"}
    of_model = ("image", "text")
    options = ("image_sizes", "documents", "pages", "budget", "seed")
    checkpoints = ("aligner", "language", "generator")
    sized = (*MADE, PAGES, *PAIR_FORMATS)
    wanted_at = "docs/pairs.md"
    footnote = (
        "Ours with 95 % intervals in square brackets (bootstrap over batches, whose pairs share a gradient); the "
        "paper's value in round brackets, or in columns of its own where it prints several data sets. SSIM, ROUGE and "
        "tokens (the share read exactly in place) lie in 0 to 1. All rows have the same budget of gradient evaluations "
        "per modality."
    )
    show: tuple[str, ...] = ("ssim", "rouge_l")
    parts, shares, stoppable = "batches", tuple(name for name in SCORES if name not in ("ssim", "psnr")), True

    @property
    def setting(self) -> Setting:
        """Everything loaded and drawn."""
        return set_up(self.config, self.device)

    def units(self) -> list[Unit]:
        """Every attack on every batch, batch by batch; first what the privacy is, where there is some."""
        c = self.config
        told = [Unit(PRIVACY)] if c.epsilon or c.utility else []
        return told + [
            Unit(f"{name}-{number:04d}", c.budget, number, (name, number))
            for number in range(c.count // c.batch_size)
            for name in c.attacks
        ]

    def facts(self) -> dict[str, Any]:
        """The client's model, what the server knows, and how many texts are cut."""
        setting, model = self.setting, self.setting.model
        lengths = [int(model.token_ids([pair.text], longest=LONGEST + 1)[1].sum()) for pair in setting.targets]
        return {
            "model": model.name, "classes": len(model.classes), "knows": list(setting.case(0).known()),
            "cut": {"texts": sum(length > LONGEST for length in lengths), "behind": LONGEST - 2},
        }  # fmt: skip

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """One attack on one batch, after the self-test: scores, texts and pictures."""
        if unit.id == PRIVACY:
            return {"privacy": privacy_of(self.setting)}, {}
        name, number = unit.what
        setting = self.setting
        case = setting.case(number)
        for test in self_tests(setting.case(number, plain=True)).values():
            test.require()
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + number)
        attack = self.config.attack(name)
        finding = ask(attack, case.view, case.knowledge, budget=self.config.budget, generator=generator, forget=forget)
        scores = score_pairs(case, finding, setting.public)
        images = {
            f"{which}-{target}": image
            for target in range(len(scores))
            for which, image in pictures_of(case, finding, target).items()
        }
        record = {
            "attack": name,
            "batch": number,
            "scores": [asdict(score) for score in scores],
            "quality": [finding.image_quality, finding.text_quality],
            "evaluations": [finding.image_evaluations, finding.text_evaluations],
            "seconds": [finding.image_seconds, finding.text_seconds, finding.align_seconds],
            "rounds": [asdict(turn) for turn in finding.rounds],
            "words": words_named(case),
        }
        return record, images

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """The verdict on the first run's pairs, then every pair side by side."""
        return read_run(one_of(runs), rng)

    def numbers(self, run: Run) -> dict[str, Value]:
        """Means over pairs of the row's attack, and the accuracies."""
        units, accuracy = attacked(run), privacy_in(run).get("accuracy") or ()
        scores: dict[str, Value] = {**means(units, np.random.default_rng(self.config.seed))} if units else {}
        return scores | {name: Estimate.exactly(value) for name, value in zip(ACCURACY, accuracy, strict=False)}

    def measured(self, run: Run, column: str) -> dict[str, float]:
        """A batch's mean over its pairs, which share a gradient."""
        batches = {unit["unit"].removeprefix(f"{unit['attack']}-"): unit["scores"] for unit in attacked(run)}
        return {name: float(np.mean([score[column] for score in scores]))
                for name, scores in batches.items() if column in SCORES}  # fmt: skip

    def planned_parts(self) -> int:
        """The batches."""
        return self.config.count // self.config.batch_size

    def row_values(self, run: Run) -> dict[str, Any]:
        """The attack, its cost and texts, and what the client's noise is worth."""
        units = attacked(run)
        cost = cost_of(units) if units else {}
        return {"attack": self.config.attacks[0], **cost, "privacy": privacy_in(run)}

    def shown(self) -> tuple[str, ...]:
        """What the recipe's row shows."""
        return self.show

    def title(self) -> str:
        """The two networks."""
        return f"{self.config.image} + {self.config.text}"

    def planned(self) -> str:
        """Batches and evaluations."""
        c = self.config
        return f"{c.count // c.batch_size} batches x {c.budget} evaluations of each modality"

    @classmethod
    def of_row(cls, source: str, settings: Settings, changes: Settings, *, device: str) -> PairStudy:
        """``source`` is "IMAGE+TEXT"; of the command line's changes documents is the data set, pages its count, and
        image_sizes are by format or model; models may name checkpoints by those of the recipe."""
        image, plus, text = source.partition("+")
        if not plus or not image or not text:
            raise RecipeError(f"the recipe names {source!r}; expected IMAGE+TEXT.")
        chosen = with_tuples(settings)
        show, attack = chosen.pop("show", cls.show), chosen.pop("attack", "mmgia")
        if documents := changes.get("documents"):
            chosen["pairs"] = documents[0]
        if "pages" in changes:
            chosen["count"] = changes["pages"]
        named = changes.get("models", {})
        chosen |= {
            key: named[short_name(chosen[key])]
            for key in cls.checkpoints
            if key in chosen and short_name(chosen[key]) in named
        }
        sizes = changes.get("image_sizes", {})
        if size := sizes.get(_format(chosen), sizes.get(changes["model"])):
            chosen["image_size"] = size
        study = cls(PairConfig(image=image, text=text, attacks=(attack,), **chosen), device=device)
        study.show = tuple(show)
        return study

    @classmethod
    def changes_of(cls, settings: Sequence[Settings], changes: Settings, scale: str) -> Settings:
        """RecipeError for data sets, and sizes of some, that no row has; for two of one format in rows that have each
        their own; and for the same one twice."""
        given, known = changes.get("documents", ()), {_format(one) for one in settings}
        formats = [_format({"pairs": spec}) for spec in given]
        if len(known) > 1 and (wrong := sorted({one for one in formats if one not in known or formats.count(one) > 1})):
            raise RecipeError(
                f"--documents: found {', '.join(wrong)}, expected each of {', '.join(sorted(known))} once at most: the "
                "recipe's rows are of these."
            )
        if len(set(given)) < len(given):
            raise RecipeError(f"--documents: {', '.join(given)} names a data set twice. Leave one out.")
        sized = {name for name in changes.get("image_sizes", {}) if name in cls.sized}
        there = known if len(known) > 1 or not given else {*formats}
        if idle := sorted(sized - there):
            raise RecipeError(
                f"--image-size: no row has pairs of {', '.join(idle)}; they are of {', '.join(sorted(there))}."
            )
        return changes

    @classmethod
    def by_data_set(cls, settings: Settings, of_all: Sequence[Settings], changes: Settings) -> dict[str, Settings]:
        """Every row on each data set that was given; or, in a recipe whose rows have different ones, on its own."""
        given = tuple(changes.get("documents", ()))
        if len({_format(one) for one in of_all}) > 1:
            return {"": {**changes, "documents": [s for s in given if _format({"pairs": s}) == _format(settings)]}}
        if len(given) < 2:
            return {"": changes}
        formats = [_format({"pairs": spec}) for spec in given]
        names = [one if formats.count(one) == 1 else f"{one}_{n}" for n, one in enumerate(formats, start=1)]
        return {name: {**changes, "documents": (spec,)} for name, spec in zip(names, given, strict=True)}

    def needed(self, model: str) -> list[Needed]:
        """The pairs, networks that are not drawn, and the adversary's models."""
        c = self.config
        option = f"--model {model}=IMAGE+TEXT"
        networks = [Needed("model", name, option) for name in (c.image, c.text) if name not in SHAPES]
        public = {"aligner": c.aligner, "language": c.language, **({"generator": c.generator} if GIFD.met(c) else {})}
        networks += [
            Needed("model", name, f"--model {role if PLACEHOLDER in name else short_name(name)}=DIR")
            for role, name in public.items()
            if name not in WITHOUT_FILES
        ]
        apart = c.records if c.utility and split_name(c.pairs)[0] not in OF_SCENES else 0
        option = f"--documents {c.pairs.replace(PLACEHOLDER, 'DIR')}"
        return [*networks, Needed("pairs", c.pairs, option, c.skip + c.count + c.public + apart)]

    def least(self) -> PairStudy:
        """One batch, or two pairs where one is taken for another, and as few evaluations as an attack can begin with; a
        step of each training, on some pairs."""
        c = self.config
        pairs = c.batch_size if c.oracle_error is None and not c.shuffle else max(c.batch_size, 2)
        turns = [attack.refine.rounds for attack in c.made if isinstance(attack, PairAttack) and attack.refine]
        config = replace(
            c, count=pairs, public=min(c.public, REHEARSED), budget=4 * max(turns, default=1),
            trained=min(c.trained, 1), steps=1, records=max(pairs, min(c.records, REHEARSED)),
        )  # fmt: skip
        study = PairStudy(config, device=self.device)
        study.show = self.show
        return study

    def work(self) -> dict[str, int]:
        """Evaluations of both modalities, and the client's training steps where its use is measured."""
        c = self.config
        steps = {"training steps": c.steps} if c.utility else {}
        return {EVALUATIONS: 2 * c.count // c.batch_size * c.budget, **steps}

    def done(self, unit: Unit, run: Run, seconds: float) -> dict[str, Done]:
        """Batches, with all that comes with one besides the attack, and the attack's evaluations; a training's step
        with all that its training loads."""
        if unit.id == PRIVACY:
            steps = self.work().get("training steps", 0)
            return {"training steps": Done(1, seconds, steps)} if steps else {}
        record, batches = run.record(unit.id), self.config.count // self.config.batch_size
        count, spent = sum(record["evaluations"]), sum(record["seconds"])
        if not count:
            return {"batches": Done(1, seconds, batches), EVALUATIONS: Done(0, 0.0, 0)}
        read = sum(of > 0 for of in record["evaluations"])  # modalities, each with the whole budget
        evaluations = Done(count, spent, batches * self.config.budget * read)
        return {"batches": Done(1, seconds - spent, batches), EVALUATIONS: evaluations}

    @classmethod
    def row_facts(cls, rows: Sequence[TableRow]) -> dict[str, str]:
        """What is the same in all rows, what each privacy guarantee is, and what the alignment adds to stage 1."""
        return facts_of(rows)

    @classmethod
    def picture(cls, rows: Sequence[TableRow]) -> Picture:
        """Originals, and what each attack made of them."""
        return Picture(draw(rows), "What the server saw", "Originals, and what each attack made of them")


def _format(settings: Mapping[str, Any]) -> str:
    """The format of a row's pairs."""
    return split_name(settings.get("pairs", PairConfig().pairs))[0]
