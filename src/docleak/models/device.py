"""The device that a model is to run on, by name."""

from __future__ import annotations

from docleak.errors import DocleakError


def pick_device(name: str) -> str:
    """``auto`` is the GPU where there is one; DocleakError for anything else that torch cannot use here."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DocleakError(f"device {name!r} cannot be used here ({reason}). Try auto or cpu.") from error
    return name
