"""How much of a plan is spent: counted before a round is run, and refused under another plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from docleak.errors import PrivacyError
from docleak.privacy.accounting import Guarantee, guarantee
from docleak.privacy.plan import DpPlan


@dataclass(frozen=True)
class Ledger:
    """The rounds of ``plan`` that were begun.

    Take ``begin_round`` and save it before anything of the round leaves: a round that was begun and then lost has cost
    its share all the same.
    """

    plan: DpPlan
    begun: int = 0

    @property
    def left(self) -> int:
        """Rounds that may still be begun."""
        return self.plan.mechanism.rounds - self.begun

    def begin_round(self) -> Ledger:
        """One round more. PrivacyError once the plan is spent."""
        if self.left < 1:
            raise PrivacyError(
                f"the privacy budget is spent: all {self.plan.mechanism.rounds} rounds of the plan were begun "
                f"({self.plan.guarantee().sentence()}) Training longer needs a new plan, with new data or a new budget."
            )
        return replace(self, begun=self.begun + 1)

    def spent(self) -> Guarantee | None:
        """What the rounds so far guarantee; None before the first."""
        if not self.begun:
            return None
        return guarantee(replace(self.plan.mechanism, rounds=self.begun), self.plan.delta, self.plan.accountant)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``resume`` reads it."""
        return {"plan": self.plan.to_dict(), "begun": self.begun}

    @classmethod
    def resume(cls, saved: Mapping[str, Any], plan: DpPlan) -> Ledger:
        """The saved ledger, to be continued under ``plan``; PrivacyError if it was begun under another one."""
        if set(saved) != {"plan", "begun"} or type(saved["begun"]) is not int or saved["begun"] < 0:
            raise PrivacyError("the saved privacy ledger is damaged; expected a plan and the number of rounds begun.")
        before = DpPlan.from_dict(saved["plan"])
        if before != plan:
            was, now = _flat(before), _flat(plan)
            changed = "; ".join(f"{name} was {was[name]} and is {now[name]}" for name in was if was[name] != now[name])
            raise PrivacyError(
                f"this training was begun under another privacy plan ({changed}). Its rounds were accounted under that "
                "one, so the budget would be wrong: go on with the old plan, or begin anew."
            )
        return cls(plan, saved["begun"])


def _flat(plan: DpPlan) -> dict[str, Any]:
    outer = plan.to_dict()
    return {**outer.pop("mechanism"), **outer}
