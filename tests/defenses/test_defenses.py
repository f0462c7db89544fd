"""What each defence does to what is exposed, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.asking import blamed
from docleak.attacks.gradients.algebra.batch import recover_batch
from docleak.attacks.gradients.view import Knowledge
from docleak.defenses import DEFENSES, GradientDefense, TemplateDefense
from docleak.defenses.defense import Gradient, imitated, protected, published
from docleak.defenses.gradients import Clipping, GradientNoise, TopK
from docleak.defenses.safe_template import SafeTemplate
from docleak.documents import blank_template, private_mask
from docleak.documents.synthetic import make_pages
from docleak.errors import DefenseError, GradientError
from docleak.models import DocumentModel, load_model, pixels_of, trainable
from docleak.registry import Entry
from docleak.studies.engine import carry_out
from docleak.studies.gradient.case import MADE_UP, blank_page, build_case
from docleak.studies.gradient.config import Exposure, GradientConfig
from docleak.studies.gradient.models import model_of
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.identity import weights_hash

GRADIENT_SPECS = ("noise:sigma=1e-3", "clip:norm=0.5", "top-k:share=0.1", "freeze", "freeze:stages=output")


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def model() -> DocumentModel:
    return load_model("layoutlmv3-start")


@pytest.fixture(scope="module")
def gradient(model: DocumentModel) -> dict[str, Tensor]:
    return {name: torch.randn(p.shape, generator=drawn()) for name, p in trainable(model.module)}


@pytest.mark.parametrize("name", list(DEFENSES))
def test_every_registered_defence_says_what_it_does(name: str) -> None:
    spec = "noise:sigma=1" if name == "noise" else name
    assert DEFENSES.load(spec).summary


@pytest.mark.parametrize("spec", GRADIENT_SPECS)
def test_gradient_defences_keep_names_and_shapes_and_leave_the_original_alone(
    spec: str, model: DocumentModel, gradient: dict[str, Tensor]
) -> None:
    defense = DEFENSES.load(spec)
    assert isinstance(defense, GradientDefense)
    before = {name: value.clone() for name, value in gradient.items()}
    sent = defense.protect(gradient, model, generator=drawn())
    assert sent.keys() <= gradient.keys()
    assert all(value.shape == gradient[name].shape for name, value in sent.items())
    assert all(torch.equal(gradient[name], value) for name, value in before.items())
    again = defense.protect(gradient, model, generator=drawn())
    assert all(torch.equal(value, again[name]) for name, value in sent.items())


def test_noise_has_the_stated_size(model: DocumentModel, gradient: dict[str, Tensor]) -> None:
    defense = DEFENSES.load("noise:sigma=1e-3")
    assert isinstance(defense, GradientDefense)
    sent = defense.protect(gradient, model, generator=drawn(1))
    noise = torch.cat([(sent[name] - value).flatten() for name, value in gradient.items()])
    assert float(noise.std()) == pytest.approx(1e-3, rel=0.01)
    assert abs(float(noise.mean())) < 1e-5


def test_clipping_scales_and_never_enlarges(model: DocumentModel) -> None:
    defense = DEFENSES.load("clip:norm=2")
    assert isinstance(defense, GradientDefense)
    large, small = {"a": torch.tensor([3.0, 4.0])}, {"a": torch.tensor([0.3, 0.4])}
    assert torch.allclose(defense.protect(large, model, generator=drawn())["a"], torch.tensor([1.2, 1.6]))
    assert torch.equal(defense.protect(small, model, generator=drawn())["a"], small["a"])


def test_top_k_keeps_the_largest(model: DocumentModel) -> None:
    defense = DEFENSES.load("top-k:share=0.5")
    assert isinstance(defense, GradientDefense)
    sent = defense.protect({"a": torch.tensor([[1.0, -5.0], [2.0, 0.5]])}, model, generator=drawn())
    assert torch.equal(sent["a"], torch.tensor([[0.0, -5.0], [2.0, 0.0]]))


def test_freezing_leaves_the_stages_out(model: DocumentModel, gradient: dict[str, Tensor]) -> None:
    defense = DEFENSES.load("freeze")
    assert isinstance(defense, GradientDefense)
    sent = defense.protect(gradient, model, generator=drawn())
    assert {model.stage(name) for name in sent} == {"fusion", "output"}


@pytest.mark.parametrize("spec", ["clip:norm=0.01", "top-k:share=0.05", "freeze", "none"])
def test_at_the_truth_the_adversarys_gradient_is_what_was_sent(spec: str, model: DocumentModel) -> None:
    """Otherwise the attack would fail for a reason that has nothing to do with protection."""
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    case = build_case(model, [page], Exposure(defense=spec), seed=0)
    dummy = case.view.as_sent({name: case.clean.gradient[name] for name in case.view.names})
    assert all(torch.allclose(dummy[name], value, atol=1e-9) for name, value in case.view.gradient.items())


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("nois:sigma=1", "Did you mean 'noise'"),
        ("noise", "needs sigma"),
        ("noise:sigma=nan", "sigma is nan"),
        ("noise:sigma=-1", "sigma is -1"),
        ("noise:size=1", "it takes sigma"),
        ("clip:norm=0", "norm is 0"),
        ("top-k:share=2", "share is 2"),
        ("freeze:stages=eyes", "'eyes'"),
        ("freeze:stages=vision+text+fusion+output", "at least one stage left"),
        ("safe-template:epsilon=-1/255", "epsilon is -0.0039"),
        ("safe-template:epsilon=inf", "epsilon is inf"),
        ("safe-template:kind=magic", "pgd or random"),
        ("safe-template:steps=1.5", "steps is '1.5'"),
        ("safe-template:epsilon=1/0", "expected a number"),
    ],
)
def test_senseless_parameters_are_refused(spec: str, named: str) -> None:
    with pytest.raises(DefenseError, match=".*".join(part.replace("(", r"\(") for part in [named])):
        DEFENSES.load(spec)


@pytest.fixture(scope="module")
def knowledge(model: DocumentModel) -> Knowledge:
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    template = pixels_of(blank_template(page))[None]
    return Knowledge(template, torch.from_numpy(private_mask(page))[None], [model.encode(page, page.questions[0])])


@pytest.mark.parametrize("spec", ["kind=random", "kind=random,norm=l2", "steps=2", "steps=2,norm=l2"])
def test_safe_template_stays_within_its_budget(spec: str, model: DocumentModel, knowledge: Knowledge) -> None:
    defense = DEFENSES.load(f"safe-template:epsilon=8/255,{spec}")
    assert isinstance(defense, SafeTemplate) and isinstance(defense, TemplateDefense)
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    blank = [model.encode(blank_page(page), MADE_UP)]
    published = defense.publish(model, knowledge, blank, generator=drawn())
    change = published - knowledge.template
    assert float(published.min()) >= 0 and float(published.max()) <= 1
    assert float(change.abs().max()) > 0
    if defense.norm == "linf":
        assert float(change.abs().max()) <= 8 / 255 + 1e-6
    else:
        assert float(change.square().mean().sqrt()) <= 8 / 255 + 1e-6


def test_pgd_moves_the_gradient_further_than_random_signs(model: DocumentModel, knowledge: Knowledge) -> None:
    from docleak.attacks.gradients.matching import dummy_gradient, squared_and_cosine
    from docleak.attacks.gradients.view import GradientView

    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    blank = [model.encode(blank_page(page), MADE_UP)]
    names = [name for name, _ in trainable(model.module)]

    def moved(kind: str) -> float:
        defense = SafeTemplate(kind=kind, epsilon=4 / 255, steps=5)
        published = defense.publish(model, knowledge, blank, generator=drawn())
        clean = dummy_gradient(model, knowledge.template, blank, names, create_graph=False)
        view = GradientView(model, {name: value.detach() for name, value in clean.items()})
        return float(squared_and_cosine(view)(dummy_gradient(model, published, blank, names, create_graph=False)))

    assert moved("pgd") > moved("random")


def test_algorithm_1_as_printed_moves_the_gradient_less_than_it_could(
    model: DocumentModel, knowledge: Knowledge
) -> None:
    """By its sign the distance falls: below that of ascent, from the same signs; from zero hardly anything moves."""
    from docleak.attacks.gradients.matching import dummy_gradient, squared_and_cosine
    from docleak.attacks.gradients.view import GradientView

    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    blank = [model.encode(blank_page(page), MADE_UP)]
    names = [name for name, _ in trainable(model.module)]
    clean = dummy_gradient(model, knowledge.template, blank, names, create_graph=False)
    distance = squared_and_cosine(GradientView(model, {name: value.detach() for name, value in clean.items()}))

    def moved(options: str) -> float:
        defense = DEFENSES.load(f"safe-template:epsilon=4/255,steps=5{options}")
        published = defense.publish(model, knowledge, blank, generator=drawn())
        return float(distance(dummy_gradient(model, published, blank, names, create_graph=False)))

    up, down, printed = moved(""), moved(",direction=descend"), moved(",direction=descend,start=zero")
    assert up > 2 * down and up > 2 * printed, (up, down, printed)


@pytest.mark.parametrize(
    ("options", "expected"),
    [("direction=sideways", "expected one of ascend, descend"), ("start=one", "expected one of signs, zero"),
     ("kind=random,start=zero", "pgd, where a direction or a start is said"),
     ("kind=random,direction=descend", "pgd, where a direction or a start is said")],
)  # fmt: skip
def test_wrong_readings_of_safe_template_are_refused(options: str, expected: str) -> None:
    with pytest.raises(DefenseError, match=expected):
        DEFENSES.load(f"safe-template:{options}")


def test_the_published_template_holds_nothing_private(model: DocumentModel) -> None:
    """Two pages that differ only in private pixels get the same published template."""
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    other = page.image.copy()
    other[private_mask(page)] = 77
    exposure = Exposure(defense="safe-template:steps=1")
    first, second = (build_case(model, [p], exposure, seed=0) for p in (page, page.with_image(other)))
    assert torch.equal(first.knowledge.template, second.knowledge.template)


def test_noise_is_gaussian_and_every_numbers_own() -> None:
    """By its fourth moment, 3 (a uniform of the same size has 1.8), and its tails; no two parameters share a draw."""
    gradient = {"a": torch.zeros(200_000), "b": torch.zeros(200_000)}
    sent = GradientNoise(0.5).protect(gradient, None, generator=drawn())  # type: ignore[arg-type]
    for value in sent.values():
        standard = value.double() / 0.5
        assert float(standard.pow(4).mean()) == pytest.approx(3.0, abs=0.06)
        assert float((standard.abs() > 3).double().mean()) == pytest.approx(0.0027, abs=0.0006)
    assert abs(float((sent["a"] * sent["b"]).mean())) < 0.005


@pytest.mark.parametrize(("share", "size", "kept"), [(0.3, 5, 2), (0.2, 5, 1), (0.01, 3, 1), (1.0, 4, 4), (0.51, 4, 3)])
def test_a_share_of_the_numbers_is_rounded_up(share: float, size: int, kept: int) -> None:
    value = torch.arange(1.0, size + 1) * (-1) ** torch.arange(size)
    sent = TopK(share).protect({"a": value}, None, generator=drawn())["a"]  # type: ignore[arg-type]
    assert torch.equal(sent, torch.where(value.abs() > size - kept, value, torch.zeros(size)))


def test_clipping_counts_all_parameters_together() -> None:
    sent = Clipping(2.0).protect({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}, None, generator=drawn())  # type: ignore[arg-type]
    assert float(sent["a"]) == pytest.approx(1.2) and float(sent["b"]) == pytest.approx(1.6)
    zero = Clipping(2.0).protect({"a": torch.zeros(3)}, None, generator=drawn())  # type: ignore[arg-type]
    assert torch.equal(zero["a"], torch.zeros(3))


def test_the_l2_ball_is_each_pages_own() -> None:
    """Two pages: the one outside is drawn to the root mean square epsilon exactly, the one inside stays."""
    defense = SafeTemplate(kind="random", norm="l2", epsilon=0.02)
    template = torch.full((2, 3, 8, 9), 0.5)
    delta = torch.randn(template.shape, generator=drawn()) * torch.tensor([0.1, 0.012]).view(2, 1, 1, 1)
    inside = defense._inside(template, delta)
    torch.testing.assert_close(inside[0], delta[0] * 0.02 / delta[0].square().mean().sqrt())
    torch.testing.assert_close(inside[1], delta[1])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_random_perturbation_is_by_signs_added_to_the_template(norm: str, model: DocumentModel) -> None:
    template = torch.rand(2, 3, 16, 20, generator=drawn(3))
    knowledge = Knowledge(template, torch.ones(2, 16, 20, dtype=torch.bool), [])
    defense = SafeTemplate(kind="random", norm=norm, epsilon=8 / 255)
    signs = torch.randint(0, 2, template.shape, generator=drawn(5)) * 2 - 1
    published = defense.publish(model, knowledge, [], generator=drawn(5))
    torch.testing.assert_close(published, (template + 8 / 255 * signs).clamp(0, 1))


def test_ascent_is_by_the_step_of_the_docstring_and_up(model: DocumentModel, knowledge: Knowledge) -> None:
    """Every step moves each pixel by 2.5 epsilon / steps, and the distance of gradients ends far above random's."""
    from docleak.attacks.gradients.matching import dummy_gradient, squared_and_cosine
    from docleak.attacks.gradients.view import GradientView

    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    blank = [model.encode(blank_page(page), MADE_UP)]
    names = [name for name, _ in trainable(model.module)]
    template = knowledge.template * 0.5 + 0.25  # away from the ends of the pixel range
    asked: list[tuple[Tensor, Tensor]] = []

    class Watched(SafeTemplate):
        def _inside(self, template: Tensor, delta: Tensor) -> Tensor:
            kept = super()._inside(template, delta)
            asked.append((delta, kept))
            return kept

    defense = Watched(epsilon=4 / 255, steps=4)
    start = 4 / 255 * (torch.randint(0, 2, template.shape, generator=drawn()) * 2.0 - 1)
    end = defense._moved(model, template, start, blank)
    before = [start, *(kept for _, kept in asked[:-1])]
    for old, (new, _) in zip(before, asked, strict=True):
        moved = (new - old).abs()
        assert float(moved.max()) == pytest.approx(2.5 * 4 / 255 / 4, rel=1e-4)
        assert float((moved > 0).float().mean()) > 0.9
    clean = dummy_gradient(model, template, blank, names, create_graph=False)
    distance = squared_and_cosine(GradientView(model, {name: value.detach() for name, value in clean.items()}))
    far, near = (
        float(distance(dummy_gradient(model, template + delta, blank, names, create_graph=False)))
        for delta in (end, start)
    )
    assert far > 100 * near, (far, near)  # 320 times; a descent by such steps ends at 57 times


