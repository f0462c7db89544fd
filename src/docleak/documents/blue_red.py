"""Divide documents by provider: BLUE to train on, RED to attack with (Tito et al., 2024, section 3 and Table 5).

Members are the providers whose documents are trained on. Each of them is in one client; some of its other documents are
kept for validation, test and the attacks (RED positive). Documents of the other providers are RED negative and test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from docleak.documents.coins import coin, stream
from docleak.documents.names import provider_key
from docleak.documents.page import fault_list
from docleak.documents.partition import Share
from docleak.errors import DocumentError, refuse, those

#: Folders of a division: a folder per client below SILOS, and one for each of the others.
SILOS = "silos"
VALIDATION, TEST, RED_POSITIVE, RED_NEGATIVE = "validation", "test", "red-positive", "red-negative"
RED = (RED_POSITIVE, RED_NEGATIVE)


@dataclass(frozen=True)
class BlueRedPlan:
    """How documents are divided where a data set does not say it itself.

    Each provider is a member by a fair coin of its own, or one with probability ``inside``: so nothing about a provider
    tells its membership, and an audit may take the coins for granted. Of a provider's documents the shares ``red``,
    ``test`` and ``validation`` are kept out of training (of two or more at least one for RED, and one to train on).
    Of the others' documents as many are used as if they were members, so that the number of RED questions tells
    nothing either; what would have been trained on is left out, or, if not ``matched``, is RED negative too.
    """

    clients: int = 10
    inside: float = 0.5
    red: float = 0.3
    test: float = 0.1
    validation: float = 0.1
    matched: bool = True

    def __post_init__(self) -> None:
        kept = (self.red, self.test, self.validation)
        faults = those(
            (self.clients < 1, f"clients is {self.clients}; expected at least 1"),
            (not 0 < self.inside < 1, f"inside is {self.inside}; expected a probability between 0 and 1"),
            (min(kept) < 0 or self.red == 0 or sum(kept) >= 1,
             f"red, test and validation are {kept}; expected shares, red above 0, that leave some to train"),
        )  # fmt: skip
        refuse(DocumentError, faults, "the documents cannot be divided into BLUE and RED: ")

    def sizes(self, documents: int) -> dict[str, int]:
        """How many of a provider's ``documents`` go to RED, TEST and VALIDATION; at least one is left over."""
        left, counts = documents - 1, {}
        for part, share, least in ((RED_POSITIVE, self.red, 1), (TEST, self.test, 0), (VALIDATION, self.validation, 0)):
            counts[part] = min(left, max(least, round(share * documents)))
            left -= counts[part]
        return counts


def divide_blue_red(
    data_set: str, providers: Sequence[str], documents: Sequence[str], plan: BlueRedPlan, *, seed: int
) -> tuple[Share, ...]:
    """The shares of the clients and of the other parts; ``providers`` and ``documents`` name those of every page.

    A provider's membership, its client and the parts of its documents follow from the seed and its own name
    (``provider_key``): a provider that is taken away, or whose coin falls otherwise, changes nothing for the others. So
    clients differ in members. Raises DocumentError for pages of unknown provider, a client without members, no provider
    that is out, and whatever ``check_blue_red`` refuses.
    """
    unknown = sum(not provider_key(name) for name in providers)
    if unknown:
        raise DocumentError(
            f"{data_set}: {unknown} of {len(providers)} pages name no provider, and RED and BLUE differ in providers. "
            "Name them in the pages, or leave these pages out."
        )
    held: dict[str, dict[str, list[int]]] = {}
    for number, (provider, document) in enumerate(zip(providers, documents, strict=True)):
        documents_of = held.setdefault(provider_key(provider), {})
        documents_of.setdefault(document or f"page {sum(map(len, documents_of.values()))}", []).append(number)
    names = sorted(held)
    client = {
        name: f"{SILOS}/client-{int(plan.clients * coin(seed, 'client', name))}"
        for name in names
        if coin(seed, "member", name) < plan.inside
    }
    if len(set(client.values())) < plan.clients or len(client) == len(names):
        raise DocumentError(
            f"{data_set}: {len(client)} of {len(names)} providers are members, of {len(set(client.values()))} of the "
            f"{plan.clients} clients; expected a member in every client, and a provider that is none. Give more "
            "providers, ask for fewer clients, or try another seed."
        )
    parts: dict[str, list[int]] = {}
    for name in names:
        for part, pages in _parts_of(held[name], plan, client.get(name, ""), stream(seed, "parts", name)):
            parts.setdefault(part, []).extend(pages)
    order = (*(f"{SILOS}/client-{number}" for number in range(plan.clients)), VALIDATION, TEST, *RED)
    shares = tuple(Share(part, data_set, tuple(sorted(parts[part]))) for part in order if part in parts)
    check_blue_red(shares, {data_set: providers}, {data_set: documents})
    return shares


def _parts_of(
    documents: Mapping[str, Sequence[int]], plan: BlueRedPlan, client: str, rng: np.random.Generator
) -> Iterator[tuple[str, Sequence[int]]]:
    """The part and the pages of each of a provider's documents that is used; ``client`` is empty for who is out."""
    order = rng.permutation(sorted(documents)).tolist()
    parts: dict[str, list[str]] = {}
    for part, count in plan.sizes(len(order)).items():
        parts[part], order = order[:count], order[count:]
    parts[client] = order
    if not client:
        rest = [] if plan.matched else [*parts[VALIDATION], *parts[client]]
        parts = {TEST: parts[TEST], RED_NEGATIVE: [*parts[RED_POSITIVE], *rest]}
    for part, names in parts.items():
        for name in names:
            yield part, documents[name]


def check_blue_red(
    shares: Sequence[Share], providers: Mapping[str, Sequence[str]], documents: Mapping[str, Sequence[str]]
) -> None:
    """Refuse a division that would not tell members from others; names are by data set and page, and providers one
    whose names differ in case, spacing or Unicode form only.

    DocumentError, with every fault: a provider in two clients, one that is trained on in RED negative, one that is not
    in RED positive or validation, a document in two parts, and no part of RED.
    """
    owners: dict[str, set[str]] = {}
    of_part: dict[str, set[str]] = {}
    places: dict[tuple[str, str], set[str]] = {}
    for share in shares:
        for number in share.pages:
            provider = provider_key(providers[share.data_set][number])
            of_part.setdefault(share.name, set()).add(provider)
            if share.name.startswith(f"{SILOS}/"):
                owners.setdefault(provider, set()).add(share.name)
            if document := documents[share.data_set][number]:
                places.setdefault((provider, document), set()).add(share.name)
    faults = [f"provider {name!r} is in {', '.join(sorted(of))}" for name, of in sorted(owners.items()) if len(of) > 1]
    faults += [f"provider {name!r} is trained on, and in {RED_NEGATIVE}"
               for name in sorted(of_part.get(RED_NEGATIVE, set()) & set(owners))]  # fmt: skip
    faults += [f"provider {name!r} is in {part}, and nothing of it is trained on"
               for part in (RED_POSITIVE, VALIDATION)
               for name in sorted(of_part.get(part, set()) - set(owners))]  # fmt: skip
    faults += [f"document {name!r} of {provider!r} is in {', '.join(sorted(of))}"
               for (provider, name), of in sorted(places.items()) if len(of) > 1]  # fmt: skip
    faults += [f"{part} has no document: an attack needs members and others" for part in RED if part not in of_part]
    if faults:
        raise DocumentError(
            f"these parts are no BLUE and RED:{fault_list(faults)}\nA provider is in or out as a whole, in one client; "
            "a document is in one part."
        )
