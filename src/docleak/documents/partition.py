"""Divide data sets among the clients of a federation: every document in exactly one client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from docleak.documents.coins import coin
from docleak.documents.names import provider_key
from docleak.documents.page import fault_list
from docleak.documents.pages import grouped
from docleak.errors import DocumentError, those
from docleak.spec import counted_words


@dataclass(frozen=True)
class Share:
    """What one client holds: its name, the data set it comes from, and the numbers of its pages there, ascending."""

    name: str
    data_set: str
    pages: tuple[int, ...]


def clients_of(documents: Mapping[str, int], clients: int) -> dict[str, int]:
    """How many of the clients hold each data set, given its number of documents.

    Nguyen and Karatzas (2024), Table 2, by the rule of their code: of N documents in all, a set of n gets
    floor(n * clients / N), and what is left over goes one by one to the sets in their order. Different from theirs,
    sets without a client come first then, and take one from the set with most if nothing is left. For WTQ, DocVQA and
    TabFact with 1346, 10194 and 13163 documents that is 1, 1, 1 of 3; 1, 4, 5 of 10; and 2, 13, 15 of 30. Raises
    DocumentError for fewer clients than sets, more clients than documents, or a set without documents.
    """
    total = sum(documents.values())
    _check(documents, clients, total)
    held = {name: count * clients // total for name, count in documents.items()}
    spare = clients - sum(held.values())
    for name in sorted(held, key=lambda name: held[name] > 0):  # stable: otherwise in the order given
        if spare > 0:
            held[name] += 1
            spare -= 1
    for name in held:
        if held[name] == 0:
            held[max(held, key=lambda other: held[other])] -= 1
            held[name] = 1
    return held


def _check(documents: Mapping[str, int], clients: int, total: int) -> None:
    faults = [f"{name!r} has no document" for name, count in documents.items() if count < 1]
    sets = counted_words(len(documents), "data set")
    faults += those(
        (not documents, "there is no data set"),
        (clients < len(documents), f"{clients} clients for {sets}, and a client holds one only"),
        (clients > total, f"{clients} clients for {counted_words(total, 'document')}, and every client needs one"),
    )
    if faults:
        raise DocumentError(
            f"cannot divide the documents among {clients} clients:{fault_list(faults)}\nAsk for another number of "
            "clients, or give other documents."
        )


def split_documents(
    documents: Mapping[str, Sequence[str]], clients: int, *, rng: np.random.Generator
) -> tuple[Share, ...]:
    """Clients that each hold documents of one data set, drawn without replacement; pages and questions follow.

    ``documents`` names the document of every page of each data set; a page of unknown document ("") is one of its own.
    The documents of a set are dealt evenly: its clients differ by one document at most (FeDocVQA's code gives all that
    are left over to the last one). Data sets differ as ``clients_of`` says. Raises DocumentError as it does.
    """
    groups = {name: by_document(names, range(len(names))) for name, names in documents.items()}
    held = clients_of({name: len(pages) for name, pages in groups.items()}, clients)
    return tuple(share for name, pages in groups.items() for share in _deal(name, pages, held[name], rng))


def split_by_coin(units: Mapping[str, Sequence[str]], clients: int, *, seed: int) -> tuple[Share, ...]:
    """Clients that each hold units of one data set, by a public coin of each unit's own: none moves another.

    ``units`` names the unit of every page of each data set; data sets take the clients by turns, whatever they hold.
    Raises DocumentError for fewer clients than data sets, or a client to which no unit falls.
    """
    if clients < len(units):
        raise DocumentError(f"{clients} clients for {len(units)} data sets; every data set needs one or more.")
    shares = []
    for turn, (data_set, names) in enumerate(units.items()):
        held = len(range(turn, clients, len(units)))
        falls = [int(held * coin(seed, "client", name)) for name in names]
        shares += [
            Share(f"{data_set}-{i}", data_set, tuple(n for n, client in enumerate(falls) if client == i))
            for i in range(held)
        ]
    if empty := [share.name for share in shares if not share.pages]:
        raise DocumentError(f"no unit falls to {', '.join(empty)}; ask for fewer clients, or try another seed.")
    return tuple(shares)


def split_providers(
    data_set: str, providers: Sequence[str], documents: Sequence[str], clients: int, *, rng: np.random.Generator
) -> tuple[Share, ...]:
    """Clients that each hold all pages of their providers, as in PFL-DocVQA; ``providers`` names that of every page.

    Names that differ in case, spacing or Unicode form only are one provider (``names.provider_key``).
    Providers are dealt evenly, so clients differ in documents as providers do. Raises DocumentError for more clients
    than providers, pages of unknown provider, and documents of several providers.
    """
    keys = [provider_key(name) for name in providers]
    groups = grouped(range(len(keys)), lambda number: keys[number])
    owners: dict[str, set[str]] = {}
    for document, provider in zip(documents, keys, strict=True):
        owners.setdefault(document, set()).add(provider)
    faults = [
        f"document {name!r} has the providers {sorted(of)}" for name, of in owners.items() if name and len(of) > 1
    ]
    unknown = len(groups.get("", ()))
    if unknown:
        faults.append(f"{unknown} of {len(providers)} pages have no provider; divide the data set by documents instead")
    if clients < 1 or clients > len(groups):
        faults.append(f"{clients} clients for {counted_words(len(groups), 'provider')}, and every client needs one")
    if faults:
        raise DocumentError(f"{data_set}: cannot be divided among {clients} clients by provider:{fault_list(faults)}")
    return _deal(data_set, list(groups.values()), clients, rng)


def by_document(documents: Sequence[str], numbers: Iterable[int]) -> list[list[int]]:
    """The pages with these numbers, document by document; a page of unknown document ("") is one of its own."""
    return list(grouped(numbers, lambda number: documents[number] or number).values())


def _deal(name: str, groups: Sequence[Sequence[int]], clients: int, rng: np.random.Generator) -> tuple[Share, ...]:
    """Each group to one of the clients, drawn at random and in equal numbers but for one."""
    hands = np.array_split(rng.permutation(len(groups)), clients)
    return tuple(
        Share(f"{name}-{number}", name, tuple(sorted(page for group in hand.tolist() for page in groups[group])))
        for number, hand in enumerate(hands)
    )
