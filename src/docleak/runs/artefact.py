"""What is made once for all who need it, trained targets and sought settings: a folder with one card.

FOLDER/card.json   ``given``, what it was made from beside what the folder's name says, and by which docleak; once it is
                   finished ``made``, what came of it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docleak.errors import RunError
from docleak.files import read_stored, reported, write_json
from docleak.runs.claim import claimed
from docleak.runs.identity import build, other_build

CARD = "card.json"


def made_once(
    folder: Path, make: Callable[[], Mapping[str, Any]], *, given: Callable[[], Mapping[str, Any]] = dict
) -> dict[str, Any]:
    """What came of ``make``, which writes into ``folder``; made if it is not there, or gone on with if it was cut off.

    Whoever wants it claims the folder first, so that runs which go on at the same time make it once. RunError where
    another docleak began it, or where ``given``, named by what it tells, was another then.
    """
    file = folder / CARD
    with claimed(folder, whole=True, wait=True):
        now = json.loads(json.dumps(dict(given())))  # as it is read back
        if not file.is_file():
            if folder.is_dir() and any(folder.iterdir()):
                raise RunError(
                    f"{folder} holds files and no {CARD} that says by which docleak and from what they were made. "
                    "Delete the folder, or give another folder (out)."
                )
            with reported(folder):
                write_json(file, {**build(), "given": now})
        card = dict(read_stored(file))
        if why := other_build(card, folder):
            raise RunError(why)
        if changed := [name for name, value in now.items() if card.get("given", {}).get(name) != value]:
            before = card.get("given", {})
            raise RunError(
                f"{folder} was made from other {', '.join(changed)} ("
                + ", ".join(f"{name} {before.get(name)}, now {now[name]}" for name in changed)
                + "). Delete the folder, or give another folder (out)."
            )
        if "made" not in card:
            card["made"] = dict(make())
            write_json(file, card)
    return dict(card["made"])


def card_of(folder: Path) -> dict[str, Any]:
    """What came of a folder that is finished."""
    return dict(read_stored(folder / CARD)["made"])
