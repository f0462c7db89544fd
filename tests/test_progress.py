"""scripts/progress.py: kept pictures of an attack are scored like the last one."""

from __future__ import annotations

from pathlib import Path

from docleak.runs.run import Run
from docleak.studies.engine import carry_out
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.study import GradientStudy
from scripts.progress import page_of, sections


def test_kept_pictures_are_scored_like_the_last(tmp_path: Path) -> None:
    config = GradientConfig(models=("layoutlmv3-start",), attacks=("gi-dqa",), pages=1, budget=24)
    carry_out(GradientStudy(config), tmp_path / "run", workers=1)
    (record,) = Run.load(tmp_path / "run").units()
    lines = [line for line in sections(tmp_path / "run") if line.startswith("| ") and "evaluations" not in line]
    assert [line.split(" | ")[0] for line in lines][-2:] == ["| 24", "| 24"], "the last picture, and the record's score"
    assert lines[-1] == lines[-2] and f"| {record['score']['psnr']:.1f} |" in lines[-1]
    assert "gi-dqa | 24 evaluations" in page_of([tmp_path / "run"])
