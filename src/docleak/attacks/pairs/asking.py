"""Asking an attack on pairs, which may be somebody's own, and checking what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from numbers import Integral, Real
from typing import Any

import torch

from docleak.attacks.asking import (
    called,
    checked,
    is_a,
    is_own,
    left_alone,
    odd_numbers,
    odd_pixels,
    odd_text,
    type_said,
)
from docleak.attacks.pairs.parts import AttackOnPairs
from docleak.attacks.pairs.together import PairFinding, Round
from docleak.attacks.pairs.view import PairKnowledge, PairView

EXPECTED = (
    "a docleak.attacks.pairs.PairFinding: pixels, a tensor (B, 3, H, W) of finite numbers in [0, 1]; texts, B strings; "
    "tokens, B tuples of whole numbers; labels, two tuples of B classes; evaluations, whole numbers from 0 to the "
    "budget; qualities and seconds, numbers; rounds, a tuple of Round"
)


def ask(
    attack: AttackOnPairs, view: PairView, knowledge: PairKnowledge, *, budget: int, generator: torch.Generator,
    forget: Callable[[], object] = lambda: None,
) -> PairFinding:  # fmt: skip
    """What ``attack`` finds, which is given a copy of what it knows.

    OwnAttackError, which names the attack, for a ``run`` that cannot be called, for what is no PairFinding or, of an
    attack of one's own, none that can be, and where it leaves another gradient or model than it was given;
    ``forget`` is called first then.
    """
    told = deepcopy(knowledge) if is_own(attack) else knowledge
    with left_alone(
        f"attack {attack.name!r}", [("the client's model", view.model.module)], [view.gradient], forget=forget
    ):
        finding = called(attack, {"view": view, "knowledge": told}, budget=budget, generator=generator)
    return checked(attack, finding, PairFinding, _faults(finding, view, budget), EXPECTED)


def _faults(finding: Any, view: PairView, budget: int) -> Iterator[str]:
    (width, height), pairs = view.model.image_size, view.batch_size
    yield from odd_pixels(finding.pixels, (pairs, 3, height, width), "that of the client's pictures")
    texts: object = finding.texts
    if not isinstance(texts, tuple | list) or len(texts) != pairs or not all(isinstance(one, str) for one in texts):
        yield f"texts is {type_said(texts)}, not {pairs} strings"
    else:
        yield from (fault for number, text in enumerate(texts) for fault in odd_text(f"texts[{number}]", text))
    vocabulary = len(view.model.tokenizer)
    most = {"tokens": (vocabulary, f"the vocabulary has {vocabulary}"),
            "labels": (len(view.model.classes), f"the classes are 0 to {len(view.model.classes) - 1}")}  # fmt: skip
    for name, count in (("tokens", pairs), ("labels", 2)):
        rows: object = getattr(finding, name)
        if not isinstance(rows, tuple | list) or len(rows) != count:
            yield f"{name} is {type_said(rows)}, not {count} tuples of whole numbers"
            continue
        for number, row in enumerate(rows):
            length = pairs if name == "labels" or not isinstance(row, tuple | list) else len(row)
            faults = [*odd_numbers(f"{name}[{number}]", row, length, Integral)]
            wrong = [] if faults else [value for value in row if not 0 <= value < most[name][0]]
            yield from [*faults, *(f"{name}[{number}] has {value}; {most[name][1]}" for value in wrong[:1])]
    for name in ("image_evaluations", "text_evaluations"):
        if not is_a(value := getattr(finding, name), Integral) or not 0 <= value <= budget:
            yield f"{name} is {type_said(value)}; the budget is {budget}"
    for name in ("image_quality", "text_quality", "image_seconds", "text_seconds", "align_seconds"):
        if not is_a(value := getattr(finding, name), Real):
            yield f"{name} is {type_said(value)}, no number"
    rounds: object = finding.rounds
    if not isinstance(rounds, tuple | list) or not all(isinstance(one, Round) for one in rounds):
        yield f"rounds is {type_said(rounds)}, no tuple of Round"
