"""The report of a game: true to its records, honest in its verdict, whole in one file."""

from __future__ import annotations

import html
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from docleak.attacks.weights import CdmiConfig
from docleak.documents import load_pages
from docleak.documents.copies import prints, text_of
from docleak.documents.folder import save
from docleak.errors import RunError
from docleak.metrics.estimate import Estimate
from docleak.metrics.extraction import at, match
from docleak.report.severity import Part
from docleak.runs.run import Run
from docleak.studies.engine import carry_out
from docleak.studies.registry import report_on
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.exhibits import SUREST, scrubbed_pictures, shown_fields
from docleak.studies.weights.game import game_of
from docleak.studies.weights.pictures import draw_curves, points
from docleak.studies.weights.reading import MEASURES, SHOWN_BESIDE, exhibit, measures, read_run
from docleak.studies.weights.study import WeightsStudy
from docleak.studies.weights.table import OF_VALUES, GameTable, Ranked, fields_of, read_table
from docleak.studies.weights.verdict import fields_measured, reasons, verdict_of
from docleak.training.extraction.fit import FitConfig

QUICK = FitConfig(epochs=1, batch_size=8, learning_rate=1e-3)
SMALL = WeightsConfig(
    pages=12, fields=6, attempts=3, attack=CdmiConfig(candidates=6, top_p=0.9), target_training=QUICK,
    public_training=QUICK, calibrate=False,
)  # fmt: skip
rng = partial(np.random.default_rng, 0)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return carry_out(WeightsStudy(SMALL), tmp_path_factory.mktemp("game") / "a", command="docleak attack cdmi")


def write_report(run: Run) -> Path:
    return report_on([run.path])[0]


def verdict_in(run: Run) -> Part:
    return read_run(run, rng()).parts[0]


def text_in(run: Run) -> str:
    page = write_report(run).read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<style>.*?</style>|data:image/png;base64,[^\"]+", "", page, flags=re.DOTALL))


def test_the_report_says_what_the_records_say(played: Run) -> None:
    page, table = text_in(played), read_table(played, rng=rng())
    assert verdict_in(played).sentence in page
    factor = table.estimates["improvement_factor"]
    assert f"{factor.value:.3f}" in page and "6 fields" in page
    for field in table.fields:
        assert field.value in page and field.guess.split()[0].removeprefix("##") in page
    assert page.count("For the owner only.") == len(shown_fields(table.fields)) >= SUREST
    results = json.loads((played.path / "results.json").read_text())
    weights = results["weights"]
    assert weights["improvement_factor"]["value"] == factor.value
    assert set(weights["copies"]) == {field.name for field in table.fields}


def test_numbers_say_what_they_are_means_of(played: Run) -> None:
    """Means are over fields, not tokens, the surest are counted, and IpF is the mean of four ratios."""
    table = read_table(played, rng=rng())
    told = reasons(table, {}, None, 6)
    assert told[0].startswith("At a first attempt, on average over 6 fields, ") and "of a field's tokens" in told[0]
    read = int(table.fields[0].match.perfect)
    assert any(f"surest of (1 of 6, rounded up) it read {read} whole." in line for line in told)
    said = read_run(played, rng()).tables["weights"]
    assert "IpF: mean of four ratios to public data alone (exact fields, three distances)" in said.to_text()
    assert "The epsilon of IpF, which is added to each of the eight means: 0.01" in said.caption


def test_beside_others_it_is_brief(played: Run) -> None:
    alone, beside = (read_run(played, rng(), beside=brief) for brief in (False, True))
    assert [section.anchor for section in beside.sections] == ["weights"] and len(alone.sections) > 1
    body = beside.sections[0].body
    assert body.count("For the owner only.") == SHOWN_BESIDE and verdict_in(played).sentence in html.unescape(body)
    assert beside.parts[0].severity == alone.parts[0].severity and beside.results == alone.results


def test_it_loads_nothing_from_elsewhere(played: Run) -> None:
    page = write_report(played).read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=\"(?!data:|#)", page) and "://" not in re.sub(r"data:image[^\"]+", "", page)


def test_it_is_written_again_from_disk_alone(played: Run, tmp_path: Path) -> None:
    first = write_report(played).read_text(encoding="utf-8")
    again = write_report(Run.load(played.path)).read_text(encoding="utf-8")
    assert first == again
    file = next(played.path.glob("units/*/page.png"))
    file.rename(tmp_path / "page.png")
    file.write_bytes(b"half a picture")
    with pytest.raises(RunError, match=r"page\.png cannot be read"):
        write_report(played)
    (tmp_path / "page.png").replace(file)


