"""Look at every page of a data set: what cannot be used, and what is probably not meant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from docleak.documents.folder import read_index
from docleak.documents.loaders import SYNTHETIC, load_pages, options_for, page_source, page_specs
from docleak.documents.locate import SHORTEST, WordStream, letters, places_of, repeats_of, spelling
from docleak.documents.page import Field, Page, Question
from docleak.documents.pages import LazyPages, entries_of, grouped
from docleak.documents.ranges import short
from docleak.documents.redaction import similarity, traces
from docleak.documents.scale import BoxScale, has_ink
from docleak.errors import DocumentError
from docleak.spec import counted_words

#: Normalised Levenshtein similarity of letters and digits below which a value is called unlike its words.
ALIKE = 0.8


@dataclass(frozen=True)
class Finding:
    """What is wrong, or doubted; of which page ("": the data set as a whole); as one of which kind ("": alone)."""

    page: str
    what: str
    fault: bool = False
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.page}: {self.what}" if self.page else self.what


@dataclass
class Seen:
    """How many pages can be read, how many of them have a question with an answer, and all findings in the order of
    the pages."""

    pages: int = 0
    asked: int = 0
    findings: list[Finding] = field(default_factory=list)

    def of(self, *, fault: bool) -> list[Finding]:
        """The faults, or the warnings."""
        return [finding for finding in self.findings if finding.fault == fault]


def check_pages(
    spec: str, *, on_page: Callable[[int, int, str], None] = lambda done, total, label: None, seed: int = 0
) -> Seen:  # fmt: skip
    """Read every page of ``spec`` (as for ``load_pages``), also those beside faulty ones.

    Faults are what no command takes: lines, pictures, boxes. Warnings are boxes of another scale or without ink,
    values unlike the words of their field, the same page or field twice, private values without a place, those that a
    page, or another page of its document, prints again elsewhere, how many questions the words do not answer, and how
    many pages audits and trainings pass over.
    """
    seen, pages = Seen(), _opened(spec, findings := list[Finding](), seed)
    seen.findings += findings
    scale, pictures, names = BoxScale(), dict[str, str](), set[str]()
    audited = 0
    printed: dict[tuple[str, str], list[_Printed]] = {}
    questions, unsaid = 0, list[tuple[str, Question]]()
    for number, entry in enumerate(entries := entries_of(pages)):
        on_page(number, len(entries), entry.name)
        if entry.name in names:
            seen.findings.append(Finding(entry.name, "another page has this name", kind="name of another page"))
        names.add(entry.name)
        try:
            page = entry.make()
        except DocumentError as error:
            seen.findings.append(Finding(entry.name, str(error), fault=True))
            continue
        seen.pages += 1
        audited += bool(page.private_fields)
        seen.asked += any(question.answers and question.answers[0].strip() for question in page.questions)
        questions += sum(bool(question.answers) for question in page.questions)
        unsaid += [(entry.name, question) for question in _unsaid(page)]
        scale.add(page.words, (page.width, page.height))
        seen.findings += [Finding(entry.name, what, kind=kind) for kind, what in page_doubts(page)]
        digest = hashlib.sha256(repr(page.image.shape).encode() + page.image.tobytes()).hexdigest()
        if digest in pictures:
            what = f"the same picture as {pictures[digest]}"
            seen.findings.append(Finding(entry.name, what, kind="same picture"))
        pictures.setdefault(digest, entry.name)
        if page.document:
            printed.setdefault((page.provider, page.document), []).append(_Printed.of(page, entry.name))
    seen.findings += [finding for pages_of in printed.values() for finding in _elsewhere(pages_of)]
    told = {finding.what for finding in seen.findings}
    seen.findings += [Finding("", note) for note in scale.notes() if note not in told]
    seen.findings += [Finding("", doubt) for doubt in _passed_over(seen.pages, audited, seen.asked)]
    for name, question in unsaid[:1]:
        doubt = (
            f"{len(unsaid)} of {questions} questions ask for what no word of their page says, the first of {name}: "
            f"{short(question.answers[0])}. It was computed, or OCR missed it; what OCR missed, a model that reads "
            "words can only learn by heart (docs/release.md)"
        )
        seen.findings.append(Finding("", doubt))
    if not seen.pages and not seen.of(fault=True):
        seen.findings.append(Finding("", "there is no page", fault=True))
    return seen


def _passed_over(pages: int, audited: int, asked: int) -> Iterator[str]:
    """Of how many pages an audit, or a training, makes nothing."""
    if pages and not audited:
        yield "no page has a private field with a place; an audit needs one (data mark)"
    elif audited < pages:
        yield (f"{pages - audited} of {pages} pages have no private field with a place; docleak audit gradient passes "
               "over them (data mark)")  # fmt: skip
    if 0 < asked < pages:
        yield (f"{pages - asked} of {pages} pages have no question with an answer; trainings that ask questions pass "
               "over them")  # fmt: skip


def _unsaid(page: Page) -> Iterator[Question]:
    """Questions with answers of SHORTEST letters or more, which the page's words do not say, nor anything like them."""
    stream = WordStream.of([word.text for word in page.words])
    for question in page.questions if page.words else ():
        long = question.answers and all(len(letters(answer)) >= SHORTEST for answer in question.answers)
        if long and not any(map(stream.find_all, question.answers)) and not traces(page, question.answers):
            yield question


