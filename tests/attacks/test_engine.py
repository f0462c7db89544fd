"""The loop behind every attack, and every registered attack on a small problem."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from docleak.attacks.gradients import ATTACKS, GradientAttack, Knowledge
from docleak.attacks.gradients.canvas import Canvas
from docleak.attacks.gradients.engine import Pursuit, explained_share
from docleak.attacks.gradients.matching import dummy_gradient, squared_and_cosine
from docleak.attacks.gradients.precision import SURE, DoubleLoss, sure
from docleak.attacks.gradients.solvers import Adam, BoundedLBFGS, Objective
from docleak.attacks.gradients.whitening import WhiteningConfig
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import DocumentModel, load_model, pixels_of, trainable

BUDGET = 25


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def outside(knowledge: Knowledge) -> Tensor:
    return ~knowledge.private[:, None].expand_as(knowledge.template)


COMPOSED = [name for name in ATTACKS if isinstance(ATTACKS.load(name), GradientAttack)]


@pytest.mark.parametrize("name", COMPOSED)
def test_every_registered_attack_runs_within_its_budget(name: str, small: Any) -> None:
    attack = ATTACKS.load(name)
    seen: list[tuple[int, float, tuple[int, ...]]] = []
    finding = attack.run(
        small.view, small.knowledge, budget=BUDGET, generator=generator(),
        on_evaluation=lambda number, loss, pixels: seen.append((number, loss, tuple(pixels.shape))),
    )  # fmt: skip
    assert attack.name == name and attack.paper and attack.summary
    assert finding.pixels.shape == small.pixels.shape and finding.pixels.dtype == torch.float32
    assert finding.pixels.min() >= 0 and finding.pixels.max() <= 1
    assert torch.equal(finding.pixels[outside(small.knowledge)], small.knowledge.template[outside(small.knowledge)])
    assert finding.evaluations <= BUDGET
    assert finding.seconds > 0
    assert [(number, loss) for number, loss, _ in seen] == list(finding.history)
    assert all(shape == tuple(small.pixels.shape) for _, _, shape in seen)
    if attack.solver is None:
        assert finding.evaluations == 0 and finding.history == ()
    else:
        numbers = [number for number, _ in finding.history]
        draws = 0 if attack.matching else 1 + attack.whitening.draws
        assert numbers == list(range(draws + 1, finding.evaluations + 1))
        assert finding.matching == min(loss for _, loss in finding.history)
        assert finding.matching < finding.history[0][1], "it got no better than its start"
    json.dumps([finding.matching, finding.explained, finding.evaluations, finding.seconds, finding.history])


@pytest.mark.parametrize(("name", "budget"), [("gi-dqa", 19), ("april", 4), ("random", 1)])
def test_the_generator_decides(name: str, budget: int, small: Any) -> None:
    one, two, other = (
        ATTACKS.load(name).run(small.view, small.knowledge, budget=budget, generator=generator(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one.pixels, two.pixels)
    assert replace(one, pixels=two.pixels, seconds=two.seconds) == two
    assert not torch.equal(one.pixels, other.pixels)


def test_a_small_gradient_tells_that_the_model_was_sure_and_another_start_and_precision_are_taken(small: Any) -> None:
    """As whoever reads "nothing recovered" of a trained model had to try by hand: 72 % of the fields for 49."""
    faint = replace(small.view, gradient={name: value * 1e-3 for name, value in small.view.gradient.items()})
    assert faint.norm < SURE < small.view.norm
    for view, options in ((small.view, "start=uniform,loss=float"), (faint, "start=light,loss=double")):
        chosen, said = (
            ATTACKS.load(name).run(view, small.knowledge, budget=19, generator=generator())
            for name in ("gi-dqa", f"gi-dqa:{options}")
        )
        assert torch.equal(chosen.pixels, said.pixels) and chosen.history == said.history, options
        assert f"start={chosen.start},loss={chosen.loss}" == f"start={said.start},loss={said.loss}" == options
    began = ATTACKS.load("gi-dqa").run(
        faint, small.knowledge, budget=19, generator=generator(), start_at=small.knowledge.template
    )
    assert (began.start, began.loss) == ("given", "double")
    assert sure(faint) and not sure(replace(faint, imitate=lambda dummy, gradient: dummy)), "a defence made it small"
    assert not sure(replace(faint, noise=1e-6))


def test_what_is_returned_has_the_matching_that_is_reported(small: Any) -> None:
    """The best visited point by the attack's own objective, not the last one, unless the last is asked for."""

    class Wander:
        """Half way towards white, white, and black at last."""

        def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
            for point in (start, (start + 1) / 2, torch.ones_like(start), torch.zeros_like(start)):
                objective(point, 0.0)
            return point

    for keep, of in (("best", min), ("last", lambda losses: losses[-1])):
        attack = replace(ATTACKS.load(f"gi-dqa-adam:keep={keep}"), solver=Wander(), priors={})
        finding = attack.run(small.view, small.knowledge, budget=4, generator=generator())
        losses = [loss for _, loss in finding.history]
        assert len(losses) == 4 and losses[-1] > min(losses) and finding.matching == of(losses)
        dummy = dummy_gradient(small.model, finding.pixels, small.inputs, small.view.names, create_graph=False)
        assert float(squared_and_cosine(small.view)(dummy)) == pytest.approx(finding.matching, rel=1e-4)


