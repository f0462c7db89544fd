"""Was this document trained on? Scores of documents by what a released model makes of questions about them.

DocMIA (Nguyen et al., 2025): of each question the loss, how right the answer is, and how far and how fast fine-tuning
on it moves one layer; of a document their mean, least and greatest. RMIA (Zarifzadeh et al., 2024) and InfoRMIA (Tao &
Shokri, 2025): likelihood ratios with reference models, beside those of other documents. LoRA-Leak (2025): the model
before fine-tuning is a reference that costs nothing. A regression takes difficulty out, after Watson et al. (2022) and
Bertran et al. (2023). No score sees who was a member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from docleak.attacks.answers.features import FeatureTable
from docleak.attacks.answers.membership import AzkConfig, two_clusters
from docleak.errors import AttackError

Floats = NDArray[np.float64]
#: What is known of a question (attributes of ``Asked``), and how a document's questions are joined.
TRAITS = ("loss", "nls", "distance", "steps")
JOINED: dict[str, Callable[[Sequence[float]], np.float64]] = {"mean": np.mean, "least": np.min, "greatest": np.max}
#: RMIA's gamma, and its offline "a", by which P(x) = ((1 + a) P_out(x) + 1 - a) / 2 (values of the authors' Privacy
#: Meter, at e384af8).
GAMMA, OFFLINE = 1.0, 0.3
#: Questions of one key in other documents, fewer of which are no population: then all keys are.
POPULATION = 10
#: ``calibrated``: added to a loss before its logarithm, in nats per token; and how many questions of all keys the mean
#: of a key counts beside its own. Chosen on draws of the shipped release's documents that are not the league's.
FLOOR, BESIDE = 1e-3, 2.0


@dataclass(frozen=True)
class Asked:
    """One question about a document: the target's ``loss`` on the true answer in nats per token, the similarity ``nls``
    (0..1) of its own answer with it, the ``distance`` (L2) and ``steps`` of fine-tuning one layer on it, and the losses
    of ``references``."""

    document: str
    key: str
    loss: float
    nls: float
    distance: float
    steps: int
    references: tuple[float, ...] = ()


@dataclass(frozen=True)
class DocumentAttack:
    """A score by which documents are sorted: the greater, the likelier was the document trained on.

    ``reference``: it needs a model that saw none of the documents.
    """

    name: str
    summary: str
    paper: str
    of: Callable[[Sequence[Asked]], Floats]
    reference: bool = False

    def run(self, asked: Sequence[Asked]) -> Floats:
        """A score per document (``documents_in``), (D,) float64. AttackError for nothing asked, or without references
        where they are needed."""
        if not asked or (self.reference and not all(one.references for one in asked)):
            raise AttackError(f"{self.name} needs questions{', and a reference model (--public)' * self.reference}.")
        return self.of(asked)


def documents_in(asked: Sequence[Asked]) -> tuple[str, ...]:
    """The documents, each once, in alphabetical order."""
    return tuple(sorted({one.document for one in asked}))


def document_features(asked: Sequence[Asked]) -> FeatureTable:
    """DocMIA's features: a row per document (as ``providers``), a column per trait and way of joining."""
    columns = tuple(f"{trait}_{how}" for trait in TRAITS for how in JOINED)
    groups = _grouped(asked, np.arange(len(asked), dtype=np.float64))
    rows = [
        [float(join([getattr(asked[int(i)], trait) for i in of])) for trait in TRAITS for join in JOINED.values()]
        for of in groups.values()
    ]
    counts = np.array([len(of) for of in groups.values()], dtype=np.int64)
    return FeatureTable(tuple(groups), columns, np.array(rows), counts)


def loss(asked: Sequence[Asked]) -> Floats:
    """Minus the mean loss (Yeom et al., 2018)."""
    return _means(asked, np.array([-one.loss for one in asked]))


def reference_ratio(asked: Sequence[Asked]) -> Floats:
    """How much lower the loss is than the references' mean."""
    return _means(asked, _gains(asked))


def rmia(asked: Sequence[Asked]) -> Floats:
    """The share of questions with the same key in other documents whose likelihood ratio this one's exceeds by GAMMA;
    the mean over a document's questions, which is ours."""
    out = np.array([np.mean(np.exp(-np.array(one.references))) for one in asked])
    ratios = np.exp([-one.loss for one in asked]) / (((1 + OFFLINE) * out + 1 - OFFLINE) / 2)
    return _means(asked, np.array([np.mean(ratios[i] >= GAMMA * ratios[z]) for i, z in _populations(asked)]))


