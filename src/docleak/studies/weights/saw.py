"""Whether a finished target saw the pages that are said to be its private ones: by its losses there and on others.

Of another model's pages nothing can be read that is memory, and nothing read would look like safety. A model that was
trained on some pages is less surprised by them than by pages like them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from docleak.documents.page import Page
from docleak.metrics.estimate import Estimate
from docleak.metrics.memorisation import difference
from docleak.models.encoders.loading import load_encoder
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import suits
from docleak.models.encoders.tasks import entities_of, label_of
from docleak.models.encoders.tokens import TokenPage
from docleak.report.measure import measured, share_of
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.game import game_of
from docleak.training.extraction.fit import validate
from docleak.training.extraction.kept import divided

T = TypeVar("T")
#: So many pages of either kind are asked about.
ASKED = 60
#: Keeps the draw of these apart from others of the same seed.
DRAW = 34


def saw(config: WeightsConfig, device: str) -> dict[str, Any]:
    """By how much the finished target's loss on its alleged private pages is below that on public ones ("apart"), with
    its interval over documents; of a masked language model after that of the model that the public one begins with."""
    game = game_of(config, device)
    target, start = game.target, None
    if target.task == "mlm":
        start = load_encoder(str(game.fitting.model), task="mlm", vision=target.config.vision, device=device)
    public = (page for page in _shuffled(divided(config.public_data()).pages, config) if _asked(page, target))
    told = []
    for pages in (map(target.encode, public), _shuffled(list(game.pages.values()), config)):
        some = islice(pages, ASKED)
        by = measured([(page.document or page.name, _loss(page, target, start, config.seed), 1) for page in some])
        told.append(share_of(by, np.random.default_rng((config.seed, DRAW)), of="documents", share=False))
    return {"apart": difference(*told).to_json(), "beyond": start is not None}


def _shuffled(pages: Sequence[T], config: WeightsConfig) -> Iterator[T]:
    """The pages in an order that follows from the seed, none before it is asked for."""
    order = np.random.default_rng((config.seed, DRAW)).permutation(len(pages)).tolist()
    return (pages[number] for number in order)


def _asked(page: Page, target: EncoderModel) -> bool:
    """Whether the page has what the target's loss takes, of classes that it knows."""
    if not suits(page, target.task):
        return False
    if target.task in ("ee-bio", "ee-spade"):
        labels = [entity.label for entity in entities_of(page)]
        return bool(labels) and set(labels) <= set(target.config.classes)
    return target.task != "classify" or label_of(page) in target.config.classes


def _loss(page: TokenPage, target: EncoderModel, start: EncoderModel | None, seed: int) -> float:
    models: Sequence[EncoderModel] = (target, start) if start else (target,)
    losses = [validate(model, [page], batch_size=1, seed=seed).loss for model in models]
    return losses[0] - sum(losses[1:])


def not_shown(told: Mapping[str, Any] | None) -> str:
    """Why nothing read says nothing of the target: nothing shows that it saw the pages; "" where its losses do, or
    where it was trained here."""
    if not told or (Estimate.of_json(told["apart"]).low or 0.0) > 0:
        return ""
    return (
        f"nothing shows that the target was trained on these pages: its loss there is not surely below that on public "
        f"ones ({_apart(told)})"
    )


def shown(told: Mapping[str, Any] | None) -> str:
    """What shows that the target saw the pages, as a sentence; "" where nothing does."""
    if not told or not_shown(told):
        return ""
    easier = "" if told["beyond"] else ", or that are easier"
    return (
        f"The target's loss on the private pages is below that on public ones ({_apart(told)}), as of pages that it "
        f"saw{easier}."
    )


def _apart(told: Mapping[str, Any]) -> str:
    apart = Estimate.of_json(told["apart"])
    if apart.value is None or apart.low is None or apart.high is None:
        return "too few were asked about"
    after = ", after the loss of the model that public data begin with" if told["beyond"] else ""
    return f"by {apart.value:.2f} nats [{apart.low:.2f}, {apart.high:.2f}]{after}"
