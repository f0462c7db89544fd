"""The verdict on one model of a gradient audit, in sentences: all of them from the same ``Findings``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from docleak.report.severity import LEAKS, LEGIBLE_SHARE, Cell, Severity, routes_sentence
from docleak.spec import counted_words
from docleak.studies.gradient.exposed import in_place, part_sent, published
from docleak.studies.gradient.findings import FLOORS, answer_given, blind, text_recovered, text_taken, words_given
from docleak.studies.gradient.results import MOMENTS, ModelResult
from docleak.studies.gradient.words import LARGER, between, duration, share


@dataclass(frozen=True)
class Verdict:
    """One model's answer: ``sentence`` first and what belongs to it (``more``, often ""), ``routes`` side by side, then
    how it came about and its meaning."""

    severity: Severity
    sentence: str
    more: str
    routes: str
    how: str
    meaning: tuple[str, ...]


def verdict(model: ModelResult, engines: Sequence[str]) -> Verdict:
    """What the server got of this model's pages by any route, how, and what it means."""
    severity = model.severity
    unread = severity is Severity.UNTOLD
    return Verdict(
        severity=severity,
        sentence=_sentence(model, severity),
        more="Audit at a larger size." if unread and model.findings.judgement.illegible else "",
        routes=routes_sentence(model.findings.routes),
        how=_how(model),
        meaning=tuple(_meaning(model, severity, engines)),
    )


def _sentence(model: ModelResult, severity: Severity) -> str:
    said, sizes = model.findings.judgement, model.batch_sizes
    batch = (
        f" over a batch of {' to '.join(str(s) for s in {sizes[0]: 0, sizes[-1]: 0})} pages" if sizes[-1] > 1 else ""
    )
    run = model.units[0].run
    defended = f"{in_place(run)}, " if in_place(run) else ""
    begin = f"From one client's gradient{part_sent(run)}{batch} {MOMENTS[model.moment]}, {defended}"
    count = len(model.pages)
    pages = f", on {count} pages" if count > 1 else ""
    fields = f"{said.of} private {'field' if said.of == 1 else 'fields'}"
    near = said.cells.count(Cell.NEAR)
    if severity is Severity.UNMEASURED and said.of:
        return (
            f"{begin}whatever is read is no finding: the attacker was given {fields}, or the blank template shows it."
        )
    if severity is Severity.UNMEASURED:
        return f"{begin}the server made the pictures below; whether their text can be read was not measured."
    if severity is Severity.UNTOLD and model.findings.judgement.illegible:
        true = "page" if count == 1 else "pages"
        size = f"at {' or '.join(model.sizes)} pixels" if model.sizes else "at this size"
        lost = said.cells.count(Cell.ILLEGIBLE)
        which = f"none of {fields}" if lost == said.of else f"{lost} of {fields} not"
        return (
            f"{begin}nothing can be concluded by reading: {size} the OCR engine reads {which} exactly on the true "
            f"{true} either."
        )
    if severity is Severity.UNTOLD and not said.of:
        return f"{begin}no field was counted{pages}, so whether any can be read could not be told."
    if severity is Severity.UNTOLD:
        return (
            f"{begin}none of {fields} was read{pages}, but this is no finding of safety: whether they can be read "
            "could not be told."
        )
    if said.read:
        more = f" and {near} more nearly" if near else ""
        return f"{begin}the server read {said.read} of {fields} exactly{more}{pages}."
    if near:
        return f"{begin}the server read none of {fields} exactly but {near} nearly{pages}."
    if severity is Severity.PARTIAL:
        whole = f"; none of {fields} was read as a whole" if said.of else ""
        return f"{begin}the server reads which words the pages hold{whole}{pages}."
    return f"{begin}the server read none of {fields} exactly{pages}."


