"""What one row of an extraction recipe is: a target, a public model, and the attack on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from docleak.attacks.weights import METRICS, PUBLISHED_METRIC, CdmiConfig
from docleak.attacks.weights.sampling import Mean, Temperature
from docleak.errors import RecipeError
from docleak.models.encoders.tasks import TASKS, Task
from docleak.spec import split_name
from docleak.training.extraction.fit import FitConfig
from docleak.training.extraction.private import PrivateFit

#: What a table tells of its rows.
Shows = Literal["attack", "validation", "examples", "curves", "epochs", "defences"]
#: Kept checkpoints that are the best of their training; the others are "last" and "epoch-N".
BEST = ("precision", "loss")
#: The paper's data sets, and the share of the documents kept for validation: 100 of SROIE's 626, 50 of FUNSD's 199.
DATA_SETS = {"sroie": 0.16, "funsd": 50 / 199}
#: Added to the seed of a control, which is no second copy of the public model.
CONTROL = 500_000
WHOLE = ("pages", "fields", "first", "seed", "max_tokens", "keep_every")
#: Settings that say nothing without an epsilon.
OF_AN_EPSILON = ("delta", "unit", "rounds", "rate", "clip_norm", "private_learning_rate", "vectors_only", "units")
#: What stands in a recipe where the user's own directory belongs.
PLACEHOLDER = "PATH"
SYNTHETIC = "synthetic"


@dataclass(frozen=True)
class Data:
    """The documents of one data set and how they are divided; ``pages`` of 0 are all."""

    documents: str
    pages: int
    validation: float
    seed: int


@dataclass(frozen=True)
class Training:
    """How a model is trained. ``dropout`` below 0 and ``max_tokens`` of 0 leave what the checkpoint says.

    Pages are cut behind ``max_tokens`` tokens. Every ``keep_every`` epochs the weights are kept (0: never).
    """

    epochs: int
    learning_rate: float
    batch_size: int
    validate_every: int
    keep_every: int
    dropout: float
    max_tokens: int

    def plan(self) -> FitConfig:
        """The same for ``fit``."""
        return FitConfig(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate,
            validate_every=self.validate_every,
        )  # fmt: skip


@dataclass(frozen=True)
class Fitting:
    """A model of the store: equal ones are trained once. ``part`` of the data is what it is trained on.

    ``without`` are pairs of a field's key and a pattern: pages on which such a field matches it are left out. Every
    second page has ``copies`` further scans; ``deduplicate`` then takes near-duplicates out. ``private`` trains with
    differential privacy.
    """

    part: Literal["private", "public"]
    model: str
    data: Data
    task: Task
    bimodal: bool
    training: Training
    without: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    copies: int = 0
    deduplicate: bool = False
    private: PrivateFit | None = None

    @property
    def name(self) -> str:
        """For people; equal names do not mean equal models."""
        return f"{self.part}-{self.model.rsplit('/', 1)[-1]}-{self.task}-{'bimodal' if self.bimodal else 'unimodal'}"


@dataclass(frozen=True)
class ExtractionConfig:
    """One row on one model. Defaults are the paper's, with ``docleak.attacks.weights.CdmiConfig``'s readings of them.

    ``data`` names the data set, ``documents`` maps such names to pages ("" where the user gave none: the row is not
    computed). ``shows`` is what the table tells. ``criterion`` says which checkpoint is attacked: precision, loss, last
    or epoch-N. Of the private fields, drawn in one order for all rows, ``fields`` are attacked from number ``first``
    on. ``noise`` puts Gaussian noise in the place of the pictures, ``control`` trains the target on the public pages.
    The public model is trained on the data set ``public_data`` ("": the same) ``public_without`` certain pages.
    ``epochs_mlm`` are the target's for "mlm", ``epochs`` for the other tasks, ``public_epochs`` the public model's.

    Defences, of the target alone: ``answers_only`` hides its confidences, ``deduplicate`` takes near-duplicates out of
    its pages, of which ``copies`` puts some in; an ``epsilon`` above 0 trains it privately, as ``PrivateFit`` says of
    the settings that follow.
    """

    model: str
    data: str = "sroie"
    documents: Mapping[str, str] = field(default_factory=dict)
    shows: Shows = "attack"
    pages: int = 0
    task: Task = "mlm"
    bimodal: bool = False
    criterion: str = "precision"
    control: bool = False
    noise: bool = False
    public_data: str = ""
    public_without: Mapping[str, str] = field(default_factory=dict)
    fields: int = 0
    first: int = 0
    attempts: int = 8
    metric: str = PUBLISHED_METRIC
    candidates: int = 128
    weight: float = 0.4
    top_p: float = 0.10
    mean: Mean = "geometric"
    temperature: float = 0.3
    epochs: int = 150
    epochs_mlm: int = 300
    public_epochs: int = 300
    learning_rate: float = 5e-5
    batch_size: int = 8
    validate_every: int = 1
    keep_every: int = 0
    dropout: float = -1.0
    max_tokens: int = 0
    seed: int = 0
    answers_only: bool = False
    copies: int = 0
    deduplicate: bool = False
    epsilon: float = 0.0
    delta: float = 1e-3
    unit: str = "document"
    rounds: int = 200
    rate: float = 0.5
    clip_norm: float = 1.0
    private_learning_rate: float = 1e-3
    vectors_only: bool = True
    units: int = 50

    def __post_init__(self) -> None:
        faults = []
        idle = [name for name in OF_AN_EPSILON if getattr(self, name) != type(self).__dataclass_fields__[name].default]
        if not self.epsilon and idle:
            faults.append(f"{', '.join(idle)}: of a private training, and epsilon is 0, which is none")
        if self.epsilon and (self.copies or self.deduplicate):
            faults.append(
                "copies, deduplicate: which pages are copied or left out depends on other pages, and copies count as "
                "documents of their own; neither is covered by an epsilon"
            )
        if self.shows not in get_args(Shows):
            faults.append(f"shows is {self.shows!r}, expected one of {', '.join(get_args(Shows))}")
        if self.task not in TASKS:
            faults.append(f"task is {self.task!r}, expected one of {', '.join(TASKS)}")
        if self.metric not in METRICS:
            faults.append(f"metric is {self.metric!r}, expected one of {', '.join(METRICS)}")
        kept = self.criterion.removeprefix("epoch-")
        if self.criterion not in (*BEST, "last") and not (kept.isdigit() and kept != self.criterion):
            faults.append(f"criterion is {self.criterion!r}, expected precision, loss, last or epoch-N")
        elif kept.isdigit() and (not self.keep_every or int(kept) % self.keep_every):
            faults.append(f"{self.criterion} is not kept: keep_every is {self.keep_every}")
        if self.keep_every % self.validate_every:
            faults.append(
                f"keep_every is {self.keep_every}, expected a multiple of validate_every {self.validate_every}"
            )
        whole = {key: getattr(self, key) for key in (*WHOLE, "copies")}
        faults += [f"{key} is {value}, expected 0 or more" for key, value in whole.items() if value < 0]
        if self.attempts < 1 or self.dropout >= 1:
            faults.append(f"attempts is {self.attempts} and dropout {self.dropout}; expected 1 or more, and below 1")
        if faults:
            raise RecipeError("the row cannot be used: " + "; ".join(faults) + ".")
        self.attack(), self.target(), self.public()  # refuse what they refuse

    @property
    def given(self) -> bool:
        """Whether the pages of the row's data sets are known."""
        return all(self.documents.get(name) for name in self.needs())

    def needs(self) -> tuple[str, ...]:
        """The data sets of the row."""
        return (self.data, self.public_data) if self.public_data else (self.data,)

    def attack(self) -> CdmiConfig:
        """The attack's own settings."""
        return CdmiConfig(
            candidates=self.candidates, weight=self.weight, top_p=self.top_p, mean=self.mean,
            public_temperature=Temperature(last=self.temperature, first=2 * self.temperature),
            target_temperature=Temperature(first=self.temperature, last=self.temperature, steps=0),
        )  # fmt: skip

    def target(self) -> Fitting:
        """The model that is attacked."""
        epochs = self.epochs_mlm if self.task == "mlm" else self.epochs
        part: Literal["private", "public"] = "public" if self.control else "private"
        return Fitting(
            part,
            self.model,
            self._data(self.data),
            self.task,
            self.bimodal,
            self._training(epochs),
            seed=self.seed + CONTROL * self.control,
            copies=self.copies,
            deduplicate=self.deduplicate,
            private=self._private(),
        )

    def public(self) -> Fitting:
        """The adversary's masked language model."""
        return Fitting(
            "public", self.model, self._data(self.public_data or self.data), "mlm", self.bimodal,
            self._training(self.public_epochs, keep=False), tuple(sorted(self.public_without.items())), self.seed,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain values: what is compared when a row is resumed. Of the documents only the row's own count."""
        own = {name: self.documents.get(name, "") for name in self.needs()}
        found = {**asdict(self), "documents": own, "public_without": dict(self.public_without)}
        return {name: value for name, value in found.items() if name not in DEFENCES or value != DEFENCES[name]}

    def _private(self) -> PrivateFit | None:
        if not self.epsilon:
            return None
        return PrivateFit(
            self.epsilon, self.delta, self.unit, self.rounds, self.rate, self.clip_norm, self.private_learning_rate,
            self.vectors_only, self.units,
        )  # fmt: skip

    def _data(self, name: str) -> Data:
        share = DATA_SETS.get(name, DATA_SETS["sroie"])
        return Data(self.documents.get(name, ""), self.pages, share, self.seed)

    def _training(self, epochs: int, *, keep: bool = True) -> Training:
        return Training(
            epochs, self.learning_rate, self.batch_size, self.validate_every, self.keep_every * keep, self.dropout,
            self.max_tokens,
        )  # fmt: skip


#: Settings of defences with what they are without one, which is not noted: rows from before they were there go on.
DEFENCES: Mapping[str, Any] = {
    name: ExtractionConfig.__dataclass_fields__[name].default
    for name in ("answers_only", "copies", "deduplicate", "epsilon", "delta", "unit", "rounds", "rate", "clip_norm",
                 "private_learning_rate", "vectors_only", "units")
}  # fmt: skip
#: Settings of a scale that all tables share, so that they share models and attacks, too; a row's own come before them.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "tiny": {
        "pages": 140, "max_tokens": 192, "fields": 60, "attempts": 4, "candidates": 32, "epochs_mlm": 100, "epochs": 40,
        "public_epochs": 40, "learning_rate": 1e-3, "dropout": 0.0, "validate_every": 5, "keep_every": 10,
    },
}  # fmt: skip
SETTINGS = (frozenset(item.name for item in fields(ExtractionConfig)) - {"model"}) | {"preset"}


