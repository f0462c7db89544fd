"""Random floor: private pixels drawn at random, no optimisation (row "Random" of GI-DQA's Table 1)."""

from docleak.attacks.gradients.engine import GradientAttack

ATTACK = GradientAttack(
    name="random",
    paper="Ben Hemo et al. (2025), Table 1",
    summary="random pixels in the private regions, the floor",
    matching=None,
    solver=None,
)
