"""The audit of captured updates, end to end: a capture made by real local training, audited, reported, resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from docleak.attacks.gradients import Finding
from docleak.attacks.gradients.local_steps import LONGEST, UNPADDED, Batching
from docleak.documents import Page, load_pages, private_mask
from docleak.documents.folder import save
from docleak.documents.silos import MANIFEST, Silo
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocumentError, FederationError, SelfTestError
from docleak.metrics import Reading as Read
from docleak.models import load_model
from docleak.report import policy as policies
from docleak.report.measure import FIELDS
from docleak.report.page import Reading, joined
from docleak.report.policy import Policy, Rule
from docleak.report.severity import Overall, Severity, overall
from docleak.runs.run import Run
from docleak.studies.engine import Silence, carry_out
from docleak.studies.registry import report_on
from docleak.studies.updates import sight, study
from docleak.studies.updates.case import open_case
from docleak.studies.updates.check import check
from docleak.studies.updates.config import UpdatesConfig
from docleak.studies.updates.pages import told_folders
from docleak.studies.updates.reading import GIVEN, falls, read_run
from docleak.studies.updates.round import assumed
from docleak.studies.updates.sight import sight_of
from docleak.studies.updates.study import UpdatesStudy
from docleak.studies.updates.told import OF_TRANSFORMERS, batching_of, plan_of
from docleak.studies.updates.verdict import counted, name_of, part_of, sentences, severity_of
from docleak.training.federated.capture import read_updates, write_update
from docleak.training.federated.local import parameters_of, train_locally
from docleak.training.federated.local_plan import LocalPlan
from tests.small import small_donut

SEED = 7
PLAN = LocalPlan(epochs=2, batch_size=1, learning_rate=0.05, weight_decay=0.01, optimiser="sgd", dropout=False)


class FakeEngine:
    """Reads the mean grey level, which any change of a picture changes."""

    name, version = "fake", "1"

    def read(self, crops: list[Any]) -> list[Read]:
        return [Read(f"{crop.mean():.1f}", 0.5) for crop in crops]


@pytest.fixture(autouse=True)
def _fake_ocr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight, "_engine", lambda name: FakeEngine())


def capture(
    folder: Path, model: str, pages: dict[str, list[Page]], plan: LocalPlan, *, details: dict[str, Any] | None = None
) -> Path:
    """Silos on disk, a round of each, and the capture of it; ``details`` replaces what is told of the training."""
    for client, client_pages in pages.items():
        save(client_pages, folder / "silos" / client)
        trained = load_model(model)
        start = parameters_of(trained)
        read = load_pages(f"folder:{folder / 'silos' / client}", seed=0)
        done = train_locally(trained, read, plan, client=client, rng=np.random.default_rng(SEED))
        said = {"seed": SEED, "holdout": None, "privacy": None, "secure": None, "steps": done.steps, "model": model}
        told = {**asdict(plan), **said} if details is None else details
        write_update(
            folder / "updates", round=1, client=client, start=start, received=parameters_of(trained), kind="weights",
            examples=done.update.examples, details=told,
        )  # fmt: skip
    return folder / "updates"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, make_small_page: Callable[[str], Page]) -> Path:
    """A Donut of 64 x 64 pixels and a client with one page, trained on twice."""
    folder = tmp_path_factory.mktemp("small")
    small_donut().save(str(folder / "model"))
    capture(folder, str(folder / "model"), {"silo-a": [make_small_page("42")]}, PLAN)
    return folder


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients that train the shipped VT5 as docleak train does, for a few steps."""
    folder = tmp_path_factory.mktemp("words")
    plan = LocalPlan(epochs=1, batch_size=4, learning_rate=2e-3, max_steps=3, dropout=False)
    silos = {f"silo-{i}": list(make_pages(3, seed=i, size=(224, 224))) for i in range(2)}
    capture(folder, "vt5-start", silos, plan)
    return folder