def _opened(spec: str, findings: list[Finding], seed: int) -> Sequence[Page]:
    """The pages that can be opened; what keeps others from it, and the loader's doubts, are added to ``findings``."""
    try:
        if spec != SYNTHETIC and len(page_specs(spec)) == 1 and (source := page_source(spec)).format == "folder":
            options_for(source, spec)
            entries, faults, notes = read_index(source.path)
            pages: Sequence[Page] = LazyPages(source.path, entries, notes=notes)
            findings += [Finding("", fault, fault=True) for fault in faults]
        else:
            pages = load_pages(spec, seed=seed)
    except DocumentError as error:
        findings.append(Finding("", str(error), fault=True))
        return ()
    findings += [Finding("", note) for note in getattr(pages, "notes", ())]
    return pages


def page_doubts(page: Page) -> Iterator[tuple[str, str]]:
    """What of a page is probably not meant: kinds of doubts, and phrases."""
    blank = [index for index, word in enumerate(page.words) if not has_ink(page, word)]
    if blank:
        shown = ", ".join(f"{i} {short(page.words[i].text)}" for i in blank[:3])
        what = (f"the boxes of {len(blank)} of {len(page.words)} words hold no ink (word {shown}"
                f"{', ...' if len(blank) > 3 else ''}): of another scale, or of another picture?")  # fmt: skip
        yield "boxes without ink", what
    for one in page.fields:
        about = f"field {one.key!r}, {short(one.value)}"
        if not one.words:
            if one.private:
                yield "no place", f"{about}: has no place on the page; nothing is blanked for it, and nothing audited"
            continue
        under = _words_under(page, one)
        if _unlike(one.value, under):
            yield "other words in its place", f"{about}: the words in its place are {short(under)}"
    for twice in sorted({(f.key, f.value) for f in page.fields if page.fields.count(f) > 1}):
        yield "field twice", f"field {twice[0]!r}, {short(twice[1])}: is there twice, with the same words"
    for (key, value), places in grouped(repeats_of(page), lambda repeat: (repeat.key, repeat.value)).items():
        x0, y0, *_ = page.words[places[0].words[0]].box
        elsewhere = counted_words(len(places), "other place")
        what = (f"field {key!r}, {short(value)}: is printed again at {elsewhere}, the first at {x0:.0f}, {y0:.0f}; "
                "docleak blanks them too")  # fmt: skip
        yield "printed again on the page", what


@dataclass(frozen=True)
class _Printed:
    """What a page prints, without its picture: its words, those of fields among them, and its private values with what
    stands in their places."""

    name: str
    words: WordStream
    taken: frozenset[int]
    private: tuple[tuple[str, str, str], ...]  # key, value, words

    @classmethod
    def of(cls, page: Page, name: str) -> _Printed:
        texts = [word.text for word in page.words]
        private = dict.fromkeys((f.key, f.value, " ".join(texts[i] for i in f.words)) for f in page.private_fields)
        taken = frozenset(index for one in page.fields for index in one.words)
        return cls(name, WordStream.of(texts), taken, tuple(private))


def _elsewhere(pages: Sequence[_Printed]) -> Iterator[Finding]:
    """Private values of one page that another of its document prints where nothing is a field: an audit sees them."""
    for page in pages:
        for key, value, words in page.private:
            others = [
                other.name
                for other in pages
                if other.name != page.name
                and any(
                    not other.taken.issuperset(place)
                    for text in {value, words}
                    for place in places_of(other.words, text)
                )
            ]
            if others:
                elsewhere = counted_words(len(others), "other page")
                what = (
                    f"field {key!r}, {short(value)}: is printed on {elsewhere} of its document, first {others[0]}, and "
                    "is no field there; docleak does not blank it there"
                )
                yield Finding(page.name, what, kind="printed on another page")


def _words_under(page: Page, one: Field) -> str:
    """What the page prints in the field's place: its words, or, where it has one made of its value and a box, those of
    the others whose middle lies in that box."""
    texts = [page.words[index].text for index in one.words]
    if texts != [one.value]:
        return " ".join(texts)
    x0, y0, x1, y1 = page.words[one.words[0]].box
    inner = [
        word.text
        for index, word in enumerate(page.words)
        if index not in one.words
        and x0 <= (word.box[0] + word.box[2]) / 2 <= x1
        and y0 <= (word.box[1] + word.box[3]) / 2 <= y1
    ]
    return " ".join(inner) or one.value


def _unlike(value: str, printed: str) -> bool:
    """Whether the letters differ by more than OCR's misreadings, or are in no way part of what is printed."""
    if spelling(value) in spelling(printed):
        return False
    return similarity(letters(value), letters(printed)) < ALIKE
