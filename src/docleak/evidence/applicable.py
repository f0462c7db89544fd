"""What of an audit's attacks applies to which model, told before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from docleak.attacks.gradients import ATTACKS, GradientAttack
from docleak.attacks.gradients.algebra.patches import obstacle
from docleak.defenses import DEFENSES
from docleak.errors import AttackError
from docleak.evidence.texts import text_obstacle
from docleak.models import DocumentModel, trainable
from docleak.spec import split_name

if TYPE_CHECKING:
    from docleak.evidence.audit import AuditConfig

#: Tried by itself wherever it applies: linear algebra, which costs next to nothing where it determines the page.
CLOSED_FORM = "closed-form"


def with_closed_form(attacks: Sequence[str], *, batch_size: int) -> tuple[str, ...]:
    """``attacks``, and behind them the closed form, unless it is among them or the gradient mixes several pages."""
    named = {split_name(attack)[0] for attack in attacks}
    return (*attacks,) if batch_size > 1 or CLOSED_FORM in named else (*attacks, CLOSED_FORM)


def inapplicable(model: DocumentModel, attack: str, config: AuditConfig) -> str:
    """Why ``attack`` cannot be made on this model under ``config``; "" where it can."""
    exposure = config.exposure
    if exposure.recover_text and (why := text_obstacle(model, config.batch_size)):
        return f"{why}, which --recover-text asks for"
    if split_name(attack)[0] != CLOSED_FORM:
        return ""
    frozen = getattr(DEFENSES.load(exposure.defense), "frozen", ())
    stages = {model.stage(name) for name, _ in trainable(model.module)} - set(frozen)
    stages &= set(exposure.stages or stages)
    sent = [name for name, _ in trainable(model.module) if model.stage(name) in stages]
    return obstacle(model.architecture, model.name, sent, config.batch_size, one_page=False).rstrip(".")


def require_budget(attacks: Sequence[str], budget: int, *, rounds: int) -> None:
    """AttackError where ``budget`` does not suffice for an attack to begin: its whitening draws come out of it."""
    least = {name: least_budget(name, rounds) for name in attacks}
    short = {name: needed for name, needed in least.items() if needed > budget}
    if short:
        named = ", ".join(f"{name} {needed}" for name, needed in short.items())
        raise AttackError(
            f"the budget is {budget} gradient evaluations, which the draws of whitened matching alone would spend; "
            f"expected at least: {named}. Raise --budget."
        )


def least_budget(name: str, rounds: int) -> int:
    """The fewest gradient evaluations with which the attack of that name can begin."""
    attack = ATTACKS.load(name)
    return attack.least_budget(rounds) if isinstance(attack, GradientAttack) else 1
