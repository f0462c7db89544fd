"""What is checked of every command line at one place, before its command runs: ranges, unused options, folders, files.

Every command calls ``check_values``; ``modes`` and ``folders`` hold the tables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from docleak.cli.folders import refuse_foreign, refuse_places
from docleak.cli.modes import refuse_unused
from docleak.cli.output import note
from docleak.documents.ranges import Range, check_range
from docleak.errors import DocleakError, DocumentError

#: The engine that every installation has.
OCR = "rapidocr"
#: Options that name pages, and commands in which they are a number, or folders by client.
PAGES = ("--documents", "documents", "--public-documents", "--test-documents")
PAGES_APART = ("train federated", "audit updates")


def commands_of(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command below the group, by its words, such as "train central"."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield f"{above}{name}", command
            yield from commands_of(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def typed(context: click.Context, name: str) -> bool:
    """Whether the parameter stands on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def check_values(
    path: str, command: click.Command, context: click.Context, refuse_idle: Callable[[], None] = lambda: None
) -> None:
    """DocleakError for options that do nothing beside the others, a folder of another kind, or unreadable pages.
    ``refuse_idle`` is called for what options need one by one."""
    given = [p.opts[0] for p in command.params if typed(context, str(p.name))]
    values = _named(command, context.params)
    _note_repeated(command, sys.argv[1:])
    refuse_unused(path, given, values)
    refuse_idle()
    refuse_foreign(path, values)
    refuse_places(path, values)
    _check_sources(path, values)


def _note_repeated(command: click.Command, words: Sequence[str]) -> None:
    """Say of an option of one value that is given several times that all but the last are ignored."""
    words = list(takewhile(lambda word: word != "--", words))
    for option in command.params:
        if isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count):
            times = sum(word in option.opts or word.startswith(tuple(f"{name}=" for name in option.opts))
                        for word in words)  # fmt: skip
            if times > 1:
                note(f"{option.opts[0]} is given {times} times, and takes one value: the last one counts.")


def _check_sources(path: str, values: Mapping[str, Any]) -> None:
    """Open the pages that are named, before anything is computed: the error that comes is the loader's, if one does.

    Only indexes are read, and a few pictures for the ink in boxes; notes of the loader are printed. Pickled data sets
    are left to the command, which alone knows whether they may be read.
    """
    if values.get("--list") or path in ("data convert", "data check"):
        return
    from docleak.documents.loaders import SYNTHETIC

    apart = path in PAGES_APART or bool(values.get("updates"))
    for option in ("--others",) if apart else PAGES:
        named = values.get(option)
        for spec in named if isinstance(named, list | tuple) else [named]:
            if not isinstance(spec, str) or spec in ("", SYNTHETIC) or (path == "reproduce" and _check_pairs(spec)):
                continue
            _check_pages(spec)
    if values.get("--ocr", OCR) not in (OCR, ""):
        from docleak.metrics import load_engine

        load_engine(values["--ocr"])  # kept for this process; unknown and missing ones are refused here
    if values.get("--silos") is not None and path == "train federated":
        from docleak.training.federated.silo import find_silos

        find_silos(Path(values["--silos"]))


def _check_pairs(spec: str) -> bool:
    """Whether these are pairs of pictures and texts, of which the first is read then."""
    from docleak.documents.pairs.loading import MADE, PAGES, PAIR_FORMATS, load_pairs
    from docleak.spec import split_name

    if split_name(spec)[0] not in (*MADE, PAGES, *PAIR_FORMATS):
        return False
    load_pairs(spec, count=1, seed=0)
    return True


def _check_pages(spec: str) -> None:
    from docleak.documents.loaders import LOADERS, SYNTHETIC, format_and_path, load_pages, page_specs
    from docleak.documents.scale import blank_boxes

    for one in page_specs(spec):
        if one == SYNTHETIC:
            continue
        name, where = format_and_path(one)
        if LOADERS[name].large or LOADERS[name].drawn:
            if not where.exists():
                raise DocumentError(f"{one!r}: there is no such path. Give the folder of the data set.")
            continue
        pages = load_pages(one, seed=0)
        for doubt in (*getattr(pages, "notes", ()), *(blank_boxes(pages) if name == "folder" else ())):
            note(f"Warning: {one}: {doubt}.")


def _named(command: click.Command, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the option's first spelling, such as "--out", or the argument's name."""
    return {
        parameter.opts[0]: Path(value) if isinstance(value, str) and isinstance(kind, click.Path) else value
        for parameter in command.params
        for value, kind in [(values.get(str(parameter.name)), getattr(parameter.type, "text", None))]
    }


class Bounded(click.ParamType[Any]):
    """A number within a range; DocleakError for any other, nan and infinity among them."""

    def __init__(self, number: click.ParamType[Any], allowed: Range) -> None:
        self.number, self.allowed, self.name = number, allowed, number.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that ``value`` spells."""
        _refuse_option(value, param)
        if isinstance(value, str) and value.strip().lstrip("+-").isdigit() and len(value) > 1000:
            raise DocleakError(f"{_spelt(param)} has {len(value)} digits; expected {self.allowed}.")
        number = self.number.convert(value, param, ctx)
        check_range(_spelt(param), number, self.allowed)
        return number


class Text(click.ParamType[Any]):
    """A text or path without NUL; a path is not empty, for that would be the folder one happens to be in."""

    def __init__(self, text: click.ParamType[Any]) -> None:
        self.text, self.name = text, text.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What ``value`` spells."""
        _refuse_option(value, param)
        if isinstance(value, str) and "\0" in value:
            raise DocleakError(f"{_spelt(param)} holds a NUL character. Leave it out.")
        if isinstance(self.text, click.Path) and value == "":
            raise DocleakError(f"{_spelt(param)} is empty; expected a path. Write . for the folder you are in.")
        if isinstance(self.text, click.Path) and isinstance(value, str):
            value = os.path.expanduser(value)  # shells leave --out=~/run as it is
        converted = self.text.convert(value, param, ctx)
        if isinstance(self.text, click.Path):
            try:
                Path(converted).exists()
            except OSError as fault:
                why = f"no such path can be used ({fault.strerror}). Pass another."
                raise DocleakError(f"{_spelt(param)}: {why}") from fault
        return converted


def _refuse_option(value: Any, param: click.Parameter | None) -> None:
    """DocleakError for the next option in the place of an option's value, unless ``=`` says that it is the value."""
    if isinstance(param, click.Option) and isinstance(value, str) and value.startswith("--"):
        said = [f"{name}={value}" for name in param.opts]
        if not set(said) & set(sys.argv):
            raise DocleakError(
                f"{param.opts[0]} is followed by {value}; expected its value. Where {value!r} is the value, write "
                f"{said[0]}."
            )


def _spelt(param: click.Parameter | None) -> str:
    if param is None:
        return "the value"
    return param.opts[0] if isinstance(param, click.Option) else str(param.name).upper()
