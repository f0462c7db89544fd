"""What is made once: resumed where it was cut off, refused where it was made from something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docleak.errors import RunError
from docleak.runs.artefact import CARD, card_of, made_once


def test_what_is_made_is_made_once(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, int]:
        made.append(len(list((tmp_path / "thing").iterdir())))
        return {"loss": len(made)}

    assert made_once(tmp_path / "thing", make) == made_once(tmp_path / "thing", make) == {"loss": 1}
    assert made == [1], "the card is there before anything else"
    assert card_of(tmp_path / "thing") == {"loss": 1}


def test_what_was_cut_off_goes_on_with_what_is_there(tmp_path: Path) -> None:
    part = tmp_path / "thing" / "part"

    def killed() -> dict[str, int]:
        part.write_text("7")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(tmp_path / "thing", killed)
    assert "made" not in json.loads((tmp_path / "thing" / CARD).read_text())
    assert made_once(tmp_path / "thing", lambda: {"part": int(part.read_text())}) == {"part": 7}


def test_another_start_is_refused_by_its_name_before_and_after_the_end(tmp_path: Path) -> None:
    def stopped() -> dict[str, int]:
        raise KeyboardInterrupt

    for name, make in (("begun", stopped), ("done", dict)):
        try:
            made_once(tmp_path / name, make, given=lambda: {"weights": "a1", "sizes": (3, 4)})
        except KeyboardInterrupt:
            assert name == "begun"
        with pytest.raises(RunError, match=r"was made from other weights \(weights a1, now b2\)"):
            made_once(tmp_path / name, lambda: pytest.fail("refused"), given=lambda: {"weights": "b2", "sizes": [3, 4]})
    again = made_once(tmp_path / "done", lambda: pytest.fail("done"), given=lambda: {"weights": "a1", "sizes": [3, 4]})
    assert again == {}


def test_what_nobody_says_the_origin_of_is_not_taken_over(tmp_path: Path) -> None:
    """As an earlier docleak left it, under another file's name."""
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "target.json").write_text("{}")
    with pytest.raises(RunError, match=r"holds files and no card\.json"):
        made_once(tmp_path / "thing", lambda: pytest.fail("refused"))
    assert [file.name for file in (tmp_path / "thing").iterdir()] == ["target.json"]
