"""Which pages belong to one unit of privacy, and whether the silos fit the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from docleak.documents.page import Page, fault_list
from docleak.errors import PrivacyError
from docleak.privacy.mechanism import Unit
from docleak.privacy.plan import DpPlan
from docleak.training.objectives.table import objective_of


def units_of(pages: Sequence[Page], unit: Unit, *, client: str) -> dict[str, list[Page]]:
    """The pages of each unit, by name. PrivacyError for pages whose unit is unknown: nothing would protect them."""
    if unit is Unit.CLIENT:
        return {client: list(pages)}
    if unit is Unit.RECORD:
        raise PrivacyError(
            "records (single questions) are units of DP-SGD only, not of FL-PROVIDER-DP: see training.private.records, "
            "or docleak train central --unit record. Here, choose provider, document or client."
        )
    names = [page.provider if unit is Unit.PROVIDER else page.document for page in pages]
    unknown = [page.name for page, name in zip(pages, names, strict=True) if not name]
    if unknown:
        raise PrivacyError(
            f"client {client!r}: {len(unknown)} of {len(pages)} pages name no {unit}, first {unknown[0]!r}; the plan "
            f"protects {unit}s. Name them in the pages, or choose another unit."
        )
    found: dict[str, list[Page]] = {}
    for page, name in zip(pages, names, strict=True):
        found.setdefault(name, []).append(page)
    return found


def check_units(units: Mapping[str, Sequence[Page]], plan: DpPlan, *, client: str, objective: str = "qa") -> None:
    """Refuse a client whose units do not fit the plan: too few for M, or some without anything to train on."""
    asked = objective_of(objective)
    empty = [name for name, pages in units.items() if not asked.examples(pages)]
    unit = plan.mechanism.unit
    faults = [f"{unit} {name!r} has no {asked.needs}" for name in empty]
    if len(units) < plan.denominator:
        faults.append(f"it has {len(units)} {unit}s, and the plan's constant denominator M is {plan.denominator}")
    if faults:
        raise PrivacyError(
            f"client {client!r} does not fit the privacy plan:{fault_list(faults)}\nLeave such {unit}s out, or plan "
            "with the least number that every client has."
        )


def check_silos(silos: Mapping[str, Sequence[Page]], plan: DpPlan, *, objective: str = "qa") -> None:
    """Refuse silos that share a unit: it would count once and be seen twice. Then check each by itself."""
    units = {client: units_of(pages, plan.mechanism.unit, client=client) for client, pages in silos.items()}
    for client, own in units.items():
        check_units(own, plan, client=client, objective=objective)
    check_owners(units, plan.mechanism.unit)


def check_owners(units: Mapping[str, Iterable[str]], unit: Unit) -> None:
    """Refuse clients of which two have the same unit, by the names of each client's units."""
    owners: dict[str, list[str]] = {}
    for client, names in units.items():
        for name in names:
            owners.setdefault(name, []).append(client)
    faults = [f"{unit} {name!r} is in {', '.join(clients)}" for name, clients in owners.items() if len(clients) > 1]
    if faults:
        raise PrivacyError(
            f"every {unit} must be in one client only:{fault_list(faults)}\nIts noise would hide one contribution a "
            "round, and there are several. Give all its pages to one client."
        )
