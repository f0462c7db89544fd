"""The ladder from the tiny Donut to the published one, and its memory, in miniature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.donut_ladder import BASE, FOUR, RUNGS, TINY, as_markdown, attack_of, build, climb, page_of
from scripts.donut_memory import UNCOUNTED, WAYS, largest, peaks


def test_a_rung_differs_from_its_neighbour_in_what_its_name_says() -> None:
    assert [field.key for field in page_of(TINY, 0).private_fields] == [
        field.key for field in page_of(RUNGS["all fields"], 0).private_fields
    ][:2]
    draws = {name: attack_of(rung).whitening.draws for name, rung in RUNGS.items()}
    assert {name for name, count in draws.items() if count == 4} == {name for name in RUNGS if "4 draws" in name}
    assert set(draws.values()) == {4, 16}
    assert RUNGS["Donut-base"] == BASE and build(FOUR, 0).module.config.encoder.depths == [2, 2, 2, 2]


def test_a_rung_is_climbed_and_told() -> None:
    record = climb(replace(TINY, fields=1, budget=22), seed=0)
    assert [look["evaluations"] for look in record["looks"]] == [20, 22]
    assert record["fields"] == 1 and 0 < record["unknowns"] < 2000
    assert record["looks"][1]["matching"] < record["looks"][0]["matching"]
    row = next(line for line in as_markdown({"short": {**record, "commit": "c"}}, 0).splitlines() if "| short" in line)
    assert f"| {record['unknowns']:,} | {record['looks'][-1]['read']:.0f} of {record['ceiling']}" in row


def test_fewer_tensors_and_blocks_computed_anew_take_less_memory() -> None:
    rung = replace(FOUR, depths=(1, 1, 2, 1))
    (before, whole), (_, shallow), (_, anew) = (peaks(rung, way) for way in WAYS[:3])
    assert before < anew < 0.8 * shallow < 0.8 * whole
    parameters = sum(p.numel() for p in build(rung, 0).module.parameters())
    assert before >= 2 * 4 * parameters / 1e9


def test_the_largest_page_is_the_last_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.donut_memory.STEPS", range(4, 9))
    rung = replace(FOUR, depths=(1, 1, 2, 1))
    machine = UNCOUNTED + peaks(replace(rung, size=(360, 480)), "shallow")[1]
    assert largest(rung, "shallow", machine) == (360, 480)
    assert largest(rung, "shallow", machine - 1e-4) == (300, 400)
    assert UNCOUNTED + peaks(replace(rung, size=(420, 560)), "shallow, recompute=yes")[1] < machine
