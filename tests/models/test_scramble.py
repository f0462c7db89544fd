"""What an adversary does not know is replaced by random tokens, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from docleak.documents import Page
from docleak.documents.synthetic import make_pages
from docleak.models import DocumentModel, Encoded, load_model


@pytest.fixture(scope="module")
def donut() -> DocumentModel:
    return load_model("donut-start")


@pytest.fixture(scope="module")
def layoutlmv3() -> DocumentModel:
    return load_model("layoutlmv3-start")


def example_of(model: DocumentModel) -> tuple[Page, Encoded]:
    page = make_pages(1, seed=0, size=model.image_size)[0]
    return page, model.encode(page, page.questions[0])


def scrambled(model: DocumentModel, example: Encoded, *, seed: int = 0, **what: bool) -> Encoded:
    return model.scramble(example, generator=torch.Generator().manual_seed(seed), **what)


def ids_of(example: Encoded) -> torch.Tensor:
    return torch.cat([example.tensors["decoder_input_ids"], example.tensors["labels"][-1:]])


def same(a: Encoded, b: Encoded) -> bool:
    return a.tensors.keys() == b.tensors.keys() and all(torch.equal(a.tensors[k], b.tensors[k]) for k in a.tensors)


@pytest.mark.parametrize(("question", "answer"), [(True, False), (False, True), (True, True)])
def test_donut(donut: DocumentModel, question: bool, answer: bool) -> None:
    _, example = example_of(donut)
    before = {key: value.clone() for key, value in example.tensors.items()}
    other = scrambled(donut, example, question=question, answer=answer)
    old, new = ids_of(example), ids_of(other)
    prompt = len(example.tensors["prompt_ids"])
    tokenizer: Any = donut.tokenizer  # type: ignore[attr-defined]
    special = torch.isin(old, torch.tensor(tokenizer.all_special_ids))
    changed = old != new
    assert {k: v.shape for k, v in other.tensors.items()} == {k: v.shape for k, v in example.tensors.items()}
    assert not changed[special].any(), "tags and special tokens stay"
    assert not torch.isin(new[~special], torch.tensor(tokenizer.all_special_ids)).any()
    for part, wanted in ((slice(None, prompt), question), (slice(prompt, None), answer)):
        share = float(changed[part][~special[part]].float().mean())
        assert share > 0.8 if wanted else share == 0
    assert torch.equal(other.tensors["prompt_ids"], new[:prompt])
    assert torch.equal(other.tensors["labels"][prompt - 1 :], new[prompt:])
    assert (other.tensors["labels"][: prompt - 1] == -100).all()
    assert other.tokens == tuple(tokenizer.convert_ids_to_tokens(new.tolist()))
    assert all(torch.equal(before[key], value) for key, value in example.tensors.items()), "the client's own changed"


def test_layoutlmv3_question(layoutlmv3: DocumentModel) -> None:
    page, example = example_of(layoutlmv3)
    other = scrambled(layoutlmv3, example, question=True, answer=False)
    tokenizer: Any = layoutlmv3.tokenizer  # type: ignore[attr-defined]
    old, new = example.tensors["input_ids"], other.tensors["input_ids"]
    specials = torch.tensor(tokenizer.all_special_ids)
    asked = (example.tensors["word_ids"] < 0) & ~torch.isin(old, specials)
    assert old.shape == new.shape
    assert torch.equal(old[~asked], new[~asked])
    assert float((old != new)[asked].float().mean()) > 0.8
    assert not torch.isin(new[asked], specials).any()
    for key in ("bbox", "start", "end", "word_ids"):
        assert torch.equal(example.tensors[key], other.tensors[key])
    assert other.words_seen == example.words_seen
    words = tuple(w.text for w in page.words)
    assert other.tokens == (*tokenizer.convert_ids_to_tokens(new.tolist()), *words), "the tokens tell the question"


def test_layoutlmv3_answer(layoutlmv3: DocumentModel) -> None:
    _, example = example_of(layoutlmv3)
    spans = set()
    for seed in range(10):
        other = scrambled(layoutlmv3, example, question=False, answer=True, seed=seed)
        start, end = int(other.tensors["start"]), int(other.tensors["end"])
        spans.add((start, end))
        assert start <= end
        assert int(other.tensors["word_ids"][start]) >= 0 and int(other.tensors["word_ids"][end]) >= 0
        for key in ("input_ids", "bbox", "word_ids"):
            assert torch.equal(example.tensors[key], other.tensors[key])
    assert len(spans) > 5


def test_layoutlmv3_draws_no_special_token_wherever_they_stand(layoutlmv3: DocumentModel) -> None:
    """The real LayoutLMv3's <mask> is the last of its vocabulary, not among the first."""
    from docleak.models.layoutlmv3 import LayoutLMv3

    class Last:
        all_special_ids = (0, 1, 2, 3, 6)

        def __len__(self) -> int:
            return 7

        def get_added_vocab(self) -> dict[str, int]:
            return {"<mask>": 6}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [str(i) for i in ids]

    model = LayoutLMv3(layoutlmv3.module, Last())
    tensors = {"input_ids": torch.tensor([0] + [5] * 200 + [2]), "word_ids": torch.full((202,), -1)}
    other = scrambled(model, Encoded(tensors), question=True, answer=False)
    assert set(other.tensors["input_ids"].tolist()) == {0, 2, 4, 5}


@pytest.mark.parametrize("name", ["donut", "layoutlmv3"])
def test_what_is_known_stays_and_the_generator_decides(name: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    _, example = example_of(model)
    assert same(scrambled(model, example, question=False, answer=False), example)
    one, two, three = (scrambled(model, example, question=True, answer=True, seed=s) for s in (1, 1, 2))
    assert same(one, two)
    assert not same(one, three)
