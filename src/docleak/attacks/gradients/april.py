"""APRIL (Lu et al., CVPR 2022), its optimisation form for transformers.

Squared gradient difference plus the cosine of the position embedding's gradient, Adam. The closed-form
variant needs an absolute position table in front of a lone attention layer, which no document model has.
"""

from docleak.attacks.gradients.engine import GradientAttack
from docleak.attacks.gradients.matching import squared_and_position
from docleak.attacks.gradients.solvers import Adam

ATTACK = GradientAttack(
    name="april",
    paper="Lu et al. (2022)",
    summary="squared difference plus position-embedding cosine, Adam",
    matching=squared_and_position,
    solver=Adam(learning_rate=0.1),
    start="normal",
)
