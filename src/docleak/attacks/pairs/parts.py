"""Pair attacks with the single-modal attacks that they are made of exchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from docleak.attacks.gradients.engine import GradientAttack
from docleak.attacks.pairs.together import ImageAttack, PairAttack, PairFinding
from docleak.attacks.pairs.view import PairKnowledge, PairView
from docleak.attacks.protocol import Attack
from docleak.attacks.registries import ATTACKS, IMAGES, PAIRS, TEXTS
from docleak.errors import AttackError
from docleak.registry import Choice

#: What every attack on pairs offers; ``PairAttack`` is the composition that docleak's are.
AttackOnPairs: TypeAlias = Attack[PairView, PairKnowledge, PairFinding]


def with_parts(choice: Choice, *, image: Choice = "", text: Choice = "") -> AttackOnPairs:
    """An attack on pairs, with another image attack (of IMAGES or ATTACKS) or text attack (of TEXTS).

    AttackError lists what is known, and says so where the attack is not made of such parts.
    """
    attack = PAIRS.load(choice)
    if not (image or text):
        return attack
    if not isinstance(attack, PairAttack):
        raise AttackError(f"pair attack {attack.name!r} is not made of attacks that could be exchanged.")
    if image:
        part = _image(image)
        attack = replace(attack, image=part, name=f"{attack.name}:image={part.name}")
    if text:
        words = TEXTS.load(text)
        attack = replace(attack, text=words, name=f"{attack.name}:text={words.name}")
    return attack


def _image(choice: Choice) -> ImageAttack:
    if isinstance(choice, str) and choice not in IMAGES:
        attack = ATTACKS.load(choice)
        if not isinstance(attack, GradientAttack):
            raise AttackError(f"attack {choice!r} is no optimisation of pixels; pairs need one, such as dlg.")
        return attack
    return IMAGES.load(choice)
