"""Options that come of configurations: which there are, what their texts mean, and those that do nothing."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

import pytest

from docleak.documents.ranges import SOME
from docleak.errors import DocleakError
from docleak.options import (
    Need,
    Option,
    by_arguments,
    configured,
    only,
    option,
    options_of,
    refuse_idle,
    without_default,
)


@dataclass(frozen=True)
class Inner:
    """A part."""

    known: bool = option(True, "Not known.", "--no-known")
    steps: int = option(3, "Steps.", range=SOME)
    hidden: int = 7


@dataclass(frozen=True)
class Settings:
    """A configuration that says what its options are."""

    place: str = field(metadata=without_default("Where.", argument=True))
    names: tuple[str, ...] = option(("a",), "Names.", "--name", repeat=True)
    numbers: tuple[int, ...] = option((1, 2), "Numbers.")
    size: tuple[int, int] | None = option(None, "WxH.", read=lambda text: tuple(map(int, text.split("x"))))
    share: float | None = option(None, "A share.", need=Need(lambda config: bool(config.names), "--name"))
    secret: dict[str, int] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    other: Inner = field(default=Inner(steps=9), metadata=only("known", steps=Option("Others.", "--other-steps")))


@dataclass(frozen=True)
class Said:
    """Truth values that can be said both ways, whatever their defaults."""

    on: bool = option(True, "On.", both=True)
    off: bool = option(False, "Off.", both=True)


@dataclass(frozen=True)
class Plain:
    """A configuration of somebody who has not heard of options."""

    pages: int = 3
    rate: float = 0.5
    words: tuple[str, ...] = ()
    kind: Literal["a", "b"] = "a"
    fast: bool = False
    pair: tuple[int, int] = (1, 2)
    table: dict[str, int] = field(default_factory=dict)


def test_a_truth_value_that_is_said_both_ways_is_what_was_said() -> None:
    options = options_of(Said)
    assert [one.flag for one in options.values()] == ["--on", "--off"]
    assert [[one.value(text) for text in (True, False)] for one in options.values()] == [[True, False]] * 2
    (turned,) = [one for path, one in options_of(Inner).items() if path == "known"]
    assert turned.value(True) is False, "a flag turns its default round"


def test_fields_that_say_so_are_options_and_others_are_not() -> None:
    options = options_of(Settings)
    assert {path: one.flag for path, one in options.items() if not one.option.argument} == {
        "names": "--name", "numbers": "--numbers", "size": "--size", "share": "--share", "inner.known": "--no-known",
        "inner.steps": "--steps", "other.known": "--no-known", "other.steps": "--other-steps",
    }  # fmt: skip
    assert options["place"].default is MISSING and options["other.steps"].default == 9
    assert [options[path].scalar for path in ("numbers", "share", "inner.known", "size")] == [int, float, bool, str]


def test_a_class_without_any_has_all_that_a_text_can_say() -> None:
    assert list(options_of(Plain)) == ["pages", "rate", "words", "kind", "fast"]


def test_texts_become_values_and_values_a_configuration() -> None:
    options, given = options_of(Settings), dict[str, Any]()
    for path, text in (("names", ("x", "y")), ("numbers", "4, 5"), ("size", "3x4"), ("inner.known", True)):
        given[path] = options[path].value(text)
    made = configured(Settings, {**given, "place": "p", "other.steps": 2})
    assert (made.names, made.numbers, made.size, made.inner.known) == (("x", "y"), (4, 5), (3, 4), False)
    assert made.other == Inner(steps=2) and made.inner.steps == 3
    assert configured(made, {"inner.steps": 5}).inner == Inner(known=False, steps=5)
    with pytest.raises(DocleakError, match="--numbers is 'few'; expected numbers"):
        options["numbers"].value("few")


def test_an_option_that_does_nothing_is_refused_by_its_own_sentence() -> None:
    idle = Settings("p", names=(), share=0.5)
    with pytest.raises(DocleakError, match="--share belongs to --name, and does nothing here"):
        refuse_idle(idle, [options_of(Settings)["share"]])
    refuse_idle(idle, [options_of(Settings)["numbers"]])
    refuse_idle(Settings("p", share=0.5), [options_of(Settings)["share"]])


def test_in_python_options_are_called_by_their_arguments_and_command_lines_stay() -> None:
    said = "--name is 'x', --no-known; see docleak audit this --name A, or --numbers, --name-it and -- of others."
    with pytest.raises(DocleakError) as error, by_arguments(Settings, numbers="count"):
        raise DocleakError(said)
    assert str(error.value) == (
        "'names' is 'x', 'known'; see docleak audit this --name A, or 'count', --name-it and -- of others."
    )
    with pytest.raises(ValueError, match=r"^--name$"), by_arguments(Settings):
        raise ValueError("--name")
