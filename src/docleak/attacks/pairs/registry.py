"""Pair attacks by name, with the single-modal attacks they are made of exchangeable."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import cast

from docleak.attacks.gradients import GradientAttack, load_attack
from docleak.attacks.pairs.gifd import GIFD
from docleak.attacks.pairs.single import DLG, IMAGE, IMAGE_PAPER, LAMP, TAG
from docleak.attacks.pairs.text import TextAttack
from docleak.attacks.pairs.together import ImageAttack, PairAttack
from docleak.errors import AttackError

#: name -> "module:object".
PAIR_ATTACKS: dict[str, str] = {
    "mmgia": "docleak.attacks.pairs.mmgia:ATTACK",
    "mmgia-d": "docleak.attacks.pairs.mmgia:DIRECT",
    "mmgia-prior": "docleak.attacks.pairs.mmgia:GUIDED",
    "mmgia-stage1": "docleak.attacks.pairs.mmgia:STAGE_1",
    "mgis": "docleak.attacks.pairs.mgis:ATTACK",
    "tag": "docleak.attacks.pairs.mmgia:TAG_ALONE",
    "gifd": "docleak.attacks.pairs.mmgia:GIFD_ALONE",
    "lamp": "docleak.attacks.pairs.mmgia:LAMP_ALONE",
}
#: Of docleak.attacks.gradients, and those that only pairs have.
IMAGE_ATTACKS: dict[str, ImageAttack] = {attack.name: attack for attack in (IMAGE, IMAGE_PAPER, GIFD)}
TEXT_ATTACKS: dict[str, TextAttack] = {attack.name: attack for attack in (DLG, TAG, LAMP)}


def load_pair_attack(name: str, *, image: str = "", text: str = "") -> PairAttack:
    """The registered attack, with another image attack (of docleak.attacks.gradients or IMAGE_ATTACKS) or text attack.

    AttackError lists what is known.
    """
    attack = cast(PairAttack, _named(name))
    if image:
        attack = replace(attack, image=_image(image), name=f"{attack.name}:image={image}")
    if text:
        if text not in TEXT_ATTACKS:
            raise AttackError(f"unknown text attack {text!r}; expected one of {', '.join(TEXT_ATTACKS)}.")
        attack = replace(attack, text=TEXT_ATTACKS[text], name=f"{attack.name}:text={text}")
    return attack


def _named(name: str) -> object:
    if name not in PAIR_ATTACKS:
        near = get_close_matches(name, PAIR_ATTACKS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise AttackError(f"unknown pair attack {name!r}.{hint} Known: {', '.join(PAIR_ATTACKS)}.")
    module, attribute = PAIR_ATTACKS[name].split(":")
    return getattr(import_module(module), attribute)


def _image(name: str) -> ImageAttack:
    if name in IMAGE_ATTACKS:
        return IMAGE_ATTACKS[name]
    found = load_attack(name)
    if not isinstance(found, GradientAttack):
        raise AttackError(f"attack {name!r} is no optimisation of pixels; pairs need one, such as dlg.")
    return found
