"""What is filled into a synthetic invoice: people, dates, amounts and numbers that look real and stay legible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TypeVar

import numpy as np


def word_list(text: str) -> tuple[str, ...]:
    """The words of a table written as running text."""
    return tuple(text.split())


FIRST_NAMES = word_list(
    """Anna Maria Elena Sara Laura Julia Emma Nora Clara Marta Eva Rosa Paula Carmen Teresa Diana Helena Monica
    Sandra Petra Karin Astrid Freya Hanna Greta Sofia Olga Vera Nadia Tanya Katya Marina Larisa Amina
    Fatima Leyla Yasmin Samira Aisha Zahra Noor Hana Mei Yuki Sakura Naomi Keiko Emi Akiko Jun Min Hyun Priya
    Anjali Meera Kavita Divya Neha Asha Uma Grace Ruth Esther Joy Faith Zoe Chloe Alice Jane Mary Susan Karen
    Nancy Betty Donna Carol Megan Rachel Amy Kate Lucy Ella Peter Thomas Martin David Daniel Marco Paolo Bruno
    Carlos Pedro Jorge Diego Pablo Andres Victor Hugo Oscar Felix Max Jonas Lukas Stefan Markus Jan Piet Bram Lars
    Sven Erik Bjorn Henrik Anders Magnus Aki Mika Timo Boris Dmitri Sergei Pavel Marek Tomas Jakub Adam Omar
    Ahmed Hassan Karim Tariq Yusuf Samir Rashid Kenji Hiro Takeshi Wei Feng Chen Ming Hao Raj Arjun Vikram Sanjay
    Anand Ravi Kofi Kwame Chidi Emeka Tunde Jabari James John Robert Michael Steven Kevin Brian George Edward Frank
    Henry Arthur Simon Jack Harry Noah Ethan Samuel Nathan Aaron Gareth Owen Rhys Sean Conor"""
)
LAST_NAMES = word_list(
    """Keller Weber Fischer Becker Hoffmann Wagner Schmidt Krause Vogel Brandt Lorenz Winter Sommer Berger Huber
    Moser Gruber Steiner Baumann Frei Meyer Jansen Visser Bakker Smit Mulder Peters Claes Maes Dubois Durand
    Moreau Fournier Girard Bonnet Mercier Blanc Rousseau Garnier Faure Rossi Russo Ferrari Bianchi Romano Marino
    Greco Bruno Conti Costa Gomez Garcia Navarro Romero Torres Ramos Ortega Castro Delgado Vargas Mendoza Herrera
    Santos Pereira Ferreira Carvalho Rocha Martins Duarte Nunes Hansen Jensen Nielsen Larsen Berg Dahl Haugen Strand
    Andersson Eriksson Nordin Ekman Virtanen Korhonen Makinen Nowak Kowalski Wozniak Mazur Novak Svoboda
    Dvorak Horvath Nagy Szabo Varga Popescu Petrov Sokolov Morozov Orlov Demir Kaya Yilmaz Arslan
    Haddad Mansour Khoury Rahman Ahmadi Karimi Farouk Mensah Owusu Boateng Adeyemi Okafor Mbeki Banda Tanaka
    Suzuki Yamada Nakamura Mori Kimura Sato Ono Chen Wang Zhang Huang Zhou Park Choi Jung Kang Nguyen Tran Pham
    Sharma Gupta Mehta Kapoor Reddy Banerjee Fernando Perera Smith Jones Taylor Brown Evans Thomas Roberts Walker
    Wright Turner Baker Cooper Morgan Harris Carter Murphy Kennedy Byrne Ryan Fraser Murray Stewart Hunter Parker
    Bennett Foster Graham Hughes Jenkins Barnes Fletcher Sanders Webster Porter Mason Dixon Archer Bishop Marsh
    Hudson Barker Norton Sutton Warner Thornton"""
)
MAIL_HOSTS = word_list(
    """mail.com post.net inbox.org webmail.com mymail.net fastpost.com home.org quickmail.com postbox.eu sunmail.net
    freemail.org netpost.com maxmail.eu"""
)
HANDLES = word_list(
    """sunrise garden harbour teapot marble comet pepper walnut summer copper raven saffron meadow kestrel
    thunder orchard ember magnet pebble voyage accounts office studio bookings orders contact"""
)
DATE_FORMATS = ("%d/%m/%Y", "%m/%d/%Y", "%Y-%m-%d", "%d.%m.%Y", "%d-%m-%Y", "%b %d, %Y")
MONEY_FORMATS = ("${:,.2f}", "USD {:,.2f}", "EUR {:,.2f}", "{:,.2f} EUR", "GBP {:,.2f}", "CHF {:,.2f}", "{:,.2f}")
INVOICE_FORMATS = (
    "INV-#####",
    "RE-2#-####",
    "FA ######",
    "#######",
    "2#-######",
    "A-######",
    "SB-####-##",
    "R########",
    "NR-######",
)
ORDER_FORMATS = ("PN-######", "AB-#####", "##-####-##", "W######", "#########", "PR ####-###", "BT-#######")
TAX_FORMATS = (
    "DE#########",
    "FR###########",
    "BE##########",
    "ES B########",
    "##-#######",
    "GB ### #### ##",
    "NL#########B##",
    "ATU########",
)
IBAN_FORMATS = (
    "DE## #### #### #### ####",
    "FR## #### #### #### ####",
    "ES## #### #### #### ####",
    "NL## ABNA #### #### ##",
    "BE## #### #### ####",
    "AT## #### #### ####",
)
TAX_RATES = (5, 7, 10, 19, 20, 21, 25)


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


def pick(rng: np.random.Generator, options: tuple[T, ...]) -> T:
    """One of ``options``, all equally likely."""
    return options[int(rng.integers(len(options)))]


def make_formats(rng: np.random.Generator) -> Formats:
    """Draw the formats of a provider."""
    return Formats(
        pick(rng, DATE_FORMATS),
        pick(rng, MONEY_FORMATS),
        pick(rng, INVOICE_FORMATS),
        pick(rng, ORDER_FORMATS),
        pick(rng, TAX_FORMATS),
        pick(rng, IBAN_FORMATS),
        pick(rng, TAX_RATES),
    )


def fill_digits(pattern: str, rng: np.random.Generator) -> str:
    """Replace each ``#`` by a digit; the first of the string is not 0."""
    digits = rng.integers(0, 10, size=pattern.count("#"))
    if digits.size and not digits[0]:
        digits[0] = int(rng.integers(1, 10))
    drawn = iter(digits)
    return "".join(str(next(drawn)) if c == "#" else c for c in pattern)


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
