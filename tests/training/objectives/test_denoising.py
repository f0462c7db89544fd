"""Self-pretraining: the paper's formats worked by hand, an inverse that brings the page back, and training with it."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from docleak.documents.page import Page, Question, Word
from docleak.documents.synthetic import make_pages
from docleak.errors import FederationError, ModelError
from docleak.models import load_model, pixels_of
from docleak.models.base import Encoded
from docleak.models.t5 import FRAME, T5Reader
from docleak.training.federated.local import LocalRound, parameters_of, set_parameters, train_locally
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.objectives.objective import Example, QuestionAnswering, SelfPretraining, denoised, objective_of
from docleak.training.objectives.tasks import LAYOUT_MODELING, TEXT_LAYOUT_MODELING, TEXT_MODELING, Denoising

TASKS = (TEXT_MODELING, LAYOUT_MODELING, TEXT_LAYOUT_MODELING)
BLANK = np.full((100, 200, 3), 255, np.uint8)
TOTAL = Page(
    "total", BLANK,
    words=(Word("Total", (20, 10, 60, 30)), Word("8,50", (100, 10, 140, 31)), Word("EUR", (150, 70, 200, 100))),
)  # fmt: skip


def ready(name: str = "vt5-start", *, resolution: int = 500) -> T5Reader:
    model = load_model(name)
    assert isinstance(model, T5Reader)
    model.add_layout_tokens(generator=torch.Generator().manual_seed(0), resolution=resolution)
    return model


@lru_cache(maxsize=2)
def reader(name: str = "vt5-start") -> T5Reader:
    """One that no test trains."""
    return ready(name)


@lru_cache(maxsize=1)
def invoices() -> tuple[Page, ...]:
    return tuple(make_pages(4, seed=1, split="train", size=(224, 224)))


def said(model: T5Reader, example: Encoded, key: str) -> str:
    return str(model.tokenizer.decode(example.tensors[key].tolist()))


# -- the formats -------------------------------------------------------------------------------------------------------

# 500 places over 200 x 100 pixels: x * 2.5, y * 5.
SECOND, THIRD = "<loc_250><loc_50><loc_350><loc_155>", "<loc_375><loc_350><loc_500><loc_500>"
BY_HAND = {
    "tm": (
        f" text modeling. total<text_0>{SECOND}<text_1>{THIRD}</s>",
        "<text_0> 8,50<text_1> eur</s>",
    ),
    "lm": (
        " layout modeling. total<layout_0> 8,50</layout_0><layout_1> eur</layout_1></s>",
        f"<layout_0>{SECOND}<layout_1>{THIRD}</s>",
    ),
    "tlm": (
        " joint text-layout modeling. total<extra_id_0><extra_id_1></s>",
        f"<extra_id_0> 8,50{SECOND}<extra_id_1> eur{THIRD}</s>",
    ),
}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_formats_worked_by_hand(task: Denoising) -> None:
    model = reader()
    example = denoised(model, TOTAL, task, [1, 2])
    assert (said(model, example, "input_ids"), said(model, example, "labels")) == BY_HAND[task.name]
    assert example.tokens == tuple(model.tokenizer.convert_ids_to_tokens(example.tensors["input_ids"].tolist()))
    owners, boxes = example.tensors["word_ids"], example.tensors["bbox"]
    assert {tuple(box) for box in boxes[owners == 0].tolist()} == {(100, 100, 300, 300)}, "not masked: its own box"
    prompt = int((owners == 0).nonzero()[0])
    assert boxes[:prompt].tolist() == [list(model.config.prompt_box)] * prompt
    assert not boxes[prompt:][owners[prompt:] != 0].any(), "sentinels, places, masked words and the end"
    assert set(owners.tolist()) == ({FRAME, 0, 1, 2} if task.shows == "text" else {FRAME, 0})


def test_the_papers_numbers() -> None:
    assert [(task.name, task.mask_rate, task.most_masked) for task in TASKS] == [
        ("tm", 0.5, 100), ("lm", 0.75, 100), ("tlm", 0.15, 100)
    ]  # fmt: skip


# -- the inverse -------------------------------------------------------------------------------------------------------


def restored(model: T5Reader, example: Encoded, task: Denoising) -> tuple[list[str], list[tuple[int, ...] | None]]:
    """The oracle: every word of an input with its masks filled from the labels, and the places said of masked ones.

    Works on the spelling of tokens alone. Raises AssertionError where sentinels are out of order or left over.
    """
    spelled = [model.tokenizer.convert_ids_to_tokens(example.tensors[key].tolist()) for key in ("input_ids", "labels")]
    source, target = ([*row[:-1]] for row in spelled)
    assert [row[-1] for row in spelled] == ["</s>", "</s>"]
    kind = {"tm": "text", "lm": "layout", "tlm": "extra_id"}[task.name]
    sentinel = re.compile(rf"<{kind}_(\d+)>")

    def split(tokens: list[str]) -> list[list[str]]:
        """What stands before the first sentinel, and behind each."""
        runs: list[list[str]] = [[]]
        for token in tokens:
            match = sentinel.fullmatch(token)
            if match:
                assert int(match[1]) == len(runs) - 1, "sentinels count from 0, in order"
                runs.append([])
            else:
                runs[-1].append(token)
        return runs

    def parted(tokens: list[str]) -> tuple[list[str], tuple[int, ...]]:
        """A masked word's pieces and its places, from the front of what follows its sentinel."""
        places = [int(token[5:-1]) for token in tokens if token.startswith("<loc_")]
        return [token for token in tokens if not token.startswith("<loc_")], tuple(places)

    inside, outside = split(source), split(target)
    assert len(inside) == len(outside) and outside[0] == []
    pieces, places = inside[0], []
    for number, (left, right) in enumerate(zip(inside[1:], outside[1:], strict=True)):
        if task.name == "tm":
            word, place, rest = right, parted(left[:4])[1], left[4:]
        elif task.name == "lm":
            end = left.index(f"</layout_{number}>")
            word, place, rest = left[:end], parted(right)[1], left[end + 1 :]
        else:
            (word, place), rest = parted(right), left
        assert len(place) == 4 and not any(token.startswith("<") and token.endswith(">") for token in [*word, *rest])
        pieces = [*pieces, *word, *rest]
        places.append(place)
    return pieces, places


