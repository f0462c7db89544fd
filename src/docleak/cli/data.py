"""``docleak data``: list formats, make synthetic pages, inspect and convert pages."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from docleak.cli.command import DRAWN
from docleak.cli.output import counter, emit, end_with, working_in
from docleak.documents.ranges import COUNT, PORT, SEED, SOME, Range
from docleak.options import Need, option, required
from docleak.spec import counted_words

if TYPE_CHECKING:
    from docleak.documents.checking import Finding
    from docleak.documents.page import Page

#: As many as ``documents.issuers`` has, at most.
ISSUERS = Range(1, 2_196)
#: Neither says anything where a data set has its own division.
_DIVIDED_HERE = Need(
    lambda given: not (given.blue_red and given.by == "clients"), "docleak's own division, not --by clients"
)
#: Lines about values that the terminal shows; the file has all.
MOST_TOLD = 20
#: From so many warnings of one kind on, the first three are shown and the others counted; ``--json`` has all.
OFTEN = 10


def list_formats() -> None:
    """List the page formats docleak reads, and which have splits that :split=NAME reads."""
    from docleak.documents.loaders import LOADERS

    rows = {
        name: f"{loader.about}{'; splits by :split=NAME' * (loader.splits_are != 'none')}"
        for name, loader in LOADERS.items()
    }
    emit(rows, "\n".join(f"{name:14}{text}" for name, text in rows.items()))


def make(
    out: Path = required("New or empty folder to write pages.jsonl and PNGs into.", argument=True),
    count: int | None = option(None, "Number of pages: 16, or with --documents at most that many of each.", range=SOME),
    seed: int = option(0, "Same seed, same pages and partition.", range=SEED, need=_DIVIDED_HERE),
    width: int = option(192, "Pixels of synthetic pages; at least 192.", range=Range(192, 20_000)),
    height: int = option(256, "Pixels of synthetic pages; at least 224.", range=Range(224, 20_000)),
    partition: int | None = option(
        None, "Divide the pages into this many silos, a folder each.", range=Range(1, 10_000), need=_DIVIDED_HERE
    ),
    documents: tuple[str, ...] = option(
        (), "With --partition: FORMAT:PATH or PATH to divide; several times for several.", repeat=True
    ),
    by: str = option(
        "documents", "With --partition: documents (one data set per silo), providers, clients (PFL-DocVQA's)."
    ),
    blue_red: bool = option(False, "Divide by provider into silos, validation, test and what attacks are made with."),
    issuers: int = option(240, "With --blue-red, where no --documents are given: providers.", range=ISSUERS),
    per_issuer: float = option(6.0, "And the mean number of documents of each, 3 at least.", range=Range(3, 1_000)),
    pdf: bool = option(False, "Write PDFs, every third a scan, and values.csv, to try data convert on."),
) -> None:
    """Make synthetic invoices, the silos of a federation, or BLUE and RED, and write them as folders of pages."""
    if pdf:
        _make_pdfs(out, documents, seed, count)
        return
    if blue_red:
        _make_blue_red(out, documents, partition, by, issuers, per_issuer, seed, count)
        return
    if partition is not None:
        from docleak.documents.loaders import SYNTHETIC

        _make_silos(out, documents or (SYNTHETIC,), partition, by, seed, count)
        return
    from docleak.documents.loaders import DEFAULT_SYNTHETIC_PAGES
    from docleak.documents.synthetic import make_pages

    pages = make_pages(DEFAULT_SYNTHETIC_PAGES if count is None else count, seed=seed, size=(width, height))
    _save(pages, out)


def _save(pages: Sequence[Page], out: Path) -> None:
    from docleak.documents.folder import save

    with working_in(out, whole=True, resumes=False), counter() as report:
        directory = save(_counted(pages, _now_and_then(report)), out)
    emit({"pages": len(pages), "out": str(directory)}, f"{counted_words(len(pages), 'page')} written to {directory}")


def _make_pdfs(out: Path, specs: Sequence[str], seed: int, count: int | None) -> None:
    from docleak.documents.loaders import SYNTHETIC, load_pages
    from docleak.documents.pdfs.making import VALUES, write_pdfs

    pages = load_pages(",".join(specs) or SYNTHETIC, count=count, seed=seed)
    with working_in(out, whole=True, resumes=False):
        number = write_pdfs(pages, out)
    emit(
        {"pdfs": number, "pages": len(pages), "out": str(out)},
        f"{counted_words(number, 'PDF')} of {counted_words(len(pages), 'page')} written to {out}, with {VALUES}",
    )


def _make_silos(out: Path, specs: Sequence[str], clients: int, by: str, seed: int, count: int | None) -> None:
    from docleak.documents.division import divide
    from docleak.documents.silos import write_silos

    division = divide(specs, clients, by=by, seed=seed, count=count)
    notes = [f"{name}: {note}" for name, pages in division.sources.items() for note in getattr(pages, "notes", ())]
    with working_in(out, whole=True, resumes=False), counter() as report:
        silos = write_silos(division.shares, division.sources, out, by=by, seed=seed, on_page=_now_and_then(report))
    lines = [f"{'silo':14}{'documents':>10}{'pages':>7}{'questions':>10}{'providers':>10}"]
    lines += [f"{s.name:14}{s.documents:>10}{s.pages:>7}{s.questions:>10}{len(s.providers) or '-':>10}" for s in silos]
    cut = sum(silo.cut for silo in silos)
    if cut:
        notes.append(f"{cut} of {sum(silo.pages for silo in silos)} pages do not show all of their document")
    lines += [*notes, f"{counted_words(len(silos), 'silo')} written to {out}, each with a silo.json"]
    emit({"silos": [asdict(silo) for silo in silos], "notes": notes, "out": str(out)}, "\n".join(lines))


def _make_blue_red(
    out: Path, specs: Sequence[str], clients: int | None, by: str, issuers: int, per_issuer: float, seed: int,
    count: int | None,
) -> None:  # fmt: skip
    from docleak.documents.blue_red import BlueRedPlan
    from docleak.documents.blue_red_files import open_blue_red, open_issuers, open_own, write_blue_red
    from docleak.errors import DocumentError

    if len(specs) > 1:
        raise DocumentError(f"{len(specs)} data sets to divide into BLUE and RED; expected one, or none for invoices.")
    if specs and by not in ("documents", "providers", "clients"):
        raise DocumentError(f"--by is {by!r}; expected providers, or clients for its own division.")
    plan = BlueRedPlan(10 if clients is None else clients)
    if not specs:
        divided = open_issuers(issuers, per_issuer, plan, seed=seed)
    elif by == "clients":
        if count is not None:
            raise DocumentError(
                "--count would cut training documents out of the data set's own division; leave it out."
            )
        divided = open_own(specs[0])
    else:
        divided = open_blue_red(specs[0], plan, seed=seed, count=count)
    with working_in(out, whole=True, resumes=False), counter() as report:
        written = write_blue_red(divided, out, on_page=_now_and_then(report))
    lines = [f"{'part':14}{'documents':>10}{'pages':>7}{'questions':>10}{'providers':>10}"]
    lines += [f"{s.name:14}{s.documents:>10}{s.pages:>7}{s.questions:>10}{len(s.providers):>10}" for s in written]
    lines.append(f"written to {out}; blue-red.json says who is a member")
    emit({"parts": [asdict(part) for part in written], "out": str(out)}, "\n".join(lines))


def _now_and_then(report: Callable[[int, int, str], None]) -> Callable[[int, int, str], None]:
    """``report``, but not for every page: at most every two seconds."""
    last = monotonic()

    def told(done: int, total: int, label: str) -> None:
        nonlocal last
        if monotonic() - last >= 2.0:
            last = monotonic()
            report(done, total, label)

    return told


def _counted(pages: Sequence[Page], report: Callable[[int, int, str], None]) -> Iterator[Page]:
    """The pages, each told to ``report`` when the next one is asked for."""
    for number, page in enumerate(pages, start=1):
        yield page
        report(number, len(pages), page.name)


def convert(
    documents: str = required("FORMAT:PATH or PATH of pages to read, or pdf:FOLDER.", argument=True),
    out: Path = required("New or empty folder to write.", argument=True),
    count: int | None = option(None, "Only the first pages, of several data sets those of each.", range=SOME),
    image_root: Path | None = option(
        None, "Folder outside of DOCUMENTS from which its pages.jsonl may name images."
    ),
    values: Path | None = option(
        None, "PDFs: CSV or JSON of the values to find on them (docs/data-format.md)."
    ),
    public: str = option(
        "", "PDFs: keys, by commas, whose values are not private.",
        need=Need(lambda given: given.values is not None, "--values"),
    ),
    dpi: float = option(150.0, "PDFs: dots per inch of the pictures.", range=Range(36, 1_200)),
    text_from: str = option("auto", "PDFs: auto (OCR where a page has no text layer), layer, ocr."),
    ocr: str = option(
        "rapidocr", "PDFs: rapidocr, tesseract:LANGUAGE, or module:object.",
        need=Need(lambda given: given.text_from != "layer", "--text-from auto or ocr"),
    ),
) -> None:  # fmt: skip
    """Convert any format docleak reads, or PDFs, into the folder format (PNG and pages.jsonl)."""
    from docleak.documents.loaders import load_pages, pdfs_of

    pdfs = pdfs_of(documents)
    if pdfs is not None:
        _convert_pdfs(pdfs, out, values, public, dpi, text_from, ocr, count)
        return
    _save(load_pages(documents, count=count, seed=0, image_root=image_root), out)


def _convert_pdfs(
    path: Path, out: Path, values: Path | None, public: str, dpi: float, text_from: str, ocr: str, count: int | None,
) -> None:  # fmt: skip
    from docleak.documents.files import first_of, require_new
    from docleak.documents.pdfs.converting import REVIEW, Conversion, convert, told
    from docleak.errors import DocumentError
    from docleak.metrics.ocr import page_reader

    if text_from not in ("auto", "layer", "ocr"):
        raise DocumentError(f"--text-from is {text_from!r}; expected auto, layer or ocr.")
    require_new(out, "pages")
    conversion = Conversion(lambda: page_reader(ocr).read_page, ocr, dpi, text_from, public)  # type: ignore[arg-type]
    with working_in(out, whole=True, resumes=False), counter() as report:
        made = convert(path, out, conversion, values=values, limit=count, on_page=_now_and_then(report))
    open_questions = [remark for remark in made.remarks if not remark.placed]
    mark = shlex.join(["docleak", "data", "mark", str(out)])
    lines = [told(remark) for remark in (*open_questions, *(r for r in made.remarks if r.placed))]
    lines = [*lines[:MOST_TOLD], *([f"... and {len(lines) - MOST_TOLD} more"] if len(lines) > MOST_TOLD else [])]
    if made.without_values and values:
        lines.append(f"PDFs without a value: {', '.join(made.without_values)}")
    if left := made.left_out:
        are = "was" if len(left) == 1 else "were"
        lines.append(
            f"{counted_words(len(left), 'picture')} beside the PDFs {are} left out: {first_of(left)}. Print them as "
            "PDFs, too, or mark them alone, in a folder of their own (docleak data mark)."
        )
    if values is None:
        lines.append(f"No --values: no word is private yet. Mark fields by mouse: {mark}")
    else:
        sure = made.values - len(made.remarks)
        lines.append(f"{made.values} values: {sure} at one place exactly, {len(made.remarks) - len(open_questions)} "
                     f"placed and to be looked at, {len(open_questions)} not placed; see {out / REVIEW}")  # fmt: skip
    if open_questions:
        lines.append(f"Place what was not placed by mouse: {mark}")
    lines.append(f"{counted_words(len(made.pages), 'page')} at {dpi:g} dots per inch written to {out}; words of "
                 f"{made.of('text layer')} from the text layer, "
                 f"of {made.of('ocr')} by OCR, none on {made.of('none')}")  # fmt: skip
    emit({"pages": len(made.pages), "out": str(out), "dpi": dpi, "values": made.values,
          "words": {source: made.of(source) for source in ("text layer", "ocr", "none")},
          "remarks": [asdict(remark) | {"placed": remark.placed} for remark in made.remarks],
          "without_values": made.without_values, "left_out": made.left_out},
         "\n".join(lines))  # fmt: skip


def check(
    documents: str = required("Folder of pages, FORMAT:PATH or PATH.", argument=True),
) -> None:
    """Look at every page: all faults at once (exit code 1), and what is probably not meant (of a kind that is met often
    the first three; all of them by --json)."""
    from docleak.documents.checking import check_pages
    from docleak.errors import DocumentError

    with counter() as report:
        seen = check_pages(documents, on_page=_now_and_then(report))
    faults, warnings = seen.of(fault=True), seen.of(fault=False)
    lines = [*(f"FAULT    {fault}" for fault in faults), *_warned(warnings)]
    lines.append(f"{counted_words(seen.pages, 'page')} can be read: {counted_words(len(faults), 'fault')}, "
                 f"{counted_words(len(warnings), 'warning')}")  # fmt: skip
    if seen.pages and not seen.asked:
        lines.append(
            "No page has a question with an answer: an audit of gradients makes one of a private field, but trainings "
            'that ask questions, and audits of presence, need "questions" in pages.jsonl (docs/data-format.md).'
        )
    emit({"pages": seen.pages, "asked": seen.asked, "faults": [asdict(fault) for fault in faults],
          "warnings": [asdict(doubt) for doubt in warnings]}, "\n".join(lines))  # fmt: skip
    if faults:
        error = DocumentError(
            f"{documents}: {counted_words(len(faults), 'fault')}, listed above. Mend them (docs/data-format.md)."
        )
        end_with(error)


def _warned(warnings: Sequence[Finding]) -> Iterator[str]:
    """A line for each warning; of a kind that is met OFTEN the first three, and how many there are."""
    from docleak.documents.pages import grouped

    for kind, doubts in grouped(warnings, lambda doubt: doubt.kind or str(doubt)).items():
        shown = doubts if len(doubts) < OFTEN else doubts[:3]
        yield from (f"warning  {doubt}" for doubt in shown)
        if rest := doubts[len(shown) :]:
            pages = len({doubt.page for doubt in rest})
            yield f"warning  ({kind}) {len(rest)} more, on {pages} pages; --json lists them"


def mark(
    folder: Path = required("Folder with pages.jsonl, or with page images alone.", argument=True),
    port: int | None = option(None, "Port of 127.0.0.1; a free one if left out.", range=PORT),
) -> None:
    """Mark private fields by mouse, in a browser on this machine; ends with Ctrl-C."""
    from docleak.documents.files import first_of
    from docleak.documents.marking import Marking, MarkingServer
    from docleak.errors import DocumentError

    marking = Marking(folder)
    try:
        server = MarkingServer(marking, port or 0)
    except OSError as error:
        raise DocumentError(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}). Pass another --port."
        ) from error
    left = f" Left out, as no pictures that docleak reads: {first_of(marking.left_out)}." if marking.left_out else ""
    emit({"url": server.url, "pages": len(marking), "left_out": marking.left_out},
         f"{counted_words(len(marking), 'page')} of {folder}.{left} Open {server.url} in a browser here; "
         "each change is saved at once. Ctrl-C ends.")  # fmt: skip
    sys.stdout.flush()
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()


def inspect(
    documents: str = option("synthetic", "synthetic, FORMAT:PATH or PATH.", argument=True),
    page: int = option(0, "Which page, counted from 0.", range=COUNT),
    out: Path = option(Path("page.png"), "PNG file to write."),
    template: bool = option(False, "Blank the private fields, as an adversary has it."),
    seed: int = option(0, "For synthetic pages.", range=SEED, need=DRAWN),
) -> None:
    """Draw a page with its word boxes and private fields to a PNG, and print its fields."""
    from docleak.documents.inspect import draw
    from docleak.documents.loaders import load_pages
    from docleak.errors import DocumentError
    from docleak.files import write_png

    if page < 0:
        raise DocumentError(f"page {page} does not exist: pages are counted from 0.")
    pages = load_pages(documents, count=page + 1, seed=seed)
    if page >= len(pages):
        raise DocumentError(f"page {page} does not exist: {documents!r} has {counted_words(len(pages), 'page')}, "
                            "counted from 0.")  # fmt: skip
    chosen = pages[page]
    write_png(out, draw(chosen, template=template))
    fields = {f.key: f.value for f in chosen.fields}
    lines = [f"{chosen.name}: {chosen.width} x {chosen.height} pixels, {counted_words(len(chosen.words), 'word')}, "
             f"provider {chosen.provider!r}, template {chosen.template!r}"]  # fmt: skip
    lines += [f"  {key:20}{value}" for key, value in fields.items()] + [f"drawn to {out}"]
    emit({"name": chosen.name, "fields": fields, "picture": str(out)}, "\n".join(lines))


ABOUT = "Pages: formats, synthetic invoices, pictures of pages with their boxes."
COMMANDS = (list_formats, make, convert, check, mark, inspect)
