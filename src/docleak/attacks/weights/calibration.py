"""From what an attack saw to "this field is recoverable with probability p".

The adversary trains a shadow target on pages of its own, whose fields it knows, attacks them, and learns from what came
out which tokens of its readings are right (Shokri et al., 2017, train shadow models for membership). The answer is then
given for fields whose truth it never sees. Tokens rather than fields, because hardly any field is read whole, and that
teaches nothing. Logistic regression with scikit-learn's default penalty over standardised features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from docleak.attacks.weights.cdmi import Attempt
from docleak.errors import AttackError

Floats = NDArray[np.float64]
#: What the answer depends on, all known to the adversary; likelihoods as logarithms.
FEATURES = ("target", "public", "weakest_target_so_far", "mean_target", "agreement", "repeated", "length")


@dataclass(frozen=True)
class Calibrator:
    """p = sigmoid(intercept + weights . (features - mean) / scale), for each token of a reading."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    intercept: float

    def tokens(self, attempts: Sequence[Attempt], chosen: int) -> Floats:
        """The probability of each token of reading number ``chosen`` to be right, (T,)."""
        standard = (features_of(attempts, chosen) - np.array(self.mean)) / np.array(self.scale)
        return np.asarray(1 / (1 + np.exp(-(self.intercept + standard @ np.array(self.weights)))))


def features_of(attempts: Sequence[Attempt], chosen: int) -> Floats:
    """FEATURES of each token of one reading, (T, 7); ``agreement`` is the share of attempts that say the same there."""
    attempt = attempts[chosen]
    target, public = (np.log(np.maximum(values, 1e-300)) for values in (attempt.target, attempt.public))
    tokens = np.array([other.tokens for other in attempts])  # (attempts, T)
    read = tokens[chosen]
    columns = (
        target,
        public,
        np.minimum.accumulate(target),
        np.full(len(read), target.mean()),
        (tokens == read).mean(axis=0),
        np.array([token in read[:i] for i, token in enumerate(read)], dtype=float),
        np.full(len(read), float(len(read))),
    )
    return np.stack(columns, axis=1)


def fit_calibrator(readings: Sequence[tuple[Sequence[Attempt], int]], right: Sequence[Sequence[bool]]) -> Calibrator:
    """Learn from the adversary's own fields: (attempts, chosen reading) of each, and which of its tokens were right.

    Where all were right, or none, the answer is one constant, (right + 1) / (tokens + 2). Raises AttackError without
    any field, or where truths do not fit readings.
    """
    if not readings or [len(read[read_no].tokens) for read, read_no in readings] != [len(truth) for truth in right]:
        raise AttackError(
            f"{len(readings)} readings and {len(right)} truths to calibrate with; expected one or more of each, and as "
            "many tokens."
        )
    rows = np.concatenate([features_of(attempts, chosen) for attempts, chosen in readings])
    true = np.array([one for truth in right for one in truth], dtype=int)
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    scale[scale < 1e-9] = 1.0
    weights, intercept = np.zeros(len(FEATURES)), float(np.log((true.sum() + 1) / (len(true) - true.sum() + 1)))
    if 0 < true.sum() < len(true):
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(max_iter=1000).fit((rows - mean) / scale, true)
        weights, intercept = model.coef_[0], float(model.intercept_[0])
    return Calibrator(tuple(mean.tolist()), tuple(scale.tolist()), tuple(weights.tolist()), intercept)


def at_least(share: float, tokens: Floats) -> float:
    """The probability that at least ``share`` of independent ``tokens`` (T,), each right with its own, are right.

    Tokens of a field are not independent: how far that is off is part of what is measured of the answer.
    """
    counts = np.ones(1)  # the distribution of how many are right, Poisson's binomial
    for p in tokens:
        counts = np.convolve(counts, [1 - p, p])
    least = int(np.ceil(round(share * len(tokens), 9)))
    return float(min(1.0, counts[least:].sum()))
