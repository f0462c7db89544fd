"""Inverting Gradients (Geiping et al., NeurIPS 2020).

Cosine distance of the whole gradients, spatial total variation, Adam on signed gradients with step 0.1
(lowered tenfold at 3/8, 5/8 and 7/8 of the budget), pixels kept in their range, standard-normal start.
"""

from docleak.attacks.gradients.engine import GradientAttack
from docleak.attacks.gradients.matching import cosine
from docleak.attacks.gradients.solvers import Adam

ATTACK = GradientAttack(
    name="inverting-gradients",
    paper="Geiping et al. (2020)",
    summary="cosine distance with total variation, signed Adam",
    matching=cosine,
    solver=Adam(learning_rate=0.1, signed=True, steps_at=(3 / 8, 5 / 8, 7 / 8)),
    priors={"tv-spatial": 1e-4},
    start="normal",
)
