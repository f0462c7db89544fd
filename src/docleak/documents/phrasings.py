"""Ways to ask for a field of an invoice: PHRASINGS maps a key to at least 20 distinct questions."""

from __future__ import annotations

#: Sentence frames; {} is the thing asked for.
_FRAMES = (
    "What is the {}?",
    "What is the {} on this page?",
    "What {} is shown?",
    "Which {} is given?",
    "Which {} does the document state?",
    "Tell me the {}.",
    "Please give the {}.",
    "Find the {}.",
    "What is written as the {}?",
    "Read the {} from the document.",
)
#: key -> (names that fit the frames, questions of its own).
_ASKED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "invoice_number": (
        ("invoice number", "number of the invoice"),
        ("Under what number was this invoice issued?", "How is this invoice numbered?"),
    ),
    "date": (
        ("invoice date", "date of issue"),
        ("When was this issued?", "On what date was the invoice made out?", "When is the document dated?"),
    ),
    "due_date": (
        ("due date", "payment deadline"),
        ("When is the payment due?", "By when must this be paid?", "Until what day can it be paid?"),
    ),
    "customer_name": (
        ("name of the customer", "client name"),
        ("Who is billed?", "Who is the customer?", "To whom is the invoice addressed?", "Who has to pay?"),
    ),
    "customer_email": (
        ("customer's email address", "email of the client"),
        ("Where can the customer be mailed?", "To which address was this mailed?"),
    ),
    "tax_number": (
        ("customer's tax number", "VAT number of the client"),
        ("Under which tax ID is the customer registered?", "How is the client known to the tax office?"),
    ),
    "total": (
        ("total amount", "amount due"),
        ("How much is to be paid?", "How much does it come to?", "What does the bill add up to?"),
    ),
    "subtotal": (
        ("subtotal", "net amount"),
        ("How much is it before tax?", "What does it come to without tax?"),
    ),
    "tax_amount": (
        ("amount of tax", "tax charged"),
        ("How much tax is charged?", "How much VAT is included?"),
    ),
    "iban": (
        ("IBAN", "bank account number"),
        ("To which account should it be paid?", "Where must the money be sent?"),
    ),
    "order_number": (
        ("order number", "number of the order"),
        ("Under what number was it ordered?", "Which order does this refer to?"),
    ),
}

PHRASINGS: dict[str, tuple[str, ...]] = {
    key: tuple(dict.fromkeys([*own, *(frame.format(name) for name in names for frame in _FRAMES)]))
    for key, (names, own) in _ASKED.items()
}