class Events(Silence):
    """A watcher that keeps how far units were."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def reached(self, label: str, number: int, of: int) -> None:
        self.seen.append((label, number, of))


def config_of(folder: Path, **changes: Any) -> UpdatesConfig:
    config = UpdatesConfig(
        str(folder / "updates"), documents=str(folder / "silos"), budget=30, picture_budget=18, steps=(1, 2),
        batch_sizes=(1,),
    )  # fmt: skip
    return replace(config, **changes)


def test_budgets_that_the_draws_would_spend_are_refused_beforehand(small: Path) -> None:
    for changes in ({"budget": 17}, {"picture_budget": 17}):
        flag = "--" + next(iter(changes)).replace("_", "-")
        with pytest.raises(AttackError, match=f"expected at least: gi-dqa 18. Raise {flag}"):
            UpdatesStudy(config_of(small, **changes)).check(print)
    UpdatesStudy(config_of(small, attack="random", budget=1, picture_budget=1)).check(print)


def audited(config: UpdatesConfig, out: Path) -> Run:
    return carry_out(UpdatesStudy(config), out)


def reported(run: Run) -> tuple[Reading, str, str]:
    """What the run says, its lines for the terminal, and its page."""
    page, (said,) = report_on([run.path])
    return said, "\n".join(said.lines), page.read_text()


def verdict_on(record: dict[str, Any]) -> Overall:
    """On a single update."""
    return overall([part_of(record)], counted([record]))


def test_an_update_is_attacked_replayed_and_reported(small: Path, tmp_path: Path) -> None:
    events, units = Events(), UpdatesStudy(config_of(small)).units()
    run = carry_out(UpdatesStudy(config_of(small)), tmp_path / "out", watcher=events)
    records = {record["unit"]: record for record in run.units()}
    (update,) = [r for r in records.values() if r["kind"] == "update"]
    assert update["replay"]["distance"] == 0.0, "bit for bit"
    assert update["pictures"]["self_test"]["passed"] and update["pictures"]["explained"] > 0.5
    assert (update["pictures"]["start"], update["pictures"]["loss"]) == ("uniform", "float"), "of local steps"
    assert update["words"]["recall"] == 1.0 and update["steps"] == 2
    assert len(records) == len(units) == 3
    assert {unit for unit, *_ in events.seen} == set(records)
    assert {(unit, number) for unit, number, of in events.seen if number == of} >= {(u.id, u.size) for u in units}
    _, told, html = reported(run)
    results = json.loads((run.path / "results.json").read_text())
    assert "the same, bit for bit" in html and html.count("data:image/png") >= 3 and "<svg" in html
    assert len(results["cells"]) == 2 and results["falls"]
    assert run.info["planned"] == [{"unit": update["unit"], "round": 1, "client": "silo-a"}] and run.info["cells"] == 2
    assert (
        "ot finished" not in told
        and "Round 1, client silo-a:" in told
        and "Pictures by gi-dqa: 0 of 1 private fields" in told
    )
    assert "<dt>Private fields audited, by category</dt><dd>total</dd>" in html


def test_what_is_finished_is_not_computed_again(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(small, steps=(1,), attack="random")
    before = audited(config, tmp_path / "out").units()
    monkeypatch.setattr(UpdatesStudy, "compute", lambda *args: pytest.fail("computed again"))
    assert audited(config, tmp_path / "out").units() == before


@pytest.mark.slow
def test_worker_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    """Two clients of more steps than pictures are attacked of, and a cell; the OCR engine there is the real one."""
    plan = LocalPlan(batch_size=1, learning_rate=2e-3, max_steps=9, dropout=False)
    capture(tmp_path, "vt5-start", {f"silo-{i}": list(make_pages(2, seed=i, size=(224, 224))) for i in range(2)}, plan)
    config = config_of(tmp_path, attack="random", steps=(1,), budget=2, picture_budget=2)
    alone, events, units = audited(config, tmp_path / "alone"), Events(), UpdatesStudy(config).units()
    run = carry_out(UpdatesStudy(config), tmp_path / "run", workers=2, watcher=events)
    assert [record["unit"] for record in run.units()] == sorted(unit.id for unit in units)
    assert {(unit.id, unit.size, unit.size) for unit in units} <= set(events.seen)
    for here, there in zip(alone.units(), run.units(), strict=True):
        for name in here["images"]:
            assert np.array_equal(*(audit.read_image(here["unit"], f"{name}.png") for audit in (run, alone)))
        for record in (here, there):
            for key in ("seconds", "score", "floor", "ceiling"):
                record["pictures"].pop(key, None)
        assert there == here
    assert sum(bool(record["images"]) for record in run.units()) == 1


def test_rounds_are_trained_again_on_one_thread(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what comes out does not depend on how many workers or cores there are."""
    threads = []

    def opened(*args: Any, **options: Any) -> Any:
        threads.append(torch.get_num_threads())
        return open_case(*args, **options)

    monkeypatch.setattr(study, "open_case", opened)
    torch.set_num_threads(2)
    audited(config_of(small, attack="random", steps=(), batch_sizes=()), tmp_path / "out")
    assert threads == [1]


def test_words_come_out_of_many_steps_and_fall_little(words: Path, tmp_path: Path) -> None:
    """AdamW, three steps of four questions over three pages; the clients are told apart."""
    config = config_of(words, steps=(1,), batch_sizes=(1, 2), picture_budget=18, budget=18, clients=("silo-1",))
    run = audited(replace(config, attack="random"), tmp_path / "out")
    update, *cells = sorted(run.units(), key=lambda record: record["kind"] == "cell")
    assert update["client"] == "silo-1" and update["replay"]["distance"] == 0.0
    word_scores = update["words"]
    assert word_scores["precision"] > 0.9 and word_scores["recall"] > 0.9 and not word_scores["exact"]
    assert word_scores["places"]["x"]["precision"] == word_scores["places"]["x"]["recall"] == 1.0
    held, of = word_scores["fields"]
    assert held > 0.8 * of > 0 and word_scores["control"][0] < 0.5 * word_scores["control"][1]
    assert [cell["words"]["recall"] > 0.9 for cell in cells] == [True, True]
    assert severity_of(update) == "severe"


def test_pages_that_are_not_the_clients_stop_the_audit(words: Path, tmp_path: Path) -> None:
    other = tmp_path / "silos" / "silo-0"
    save(list(make_pages(3, seed=9, size=(224, 224))), other)
    config = config_of(words, documents=str(tmp_path / "silos"), clients=("silo-0",), steps=(1,))
    with pytest.raises(SelfTestError, match=r"silo-0: trained again from the recorded seed.*other pages"):
        audited(config, tmp_path / "out")
    with pytest.raises(SelfTestError, match="relative distance"):
        audited(config_of(words, clients=("silo-0",), local="learning_rate=1e-3", steps=(1,)), tmp_path / "out2")


