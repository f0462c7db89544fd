"""Which tensors of a gradient a deep model's page is read from: those next to the pixels, where they suffice.

The gradient of an encoder's first layers depends on the whole page through every layer behind them, and there are far
more numbers in it than pixels are unknown. The tensors behind them cost most of an evaluation of a Donut of the
published size, and bring the search no further (docs/results/gi-dqa/donut-ladder.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Literal

from docleak.attacks.gradients.view import GradientView
from docleak.models.base import trainable
from docleak.models.donut import Donut

#: Which tensors are matched: all that were sent, or of a deep encoder those of its first layers (``shallow``).
Layers = Literal["all", "shallow"]
#: Of a Swin encoder the patch embedding and the blocks before the second merging of patches: cells of 4 and 8 pixels.
STAGES = 2


def shallow(view: GradientView) -> GradientView:
    """The same view with no more tensors than its pixels are looked for in.

    They are fewer for a Donut whose encoder has more than STAGES stages. All of them stay where not one of those was
    sent, where local steps mix the tensors, and where a defence that is imitated looks at all of them.
    """
    model = view.model
    if not isinstance(model, Donut) or view.local is not None or view.imitate is not None:
        return view
    kept = {name: value for name, value in view.gradient.items() if model.early(name, STAGES)}
    return replace(view, gradient=kept) if 0 < len(kept) < len(view.gradient) else view


@contextmanager
def constant_but(views: Sequence[GradientView]) -> Iterator[None]:
    """Within it each view's parameters without a gradient in the view are constants: nothing is kept for theirs.

    Views of local steps train everything and are left alone.
    """
    with ExitStack() as stack:
        for view in views:
            for name, parameter in trainable(view.model.module) if view.local is None else ():
                if name not in view.gradient:
                    parameter.requires_grad_(False)
                    stack.callback(parameter.requires_grad_, True)
        yield
