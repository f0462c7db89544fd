"""The charts of reports: the same numbers make the same bytes, so that a report begun again is the same report."""

from __future__ import annotations

from docleak.studies.updates.reading import chart, table_of


def test_the_table_of_local_steps_is_drawn_the_same_twice() -> None:
    cells = [
        {"steps": steps, "batch_size": 1, "words": {"recall": 0.5 / steps}, "pictures": {"why": "text"}}
        for steps in (1, 2)
    ]
    assert chart(cells).startswith("<svg")
    assert chart(cells) == chart(cells)


def test_pages_in_a_batch_are_counted() -> None:
    words = {"recall": 1.0, "right": 2, "true": 2, "precision": 1.0}
    table = table_of([{"steps": 1, "batch_size": 2, "words": words, "pictures": {"why": "text"}}])
    assert "2.000" not in table.to_text()