texts = st.text("abkxyz019.,-:€é", min_size=1, max_size=8)
corners = st.tuples(st.floats(0, 190), st.floats(0, 90), st.floats(1, 10), st.floats(1, 10))
words = st.builds(lambda text, c: Word(text, (c[0], c[1], c[0] + c[2], c[1] + c[3])), texts, corners)


@settings(max_examples=60, deadline=None)
@given(st.lists(words, max_size=130), st.sampled_from(TASKS), st.integers(0, 2**32 - 1))
def test_labels_and_input_give_the_page_back(found: list[Word], task: Denoising, seed: int) -> None:
    model = reader("fedocvqa-start")
    page = Page("page", BLANK, words=tuple(found))
    masked = task.masked(len(found), np.random.default_rng(seed))
    example = denoised(model, page, task, masked)
    seen = len(example.words_seen)
    assert len(example.tensors["input_ids"]) <= model.config.max_tokens
    assert seen == len(found) or len(example.tensors["input_ids"]) > model.config.max_tokens - 40
    pieces, places = restored(model, example, task)
    whole = [task.prompt, *(word.text.lower() for word in found[:seen])]
    tokenised = model.tokenizer([part for text in whole for part in text.split()], add_special_tokens=False)
    assert pieces == model.tokenizer.convert_ids_to_tokens([i for ids in tokenised["input_ids"] for i in ids])
    assert len(places) == sum(index < seen for index in masked)
    for index, place in zip(masked, places, strict=False):
        exact = np.array(found[index].box) / (200, 100, 200, 100) * 500
        assert np.abs(exact - place).max() <= 0.5 + 1e-9


