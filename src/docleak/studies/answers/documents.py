"""Whether a document was trained on, held against the truth: scores of documents, and controls that ask no target.

Members and others come from the auditor, who knows which is which; scores see neither. Where a classifier that asks no
model, or a model that saw neither set, tells them apart, the sets differ, and nothing is concluded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from docleak.attacks.answers.asking import answerable, nls
from docleak.attacks.answers.documents import Asked, DocumentAttack, Floats, documents_in
from docleak.attacks.answers.memorisation import Asker
from docleak.attacks.answers.tuning import tune
from docleak.attacks.asking import OwnAttackError, called, odd_scores
from docleak.attacks.registries import DOCUMENTS
from docleak.documents.loaders import load_pages
from docleak.documents.names import provider_key
from docleak.documents.page import Page
from docleak.documents.pages import grouped, marks_of
from docleak.errors import AttackError
from docleak.metrics.blind import blind_auc, require_enough, wording_auc
from docleak.metrics.clustered import over_providers
from docleak.metrics.estimate import Estimate
from docleak.metrics.membership import membership_rates
from docleak.models.base import DocumentModel
from docleak.report.measure import measured, share_of
from docleak.runs.content import describe
from docleak.runs.identity import digest_of
from docleak.spec import counted_words
from docleak.studies.answers.shipped import SHIPPED, document_pairs
from docleak.training.lineage import fingerprints_of, record_of

LEVEL, RESAMPLES = 0.95, 4000
RATES = ("auc", "tpr_at_10_fpr", "tpr_at_1_fpr")
#: What the controls are called.
BLIND, UNTRAINED = "no model asked: words, boxes, picture", "model that saw neither: loss"
WORDING = "no model asked: wording of the questions"


@dataclass(frozen=True, eq=False)
class Sides:
    """Documents that were trained on, and others; name -> pages, under names that tell nothing. ``bare`` is how many
    further ones of each side have no question with an answer."""

    members: Mapping[str, Sequence[Page]]
    others: Mapping[str, Sequence[Page]]
    bare: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, members: Sequence[Page], others: Sequence[Page]) -> Sides:
        """Documents with a question that has an answer. AttackError for a side without any, and for a page of both."""
        known = {one for page in members for one in marks_of(page)}
        if shared := sum(not known.isdisjoint(marks_of(page)) for page in others):
            are, them = ("is", "it") if shared == 1 else ("are", "them")
            raise AttackError(
                f"{counted_words(shared, 'page')} {are} among the members and among the others: same picture, or same "
                f"words. Leave {them} out of one; a document was trained on or it was not."
            )
        groups = [_documents(pages, mark) for mark, pages in (("m", members), ("o", others))]
        sides = [{name: of for name, of in group.items() if _answered(of)} for group in groups]
        if not all(sides):
            raise AttackError(
                f"{len(sides[0])} of {len(members)} pages of members and {len(sides[1])} of {len(others)} of others "
                "make documents with a question and its answer; expected some of each. Add questions to pages.jsonl."
            )
        bare = [len(group) - len(side) for group, side in zip(groups, sides, strict=True)]
        return cls(sides[0], sides[1], (bare[0], bare[1]))

    def all(self) -> dict[str, Sequence[Page]]:
        """Both, members first."""
        return {**self.members, **self.others}


def sides_of(members: str, others: str, *, seed: int) -> Sides:
    """The two sets of pages, by the names that ``load_pages`` takes, or those of the shipped release; its errors,
    those of ``Sides.of``, and AttackError for so few documents that no control could be had."""
    if members == others == SHIPPED:
        return Sides.of(*document_pairs(seed))
    sides = Sides.of(load_pages(members, seed=seed), load_pages(others, seed=seed))
    require_enough(len(sides.members), len(sides.others))
    return sides


def asked_about(sides: Sides, target: Asker, references: Sequence[Asker], model: DocumentModel) -> list[Asked]:
    """What the target and the references make of every question (``answerable``), and what its fine-tuning moves."""
    named = [(name, item) for name, pages in sides.all().items() for item in answerable(pages)]
    items = [item for _, item in named]
    said, others = target(items), [reference(items) for reference in references]
    moved = tune(model, items)
    rows = []
    for number, (name, item) in enumerate(named):
        losses = [of[number].loss for of in (said, *others)]
        if any(loss is None or not math.isfinite(loss) for loss in losses):
            raise AttackError(f"a model gives no finite loss on question {item.question.text!r} of {item.page.name!r}.")
        first, *rest = [float(loss or 0.0) for loss in losses]
        rows.append(Asked(name, item.question.key or item.question.text, first,
                          nls(said[number].text, item.question.answers), moved[number].distance, moved[number].steps,
                          tuple(rest)))  # fmt: skip
    return rows


def attacks_for(asked: Sequence[Asked]) -> dict[str, DocumentAttack]:
    """Those of the registry that can be made, by their names there: without references fewer."""
    loaded = {name: DOCUMENTS.load(name) for name in DOCUMENTS}
    return {name: attack for name, attack in loaded.items() if asked[0].references or not attack.reference}


def installed() -> dict[str, str]:
    """Digests of the attacks that other packages add, all of which are made; AttackError for one that cannot be
    loaded."""
    others = [name for name in DOCUMENTS if not DOCUMENTS.plain(name)]
    return {f"attack on documents {name}": digest_of({name: describe(DOCUMENTS.load(name))}) for name in others}


def score(attack: DocumentAttack, asked: Sequence[Asked]) -> Floats:
    """The attack's score of each document; OwnAttackError, which names it, for what cannot be one."""
    scores: Any = called(attack, {"asked": list(asked)})
    if fault := next(odd_scores("scores", scores, len(documents_in(asked))), ""):
        raise OwnAttackError(
            f"attack {attack.name!r} returned scores that cannot be: {fault}. Expected a finite float per document, in "
            "the order of docleak.attacks.answers.documents.documents_in."
        )
    return cast(Floats, scores)