@pytest.mark.parametrize("spec", GRADIENT_SPECS)
def test_what_the_server_sees_of_a_case_is_what_the_defence_sent(spec: str, model: DocumentModel) -> None:
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    case = build_case(model, [page], Exposure(defense=spec), seed=0)
    defense = DEFENSES.load(spec)
    assert isinstance(defense, GradientDefense)
    sent = defense.protect(case.clean.gradient, model, generator=drawn(2))
    assert case.view.gradient.keys() == sent.keys()
    assert all(torch.equal(case.view.gradient[name], value) for name, value in sent.items())
    changed = [name for name in sent if not torch.equal(sent[name], case.clean.gradient[name])]
    assert changed or sent.keys() < case.clean.gradient.keys()


@dataclass(frozen=True)
class Doubled(GradientNoise):
    """A defence of somebody's own that adds noise twice."""

    @property
    def noise_std(self) -> float:
        return math.sqrt(2) * self.sigma

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> dict[str, Tensor]:
        once = super().protect(gradient, model, generator=generator)
        return super().protect(once, model, generator=generator)


def test_a_defence_announces_its_own_noise(model: DocumentModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an attack whitens by is what the defence says, whoever wrote it."""
    monkeypatch.setitem(DEFENSES.entries, "doubled", Entry(f"{__name__}:Doubled"))
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    cases = {
        spec: build_case(model, [page], Exposure(defense=spec), seed=0)
        for spec in ("none", "clip:norm=0.5", "noise:sigma=0.5", "doubled:sigma=0.5")
    }
    assert [case.view.noise for case in cases.values()] == [0.0, 0.0, 0.5, math.sqrt(0.5)]
    sent, clean = cases["doubled:sigma=0.5"].view.gradient, cases["none"].view.gradient
    added = torch.cat([(sent[name] - clean[name]).ravel() for name in clean])
    assert float(added.std()) == pytest.approx(math.sqrt(0.5), rel=0.01)


def test_the_server_knows_the_published_template_of_a_case(model: DocumentModel) -> None:
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    clean, published = (
        build_case(model, [page], Exposure(defense=spec), seed=0).knowledge.template
        for spec in ("none", "safe-template:kind=random,epsilon=8/255")
    )
    assert torch.equal(clean, pixels_of(blank_template(page))[None])
    change = (published - clean).abs()
    assert float(change.max()) == pytest.approx(8 / 255, rel=1e-4) and float((change > 0).float().mean()) > 0.3


@pytest.mark.parametrize(
    ("methods", "missing"),
    [((), "protect and imitate"), (("protects", "imitate"), "protect"), (("protect", "publish"), "imitate")],
)
def test_an_own_defence_of_which_nothing_would_be_applied_is_refused(methods: tuple[str, ...], missing: str) -> None:
    """The report would name it as the client's defence."""
    own = type("Own", (), {"summary": "of one's own", **{name: lambda self: None for name in methods}})()
    with pytest.raises(DefenseError, match=f"defence 'Own' is a Own without {missing}; expected protect and imitate"):
        Exposure(defense=own)
    publish = {"publish": lambda self, model, knowledge, blank, *, generator: knowledge.template}
    assert DEFENSES.load(type("Template", (), {"summary": "of one's own", **publish})())


@dataclass(frozen=True)
class InPlace:
    """A defence of somebody's own that writes into what it is given."""

    summary: str = "everything halved"
    into_observed: bool = False

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> dict[str, Tensor]:
        if self.into_observed:
            return dict(gradient)
        return {name: value.mul_(0.5) for name, value in gradient.items()}

    def imitate(self, dummy: Gradient, observed: Gradient) -> Gradient:
        if self.into_observed:
            return {name: value + observed[name].mul_(0.5) for name, value in dummy.items()}
        return dummy


def test_a_defence_that_works_in_place_changes_only_what_is_sent(model: DocumentModel) -> None:
    """Otherwise the self-test and the share of the update that is kept are of what was sent, too."""
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    case, plain = (build_case(model, [page], Exposure(defense=d), seed=0) for d in (InPlace(), "none"))
    assert all(torch.equal(case.clean.gradient[name], value) for name, value in plain.view.gradient.items())
    assert all(torch.equal(case.view.gradient[name], value / 2) for name, value in plain.view.gradient.items())


def test_an_imitation_that_writes_into_what_was_sent_is_refused(model: DocumentModel) -> None:
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    case = build_case(model, [page], Exposure(defense=InPlace(into_observed=True)), seed=0)
    with pytest.raises(DefenseError, match=r"imitate of defence InPlace changed what was sent.*clone"):
        case.view.as_sent({name: value.clone() for name, value in case.clean.gradient.items()})


@pytest.mark.parametrize(
    ("method", "own"),
    [("protect", lambda gradient: gradient), ("imitate", lambda dummy: dummy)],
)
def test_a_defence_that_cannot_be_called_is_refused_before_anything_is_computed(method: str, own: object) -> None:
    takes = {"protect": lambda gradient, model, *, generator: gradient, "imitate": lambda dummy, observed: dummy}
    made = type("Own", (), {"summary": "of one's own", **{k: staticmethod(v) for k, v in takes.items()}})()
    assert DEFENSES.load(made) is made
    setattr(type(made), method, staticmethod(own))
    with pytest.raises(DefenseError, match=rf"its {method} cannot be called .*expected {method}\("):
        DEFENSES.load(made)


@dataclass(frozen=True)
class Overstated(GradientNoise):
    """A defence of somebody's own that announces another noise than it adds."""

    announced: object = 1.0

    @property
    def noise_std(self) -> float:
        return self.announced  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("announced", "said"),
    [(1.0, r"announces noise of standard deviation 1; two draws .* as if it were 0\.001"), (0.0, r"deviation 0; two"),
     ("much", "noise_std is 'much'"), (math.nan, "noise_std is nan"), (-1.0, "noise_std is -1.0")],
)  # fmt: skip
def test_an_own_defences_announced_noise_is_measured(model: DocumentModel, announced: object, said: str) -> None:
    """An attack that counts with another noise than there is fails for a reason that protects nobody."""
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    assert build_case(model, [page], Exposure(defense=Overstated(1e-3, 1.1e-3)), seed=0).view.noise == 1.1e-3
    with pytest.raises(DefenseError, match=said):
        build_case(model, [page], Exposure(defense=Overstated(1e-3, announced)), seed=0)


