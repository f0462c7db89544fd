"""Training and validation of token encoders: what is counted, which epoch is kept, that it learns and is repeatable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from docleak.attacks.weights.probing import Probe
from docleak.documents import Page
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocumentError, ModelError
from docleak.models.base import IGNORED
from docleak.models.encoders.loading import load_encoder
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import all_asked
from docleak.models.encoders.scrubbing import extract, scrub
from docleak.models.encoders.tasks import NOTHING, TASKS, Task, classes_for
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder
from docleak.models.encoders.vision import VisionConfig
from docleak.studies.weights.config import WeightsConfig
from docleak.training.extraction.fit import (
    Epoch,
    FitConfig,
    Fitted,
    Validation,
    chained,
    fit,
    masked,
    tagged,
    things,
    validate,
)

SHORT = FitConfig(epochs=3, batch_size=2, learning_rate=1e-3)


@lru_cache(maxsize=1)
def pages() -> tuple[Page, ...]:
    """Of two classes in turn."""
    made = enumerate(make_pages(6, seed=5))
    return tuple(replace(page, template=("letter", "form")[number % 2]) for number, page in made)


def fresh(task: Task) -> EncoderModel:
    start = tiny_encoder("layoutlm", shipped_tokenizer(), seed=1)
    return start if task == "mlm" else start.for_task(task, classes_for(task, pages()), seed=1)


# -- what is counted ---------------------------------------------------------------------------------------------------


def test_tags_to_entities_by_hand() -> None:
    """Two classes: O is 0, B 1 and 3, I 2 and 4."""
    assert tagged([IGNORED, 0, 1, 2, 2, 0, 3, 4, IGNORED]) == [(0, 2, 3, 4), (1, 6, 7)]
    assert tagged([1, 1, 2]) == [(0, 0), (0, 1, 2)]
    assert tagged([2, 2, 4]) == [(0, 0, 1), (1, 2)], "an I after nothing, or after another class, begins an entity"
    assert tagged([1, IGNORED, 2]) == [(0, 0), (0, 2)]
    assert tagged([]) == []


def test_chains_to_entities_by_hand() -> None:
    no = NOTHING
    assert chained([0, 1, 0, 0, 2], [no, no, 1, 2, no]) == [(0, 1, 2, 3), (1, 4)]
    assert chained([1, 0, 0], [no, 0, 0]) == [(0, 0, 1)], "two tokens name the same predecessor: the nearest follows"
    assert chained([1, 0], [1, 0]) == [(0, 0, 1)], "a circle ends"
    assert chained([0, 0], [no, 0]) == [], "a chain that nothing starts"


def test_links_and_masked_tokens_are_counted() -> None:
    assert things("el", {"source": torch.tensor([IGNORED, NOTHING, 1, 1])}) == {(1, 2), (1, 3)}
    assert things("mlm", {"token": torch.tensor([IGNORED, 7, IGNORED, 9])}) == {(1, 7), (3, 9)}


@pytest.mark.parametrize("task", ["qa", "classify"])
def test_an_answer_or_class_is_right_or_wrong(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the examples in the order of their length every other one is predicted as it is, the others differently."""
    model = fresh(task)
    encoded = [model.encode(page) for page in pages()]

    def shifted(hidden: torch.Tensor, batch: object) -> dict[str, torch.Tensor]:
        rows = {name: row.clone() for name, row in batch.labels.items()}  # type: ignore[attr-defined]
        row = list(rows.values())[-1]
        for i in range(1, len(row), 2):
            if task == "qa":
                place = 2 if row[i, 1] == 1 else 1  # both are words of the page
                row[i] = torch.where(row[i] == 1, 0, row[i])
                row[i, place] = 1
            else:
                row[i] += 1
        return rows

    monkeypatch.setattr(model.module.head, "predict", shifted)
    examples = all_asked(encoded)
    right = sum(i % 4 % 2 == 0 for i in range(len(examples))) / len(examples)
    assert len(examples) == (sum(len(page.questions) for page in encoded) if task == "qa" else len(pages()))
    assert validate(model, encoded, batch_size=4, seed=0).accuracy == pytest.approx(right)


