"""Captures of a federation with secure aggregation: that one silo's words are noise, and what their sum still tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import chdtrc, ndtr

from docleak.documents import Page
from docleak.documents.pages import joined
from docleak.errors import FederationError
from docleak.models.base import DocumentModel
from docleak.studies.updates.case import Replay, UpdateCase, distance, open_case, sent_by
from docleak.studies.updates.round import Batches
from docleak.training.federated.capture import CapturedUpdate
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.local import LocalRound
from docleak.training.objectives.objective import Example

#: Bins of the test that masked words are uniform, and how many numbers there are for each at least.
BINS, IN_BIN = 256, 50
#: Chance of calling masks broken that are not.
ALARM = 1e-4

Parts = Mapping[str, np.ndarray]


def is_secure(update: CapturedUpdate) -> bool:
    """Whether it was captured under secure aggregation."""
    return bool(update.ours.get("secure"))


def is_masked(update: CapturedUpdate) -> bool:
    """Whether it is one silo's masked words; the other updates of such a capture are sums."""
    return bool(update.ours.get("masked"))


def hiding(case: UpdateCase, others: Sequence[CapturedUpdate] = ()) -> dict[str, Any]:
    """What a silo's masked words have to do with the update that it trained, all of them and tensor by tensor, and with
    the masked words of ``others``: nothing, if the masks hold.

    {"numbers", "correlation", "chance" (its standard deviation for noise), "p_correlation", "p_uniform", "least" (the
    tensor that looks least like noise), "others" (how many), "related" (those to which, mask for mask, these words are
    no noise), "hidden"}, chances corrected for how many tests there are; or {"failed": why} where the silo's round was
    not trained again, so that its update is not known. Constant words fail, and so does an update of
    zeros, which tells of no mask.
    """
    if case.replay.trained is None:
        return {"failed": case.replay.why}
    sent = case.replay.trained.update.delta
    true = {name: np.asarray(sent[name], np.float64).ravel() for name in sorted(sent)}
    seen = _words_in(case.update, true)
    limit = _limit(seen)
    every, correlation, p_correlation = _flat(seen), *_correlation(_flat(seen), _flat(true))
    by_tensor = {name: min(_correlation(seen[name], true[name])[1], _uniform(seen[name], limit)) for name in true}
    least = min(by_tensor, key=lambda name: by_tensor[name])
    tests = 3 * len(by_tensor) + 2
    p_uniform = min(1.0, tests * min(_uniform(every, limit), by_tensor[least]))
    related = [other.name for other in others if _share_masks(seen, _words_in(other, true), limit)]
    return {
        "numbers": int(every.size),
        "correlation": correlation,
        "chance": 1 / float(np.sqrt(every.size)),
        "p_correlation": p_correlation,
        "p_uniform": p_uniform,
        "least": least,
        "others": len(others),
        "related": related,
        "hidden": bool(np.isfinite(correlation) and p_correlation > ALARM and p_uniform > ALARM and not related),
    }


def _words_in(update: CapturedUpdate, like: Parts) -> Parts:
    received = sent_by(update)
    return {name: np.asarray(received[name], np.float64).ravel() for name in like}


def _flat(parts: Parts) -> np.ndarray:
    return np.concatenate(list(parts.values()))


def _limit(words: Parts) -> float:
    """What words are spread up to, as they are sums modulo a power of two."""
    return float(2.0 ** np.ceil(np.log2(np.abs(_flat(words)).max() or 1.0)))


def _correlation(seen: np.ndarray, sent: np.ndarray) -> tuple[float, float]:
    """With its chance under noise; (NaN, 1) where either does not vary, or there are too few for that."""
    if seen.size < IN_BIN or not (seen.std() and sent.std()):
        return float("nan"), 1.0
    correlation = float(np.corrcoef(seen, sent)[0, 1])
    return correlation, float(2 * ndtr(-abs(correlation) * np.sqrt(seen.size)))


def _uniform(words: np.ndarray, limit: float) -> float:
    """The smaller of two chances of words that are uniform up to the limit: to be no larger, and to be so uneven."""
    if not words.size:
        return 1.0
    closer = float((np.abs(words).max() / limit) ** words.size)
    if (bins := min(BINS, words.size // IN_BIN)) < 4:
        return closer
    counts, _ = np.histogram(words, bins=bins, range=(-limit, limit))
    expected = words.size / bins
    return min(closer, float(chdtrc(bins - 1, np.sum((counts - expected) ** 2 / expected))))


def _share_masks(words: Parts, others: Parts, limit: float) -> bool:
    """Whether a mask was used for both, so that it leaves when one is taken off the other: of all words, or of those of
    a tensor."""
    apart = {name: np.mod(words[name] - others[name] + limit, 2 * limit) - limit for name in words}
    chances = [_uniform(_flat(apart), limit), *(_uniform(part, limit) for part in apart.values())]
    return bool(min(chances) * 2 * len(chances) <= ALARM)


def open_sum(
    update: CapturedUpdate, members: Sequence[CapturedUpdate], model: DocumentModel, documents: str, *,
    local: str = "", folders: Mapping[str, str] | None = None,
) -> UpdateCase:  # fmt: skip
    """The case of a sum: the pages of all its silos, and their rounds trained again and averaged to compare with.

    Raises FederationError for a sum without the words of its silos in the capture, else as ``open_case``.
    """
    if not members:
        raise FederationError(f"{update.name}: the capture has none of the masked words that this is the sum of.")
    parts: list[Sequence[Page]] = []
    examples: list[Example] = []
    batches: Batches = ()
    rounds: list[LocalRound] = []
    for member in members:
        case = open_case(member, model, documents, local=local, folders=folders)
        before = sum(map(len, parts))
        batches += tuple(tuple(len(examples) + number for number in batch) for batch in case.batches)
        examples += [Example(before + example.page, example.question) for example in case.examples]
        parts.append(case.pages)
        if case.replay.trained is None:
            return UpdateCase(update, model, case.plan, joined(parts), examples, batches, case.replay)
        rounds.append(case.replay.trained)
    sent, weights = [trained.update.delta for trained in rounds], [trained.update.examples for trained in rounds]
    mean = {name: np.average([np.asarray(d[name], np.float64) for d in sent], 0, weights) for name in sent[0]}
    steps, loss = max(trained.steps for trained in rounds), float(np.mean([trained.loss for trained in rounds]))
    together = LocalRound(ClientUpdate(update.client, update.examples, mean), steps, loss, batches)
    replay = Replay(together, distance(sent_by(update), mean))
    return UpdateCase(update, model, case.plan, joined(parts), examples, batches, replay)
