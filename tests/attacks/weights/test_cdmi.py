"""CDMI: its arithmetic by hand, its steps against a literal reading of algorithm 2, its variants, what it may see."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from docleak.attacks.weights import (
    METRICS,
    Attempt,
    CdmiConfig,
    PublicKnowledge,
    WeightsView,
    choose,
    plausibility,
)
from docleak.attacks.weights.cdmi import _step
from docleak.attacks.weights.probing import Probe
from docleak.attacks.weights.sampling import (
    Temperature,
    likelihoods,
    loss_likelihoods,
    sample_top_p,
    weighted_mean,
)
from docleak.documents import Page
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.scrubbing import extract, scrub
from docleak.models.encoders.tasks import Task, classes_of
from docleak.models.encoders.tiny import SPECIALS, bert_tokenizer, shipped_tokenizer, tiny_encoder
from docleak.models.encoders.vision import VisionConfig

FEW = CdmiConfig(candidates=7)


@lru_cache(maxsize=1)
def page() -> Page:
    return make_pages(1, seed=3)[0]


@lru_cache(maxsize=8)
def model(task: Task, seed: int = 0, bimodal: bool = False) -> EncoderModel:
    vision = VisionConfig(size=(64, 96), channels=(4, 8)) if bimodal else None
    start = tiny_encoder("layoutlm", shipped_tokenizer(), seed=seed, vision=vision)
    return start if task == "mlm" else start.for_task(task, classes_of([page()]), seed=seed)


def view_of(target: EncoderModel) -> WeightsView:
    tokens = target.encode(page())
    secret = extract(page(), tokens)[0]
    return WeightsView(
        target, scrub(tokens, secret.positions, mask_id=target.tokenizer.mask_token_id), secret.positions
    )


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def test_equation_5_by_hand() -> None:
    """Losses 1, 2, 4 have the median 2: softmax of 1.5, 1, 0."""
    powers = [math.exp(1.5), math.exp(1.0), math.exp(0.0)]
    expected = [value / sum(powers) for value in powers]
    assert loss_likelihoods(torch.tensor([1.0, 2.0, 4.0]), 1.0).tolist() == pytest.approx(expected)


def test_equation_5_bears_outliers_and_zeros() -> None:
    probabilities = loss_likelihoods(torch.tensor([1e-5, 2e-5, 1.5e-5, 3.0]), 0.3)
    assert probabilities.sum() == pytest.approx(1) and probabilities[3] == 0 and probabilities.argmax() == 0
    assert loss_likelihoods(torch.zeros(4), 0.3).tolist() == pytest.approx([0.25] * 4)
    assert loss_likelihoods(torch.tensor([0.0, 0.0, 0.0, 1.0]), 0.3)[3] == 0


def test_means_by_hand() -> None:
    target, public = torch.tensor([0.8, 0.2], dtype=torch.float64), torch.tensor([0.1, 0.9], dtype=torch.float64)
    assert weighted_mean(target, public, 0.25, "arithmetic").tolist() == pytest.approx([0.275, 0.725])
    raw = [0.8**0.25 * 0.1**0.75, 0.2**0.25 * 0.9**0.75]
    assert weighted_mean(target, public, 0.25, "geometric").tolist() == pytest.approx([x / sum(raw) for x in raw])
    for kind in ("geometric", "arithmetic"):
        assert torch.allclose(weighted_mean(target, public, 0.0, kind), public)  # type: ignore[arg-type]
        assert torch.allclose(weighted_mean(target, public, 1.0, kind), target)  # type: ignore[arg-type]
    nothing = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert weighted_mean(nothing, public, 0.5, "geometric")[0] < 1e-100, "one that is nearly 0 makes the mean so"


def test_temperatures_decay_over_three_steps() -> None:
    assert [Temperature(0.3, 0.6, 3).at(i) for i in range(5)] == pytest.approx([0.6, 0.5, 0.4, 0.3, 0.3])
    assert Temperature(0.3, 0.9, 0).at(0) == 0.3
    hot, cold = (likelihoods(torch.tensor([1.0, 0.0]), t)[0] for t in (2.0, 0.1))
    assert cold > hot > 0.5


def test_top_p_draws_from_the_smallest_set_that_holds_the_mass() -> None:
    probabilities = torch.tensor([0.15, 0.5, 0.05, 0.3], dtype=torch.float64)
    for top_p, allowed in (
        (0.1, {1}),
        (0.5, {1}),
        (0.51, {1, 3}),
        (0.8, {1, 3}),
        (0.9, {0, 1, 3}),
        (1.0, {0, 1, 2, 3}),
    ):
        generator = draw()
        drawn = [sample_top_p(probabilities, top_p, generator=generator) for _ in range(400)]
        assert set(drawn) == allowed, top_p
    generator = draw(1)
    share = sum(sample_top_p(probabilities, 0.8, generator=generator) == 1 for _ in range(4000)) / 4000
    assert share == pytest.approx(0.5 / 0.8, abs=0.03)


def test_membership_metrics_by_hand() -> None:
    attempt = Attempt(tokens=(7, 8), target=(0.8, 0.5), public=(0.2, 0.4))
    public, target = (0.2 * 0.4) ** -0.5, (0.8 * 0.5) ** -0.5
    expected = {
        "raw-perplexity": public,
        "perplexity-ratio": public / target,
        "raw-and-ratio": public**2 / target,
        "max-gap": 0.6,
        "max-ratio": 4.0,
        "weakest-token": 0.5,
    }
    assert {name: plausibility(attempt, name) for name in METRICS} == pytest.approx(expected)
    dull = Attempt((7, 8), (0.2, 0.4), (0.2, 0.4))
    assert plausibility(dull, "perplexity-ratio") == pytest.approx(1.0)
    assert choose([dull, attempt, attempt], METRICS.load("perplexity-ratio")) == 1
    with pytest.raises(AttackError, match="perplexity-ratio"):
        plausibility(attempt, "loudness")


# -- algorithm 2, literally --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bimodal", [False, True])
@pytest.mark.parametrize("task", ["ee-bio", "ee-spade"])
def test_a_step_is_algorithm_2(task: Task, bimodal: bool) -> None:
    """Line by line, with whole pages in batches of one, and nothing remembered."""
    target, public = model(task, 0, bimodal), model("mlm", 1, bimodal)
    view = view_of(target)
    prefix = (100, 200)
    filled = view.page.ids.clone()
    filled[list(view.positions[:2])] = torch.tensor(prefix)
    here = view.positions[2]
    with torch.no_grad():
        bare = replace(view.page, ids=filled, labels={})
        g = public.token_scores(public.hidden(public.collate([bare]))[0])[here]  # line 3
        g[public.tokenizer.all_special_ids] = -torch.inf
        values, c = g.topk(7)  # lines 4, 5
        losses = []
        for candidate in c.tolist():  # line 7
            ids = filled.clone()
            ids[here] = candidate
            losses.append(float(target.loss(target.collate([replace(view.page, ids=ids)]))[0]))
    temperature = 0.6 - 0.3 * 2 / 3
    g_hat = torch.softmax(values.double() / temperature, 0)  # line 9
    ell = torch.tensor(losses, dtype=torch.float64)
    tilde = 2 - ell / ell.median()  # line 10 (7 candidates: the middle one)
    l_hat = torch.softmax(tilde / 0.3, 0)  # line 11
    mean = l_hat**0.4 * g_hat**0.6  # line 13
    expected = mean / mean.sum()
    probes = [Probe(m, view.page, view.positions) for m in (public, target)]
    ids, mixed, guessed = _step(probes[0], probes[1], prefix, FEW)
    assert ids.tolist() == c.tolist()
    assert torch.allclose(guessed, g_hat, atol=1e-6)
    assert torch.allclose(mixed, expected, atol=1e-4)
    assert float((expected - g_hat).abs().max()) > 1e-6, "the target must matter"


def test_a_private_mlm_is_sampled_directly() -> None:
    target, public = model("mlm", 0), model("mlm", 1)
    view = view_of(target)
    with torch.no_grad():
        scores = target.token_scores(target.hidden(target.collate([view.page]))[0])[view.positions[0]]
        its = public.token_scores(public.hidden(public.collate([view.page]))[0])[view.positions[0]]
    scores[target.tokenizer.all_special_ids] = -torch.inf
    values, tokens = scores.topk(7)
    probes = [Probe(m, view.page, view.positions) for m in (public, target)]
    ids, mixed, guessed = _step(probes[0], probes[1], (), FEW)
    assert ids.tolist() == tokens.tolist()
    assert torch.allclose(mixed, torch.softmax(values.double() / 0.6, 0), atol=1e-5)
    assert torch.allclose(guessed, torch.softmax(its[tokens].double() / 0.6, 0), atol=1e-5)


@pytest.mark.parametrize("task", ["mlm", "ee-bio"])
def test_attempts_are_whole_and_follow_their_generator(task: Task) -> None:
    view, knowledge = view_of(model(task)), PublicKnowledge(model("mlm", 1))
    wide = replace(FEW, top_p=0.9)
    finding = wide.run(view, knowledge, budget=3, generator=draw())
    again = wide.run(view, knowledge, budget=3, generator=draw())
    assert finding == again and finding != wide.run(view, knowledge, budget=3, generator=draw(5))
    special = set(view.target.tokenizer.all_special_ids)
    for attempt in finding.attempts:
        assert len(attempt.tokens) == len(attempt.target) == len(attempt.public) == len(view.positions)
        assert not special & set(attempt.tokens)
        assert all(0 < p <= 1 for p in (*attempt.target, *attempt.public))


def test_what_attempts_share_is_computed_once() -> None:
    """With the likeliest token always taken, eight attempts are one, and cost what one costs."""
    view, knowledge = view_of(model("ee-bio")), PublicKnowledge(model("mlm", 1))
    greedy = replace(FEW, top_p=1e-9)
    one, eight = (greedy.run(view, knowledge, budget=n, generator=draw()) for n in (1, 8))
    assert one.calls == eight.calls == len(view.positions) * (1 + 7)
    assert set(eight.attempts) == set(one.attempts)


def test_the_baseline_never_calls_the_target() -> None:
    target = model("ee-bio").for_task("ee-bio", model("ee-bio").config.classes, seed=0)
    view, knowledge = view_of(target), PublicKnowledge(model("mlm", 1))
    base = replace(FEW, weight=0.0)
    finding = base.run(view, knowledge, budget=2, generator=draw())
    with torch.no_grad():
        for parameter in target.module.parameters():
            parameter.fill_(torch.nan)  # had it looked, it could not draw
    assert base.run(view, knowledge, budget=2, generator=draw()) == finding
    assert all(attempt.target == attempt.public for attempt in finding.attempts)
    assert finding.calls <= 2 * len(view.positions)


def test_losses_in_small_batches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(model("ee-spade"))
    candidates = torch.arange(100, 120)
    whole = Probe(view.target, view.page, view.positions).losses((), candidates)
    monkeypatch.setattr("docleak.attacks.weights.probing.BATCH_TOKENS", 3 * len(view.page))
    parts = Probe(view.target, view.page, view.positions).losses((), candidates)
    assert torch.allclose(whole, parts, rtol=1e-4)


# -- what it may see ---------------------------------------------------------------------------------------------------


def test_a_view_that_still_shows_the_field_is_refused() -> None:
    target = model("mlm")
    tokens = target.encode(page())
    secret = extract(page(), tokens)[0]
    with pytest.raises(AttackError, match="not scrubbed"):
        WeightsView(target, tokens, secret.positions)
    half = scrub(tokens, secret.positions[:-1], mask_id=4)
    with pytest.raises(AttackError, match="1 of the field's"):
        WeightsView(target, half, secret.positions)
    with pytest.raises(AttackError, match="one token or more"):
        WeightsView(target, half, ())


def test_labels_are_needed_where_the_loss_takes_them() -> None:
    view = view_of(model("ee-bio"))
    with pytest.raises(AttackError, match="has no labels"):
        replace(view, page=replace(view.page, labels={}))


def test_public_models_that_do_not_fit_are_refused() -> None:
    view = view_of(model("ee-bio"))
    with pytest.raises(AttackError, match="expected 'mlm'"):
        PublicKnowledge(model("ee-spade")).check(view)
    words = {piece: i for i, piece in enumerate([*SPECIALS, *"abcdefghij"])}
    stranger = tiny_encoder("layoutlm", bert_tokenizer(words), seed=0)
    with pytest.raises(AttackError, match="vocabulary of 15 pieces"):
        PublicKnowledge(stranger).check(view)
    with pytest.raises(AttackError, match="no picture"):
        PublicKnowledge(model("mlm", 0, True)).check(view)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"candidates": 0}, "candidates is 0"),
        ({"mean": "median"}, "median"),
        ({"weight": 1.5}, "1.5"),
        ({"top_p": 0.0}, "top_p"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(AttackError, match=said):
        CdmiConfig(**values)  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="above 0"):
        Temperature(last=0.0)


@pytest.mark.parametrize("task", ["mlm", "ee-bio"])
def test_an_attempt_says_what_its_tokens_were_to_the_public_model_alone(task: Task) -> None:
    """The membership metrics compare the two: of a greedy attempt both are recomputed step by step."""
    view, public = view_of(model(task)), model("mlm", 1)
    (attempt,) = replace(FEW, top_p=1e-9).run(view, PublicKnowledge(public), generator=draw()).attempts
    probes = [Probe(m, view.page, view.positions) for m in (public, view.target)]
    for step, token in enumerate(attempt.tokens):
        ids, mixed, guessed = _step(probes[0], probes[1], attempt.tokens[:step], FEW)
        at = ids.tolist().index(token)
        assert at == int(mixed.argmax())
        assert attempt.target[step] == pytest.approx(float(mixed[at]))
        assert attempt.public[step] == pytest.approx(float(guessed[at]))
    assert attempt.public != attempt.target


def test_the_baseline_passes_one_page_a_token_and_nothing_else() -> None:
    target = model("ee-bio")
    view = view_of(target)
    finding = replace(FEW, weight=0.0).run(view, PublicKnowledge(model("mlm", seed=1)), generator=draw())
    assert finding.calls == len(view.positions)