def test_the_inverse_notices_planted_faults() -> None:
    model = reader()
    example = denoised(model, TOTAL, TEXT_LAYOUT_MODELING, [0, 1, 2])
    labels = example.tensors["labels"]
    starts = [int((labels == i).nonzero()) for i in model.layout_tokens.text_layout[:3]]
    first, second, rest = labels[: starts[1]], labels[starts[1] : starts[2]], labels[starts[2] :]
    for planted in (torch.cat([second, first, rest]), torch.cat([first, rest]), labels[:-2]):
        with pytest.raises(AssertionError):
            restored(model, Encoded({**example.tensors, "labels": planted}), TEXT_LAYOUT_MODELING)
    mistaken = torch.cat([first[:1], second[1:], second[:1], first[1:], rest])
    swapped = restored(model, Encoded({**example.tensors, "labels": mistaken}), TEXT_LAYOUT_MODELING)
    assert swapped != restored(model, example, TEXT_LAYOUT_MODELING), "right sentinels, each other's words"


def test_what_does_not_fit_is_in_neither_input_nor_labels() -> None:
    model = reader()
    page = Page("long", BLANK, words=TOTAL.words * 100)
    for task in TASKS:
        example = denoised(model, page, task, range(0, 300, 3))
        seen = len(example.words_seen)
        assert len(example.tensors["input_ids"]) <= model.config.max_tokens
        opened = [token for token in example.tokens if token.startswith(("<text_", "<layout_", "<extra_id_"))]
        answered = [t for t in model.tokenizer.convert_ids_to_tokens(example.tensors["labels"].tolist()) if t in opened]
        assert opened == answered and len(opened) == len(range(0, seen, 3))
        assert seen < 300 or task is TEXT_LAYOUT_MODELING
        assert seen == 300 or len(example.tokens) > model.config.max_tokens - 8, "no room is left for another word"


# -- the draw ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_share_of_masked_words(task: Denoising) -> None:
    rng = np.random.default_rng(0)
    counts = np.array([len(task.masked(100, rng)) for _ in range(400)])
    p = task.mask_rate
    error = (p * (1 - p) / counts.size / 100) ** 0.5
    assert abs(counts.mean() / 100 - p) < 4 * error
    assert 0.7 < counts.var() / (100 * p * (1 - p)) < 1.3, "each word for itself"
    planted = np.array([len(Denoising("x", "x", "text", 0.9 * p).masked(100, rng)) for _ in range(400)])
    assert abs(planted.mean() / 100 - p) > 4 * error, "a wrong rate would be noticed"


def test_no_more_than_l_m_are_masked_and_those_are_the_first_drawn() -> None:
    seed = np.random.SeedSequence(3)
    masked = LAYOUT_MODELING.masked(1000, np.random.default_rng(seed))
    drawn = np.random.default_rng(seed).random(1000) < 0.75
    assert len(masked) == 100 and drawn[masked].all() and drawn[: masked[-1] + 1].sum() == 100
    assert TEXT_MODELING.masked(0, np.random.default_rng(0)) == []


# -- examples ----------------------------------------------------------------------------------------------------------


def test_every_page_with_words_is_one_example_of_every_task() -> None:
    model = reader()
    one_word = Page("one", BLANK, words=TOTAL.words[:1])
    blank = Page("blank", BLANK, questions=(Question("Why?", ("No",)),))
    objective = objective_of("tm+lm+tlm")
    assert isinstance(objective, SelfPretraining) and objective.tasks == TASKS
    assert objective.examples([TOTAL, blank, one_word]) == [Example(0), Example(2)]
    first, again = (objective.encode(model, TOTAL, Example(0), np.random.default_rng(2)) for _ in range(2))
    assert len(first) == 3
    for a, b in zip(first, again, strict=True):
        assert all(torch.equal(a.tensors[key], b.tensors[key]) for key in a.tensors)
    for page, labels in ((blank, "</s>"), (one_word, "<extra_id_0> total<loc_50><loc_50><loc_150><loc_150></s>")):
        example = denoised(model, page, TEXT_LAYOUT_MODELING, range(len(page.words)))
        assert said(model, example, "labels") == labels
        assert bool(model.loss(pixels_of(model.fit(page).image)[None], [example]).isfinite().all())


