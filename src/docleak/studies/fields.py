"""What pictures say of one private field: the reconstruction, beside the blank template and the true page."""

from __future__ import annotations

from docleak.metrics import FieldScore
from docleak.report.severity import Cell

#: Fuzz ratio from which a field that is not exact counts as nearly read.
NEAR = 0.8
#: Pictures of an attacked page, by name of their files: what they are called, and what they show in words.
KINDS = {"template": "Blank template", "reconstruction": "Reconstruction", "truth": "True page"}
ALTS = {
    "template": "The blank form, which the attacker knows",
    "reconstruction": "What the attack rebuilt from the gradient",
    "truth": "The true private page",
}


def cell_of(read: FieldScore, blank: FieldScore, truth: FieldScore, *, given: bool) -> Cell:
    """What the pictures say of one field: the reconstruction, the blank template, and the true page."""
    said, before = mark(read), mark(blank)
    if said == "unscored":
        return Cell.UNSCORED
    if said == "no":
        return Cell.ILLEGIBLE if mark(truth) == "no" else Cell.NOT
    if before == "exact" or said == before == "near":
        return Cell.PUBLIC
    return Cell.GIVEN if given else Cell.READ if said == "exact" else Cell.NEAR


def mark(field: FieldScore) -> str:
    """How well one field was read: "exact", "near" (fuzz ratio of NEAR or more), "no", or "unscored"."""
    if field.exact is None:
        return "unscored"
    return "exact" if field.exact else "near" if (field.fuzz or 0.0) >= NEAR else "no"
