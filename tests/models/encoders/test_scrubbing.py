"""EXTRACT and SCRUB: what is a field of the game, and that nothing of it remains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from docleak.documents import Field, Page, Word
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.scrubbing import SecretField, extract, positions_of, scrub
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder
from docleak.models.encoders.tokens import TokenPage
from docleak.models.encoders.vision import VisionConfig


@pytest.fixture(scope="module")
def model() -> EncoderModel:
    return tiny_encoder("layoutlm", shipped_tokenizer(), seed=0, vision=VisionConfig(size=(96, 128), channels=(4,)))


@pytest.fixture(scope="module")
def page() -> Page:
    return make_pages(1, seed=3)[0]


def fields_of(model: EncoderModel, page: Page) -> tuple[TokenPage, tuple[SecretField, ...]]:
    tokens = model.encode(page)
    return tokens, extract(page, tokens)


def test_fields_spell_their_values(model: EncoderModel, page: Page) -> None:
    tokens, secrets = fields_of(model, page)
    assert secrets
    for secret in secrets:
        text = model.tokenizer.decode(list(secret.tokens)).replace(" ", "")
        assert text == secret.value.lower().replace(" ", "")
        assert 3 <= len(secret.tokens) <= 15
        assert tokens.ids[list(secret.positions)].tolist() == list(secret.tokens)
    lengths = {f.key: len(positions_of(tokens, f.words)) for f in page.private_fields}
    assert {s.key for s in secrets} == {key for key, n in lengths.items() if 3 <= n <= 15}


def test_fields_beyond_the_model_s_length_are_not_in_the_game(model: EncoderModel, page: Page) -> None:
    filler = tuple(Word("padding", (1.0, 1.0, 9.0, 9.0)) for _ in range(600))
    shifted = tuple(Field(f.key, f.value, tuple(w + 600 for w in f.words)) for f in page.fields)
    long = replace(page, words=filler + page.words, fields=shifted)
    assert fields_of(model, long)[1] == ()


def shuffled(page: Page, words: tuple[int, ...], seed: int) -> tuple[Word, ...]:
    """The page's words with other digits in some of them, in the same places."""
    digits = str.maketrans("0123456789", "".join(map(str, np.random.default_rng(seed).permutation(10))))
    return tuple(
        Word(word.text.translate(digits), word.box) if i in words else word for i, word in enumerate(page.words)
    )


def test_nothing_of_the_field_remains(model: EncoderModel, page: Page) -> None:
    """Two pages that differ only in a field, its text and its ink, are the same once it is scrubbed."""
    _, secrets = fields_of(model, page)
    secret = next(s for s in secrets if s.key == "date")
    field = next(f for f in page.fields if f.key == "date")
    image = page.image.copy()
    for i in field.words:
        x0, y0, x1, y1 = (round(v) for v in page.words[i].box)
        image[y0:y1, x0:x1] = np.random.default_rng(0).integers(0, 256, (y1 - y0, x1 - x0, 3), dtype=np.uint8)
    mine = model.encode(page)
    others = (model.encode(replace(page, words=shuffled(page, field.words, n), image=image)) for n in range(500))
    other = next(o for o in others if len(o) == len(mine) and not torch.equal(o.ids, mine.ids))
    assert not torch.equal(other.ids, mine.ids)
    assert mine.image is not None and other.image is not None and not torch.equal(mine.image, other.image)
    a, b = (scrub(tokens, secret.positions, mask_id=4) for tokens in (mine, other))
    assert torch.equal(a.ids, b.ids) and torch.equal(a.boxes, b.boxes) and torch.equal(a.words, b.words)
    assert a.image is not None and b.image is not None and torch.equal(a.image, b.image)
    assert (a.ids[list(secret.positions)] == 4).all()
    kept = torch.ones(len(a), dtype=torch.bool)
    kept[list(secret.positions)] = False
    assert torch.equal(a.ids[kept], mine.ids[kept])
    assert torch.equal(mine.ids, model.encode(page).ids), "the page itself is untouched"


def test_repeats_of_a_value_are_known(model: EncoderModel, page: Page) -> None:
    field = next(f for f in page.fields if f.key == "total")
    again = tuple(page.words[i] for i in field.words)
    doubled = replace(page, words=(*page.words, *again))
    tokens, secrets = fields_of(model, doubled)
    secret = next(s for s in secrets if s.key == "total")
    assert tokens.ids[list(secret.repeats)].tolist()[-len(secret.tokens) :] == list(secret.tokens)
    assert not set(secret.repeats) & set(secret.positions)


@pytest.mark.parametrize("positions", [(), (0,), (10_000,), (-1,)])
def test_what_is_not_on_the_page_is_refused(model: EncoderModel, page: Page, positions: tuple[int, ...]) -> None:
    with pytest.raises(DocumentError, match="is not on it"):
        scrub(model.encode(page), positions, mask_id=4)
