"""What a study is: everything else (runs on disk, worker processes, reports, tables, command line) is made of these.

A unit is the least that is computed at once and kept: one attack on one page, one field of a model, one training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np

from docleak.documents.page import Image
from docleak.errors import RecipeError, RunError
from docleak.models.device import keep_float32
from docleak.options import configured
from docleak.report.page import Reading
from docleak.report.table import Column, Value
from docleak.runs.content import code_digest_of, describe
from docleak.runs.run import Run

#: A frozen dataclass: everything that changes a number of the study, and nothing else.
C = TypeVar("C")
#: Names and values: fields of a configuration, a recipe's settings, what the command line changes.
Settings: TypeAlias = Mapping[str, Any]
#: Told how far a unit is, of its ``size``.
Tell = Callable[[int], None]
#: In the folder of a table: its rows, each a run.
ROWS = "rows"
#: What a folder of documents begins with that tables beside each other share; it is made in ``prepare``.
DIVIDED = "data-"
#: What stands in a recipe where the user's own directory belongs.
PLACEHOLDER = "PATH"
#: The kind of work that attacks on gradients count.
EVALUATIONS = "gradient evaluations"
#: Where a record keeps what a column came to on each provider, so that rows are compared over the same ones.
BY_PROVIDER = "by_provider"


@dataclass(frozen=True)
class Unit:
    """``id`` names the unit in the run. ``size`` is how much work it is beside others, in evaluations; units of a lower
    ``turn`` come first. ``what`` is for the study itself."""

    id: str
    size: int = 1
    turn: int = 0
    what: Any = None

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True)
class Needed:
    """A model (name or folder), pages or pairs (as their loaders take them) that a row reads, and how the command line
    names others; "PATH" in ``source`` stands for what only the user can name. ``count`` pairs have to be there."""

    kind: Literal["model", "pages", "pairs"]
    source: str
    option: str
    count: int = 0


#: Examples of a training step that is rehearsed, at most: of 512 tokens and a page each, as many as a large model takes
#: at once (``training.federated.local``).
STEP = 5


@dataclass(frozen=True)
class Done:
    """So much of one kind of work was done in ``seconds``, ``of`` what a whole row takes."""

    count: float
    seconds: float
    of: int


@dataclass(frozen=True)
class Picture:
    """A PNG beside a table, its heading, and what it shows in words."""

    png: bytes
    heading: str
    shows: str


class Study(ABC, Generic[C]):
    """One kind of measurement under one configuration.

    Pickled, a study is its configuration and device; what it loads it loads once in each process. Only ``units`` and
    ``compute`` have to be written, and ``read`` to say what came of it.
    """

    #: Name of the kind, in run.json and in recipes.
    kind: ClassVar[str]
    #: The configuration's class.
    Config: ClassVar[type]
    #: Fields of the configuration that let a unit be computed but change none of its numbers.
    permissions: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: C, *, device: str = "cpu") -> None:
        self.config, self.device = config, device
        keep_float32(device)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), device=self.device), (self.config,)

    @classmethod
    def of_options(cls, given: Settings, fixed: Settings) -> C:
        """The configuration of the options that were ``given``, and of what the command has ``fixed``, by field
        ("exposure.defense" of a nested one). What depends on several options is decided here."""
        return configured(cls.Config, {**fixed, **given})  # type: ignore[no-any-return]

    def check(self, say: Callable[[str], None]) -> None:
        """Before anything is written: raise what makes the study impossible, and say what will be left out."""

    @abstractmethod
    def units(self) -> Sequence[Unit]:
        """All units, whether they are finished or not; raises what can be known to be wrong before any is computed."""

    @abstractmethod
    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[Mapping[str, Any], Mapping[str, Image]]:
        """The record of one unit and its pictures (name -> uint8 RGB (H, W, 3)), which the caller saves in ``run``."""

    @classmethod
    def asks(cls, run: Run) -> str:
        """Which of the kind's questions the run asks; runs with different ones are never read together."""
        return ""

    @classmethod
    @abstractmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """What finished units of one run, or of several that can be compared, say; from disk alone. ``rng`` draws the
        intervals: the same seed gives the same ones. ``beside``: another study's reading comes first on the page, and
        this one is brief.

        RunError where there is nothing to say, or the runs do not belong together.
        """

    def identity(self) -> Mapping[str, str]:
        """Hashes of the weights and pages that results rest on, by name. What the configuration names by a path is
        hashed without a word."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """What the run says of itself besides: who the adversary is, which models these are."""
        return {}

    def prepare(self, run: Run, say: Callable[[str], None]) -> None:
        """What all units need, before the first: a model to train, say. It is called in one process, and resumes."""

    def finish(self, run: Run, say: Callable[[str], None]) -> None:
        """What is made of all finished units."""

    def progress(self, unit: Unit, run: Run) -> str:
        """How far an unfinished unit that can go on is, as a search of pixels can; further on, attempts at it count
        anew."""
        return run.searched(unit.id)

    def settings(self) -> dict[str, Any]:
        """The configuration as plain values, as run.json holds it; permissions are left out."""
        config: Any = self.config
        names = [field.name for field in fields(config) if field.name not in self.permissions]
        kind = (
            {} if type(config) is self.Config else {"object": f"{type(config).__module__}:{type(config).__qualname__}"}
        )
        return {**kind, **{name: plain(getattr(config, name)) for name in names}}


class TableStudy(Study[C]):
    """A study whose runs can be the rows of a table beside printed numbers."""

    #: Name -> column, of all numbers that a row may show; a paper's printed values have the same names.
    columns: ClassVar[Mapping[str, Column]]
    #: Whether a scale may leave some models of a recipe out.
    sparse: ClassVar[bool] = False
    #: Sets of data of which a paper prints numbers (COLUMN_SET) that stand in columns of their own.
    printed_sets: ClassVar[tuple[str, ...]] = ()
    #: What a recipe's rows may set besides the fields of the configuration, with their types.
    extra: ClassVar[Mapping[str, str]] = {}
    #: Fields of the configuration that the row's model says, and no setting may.
    of_model: ClassVar[tuple[str, ...]] = ()
    #: What the command line may change of a row.
    options: ClassVar[tuple[str, ...]] = ("pages", "seed")
    #: Settings that name a checkpoint each; ``--model SETTING=DIR`` says another.
    checkpoints: ClassVar[tuple[str, ...]] = ()
    #: What pictures of another size can be of, besides models: ``--image-size NAME=WxH``.
    sized: ClassVar[tuple[str, ...]] = ()
    #: What ``measured`` measures one by one; "" where rows do not say.
    parts: ClassVar[str] = ""
    #: Columns whose value of each part lies in [0, 1].
    shares: ClassVar[tuple[str, ...]] = ()
    #: Whether the units of one turn are one part under every row, so that a table can stop after any turn.
    stoppable: ClassVar[bool] = False
    #: Whether the configuration alone says what a unit is (as in what is stoppable): others may have computed it.
    repeatable: ClassVar[bool] = False
    #: The page that says where to get what only the user can name; "" where rows are not held back for it.
    wanted_at: ClassVar[str] = ""
    footnote: ClassVar[str] = "Ours with 95 % intervals in square brackets; the paper's value in round brackets."

    @classmethod
    @abstractmethod
    def of_row(cls, source: str, settings: Settings, changes: Settings, *, device: str) -> Any:
        """The study that a row asks for: ``source`` is the model's checkpoint. Of ``changes``, the command line's,
        those that are fields of the configuration are in ``settings`` already."""

    @classmethod
    def changes_of(cls, settings: Sequence[Settings], changes: Settings, scale: str) -> Settings:
        """The command line's ``changes`` as each row takes them, where that depends on the settings of all rows."""
        return changes

    @classmethod
    def by_data_set(cls, settings: Settings, of_all: Sequence[Settings], changes: Settings) -> Mapping[str, Settings]:
        """The ``changes`` of each data set that a row with these ``settings`` is run on, by its name in tables ("" for
        the one that nobody has to tell from others); ``of_all`` are the settings of all rows."""
        return {"": changes}

    @classmethod
    def printed_of(cls, printed: Mapping[str, float], data_set: str) -> Mapping[str, float]:
        """Of a row's printed numbers those of a data set, by column: NAME_SET becomes NAME; all of them for ""."""
        if not data_set:
            return printed
        apart = {f"{name}_{one}": (name, one) for name in cls.columns for one in cls.printed_sets}
        of_set = {apart[key][0]: value for key, value in printed.items() if key in apart and apart[key][1] == data_set}
        return of_set | {key: value for key, value in printed.items() if key not in apart}

    @abstractmethod
    def numbers(self, run: Run) -> Mapping[str, Value]:
        """The row's numbers by column, from disk; {} while there is none."""

    def measured(self, run: Run, column: str) -> Mapping[str, float]:
        """What the row measured of each part (page, pair, field), by a name that other rows have for it, too; {} where
        the column has no parts. Parts stand or fall alone: what shares a gradient is one."""
        return {}

    def parts_of(self, column: str) -> str:
        """What ``measured`` measures one by one in that column."""
        return self.parts

    def planned_parts(self) -> int:
        """How many parts the finished row will have, 0 where that is not known."""
        return 0

    def over(self, pages: int) -> Self | None:
        """The same row over so many pages, whose units are this one's as far as both go; None where a unit may depend
        on how many there are."""
        return None

    def shown(self) -> Sequence[str]:
        """The columns that the row shows."""
        return tuple(self.columns)

    @classmethod
    def columns_of(cls, rows: Sequence[TableRow]) -> Mapping[str, Column]:
        """The columns of a table of these rows."""
        return {name: cls.columns[name] for row in rows for name in row.study.shown()}

    def missing(self) -> str:
        """Why the row cannot be computed here ("" if it can): pages that were not given."""
        return ""

    def title(self) -> str:
        """What stands over the rows of the same model."""
        return ""

    def planned(self) -> str:
        """What the row will compute, in words."""
        return f"{len(self.units())} units"

    def planned_facts(self) -> Mapping[str, Any]:
        """The same in numbers, for machines."""
        return {}

    # -- a rehearsal (see ``docleak.recipes.rehearsal``)

    def needed(self, model: str) -> Sequence[Needed]:
        """What the row reads; ``model`` is the recipe's name of its model."""
        return ()

    def least(self) -> Self:
        """The same row at the same size of model and page, cut down to as few units and steps as can be."""
        return self

    def work(self) -> Mapping[str, int]:
        """What the whole row takes at most, by kind of work, as far as it is known without models and documents."""
        return {}

    def held(self) -> int:
        """Bytes that the dearest step holds at most, counted without computing it; 0 where nobody counts them."""
        return 0

    def done(self, unit: Unit, run: Run, seconds: float) -> Mapping[str, Done]:
        """What a ``unit`` of ``least``, computed in ``seconds`` and kept in ``run``, did of the row's work, by kind."""
        return {"units": Done(1, seconds, len(self.units()))}

    def folder(self, out: Path) -> Path | None:
        """Where the row's run is if other rows and tables share it, beside ``out``; None for a place of its own."""
        return None

    def row_values(self, run: Run) -> Mapping[str, Any]:
        """What the table's JSON says of the row besides its numbers."""
        return {}

    @classmethod
    def check_rows(cls, rows: Sequence[TableRow]) -> None:
        """RecipeError where rows do not make a table, or wait for paths that only the user can name."""
        needed = [need for row in rows for need in row.study.needed(row.model)] if cls.wanted_at else []
        options = dict.fromkeys(need.option for need in needed if PLACEHOLDER in need.source)
        if options:
            raise RecipeError(f"the recipe needs {' '.join(options)}; {cls.wanted_at} says where to get them.")

    @classmethod
    def row_facts(cls, rows: Sequence[TableRow]) -> Mapping[str, str]:
        """Lines under the table: what is the same in all rows, and what only some claim."""
        return {}

    @classmethod
    def footnote_of(cls, rows: Sequence[TableRow]) -> str:
        """What stands under a table of these rows on its page."""
        return cls.footnote

    @classmethod
    def picture(cls, rows: Sequence[TableRow]) -> Picture | None:
        """A picture of the rows."""
        return None


