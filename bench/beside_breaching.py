"""docleak's engine beside ``breaching`` 0.1.2 on a case both support: one picture, an image classifier, label known.

Same weights, same gradient, same start, same budget. ``breaching`` is run as an installed package:

    pip install --target SOMEWHERE --no-deps breaching==0.1.2 hydra-core==1.3.2 antlr4-python3-runtime==4.9.3 \\
        torchvision==0.28.0 lpips tqdm pandas
    BREACHING=SOMEWHERE python -m bench beside_breaching

Time per step: both run Inverting Gradients (cosine distance, total variation, signed Adam) in one process and take
turns step by step, so that whatever else the machine does hits both alike. Likeness: PSNR of the picture after BUDGET
evaluations, each side with the best of as many settings, chosen on pictures that are not counted.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

from docleak.attacks.gradients import GradientAttack, GradientView, Knowledge, inverting_gradients
from docleak.attacks.gradients.engine import Keep
from docleak.attacks.gradients.levenberg import LevenbergMarquardt
from docleak.attacks.gradients.local_steps import ImitatedSteps
from docleak.attacks.gradients.solvers import Adam, BoundedLBFGS, Objective, Solver
from docleak.attacks.pairs.view import inputs_of
from docleak.documents.pairs import make_scenes
from docleak.metrics.image import psnr
from docleak.models.pair import build_pair
from docleak.models.pair.model import PairModel
from docleak.studies.pairs.case import build_pair_case

PLACE = "BREACHING"
CLASSES = ("scatter", "tower")
SIDE = 32
#: Networks whose step is timed, and those whose pictures are compared.
TIMED, COMPARED = ("resnet-tiny", "resnet18"), ("resnet-tiny", "lenet5")
WARMUP, STEPS = 5, 100
BUDGET, TUNED_ON, PICTURES = 200, 2, 6
#: What each side may choose from: total variation in breaching's units (its default is 0.2) ...
VARIATIONS = (0.2, 2e-2, 2e-3, 2e-4)
#: ... and the first step in units of the normalised picture (its default is 0.1), or the pairs that L-BFGS keeps.
FIRST_STEPS, HISTORIES = (0.1, 0.03), (50, 200)
#: A step of ours may cost this share of one of theirs.
TARGET = 1.0
#: Pixels in [0, 1] are normalised with mean and standard deviation 1/2, so that differences double.
HALF = 0.5
#: Which of the visited pictures docleak's side returns (``GradientAttack.keep``); breaching's is its "objective".
KEEP: Keep = "best"

Setting = tuple[float, float]
Attacker = Callable[["Case", Setting], Tensor]


@dataclass(frozen=True)
class Case:
    """One client with one picture; ``pixels`` (1, 3, H, W) are the truth, for the evaluator alone."""

    model: PairModel
    view: GradientView
    knowledge: Knowledge
    pixels: Tensor
    start: Tensor


def case_of(network: str, picture: int) -> Case:
    """A scene, and what its client's gradient tells; the label is known, and nothing of the picture."""
    model = build_pair(network, "bert-tiny", classes=CLASSES, image_size=(SIDE, SIDE), seed=picture)
    pair = build_pair_case(model, [make_scenes(picture + 1, seed=1)[picture]])
    unknown = torch.ones(1, SIDE, SIDE, dtype=torch.bool)
    knowledge = Knowledge(torch.full_like(pair.pixels, HALF), unknown, inputs_of([int(pair.labels[0])]))
    start = torch.rand(pair.pixels.shape, generator=torch.Generator().manual_seed(picture))
    return Case(model, pair.view.side("image"), knowledge, pair.pixels, start)


def inverting(setting: Setting) -> GradientAttack:
    """docleak's Inverting Gradients with total variation and first step in breaching's units."""
    variation, first_step = setting
    solver = inverting_gradients.ATTACK.solver
    assert isinstance(solver, Adam)
    return replace(
        inverting_gradients.ATTACK,
        solver=replace(solver, learning_rate=first_step * HALF),
        priors={"tv-spatial": variation / HALF},
        keep=KEEP,
    )


def ours(case: Case, setting: Setting) -> Tensor:
    """The picture by the same composition: cosine, total variation, signed Adam."""
    return _run(inverting(setting), case)


def ours_bounded(case: Case, setting: Setting) -> Tensor:
    """The picture by the same cost and docleak's own solver; the setting is total variation and history."""
    variation, history = setting
    return _run(replace(inverting((variation, 0.1)), solver=BoundedLBFGS(history=int(history))), case)


