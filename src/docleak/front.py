"""docleak from Python: audit, train and reproduce as calls, and what a run says as a DataFrame.

Models, pages, attacks, defences and studies are names or objects. ``docleak`` exports what is public of this module.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from docleak import spec
from docleak.attacks.gradients import ATTACKS
from docleak.documents import Page
from docleak.documents import load_pages as open_pages
from docleak.documents.folder import load, save
from docleak.documents.loaders import SYNTHETIC, drawn, page_source, page_specs
from docleak.documents.names import one_spelling
from docleak.documents.ranges import BUDGET, COUNT, PATH, SEED, Range, check_kind, check_truth, check_whole, short
from docleak.errors import AttackError, DocumentError, FederationError, ModelError, RecipeError, RunError
from docleak.models import DocumentModel
from docleak.models.device import pick_device
from docleak.registry import Choice, Given
from docleak.report.table import Table
from docleak.studies.engine import Silence, carry_out
from docleak.studies.given import PAGES, configured, given_model, settings_of, with_pages
from docleak.studies.gradient.config import with_closed_form
from docleak.studies.identity import data_hash
from docleak.studies.registry import load_study, remember, require_whole
from docleak.studies.results import Results
from docleak.studies.study import Study

if TYPE_CHECKING:
    import pandas

    from docleak.training.settings import TrainingSettings

AnyPath: TypeAlias = str | os.PathLike[str]
#: A shipped name, a directory, a hub name, or an object such as load_model returns.
Model: TypeAlias = AnyPath | DocumentModel
#: "synthetic", a folder, FORMAT:PATH, or the pages themselves.
Pages: TypeAlias = AnyPath | Sequence[Page]
#: How many processes compute.
WORKERS = Range(1, 512)
#: What ``reproduce`` changes that is a whole number.
NUMBERS = {"pages": COUNT, "rounds": COUNT, "issuers": COUNT, "budget": BUDGET, "seed": SEED}
#: Is told lines for people.
Say: TypeAlias = Callable[[str], None]


def load_pages(pages: AnyPath, *, count: int | None = None, seed: int | None = None, **options: Any) -> Sequence[Page]:
    """Pages of "synthetic", a folder or FORMAT:PATH, the first ``count`` of them; see ``docleak.documents.load_pages``
    for ``options``. ``seed`` belongs to pages that docleak draws; DocumentError where those have none."""
    check_kind("pages", pages, PATH, "'synthetic', a folder or FORMAT:PATH", DocumentError)
    check_kind("count", count, Integral | None, "a whole number", DocumentError)
    check_kind("seed", seed, Integral | None, "a whole number", DocumentError)
    text = os.fspath(pages)
    for part in page_specs(text):
        if part != SYNTHETIC:
            page_source(part)  # refuses what is not there
    if seed is None and drawn(text):
        raise DocumentError(f"{text!r}: docleak draws these pages. Give a seed; expected seed=0, say.")
    return open_pages(text, count=count, seed=seed or 0, **options)


def audit(
    model: Model | Sequence[Model] | None = None,
    pages: Pages | None = None,
    *,
    study: str | type[Study[Any]] | Study[Any] = "gradient",
    attacks: Choice | Sequence[Choice] | None = None,
    defense: Choice | None = None,
    count: int | None = None,
    seed: int | None = None,
    out: AnyPath = "docleak-audit",
    workers: int = 1,
    cluster: str = "",
    device: str = "auto",
    say: Say | None = None,
    **settings: Any,
) -> Results:
    """Measure what leaks, in ``out``, or go on where an earlier call stopped; a run of something else is refused.

    Without ``study``: what one client's gradient gives away, under ``attacks`` and the client's ``defense``. ``count``
    is how many pages are attacked: all that were given as objects, one otherwise. ``settings`` are further fields of
    the study's configuration. A study is a kind, "module:Class", a class, or an instance, which has its configuration.
    With ``workers`` above 1, a script calls this under ``if __name__ == "__main__"``; at ``cluster``, the address of a
    Dask scheduler, its workers compute. ``say`` is told of each unit.

    Raises DocleakError for what cannot be measured, as far as can be known before anything is computed.
    """
    check_kind("out", out, PATH, "a folder", RunError)
    check_whole("workers", workers, WORKERS, RunError)
    asked: dict[str, Any] = {"model": model, "pages": pages, "attacks": attacks, "defense": defense, "count": count}
    asked |= {"seed": seed}
    named = {name: value for name, value in asked.items() if value is not None} | settings
    if isinstance(study, Study):
        named |= {"device": device} if device != "auto" else {}
        if named:
            raise RunError(
                f"the study has its configuration already; found {', '.join(named)}. Give its class instead."
            )
        measured, shown = study, named | {"study": study}
    else:
        kind = load_study(study) if isinstance(study, str) else study
        if not (isinstance(kind, type) and issubclass(kind, Study)):
            raise RunError(f"the study is {short(study)}; expected a kind, 'module:Class', a class, or an instance.")
        require_whole(kind)
        config: Any = configured(kind.Config, _of_study(kind, named), what=f"the study {kind.kind!r}")
        measured = kind(config, device=pick_device(device))
        shown = ({} if study == "gradient" else {"study": kind.kind}) | named
    remember(type(measured))
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker that is about to import the script
        raise RunError("a worker process runs this script again. Put the call under: if __name__ == '__main__':")
    how: dict[str, Any] = {"workers": workers, "cluster": cluster, "command": _call("audit", shown, out)}
    run = carry_out(measured, Path(out).expanduser(), watcher=Lines(say), **how)
    return Results((run.path,))


def train(
    config: TrainingSettings | None = None,
    *,
    silos: int | AnyPath | Mapping[str, Pages] | None = None,
    pages: Pages | None = None,
    documents: int | None = None,
    out: AnyPath = "docleak-train",
    device: str = "auto",
    capture: bool = False,
    tensorboard: bool = False,
    start_is_public: bool = False,
    say: Say | None = None,
    **settings: Any,
) -> Results:
    """Train over ``silos``, or centrally on ``pages``, or go on in ``out``; the model is left in ``out``/model.

    ``silos`` is a folder of them, their folders or pages by name, or how many to make (three where nothing is given),
    of so many synthetic ``documents`` (240). ``settings`` are the fields of TrainingSettings, or ``config`` has them
    all: model, rounds, learning_rate, ..., and epsilon or noise for differential privacy. ``capture`` keeps the updates
    as the server receives them, in ``out``/updates. ``start_is_public`` declares that a start model of which nothing is
    recorded saw no private pages. Raises DocleakError for settings that contradict each other, and a run of something
    else.
    """
    from docleak.runs.claim import claimed
    from docleak.studies.training.rounds import draw_curves
    from docleak.training.federated.training import Training
    from docleak.training.federated.training import train as train_rounds
    from docleak.training.private.record_run import train_records

    check_kind("out", out, PATH, "a folder", RunError)
    for name, value in {"capture": capture, "tensorboard": tensorboard, "start_is_public": start_is_public}.items():
        check_truth(name, value, FederationError)
    if silos is not None and pages is not None:
        raise FederationError("silos and pages are both given; expected silos, or pages for a central training.")
    folder, chosen = Path(out).expanduser(), _settings(config, settings)
    changed = [field.name for field in fields(chosen) if config and getattr(config, field.name) != field.default]
    said = {name: name for name in changed or settings}
    places = _silos(silos, pages, documents, folder / "silos", chosen)
    shown = {"config": config, "silos": silos, "pages": pages} | settings
    how: dict[str, Any] = {"device": pick_device(device), "command": _call("train", shown, out), "say": say or _unsaid}
    by_record = chosen.unit == "record" and pages is not None
    if by_record and (capture or tensorboard):
        raise FederationError("unit 'record' has no rounds to capture, or to draw in TensorBoard. Leave that out.")
    with claimed(folder):
        if by_record:
            train_records(chosen.records(said, start_is_public=start_is_public), places, folder, **how)
        else:
            training = Training(
                chosen.federation(said), chosen.evaluate_every, capture, tensorboard, start_is_public=start_is_public
            )
            draw_curves(train_rounds(training, places, folder, **how))
    return Results((folder,))


@dataclass(frozen=True)
class Reproduction:
    """A table of a paper, ours beside the printed numbers. ``page`` is its HTML page, beside table.md, .csv, .json."""

    page: Path
    tables: tuple[Table, ...]
    failures: Mapping[str, str]

    def to_frame(self) -> pandas.DataFrame:
        """A row per row and model: NAME, NAME_low, NAME_high, NAME_n of ours, and NAME_paper."""
        import pandas

        return pandas.concat([table.to_frame() for table in self.tables], ignore_index=True)


def reproduce(
    name: str,
    *,
    scale: str = "tiny",
    rows: str = "",
    models: Mapping[str, AnyPath] | None = None,
    out: AnyPath | None = None,
    workers: int = 1,
    device: str = "auto",
    until_decided: bool = False,
    say: Say | None = None,
    **changes: Any,
) -> Reproduction:
    """Run a paper's table such as "gi-dqa/table1", or a .toml file of one's own, or go on with it in ``out``.

    Only ``rows`` with that in their name and (model), A|B either; ``models`` puts checkpoints in place of the recipe's,
    by their names there. ``until_decided`` stops at the first page after which no statement of the recipe is open.
    ``changes`` are settings of all rows (pages, seed, budget, documents, ...), as ``docleak reproduce`` takes them.
    RecipeError for an unknown recipe, scale or change.
    """
    from docleak.recipes import find_recipe
    from docleak.recipes.rows import facts_of_call, failures_of, require_rows, rows_of, tables_of, write_table
    from docleak.recipes.rows import reproduce as compute_rows
    from docleak.runs.claim import claimed

    check_kind("the recipe", name, str, "its name, or a .toml file", RecipeError)
    check_kind("rows", rows, str, "a text", RecipeError)
    check_kind("out", out, PATH | None, "a folder", RecipeError)
    check_whole("workers", workers, WORKERS, RecipeError)
    check_truth("until_decided", until_decided, RecipeError)
    recipe = find_recipe(name)
    study = recipe.study
    if unknown := [key for key in changes if key not in study.options]:
        raise RecipeError(spec.unknown("change", unknown[0], study.options))
    for key in changes.keys() & NUMBERS.keys():
        check_whole(key, changes[key], NUMBERS[key], RecipeError)
    known = [*recipe.models, *study.checkpoints, *recipe.checkpoints]
    if unknown := [model for model in models or {} if model not in known]:
        raise RecipeError(spec.unknown("model", unknown[0], known))
    folder = Path(out or f"docleak-{recipe.name.replace('/', '-')}-{scale}").expanduser()
    sources = {key: os.fspath(value) for key, value in (models or {}).items()}
    chosen = {key: sources.pop(key) for key in study.checkpoints if key in sources} | {"models": sources} | changes
    sets = {key: _tuple(chosen[key]) for key in ("documents", "test_documents") if key in chosen}
    if unnamed := [one for given in sets.values() for one in given if not isinstance(one, PATH)]:
        raise RecipeError(
            f"documents hold a {type(unnamed[0]).__name__}; a table reads data sets by name: a folder, FORMAT:PATH or "
            "'synthetic'. Save pages by docleak.documents.folder.save, and give the folder."
        )
    chosen |= sets
    require_rows([recipe], scale, rows)
    lines = rows_of(recipe, study, scale, folder, chosen, device=pick_device(device), only=rows)
    shown = {"name": name, "scale": scale, "rows": rows, "models": models} | changes
    command = _call("reproduce", shown, folder)
    with claimed(folder):
        compute_rows(recipe, lines, folder, scale=scale, workers=workers, command=command, watcher=Lines(say),
                     until_decided=until_decided)  # fmt: skip
        page = write_table(recipe, scale, lines, folder, facts_of_call(command))
    return Reproduction(page, tuple(tables_of(lines)), failures_of(lines))


class Lines(Silence):
    """A watcher that says which units are finished, and what studies say."""

    def __init__(self, say: Say | None) -> None:
        self.say = say or _unsaid
        self.done: set[str] = set()
        self.total = 0

    def began(self, sizes: Mapping[str, int], finished: Collection[str]) -> None:
        """How many units there are."""
        self.done, self.total = set(finished), len(sizes)

    def reached(self, label: str, number: int, of: int) -> None:
        """A line for a unit that is finished."""
        if number >= of and label not in self.done:
            self.done.add(label)
            self.say(f"{label}: {len(self.done)} of {self.total} units")

    def said(self, text: str) -> None:
        """A line of the study's own."""
        self.say(text)


