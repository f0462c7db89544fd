"""Whether a release saw the documents that the division says it saw: by its own record, or else by its losses there.

What tells members from others is looked for in the wrong place where the division is another training's. A release that
docleak trained has keyed hashes of its providers' names beside it (``training.lineage``), which say whose they were; of
others nothing does, but a model that was trained on some documents is less surprised by them than by others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from docleak.attacks.answers.asking import Item
from docleak.attacks.answers.memorisation import Asker
from docleak.documents.blue_red import RED_NEGATIVE, RED_POSITIVE
from docleak.documents.blue_red_files import BlueRed
from docleak.documents.loaders import load_pages
from docleak.documents.names import provider_key
from docleak.documents.page import Page
from docleak.documents.pages import joined, provider_names
from docleak.metrics.blind import FOLDS, wording_auc
from docleak.privacy.lineage import Fingerprints
from docleak.report.measure import measured
from docleak.studies.surprise import ASKED, apart, in_words, surely
from docleak.training.lineage import fingerprints_of, record_of

#: Keeps the draw of these apart from others of the same seed.
DRAW = 33
#: The share of the members whom a record may not know: a training holds a fifth of the documents back by itself.
HELD_BACK = 0.25


def whose(
    blue_red: BlueRed, model: str, public: str, askers: Callable[[], tuple[Asker, Asker | None]], *, seed: int
) -> dict[str, Any]:
    """What shows that the release ``model`` saw the members' documents and nobody else's: its record, or, without one,
    what it and the public model say when they are asked; whether the public model's record knows members; and whether
    members are asked in other words."""
    start = seen_by_public(blue_red, fingerprints_of(public) if public else None) | worded(blue_red, seed=seed)
    if known := record_of(model):
        return {**by_record(blue_red, known), **start}
    return by_losses(blue_red, *askers(), seed=seed) | start


def by_record(blue_red: BlueRed, known: Fingerprints) -> dict[str, int]:
    """How many members the record does not know ("strangers"), and how many others it does ("seen")."""
    knows = {name: known.knows(provider_key(name)) for name in (*blue_red.members, *blue_red.outsiders)}
    return {
        "members": len(blue_red.members), "strangers": sum(not knows[name] for name in blue_red.members),
        "others": len(blue_red.outsiders), "seen": sum(knows[name] for name in blue_red.outsiders),
    }  # fmt: skip


def seen_by_public(blue_red: BlueRed, known: Fingerprints | None) -> dict[str, int]:
    """How many members the public model's record knows, where it has one."""
    if known is None:
        return {}
    return {"public_knows": sum(known.knows(provider_key(name)) for name in blue_red.members)}


def worded(blue_red: BlueRed, *, seed: int) -> dict[str, Any]:
    """The AUC ("wording") by which the words of the questions alone tell members from others, where no coins chose
    them: with coins they differ by chance alone. {} where there are too few providers to tell."""
    if blue_red.coins:
        return {}
    asked: dict[str, list[str]] = {}
    for page in joined([blue_red.pages(RED_POSITIVE), blue_red.pages(RED_NEGATIVE)]):
        asked.setdefault(provider_key(page.provider), []).extend(question.text for question in page.questions)
    members = np.array([*map(set(map(provider_key, blue_red.members)).__contains__, asked)], dtype=np.bool_)
    if min(members.sum(), (~members).sum()) < FOLDS:
        return {}
    told = wording_auc([*asked.values()], [*asked], members, seed=seed)
    return {"wording": replace(told, of="providers").to_json()}


def by_losses(blue_red: BlueRed, release: Asker, public: Asker | None, *, seed: int) -> dict[str, Any]:
    """By how much the release's loss on members' training documents is below that on others' documents, in nats
    ("apart"), after what the public model's is where there is one: over providers, with its interval."""
    known = joined([load_pages(f"folder:{silo}", seed=0) for silo in blue_red.silos.values()])
    said, others = (
        measured(_losses(_drawn(pages, seed), release, public)) for pages in (known, blue_red.pages(RED_NEGATIVE))
    )
    return {"public": public is not None, "apart": apart(said, others, (seed, DRAW), of="providers")}


def _drawn(pages: Sequence[Page], seed: int) -> list[Item]:
    """A question of one document of each of ASKED providers, drawn by the seed; no more pages than these are read."""
    names, drawn = provider_names(pages), dict[str, Item]()
    for number in np.random.default_rng((seed, DRAW)).permutation(len(pages)).tolist():
        if (name := provider_key(names[number])) in drawn:
            continue
        page = pages[number]
        if (question := next((question for question in page.questions if question.answers), None)) is not None:
            drawn[name] = Item(page, question)
        if len(drawn) == ASKED:
            break
    return list(drawn.values())


def _losses(items: Sequence[Item], release: Asker, public: Asker | None) -> list[tuple[str, float, int]]:
    """Provider, loss beyond the public model's, 1; without those that are no number."""
    before = [said.loss for said in public(items)] if public else [0.0] * len(items)
    beyond = [
        (item.page.provider, math.nan if said.loss is None or start is None else said.loss - start, 1)
        for item, said, start in zip(items, release(items), before, strict=True)
    ]
    return [one for one in beyond if math.isfinite(one[1])]


def mistaken(whose: Mapping[str, Any]) -> str:
    """Why what is measured may say nothing of the release: it was trained on others' documents, or nothing shows that
    it was trained on these, or the model to compare it with saw them, too; "" where nothing speaks for that."""
    if whose.get("public_knows"):
        return (
            f"the public model's own record of its training knows {whose['public_knows']} of the members, so that what "
            "the release adds to it is not what it was trained on: give the model from before the training"
        )
    if "strangers" in whose:
        strangers, seen = int(whose["strangers"]), int(whose["seen"])
        if seen or strangers > HELD_BACK * whose["members"]:
            return (
                f"the release's own record of its training knows {seen} of the {whose['others']} providers that it is "
                f"said not to have seen, and does not know {strangers} of the {whose['members']} that it is said to be "
                "trained on: is this the division that it was trained with?"
            )
        return ""
    if surely(whose["apart"]):
        return ""
    return (
        "nothing of the release says whose documents it saw, and its loss on members' training documents is not surely "
        f"below that on others' ({_apart(whose)}): it may have been trained on others, or have learned too little "
        "to show it"
    )


def evidence(whose: Mapping[str, Any]) -> str:
    """What shows that it saw them, in words; "" where ``mistaken`` says why not."""
    if mistaken(whose):
        return ""
    if "strangers" in whose:
        known = whose["members"] - whose["strangers"]
        return (
            f"Its own record of the training knows {known} of the {whose['members']} members, and none of the "
            f"{whose['others']} others."
        )
    return (
        "Nothing of the release says whose documents it saw; its loss on members' training documents is below that on "
        f"others' ({_apart(whose)})."
    )


def _apart(whose: Mapping[str, Any]) -> str:
    return in_words(whose["apart"], "the public model's" if whose["public"] else "")