@dataclass
class OfTheNorm:
    """One of somebody's own: it clips, and adds noise by the gradient's own norm, none to a gradient of zeros."""

    summary = "noise by the norm"
    noise_std = 0.0

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> Gradient:
        clipped = {name: value.clamp(-1e-3, 1e-3) for name, value in gradient.items()}
        self.noise_std = 0.1 * sum(float(value.square().sum()) for value in clipped.values()) ** 0.5
        noise = {n: self.noise_std * torch.randn(v.shape, generator=generator) for n, v in clipped.items()}
        return {name: value + noise[name] for name, value in clipped.items()}

    def imitate(self, dummy: Gradient, observed: Gradient) -> Gradient:
        return dummy


def test_noise_by_the_gradients_own_norm_is_measured_on_the_gradient(model: DocumentModel) -> None:
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    assert build_case(model, [page], Exposure(defense=OfTheNorm()), seed=0).view.noise > 0


@pytest.mark.parametrize("defense", ["noise:sigma=1e30", "clip:norm=1e-40"])
def test_a_defence_beyond_what_is_compared_is_refused_as_such(defense: str, model: DocumentModel) -> None:
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    with pytest.raises(GradientError, match=r"square float32 cannot hold.*a defence made it so"):
        build_case(model, [page], Exposure(defense=defense), seed=0)


