"""Single-modal attacks on pairs as compositions: pictures by the attacks there are, texts by DLG, TAG and LAMP."""

from __future__ import annotations

from docleak.attacks.gradients.engine import GradientAttack
from docleak.attacks.gradients.matching import squared
from docleak.attacks.gradients.solvers import Adam, BoundedLBFGS
from docleak.attacks.pairs.matching import layer_cosine, layer_norms, squared_and_absolute
from docleak.attacks.pairs.span import SpanText
from docleak.attacks.pairs.text import Moves, TextAttack

#: docleak's stage 1 of the picture: eq. 2's distance squared, which has a gradient at a match, and a bounded solver.
IMAGE = GradientAttack(
    name="mmgia-image",
    paper="Zheng et al. (2025), docleak's solver",
    summary="squared L2 distance with total variation, bounded L-BFGS",
    matching=squared,
    solver=BoundedLBFGS(history=100),
    priors={"tv-spatial": 1e-5},
)

#: MMGIA eq. 2's sum of norms. "Gradient descent" and total variation without a weight are printed: Adam, 0.01 are ours.
IMAGE_PAPER = GradientAttack(
    name="mmgia-image-paper",
    paper="Zheng et al. (2025), eq. 2",
    summary="sum of the parameters' L2 distances with total variation, Adam",
    matching=layer_norms,
    solver=Adam(learning_rate=0.03, final_factor=0.05),
    priors={"tv-spatial": 1e-2},
)

DLG = TextAttack(
    name="dlg-text",
    paper="Zhu et al. (2019)",
    summary="squared gradient difference on word embeddings",
    matching=squared,
    solver=Adam(learning_rate=0.05, final_factor=0.1, clamp=False),
)

TAG = TextAttack(
    name="tag",
    paper="Deng et al. (2021)",
    summary="squared plus absolute gradient difference",
    matching=squared_and_absolute,
    solver=Adam(learning_rate=0.05, final_factor=0.1, clamp=False),
)

LAMP = TextAttack(
    name="lamp",
    paper="Balunović et al. (2022)",
    summary="mean cosine distance (eq. 3 of MMGIA), size prior, and words that change places",
    matching=layer_cosine,
    solver=Adam(learning_rate=0.05, final_factor=0.1, clamp=False),
    size_prior=1.0,
    starts=8,
    moves=Moves(),
)

SPAN = SpanText(
    name="span",
    paper="docleak, after Petrov et al. (2024)",
    summary="words out of the span of the first layer's gradients, place by place; LAMP where that tells nothing",
    otherwise=LAMP,
)
