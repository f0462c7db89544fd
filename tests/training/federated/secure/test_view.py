"""What the server sees of one silo: uniform words, though the update is all zeros; masks as another library makes them.

Three views, each with all that the server may learn besides: the words as they came; a survivor's after its seed was
recovered; those of a silo whose words come late, after its mask key was recovered. A mask broken on purpose is caught
in at least one of them by the same check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from docleak.training.federated.secure import silo
from docleak.training.federated.secure.fixed_point import Words
from docleak.training.federated.secure.keys import mask_keys, self_mask_key
from docleak.training.federated.secure.messages import Advert
from docleak.training.federated.secure.primitives import CHUNK, add_masks

Make = Callable[..., Any]
WORDS = 4 * CHUNK
#: Chance of one good view among all here being called bad is below 1 %: 3 views x 70 values.
SMALLEST_P = 1e-5


def p_values(words: Words) -> list[float]:
    """Chi-square of each byte's values, and of each byte's difference to the word 1, 2, 4, ... places on."""
    lags = [1 << k for k in range((words.size // 2).bit_length())]
    rows = [words, *(words[lag:] - words[:-lag] for lag in lags if lag < words.size)]
    counts = [np.bincount(row.view(np.uint8)[byte::4], minlength=256) for row in rows for byte in range(4)]
    return [float(stats.chisquare(count).pvalue) for count in counts]


def looks_uniform(words: Words) -> bool:
    return min(p_values(np.ascontiguousarray(words))) > SMALLEST_P


def views(case: Any) -> dict[str, Words]:
    """The server's views of silo-0, computed with what the protocol lets it learn, from the states' own secrets."""
    _, shared, deliveries = case.until_shared()
    _, _, sent = silo.mask(shared["silo-0"], deliveries["silo-0"], case.inputs["silo-0"], case.identities["silo-0"])
    survivor, late = sent.copy(), sent.copy()
    add_masks(survivor, [], [self_mask_key(case.session, "silo-0", shared["silo-0"].seed)])
    adverts = [Advert.from_bytes(data) for data in shared["silo-0"].adverts.values()]
    plus, minus = mask_keys(case.session, shared["silo-0"].keys.mask_secret, "silo-0", adverts)
    add_masks(late, minus, plus)
    return {"as sent": sent, "survivor": survivor, "late": late}


def zeros(make_round: Make, **choices: int) -> Any:
    case = make_round(3, words=WORDS, **choices)
    return replace(case, inputs={name: np.zeros(WORDS, np.uint32) for name in case.session.silos})


def test_each_view_of_a_silo_is_uniform(make_round: Make) -> None:
    for name, words in views(zeros(make_round)).items():
        assert looks_uniform(words), name


def test_views_of_two_rounds_and_of_two_silos_are_unrelated(make_round: Make) -> None:
    """A mask used twice would cancel in the difference."""
    first, second = views(zeros(make_round)), views(zeros(make_round, round_number=2))
    for name in first:
        assert looks_uniform(first[name] - second[name]), name
    sent = {name: words for name, (_, words) in zeros(make_round).until_masked()[2].items()}
    assert looks_uniform(sent["silo-0"] - sent["silo-1"])
    assert looks_uniform(sent["silo-0"] + sent["silo-1"])
    everything = sent["silo-0"] + sent["silo-1"] + sent["silo-2"]
    assert looks_uniform(everything), "without the seeds, not even the sum is known"


def test_one_word_over_many_rounds_is_uniform(make_round: Make) -> None:
    """The same update each round: the words vary with the keys alone."""
    seen = []
    for number in range(250):
        case = make_round(2, words=4, round_number=number)
        seen.append(case.until_masked()[2]["silo-0"][1] - case.inputs["silo-0"])
    values = np.array(seen).ravel()
    assert stats.kstest(values / 2**32, "uniform").pvalue > 1e-3
    assert len(set(values.tolist())) >= values.size - 2


def no_masks(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    pass


def no_self_mask(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    add_masks(words, plus[:-1], minus)


def no_pairwise_masks(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    add_masks(words, plus[-1:], [])


def restarted_streams(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    for start in range(0, words.size, CHUNK):
        add_masks(words[start : start + CHUNK], plus, minus)


def masks_of_31_bits(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    mask = np.zeros_like(words)
    add_masks(mask, plus, minus)
    words += mask & 0x7FFFFFFF


def masks_of_every_second_word(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    add_masks(words[::2], plus, minus)


@pytest.mark.parametrize(
    "broken",
    [no_masks, no_self_mask, no_pairwise_masks, restarted_streams, masks_of_31_bits, masks_of_every_second_word],
)
def test_a_broken_mask_is_caught(
    make_round: Make, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., None]
) -> None:
    monkeypatch.setattr(silo, "add_masks", broken)
    masked = views(zeros(make_round))
    assert not all(looks_uniform(words) for words in masked.values())


def test_the_masks_are_those_of_another_library(make_round: Make) -> None:
    """Every silo's masked words, from the secrets in the states, by pycryptodome: X25519, HKDF, AES-CTR."""
    aes = pytest.importorskip("Crypto.Cipher.AES")
    dh = pytest.importorskip("Crypto.Protocol.DH")
    kdf = pytest.importorskip("Crypto.Protocol.KDF")
    sha256 = pytest.importorskip("Crypto.Hash.SHA256")
    case = make_round(4, words=CHUNK + 5)
    _, shared, deliveries = case.until_shared()
    session = case.session

    def stream(key: bytes) -> np.ndarray:
        cipher = aes.new(key, aes.MODE_CTR, nonce=b"", initial_value=0)
        return np.frombuffer(cipher.encrypt(bytes(4 * session.words)), "<u4").astype(object)

    def hkdf(secret: bytes, info: bytes) -> bytes:
        return kdf.HKDF(secret, 32, b"", sha256, context=info)

    def pair_stream(own: str, other: str) -> np.ndarray:
        private = dh.import_x25519_private_key(shared[own].keys.mask_secret)
        advert = Advert.from_bytes(shared[own].adverts[other])
        ends = sorted([(own, private.public_key().export_key(format="raw")), (other, advert.mask_key)])
        info = session.statement("mask", *ends[0], *ends[1])
        public = dh.import_x25519_public_key(advert.mask_key)
        key = dh.key_agreement(static_priv=private, static_pub=public, kdf=lambda secret: hkdf(secret, info))
        return stream(key)

    for name in session.silos:
        expected = case.inputs[name].astype(object)
        expected = expected + stream(hkdf(shared[name].seed, session.statement("self mask", name)))
        for other in session.silos:
            if other != name:
                expected = expected + pair_stream(name, other) * (1 if name < other else -1)
        _, _, words = silo.mask(shared[name], deliveries[name], case.inputs[name], case.identities[name])
        assert words.tolist() == (expected % 2**32).tolist()
