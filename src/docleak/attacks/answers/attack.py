"""Provider membership inference by what a model answers, as attacks: Tito et al. (2024), section 5.2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from docleak.attacks.answers.features import GROUPS, FeatureTable
from docleak.attacks.answers.membership import ApkConfig, AzkConfig, Guess, apk, azk, cls1, cls2, hard_vote
from docleak.attacks.asking import called, checked, is_own, odd_scores, type_said
from docleak.attacks.protocol import Described
from docleak.errors import AttackError

EXPECTED = (
    "a docleak.attacks.answers.membership.Guess: providers, all of view.providers, each once; scores, an array (P,) of "
    "finite floats, and members, an array (P,) of bool, in their order"
)


@dataclass(frozen=True, eq=False)
class ProvidersView:
    """What was learnt of each provider by asking (``table``), and the providers to say something of."""

    table: FeatureTable
    providers: Sequence[str]


@runtime_checkable
class AnswersAttack(Described, Protocol):
    """What every attack on answers offers.

    ``groups`` are the features that it looks at, with those of the memorisation test too if it ``votes``; ``known`` is
    the share of the providers whose membership it is told; ``setting`` says what it knows, as the paper's column does.
    """

    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def votes(self) -> bool: ...
    @property
    def known(self) -> float: ...
    @property
    def setting(self) -> str: ...

    def run(self, view: ProvidersView, knowledge: Mapping[str, bool], *, seed: int) -> Guess:
        """Guess which of the view's providers are members; ``knowledge`` says it of others."""


@dataclass(frozen=True)
class MembershipAttack:
    """One attack with its knowledge: ``kind`` "azk" or "apk", over feature ``groups``.

    ``columns``, if any, are the only ones of them that it sees. With ``votes`` CLS1 and CLS2 vote too. APK knows the
    share ``known`` of the providers and compares so many ``searched`` forests (0: one with its defaults); AZK, which
    has no forest, takes no other number.
    """

    paper: ClassVar[str] = "Tito et al. (2024)"
    kind: str = "azk"
    groups: tuple[str, ...] = ("G1",)
    columns: tuple[str, ...] = ()
    votes: bool = False
    known: float = 0.15
    searched: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.known < 1 or self.searched < 0:
            raise AttackError(
                f"known is {self.known} and searched {self.searched}; expected a share between 0 and 1, with some "
                "providers told and others left to measure on, and 0 or more forests."
            )
        if self.kind == "azk" and self.searched:
            raise AttackError(f"searched is {self.searched}, and AZK has no forests to compare; APK does.")
        columns = [column for of in GROUPS.values() for column in of]
        wrong = [*(set(self.groups) - set(GROUPS)), *(set(self.columns) - set(columns))]
        if self.kind not in ("azk", "apk") or not self.groups or wrong:
            raise AttackError(
                f"kind is {self.kind!r}, groups {', '.join(self.groups) or '(none)'} and columns "
                f"{', '.join(self.columns) or '(all)'}; expected azk or apk, some of {', '.join(GROUPS)}, and of "
                f"{', '.join(columns)}."
            )

    @property
    def name(self) -> str:
        return self.kind.upper() + ("+CLS1+CLS2" if self.votes else "")

    @property
    def summary(self) -> str:
        how = "two clusters of providers" if self.kind == "azk" else "a random forest that learns from known providers"
        return how + (", in a vote with both memorisation classifiers" if self.votes else "")

    @property
    def setting(self) -> str:
        loss = bool({"G2", "G3"} & set(self.groups)) or bool(set(self.columns) & {*GROUPS["G2"], *GROUPS["G3"]})
        return f"{'PK' if loss else 'ZK'} + {'S' if self.kind == 'apk' else 'U'}"

    def run(self, view: ProvidersView, knowledge: Mapping[str, bool], *, seed: int) -> Guess:
        """What the attack says of the view's providers; only APK looks at ``knowledge``."""
        seen = only(view.table, self.columns) if self.columns else view.table
        tested = view.table.of(view.providers)
        if self.kind == "azk":
            first = azk(seen.of(view.providers), AzkConfig(self.groups), seed=seed)
        else:
            first = apk(seen, knowledge, ApkConfig(self.groups, search=self.searched), seed=seed).of(view.providers)
        return hard_vote([first, cls1(tested), cls2(tested, seed=seed)]) if self.votes else first


AZK, APK = MembershipAttack(), MembershipAttack("apk", ("G1", "G2", "G3"))
AZK_VOTING, APK_VOTING = replace(AZK, votes=True), replace(APK, votes=True)


def ask_who(attack: AnswersAttack, view: ProvidersView, knowledge: Mapping[str, bool], *, seed: int) -> Guess:
    """What ``attack`` says of all the view's providers; one of one's own is given a copy of what it sees.

    OwnAttackError, which names the attack, for a ``run`` that cannot be called, and for what is no Guess or, of an
    attack of one's own, none that can be: one that leaves out whom it is not sure of would be right too often.
    """
    seen = deepcopy(view) if is_own(attack) else view
    guess = called(attack, {"view": seen, "knowledge": dict(knowledge)}, seed=seed)
    return checked(attack, guess, Guess, _faults(guess, view.providers), EXPECTED)


def _faults(guess: Any, asked: Sequence[str]) -> Iterator[str]:
    named: object = guess.providers
    if not isinstance(named, tuple | list):
        yield f"providers is {type_said(named)}, no tuple of names"
    elif sorted(map(str, named)) != sorted(asked):
        known = set(named) & set(asked)
        yield f"providers are {len(named)}, {len(known)} of them of the {len(asked)} that were asked about"
    yield from odd_scores("scores", guess.scores, len(asked))
    members: object = guess.members
    if not isinstance(members, np.ndarray) or members.dtype != np.bool_ or members.shape != (len(asked),):
        yield f"members is {type_said(members)}; expected an array of bool and the shape ({len(asked)},)"


def only(table: FeatureTable, columns: Sequence[str]) -> FeatureTable:
    """The table for an ablation: other columns are 0, which tells neither a cluster nor a tree anything."""
    if unknown := [name for name in columns if name not in table.columns]:
        raise AttackError(f"the feature table has no {', '.join(unknown)}; it has {', '.join(table.columns)}.")
    kept = np.array([name in columns for name in table.columns])
    return FeatureTable(table.providers, table.columns, np.where(kept, table.values, 0.0), table.questions)
