"""Two processes on one folder: the second is refused, whatever its command is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from docleak.runs.claim import claimed

Command = Callable[..., tuple[Any, str, str]]

#: Every long command; OUT stands for the folder.
LONG = (
    "audit --model donut-start --out OUT",
    "audit updates updates --out OUT",
    "audit weights --out OUT",
    "audit canaries --out OUT",
    "audit servers --out OUT",
    "audit pairs --out OUT",
    "audit answers --out OUT",
    "audit gradient --model donut-start --out OUT",
    "attack gi-dqa --model donut-start --out OUT",
    "attack cdmi --pages 9 --out OUT",
    "attack mmgia --out OUT",
    "attack membership --out OUT",
    "attack memorisation --out OUT",
    "attack canaries --out OUT",
    "defend --out OUT",
    "reproduce gi-dqa/table1 --out OUT",
    "reproduce fedocvqa/table7 --out OUT",
    "reproduce pfl-docvqa/table1 --out OUT",
    "reproduce cdmi/table2 --documents synthetic --documents synthetic --out OUT",
    "reproduce mine.toml --out OUT",
    "models pretrain layoutlmv3 OUT",
    "train federated --out OUT",
    "train federated --secure --out OUT",
    "train federated --epsilon 8 --denominator 2 --delta 1e-3 --out OUT",
    "train central --documents synthetic --out OUT",
    "train central --unit record --noise 1 --denominator 4 --out OUT",
)
#: Those whose folder appears as a whole.
WHOLE = ("data make OUT", "data make OUT --partition 2", "data make OUT --blue-red", "data convert synthetic OUT")
PAIRS = """
title = "Pairs"
kind = "pairs"
models = ["lenet5"]
[scales.tiny]
pairs = "scenes"
models = { lenet5 = "lenet5+bert-tiny" }
[[rows]]
name = "MMGIA"
"""


@contextmanager
def elsewhere(folder: Path, *, whole: bool) -> Iterator[None]:
    """The folder is claimed by somebody else: another thread counts as another process does."""
    claim, done = threading.Event(), threading.Event()

    def hold() -> None:
        with claimed(folder, whole=whole):
            claim.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert claim.wait(30)
        yield
    finally:
        done.set()
        thread.join(30)


@pytest.mark.parametrize("words", [*LONG, *WHOLE])
def test_the_second_process_is_refused(command: Command, tmp_path: Path, words: str) -> None:
    (tmp_path / "mine.toml").write_text(PAIRS)
    if "updates" in words:
        code, _, err = command(
            "train", "federated", "--documents", 4, "--clients", 2, "--rounds", 1, "--max-steps", 1, "--out", "run"
        )
        assert code == 0, err
        words = words.replace("updates updates", "updates run/updates")
    with elsewhere(tmp_path / "out", whole=words in WHOLE):
        before = sorted((tmp_path / "out").rglob("*"))
        code, _, err = command(*words.replace("OUT", "out").split())
        assert code == 1 and "another docleak is at work in out (process " in err, err
        assert err.strip().endswith("Wait until it is done, or give another folder (out).")
        assert sorted((tmp_path / "out").rglob("*")) == before
    assert not (tmp_path / "out").exists(), "nothing was left behind"