def test_the_least_whole_objective_is_returned_where_it_is_asked_for(small: Any) -> None:
    class Smoother:
        """From noise to grey: of the two, the prior prefers the second whatever the gradient says."""

        def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
            for point in (torch.full_like(start, 0.5), start):
                objective(point, 0.0)
            return start

    for weight, least in ((1e6, 0), (-1e6, 1)):
        named = ATTACKS.load("gi-dqa-adam:keep=objective")
        attack = replace(named, solver=Smoother(), priors={"tv-spatial": weight}, start="uniform")
        finding = attack.run(small.view, small.knowledge, budget=2, generator=generator())
        assert finding.matching == finding.history[least][1], "of both, the one with the least objective"


class Falling:
    """Towards the start's mirror image by losses that the objective is told to have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
        self.losses, noted = iter(losses), Pursuit._note
        monkeypatch.setattr(Pursuit, "_note", lambda pursuit, loss, whole, unknowns, pixels: noted(
            pursuit, next(self.losses), whole, unknowns, pixels))  # fmt: skip

    def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
        for _ in range(budget):
            objective(start, 0.0)
        return start


@pytest.mark.parametrize(
    ("option", "losses", "spent"),
    [
        ("stop-at=0.01", [8.0, 0.9, 0.081, 0.0799, 0.01], 4),
        ("stop-at=0", [8.0, 0.0, 0.0, 0.0, 0.0], 5),
        ("patience=3", [8.0, 3.9, 2.1, 2.0, 1.96, 0.1], 5),  # from 3.9 on not halved in three evaluations
        ("patience=3", [8.0, 3.9, 2.1, 1.94, 1.9, 1.9], 6),
        ("patience=2", [8.0, 9.0, 7.0, 6.0], 3),
    ],
)
def test_a_search_ends_where_its_own_loss_says_so(
    small: Any, monkeypatch: pytest.MonkeyPatch, option: str, losses: list[float], spent: int
) -> None:
    attack = replace(ATTACKS.load(f"gi-dqa-adam:{option}"), solver=Falling(monkeypatch, losses), priors={})
    finding = attack.run(small.view, small.knowledge, budget=len(losses), generator=generator())
    assert finding.evaluations == spent and [loss for _, loss in finding.history] == losses[:spent]


def test_a_converged_search_has_what_the_whole_one_had_then(small: Any) -> None:
    """The same points are visited; whitening's draws count, and the best one is kept."""
    whole = ATTACKS.load("gi-dqa").run(small.view, small.knowledge, budget=60, generator=generator())
    ended = ATTACKS.load("gi-dqa:stop-at=0.1").run(small.view, small.knowledge, budget=60, generator=generator())
    assert ended.evaluations < whole.evaluations == 60
    assert ended.history == whole.history[: len(ended.history)]
    assert ended.matching <= 0.1 * ended.history[0][1] < ended.history[-2][1]


@pytest.mark.parametrize("option", ["stop-at=1", "stop-at=-0.1", "patience=-1"])
def test_an_end_that_is_none_is_refused(option: str) -> None:
    with pytest.raises(AttackError, match="expected a share of the first matching loss"):
        ATTACKS.load(f"gi-dqa:{option}")
    said = option.replace("=", " is ")
    with pytest.raises(AttackError, match=f"attack 'gi-dqa': {said}; expected"):  # nothing of what was not yet read
        ATTACKS.load(f"gi-dqa:{option},patience=7" if "patience" not in option else f"gi-dqa:{option},stop-at=0.1")


def test_the_priors_pull_the_picture(small: Any) -> None:
    plain = replace(ATTACKS.load("gi-dqa-adam"), priors={}, solver=Adam(learning_rate=2 / 255))  # eight small steps
    smooth = replace(plain, priors={"tv-spatial": 1e4}, schedule="constant")
    late = replace(smooth, schedule="delayed")
    roughness = []
    for attack in (plain, smooth, late):
        pixels = attack.run(small.view, small.knowledge, budget=8, generator=generator()).pixels
        inside = pixels[:, :, 40:54, 32:46]
        roughness.append(float(inside.diff(dim=2).abs().mean() + inside.diff(dim=3).abs().mean()))
    assert roughness[1] < 0.95 * roughness[0]
    assert roughness[1] < roughness[2] < roughness[0], "the delayed prior counts in the second half only"


