"""What attacks of one's own return is checked where a study asks them, and what they are given is theirs."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from docleak.attacks.gradients import ATTACKS, Finding, GradientView, Knowledge
from docleak.attacks.gradients.asking import ask
from docleak.cli import main
from docleak.documents import blank_template, private_mask
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models.base import pixels_of
from docleak.models.tiny import donut_start
from docleak.training.update import client_gradient
from tests.small import Returning

Case = tuple[GradientView, Knowledge]


@pytest.fixture(scope="module")
def case() -> Case:
    model = donut_start(seed=0)
    page = model.fit(make_pages(1, seed=0)[0])
    inputs = [model.encode(page, page.questions[0])]
    gradient = client_gradient(model, pixels_of(page.image)[None], inputs)
    template, private = pixels_of(blank_template(page))[None], torch.from_numpy(private_mask(page))[None]
    return GradientView(model, gradient), Knowledge(template, private, inputs)


def asked(attack: Any, case: Case, budget: int = 3) -> Finding:
    generator = torch.Generator().manual_seed(0)
    return ask(attack, *case, budget=budget, generator=generator, on_evaluation=lambda number, loss, pixels: None)


def finding(knowledge: Knowledge, **changes: Any) -> Finding:
    return replace(Finding(knowledge.template, 0.5, 0.5, 1, 0.1, ((1, 0.5),)), **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pixels": None}, "pixels is None, not a tensor"),
        ({"pixels": lambda t: t.long()}, r"pixels is a tensor of int64 and the shape"),
        ({"pixels": lambda t: t[0]}, r"the shape \(3, .*expected that of the template, \(1, 3"),
        ({"pixels": lambda t: t * torch.nan}, "pixels are NaN or infinite"),
        ({"pixels": lambda t: t * 255}, r"to 255, not in \[0, 1\] \(clamp"),
        ({"pixels": lambda t: t - 1}, "pixels are from -1"),
        ({"evaluations": -1}, "evaluations is -1; the budget is 3"),
        ({"evaluations": 4}, "evaluations is 4; the budget is 3"),
        ({"evaluations": 1.5}, "evaluations is 1.5"),
        ({"explained": "all"}, "explained is 'all', no number"),
        ({"explained": torch.zeros(())}, "explained is a tensor"),
        ({"seconds": None}, "seconds is None"),
        ({"matching": True}, "matching is True"),
        ({"history": (0.5,)}, "history has 0.5, no pair"),
        ({"history": 3}, "history has 3, no pair"),
        ({"start": None}, "start is None, no text"),
        ({"loss": 0.5}, "loss is 0.5, no text"),
    ],
)
def test_findings_that_cannot_be_are_refused(changes: dict[str, Any], said: str, case: Case) -> None:
    ((name, value),) = changes.items()

    def make(view: GradientView, knowledge: Knowledge) -> Finding:
        return finding(knowledge, **{name: value(knowledge.template) if callable(value) else value})

    with pytest.raises(AttackError, match=rf"attack 'mine' returned a Finding that cannot be:\n  - .*{said}"):
        asked(Returning(make), case)


@pytest.mark.parametrize("value", [None, torch.zeros(2), (1, 2)])
def test_what_is_no_finding_is_refused(value: Any, case: Case) -> None:
    with pytest.raises(AttackError, match=r"attack 'mine' returned .*; expected a docleak\.attacks\..*Finding"):
        asked(Returning(lambda view, knowledge: value), case)


def test_pixels_beyond_the_range_by_rounding_and_losses_that_are_not_finite_pass(case: Case) -> None:
    made = Returning(lambda view, known: finding(known, pixels=known.template * 1.001, explained=float("nan")))
    assert asked(made, case).evaluations == 1


def test_a_run_that_takes_something_else_is_told_what_is_given(case: Case) -> None:
    @dataclass(frozen=True)
    class Other(Returning):
        def run(self, view: Any, knowledge: Any, *, budget: int, generator: Any) -> Any:  # type: ignore[override]
            return self.make(view, knowledge)

    with pytest.raises(
        AttackError, match=r"'mine': its run cannot be called \(.*on_evaluation.*expected run\(view"
    ) as no:
        asked(Other(lambda view, knowledge: finding(knowledge)), case)
    assert "One on pairs, weights or answers is given to docleak audit pairs, weights or answers." in str(no.value)


@pytest.mark.parametrize(
    ("told", "said"),
    [((1, 0.5, None), "pixels is None"), ((1, 0.5, torch.zeros(3)), "expected that of the template"),
     ((0, 0.5), "number is 0"), ((4, 0.5), "number is 4; the budget is 3"), (("1", 0.5), "number is '1'"),
     ((1, "low"), "loss is 'low', no number")],
)  # fmt: skip
def test_progress_that_cannot_be_is_refused(told: tuple[Any, ...], said: str, case: Case) -> None:
    """It was an error within docleak, or more evaluations than the budget in the progress."""

    @dataclass(frozen=True)
    class Telling(Returning):
        def run(self, view: Any, knowledge: Any, *, on_evaluation: Any, **how: Any) -> Any:
            on_evaluation(1, 0.5, knowledge.template)
            on_evaluation(*told, *([knowledge.template] if len(told) < 3 else []))
            return finding(knowledge)

    with pytest.raises(AttackError, match=rf"attack 'mine' calls on_evaluation with what cannot be: .*{said}"):
        asked(Telling(lambda view, knowledge: None), case)


def test_an_attack_changes_nothing_that_others_see(case: Case) -> None:
    def writing(view: GradientView, knowledge: Knowledge) -> Finding:
        made = finding(knowledge, pixels=knowledge.template.clone())
        knowledge.template.zero_()
        knowledge.private.zero_()
        for tensor in knowledge.inputs[0].tensors.values():
            tensor.zero_()
        return made

    before = [value.clone() for value in case[1].inputs[0].tensors.values()]
    asked(Returning(writing), case)
    assert case[1].template.max() > 0 and case[1].private.any()
    for then, now in zip(before, case[1].inputs[0].tensors.values(), strict=True):
        assert torch.equal(then, now)

    def halving(view: GradientView, knowledge: Knowledge) -> Finding:
        next(iter(view.gradient.values())).mul_(0.5)
        return finding(knowledge)

    view = replace(case[0], gradient={name: value.clone() for name, value in case[0].gradient.items()})
    with pytest.raises(AttackError, match="attack 'mine' leaves another gradient than it was given"):
        asked(Returning(halving), (view, case[1]))


def test_what_an_attack_sets_for_the_whole_process_ends_with_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attack was blamed: of one without gradients, or of mixed types."""

    def setting(view: GradientView, knowledge: Knowledge) -> Finding:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        os.chdir("/")
        return finding(knowledge)

    monkeypatch.chdir(before := Path.cwd())
    try:
        asked(Returning(setting), case)
        assert Path.cwd() == before, "a run in a relative folder went on elsewhere"
        assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)


