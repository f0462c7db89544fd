"""An observed update as a GradientView: what a server makes of the weights or the delta that one client sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from docleak.attacks.gradients.local_steps import CERTAIN, ImitatedSteps, Optimiser, SignedStep, Taken
from docleak.attacks.gradients.matching import informative
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.errors import GradientError
from docleak.models.base import DocumentModel

#: Share of a tensor's power above which it is taken for rounding, and left out.
DROWNED = 0.01


def observe(
    model: DocumentModel, delta: Mapping[str, Tensor], local: ImitatedSteps, knowledge: Knowledge, *, train_mode: bool,
    taken: Taken | None = None,
) -> GradientView:  # fmt: skip
    """The view of a server that received ``delta`` = theta_0 - theta_K, where ``model`` holds theta_0.

    ``local`` is how the adversary believes the client trained. Left out are tensors that drown in the rounding of their
    weights, and those whose gradient is zero but for rounding, which AdamW blows up; the adversary tells these by its
    own gradient at the template, of which ``taken`` may know. One AdamW step is inverted (``SignedStep``). Raises
    GradientError if nothing is left.
    """
    start = {name: p.detach() for name, p in model.module.named_parameters() if name in delta}
    optimiser, steps = local.optimiser, local.steps
    update = optimiser.as_gradient(delta, start, steps)
    noise = optimiser.rounding(start)
    power = {name: float(value.double().square().sum()) for name, value in update.items()}
    drowned = {name: noise[name] ** 2 * update[name].numel() / power[name] for name in update if power[name] > 0}
    alive = _alive(model, tuple(update), local, knowledge, taken)
    known = [name for name in alive if drowned.get(name, 1.0) < DROWNED]
    if not known:
        raise GradientError(
            "nothing of the update rises above the rounding of the weights it was sent as. Was the learning rate tiny, "
            "or the update that of another model?"
        )
    view = GradientView(
        model,
        {name: update[name] for name in known},
        batch_size=sum(map(len, local.batches)),
        train_mode=train_mode,
        noise=float(torch.tensor([noise[name] for name in known]).median()),
        local=local,
        slack=sum(drowned[name] for name in known) / len(known),
    )
    if optimiser.kind != "adamw" or steps > 1:
        return view
    gradient, sure = SignedStep.invert(view.gradient, start, optimiser)
    plain = replace(optimiser, kind="sgd", weight_decay=0.0)
    return replace(
        view, gradient=gradient, imitate=sure, noise=0.0, local=replace(local, optimiser=plain), slack=CERTAIN**2
    )


def _alive(
    model: DocumentModel, names: Sequence[str], local: ImitatedSteps, knowledge: Knowledge, taken: Taken | None = None
) -> tuple[str, ...]:
    """Names whose gradient is not zero up to rounding, by the first step at the blank template."""
    plain = Optimiser("sgd", local.optimiser.learning_rate)
    first = ImitatedSteps(plain, local.batches[:1], local.owners, frozen=local.frozen)
    given = (model, knowledge.template, knowledge.inputs, names)
    return informative(first.simulate(*given, create_graph=False, taken=taken))