def test_what_is_shown_of_a_page_hides_the_field_and_no_more(played: Run) -> None:
    page = load_pages("synthetic", count=1, seed=3)[0]
    field = page.private_fields[0]
    boxes = page.field_boxes(field)
    whole, near = scrubbed_pictures(page, boxes)
    assert whole.shape == page.image.shape and near.shape[1] == page.width
    changed = (whole != page.image).any(axis=2)
    x0, y0, x1, y1 = (round(side) for side in boxes[0])
    assert (whole[y0 + 2 : y1 - 2, x0 + 2 : x1 - 2] == 255).all(), "no ink is left inside"
    grown = np.zeros_like(changed)
    for a, b, c, d in boxes:
        grown[max(0, int(b) - 3) : int(d) + 4, max(0, int(a) - 3) : int(c) + 4] = True
    assert changed.any() and not (changed & ~grown).any()


def test_copies_are_those_of_the_games_own_pages(tmp_path: Path) -> None:
    """A document planted in the data set a second time is found, if it is private; the oracle counts by hand."""
    pages = list(load_pages("synthetic", count=12, seed=2))
    save([*pages, *(replace(p, name=f"{p.name}-again", document=f"{p.name}-again") for p in pages)], tmp_path / "mine")
    config = replace(SMALL, documents=str(tmp_path / "mine"), pages=0, fields=0, attempts=1)
    run, game = carry_out(WeightsStudy(config), tmp_path / "a"), game_of(config)
    copies = {unit["unit"]: unit["copies"] for unit in fields_of(run)}
    by_name = {p.name: p for p in load_pages(str(tmp_path / "mine"), seed=0)}
    twice = 0
    for secret in game.secrets:
        others = [name for name in game.pages if by_name[name].document != secret.document]
        counted = sum(prints(secret.value, text_of(by_name[name], document=name)) for name in others)
        assert copies[secret.name]["private"]["printing"] == counted
        twin = f"{secret.page}-again" if not secret.page.endswith("-again") else secret.page.removesuffix("-again")
        if twin in game.pages:
            twice += 1
            assert counted >= 1 and copies[secret.name]["private"]["near_duplicates"] >= 1
    assert twice > 0
    values = [secret.value for secret in game.secrets]
    by_value = read_table(run, rng=np.random.default_rng(0)).estimates[OF_VALUES]
    assert by_value.groups == len(set(values)) < by_value.n == len(values)


# -- the verdict -------------------------------------------------------------------------------------------------------


def ranked(name: str, truth: list[int], guess: list[int], score: float) -> Ranked:
    return Ranked(name, "total", f"9.00 {name}", "9.00", score, match(truth, guess))


def table(ours: list[Ranked], theirs: list[Ranked], factor: tuple[float, float, float]) -> GameTable:
    some = Estimate(0.5, 0.4, 0.6, len(ours), 3)
    names = ("hamming", "baseline_hamming", "accuracy_at_5%")
    return GameTable(
        {**dict.fromkeys(names, some), "improvement_factor": Estimate(*factor, len(ours), 3)},
        tuple(ours), 10, 1.0, tuple(theirs),
    )  # fmt: skip


RIGHT = [ranked("a", [1, 2, 3], [1, 2, 3], 2.0), ranked("b", [1, 2, 3], [1, 2, 4], 1.0)]
WRONG = [ranked("a", [1, 2, 3], [1, 2, 5], 2.0), ranked("b", [1, 2, 3], [1, 2, 4], 1.0)]
MANY = [ranked(f"{number}", [1, 2, 3], [1, 2, 5], 1.0) for number in range(36)]
NOWHERE = {"a": {"private": {"printing": 0, "near_duplicates": 0}, "public": {"printing": 0, "near_duplicates": 0}}}
COMMON = {"a": {"private": {"printing": 4, "near_duplicates": 1}, "public": {"printing": 2, "near_duplicates": 0}}}


def test_an_interrupted_game_is_no_all_clear(played: Run) -> None:
    unsure = table(MANY, MANY, (1.2, 0.9, 1.45))
    verdict = verdict_of(unsure, {}, planned=60)
    assert verdict.severity == "untold" and "24 more fields are not finished" in verdict.sentence
    said = reasons(unsure, NOWHERE, None, 60)
    assert said[0] == "36 of 60 fields are finished; of the others nothing is known yet."
    assert verdict_of(unsure, {}, planned=36).severity == "none"
    assert played.info["secrets"] == 6
    played.write_info("secrets", 60)
    try:
        assert "6 of 60 fields are finished" in text_in(played)
        assert verdict_in(played).severity != "none"
        assert "The run is not finished: 6 of 60 fields." in text_in(played)
    finally:
        played.write_info("secrets", 6)
    assert "of the others nothing is known" not in text_in(played)
    assert "not finished" not in text_in(played)


