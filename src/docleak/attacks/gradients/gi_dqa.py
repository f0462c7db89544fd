"""GI-DQA (Ben Hemo et al., ICML 2025): gradient inversion of document question answering.

``PAPER`` is the published composition: eq. 5's matching, the priors of eq. 7-11 with the published
weights, exponential decay, Adam with the published step of 2.0 in a range of pixels of 1: the first step leaves every
unknown at black or white, and the decay brings it back (a step of 2.0 / 255 reads nothing: gi-dqa/settings).
``ATTACK`` is docleak's default for the same threat model: whitened matching, one grey value per pixel (the limit of the
channel prior), pixels bounded to [0, 1] and L-BFGS-B (docs/log.md has what each part brings), of a deep Donut the
tensors next to the pixels, and of a model that is sure of its answer, which the gradient's size tells, a start as light
as paper and a loss in double precision.
"""

from dataclasses import replace

from docleak.attacks.gradients.engine import GradientAttack
from docleak.attacks.gradients.matching import squared_and_cosine
from docleak.attacks.gradients.solvers import Adam, BoundedLBFGS

PAPER = GradientAttack(
    name="gi-dqa-adam",
    paper="Ben Hemo et al. (2025)",
    summary="the published GI-DQA: squared + cosine per layer, text, Gaussian and TV priors, Adam; other readings: "
    "docs/fidelity.md",
    matching=squared_and_cosine,
    solver=Adam(learning_rate=2.0),
    priors={"text": 0.1, "gaussian": 0.01, "tv-spatial": 0.1, "tv-channel": 0.1},
    schedule="exponential",
)

ATTACK = GradientAttack(
    name="gi-dqa",
    paper="Ben Hemo et al. (2025), docleak's solver",
    summary="GI-DQA with whitened matching, grey pixels and bounded L-BFGS (default)",
    matching=None,
    solver=BoundedLBFGS(),
    grey=True,
    start="by-size",
    layers="shallow",
    double_loss=None,
)

#: The same whatever the gradient's size: what other attacks refine by.
PLAIN = replace(ATTACK, start="uniform", double_loss=False)