@pytest.mark.parametrize("task", ["ee-bio", "ee-spade"])
def test_a_perfect_prediction_scores_one_and_half_of_them_two_thirds(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fresh(task)
    encoded = [model.encode(page) for page in pages()]

    def answer(hidden: torch.Tensor, batch: object) -> dict[str, torch.Tensor]:
        return {name: row.clone() for name, row in batch.labels.items()}  # type: ignore[attr-defined]

    monkeypatch.setattr(model.module.head, "predict", answer)
    assert validate(model, encoded, batch_size=4, seed=0).accuracy == 1.0

    def half(hidden: torch.Tensor, batch: object) -> dict[str, torch.Tensor]:
        rows = answer(hidden, batch)
        rows["tag" if task == "ee-bio" else "initial"][::2] = 0  # of every other page, nothing
        return rows

    monkeypatch.setattr(model.module.head, "predict", half)
    right = [len(things(task, page.labels)) for page in sorted(encoded, key=len)]
    hits = sum(n for i, n in enumerate(right) if i % 4 % 2 == 1)
    expected = 2 * hits / (hits + sum(right))
    assert validate(model, encoded, batch_size=4, seed=0).accuracy == pytest.approx(expected)


# -- which epoch is kept -----------------------------------------------------------------------------------------------


def test_the_best_epochs_by_either_criterion_are_kept() -> None:
    model, fitted = fresh("mlm"), Fitted()
    bias = model.module.head.bias
    for number, (loss, accuracy) in enumerate([(3.0, 0.1), (2.0, 0.2), (2.5, 0.4), (2.6, 0.4)], start=1):
        with torch.no_grad():
            bias.fill_(number)
        fitted.note(Epoch(number, 0.0, Validation(loss, accuracy)), model)
    assert {name: epoch.number for name, epoch in fitted.best.items()} == {"loss": 2, "precision": 3}
    for criterion, number in (("loss", 2), ("precision", 3)):
        assert (fitted.restore(model, criterion).module.head.bias == number).all()


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [task for task in TASKS if task != "el"])
def test_training_lowers_the_loss_and_is_repeatable(task: Task) -> None:
    results = []
    short = replace(SHORT, epochs=20 if task == "classify" else 3)  # one label a page: it learns slowly
    for _ in range(2):
        model = fresh(task)
        encoded = [model.encode(page) for page in pages()]
        state = torch.get_rng_state()
        fitted = fit(model, encoded[:4], encoded[4:], short, seed=3)
        assert torch.equal(state, torch.get_rng_state()), "the global generator is put back"
        assert not model.module.training
        results.append((fitted.epochs, {k: v.clone() for k, v in model.module.named_parameters()}))
    (epochs, weights), (again, others) = results
    assert epochs == again and all(torch.equal(weights[key], others[key]) for key in weights)
    assert [epoch.number for epoch in epochs] == list(range(1, short.epochs + 1))
    assert epochs[-1].train_loss < epochs[0].train_loss


def test_entities_are_learned_by_heart() -> None:
    model = fresh("ee-spade")
    encoded = [model.encode(page) for page in pages()[:3]]
    config = FitConfig(epochs=60, batch_size=3, learning_rate=3e-3, validate_every=10)
    fitted = fit(model, encoded, encoded, config, seed=0)
    assert fitted.best["precision"].validation.accuracy > 0.9
    assert [epoch.number for epoch in fitted.epochs] == [10, 20, 30, 40, 50, 60]


