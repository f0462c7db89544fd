"""``docleak benchmark``: one sentence for what cannot be attacked, scored or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., tuple[Any, str, str]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export", "there"), "benchmarks are only written to a new folder"),
        (("export", "new", "--key", "there"), "keys of a benchmark are only written to a new folder"),
        (("export", "new", "--private", "--seed", "3"), "a public seed, not --private"),
        (("attack", "there", "mine", "--attack", "random"), "it is no exported benchmark"),
        (("attack", "there", "mine", "--attack", "nope"), "unknown attack 'nope'"),
        (("score", "there", "mine"), "it is no exported benchmark"),
        (("score", "there", "mine", "--leaderboard", "board.txt"), "expected a file that ends in .json"),
        (("score", "there", "mine", "--ocr", "magic"), "unknown OCR engine 'magic'"),
    ],
)
def test_one_sentence_and_nothing_written(words: tuple[str, ...], said: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "notes.txt").write_text("mine")
    code, out, err = command("benchmark", *words)
    assert (code, out) == (1, "") and said in err and "Traceback" not in err
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "notes.txt"]