def test_an_attack_ends_well_where_the_current_folder_is_gone(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had found in hours was lost, and it was blamed for a folder that somebody else had renamed."""

    def renamed(view: GradientView, knowledge: Knowledge) -> Finding:
        os.rename(tmp_path / "here", tmp_path / "there")
        return finding(knowledge)

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    asked(Returning(renamed), case)
    assert Path.cwd() == tmp_path / "there"
    (tmp_path / "there").rmdir()
    asked(Returning(lambda view, knowledge: finding(knowledge)), case)


def test_an_error_of_an_attack_says_whose_it_is(case: Case) -> None:
    """It was "KeyError: 'x'" beneath docleak's own frames, of whichever of several attacks."""

    def failing(view: GradientView, knowledge: Knowledge) -> Finding:
        raise KeyError("x")

    with pytest.raises(KeyError) as fault:
        asked(Returning(failing), case)
    assert any("attack 'mine' raised this" in note for note in fault.value.__notes__)


def test_the_command_line_says_whose_a_refusal_is_and_not_of_docleaks_own_attacks(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what is no DocleakError, whose traceback is shown, told it; of docleak's own none is to be mended."""

    def refusing(*given: object, **how: object) -> Finding:
        raise AttackError("no such thing")

    monkeypatch.setattr("sys.argv", ["docleak", "models"])
    monkeypatch.setattr("docleak.cli.app.command_line", lambda: lambda standalone_mode: asked(attacks.pop(), case))
    theirs = ATTACKS.load("dlg")
    monkeypatch.setattr(type(theirs), "run", refusing)
    attacks: list[Any] = [theirs, Returning(refusing)]
    for named in (True, False):
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr().err
        assert "no such thing" in said and ("attack 'mine' raised this" in said) is named and "'dlg'" not in said


def test_attacks_of_docleak_pass(case: Case) -> None:
    for name in ("random", "dlg", "idlg", "inverting-gradients"):
        assert 0 <= asked(ATTACKS.load(name), case).evaluations <= 3
