"""The benchmark in files: attackers are given no truth, what they hand in is checked, and scores are right."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from docleak.documents.folder import load
from docleak.errors import DocleakError, RunError
from docleak.files import write_png
from docleak.studies.benchmark import scoring
from docleak.studies.benchmark.entering import enter
from docleak.studies.benchmark.export import export
from docleak.studies.benchmark.files import ABOUT, MANIFEST, opened
from docleak.studies.benchmark.scoring import AUC, FIELDS, PSNR, TOKENS, TPR, read_answers, read_key, score
from docleak.studies.benchmark.tracks import TRACKS, VERSION

EXAMPLE = Path(__file__).parents[2] / "examples" / "benchmark_entry.py"
KNOWN = {track.name: track for track in TRACKS}
#: As small as tracks can be.
SMALL = (
    replace(KNOWN["gradient-layoutlmv3"], cases=2),
    replace(KNOWN["sum-layoutlmv3"], cases=1, clients=2),
    replace(KNOWN["lora-llava"], cases=1, rounds=2),
    replace(KNOWN["answers-vt5"], providers=4, documents=1, asked=1, epochs=1),
)
SECRET = 2**100 + 12345


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(folder, key) of a closed benchmark."""
    place = tmp_path_factory.mktemp("benchmark")
    export(place / "b", place / "k", seed=SECRET, public=False, tracks=SMALL)
    return place / "b", place / "k"


