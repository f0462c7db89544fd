"""Attacks on published weights: reading scrubbed fields back out of a trained extraction model."""

from docleak.attacks.registries import METRICS, WEIGHTS
from docleak.attacks.weights.cdmi import Attempt, CdmiConfig, Finding, WeightsAttack
from docleak.attacks.weights.membership import DEFAULT_METRIC, PUBLISHED_METRIC, choose, plausibility
from docleak.attacks.weights.strong import StrongConfig
from docleak.attacks.weights.view import PublicKnowledge, WeightsView

__all__ = [
    "DEFAULT_METRIC",
    "METRICS",
    "PUBLISHED_METRIC",
    "WEIGHTS",
    "Attempt",
    "CdmiConfig",
    "Finding",
    "PublicKnowledge",
    "StrongConfig",
    "WeightsAttack",
    "WeightsView",
    "choose",
    "plausibility",
]
