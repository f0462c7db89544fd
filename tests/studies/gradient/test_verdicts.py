"""A hostile reader: what was read is computed here from the units' records, and every place must state the same."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from docleak.errors import RunError
from docleak.metrics import Estimate
from docleak.metrics.score import FieldScore
from docleak.report.card import model_card
from docleak.report.measure import EXPLAINED, MEASURES, Measure
from docleak.report.page import joined
from docleak.report.policy import Policy, Rule, check
from docleak.report.severity import Cell, Route, Severity, judge
from docleak.runs.run import Run
from docleak.studies.gradient.choices import Choice, _dominating, effects, said_of
from docleak.studies.gradient.measures import measures_of
from docleak.studies.gradient.reading import table_of
from docleak.studies.gradient.results import prepare
from docleak.studies.gradient.utility import Utility
from docleak.studies.identity import model_key
from docleak.studies.registry import read_runs, report_on
from tests.studies.gradient.telling import summary_text, verdict_json, write_markdown, write_report

MakeRun = Callable[..., Run]
TEXT = {"exact": True, "believed_exact": True, "tokens": 9, "tokens_right": 9, "wrong_parts": [], "conditions": [],
        "seconds": 0.2, "question": "Who?", "answer": "A-1", "words": []}  # fmt: skip


def read_by_hand(run: Run, model: str) -> tuple[set[tuple[str, int]], int]:
    """(page, number of the field) of every value that any route gave, and how many fields could be counted."""
    read, counted = set(), set()
    for unit in (unit for unit in run.units() if unit["model"] == model):
        for i, field in enumerate(unit["score"]["fields"]):
            here = (unit["page"], i)
            alone = unit["attack"] == "closed-form" and not unit["finding"]["evaluations"]
            told = unit["view"].get("answer_known") and field["value"] == unit["answer"] and not alone
            if unit["attack"] != "random" and field["exact"] is not None:
                counted.add(here)
                if field["exact"] and not unit["floor"]["fields"][i]["exact"] and not told:
                    read.add(here)
            for name, route in ((unit["recovered"] or {}).get("fields_by") or {}).items():
                seen = name != "words" or route[i] or unit["recovered"].get("fields_seen", [True] * 99)[i]
                counted |= {here} if seen else set()
                read |= {here} if route[i] else set()
    return read, len(counted)


def stated(run: Run, tmp_path: Path) -> list[dict[str, Any]]:
    """What page, JSON, terminal, --json and table.md say of every model: read, of, n of the interval, severity."""
    page = html.unescape(write_report(run).read_text("utf-8"))
    cards = re.findall(r'<article class="verdict (\w+)" id="model-\d+">(.*?)</article>', page, re.DOTALL)
    results = json.loads((run.path / "results.json").read_text("utf-8"))
    machine = verdict_json(run)
    assert machine == results["verdict"], "--json and results.json are one"
    terminal = summary_text(run)
    assert f"Verdict: {machine['label'].lower()}." in terminal and machine["sentence"] in terminal
    assert re.search(rf'class="verdict wide overall {machine["severity"]}"', page)
    assert machine["severity"] == min((m["verdict"]["severity"] for m in results["models"]), key=list(Severity).index)
    table = write_markdown([run], tmp_path / "table.md").read_text("utf-8")
    statements = []
    for (severity, card), model in zip(cards, results["models"], strict=True):
        said = model["verdict"]
        assert severity == said["severity"] and said["label"] in card and f": {said['label']}. " in table
        line = next(line for line in terminal.splitlines() if line.startswith(model["title"]))
        counted = f"{said['read']} of {said['of']} private fields read" if said["of"] else "No private field could be"
        assert f"{said['label'].lower()}. {counted}" in line
        routes = ", ".join(f"{route['name']} {route['read']} of {route['of']}" for route in said["routes"])
        if not said["of"]:
            statements.append({"model": model["model"], **said, "card": card})
            continue
        for name in (route["name"] for route in said["routes"]):
            assert f"{name} " in routes and f"{name} " in card
        if severity in ("severe", "partial", "none"):
            bar = re.search(r'aria-label="By any route, of (\d+) private fields: (\d+) read, ', card)
            assert bar is not None and [int(bar[1]), int(bar[2])] == [said["of"], said["read"]]
            head = re.search(r"(?:the server read|the pages hold;) (\d+|none) of (\d+) private field", card)
            assert head is not None and [int(head[1].replace("none", "0")), int(head[2])] == [said["read"], said["of"]]
            share = f"{100 * said['share']['value']:.0f}\xa0%"
            told = re.search(r"read by any route: ([^,]+), .*? \(n = (\d+) fields\)", card)
            assert told is None or (told[1] == share and int(told[2]) == said["of"])
            assert (told is None) is (model["documents"] < 2)
        assert said["share"]["n"] == said["of"]
        statements.append({"model": model["model"], **said, "card": re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", card))})
    return statements


def record_of(run: Run, **change: Any) -> list[dict[str, Any]]:
    """Every unit's record, changed on disk."""
    for record in run.units():
        run.write_unit(record["unit"], {**record, **change}, {})
    return run.units()


def with_floor(run: Run, kind: str, **fields: Any) -> None:
    for record in run.units():
        for field in record[kind]["fields"]:
            field.update(fields)
        run.write_unit(record["unit"], record, {})


