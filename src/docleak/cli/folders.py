"""Whose a folder is: a command that writes into a folder of another kind of run is refused before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docleak.errors import RunError

#: File that tells what a folder is -> what wrote it.
MARKS = {
    "run.json": "docleak audit, attack, defend or train",
    "recipe.json": "docleak reproduce",
    "capture.json": "docleak.tap, or a training's updates",
    "silo.json": "docleak data make --partition",
    "blue-red.json": "docleak data make --blue-red",
    "pages.jsonl": "docleak data make or convert, or yourself",
    "docleak.json": "docleak models",
    "config.json": "a model",
    "ca.crt": "docleak deploy",
}
#: Command -> marks of the folders that it may go on in, of studies run.json. Without a mark a folder is the command's
#: own to judge.
OWN = {
    "reproduce": ("recipe.json",),
    "train federated": ("run.json",),
    "train central": ("run.json",),
    "report": ("run.json",),
    "data make": ("pages.jsonl", "silo.json", "blue-red.json"),  # only ever a new folder, as they say themselves
    "data convert": ("pages.jsonl",),
    "models pretrain": ("docleak.json",),
    "models assemble": ("docleak.json",),  # only ever a new folder, as it says itself
    "models make": ("docleak.json",),  # likewise
    "models adapt": ("docleak.json",),  # likewise
    "deploy init": (),
}
#: Other commands whose --out is a file.
FILES = ("data inspect", "models attention")


def refuse_foreign(command: str, values: Mapping[str, Any]) -> None:
    """RunError if the folder that ``command`` would write into is of another kind; ``values`` are its options."""
    out = values.get("--out", values.get("out"))
    if not isinstance(out, Path) or command in FILES:
        return
    marks = OWN.get(command, ("run.json",))  # studies
    there = [mark for mark in MARKS if (out / mark).is_file()]
    if there and not any(mark in marks for mark in there):
        raise RunError(
            f"{out} was written by {MARKS[there[0]]} ({there[0]} is there); this command would write something else "
            "into it. Pass another --out, or delete the folder."
        )