def rates_of(sides: Sides, asked: Sequence[Asked], *, seed: int) -> dict[str, dict[str, Estimate]]:
    """Attack -> AUC and true positive rates over documents, with intervals that hold together for all attacks: each of
    k at 1 - 0.05 / k (Bonferroni), so that the best of them may be looked at. Documents of one provider are one, too,
    and the wider of both intervals counts."""
    attacks = attacks_for(asked)
    level = 1 - (1 - LEVEL) / len(attacks)
    return {name: _rates(score(attack, asked), asked, sides, level, seed) for name, attack in attacks.items()}


def facts_of(sides: Sides, asked: Sequence[Asked], *, seed: int) -> dict[str, Any]:
    """How much was asked, what the controls say, which of them tell the sides apart ("differs": their interval does not
    hold 1/2), and a row per document with its scores."""
    names, pages = documents_in(asked), sides.all()
    columns = {name: score(attack, asked).tolist() for name, attack in attacks_for(asked).items()}
    controls = controls_of(sides, asked, seed=seed)
    rows = [
        {"document": pages[name][0].document or pages[name][0].name, "member": int(name in sides.members),
         **{attack: of[row] for attack, of in columns.items()}}
        for row, name in enumerate(names)
    ]  # fmt: skip
    odd = [name for name, of in controls.items() if of.low is None or of.high is None or not of.low <= 0.5 <= of.high]
    return {
        "members": len(sides.members), "others": len(sides.others), "questions": len(asked), "scores": rows,
        "controls": {name: of.to_json() for name, of in controls.items()}, "differs": odd,
        **({"bare": list(sides.bare)} if any(sides.bare) else {}),
        **trained_on(sides, asked, seed=seed),
    }  # fmt: skip


def trained_on(sides: Sides, asked: Sequence[Asked], *, seed: int) -> dict[str, Any]:
    """What shows that the release was trained on its alleged documents, and can answer: the share of their questions
    that it answers right ("answered"), and by how much its loss there is below the first reference's ("learnt")."""
    of_members = [one for one in asked if one.document in sides.members]
    told = {"answered": sum(one.nls == 1 for one in of_members) / len(of_members)}
    if not asked[0].references:
        return told
    whose = {name: provider_key(pages[0].provider) or name for name, pages in sides.members.items()}
    gains = measured([(whose[one.document], one.references[0] - one.loss, 1) for one in of_members])
    return told | {"learnt": share_of(gains, np.random.default_rng(seed), of="questions", share=False).to_json()}


def strangers(sides: Sides, release: str) -> int:
    """Documents of members of whose providers the release's own record says that no training saw them; 0 where it has
    no record (``training.lineage``)."""
    if (known := fingerprints_of(release)) is None:
        return 0
    drawn = known.drawn()
    return sum(bool(name) and not drawn.knows(name) for name in _providers(sides.members))


def recorded(sides: Sides, release: str) -> bool:
    """Whether the release's own record knows the providers of all members, and of none of the others: whose providers
    it knows, too, may have been trained on themselves."""
    known = record_of(release)
    return known is not None and all(
        name and known.knows(name) == inside
        for of, inside in ((sides.members, True), (sides.others, False)) for name in _providers(of)
    )  # fmt: skip


def _providers(documents: Mapping[str, Sequence[Page]]) -> list[str]:
    return [provider_key(pages[0].provider) for pages in documents.values()]


def controls_of(sides: Sides, asked: Sequence[Asked], *, seed: int) -> dict[str, Estimate]:
    """AUC of who asks no model, by the pages and by how the questions are worded, and by the loss of the first
    reference, which saw neither set."""
    documents = sides.all()
    members = np.array([name in sides.members for name in documents])
    asked_in = [[question.text for page in pages for question in page.questions] for pages in documents.values()]
    controls = {
        BLIND: blind_auc(list(documents.values()), members, seed=seed),
        WORDING: wording_auc(asked_in, [pages[0].provider for pages in documents.values()], members, seed=seed),
    }
    if asked[0].references:
        blank = [replace(one, loss=one.references[0]) for one in asked]
        controls[UNTRAINED] = _rates(DOCUMENTS.load("loss").run(blank), asked, sides, LEVEL, seed)["auc"]
    return controls


def _rates(
    scores: np.ndarray[tuple[int, ...], np.dtype[np.float64]], asked: Sequence[Asked], sides: Sides, level: float,
    seed: int,
) -> dict[str, Estimate]:  # fmt: skip
    members = np.array([name in sides.members for name in documents_in(asked)])
    rng = np.random.default_rng(seed)
    rates = membership_rates(scores, scores > np.median(scores), members, rng=rng, level=level, resamples=RESAMPLES)
    documents = sides.all()
    providers = [provider_key(documents[name][0].provider) for name in documents_in(asked)]
    rates = over_providers({name: replace(rates[name], of="documents") for name in RATES}, scores, members, providers,
                           rng=rng, level=level, resamples=RESAMPLES)  # fmt: skip
    return rates


def _documents(pages: Sequence[Page], mark: str) -> dict[str, list[Page]]:
    """Pages by document. ``mark`` keeps names of two sides apart; they are hashed, so that neither they nor their
    order tell an attack anything."""
    documents = grouped(pages, lambda page: f"{mark} {page.provider} {page.document or page.name}")
    return {hashlib.sha256(told.encode()).hexdigest()[:16]: of for told, of in documents.items()}


def _answered(pages: Sequence[Page]) -> bool:
    return any(question.answers for page in pages for question in page.questions)
