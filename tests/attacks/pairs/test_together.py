"""Whole pair attacks: what they read, that they keep to their budget, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from docleak.attacks.pairs import PAIRS, PairAttack, PairFinding, together, with_parts
from docleak.attacks.pairs.align import Refinement, pull
from docleak.attacks.pairs.together import _ends
from docleak.errors import AttackError
from docleak.models.pair.shapes import pair_tokenizer

TEXT = "there are two yellow blocks."


def run(attack: PairAttack, client: Any, budget: int, *, seed: int = 0) -> PairFinding:
    return attack.run(client.view, client.knowledge, budget=budget, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", list(PAIRS))
def test_every_attack_runs_within_its_budget_and_repeats_itself(victim: Callable[..., Any], name: str) -> None:
    client = victim((TEXT,), (1,))
    attack = PAIRS.load(name)
    first, again = run(attack, client, 12), run(attack, client, 12)
    assert attack.summary and attack.paper and attack.name == name
    assert 0 < first.image_evaluations <= 12 and 0 < first.text_evaluations <= 12
    assert torch.equal(first.pixels, again.pixels) and first.texts == again.texts
    assert first.pixels.shape == (1, 3, 16, 16)
    assert float(first.pixels.min()) >= 0 and float(first.pixels.max()) <= 1
    assert first.labels == ((1,), (1,))
    turns = 0 if attack.refine is None else 1 if attack.refine.how == "prior" else attack.refine.rounds - 1
    assert len(first.rounds) == turns


def test_what_leaks_is_read_and_what_does_not_is_not(victim: Callable[..., Any]) -> None:
    """Most tokens come out of the true gradient, and none of them out of another text's."""
    client, other = victim((TEXT,), (1,)), victim(("a black tower is big.",), (1,))
    truth = client.ids[0, 1:-1].tolist()
    assert len(truth) == len(other.ids[0, 1:-1])
    attack = PAIRS.load("mmgia")

    def share(finding: PairFinding) -> float:
        return sum(a == b for a, b in zip(finding.tokens[0], truth, strict=True)) / len(truth)

    leaked = run(attack, client, 120)
    assert share(leaked) >= 0.5
    assert leaked.text_quality > 0.8 and leaked.image_quality > 0.8
    assert float((leaked.pixels - client.pixels).square().mean()) < 1 / 12, "better than a guess of the mean"
    assert share(run(attack, other, 120)) <= 0.35


def test_a_table_of_words_may_have_more_rows_than_the_tokenizer(victim: Callable[..., Any], tmp_path: Path) -> None:
    tokenizer = pair_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer) + 9, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    client = victim((TEXT,), (1,), text=str(tmp_path))
    finding = run(PAIRS.load("mmgia"), client, 12)
    assert len(finding.rounds) == 2 and max(finding.tokens[0]) < len(tokenizer)


def test_a_prior_pulls_where_noise_leaves_room(victim: Callable[..., Any]) -> None:
    client = victim((TEXT,), (1,))
    noisy = replace(client.view, noise=0.3)
    pulled = PAIRS.load("mmgia-prior").run(
        noisy, client.knowledge, budget=12, generator=torch.Generator().manual_seed(0)
    )
    free = PAIRS.load("mmgia-prior").run(
        client.view, client.knowledge, budget=12, generator=torch.Generator().manual_seed(0)
    )
    assert pulled.rounds[0].before > free.rounds[0].before


@pytest.mark.parametrize("target", ["fused", "direct"])
def test_a_prior_pulls_by_strength_sharpness_and_trust(
    victim: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, target: Any
) -> None:
    """The picture by how well the text explains its gradient, the text by how well the picture does; half directly."""
    weights: list[float] = []

    def recorded(*given: Any, weight: float, **options: Any) -> Any:
        weights.append(weight)
        return pull(*given, weight=weight, **options)

    monkeypatch.setattr(together, "pull", recorded)
    client, attack = victim((TEXT,), (1,)), PAIRS.load("mmgia-prior")
    assert attack.refine is not None
    refine = replace(attack.refine, strength=0.7, target=target)
    (turn,) = run(replace(attack, refine=refine), replace(client, view=replace(client.view, noise=0.1)), 12).rounds
    scale = 0.7 * client.knowledge.aligner.scale
    trusts = (turn.text_quality, turn.image_quality) if target == "fused" else (0.5, 0.5)
    assert trusts[0] > 0 and trusts[1] > 0
    assert list(dict.fromkeys(weights)) == pytest.approx(list(dict.fromkeys(scale * trust for trust in trusts)))


