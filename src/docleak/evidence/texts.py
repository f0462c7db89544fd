"""How much of the text side a gradient gives away by linear algebra, measured against the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from docleak.attacks.gradients.algebra.batch import BatchText, recover_batch
from docleak.attacks.gradients.algebra.recover import recover
from docleak.attacks.gradients.algebra.recovered import Recovered
from docleak.documents.page import Box, Word
from docleak.errors import AttackError
from docleak.evidence.case import Case
from docleak.models import DocumentModel, Transcript
from docleak.models.layoutlmv3 import LayoutLMv3


def text_record(case: Case, *, look: bool = True) -> dict[str, object] | None:
    """What was read of the client's text, beside the truth; ``look`` reads it where the case's adversary did not.

    None where it was not looked for; {"batch": ...} of several LayoutLMv3 pages; {"failed": why} where there is no
    closed form for this view.
    """
    if case.recovered is None and not look:
        return None
    try:
        if case.view.batch_size > 1 and case.view.model.architecture == "layoutlmv3":
            return {"batch": _of_batch(case, recover_batch(case.view))}
        found = case.recovered or recover(case.view, case.knowledge)
    except AttackError as error:
        return {"failed": str(error)}
    return {**_compared(case, found), **_transcribed(case, found)}


def _compared(case: Case, recovered: Recovered) -> dict[str, object]:
    true, found = case.inputs[0].tensors, recovered.inputs[0].tensors
    same = {key: true[key].shape == found[key].shape and bool((true[key] == found[key]).all()) for key in true}
    key = "decoder_input_ids" if "decoder_input_ids" in true else "input_ids"
    length = min(len(true[key]), len(found[key]))
    right = int((true[key][:length] == found[key][:length]).sum())
    return {
        "exact": all(same.values()),
        "believed_exact": recovered.exact,
        "tokens": len(true[key]),
        "tokens_right": right,
        "wrong_parts": [name for name, equal in same.items() if not equal],
        "conditions": [vars(condition) for condition in recovered.conditions],
        "seconds": recovered.seconds,
    }


def _of_batch(case: Case, found: BatchText) -> dict[str, object]:
    """Counts of what was found, of that what is right, and what there is, over the pages of the batch."""
    ids = [example.tensors["input_ids"].tolist() for example in case.inputs]
    boxes = [example.tensors["bbox"].tolist() for example in case.inputs]
    length = max(map(len, ids))
    places = {t: {page[t] for page in ids if t < len(page)} for t in range(length)}
    words = {(t, page[t], *box[t]) for page, box in zip(ids, boxes, strict=True) for t in range(len(page))}
    used = [box for page in boxes for box in page]
    coordinates = {("x", box[i]) for box in used for i in (0, 2)} | {("y", box[i]) for box in used for i in (1, 3)}
    read = {(axis, value) for axis in "xy" for value in found.coordinates[axis]}
    name = cast(LayoutLMv3, case.view.model).tokenizer.convert_ids_to_tokens
    return {
        "pages": len(ids),
        "tokens": _counted(set(found.tokens), {token for page in ids for token in page}),
        "coordinates": _counted(read, coordinates),
        "places": _counted(
            {(t, *some) for t, some in found.places.items()}, {(t, *sorted(p)) for t, p in places.items()}
        ),
        "boxes": _counted({(t, token, *box) for (t, token), box in found.boxes.items()}, words),
        "read": {str(t): name(list(some)) for t, some in found.places.items()},
        "conditions": [vars(condition) for condition in found.conditions],
        "seconds": found.seconds,
    }


def _counted(found: set[Any], true: set[Any]) -> dict[str, int]:
    return {"found": len(found), "right": len(found & true), "true": len(true)}


def _transcribed(case: Case, recovered: Recovered) -> dict[str, object]:
    model: DocumentModel = case.view.model
    true, found = model.transcript(case.inputs[0]), model.transcript(recovered.inputs[0])
    page = case.pages[0]
    return {
        "question": found.question,
        "answer": found.answer,
        "words": [{"text": word.text, "box": [round(edge, 1) for edge in word.box]} for word in found.words],
        "fields_read": [_reads(field.value, page.field_boxes(field), true, found) for field in page.private_fields],
    }


def _reads(value: str, boxes: Sequence[Box], true: Transcript, found: Transcript) -> bool:
    """Whether the words at a field's place, or the answer where the model takes no words, were read exactly."""
    if not true.words:
        return bool(value.strip()) and value.split() == found.answer.split()
    there = words_in(true.words, boxes)
    return bool(there) and [w.text for w in there] == [w.text for w in words_in(found.words, boxes)]


def words_in(words: Sequence[Word], boxes: Sequence[Box]) -> list[Word]:
    """The words whose middle lies in one of the boxes."""
    return [word for word in words if any(_inside(word.box, box) for box in boxes)]


def _inside(word: Box, box: Box) -> bool:
    x, y = (word[0] + word[2]) / 2, (word[1] + word[3]) / 2
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]
