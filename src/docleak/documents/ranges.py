"""In which range a number from outside may lie: one sentence for whatever lies elsewhere, nan and infinity included."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import UnionType

from docleak.errors import DocleakError

#: Seeds go to numpy, torch and scikit-learn, and are counted up for draws within a run; all of them hold these.
MOST_SEED = 2**32 - 1
#: Pixels of a picture that are decoded or drawn at most: A4 at 600 dots per inch has 35 million.
MOST_PIXELS = 40_000_000


#: The type of what names a file or a folder.
PATH = str | os.PathLike  # type: ignore[type-arg]  # with its argument no value could be checked


@dataclass(frozen=True)
class Range:
    """Numbers from ``least`` to ``most``, both included; ``above`` leaves ``least`` itself out, ``below`` ``most``."""

    least: float
    most: float
    above: bool = False
    below: bool = False

    def holds(self, number: float) -> bool:
        """Whether the number lies in it; nan and infinities do not, unless they are an end."""
        after = self.least < number if self.above else self.least <= number
        return after and (number < self.most if self.below else number <= self.most)

    def __str__(self) -> str:
        if not self.above and not self.below:
            return f"{_shown(self.least)} to {_shown(self.most)}"
        least = f"{'above' if self.above else 'at least'} {_shown(self.least)}"
        return f"{least} and {'below' if self.below else 'at most'} {_shown(self.most)}"


SEED = Range(0, MOST_SEED)
COUNT, SOME, SHARE = Range(0, 1_000_000), Range(1, 1_000_000), Range(0, 1)
BUDGET = Range(1, 10_000_000)
#: Of differential privacy.
EPSILON, DELTA = Range(0, 1e9, above=True), Range(0, 1, above=True, below=True)
NOISE, CLIP_NORM, DENOMINATOR = Range(0, 1e9), Range(0, 1e6, above=True), Range(0, 10**12)
#: Of trainings.
EPOCHS, BATCH_SIZE, RATE = Range(1, 10_000), Range(1, 100_000), Range(0, 1e3)
#: Of silos, their secure aggregation, and networks.
CLIENTS, SECURE_THRESHOLD, SECURE_LIMIT = Range(1, 1_000), Range(0, 1_000), Range(0, 1e9)
PORT, TIMEOUT = Range(1, 65_535), Range(1, 86_400 * 7)


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e15 else f"{number:g}"


def short(value: object, *, longest: int = 60) -> str:
    """``value`` as a message shows it: cut in the middle where it is long, and never fails for a long integer."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4 * longest:
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-longest // 4 :]}"


def check_kind(
    name: str, value: object, kind: type | UnionType, expected: str, error: type[DocleakError] = DocleakError
) -> None:
    """``error`` if ``value`` is not of the ``kind``, and for truth values, which are no numbers; ``name`` says what it
    is, and ``expected`` what it may be."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise error(f"{name} is {short(value)}; expected {expected}.")


def check_path(name: str, value: object, expected: str, error: type[DocleakError] = DocleakError) -> None:
    """``error`` if ``value`` is no text or path, or one that no file can be called, be there one or not."""
    check_kind(name, value, PATH, expected, error)
    try:
        os.lstat(Path(value).expanduser())  # type: ignore[arg-type]
    except (ValueError, RuntimeError, OSError) as fault:  # of a NUL, of ~ and somebody who is not known, of a long name
        if not isinstance(fault, OSError) or fault.errno == errno.ENAMETOOLONG:
            why = "it is too long" if isinstance(fault, OSError) else f"{fault}".rstrip(".")
            said = f"{name} is {short(value)}, which no file can be called ({why}); expected {expected}."
            raise error(said) from fault


def check_truth(name: str, value: object, error: type[DocleakError] = DocleakError) -> None:
    """``error`` if ``value`` is no truth value: a text that says no would count as yes."""
    if not isinstance(value, bool):
        raise error(f"{name} is {short(value)}; expected True or False.")


def check_whole(name: str, value: object, allowed: Range, error: type[DocleakError] = DocleakError) -> int:
    """``value`` as Python's int, of numpy too; ``error`` if it is no whole number of the range."""
    check_kind(name, value, Integral, "a whole number", error)
    check_range(name, number := int(value), allowed, error)  # type: ignore[call-overload]
    return number  # type: ignore[no-any-return]


def check_range(name: str, value: float, allowed: Range, error: type[DocleakError] = DocleakError) -> None:
    """``error`` if ``value`` does not lie in the range; ``name`` says what it is."""
    if not allowed.holds(value):
        raise error(f"{name} is {short(value)}; expected {allowed}.")
