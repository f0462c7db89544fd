"""Which pages belong to one unit of privacy, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from docleak.documents.names import provider_key
from docleak.documents.page import Page, fault_list
from docleak.documents.pages import document_names, gathered, page_names, picked, provider_names
from docleak.errors import PrivacyError
from docleak.privacy.mechanism import Unit


def unit_names(pages: Sequence[Page], unit: Unit) -> list[str]:
    """The unit of each page, none of which is read: its document, or its provider's name as all spellings have it."""
    if unit is Unit.PROVIDER:
        return [provider_key(name) for name in provider_names(pages)]
    return list(document_names(pages))


def units_of(pages: Sequence[Page], unit: Unit, *, client: str) -> dict[str, Sequence[Page]]:
    """The pages of each unit, by name; a page is read when it is asked for.

    Providers whose names differ in case, spacing or Unicode form only are one, by their ``provider_key``. PrivacyError
    for pages whose unit is unknown: nothing would protect them.
    """
    if unit is Unit.CLIENT:
        return {client: pages} if len(pages) else {}
    if unit is Unit.RECORD:
        raise PrivacyError(
            "records (single questions) are units of DP-SGD only, not of FL-PROVIDER-DP: see training.private.records, "
            "or docleak train central --unit record. Here, choose provider, document or client."
        )
    names = unit_names(pages, unit)
    unknown = [page for page, name in zip(page_names(pages), names, strict=True) if not name]
    if unknown:
        raise PrivacyError(
            f"client {client!r}: {len(unknown)} of {len(pages)} pages name no {unit}, first {unknown[0]!r}; the plan "
            f"protects {unit}s. Name them in the pages, or choose another unit."
        )
    numbers = gathered((name, number) for number, name in enumerate(names))
    return {name: picked(pages, of) for name, of in numbers.items()}


def check_silos(silos: Mapping[str, Sequence[Page]], unit: Unit) -> None:
    """Refuse silos that share a unit: it would count once and be seen twice."""
    check_owners({client: units_of(pages, unit, client=client) for client, pages in silos.items()}, unit)


def check_owners(units: Mapping[str, Iterable[str]], unit: Unit) -> None:
    """Refuse clients of which two have the same unit, by the names of each client's units (as ``unit_names``)."""
    owners = gathered((name, client) for client, names in units.items() for name in names)
    faults = [f"{unit} {name!r} is in {', '.join(clients)}" for name, clients in owners.items() if len(clients) > 1]
    if faults:
        spelled = " (spellings that differ in case, spacing or Unicode form are one)" * (unit is Unit.PROVIDER)
        raise PrivacyError(
            f"every {unit} must be in one client only{spelled}:{fault_list(faults)}\nIts noise would hide one "
            "contribution a round, and there are several. Give all its pages to one client."
        )
