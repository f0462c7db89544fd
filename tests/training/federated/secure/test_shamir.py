"""Shamir's shares: any threshold of them give the secret, one fewer are compatible with every secret."""

from __future__ import annotations

import secrets
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docleak.errors import FederationError
from docleak.training.federated.secure.shamir import PRIME, SHARE_BYTES, combine, split


@given(secret=st.binary(min_size=32, max_size=32), count=st.integers(1, 6), data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_subset_of_threshold_shares_gives_the_secret(secret: bytes, count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, count))
    points = data.draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count, unique=True))
    shares = split(secret, threshold, points, entropy=secrets.token_bytes)
    for chosen in combinations(points, threshold):
        assert combine({point: shares[point] for point in chosen}, threshold) == secret
    assert combine(shares, threshold) == secret
    assert combine(dict(list(shares.items())[: threshold - 1]), threshold) is None


def test_the_published_example_of_a_polynomial() -> None:
    """secret + 5 x + 7 x^2, its coefficients put in through the entropy, at x = 1, 2, 3."""
    drawn = iter([(5 << 7).to_bytes(SHARE_BYTES), (7 << 7).to_bytes(SHARE_BYTES)])
    shares = split((1234).to_bytes(32), 3, [1, 2, 3], entropy=lambda count: next(drawn))
    assert [int.from_bytes(shares[x]) for x in (1, 2, 3)] == [1234 + 5 * x + 7 * x * x for x in (1, 2, 3)]


def test_too_few_shares_fit_every_secret() -> None:
    """Perfect secrecy, by hand: with threshold 2, one share and any claimed secret lie on a line of the field."""
    shares = split(b"\x11" * 32, 2, [1, 2], entropy=secrets.token_bytes)
    for claimed in (0, 1, 2**256 - 1):
        slope = (int.from_bytes(shares[1]) - claimed) % PRIME
        fabricated = (claimed + 2 * slope) % PRIME
        assert combine({1: shares[1], 2: fabricated.to_bytes(SHARE_BYTES)}, 2) == claimed.to_bytes(32)


def test_a_value_beyond_32_bytes_is_no_secret() -> None:
    for value, secret in ((2**256 - 1, b"\xff" * 32), (2**256, None), (2**260, None), (PRIME - 1, None)):
        assert combine({1: value.to_bytes(SHARE_BYTES)}, 1) == secret


def test_one_share_is_uniform_whatever_the_secret() -> None:
    """Its top byte over many sharings of one secret; a sharing without random coefficients fails the same check."""

    def chi_square(shares: list[bytes]) -> float:
        tops = [int.from_bytes(share) >> 513 for share in shares]
        return sum((tops.count(value) - len(tops) / 256) ** 2 / (len(tops) / 256) for value in range(256))

    real = [split(bytes(32), 2, [1, 2], entropy=secrets.token_bytes)[1] for _ in range(4096)]
    assert chi_square(real) < 255 + 6 * (2 * 255) ** 0.5
    planted = [
        split(bytes(32), 2, [1, 2], entropy=lambda count: secrets.token_bytes(count // 2).rjust(count, b"\0"))[1]
    ]
    assert chi_square(planted * 4096) > 255 + 6 * (2 * 255) ** 0.5


def test_wrong_shares_do_not_give_the_secret() -> None:
    secret = secrets.token_bytes(32)
    shares = split(secret, 3, [1, 2, 3], entropy=secrets.token_bytes)
    wrong = {**shares, 2: (int.from_bytes(shares[2]) ^ 1).to_bytes(SHARE_BYTES)}
    assert combine(wrong, 3) != secret
    assert combine({**shares, 2: shares[2][:-1]}, 3) is None
    assert combine({1: shares[1], 2: shares[3], 3: shares[2]}, 3) != secret


@pytest.mark.parametrize(
    ("secret", "threshold", "points"),
    [
        (b"short", 2, [1, 2]),
        (bytes(32), 3, [1, 2]),
        (bytes(32), 0, [1, 2]),
        (bytes(32), 2, [1, 1]),
        (bytes(32), 2, [0, 1]),
    ],
)
def test_what_cannot_be_shared(secret: bytes, threshold: int, points: list[int]) -> None:
    with pytest.raises(FederationError, match="expected"):
        split(secret, threshold, points, entropy=secrets.token_bytes)
