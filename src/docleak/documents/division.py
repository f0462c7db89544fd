"""From the texts of a command line to the shares of a federation: open the data sets and divide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from docleak.documents.loaders import SYNTHETIC, format_and_path, load_pages, page_source, page_specs, source_names
from docleak.documents.names import one_spelling
from docleak.documents.page import Page
from docleak.documents.pages import LazyPages, document_names, provider_names
from docleak.documents.partition import Share, split_documents, split_providers
from docleak.errors import DocumentError

#: What may be divided among the clients.
BY = ("documents", "providers", "clients")
#: Keeps the stream of partitions apart from others of the same seed.
STREAM = 0x51105


@dataclass(frozen=True)
class Division:
    """The data sets by name, and what each client holds of them."""

    sources: Mapping[str, Sequence[Page]]
    shares: tuple[Share, ...]


def divide(specs: Sequence[str], clients: int, *, by: str, seed: int, count: int | None = None) -> Division:
    """Open data sets (as ``load_pages`` does; at most ``count`` pages of each) and divide them among ``clients``.

    ``by`` is one of BY: "documents" of any number of data sets, one data set per client (``split_documents``);
    "providers" of one data set (``split_providers``); "clients", the official ones of PFL-DocVQA. The partition is
    drawn from ``seed``. Raises DocumentError for another ``by``, more than one data set where only one will do, one
    that is given twice, and whatever cannot be opened or divided.
    """
    if by not in BY:
        raise DocumentError(f"the partition is by {by!r}; expected one of {', '.join(BY)}.")
    if seed < 0:
        raise DocumentError(f"the seed is {seed}; expected 0 or more.")
    if clients < 1:
        raise DocumentError(f"{clients} clients were asked for; expected 1 or more.")
    if by != "documents" and len(specs) != 1:
        raise DocumentError(f"{len(specs)} data sets to divide by {by}; expected one. Divide them by documents.")
    if by == "clients":
        return _official(specs[0], clients, count=count)
    _require_different(specs)
    sources = {
        name: load_pages(spec, count=count, seed=seed) for name, spec in zip(source_names(specs), specs, strict=True)
    }
    rng = np.random.default_rng(np.random.SeedSequence((seed, STREAM)))
    if by == "documents":
        documents = {name: document_names(pages) for name, pages in sources.items()}
        return Division(sources, split_documents(documents, clients, rng=rng))
    ((name, pages),) = sources.items()
    shares = split_providers(name, provider_names(pages), document_names(pages), clients, rng=rng)
    return Division(sources, shares)


def _require_different(specs: Sequence[str]) -> None:
    """Of one data set that is given twice the same pages, and their providers, would be with several clients."""
    seen = set[object]()
    for spec in (part for several in specs for part in page_specs(several)):
        source = spec if spec == SYNTHETIC else page_source(spec)
        place = source if isinstance(source, str) else replace(source, path=source.path.expanduser().resolve())
        if place in seen:
            raise DocumentError(
                f"{spec} is given twice, so that several clients would hold the same pages. Give each data set once."
            )
        seen.add(place)


def _official(spec: str, clients: int, *, count: int | None) -> Division:
    from docleak.documents.pfl_docvqa import load_clients

    name, path = format_and_path(spec) if spec != SYNTHETIC else (SYNTHETIC, None)
    if path is None or name != "pfl-docvqa":
        raise DocumentError(f"{name} pages have no official clients; expected pfl-docvqa. Divide them by providers.")
    parts = load_clients(path, limit=count)
    if len(parts) != clients:
        raise DocumentError(
            f"{path}: has the {len(parts)} clients {', '.join(parts)}, but {clients} were asked for. Ask for "
            f"{len(parts)}, or divide the pages by providers."
        )
    shares, first = [], 0
    for client, pages in parts.items():
        shares.append(Share(client, name, tuple(range(first, first + len(pages)))))
        first += len(pages)
    entries = [entry for pages in parts.values() for entry in pages.entries]
    return Division({name: one_spelling(LazyPages(path, entries))}, tuple(shares))
