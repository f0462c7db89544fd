"""The parts of pair attacks, each against a slow or closed form of the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from docleak.attacks.gradients.matching import dummy_of, squared
from docleak.attacks.gradients.solvers import Adam
from docleak.attacks.pairs import text
from docleak.attacks.pairs.align import Refinement, align, losses_of, partners, pull, similarity, weights_of
from docleak.attacks.pairs.labels import _counted, labels_of
from docleak.attacks.pairs.matching import layer_cosine, layer_norms, quality, squared_and_absolute
from docleak.attacks.pairs.sentence import Sentences
from docleak.attacks.pairs.text import Moves, TextAttack, _Search, candidates_of, distances, rearranged
from docleak.attacks.pairs.view import PairView, inputs_of, word_table, words_in
from docleak.errors import AttackError, GradientError

ONE = ("there are two yellow blocks.",)
TWO = ("there are two yellow blocks.", "a black tower")
USUAL = torch.full((4,), 0.25)


def side_of(client: Any) -> tuple[Any, Any, Sentences]:
    """Text view, inputs and sentences of a victim, with the true labels."""
    sentences = Sentences.of(client.model, client.knowledge.lengths)
    return client.view.side("text"), inputs_of(client.labels.tolist(), sentences.mask), sentences


@pytest.mark.parametrize("seed", range(6))
def test_the_class_of_one_example_is_read_exactly(victim: Callable[..., Any], seed: int) -> None:
    client = victim(ONE, (seed % 4,), seed=seed)
    assert labels_of(client.view, "image", USUAL) == (seed % 4,)
    assert labels_of(client.view, "text", USUAL) == (seed % 4,)


def test_the_class_without_a_bias(victim: Callable[..., Any]) -> None:
    client = victim(ONE, (2,))
    gradient = {n: v for n, v in client.view.gradient.items() if n != "image.head.bias"}
    assert labels_of(type(client.view)(client.model, gradient), "image", USUAL) == (2,)
    without = {n: v for n, v in gradient.items() if n != "image.head.weight"}
    with pytest.raises(AttackError, match=r"image\.head\.bias"):
        labels_of(type(client.view)(client.model, without), "image", USUAL)


def test_the_classes_of_a_batch_are_counted(victim: Callable[..., Any]) -> None:
    labels = (3, 0, 0, 1)
    client = victim(("a block",) * 4, labels)
    model = client.model
    with torch.no_grad():  # with the true mean probabilities the count is exact
        logits = model.module.image_logits(model.normalise(client.pixels))
    assert labels_of(client.view, "image", logits.softmax(1).mean(0)) == (0, 0, 1, 3)


def test_distances_and_quality_by_hand(victim: Callable[..., Any]) -> None:
    client = victim(ONE, (1,))
    view = client.view.side("image")
    true = view.gradient
    dummy = {n: 0.5 * g + 0.01 for n, g in true.items()}
    kept = [n for n, g in true.items() if g.norm() > 1e-7 * max(v.norm() for v in true.values())]
    norms = sum(float((dummy[n] - true[n]).norm()) for n in kept)
    assert float(layer_norms(view)(dummy)) == pytest.approx(norms, rel=1e-5)
    cosines = [float(F.cosine_similarity(dummy[n].flatten(), true[n].flatten(), dim=0)) for n in kept]
    assert float(layer_cosine(view)(dummy)) == pytest.approx(1 - sum(cosines) / len(cosines), abs=1e-5)
    difference = torch.cat([(dummy[n] - true[n]).flatten() for n in true])
    expected = float(difference.square().sum() + 0.01 * difference.abs().sum())
    assert float(squared_and_absolute(view)(dummy)) == pytest.approx(expected, rel=1e-5)
    assert quality(view, true) == 1.0
    assert quality(view, {n: torch.zeros_like(g) for n, g in true.items()}) == pytest.approx(0.0)
    assert quality(view, {n: -g for n, g in true.items()}) == pytest.approx(-1.0)


def test_the_truth_matches_exactly_in_both_modalities(victim: Callable[..., Any]) -> None:
    client = victim(TWO, (1, 2))
    view, inputs, _ = side_of(client)
    x = F.embedding(client.ids, client.model.table)
    assert float(squared(view)(dummy_of(view, x, inputs, create_graph=False))) < 1e-10
    image = client.view.side("image")
    dummy = dummy_of(image, client.pixels, inputs_of([1, 2]), create_graph=False)
    assert float(squared(image)(dummy)) < 1e-10


def test_projection_gives_real_words_back(victim: Callable[..., Any]) -> None:
    client = victim(TWO, (0, 1))
    sentences = Sentences.of(client.model, client.knowledge.lengths)
    x = F.embedding(client.ids, client.model.table.detach())
    rows = [[int(i) for i in row[there]][1:-1] for row, there in zip(client.ids, client.mask, strict=True)]
    assert sentences.tokens(x) == rows
    assert torch.equal(sentences.embeddings(sentences.unknowns(x)), x)
    weights = sentences.weights(x, 0.01)
    assert torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert weights[0, 1].argmax() == rows[0][0]


@pytest.mark.parametrize("texts", [ONE, TWO], ids=["one", "padded batch"])
def test_candidates_in_one_batch_score_as_one_by_one(victim: Callable[..., Any], texts: tuple[str, ...]) -> None:
    client = victim(texts, tuple(range(len(texts))))
    view, inputs, sentences = side_of(client)
    distance = layer_cosine(view)
    start = sentences.embeddings(sentences.start(torch.Generator().manual_seed(0))[0])
    many = candidates_of(sentences, start, 5, torch.Generator().manual_seed(1))
    alone = [float(distance(dummy_of(view, x, inputs, create_graph=False))) for x in many]
    assert distances(view, inputs, distance, many, chunk=4) == pytest.approx(alone, abs=1e-5)
    assert len({round(a, 6) for a in alone}) > 1


def test_candidates_whose_gradients_do_not_fit_are_scored_in_smaller_passes(
    victim: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = victim(ONE, (0,))
    view, inputs, sentences = side_of(client)
    batches = torch.stack([sentences.embeddings(x) for x in sentences.start(torch.Generator().manual_seed(0), 5)])
    whole, passes, vmap = distances(view, inputs, layer_cosine(view), batches, chunk=4), [], torch.func.vmap

    def counted(*given: Any, **options: Any) -> Callable[..., Any]:
        run = vmap(*given, **options)
        return lambda parameters, part: passes.append(len(part)) or run(parameters, part)

    monkeypatch.setattr(torch.func, "vmap", counted)
    one = sum(4 * value.numel() for value in view.gradient.values())
    for room, expected in ((2 * one, [2, 2, 1]), (one // 2, [1] * 5), (100 * one, [4, 1])):
        monkeypatch.setattr(text, "ROOM", room)
        passes.clear()
        assert distances(view, inputs, layer_cosine(view), batches, chunk=4) == pytest.approx(whole, abs=1e-5)
        assert passes == expected


def test_moves_only_change_places(victim: Callable[..., Any]) -> None:
    generator, seen = torch.Generator().manual_seed(0), set()
    for _ in range(300):
        row = rearranged(torch.arange(5), generator)
        assert sorted(row.tolist()) == [0, 1, 2, 3, 4]
        seen.add(tuple(row.tolist()))
    assert len(seen) >= 20
    assert rearranged(torch.tensor([4]), generator).tolist() == [4]
    client = victim(TWO, (0, 1))
    _, _, sentences = side_of(client)
    x = F.embedding(client.ids, client.model.table.detach())
    for other in candidates_of(sentences, x, 20, generator):
        for number, there in enumerate(sentences.free):
            assert sorted(other[number, there, 0].tolist()) == sorted(x[number, there, 0].tolist())
            assert torch.equal(other[number, ~there], x[number, ~there])


def test_words_of_the_batch_where_the_table_is_trained(victim: Callable[..., Any]) -> None:
    assert words_in(victim(TWO, (0, 1)).view) is None
    client = victim(TWO, (0, 1), train_embeddings=True)
    words = words_in(client.view)
    assert words is not None
    special = {client.model.tokenizer.cls_token_id, client.model.tokenizer.sep_token_id}
    assert set(words.tolist()) == set(client.ids[client.mask].tolist()) - special
    name = word_table(client.model)
    table = client.view.gradient[name].clone()
    table[:, 1:] = 0  # whatever a defence left of a row tells its word
    left = words_in(PairView(client.model, {**client.view.gradient, name: table}, 2))
    assert left is not None and torch.equal(left, words)


def test_weights_of_qualities() -> None:
    assert weights_of(0.9, 0.3) == pytest.approx((0.75, 0.25))
    assert weights_of(0.5, -3.0) == (1.0, 0.0)
    assert weights_of(-1.0, -2.0) == (0.5, 0.5)


def test_for_two_modalities_quality_scales_the_step_and_not_its_direction() -> None:
    z = [torch.randn(2, 5, generator=torch.Generator().manual_seed(s), requires_grad=True) for s in (0, 1)]
    direct = torch.autograd.grad(sum(losses_of((z[0], z[1]), None)), z)  # type: ignore[arg-type]
    fused = torch.autograd.grad(sum(losses_of((z[0], z[1]), (0.8, 0.2))), z)  # type: ignore[arg-type]
    assert torch.allclose(fused[0], 0.2 * direct[0], atol=1e-6)
    assert torch.allclose(fused[1], 0.8 * direct[1], atol=1e-6)


@pytest.mark.parametrize("target", ["fused", "direct"])
def test_alignment_brings_both_nearer_and_leaves_the_better_one_alone(victim: Callable[..., Any], target: Any) -> None:
    client = victim(TWO, (0, 1))
    _, _, sentences = side_of(client)
    x = sentences.embeddings(sentences.start(torch.Generator().manual_seed(0))[0])
    config = Refinement(target=target, steps=15)
    aligned = align(config, client.knowledge.aligner, sentences, client.pixels, x, (1.0, 0.0))
    near = similarity(client.knowledge.aligner, sentences, aligned.pixels, aligned.embeddings, config.temperature)
    assert aligned.after == pytest.approx(float(near.diagonal().mean()))
    assert aligned.after > aligned.before + 0.05
    assert torch.equal(aligned.embeddings[~sentences.free], x[~sentences.free])
    assert float(aligned.pixels.min()) >= 0 and float(aligned.pixels.max()) <= 1
    if target == "fused":
        assert torch.equal(aligned.pixels, client.pixels), "a weight of 1 keeps the picture where it is"
    else:
        assert not torch.equal(aligned.pixels, client.pixels)


def test_partners_are_the_best_in_sum_within_a_class() -> None:
    near = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    same = ((0, 0, 0, 0), (0, 0, 0, 0))
    best = max(permutations(range(4)), key=lambda p: sum(float(near[i, j]) for i, j in enumerate(p)))
    assert partners(near, same) == list(best)
    classes = ((0, 1, 1, 2), (2, 0, 1, 1))
    assert [classes[1][j] for j in partners(near, classes)] == [0, 1, 1, 2]


def test_the_prior_pulls_as_bayes_would() -> None:
    """Of a line of pictures, the best one under the pull is where likelihood and density ratio together are highest."""
    generator = torch.Generator().manual_seed(0)
    z = F.normalize(torch.randn(200, 6, generator=generator), dim=1)
    target = F.normalize(torch.randn(1, 6, generator=generator), dim=1)
    matching, variance, scale = torch.rand(200, generator=generator), 0.03, 4.0
    ours = torch.stack([
        m + pull(row[None], target, ((0,), (0,)), weight=scale, open_variance=variance)
        for m, row in zip(matching, z, strict=True)
    ])  # fmt: skip
    log_posterior = -matching / (2 * variance) + scale * (z @ target[0])
    assert torch.allclose(ours, -2 * variance * log_posterior + 2 * variance * scale, atol=1e-5)
    assert int(ours.argmin()) == int(log_posterior.argmax()) != int(matching.argmin())
    assert float(pull(z[:1], target, ((0,), (0,)), weight=scale, open_variance=0.0)) == 0.0


def test_in_a_batch_the_prior_pulls_each_to_its_best_partner() -> None:
    z = F.normalize(torch.randn(3, 6, generator=torch.Generator().manual_seed(1)), dim=1)
    shuffled = z[[2, 0, 1]]
    assert float(pull(z, shuffled, ((0, 0, 0), (0, 0, 0)), weight=1.0, open_variance=1.0)) == pytest.approx(0, abs=1e-6)
    apart = float(pull(z, shuffled, ((0, 1, 2), (0, 1, 2)), weight=1.0, open_variance=1.0))
    assert apart == pytest.approx(float((z - shuffled).square().sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("fault", "says"),
    [({"threshold": 1.0}, "threshold"), ({"threshold": -1.5}, "threshold"), ({"rounds": 0}, "rounds"),
     ({"text_step": -1.0}, "negative"), ({"target": "other"}, "target"), ({"how": "other"}, "how"),
     ({"strength": -1.0}, "negative")],
)  # fmt: skip
def test_refinements_that_make_no_sense(fault: dict[str, Any], says: str) -> None:
    with pytest.raises(AttackError, match=says):
        Refinement(**fault)


def test_a_gradient_of_another_shape_is_refused(victim: Callable[..., Any]) -> None:
    client = victim(ONE, (0,))
    name = next(iter(client.view.gradient))
    with pytest.raises(GradientError, match="shape"):
        type(client.view)(client.model, {**client.view.gradient, name: torch.zeros(1)})


def test_in_a_batch_of_two_each_is_pulled_to_its_own_partner() -> None:
    z = torch.nn.functional.normalize(torch.randn(2, 6, generator=torch.Generator().manual_seed(0)), dim=1)
    swapped = z[[1, 0]]
    assert float(pull(z, swapped, ((0, 0), (0, 0)), weight=1.0, open_variance=1.0)) == pytest.approx(0, abs=1e-6)
    by_class = float(pull(z, swapped, ((0, 1), (0, 1)), weight=3.0, open_variance=0.5))
    assert by_class == pytest.approx(1.5 * float((z - swapped).square().sum()))


def test_estimated_counts_are_brought_to_the_batch() -> None:
    """Shares 2.3, 1.1, 1.6 of 3: one too many, taken where it overshoots most; 0.9, 0.2, 1.5: two are missing."""
    for shares, expected in (((2.3, 1.1, 1.6), (0, 0, 2)), ((0.9, 0.2, 1.5), (0, 2, 2)), ((1.0, 0.0, 2.0), (0, 2, 2))):
        probabilities = torch.tensor(shares, dtype=torch.float64) / 3 + 0.1
        assert _counted(torch.full((3,), 0.1, dtype=torch.float64), probabilities, 3) == expected


def test_each_of_the_four_moves_is_made() -> None:
    """By its share of 4000 draws, against the moves written out: a quarter each, some of which have the same result."""
    generator, order, draws = torch.Generator().manual_seed(0), tuple(range(6)), 4000
    made = Counter(tuple(rearranged(torch.tensor(order), generator).tolist()) for _ in range(draws))
    runs = [
        (first, last, at) for first in range(6) for last in range(first + 1, 7) for at in range(6 - last + first + 1)
    ]

    def share(row: tuple[int, ...]) -> float:
        by_swap = sum(row == swapped(i, j) for i in range(6) for j in range(6)) / 36
        by_single = sum(row == moved(i, i + 1, j) for i in range(6) for j in range(6)) / 36
        by_run = sum((row == moved(f, e, at)) / 6 / (6 - f) / (6 - e + f + 1) for f, e, at in runs)
        return (by_swap + by_single + by_run + (row in [order[c:] + order[:c] for c in range(6)]) / 6) / 4

    def swapped(i: int, j: int) -> tuple[int, ...]:
        row = list(order)
        row[i], row[j] = row[j], row[i]
        return tuple(row)

    def moved(first: int, last: int, at: int) -> tuple[int, ...]:
        rest = order[:first] + order[last:]
        return rest[:at] + order[first:last] + rest[at:]

    expected = {row: draws * share(row) for row in permutations(range(6)) if share(row)}
    assert sum(expected.values()) == pytest.approx(draws) and set(made) <= set(expected)
    misfit = sum((made[row] - count) ** 2 / count for row, count in expected.items())
    assert misfit < len(expected) - 1 + 4 * (2 * len(expected)) ** 0.5, "chi-square"


def search_of(client: Any, budget: int, **options: Any) -> _Search:
    view, inputs, sentences = side_of(client)
    attack = TextAttack("t", "none", "a test", layer_cosine, Adam(learning_rate=0.01), **options)
    return _Search(attack, view, inputs, sentences, budget, torch.Generator().manual_seed(0),
                   client.knowledge.language, None)  # fmt: skip


@pytest.mark.parametrize(("budget", "starts", "used"), [(1, 5, 0), (2, 5, 0), (3, 5, 2), (9, 5, 5), (9, 1, 0)])
def test_the_nearest_of_the_starts_is_taken(victim: Callable[..., Any], budget: int, starts: int, used: int) -> None:
    """As many as leave one evaluation; a single start need not be compared with anything."""
    search = search_of(victim(ONE, (0,)), budget, starts=starts)
    begun = search._begin()
    drawn = search.sentences.start(torch.Generator().manual_seed(0), max(1, used))
    x = [search.sentences.embeddings(start) for start in drawn]
    far = [float(search.distance(dummy_of(search.view, e, search.inputs, create_graph=False))) for e in x]
    assert search.used == used and torch.equal(begun, drawn[far.index(min(far))])


def test_the_objective_of_a_text_by_hand(victim: Callable[..., Any]) -> None:
    """Matching + 0.3 (mean norm of the words' embeddings - mean norm of the table's words)^2."""
    search = search_of(victim(TWO, (0, 1)), 9, size_prior=0.3)
    unknowns = 3 * search.sentences.start(torch.Generator().manual_seed(1))[0]
    rows = unknowns.view(-1, search.sentences.width)
    usual = sum(float(search.sentences.table[word].norm()) for word in search.sentences.words) / len(
        search.sentences.words
    )
    size = sum(float(row.norm()) for row in rows) / len(rows)
    x = search.sentences.embeddings(unknowns)
    matching = float(search.distance(dummy_of(search.view, x, search.inputs, create_graph=False)))
    value, _ = search.objective(unknowns, 0.0)
    assert abs(size - usual) > 0.1
    assert value == pytest.approx(matching + 0.3 * (size - usual) ** 2, rel=1e-5)
    assert search.best_loss == pytest.approx(matching, rel=1e-5) and search.used == 1


@pytest.mark.parametrize("weight", [0.0, 0.02, 5.0])
def test_the_best_move_is_of_distance_and_weighted_surprise(victim: Callable[..., Any], weight: float) -> None:
    client = victim(("there are two yellow blocks in the box.",), (0,))
    moves = Moves(candidates=12, weight=weight)
    search = search_of(client, 40, moves=moves)
    unknowns = search.sentences.unknowns(F.embedding(client.ids, client.model.table.detach()).flip(1))
    x = search.sentences.embeddings(unknowns)
    many = candidates_of(search.sentences, x, 12, torch.Generator().manual_seed(0))
    far = [float(search.distance(dummy_of(search.view, e, search.inputs, create_graph=False))) for e in many]
    odd = [sum(client.knowledge.language.surprise(search.sentences.tokens(e))) for e in many]  # one text each
    scores = [a + weight * b for a, b in zip(far, odd, strict=True)]
    chosen = search._move(moves, unknowns)
    assert torch.equal(chosen, search.sentences.unknowns(many[scores.index(min(scores))]))
    assert search.used == 13 and odd.index(max(odd)) != odd.index(min(odd))
