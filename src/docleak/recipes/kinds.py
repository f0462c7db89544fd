"""The kinds of recipes: what a row may set, what the papers print of it, and how rows become a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from docleak.errors import RecipeError
from docleak.registry import resolve

if TYPE_CHECKING:
    from docleak.recipes.recipe import Recipe
    from docleak.recipes.runner import Planned
    from docleak.studies.study import TableStudy

E = TypeVar("E")

AUDIT = "gradient"
#: name -> "module:object". A new kind is a module, and a line in this table.
KINDS: dict[str, str] = {
    AUDIT: "docleak.studies.gradient.study:GradientStudy",
    "training": "docleak.recipes.trainings.table:TRAININGS",
    "release": "docleak.studies.answers.study:AnswersStudy",
    "pairs": "docleak.studies.pairs.study:PairStudy",
    "extraction": "docleak.studies.weights.study:WeightsStudy",
}


@dataclass(frozen=True)
class Kind(Generic[E]):
    """What the experiments E of this kind take and give.

    ``types`` are the annotations of the settings, as ``field_types`` finds them. ``options`` are the settings that the
    command line may change, besides "models". ``facts`` are the lines under the table that only this kind knows;
    ``write_table`` takes all of them.
    """

    about: str
    settings: frozenset[str]
    types: Mapping[str, str]
    metrics: tuple[str, ...]
    options: tuple[str, ...]
    experiments: Callable[[Recipe, str, Path, Mapping[str, Any]], list[E]]
    plan: Callable[[Sequence[E]], list[Planned]]
    facts: Callable[[Sequence[E]], dict[str, str]]
    write_table: Callable[[Recipe, str, Sequence[E], Path, Mapping[str, str]], Path]


def field_types(*configs: type) -> dict[str, str]:
    """Name -> annotation of the fields of the dataclasses that settings are put into."""
    return {item.name: str(item.type) for config in configs for item in fields(config)}


def study_named(name: str) -> type[TableStudy[Any]] | None:
    """The study of that kind, None for a kind that is none yet."""
    from docleak.studies.study import TableStudy

    study = resolve(KINDS.get(name, KINDS[AUDIT]))
    return study if isinstance(study, type) and issubclass(study, TableStudy) else None


def kind_named(name: str) -> Kind[Any]:
    """The kind of that name; RecipeError lists the known ones."""
    if name not in KINDS:
        raise RecipeError(f"there is no recipe of the kind {name!r}; known: {', '.join(KINDS)}.")
    kind: Any = resolve(KINDS[name])
    return _as_kind(kind) if isinstance(kind, type) else kind


def _as_kind(study: Any) -> Kind[Any]:
    """What a recipe's reader asks of a study: which settings and printed numbers there are."""
    names = {field.name for field in fields(study.Config)} | set(study.extra)
    metrics = (*study.columns, *(f"{name}_{data}" for name in study.columns for data in study.printed_sets))
    types = {**field_types(study.Config), **study.extra}
    return Kind(study.about, frozenset(names), types, metrics, study.options, None, None, None, None)  # type: ignore[arg-type]