def test_the_verdict_follows_evidence() -> None:
    better, unsure = (2.0, 1.5, 2.5), (1.2, 0.9, 1.451)
    assert verdict_of(table(RIGHT, WRONG, better), {}).severity == "severe"
    assert verdict_of(table(RIGHT, RIGHT, better), {}).severity == "partial", "public data read it too"
    assert verdict_of(table(WRONG, WRONG, better), {}).severity == "partial"
    chance = verdict_of(table(RIGHT, WRONG, unsure), {})
    assert chance.severity == "untold" and "may be chance" in chance.sentence, "a whole field is no all-clear"
    nothing = verdict_of(table(MANY, MANY, unsure), {})
    assert nothing.severity == "none" and "excluded" not in nothing.sentence
    assert (
        "their improvement factor's interval ends at 1.46 (1: no better; where hardly a field is read, intervals of "
        "it are too narrow)" in nothing.sentence
    )
    assert "Control" in verdict_of(table(WRONG, WRONG, unsure), {}, control=True).sentence


@pytest.mark.parametrize(("gained", "lost", "same", "severity"), [
    (5, 0, False, "untold"), (6, 0, False, "partial"), (9, 6, False, "untold"), (20, 6, False, "partial"),
    (20, 0, True, "untold"), (0, 3, False, "untold"),
])  # fmt: skip
def test_fields_that_either_reads_and_the_other_does_not(gained: int, lost: int, same: bool, severity: str) -> None:
    """Simulated, a target that knows no more than public data reads in 9 games of 10 some fields whole that these do
    not (12 documents of 4 fields, of whose tokens a third is guessed), and loses as many."""
    sides = [[ranked(f"{n}", [1, 2], [1, 2 + (n < lost if side == "ours" else n >= lost)], 1.0)
              for n in range(lost + gained)] for side in ("ours", "theirs")]  # fmt: skip
    ours, theirs = ([replace(one, document="one" if same else one.name) for one in side] for side in sides)
    part = verdict_of(table(ours, theirs, (1.0, 0.9, 1.2)), {})
    assert part.severity == severity
    if gained:
        assert f"{gained} of {gained + lost} scrubbed fields came back word for word" in part.sentence
        assert f"public data alone tell {lost} that the weights do not" in part.sentence


def test_one_value_on_many_pages_is_one_reading() -> None:
    """Nobody knows the receipts' shops; each is guessed rightly of all its receipts or of none. Of 150 games on 100
    receipts of SROIE 13 % were "fields can be read back" or "more than public data tell"."""
    ours, theirs = ([ranked(f"{n}", [1, 2], [1, last], 1.0) for n in range(6)] for last in (2, 3))
    alike = [replace(one, document=one.name, value="SANYU STATIONERY SHOP") for one in ours]
    assert verdict_of(table(ours, theirs, (1.0, 0.9, 1.2)), {}).severity == "partial"
    assert verdict_of(table(alike, theirs, (1.0, 0.9, 1.2)), {}).severity == "untold"

    typed = [replace(one, value=f"Sanyu{' ' * n} shop") for n, one in enumerate(alike)]
    assert len({one.value for one in typed}) == len(alike)
    assert verdict_of(table(typed, theirs, (1.0, 0.9, 1.2)), {}).severity == "untold"
    hidden = [replace(one, value="Sanyu shop" + "\u200b" * n) for n, one in enumerate(alike)]
    assert verdict_of(table(hidden, theirs, (1.0, 0.9, 1.2)), {}).severity == "untold"

    surely = table(alike, theirs, (2.0, 1.5, 2.5))
    by_value = {**surely.estimates, OF_VALUES: Estimate(2.0, 0.8, 3.0, 6, 3)}
    assert verdict_of(surely, {}).severity == "severe"
    assert verdict_of(replace(surely, estimates=by_value), {}).severity == "untold"
    assert any("3 different values" in line for line in reasons(replace(surely, estimates=by_value), {}, None, 6))

    many = [replace(one, value="SANYU STATIONERY SHOP") for one in MANY]
    part = verdict_of(table(many, many, (1.2, 0.9, 1.45)), {})
    assert part.severity == "untold" and "such fields of 1 different value do not exclude" in part.sentence


