"""The released model that docleak ships, and the audit of it that ends an audit without arguments."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import docleak
from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import Divided, open_issuers
from docleak.errors import AttackError
from docleak.runs.run import Run
from docleak.studies.answers import shipped, store
from docleak.studies.answers.config import Release
from docleak.studies.answers.red import draw_providers, pages_of, replies_to
from docleak.studies.answers.store import division_of
from docleak.studies.answers.study import AnswersStudy, shipped_audit, shipped_documents
from docleak.studies.answers.targets import CENTRAL, PRESETS, Target
from docleak.studies.engine import carry_out
from docleak.studies.registry import report_on


def test_the_division_is_that_of_the_training() -> None:
    """The shipped model is VT5_C of the tiny tables: its providers must be theirs."""
    data = PRESETS["tiny"].data
    assert (data.providers, data.per_provider, data.seed) == (shipped.PROVIDERS, shipped.DOCUMENTS, shipped.SEED)
    assert data.plan.clients == shipped.CLIENTS and Target(shipped.PUBLIC, data, CENTRAL).name == "VT5_C"


@pytest.fixture(scope="module")
def divided() -> Divided:
    """The shipped model's pages in its division; the pages are drawn when they are asked for."""
    return shipped.as_trained()


@pytest.fixture(scope="module")
def documents(divided: Divided, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The audit of 8 documents that the shipped model was trained on and of 8 others."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shipped, "PAIRS", 8)
        patched.setattr(shipped, "as_trained", lambda: divided)
        return carry_out(AnswersStudy(shipped_documents(0)), tmp_path_factory.mktemp("shipped") / "documents")


def test_it_answers_the_pages_it_was_trained_on_better(divided: Divided) -> None:
    """A planted fault, another division, would level the two: the public model's shares are 5 points apart."""
    from docleak.attacks.answers.asking import AnswersView, ask
    from docleak.models.loading import load_model

    pages, shares = divided.sources["issuers"], {share.name: share.pages for share in divided.shares}
    view = AnswersView(load_model(shipped.RELEASED), scores=False)
    right = {}
    for part in ("silos/client-0", "red-negative"):
        replies = replies_to([pages[number] for number in shares[part][:30]], lambda items: ask(view, items))
        right[part] = sum(reply.accuracy for reply in replies) / len(replies)
    assert right["silos/client-0"] > 0.75 and right["silos/client-0"] > right["red-negative"] + 0.15, right


def test_a_short_audit_of_some_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "PROVIDERS", 36)
    monkeypatch.setattr(store, "as_trained", lambda: open_issuers(36, 3.0, BlueRedPlan(clients=1), seed=0))
    made = division_of(shipped.SHIPPED, tmp_path)
    study = AnswersStudy(replace(shipped_audit(1), division=str(made.path)))
    run, together = carry_out(study, tmp_path / "alone"), carry_out(study, tmp_path / "together", workers=2)
    assert run.units() == together.units(), "one process and two find the same"
    records = {record["label"]: record for record in run.units()}
    assert list(records) == ["public model", shipped.RELEASED]
    release = records[shipped.RELEASED]
    assert release["membership"]["members"] + release["membership"]["others"] == 12
    assert sorted(release["membership"]["numbers"]) == ["APK", "AZK"]
    assert list(release["memorisation"]["numbers"]) == ["provider_name"]
    frame = docleak.load_run(run.path).to_frame()
    assert frame["membership.numbers.AZK.accuracy_s0.groups"].tolist() == [12, 12]
    assert list(frame.filter(regex=r"by_provider|\.\.")) == [], "no column for every provider, none without a name"
    reading = AnswersStudy.read([run], np.random.default_rng(0), beside=True)
    rows = [row.name for row in reading.tables["memorisation"].rows if row.name.startswith(shipped.RELEASED)]
    both = ("all answers", "answers of confidence ≥ 0.9")
    assert rows == [f"{shipped.RELEASED}: provider_name, {of}" for of in both], "and rows can be told apart"
    (section,) = reading.sections
    assert section.anchor == reading.parts[0].anchor == "released" and "<img" in section.body and not reading.articles
    assert [part.name for part in reading.parts] == [f"answers of {shipped.RELEASED}"], "the control is no part"
    said = "\n".join(reading.lines)
    assert "Who took part" in said and "public model:" not in said
    alone = "the 95 % interval is this attack's alone, not widened for the choice; "
    assert f" of 50 guesses about 12 providers ({alone}in each draw those that APK is told of are left out)" in said
    assert (
        "of 2 of 12 providers whether they took part"
        in AnswersStudy.read([run], np.random.default_rng(0)).sections[1].body
    )


def test_documents_of_the_training_beside_others_of_the_same_providers(
    divided: Divided, documents: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "as_trained", lambda: divided)
    members, others = shipped.document_pairs(0)
    assert [page.provider for page in members] == [page.provider for page in others] and len(members) == shipped.PAIRS
    assert members != shipped.document_pairs(1)[0]
    parts = {divided.sources["issuers"][number].name: share.name for share in divided.shares for number in share.pages}
    assert all(parts[page.name].startswith("silos/") for page in members)
    assert {parts[page.name] for page in others} == {"red-positive"}
    assert all(1 <= len(page.questions) <= 2 and all(q.answers for q in page.questions) for page in members + others)
    with pytest.raises(AttackError, match="and of no other release"):
        replace(shipped_documents(0), releases=(Release("mine", shipped.PUBLIC),))
    assert [record["documents"]["members"] for record in documents.units()] == [8]
    reading = AnswersStudy.read([documents], np.random.default_rng(0), beside=True)
    (section,), (part,) = reading.sections, reading.parts
    assert section.anchor == part.anchor == "documents" and part.name == f"documents of {shipped.RELEASED}"
    assert "docleak's own record" in reading.lead and reading.synthetic


def test_providers_and_documents_are_read_apart(
    documents: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of one kind side by side, whose numbers stand for different things."""
    monkeypatch.setattr(shipped, "PROVIDERS", 20)
    monkeypatch.setattr(store, "as_trained", lambda: open_issuers(20, 3.0, BlueRedPlan(clients=1), seed=0))
    division = division_of(shipped.SHIPPED, tmp_path / "made")
    about = replace(shipped_audit(1), division=str(division.path), providers=0)
    carry_out(AnswersStudy(about), tmp_path / "providers")
    page, readings = report_on([tmp_path / "providers", documents.path], tmp_path / "both")
    assert [part.name for of in readings for part in of.parts] == [
        f"answers of {shipped.RELEASED}", f"documents of {shipped.RELEASED}",
    ]  # fmt: skip
    html = page.read_text("utf-8")
    anchors = re.findall(r' id="([^"]+)"', html)
    assert len(set(anchors)) == len(anchors) and "And a single document" in html


def test_providers_are_drawn_whether_members_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "PROVIDERS", 20)
    monkeypatch.setattr(shipped, "DOCUMENTS", 3.0)
    monkeypatch.setattr(shipped, "CLIENTS", 1)
    blue_red = division_of(shipped.SHIPPED, tmp_path)
    chosen = draw_providers(blue_red, 7, seed=3)
    assert len(chosen) == 7 and chosen == draw_providers(blue_red, 7, seed=3) != draw_providers(blue_red, 7, seed=4)
    assert draw_providers(blue_red, 99, seed=0) == {*blue_red.members, *blue_red.outsiders}
    pages = blue_red.pages("red-negative")
    left = pages_of(pages, chosen)
    assert {page.provider for page in left} == chosen & {page.provider for page in pages}
    assert [page.name for page in left[1:]] == [page.name for page in left][1:] and pages_of(pages, None) is pages