def _how(model: ModelResult) -> str:
    best = model.best
    if blind(best.units[0].record):
        return "The model reads words and boxes and no picture: the blank template stands in its place."
    if best.attack in FLOORS:
        return "No attack on the picture was made; random pixels are a floor."
    tried = sum(attack.attack not in FLOORS for attack in model.attacks)
    how = f"The picture shown is by {best.attack}"
    if alike := [attack.attack for attack in model.attacks if attack is not best and attack.rank() == best.rank()]:
        how += f" ({' and '.join(alike)} recovered as much; none of the {tried} tried recovered more)"
    elif tried > 1:
        average = " on average" if len(best.units) > 1 else ""
        how += f", the attack that recovered most{average} of the {tried} tried"
    if best.evaluations.value is not None:
        spent = best.evaluations.value
        how += f", after {spent:,.0f} gradient evaluations" if spent else ", without any gradient evaluation"
        how += f" ({duration(best.seconds.value)})" if best.seconds.value is not None else ""
        how += f" per {'batch' if model.batch_sizes[-1] > 1 else 'page'}" if len(best.units) > 1 else ""
    return f"{how}."


def _meaning(model: ModelResult, severity: Severity, engines: Sequence[str]) -> list[str]:
    lines = list(dict.fromkeys([*model.findings.judgement.doubts, *model.findings.unread]))
    if severity is Severity.UNMEASURED and not model.findings.judgement.of:
        lines.append("No OCR engine read the fields. Install one and score the run again, or judge the pictures.")
    if severity in LEAKS:
        told, near = model.findings.judgement, Cell.NEAR in model.findings.judgement.cells
        reach = "come close to private text" if near else "read which words the pages hold"
        reach = "read private text" if told.read else reach
        lines.append(f"It means that whoever receives one such update can {reach} without ever seeing the page.")
    if severity is Severity.NONE:
        lines.append(
            "It does not mean that the gradient is safe: these attacks did not succeed within this budget. Look at the "
            "pictures, too: a person can read more than an OCR engine."
        )
    lines += [*_of_text(model), *_of_given(model), *_of_reading(model, severity, engines), *_of_share(model, severity)]
    return [*lines, *_apart(model)]


def _of_reading(model: ModelResult, severity: Severity, engines: Sequence[str]) -> list[str]:
    """The yardsticks of the picture's reading, and what a low ceiling means."""
    floor, ceiling = model.floor["binary"], model.ceiling["binary"]
    if ceiling.value is None or blind(model.units[0].record):
        return []
    reader = engines[0] if engines else "the OCR engine"
    true = "page" if len(model.pages) == 1 else "pages"
    lines = [
        f"Yardsticks of the picture: on the true {true} {reader} reads {share(ceiling)} of the fields exactly, on the "
        f"{'published' if published(model.units[0].run) else 'blank'} template {share(floor)}."
    ]
    if severity is Severity.UNTOLD and model.findings.judgement.illegible:
        lines.append(
            "This is no finding of safety: the engine cannot read the true text at this size, so it would not read a "
            "perfect copy either. How alike the pictures are, which needs no reading, stands in the table."
        )
    if ceiling.value < LEGIBLE_SHARE and severity is not Severity.SEVERE:
        lines.append(
            f"The true pages are hardly legible to the engine themselves, so it may miss a good copy. {LARGER}"
        )
    return lines


def _of_share(model: ModelResult, severity: Severity) -> list[str]:
    rate = model.findings.share
    if model.documents < 2:
        return ["This is 1 document: an example of what can happen, not a rate at which it happens."]
    if severity in (Severity.UNMEASURED, Severity.UNTOLD) or rate.value is None:
        return []
    return [
        f"Share of the fields read by any route: {share(rate)}, {between(rate)} over {rate.groups} documents "
        f"(n = {rate.n} fields), as far as other pages are like these."
    ]


def sampled(models: Sequence[ModelResult]) -> str:
    """How far the counts of fields read hold of other documents, to be quoted beside them; "" where nothing was."""
    said = []
    for model in models:
        rate, of = model.findings.share, f" of {model.title}" if len(models) > 1 else ""
        if model.documents < 2:
            said.append("Gradients of one document are an example, not a rate.")
        elif rate.value is not None:
            said.append(f"Share of the fields read{of}: {share(rate)}, {between(rate)} over {rate.groups} documents "
                        f"(n = {rate.n} fields).")  # fmt: skip
    return " ".join(dict.fromkeys(said))


