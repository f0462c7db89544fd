"""Ways to ask for a field of an invoice: PHRASINGS maps a key to at least 20 distinct questions."""

from __future__ import annotations

#: Frames that any name of a field fits.
_FRAMES = (
    "What is the {}?",
    "What is the {} on this page?",
    "Can you tell me the {}?",
    "Please give the {}.",
    "Find the {}.",
    "Read the {} from the document.",
)
#: key -> (names of the field, questions of its own).
_ASKED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "invoice_number": (
        ("invoice number", "number of this invoice", "document number"),
        ("Under what number was this issued?", "How is this invoice numbered?", "Which invoice is this?"),
    ),
    "date": (
        ("invoice date", "date of issue", "date of the document"),
        ("When was this issued?", "On what date was the invoice made out?", "When is the document dated?"),
    ),
    "due_date": (
        ("due date", "payment deadline", "last day to pay"),
        ("When is the payment due?", "By when must this be paid?", "Until what day can it be paid?"),
    ),
    "customer_name": (
        ("name of the customer", "client name", "name of the person billed"),
        ("Who is billed?", "Who is the customer?", "To whom is the invoice addressed?", "Who has to pay?"),
    ),
    "customer_email": (
        ("customer's email address", "email of the client", "address the customer is mailed at"),
        (
            "Where can the customer be mailed?",
            "What email does the customer use?",
            "How is the client reached by mail?",
        ),
    ),
    "tax_number": (
        ("customer's tax number", "VAT number of the client", "tax ID of the customer"),
        ("Under which tax ID is the customer registered?", "How is the client known to the tax office?"),
    ),
    "total": (
        ("total amount", "amount due", "sum to be paid"),
        ("How much is to be paid?", "How much does it come to?", "What does the bill add up to?", "How much is owed?"),
    ),
    "subtotal": (
        ("subtotal", "net amount", "amount before tax"),
        ("How much is it before tax?", "What does it come to without tax?"),
    ),
    "tax_amount": (
        ("amount of tax", "tax on this invoice", "VAT amount"),
        ("How much tax is charged?", "How much VAT is included?", "How much of it is tax?"),
    ),
    "iban": (
        ("IBAN", "bank account number", "account to pay to"),
        ("To which account should it be paid?", "Where must the money be sent?"),
    ),
    "order_number": (
        ("order number", "number of the order", "purchase order number"),
        ("Under what number was it ordered?", "Which order does this refer to?"),
    ),
    "provider_name": (
        ("name of the provider", "company that issued this", "vendor name"),
        ("Who issued this invoice?", "Which company sent the bill?", "What name is associated with the vendor?"),
    ),
    "provider_email": (
        ("provider's email address", "email of the company", "vendor email"),
        ("Where can the provider be mailed?", "At which address does the company take mail?"),
    ),
    "provider_tax_number": (
        ("provider's tax number", "VAT number of the company", "tax ID of the vendor"),
        ("Under which tax ID does the company trade?", "How is the provider known to the tax office?"),
    ),
    "registration_id": (
        ("registration id of the provider", "company registration number", "register entry of the vendor"),
        ("Under which number is the company registered?", "How is the provider entered in the register?"),
    ),
}

PHRASINGS: dict[str, tuple[str, ...]] = {
    key: (*own, *(frame.format(name) for name in names for frame in _FRAMES)) for key, (names, own) in _ASKED.items()
}
