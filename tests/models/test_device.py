"""Seeds of torch's generators."""

from __future__ import annotations

import pytest
import torch

from docleak.models.device import seed_torch


def test_a_seed_gives_torchs_own_numbers() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = torch.rand(8)
        seed_torch(7)
        assert torch.equal(torch.rand(8), expected)


def test_an_accelerator_is_seeded_where_it_is_at_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    for at_work in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda at_work=at_work: at_work)
        with torch.random.fork_rng(devices=[]):
            seed_torch(3)
    assert seeded == [3]
