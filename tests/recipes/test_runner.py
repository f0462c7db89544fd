"""Running recipes: resumed, parallel, and after workers die. The work itself is a stand-in except where it says so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.errors import DocleakError, MissingExtraError, RecipeError
from docleak.recipes import Recipe, Row
from docleak.recipes.audits import AuditExperiment, AuditJob, experiments
from docleak.recipes.runner import failures, jobs_of, reproduce
from docleak.recipes.table import lines_of, write_table

ROWS = (Row("first", ("m",), {}), Row("second", ("m",), {"batch_size": 1}, {"m": {"binary": 0.5}}))
RECIPE = Recipe(
    "test", "A test", "nobody", "none", ROWS, {"pages": 2, "budget": 18, "seed": 0},
    {"tiny": {"models": {"m": "layoutlmv3-start"}}},
)  # fmt: skip


def count(job: AuditJob) -> int:
    """How often this job was begun, this time included, kept on disk since workers are other processes."""
    file = job.folder / f"count-{job.unit.page}"
    number = int(file.read_text()) + 1 if file.is_file() else 1
    file.write_text(str(number))
    return number


def finish(job: AuditJob) -> str:
    job.run.write_unit(job.unit.id, {"page": str(job.unit.page)}, {"truth.png": np.zeros((2, 2, 3), dtype=np.uint8)})
    return job.label


def fine(job: AuditJob) -> str:
    job.note([*job.attempts(), "began"])
    count(job)
    return finish(job)


def dies_once(job: AuditJob) -> str:
    job.note([*job.attempts(), "began"])
    if count(job) == 1 and job.unit.page == 1 and job.folder.name.startswith("00"):
        os._exit(1)
    return finish(job)


def dies_always(job: AuditJob) -> str:
    job.note([*job.attempts(), "began"])
    count(job)
    if job.unit.page == 1 and job.folder.name.startswith("00"):
        os._exit(1)
    return finish(job)


def run(out: Path, work: Any, workers: int = 2, **options: Any) -> list[AuditExperiment]:
    planned = experiments(RECIPE, "tiny", out, {})
    reproduce(RECIPE, planned, out, scale="tiny", device="cpu", workers=workers, work=work, **options)
    return planned


def counts(out: Path) -> dict[str, int]:
    return {f.relative_to(out).as_posix(): int(f.read_text()) for f in sorted(out.glob("rows/*/count-*"))}


def test_every_unit_runs_once_and_a_rerun_computes_nothing(tmp_path: Path) -> None:
    labels: list[str] = []
    planned = run(tmp_path, fine, on_unit=lambda done, total, label: labels.append(f"{done}/{total}"))
    assert len(jobs_of(planned, "cpu")) == 4 and sorted(labels) == ["1/4", "2/4", "3/4", "4/4"]
    assert set(counts(tmp_path).values()) == {1}
    run(tmp_path, fine)
    assert set(counts(tmp_path).values()) == {1}


def test_a_missing_unit_alone_is_computed_again(tmp_path: Path) -> None:
    planned = run(tmp_path, fine, workers=1)
    job = jobs_of(planned, "cpu")[0]
    (job.run.folder(job.unit.id) / "unit.json").unlink()
    job.attempts_file.unlink()
    run(tmp_path, fine, workers=1)
    assert sorted(counts(tmp_path).values()) == [1, 1, 1, 2]


def test_a_unit_whose_worker_died_is_tried_once_more(tmp_path: Path) -> None:
    planned = run(tmp_path, dies_once)
    assert all(job.finished() for job in jobs_of(planned, "cpu"))
    assert not any(failures(e.folder) for e in planned)


def test_a_unit_that_kills_its_worker_twice_is_recorded_and_the_others_finish(tmp_path: Path) -> None:
    planned = run(tmp_path, dies_always)
    done = [job.finished() for job in jobs_of(planned, "cpu")]
    assert done.count(False) == 1
    lost = failures(planned[0].folder)
    assert list(lost) == ["layoutlmv3-start--001--gi-dqa"] and "worker process died" in next(iter(lost.values()))
    before = counts(tmp_path)
    run(tmp_path, dies_always)
    assert counts(tmp_path) == before, "a unit that was given up is not tried a third time"


def raising(job: AuditJob) -> None:
    raise DocleakError("planted")


def test_errors_are_recorded_after_the_second_try_and_the_table_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from docleak.recipes import audits, runner

    tries: list[str] = []

    def broken(run: Any, config: Any, unit: Any, device: str, report: Any) -> None:
        tries.append(unit.id)
        raise DocleakError("planted")

    monkeypatch.setattr(audits, "run_unit", broken)
    monkeypatch.setattr(runner, "_run", lambda jobs, workers, cluster, work: map(work, jobs))
    planned = run(tmp_path, None, workers=1)
    assert len(tries) == 8
    assert all(set(failures(e.folder).values()) == {"DocleakError: planted"} for e in planned)
    page = write_table(RECIPE, "tiny", planned, tmp_path, {"Command": "test"})
    assert "2 failed" in (tmp_path / "table.md").read_text() and "planted" in page.read_text()


def test_the_real_work_gives_a_table_with_the_papers_column(tmp_path: Path) -> None:
    planned = [e for e in experiments(RECIPE, "tiny", tmp_path, {"pages": 1}) if e.row.name == "second"]
    reproduce(RECIPE, planned, tmp_path, scale="tiny", device="cpu", workers=1)
    (line,) = lines_of(planned, seed=0)
    assert line.result is not None and len(line.result.units) == 1
    write_table(RECIPE, "tiny", planned, tmp_path, {"Command": "test"})
    text = (tmp_path / "table.md").read_text()
    assert "(paper 50.0%)" in text and "| 18 |" in text
    saved = json.loads((tmp_path / "table.json").read_text())
    assert saved["rows"][0]["paper"] == {"binary": 0.5}
    assert (tmp_path / "pictures.png").is_file()


def test_a_folder_of_another_recipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"recipe": "other", "scale": "tiny"}')
    with pytest.raises(RecipeError, match="other"):
        run(tmp_path, fine)


def test_a_folder_of_something_else_is_refused_untouched(tmp_path: Path) -> None:
    """As of an audit: its rows would have lain among the audit's units."""
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"holds run\.json and no recipe\.json.*another --out"):
        run(tmp_path, fine)
    assert [f.name for f in tmp_path.iterdir()] == ["run.json"]


