"""The charts of reports: the same numbers make the same bytes, so that a report begun again is the same report."""

from __future__ import annotations

import pytest

from docleak.evidence.answers import report
from docleak.studies.updates.reading import chart

ATTACK = {"accuracy": 0.5, "low": 0.4, "high": 0.6, "members": 8, "providers": 16}


def test_the_table_of_local_steps_is_drawn_the_same_twice() -> None:
    cells = [
        {"steps": steps, "batch_size": 1, "words": {"recall": 0.5 / steps}, "pictures": {"why": "text"}}
        for steps in (1, 2)
    ]
    assert chart(cells).startswith("<svg")
    assert chart(cells) == chart(cells)


def test_releases_are_drawn_the_same_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "comparison", lambda record: {"anls": {"value": record["anls"]}, "attack": ATTACK})
    records = [{"label": "one", "anls": 0.3}, {"label": "two", "anls": 0.8}]
    assert report.chart(records).startswith("<svg")
    assert report.chart(records) == report.chart(records)