def _of_study(kind: type[Study[Any]], named: Mapping[str, Any]) -> dict[str, Any]:
    """What ``audit`` was told, by the names that the study's configuration has for it."""
    names = settings_of(kind.Config)
    values = dict(named)
    for one, other in (("model", "models"), ("pages", "documents"), ("attacks", "attack")):
        if one in values and other in values:
            raise RunError(f"{one} and {other} are both given, and mean the same. Leave one out.")
    if "model" in values:
        models = tuple(given_model(model) for model in _tuple(values.pop("model")))
        if not models:
            raise ModelError("no model is named; expected a name, a directory, or what docleak.load_model returns.")
        values |= {"models": models} if "models" in names else {"model": models[0]}
        if "models" not in names and len(models) != 1:
            raise ModelError(f"the study {kind.kind!r} takes one model; found {len(models)}.")
    count, values = values.pop("count", None), with_pages(kind.kind, kind.Config, values)
    if isinstance(values.get("documents"), Given):
        there = len(open_pages(values["documents"], seed=0))
        count = there if count is None and "pages" in names else count
        if isinstance(count, int) and count > there:
            raise DocumentError(f"count is {count}, and {there} pages were given. Give more pages, or leave it out.")
    if count is not None:
        values["pages" if "pages" in names else "count"] = count
    if "attacks" in values and "attacks" not in names:
        values["attack"] = values.pop("attacks")
    elif "attacks" in values:
        if not _tuple(values["attacks"]):
            raise AttackError("no attack is named; expected a name or an object, or several.")
        values["attacks"] = ATTACKS.all_chosen(_tuple(values["attacks"]))
        if kind.kind == "gradient":  # as docleak audit: it costs nothing, and leaving it out could hide a leak
            values["attacks"] = with_closed_form(values["attacks"], batch_size=values.get("batch_size", 1))
    return values


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _settings(config: TrainingSettings | None, settings: Mapping[str, Any]) -> TrainingSettings:
    from docleak.training.settings import TrainingSettings

    if config is not None and settings:
        raise FederationError(f"config has all settings already; found {', '.join(settings)}, too. Give one of both.")
    if not isinstance(settings.get("model", ""), str | os.PathLike):
        raise ModelError("a training begins with a checkpoint on disk; save the model, and give its directory.")
    values = {name: str(value) if name in ("model", "unit_rate") else value for name, value in settings.items()}
    return config or spec.build(TrainingSettings, values, what="docleak.train", error=FederationError)


