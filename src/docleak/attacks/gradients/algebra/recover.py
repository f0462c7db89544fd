"""Recovery of the text side by linear algebra, by architecture."""

from __future__ import annotations

from dataclasses import dataclass, replace

from docleak.attacks.gradients.algebra.bag import bag_of_words
from docleak.attacks.gradients.algebra.first_layer import Sent, recover_words
from docleak.attacks.gradients.algebra.recovered import Condition, Recovered
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.errors import AttackError
from docleak.models.vlm.model import VisionLanguage

#: Architectures whose text a gradient gives away in closed form.
RECOVERABLE = ("donut", "layoutlmv3", "lilt")


def recover(view: GradientView, knowledge: Knowledge) -> Recovered:
    """The client's text input, from the gradient and the public template alone.

    Of a vision-language client in order, where that is told (``order``), whatever of it is known. Raises AttackError
    for architectures without a closed form.
    """
    architecture = view.model.architecture
    if isinstance(view.model, VisionLanguage):
        from docleak.attacks.gradients.algebra.order import recover_order

        return recover_order(view, replace(knowledge, question_known=False), recover_set(view).tokens)
    if architecture == "donut":
        from docleak.attacks.gradients.algebra.donut import recover_text as of_donut

        return of_donut(view)
    if architecture in ("layoutlmv3", "lilt"):
        from docleak.attacks.gradients.algebra.layoutlmv3 import recover_text as of_layoutlmv3

        return of_layoutlmv3(view, knowledge.template, knowledge.private)
    raise AttackError(f"the text input of a {architecture} has no closed-form recovery; give it, or use random tokens.")


@dataclass(frozen=True)
class TokenSet:
    """``tokens`` are ids in no order, read by ``route``; ``exact`` is the adversary's own belief that these are all."""

    tokens: tuple[int, ...]
    exact: bool
    route: str
    conditions: tuple[Condition, ...]
    seconds: float = 0.0


#: Routes to a set of tokens.
TABLE, SPAN = "the rows of the token table that moved", "the span of the first layer's gradients"


def recover_set(view: GradientView) -> TokenSet:
    """The words of a vision-language client as a set, by whichever route is believed exact, the table's first.

    Raises AttackError where neither the table of tokens nor a layer that reads words alone sent anything.
    """
    faults = []
    try:
        bag = bag_of_words(view.model, view.gradient)
        moved = f"{len(bag.tokens)} of {len(bag.belief)}"
        condition = Condition("rows of words that were not read did not move", moved, bag.exact)
        table = TokenSet(bag.tokens, bag.exact, TABLE, (condition,))
        if table.exact or hasattr(view.model, "answer_layers"):  # whose span holds answers alone
            return table
    except AttackError as fault:
        table = None
        faults.append(str(fault))
    try:
        words = recover_words(view.model, [Sent(view.gradient, dict.fromkeys(view.gradient, view.noise))])
    except AttackError as fault:
        if table is None:
            raise AttackError(" ".join([*faults, str(fault)])) from fault
        return table
    spanned = TokenSet(words.tokens, words.exact, SPAN, words.conditions, words.seconds)
    return spanned if words.exact or table is None else table
