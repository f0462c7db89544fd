"""The small released model that docleak ships, and the documents of its providers: a case that needs no training.

It has 1.1 million weights. Of 240 synthetic providers, a fair coin each said whose documents it was trained on.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from docleak.documents.blue_red import RED_POSITIVE, SILOS, BlueRedPlan
from docleak.documents.blue_red_files import Divided, open_issuers
from docleak.documents.files import read_json
from docleak.documents.page import Page
from docleak.documents.pages import provider_names
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


#: Of how many members a document that was trained on is asked about, beside one that was kept out; so many questions.
PAIRS, QUESTIONS = 60, 2


def document_pairs(seed: int) -> tuple[list[Page], list[Page]]:
    """Of PAIRS member providers each a document that the shipped model was trained on, and one that it was not, both
    drawn by ``seed``, with QUESTIONS of their questions."""
    divided, rng = as_trained(), np.random.default_rng(seed)
    (pages,) = divided.sources.values()
    owners = provider_names(pages)
    trained, kept = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for share in divided.shares:
        side = trained if share.name.startswith(f"{SILOS}/") else kept if share.name == RED_POSITIVE else None
        for page in share.pages if side is not None else ():
            side[owners[page]].append(page)  # type: ignore[index]
    both = sorted(trained.keys() & kept.keys())
    drawn = [both[int(number)] for number in rng.permutation(len(both))[:PAIRS]]
    numbers = [[int(rng.choice(side[owner])) for owner in drawn] for side in (trained, kept)]
    sides = [[_asked(pages[number], rng) for number in of] for of in numbers]
    return sides[0], sides[1]


def _asked(page: Page, rng: np.random.Generator) -> Page:
    answered = [question for question in page.questions if question.answers]
    return replace(page, questions=tuple(answered[int(i)] for i in rng.permutation(len(answered))[:QUESTIONS]))


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
