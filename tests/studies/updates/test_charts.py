"""The charts of reports: the same numbers make the same bytes, so that a report begun again is the same report."""

from __future__ import annotations

from docleak.studies.updates.reading import chart


def test_the_table_of_local_steps_is_drawn_the_same_twice() -> None:
    cells = [
        {"steps": steps, "batch_size": 1, "words": {"recall": 0.5 / steps}, "pictures": {"why": "text"}}
        for steps in (1, 2)
    ]
    assert chart(cells).startswith("<svg")
    assert chart(cells) == chart(cells)
