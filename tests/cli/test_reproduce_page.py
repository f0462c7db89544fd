"""The commands of docs/reproduce.md at paper scale, as the page prints them, on mirrors and small published layouts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docleak.errors import RunError
from docleak.models.published import PUBLISHED, make
from docleak.recipes import find_recipe, list_recipes
from docleak.recipes.rehearsal import PARTS, Rehearsed, rehearse
from docleak.runs.pool import results
from docleak.studies.study import TableRow
from tests.cli.published_layouts import LAYOUTS

Command = Callable[..., tuple[Any, str, str]]

PAGE = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
#: What the page calls a model -> the checkpoint that its mirror is of.
MIRRORED = {
    "donut": "donut-base", "layoutlmv3": "layoutlmv3-base", "layoutlm": "layoutlm-base-uncased",
    "bros": "bros-base-uncased", "vt5": "vt5-base-spdocvqa", "aligner": "clip-vit-base-patch32", "language": "gpt2",
    "tuned_on": "layoutlm-base-uncased", "resnet": "resnet-50", "trocr": "trocr-base-printed",
    "google-t5/t5-base": "t5-base", "facebook/vit-mae-base": "vit-mae-base",
}  # fmt: skip
#: Models of two checkpoints.
PAIRED = {"pair=DIR+DIR": ("resnet-50", "bert-large-uncased")}
#: Of a paper's table the rows that are rehearsed here, and how many these are.
ROWS = {
    "gi-dqa": ("Random", 2), "cdmi": ("MLM, FUNSD, unimodal, Prec", 2), "fedocvqa": ("K = 10, C = 0.7", 1),
    "mmgia": ("epsilon 5, B = 2", 1), "pfl-docvqa": ("AZK: G1 + G4", 1),
}  # fmt: skip


def lines(beginning: str) -> list[list[str]]:
    """The words of the page's command lines that begin so."""
    return [
        shlex.split(line) for line in re.findall(r"^\$ docleak (.*)$", PAGE, re.MULTILINE) if line.startswith(beginning)
    ]


def line_of(paper: str) -> list[str]:
    """The page's rehearsal of a table of the paper, with all that it reads."""
    (words,) = (words for words in lines(f"reproduce {paper}/") if "--rehearse" in words and "--model" in words)
    return words


