"""How much of the text side a gradient gives away by linear algebra, measured against the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from docleak.attacks.gradients.algebra.batch import BatchText, recover_batch
from docleak.attacks.gradients.algebra.dominant import recover_dominant
from docleak.attacks.gradients.algebra.order import Answers, recover_answers
from docleak.attacks.gradients.algebra.patches import UnsentError
from docleak.attacks.gradients.algebra.recover import RECOVERABLE, recover, recover_set
from docleak.attacks.gradients.algebra.recovered import Recovered
from docleak.documents import Field, Page, private_mask, repeats_of
from docleak.documents.page import Box, Word
from docleak.errors import AttackError
from docleak.metrics import exact, normalise, psnr
from docleak.metrics.estimate import Estimate, ratio_of
from docleak.models import DocumentModel, Encoded, Transcript, image_of
from docleak.models.layoutlmv3 import LayoutLMv3
from docleak.models.vlm.model import VisionLanguage
from docleak.studies.gradient.case import Case


def text_record(case: Case, *, look: bool = True) -> dict[str, object] | None:
    """What was read of the client's text, beside the truth; ``look`` reads it where the case's adversary did not.

    None where it was not looked for; {"batch": ...} of several LayoutLMv3 pages, with {"one": ...} of the page that
    outweighs the others, of several answers of a T5, and of vision-language models whose words are told without order;
    {"failed": why} where nothing was read: ``applies`` is then False where there is no closed form for such a view, and
    ``sent`` where the client does not send what it reads, so that nothing was tried.
    """
    if case.recovered is None and not look:
        return None
    model = case.view.model
    try:
        if getattr(model, "answer_layers", None):
            return _of_answers(case, model, recover_answers(case.view))
        if case.view.batch_size > 1 and case.view.model.architecture == "layoutlmv3":
            return {"batch": _of_batch(case, recover_batch(case.view)), "one": one_page(case)}
        recovered = case.recovered or recover(case.view, case.knowledge)
    except AttackError as error:
        if isinstance(model, VisionLanguage):
            return _as_set(case, model, str(error))
        applies = text_obstacle(model, case.view.batch_size) == ""
        return {"failed": str(error), "applies": applies, "sent": not isinstance(error, UnsentError)}
    return {**_compared(case, recovered), **_transcribed(case, recovered)}


def _of_answers(case: Case, model: Any, found: Answers) -> dict[str, object]:
    """The answers of a T5's decoder, token by token, without what ends them."""
    true = {tuple(example.tensors["labels"].tolist()[:-1]) for example in case.inputs}
    read = set(found.tokens)
    told: dict[str, object] = {
        "believed_exact": found.exact,
        "conditions": [vars(condition) for condition in found.conditions],
        "seconds": found.seconds,
    }
    untried = f"The question and the words of a {model.architecture} were not tried: they have no closed form"
    if len(case.inputs) > 1:
        tokens = counted({t for answer in read for t in answer}, {t for answer in true for t in answer})
        return {"batch": {**told, "pages": len(case.inputs), "tokens": tokens, "answers": counted(read, true),
                          "route": "the decoder's first layer"}, "untried": untried}  # fmt: skip
    (answer,), best = true, max(found.tokens, key=len)
    said = str(model.tokenizer.decode(list(best), skip_special_tokens=True)).strip()
    wanted = model.transcript(case.inputs[0]).answer
    answers = [_answers(field.value, wanted, said) for field in case.pages[0].private_fields]
    return {
        **told, "exact": read == true, "tokens": len(answer), "words": [], "question": "", "answer": said,
        "tokens_right": sum(one == other for one, other in zip(answer, best, strict=False)), "what": "the answer",
        "wrong_parts": [] if read == true else ["labels"], "fields_by": {"answer": answers}, "fields_read": answers,
        "fields_seen": [True] * len(answers), "token_limit": None, "untried": untried,
    }  # fmt: skip


