"""Spans against vectors whose membership is known: rank and cut-off are chosen without it."""

from __future__ import annotations

import pytest
import torch

from docleak.attacks.gradients.algebra.subspace import EPSILON, Rows, Subspace, members

WIDTH, WORDS, READ = 96, 400, 20


def candidates() -> torch.Tensor:
    """Rows with a direction in common, as tables of tokens have."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(WORDS, WIDTH, generator=generator) + torch.randn(WIDTH, generator=generator)


def sent(count: int, *, noise: float = 0.0, seed: int = 1) -> torch.Tensor:
    """``count`` sums over the first READ candidates."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, READ, generator=generator) @ candidates()[:READ]
    return rows + noise * torch.randn(rows.shape, generator=generator)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_members_are_read_and_believed_where_the_span_is_covered(noise: float) -> None:
    space = Subspace.of([Rows(sent(30, noise=noise), noise)])
    reading = members(space, candidates())
    assert reading.taken.nonzero().flatten().tolist() == list(range(READ))
    assert reading.exact and space.rank == READ and space.covered


def test_too_few_rows_are_never_believed_to_be_all() -> None:
    reading = members(Subspace.of([Rows(sent(10))]), candidates())
    assert not reading.exact and not reading.covered
    assert set(reading.taken.nonzero().flatten().tolist()) <= set(range(READ))


def test_rounds_add_up() -> None:
    blocks = [Rows(sent(8, seed=seed)) for seed in range(4)]
    assert members(Subspace.of(blocks), candidates()).exact
    assert not members(Subspace.of(blocks[:1]), candidates()).exact


def test_nothing_is_taken_of_a_foreign_span_or_a_full_one() -> None:
    """A vocabulary is called innocent at least 99 times of 100; 40 foreign spans take nothing more than once."""
    taken = 0
    for seed in range(40):
        rows = torch.randn(READ, WIDTH, generator=torch.Generator().manual_seed(100 + seed))
        taken += bool(members(Subspace.of([Rows(rows)]), candidates()).taken.any())
    assert taken <= 1
    full = torch.randn(2 * WIDTH, WIDTH, generator=torch.Generator().manual_seed(3))
    assert not members(Subspace.of([Rows(full)]), candidates()).taken.any()
    assert not members(Subspace.of([Rows(torch.zeros(4, WIDTH))]), candidates()).taken.any()


def test_rank_ends_at_the_rounding_of_a_sum_in_float32() -> None:
    errors = torch.randn(60, WIDTH, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rows = sent(60).double() * (1 + EPSILON / 2 * errors)
    assert Subspace.of([Rows(rows.float())]).rank == READ
