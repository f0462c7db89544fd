"""What is read of an update that does not fit its pages, held against what chance reads of pages of their kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from docleak.documents import Page, load_pages
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.report.severity import Severity, chance_of_many
from docleak.studies.updates import study, words
from docleak.studies.updates.config import UpdatesConfig
from docleak.studies.updates.study import UpdatesStudy
from docleak.studies.updates.verdict import (
    NONE_BESIDE,
    OLDER,
    fields_measured,
    p_value_of_fields,
    part_of,
    sentences,
    severity_of,
)
from docleak.studies.updates.words import alike, words_of
from docleak.training.federated.local_plan import LocalPlan
from tests.studies.updates.test_updates import capture, pictured, record_of, words_with

FIELDS = 6
PLAN = LocalPlan(epochs=1, batch_size=2, learning_rate=2e-3, max_steps=3, dropout=False)


def told(client: Any, others: Any) -> dict[str, Any]:
    """A record of a bag of which little is right: of each page, how many of its FIELDS are told."""
    pages = {"client": [[int(n), FIELDS] for n in client], "pages": [[int(n), FIELDS] for n in others]}
    (mine, of), (held, among) = (np.sum(pages[key], axis=0).tolist() for key in ("client", "pages"))
    bag = words_with(found=400, right=9, precision=0.02, recall=0.3, fields=[mine, of], control=[held, among],
                     control_missed=[0.3] * 12)  # fmt: skip
    return record_of({**bag, "beside": {"whose": "others", **pages}}, "failed")


def test_fields_of_one_page_are_one_draw() -> None:
    """Pages read wholly or not, all alike: Fisher's test over fields called 16 % of such a leak."""
    rng = np.random.default_rng(0)
    worlds = [told(FIELDS * (rng.random(4) < 0.3), FIELDS * (rng.random(24) < 0.3)) for _ in range(200)]
    assert np.mean([severity_of(world) is not Severity.UNTOLD for world in worlds]) <= 0.05


def test_all_fields_of_the_pages_and_few_of_others_are_a_leak() -> None:
    assert severity_of(told([FIELDS], [1] * 24)) is Severity.PARTIAL
    assert severity_of(told([FIELDS] * 3, [0] * 12)) is Severity.PARTIAL
    assert severity_of(told([FIELDS], [FIELDS, *[1] * 23])) is Severity.UNTOLD, "another page is read as wholly"


def test_a_report_of_many_clients_says_how_many_leaks_chance_makes_of_them() -> None:
    """Twenty clients that tell nothing of their own: most such reports said that some leak, and not how many would."""
    rng, leaks, unsaid = np.random.default_rng(0), 0, 0
    for _ in range(12):
        rates = FIELDS * rng.random((20, 23))
        parts = [part_of(told(one[:3], one[3:])) for one in rates.round()]
        leaking = sum(part.severity is Severity.PARTIAL for part in parts)
        leaks += leaking > 0
        unsaid += (chance := chance_of_many(parts)) == "" and leaking > 0
        assert not chance or f"({leaking} here)" in chance
    assert leaks >= 4 and unsaid <= 1, "three of twenty are left to chance, too"
    sure = [part_of(told([FIELDS] * 3, [0] * 20)) for _ in range(8)] + [
        part_of(told([1], [1, 0, 2])) for _ in range(12)
    ]
    assert chance_of_many(sure) == "", "chance does not make eight of twenty"
    whole = record_of(words_with(found=30, right=30, precision=1.0, recall=1.0, fields=[6, 6]))
    assert part_of(whole).severity is Severity.SEVERE and part_of(whole).chance == 0.0, "no test decides that"
    assert part_of(record_of(words_with())).chance == 0.0


def test_fewer_tokens_lacked_than_of_twelve_sets_of_made_up_pages_is_no_test_at_one_in_twenty() -> None:
    """Of thirteen alike one lacks the fewest: "at most 5 %" was said of it."""
    bag = words_with(found=30, right=29, precision=0.96, recall=0.96, control_missed=[0.3] * 12)
    by_tokens = part_of(record_of(bag, "failed"))
    assert by_tokens.severity is Severity.SEVERE and by_tokens.chance == pytest.approx(1 / 13)
    either = {**bag, "beside": {"whose": "others", "client": [[1, 6]], "pages": [[1, 6]] * 19}}
    assert part_of(record_of(either, "failed")).chance == pytest.approx(0.05 + 1 / 13)
    assert "at most 13 %: if nothing leaked, that would be 2.5 of 20 on average" in chance_of_many(
        [part_of(record_of(either, "failed"))] * 2 + [part_of(told([1] * 3, [1] * 20))] * 18
    )


@pytest.mark.parametrize(
    ("client", "others", "chance"),
    [
        ([], [[1, 6]], 1.0),
        ([[6, 6]], [], 1.0),
        ([[0, 0]], [[1, 6]], 1.0),
        ([[6, 6]], [[6, 6]], 1.0),
        ([[6, 6]], [[1, 6]] * 19, 1 / 20),
        ([[6, 6]] * 3, [[0, 6]] * 3, 1 / 20),
        ([[6, 6]] * 30, [[0, 6]] * 12, 1 / 10_000),
    ],
)
def test_permutations_of_pages(client: Any, others: Any, chance: float) -> None:
    assert p_value_of_fields({"client": client, "pages": others}) == pytest.approx(chance)


