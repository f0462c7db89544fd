"""``docleak benchmark``: one sentence for what cannot be attacked, scored or written."""

from __future__ import annotations

import signal
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
        (("export", "new", "--key", "new"), "the key's folder is new, the benchmark's new; expected two apart"),
        (("export", "new", "--key", "new/key"), "expected two apart"),
        (("export", "new/of/it", "--key", "new"), "expected two apart"),
        (("export", "new", "--private", "--seed", "3"), "a public seed, not --private"),
        (("attack", "there", "mine", "--attack", "random"), "it is no exported benchmark"),
        (("attack", "there", "mine", "--attack", "nope"), "unknown attack 'nope'"),
        (("score", "there", "mine"), "it is no exported benchmark"),
        (("score", "there", "mine", "--leaderboard", "board.txt"), "expected a file that ends in .json"),
        (("score", "there", "mine", "--leaderboard", "there/board.json"), "there stays as it was exported"),
        (("score", "there", "mine", "--leaderboard", "notes.md/b.json"), "there is a file in the way"),
        (("score", "there", "mine", "--leaderboard", "notes.json"), "would take the place of notes.md"),
        (("score", "there", "mine", "--ocr", "magic"), "unknown OCR engine 'magic'"),
    ],
)
def test_one_sentence_and_nothing_written(words: tuple[str, ...], said: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "notes.txt").write_text("mine")
    (tmp_path / "notes.md").write_text("mine")
    code, out, err = command("benchmark", *words)
    assert (code, out) == (1, "") and said in err and "Traceback" not in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["notes.md", "notes.txt", "there"]


def test_what_was_finished_is_said_when_it_is_interrupted(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("docleak.studies.benchmark.files.opened", lambda folder: None)
    monkeypatch.setattr("docleak.studies.benchmark.entering.enter", interrupted)
    _, _, err = command("benchmark", "attack", "bench", "mine", "--attack", "random")
    assert "Interrupted. What is finished is in mine; the same command goes on from there." in err
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    monkeypatch.setattr("docleak.studies.benchmark.export.export", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    try:
        _, _, err = command("benchmark", "export", "bench")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "Interrupted. The same command begins anew." in err, "SIGTERM is as Ctrl-C"
    assert not [*tmp_path.iterdir()]
