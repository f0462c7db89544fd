"""Attacks on clients that train on pictures with texts: both modalities, alone and together."""

from docleak.attacks.pairs.registry import PAIR_ATTACKS, load_pair_attack
from docleak.attacks.pairs.together import PairAttack, PairFinding
from docleak.attacks.pairs.view import PairKnowledge, PairView

__all__ = ["PAIR_ATTACKS", "PairAttack", "PairFinding", "PairKnowledge", "PairView", "load_pair_attack"]