def test_the_schedule_is_told_the_iteration(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from docleak.attacks.gradients.schedules import SCHEDULES

    told: list[tuple[float, int]] = []
    monkeypatch.setitem(SCHEDULES, "literal", lambda progress, iteration: told.append((progress, iteration)) or 0.0)
    ATTACKS.load("gi-dqa-adam:schedule=literal").run(small.view, small.knowledge, budget=4, generator=generator())
    assert told == [(0.0, 0), (0.25, 1), (0.5, 2), (0.75, 3)]


def test_grey_attacks_give_grey(small: Any) -> None:
    grey = ATTACKS.load("gi-dqa").run(small.view, small.knowledge, budget=18, generator=generator()).pixels
    free = ATTACKS.load("april").run(small.view, small.knowledge, budget=3, generator=generator()).pixels
    assert torch.equal(grey[:, 0], grey[:, 1]) and torch.equal(grey[:, 0], grey[:, 2])
    assert not torch.equal(free[:, 0], free[:, 1])


def test_the_whole_page_can_be_asked_for(small: Any) -> None:
    attack = replace(ATTACKS.load("april"), region="all")
    pixels = attack.run(small.view, small.knowledge, budget=2, generator=generator()).pixels
    changed = (pixels != small.knowledge.template).any(1)
    assert float(changed[~small.knowledge.private].float().mean()) > 0.9


def test_a_batch(make_small: Callable[..., Any]) -> None:
    pair = make_small("42", "17")
    finding = ATTACKS.load("gi-dqa").run(pair.view, pair.knowledge, budget=20, generator=generator())
    assert finding.pixels.shape == pair.pixels.shape
    assert not torch.equal(finding.pixels[0], finding.pixels[1])
    assert torch.equal(finding.pixels[outside(pair.knowledge)], pair.knowledge.template[outside(pair.knowledge)])


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_put_back(training: bool, small: Any) -> None:
    modes: list[bool] = []
    small.model.module.train(training)
    try:
        ATTACKS.load("april").run(
            small.view, small.knowledge, budget=2, generator=generator(),
            on_evaluation=lambda *_: modes.append(small.model.module.training),
        )  # fmt: skip
        assert small.model.module.training is training
        assert modes == [False, False], "dropout was on during the attack"

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ATTACKS.load("april").run(small.view, small.knowledge, budget=2, generator=generator(), on_evaluation=stop)
        assert small.model.module.training is training
    finally:
        small.model.module.eval()


def test_parameters_are_left_as_they_were(small: Any) -> None:
    before = {name: p.detach().clone() for name, p in small.model.module.named_parameters()}
    ATTACKS.load("gi-dqa").run(small.view, small.knowledge, budget=20, generator=generator())
    for name, parameter in small.model.module.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None


def test_explained_is_all_at_the_truth_and_nothing_at_the_template(small: Any) -> None:
    assert explained_share(small.view, small.knowledge, small.pixels) == pytest.approx(1, abs=1e-4)
    assert explained_share(small.view, small.knowledge, small.knowledge.template) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("budget", [0, -3])
def test_a_budget_below_one_is_refused(budget: int, small: Any) -> None:
    with pytest.raises(AttackError, match=f"budget is {budget}; expected at least one"):
        ATTACKS.load("dlg").run(small.view, small.knowledge, budget=budget, generator=generator())


@pytest.mark.parametrize("budget", [1, 17])
def test_a_budget_spent_by_the_whitening_is_refused(budget: int, small: Any) -> None:
    with pytest.raises(AttackError, match=f"budget {budget} is spent by the 17 draws of 'gi-dqa''s whitening; raise"):
        ATTACKS.load("gi-dqa").run(small.view, small.knowledge, budget=budget, generator=generator())


def test_the_sum_of_squares_that_is_linearised_is_the_whitened_distance(small: Any) -> None:
    attack = replace(ATTACKS.load("gi-dqa"), whitening=WhiteningConfig(draws=4), priors={})
    canvas = Canvas.of(small.knowledge.template, small.knowledge.private, region=attack.region, grey=attack.grey)
    pursuit = Pursuit(attack, small.view, small.knowledge, canvas, lambda number, loss, pixels: None)
    start = canvas.start(attack.start, generator())
    pursuit._prepare(start, generator(1))
    distance, _ = pursuit.objective(start, 0.0)
    assert float(pursuit.linearise(start).residual.square().sum()) == pytest.approx(distance, rel=1e-3)
    assert pursuit.history[0][1] == pytest.approx(distance) == pytest.approx(pursuit.history[1][1], rel=1e-3)


def test_unknown_parts_are_refused() -> None:
    made = {"name": "mine", "paper": "none", "summary": "none", "matching": None, "solver": BoundedLBFGS()}
    with pytest.raises(AttackError, match=r"unknown prior \['smooth'\].*tv-spatial"):
        GradientAttack(**made, priors={"smooth": 1.0, "text": 0.1})  # type: ignore[arg-type]
    with pytest.raises(AttackError, match=r"schedule 'sometimes'.*exponential"):
        GradientAttack(**made, schedule="sometimes")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        GradientAttack(**made, learning_rate=0.1)  # type: ignore[call-arg, arg-type]


def test_an_unknown_attack_lists_the_known_ones() -> None:
    with pytest.raises(AttackError, match="Did you mean 'gi-dqa'") as caught:
        ATTACKS.load("gi-dqua")
    assert all(name in str(caught.value) for name in ATTACKS)
    with pytest.raises(AttackError) as unlike:
        ATTACKS.load("")
    assert "Did you mean" not in str(unlike.value)


def test_the_whitening_can_be_made_cheaper(small: Any) -> None:
    attack = replace(ATTACKS.load("gi-dqa"), whitening=WhiteningConfig(draws=4))
    finding = attack.run(small.view, small.knowledge, budget=8, generator=generator())
    assert [number for number, _ in finding.history] == [6, 7, 8]


def test_a_loss_in_double_precision_is_the_same_search(small: Any) -> None:
    plain, double = ATTACKS.load("gi-dqa"), ATTACKS.load("gi-dqa:loss=double")
    before = {name: p.detach().clone() for name, p in small.model.module.named_parameters()}
    one, two = (a.run(small.view, small.knowledge, budget=24, generator=generator()) for a in (plain, double))
    assert two.pixels.dtype == torch.float32 and two.evaluations == 24
    assert all(torch.equal(p, before[n]) for n, p in small.model.module.named_parameters())
    assert one.history[0][1] == pytest.approx(two.history[0][1], rel=1e-3), "another start, or other draws"
    torch.testing.assert_close(one.pixels, two.pixels, atol=0.05, rtol=0)
    assert not torch.equal(one.pixels, two.pixels)


def test_where_a_model_is_sure_a_loss_in_double_precision_keeps_the_gradient() -> None:
    """The loss of the trained model is about 1e-6 there: 1 - p is a handful of float32's steps."""
    model = load_model("layoutlmv3-trained")
    page = model.fit(make_pages(4, seed=0, size=model.image_size)[3])
    inputs, pixels = [model.encode(page, page.questions[0])], pixels_of(page.image)[None]
    names = [name for name, _ in trainable(model.module)]

    def gradient(of: DocumentModel, pixels: Tensor) -> Tensor:
        dummy = dummy_gradient(of, pixels, inputs, names, create_graph=False)
        return torch.cat([g.flatten() for g in dummy.values()])

    plain = gradient(model, pixels)
    with DoubleLoss():
        ours = gradient(model, pixels)
    exact = deepcopy(model)
    exact.module.double()
    wanted = gradient(exact, pixels.double())
    assert plain.dtype == ours.dtype == torch.float32
    errors = [float((vector - wanted).norm() / wanted.norm()) for vector in (plain, ours)]
    assert errors[0] > 0.01 > 1e-4 > errors[1]


def test_only_the_cross_entropy_is_doubled() -> None:
    """Beside the same in double precision throughout; class weights and other functions are left alone."""
    logits, labels = torch.tensor([[15.0, 0.0, 1.0]], requires_grad=True), torch.tensor([0])
    with DoubleLoss():
        loss = F.cross_entropy(logits, labels)
        assert F.cross_entropy(logits, labels, weight=torch.ones(3)).dtype == torch.float32
        assert F.softmax(logits, -1).dtype == torch.float32
    (slope,) = torch.autograd.grad(loss, logits)
    exact = torch.softmax(logits.detach().double(), -1)[0, 0] - 1
    assert slope.dtype == torch.float32
    assert float(slope[0, 0]) == pytest.approx(float(exact), rel=1e-6)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, labels), logits)
    assert float(plain[0, 0]) != pytest.approx(float(exact), rel=1e-3)


def test_the_published_gi_dqa_has_the_published_parts() -> None:
    paper = ATTACKS.load("gi-dqa-adam")
    assert dict(paper.priors) == {"text": 0.1, "gaussian": 0.01, "tv-spatial": 0.1, "tv-channel": 0.1}
    assert paper.solver == Adam(learning_rate=2.0, final_factor=0.999**5000)
    assert (paper.schedule, paper.grey, paper.matching) == ("exponential", False, squared_and_cosine)
