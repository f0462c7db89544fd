"""What the words of a round give away: the bag of tokens and coordinates, against what the client trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice, zip_longest
from typing import Any

import torch

from docleak.attacks.gradients.algebra.bag import Bag, bag_of_words, steps_by_decay
from docleak.attacks.gradients.algebra.first_layer import Sent, recover_words
from docleak.attacks.gradients.algebra.recover import SPAN, TABLE
from docleak.documents import Page, Question
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models.base import DocumentModel, Encoded, trainable
from docleak.models.vlm.model import VisionLanguage
from docleak.studies.updates.case import UpdateCase, named_as, sent_by
from docleak.studies.updates.round import ImitatedRound, Truth, assumed, optimiser_of
from docleak.studies.updates.secure import is_secure
from docleak.studies.updates.told import plan_of
from docleak.studies.updates.verdict import MADE_UP, OTHERS
from docleak.training.federated.capture import CapturedUpdate
from docleak.training.objectives.tasks import QUESTIONS

#: Made-up pages that no client has, whose fields show how often a bag holds a value by chance, and how many are held
#: against a client's page by page: a single page needs 19 that hold less.
CONTROLS, CONTROL_SEED, BESIDE = 12, 987_654, 24
#: Share of the words outside of private fields that stand on made-up pages, too, from which pages are of their kind:
#: 43 % at least of each of forty such pages, at most 22 % of receipts, invoices and forms, 40 % of a table. Eight
#: receipts or invoices have 56 % at least in common with 24 of theirs, forms 41 %; with another kind's 45 % at most.
ALIKE = 0.4


@cache
def controls(count: int = CONTROLS) -> tuple[Page, ...]:
    """So many of these pages."""
    return tuple(make_pages(count, seed=CONTROL_SEED))


def words_of(
    case: UpdateCase,
    others: Sequence[CapturedUpdate] = (),
    local: str = "",
    beside: Callable[[], Iterable[Sequence[Page]]] = tuple,
) -> dict[str, Any]:
    """The bag of words of a captured update, beside what the client trained on; {"failed": why} where there is none.

    ``others`` are what the same client sent in other rounds; they count where the words' vectors stay the same.
    ``beside`` gives pages of other clients, client by client: looked at where made-up ones are of another kind.
    """
    if case.plan.objective != QUESTIONS:
        return {"failed": f"the objective {case.plan.objective!r} masks words at random, so the truth is not known"}
    steps: float = case.replay.trained.steps if case.replay.trained else len(case.batches)
    resolution = case.update.ours.get("resolution") if is_secure(case.update) else None
    if resolution is not None:  # a sum, whose clients do not say how many steps they took
        steps = steps_by_decay(case.model, case.round.sent, optimiser_of(case.plan)) or steps
    sent = [_sent(case, other, local) for other in others]
    return words_in(case.round, steps, float(resolution or 0.0), sent, case, beside)


def _sent(case: UpdateCase, update: CapturedUpdate, local: str) -> Sent:
    """Another round of the case's client, trained like the case's but for what is told of it."""
    update = named_as(case.model, update)
    plan, start = plan_of(update, local, asdict(case.plan)), update.start()
    names = start.keys() & {name for name, _ in trainable(case.model.module)}
    delta = {name: torch.from_numpy(value) for name, value in sent_by(update).items() if name in names}
    steps = len(assumed(len(case.examples), plan))
    return Sent.of(delta, {name: torch.from_numpy(start[name]) for name in delta}, optimiser_of(plan), steps)


def words_in(
    taken: ImitatedRound, steps: float, resolution: float = 0.0, others: Sequence[Sent] = (),
    case: UpdateCase | None = None, beside: Callable[[], Iterable[Sequence[Page]]] = tuple,
) -> dict[str, Any]:  # fmt: skip
    """The same of a round of so many steps, whose update was rounded to multiples of ``resolution``; with ``others`` of
    the ``case``, whose examples are then all that may have been read, and whose pages are held against others."""
    model, truth = taken.truth.model, taken.truth
    try:
        exact = case is not None and case.update.kind == "gradient"
        bag, told = _read(taken, steps, resolution, others, exact=exact)
    except AttackError as fault:
        return {"failed": str(fault)}
    if told.pop("together", False) and case is not None:
        truth = Truth(model, case.pages, case.examples)
    true = set().union(*(tokens_of(model, example) for example in truth.inputs))
    unknown = controls()
    pages = list({page.name: page for page in truth.pages}.values())
    covered = _covered(model, bag, pages)
    *fields, unwritten = _together(covered)
    return {
        "exact": bag.exact,
        **told,
        "tokens": len(bag.belief),
        "true": len(true),
        **_agreement(set(bag.tokens), true),
        "places": {
            axis: _agreement(set(places), set().union(*(_places(example, axis) for example in truth.inputs)))
            for axis, places in bag.coordinates.items()
        },
        "fields": fields,
        "unwritten": unwritten,
        "control": _together(_covered(model, bag, unknown))[:2],
        "control_missed": _missed(model, bag, unknown, len(truth.examples)),
        **({} if case is None else {"beside": _beside(model, bag, pages, covered, beside)}),
    }


def alike(pages: Sequence[Page], others: Sequence[Page] = ()) -> bool:
    """Whether ``pages`` are of the kind of ``others``, or the made-up ones', so that these show what chance reads of
    such: the share ALIKE of their words outside of private fields stands on them, too."""
    known = {word for page in others or controls(BESIDE) for word in _labels(page)}
    said = [word in known for page in pages for word in _labels(page)]
    return bool(said) and sum(said) >= ALIKE * len(said)


def _labels(page: Page) -> list[str]:
    private = {index for field in page.private_fields for index in field.words}
    return [word.text.lower() for index, word in enumerate(page.words) if index not in private]


def _beside(
    model: DocumentModel, bag: Bag, pages: Sequence[Page], covered: Sequence[Sequence[int]],
    others: Callable[[], Iterable[Sequence[Page]]],
) -> dict[str, Any]:  # fmt: skip
    """{"whose", "client", "pages"}: [held, of] of each of the client's pages, and of as many others of their kind as
    there are, up to BESIDE: MADE_UP ones or those of OTHERS, in turn; "" where there is none. What says the same is one
    page, whatever it is called."""
    there = {_said(page): counts[:2] for page, counts in zip(pages, covered, strict=False)}
    against: Sequence[Page] = controls(BESIDE)
    if not covered or alike(pages):  # of a model that reads no words nothing is held against others
        whose = MADE_UP
    else:
        strange = ([page for page in group if _said(page) not in there][:BESIDE] for group in others())
        groups = islice((group for group in strange if group and alike(pages, group)), BESIDE)
        turns = (page for turn in zip_longest(*groups) for page in turn if page is not None)
        against = [*{_said(page): page for page in turns}.values()][:BESIDE]
        whose = OTHERS if against else ""
    beside = [counts[:2] for counts in _covered(model, bag, against)]
    return {"whose": whose, "client": [*there.values()], "pages": beside}


def _said(page: Page) -> tuple[str, ...]:
    return tuple(word.text for word in page.words)


def _read(
    taken: ImitatedRound, steps: float, resolution: float, others: Sequence[Sent], *, exact: bool
) -> tuple[Bag, dict[str, Any]]:
    """The bag of the token table's rows; that of the first layer's span where there is none, or where only it is sure
    of itself and reads more than answers. AttackError where there is neither. ``exact``: a gradient came, which no
    weight's rounding hides."""
    model, optimiser = taken.truth.model, taken.optimiser
    bag, why, rounded = None, "", None if exact else optimiser
    try:
        bag = bag_of_words(model, taken.as_gradient(steps), optimiser=rounded, steps=steps, resolution=resolution)
    except AttackError as fault:
        why = str(fault)
    if (bag is not None and (bag.exact or hasattr(model, "answer_layers"))) or not isinstance(model, VisionLanguage):
        if bag is None:
            raise AttackError(why)
        return bag, {"route": TABLE}
    start = {name: value.detach() for name, value in model.module.named_parameters() if name in taken.whole}
    try:
        words = recover_words(model, [*others, Sent.of(taken.whole, start, optimiser, steps, resolution)])
    except AttackError as fault:
        if bag is None:
            raise AttackError(f"{why} {fault}") from fault
        return bag, {"route": TABLE}
    if bag is not None and not words.exact:
        return bag, {"route": TABLE}
    told = {"route": SPAN, "rounds": words.rounds, "together": words.together}
    told["conditions"] = [vars(condition) for condition in words.conditions]
    return Bag(words.tokens, words.members.taken.double(), words.exact), told


