"""A recipe: the rows of a table, what each of them changes, and what the paper printed.

Recipes are TOML files, the shipped ones beside this module, a user's own anywhere:

    title = "Main results"              what the table shows
    kind = "trainings"                  which study a row is of (gradient, if left out)
    paper = "Ben Hemo et al. (2025), Table 1"
    finding = "..."                     what the paper concludes from it, in a sentence
    ours = true                         if the question is nobody's but one's own: its statements are no paper's
    models = ["donut"]                  every row runs on each of these, unless it names its own
    [fixed]                             settings of every row
    [scales.tiny], narrow, base, paper  settings of a scale; models.donut = "donut-start" says which checkpoint that is,
                                        and on = ["donut"] which models rows run on at this scale instead of the above;
                                        of.donut = {budget = 60}: settings that rows on that model have there
    [[rows]]                            name, settings of this row, printed.donut = {binary = 0.701, ...}, and
                                        only = "paper" if it is a row of that scale alone
    [[statements]]                      what the paper concludes, as our numbers can test it (see ``statements``)

The study says which settings and which printed numbers there are: its configuration's fields, and its columns.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docleak.documents.ranges import SEED, short
from docleak.errors import RecipeError
from docleak.recipes.statements import Statement, statement_of
from docleak.recipes.statements import faults_of as statement_faults
from docleak.spec import nearest, split_name, unknown

if TYPE_CHECKING:
    from docleak.studies.study import TableStudy

SHIPPED = Path(__file__).parent
#: The kind of a recipe that names none.
USUAL = "gradient"
#: Of narrow and base, published checkpoints are made on the spot, with random weights: narrow, so that the paper's own
#: solver has its own number of steps, or of the published size.
SCALES = ("tiny", "narrow", "base", "paper")
#: What a scale says beside settings.
OF_SCALE = {"models": dict, "on": list, "of": dict}
MOST_NUMBER = 10**12
#: key -> type, of the file and of a row; scales and ``fixed`` hold settings.
TOP = {"title": str, "kind": str, "paper": str, "finding": str, "note": str, "models": list, "fixed": dict,
       "ours": bool, "rows": list, "scales": dict, "statements": list}  # fmt: skip
ROW = {"name": str, "models": list, "printed": dict, "scales": dict, "only": str}


@dataclass(frozen=True)
class Row:
    """One row: its settings over the fixed ones, and the paper's numbers per model (shares in [0, 1]). ``bound`` to
    its ``models`` at every scale, where it names its own. ``only`` names the scale that alone has it, "" for a row of
    all."""

    name: str
    models: tuple[str, ...]
    settings: Mapping[str, Any]
    printed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    scaled: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bound: bool = False
    only: str = ""

    def at(self, scale: str) -> bool:
        """Whether the scale has it."""
        return self.only in ("", scale)


@dataclass(frozen=True)
class Recipe:
    """A table. ``scales`` maps SCALES to settings, among them ``models``: name -> checkpoint. Of one that
    is ``ours`` the statements are no paper's."""

    name: str
    title: str
    paper: str
    finding: str
    rows: tuple[Row, ...]
    fixed: Mapping[str, Any]
    scales: Mapping[str, Mapping[str, Any]]
    note: str = ""
    kind: str = USUAL
    statements: tuple[Statement, ...] = ()
    ours: bool = False

    def source(self, scale: str) -> str:
        """Whose table it is, and at which scale, in a sentence."""
        return f"{self.paper}, scale {scale}." if self.paper else f"Scale {scale}."

    @property
    def whose_finding(self) -> str:
        """What stands before ``finding``: of a recipe that is ``ours`` no paper need have found it."""
        return "Said before" if self.ours else "The paper's finding"

    @property
    def study(self) -> type[TableStudy[Any]]:
        """What its rows are."""
        return study_of(self.kind)

    @property
    def models(self) -> tuple[str, ...]:
        """All models that a row runs on at some scale, in order."""
        rows = {model for row in self.rows for model in row.models}
        return tuple(sorted(rows | {model for scale in self.scales.values() for model in scale.get("on", ())}))

    def models_of(self, row: Row, scale: str) -> tuple[str, ...]:
        """What the row runs on at that scale."""
        return row.models if row.bound else tuple(self.scales.get(scale, {}).get("on", row.models))

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Short names of the checkpoints that settings name, at any scale; with its own, a user says where each is."""
        from docleak.models.loading import short_name  # which imports torch, and lists of recipes need none

        named = [place[key] for place in self._places() for key in self.study.checkpoints if key in place]
        return tuple(dict.fromkeys(short_name(name) for name in named))

    @property
    def parts(self) -> tuple[str, ...]:
        """Of the kind's checkpoints beside the model those that a row has at some scale."""
        return tuple(key for key in self.study.checkpoints if any(key in place for place in self._places()))

    def _places(self) -> list[Mapping[str, Any]]:
        """Wherever settings stand."""
        places = [self.fixed, *self.scales.values(), *(row.settings for row in self.rows)]
        places += [scaled for row in self.rows for scaled in row.scaled.values()]
        return places + [settings for scale in self.scales.values() for settings in scale.get("of", {}).values()]

    def settings(self, row: Row, model: str, scale: str, changes: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The checkpoint of ``model``, and the settings that one row has on it: fixed ones, those of the scale, the
        scale's of that model, the row's, the row's at that scale, and ``changes`` from the command line, of which the
        last wins.

        ``changes["models"]`` maps names of models to checkpoints.
        """
        at = self.scales.get(scale, {})
        of_model = at.get("of", {}).get(model, {})
        settings = {**self.fixed, **at, **of_model, **row.settings, **row.scaled.get(scale, {}), **changes}
        sources = {**at.get("models", {}), **changes.get("models", {})}
        if model not in sources:
            raise RecipeError(f"recipe {self.name!r} names no checkpoint for {model!r} at scale {scale!r}.")
        for name in OF_SCALE:
            settings.pop(name, None)
        return sources[model], settings


@dataclass(frozen=True)
class Known:
    """What the rows of a study may say: settings with the annotations of their fields, and printed numbers."""

    types: Mapping[str, str]
    printed: tuple[str, ...]


def study_of(kind: str) -> type[TableStudy[Any]]:
    """The study of that kind, or at "module:Class"; RecipeError names those that rows of tables can be of."""
    from docleak.studies.kinds import STUDIES
    from docleak.studies.registry import load_study
    from docleak.studies.study import TableStudy

    if kind in STUDIES or split_name(kind)[1]:
        study = load_study(kind)
        if issubclass(study, TableStudy):
            return study
    known = [name for name in STUDIES if issubclass(load_study(name), TableStudy)]
    raise RecipeError(f"there is no recipe of the kind {kind!r}; known: {', '.join(known)}, or MODULE:CLASS.")


def known_of(study: type[TableStudy[Any]]) -> Known:
    """What rows of the study may say."""
    types = {item.name: str(item.type) for item in fields(study.Config) if item.name not in study.of_model}
    sets = [f"{name}_{data}" for name in study.columns for data in study.printed_sets]
    return Known({**types, **study.extra}, (*study.columns, *sets))


def titles() -> dict[str, tuple[str, str]]:
    """Title and paper of the shipped recipes by name, paper by paper; what else stands in them is not looked at."""
    recipes = {name: tomllib.loads(file.read_text(encoding="utf-8")) for name, file in _shipped().items()}
    return {name: (str(text["title"]), str(text.get("paper", ""))) for name, text in recipes.items()}


def list_recipes() -> dict[str, Recipe]:
    """The shipped recipes by name, paper by paper."""
    return {name: _read_shipped(name) for name in _shipped()}


@cache
def _read_shipped(name: str) -> Recipe:
    return read_recipe(SHIPPED / f"{name}.toml", name)


def _shipped() -> dict[str, Path]:
    return {
        name: file
        for file in sorted(SHIPPED.glob("*/*.toml"))
        for name in [file.relative_to(SHIPPED).with_suffix("").as_posix()]
    }


def find_recipe(name: str) -> Recipe:
    """A shipped recipe by name, or one of the user's own by path; RecipeError says which are near, or the paper's."""
    if name.endswith(".toml"):
        return read_recipe(Path(name), Path(name).stem)
    known = list(_shipped())
    if name not in known:
        paper = name.partition("/")[0]
        hint = nearest(name, known, cutoff=0.5) if name != paper else ""
        papers = list(dict.fromkeys(one.partition("/")[0] for one in known))
        of_paper = [one for one in known if one.startswith(f"{paper}/")]
        shown = f"Of {paper} there are {', '.join(of_paper)}" if of_paper else f"There are some of {', '.join(papers)}"
        raise RecipeError(
            f"there is no recipe {name!r}.{hint} {shown}; docleak reproduce --list tells all {len(known)}. Or give a "
            ".toml file."
        )
    return _read_shipped(name)


def read_recipe(file: Path, name: str) -> Recipe:
    """Read and check a recipe; RecipeError names every wrong key and the nearest right one."""
    try:
        text = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError as fault:
        raise RecipeError(f"there is no recipe file {str(file)!r}.") from fault
    except (OSError, ValueError, RecursionError) as fault:  # not UTF-8, no TOML, a number of thousands of digits
        raise RecipeError(f"{file} cannot be read as TOML: {fault}.") from fault
    faults = _faults(text)
    if faults:
        raise RecipeError(f"{file} is no recipe:" + "".join(f"\n  - {fault}" for fault in faults))
    models = tuple(text.get("models", ("donut",)))
    return Recipe(
        name=name,
        title=text["title"],
        paper=text.get("paper", ""),
        finding=text.get("finding", ""),
        note=text.get("note", ""),
        rows=tuple(_row(row, models) for row in text["rows"]),
        fixed=text.get("fixed", {}),
        scales=text.get("scales", {}),
        kind=text.get("kind", USUAL),
        statements=tuple(statement_of(one) for one in text.get("statements", ())),
        ours=text.get("ours", False),
    )


def _row(row: Mapping[str, Any], models: tuple[str, ...]) -> Row:
    settings = {key: value for key, value in row.items() if key not in ROW}
    return Row(row["name"], tuple(row.get("models", models)), settings, row.get("printed", {}), row.get("scales", {}),
               bound="models" in row, only=row.get("only", ""))  # fmt: skip


def _faults(text: Mapping[str, Any]) -> list[str]:
    faults = _wrong_keys(text, TOP, (), "the recipe")
    known = known_of(study_of(str(text.get("kind", USUAL))))
    faults += [f"the recipe lacks {key!r}" for key in ("title", "rows") if key not in text]
    fixed = text.get("fixed")
    faults += _setting_faults(fixed, known, "[fixed]") if isinstance(fixed, dict) else []
    faults += _scale_faults(text, "", OF_SCALE, known)
    faults += _text_faults(text.get("models", []), "models")
    rows = text.get("rows")
    names = [str(row.get("name")) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    statements = text.get("statements")
    faults += statement_faults(statements, names, known.printed) if isinstance(statements, list) else []
    faults += ["there is no row"] * (rows == [])
    first: dict[tuple[str, str], int] = {}
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        place = f"row {number + 1}"
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            faults.append(f"{place} has no name")
            continue
        faults += _text_faults(row.get("models", []), f"{place}, models")
        models = row.get("models", text.get("models", ("donut",)))
        for model in models if isinstance(models, list | tuple) else ():
            before = first.setdefault((row["name"], str(model)), number)
            faults += [f"{place} ({row['name']}) is there twice: row {before + 1} has its name and model"] * (
                before != number
            )
        faults += _wrong_keys(row, ROW, known.types, f"{place} ({row['name']})")
        faults += _type_faults({key: value for key, value in row.items() if key not in ROW}, known, f"{place}")
        faults += _scale_faults(row, f"{place}, ", {}, known)
        if row.get("only", SCALES[0]) not in SCALES:
            faults.append(f"{place}: only is {short(row['only'])}, expected {' or '.join(SCALES)}")
        printed = row.get("printed")
        for model, numbers in printed.items() if isinstance(printed, dict) else ():
            if isinstance(numbers, dict):
                faults += _wrong_keys(numbers, dict.fromkeys(known.printed, object), (), f"{place}, printed.{model}")
                faults += [f"{place}, printed.{model}: {key} is {short(value)}, expected a number"
                           for key, value in numbers.items() if not _is(value, "float")]  # fmt: skip
            else:
                faults.append(f"{place}, printed.{model} is {short(numbers)}, expected metrics and their numbers")
    return faults


def _scale_faults(text: Mapping[str, Any], place: str, typed: Mapping[str, type], known: Known) -> list[str]:
    scales = text.get("scales")
    if not isinstance(scales, dict):
        return []  # told by its type
    faults = _wrong_keys(scales, dict.fromkeys(SCALES, dict), (), f"{place}[scales]")
    for scale, settings in scales.items():
        if isinstance(settings, dict):
            faults += _wrong_keys(settings, typed, known.types, f"{place}[scales.{scale}]")
            faults += _text_faults(settings.get("on", []), f"{place}[scales.{scale}], on") if "on" in typed else []
            faults += _faults_of_models(settings, known, f"{place}[scales.{scale}]") if "of" in typed else []
            settings = {key: value for key, value in settings.items() if key not in typed}
            faults += _type_faults(settings, known, f"{place}[scales.{scale}]")
    return faults


def _faults_of_models(scale: Mapping[str, Any], known: Known, place: str) -> list[str]:
    """What is wrong with the settings that a scale has ``of`` its models."""
    faults = []
    models, settings = scale.get("models", {}), scale.get("of", {})
    for model, changed in settings.items() if isinstance(settings, dict) else ():
        if not isinstance(changed, dict):
            faults.append(f"{place}, of.{model} is {short(changed)}, expected settings")
        elif isinstance(models, dict) and model not in models:
            faults.append(f"{place}, of: it has no model {model!r}; its models are {', '.join(models) or 'none'}")
        else:
            faults += _setting_faults(changed, known, f"{place}, of.{model}")
    return faults


def _setting_faults(settings: Mapping[str, Any], known: Known, place: str) -> list[str]:
    return _wrong_keys(settings, {}, known.types, place) + _type_faults(settings, known, place)


def _type_faults(settings: Mapping[str, Any], known: Known, place: str) -> list[str]:
    """A fault for each setting whose value is not of the type that its field has, or a number out of all range."""
    faults = []
    for key, value in settings.items():
        types = known.types.get(key, "object").split(" | ")
        if not any(_is(value, name) for name in types):
            faults.append(f"{place}: {key} is {short(value)}, expected {' or '.join(map(_in_words, types))}")
        elif key == "seed" and isinstance(value, int) and not SEED.holds(value):
            faults.append(f"{place}: seed is {short(value)}, expected {SEED}")
    return faults


def _text_faults(texts: Any, place: str) -> list[str]:
    if isinstance(texts, list) and all(isinstance(text, str) and text for text in texts):
        return []
    return [f"{place} is {short(texts)}, expected a list of texts"]


def _is(value: Any, name: str) -> bool:
    """Whether a value of TOML fits the annotation; one that is not simple is left to the configuration itself."""
    if name == "int":
        return type(value) is int and abs(value) < MOST_NUMBER
    if name == "float":
        return type(value) in (int, float) and math.isfinite(value) and abs(value) < MOST_NUMBER
    kinds: dict[str, type] = {"str": str, "bool": bool, "tuple": list, "Mapping": dict, "dict": dict}
    if name.startswith("tuple[") and isinstance(value, list):
        inner = name[len("tuple[") :].partition(",")[0].rstrip("]")
        return all(_is(item, inner) for item in value)
    wanted = kinds.get(name.partition("[")[0])
    return name != "None" if wanted is None else isinstance(value, wanted)


def _in_words(name: str) -> str:
    words = {"int": "a whole number", "float": "a finite number", "str": "a text", "bool": "true or false"}
    words |= {**dict.fromkeys(("tuple", "list"), "a list"), **dict.fromkeys(("Mapping", "dict"), "a table")}
    return words.get(name.partition("[")[0], name)


def _wrong_keys(found: Mapping[str, Any], typed: Mapping[str, type], free: Any, place: str) -> list[str]:
    faults = []
    known = list(dict.fromkeys([*typed, *sorted(free)]))
    for key, value in found.items():
        if key not in known:
            faults.append(f"{place}: {unknown('key', key, known)}")
        elif key in typed and not isinstance(value, typed[key]):
            faults.append(f"{place}: {key} is {short(value)}, expected {_in_words(typed[key].__name__)}")
    return faults