def test_objectives_by_name() -> None:
    assert objective_of("qa") == QuestionAnswering()
    assert objective_of("tm") == SelfPretraining((TEXT_MODELING,))
    some = objective_of("tlm+tm@0.3")
    assert isinstance(some, SelfPretraining)
    assert [(task.name, task.mask_rate) for task in some.tasks] == [("tlm", 0.15), ("tm", 0.3)]
    for text, message in (
        ("mlm", "unknown objective 'mlm'; known: qa, or any of tm, lm, tlm"), ("qa+tm", "unknown objective 'qa'"),
        ("", "unknown objective ''"), ("tm+tm@0.2", "names a task twice"), ("tm@half", "'half' is no share"),
        ("tm@1.5", "mask_rate is 1.5; expected more than 0, at most 1"), ("lm@nan", "mask_rate is nan"),
    ):  # fmt: skip
        with pytest.raises(FederationError, match=re.escape(message)):
            objective_of(text)
    with pytest.raises(FederationError, match="unknown objective"):
        LocalPlan(objective="no")
    with pytest.raises(FederationError, match="most_masked is 101; expected 1 to 100"):
        Denoising("x", "x", "text", 0.5, most_masked=101)


# -- training ----------------------------------------------------------------------------------------------------------


def trained(model: T5Reader, pages: tuple[Page, ...], *, seed: int = 0, **plan: object) -> LocalRound:
    settings = {"batch_size": 4, "learning_rate": 3e-3, "dropout": False, "objective": "tm+lm+tlm", **plan}
    return train_locally(model, pages, LocalPlan(**settings), client="silo", rng=np.random.default_rng(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["vt5-start", "fedocvqa-start"])
@pytest.mark.parametrize("task", ["tm", "lm", "tlm"])
def test_a_few_steps_lower_the_loss(name: str, task: str) -> None:
    model = ready(name, resolution=100)
    pages = invoices()[:2]
    before = trained(model, pages, objective=task, learning_rate=0.0).loss
    training = trained(model, pages, objective=task, epochs=12)
    after = trained(model, pages, objective=task, learning_rate=0.0).loss
    assert (training.steps, training.update.examples) == (12, 2), "n_k counts pages"
    assert after < before - 1.0


def test_a_round_is_reproducible_and_counts_pages_with_words() -> None:
    model = ready()
    pages = (*invoices()[:2], Page("blank", BLANK))
    before = parameters_of(model)
    first = trained(model, pages)
    set_parameters(model, before)
    again = trained(model, pages)
    set_parameters(model, before)
    other = trained(model, pages, seed=1)
    assert first.update.examples == 2 and first.steps == 1
    assert all((first.update.delta[name] == again.update.delta[name]).all() for name in before)
    assert any((first.update.delta[name] != other.update.delta[name]).any() for name in before)


def test_the_loss_of_a_step_is_the_mean_over_tasks_and_pages() -> None:
    model = reader()
    loss = trained(model, invoices(), learning_rate=0.0, objective="tm@1+lm@1+tlm@1").loss
    losses = []
    for page in invoices():  # at share 1 nothing is left to chance
        inputs = [denoised(model, model.fit(page), task, range(len(page.words))) for task in TASKS]
        pixels = pixels_of(model.fit(page).image)[None]
        losses.append([float(model.loss(pixels, [example]).detach()) for example in inputs])
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_an_objective_prepares_the_model() -> None:
    model = load_model("fedocvqa-start")
    before = parameters_of(model)
    objective_of("qa").prepare(model, generator=torch.Generator().manual_seed(0))
    assert all((value == before[name]).all() for name, value in parameters_of(model).items())
    for _ in range(2):  # the second time nothing happens
        objective_of("tlm").prepare(model, generator=torch.Generator().manual_seed(0))
        expected = parameters_of(reader("fedocvqa-start"))
        assert all((value == expected[name]).all() for name, value in parameters_of(model).items())
    with pytest.raises(FederationError, match="'layoutlmv3-start' is a layoutlmv3"):
        objective_of("tm").prepare(load_model("layoutlmv3-start"), generator=torch.Generator())


def test_clients_that_cannot_self_pretrain() -> None:
    with pytest.raises(FederationError, match="client 'silo' has 1 page and no page with words to train on"):
        trained(reader(), (Page("blank", BLANK),))
    bare = load_model("vt5-start")
    assert isinstance(bare, T5Reader)
    with pytest.raises(ModelError, match="no tokens for self-pretraining"):
        trained(bare, invoices())
    with pytest.raises(FederationError, match=r"takes a T5 reader .*'donut-start' is a donut"):
        trained(load_model("donut-start"), invoices())  # type: ignore[arg-type]
