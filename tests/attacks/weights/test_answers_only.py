"""Hidden confidences: what is answered is the likeliest alone, and nothing of the attack hangs on how likely it was."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from docleak.attacks.weights import CdmiConfig, PublicKnowledge, StrongConfig, WeightsView
from docleak.attacks.weights.cdmi import _step
from docleak.attacks.weights.probing import AnswersProbe, Probe, target_probe
from docleak.documents import Page
from docleak.documents.synthetic import make_pages
from docleak.models.base import IGNORED
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.scrubbing import extract, scrub
from docleak.models.encoders.tasks import Task, classes_of
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder

ATTACKS = (CdmiConfig(candidates=7), StrongConfig(candidates=9, beam=3))


@lru_cache(maxsize=1)
def page() -> Page:
    return make_pages(1, seed=3)[0]


def model(task: Task, seed: int = 0) -> EncoderModel:
    start = tiny_encoder("layoutlm", shipped_tokenizer(), seed=seed)
    return start if task == "mlm" else start.for_task(task, classes_of([page()]), seed=seed)


def view_of(target: EncoderModel, *, answers_only: bool = True) -> WeightsView:
    tokens = target.encode(page())
    secret = extract(page(), tokens)[0]
    scrubbed = scrub(tokens, secret.positions, mask_id=target.tokenizer.mask_token_id)
    return WeightsView(target, scrubbed, secret.positions, answers_only)


def surer(target: EncoderModel) -> EncoderModel:
    """The same answers in every case, with other confidences: all last logits are five times as large."""
    head = target.module.head
    with torch.no_grad():
        if target.task == "mlm":
            for parameter in (head.norm.weight, head.norm.bias, head.bias):
                parameter.mul_(5)
        else:
            head.tags.weight.mul_(5)
            head.tags.bias.mul_(5)
    return target


def test_a_guessed_token_comes_without_a_probability() -> None:
    view = view_of(model("mlm"))
    answered, full = target_probe(view), Probe(view.target, view.page, view.positions)
    assert isinstance(answered, AnswersProbe)
    assert type(target_probe(replace(view, answers_only=False))) is Probe
    (best,) = full.propose((), 1).ids.tolist()
    told = answered.token_logits(())
    assert told.argmax() == best and told[best] == 0
    assert told.isfinite().sum() == 1, "nothing is told of any other token"
    assert answered.propose((), 7).ids.tolist() == [best]
    field = answered.field_logits([None] * len(view.positions))
    assert torch.equal(field.argmax(1), full.field_logits([None] * len(view.positions)).argmax(1))
    assert field.isfinite().sum(1).tolist() == [1] * len(view.positions)


def test_beside_the_guessed_token_stand_the_public_models_candidates_each_once() -> None:
    """Where the target's guess is among the public model's candidates, and where it is not."""
    view = view_of(model("mlm"))
    target = target_probe(view)
    (best,) = target.propose((), 7).ids.tolist()
    for seed in (0, 1):
        public = Probe(model("mlm", seed), view.page, view.positions)
        others = public.propose((), 7).ids.tolist()
        ids, likelihoods, _ = _step(public, target, (), ATTACKS[0])
        assert ids.tolist() == [best, *(token for token in others if token != best)] and len(ids) == 8 - (
            best in others
        )
        assert likelihoods.tolist() == [1.0, *[0.0] * (len(ids) - 1)]
        assert seed or best in others, "the same model"


def test_the_loss_of_a_candidate_is_the_share_of_wrong_labels() -> None:
    view = view_of(model("ee-bio"))
    candidates = torch.tensor([50, 60, 70])
    losses = target_probe(view).losses((), candidates)
    for candidate, loss in zip(candidates.tolist(), losses.tolist(), strict=True):
        ids = view.page.ids.clone()
        ids[view.positions[0]] = candidate
        with torch.no_grad():
            answers = view.target.predict(view.target.collate([replace(view.page, ids=ids)]))["tag"][0]
        asked = [
            (a, b) for a, b in zip(answers.tolist(), view.page.labels["tag"].tolist(), strict=True) if b != IGNORED
        ]
        assert loss == pytest.approx(sum(a != b for a, b in asked) / len(asked))


@pytest.mark.parametrize("task", ["mlm", "ee-bio"])
@pytest.mark.parametrize("attack", ATTACKS, ids=["paper", "strong"])
def test_confidences_change_nothing_of_what_is_found(task: Task, attack: CdmiConfig | StrongConfig) -> None:
    """The attack on answers cannot tell two models that answer alike; the attack on weights can."""
    knowledge = PublicKnowledge(model("mlm", seed=1))

    def finding_of(target: EncoderModel, answers_only: bool) -> object:
        view = view_of(target, answers_only=answers_only)
        return attack.run(view, knowledge, budget=2, generator=torch.Generator().manual_seed(0))

    assert finding_of(model(task), True) == finding_of(surer(model(task)), True)
    assert finding_of(model(task), False) != finding_of(surer(model(task)), False)


def test_what_is_answered_is_followed() -> None:
    """A target that guesses tokens is read greedily; how public each token is still ranks the fields."""
    view, knowledge = view_of(model("mlm")), PublicKnowledge(model("mlm", seed=1))
    generator = torch.Generator().manual_seed(0)
    (attempt,) = ATTACKS[0].run(view, knowledge, budget=1, generator=generator).attempts
    greedy, probe = [], Probe(view.target, view.page, view.positions)
    for _ in view.positions:
        greedy.append(int(probe.propose(tuple(greedy), 1).ids[0]))
    assert list(attempt.tokens) == greedy and attempt.target == (1.0,) * len(greedy)
    assert all(0 < likelihood < 1 for likelihood in attempt.public)


def test_the_threat_model_says_so() -> None:
    assert view_of(model("mlm")).text.startswith("the likeliest answers, without confidences, of a model")
    assert view_of(model("mlm"), answers_only=False).text.startswith("weights of a model")
