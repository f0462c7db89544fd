"""What options name to be written, refused before anything is computed where it would take another's place: folders of
another kind of run, and files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docleak.errors import RunError
from docleak.files import require_place

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
#: Option -> endings that its file may have, the usual one first.
ENDINGS = {
    "--markdown": (".md", ".markdown", ".txt"),
    "--model-card": (".md",),
    "--junit": (".xml",),
    "--sarif": (".sarif", ".json"),
    "--units": (".csv", ".parquet"),
    "--plot": (".png",),
}
#: What commands write into folders of their own ends in these; folders of models take files of others.
WRITTEN = (".json", ".png")
OWNERS = {mark: who for mark, who in MARKS.items() if mark not in ("config.json", "docleak.json", "ca.crt")}
#: Folders above a file that may be its run's: RUN/units/UNIT/unit.json.
DEPTH = 3


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


def refuse_places(command: str, values: Mapping[str, Any]) -> None:
    """RunError for a file that ends in something else than its option's, is named by another option, too, lies where
    none can be written, or is part of a run or a data set. ``values`` are the command's options."""
    files = {*ENDINGS, *(("--out",) if command in FILES else ())}
    outputs = {name: value for name, value in values.items() if isinstance(value, Path) and name in files}
    given = ((name, value if isinstance(value, list | tuple) else [value]) for name, value in values.items())
    others = [(name, one) for name, of in given if name not in outputs for one in of if isinstance(one, Path)]
    for name, file in outputs.items():
        if file.exists() and not file.is_file() and not file.is_dir():
            continue  # a device or a pipe
        endings = ENDINGS.get(name, (".png",))
        if file.suffix.lower() not in endings:
            raise RunError(f"{name} is {file}; expected a file that ends in {' or '.join(endings)}.")
        for other, path in (*others, *((other, path) for other, path in outputs.items() if other != name)):
            if path.resolve() == file.resolve():
                raise RunError(f"{name} and {other} are the same file, {file}. Name another for {name}.")
        folders = list(file.absolute().parents)[:DEPTH]
        owners = [mark for folder in folders for mark in OWNERS if (folder / mark).is_file()]
        if owners and file.is_file() and file.suffix.lower() in WRITTEN:
            raise RunError(
                f"{name} is {file}, which is there, in a folder of {OWNERS[owners[0]]} ({owners[0]} is in it): it "
                "would take its place. Name another file."
            )
        require_place(file)