def test_a_capture_of_ones_own_flower_app_says_less(
    small: Path, tmp_path: Path, make_small_page: Callable[[str], Page]
) -> None:
    """Without seed and plan: --local says how clients train, and what could not be checked is told."""
    pages = {"4711": [make_small_page("42")]}
    updates_of = capture(tmp_path, str(small / "model"), pages, PLAN, details={"lr": 0.05, "server-round": 1})
    (update,) = read_updates(updates_of)
    with pytest.raises(FederationError, match=r"does not say the client's optimiser, batch_size \(it says lr"):
        plan_of(update)
    local = "optimizer=SGD,batch_size=1,epochs=2,weight_decay=0.01,dropout=no"
    assert plan_of(update, local) == PLAN
    case = open_case(update, load_model(str(small / "model")), str(tmp_path / "silos"), local=local)
    assert case.described()["partition"] is None and name_of(case.described()) == "Round 1, client 4711"
    numbered = replace(case, update=replace(update, details={"pid": 3})).described()
    assert name_of(numbered) == "Round 1, client 4711 (partition 3)", "Flower's ids of nodes say nobody anything"
    assert case.replay.trained is None and "tells no seed" in case.replay.why
    assert case.batches == ((0,), (0,))
    config = config_of(tmp_path, model=str(small / "model"), local=local, steps=(), batch_sizes=(), attack="random")
    run = audited(config, tmp_path / "out")
    (record,) = run.units()
    assert record["pictures"]["self_test"]["passed"], "one page: the order cannot matter"
    assert "not possible: the capture tells no seed" in reported(run)[2]


def test_dropout_that_nobody_knows_is_said(small: Path, tmp_path: Path, make_small_page: Callable[[str], Page]) -> None:
    plan = replace(PLAN, dropout=True)
    capture(tmp_path, str(small / "model"), {"a": [make_small_page("42")]}, plan)
    config = config_of(tmp_path, steps=(), batch_sizes=(), attack="random")
    (record,) = audited(config, tmp_path / "out").units()
    assert record["replay"]["distance"] == 0.0, "the evaluator has the seed"
    assert not record["pictures"]["self_test"]["passed"] and "score" not in record["pictures"]
    assert record["check"]["causes"][0]["key"] == "dropout" and "self-test failed" in record["pictures"]["why"]
    assert severity_of(record) == "severe", "the words are read all the same"
    (allowed,) = audited(replace(config, allow_failed_self_test=True), tmp_path / "out2").units()
    assert "score" in allowed["pictures"]


def test_what_does_not_fit_is_said(small: Path, words: Path, tmp_path: Path) -> None:
    for changes, error, said in (
        ({"round": 3}, FederationError, "there are the rounds 1, and in round 3 the clients .none."),
        ({"clients": ("nobody",)}, FederationError, "asked for round 1, client nobody"),
        ({"model": "vt5-start"}, FederationError, "lack 68 of the .* parameters of 'vt5-start'"),
        ({"documents": str(tmp_path / "nowhere")}, DocumentError, "nowhere"),
        ({"local": "learning-rate"}, FederationError, "as key=value"),
        ({"local": "momentum=0.9"}, FederationError, "cannot be told 'momentum'; it takes epochs"),
    ):
        with pytest.raises(error, match=said):
            audited(config_of(small, **changes), tmp_path / "out")
    with pytest.raises(AttackError, match="budgets, steps and batches of at least 1"):
        config_of(small, budget=0)
    with pytest.raises(AttackError, match="unknown attack"):
        config_of(small, attack="nothing")


def test_the_assumed_order() -> None:
    plan = LocalPlan(epochs=2, batch_size=2)
    assert assumed(3, plan) == ((0, 1), (2,), (0, 1), (2,))
    assert assumed(3, replace(plan, max_steps=3)) == ((0, 1), (2,), (0, 1))


def test_how_leakage_falls_is_computed() -> None:
    def cell(steps: int, size: int, recall: float, psnr: float | None) -> dict[str, Any]:
        field = {"key": "k", "value": "v", "read": "v", "confidence": 1.0, "exact": psnr is not None and psnr > 20,
                 "fuzz": 1.0, "mse": 1.0, "psnr": psnr, "fft2d": 0.0}  # fmt: skip
        page = {"page": "p", "document": "d", "fields": [field], "mse": 1.0, "psnr": psnr, "fft2d": 0.0, "ssim": 1.0,
                "engine": "e"}  # fmt: skip
        seen = (
            {"why": ""} if psnr is None else {"given": [[]], **{key: [page] for key in ("score", "floor", "ceiling")}}
        )
        return {"steps": steps, "batch_size": size, "words": {"recall": recall}, "pictures": seen}

    lines = falls([cell(1, 1, 1.0, 30.0), cell(4, 1, 0.9, 12.0), cell(1, 2, 1.0, 25.0), cell(4, 2, 0.8, None)])
    assert lines == [
        "With more local steps (1 step of 1 page to 4 steps of 1 page): tokens told go from 100 % to 90 %; the first "
        "page's picture from 30.0 to 12.0 dB, fields read exactly from 1 of 1 to 0 of 1.",
        "With more pages in a batch (1 step of 1 page to 1 step of 2 pages): tokens told go from 100 % to 100 %; the "
        "first page's picture from 30.0 to 25.0 dB, fields read exactly from 1 of 1 to 1 of 1.",
        "With more of both (1 step of 1 page to 4 steps of 2 pages): tokens told go from 100 % to 80 %.",
    ]
    assert falls([]) == [] and falls([cell(1, 1, 1.0, 30.0)]) == []
    beyond = {**cell(1, 4, 1.0, None), "words": {"failed": "the client has 2 pages"}}
    assert lines[1] in falls([cell(1, 1, 1.0, 30.0), cell(1, 2, 1.0, 25.0), beyond]), "the largest that was measured"
    assert "nothing was measured" in falls([cell(1, 1, 1.0, 30.0), beyond])[0]


