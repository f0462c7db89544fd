"""docleak from Python: audit, train and reproduce as calls, and what a run says as a DataFrame.

Models, pages, attacks, defences and studies are names or objects. ``docleak`` exports what is public of this module.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from docleak import spec
from docleak.attacks.registries import ANSWERS, ATTACKS, PAIRS
from docleak.documents import Page
from docleak.documents import load_pages as open_pages
from docleak.documents.loaders import SYNTHETIC, drawn, page_source, page_specs
from docleak.documents.ranges import (
    BUDGET,
    COUNT,
    PATH,
    SEED,
    Range,
    check_kind,
    check_path,
    check_truth,
    check_whole,
    short,
)  # fmt: skip
from docleak.documents.typed import inside, plain
from docleak.errors import DocumentError, FederationError, ModelError, RecipeError, RunError
from docleak.metrics.ocr import ENGINES
from docleak.models.device import pick_device
from docleak.models.loading import size_of
from docleak.options import by_arguments, options_of, refuse_idle
from docleak.registry import Choice, Given, Registry
from docleak.report.table import Table
from docleak.spec import counted_words
from docleak.studies.engine import Lines, carry_out
from docleak.studies.given import AnyPath, Model, Pages, configured, given_model, settings_of, silos_of, with_pages
from docleak.studies.gradient.config import with_closed_form
from docleak.studies.registry import load_study, remember, require_whole
from docleak.studies.results import Results
from docleak.studies.study import Study
from docleak.studies.weights.config import with_trainings
from docleak.training.settings import TrainingSettings

if TYPE_CHECKING:
    import pandas

    from docleak.recipes import Recipe

#: How many processes compute.
WORKERS = Range(1, 512)
#: Where the attacks of a kind are registered, if not among those on gradients.
REGISTRIES: Mapping[str, Registry[Any]] = {"answers": ANSWERS, "pairs": PAIRS}
#: What ``reproduce`` changes that is a whole number.
NUMBERS = {"pages": COUNT, "rounds": COUNT, "issuers": COUNT, "budget": BUDGET, "seed": SEED}
#: What ``reproduce`` calls the options of ``docleak reproduce``.
ARGUMENTS = {name: name for name in (*NUMBERS, "documents", "test_documents", "per_issuer", "ocr", "rows", "scale",
                                     "out", "workers", "device", "until_decided")}  # fmt: skip
#: What a table reads, and where pages as objects come in.
DATA_SETS = "'synthetic', a folder or FORMAT:PATH, or several; save pages by docleak.documents.folder.save"
#: Is told lines for people.
Say: TypeAlias = Callable[[str], None]


def load_pages(pages: AnyPath, *, count: int | None = None, seed: int | None = None, **options: Any) -> Sequence[Page]:
    """Pages of "synthetic", a folder or FORMAT:PATH, or of several of these with commas between them; the first
    ``count`` of each. See ``docleak.documents.load_pages`` for ``options``. ``seed`` belongs to pages that docleak
    draws; DocumentError where those have none."""
    check_kind("pages", pages, PATH, "'synthetic', a folder or FORMAT:PATH", DocumentError)
    check_kind("count", count, Integral | None, "a whole number", DocumentError)
    seed = None if seed is None else check_whole("seed", seed, SEED, DocumentError)
    text = os.fspath(pages)
    for part in page_specs(text):
        if part != SYNTHETIC:
            page_source(part)  # refuses what is not there
    if seed is None and drawn(text):
        raise DocumentError(f"{text!r}: docleak draws these pages. Give a seed; expected seed=0, say.")
    return open_pages(text, count=plain(count), seed=seed or 0, **options)


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
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker that is about to import the script
        raise RunError("a worker process runs this script again. Put the call under: if __name__ == '__main__':")
    check_path("out", out, "a folder", RunError)
    check_kind("cluster", cluster, str | None, "the address of a Dask scheduler", RunError)
    workers, device = check_whole("workers", workers, WORKERS, RunError), str(device)
    _check_say(say)
    asked: dict[str, Any] = {"model": model, "pages": pages, "attacks": attacks, "defense": defense, "count": count,
                             "seed": seed}  # fmt: skip
    named = {name: value for name, value in asked.items() if value is not None} | settings
    if isinstance(study, Study):
        named |= {"device": device} if device != "auto" else {}
        if named:
            raise RunError(
                f"the study has its configuration already; found {', '.join(named)}. Give its class instead."
            )
        config: Any = inside(study.config, what=f"the study {study.kind!r}")
        measured = study if config is study.config else type(study)(config, device=study.device)
        shown = named | {"study": study}
    else:
        kind = load_study(study) if isinstance(study, str) else study
        if not (isinstance(kind, type) and issubclass(kind, Study)):
            raise RunError(f"the study is {short(study)}; expected a kind, 'module:Class', a class, or an instance.")
        require_whole(kind)
        with by_arguments(kind.Config, pages="count"):
            config = configured(kind.Config, _of_study(kind, named), what=f"the study {kind.kind!r}")
            told = [one for path, one in options_of(kind.Config).items() if path.rpartition(".")[2] in settings]
            refuse_idle(config, told, flags=False)
            measured = kind(config, device=pick_device(device))
        shown = ({} if study == "gradient" else {"study": kind.kind}) | named
    remember(type(measured))
    how: dict[str, Any] = {"workers": workers, "cluster": cluster, "command": _call("audit", shown, out)}
    with by_arguments(type(measured.config), pages="count"):
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

    ``silos`` is a folder of them, by name each one's folder, FORMAT:PATH or pages, or how many to make (three where
    nothing is given), of so many synthetic ``documents`` (240). ``settings`` are the fields of TrainingSettings, or
    ``config`` has them all: model, rounds, learning_rate, ..., and epsilon or noise for differential privacy.
    ``capture`` keeps the updates as the server receives them, in ``out``/updates. ``start_is_public`` declares that a
    start model of which nothing is recorded saw no private pages. Raises DocleakError for settings that contradict
    each other, and a run of something else.
    """
    from docleak.runs.claim import claimed
    from docleak.studies.training.rounds import draw_curves
    from docleak.training.federated.training import Training
    from docleak.training.federated.training import train as train_rounds
    from docleak.training.private.records import train_records

    check_path("out", out, "a folder", RunError)
    _check_say(say)
    for name, value in {"capture": capture, "tensorboard": tensorboard, "start_is_public": start_is_public}.items():
        check_truth(name, value, FederationError)
    if silos is not None and pages is not None:
        raise FederationError("silos and pages are both given; expected silos, or pages for a central training.")
    folder, chosen = Path(out).expanduser(), _settings(config, settings)
    changed = [field.name for field in fields(chosen) if config and getattr(config, field.name) != field.default]
    said = {name: name for name in changed or settings}
    places = silos_of(silos, pages, documents, folder / "silos", seed=chosen.seed)
    shown = {"config": config, "silos": silos, "pages": pages} | settings
    how: dict[str, Any] = {
        "device": pick_device(str(device)),
        "command": _call("train", shown, out),
        "say": say or (lambda text: None),
    }
    by_record = chosen.unit == "record" and pages is not None
    if by_record and (capture or tensorboard):
        raise FederationError("unit 'record' has no rounds to capture, or to draw in TensorBoard. Leave that out.")
    with claimed(folder), by_arguments(TrainingSettings, start_is_public="start_is_public"):
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


