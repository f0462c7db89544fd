"""The stronger CDMI: each step against a literal reading, its calls, its baseline, and that it finds what is there."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from docleak.attacks.weights import CdmiConfig, PublicKnowledge, StrongConfig, WeightsView
from docleak.attacks.weights.strong import focus
from docleak.documents import Page
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models.base import IGNORED
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.scrubbing import SecretField, extract, scrub
from docleak.models.encoders.tasks import Task, classes_of
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder
from docleak.training.extraction.fit import FitConfig, fit

FEW = StrongConfig(candidates=9, beam=3)


@lru_cache(maxsize=1)
def page() -> Page:
    return make_pages(1, seed=3)[0]


@lru_cache(maxsize=8)
def model(task: Task, seed: int = 0) -> EncoderModel:
    start = tiny_encoder("layoutlm", shipped_tokenizer(), seed=seed)
    return start if task == "mlm" else start.for_task(task, classes_of([page()]), seed=seed)


def secret_of(target: EncoderModel) -> tuple[WeightsView, SecretField]:
    tokens = target.encode(page())
    secret = extract(page(), tokens)[0]
    scrubbed = scrub(tokens, secret.positions, mask_id=target.tokenizer.mask_token_id)
    return WeightsView(target, scrubbed, secret.positions), secret


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scores(of: EncoderModel, view: WeightsView, filled: dict[int, int]) -> torch.Tensor:
    """Log-probabilities (T, V) at the field, straightforwardly."""
    ids = view.page.ids.clone()
    for place, token in filled.items():
        ids[view.positions[place]] = token
    with torch.no_grad():
        logits = of.token_scores(of.hidden(of.collate([replace(view.page, ids=ids, labels={})]))[0])
    logits = logits[list(view.positions)].double()
    logits[:, of.tokenizer.all_special_ids] = -torch.inf
    return torch.log_softmax(logits, 1)


def test_the_surest_position_is_filled_first() -> None:
    """Line by line with whole pages, nothing remembered."""
    target, public = model("mlm", 0), model("mlm", 1)
    view, _ = secret_of(target)
    filled: dict[int, int] = {}
    while len(filled) < len(view.positions):
        best: tuple[float, int, int] | None = None
        ours, theirs = scores(target, view, filled), scores(public, view, filled)
        for place in set(range(len(view.positions))) - set(filled):
            few = ours[place].topk(9).indices
            mixed = torch.log_softmax(ours[place][few] - 0.15 * theirs[place][few], 0)
            value, index = mixed.max(0)
            if best is None or float(value) > best[0] + 1e-9:
                best = (float(value), place, int(few[index]))
        assert best is not None
        filled[best[1]] = best[2]
    finding = FEW.run(view, PublicKnowledge(public), budget=1, generator=draw())
    assert finding.attempts[0].tokens == tuple(filled[i] for i in range(len(view.positions)))
    assert finding.calls == 2 * len(view.positions), "as many as algorithm 2 makes"


def test_a_beam_of_one_with_all_is_the_greedy_reading() -> None:
    target, public = model("ee-bio", 0), model("mlm", 1)
    view, _ = secret_of(target)
    prefix: list[int] = []
    for step in range(len(view.positions)):
        guess = scores(public, view, dict(enumerate(prefix)))[step]
        ids = guess.topk(9).indices
        losses = []
        for candidate in ids.tolist():
            page_ids = view.page.ids.clone()
            page_ids[list(view.positions[: step + 1])] = torch.tensor([*prefix, candidate])
            one = replace(focus(view.page, view.positions), ids=page_ids)
            with torch.no_grad():
                losses.append(float(target.loss(target.collate([one]))[0]))
        ell = torch.tensor(losses, dtype=torch.float64)
        fitting = torch.log_softmax((2 - ell / ell.median()) / 0.1, 0)
        mixed = 0.4 * fitting + 0.6 * torch.log_softmax(guess[ids], 0)
        prefix.append(int(ids[mixed.argmax()]))
    finding = replace(FEW, beam=1).run(view, PublicKnowledge(public), budget=1, generator=draw())
    assert finding.attempts[0].tokens == tuple(prefix)


@pytest.mark.parametrize("task", ["mlm", "ee-bio", "ee-spade"])
def test_it_calls_no_more_than_the_papers(task: Task) -> None:
    target = model(task)
    view, _ = secret_of(target)
    knowledge = PublicKnowledge(model("mlm", 1))
    ours = StrongConfig(candidates=16, beam=4).run(view, knowledge, budget=4, generator=draw())
    paper = CdmiConfig(candidates=16).run(view, knowledge, budget=1, generator=draw())
    if task == "mlm":
        ours = StrongConfig(candidates=16).run(view, knowledge, budget=1, generator=draw())
    assert ours.calls <= paper.calls


@pytest.mark.parametrize("task", ["mlm", "ee-bio"])
def test_the_baseline_never_calls_the_target(task: Task) -> None:
    target = model(task).for_task(task, model(task).config.classes, seed=0)
    view, _ = secret_of(target)
    base, knowledge = replace(FEW, weight=0.0), PublicKnowledge(model("mlm", 1))
    finding = base.run(view, knowledge, budget=2, generator=draw())
    with torch.no_grad():
        for parameter in target.module.parameters():
            parameter.fill_(torch.nan)
    assert base.run(view, knowledge, budget=2, generator=draw()) == finding
    assert all(attempt.target == attempt.public for attempt in finding.attempts)


@pytest.mark.parametrize("task", ["mlm", "ee-spade"])
def test_attempts_are_whole_and_follow_their_generator(task: Task) -> None:
    view, _ = secret_of(model(task))
    knowledge = PublicKnowledge(model("mlm", 1))
    finding = FEW.run(view, knowledge, budget=5, generator=draw())
    assert finding == FEW.run(view, knowledge, budget=5, generator=draw())
    assert len(finding.attempts) == 5
    special = set(view.target.tokenizer.all_special_ids)
    for attempt in finding.attempts:
        assert len(attempt.tokens) == len(attempt.target) == len(attempt.public) == len(view.positions)
        assert not special & set(attempt.tokens) and all(0 < p <= 1 for p in (*attempt.target, *attempt.public))


def test_only_the_fields_labels_are_left() -> None:
    view, _ = secret_of(model("ee-bio"))
    (row,) = focus(view.page, view.positions).labels.values()
    there = (row != IGNORED).nonzero().flatten().tolist()
    assert there == sorted(view.positions)
    bare = replace(view.page, labels={"source": torch.full_like(view.page.ids, IGNORED)})
    assert focus(bare, view.positions) is bare, "a field without labels keeps the page's"


def test_a_memorised_field_is_read_by_both_and_an_untrained_model_tells_nothing() -> None:
    """A page trained in by heart, without dropout."""
    start = tiny_encoder("layoutlm", shipped_tokenizer(), seed=0)
    for module in start.module.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    tokens = start.encode(page())
    fit(start, [tokens], [tokens], FitConfig(epochs=250, learning_rate=2e-3, validate_every=250), seed=0)
    view, secret = secret_of(start)
    knowledge = PublicKnowledge(model("mlm", 1))
    finding = StrongConfig().run(view, knowledge, budget=1, generator=draw())
    assert finding.attempts[0].tokens == secret.tokens
    blank, _ = secret_of(model("mlm", 0))
    assert StrongConfig().run(blank, knowledge, budget=1, generator=draw()).attempts[0].tokens != secret.tokens


@pytest.mark.parametrize(
    "values", [{"beam": 0}, {"beam": 200}, {"weight": 2.0}, {"reference": 1.0}, {"temperature": 0.0}]
)
def test_impossible_settings_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(AttackError, match=next(iter(values))):
        StrongConfig(**values)  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="0 attempts"):
        FEW.run(secret_of(model("mlm"))[0], PublicKnowledge(model("mlm", 1)), budget=0, generator=draw())