class Recorder:
    """An attack that keeps what it was given, and finds the blank template."""

    name, paper, summary = "recorder", "", ""

    def __init__(self) -> None:
        self.views: list[Any] = []

    def run(self, view: Any, knowledge: Any, **options: Any) -> Finding:
        self.views.append(view)
        return Finding(knowledge.template, 1.0, 0.0, 0, 0.0)


@pytest.mark.parametrize("batch_size", [1, 2], ids=["of the same sizes", "of other sizes"])
def test_the_attack_is_never_told_the_true_order(batch_size: int, small: Path, tmp_path: Path, pages3: Any) -> None:
    """Three pages, and the client's own order; with batches of two an epoch's last batch is smaller."""
    plan = replace(PLAN, epochs=1, batch_size=batch_size)
    capture(tmp_path, str(small / "model"), {"a": pages3}, plan)
    (update,) = read_updates(tmp_path / "updates")
    case = open_case(update, load_model(str(small / "model")), str(tmp_path / "silos"))
    true, steps = assumed(3, plan), [tuple(batch) for batch in case.batches]
    order = (2, 0, 1)
    shuffled = tuple(tuple(order[i] for i in batch) for batch in reversed(true))
    for batches in (case.batches, shuffled):
        attack, other = Recorder(), replace(case, batches=batches)
        sight_of(
            other, attack, {"self_test": None}, budget=1, seed=0, ocr="", allow_failed=True, report=lambda number: None
        )  # fmt: skip
        assert steps != list(true) and attack.views[0].local.batches == true


def test_of_a_clients_pages_only_those_it_trained_on_are_imitated(small: Path, tmp_path: Path, pages3: Any) -> None:
    """One step on the second of three pages: its pixels count, not the first page's."""
    capture(tmp_path, str(small / "model"), {"a": pages3}, replace(PLAN, epochs=1, max_steps=1))
    (update,) = read_updates(tmp_path / "updates")
    case = open_case(update, load_model(str(small / "model")), str(tmp_path / "silos"))
    assert case.batches != ((0,),) and [page.name for page in case.round.truth.pages] != ["small-42"]
    checks = check(case, {"failed": "not asked"}, dict)
    assert checks["self_test"]["passed"] and not checks["doubts"]


@pytest.fixture
def pages3(make_small_page: Callable[[str], Page]) -> list[Page]:
    return [make_small_page(value) for value in ("42", "17", "83")]


def words_with(**changes: Any) -> dict[str, Any]:
    """Words of which nothing was read, as a unit's record holds them."""
    words = {"exact": True, "tokens": 400, "true": 30, "found": 0, "right": 0, "precision": None, "recall": 0.0,
             "places": {}, "fields": [0, 6], "control": [0, 36], "control_missed": [0.3, 0.2]}  # fmt: skip
    return {**words, **changes}


def record_of(words: dict[str, Any], *doubts: str) -> dict[str, Any]:
    return {"round": 1, "client": "a", "words": words, "pictures": {"why": "nothing"}, "check": {"doubts": doubts}}


@pytest.mark.parametrize(
    ("words", "doubts", "severity"),
    [
        (words_with(), (), Severity.UNTOLD),
        (words_with(), ("The self-test failed.",), Severity.UNTOLD),
        ({"failed": "no table"}, (), Severity.UNMEASURED),
        ({"failed": "no table"}, ("The self-test failed.",), Severity.UNTOLD),
        (words_with(found=30, right=30, precision=1.0, recall=1.0, fields=[6, 6]), ("failed",), Severity.SEVERE),
        (words_with(found=30, right=26, precision=0.87, recall=0.87, fields=[1, 6]), ("failed",), Severity.UNTOLD),
        (words_with(found=30, right=30, precision=1.0, recall=1.0, fields=[1, 6]), (), Severity.SEVERE),
        (words_with(found=400, right=30, precision=0.07, recall=1.0, fields=[6, 6], control=[36, 36]), ("x",),
         Severity.UNTOLD),
        (words_with(found=60, right=30, precision=0.5, recall=1.0, fields=[5, 6]), (), Severity.PARTIAL),
        (words_with(found=36, right=27, precision=0.75, recall=0.9, fields=[1, 6]), (), Severity.PARTIAL),
        (words_with(found=8, right=5, precision=0.63, recall=0.17), (), Severity.UNTOLD),
        (words_with(found=30, right=30, precision=1.0, recall=1.0, fields=[0, 0]), ("failed",), Severity.SEVERE),
        (words_with(found=30, right=26, precision=0.87, recall=0.87, fields=[0, 0]), ("failed",), Severity.UNTOLD),
        # of hundreds of questions other pages' tokens are these pages', too: 3 of 10 to 10 of 10 were "severe"
        (words_with(true=100, found=100, right=98, precision=0.98, recall=0.98, fields=[0, 0],
                    control_missed=[0.01, 0.05]), ("failed",), Severity.UNTOLD),
    ],
)  # fmt: skip
def test_no_all_clear_with_a_doubt_but_what_chance_cannot_explain_is_a_leak(
    words: dict[str, Any], doubts: tuple[str, ...], severity: Severity
) -> None:
    record = record_of(words, *doubts)
    assert severity_of(record) is severity
    text = "\n".join(sentences(record))
    assert ("cannot be called unread" in text) == (severity is Severity.UNTOLD)