class Killed(BaseException):
    """Nobody catches it, as nobody catches a kill."""


def killed(job: AuditJob) -> str:
    job.note([*job.attempts(), "began"])
    raise Killed


def test_a_unit_during_which_the_command_was_killed_has_not_failed(tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(Killed):
            run(tmp_path, killed, workers=1)
    planned = run(tmp_path, fine)
    assert all(job.finished() and job.attempts() == ["began"] for job in jobs_of(planned, "cpu"))
    assert not failures(planned[0].folder)


def test_an_unknown_scale_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no scale 'paper'; it has tiny"):
        experiments(RECIPE, "paper", tmp_path, {})


def test_units_run_on_a_dask_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("dask.distributed", reason="the cluster extra is not installed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=None
    ) as cluster:
        planned = run(tmp_path, fine, cluster=cluster.scheduler_address)
    assert all(job.finished() for job in jobs_of(planned, "cpu"))
    assert set(counts(tmp_path).values()) == {1}


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask.distributed", reason="the cluster extra is not installed")
    monkeypatch.setattr("docleak.recipes.runner.CLUSTER_TIMEOUT", "1s")
    with pytest.raises((RecipeError, MissingExtraError), match=r"127\.0\.0\.1:1"):
        run(tmp_path, fine, cluster="tcp://127.0.0.1:1")
