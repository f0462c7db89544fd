"""Attacks on clients that train on pictures with texts: both modalities, alone and together."""

from docleak.attacks.pairs.parts import AttackOnPairs, with_parts
from docleak.attacks.pairs.together import PairAttack, PairFinding
from docleak.attacks.pairs.view import PairKnowledge, PairView
from docleak.attacks.registries import PAIRS

__all__ = ["PAIRS", "AttackOnPairs", "PairAttack", "PairFinding", "PairKnowledge", "PairView", "with_parts"]