def _as_set(case: Case, model: VisionLanguage, unordered: str) -> dict[str, object]:
    """Which tokens moved, without their order, and why it is not told."""
    try:
        token_set = recover_set(case.view)
    except AttackError as error:
        return {"failed": str(error), "applies": False}
    true = set().union(*(model.tokens_moved(example) for example in case.inputs))
    return {
        "batch": {
            "pages": len(case.inputs),
            "tokens": counted(set(token_set.tokens), true),
            "believed_exact": token_set.exact,
            "route": token_set.route,
            "unordered": unordered,
            "conditions": [vars(condition) for condition in token_set.conditions],
            "seconds": token_set.seconds,
        }
    }


def text_obstacle(model: DocumentModel, batch_size: int) -> str:
    """Why there is no closed form at all for the text of such a gradient; "" where there is one."""
    if getattr(model, "answer_layers", None):
        return f"of the text of a {model.architecture} answers alone have a closed form"
    if model.architecture not in RECOVERABLE:
        return f"the text input of a {model.architecture} has no closed-form recovery"
    if batch_size > 1 and model.architecture != "layoutlmv3":
        return f"the closed form reads the text of one example; the gradient is a mean over {batch_size}"
    return ""


def _compared(case: Case, recovered: Recovered) -> dict[str, object]:
    true, read = _entered(case.inputs[0]), _entered(recovered.inputs[0])
    same = {key: true[key].shape == read[key].shape and bool((true[key] == read[key]).all()) for key in true}
    key = "decoder_input_ids" if "decoder_input_ids" in true else "input_ids"
    length = min(len(true[key]), len(read[key]))
    right = int((true[key][:length] == read[key][:length]).sum())
    return {
        "exact": all(same.values()),
        "believed_exact": recovered.exact,
        "tokens": len(true[key]),
        "tokens_right": right,
        "wrong_parts": [name for name, equal in same.items() if not equal],
        "conditions": [vars(condition) for condition in recovered.conditions],
        "seconds": recovered.seconds,
    }


def _entered(example: Encoded) -> dict[str, Tensor]:
    """What the model takes of an example: of ``word_ids`` no more than which tokens are the page's. An OCR entry of two
    words and two entries in one box are the same input, and give the same gradient."""
    tensors = example.tensors
    return {**tensors, "word_ids": tensors["word_ids"].clamp(max=0)} if "word_ids" in tensors else dict(tensors)


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
        "tokens": counted(set(found.tokens), {token for page in ids for token in page}),
        "coordinates": counted(read, coordinates),
        "places": counted(
            {(t, *some) for t, some in found.places.items()}, {(t, *sorted(p)) for t, p in places.items()}
        ),
        "boxes": counted({(t, token, *box) for (t, token), box in found.boxes.items()}, words),
        "read": {str(t): name(list(some)) for t, some in found.places.items()},
        "conditions": [vars(condition) for condition in found.conditions],
        "seconds": found.seconds,
    }


def one_page(case: Case) -> dict[str, object]:
    """What was read of a batch as if it were one page, beside the page of the batch that it is most like.

    The adversary is told neither which that is nor whether it is right: ``claimed`` and ``believed_exact`` are its own
    opinion. {"failed": why} where it cannot be tried.
    """
    try:
        dominant = recover_dominant(case.view, case.knowledge)
    except AttackError as error:
        return {"failed": str(error)}
    of = max(range(len(case.pages)), key=lambda number: _same_tokens(case.inputs[number], dominant.recovered.inputs[0]))
    alone = replace(case, pages=(case.pages[of],), inputs=[case.inputs[of]])
    page, pixels = case.pages[of], dominant.recovered.pixels
    assert pixels is not None
    private = private_mask(page, repeats=False)
    return {
        "claimed": dominant.claimed,
        "left": dominant.left,
        "sure": dominant.sure,
        "number": of,
        "page": page.name,
        "document": page.document or page.name,
        "values": [[field.key, field.value] for field in page.private_fields],
        "psnr": psnr(image_of(pixels[0]), page.image, private) if private.any() else None,
        **_compared(alone, dominant.recovered),
        **_transcribed(alone, dominant.recovered),
    }


def _same_tokens(true: Encoded, found: Encoded) -> int:
    return sum(int(a) == int(b) for a, b in zip(true.tensors["input_ids"], found.tensors["input_ids"], strict=False))