def test_what_public_documents_print_was_not_read_out_of_a_control() -> None:
    """Controls that never saw the private receipts read shops' names that stand on public ones, on which they were
    trained. A target that did not see the public ones has what it reads, a total of 4.90, from its own pages."""
    better, units = (2.0, 1.5, 2.5), {name: {"document": name} for name in "ab"}
    for control, copies, severity, read in (
        (True, NOWHERE, "severe", 1.0), (True, COMMON, "partial", 0.0),
        (False, NOWHERE, "severe", 1.0), (False, COMMON, "severe", 1.0),
    ):  # fmt: skip
        assert verdict_of(table(RIGHT, WRONG, better), copies, control=control).severity == severity
        share = fields_measured(table(RIGHT, WRONG, better), copies, units, name="m", planned=2,
                                rng=np.random.default_rng(0), control=control).estimate  # fmt: skip
        assert share.value is not None and share.value * 2 == read


def test_documents_whose_fields_public_data_tell_exclude_nothing() -> None:
    """Of 60 documents, 58 of which public data read, two are left whose fields the weights could have told."""
    sixty = [ranked(f"{n}", [1, 2], [1, 2], 1.0) for n in range(60)]
    for told, severity in ((58, "untold"), (24, "none")):
        unread = [ranked(one.name, [1, 2], [1, 3], 1.0) for one in sixty[told:]]
        part = verdict_of(table([*sixty[:told], *unread], [*sixty[:told], *unread], (0.96, 0.85, 1.0)), {})
        assert part.severity == severity
    assert "36 documents exclude that more than 9.8 % of such fields" in part.sentence
    all_told = verdict_of(table(sixty, sixty, (0.96, 0.85, 1.0)), {}).sentence
    assert all_told.endswith("could not be told: public data tell every field."), "0 documents exclude nothing at all"


def test_a_factor_to_nothing_is_not_said_to_lie_in_its_interval() -> None:
    """Simulated, the factor was below its whole interval in one case of six, where public data read 1 field in 200."""
    names = [name for one in MEASURES for name in (one, f"baseline_{one}")]
    none, some = (
        measures(replace(table(RIGHT, WRONG, (6.0, 4.0, 8.0)),
                         estimates=dict.fromkeys(names, Estimate(public, 0.0, 0.1, 9, 3))))
        for public in (0.0, 0.1)
    )  # fmt: skip
    assert "may be smaller than all of its interval" in none.caption and "may be smaller" not in some.caption


def test_few_documents_that_exclude_little_allow_no_all_clear() -> None:
    wide = table(WRONG, WRONG, (1.31, 0.95, 1.72))
    part = verdict_of(wide, {})
    assert part.severity == "untold" and "do not exclude an improvement factor of 1.72" in part.sentence
    measure = fields_measured(wide, {}, {name: {"document": name} for name in "ab"}, name="m", planned=2,
                              rng=np.random.default_rng(0))  # fmt: skip
    assert measure.doubts == ("An improvement factor of 1.72 is not excluded (1: no better than public data).",)


def test_a_document_of_one_name_and_other_fields_is_another_one() -> None:
    held, same, other = (
        fields_measured(table(WRONG, WRONG, (1.3, 0.9, 1.7)), {},
                        {n: {"document": n, "value": v} for n, v in of.items()}, name="m", planned=2,
                        rng=np.random.default_rng(0)).by
        for of in ({"a": "1", "b": "2"}, {"a": "1", "b": "2"}, {"a": "1", "b": "3"})
    )  # fmt: skip
    assert set(held) == set(same) and len(set(held) & set(other)) == 1


def test_nothing_read_on_three_documents_excludes_little() -> None:
    """3 fields of 3 documents were "nothing found", and an improvement factor above 1.00 "excluded"; 0 of 3 allow 71 %,
    and one whole reading more makes IpF 9."""
    for documents, severity in ((3, "untold"), (36, "none")):
        part = verdict_of(table(MANY[:documents], MANY[:documents], (0.96, 0.85, 1.0)), {})
        assert part.severity == severity
    assert "36 documents exclude that more than 9.8 % of such fields are read word for word" in part.sentence
    said = verdict_of(table(MANY[:3], MANY[:3], (0.96, 0.85, 1.0)), {}).sentence
    assert "such fields of 3 documents do not exclude that 70 % of them are read word for word" in said


