"""The objectives by name."""

from __future__ import annotations

from docleak.training.objectives.denoising import SelfPretraining
from docleak.training.objectives.objective import Objective, QuestionAnswering
from docleak.training.objectives.tasks import tasks_of


def objective_of(text: str) -> Objective:
    """``qa``: questions and answers. ``tm``, ``lm``, ``tlm``, or several as in ``tm+lm+tlm``: self-pretraining.

    A task's share of masked words is the paper's unless given, as in ``tm@0.3+tlm``. FederationError as of
    ``tasks_of``.
    """
    tasks = tasks_of(text)
    return SelfPretraining(tasks) if tasks else QuestionAnswering()