def counted(found: set[Any], true: set[Any]) -> dict[str, int]:
    """Different things: found, right, and there."""
    return {"found": len(found), "right": len(found & true), "true": len(true)}


def _transcribed(case: Case, recovered: Recovered) -> dict[str, object]:
    model: DocumentModel = case.view.model
    true, read = model.transcript(case.inputs[0]), model.transcript(recovered.inputs[0])
    page, fields = case.pages[0], case.pages[0].private_fields
    by: dict[str, list[bool]] = {}
    if true.question or true.answer:  # a tagger is asked nothing
        by["answer"] = [_answers(field.value, true.answer, read.answer) for field in fields]
        by["question"] = [_names(field.value, true.question, read.question) for field in fields]
    if true.words:
        again = repeats_of(page)
        places = [[field, *(r for r in again if (r.key, r.value) == (field.key, field.value))] for field in fields]
        by["words"] = [any(_reads(page, place, case.inputs[0], true, read) for place in one) for one in places]
    return {
        "question": read.question,
        "answer": read.answer,
        "words": [{"text": word.text, "box": [round(edge, 1) for edge in word.box]} for word in read.words],
        "fields_by": by,
        "fields_read": [any(route[i] for route in by.values()) for i in range(len(fields))],
        "fields_seen": [_seen(page, field, case.inputs[0], true) for field in fields],
        "fields_spelt": [_spelt(page, field) for field in fields],
        "token_limit": getattr(model, "max_tokens", None),
    }


def _reads(page: Page, place: Field, example: Encoded, true: Transcript, found: Transcript) -> bool:
    """Whether the words at a place were read exactly, all of them, white space aside: what stands in one box may be
    several words. Of a value cut off by the limit none is read."""
    boxes = page.field_boxes(place)
    there, read = ("".join("".join(word.text.split()) for word in words_in(of.words, boxes)) for of in (true, found))
    return bool(there) and there == read and _seen(page, place, example, true)


def _spelt(page: Page, field: Field) -> bool:
    """Whether the words at a field's place are its value, white space aside: an OCR may have misread it, and a data set
    may write it in another way."""
    printed = "".join(page.words[word].text for word in field.words)
    return exact(printed, field.value)


def _answers(value: str, true: str, found: str) -> bool:
    """Whether the recovered answer is the value, white space aside; a vocabulary without capitals can give no more
    than the true answer as the model takes it."""
    said, wanted = normalise(found), normalise(value)
    as_taken = found == true and said.casefold() == wanted.casefold()
    return bool(wanted) and (said == wanted or as_taken)


def _names(value: str, true: str, found: str) -> bool:
    """Whether the recovered question names the value, word for word, as the true question does."""
    wanted = " ".join(value.split())
    return bool(wanted) and all(f" {wanted} " in f" {' '.join(text.split())} " for text in (true, found))


def _seen(page: Page, field: Field, example: Encoded, true: Transcript) -> bool:
    """Whether all of a field's words entered the model; those behind its token limit did not, nor one cut in two."""
    if not true.words or not field.words:
        return True
    last = max(example.words_seen, default=-1)
    whole, taken = (page.words[last].text, true.words[-1].text) if last >= 0 else ("", "")
    cut = {last} if whole != taken and whole.startswith(taken) else set()
    return set(field.words) <= set(example.words_seen) - cut


def words_in(words: Sequence[Word], boxes: Sequence[Box]) -> list[Word]:
    """The words whose middle lies in one of the boxes."""
    return [word for word in words if any(_inside(word.box, box) for box in boxes)]


def _inside(word: Box, box: Box) -> bool:
    x, y = (word[0] + word[2]) / 2, (word[1] + word[3]) / 2
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


def exact_text(record: Mapping[str, Any]) -> list[float]:
    """1 where all of the text was read of the page, 0 where not; [] of batches, and where it was not looked for."""
    recovered = record.get("recovered") or {}
    return [float(recovered["exact"])] if "question" in recovered else []


def mean_of(shares: Sequence[float]) -> Estimate:
    """The mean of a share of each document."""
    return ratio_of(([share] for share in shares), np.random.default_rng(0), of="documents")
