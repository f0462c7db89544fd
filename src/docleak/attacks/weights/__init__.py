"""Attacks on published weights: reading scrubbed fields back out of a trained extraction model."""

from docleak.attacks.weights.cdmi import Attempt, CdmiConfig, Finding, reconstruct
from docleak.attacks.weights.membership import (
    DEFAULT_METRIC,
    METRICS,
    PUBLISHED_METRIC,
    choose,
    plausibility,
)
from docleak.attacks.weights.strong import AnyAttack, StrongConfig, attack_with
from docleak.attacks.weights.view import PublicKnowledge, WeightsView

__all__ = [
    "DEFAULT_METRIC",
    "METRICS",
    "PUBLISHED_METRIC",
    "AnyAttack",
    "Attempt",
    "CdmiConfig",
    "Finding",
    "PublicKnowledge",
    "StrongConfig",
    "WeightsView",
    "attack_with",
    "choose",
    "plausibility",
    "reconstruct",
]
