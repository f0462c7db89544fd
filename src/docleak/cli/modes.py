"""Which option belongs to which mode of a command: one that does nothing in the chosen mode is refused, not ignored.

A command without a line in ``MODES`` has one mode, to which all its options belong. What an option needs one by one
stands beside it (``docleak.options``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from docleak.errors import DocleakError

Values = Mapping[str, Any]


def _pdfs(spec: str) -> bool:
    from docleak.documents.loaders import pdfs_of
    from docleak.errors import DocumentError

    try:
        return pdfs_of(spec) is not None
    except DocumentError:
        return spec.startswith("pdf:")


@dataclass(frozen=True)
class Mode:
    """One thing that a command does.

    ``named`` is how its choice is spelt, ``chosen`` whether these options choose it; ``why`` ends the sentence that
    refuses others.
    """

    named: str
    chosen: Callable[[Values], bool]
    options: frozenset[str]
    why: str


def _words(text: str) -> frozenset[str]:
    return frozenset(f"--{word}" for word in text.split())


_ROWS = ("scale out model documents test-documents pages rounds issuers per-issuer budget image-size ocr seed rows "
         "device json")  # fmt: skip
_MADE = "seed count json"

#: Command -> its modes; the first that is chosen counts.
MODES: dict[str, tuple[Mode, ...]] = {
    "reproduce": (
        Mode("the list of recipes", lambda v: bool(v["--list"]) or not v["name"], _words("list json"),
             "it only lists the recipes; name one"),
        Mode("--rehearse", lambda v: bool(v["--rehearse"]), _words(f"rehearse fewest {_ROWS}") | {"name"},
             "one row after the other is tried, in one process each"),
        Mode("--cluster", lambda v: bool(v["--cluster"]), _words(f"cluster dry-run until-decided {_ROWS}") | {"name"},
             "the scheduler's workers do the work"),
        Mode("a recipe", lambda v: True, _words(f"dry-run until-decided workers {_ROWS}") | {"name"}, "it is run"),
    ),
    "models make": (
        Mode("the list of checkpoints", lambda v: bool(v["--list"]) or not v["name"], _words("list json"),
             "it only lists them; name one"),
        Mode("a checkpoint", lambda v: True, _words("seed spread narrow json") | {"name", "out"}, "it is made"),
    ),
    "data convert": (
        Mode("pdf:FOLDER", lambda v: _pdfs(v["documents"]),
             _words("values public dpi text-from ocr count json") | {"documents", "out"}, "PDFs are read"),
        Mode("another format", lambda v: True, _words("image-root count json") | {"documents", "out"},
             "pages are copied"),
    ),
    "data make": (
        Mode("--pdf", lambda v: bool(v["--pdf"]), _words("pdf documents seed count json") | {"out"}, "PDFs are made"),
        Mode("--blue-red with --documents", lambda v: bool(v["--blue-red"] and v["--documents"]),
             _words(f"blue-red documents partition by {_MADE}") | {"out"}, "its documents are given"),
        Mode("--blue-red", lambda v: bool(v["--blue-red"]),
             _words("blue-red partition issuers per-issuer seed json") | {"out"},
             "its invoices are made; --issuers and --per-issuer say how many"),
        Mode("--partition", lambda v: v["--partition"] is not None,
             _words(f"partition documents by {_MADE}") | {"out"}, "it divides pages"),
        Mode("pages without --partition", lambda v: True, _words(f"width height {_MADE}") | {"out"},
             "they are synthetic"),
    ),
}  # fmt: skip


def mode_of(command: str, values: Values) -> Mode | None:
    """The mode that these options choose, or None where the command has but one."""
    return next((mode for mode in MODES.get(command, ()) if mode.chosen(values)), None)


def refuse_unused(command: str, given: Collection[str], values: Values) -> None:
    """DocleakError naming the ``given`` options that do nothing beside the others; ``values`` has all of them."""
    mode = mode_of(command, values)
    if mode is not None and (idle := [option for option in given if option not in mode.options]):
        raise DocleakError(_sentence(command, mode, idle))


def _sentence(command: str, mode: Mode, idle: list[str]) -> str:
    """Which options do nothing in the mode, and to which others they belong."""
    them = "it" if len(idle) == 1 else "them"
    beside = [f" with {option}" for option in idle]  # a mode that an idle option itself would choose
    homes = list(dict.fromkeys(
        next((other.named.removesuffix(end) for end in beside if other.named.endswith(end)), other.named)
        for other in MODES[command] if all(option in other.options for option in idle)
    ))  # fmt: skip
    if mode is MODES[command][-1] and homes:
        verb = "belongs" if len(idle) == 1 else "belong"
        them_all = " or ".join(part for part in (", ".join(homes[:-1]), homes[-1]) if part)
        return f"{', '.join(idle)} {verb} to {them_all}: give that too, or leave {them} out."
    return f"{', '.join(idle)} cannot be combined with {mode.named}: {mode.why}. Leave {them} out."