def _run(attack: GradientAttack, case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return attack.run(case.view, case.knowledge, budget=BUDGET, generator=generator, start_at=case.start).pixels


class Classifier(nn.Module):
    """A pair's image side as breaching takes a model: normalised pixels to logits, and no other parameters."""

    def __init__(self, model: PairModel) -> None:
        super().__init__()
        self.image = model.module.image

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, K) of (B, 3, H, W)."""
        features: Any = self.image["net"](pixels)
        logits: Tensor = self.image["head"]((features if isinstance(features, Tensor) else features.logits).flatten(1))
        return logits


class Metadata(SimpleNamespace):
    """What breaching is told of the data; it reads it as attributes and as keys."""

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


class Breaching:
    """The installed package's Inverting Gradients as an attack on a ``Case``."""

    def __init__(self) -> None:
        self.package = _package()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.config = self.package.get_attack_config("invertinggradients")

    def __call__(self, case: Case, setting: Setting, *, steps: int = BUDGET, hook: nn.Module | None = None) -> Tensor:
        """The pictures (n, 3, H, W) in [0, 1]; ``hook`` is called with the candidate before every step."""
        config = deepcopy(self.config)
        config.regularization.total_variation.scale, config.optim.step_size = setting
        config.optim.max_iterations, config.optim.callback = steps, steps
        model = Classifier(case.model).eval()
        attacker = self.package.attacks.prepare_attack(model, nn.CrossEntropyLoss(), config)
        if hook is not None:
            attacker.augmentations = nn.Sequential(hook)
        told = Metadata(shape=(3, SIDE, SIDE), modality="vision", task="classification", classes=len(CLASSES),
                        mean=case.model.mean, std=case.model.std)  # fmt: skip
        names = {f"image.{name}" for name, _ in model.image.named_parameters()}
        assert names == set(case.view.names), "both sides must be given the same gradient"
        gradient = [case.view.gradient[f"image.{name}"] for name, _ in model.image.named_parameters()]
        labels = torch.cat([one.tensors["label"] for one in case.knowledge.inputs])
        payload = {"parameters": list(model.parameters()), "buffers": list(model.buffers()), "metadata": told}
        steps_told, scale = local_steps_of(case.view.local, labels)
        metadata = {"num_data_points": len(labels), "labels": labels, "local_hyperparams": steps_told}
        sent = {"gradients": [scale * one for one in gradient], "buffers": None, "metadata": metadata}
        start = (case.start - HALF) / HALF
        reconstruction, _ = attacker.reconstruct([payload], [sent], {}, initial_data=start)
        picture: Tensor = reconstruction["data"]
        return (picture * HALF + HALF).clamp(0, 1)


def local_steps_of(local: ImitatedSteps | None, labels: Tensor) -> tuple[dict[str, Any] | None, float]:
    """How breaching is told of local steps, and what makes of a gradient of ours the weights' change that it takes."""
    if local is None:
        return None, 1.0
    rate = local.optimiser.learning_rate
    told = {"lr": rate, "steps": local.steps, "data_per_step": len(local.batches[0]),
            "labels": [labels[list(batch)] for batch in local.batches]}  # fmt: skip
    return told, -rate * local.steps


def _package() -> Any:
    """breaching; SystemExit says how to install it where it is absent."""
    if place := os.environ.get(PLACE, ""):
        sys.path.append(place)
    try:
        # torchvision's own operators are compiled for one build of PyTorch; none is used here but it wants to see them.
        registry: Any = torch.library
        library = registry.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module("breaching")
    except ImportError as fault:
        raise SystemExit(f"breaching cannot be imported ({fault}).\n\n{__doc__}") from fault


