"""One side of one picture's reconstruction: LeakPro's Inverting Gradients preset (Apache-2.0), or docleak's.

``job["side"]`` is "leakpro" or one of docleak's attackers; ``job["source"]`` a checkout of aidotse/LeakPro. The case is
bench.beside_breaching's: one picture of 32 x 32, an image classifier with random weights, its gradient, the label.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import numpy as np
import torch
from exchange import answer, asked
from torch import Tensor, nn

from bench import beside_breaching as case_module
from bench.beside_breaching import CLASSES, HALF, SIDE, Case, Classifier, case_of

torch.set_num_threads(1)


def leakpro(case: Case, setting: tuple[float, float]) -> Tensor:
    """Its preset, its client and its training simulator; total variation and first step are the setting."""
    from leakpro.attacks.gia_attacks.modular.components.optimization_building_blocks import training_simulator
    from leakpro.attacks.gia_attacks.modular.presets import inverting_gradients_attack
    from leakpro.fl_utils.fl_client_simulator import FLClientSimulator

    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    model = Classifier(case.model).eval()
    half = torch.full((3, 1, 1), HALF)
    data = [((case.pixels[0] - HALF) / HALF, int(case.knowledge.inputs[0].tensors["label"]))]
    loader: Any = torch.utils.data.DataLoader(data, batch_size=1)  # type: ignore[arg-type]
    client = FLClientSimulator(loader, half, half, len(CLASSES), torch.device("cpu"))
    settings = training_simulator.TrainingSettings(
        epochs=1, optimizer_type="sgd", training_batch_size=1, compute_mode="gradients", model_mode="eval",
        shuffle_mode="client",
    )  # fmt: skip
    seen = client.train_and_observe(model, settings, nn.CrossEntropyLoss(), send_labels_to_server=True)
    for name, value in seen.gradients.items():
        known = case.view.gradient[name]
        assert torch.allclose(value, known, rtol=1e-3, atol=1e-5), f"both sides must be given the same {name}"
    config = inverting_gradients_attack()
    config.tv_weight, config.learning_rate = setting
    config.max_iterations = case_module.BUDGET
    attack = config.build(client_observations=seen)
    found, _ = attack.run_attack(target_model=model, client_observations=seen, device=torch.device("cpu"),
                                 input_shape=(1, 3, SIDE, SIDE))  # fmt: skip
    return (found.reshape(1, 3, SIDE, SIDE) * HALF + HALF).clamp(0, 1)


def shim() -> None:
    """torchvision's operators are compiled for one build of PyTorch; none is used, but it wants to see their names."""
    registry: Any = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        registry.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_kept"] = registry


job, _ = asked()
case_module.BUDGET = job["budget"]
shim()  # on docleak's sides, too: transformers looks at torchvision where it is there
if job["side"] == "leakpro":
    sys.path[:0] = [job["source"]]
attacker: Any = {"leakpro": leakpro, "docleak, same steps": case_module.ours,
                 "docleak, own solver": case_module.ours_bounded}[job["side"]]  # fmt: skip
cases = [case_of(job["network"], number) for number in range(job["tuned_on"] + job["pictures"])]
seconds, steps = 0.0, 0


def of(case: Case, setting: tuple[float, float]) -> float:
    """PSNR in dB of what it finds."""
    global seconds, steps
    began = time.process_time()
    picture = attacker(case, setting)
    seconds, steps = seconds + time.process_time() - began, steps + job["budget"]
    return case_module._psnr(case, picture)


tried = {tuple(s): float(np.mean([of(c, tuple(s)) for c in cases[: job["tuned_on"]]])) for s in job["settings"]}
best = max(tried, key=lambda setting: tried[setting])
psnr = [of(case, best) for case in cases[job["tuned_on"] :]]
answer({"setting": best, "tried": len(tried), "psnr": psnr, "ms": 1e3 * seconds / steps})