@by_arguments(None, model="models", image_size="image_sizes", **ARGUMENTS)
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
    if out is not None:
        check_path("out", out, "a folder", RecipeError)
    check_kind("models", models, Mapping | None, "checkpoints by name: {'donut': FOLDER}", RecipeError)
    workers = check_whole("workers", workers, WORKERS, RecipeError)
    _check_say(say)
    check_truth("until_decided", until_decided, RecipeError)
    recipe = find_recipe(name)
    study = recipe.study
    changes = _changes(recipe, changes)
    known = [*recipe.models, *study.checkpoints, *recipe.checkpoints]
    if unknown := [model for model in models or {} if model not in known]:
        raise RecipeError(spec.unknown("model", unknown[0], known))
    folder = Path(out or f"docleak-{recipe.name.replace('/', '-')}-{scale}").expanduser()
    for key, value in (models or {}).items():
        check_path(f"the model {key!r}", value, "a name, a directory, or a hub name", RecipeError)
    sources = {key: os.fspath(value) for key, value in (models or {}).items()}
    chosen = {key: sources.pop(key) for key in study.checkpoints if key in sources} | {"models": sources} | changes
    require_rows([recipe], scale, rows)
    lines = rows_of(recipe, study, scale, folder, chosen, device=pick_device(str(device)), only=rows)
    shown = {"name": name, "scale": scale, "rows": rows, "models": models} | changes
    command = _call("reproduce", shown, folder)
    with claimed(folder):
        compute_rows(recipe, lines, folder, scale=scale, workers=workers, command=command, watcher=Lines(say),
                     until_decided=until_decided)  # fmt: skip
        page = write_table(recipe, scale, lines, folder, facts_of_call(command))
    return Reproduction(page, tuple(tables_of(lines)), failures_of(lines))


