"""``docleak data make --partition``: silos in folders of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from docleak.cli import main
from docleak.documents import load_pages
from docleak.documents.silos import read_silo


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[Any, str, str]:
    """Exit code, standard output and standard error of ``docleak data make WORDS``."""
    monkeypatch.setattr(sys, "argv", ["docleak", "data", "make", *map(str, words)])
    capsys.readouterr()
    code: Any = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code or 0
    return (code, *capsys.readouterr())


def test_without_data_the_silos_hold_synthetic_invoices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "silos", "--partition", 3, "--seed", 1)
    assert code == 0 and "3 silos written to silos" in out and "synthetic-2" in out
    folders = sorted(Path("silos").iterdir())
    assert [read_silo(folder).pages for folder in folders] == [6, 5, 5]
    assert {page.document for folder in folders for page in load_pages(str(folder), seed=0)} == {
        page.document for page in load_pages("synthetic", seed=1)
    }


def test_several_data_sets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared_data: Path
) -> None:
    words = ["out", "--partition", 3, "--count", 3, "--json"]
    for name in ("wtq", "sroie", "tabfact"):
        words += ["--documents", shared_data / name]
    code, out, err = run(monkeypatch, capsys, *words)
    value = json.loads(out)
    assert (
        code == 0
        and "Traceback" not in err
        and [s["name"] for s in value["silos"]] == ["wtq-0", "sroie-0", "tabfact-0"]
    )
    assert [s["documents"] for s in value["silos"]] == [3, 3, 3] and "no train_examples" in "".join(value["notes"])
    assert all(str(shared_data) not in path.read_text() for path in Path("out").rglob("*.json*"))


def test_by_provider(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared_data: Path) -> None:
    data = shared_data / "vrdu_pfl"
    assert (
        run(monkeypatch, capsys, "out", "--partition", 2, "--documents", data, "--by", "providers", "--count", 12)[0]
        == 0
    )
    held = [set(read_silo(folder).providers) for folder in sorted(Path("out").iterdir())]
    assert len(held) == 2 and held[0] and held[1] and not held[0] & held[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--partition", "17"), "17 clients for 16 documents"),
        (("--partition", "0"), "--partition is 0; expected 1 to"),
        (("--partition", "2", "--by", "pages"), "expected one of documents, providers, clients"),
        (("--partition", "2", "--width", "300"), "--width cannot be combined with --partition"),
        (("--documents", "nowhere"), "--documents belongs to --pdf, --blue-red or --partition: give"),
        (("--partition", "2", "--documents", "nowhere"), "neither a format nor an existing path"),
        (("--partition", "2", "--count", "0"), "--count is 0; expected 1 to"),
    ],
)
def test_refusals(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, "out", *words)
    assert code == 1 and said in err and "Traceback" not in err
    assert not list(Path().iterdir())
