"""The released model that docleak ships, and the audit of it that ends an audit without arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import open_issuers
from docleak.evidence.answers import shipped
from docleak.evidence.answers.red import draw_providers, pages_of, replies_to
from docleak.evidence.answers.report import summary_text
from docleak.recipes.releases.config import Target
from docleak.recipes.releases.presets import CENTRAL, PRESETS


def test_the_division_is_that_of_the_training() -> None:
    """The shipped model is VT5_C of the tiny tables: its providers must be theirs."""
    data = PRESETS["tiny"].data
    assert (data.providers, data.per_provider, data.seed) == (shipped.PROVIDERS, shipped.DOCUMENTS, shipped.SEED)
    assert data.plan.clients == shipped.CLIENTS and Target(shipped.PUBLIC, data, CENTRAL).name == "VT5_C"


def test_it_answers_the_pages_it_was_trained_on_better(tmp_path: Path) -> None:
    """A planted fault, another division, would level the two: the public model's shares are 5 points apart."""
    from docleak.attacks.answers.asking import AnswersView, ask
    from docleak.models.loading import load_model

    divided = shipped.as_trained()
    pages, shares = divided.sources["issuers"], {share.name: share.pages for share in divided.shares}
    view = AnswersView(load_model(shipped.RELEASED), scores=False)
    right = {}
    for part in ("silos/client-0", "red-negative"):
        replies = replies_to([pages[number] for number in shares[part][:30]], lambda items: ask(view, items))
        right[part] = sum(reply.accuracy for reply in replies) / len(replies)
    assert right["silos/client-0"] > 0.75 and right["silos/client-0"] > right["red-negative"] + 0.15, right


def test_a_short_audit_of_some_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "PROVIDERS", 60)
    monkeypatch.setattr(shipped, "as_trained", lambda: open_issuers(60, 3.0, BlueRedPlan(clients=1), seed=0))
    asked = []
    arguments = {"seed": 1, "device": "cpu", "command": "docleak audit"}
    records = shipped.audit_shipped(
        tmp_path, **arguments, workers=2, on_progress=lambda source, done: asked.append((source, done))
    )  # fmt: skip
    assert [record["label"] for record in records] == ["public model", shipped.RELEASED] and asked
    counts = records[-1]["membership"]
    assert counts["members"] + counts["others"] == 20 and sorted(counts["attacks"]) == ["APK", "AZK"]
    assert list(records[-1]["memorisation"]["keys"]) == ["provider_name"]
    alone = shipped.audit_shipped(tmp_path / "alone", **arguments, workers=1, on_progress=lambda *_: None)
    assert records == alone, "one process and two find the same"
    section = shipped.released_section(tmp_path)
    assert section is not None and section["providers"] == 20 and (tmp_path / section["page"]).is_file()
    assert shipped.released_section(tmp_path / "nowhere") is None
    assert json.loads((tmp_path / "released" / "results.json").read_text()) == json.loads(json.dumps(records))
    assert "names" not in summary_text(records) and "Who took part" in summary_text(records)


def test_providers_are_drawn_whether_members_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "PROVIDERS", 20)
    monkeypatch.setattr(shipped, "DOCUMENTS", 3.0)
    monkeypatch.setattr(shipped, "CLIENTS", 1)
    blue_red = shipped.shipped_division(tmp_path / "data")
    chosen = draw_providers(blue_red, 7, seed=3)
    assert len(chosen) == 7 and chosen == draw_providers(blue_red, 7, seed=3) != draw_providers(blue_red, 7, seed=4)
    assert draw_providers(blue_red, 99, seed=0) == {*blue_red.members, *blue_red.outsiders}
    pages = blue_red.pages("red-negative")
    left = pages_of(pages, chosen)
    assert {page.provider for page in left} == chosen & {page.provider for page in pages}
    assert [page.name for page in left[1:]] == [page.name for page in left][1:] and pages_of(pages, None) is pages