def test_a_batch_of_which_hardly_anything_came_tells_no_token_by_sums_of_nothing(model: DocumentModel) -> None:
    pages = [model.fit(page) for page in make_pages(2, seed=5, size=model.image_size)]
    case = build_case(model, pages, Exposure(defense="top-k:share=1e-9"), seed=5)
    assert all(tokens for tokens in recover_batch(case.view).places.values())


@dataclass(frozen=True)
class Mine:
    """A defence of somebody's own that does what a test tells it."""

    send: Callable[[Gradient, DocumentModel], Any] = lambda gradient, model: dict(gradient)
    compare: Callable[[Gradient], Any] = lambda dummy: dummy
    template: Callable[[Knowledge], Any] = lambda knowledge: knowledge.template
    summary: str = "a test's"

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> Any:
        return self.send(gradient, model)

    def imitate(self, dummy: Gradient, observed: Gradient) -> Any:
        return self.compare(dummy)

    def publish(self, model: DocumentModel, knowledge: Knowledge, blank: Any, *, generator: torch.Generator) -> Any:
        return self.template(knowledge)


def training(gradient: Gradient, model: DocumentModel) -> Gradient:
    model.module.train()
    return gradient


@pytest.mark.parametrize(
    ("send", "said"),
    [
        (lambda gradient, model: {n: v * torch.nan for n, v in gradient.items()}, "gave values for .* NaN or infinite"),
        (lambda gradient, model: {n: v.double() for n, v in gradient.items()}, "gave a tensor of float64"),
        (lambda gradient, model: {}, "protect of defence Mine gave nothing at all"),
        (training, "defence Mine leaves the model 'layoutlmv3-start' .*in another mode"),
    ],
)
def test_what_an_own_defence_cannot_send_is_refused_by_its_name(
    send: Any, said: str, model: DocumentModel, gradient: dict[str, Tensor]
) -> None:
    """The gradient, the attack, or a model in training mode were blamed; the next audit had that model."""
    try:
        with pytest.raises(DefenseError, match=said):
            protected(Mine(send), gradient, model, generator=drawn())
    finally:
        model.module.eval()