def test_words_that_an_older_docleak_held_against_fewer_questions_are_to_be_audited_again() -> None:
    """All words, "severe" before, were "could not tell" without a word why."""
    words = words_with(found=30, right=30, precision=1.0, recall=1.0, fields=[0, 0])
    older = {key: value for key, value in words.items() if key != "control_missed"}
    assert severity_of(record_of(older, "failed")) is Severity.UNTOLD
    assert "audit the update again to tell." in " ".join(sentences(record_of(older, "failed")))
    assert not [one for one in (record_of(older), record_of(words, "failed")) if "again" in " ".join(sentences(one))]


def pictured(score: str, floor: str = "", ceiling: str = "", given: tuple[str, ...] = ()) -> dict[str, Any]:
    """A page of one field per letter, as read by OCR: x exact, n nearly, . not; the truth is legible by default."""

    def page(marks: str) -> dict[str, Any]:
        fields = [{"key": f"k{i}", "value": f"v{i}", "read": "", "confidence": 1.0, "exact": said == "x",
                   "fuzz": {"x": 1.0, "n": 0.9}.get(said, 0.0), "mse": 1.0, "psnr": 9.0, "fft2d": 0.0}
                  for i, said in enumerate(marks)]  # fmt: skip
        return {"page": "p", "document": "d", "fields": fields, "mse": 1.0, "psnr": 9.0, "fft2d": 0.0, "ssim": 1.0,
                "engine": "e"}  # fmt: skip

    size = len(score)
    return {"why": "", "route": "gi-dqa", "self_test": None, "given": [list(given)], "score": [page(score)],
            "floor": [page(floor or "." * size)], "ceiling": [page(ceiling or "x" * size)]}  # fmt: skip


@pytest.mark.parametrize(
    ("pictures", "severity", "read"),
    [
        (pictured("...."), Severity.NONE, 0),
        (pictured("....", ceiling="x..."), Severity.UNTOLD, 0),
        (pictured("x..."), Severity.PARTIAL, 1),
        (pictured("xx.."), Severity.SEVERE, 2),
        (pictured("n..."), Severity.PARTIAL, 0),
        (pictured("xx..", floor="xx.."), Severity.NONE, 0),
        (pictured("x...", given=("v0",)), Severity.NONE, 0),
        (pictured("x...", given=("v1",)), Severity.PARTIAL, 1),
    ],
)
def test_pictures_are_judged_as_those_of_a_gradient(pictures: dict[str, Any], severity: Severity, read: int) -> None:
    record = {**record_of(words_with()), "pictures": pictures}
    assert severity_of(record) is severity
    verdict = verdict_on(record)
    assert verdict.severity is severity and f"{read} of 4 private fields are read from pictures" in verdict.headline
    untried = {**record, "words": {"failed": "no table"}}
    exact = sum(field["exact"] for field in pictures["score"][0]["fields"])
    assert f"{exact} of 4 private fields read exactly" in part_of(untried).sentence, "why it is so bad"
    assert severity_of(untried) is (Severity.UNTOLD if severity is Severity.NONE else severity)


def test_a_picture_drawn_at_random_is_no_attack_and_no_all_clear() -> None:
    """``--attack random`` gave "no field read"."""
    record = {**record_of(words_with()), "pictures": {**pictured("...."), "route": "random"}}
    assert severity_of(record) is Severity.UNTOLD
    assert "cannot be called unread" in "\n".join(sentences(record))


def test_what_was_not_tried_is_no_all_clear_and_the_headline_is_never_empty() -> None:
    """A Donut, which reads no words of the page, and whose pictures nobody attacked: nothing was counted."""
    record = record_of(words_with(fields=[0, 0], control=[0, 0]))
    verdict = verdict_on(record)
    assert verdict.severity is Severity.UNTOLD and verdict.headline == "No private field was counted by any route."
    total = {**record, "sum": True}
    assert severity_of(total) is Severity.UNTOLD
    assert "cannot be called unread" in "\n".join(sentences(total))


def test_a_failed_self_test_of_the_pictures_is_no_all_clear() -> None:
    failed = {**record_of(words_with()), "pictures": {**pictured("...."), "self_test": {"passed": False}}}
    assert severity_of(failed) is Severity.UNTOLD and "The self-test failed" in "\n".join(sentences(failed))
    assert "The self-test failed" in part_of(failed).sentence


def fields_doubted(run: Run) -> tuple[str, ...]:
    return read_run(run).measures[0].doubts


