"""What the words of a round give away: the bag of tokens and coordinates, against what the client trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from docleak.attacks.gradients.algebra.bag import Bag, bag_of_words, steps_by_decay
from docleak.documents import Page, Question
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models.base import DocumentModel, Encoded
from docleak.models.vlm.model import VisionLanguage
from docleak.studies.updates.case import UpdateCase
from docleak.studies.updates.round import ImitatedRound, optimiser_of
from docleak.training.objectives.table import QUESTIONS

#: Made-up pages that no client has, whose fields show how often a bag holds a value by chance.
CONTROLS, CONTROL_SEED = 12, 987_654


def words_of(case: UpdateCase) -> dict[str, Any]:
    """The bag of words of a captured update, beside what the client trained on; {"failed": why} where there is none."""
    if case.plan.objective != QUESTIONS:
        return {"failed": f"the objective {case.plan.objective!r} masks words at random, so the truth is not known"}
    steps: float = case.replay.trained.steps if case.replay.trained else len(case.batches)
    resolution = case.update.details.get("resolution")
    if resolution is not None:  # a sum, whose clients do not say how many steps they took
        steps = steps_by_decay(case.model, case.round.sent, optimiser_of(case.plan)) or steps
    return words_in(case.round, steps, float(resolution or 0.0))


def words_in(taken: ImitatedRound, steps: float, resolution: float = 0.0) -> dict[str, Any]:
    """The same of a round of so many steps, whose update was rounded to multiples of ``resolution``."""
    model, truth = taken.truth.model, taken.truth
    update, optimiser = taken.as_gradient(steps), taken.optimiser
    try:
        bag = bag_of_words(model, update, optimiser=optimiser, steps=steps, resolution=resolution)
    except AttackError as fault:
        return {"failed": str(fault)}
    true = set().union(*(tokens_of(model, example) for example in truth.inputs))
    made_up = list(make_pages(CONTROLS, seed=CONTROL_SEED))
    return {
        "exact": bag.exact,
        "tokens": len(bag.belief),
        "true": len(true),
        **_agreement(set(bag.tokens), true),
        "places": {
            axis: _agreement(set(found), set().union(*(_places(example, axis) for example in truth.inputs)))
            for axis, found in bag.coordinates.items()
        },
        "fields": _covered(model, bag, list({page.name: page for page in truth.pages}.values())),
        "control": _covered(model, bag, made_up),
        "control_tokens": _by_chance(model, bag, made_up, len(truth.examples)),
    }


def _by_chance(model: DocumentModel, bag: Bag, pages: Sequence[Page], count: int) -> list[float]:
    """For sets of ``count`` questions about made-up pages: tokens in bag and set, as a share of those in either."""
    asked = [tokens_of(model, model.encode(model.fit(page), question)) for page in pages for question in page.questions]
    sets = [set().union(*asked[at : at + count]) for at in range(0, len(asked), max(1, len(asked) // CONTROLS))]
    found = set(bag.tokens)
    return [len(found & tokens) / max(1, len(found | tokens)) for tokens in sets]


def _agreement(found: set[int], true: set[int]) -> dict[str, Any]:
    right = len(found & true)
    return {
        "found": len(found),
        "right": right,
        "precision": right / len(found) if found else None,
        "recall": right / len(true) if true else None,
    }


def tokens_of(model: DocumentModel, example: Encoded) -> set[int]:
    """Ids that an example looks up: of its text, and of the answer as the decoder is given it."""
    tensors = example.tensors
    if isinstance(model, VisionLanguage):
        return model.tokens_moved(example)
    if "decoder_input_ids" in tensors:
        return set(tensors["decoder_input_ids"].tolist())
    found = set(tensors["input_ids"].tolist())
    if "labels" in tensors:
        decoder: Any = model.module
        found |= {int(decoder.t5.config.decoder_start_token_id), *tensors["labels"].tolist()[:-1]}
    return found


def _places(example: Encoded, axis: str) -> set[int]:
    columns = [0, 2] if axis == "x" else [1, 3]
    return set(example.tensors["bbox"][:, columns].flatten().tolist())


def _covered(model: DocumentModel, bag: Bag, pages: Sequence[Page]) -> list[int]:
    """[held, of]: private fields all of whose tokens are in the bag; [0, 0] for models that read no words."""
    tokens, held, of = set(bag.tokens), 0, 0
    for page in pages:
        fitted = model.fit(page)
        example = model.encode(fitted, Question("?", ("?",)))
        owners = example.tensors.get("word_ids")
        if owners is None:
            return [0, 0]
        for field in fitted.private_fields:
            own = example.tensors["input_ids"][torch.isin(owners, torch.tensor(field.words, dtype=owners.dtype))]
            if len(own):
                of, held = of + 1, held + (set(own.tolist()) <= tokens)
    return [held, of]
