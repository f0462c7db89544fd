"""What is filled into a synthetic invoice: people, dates, amounts and numbers that look real and stay legible."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

#: What invoices are made of (invoices.toml): people, formats, providers, labels, layouts, phrasings.
INVOICES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("invoices.toml").read_text("utf-8"))


def listed(part: str, name: str) -> tuple[Any, ...]:
    """A list of invoices.toml; one written as running text is its words."""
    entry = INVOICES[part][name]
    return tuple(entry.split() if isinstance(entry, str) else entry)


FIRST_NAMES, LAST_NAMES = listed("people", "first_names"), listed("people", "last_names")
MAIL_HOSTS, HANDLES = listed("people", "mail_hosts"), listed("people", "handles")


@dataclass(frozen=True)
class Formats:
    """How one provider writes its values (fixed for all its documents)."""

    date: str
    money: str
    invoice: str
    order: str
    tax: str
    iban: str
    tax_rate: int


Values = Mapping[str, str]


T = TypeVar("T")


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """One of ``options``, all equally likely."""
    return options[int(rng.integers(len(options)))]


def make_formats(rng: np.random.Generator) -> Formats:
    """Draw the formats of a provider."""
    return Formats(**{field.name: pick(rng, listed("formats", field.name)) for field in fields(Formats)})


def fill_digits(pattern: str, rng: np.random.Generator) -> str:
    """Replace each ``#`` by a digit; the first of the string is not 0."""
    digits = rng.integers(0, 10, size=pattern.count("#"))
    if digits.size and not digits[0]:
        digits[0] = int(rng.integers(1, 10))
    drawn = map(str, digits.tolist())
    return "".join(next(drawn) if c == "#" else c for c in pattern)


def draw_person(formats: Formats, rng: np.random.Generator) -> Values:
    """A customer's name, and an e-mail address made from it (two times in three) or not."""
    first, last = pick(rng, FIRST_NAMES), pick(rng, LAST_NAMES)
    a, b = first.lower(), last.lower()
    number = 10 * rng.integers(2, 10) + rng.integers(2, 10)  # no 0 and 1: they read as o and l after letters
    styles = (f"{a}.{b}", f"{a[0]}.{b}", f"{a}{number}", f"{b}.{a}", f"{a}-{b}", b)
    local = pick(rng, styles) if rng.random() < 2 / 3 else f"{pick(rng, HANDLES)}{number}"
    return {"customer_name": f"{first} {last}", "customer_email": f"{local}@{pick(rng, MAIL_HOSTS)}"}


def draw_dates(formats: Formats, rng: np.random.Generator) -> Values:
    """The date of the document and a due date 7 to 60 days after it."""
    day = date(2018, 1, 1) + timedelta(days=int(rng.integers(0, 2900)))
    due = day + timedelta(days=int(rng.integers(7, 61)))
    return {"date": day.strftime(formats.date), "due_date": due.strftime(formats.date)}


def draw_money(formats: Formats, rng: np.random.Generator) -> Values:
    """Subtotal, tax and their sum; the size of the amount is log-uniform from 15 to 9000."""
    subtotal = round(float(np.exp(rng.uniform(np.log(15), np.log(9000)))), 2)
    tax = round(subtotal * formats.tax_rate / 100, 2)
    amounts = {"subtotal": subtotal, "tax_amount": tax, "total": subtotal + tax}
    return {key: formats.money.format(amount) for key, amount in amounts.items()}


def _number(key: str, attribute: str) -> Callable[[Formats, np.random.Generator], Values]:
    def draw(formats: Formats, rng: np.random.Generator) -> Values:
        return {key: fill_digits(getattr(formats, attribute), rng)}

    return draw


#: Keys drawn together, and how; the order is part of the recipe.
GROUPS: tuple[tuple[tuple[str, ...], Callable[[Formats, np.random.Generator], Values]], ...] = (
    (("invoice_number",), _number("invoice_number", "invoice")),
    (("date", "due_date"), draw_dates),
    (("customer_name", "customer_email"), draw_person),
    (("tax_number",), _number("tax_number", "tax")),
    (("subtotal", "tax_amount", "total"), draw_money),
    (("iban",), _number("iban", "iban")),
    (("order_number",), _number("order_number", "order")),
)
KEYS = tuple(key for keys, _ in GROUPS for key in keys)