@pytest.fixture(scope="module")
def entered(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers of docleak's closed form, made while the key is nowhere."""
    folder, key = made
    answers = tmp_path_factory.mktemp("answers")
    hidden = key.rename(tmp_path_factory.mktemp("elsewhere") / "k")
    try:
        enter(opened(folder), answers, "closed-form", budget=1, seed=0)
    finally:
        hidden.rename(key)
    return answers


@pytest.fixture
def mine(entered: Path, tmp_path: Path) -> Path:
    """A copy of the answers, to be spoiled."""
    return Path(shutil.copytree(entered, tmp_path / "mine"))


def scored(made: tuple[Path, Path], answers: Path, **options: bool) -> dict[str, dict[str, Any]]:
    benchmark = opened(made[0])
    rows = score(benchmark, read_answers(answers, benchmark), read_key(made[1], benchmark), None, **options)
    return {track: {name: value.value for name, value in row.items()} for track, row in rows.items()}


def test_the_training_of_an_export_tells_of_each_epoch(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    track = replace(SMALL[-1], epochs=3)
    export(tmp_path / "b", tmp_path / "k", seed=0, public=True, tracks=(track,), on_case=lambda *one: told.append(one))
    assert told[0] == (0, 4, "answers-vt5-0") and told[1:] == [
        (number, 4, f"answers-vt5-0, epoch {number} of 3") for number in (1, 2, 3)
    ]


def test_what_attackers_are_given_holds_no_truth(made: tuple[Path, Path]) -> None:
    folder, key = made
    values = {field.value for page in load(key) for field in page.private_fields}
    told = json.loads((key / "key.json").read_text())
    assert told["seed"] == str(SECRET) and json.loads((folder / ABOUT).read_text())["seed"] is None
    text = "\n".join(path.read_text() for path in folder.glob("*.json"))
    text += "\n".join(path.read_text() for path in folder.glob("cases/*/case.json"))
    assert len(values) > 10 and not [value for value in (*values, str(SECRET)) if value in text]
    for page, template in zip(load(key), sorted(folder.glob("cases/grad*/template-*.png")), strict=False):
        assert (np.asarray(Image.open(template)) != page.image).any()


def test_the_closed_form_reads_files_alone_and_is_scored(made: tuple[Path, Path], entered: Path) -> None:
    scores = scored(made, entered)
    assert scores["gradient-layoutlmv3"][TOKENS] == 1 and scores["gradient-layoutlmv3"][PSNR] > 60
    assert scores["gradient-layoutlmv3"][FIELDS] > 0.9
    assert scores["sum-layoutlmv3"][TOKENS] == 1 and scores["sum-layoutlmv3"][FIELDS] == 0
    assert 0 <= scores["answers-vt5"][AUC] <= 1


def test_answers_of_two_entries_do_not_mix(made: tuple[Path, Path], entered: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds answers of 'docleak benchmark attack --attack closed-form"):
        enter(opened(made[0]), entered, "random", budget=1, seed=0)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="Pass a new folder"):
        enter(opened(made[0]), tmp_path, "random", budget=1, seed=0)


def test_an_entry_of_another_framework(made: tuple[Path, Path], tmp_path: Path) -> None:
    """The example imports nothing of docleak."""
    assert "import docleak" not in EXAMPLE.read_text() and "from docleak" not in EXAMPLE.read_text()
    runpy.run_path(str(EXAMPLE))["main"](made[0], tmp_path / "a")
    scores = scored(made, tmp_path / "a")
    assert scores["gradient-layoutlmv3"][TOKENS] == 1 and scores["gradient-layoutlmv3"][FIELDS] == 0
    assert scores["lora-llava"][TOKENS] == 0


def test_the_truth_scores_full_and_guessing_everything_does_not(made: tuple[Path, Path], mine: Path) -> None:
    key = made[1]
    told, pages = json.loads((key / "key.json").read_text()), {page.name: page for page in load(key)}
    for name, case in told["cases"].items():
        answer = {"scores": {p: float(m) for p, m in case["members"].items()}} if "members" in case else {
            "tokens": case["tokens"], "words": [
                {"text": word.text, "box": list(word.box), "page": number}
                for number, page in enumerate(case["pages"]) for word in pages[page].words
            ]}  # fmt: skip
        (mine / name / "answer.json").write_text(json.dumps(answer))
        for number, page in enumerate(case.get("pages", ())):
            write_png(mine / name / f"page-{number}.png", pages[page].image)
    full = scored(made, mine)
    assert all(row[FIELDS] == row[TOKENS] == 1 and row[PSNR] == 100 for row in list(full.values())[:3])
    assert full["answers-vt5"][AUC] == 1
    for name in ("gradient-layoutlmv3-0", "gradient-layoutlmv3-1"):
        (mine / name / "answer.json").write_text(json.dumps({"tokens": list(range(2000))}))
        (mine / name / "page-0.png").unlink()
    poor = scored(made, mine)["gradient-layoutlmv3"]
    assert poor[TOKENS] < 0.5 and poor[FIELDS] == 0 and poor[PSNR] < 30


def test_missing_cases_are_named_and_count_as_zero_only_if_asked(made: tuple[Path, Path], mine: Path) -> None:
    shutil.rmtree(mine / "gradient-layoutlmv3-1")
    shutil.rmtree(mine / "answers-vt5-0")
    with pytest.raises(RunError, match=r"2 of 5 cases have no answer: gradient-layoutlmv3-1, answers-vt5-0\. Answer"):
        scored(made, mine)
    scores = scored(made, mine, missing_as_zero=True)
    assert scores["gradient-layoutlmv3"][TOKENS] == 0.5
    assert scores["answers-vt5"] == {AUC: None, TPR: None}, "a track that was not entered"
    for folder in [path for path in mine.iterdir() if path.is_dir()]:
        shutil.rmtree(folder)
    with pytest.raises(RunError, match="answers none of 5 cases; there is nothing to score"):
        scored(made, mine, missing_as_zero=True)


Spoil = Callable[[Path], object]
ONE = "gradient-layoutlmv3-0"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda a: (a / "entry.json").unlink(), "entry.json cannot be read as JSON"),
        (lambda a: (a / "entry.json").write_text('{"name": "x", "version": 1, "edition": "0"}'), "edition 0; the"),
        (lambda a: (a / "entry.json").write_text('{"name": "x"}'), "version"),
        (lambda a: (a / ONE / "answer.json").write_text('{"tokens": [1,'), "cannot be read as JSON"),
        (lambda a: (a / ONE / "answer.json").write_text('{"tokens": [NaN]}'), "NaN"),
        (lambda a: (a / ONE / "answer.json").write_text('{"token": [1]}'), "token"),
        (lambda a: (a / ONE / "answer.json").write_text('{"tokens": ["a"]}'), "tokens"),
        (lambda a: (a / ONE / "answer.json").write_text('{"scores": {"a": 1.0}}'), "does not ask for"),
        (lambda a: (a / ONE / "answer.json").write_text('{"seconds": -5}'), "-5 seconds; expected 0 or more"),
        (lambda a: (a / ONE / "answer.json").write_text('{"words": [{"text": "a", "box": [0,0,1,1], "page": 3}]}'),
         "there are pages 0 to 0"),
        (lambda a: (a / "answers-vt5-0" / "answer.json").write_text('{"scores": {"a": 1.0}}'), "5 providers"),
        (lambda a: write_png(a / ONE / "page-0.png", np.zeros((8, 9, 3), np.uint8)), "9 x 8 pixels; expected 224"),
        (lambda a: (a / ONE / "page-0.png").write_bytes(b"GIF89a"), "no PNG that can be read"),
        (lambda a: (a / ONE / "page-7.png").write_bytes(b""), "page-7.png is not asked for"),
        (lambda a: (a / ONE / "answer.json").unlink(), "answer.json is missing, and other files are there"),
        (lambda a: (a / "gradient-9").mkdir(), "gradient-9: there is no such case"),
        (lambda a: (a / ONE / "page-7.png").symlink_to(EXAMPLE), "page-7.png is a link, which is not followed"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_refused(spoil: Spoil, said: str, made: tuple[Path, Path], mine: Path) -> None:
    spoil(mine)
    with pytest.raises(DocleakError) as fault:
        read_answers(mine, opened(made[0]))
    assert said in str(fault.value)


def test_a_benchmark_that_was_changed_is_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made[0], tmp_path / "b"))
    case = folder / "cases" / ONE
    (case / "case.json").write_text((case / "case.json").read_text() + " ")
    (case / "update-0.safetensors").unlink()
    (case / "notes.txt").write_text("")
    with pytest.raises(RunError) as fault:
        opened(folder)
    for said in ("case.json was changed", "update-0.safetensors is missing", "notes.txt is no file of the benchmark"):
        assert said in str(fault.value)
    (folder / MANIFEST).unlink()
    with pytest.raises(RunError, match="it is no exported benchmark"):
        opened(folder)


