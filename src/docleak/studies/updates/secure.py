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

#: Bins of the test that masked words are uniform.
BINS = 256
#: Chance of calling masks broken that are not.
ALARM = 1e-4


def is_secure(update: CapturedUpdate) -> bool:
    """Whether it was captured under secure aggregation."""
    return bool(update.ours.get("secure"))


def is_masked(update: CapturedUpdate) -> bool:
    """Whether it is one silo's masked words; the other updates of such a capture are sums."""
    return bool(update.ours.get("masked"))


def hiding(case: UpdateCase) -> dict[str, Any]:
    """What a silo's masked words have to do with the update that it trained: nothing, if the masks hold.

    {"numbers", "correlation", "chance" (its standard deviation for noise), "p_correlation", "p_uniform", "hidden"}; or
    {"failed": why} where the silo's round was not trained again, so that its update is not known. Constant words fail.
    """
    if case.replay.trained is None:
        return {"failed": case.replay.why}
    true = case.replay.trained.update.delta
    received = sent_by(case.update)
    seen, sent = (
        np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in sorted(true)])
        for arrays in (received, true)
    )
    correlation = float(np.corrcoef(seen, sent)[0, 1]) if seen.std() and sent.std() else float("nan")
    chance = 1 / np.sqrt(seen.size)
    p_correlation = float(2 * ndtr(-abs(correlation) / chance))
    limit = float(np.abs(seen).max()) or 1.0
    counts, _ = np.histogram(seen, bins=BINS, range=(-limit, limit))
    expected = counts.mean()
    p_uniform = float(chdtrc(len(counts) - 1, np.sum((counts - expected) ** 2 / expected)))
    return {
        "numbers": int(seen.size),
        "correlation": correlation,
        "chance": float(chance),
        "p_correlation": p_correlation,
        "p_uniform": p_uniform,
        "hidden": bool(p_correlation > ALARM and p_uniform > ALARM),
    }


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
