"""What the attacker sees beside what was read: a planted predictor, one that knows nothing, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.metrics import FieldScore, PageScore
from docleak.runs.run import Run
from scripts.reliability import BINS, Field, binned, discrimination, fields_in, main, share_read


def made(count: int, *, told: float) -> list[Field]:
    """``count`` fields of pages of four, read by a coin; ``explained`` tells of that by ``told``, the rest nothing."""
    rng = np.random.default_rng(1)
    fields = []
    for number in range(count):
        read = float(rng.random() < 0.5)
        seen = {"explained": told * read + (1 - told) * rng.random(), "fall": rng.random(), "confidence": read}
        fields.append(Field(f"page {number // 4}", "a", seen, read))
    return fields


def test_a_planted_predictor_is_found_and_chance_is_chance() -> None:
    fields = made(200, told=0.4)
    told, nothing = discrimination(fields, "explained"), discrimination(fields, "fall")
    assert told.low is not None and told.low > 0.8 and told.groups == 50
    assert nothing.low is not None and nothing.high is not None and nothing.low < 0.5 < nothing.high
    assert discrimination(fields, "confidence").value == 1.0
    assert discrimination([f for f in fields if f.read], "fall").value is None


def test_bins_hold_every_field_once() -> None:
    fields = made(200, told=0.4)
    for name in BINS:
        bins = binned(fields, name)
        assert sum(share.n for _, _, share in bins) == 200
        assert sum((share.value or 0) * share.n for _, _, share in bins) == pytest.approx(sum(f.read for f in fields))
    assert share_read(fields).n == 200


def scored(reads: list[bool]) -> dict[str, Any]:
    fields = tuple(FieldScore(f"k{i}", f"v{i}", f"v{i}" if read else "", 0.9 * read, read, float(read), 1.0, 2.0, 0.0)
                   for i, read in enumerate(reads))  # fmt: skip
    return PageScore("p", "p", fields).to_json()


def test_what_was_told_printed_or_never_legible_is_left_out(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "runs" / "one", {}, kind="gradient", identity={}, command="")
    record = {
        "model": "m", "attack": "gi-dqa", "page": "p", "answer": "v0",
        "view": {"answer_known": True, "defense": "none"},
        "finding": {"explained": 0.9, "budget": 2, "history": [[1, 100.0], [2, 1.0]]},
        "score": scored([True, True, True, False]),
        "floor": scored([False, True, False, False]), "ceiling": scored([True, True, True, False]),
    }  # fmt: skip
    run.write_unit("m--p", record, {})
    run.write_unit("m--p-again", record, {})
    guess = {"explained": 0.0, "budget": 2, "history": []}
    run.write_unit("random--p", {**record, "attack": "random", "finding": guess}, {})
    fields, units = fields_in([tmp_path])
    assert [(f.seen["fall"], f.read) for f in fields] == [(2.0, 1.0)] and units == {"gi-dqa on m": 1}
    main([str(tmp_path), "--out", str(tmp_path / "page.md")])
    assert "1 of 1 pages" in (tmp_path / "page.md").read_text() and (tmp_path / "page.png").stat().st_size > 2000


def test_folders_without_a_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(SystemExit):
            main([str(folder), "--out", str(tmp_path / "page.md")])
    assert "no run of a gradient attack" in capsys.readouterr().err and not (tmp_path / "page.md").exists()
