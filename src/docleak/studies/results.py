"""What runs on disk say, as a verdict, a DataFrame, tables, pictures and a page."""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docleak.documents.ranges import check_path
from docleak.errors import MissingExtraError, RunError
from docleak.files import reported, write_atomically
from docleak.options import by_arguments
from docleak.report.page import joined
from docleak.report.severity import Overall
from docleak.runs.run import Run
from docleak.studies.registry import read_runs, report_on, runs_at
from docleak.studies.study import BY_PROVIDER

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Results:
    """What runs on disk say; everything is read when it is asked for. ``paths`` are their folders."""

    paths: tuple[Path, ...]

    def __repr__(self) -> str:
        return f"<Results of {', '.join(map(str, self.paths))}>"

    @property
    def verdict(self) -> Overall:
        """What stands on top of the report: ``severity``, ``label``, ``sentence``, ``parts``. RunError where nothing
        is finished, or the runs do not belong together."""
        return joined(read_runs(runs_at(self.paths)))

    @property
    def failures(self) -> dict[str, str]:
        """Units that were given up: id -> the last error."""
        return {unit: why for run in runs_at(self.paths) for unit, why in run.failures().items()}

    def to_frame(self) -> pandas.DataFrame:
        """A row per finished unit: ``run`` (its folder), ``kind``, ``unit``, and every number, text and truth value of
        the unit's record, inside others as ``outer.inner``; lists, and a number for every provider, stay there."""
        import pandas

        rows = [
            {"run": str(run.path), "kind": run.kind, "unit": record["unit"]} | _told(record)
            for run in runs_at(self.paths)
            for record in run.units()
        ]
        frame = pandas.DataFrame(rows, columns=None if rows else ["run", "kind", "unit"])
        outer = {name.rpartition(".")[0] for name in frame.columns} & set(frame.columns)  # missing in some units
        return frame.drop(columns=list(outer))

    def tables(self) -> dict[str, pandas.DataFrame]:
        """The report's tables by name, numbers with their intervals (NAME, NAME_low, NAME_high, NAME_n)."""
        readings = read_runs(runs_at(self.paths))
        return {name: table.to_frame() for reading in readings for name, table in reading.tables.items()}

    def pictures(self) -> dict[str, dict[str, Path]]:
        """Unit -> name -> PNG, of one run."""
        if len(self.paths) != 1:
            raise RunError(f"{len(self.paths)} runs have pictures of their own; load them one by one.")
        run = Run.load(self.paths[0])
        return {
            str(record["unit"]): {name: run.folder(record["unit"]) / file for name, file in record["images"].items()}
            for record in run.units()
        }

    def measures(self) -> pandas.DataFrame:
        """A row per number that a policy can bound: ``measure``, ``of``, ``value``, ``low``, ``high``, ``n``;
        ``unbounded``: no epsilon is claimed, which a policy takes for a finding."""
        import pandas

        readings = read_runs(runs_at(self.paths))
        rows = [{"measure": one.what, "of": one.of, **one.estimate.to_json(), "unbounded": one.unbounded,
                 "doubts": " ".join(one.doubts)} for reading in readings for one in reading.measures]  # fmt: skip
        return pandas.DataFrame(rows, columns=None if rows else ["measure", "of", "value", "low", "high", "n"])

    def write(self, file: str | os.PathLike[str]) -> Path:
        """``to_frame`` as .csv or .parquet, for which pyarrow is needed; RunError for another name."""
        check_path("the file", file, "a name that ends in .csv or .parquet", RunError)
        path, kind = Path(file), table_file(Path(file))
        frame, buffer = self.to_frame(), io.BytesIO()
        if kind == ".csv":
            frame.to_csv(buffer, index=False, errors="backslashreplace")
        else:
            for name in frame.columns:  # numbers and texts in one column have no type of parquet's
                if frame[name].dtype == object and len({type(value) for value in frame[name].dropna()}) > 1:
                    frame[name] = frame[name].map(str, na_action="ignore")
            frame.to_parquet(buffer, index=False)
        with reported(path):
            write_atomically(path, buffer.getvalue())
        return path

    def report(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Write report.html and results.json into ``out``, which several runs need and one has; returns the page."""
        if out is not None:
            check_path("out", out, "a folder", RunError)
        with by_arguments(None, out="out"):
            return report_on(self.paths, None if out is None else Path(out))[0]


def load_run(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Results:
    """The results of one run's folder, or of several together; RunError for what is no run, and one named twice."""
    named = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    for path in named:
        check_path("the run", path, "its folder, or several", RunError)
    folders = [Path(path).expanduser() for path in named]
    if not folders:
        raise RunError("no run is named; expected the folder of a run, or several.")
    places = [folder.resolve() for folder in folders]
    if twice := [str(folder) for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]:
        raise RunError(f"the run {twice[0]!r} is named twice, and its rows would count twice. Name it once.")
    return Results(tuple(Run.load(folder).path for folder in folders))


def table_file(path: Path) -> str:
    """The suffix of a file of a table; RunError for one that is not known, MissingExtraError without pyarrow."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise RunError(f"{path} names no table; expected a file that ends in .csv or .parquet.")
    if kind == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError("parquet needs pyarrow: pip install 'docleak[datasets]'. Or name a .csv file.")
    return kind


def _told(record: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, texts and truth values of a unit's record."""
    told = flat({key: value for key, value in record.items() if key not in ("images", "unit")})
    return {
        name: value
        for name, value in told.items()
        if not isinstance(value, list) and BY_PROVIDER not in name.split(".")
    }


def flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A record without records inside it: what is inside another is ``outer.inner``, and of what has no name (numbers
    of all keys together) ``outer`` alone."""
    values: dict[str, Any] = {}
    for key, value in record.items():
        inside = f"{before}{key}." if key else before
        values |= flat(value, inside) if isinstance(value, Mapping) else {f"{before}{key}": value}
    return values