def test_an_interrupted_audit_is_no_all_clear_of_the_whole(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "run", {"updates": "captured"}, kind="updates")
    record = {**record_of(words_with()), "pictures": pictured("...."), "kind": "update",
              "check": {"doubts": [], "causes": [], "self_test": None}}  # fmt: skip
    described = {"sent": "weights", "examples": 1, "pages": 1, "steps": 1, "dropout": False,
                 "plan": asdict(PLAN), "replay": {"distance": 0.0, "why": ""}}  # fmt: skip
    run.write_unit("a", {**record, **described}, {})
    planned = [{"unit": client, "round": 1, "client": client} for client in "ab"]
    run.write_info("planned", planned[:1])
    assert joined([read_run(run)]).severity == "none" and not fields_doubted(run)
    run.write_info("planned", planned)
    run.write_info("cells", 3)
    said, text, page = reported(run)
    verdict = joined([said])
    assert verdict.severity == "unmeasured" and "1 of 2 parts: Round 1, client b." in verdict.sentence
    missing = "1 of 2 updates, 0 of 3 cells of the table of steps and batches"
    assert f"The run is not finished: {missing}." in verdict.sentence and f"(not finished: {missing})" in page
    assert fields_doubted(run) == ("The run is not finished: 1 of 2 updates.",)
    for shown in (text, page):
        assert "Not finished: Round 1, client b." in shown and "3 of 3 cells are not finished" in shown


@pytest.mark.parametrize(("confirmed", "said"), [(True, "inferred from it"), (False, "assumed, the self-test")])
def test_how_a_client_trained_is_no_fact_where_nobody_said_it(tmp_path: Path, confirmed: bool, said: str) -> None:
    run = run_of(tmp_path, "a")
    run.write_unit("a", {**run.record("a"), "inferred": {"values": {}, "confirmed": confirmed, "sentence": ""}}, {})
    assert said in reported(run)[2]


def test_what_a_set_of_tokens_holds_by_chance_is_said_beside_what_is_read(tmp_path: Path) -> None:
    told = words_with(found=30, right=30, precision=1.0, recall=1.0, fields=[6, 6], control=[17, 36])
    run = run_of(tmp_path, "a")
    said = counted([{**run.record("a"), "words": told}])
    assert "read, without order (of 36 fields of made-up pages that nobody has, 17)" in said


def test_fields_whose_tokens_are_read_without_order_are_not_said_to_be_read_as_values(tmp_path: Path) -> None:
    told = words_with(found=30, right=30, precision=1.0, recall=1.0, fields=[6, 6])
    for pictures, given in (("....", "no value was given as such"), ("x...", "1 was read from pictures")):
        run = run_of(tmp_path / pictures, "a")
        run.write_unit("a", {**run.record("a"), "words": told, "pictures": pictured(pictures)}, {})
        said, _, page = reported(run)
        counted = f"all tokens of 6 of 6 fields are in the set of tokens read, without order; {given}."
        assert f"Private fields read, all clients: {counted}" in page
        assert "All tokens of 6 of 6 private fields are in the set of tokens read, without order;" in said.counted
        for bound in (0.5, 0.0):
            policy = Policy(rule=(Rule(measure=FIELDS, at_most=bound),))
            (held,) = policies.check(policy, said.measures, verdict_on(run.record("a")))
            assert held.outcome == "finding" and counted.rstrip(".") in held.why and "were read on" not in held.why


def test_tokens_that_are_read_of_a_model_without_words_are_said_and_bound_no_fields(tmp_path: Path) -> None:
    """Of a Pix2Struct all answers were read, and the verdict was "severe leak: 0 of 4 private fields are read from
    pictures"; a policy on fields passed."""
    told = words_with(found=14, right=14, true=14, precision=1.0, recall=1.0, fields=[0, 0], control=[0, 0])
    names = "abcdefghijklmnopqrst"
    run = run_of(tmp_path, names)
    for name in names:
        run.write_unit(name, {**run.record(name), "words": told, "pictures": pictured("....")}, {})
    said = read_run(run)
    assert said.parts[0].severity is Severity.SEVERE
    assert "280 of 280 different tokens that were trained on are read, without order" in said.counted
    (held,) = policies.check(Policy(rule=(Rule(measure=FIELDS, at_most=0.5),)), said.measures, joined([said]))
    assert held.outcome == "could not tell" and "which fields they make up is not counted" in held.why
    nothing = run_of(tmp_path / "nothing", "a")
    nothing.write_unit("a", {**nothing.record("a"), "words": words_with(fields=[0, 0], control=[0, 0])}, {})
    assert "tokens" not in read_run(nothing).counted


