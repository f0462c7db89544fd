"""A recipe: the rows of a table, what each of them changes, and what the paper printed.

Recipes are TOML files, the shipped ones beside this module, a user's own anywhere:

    title = "Main results"              what the table shows
    paper = "Ben Hemo et al. (2025), Table 1"
    finding = "..."                     what the paper concludes from it, in a sentence
    models = ["donut"]                  every row runs on each of these, unless it names its own
    [fixed]                             settings of every row
    [scales.tiny] and [scales.paper]    settings of a scale; models.donut = "donut-start" says which checkpoint that is
    [[rows]]                            name, settings of this row, printed.donut = {binary = 0.701, ...}

Settings are the fields of ``AuditConfig`` (attack instead of attacks, to which attack_options are added) and of
``Exposure``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from docleak.errors import RecipeError
from docleak.evidence.audit import AuditConfig
from docleak.evidence.case import Exposure

SHIPPED = Path(__file__).parent
SCALES = ("tiny", "paper")
METRICS = ("binary", "fuzz_ratio", "psnr", "fft2d", "mse")
EXPOSURE = frozenset(f.name for f in fields(Exposure))
SETTINGS = (EXPOSURE | {f.name for f in fields(AuditConfig)} | {"attack", "attack_options"}) - {
    "models",
    "attacks",
    "exposure",
}
#: key -> type, of the file and of a row; scales and ``fixed`` hold settings.
TOP = {"title": str, "paper": str, "finding": str, "note": str, "models": list, "fixed": dict, "rows": list,
       "scales": dict}  # fmt: skip
ROW = {"name": str, "models": list, "printed": dict, "scales": dict}


@dataclass(frozen=True)
class Row:
    """One row: its settings over the fixed ones, and the paper's numbers per model (shares in [0, 1])."""

    name: str
    models: tuple[str, ...]
    settings: Mapping[str, Any]
    printed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    scaled: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A table. ``scales`` maps tiny and paper to settings, among them ``models``: name -> checkpoint."""

    name: str
    title: str
    paper: str
    finding: str
    rows: tuple[Row, ...]
    fixed: Mapping[str, Any]
    scales: Mapping[str, Mapping[str, Any]]
    note: str = ""

    def config(self, row: Row, model: str, scale: str, changes: Mapping[str, Any]) -> AuditConfig:
        """What one row runs on one model; ``changes`` come from the command line and win.

        ``changes["models"]`` maps names of models to checkpoints, ``changes["image_sizes"]`` to page sizes.
        """
        at = self.scales.get(scale, {})
        settings = {**self.fixed, **at, **row.settings, **row.scaled.get(scale, {}), **changes}
        sources = {**at.get("models", {}), **changes.get("models", {})}
        if model not in sources:
            raise RecipeError(f"recipe {self.name!r} names no checkpoint for {model!r} at scale {scale!r}.")
        settings.pop("models", None)
        if size := settings.pop("image_sizes", {}).get(model):
            settings["image_size"] = size
        exposed = {key: settings.pop(key) for key in list(settings) if key in EXPOSURE}
        if "stages" in exposed:
            exposed["stages"] = tuple(exposed["stages"])
        attack, options = settings.pop("attack", "gi-dqa"), settings.pop("attack_options", "")
        attack = f"{attack}:{options}" if options else attack
        return AuditConfig(models=(sources[model],), attacks=(attack,), exposure=Exposure(**exposed), **settings)


def list_recipes() -> dict[str, Recipe]:
    """The shipped recipes by name, paper by paper."""
    return {
        name: read_recipe(file, name)
        for file in sorted(SHIPPED.glob("*/*.toml"))
        for name in [file.relative_to(SHIPPED).with_suffix("").as_posix()]
    }


def find_recipe(name: str) -> Recipe:
    """A shipped recipe by name, or one of the user's own by path; RecipeError lists the shipped ones."""
    if name.endswith(".toml"):
        return read_recipe(Path(name), Path(name).stem)
    known = sorted(file.relative_to(SHIPPED).with_suffix("").as_posix() for file in SHIPPED.glob("*/*.toml"))
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise RecipeError(f"there is no recipe {name!r}.{hint} Known: {', '.join(known)}; or give a .toml file.")
    return read_recipe(SHIPPED / f"{name}.toml", name)


def read_recipe(file: Path, name: str) -> Recipe:
    """Read and check a recipe; RecipeError names every wrong key and the nearest right one."""
    try:
        text = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError as fault:
        raise RecipeError(f"there is no recipe file {str(file)!r}.") from fault
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
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
    )


def _row(row: Mapping[str, Any], models: tuple[str, ...]) -> Row:
    settings = {key: value for key, value in row.items() if key not in ROW}
    return Row(row["name"], tuple(row.get("models", models)), settings, row.get("printed", {}), row.get("scales", {}))


def _faults(text: Mapping[str, Any]) -> list[str]:
    faults = _wrong_keys(text, TOP, (), "the recipe")
    faults += [f"the recipe lacks {key!r}" for key in ("title", "rows") if key not in text]
    faults += _wrong_keys(text.get("fixed") or {}, {}, SETTINGS, "[fixed]")
    faults += _scale_faults(text, "", {"models": dict})
    rows = text.get("rows")
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        place = f"row {number + 1}"
        if not isinstance(row, dict) or "name" not in row:
            faults.append(f"{place} has no name")
            continue
        faults += _wrong_keys(row, ROW, SETTINGS, f"{place} ({row['name']})")
        faults += _scale_faults(row, f"{place}, ", {})
        for model, numbers in (row.get("printed") or {}).items():
            faults += _wrong_keys(numbers, dict.fromkeys(METRICS, object), (), f"{place}, printed.{model}")
    return faults


def _scale_faults(text: Mapping[str, Any], place: str, typed: Mapping[str, type]) -> list[str]:
    scales = text.get("scales") or {}
    faults = _wrong_keys(scales, dict.fromkeys(SCALES, dict), (), f"{place}[scales]")
    for scale, settings in scales.items():
        if isinstance(settings, dict):
            faults += _wrong_keys(settings, typed, SETTINGS, f"{place}[scales.{scale}]")
    return faults


def _wrong_keys(found: Mapping[str, Any], typed: Mapping[str, type], free: Any, place: str) -> list[str]:
    faults = []
    known = [*typed, *sorted(free)]
    for key, value in found.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            faults.append(f"{place}: unknown key {key!r}{hint}")
        elif key in typed and not isinstance(value, typed[key]):
            faults.append(f"{place}: {key} is a {type(value).__name__}, expected a {typed[key].__name__}")
    return faults