def informia(asked: Sequence[Asked]) -> Floats:
    """Bits that the target knows of the answer beyond the references, less what it does of questions with the same key
    in other documents (Tao & Shokri take one population for all)."""
    bits = _gains(asked) / math.log(2)
    return _means(asked, np.array([bits[i] - bits[z].mean() for i, z in _populations(asked)]))


def calibrated(asked: Sequence[Asked]) -> Floats:
    """How much lower the logarithm of the loss is than key and references let expect: by a line through all questions
    asked, members' among them. Where the references tell nothing of what is hard for the target its slope is 0, and the
    loss beside others of its key is left."""
    logs = np.log(FLOOR + np.array([(one.loss, np.mean(one.references)) for one in asked]))
    loss, expected = _beside_key([one.key for one in asked], logs).T
    power = float(expected @ expected)
    slope = min(max(float(expected @ loss) / power, 0.0), 1.0) if power else 0.0
    return _means(asked, slope * expected - loss)


def distance(asked: Sequence[Asked]) -> Floats:
    """Minus the mean distance that fine-tuning on a question moves the layer."""
    return _means(asked, np.array([-one.distance for one in asked]))


def docmia(asked: Sequence[Asked]) -> Floats:
    """Two clusters of documents by all features, standardised; members' is the one that fine-tuning moves less."""
    table = document_features(asked)
    if len(table.providers) < 2:
        raise AttackError("docmia makes two clusters; expected at least 2 documents.")
    scores, weights = two_clusters(table.values, AzkConfig(standardise=True), 0)
    moved = table.column("distance_mean")
    second = not weights.any() or weights.all() or (
        np.average(moved, weights=weights) <= np.average(moved, weights=1 - weights)
    )  # fmt: skip
    return scores if second else -scores


def _gains(asked: Sequence[Asked]) -> Floats:
    """Log of the likelihood ratio in nats per token, of the references' geometric mean."""
    return np.array([np.mean(one.references) - one.loss for one in asked])


def _beside_key(keys: Sequence[str], values: Floats) -> Floats:
    """Values (N, ...) less the mean of their key, which is drawn towards 0, all keys' mean, by BESIDE questions."""
    values, of = values - values.mean(0), np.array(keys)
    residuals = values.copy()
    for key in np.unique(of):
        same = of == key
        residuals[same] -= values[same].sum(0) / (same.sum() + BESIDE)
    return residuals


def _populations(asked: Sequence[Asked]) -> list[tuple[int, NDArray[np.int64]]]:
    """Each question's number, and those of the questions that it is compared with; AttackError for a lone document."""
    keys, names = (np.array([getattr(one, what) for one in asked]) for what in ("key", "document"))
    populations = []
    for number, one in enumerate(asked):
        others = names != one.document
        same = np.flatnonzero(others & (keys == one.key))
        populations.append((number, same if len(same) >= POPULATION else np.flatnonzero(others)))
    if not all(len(of) for _, of in populations):
        raise AttackError("there is one document alone; a population takes questions of others.")
    return populations


def _means(asked: Sequence[Asked], values: Floats) -> Floats:
    return np.array([of.mean() for of in _grouped(asked, values).values()])


def _grouped(asked: Sequence[Asked], values: Floats) -> dict[str, Floats]:
    groups: dict[str, list[float]] = {name: [] for name in documents_in(asked)}
    for one, value in zip(asked, values.tolist(), strict=True):
        groups[one.document].append(value)
    return {name: np.array(of) for name, of in groups.items()}


LOSS = DocumentAttack("loss", "how small the loss on its questions is", "Yeom et al. (2018)", loss)
DISTANCE = DocumentAttack(
    "distance", "how little fine-tuning on its questions moves one layer", "Nguyen et al. (2025)", distance
)
DOCMIA = DocumentAttack(
    "docmia", "two clusters by loss, answers, distances and steps of fine-tuning", "Nguyen et al. (2025)", docmia
)
REFERENCE = DocumentAttack(
    "reference", "loss beside the model before fine-tuning, or others that saw none of it", "after LoRA-Leak (2025)",
    reference_ratio, True,
)  # fmt: skip
RMIA = DocumentAttack(
    "rmia", "likelihood ratios beside those of other documents, counted", "Zarifzadeh et al. (2024)", rmia, True
)
INFORMIA = DocumentAttack("informia", "the same in bits", "Tao & Shokri (2025)", informia, True)
CALIBRATED = DocumentAttack(
    "calibrated", "log of the loss, less what key and references let expect; the first to look at", "docleak",
    calibrated, True,
)  # fmt: skip
