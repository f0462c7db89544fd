"""One side of one picture's reconstruction: a preset of LeakPro's (Apache-2.0), or docleak's attack.

``job["side"]`` is "leakpro" or one of docleak's attackers; ``job["source"]`` a checkout of aidotse/LeakPro. The case is
bench.beside_breaching's: one picture of 32 x 32, an image classifier with random weights, its gradient, the label.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from exchange import answer, asked, timed
from torch import Tensor, nn

from bench import beside_breaching as case_module
from bench.beside_breaching import CLASSES, HALF, SIDE, Case, Classifier, case_of
from docleak.attacks.gradients import idlg

#: Gradients that a step of its L-BFGS evaluates.
LBFGS_STEPS = 20

torch.set_num_threads(1)


def leakpro(case: Case, setting: tuple[float, float]) -> Callable[[], Tensor]:
    """Its preset, its client and its training simulator; of Inverting Gradients the setting is total variation and
    first step, of iDLG nothing. L-BFGS evaluates 20 gradients a step."""
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    model = Classifier(case.model).eval()
    half = torch.full((3, 1, 1), HALF)
    data = [((case.pixels[0] - HALF) / HALF, int(case.knowledge.inputs[0].tensors["label"]))]
    loader: Any = torch.utils.data.DataLoader(data, batch_size=1)  # type: ignore[arg-type]
    client = clients.FLClientSimulator(loader, half, half, len(CLASSES), torch.device("cpu"))
    settings = simulator.TrainingSettings(
        epochs=1, optimizer_type="sgd", training_batch_size=1, compute_mode="gradients", model_mode="eval",
        shuffle_mode="client",
    )  # fmt: skip
    seen = client.train_and_observe(model, settings, nn.CrossEntropyLoss(), send_labels_to_server=True)
    for name, value in seen.gradients.items():
        known = case.view.gradient[name]
        assert torch.allclose(value, known, rtol=1e-3, atol=1e-5), f"both sides must be given the same {name}"
    config = getattr(presets, job["preset"])()
    config.max_iterations = job["budget"]
    if job["preset"] == "inverting_gradients_attack":
        config.tv_weight, config.learning_rate = setting
    else:
        config.max_iterations //= LBFGS_STEPS
        config.training_simulator_compute_mode = "gradients"
    config.loss_fn = Counted()
    attack = config.build(client_observations=seen)

    def run() -> Tensor:
        image, _ = attack.run_attack(target_model=model, client_observations=seen, device=torch.device("cpu"),
                                     input_shape=(1, 3, SIDE, SIDE))  # fmt: skip
        return (image.detach().reshape(1, 3, SIDE, SIDE) * HALF + HALF).clamp(0, 1)

    return run


class Counted(nn.CrossEntropyLoss):
    """Counts the gradients that an attack evaluates: it takes one loss each."""

    def forward(self, *given: Tensor) -> Tensor:
        """The loss."""
        global evaluations
        evaluations += 1
        return super().forward(*given)


def docleak(case: Case, setting: tuple[float, float]) -> Callable[[], Tensor]:
    """The same composition, or docleak's own solver; of iDLG its published form."""
    if job["preset"] == "idlg_attack" and job["side"] == "docleak, same steps":
        drawn = torch.Generator().manual_seed(0)
        return lambda: idlg.ATTACK.run(case.view, case.knowledge, budget=job["budget"], generator=drawn).pixels
    attack = case_module.ours if job["side"] == "docleak, same steps" else case_module.ours_bounded
    return lambda: attack(case, setting)


def shim() -> None:
    """torchvision's operators are compiled for one build of PyTorch; none is used, but it wants to see their names."""
    registry: Any = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        registry.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_kept"] = registry


job, _ = asked()
case_module.BUDGET, evaluations = job["budget"], 0
shim()  # on docleak's sides, too: transformers looks at torchvision where it is there
if job["side"] == "leakpro":
    sys.path[:0] = [job["source"]]
    modular = "leakpro.attacks.gia_attacks.modular."
    presets: Any = import_module(f"{modular}presets")
    simulator: Any = import_module(f"{modular}components.optimization_building_blocks.training_simulator")
    clients: Any = import_module("leakpro.fl_utils.fl_client_simulator")
attacker: Any = leakpro if job["side"] == "leakpro" else docleak
cases = [case_of(job["network"], number) for number in range(job["tuned_on"] + job["pictures"])]


def of(case: Case, setting: tuple[float, float]) -> tuple[float, float]:
    """PSNR in dB of what it finds, and the processor's milliseconds a gradient."""
    picture, seconds = timed(attacker(case, setting))
    return case_module._psnr(case, picture), 1e3 * seconds / job["budget"]


tried = {tuple(s): float(np.mean([of(c, tuple(s))[0] for c in cases[: job["tuned_on"]]])) for s in job["settings"]}
best, evaluations = max(tried, key=lambda setting: tried[setting]), 0
psnr, each = zip(*(of(case, best) for case in cases[job["tuned_on"] :]), strict=True)
answer({"setting": best, "tried": len(tried), "psnr": psnr, "ms": each, "evaluations": evaluations / len(psnr)})
