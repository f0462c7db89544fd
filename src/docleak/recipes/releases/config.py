"""What one row of a release recipe is: a target, and what is measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from docleak.documents.blue_red import BlueRedPlan
from docleak.errors import RecipeError
from docleak.recipes.releases.presets import NONE, PRESETS, Data, Training, check_target, name_of

#: What can be measured of a target.
MEASURES = ("utility", "gap", "memorisation", "disclosure", "membership", "noise", "division")
#: Measures that ask no model.
WITHOUT_MODEL = ("noise", "division")
#: What stands in a recipe where the user's own directory belongs.
PLACEHOLDER = "PATH"

D = TypeVar("D", Data, Training, BlueRedPlan)


@dataclass(frozen=True)
class Target:
    """A released model: what it started from, whose documents it saw, and how. Equal targets are the same model."""

    model: str
    data: Data
    kind: str = NONE
    epsilon: float = 0.0
    training: Training = field(default_factory=Training)
    seed: int = 0

    @property
    def name(self) -> str:
        """As the paper's tables write it."""
        counted = " by the published counting, no bound" * (self.epsilon > 0 and self.training.published_counting)
        return name_of(self.kind, self.epsilon) + counted

    def to_json(self) -> dict[str, Any]:
        """Plain values; what a folder of another target is told apart by."""
        return {**asdict(self), "training": asdict(self.training) if self.kind != NONE else None}


@dataclass(frozen=True)
class ReleaseConfig:
    """One row on one model. Defaults of the attacks are those of Tito et al. (2024), sections 5.2.3 and 7.2.

    ``target`` and ``epsilon`` (0: none) say how the model was trained, ``preset`` with which settings; ``data`` and
    ``training`` change single ones of those. ``measure`` is one of MEASURES. The others are for some of them: the
    ``key`` that is asked for (memorisation), or ``keys`` (disclosure); the ``attack`` on membership ("azk" or "apk",
    and "+cls1+cls2" for the vote), its feature ``groups``, single ``columns`` of them for an ablation, ``minimum``
    numbers of questions s, ``known`` share r of providers, ``searched`` forests, and so many ``seeds``; and which
    ``part`` of the division is counted.
    """

    model: str
    preset: str = "tiny"
    target: str = NONE
    epsilon: float = 0.0
    measure: str = "utility"
    data: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    key: str = "provider_name"
    keys: tuple[str, ...] = ("provider_tax_number", "registration_id")
    attack: str = "azk"
    groups: tuple[str, ...] = ("G1",)
    columns: tuple[str, ...] = ()
    minimum: tuple[int, ...] = (0, 5, 10)
    known: float = 0.15
    searched: int = 5
    seeds: int = 5
    part: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise RecipeError(f"there is no preset {self.preset!r}; known: {', '.join(PRESETS)}.")
        if self.measure not in MEASURES:
            raise RecipeError(f"nothing is called {self.measure!r} here; known measures: {', '.join(MEASURES)}.")
        check_target(self.target, self.epsilon)
        first, *voters = self.attack.split("+")
        if first not in ("azk", "apk") or voters not in ([], ["cls1", "cls2"]):
            raise RecipeError(f"attack is {self.attack!r}; expected azk or apk, and perhaps +cls1+cls2.")
        if self.seeds < 1 or self.seed < 0 or not self.minimum or min(self.minimum) < 0:
            raise RecipeError(
                f"seeds is {self.seeds}, seed {self.seed} and minimum {self.minimum}; expected at least one seed, and "
                "numbers of 0 or more."
            )
        self.released()  # refuses unknown settings

    def released(self) -> Target:
        """The model that is attacked."""
        preset = PRESETS[self.preset]
        settings = dict(self.data)
        plan = changed(preset.data.plan, settings.pop("plan", {}), "data.plan")
        data = replace(changed(preset.data, settings, "data"), plan=plan, seed=self.seed)
        if self.target == NONE:
            return Target(self.model, data, seed=self.seed)
        training = changed(preset.training(self.target, self.epsilon), self.training, "training")
        return Target(self.model, data, self.target, self.epsilon, training, self.seed)

    def to_json(self) -> dict[str, Any]:
        """Plain values, lists for tuples: what is compared when a row is resumed."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


SETTINGS = frozenset(item.name for item in fields(ReleaseConfig)) - {"model"}


def changed(settings: D, changes: Mapping[str, Any], place: str) -> D:
    """The settings with some replaced; RecipeError for unknown ones, with the nearest right one."""
    known = [item.name for item in fields(settings)]
    for key in changes:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise RecipeError(f"{place}: unknown key {key!r}{hint}")
    return replace(settings, **changes)


def named_by_user(config: ReleaseConfig, recipe: str) -> ReleaseConfig:
    """The config, if nothing in it waits for a path of the user's; RecipeError says which options name them."""
    spec, missing = config.released().data.documents, []
    if PLACEHOLDER in config.model and config.measure not in WITHOUT_MODEL:
        missing.append("the public model's directory (--model vt5=DIR)")
    if PLACEHOLDER in spec and config.measure != "noise":
        missing.append(f"its documents (--documents {spec.replace(PLACEHOLDER, 'DIR')})")
    if missing:
        raise RecipeError(f"recipe {recipe!r} needs {' and '.join(missing)}; docs/release.md says where to get them.")
    return config