def _missed(model: DocumentModel, bag: Bag, pages: Sequence[Page], count: int) -> list[float]:
    """For sets of ``count`` questions about made-up pages, or fewer: the share of their tokens that the bag lacks."""
    fitted = [model.fit(page) for page in pages]
    asked = [tokens_of(model, model.encode(page, question)) for page in fitted for question in page.questions]
    sets = [set().union(*asked[at : at + count]) for at in range(0, len(asked), max(1, len(asked) // CONTROLS))]
    ids = set(bag.tokens)
    return [len(tokens - ids) / max(1, len(tokens)) for tokens in sets]


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
    ids = set(tensors["input_ids"].tolist())
    if "labels" in tensors and hasattr(model, "answer_layers"):  # a tagger has labels, too
        decoder: Any = model.module
        ids |= {int(decoder.t5.config.decoder_start_token_id), *tensors["labels"].tolist()[:-1]}
    return ids


def _places(example: Encoded, axis: str) -> set[int]:
    columns = [0, 2] if axis == "x" else [1, 3]
    return set(example.tensors["bbox"][:, columns].flatten().tolist())


def _covered(model: DocumentModel, bag: Bag, pages: Sequence[Page]) -> list[list[int]]:
    """[held, of, unwritten] of each page: private fields all of whose tokens are in the bag; none for models that read
    no words. What the vocabulary cannot write (CJK in T5's) is read as one token for all, which tells no value: fields
    that hold such are not counted but as ``unwritten``."""
    tokens, counts = set(bag.tokens), list[list[int]]()
    unwritten = getattr(getattr(model, "tokenizer", None), "unk_token_id", None)
    for page in pages:
        fitted = model.fit(page)
        example = model.encode(fitted, Question("?", ("?",)))
        owners = example.tensors.get("word_ids")
        if owners is None:
            return []
        held, of, left = 0, 0, 0
        for field in fitted.private_fields:
            ids = example.tensors["input_ids"][torch.isin(owners, torch.tensor(field.words, dtype=owners.dtype))]
            if unwritten in ids.tolist():
                left += 1
            elif len(ids):
                of, held = of + 1, held + (set(ids.tolist()) <= tokens)
        counts.append([held, of, left])
    return counts


def _together(counts: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip([0, 0, 0], *counts, strict=True)]