def test_fields_of_words_and_of_pictures_may_be_different_ones(tmp_path: Path) -> None:
    """Half of the clients gave two of four fields by words and one by pictures: three, if it is none of the two."""
    names = "abcdefghijklmnopqrst"
    run, told = (
        run_of(tmp_path / "run", names),
        words_with(found=30, right=30, precision=1.0, recall=1.0, fields=[2, 4]),
    )
    for number, name in enumerate(names):
        words = told if number % 2 else {**told, "fields": [0, 4]}
        run.write_unit(name, {**run.record(name), "words": words, "pictures": pictured("x...")}, {})
    said = read_run(run)
    (measure,) = said.measures
    note = "Words and pictures may have given different fields: both together 50.0% [37.5%, 62.5%] at most."
    assert (measure.estimate.value, measure.doubts) == (0.375, (note,))
    for bound, outcome in ((0.3, "finding"), (0.45, "could not tell"), (0.55, "could not tell"), (0.65, "pass")):
        (held,) = policies.check(Policy(rule=(Rule(measure=FIELDS, at_most=bound),)), said.measures, joined([said]))
        assert held.outcome == outcome, held.why
        assert (note in held.why) == (outcome == "could not tell")
    left = run_of(tmp_path / "left", "a")
    left.write_unit("a", {**left.record("a"), "words": {**told, "unwritten": 8}, "pictures": pictured("....")}, {})
    (doubt,) = read_run(left).measures[0].doubts
    assert doubt.endswith(": 8 private fields hold what the vocabulary cannot write: they are not counted."), doubt
    few = run_of(tmp_path / "few", "a")
    few.write_unit("a", {**few.record("a"), "words": told, "pictures": pictured("x...")}, {})
    said = read_run(few)
    assert said.measures[0].doubts == (
        "Words and pictures may have given different fields: both together 75.0% at most.",
    )
    (held,) = policies.check(Policy(rule=(Rule(measure=FIELDS, at_most=1),)), said.measures, joined([said]))
    assert held.outcome == "pass", "no more can be"
    run.write_unit("b", {**run.record("b"), "check": {"doubts": ["So."], "causes": [], "self_test": None}}, {})
    (held,) = policies.check(Policy(rule=(Rule(measure=FIELDS, at_most=0.65),)), read_run(run).measures, joined([said]))
    assert held.outcome == "could not tell" and "So." in held.why, "other doubts stay"


def test_what_the_attack_on_pictures_was_given_is_not_said_to_be_the_servers(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "a")
    words, given = "words attacked with nothing that the server does not have", "questions and answers and, where"
    said = read_run(run)
    assert f"{words}; pictures with the blank templates" in said.lead and given in said.lead
    assert f"for pictures: {GIVEN}, as" in report_on([run.path])[0].read_text().replace("&#39;", "'")
    run.write_unit("a", {**run.record("a"), "pictures": {"why": "nothing"}}, {})
    assert read_run(run).lead.endswith(f"{words}.")


def run_of(path: Path, names: str, **config: Any) -> Run:
    """A finished audit of these clients' updates, without the table of steps and batches."""
    run = Run.open(path, {"updates": "my captured", "documents": "my pages", **config}, kind="updates")
    described = {"sent": "weights", "examples": 1, "pages": 1, "steps": 1, "dropout": False,
                 "plan": asdict(PLAN), "replay": {"distance": 0.0, "why": ""}}  # fmt: skip
    for client in names:
        record = {**record_of(words_with()), "pictures": pictured("...."), "kind": "update", "client": client,
                  "check": {"doubts": [], "causes": [], "self_test": None}}  # fmt: skip
        run.write_unit(client, {**record, **described}, {})
    run.write_info("planned", [{"unit": client, "round": 1, "client": client} for client in names])
    return run


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"clients": ["a=pages of a"]}, "'my captured' --documents 'my pages' --client 'a=pages of a' --steps"),
        (
            {"round": 2, "model": "vt5-start"},
            "'my captured' --documents 'my pages' --model vt5-start --round 2 --steps",
        ),
        ({"updates": "", "before": "w0", "after": "w1"}, "--before w0 --after w1 --documents 'my pages' --steps"),
    ],
)
def test_the_command_that_measures_steps_and_batches_is_of_these_updates(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    scope = read_run(run_of(tmp_path / "run", "a", **config)).scope
    assert scope is not None and scope.remedy == f"docleak audit updates {said} 1,4,16 --batch-sizes 1,4"


def test_where_updates_are_masked_no_table_is_offered_that_would_be_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "a")
    run.write_unit("a", {**run.record("a"), "masked": {"failed": "no seed"}}, {})
    scope = read_run(run).scope
    assert scope is not None and not scope.remedy


def test_pages_of_silos_that_were_made_up_are_not_called_confidential(words: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(words, tmp_path / "copy"))
    assert "source" not in UpdatesStudy(config_of(folder)).facts()  # nothing says whose they are
    for number, source in ((0, "synthetic"), (1, "sroie"), (1, "synthetic")):
        silo = Silo(f"silo-{number}", source, 3, 3, 3, (), 0, "providers", 2, 0)
        (folder / "silos" / silo.name / MANIFEST).write_text(json.dumps(asdict(silo)))
        clients = [UpdatesStudy(config_of(folder, clients=(name,))).facts() for name in ("silo-0", "silo-1")]
        assert ["source" in facts for facts in clients] == [True, number == 1 and source == "synthetic"]
        assert ("source" in UpdatesStudy(config_of(folder)).facts()) is ("source" in clients[1])
    run = run_of(tmp_path / "run", "a")
    assert not read_run(run).synthetic
    run.write_info("source", "synthetic")
    assert read_run(run).synthetic
    elsewhere = f"silo-0={tmp_path / 'mine'}"
    assert "source" not in UpdatesStudy(config_of(folder, clients=(elsewhere,))).facts()


def test_a_clients_name_with_an_equals_sign_is_not_cut() -> None:
    known = ("a", "a=b", "c")
    assert told_folders(("a=b",), known) == {"a=b": ""}
    assert told_folders(("a=b=pages", "a=pages", "c"), known) == {"a=b": "pages", "a": "pages", "c": ""}
    assert told_folders(("x=y=z", "y"), known) == {"x": "y=z", "y": ""}
    for text in ("a=b=", "=pages", "a=", ""):
        with pytest.raises(FederationError, match="expected ID, or ID=FOLDER"):
            told_folders((text,), known)