def test_a_batch_is_reconstructed_with_one_class_per_pair(victim: Callable[..., Any]) -> None:
    client = victim((TEXT, "a black tower"), (3, 0))
    finding = run(PAIRS.load("mmgia"), client, 12)
    assert finding.pixels.shape == (2, 3, 16, 16) and len(finding.texts) == 2
    assert finding.labels[0] == finding.labels[1], "pairs of one class"
    assert [len(row) for row in finding.tokens] == list(client.knowledge.lengths)


def test_a_fused_client_is_attacked_too(victim: Callable[..., Any]) -> None:
    client = victim((TEXT,), (2,), fused=True)
    finding = run(PAIRS.load("mmgia"), client, 12)
    assert finding.labels == ((2,), (2,))
    assert finding.image_quality > 0


def test_the_loop_ends_at_the_threshold_and_spends_what_is_left_on_stage_one(victim: Callable[..., Any]) -> None:
    client = victim((TEXT,), (1,))
    attack = PAIRS.load("mmgia")
    soon = run(replace(attack, refine=Refinement(threshold=-0.99, rounds=3)), client, 16)
    late = run(replace(attack, refine=Refinement(threshold=0.999, rounds=3)), client, 16)
    assert len(soon.rounds) == 1 and len(late.rounds) == 2
    assert soon.text_evaluations == late.text_evaluations == 16


def test_every_evaluation_of_the_text_is_counted(victim: Callable[..., Any]) -> None:
    """Starts, steps and moves: as often as the distance was asked for, and never more often than allowed."""
    client, attack, asked = victim((TEXT,), (1,)), PAIRS.load("mmgia"), [0]

    def matching(view: Any) -> Any:
        distance = attack.text.matching(view)

        def counted(gradient: Any) -> Any:
            asked[0] += 1
            return distance(gradient)

        return counted

    for budget in (12, 17):
        asked[0] = 0
        finding = run(replace(attack, text=replace(attack.text, matching=matching)), client, budget)
        assert finding.text_evaluations == asked[0] <= budget


def test_any_stage_one_attack_can_be_plugged_in(victim: Callable[..., Any]) -> None:
    attack = with_parts("mmgia", image="gi-dqa-adam", text="tag")
    assert attack.image.name == "gi-dqa-adam" and attack.text.name == "tag" and attack.refine is not None
    assert run(attack, victim((TEXT,), (0,)), 12).image_evaluations == 12


def test_rounds_divide_the_budget() -> None:
    assert _ends(100, 1, 0.5) == [100]
    assert _ends(100, 3, 0.5) == [50, 75, 100]


def test_what_cannot_be_run_is_refused(victim: Callable[..., Any]) -> None:
    client = victim((TEXT,), (1,))
    attack = PAIRS.load("mmgia")
    without = replace(client.knowledge, aligner=None, lengths=(3, 3))
    with pytest.raises(AttackError, match=r"2 texts for 1 pictures.*too small.*no aligner"):
        attack.run(client.view, without, budget=1, generator=torch.Generator())
    with pytest.raises(AttackError, match="language model"):
        run(attack, replace(client, knowledge=replace(client.knowledge, language=None)), 20)
    with pytest.raises(AttackError, match="Did you mean 'mmgia'"):
        PAIRS.load("mmgai")
    with pytest.raises(AttackError, match="no optimisation"):
        with_parts("mmgia", image="closed-form")
    with pytest.raises(AttackError, match="unknown text attack"):
        with_parts("mmgia", text="nonsense")
