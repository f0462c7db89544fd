"""Invoices that say everything in German, and questions in German: a kind that no shipped model was trained on."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from docleak.documents.page import Page, Question
from docleak.documents.synthetic import DEFAULT_SIZE, SPLITS, fill_template
from docleak.documents.synthetic_layouts import Template
from docleak.documents.synthetic_providers import PROVIDERS, provider, provider_rng
from docleak.documents.synthetic_templates import lay_out
from docleak.documents.synthetic_values import pick

TITLES = ("RECHNUNG", "Rechnung", "BELEG", "Beleg", "QUITTUNG", "Faktura")
FOOTERS = ("Vielen Dank.", "Zahlbar ohne Abzug.", "Es gelten unsere AGB.", "Wir danken.")
LABELS: dict[str, tuple[str, ...]] = {
    "invoice_number": ("Rechnung Nr", "Re.-Nr", "Beleg Nr", "Nummer"),
    "date": ("Datum", "Vom", "Erstellt", "Tag"),
    "due_date": ("Zahlbar bis", "Faellig", "Frist", "Zahlziel"),
    "customer_name": ("Kunde", "An", "Herr/Frau", "Empfang"),
    "customer_email": ("E-Post", "Netzpost", "Elektr. Post", "Schreiben an"),
    "tax_number": ("USt-Id", "Steuer Nr", "St.-Nr", "UID"),
    "total": ("Summe", "Gesamt", "Betrag", "Zu zahlen"),
    "subtotal": ("Netto", "Zwischens.", "Ohne St.", "Waren"),
    "tax_amount": ("MwSt", "USt", "Steuer", "Abgabe"),
    "iban": ("Konto", "Bank", "Bankkonto", "Auf Konto"),
    "order_number": ("Auftrag", "Bestellung", "Best.-Nr", "Auftrag Nr"),
}
QUESTIONS: dict[str, tuple[str, ...]] = {
    "invoice_number": ("Welche Nummer hat die Rechnung?", "Wie lautet die Rechnungsnummer?", "Nummer des Belegs?"),
    "date": ("Von welchem Tag ist sie?", "Wann wurde sie geschrieben?", "Welches Datum steht darauf?"),
    "due_date": ("Bis wann ist zu zahlen?", "Wann endet die Frist?", "Wie lange hat man Zeit?"),
    "customer_name": ("Wer zahlt?", "Wie heisst der Kunde?", "An wen geht die Rechnung?"),
    "customer_email": ("Wie schreibt man dem Kunden?", "Wohin geht die Netzpost?", "Welche Netzadresse hat er?"),
    "tax_number": ("Welche Steuernummer hat der Kunde?", "Wie kennt ihn das Finanzamt?", "Wie lautet die UID?"),
    "total": ("Wie viel ist zu zahlen?", "Was kostet alles zusammen?", "Wie hoch ist die Summe?"),
    "subtotal": ("Wie viel ist es ohne Steuer?", "Was kostet die Ware allein?", "Wie hoch ist der Nettobetrag?"),
    "tax_amount": ("Wie viel Steuer ist dabei?", "Was bekommt der Staat?", "Wie hoch ist die Mehrwertsteuer?"),
    "iban": ("Auf welches Konto?", "Wohin wird gezahlt?", "Wie lautet die Kontonummer?"),
    "order_number": ("Welche Bestellung war es?", "Wie lautet die Auftragsnummer?", "Wie wurde bestellt?"),
}  # fmt: skip
#: Keeps the draws of labels apart from a provider's others.
PURPOSE = 49


@lru_cache(maxsize=PROVIDERS)
def template(index: int) -> Template:
    """The blank page of a provider, laid out anew around German words."""
    owner, rng = provider(index), provider_rng(index, PURPOSE)
    colon = ":" if owner.colon else ""
    labels = {key: pick(rng, options) + colon for key, options in LABELS.items()}
    return lay_out(replace(owner, labels=labels, title=pick(rng, TITLES), footer=pick(rng, FOOTERS)), DEFAULT_SIZE)


def german_page(index: int, *, seed: int, split: str) -> Page:
    """Page ``index`` of a split: values of a provider's formats, all else in German."""
    rng = np.random.default_rng(np.random.SeedSequence((PURPOSE, seed, SPLITS.index(split), index)))
    page = fill_template(template(int(rng.integers(PROVIDERS))), rng, f"german-{split}-{seed}-{index:06d}", filled=True)
    return replace(
        page, questions=tuple(Question(pick(rng, QUESTIONS[q.key or ""]), q.answers, q.key) for q in page.questions)
    )