def test_whose_updates_were_measured_and_how_many(tmp_path: Path) -> None:
    one, two = read_run(run_of(tmp_path / "1", "a")), read_run(run_of(tmp_path / "2", "ab"))
    assert one.scope is not None and one.scope.material == "1 update as the server received it"
    assert two.scope is not None and two.scope.material == "2 updates as the server received them"
    assert two.measures[0].of == "all clients"
    assert read_run(run_of(tmp_path / "3", "a", clients=["a=pages of a"])).measures[0].of == "client a"
    assert read_run(run_of(tmp_path / "4", "ab", clients=["a", "b"])).measures[0].of == "clients a, b"
    seen = {*one.measures[0].by, *read_run(run_of(tmp_path / "6", "a", seed=1)).measures[0].by}
    assert len(seen) == 1
    other = run_of(tmp_path / "7", "a")
    other.write_unit("a", {**other.record("a"), "examples": 9}, {})
    assert len(seen | set(read_run(other).measures[0].by)) == 2, "a client of one name with other pages is another"
    half = run_of(tmp_path / "5", "ab")
    (half.folder("b") / "unit.json").unlink()
    assert read_run(half).measures[0].of == "client a", "of the other nothing is known"


def test_a_number_of_examples_unlike_the_pages_is_an_alarm(
    small: Path, tmp_path: Path, make_small_page: Callable[[str], Page]
) -> None:
    capture(tmp_path, str(small / "model"), {"a": [make_small_page("42")]}, PLAN)
    record = json.loads((tmp_path / "updates" / "round-0001" / "a.json").read_text())
    (tmp_path / "updates" / "round-0001" / "a.json").write_text(json.dumps({**record, "examples": 26}))
    (update,) = read_updates(tmp_path / "updates")
    case = open_case(update, load_model(str(small / "model")), str(tmp_path / "silos"))
    (doubt,) = check(case, {"failed": "not asked"}, dict)["doubts"]
    assert doubt.startswith("The client reported 26 examples, and these pages have 1 (on 1 page)")


def test_adam_without_decay_is_adamw_without_decay(small: Path) -> None:
    (update,) = read_updates(small / "updates")
    plan = plan_of(update, "optimiser=Adam,weight_decay=0")
    assert (plan.optimiser, plan.weight_decay) == ("adamw", 0.0)
    with pytest.raises(FederationError, match=r"adam with weight_decay 0.01.*Say adamw"):
        plan_of(update, "optimiser=adam")


def test_how_a_batchs_loss_is_made_is_told_or_that_of_transformers(small: Path) -> None:
    model = load_model("layoutlmv3-start")
    assert batching_of("", model, OF_TRANSFORMERS) == Batching(LONGEST, "tokens")
    assert batching_of("padding=max_length,mean=examples", model, OF_TRANSFORMERS) == Batching(256, "examples")
    assert batching_of("padding=none", model, OF_TRANSFORMERS).padding == UNPADDED
    assert batching_of("", model, OF_TRANSFORMERS, {"labels": "turn"}).labels == "turn"
    for wrong in ("padding=left", "mean=sum", "padding=-7", "labels=some"):
        with pytest.raises(FederationError, match="expected padding longest, max_length, none or a number"):
            batching_of(wrong, model, Batching())


def test_who_sent_nothing_in_this_round_is_told(
    small: Path, tmp_path: Path, make_small_page: Callable[[str], Page]
) -> None:
    capture(tmp_path, str(small / "model"), {"a": [make_small_page("42")]}, PLAN)
    start = parameters_of(load_model(str(small / "model")))
    moved = {name: value + 1 for name, value in start.items()}
    write_update(tmp_path / "updates", round=2, client="b", start=start, received=moved, kind="weights", examples=1,
                 details={})  # fmt: skip
    config = config_of(tmp_path, steps=(), batch_sizes=(), attack="random")
    run = audited(config, tmp_path / "out")
    assert "Nothing came in this round from b, who sent in another round." in reported(run)[1]
    assert "Nothing came in this round from b" in reported(run)[2]


def test_closed_form_is_tried_by_itself_where_it_applies(tmp_path: Path) -> None:
    """One LayoutLMv3 step of SGD on one question; by its own measure it beats an attack that finds nothing."""
    page = make_pages(1, seed=3, size=(224, 224))[0]
    page = replace(page, questions=page.questions[:1])
    plan = LocalPlan(batch_size=1, learning_rate=0.05, weight_decay=0.01, optimiser="sgd", dropout=False)
    capture(tmp_path, "layoutlmv3-start", {"a": [page]}, plan)
    (update,) = read_updates(tmp_path / "updates")
    case = open_case(update, load_model("layoutlmv3-start"), str(tmp_path / "silos"))
    record, images = sight_of(case, Recorder(), check(case, {"failed": ""}, dict), budget=1, seed=0, ocr="",
                              allow_failed=False, report=lambda number: None)  # fmt: skip
    assert record["route"] == "closed-form" and record["explained"] > 0.5
    private = private_mask(case.round.truth.fitted[0])
    wrong = (images["reconstruction"].astype(float) - images["truth"])[private] / 255
    assert -10 * np.log10(np.square(wrong).mean()) > 40