def _apart(model: ModelResult) -> list[str]:
    """What is no finding, or could not be counted."""
    cells = model.findings.judgement.cells
    given, public, lost, unscored, unseen = (
        cells.count(cell) for cell in (Cell.GIVEN, Cell.PUBLIC, Cell.ILLEGIBLE, Cell.UNSCORED, Cell.UNSEEN)
    )
    lines = []
    blank = "published" if published(model.units[0].run) else "blank"
    if given:
        holds = "1 field holds" if given == 1 else f"{given} fields hold"
        lines.append(
            f"{holds} the answer to the client's question, which the attacker was given: seen in the picture too, but "
            "no finding, and not counted as read."
        )
    if public:
        lines.append(f"{public} of the fields can be read on the {blank} template too, and are not counted as read.")
    if otherwise := sum(field.otherwise for field in model.findings.fields):
        lines.append(
            f"{otherwise} of the fields read {'has' if otherwise == 1 else 'have'} a value that the page's OCR words "
            "write otherwise: what was read exactly, and is counted, are these words."
        )
    if lost and lost < len(cells):
        lines.append(f"{lost} of the fields not read cannot be read on the true page either.")
    if unscored:
        has, was = ("has", "was") if unscored == 1 else ("have", "were")
        fields = counted_words(unscored, "private field")
        lines.append(f"{fields} {has} no text or no place on the page and {was} not scored.")
    if unseen:
        fields, them = counted_words(unseen, "private field"), "it" if unseen == 1 else "them"
        lines.append(f"{fields} never entered the model, so no route could give {them}.")
    return lines


def _of_given(model: ModelResult) -> list[str]:
    """What the attacks on the picture were handed of the text; where they read it themselves, that."""
    records = [unit.record for unit in model.units if unit.record["attack"] not in FLOORS]
    if any(map(text_recovered, records)):
        return ["The attacks on the picture were given no text: they had what linear algebra read before."]
    alone = textless(model)
    aside = f", {' and '.join(alone)} aside" if alone else ""
    if any(map(words_given, records)):
        return [
            "This model takes OCR words beside the picture, and the attacks on the picture were given "
            f"them{aside}: the picture's count shows what the picture's part of the gradient alone gives away."
        ]
    if any(map(answer_given, records)):
        return [
            f"The attacks on the picture were given question and answer{aside}, as in the paper's tables. That the "
            "answer was given is no finding; that another route reads it without having it is."
        ]
    return []


def textless(model: ModelResult) -> list[str]:
    """The attacks on the picture that could have worked with the text that was known, and did without on every page."""
    return [
        attack.attack for attack in model.attacks
        if attack.attack not in FLOORS and not any(text_taken(unit.record) for unit in attack.units)
        and not any(text_recovered(unit.record) for unit in attack.units)
    ]  # fmt: skip


def _of_text(model: ModelResult) -> list[str]:
    """What the text side gives away without any picture."""
    texts = model.texts
    if not texts:
        return of_batches(model)
    exact = sum(bool(text["exact"]) for text in texts)
    where = "exactly" if len(texts) == 1 else f"exactly on {exact} of {len(texts)} pages"
    if not exact:
        right, tokens = (sum(int(text[key]) for text in texts) for key in ("tokens_right", "tokens"))
        return [f"Linear algebra alone, given no text, reads {right} of {tokens} tokens of the client's text rightly."]
    words = "every word that the model saw, its place, question and answer"
    what = texts[0].get("what") or (words if texts[0]["words"] else "question and answer")
    secret = sum(bool(read) for text in texts for read in text["fields_read"])
    fields = sum(len(text["fields_read"]) for text in texts)
    return [
        f"Linear algebra alone, given no text, reads {what} {where}: {secret} of {fields} private fields are in what "
        "it reads."
    ]


