"""What people say of an audit: faults of the file in sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from docleak.errors import PolicyError
from docleak.report.about import ABOUT, kept_about, read_about


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"organisation": 5}', "organisation is 5, expected a text"),
        ("{", "cannot be read"),
        ("[]", "holds a list, expected an object"),
        ('{"x": "y", "data": [5]}', "data[0] is 5, expected a text; x is an unknown key"),
        ('{"fields": 5}', "fields is 5, expected a table of texts"),
    ],
)
def test_a_kept_description_that_was_changed(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / ABOUT).write_text(text)
    with pytest.raises(PolicyError) as told:
        kept_about(tmp_path)
    assert said in str(told.value) and "Delete it, or pass --about" in str(told.value)
    assert "pydantic" not in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("organisation = 5", "organisation is 5, expected a text"),
        ("x = 1", "x is an unknown key"),
        ('data = "x"', "data is 'x', expected a list of texts"),
        (f'scope = "{"x" * 601}"', "expected a text of at most 600 characters"),
    ],
)
def test_a_description_with_faults(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "about.toml").write_text(text)
    with pytest.raises(PolicyError) as told:
        read_about(tmp_path / "about.toml")
    assert said in str(told.value) and "It takes organisation" in str(told.value) and "Input" not in str(told.value)


def test_a_description_comes_back(tmp_path: Path) -> None:
    (tmp_path / "about.toml").write_text('organisation = "A"\ndata = ["b"]\nfields = {iban = "bank"}\n')
    about = read_about(tmp_path / "about.toml")
    (tmp_path / ABOUT).write_text(about.model_dump_json())
    assert kept_about(tmp_path) == about and about.data == ("b",)
