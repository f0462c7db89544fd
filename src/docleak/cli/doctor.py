"""Checks of an installation: packages, shipped checkpoints, OCR, double backward, disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass

import torch

from docleak.models import SHIPPED, load_model


@dataclass(frozen=True)
class Check:
    """One line of ``docleak doctor``; an optional check may fail."""

    name: str
    passed: bool
    detail: str
    optional: bool = False


def checks() -> list[Check]:
    """Run all checks; none raises."""
    required: list[tuple[str, Callable[[], str]]] = [
        ("torch", lambda: f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("checkpoints", _checkpoints),
        ("ocr", _ocr),
        ("double backward", _double_backward),
        ("fonts", _fonts),
    ]
    optional: list[tuple[str, Callable[[], str]]] = [("gpu", _gpu), ("chromium", _chromium)]
    return [_try(n, f, False) for n, f in required] + [_try(n, f, True) for n, f in optional]


def _try(name: str, function: Callable[[], str], optional: bool) -> Check:
    try:
        return Check(name, True, function(), optional)
    except Exception as error:  # a diagnosis must survive whatever is broken
        said = str(error) or type(error).__name__
        return Check(name, False, said if optional else f"{type(error).__name__}: {error}", optional)


def _checkpoints() -> str:
    return ", ".join(f"{n} ({sum(p.numel() for p in load_model(n).module.parameters()):,})" for n in SHIPPED)


def _ocr() -> str:
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    from docleak.metrics import load_engine

    picture = Image.new("RGB", (90, 22), "white")
    ImageDraw.Draw(picture).text((4, 3), "INV-2039", font=ImageFont.load_default(14), fill="black")
    engine = load_engine("rapidocr")
    text = engine.read([np.asarray(picture)])[0].text
    if text.replace(" ", "") != "INV-2039":
        raise RuntimeError(f"read {text!r} where the picture says INV-2039")
    return f"{engine.name} {engine.version} reads"


def _double_backward() -> str:
    from docleak.attacks.gradients.matching import dummy_gradient
    from docleak.studies.gradient.case import build_case, pages_for
    from docleak.studies.gradient.config import Exposure

    model = load_model("layoutlmv3-start")
    case = build_case(model, pages_for(model, "synthetic", count=1, seed=0), Exposure(), seed=0)
    pixels = case.pixels.clone().requires_grad_(True)
    gradient = dummy_gradient(model, pixels, case.inputs, case.view.names, create_graph=True)
    (second,) = torch.autograd.grad(sum(g.square().sum() for g in gradient.values()), pixels)  # type: ignore[arg-type]
    if not bool(torch.isfinite(second).all()) or float(second.abs().sum()) == 0:
        raise RuntimeError("the second-order gradient is zero or not finite")
    return "finite second-order gradient"


def _fonts() -> str:
    from docleak.documents.synthetic import make_pages

    return f"synthetic page of {make_pages(1, seed=0)[0].width} x {make_pages(1, seed=0)[0].height} pixels drawn"


def _gpu() -> str:
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device; everything runs on the CPU")
    return torch.cuda.get_device_name(0)


def _chromium() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise RuntimeError("not found; only docleak's own report test needs it")
    return path
