"""``docleak data``: list formats, make synthetic pages, inspect and convert pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from docleak.cli.output import emit
from docleak.documents import LOADERS, load_pages
from docleak.documents.folder import save
from docleak.documents.inspect import draw

app = typer.Typer(help="Pages: formats, synthetic invoices, pictures of pages with their boxes.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Read pickled .npy files you trust.")]


@app.command(name="list")
def list_formats(json_output: Json = False) -> None:
    """List the page formats docleak reads."""
    rows = {name: loader.about for name, loader in LOADERS.items()}
    emit(rows, "\n".join(f"{name:14}{text}" for name, text in rows.items()), json_output=json_output)


@app.command()
def make(
    out: Annotated[Path, typer.Argument(help="New or empty folder to write pages.jsonl and PNGs into.")],
    count: Annotated[int, typer.Option(help="Number of pages.")] = 16,
    seed: Annotated[int, typer.Option(help="Same seed, same pages.")] = 0,
    width: Annotated[int, typer.Option(help="Pixels; at least 192.")] = 192,
    height: Annotated[int, typer.Option(help="Pixels; at least 224.")] = 256,
    json_output: Json = False,
) -> None:
    """Make synthetic invoices and write them as a folder of pages."""
    from docleak.documents.synthetic import make_pages

    pages = make_pages(count, seed=seed, size=(width, height))
    directory = save(pages, out)
    emit({"pages": count, "out": str(directory)}, f"{count} pages written to {directory}", json_output=json_output)


@app.command()
def convert(
    documents: Annotated[str, typer.Argument(help="FORMAT:PATH or PATH of pages to read.")],
    out: Annotated[Path, typer.Argument(help="New or empty folder to write.")],
    count: Annotated[int | None, typer.Option(help="Only the first pages.")] = None,
    allow_pickle: AllowPickle = False,
    json_output: Json = False,
) -> None:
    """Convert any format docleak reads into the folder format (PNG and pages.jsonl)."""
    pages = load_pages(documents, count=count, seed=0, allow_pickle=allow_pickle)
    directory = save(pages, out)
    emit(
        {"pages": len(pages), "out": str(directory)}, f"{len(pages)} pages written to {directory}",
        json_output=json_output,
    )  # fmt: skip


@app.command()
def inspect(
    documents: Annotated[str, typer.Argument(help="synthetic, FORMAT:PATH or PATH.")] = "synthetic",
    page: Annotated[int, typer.Option(help="Which page, counted from 0.")] = 0,
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("page.png"),
    template: Annotated[
        bool, typer.Option("--template", help="Blank the private fields, as an adversary has it.")
    ] = False,
    seed: Annotated[int, typer.Option(help="For synthetic pages.")] = 0,
    allow_pickle: AllowPickle = False,
    json_output: Json = False,
) -> None:
    """Draw a page with its word boxes and private fields to a PNG, and print its fields."""
    from docleak.errors import DocumentError
    from docleak.evidence.run import write_png

    if page < 0:
        raise DocumentError(f"page {page} does not exist: pages are counted from 0.")
    pages = load_pages(documents, count=page + 1, seed=seed, allow_pickle=allow_pickle)
    if page >= len(pages):
        raise DocumentError(f"page {page} does not exist: {documents!r} has {len(pages)} pages, counted from 0.")
    chosen = pages[page]
    write_png(out, draw(chosen, template=template))
    fields = {f.key: f.value for f in chosen.fields}
    lines = [f"{chosen.name}: {chosen.width} x {chosen.height} pixels, {len(chosen.words)} words, "
             f"provider {chosen.provider!r}, template {chosen.template!r}"]  # fmt: skip
    lines += [f"  {key:20}{value}" for key, value in fields.items()] + [f"drawn to {out}"]
    emit({"name": chosen.name, "fields": fields, "picture": str(out)}, "\n".join(lines), json_output=json_output)