@pytest.fixture(scope="module")
def base(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two pages; the start's picture gives all, the trained one's nothing."""
    return make_run(tmp_path_factory.mktemp("base") / "out", pages=2, attacks=("gi-dqa", "random"))


def test_every_place_says_what_the_records_say(base: Run, tmp_path: Path) -> None:
    for said in stated(base, tmp_path):
        read, of = read_by_hand(base, said["model"])
        assert (said["read"], said["of"]) == (len(read), of)
        assert {(field["page"], field["key"]) for field in said["fields"] if field["found"] == "read"} == {
            (unit["page"], unit["score"]["fields"][i]["key"]) for unit in base.units() for page, i in read
            if unit["page"] == page
        }  # fmt: skip


@pytest.fixture(scope="module")
def once(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One page of the trained Donut, whose picture gives nothing."""
    return make_run(
        tmp_path_factory.mktemp("once") / "trained", models=("donut-trained",), attacks=("gi-dqa", "random")
    )


@pytest.fixture
def trained(once: Run, tmp_path: Path) -> Run:
    """A copy of that run, which a test may change."""
    return Run.load(shutil.copytree(once.path, tmp_path / "trained"))


def only(run: Run, tmp_path: Path) -> dict[str, Any]:
    (said,) = stated(run, tmp_path)
    read, of = read_by_hand(run, said["model"])
    assert (said["read"], said["of"]) == (len(read), of)
    return said


def test_an_answer_read_by_algebra_alone_is_a_leak(trained: Run, tmp_path: Path) -> None:
    fields = len(trained.units()[0]["fields"])
    first = [True] + [False] * (fields - 1)
    view = {**trained.units()[0]["view"], "answer_known": True}
    record_of(trained, recovered={**TEXT, "fields_by": {"answer": first}, "fields_read": first}, view=view)
    said = only(trained, tmp_path)
    assert said["severity"] == "partial" and said["read"] == 1
    assert f"Route by route: picture 0 of {fields}, answer 1 of {fields}." in said["card"].replace(" :", ":")
    assert "That the answer was given is no finding; that another route reads it without having it is." in said["card"]


def test_text_is_counted_for_its_own_field_where_another_has_no_place(trained: Run) -> None:
    fields = len(trained.units()[0]["fields"])
    last = [False] * (fields - 1) + [True]
    for record in record_of(trained, recovered={**TEXT, "fields_by": {"words": last}, "fields_read": last}):
        for kind in ("score", "floor", "ceiling"):
            record[kind]["fields"].insert(0, asdict(FieldScore("company", "Nowhere Ltd")))
        trained.write_unit(record["unit"], record, {})
    (result,) = prepare([trained], np.random.default_rng(0)).models
    cells = [field.routes.get("words") for field in result.findings.fields]
    assert cells == [None, *[Cell.NOT] * (fields - 1), Cell.READ]
    assert result.findings.judgement.read == 1 and f"1 of {fields} private fields" in verdict_json(trained)["sentence"]


def test_a_route_that_a_model_lacks_takes_no_field_out_of_the_headline(trained: Run) -> None:
    fields = len(trained.units()[0]["fields"])
    for read in (1, 0):
        answer = [True] * read + [False] * (fields - read)
        record_of(trained, recovered={**TEXT, "fields_by": {"answer": answer}, "fields_read": answer})
        said = verdict_json(trained)["sentence"]
        assert f"{read} of {fields} private fields of 1 audited page were read by at least one route: " in said
        assert f"picture 0 of {fields}, answer {read} of {fields}." in said


def test_the_headline_of_two_models_counts_every_field_of_their_page(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", attacks=("dlg",))
    for record in run.units():
        fields = len(record["fields"])
        words = [True] + [False] * (fields - 1)
        text = {"answer": [False] * fields}
        if record["model"] == "donut-trained":
            text = {"words": words}
        for field in record["score"]["fields"]:
            field.update(exact=False, fuzz=0.0)
        seen = [True] * (fields - 1) + [False]
        recovered = {**TEXT, "fields_by": text, "fields_read": words, "fields_seen": seen, "token_limit": 256}
        run.write_unit(record["unit"], {**record, "recovered": recovered}, {})
    said = verdict_json(run)["sentence"]
    assert f"1 of {fields} private fields of 1 audited page were read" in said
    assert f"words 1 of {fields - 1} that the model saw (1 lies behind its 256 tokens)" in said


@pytest.mark.parametrize("attack", ["random", "gi-dqa"])
def test_a_batch_whose_words_are_told_has_one_verdict_and_says_why(
    make_run: MakeRun, tmp_path: Path, attack: str
) -> None:
    told = {what: {"right": 9, "found": 9, "true": 10} for what in ("tokens", "coordinates", "places", "boxes")}
    change = {"recovered": {"batch": told}, "view": {"batch_size": 2, "train_mode": False, "tensors": 2, "numbers": 9}}
    run = make_run(tmp_path / "out", models=("donut-trained",), attacks=(attack,), change=change)
    (said,) = stated(run, tmp_path)
    assert said["severity"] == "partial" and said["label"] == "Partial leak"
    machine = verdict_json(run)
    assert "the gradient tells 9 of the 10 different tokens in the batch" in machine["parts"][0]["sentence"]
    assert "tells 9 of the 10 different tokens" in summary_text(run)
    assert "whoever receives one such update can read which words the pages hold without ever" in said["card"]


def test_what_several_batches_tell_is_said_to_be_a_sum(make_run: MakeRun, tmp_path: Path) -> None:
    told = {what: {"right": 9, "found": 9, "true": 10} for what in ("tokens", "coordinates", "places", "boxes")}
    change = {"recovered": {"batch": told}, "view": {"batch_size": 2, "train_mode": False, "tensors": 2, "numbers": 9}}
    run = make_run(tmp_path / "out", pages=2, models=("donut-trained",), attacks=("gi-dqa",), change=change)
    assert (
        "the gradients tell 18 of the 20 different tokens, summed over 2 batches of 2 pages, and 18 of the 20 "
        "coordinates of their boxes; all tokens at 18 of 20 positions"
    ) in verdict_json(run)["parts"][0]["sentence"]


@pytest.mark.parametrize("claimed", [True, False])
def test_a_page_read_out_of_a_batch_counts_where_the_attacker_claims_it(
    make_run: MakeRun, tmp_path: Path, claimed: bool
) -> None:
    """The page is another one than that whose picture was attacked: its fields come beside those."""
    told = {what: {"right": 1, "found": 1, "true": 10} for what in ("tokens", "coordinates", "places", "boxes")}
    one = {
        "claimed": claimed, "left": 1e-4, "sure": 9, "number": 1, "page": "another", "document": "another",
        "values": [["total", "1.00"], ["date", "1 May"]], "psnr": 30.0, "exact": True, "believed_exact": True,
        "tokens": 9, "tokens_right": 9, "question": "What?", "answer": "1.00", "words": [{"text": "1.00", "box": []}],
        "fields_by": {"answer": [True, False], "question": [False, False], "words": [True, True]},
        "fields_read": [True, True], "fields_seen": [True, True], "token_limit": None,
    }  # fmt: skip
    change = {"recovered": {"batch": told, "one": one}, "view": {"batch_size": 2, "tensors": 2, "numbers": 9}}
    run = make_run(tmp_path / "out", models=("donut-trained",), attacks=("random",), change=change)
    said = verdict_json(run)
    text = summary_text(run)
    if claimed:
        assert "2 of 2 private fields" in said["sentence"] and "words 2 of 2, answer 1 of 2" in said["sentence"]
        assert "9 of 9 tokens are right, and 1 of these pages are read whole" in text
        assert "The attacker can know so of 1; which page of the batch it is, it is not told" in text
    else:
        assert "2 of 2" not in said["sentence"]
        assert "no page outweighs the others enough, and nothing that was read so counts" in text


def test_where_no_field_can_be_counted_no_count_is_printed(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", models=("donut-trained",), attacks=("random",), change={"recovered": None})
    said = verdict_json(run)
    assert said["sentence"].startswith("No private field of 1 audited page could be counted.")
    page = html.unescape(write_report(run).read_text("utf-8"))
    for text in (summary_text(run), json.dumps(said), page):
        assert "of 0" not in text and ": ." not in text


def test_words_that_are_not_the_fields_value_count_and_are_said_to_be_words(trained: Run, tmp_path: Path) -> None:
    fields = len(trained.units()[0]["fields"])
    read, first = [True] * fields, [True] + [False] * (fields - 1)
    text = {**TEXT, "fields_by": {"words": read, "answer": first}, "fields_read": read, "fields_seen": read,
            "token_limit": None}  # fmt: skip
    otherwise = "a value that the page's OCR words write otherwise: what was read exactly, and is counted, are these"
    for spelt, count in ((first, fields - 1), ([False, *read[1:]], 0)):
        record_of(trained, recovered={**text, "fields_spelt": spelt}, size=[64, 64])
        said = only(trained, tmp_path)
        assert said["read"] == fields
        assert (f"{count} of the fields read have {otherwise} words." in said["card"]) == bool(count)
        assert bool(count) or otherwise not in said["card"], "the answer gave the value of the one"


def test_words_behind_the_token_limit_are_counted_apart(trained: Run, tmp_path: Path) -> None:
    fields = len(trained.units()[0]["fields"])
    read = [True, True] + [False] * (fields - 2)
    text = {**TEXT, "fields_by": {"words": read, "answer": [False] * fields}, "fields_read": read, "fields_seen": read,
            "token_limit": 256}  # fmt: skip
    record_of(trained, recovered=text, size=[64, 64])
    said = only(trained, tmp_path)
    assert f"words 2 of 2 that the model saw ({fields - 2} lie behind its 256 tokens)" in said["card"]
    assert said["of"] == fields and said["read"] == 2, "their pixels entered it all the same"
    alone = [unit for unit in trained.units() if unit["attack"] == "gi-dqa"]
    for unit in alone:
        for score in ("score", "floor", "ceiling"):
            for field in unit[score]["fields"]:
                field.update(exact=None, fuzz=None, read=None)
        trained.write_unit(unit["unit"], unit, {})
    (said,) = stated(trained, tmp_path)
    assert (said["read"], said["of"], said["cells"]) == (2, 2, {"read": 2, "unscored": fields - 2})


@pytest.mark.parametrize("reads", [False, True])
def test_a_failed_self_test_is_never_an_all_clear(trained: Run, tmp_path: Path, reads: bool) -> None:
    fields = len(trained.units()[0]["fields"])
    first = [reads] + [False] * (fields - 1)
    record_of(
        trained, self_test={"distance": 0.4, "passed": False, "note": "dropout was on"},
        recovered={**TEXT, "fields_by": {"answer": first}, "fields_read": first},
    )  # fmt: skip
    said = only(trained, tmp_path)
    assert said["severity"] == ("partial" if reads else "untold")
    assert "The self-test failed on 1 of 1 pages" in said["card"]
    page = (trained.path / "report.html").read_text("utf-8")
    assert "No field read" not in page


def test_mostly_wrong_tokens_are_an_alarm_unless_a_defence_was_declared(trained: Run, tmp_path: Path) -> None:
    none = [False] * len(trained.units()[0]["fields"])
    text = {**TEXT, "exact": False, "tokens_right": 3, "fields_by": {"answer": none}, "fields_read": none}
    record_of(trained, recovered=text)
    assert only(trained, tmp_path)["severity"] == "untold"
    record_of(trained, view={**trained.units()[0]["view"], "defense": "noise:sigma=1"})
    assert only(trained, tmp_path)["severity"] == "none"


@pytest.mark.parametrize(
    ("share", "noise", "severity"), [(-0.016, 0.0, "untold"), (-0.016, 0.1, "none"), (0.8, 0.0, "none")]
)
def test_a_defence_that_is_not_what_attacks_imitate_is_no_all_clear(
    trained: Run, tmp_path: Path, share: float, noise: float, severity: str
) -> None:
    """As one that sends minus the gradient and says that it sends the gradient: no attack can match that."""
    finding = trained.units()[0]["finding"]
    record_of(trained, finding={**finding, "of_truth": share, "noise": noise})
    said = only(trained, tmp_path)
    assert said["severity"] == severity
    assert ("explains -0.016 of what was sent under this defence" in said["card"]) == (severity == "untold")


@pytest.mark.parametrize(("lost", "severity"), [(1.0, "untold"), (0.6, "untold"), (0.2, "none")])
def test_a_true_page_that_cannot_be_read_is_no_all_clear(
    trained: Run, tmp_path: Path, lost: float, severity: str
) -> None:
    for record in trained.units():
        for field in record["ceiling"]["fields"][: round(lost * len(record["fields"]))]:
            field.update(exact=False, fuzz=0.0, read="")
        trained.write_unit(record["unit"], record, {})
    assert only(trained, tmp_path)["severity"] == severity


def test_what_the_blank_template_shows_is_no_finding(base: Run, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",))
    with_floor(run, "floor", exact=True, fuzz=1.0)
    said = only(run, tmp_path)
    assert said["severity"] == "unmeasured" and said["read"] == 0, "nothing could count"
    assert "whatever is read is no finding" in said["card"] and "No OCR engine" not in said["card"]
    assert "can be read on the blank template too, and are not counted as read" in said["card"]


@pytest.mark.parametrize("recovered", [False, True])
def test_the_picture_s_count_says_that_the_words_were_given(make_run: MakeRun, tmp_path: Path, recovered: bool) -> None:
    view = {"batch_size": 1, "train_mode": False, "tensors": 2, "numbers": 9, "words_known": True}
    known = ["nothing of the text: all was read out of the gradient first"] if recovered else ["the OCR words"]
    change = {"view": view, "knowledge": known}
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",), change=change)
    given = "picture 6 of 6 (with the OCR words given)"
    machine = verdict_json(run)
    for text in (only(run, tmp_path)["card"], machine["sentence"], machine["parts"][0]["sentence"]):
        assert (given in text) is not recovered and "picture 6 of 6" in text


def test_the_answer_that_was_given_is_said_apart(make_run: MakeRun, tmp_path: Path) -> None:
    view = {"batch_size": 1, "train_mode": False, "tensors": 2, "numbers": 9, "answer_known": True}
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",), change={"view": view})
    said = only(run, tmp_path)
    assert said["read"] == said["of"] - 1
    assert "1 field holds the answer to the client's question, which the attacker was given" in said["card"]
    for record in run.units():
        for field in record["score"]["fields"]:
            if field["value"] != record["answer"]:
                field.update(exact=False, fuzz=0.0)
        run.write_unit(record["unit"], record, {})
    assert only(run, tmp_path)["severity"] == "none", "all that is left is what it was given"


def test_with_recovered_text_nothing_says_that_it_was_given(make_run: MakeRun, tmp_path: Path) -> None:
    view = {"batch_size": 1, "train_mode": False, "tensors": 2, "numbers": 9, "answer_known": True, "words_known": True}
    known = ["nothing of the text: question, answer and words were read out of the gradient first"]
    change = {"view": view, "knowledge": known}
    run = make_run(tmp_path / "out", models=("donut-trained",), attacks=("gi-dqa",), change=change)
    (said,) = stated(run, tmp_path)
    assert "were given no text" in said["card"] and "were given them" not in said["card"]
    assert "were given question and answer" not in said["card"]


@pytest.mark.parametrize("evaluations", [0, 40])
def test_a_picture_read_without_any_text_says_of_no_text_that_it_was_given(
    make_run: MakeRun, tmp_path: Path, evaluations: int
) -> None:
    """The closed form takes no text; only optimisation that goes on from it does."""
    view = {"batch_size": 1, "train_mode": False, "tensors": 2, "numbers": 9, "answer_known": True, "words_known": True}
    change = {"view": view, "attack": "closed-form"}
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",), change=change)
    for record in run.units():
        finding = {**record["finding"], "evaluations": evaluations}
        run.write_unit(record["unit"], {**record, "finding": finding}, {})
    page, card = html.unescape(write_report(run).read_text("utf-8")), only(run, tmp_path)["card"]
    said = "picture 5 of 6 (1 more was given beforehand; with the OCR words given)" if evaluations else "picture 6 of 6"
    for text in (card, verdict_json(run)["sentence"], summary_text(run)):
        assert said in text and ("given beforehand" in text) is bool(evaluations)
    assert ("were given them" in card) is bool(evaluations) and ("were given the answer" in page) is bool(evaluations)
    assert ("closed-form used none of the text" in page) is not bool(evaluations)


def test_of_several_attacks_the_one_that_takes_no_text_is_told_apart(make_run: MakeRun, tmp_path: Path) -> None:
    view = {"batch_size": 1, "train_mode": False, "tensors": 2, "numbers": 9, "answer_known": True, "words_known": True}
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa", "dlg"), change={"view": view})
    for record in run.units():
        if record["attack"] == "dlg":
            finding = {**record["finding"], "evaluations": 0}
            run.write_unit(record["unit"], {**record, "attack": "closed-form", "finding": finding}, {})
    card = only(run, tmp_path)["card"]
    assert "the attacks on the picture were given them, closed-form aside" in card
    assert "as in the paper" not in card, "of words it says nothing"
    assert "with the OCR words given" in card, "the closed form read none of what gi-dqa did"


def test_where_there_is_only_a_floor_nothing_is_said_of_attacks_on_the_picture(
    make_run: MakeRun, tmp_path: Path
) -> None:
    view = {"batch_size": 1, "train_mode": False, "tensors": 2, "numbers": 9, "answer_known": True, "words_known": True}
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("random",), change={"view": view})
    assert "the attacks on the picture were given" not in html.unescape(write_report(run).read_text("utf-8"))


def test_a_run_that_is_not_finished_says_so_where_the_verdict_and_the_scope_stand(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "out", pages=2, models=("donut-trained",), attacks=("gi-dqa", "dlg"))
    assert "not finished" not in summary_text(run) + html.unescape(write_report(run).read_text("utf-8"))
    first = next(record["unit"] for record in run.units() if record["attack"] == "dlg")
    (run.folder(first) / "unit.json").unlink()
    said = "The run is not finished: 1 of 2 pages by dlg."
    page = html.unescape(write_report(run).read_text("utf-8"))
    assert said in summary_text(run).split("\n\n")[0] and said in verdict_json(run)["sentence"]
    assert page.count(said) == 2 and "(not finished: 1 of 2 pages by dlg)" in page, "below the headline, and to quote"
    for record in run.units():
        if record["attack"] == "dlg":
            (run.folder(record["unit"]) / "unit.json").unlink()
    assert "The run is not finished: 0 of 2 pages by dlg." in summary_text(run)
    run.give_up("x--000--dlg", "MemoryError: no room.")
    assert "0 of 2 pages by dlg; 1 failed for good, first x--000--dlg: MemoryError: no room." in summary_text(run)


def test_a_run_without_a_finished_unit_is_named_where_it_is_joined(make_run: MakeRun, tmp_path: Path) -> None:
    """It plans the same pages as the other: they are not two and two."""
    runs = [make_run(tmp_path / name, pages=2, models=("donut-trained",), attacks=("gi-dqa",)) for name in "ab"]
    for record in runs[1].units():
        (runs[1].folder(record["unit"]) / "unit.json").unlink()
    page, (said,) = report_on([run.path for run in runs], tmp_path / "joined")
    sentence = joined([said]).sentence
    assert f"The run is not finished: nothing of {runs[1].path}." in sentence and "of 4 pages" not in sentence
    assert f"nothing of {runs[1].path}" in html.unescape(page.read_text("utf-8"))


def test_what_is_not_finished_is_told_model_by_model(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", pages=2, models=("donut-start", "donut-trained"), attacks=("gi-dqa",))
    for record in run.units():
        if record["model"] == "donut-trained":
            (run.folder(record["unit"]) / "unit.json").unlink()
    said = "The run is not finished: 0 of 2 pages by gi-dqa on Donut (tiny), trained on synthetic invoices."
    assert said in summary_text(run)
    run.write_info("skipped", [{"model": "donut-trained", "attack": "gi-dqa", "why": "it needs another model"}])
    assert "not finished" not in summary_text(run)
    run = make_run(tmp_path / "other", pages=2, models=("donut-start",), attacks=("gi-dqa",))
    run.write_info("found", 3)
    assert "not finished" not in summary_text(reconfigured(run, pages=2)), "more were there than asked for"
    assert "The run is not finished: 2 of 3 pages by gi-dqa." in summary_text(reconfigured(run, pages=5))


def test_runs_of_other_attacks_on_the_same_pages_are_finished_together(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, pages=2, models=("donut-trained",), attacks=(name,)) for name in ("gi-dqa", "dlg")
    ]
    assert "not finished" not in summary_text(runs)
    first = runs[1].units()[0]["unit"]
    (runs[1].folder(first) / "unit.json").unlink()
    with pytest.raises(RunError, match="the pages differ"):
        summary_text(runs)


def test_a_model_that_no_attack_applies_to_has_units_of_the_floor(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", pages=2, models=("donut-trained",), attacks=("random",))
    run = reconfigured(run, {"skipped": [{"model": "donut-trained", "attack": "dlg", "why": "no"}]}, attacks=["dlg"])
    assert "not finished" not in summary_text(run)
    (run.folder(run.units()[0]["unit"]) / "unit.json").unlink()
    assert "The run is not finished: 1 of 2 pages by random." in summary_text(run)


def test_what_was_not_tried_is_not_called_safe(trained: Run, tmp_path: Path) -> None:
    assert only(trained, tmp_path)["severity"] == "none"
    record_of(trained, recovered={"failed": "the text of a vt5 has no closed form", "applies": False})
    said = only(trained, tmp_path)
    assert said["severity"] == "untold" and "The text was not tried: the text of a vt5" in said["card"]
    record_of(trained, recovered={"failed": "the gradient lacks its text tables", "applies": True})
    said = only(trained, tmp_path)
    why = "Text looked for, not read: the gradient lacks its text tables."
    assert said["severity"] == "untold" and why in said["card"], "nothing that was declared explains it"
    assert why in summary_text(trained)
    record_of(trained, view={**trained.units()[0]["view"], "defense": "freeze"})
    said = only(trained, tmp_path)
    assert said["severity"] == "none" and why in said["card"], "it was not sent, and the page says so"


def reconfigured(run: Run, info: dict[str, Any] | None = None, **config: Any) -> Run:
    file = run.path / "run.json"
    manifest = json.loads(file.read_text("utf-8"))
    manifest["config"].update(config)
    manifest["info"].update(info or {})
    file.write_text(json.dumps(manifest), "utf-8")
    return Run.load(run.path)


def test_joined_runs_say_the_same_in_any_order(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, models=("donut-trained",), attacks=(name,)) for name in ("gi-dqa", "dlg")]
    fields = len(runs[0].units()[0]["fields"])
    for run, read in zip(runs, (True, False), strict=True):
        first = [read] + [False] * (fields - 1)
        text = {**TEXT, "exact": read, "fields_by": {"answer": first}, "fields_read": first, "tokens_right": 9 * read}
        record_of(run, recovered=text, self_test={"distance": 0.4, "passed": read, "note": ""})
    for order in (runs, runs[::-1]):
        model = prepare(order, np.random.default_rng(0)).models[0]
        assert (model.severity, model.findings.judgement.read) == (Severity.PARTIAL, 1)
        assert any("The self-test failed on 1 of 1 pages" in doubt for doubt in model.findings.judgement.doubts)
        assert [text["tokens_right"] for text in model.texts] == [9]


@pytest.mark.parametrize("other", [{"exposure": {"defense": "clip", "train_mode": False}}, {"batch_size": 2}])
def test_runs_with_two_threat_models_are_not_joined(make_run: MakeRun, tmp_path: Path, other: dict[str, Any]) -> None:
    alike = {"exposure": {"defense": "none", "train_mode": False}, "batch_size": 1}
    runs = [make_run(tmp_path / name, models=("donut-trained",), attacks=(name,)) for name in ("gi-dqa", "dlg")]
    runs = [reconfigured(run, **alike) for run in runs]
    prepare(runs, np.random.default_rng(0))
    with pytest.raises(RunError, match=r"(defense differs: none, clip|batch size differs: 1, 2)"):
        prepare([runs[0], reconfigured(runs[1], **other)], np.random.default_rng(0))


@pytest.mark.parametrize(("there", "severity"), [(3, "untold"), (1, "none")])
def test_a_shortage_does_not_hide_pages_that_were_not_done(trained: Run, there: int, severity: str) -> None:
    run = reconfigured(trained, {"shortage": f"{there} of 5 pages", "found": there}, pages=5, batch_size=1)
    judgement = prepare([run], np.random.default_rng(0)).models[0].findings.judgement
    assert judgement.severity == severity


def test_an_unfinished_run_gives_no_all_clear(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", pages=2, attacks=("gi-dqa", "dlg"))
    for record in run.units():
        if record["model"] == "donut-trained" and record["attack"] == "dlg":
            (run.folder(record["unit"]) / "unit.json").unlink()
    said = {statement["model"]: statement for statement in stated(run, tmp_path)}
    assert said["donut-trained"]["severity"] == "untold" and "dlg has not been tried" in said["donut-trained"]["card"]
    for record in run.units():
        if record["model"] == "donut-trained":
            (run.folder(record["unit"]) / "unit.json").unlink()
    verdict = verdict_json(run)
    assert [(part["part"][:5], part["severity"]) for part in verdict["parts"]] == [
        ("Donut", "severe"), ("Donut", "unmeasured")
    ]  # fmt: skip
    assert "was not measured: Donut (tiny), trained" in verdict["sentence"]


def test_several_attacks_add_up_and_floors_are_no_route(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", models=("donut-trained",), attacks=("gi-dqa", "dlg", "random"))
    for number, record in enumerate(run.units()):
        record["score"]["fields"][number].update(exact=True, fuzz=1.0)
        run.write_unit(record["unit"], record, {})
    said = only(run, tmp_path)
    assert said["read"] == 2, "one by dlg, one by gi-dqa; what random pixels show is no finding"
    assert "made from the gradient, by gi-dqa" in said["card"]


def test_an_attack_that_does_not_apply_is_named_with_the_reason(trained: Run, tmp_path: Path) -> None:
    trained.write_info("skipped", [{"model": "donut-trained", "attack": "closed-form", "why": "it is a donut"}])
    said = only(trained, tmp_path)
    assert said["severity"] == "none", "what cannot be made is no unfinished unit"
    assert "Not tried, since it does not apply here: closed-form: it is a donut." in (
        trained.path / "report.html"
    ).read_text("utf-8")


@pytest.mark.parametrize(("stages", "severity"), [(["text"], "untold"), (["vision"], "none")])
def test_text_whose_gradients_were_sent_and_not_read_is_no_all_clear(
    trained: Run, tmp_path: Path, stages: list[str], severity: str
) -> None:
    for record in trained.units():
        failed = {"failed": "the gradient lacks qa_outputs.out_proj.weight", "applies": True}
        trained.write_unit(record["unit"], {**record, "recovered": failed}, {})
    run = reconfigured(trained, exposure={"stages": stages})
    assert only(run, tmp_path)["severity"] == severity


def explained_in(run: Run) -> Measure:
    return next(one for one in measures_of(prepare([run], np.random.default_rng(0)).models[0]) if one.what == EXPLAINED)


def test_how_much_is_explained_is_said_of_the_greatest_page_by_any_attack(make_run: MakeRun, tmp_path: Path) -> None:
    """One attack explains much of one page and nothing of the other; the other attack a little of each."""
    run = make_run(tmp_path / "out", pages=2, models=("donut-trained",), attacks=("gi-dqa", "dlg"))
    shares = {"gi-dqa": iter((0.9, 0.0)), "dlg": iter((0.6, 0.6))}
    for record in run.units():
        run.write_unit(record["unit"], record | {"finding": {**record["finding"],
                       "explained": next(shares[record["attack"]])}}, {})  # fmt: skip
    of = explained_in(run)
    assert (of.estimate.low, of.estimate.high) == (0.6, 0.9) and not of.doubts
    first = next(record for record in run.units() if record["attack"] == "dlg")
    run.write_unit(first["unit"], first | {"finding": {**first["finding"], "explained": None}}, {})
    assert explained_in(run).doubts == ("Of 1 reconstructions it is not known what they explain.",)
    (run.folder(first["unit"]) / "unit.json").unlink()
    assert explained_in(run).doubts, "a page is missing"


def test_what_even_the_true_page_does_not_explain_is_no_all_clear(make_run: MakeRun, tmp_path: Path) -> None:
    """Under noise of 1e-4 all fields of a tiny LayoutLMv3 are read where 4 % of the gradient is explained, which is
    what the true page explains: a gate on what is explained passed."""
    run = make_run(tmp_path / "out", pages=2, models=("donut-trained",), attacks=("gi-dqa", "dlg"))
    policy = Policy(rule=[Rule(measure=EXPLAINED, at_most=0.5)])

    def checked(read: int, **change: float) -> str:
        for record in run.units():
            finding, fields = {**record["finding"], "explained": 0.04, **change}, record["score"]["fields"]
            score = {**record["score"], "fields": [
                {**field, "read": field["value"] if n < read else "", "exact": n < read}
                for n, field in enumerate(fields)
            ]}  # fmt: skip
            run.write_unit(record["unit"], record | {"finding": finding, "score": score}, {})
        (told,) = check(policy, [explained_in(run)], SimpleNamespace(parts=(), unfinished=()))  # type: ignore[arg-type]
        return f"{told.outcome.value}: {told.why}"

    assert checked(0).startswith("pass")
    assert checked(1).startswith("could not tell") and "were read all the same." in checked(1)
    under = checked(0, of_truth=0.041)
    assert under.startswith("could not tell") and "No more than 0.041 could have been shown under this defence" in under
    assert "(the true page 0.041)" in summary_text(run)
    model = prepare([run], np.random.default_rng(0)).models[0]
    (row,) = [one for one in table_of(model, ()).rows if one.name == "True page"]
    assert row.values["explained"].text() == "0.041"


# -- what to do -------------------------------------------------------------------------------------------------------


FLOOR_ONLY = "No attack on the picture was made, only the floor."


def choice(
    spec: str, read: int, leakage: float | None, severity: str, anls: float | None = None, failed: bool = False,
    documents: str = "abcdef",
) -> Choice:  # fmt: skip
    """A defence after which so many of six fields, one a document, were read; the leakage surely so, within a tenth."""
    utility = None if anls is None else asdict(Utility(Estimate(anls), 1.0, 10, 0.1, 1000))
    cells = tuple([Cell.READ] * read + [Cell.NOT] * (6 - read))
    findings = SimpleNamespace(
        judgement=judge(cells, [FLOOR_ONLY] * (severity == "untold")), routes=(Route("picture", cells),),
        share=Estimate(leakage),
        fields=[SimpleNamespace(document=name, cell=cell) for name, cell in zip(documents, cells, strict=True)],
    )  # fmt: skip
    best = SimpleNamespace(
        estimates={"fuzz_ratio": Estimate(leakage, *(() if leakage is None else (leakage - 0.1, leakage + 0.1)))}
    )
    context: Any = SimpleNamespace(findings=findings, best=best, severity=Severity(severity))
    why = {"00--attack": "out of memory"} if failed else {}
    return Choice(spec, None if leakage is None else context, {"kept": 0.31, "utility": utility}, why)


def advised(*choices: Choice) -> str:
    return "\n".join(said_of(choices))


def test_advice_follows_from_the_defences_that_were_measured() -> None:
    lines = advised(
        choice("none", 6, 1.0, "severe", 0.8), choice("noise:sigma=1", 0, 0.0, "none", 0.45),
        choice("clip:norm=1", 6, 1.0, "severe", 0.79), choice("top-k:share=0.5", 1, 0.4, "partial", 0.7),
        choice("freeze", 0, 0.0, "untold", 0.5),
        choice("noise:sigma=0.1", 0, 0.4, "partial", 0.7), choice("safe-template", 0, None, "none", failed=True),
    )  # fmt: skip
    assert "Without a defence: 6 of 6 private fields read by any route: picture 6 of 6" in lines
    assert "Would have stopped what was tried here: Gaussian noise of 1" in lines and "ANLS 0.450" in lines
    assert "Lowered what was read: only the largest 50" in lines
    assert "from being read in part: Gaussian noise of 0.1 on every number sent (0 of 6" in lines, (
        "0 of 6 is not 'lowered'"
    )
    assert "Did not lower what was read: gradient clipped" in lines
    assert "Nothing was read, but it could not be told whether it helps: vision and text" in lines
    assert (
        "update kept 0.310, right answers after 10 training steps on synthetic invoices, ANLS 0.500 on 20 unseen ones; "
        "why: no attack on the picture was made" in lines
    )
    assert "a check failed" not in lines
    assert "Could not be measured, so nothing is known of it: published template" in lines
    assert "was not measured here" not in lines


@pytest.mark.parametrize("plain", [choice("none", 0, 0.0, "none"), choice("none", 0, 0.2, "untold")])
def test_advice_blames_no_defence_where_nothing_was_read_without_one(plain: Choice) -> None:
    lines = advised(plain, choice("clip:norm=1", 0, 0.0, "none"))
    assert "Nothing was read without a defence, so this comparison cannot say" in lines
    assert "would have stopped it." not in lines.replace("what would have stopped it.", "")


def test_more_fields_read_are_not_lowered_by_a_rounding_of_the_rest() -> None:
    lines = advised(choice("none", 3, 0.7132, "severe"), choice("noise:sigma=1e-4", 4, 0.7131, "severe"))
    assert "Did not lower what was read: Gaussian noise of 0.0001" in lines and "Lowered" not in lines
    lines = advised(choice("none", 3, 0.7132, "severe"), choice("noise:sigma=1e-4", 3, 0.7131, "severe"))
    assert "Did not lower" in lines


@pytest.mark.parametrize(("before", "after", "lowered"), [(6, 5, False), (6, 2, False), (6, 1, True), (1, 1, False)])
def test_a_field_or_two_fewer_may_be_the_solvers_chance(before: int, after: int, lowered: bool) -> None:
    """30 of 61 fields for 31 stood under "lowered" (docs/results/defences.md)."""
    lines = advised(choice("none", before, 0.7, "severe"), choice("clip:norm=1", after, 0.65, "severe"))
    assert ("Lowered what was read" in lines) is lowered
    assert ("Read less or nothing, but by no more than chance explains: gradient clipped" in lines) is not lowered


@pytest.mark.parametrize(("documents", "read", "said", "odds"), [
    ("abcdef", 6, "Would have stopped what was tried here", "6 documents with 1.6 % probability"),
    ("aaabbb", 6, "Read less or nothing, on too few documents to tell that from chance",
     "2 documents with 25 % probability"),
    ("abcdef", 1, "Read less or nothing, but by no more than chance explains", "6 documents with 50 % probability"),
])  # fmt: skip
def test_a_defence_that_may_have_done_nothing_is_not_said_to_stop(
    documents: str, read: int, said: str, odds: str
) -> None:
    """Fields of one page stand or fall together; one field that is not read again is a coin's head."""
    sides = [choice(spec, count, 0.1, severity, documents=documents)
             for spec, count, severity in (("none", read, "severe"), ("clip:norm=1", 0, "none"))]  # fmt: skip
    lines = advised(*sides)
    assert said in lines and f"; chance takes as many off {odds})" in lines
    assert "would not have stopped" not in lines


def test_pages_that_were_tried_without_the_defence_alone_are_not_taken_by_it() -> None:
    plain, half = choice("none", 6, 1.0, "severe"), choice("clip:norm=1", 3, 1.0, "severe")
    assert half.context is not None
    del half.context.findings.fields[3:]
    assert "Did not lower what was read: gradient clipped" in advised(plain, half)


def test_nothing_read_of_pages_of_which_nothing_was_read_before_stops_nothing() -> None:
    """Of an unfinished comparison: the three pages of which something had been read are not yet attacked again."""
    plain, half = choice("none", 3, 1.0, "severe"), choice("clip:norm=1", 0, 0.0, "none")
    assert half.context is not None
    del half.context.findings.fields[:3]
    lines = advised(plain, half)
    assert "Read less or nothing, on too few documents to tell that from chance" in lines


def test_advice_says_where_nothing_stops_it() -> None:
    lines = advised(choice("none", 6, 1.0, "severe"), choice("clip:norm=1", 6, 1.0, "severe"))
    assert "The defence measured here would not have stopped it." in lines
    assert "was not measured here" in lines and "docleak defend --utility-steps 400 trains" in lines
    several = advised(choice("none", 6, 1.0, "severe"), choice("clip:norm=1", 6, 1.0, "severe"),
                      choice("freeze", 3, 0.5, "severe"))  # fmt: skip
    assert "None of the 2 defences measured here would have stopped it." in several


def test_a_defence_of_which_it_could_not_be_told_is_not_said_to_fail() -> None:
    plain, untold = choice("none", 6, 1.0, "severe"), choice("freeze", 0, 0.0, "untold")
    lines = advised(plain, untold)
    assert "could not be told whether it helps" in lines and "have stopped it" not in lines
    lines = advised(plain, untold, choice("clip:norm=1", 6, 1.0, "severe"))
    assert "The other defence measured here would not have stopped it." in lines
    lines = advised(plain, untold, choice("clip:norm=1", 6, 1.0, "severe"), choice("top-k:share=0.5", 6, 1.0, "severe"))
    assert "None of the other 2 defences measured here would have stopped it." in lines


def test_what_was_read_without_a_defence_is_said_where_there_is_no_other() -> None:
    read = "Without a defence: 6 of 6 private fields read by any route: picture 6 of 6"
    assert said_of([choice("none", 6, 1.0, "severe", 0.8)]) == [f"{read}; no other defence was measured."]
    lost = choice("freeze", 0, None, "none", failed=True)
    first, second, *_ = said_of([choice("none", 6, 1.0, "severe", 0.8), lost])
    assert first == f"{read}; no other defence could be measured."
    assert second.startswith("Could not be measured, so nothing is known of it: vision and text")
    waits = replace(lost, failed={})
    first, second, *_ = said_of([choice("none", 6, 1.0, "severe", 0.8), waits])
    assert first == f"{read}; no other defence was measured yet."
    assert second.startswith("Not measured yet, so nothing is known of it: vision and text")


def test_what_was_read_under_a_defence_is_said_though_nothing_is_known_without_one() -> None:
    (first, *_) = said_of([choice("none", 0, None, "none"), choice("clip:norm=1", 6, 1.0, "severe")])
    assert first.startswith(
        "The attack without a defence was not measured, so no defence could be compared. Measured: "
    )
    assert "gradient clipped to norm 1 (6 of 6 private fields" in first
    assert said_of([choice("none", 0, None, "none")]) == ["Nothing was measured, with a defence or without one."]


def test_without_a_comparison_the_page_names_the_command_for_the_most_exposed_model(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "out", models=("donut-start", "donut-trained"), attacks=("gi-dqa",))
    key = model_key("/some/where/mine", None)
    for record in run.units():
        if record["model"] == "donut-start":  # the most exposed one is somebody's own model, named second
            run.write_unit(record["unit"], {**record, "model": key}, {})
    run = reconfigured(run, models=["donut-trained", "/some/where/mine"])
    page = html.unescape(write_report(run).read_text("utf-8"))
    assert "No defence was measured in this run" in page
    assert "docleak defend --model /some/where/mine --documents DIR --seed 0 --pages 10 --utility-steps 400" in page
    run = reconfigured(run, documents="2 pages given (0a19fb1fae)")
    page = html.unescape(write_report(run).read_text("utf-8"))
    assert "docleak defend --model /some/where/mine --documents PAGES --seed 0" in page, "no name that can be typed"


def test_what_is_quoted_agrees_with_what_was_counted(base: Run, trained: Run) -> None:
    """A field without a place is in the scope and in no count: the page says which; and how far the counts hold."""
    fields = len(trained.units()[0]["fields"]) + 1
    for record in trained.units():
        for kind in ("score", "floor", "ceiling"):
            record[kind]["fields"].insert(0, asdict(FieldScore("company", "Nowhere Ltd")))
        trained.write_unit(record["unit"], record, {})
    page = " ".join(html.unescape(write_report(trained).read_text("utf-8")).split())
    assert f"1 page with {fields} private fields, 1 of them without a place on the page: not scored" in page
    assert "1 private field has no text or no place on the page and was not scored." in page
    quoted = page.partition("<blockquote>")[2].partition("</blockquote>")[0]
    assert quoted.endswith(
        "Gradients of one document are an example, not a rate. "
        "Attacker assumed: whoever receives one client's gradient."
    )
    quoted = " ".join(html.unescape(write_report(base).read_text("utf-8")).split()).partition("<blockquote>")[2]
    quoted = quoted.partition("</blockquote>")[0]
    assert quoted.count("Share of the fields read of ") == 2 and quoted.count("over 2 documents (n = ") == 2


def test_the_first_page_says_what_update_kept_means() -> None:
    told = choice("noise:sigma=1", 0, 0.0, "none", 0.45)
    context = SimpleNamespace(**vars(told.context), title="Donut", pages=("a",))
    plain = replace(choice("none", 6, 1.0, "severe", 0.8), context=context)
    lines = effects([plain, told])
    assert "update kept 0.310" in lines[1] and lines[-1].startswith("“Update kept” is the share of the update's")


def test_the_defence_and_the_part_that_was_sent_are_in_every_sentence_that_is_quoted(
    trained: Run, tmp_path: Path
) -> None:
    """Quoted without them, a defended gradient's "0 of 4 were read" is the undefended training's."""
    run = reconfigured(trained, exposure={"stages": ["vision", "text"], "defense": "noise:sigma=1e-3"})
    page = " ".join(html.unescape(write_report(run).read_text("utf-8")).split())
    begin = (
        "From the gradient of the vision and text parameters alone, with the defence noise:sigma=1e-3 in place: 0 of"
    )
    said = verdict_json(run)
    assert said["sentence"].startswith(begin)
    assert "Measured from the gradient of the vision and text parameters alone, with" in said["parts"][0]["sentence"]
    assert f"{begin} " in page.partition("In tests with docleak")[2][:300], "the statement to quote"
    shared = "shared as gradients of the vision and text parameters alone with the defence noise:sigma=1e-3 in place"
    assert f"<dt>System</dt><dd>Training of Donut (tiny), trained on synthetic invoices, {shared}</dd>" in page
    assert (
        "From one client's gradient of the vision and text parameters alone later in training, with the defence "
        "noise:sigma=1e-3 in place, the server read none"
    ) in page
    assert "No defence was measured" not in page and "docleak defend noise:sigma=1e-3 --model donut-trained" in page
    only = "Only the training with the defence noise:sigma=1e-3 in place was measured, and nothing without it"
    assert page.count(only) == 2, "among the measures of the first page, and in the advice"
    card = model_card(read_runs([run]), "0" * 64, "")
    assert f"{shared}; 1 page" in card and begin in card
    assert "Blank template" in page and "Published template" not in page


def test_what_the_attacker_did_not_know_is_part_of_what_is_signed(trained: Run) -> None:
    run = reconfigured(trained, exposure={"train_mode": True, "question_known": False})
    page = " ".join(html.unescape(write_report(run).read_text("utf-8")).split())
    quoted = page.split("Statement to quote")[1].split("</blockquote>")[0]
    assert ": From the gradient (dropout on, question not known): 0 of" in quoted


def test_a_perturbed_template_is_not_called_the_blank_one(trained: Run) -> None:
    run = reconfigured(trained, exposure={"defense": "safe-template:kind=uniform", "clean_template": True})
    page = " ".join(html.unescape(write_report(run).read_text("utf-8")).split())
    how = "perturbed by the defence safe-template:kind=uniform, the perturbation taken off again as far as the attacker"
    assert f"Published template<small>{how} could; known to the attacker</small>" in page
    assert "on the published template" in page and "Blank template" not in page
    assert "of what the template that the attacker had (the blank one, or the one published under a defence)" in page
    assert "template that the attacker had" in MEASURES[EXPLAINED].says and "blank template leaves" not in page
    assert "Known beforehand: the published template of the page" in page and "the published template the floor" in page


def test_the_self_test_of_a_defended_run_is_about_the_gradient_before_the_defence(trained: Run) -> None:
    view = {**trained.units()[0]["view"], "defense": "noise:sigma=1e-3"}
    for passed, said in ((True, "the true page must reproduce the gradient before the defence: 1 of 1 passed"),
                         (False, "the true page does not reproduce the gradient before the defence, so")):  # fmt: skip
        record_of(trained, view=view, self_test={"distance": 0.5, "passed": passed, "note": ""})
        page = html.unescape(write_report(trained).read_text("utf-8"))
        assert said in page and "the observed gradient" not in page


@pytest.mark.parametrize(("batch", "evaluations", "explained", "said"), [
    (1, 0, 1.0, "computed from the gradient by linear algebra, by closed-form"),
    (2, 40, 0.7, "made from the gradient by optimisation, where linear algebra did not determine it, by closed-form"),
    (2, 0, 0.0, "the template as it is: closed-form did not determine it, and the budget was too small to optimise"),
])  # fmt: skip
def test_an_optimised_picture_is_not_called_linear_algebra(
    make_run: MakeRun, tmp_path: Path, batch: int, evaluations: int, explained: float, said: str
) -> None:
    run = make_run(tmp_path / "out", models=("donut-trained",), attacks=("dlg",))
    (record,) = run.units()
    finding = {**record["finding"], "evaluations": evaluations, "explained": explained}
    change = {"attack": "closed-form", "view": {**record["view"], "batch_size": batch}, "finding": finding}
    run.write_unit(record["unit"], {**record, **change}, {})
    page = html.unescape(write_report(run).read_text("utf-8"))
    assert f"<small>{said}</small>" in page and ("by linear algebra, by" in page) is (batch == 1)


def test_of_attacks_that_recovered_alike_none_is_called_the_one_that_recovered_most(trained: Run) -> None:
    first, second = trained.units()
    for record, attack in ((first, "closed-form"), (second, "gi-dqa")):
        trained.write_unit(record["unit"], {**first, "unit": record["unit"], "attack": attack}, {})
    page = html.unescape(write_report(trained).read_text("utf-8"))
    assert "recovered most of" not in page and "recovered most on average" not in page
    assert re.search(r"by [\w-]+ \([\w-]+ recovered as much; none of the 2 tried recovered more\), after", page)


def test_a_value_read_at_a_repeat_before_the_limit_is_not_said_never_to_have_entered(trained: Run) -> None:
    fields = len(trained.units()[0]["fields"])
    seen = [True] * (fields - 1) + [False]
    for read, said in (([True] * fields, f"{fields} of {fields} private fields are in it word for word. Linear"),
                       (seen, "word for word, 1 never entered the model: it lies behind its 256 tokens.")):  # fmt: skip
        record_of(trained, recovered={**TEXT, "fields_by": {"words": read}, "fields_read": read, "fields_seen": seen,
                                      "token_limit": 256})  # fmt: skip
        assert said in html.unescape(write_report(trained).read_text("utf-8"))


def test_what_could_not_be_told_dominates_nothing() -> None:
    plain = choice("none", 6, 1.0, "severe", 0.5)
    assert _dominating(plain, [plain, choice("clip:norm=1", 0, 0.0, "untold", 0.6)]) == ""
    assert _dominating(plain, [plain, choice("clip:norm=1", 0, 0.0, "none", 0.6)])
