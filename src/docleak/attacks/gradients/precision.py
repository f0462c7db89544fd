"""The adversary's loss in double precision, where float32 loses what a sure model still tells.

A gradient of cross-entropy is a sum over (p - y). Where the model is sure, p is 1 - 1e-6 or so, which float32 keeps to
a few per cent, in steps: the search walks on a staircase. The logits hold more; a softmax in double precision gets it
out of them, and costs nothing beside the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from docleak.attacks.gradients.view import GradientView

#: Norm of a gradient below which the model was sure: of docleak's tiny models those at the start of training send 8 to
#: 16, a trained Donut 0.2 to 20, a trained LayoutLMv3 0.05 at most on pages like those of its training.
SURE = 0.1


def sure(view: GradientView) -> bool:
    """Whether the size of a gradient tells that the model was sure of the answer: of one that no local steps and no
    known defence made."""
    return view.local is None and view.imitate is None and not view.noise and view.largest.norm < SURE


class DoubleLoss(TorchFunctionMode):
    """Within this context ``F.cross_entropy`` without class weights is computed in double precision, and rounded last.

    Other losses stay as they are.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """What torch calls instead of ``func``."""
        given = kwargs or {}
        if func is not F.cross_entropy or given.get("weight") is not None:
            return func(*args, **given)
        logits, *others = args
        return func(logits.double(), *others, **given).to(logits.dtype)