def filled(words: list[str], folder: Path) -> list[str]:
    """The words with a mirror, or a small data set, in the place of each DIR and each name of the hub."""

    def mirror(checkpoint: str) -> str:
        return _mirror(checkpoint, folder)

    def data(name: str) -> str:
        if not (folder / name).exists():
            LAYOUTS[name](folder / name)
        return str(folder / name)

    def fill(word: str) -> str:
        before, sign, after = word.partition("DIR")
        if word in MIRRORED:
            return mirror(MIRRORED[word])
        if word in PAIRED:
            return f"{before}{'+'.join(map(mirror, PAIRED[word]))}"
        if not sign or before == "fedocvqa=" or not before:
            return f"{before}{folder / 'assembled' if sign else ''}{after}"
        name = before[:-1]
        return f"{before}{mirror(MIRRORED[name]) if name in MIRRORED else data(name)}{after}"

    return [fill(word) for word in words]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where mirrors and data sets are made, each by the first test that reads it; nobody writes into them."""
    return tmp_path_factory.mktemp("given")


@pytest.mark.slow
@pytest.mark.parametrize("paper", ROWS)
def test_a_line_of_the_page_runs_on_what_is_published(
    paper: str, command: Command, tmp_path: Path, given: Path
) -> None:
    if paper == "fedocvqa":
        mirrored("assembled", given, command)
    only, count = ROWS[paper]
    code, out, err = command(*filled(line_of(paper), given), "--rows", only, "--out", "run", "--json")
    assert code == 0 and json.loads(out)["stopped"] == {}, err
    rows = json.loads((tmp_path / "run" / "rehearsal.json").read_text())["rows"]
    assert len(rows) == count
    assert all(row["seconds"] and row["estimate"] and not row["missing"] and not row["stops"] for row in rows)


#: What the tables of a paper read at paper scale: --model NAME -> checkpoint, or checkpoints.
MODELS = {
    "gi-dqa": {
        "donut": "donut-base", "layoutlmv3": "layoutlmv3-base", "donut-start": "donut-base",
        "donut-trained": "donut-base", "layoutlmv3-start": "layoutlmv3-base", "layoutlmv3-trained": "layoutlmv3-base",
        "start": "layoutlmv3-base", "trained": "layoutlmv3-base",
    },
    "cdmi": {
        "layoutlm": "layoutlm-base-uncased", "bros": "bros-base-uncased", "resnet": "resnet-50",
        "tuned_on": "layoutlm-base-uncased", "bert": "bert-base-uncased",
    },
    "fedocvqa": {"fedocvqa": "assembled"},
    "mmgia": {
        "pair": "resnet-50+bert-large-uncased", "lenet5": "lenet5+bert-large-uncased",
        "resnet18": "resnet-18+bert-large-uncased", "resnet50": "resnet-50+bert-large-uncased",
        "tinybert4": "resnet-50+tinybert-general-4l-312d", "bert-base": "resnet-50+bert-base-uncased",
        "bert-large": "resnet-50+bert-large-uncased", "clip-vit-base-patch32": "clip-vit-base-patch32",
        "pubmed-clip-vit-base-patch32": "clip-vit-base-patch32", "gpt2": "gpt2",
    },
    "pfl-docvqa": {"vt5": "vt5-base-spdocvqa"},
}  # fmt: skip
DOCUMENTS = {
    "gi-dqa": ("pfl-docvqa:DIR",), "cdmi": ("funsd:DIR", "sroie:DIR"), "pfl-docvqa": ("pfl-docvqa:DIR",),
    "mmgia": ("openi:DIR", "cifar100:DIR", "flickr30k:DIR", "nlvr-true:DIR"),
    "fedocvqa": ("due:DIR/wtq/train", "due:DIR/docvqa/train", "due:DIR/tabfact/train"),
}  # fmt: skip
#: What else is given: pages of Donut that are not of 1920 x 2560 pixels, pictures that are not of 224 x 224.
OTHERS = {
    "mmgia": ["--image-size", "pair=64x64"],
    "gi-dqa": ["--ocr", "rapidocr", *(word for name in ("donut", "donut-start", "donut-trained")
                                      for word in ("--image-size", f"{name}=160x224"))],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("paper", MODELS)
def test_every_table_of_a_paper_is_rehearsed_on_mirrors(
    paper: str, command: Command, tmp_path: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process, as each of the forty takes seconds to begin; those of their own: the test above.
    monkeypatch.setattr("docleak.recipes.rehearsal.results", lambda *a, apart, **more: results(*a, **more))
    words = OTHERS.get(paper, []).copy()
    for documents in DOCUMENTS[paper]:
        words += ["--documents", documents]
    words = filled(words, given)
    for model, checkpoints in MODELS[paper].items():
        words += ["--model", f"{model}={mirrored(checkpoints, given, command)}"]
    code, out, err = command(
        "reproduce", paper, "--scale", "paper", "--rehearse", "--fewest", *words, "--out", "run", "--json"
    )
    assert code == 0 and json.loads(out)["stopped"] == {}, err
    rows = json.loads((tmp_path / "run" / "rehearsal.json").read_text())["rows"]
    tables = [name for name, recipe in list_recipes().items() if "paper" in recipe.scales and name.startswith(paper)]
    assert sorted(row["recipe"] for row in rows) == sorted(tables)
    assert all(row["seconds"] and row["estimate"] and not row["missing"] for row in rows)


def mirrored(checkpoints: str, folder: Path, command: Command) -> str:
    """Mirrors of checkpoints that are joined by a plus, where they are made; T5 and MAE assembled."""
    if checkpoints == "assembled":
        if not (folder / "assembled").exists():
            (assembling,) = lines("models assemble fedocvqa")
            code, _, err = command(*filled(assembling, folder))
            assert code == 0, err
        return str(folder / "assembled")
    return "+".join(part if part == "lenet5" else _mirror(part, folder) for part in checkpoints.split("+"))


def _mirror(checkpoint: str, folder: Path) -> str:
    place = folder / checkpoint
    if not place.exists():
        make(checkpoint, place, seed=0, scale="narrow")
    return str(place)


def test_all_tables_take_of_what_is_given_what_they_have_a_use_for(
    command: Command, tmp_path: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {name: find_recipe(name) for name in ("gi-dqa/table1", "cdmi/control")}
    monkeypatch.setattr("docleak.recipes.list_recipes", lambda: two)
    asked = filled(["--documents", "pfl-docvqa:DIR", "--ocr", "trocr:DIR", "--seed", "3"], given)
    code, _, err = command("reproduce", "all", "--scale", "paper", "--rehearse", *asked, "--out", "run", "--json")
    assert code == 0, err
    rows = json.loads((tmp_path / "run" / "rehearsal.json").read_text())["rows"]
    assert {(row["recipe"], lack["option"]) for row in rows for lack in row["missing"]} == {
        ("gi-dqa/table1", "--model donut=DIR"), ("gi-dqa/table1", "--model layoutlmv3=DIR"),
        ("cdmi/control", "--model layoutlm=DIR"), ("cdmi/control", "--documents funsd:DIR"),
        ("cdmi/control", "--documents sroie:DIR"),
    }  # fmt: skip
    assert "So far" not in (tmp_path / "run" / "rehearsal.md").read_text()
    code, _, err = command("reproduce", "cdmi", "--scale", "paper", "--rehearse", "--out", "paper", "--json")
    assert code == 0, err
    rows = json.loads((tmp_path / "paper" / "rehearsal.json").read_text())["rows"]
    assert {row["recipe"] for row in rows} == {"cdmi/control"}
    few = "FUNSD, Last (layoutlm)|APRIL"
    code, _, err = command("reproduce", "all", "--scale", "paper", "--rehearse", "--rows", few, "--out", "few")
    assert code == 0, err
    page = (tmp_path / "few" / "rehearsal.md").read_text()
    assert "## Some rows of tables and figures, rehearsed" in page
    assert "| cdmi/control | 1 of 8 |" in page and "| gi-dqa/table1 | 2 of 14 |" in page
    code, _, err = command("reproduce", "all", "--scale", "paper", "--rehearse", "--rows", "APRIL", "--out", "one")
    assert code == 0 and "cdmi" not in (tmp_path / "one" / "rehearsal.md").read_text()
    code, _, err = command("reproduce", "all", "--scale", "paper", "--rehearse", "--rows", "nothing", "--out", "other")
    assert code == 1 and "no table has a row with 'nothing' in its name at scale 'paper'" in err
    idle = "--model vt5=somewhere", "--documents synthetic", "--rounds 3"
    words = " ".join(idle).split()
    code, _, err = command("reproduce", "all", "--scale", "paper", "--rehearse", *asked, *words, "--out", "other")
    assert code == 1 and f"{', '.join(idle)}: no recipe of scale paper" in err
    code, _, err = command("reproduce", "all", "--scale", "papers", "--rehearse", "--out", "other")
    assert code == 1 and "unknown scale 'papers'. Did you mean 'paper'? Expected one of" in err
    assert not (tmp_path / "other").exists()


def test_a_rehearsal_that_is_cut_off_leaves_the_tables_it_came_to_and_goes_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {name: find_recipe(name) for name in ("gi-dqa/table1", "gi-dqa/table3")}
    monkeypatch.setattr("docleak.recipes.list_recipes", lambda: two)
    words = ("reproduce", "all", "--rehearse", "--rows", "Random (layoutlmv3)|neither (donut)", "--out", "run")
    done: list[str] = []

    def cut_off(rows: list[TableRow], *more: Any) -> list[Rehearsed]:
        if done:
            raise RunError("cut off")
        done.extend(row.name for row in rows)
        return rehearse(rows, *more)

    with monkeypatch.context() as cutting:
        cutting.setattr("docleak.recipes.rehearsal.rehearse", cut_off)
        code, _, err = command(*words)
    assert code == 1 and "cut off" in err and done == ["Random"]
    assert "So far: 1 of 2 tables and figures" in (tmp_path / "run" / "rehearsal.md").read_text()
    (part,) = (tmp_path / "run" / PARTS / "table" / "rows").iterdir()
    begun, mine = part.with_name("begun"), tmp_path / "run" / "parts" / "mine.txt"
    for folder in (begun, mine.parent):
        folder.mkdir()
    mine.touch()
    first = json.loads((part / "rehearsal.json").read_text())["took"]["seconds"]
    code, _, err = command(*words)
    assert code == 0, err
    rows = json.loads((tmp_path / "run" / "rehearsal.json").read_text())["rows"]
    assert len(rows) == 2 and rows[0]["seconds"] == first, "what ended is not computed again"
    assert {item.suffix for item in (tmp_path / "run").iterdir() if item.is_file()} >= {".md", ".html", ".json"}
    assert not (tmp_path / "run" / PARTS).exists() and mine.is_file()


#: Published checkpoints that no rehearsal above reads -> a command that does.
BESIDE = {
    "donut-base-finetuned-docvqa": "audit gradient --model DIR/donut-base-finetuned-docvqa --image-size 160x224",
    "dit-base": "models assemble vt5 made --text DIR/t5-base --vision DIR/dit-base --allow-pickle",
    "dit-base-finetuned-rvlcdip": "models assemble vt5 made --text DIR/t5-base --vision DIR/dit-base-finetuned-rvlcdip "
                                  "--allow-pickle",
    "trocr-base-handwritten": "audit gradient --model layoutlmv3-start --ocr trocr:DIR/trocr-base-handwritten",
}  # fmt: skip
AUDIT = ["--pages", "1", "--attacks", "random", "--workers", "1", "--out", "run"]


@pytest.mark.parametrize("name", BESIDE)
def test_what_no_rehearsal_reads_goes_into_a_command(name: str, command: Command, tmp_path: Path, given: Path) -> None:
    parts = [word.partition("DIR/") for word in BESIDE[name].split()]
    words = [f"{before}{_mirror(after, given) if sign else after}" for before, sign, after in parts]
    if words[0] == "models":
        code, _, err = command(*words)
        assert code == 0, err
        words = ["audit", "gradient", "--model", "./made"]
    code, _, err = command(*words, *AUDIT)
    assert code == 0, err
    if "--ocr" in words:
        assert name in (tmp_path / "run" / "report.html").read_text()


def test_every_published_checkpoint_is_read_by_a_command_above() -> None:
    read = {*MIRRORED.values(), *BESIDE}
    for named in MODELS.values():
        read |= {part for checkpoints in named.values() for part in checkpoints.split("+")}
    assert {*PUBLISHED} <= read


def test_the_page_has_a_line_of_every_paper() -> None:
    papers = {name.partition("/")[0] for name, recipe in list_recipes().items() if "paper" in recipe.scales}
    assert papers == set(ROWS) and all(line_of(paper) for paper in papers)