def _silos(
    silos: int | AnyPath | Mapping[str, Pages] | None, pages: Pages | None, documents: int | None, made: Path,
    settings: TrainingSettings,
) -> Callable[[], Mapping[str, Path]]:  # fmt: skip
    """Finds or makes the silos' folders, new ones in ``made``, once the run is open."""
    from docleak.training.federated.silo_folders import find_silos, one_silo, synthetic_silos

    check_kind("documents", documents, Integral | None, "a whole number", FederationError)
    if not isinstance(silos, Mapping):
        check_kind("silos", silos, Integral | PATH | None, "how many to make, a folder of them, or pages by name",
                   FederationError)  # fmt: skip
    if pages is not None and not isinstance(pages, PATH | Iterable):
        raise DocumentError(f"the pages are of the type {type(pages).__name__}; expected {PAGES}.")
    if documents is not None and (not isinstance(silos, int | None) or pages not in (None, SYNTHETIC)):
        raise FederationError(f"documents={documents} is how many to make, and pages are given. Leave it out.")
    number = 240 if documents is None else documents
    if isinstance(silos, Mapping):
        if wrong := [name for name in silos if not isinstance(name, str) or name == ".." or Path(name).name != name]:
            raise FederationError(f"a silo is called {short(wrong[0])}; expected a name, which is no path.")
        return lambda: {name: _written(held, made / name) for name, held in silos.items()}
    if isinstance(silos, str | os.PathLike):
        return lambda: find_silos(Path(silos).expanduser())
    if pages is None:
        return lambda: synthetic_silos(made, 3 if silos is None else silos, number, seed=settings.seed)
    if isinstance(pages, str | os.PathLike):
        count = number if pages == SYNTHETIC else 0
        return lambda: one_silo(os.fspath(pages), count, made, seed=settings.seed)
    return lambda: {"pages": _written(pages, made / "pages")}


def _written(pages: Pages, folder: Path) -> Path:
    """The folder of pages: as it is, or with the pages written to it; RunError where others are there."""
    if isinstance(pages, str | os.PathLike):
        return Path(pages).expanduser()
    given = list(one_spelling(pages))
    if not folder.exists():
        return save(given, folder)
    if data_hash(list(load(folder))) != data_hash(given):
        raise RunError(f"{folder} holds other pages than those given now. Pass another out, or delete the directory.")
    return folder


def _call(name: str, values: Mapping[str, Any], out: AnyPath) -> str:
    """The call as Python, for "how to rerun"; objects by their type in angle brackets, as they cannot be typed."""
    told = [f"{key}={_shown(value)}" for key, value in values.items() if value not in (None, "")]
    return f"docleak.{name}({', '.join([*told, f'out={os.fspath(out)!r}'])})"


def _shown(value: object) -> str:
    if isinstance(value, str | int | float | os.PathLike):
        return repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_shown(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value):
        return repr(value)
    return f"<{type(value).__name__}>"


def _unsaid(text: str) -> None:
    """Nobody is told."""