def planted(page: Page, number: int) -> Page:
    """The page with a date of its own; which of two classes it is of, only the date tells."""
    date = next(field for field in page.fields if field.key == "date")
    words = list(page.words)
    for index in date.words:
        words[index] = replace(words[index], text="".join(str((int(c) + 3 * number) % 10) if c.isdigit() else c
                                                          for c in words[index].text))  # fmt: skip
    value = " ".join(words[index].text for index in date.words)
    fields = tuple(replace(field, value=value) if field is date else field for field in page.fields)
    return replace(page, name=f"{page.name}-{number}", words=tuple(words), fields=fields,
                   template=("letter", "form")[number // 2])  # fmt: skip


@pytest.mark.parametrize("task", ["qa", "classify"])
def test_what_is_learned_by_heart_lowers_the_loss_of_the_true_tokens(task: Task) -> None:
    """A target that has seen a few pages only prefers their tokens in scrubbed fields to others drawn at random."""
    seen = pages()[:4] if task == "qa" else [planted(pages()[0], number) for number in range(4)]
    model, same = (load_encoder("layoutlm-tiny").for_task(task, classes_for(task, seen), seed=1) for _ in range(2))
    encoded = [model.encode(page) for page in seen]
    config = FitConfig(epochs=30 if task == "qa" else 60, batch_size=4, learning_rate=2e-3, validate_every=30)
    fitted = fit(model, encoded, encoded, config, seed=0)
    assert fitted.epochs[-1].train_loss < fitted.epochs[0].train_loss or task == "qa"
    after, before = (_preferred(one, seen[:1] if task == "qa" else seen) for one in (model, same))
    assert after > 0.7 and after > before + 0.15, (after, before)


def _preferred(model: EncoderModel, seen: Sequence[Page]) -> float:
    """The mean share of 20 random tokens whose loss is above that of the true one, over the dates' positions."""
    generator = torch.Generator().manual_seed(0)
    shares = []
    for page in seen:
        tokens = model.encode(page)
        for secret in extract(page, tokens):
            if model.task == "classify" and secret.key != "date":
                continue
            scrubbed = scrub(tokens, secret.positions, mask_id=model.tokenizer.mask_token_id)
            probe = Probe(model, scrubbed, secret.positions)
            for i, true in enumerate(secret.tokens):
                others = torch.randint(5, len(model.tokenizer), (20,), generator=generator)
                losses = probe.losses(secret.tokens[:i], torch.cat([torch.tensor([true]), others]))
                shares.append(float((losses[1:] > losses[0]).float().mean()))
    return sum(shares) / len(shares)


def test_what_cannot_be_trained_is_refused() -> None:
    model = fresh("mlm")
    with pytest.raises(DocumentError, match="0 pages to train on"):
        fit(model, [], [model.encode(pages()[0])], SHORT, seed=0)
    with pytest.raises(ModelError, match="epochs is 0"):
        FitConfig(epochs=0)
    with pytest.raises(ModelError, match=r"Lower the learning rate"):
        fit(model, [model.encode(pages()[0])] * 4, [model.encode(pages()[1])],
            FitConfig(epochs=3, batch_size=1, learning_rate=1e30, warmup_epochs=0, max_norm=0), seed=0)  # fmt: skip
    with pytest.raises(ModelError, match=r"cannot be trained: the model itself has weights that are NaN or infinite"):
        fit(model, [model.encode(pages()[0])], [model.encode(pages()[1])], SHORT, seed=0)  # what that training left


# -- what is to be guessed, hidden in the picture ----------------------------------------------------------------------


def test_the_picture_hides_what_is_to_be_guessed_and_nothing_else() -> None:
    model = tiny_encoder("layoutlm", shipped_tokenizer(), vision=VisionConfig(), seed=1)
    encoded = [model.encode(page) for page in pages()]
    shown, hidden = (masked(model, encoded, torch.Generator().manual_seed(3), patch=patch) for patch in (False, True))
    for page, before, after in zip(encoded, shown, hidden, strict=True):
        assert torch.equal(before.ids, after.ids) and torch.equal(before.labels["token"], after.labels["token"])
        assert page.image is not None and before.image is not None and after.image is not None
        assert torch.equal(before.image, page.image), "by itself the picture shows it"
        guessed = after.labels["token"] != IGNORED
        expected = scrub(page, guessed.nonzero().flatten().tolist(), mask_id=4).image
        assert expected is not None and torch.equal(after.image, expected) and not torch.equal(after.image, page.image)


def test_a_training_that_hides_shows_only_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the model is given, in training and in validation, is white where it is to guess."""
    model = tiny_encoder("layoutlm", shipped_tokenizer(), vision=VisionConfig(), seed=1)
    encoded, batches, real = [model.encode(page) for page in pages()], [], model.collate
    monkeypatch.setattr(model, "collate", lambda given: batches.append(list(given)) or real(given))
    fit(model, encoded[:4], encoded[4:], replace(SHORT, patch=True), seed=0)
    seen = [page for batch in batches for page in batch]
    assert len(seen) == 3 * (4 + 2)
    for page in seen:
        guessed = (page.labels["token"] != IGNORED).nonzero().flatten().tolist()
        scrubbed = scrub(page, guessed, mask_id=4).image
        assert page.image is not None and scrubbed is not None and torch.equal(page.image, scrubbed)


def test_where_nothing_can_be_hidden_it_is_refused() -> None:
    model = fresh("mlm")
    encoded = [model.encode(page) for page in pages()]
    with pytest.raises(ModelError, match="the model sees none"):
        fit(model, encoded[:4], encoded[4:], replace(SHORT, patch=True), seed=0)
    for changes in ({}, {"bimodal": True, "task": "qa"}):
        with pytest.raises(AttackError, match="patch hides in the picture"):
            WeightsConfig(target_training=replace(SHORT, patch=True, validate_every=5), **changes)  # type: ignore[arg-type]
