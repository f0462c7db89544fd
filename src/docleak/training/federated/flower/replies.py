"""What a silo's reply says, read with the suspicion that what comes from outside deserves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message

from docleak.errors import FederationError
from docleak.training.federated.fedopt import Arrays
from docleak.training.federated.flower.client import NOISED_NUMBERS, SCORE_NUMBERS
from docleak.training.federated.flower.messages import arrays_in, metrics_in
from docleak.training.federated.party import DocumentScore
from docleak.training.federated.scores import SiloScore
from docleak.training.federated.wire import Compression, unpack

#: The number that every update comes with.
EXAMPLES = "num-examples"


@dataclass(frozen=True)
class SentUpdate:
    """An update as it was sent, with what its silo says of it; ``metrics`` are all of its numbers."""

    delta: Arrays
    examples: int
    steps: int
    loss: float | None
    seconds: float
    error: float
    metrics: Mapping[str, Any]

    @classmethod
    def of(cls, reply: Message, shapes: Mapping[str, tuple[int, ...]], compression: Compression) -> SentUpdate:
        """FederationError, in words that go on from the silo's name, for a reply that is no update."""
        try:
            metrics = metrics_in(reply.content)
            delta = unpack(arrays_in(reply.content), shapes, compression)
            loss = _number(metrics, "loss") if "loss" in metrics else None
            return cls(
                delta, int(_number(metrics, EXAMPLES)), int(_number(metrics, "steps")), loss,
                _number(metrics, "seconds"), _number(metrics, "compression-error"), metrics,
            )  # fmt: skip
        except FederationError as error:
            raise FederationError(f"sent an update that cannot be unpacked: {error}") from error
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FederationError(f"sent a reply that is no update ({type(error).__name__}: {error})") from error


def scores_in(reply: Message, source: str, *, noised: bool) -> list[DocumentScore] | list[SiloScore]:
    """A silo's scores, document by document or as noised sums; FederationError, in words that go on from its name, for
    what no answers can have given."""
    try:
        return _scores(metrics_in(reply.content), source, noised=noised)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FederationError(f"sent scores that are none ({type(error).__name__}: {error})") from error


def _scores(numbers: Mapping[str, Any], source: str, *, noised: bool) -> list[DocumentScore] | list[SiloScore]:
    if noised:
        sums = SiloScore(source, *(float(numbers[column]) for column in NOISED_NUMBERS))
        if not (math.isfinite(sums.score) and math.isfinite(sums.units) and 0 <= sums.std < math.inf):
            raise ValueError(f"{sums.score} of {sums.units} with noise of {sums.std}")
        return [sums]
    columns = [numbers[column] for column in SCORE_NUMBERS]
    scores = [DocumentScore(source, float(a), float(b), int(n)) for a, b, n in zip(*columns, strict=True)]
    for score in scores:
        if not all(0 <= part <= score.questions + 1e-6 for part in (score.anls, score.accuracy)):
            raise ValueError(f"{score.anls} and {score.accuracy} right of {score.questions}")
    return scores


def _number(metrics: Mapping[str, Any], key: str) -> float:
    """A number of a silo's reply, 0 where it gives none and may; ValueError for one that is none, or not finite."""
    value = metrics[key] if key == EXAMPLES else metrics.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r}")
    return value
