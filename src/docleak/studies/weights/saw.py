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
from docleak.models.encoders.loading import load_encoder
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import suits
from docleak.models.encoders.tasks import entities_of, label_of
from docleak.models.encoders.tokens import TokenPage
from docleak.report.measure import measured
from docleak.studies.surprise import ASKED, apart, in_words, surely
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.game import game_of
from docleak.training.extraction.fit import validate
from docleak.training.extraction.kept import divided

T = TypeVar("T")
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
    private = _shuffled(list(game.pages.values()), config)
    said, others = (
        measured([
            (page.document or page.name, _loss(page, target, start, config.seed), 1) for page in islice(pages, ASKED)
        ])
        for pages in (private, map(target.encode, public))
    )  # fmt: skip
    return {"apart": apart(said, others, (config.seed, DRAW), of="documents"), "beyond": start is not None}


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
    if not told or surely(told["apart"]):
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
    return in_words(told["apart"], "the loss of the model that public data begin with" if told["beyond"] else "")
