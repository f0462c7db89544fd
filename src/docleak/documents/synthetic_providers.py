"""The companies that issue synthetic invoices: all public facts of a provider follow from its number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from docleak.documents.fonts import FAMILIES, Family
from docleak.documents.synthetic_values import Formats, make_formats, pick, word_list

#: How many providers there are; they are the same for every seed, split and page size.
PROVIDERS = 400

STEMS = word_list(
    """Alder Amber Anchor Apex Argent Aster Atlas Aurora Beacon Birch Borealis Bright Canyon Cedar Cobalt Copper Coral
    Crest Crown Delta Drake Eagle Elm Ember Falcon Fern Fjord Forge Garnet Glacier Granite Harbor Hazel Heron Horizon
    Indigo Ivory Jasper Juniper Kestrel Lantern Larch Laurel Linden Lotus Lumen Lynx Maple Marlow Meridian Metro
    Monarch Nexus Nordic Oak Onyx Opal Orion Osprey Pacific Pearl Pine Pioneer Prairie Quartz Raven Redwood Ridge River
    Rowan Saffron Sierra Silver Solar Spruce Summit Swift Tern Terra Thorn Timber Topaz Union Vega Verdant Vista Walnut
    Willow Yarrow Zenith Zephyr"""
)
TRADES = word_list(
    """Media Energy Supply Motors Books Foods Tools Travel Water Telecom Dental Garden Print Audio Optics Repair
    Freight Studio Textiles Works Labs Events Cycles Bakery Clinic Hosting Rentals Systems Paper"""
)
FORMS = ("Ltd", "Inc", "GmbH", "LLC", "AG", "SA", "BV", "& Co", "Group", "AB")
STREETS = word_list(
    """Park High Mill Station Church Market Bridge Garden North South West King Queen Lake Hill Forest River Spring
    Harbour Castle Orchard Victoria Tower School"""
)
WAYS = ("St", "Road", "Lane", "Ave", "Way", "Square")
TOWNS = word_list(
    """Bern Graz Lyon Porto Turin Leeds York Bath Derby Exeter Ghent Delft Basel Bonn Kiel Essen Trier Lille Nantes
    Dijon Parma Pisa Malmo Bergen Turku Gdynia Brno Split Varna Austin Boston Dallas Denver Tampa Fresno Omaha Reno"""
)
#: Title of the page, by frequency.
TITLES = (
    "INVOICE",
    "INVOICE",
    "INVOICE",
    "TAX INVOICE",
    "RECEIPT",
    "STATEMENT",
    "Invoice",
    "Invoice",
    "Receipt",
    "BILL",
)
#: Dark accents, mostly black.
ACCENTS = (
    (0, 0, 0),
    (0, 0, 0),
    (0, 0, 0),
    (40, 40, 40),
    (70, 70, 70),
    (25, 50, 110),
    (120, 25, 35),
    (20, 85, 55),
)
LOGOS = ("disc", "ring", "square", "diamond", "bars", "triangle", "cross", "none")
#: key -> label variants, short enough for a narrow page.
LABELS: dict[str, tuple[str, ...]] = {
    "invoice_number": ("Invoice No", "Invoice #", "Number", "Inv. No", "Document", "Ref. No"),
    "date": ("Date", "Issued", "Issue date", "Dated", "Inv. date"),
    "due_date": ("Due date", "Due", "Pay by", "Due by"),
    "customer_name": ("Bill to", "Customer", "Client", "Sold to", "Name", "For"),
    "customer_email": ("Email", "E-mail", "Contact", "Mail", "Sent to"),
    "tax_number": ("VAT No", "Tax ID", "VAT ID", "Tax No", "Cust. VAT"),
    "total": ("Total", "TOTAL", "Amount due", "Total due", "Balance", "To pay"),
    "subtotal": ("Subtotal", "Net", "Net total", "Amount"),
    "tax_amount": ("Tax", "VAT", "Sales tax", "VAT amt"),
    "iban": ("IBAN", "Account", "Pay to IBAN", "Bank acct"),
    "order_number": ("Order No", "Order", "PO No", "Your order", "Order #"),
}
FOOTERS = ("Thank you", "Thank you for your business", "Payment within 30 days", "Please keep this copy", "")


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
    name = f"{stem} {trade} {pick(rng, FORMS)}"
    address = f"{rng.integers(2, 99)} {pick(rng, STREETS)} {pick(rng, WAYS)}, {pick(rng, TOWNS)}"
    domain = stem.lower() + pick(rng, ("", "-" + trade.lower())) + pick(rng, (".com", ".net", ".eu", ".biz"))
    contact = f"{pick(rng, ('billing', 'info', 'office', 'accounts'))}@{domain}"
    colon = bool(rng.random() < 0.4)
    return Provider(
        index=index,
        name=name,
        address=address,
        contact=contact,
        title=pick(rng, TITLES),
        footer=pick(rng, FOOTERS),
        labels={key: pick(rng, options) + (":" if colon else "") for key, options in LABELS.items()},
        formats=make_formats(rng),
        family=pick(rng, FAMILIES),
        size_index=int(rng.integers(12)),
        bold_values=bool(rng.random() < 0.2),
        accent=pick(rng, ACCENTS),
        label_grey=int(rng.integers(0, 100)),
        logo=pick(rng, LOGOS),
        layout=int(rng.integers(1 << 16)),
        colon=colon,
    )
