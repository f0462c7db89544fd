"""Recovery of the text side by linear algebra, by architecture."""

from __future__ import annotations

from docleak.attacks.gradients.algebra.recovered import Recovered
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.errors import AttackError

#: Architectures whose text a gradient gives away in closed form.
RECOVERABLE = ("donut", "layoutlmv3")


def recover(view: GradientView, knowledge: Knowledge) -> Recovered:
    """The client's text input, from the gradient and the public template alone.

    Raises AttackError for architectures without a closed form.
    """
    architecture = view.model.architecture
    if architecture == "donut":
        from docleak.attacks.gradients.algebra.donut import recover_text as of_donut

        return of_donut(view)
    if architecture == "layoutlmv3":
        from docleak.attacks.gradients.algebra.layoutlmv3 import recover_text as of_layoutlmv3

        return of_layoutlmv3(view, knowledge.template, knowledge.private)
    raise AttackError(f"the text input of a {architecture} has no closed-form recovery; give it, or use random tokens.")
