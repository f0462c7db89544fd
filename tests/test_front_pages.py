"""Pages as objects, wherever a study takes documents; in one sentence, what is given instead where it takes none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import docleak
from docleak.documents.folder import save
from docleak.errors import DocleakError
from docleak.models.base import pixels_of
from docleak.models.shipped import CHECKPOINTS
from docleak.runs.run import Run
from docleak.studies.answers.config import DOCUMENTS, Release
from docleak.training.update import client_gradient

MODEL = "layoutlmv3-start"


@pytest.fixture(scope="module")
def pages() -> list[docleak.Page]:
    return list(docleak.load_pages("synthetic", count=4, seed=3))


def one_step(page: docleak.Page, file: Path) -> Path:
    """The weights of MODEL after one step of gradient descent on the page's first question."""
    model = docleak.load_model(MODEL)
    fitted = model.fit(page)
    gradient = client_gradient(model, pixels_of(fitted.image)[None], [model.encode(fitted, fitted.questions[0])])
    save_file({n: (p.detach() - 0.1 * gradient[n]).contiguous() for n, p in model.module.named_parameters()
               if n in gradient}, file)  # fmt: skip
    return file


def test_an_update_is_audited_with_pages_as_with_their_folder(pages: list[docleak.Page], tmp_path: Path) -> None:
    page = replace(pages[0], questions=pages[0].questions[:1])
    told: dict[str, Any] = {
        "study": "updates", "before": CHECKPOINTS / MODEL, "after": one_step(page, tmp_path / "after.safetensors"),
        "model": MODEL, "local": "optimiser=sgd,learning_rate=0.1", "attacks": "random", "budget": 1,
        "picture_budget": 1, "steps": (1,), "batch_sizes": (1,),
    }  # fmt: skip
    save([page], tmp_path / "folder")
    given = docleak.audit(pages=[page], out=tmp_path / "given", **told)
    named = docleak.audit(pages=tmp_path / "folder", out=tmp_path / "named", **told)
    assert given.verdict.sentence == named.verdict.sentence
    measured = [run.to_frame().filter(regex=r"^(unit|check|words)") for run in (given, named)]
    assert measured[0].shape[1] > 5 and measured[0].equals(measured[1])
    config = Run.load(tmp_path / "given").config
    assert config["documents"].startswith("1 page given (")
    with pytest.raises(DocleakError, match="documents"):
        docleak.audit(pages=pages[1:2], out=tmp_path / "given", **told)


def test_a_server_manipulates_what_goes_to_given_pages(pages: list[docleak.Page], tmp_path: Path) -> None:
    run = docleak.audit(MODEL, pages, study="servers", servers=("imprint",), out=tmp_path / "run")
    assert len(run.to_frame()) == 1
    with pytest.raises(DocleakError, match="holds a run with another config"):
        docleak.audit(MODEL, pages[::-1], study="servers", servers=("imprint",), out=tmp_path / "run")


def test_documents_by_the_name_of_the_setting(pages: list[docleak.Page], tmp_path: Path) -> None:
    """They ended in "'tuple' object has no attribute 'rpartition'"."""
    by_name = docleak.audit(MODEL, documents=pages[:1], attacks="random", budget=1, out=tmp_path / "run")
    again = docleak.audit(MODEL, pages[:1], attacks="random", budget=1, out=tmp_path / "run")
    assert by_name.to_frame().equals(again.to_frame())


@pytest.mark.parametrize(
    ("study", "instead"),
    [
        ("answers", "Give members and non_members, each of them pages or a data set"),
        ("pairs", "Give pairs, which names a data set"),
        ("training", "Give them to docleak.train"),
        ("trainings", "Give documents, the names of data sets"),
        ("canaries", "Leave them out"),
        ("adapters", "Leave them out"),
    ],
)
def test_what_takes_no_pages_says_what_to_give(
    study: str, instead: str, pages: list[docleak.Page], tmp_path: Path
) -> None:
    with pytest.raises(DocleakError, match=f"the study '{study}' takes no pages. {instead}"):
        docleak.audit(pages=pages, study=study, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_members_may_be_pages(pages: list[docleak.Page], tmp_path: Path) -> None:
    """They are opened as data sets are: five documents of each are asked for."""
    with pytest.raises(DocleakError, match="the sets have 2 and 2 documents; expected 5"):
        docleak.audit(study="answers", releases=(Release("own", "vt5-start"),), division="", measures=DOCUMENTS,
                      members=pages[:2], non_members=pages[2:], out=tmp_path / "run")  # fmt: skip


def test_a_table_reads_data_sets_by_name(pages: list[docleak.Page], tmp_path: Path) -> None:
    with pytest.raises(DocleakError, match=r"documents is .*or several; save pages by docleak"):
        docleak.reproduce("gi-dqa/table1", documents=pages, out=tmp_path / "table")


def test_a_count_reaches_what_is_counted_by_it(tmp_path: Path) -> None:
    with pytest.raises(DocleakError, match="count is 'one'"):
        docleak.audit(study="pairs", count="one", out=tmp_path / "run")  # type: ignore[arg-type]