class Turns(nn.Module):
    """A baton between two threads that each run an attack: one step, then the other's, each timed.

    As a module it is what breaching calls before each of its steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.condition = threading.Condition()
        self.turn, self.running = 0, {0, 1}
        self.since = [0.0, 0.0]
        self.seconds: tuple[list[float], list[float]] = ([], [])

    def pass_on(self, side: int) -> None:
        """Called by ``side`` (0 or 1) before each of its steps: lets the other make one, and waits."""
        if self.since[side]:
            self.seconds[side].append(time.perf_counter() - self.since[side])
        with self.condition:
            self.turn = 1 - side
            self.condition.notify_all()
            self.condition.wait_for(lambda: self.turn == side or self.running == {side})
        self.since[side] = time.perf_counter()

    def leave(self, side: int) -> None:
        """Called by ``side`` at its end."""
        with self.condition:
            self.running.discard(side)
            self.condition.notify_all()

    def forward(self, candidate: Tensor) -> Tensor:
        """The candidate as it is."""
        self.pass_on(1)
        return candidate


@dataclass(frozen=True)
class Stepwise:
    """A solver that waits for its turn before each evaluation."""

    solver: Solver
    turns: Turns

    def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
        """The solver's own minimise."""

        def waiting(unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
            self.turns.pass_on(0)
            return objective(unknowns, progress)

        return self.solver.minimise(waiting, start, budget=budget)


def time_steps(network: str, breaching: Breaching) -> dict[str, float]:
    """Medians in milliseconds per step, their ratio, and the quartiles of the ratio over neighbouring steps."""
    case, setting, turns, steps = case_of(network, 0), (VARIATIONS[0], FIRST_STEPS[0]), Turns(), WARMUP + STEPS + 1
    attack = inverting(setting)
    assert attack.solver is not None and not isinstance(attack.solver, LevenbergMarquardt)
    stepwise = replace(attack, solver=Stepwise(attack.solver, turns))

    def run_ours() -> None:
        stepwise.run(case.view, case.knowledge, budget=steps, generator=torch.Generator(), start_at=case.start)
        turns.leave(0)

    def run_theirs() -> None:
        breaching(case, setting, steps=steps, hook=turns)
        turns.leave(1)

    threads = [threading.Thread(target=run) for run in (run_ours, run_theirs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mine, other = (seconds[WARMUP : WARMUP + STEPS] for seconds in turns.seconds)
    ratios = [a / b for a, b in zip(mine, other, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "ours_ms": 1e3 * statistics.median(mine),
        "theirs_ms": 1e3 * statistics.median(other),
        "ratio": statistics.median(mine) / statistics.median(other),
        "ratio_lower_quartile": low,
        "ratio_upper_quartile": high,
        "steps": len(ratios),
        "target": TARGET,
    }


def compare(network: str, breaching: Breaching) -> dict[str, dict[str, Any]]:
    """Per side: the setting that was best on the tuning pictures, and the PSNR of each of the others."""
    adam = [(variation, step) for variation in VARIATIONS for step in FIRST_STEPS]
    bounded = [(variation, float(history)) for variation in VARIATIONS for history in HISTORIES]
    sides: dict[str, tuple[Attacker, list[Setting]]] = {
        "breaching": (breaching, adam),
        "docleak, same steps": (ours, adam),
        "docleak, own solver": (ours_bounded, bounded),
    }
    cases = [case_of(network, number) for number in range(TUNED_ON + PICTURES)]
    records = {}
    for name, (attack, settings) in sides.items():
        tried = {setting: _mean_psnr(attack, cases[:TUNED_ON], setting) for setting in settings}
        best = max(tried, key=lambda setting: tried[setting])
        values = [_psnr(case, attack(case, best)) for case in cases[TUNED_ON:]]
        records[name] = {
            "setting": best,
            "settings_tried": len(tried),
            "median": statistics.median(values),
            "psnr": values,
        }
    return records


def _mean_psnr(attack: Attacker, cases: Sequence[Case], setting: Setting) -> float:
    return statistics.mean(_psnr(case, attack(case, setting)) for case in cases)


def _psnr(case: Case, found: Tensor) -> float:
    return psnr(255 * case.pixels[0].numpy(), 255 * found[0].detach().numpy())


def measure() -> dict[str, Any]:
    """Network -> what ``time_steps`` tells, and network -> what ``compare`` tells; SystemExit without breaching."""
    breaching = Breaching()
    return {
        "steps": {network: time_steps(network, breaching) for network in TIMED},
        "likeness": {network: compare(network, breaching) for network in COMPARED},
    }


def as_markdown(numbers: dict[str, Any]) -> str:
    """The numbers as a section for people."""
    lines = [
        "",
        f"## Beside breaching 0.1.2, one picture of {SIDE} x {SIDE} pixels",
        "",
        "| network | docleak, ms a step | breaching | ratio (quartiles) | target |",
        "|---|---|---|---|---|",
    ]
    for network, row in numbers["steps"].items():
        met = "met" if row["ratio"] <= row["target"] else "missed"
        spread = f"{row['ratio_lower_quartile']:.3f}-{row['ratio_upper_quartile']:.3f}"
        lines.append(
            f"| {network} | {row['ours_ms']:.1f} | {row['theirs_ms']:.1f} | {row['ratio']:.3f} ({spread}) "
            f"| {met}: {row['target']:.2f} |"
        )
    lines += ["", "| network | attack | setting | PSNR, dB: median (range) |", "|---|---|---|---|"]
    for network, sides in numbers["likeness"].items():
        for name, side in sides.items():
            values, setting = side["psnr"], ", ".join(f"{value:g}" for value in side["setting"])
            spread = f"{min(values):.1f} to {max(values):.1f}"
            lines.append(f"| {network} | {name} | {setting} | {side['median']:.2f} ({spread}) |")
    settings = len(VARIATIONS) * len(FIRST_STEPS)
    lines += [
        "",
        f"Steps of Inverting Gradients, medians of {STEPS}, the two taking turns. PSNR of {PICTURES} pictures after",
        f"{BUDGET} gradient evaluations, each row with the best of {settings} settings on {TUNED_ON} other pictures:",
        "total variation, and first step or length of history (`bench/beside_breaching.py`).",
        "",
    ]
    return "\n".join(lines)