def of_batches(model: ModelResult) -> list[str]:
    """What the text tables tell of several pages at once, summed over the batches; nothing of single pages."""
    batches = model.batches
    if not batches:
        return []

    def told(what: str) -> tuple[int, int, int]:
        counts = [batch.get(what, {}) for batch in batches]  # of a vision-language model no places are told
        right, claims, true = (sum(int(count.get(key, 0)) for count in counts) for key in ("right", "found", "true"))
        return right, claims, true

    (tokens, named, there), (edges, read, used) = told("tokens"), told("coordinates")
    (places, claimed, positions), (boxes, drawn, of) = told("places"), told("boxes")
    wrong = named - tokens + read - edges + claimed - places + drawn - boxes
    several, size = len(batches) > 1, model.batch_sizes[-1]
    kind = f"batches of {size} pages" if size > 1 else "pages"
    summed = f", summed over {len(batches)} {kind}," if several else ""
    (answers, said, asked), told_surely = told("answers"), sum(bool(batch.get("believed_exact")) for batch in batches)
    if asked:
        return [
            f"By linear algebra alone, from {_joined([str(batch['route']) for batch in batches])}, {answers} of the "
            f"{asked} different answers{summed} are told, token by token, and {said - answers} wrong ones. Which page "
            f"an answer is of is not told. The attacker can know that this is so on {told_surely} of {len(batches)} "
            "batches."
        ]
    if not positions:
        return [
            f"By linear algebra alone, from {_joined([str(batch['route']) for batch in batches])}, {tokens} of the "
            f"{there} different tokens that the client read{summed} are told, without their order; {named - tokens} "
            "others are named wrongly. The attacker can know that this is so on "
            f"{told_surely} of {len(batches)} {kind}."
            + "".join(
                f" Why no order: {why.rstrip('.')}."
                for why in dict.fromkeys(b.get("unordered", "") for b in batches)
                if why
            )
        ]
    return [
        f"By linear algebra alone the gradient{'s tell' if several else ' tells'} {tokens} of the {there} different "
        f"tokens{summed or ' in the batch'} and {edges} of the {used} coordinates of {'their' if several else 'its'} "
        f"boxes; all tokens at {places} of {positions} positions, and {boxes} of {of} "
        f"tokens with position and box. {wrong} statements were wrong. Which page a token is of, it does not tell.",
        *_of_ones(model),
    ]


def _of_ones(model: ModelResult) -> list[str]:
    """What taking a batch for its one page that outweighs the others gives, and what of that the attacker knows."""
    read = [(unit.identity, (unit.record.get("recovered") or {}).get("one") or {}) for unit in model.units]
    ones = list({identity: one for identity, one in read if "claimed" in one}.values())
    if not ones:
        return []
    claimed = [one for one in ones if one["claimed"]]
    many = f"{len(ones)} batches" if len(ones) > 1 else "1 batch"
    if not claimed:
        return [
            f"Taken for one page's, the gradient of {many} gives none that explains it: no page outweighs the others "
            "enough, and nothing that was read so counts."
        ]
    whole, believed = (sum(bool(one[key]) for one in claimed) for key in ("exact", "believed_exact"))
    wrong = sum(bool(one["believed_exact"]) and not one["exact"] for one in claimed)
    right, tokens = (sum(int(one[key]) for one in claimed) for key in ("tokens_right", "tokens"))
    others = f", {wrong} of them wrongly" if wrong else ""
    return [
        f"Taken for one page's, the gradient of {len(claimed)} of {many} gives a page that explains at least 90 % of "
        f"it: {right} of {tokens} tokens are right, and {whole} of these pages are read whole, words, places, question "
        f"and answer. The attacker can know so of {believed}{others}; which page of the batch it is, it is not told. "
        "Fields of that page count as read, also where its picture was not attacked."
    ]


def _joined(routes: Sequence[str]) -> str:
    return " or ".join(dict.fromkeys(routes))
