"""The study of answers: what released models say of providers whose documents they were and were not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from docleak.attacks.answers.attack import MembershipAttack
from docleak.documents.blue_red import RED_NEGATIVE, RED_POSITIVE
from docleak.documents.blue_red_files import ISSUERS, read_blue_red
from docleak.documents.loaders import load_pages
from docleak.documents.page import Image, Page
from docleak.documents.pages import gathered
from docleak.errors import AttackError, RecipeError
from docleak.metrics.estimate import Estimate
from docleak.models.loading import title_of
from docleak.report.page import Reading
from docleak.runs.run import Run
from docleak.studies.answers import shipped
from docleak.studies.answers.bench import Bench
from docleak.studies.answers.config import (
    CONTROL,
    DOCUMENTS,
    MEMBERSHIP,
    UNNAMED,
    WITHOUT_MODEL,
    AnswersConfig,
    Release,
)
from docleak.studies.answers.documents import installed, sides_of
from docleak.studies.answers.measures import MEASURED
from docleak.studies.answers.reading import read_run
from docleak.studies.answers.record import numbers_in
from docleak.studies.answers.red import draw_providers
from docleak.studies.answers.rows import COLUMNS, MOST_MINIMUM, columns_of, draw, facts_of, remarks_of
from docleak.studies.answers.store import division_of, issuers_of, rounds_done
from docleak.studies.answers.targets import CENTRAL, NONE, Data, Target, target_of
from docleak.studies.answers.whose import whose
from docleak.studies.study import (
    BY_PROVIDER,
    PLACEHOLDER,
    STEP,
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

#: Beside the folders of tables: their divisions, targets and replies.
STORE = "docleak-releases"
#: Of a page its provider and how many questions it has with an answer.
Asked = tuple[str, int]
#: Providers that are asked about in a rehearsal.
REHEARSED = 8


class AnswersStudy(TableStudy[AnswersConfig]):
    """A unit is a release, with all that is measured of it; what it said is kept answer by answer."""

    kind = "answers"
    Config = AnswersConfig
    columns = COLUMNS
    extra: ClassVar = {
        "preset": "str", "target": "str", "epsilon": "float", "data": "Mapping[str, Any]", "measure": "str",
        "training": "Mapping[str, Any]", "key": "str", "attack": "str", "groups": "tuple[str, ...]",
        "columns": "tuple[str, ...]", "known": "float", "searched": "int",
    }  # fmt: skip
    options = ("documents", "rounds", "issuers", "per_issuer", "seed")
    parts, shares = "providers", ("anls", "accuracy", *(name for name in COLUMNS if name.startswith("accuracy_s")))
    wanted_at = "docs/release.md"
    footnote = (
        "Ours with 95 % intervals over providers in square brackets; the paper's value in round brackets. Attack "
        "accuracies are means over seeds, rates and AUC are those of the smallest s. ε measured is a lower bound with "
        "95 % confidence, ε claimed the accountant's upper bound; docs/release.md explains both. GiB count both ways, "
        "as serialised, a tied weight once."
    )
    #: So many rows before this one attack the same target.
    turn = 0

    @classmethod
    def of_options(cls, given: Settings, fixed: Settings) -> AnswersConfig:
        """Without a release, docleak's own example with its public model; AttackError for half of what is needed."""
        said, fixed = dict(given), dict(fixed)
        public = said.pop("public", "")
        if {"members", "non_members"} & said.keys():
            if "releases" not in said or "division" in said:
                raise AttackError(
                    "--members and --non-members say of a --release which documents it saw, instead of --division. "
                    "Give --release LABEL=MODEL, and no --division."
                )
            said["division"] = ""
            fixed |= {"measures": DOCUMENTS, "control": False}
        if "releases" in said and "division" not in said:
            raise AttackError(
                "--release is given without --division, so nobody knows whose documents it saw. Divide them first: "
                "docleak data make OUT --blue-red; then train on OUT/silos. Or say which documents it saw: --members "
                "FOLDER --non-members FOLDER."
            )
        if "division" in said and "releases" not in said:
            raise AttackError(
                "--division is given without --release. Train one: docleak train federated --silos DIVISION/silos."
            )
        if fixed.get("measures") == MEMBERSHIP and len(said.get("keys", ())) > 1:
            raise AttackError("the vote hides one key of the documents; --keys names several. Leave all but one out.")
        if "releases" not in said:
            said |= {"releases": (Release(UNNAMED, shipped.RELEASED),), "division": shipped.SHIPPED}
            public = public or shipped.PUBLIC
        return super().of_options({**said, "public": "" if public == "none" else public}, fixed)

    def check(self, say: Callable[[str], None]) -> None:
        """That the example is asked, where no model was given."""
        if self.config.division == shipped.SHIPPED:
            say(f"No model was given: asking {shipped.RELEASED}, which docleak ships, about its providers.")

    def units(self) -> list[Unit]:
        """The public model as a control, then every release."""
        c = self.config
        control = [Release(CONTROL, c.public)] if c.public and c.control else []
        return [Unit(release.label, len(c.measures), self.turn, release) for release in (*control, *c.releases)]

    def identity(self) -> dict[str, str]:
        """What the configuration names is hashed anyway; a folder that is no division, and documents that are not two
        sets, are refused here."""
        division = self.config.division
        if self.config.members:
            sides_of(self.config.members, self.config.non_members, seed=self.config.seed)
            return installed()
        if isinstance(division, str) and division not in ("", shipped.SHIPPED):
            read_blue_red(Path(division))
        return {}

    def prepare(self, run: Run, say: Callable[[str], None]) -> None:
        """Divide the documents, unless that is done, or nothing is left that reads them."""
        c = self.config
        if not c.members and c.measures != ("noise",) and not all(run.has(unit.id) for unit in self.units()):
            division_of(c.division, self._place(run))

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """Everything that is measured of one release, which is trained first if it is a target."""
        bench = Bench(self.config, unit.what, self._place(run), self.device)
        record: dict[str, Any] = {"label": unit.id, "control": unit.id == CONTROL}
        images: dict[str, Image] = {}
        for number, name in enumerate(self.config.measures, 1):
            measurement = MEASURED[name](bench)
            record[name] = measurement.to_json()
            images |= measurement.images
            if name not in WITHOUT_MODEL:
                record["bill"] = bench.bill.to_json()
            tell(number)
        if self._taken_on_trust(unit.what):
            record["whose"] = whose(
                bench.blue_red, bench.bill.model, self.config.public, lambda: (bench.ask_target, bench.ask_public),
                seed=self.config.seed,
            )  # fmt: skip
        return record, images

    def _taken_on_trust(self, release: Release) -> bool:
        """Whether only the division says whose documents the release saw: it is no control, and not of docleak's own
        making."""
        c = self.config
        told = release.label == CONTROL or release.target is not None or c.division in ("", shipped.SHIPPED)
        return not told and not set(c.measures) <= {*WITHOUT_MODEL, "utility"}

    def progress(self, unit: Unit, run: Run) -> str:
        """Rounds of the target's training."""
        target = unit.what.to_train
        return f"-{rounds_done(target, self._place(run))}" if target else ""

    def _place(self, run: Run) -> Path:
        """Where divisions, targets and replies are: in the run, or, of a row (TABLE/rows/ROW), beside the table."""
        rows = self.config.releases[0].target is not None
        return run.path.absolute().parents[2] / STORE if rows else run.path

    @classmethod
    def asks(cls, run: Run) -> str:
        """About providers, or about single documents."""
        return "documents" if run.config.get("members") else ""

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """A verdict on each release, all side by side, and what they said; ``beside`` others in fewer sections."""
        return read_run(one_of(runs), beside=beside)

    def numbers(self, run: Run) -> dict[str, Estimate]:
        """What the row's measure found."""
        return {
            name: number
            for record in run.units()
            for of in numbers_in(record, self.config.measures[0]).values()
            for name, number in of.items()
        }

    def measured(self, run: Run, column: str) -> dict[str, float]:
        """A provider's mean over its questions, or over the seeds in which its membership was guessed."""
        return {
            provider: value
            for record in run.units()
            for provider, value in record[self.config.measures[0]].get(BY_PROVIDER, {}).get(column, {}).items()
        }

    def row_values(self, run: Run) -> dict[str, Any]:
        """The target, what it cost and guarantees, and remarks."""
        bill = next((record.get("bill") for record in run.units()), None)
        return {"target": self.config.releases[0].label, "trained": bill, "remarks": remarks_of(self.config, run)}

    def shown(self) -> tuple[str, ...]:
        """The columns of the measure."""
        return columns_of(self.config)

    def title(self) -> str:
        """The public model."""
        return title_of(self.config.public)

    def planned(self) -> str:
        """What is measured of which target."""
        release, measure = self.config.releases[0], self.config.measures[0]
        trains = release.to_train is not None and self.turn == 0 and measure not in WITHOUT_MODEL
        return f"{measure} of {release.label}" + ", to be trained unless a table has done so" * trains

    def needed(self, model: str) -> list[Needed]:
        """The public model, unless none is asked; the documents, unless they are made on the spot."""
        c, data = self.config, self.config.division
        assert isinstance(data, Data)  # a row's
        needs = []
        if c.measures[0] not in WITHOUT_MODEL:
            needs.append(Needed("model", c.public, f"--model {model}=DIR"))
        if c.measures[0] != "noise" and data.documents != ISSUERS:
            option = f"--documents {data.documents.replace(PLACEHOLDER, 'DIR')}"
            needs.append(Needed("pages", data.documents, option))
        return needs

    def least(self) -> AnswersStudy:
        """A round of one step of a few examples a client, and some providers to ask about."""
        c, release = self.config, self.config.releases[0]
        assert release.target is not None
        training = replace(release.target.training, rounds=1, epochs=1, max_steps=1)
        training = replace(training, batch_size=min(STEP, training.batch_size))
        target = replace(release.target, training=training)
        providers = min(REHEARSED, c.providers or REHEARSED)
        least = replace(c, releases=(replace(release, target=target),), providers=providers)
        return AnswersStudy(least, device=self.device)

    def work(self) -> dict[str, int]:
        """Rounds of the target's training."""
        target = self.config.releases[0].to_train
        trains = target is not None and self.config.measures[0] not in WITHOUT_MODEL
        return {"training rounds": target.training.rounds} if target and trains else {}

    def done(self, unit: Unit, run: Run, seconds: float) -> dict[str, Done]:
        """Examples of the training, and questions to the model on the documents of the parts that the attacks ask
        about."""
        target, place, spent = unit.what.to_train, self._place(run), 0.0
        if self.config.measures[0] in WITHOUT_MODEL:
            return {"units": Done(1, seconds, 1)}
        assert isinstance(self.config.division, Data)
        blue_red, work = division_of(self.config.division, place), {}
        if target is not None:
            full = self.config.releases[0].target
            assert full is not None
            silos = [asked_on(load_pages(f"folder:{folder}", seed=0)) for folder in blue_red.silos.values()]
            spent = float(run.record(unit.id)["bill"]["seconds"])
            work["examples trained on"] = Done(_trained_on(target, silos), spent, round(_trained_on(full, silos)))
        red = [page for part in (RED_POSITIVE, RED_NEGATIVE) for page in asked_on(blue_red.pages(part))]
        chosen = draw_providers(blue_red, self.config.providers or REHEARSED, seed=self.config.seed)
        asked = sum(questions for provider, questions in red if provider in chosen)
        return {**work, "questions": Done(asked, seconds - spent, sum(questions for _, questions in red))}

    @classmethod
    def of_row(cls, source: str, settings: Settings, changes: Settings, *, device: str) -> AnswersStudy:
        """A row measures one thing of one target: ``target`` and ``epsilon`` (0: none) say how it is trained from
        ``source``, ``preset`` with which settings; ``data`` and ``training`` change single ones of those. ``attack`` is
        "azk" or "apk", and "+cls1+cls2" for the vote."""
        row, said = with_tuples(settings), {key: value for key, value in changes.items() if value is not None}
        made = {to: said[key] for key, to in (("issuers", "providers"), ("per_issuer", "per_provider")) if key in said}
        documents = {"documents": said["documents"][0]} if said.get("documents") else {}
        data = {**row.pop("data", {}), **documents, **made}
        training = {**row.pop("training", {}), **({"rounds": said["rounds"]} if "rounds" in said else {})}
        seed, measure = row.pop("seed", 0), row.pop("measure", "utility")
        target = target_of(
            source, row.pop("preset", "tiny"), row.pop("target", "none"), row.pop("epsilon", 0.0), data=data,
            training=training, seed=seed,
        )  # fmt: skip
        if made and target.data.documents != ISSUERS:
            raise RecipeError(
                "--issuers and --per-issuer say how many synthetic documents are made; the row reads "
                f"{target.data.documents}. Leave them out."
            )
        name = row.pop("attack", "azk")
        kind, *voters = name.split("+")
        if kind not in ("azk", "apk") or voters not in ([], ["cls1", "cls2"]):
            raise RecipeError(f"attack is {name!r}; expected azk or apk, and perhaps +cls1+cls2.")
        searched = row.pop("searched", 5)
        attack = MembershipAttack(
            kind, row.pop("groups", ("G1",)), row.pop("columns", ()), bool(voters), row.pop("known", 0.15),
            searched if kind == "apk" else 0,
        )  # fmt: skip
        keys, key = row.pop("keys", ("provider_tax_number", "registration_id")), row.pop("key", "provider_name")
        if wrong := {"releases", "division", "public", "control", "measures", "attacks"} & row.keys():
            raise RecipeError(f"{', '.join(sorted(wrong))}: a row has one target, and one measure of it.")
        config = AnswersConfig(
            (Release(target.name, source, target),), target.data, source, control=False, measures=(measure,),
            keys=keys if measure == "disclosure" else (key,), attacks=(attack,), seed=seed, **row,
        )  # fmt: skip
        if measure in DOCUMENTS:
            raise RecipeError(f"no row measures {measure}: docleak audit answers --members --non-members does.")
        if max(config.minimum) > MOST_MINIMUM:
            raise RecipeError(f"minimum is {config.minimum}; expected numbers of questions up to {MOST_MINIMUM}.")
        return cls(config, device=device)

    @classmethod
    def check_rows(cls, rows: Sequence[TableRow]) -> None:
        """RecipeError where rows measure different things, or wait for a path of the user's; DocumentError where the
        synthetic documents cannot be divided; MissingExtraError for targets to be trained without Flower. Of rows with
        the same target, one comes first."""
        super().check_rows(rows)
        if any(row.study.config.releases[0].target.kind != NONE for row in rows):
            import docleak.training.federated.flower  # noqa: F401
        if len({row.study.shown() for row in rows}) > 1:
            measures = ", ".join(dict.fromkeys(row.study.config.measures[0] for row in rows))
            raise RecipeError(f"the rows measure different things ({measures}); give them tables apart.")
        for made in {row.study.config.division for row in rows}:
            if isinstance(made, Data) and made.documents == ISSUERS:
                issuers_of(made)
        seen: dict[Any, int] = {}
        for row in rows:
            target = row.study.config.releases[0].target
            assert isinstance(row.study, AnswersStudy)
            row.study.turn = seen[target] = seen.get(target, -1) + 1

    @classmethod
    def row_facts(cls, rows: Sequence[TableRow]) -> dict[str, str]:
        """Model, documents, where the targets are, how each was trained, and what is to be said of the rows."""
        return facts_of(rows, STORE)

    @classmethod
    def picture(cls, rows: Sequence[TableRow]) -> Picture:
        """A panel per column: every row beside the paper's."""
        return Picture(draw(rows), "The same as a picture", "Every row beside the paper's")


