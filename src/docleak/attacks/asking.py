"""Calling an attack, which may be somebody's own, and refusing what it gave: the same words for every kind."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from docleak.documents.ranges import short
from docleak.errors import AttackError, DocleakError

F = TypeVar("F")
#: Half a grey level: so far beyond [0, 1] a pixel is rounded, and shown as the end of the range.
ROUNDING = 0.5 / 255
#: In the note that says whose an error is.
RAISED = "raised this."


class OwnAttackError(AttackError):
    """An attack of somebody's own cannot be called, or gave what cannot be: no measurement that failed, a mistake."""


class Named(Protocol):
    """Whatever an attack is, it has a name to be blamed by."""

    @property
    def name(self) -> str: ...


def called(attack: Any, given: Mapping[str, Any], **how: Any) -> object:
    """What ``attack.run`` returns, ``given`` by position and ``how`` by name; OwnAttackError where it takes others.

    It is ``blamed``.
    """
    try:
        inspect.signature(attack.run).bind(*given.values(), **how)
    except TypeError as fault:
        expected = ", ".join([*given, *(["*", *how] if how else [])])
        others = " One on pairs, weights or answers is given to docleak audit pairs, weights or answers."
        raise OwnAttackError(
            f"attack {attack.name!r}: its run cannot be called ({fault}); expected run({expected}), as in "
            f"docs/adding-an-attack.md.{others * ('on_evaluation' in how)}"
        ) from fault
    with blamed(f"attack {attack.name!r}", attack):
        return attack.run(*given.values(), **how)


@contextmanager
def blamed(what: str, whose: object, error: type[DocleakError] = OwnAttackError) -> Iterator[None]:
    """While code is called that may be somebody's own, ``what`` ("attack 'mine'"), an attack of any view, a defence or
    a metric: that of ``whose``.

    What one of one's own raises says whose it is, and of several the innermost; ``error`` where it would end the
    process. What it sets for the whole process (threads, gradients, the default type, the current folder) ends with
    it, for what comes after would fail, round differently, or be written elsewhere.
    """
    threads, gradients, kind = torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()
    folder = _folder()
    try:
        yield
    except SystemExit as fault:
        why = f"{what} called sys.exit({fault.code!r}); expected an error, or a result."
        raise error(f"{why} Take the call out of its code.") from fault
    except Exception as fault:
        said = any(RAISED in note for note in getattr(fault, "__notes__", ())) or what in str(fault)
        if is_own(whose) and not said:
            fault.add_note(f"{what} {RAISED} What is finished is kept; mended, it begins another run.")
        raise
    finally:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(gradients)
        torch.set_default_dtype(kind)
        if folder and _folder() != folder:
            with suppress(OSError):  # somebody else moved it
                os.chdir(folder)


