"""The device that a model is to run on, by name."""

from __future__ import annotations

from docleak.errors import DocleakError


def pick_device(name: str) -> str:
    """``auto`` is the GPU where there is one; DocleakError for anything else that torch cannot use here."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    keep_float32(name)
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DocleakError(f"device {name!r} cannot be used here ({reason}). Try auto or cpu.") from error
    return name


def keep_float32(device: str) -> None:
    """Let convolutions on a GPU keep the digits of float32 in this process, as matrix products do by torch's default.

    Torch's default for convolutions there is TF32, with ten binary digits: attacks read what comes after them.
    """
    if device != "cpu":
        import torch

        torch.backends.cudnn.allow_tf32 = False


def seed_torch(number: int) -> None:
    """``torch.manual_seed`` of the CPU and of every accelerator that is at work in this process.

    For each that is not, torch notes the seed beside the whole call stack in words, which takes longer than a small
    training step; what runs on one has begun it by then.
    """
    import torch

    torch.default_generator.manual_seed(number)
    for accelerator in (torch.cuda, torch.xpu, torch.mtia):
        if accelerator.is_initialized():
            accelerator.manual_seed_all(number)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(number)
