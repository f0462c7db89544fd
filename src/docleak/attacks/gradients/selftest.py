"""The self-test before every gradient attack, run by the evaluator, who holds the truth.

The true input must bring the matching distance to about zero. If it does not, the adversary's copy
of the training step differs from the client's, every attack would fail for that reason alone, and the
run stops with the likely cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from docleak.attacks.gradients.engine import inference_mode_of
from docleak.attacks.gradients.local_steps import Taken
from docleak.attacks.gradients.matching import Gradient, distance_at, dummy_of, informative, relative
from docleak.attacks.gradients.view import GradientView
from docleak.errors import SelfTestError
from docleak.models.base import Encoded, dropout_rate

#: Largest relative distance (mean of |g' - g|² / |g|²) that counts as a match: float32 rounding is ~1e-12.
TOLERANCE = 1e-6
#: How much larger than its expectation an error by rounding may be.
ROUNDED = 4.0


@dataclass(frozen=True)
class SelfTest:
    """The distance at the truth, and what may explain it where it is not ~0, the most probable first."""

    distance: float
    causes: tuple[str, ...] = ()
    tolerance: float = TOLERANCE

    @property
    def passed(self) -> bool:
        return self.distance <= self.tolerance

    def require(self) -> None:
        """Raise SelfTestError unless passed."""
        if not self.passed:
            causes = "\n  - ".join(self.causes or ("no known cause fits; compare loss and inputs with the client's",))
            raise SelfTestError(
                f"self-test failed: the true page does not reproduce the client's gradient (relative distance "
                f"{self.distance:.2e}, expected <= {self.tolerance:.0e}), so a failed attack would prove nothing. "
                f"Possible causes, the most probable first:\n  - {causes}\nMend it, or pass "
                "--allow-failed-self-test to attack all the same."
            )


def self_test(
    view: GradientView, pixels: Tensor, inputs: Sequence[Encoded], *, causes: bool = True, taken: Taken | None = None
) -> SelfTest:
    """Compare the gradient of the true batch with the observed one; ``pixels`` (B, 3, H, W) in [0, 1].

    Of several rounds the one that matches worst is told. Its ``causes`` cost several gradients; ``taken`` is what is
    known of the first round's.
    """
    given = zip(view.rounds, (taken, *(None for _ in view.later)), strict=True)
    return max((_of_round(one, pixels, inputs, causes, known) for one, known in given), key=lambda test: test.distance)


def _of_round(
    view: GradientView, pixels: Tensor, inputs: Sequence[Encoded], causes: bool, taken: Taken | None
) -> SelfTest:
    with inference_mode_of(view):
        ours = view.as_sent(dummy_of(view, pixels, inputs, create_graph=False, taken=taken))
        test = SelfTest(float(relative(view)(ours)), tolerance=TOLERANCE + ROUNDED * view.slack)
        if test.passed or not causes:
            return test
        return replace(test, causes=tuple(_causes(view, pixels, inputs, ours, test.distance)))


def _causes(
    view: GradientView, pixels: Tensor, inputs: Sequence[Encoded], ours: Gradient, distance: float
) -> list[str]:
    dropout = dropout_rate(view.model.module)
    causes = []
    if view.local is not None and len(view.local.batches) > 1:
        causes.append("other local steps: optimiser, learning rate, or the order and number of examples differ")
    if view.train_mode and dropout:
        causes.append(f"the client trained with dropout on (up to p = {dropout}); its masks cannot be known")
    scale, left = _best_scale(view, ours)
    if scale > 0 and (left < 1e-4 * distance or left <= TOLERANCE):
        causes.append(
            f"loss scale: the observed gradient is {scale:.4g} times ours (sum instead of mean, or AMP scaling)"
        )
    # Only the best match: layer norms hide most of an input's scale, so that several come close. One may be our own.
    others = [pair for pair in _other_pixels(view, pixels) if not torch.allclose(pair[1], pixels, rtol=0.0, atol=1e-5)]
    left, name = min(((distance_at(view, other, inputs), name) for name, other in others), default=(math.inf, ""))
    if left < max(TOLERANCE, 0.01 * distance):
        causes.append(f"pixel normalisation: it matches when the client's pixels are {name}")
    unmasked = _unmasked(inputs)
    if unmasked is not None and distance_at(view, pixels, unmasked) < max(TOLERANCE, 0.01 * distance):
        causes.append("label mask: the client also trains on the question's tokens")
    worst = _only_tied(view, ours)
    if worst:
        causes.append(f"tied weights: only {worst} differs; was a shared weight counted once per place?")
    if not causes:
        if dropout:
            masks = "its masks cannot be known" if view.local else "say --train-mode if it was on"
            causes.append(f"train or evaluation mode: the model has dropout (p = {dropout}); {masks}")
        causes.append("other examples: it is of another page, question or answer, or of another number of them")
    return causes


def _best_scale(view: GradientView, ours: Gradient) -> tuple[float, float]:
    """The factor s that brings s * ours closest to the observed gradient, and the relative distance left."""
    names = informative(view.gradient)
    dot = sum(float((ours[n] * view.gradient[n]).sum()) for n in names)
    power = sum(float(ours[n].square().sum()) for n in names)
    scale = dot / power if power > 0 else 0.0
    return scale, float(relative(view)({n: v * scale for n, v in ours.items()}))


def _other_pixels(view: GradientView, pixels: Tensor) -> list[tuple[str, Tensor]]:
    """What to give our model so that its network sees the pixels under another normalisation (each is affine)."""
    mean = pixels.new_tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    std = pixels.new_tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    offset = view.model.normalise(torch.zeros_like(pixels))
    slope = view.model.normalise(torch.ones_like(pixels)) - offset
    others = [
        ("left in [0, 1]", pixels),
        ("left in 0..255", pixels * 255),
        ("normalised with mean and standard deviation 0.5", (pixels - 0.5) / 0.5),
        ("normalised with ImageNet's mean and standard deviation", (pixels - mean) / std),
    ]
    return [(name, (seen - offset) / slope) for name, seen in others]


def _unmasked(inputs: Sequence[Encoded]) -> list[Encoded] | None:
    if any("decoder_input_ids" not in e.tensors for e in inputs):
        return None
    changed = []
    for e in inputs:
        ids, labels = e.tensors["decoder_input_ids"], e.tensors["labels"]
        changed.append(replace(e, tensors={**e.tensors, "labels": torch.cat([ids[1:], labels[-1:]])}))
    return changed


def _only_tied(view: GradientView, ours: Gradient) -> str:
    """The name of the embedding if it is the only tensor that does not match."""
    wrong = []
    for name in informative(view.gradient):
        true = view.gradient[name]
        if float((ours[name] - true).square().sum() / true.square().sum()) > TOLERANCE:
            wrong.append(name)
    return wrong[0] if len(wrong) == 1 and "embed" in wrong[0] else ""
