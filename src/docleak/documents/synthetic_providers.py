"""The companies that issue synthetic invoices: all public facts of a provider follow from its number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from docleak.documents.fonts import FAMILIES, Family
from docleak.documents.synthetic_values import INVOICES, Formats, listed, make_formats, pick

#: How many providers there are; they are the same for every seed, split and page size.
PROVIDERS = 400

STEMS, TRADES = listed("providers", "stems"), listed("providers", "trades")
LABELS: dict[str, list[str]] = INVOICES["labels"]


@dataclass(frozen=True)
class Provider:
    """One company: everything that all of its documents share, apart from the geometry of the page."""

    index: int
    name: str
    address: str
    contact: str
    title: str
    footer: str
    labels: dict[str, str]
    formats: Formats
    family: Family
    size_index: int
    bold_values: bool
    accent: tuple[int, int, int]
    label_grey: int
    logo: str
    layout: int
    colon: bool


def provider_rng(index: int, *purpose: int) -> np.random.Generator:
    """The generator of one provider's public facts; ``purpose`` keeps different uses apart."""
    return np.random.default_rng(np.random.SeedSequence((0x0D0C1EAC, index, *purpose)))


@cache
def provider(index: int) -> Provider:
    """The provider with this number, 0 to PROVIDERS - 1."""
    rng = provider_rng(index)
    lap, place = divmod(index, len(STEMS))  # a stem meets another trade on every lap, so names are unique
    stem, trade = STEMS[place], TRADES[(3 * place + 5 * lap) % len(TRADES)]

    def drawn(name: str) -> Any:
        return pick(rng, listed("providers", name))

    name = f"{stem} {trade} {drawn('forms')}"
    address = f"{rng.integers(2, 99)} {drawn('streets')} {drawn('ways')}, {drawn('towns')}"
    domain = stem.lower() + pick(rng, ("", "-" + trade.lower())) + pick(rng, (".com", ".net", ".eu", ".biz"))
    contact = f"{pick(rng, ('billing', 'info', 'office', 'accounts'))}@{domain}"
    colon = bool(rng.random() < 0.4)
    return Provider(
        index=index,
        name=name,
        address=address,
        contact=contact,
        title=drawn("titles"),
        footer=drawn("footers"),
        labels={key: pick(rng, options) + (":" if colon else "") for key, options in LABELS.items()},
        formats=make_formats(rng),
        family=pick(rng, FAMILIES),
        size_index=int(rng.integers(12)),
        bold_values=bool(rng.random() < 0.2),
        accent=tuple(drawn("accents")),
        label_grey=int(rng.integers(0, 100)),
        logo=drawn("logos"),
        layout=int(rng.integers(1 << 16)),
        colon=colon,
    )
