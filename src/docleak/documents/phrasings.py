"""Ways to ask for a field of an invoice (invoices.toml): PHRASINGS maps a key to at least 20 distinct questions."""

from __future__ import annotations

from docleak.documents.synthetic_values import INVOICES

PHRASINGS: dict[str, tuple[str, ...]] = {
    key: (
        *asked["questions"],
        *(frame.format(name) for name in asked["names"] for frame in INVOICES["phrasings"]["frames"]),
    )
    for key, asked in INVOICES["phrasings"]["keys"].items()
}