def test_the_key_of_another_edition_is_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    export(tmp_path / "b", tmp_path / "k", seed=1, public=True, tracks=(replace(SMALL[0], cases=1),))
    with pytest.raises(RunError, match="is the key of edition"):
        read_key(tmp_path / "k", opened(made[0]))
    with pytest.raises(RunError, match=r"holds no key\.json"):
        read_key(tmp_path, opened(made[0]))
    with pytest.raises(DocleakError, match="only written to a new folder"):
        export(tmp_path / "b", tmp_path / "k2", seed=1, public=True, tracks=())
    again = export(tmp_path / "b2", tmp_path / "k2", seed=1, public=True, tracks=(replace(SMALL[0], cases=1),))
    assert again["edition"] == opened(tmp_path / "b").edition != opened(made[0]).edition


def test_the_leaderboard_keeps_one_row_of_a_name(made: tuple[Path, Path], entered: Path, tmp_path: Path) -> None:
    benchmark, file = opened(made[0]), tmp_path / "board.json"
    given = read_answers(entered, benchmark)
    row = scoring.row_of(given, score(benchmark, given, read_key(made[1], benchmark), None), "none")
    scoring.enlisted(file, benchmark, row)
    board = scoring.enlisted(file, benchmark, {**row, "about": "again"})
    assert [one["about"] for one in board["rows"]] == ["again"]
    page = file.with_suffix(".md").read_text()
    assert benchmark.edition in page and "docleak closed-form" in page and "seed private" in page
    with pytest.raises(RunError, match="Use one engine"):
        scoring.enlisted(file, benchmark, {**row, "name": "x", "ocr": "other"})
    for odd, said in (([], "row 2 is no object"), ({"name": "x"}, "row 2 lacks about, answered, commit")):
        (tmp_path / "odd.json").write_text(json.dumps({**board, "rows": [*board["rows"], odd]}))
        with pytest.raises(RunError, match=said):
            scoring.enlisted(tmp_path / "odd.json", benchmark, row)
    file.write_text(file.read_text().replace(benchmark.edition, "0" * 16))
    with pytest.raises(RunError, match="is of edition 0000000000000000"):
        scoring.enlisted(file, benchmark, row)


BOARD = Path(__file__).parents[2] / "docs" / "results" / "leaderboard.json"


def test_the_committed_leaderboard_is_of_the_committed_numbers() -> None:
    board = json.loads(BOARD.read_text())
    assert BOARD.with_suffix(".md").read_text() == scoring.as_page(board)
    assert board["benchmark"]["version"] == VERSION and board["benchmark"]["seed"] == 0
    assert board["benchmark"]["tracks"] == {track.name: track.about for track in TRACKS}


#: Of a case of each track of updates; that of all, which the committed rows are of, is compared before a release.
FIRST_CASES = "22250762085b28b7"


def test_the_benchmark_is_frozen(tmp_path: Path) -> None:
    """Forms, models, tracks and case files are those that the committed rows are of; else VERSION goes up."""
    cases = tuple(replace(track, cases=1) for track in TRACKS if track.sent != "answers")
    about = export(tmp_path / "b", tmp_path / "k", seed=0, public=True, tracks=cases)
    assert about["edition"] == FIRST_CASES