@pytest.mark.parametrize(("factor", "said"), [(255.0, r"not in \[0, 1\]"), (math.nan, "are NaN or infinite")])
def test_an_own_template_that_is_no_picture_is_refused(
    factor: float, said: str, model: DocumentModel, knowledge: Knowledge
) -> None:
    mine = Mine(template=lambda knowledge: knowledge.template.mul_(factor))
    with pytest.raises(DefenseError, match=f"publish of defence Mine gave a template of which pixels .*{said}|{said}"):
        published(mine, model, knowledge, [], generator=drawn())
    assert knowledge.template.max() <= 1  # its own copy


def test_errors_exits_and_settings_of_a_defence_are_its_own(model: DocumentModel, gradient: dict[str, Tensor]) -> None:
    """A KeyError of imitate was the attack's; with gradients off the attack failed, and in double precision, too."""

    def failing(dummy: Gradient) -> Gradient:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        raise KeyError("x")

    try:
        with pytest.raises(KeyError) as fault, blamed("attack 'dlg'", object()):
            imitated(Mine(compare=failing), gradient, gradient)
        assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    assert ["defence Mine raised this" in note for note in fault.value.__notes__] == [True]

    def leaving(gradient: Gradient, model: DocumentModel) -> None:
        raise SystemExit(0)

    with pytest.raises(DefenseError, match=r"defence Mine called sys\.exit\(0\)"):
        protected(Mine(leaving), gradient, model, generator=drawn())


def test_a_model_that_a_defence_wrote_into_is_loaded_again_by_the_next_audit(tmp_path: Path) -> None:
    """It was audited under its old name, with other weights."""

    def halving(gradient: Gradient, model: DocumentModel) -> Gradient:
        with torch.no_grad():
            next(model.module.parameters()).mul_(0.5)
        return gradient

    plain = GradientConfig(models=("layoutlmv3-start",), attacks=("random",), budget=1, pages=1)
    before = weights_hash(model_of(plain, "layoutlmv3-start", "cpu"))
    config = replace(plain, exposure=Exposure(defense=Mine(halving)))
    with pytest.raises(DefenseError, match="defence Mine leaves the model"):
        carry_out(GradientStudy(config), tmp_path / "run")
    assert weights_hash(model_of(plain, "layoutlmv3-start", "cpu")) == before