def _changes(recipe: Recipe, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What is changed of all rows, as their study takes it; RecipeError for a change or a model that there is not."""
    known, sized = recipe.study.options, [*recipe.models, *recipe.study.sized]
    made = dict(changes)
    for key, value in changes.items():
        if key not in known:
            raise RecipeError(spec.unknown("change", key, known))
        if key in NUMBERS:
            made[key] = check_whole(key, value, NUMBERS[key], RecipeError)
        elif key == "per_issuer":
            check_kind(key, value, Real, "a number", RecipeError)
            made[key] = plain(value)
        elif key in ("documents", "test_documents"):
            for one in _tuple(value):
                check_kind(key, one, PATH, DATA_SETS, RecipeError)
            made[key] = tuple(map(os.fspath, _tuple(value)))
        elif key == "image_sizes":
            check_kind(key, value, Mapping, "sizes by model: {'donut': (320, 640)}", RecipeError)
            if unknown := [model for model in value if model not in sized]:
                raise RecipeError(f"image_sizes: {spec.unknown('model', unknown[0], sized)}")
            made[key] = {model: size_of(size) for model, size in value.items() if size is not None}
        elif key == "ocr" and not isinstance(value, str):
            made[key] = ENGINES.chosen(value)
    return made


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
    if not isinstance(values.get("ocr", ""), str):
        values["ocr"] = ENGINES.chosen(values["ocr"])
    if kind.kind == "weights":
        values = with_trainings(values)
    count, values = plain(values.pop("count", None)), with_pages(kind.kind, kind.Config, values)
    if isinstance(values.get("documents"), Given):
        there = len(open_pages(values["documents"], seed=0))
        count = there if count is None and "pages" in names else count
        if isinstance(count, int) and count > there:
            raise DocumentError(
                f"count is {count}, and {counted_words(there, 'page')} {'was' if there == 1 else 'were'} given. "
                "Give more pages, or leave it out."
            )
    if count is not None:
        name = "pages" if "pages" in names else "count"
        asked = options_of(kind.Config).get(name)
        bounds = asked.option.range if asked is not None and asked.option.range else COUNT
        values[name] = check_whole("count", count, bounds, RunError)
    if "attacks" in values and "attacks" not in names:
        values["attack"] = values.pop("attacks")
    elif "attacks" in values:
        attacks: Registry[Any] = REGISTRIES.get(kind.kind, ATTACKS)
        values["attacks"] = attacks.all_chosen(_tuple(values["attacks"]))
        if kind.kind == "gradient":  # as docleak audit: it costs nothing, and leaving it out could hide a leak
            values["attacks"] = with_closed_form(values["attacks"], batch_size=values.get("batch_size", 1))
    return values


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _settings(config: TrainingSettings | None, settings: Mapping[str, Any]) -> TrainingSettings:
    if not isinstance(config, TrainingSettings | None):
        raise FederationError(f"config is {short(config)}; expected docleak.TrainingSettings, or settings by name.")
    if config is not None and settings:
        raise FederationError(f"config has all settings already; found {', '.join(settings)}, too. Give one of both.")
    if not isinstance(settings.get("model", ""), str | os.PathLike):
        raise ModelError("a training begins with a checkpoint on disk; save the model, and give its directory.")
    rate = settings.get("unit_rate")  # kept as it is written: 1000/4149 is no float
    said = {"unit_rate": str(rate)} if isinstance(rate, Real) and not isinstance(rate, bool) else {}
    chosen = config or configured(TrainingSettings, {**settings, **said}, what="docleak.train")
    check_path("the model", chosen.model, "a name, or its directory", ModelError)
    return chosen


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


def _check_say(say: Say | None) -> None:
    if not callable(say) and say is not None:
        raise RunError(f"say is {short(say)}; expected what is called with each line, such as print.")