@dataclass(frozen=True)
class TableRow:
    """A row of a table on one model, and one data set: what it computes, where, and what the paper printed."""

    name: str
    model: str
    study: TableStudy[Any]
    run: Run
    printed: Mapping[str, float] = field(default_factory=dict)
    data_set: str = ""

    @property
    def target(self) -> str:
        """The model, and the data set where the table has several of one row."""
        return ", ".join(filter(None, (self.model, self.data_set)))


def table_of(run: Run) -> Path:
    """The folder of the table of which the run is a row, where rows keep what they share; of any other run its own."""
    return run.path.parents[1] if run.path.parent.name == ROWS else run.path


def one_of(runs: Sequence[Run]) -> Run:
    """The only run; RunError where several are to be joined whose numbers stand for different things."""
    if len(runs) != 1:
        raise RunError(
            f"{len(runs)} runs of the kind {runs[0].kind} are to be joined; report them one by one: their units are of "
            "different clients or models."
        )
    return runs[0]


def with_tuples(settings: Settings) -> dict[str, Any]:
    """The settings as a configuration has them, where JSON and TOML have lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}


def plain(value: Any) -> Any:
    """A configuration as plain values: dataclasses by their fields, objects of others by where they are and what they
    hold, so that another object of the same name is another configuration."""
    if is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        if type(value).__module__.startswith("docleak."):
            return inner
        code = {"code": digest} if (digest := code_digest_of(type(value))) else {}
        return {"object": f"{type(value).__module__}:{type(value).__qualname__}", **code, **inner}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(inner) for inner in value), key=repr)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "__fspath__"):
        return str(value)
    return describe(value)