def config_of(model: str, settings: Mapping[str, Any]) -> ExtractionConfig:
    """The row of these settings over those of its ``preset``; RecipeError for an unknown one."""
    preset = settings.get("preset", "paper")
    if preset not in PRESETS:
        raise RecipeError(f"there is no preset {preset!r}; known: {', '.join(PRESETS)}.")
    own = {key: value for key, value in settings.items() if key != "preset"}
    return ExtractionConfig(model=model, **{**PRESETS[preset], **own})


def assigned(wanted: Sequence[str], specs: Sequence[str]) -> dict[str, str]:
    """Which pages each data set gets: ``sroie:DIR`` is that of its name, any other pages stand in for the first left.

    Those of a data set that no row needs are left aside. RecipeError for two of the same name, or more pages than there
    are data sets.
    """
    found: dict[str, str] = {}
    others = []
    for spec in specs:
        name, _ = split_name(spec)
        if name in found:
            raise RecipeError(f"--documents names {name!r} twice ({found[name]} and {spec}); give it once.")
        if name in (*wanted, *DATA_SETS):
            found[name] = spec
        else:
            others.append(spec)
    for spec in others:
        free = [name for name in wanted if name not in found]
        if not free:
            raise RecipeError(
                f"--documents {spec!r}: the recipe's data sets are {', '.join(wanted)}, all of them given."
            )
        found[free[0]] = spec
    return found
