"""The small released model that docleak ships, and the documents of its providers: a case that needs no training.

It has 1.1 million weights. Of 240 synthetic providers, a fair coin each said whose documents it was trained on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import Divided, open_issuers
from docleak.documents.files import read_json
from docleak.documents.partition import Share

#: The model, and the public one it was trained from.
RELEASED, PUBLIC = "vt5-released", "vt5-public"
#: As a configuration names their division, and the folder of a run in which it is made.
SHIPPED, DIVISION = "shipped", "providers"
#: What the pages are made of.
PROVIDERS, DOCUMENTS, CLIENTS, SEED = 240, 6.0, 10, 0
#: Which pages the model was trained on, and where the others went: docleak 0.1.0 drew it from the whole list, and later
#: versions draw by each provider's own coin, which falls otherwise.
TRAINED_ON = Path(__file__).with_name("shipped-division.json")


def as_trained() -> Divided:
    """The synthetic pages, divided as the shipped model's training had them."""
    divided = open_issuers(PROVIDERS, DOCUMENTS, BlueRedPlan(clients=CLIENTS), seed=SEED)
    saved = read_json(TRAINED_ON)
    assert isinstance(saved, dict)
    if (saved["documents"], saved["clients"], saved["seed"]) != (DOCUMENTS, CLIENTS, SEED):
        return divided  # other pages, which the model never saw in any division
    ((name, pages),) = divided.sources.items()
    there = {part: tuple(page for page in of if page < len(pages)) for part, of in saved["shares"].items()}
    return replace(divided, shares=tuple(Share(part, name, of) for part, of in there.items() if of))