def _folder() -> str:
    """The current folder; "" where it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def is_own(attack: object) -> bool:
    """Whether an attack, or a defence, is somebody's own, and none of docleak's."""
    return not type(attack).__module__.startswith("docleak.")


def checked(
    attack: Named, returned: object, kind: type[F], faults: Iterable[str], expected: str, noun: str = "attack"
) -> F:
    """What an attack ``returned``; AttackError, which names it, where that is no ``kind``, or, of an attack of one's
    own, for its ``faults``, all at once."""
    if not isinstance(returned, kind):
        raise OwnAttackError(f"{noun} {attack.name!r} returned {type_said(returned)}; expected {expected}.")
    if is_own(attack) and (listed := "".join(f"\n  - {fault}" for fault in faults)):
        raise OwnAttackError(
            f"{noun} {attack.name!r} returned a {kind.__name__} that cannot be:{listed}\nExpected {expected}."
        )
    return returned


@contextmanager
def left_alone(
    what: str, models: Sequence[tuple[str, nn.Module]], gradients: Sequence[Mapping[str, Tensor]] = (), *,
    forget: Callable[[], object] = lambda: None, error: type[DocleakError] = OwnAttackError,
) -> Iterator[None]:  # fmt: skip
    """``error`` where ``what`` ("attack 'mine'") leaves one of the models, by name, or of the gradients as another one:
    what comes after it would be measured on that. ``forget`` is called first, also where the attack failed."""
    states, sums = [_state(module) for _, module in models], [_sums(one.values()) for one in gradients]
    try:
        yield
    finally:
        differ = [name for (name, module), state in zip(models, states, strict=True) if _state(module) != state]
        if differ:
            forget()
    if differ:
        raise error(
            f"{what} leaves {' and '.join(dict.fromkeys(differ))} with other weights, others of them to be "
            "trained, or in another mode, than it was given; expected the model as it was. Let it work on a copy "
            "(copy.deepcopy(model))."
        )
    if sums != [_sums(one.values()) for one in gradients]:
        raise error(
            f"{what} leaves another gradient than it was given; expected view.gradient as it was, "
            "since what comes after the attack reads it, too. Let it work on copies (tensor.clone())."
        )


def _state(module: nn.Module) -> tuple[bytes, tuple[bool, ...], bool]:
    """Sums of all weights, which of them are trained, and whether the model trains."""
    weights = [weight for weight in chain(module.parameters(), module.buffers()) if weight.is_floating_point()]
    return _sums(weights), tuple(weight.requires_grad for weight in weights), module.training


@torch.no_grad()
def _sums(tensors: Iterable[Tensor]) -> bytes:
    """Sums of tensors, which cost little, so that NaN is what it is."""
    sums = [tensor.sum(dtype=torch.float32).cpu() for tensor in tensors]
    return torch.stack(sums).numpy().tobytes() if sums else b""


def is_a(value: object, kind: type) -> bool:
    """Whether a value is a number of that kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def odd_numbers(name: str, values: object, count: int, kind: type = Real) -> Iterator[str]:
    """What is wrong with ``values`` that should be so many finite numbers of a kind."""
    if not isinstance(values, tuple | list):
        yield f"{name} is {type_said(values)}, no sequence of numbers"
    elif len(values) != count:
        yield f"{name} has {len(values)} numbers; expected {count}"
    elif wrong := [one for one in values if not is_a(one, kind) or not np.isfinite(one)]:
        yield f"{name} has {type_said(wrong[0])}, no {'whole' if kind is Integral else 'finite'} number"


def odd_pixels(pixels: object, shape: Sequence[int], whose: str) -> Iterator[str]:
    """What is wrong with ``pixels`` that should be a tensor of finite floats in [0, 1] with the shape, ``whose`` it
    is."""
    if not isinstance(pixels, Tensor) or not pixels.is_floating_point():
        yield f"pixels is {type_said(pixels)}, not a tensor of floating-point numbers"
    elif pixels.shape != torch.Size(shape):
        yield f"pixels has the shape {tuple(pixels.shape)}; expected {whose}, {tuple(shape)}"
    elif bad := int((~torch.isfinite(pixels)).sum()):
        yield f"{bad} of {pixels.numel()} pixels are NaN or infinite"
    elif float(pixels.min()) < -ROUNDING or float(pixels.max()) > 1 + ROUNDING:
        low, high = float(pixels.min()), float(pixels.max())
        yield f"pixels are from {low:.4g} to {high:.4g}, not in [0, 1] (clamp them, or divide by 255)"


def odd_text(name: str, text: str) -> Iterator[str]:
    """What is wrong with a ``text`` that a report is to hold."""
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        yield f"{name} holds what UTF-8 cannot write ({fault.reason})"


def odd_scores(name: str, values: object, count: int) -> Iterator[str]:
    """What is wrong with ``values`` that should be an array (count,) of finite floats."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.shape != (count,):
        yield f"{name} is {type_said(values)}; expected an array of floats and the shape ({count},)"
    elif bad := int((~np.isfinite(values)).sum()):
        yield f"{bad} of {count} {name} are NaN or infinite"


def type_said(value: object) -> str:
    """What somebody's own object gave, for messages: of a tensor type and shape, of a number or text itself."""
    if isinstance(value, Tensor | np.ndarray):
        kind = "a tensor" if isinstance(value, Tensor) else "an array"
        return f"{kind} of {str(value.dtype).removeprefix('torch.')} and the shape {tuple(value.shape)}"
    simple = value is None or isinstance(value, Real | str)
    return short(value) if simple else f"an object of the type {type(value).__name__}"