def trained_on_others(data: Path, folder: Path, kind: str, *, beside: bool) -> dict[str, Any]:
    """The record of a client whose update is of eight other pages of its kind than are said to be its own."""
    there = [page for page in load_pages(str(data / kind), count=60, seed=3) if page.private_fields and page.questions]
    drawn = np.random.default_rng(2).permutation(len(there))[:40]  # pages of one form follow one another
    pages = [replace(there[number], questions=there[number].questions[:1]) for number in drawn]
    capture(folder, "vt5-start", {"a": pages[:8]}, PLAN)
    (folder / "silos" / "a").rename(folder / "trained")
    save(pages[8:16], folder / "silos" / "a")
    if beside:
        capture(folder, "vt5-start", {"b": pages[16:40]}, PLAN)
    config = UpdatesConfig(str(folder / "updates"), documents=str(folder / "silos"), clients=("a",))
    audit = UpdatesStudy(config)
    case = audit.case(audit.chosen[0])
    return record_of(words_of(case, beside=lambda: audit.pages_beside(case)), "failed")


@pytest.mark.parametrize(("kind", "beside"), [("funsd", True), ("sroie", False)])
def test_tokens_of_other_pages_of_the_kind_are_no_leak(
    shared_data: Path, tmp_path: Path, kind: str, beside: bool
) -> None:
    """Common words of forms are read of any form, and of no made-up invoice: a leak in 74 to 100 % of draws."""
    record = trained_on_others(shared_data, tmp_path, kind, beside=beside)
    assert record["words"]["found"] and severity_of(record) is Severity.UNTOLD
    lines = "\n".join(sentences(record))
    assert (NONE_BESIDE in lines) != beside
    assert (" of those of 24 pages of others, " in lines) == beside


def held_against(monkeypatch: pytest.MonkeyPatch, pages: list[Page], *others: list[Page]) -> dict[str, Any]:
    """What the pages are held against, where all of the 9 fields of every page are told."""
    monkeypatch.setattr(words, "_covered", lambda model, bag, pages: [[9, 9, 0] for _ in pages])
    covered = [[9, 9, 0] for _ in pages]
    return words._beside(cast(Any, None), cast(Any, None), pages, covered, lambda: others)


def test_pages_of_another_kind_say_nothing_of_chance(monkeypatch: pytest.MonkeyPatch, shared_data: Path) -> None:
    """Forms against receipts of another client: a leak in 7 of 10 draws, one of them "severe"."""
    forms, receipts = (load_pages(str(shared_data / kind), count=40, seed=3) for kind in ("funsd", "sroie"))
    assert held_against(monkeypatch, [*forms[:8]], [*receipts[:20]])["whose"] == ""
    beside = held_against(monkeypatch, [*forms[:8]], [*receipts[:20]], [*forms[8:32]])
    assert beside["whose"] == "others" and len(beside["pages"]) == 24


def test_a_page_counts_once_and_by_what_it_says(monkeypatch: pytest.MonkeyPatch, shared_data: Path) -> None:
    """Folders of clients call other pages alike, and a page that is there twice is read twice."""
    forms = load_pages(str(shared_data / "sroie"), count=40, seed=3)
    mine = [replace(page, name=str(number)) for number, page in enumerate(forms[:8])]
    others = [replace(page, name=str(number)) for number, page in enumerate(forms[8:20])]
    again = [replace(page, name=f"{page.name} again") for page in (*mine, *others)]
    beside = held_against(monkeypatch, mine, others)
    assert (len(beside["client"]), len(beside["pages"])) == (8, 12)
    assert held_against(monkeypatch, [*mine, *again[:8]], [*others, *again]) == beside


def test_pages_of_another_client_that_cannot_be_read_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a silo keeps of a broken folder, or one that keeps all of it, ended the audit of another."""
    pages = list(make_pages(4, seed=3))
    capture(tmp_path, "vt5-start", {"a": pages[:2], "b": pages[2:]}, PLAN)
    audit = UpdatesStudy(UpdatesConfig(str(tmp_path / "updates"), documents=str(tmp_path / "silos"), clients=("a",)))
    case = audit.case(audit.chosen[0])
    monkeypatch.setattr(study, "federation_of", lambda update: None)
    monkeypatch.setattr(study, "kept_of", lambda *of: load_pages(str(tmp_path / "silos" / "b"), seed=0))
    (tmp_path / "silos" / "b" / "pages.jsonl").write_text("{")
    assert not [*audit.pages_beside(case)]


def test_made_up_pages_are_of_their_kind_and_real_ones_are_not(shared_data: Path) -> None:
    def single(pages: list[Page]) -> list[bool]:
        return [alike([page]) for page in pages]

    assert all(single(list(make_pages(20, seed=4))))
    for kind in ("sroie", "vrdu_pfl", "funsd", "wtq"):
        assert not alike(load_pages(str(shared_data / kind), count=8, seed=1))


@pytest.mark.parametrize(
    ("beside", "doubt"),
    [
        ({}, OLDER),
        ({"beside": {"whose": "", "client": [[30, 30]], "pages": []}}, NONE_BESIDE),
        ({"beside": {"whose": "others", "client": [[30, 30]], "pages": [[3, 30]] * 4}}, "not set apart from chance"),
    ],
)
def test_fields_that_chance_may_explain_are_not_measured_as_unread(beside: dict[str, Any], doubt: str) -> None:
    """All checks passed, and most tokens are read: a share of 0 let a policy on fields pass."""
    bag = words_with(true=83, found=100, right=75, precision=0.75, recall=0.9, fields=[30, 30], **beside)
    record = {**record_of(bag), "pictures": pictured("....")}
    (measure,) = fields_measured([record], "a")
    assert severity_of(record) is Severity.PARTIAL and measure.estimate.value == 0
    assert doubt in " ".join(measure.doubts)