def test_copied_is_not_memorised() -> None:
    alone = " ".join(reasons(table(RIGHT, WRONG, (2.0, 1.5, 2.5)), NOWHERE, None, 2))
    common = " ".join(reasons(table(RIGHT, WRONG, (2.0, 1.5, 2.5)), COMMON, None, 2))
    assert "1 stands on no other document" in alone and "0 on other private" in alone
    assert "0 stand on no other document" in common and "1 on other private" in common and "1 on public" in common


def test_curves_are_the_papers() -> None:
    both = table(RIGHT, WRONG, (2.0, 1.5, 2.5))
    shares, values = points(both.fields, 0)
    perfect = np.array([field.match.perfect for field in both.fields])
    assert values.tolist() == [float(at(p, perfect)) for p in shares] == [1.0, 0.5]
    assert points(both.baseline, 1)[1].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert draw_curves(both) == draw_curves(both) and draw_curves(both).startswith(b"\x89PNG")


def test_the_lead_names_the_attack_and_what_the_model_saw(played: Run, tmp_path: Path) -> None:
    """Every attack was called CDMI, and a control's pages its training documents."""
    assert "(CDMI) had the scrubbed page and the model's weights" in read_run(played, rng()).lead
    copied = Path(shutil.copytree(played.path, tmp_path / "own"))
    info = copied / "run.json"
    run = Run(copied)
    run.write_info("attack", "mine")
    assert "The attack (mine) had" in read_run(run, rng()).lead
    info.write_text(info.read_text().replace('"control": false', '"control": true'))
    reading = read_run(Run(copied), rng())
    assert "documents that the model never saw" in reading.lead and "training documents" not in reading.lead
    assert reading.scope is not None and "never saw" in reading.scope.material
    assert reading.lines[0].endswith("; a page in tokens and boxes, one field masked but for its number of tokens")


def test_the_epoch_that_is_named_is_the_one_attacked(tmp_path: Path) -> None:
    config = replace(
        SMALL, fields=2, attempts=1, criterion="epoch-1", keep_every=1, target_training=replace(QUICK, epochs=3)
    )
    run = carry_out(WeightsStudy(config), tmp_path / "a")
    epochs = run.record("target")["epochs"]
    assert [epoch["number"] for epoch in epochs] == [1, 2, 3]
    accuracy = epochs[0]["validation"]["accuracy"]
    assert f"it is that of epoch 1, validation accuracy {accuracy:.3f}." in text_in(run)


def test_of_fields_that_begin_at_one_word_one_is_played_and_the_others_are_counted(tmp_path: Path) -> None:
    """A field is named by where it begins: two of one name were refused by the engine, as units of one id."""
    pages = load_pages("synthetic", count=6, seed=0)
    save([replace(page, fields=(*page.fields, *(replace(f, key=f"{f.key}_too") for f in page.private_fields)))
          for page in pages], tmp_path / "twice")  # fmt: skip
    save(pages, tmp_path / "once")
    once, twice = (replace(SMALL, documents=str(tmp_path / name), pages=0, fields=0, attempts=1)
                   for name in ("once", "twice"))  # fmt: skip
    ours, theirs = game_of(twice), game_of(once)
    assert ours.secrets == theirs.secrets
    assert ours.left_out == {**theirs.left_out, "that begin at the word where another one does": len(ours.secrets)}
    assert "that begin at the word where another one does" in text_in(carry_out(WeightsStudy(twice), tmp_path / "a"))


def test_the_first_reading_shown_is_the_one_that_is_counted(played: Run, tmp_path: Path) -> None:
    """What is stated of a field is of its most plausible reading, however often another one was drawn."""
    run = Run.load(shutil.copytree(played.path, tmp_path / "a"))
    surest = read_table(run, rng=rng()).fields[0].name
    record = run.record(surest)
    often, once = (dict(record["attempts"][0]) for _ in range(2))
    length = len(record["tokens"])
    for attempt, token, chance in ((often, 10, 0.3), (once, 11, 0.9)):
        attempt |= {"tokens": [token] * length, "pieces": [f"w{token}"] * length, "text": f"w{token}",
                    "target": [chance] * length}  # fmt: skip
    file = run.folder(surest) / "unit.json"
    file.write_text(json.dumps({**record, "attempts": [often, often, once]}))
    chosen = next(field for field in read_table(run, rng=rng()).fields if field.name == surest)
    assert chosen.guess == "w11"
    shown = exhibit(run, 1, run.record(surest))["guesses"]
    assert [(guess["pieces"][0]["text"], guess["times"]) for guess in shown] == [(" w11", 1), (" w10", 2)]
