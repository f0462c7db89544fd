"""The errors docleak raises on purpose.

Every message says what was found, what was expected and what to do. The command line prints
them without a traceback and exits with code 1 (``docleak check``, of which 1 is a finding: 2).
"""

from __future__ import annotations

from collections.abc import Sequence


class DocleakError(Exception):
    """Base class of every error docleak raises on purpose."""


class DocumentError(DocleakError):
    """A page, data set or annotation file cannot be used as it is."""


class ModelError(DocleakError):
    """A checkpoint cannot be loaded, or is not of the architecture that was asked for."""


class GradientError(DocleakError):
    """A gradient does not fit the model it is said to come from."""


class SelfTestError(DocleakError):
    """The true input does not reproduce the observed gradient, so an attack would prove nothing."""


class AttackError(DocleakError):
    """An attack is unknown, or its parameters or knowledge make no sense."""


class DefenseError(DocleakError):
    """A defence is unknown, or its parameters make no sense."""


class RecipeError(DocleakError):
    """A recipe is unknown, or its file has wrong keys or values."""


class RunError(DocleakError):
    """A run directory cannot be written, read or resumed."""


class PolicyError(DocleakError):
    """A policy or a description of an audit has wrong keys or values."""


class MissingExtraError(DocleakError):
    """An optional package is not installed; the message names the pip line."""


class FederationError(DocleakError):
    """A federated round cannot go on: a missing, broken or contradictory update or silo."""


class PrivacyError(DocleakError):
    """A differential-privacy plan or budget makes no sense, or promises what it cannot account for."""


class ContradictionError(DocleakError):
    """An attack measured more leakage than the accounting allows: one of the two is wrong, and neither may be used."""


def denied(file: object) -> str:
    """The sentence about a file that is there, and that this user may not read."""
    return f"{file} may not be read by this user (permission denied). Give this user the right to read it."


def those(*faults: tuple[object, str]) -> list[str]:
    """What is said of those faults that are there: of each, whether it is, and the words."""
    return [words for there, words in faults if there]


def refuse(error: type[DocleakError], faults: Sequence[str], before: str = "") -> None:
    """Raise ``error`` with all ``faults`` at once, behind the words ``before``; nothing where there are none."""
    if faults:
        raise error(f"{before}{'; '.join(faults)}.")
