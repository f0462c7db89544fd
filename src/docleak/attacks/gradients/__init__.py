"""Gradient inversion attacks on document models."""

from __future__ import annotations

from typing import Protocol

import torch

from docleak.attacks import protocol
from docleak.attacks.gradients.engine import Finding, GradientAttack, OnEvaluation
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.attacks.registries import ATTACKS

__all__ = ["ATTACKS", "Attack", "Finding", "GradientAttack", "GradientView", "Knowledge"]


class Attack(protocol.Attack[GradientView, Knowledge, Finding], Protocol):
    """What every gradient attack offers; ``GradientAttack`` is the composition most of them are."""

    def run(
        self,
        view: GradientView,
        knowledge: Knowledge,
        *,
        budget: int,
        generator: torch.Generator,
        on_evaluation: OnEvaluation = ...,
    ) -> Finding:
        """Reconstruct the private pixels with at most ``budget`` gradient evaluations."""
