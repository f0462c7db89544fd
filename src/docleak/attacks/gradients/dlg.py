"""Deep Leakage from Gradients (Zhu, Liu and Han, NeurIPS 2019).

Squared difference of the gradients, standard-normal start, L-BFGS with PyTorch's defaults. The
published attack also optimises a dummy label; as in GI-DQA's Table 1 every attack here is handed the
same question and answer, so only pixels remain.
"""

from docleak.attacks.gradients.engine import GradientAttack
from docleak.attacks.gradients.matching import squared
from docleak.attacks.gradients.solvers import TorchLBFGS

ATTACK = GradientAttack(
    name="dlg",
    paper="Zhu et al. (2019)",
    summary="squared gradient difference, L-BFGS, no prior",
    matching=squared,
    solver=TorchLBFGS(),
    start="normal",
)