def asked_on(pages: Iterable[Page]) -> list[Asked]:
    """What there is to ask about each page; the pictures, which are large, are decoded once and not kept."""
    return [(page.provider, sum(bool(question.answers) for question in page.questions)) for page in pages]


def _trained_on(target: Target, silos: Sequence[Sequence[Asked]]) -> float:
    """How many examples the target's training computes gradients of: of all clients and units that it draws."""
    plan = target.training
    parts: list[Sequence[Asked]] = list(silos)
    if target.kind == CENTRAL:
        parts = [[page for pages in silos for page in pages]]
    drawn = max(1, math.floor(plan.participation * len(parts) + 1e-9)) / len(parts)
    if target.epsilon:
        drawn *= plan.unit_rate
        whose = (((number, page[0]), page) for number, pages in enumerate(parts) for page in pages)
        parts = list(gathered(whose).values())
    most = plan.max_steps * plan.batch_size or math.inf
    examples = [sum(questions for _, questions in pages) for pages in parts]
    return plan.rounds * drawn * float(sum(min(plan.epochs * count, most) for count in examples))


def shipped_documents(seed: int) -> AnswersConfig:
    """Whether single documents of the shipped release were trained on; values taken off their pages are left out."""
    return AnswersConfig(
        (Release(shipped.RELEASED, shipped.RELEASED),), "", shipped.PUBLIC, members=shipped.SHIPPED,
        non_members=shipped.SHIPPED, control=False, measures=DOCUMENTS[:1], seed=seed,
    )  # fmt: skip


def shipped_audit(seed: int) -> AnswersConfig:
    """A short audit of the released model that docleak ships: a third of its providers, names only. ``docleak attack
    membership`` and ``memorisation`` take all of them, and everything that can be asked."""
    return AnswersConfig(
        (Release(shipped.RELEASED, shipped.RELEASED),), shipped.SHIPPED, shipped.PUBLIC, keys=("provider_name",),
        attacks=("AZK", "APK"), minimum=(0,), seed=seed, providers=shipped.PROVIDERS // 3,
    )  # fmt: skip
