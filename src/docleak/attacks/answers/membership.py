"""Which providers were in the training set: Tito et al. (2024), "Privacy-aware document VQA", section 5.2.3.

AZK clusters what is known of every provider, APK learns from a few known ones, CLS1 and CLS2 look at the memorisation
test alone, and a vote joins them. Only APK is ever told who is a member, and only of the providers it learns from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import multivariate_normal, randint
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import RandomizedSearchCV
from threadpoolctl import threadpool_limits

from docleak.attacks.answers.features import GROUPS, FeatureTable, rows_of
from docleak.errors import AttackError

#: What the authors' code searches: trees of the forest, and their depth.
SEARCHED = {"n_estimators": randint(50, 500), "max_depth": randint(1, 20)}


@dataclass(frozen=True, eq=False)
class Guess:
    """What an attack says of each provider: ``scores`` (P,) float64 and ``members`` (P,) bool.

    A higher score is likelier a member; scores of different attacks have different units and cannot be compared.
    """

    attack: str
    providers: tuple[str, ...]
    scores: NDArray[np.float64]
    members: NDArray[np.bool_]

    def of(self, providers: Iterable[str]) -> Guess:
        """The same guess of these providers only, in their order; AttackError names those it says nothing of."""
        rows = rows_of(self.providers, names := tuple(providers))
        return Guess(self.attack, names, self.scores[rows], self.members[rows])


class Clusterer(StrEnum):
    """How AZK finds two clusters: as the paper says, or as its public code does."""

    K_MEANS = "k-means"
    GAUSSIAN_MIXTURE = "gaussian-mixture"


@dataclass(frozen=True)
class AzkConfig:
    """AZK's choices; ``starts`` and ``iterations`` are those of the authors' code, which does not ``standardise``.

    G1 is the zero knowledge of the paper's name. More ``groups`` need more, and made k-means worse there.
    """

    groups: tuple[str, ...] = ("G1",)
    clusterer: Clusterer = Clusterer.K_MEANS
    standardise: bool = False
    starts: int = 10
    iterations: int = 300

    def __post_init__(self) -> None:
        if self.starts < 1 or self.iterations < 1:
            raise AttackError(f"AZK has {self.starts} starts of {self.iterations} iterations; expected 1 or more.")


@dataclass(frozen=True)
class ApkConfig:
    """APK's choices: a random forest of ``trees``, grown fully.

    With ``search`` above 0, so many random pairs of ``SEARCHED`` are compared by cross-validation over the known
    providers in ``folds`` parts instead; the authors' code compares 5.
    """

    groups: tuple[str, ...] = ("G1", "G2", "G3")
    trees: int = 100
    search: int = 0
    folds: int = 5

    def __post_init__(self) -> None:
        if self.trees < 1 or self.search < 0 or self.folds < 2:
            raise AttackError(
                f"APK has {self.trees} trees, search {self.search} and {self.folds} folds; expected trees >= 1, "
                "search >= 0 and folds >= 2."
            )


def azk(table: FeatureTable, config: AzkConfig = AzkConfig(), *, seed: int) -> Guess:
    """Unsupervised: two clusters, of which the one with the higher mean accuracy is taken for the members.

    Equal accuracies are told apart by the mean nls. Scores: for k-means the squared distance to the other cluster's
    centre minus that to the members'; for a mixture the log odds of the members' component. Providers that are all
    alike get score 0 and are called non-members: nothing speaks for any of them. Raises AttackError for fewer than two
    providers.
    """
    scores, weights = two_clusters(table.select(config.groups), config, seed)

    def means(weights: NDArray[np.float64]) -> list[float]:
        return [round(float(np.average(table.column(name), weights=weights)), 9) for name in GROUPS["G1"]]

    return _guess("AZK", table, scores if means(weights) >= means(1 - weights) else -scores)


def apk(table: FeatureTable, known: Mapping[str, bool], config: ApkConfig = ApkConfig(), *, seed: int) -> Guess:
    """Supervised: a random forest learns from ``known`` (provider -> member?) and guesses all the others.

    Scores are the forest's mean probability of a member; above 1/2 is one. Raises AttackError if ``known`` lacks a
    class, has providers without a row, leaves none to guess, or is too small for the folds of a search.
    """
    known = dict(sorted(known.items()))
    labels = np.array(list(known.values()), dtype=bool)
    fewest = int(min(labels.sum(), (~labels).sum()))
    if fewest < (needed := config.folds if config.search else 1):
        raise AttackError(
            f"APK knows {labels.sum()} members and {(~labels).sum()} non-members; it needs {needed} of each. "
            "Let it know a larger share of the providers, or search with fewer folds."
        )
    rest = [name for name in table.providers if name not in known]
    if not rest:
        raise AttackError(f"APK knows all {len(known)} providers already; leave some to guess.")
    learned = table.of(known).select(config.groups)
    model = RandomForestClassifier(config.trees, random_state=seed)
    if config.search:
        model = RandomizedSearchCV(model, SEARCHED, n_iter=config.search, cv=config.folds, random_state=seed)
    model.fit(learned, labels)
    left = table.of(rest)
    scores = model.predict_proba(left.select(config.groups))[:, 1]
    return Guess("APK", left.providers, scores, scores > 0.5)


def cls1(table: FeatureTable) -> Guess:
    """A member is whose answer the model gives although it was removed from the page: mean nls_memory above 0."""
    return _guess("CLS1", table, table.column("nls_memory").copy())


def cls2(table: FeatureTable, config: AzkConfig = AzkConfig(), *, seed: int) -> Guess:
    """k-means on ``delta_nls_memory`` alone; the cluster with the higher mean is taken for the members.

    The feature is the similarity (nls) of what the model says to an empty question before and after that output was
    removed from the page. The paper writes it as a change, and says that an output which "remains similar" is a sign of
    memorisation: as a similarity, more of it speaks for a member.
    """
    feature = table.column("delta_nls_memory")
    scores, weights = two_clusters(feature[:, None], config, seed)
    rising = np.average(feature, weights=weights) >= np.average(feature, weights=1 - weights)
    return _guess("CLS2", table, scores if rising else -scores)


def hard_vote(guesses: Sequence[Guess]) -> Guess:
    """What most of the attacks decide; a draw is a non-member. Scores are the share of votes for a member.

    Raises AttackError unless all guess the same providers in the same order (see ``Guess.of``).
    """
    if not guesses or any(guess.providers != guesses[0].providers for guess in guesses):
        raise AttackError(
            f"a vote needs guesses of the same providers in the same order; {len(guesses)} were given, of "
            f"{', '.join(str(len(guess.providers)) for guess in guesses) or 'no'} providers. Restrict them with of()."
        )
    shares = np.mean([guess.members for guess in guesses], axis=0)
    return Guess("+".join(guess.attack for guess in guesses), guesses[0].providers, shares, shares > 0.5)


def _guess(attack: str, table: FeatureTable, scores: NDArray[np.float64]) -> Guess:
    return Guess(attack, table.providers, scores, scores > 0)


def two_clusters(
    features: NDArray[np.float64], config: AzkConfig, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(P,) scores, above 0 in the second of two clusters, and (P,) weights in it, 0 to 1; features are (P, F)."""
    if len(features) < 2:
        raise AttackError(
            f"{len(features)} providers cannot be put into two clusters; ask about more, or take a lower s."
        )
    if np.ptp(features, axis=0).max() == 0:
        return np.zeros(len(features)), np.full(len(features), 0.5)
    if config.standardise:
        spread = features.std(axis=0)
        features = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1)
    with threadpool_limits(1):  # sums of several threads differ in their last bits from run to run
        if config.clusterer is Clusterer.K_MEANS:
            centres = KMeans(
                2, init="random", n_init=config.starts, max_iter=config.iterations, random_state=seed
            ).fit(features).cluster_centers_  # fmt: skip
            first, second = (np.square(features - centre).sum(axis=1) for centre in centres)
            return first - second, (first > second).astype(np.float64)
        mixture = GaussianMixture(2, n_init=config.starts, max_iter=config.iterations, random_state=seed).fit(features)
        parts = zip(mixture.weights_, mixture.means_, mixture.covariances_, strict=True)
        first, second = (np.log(w) + multivariate_normal(mean, cov).logpdf(features) for w, mean, cov in parts)
        return second - first, expit(second - first)
