"""What docleak's attack engine costs on top of a bare PyTorch loop, per gradient-matching step.

Both do one forward pass, the gradient over all parameters, the double backward pass and a solver step on the tiny
Donut. The bare loop calls the modules directly, optimises every pixel by the plain sum of squares, and keeps no
record. The two take turns step by step, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from docleak.attacks.gradients import GradientAttack, GradientView, Knowledge, gi_dqa
from docleak.attacks.gradients.levenberg import LevenbergMarquardt
from docleak.attacks.gradients.matching import relative
from docleak.attacks.gradients.solvers import Adam, Objective, Solver
from docleak.documents import blank_template, private_mask
from docleak.documents.synthetic import make_pages
from docleak.models.base import pixels_of
from docleak.models.donut import Donut
from docleak.models.tiny import donut_start
from docleak.training.update import client_gradient

WARMUP = 5
STEPS = 60
#: The engine may cost this much more than the bare loop.
TARGET = 1.10

RELATIVE_ADAM = GradientAttack(
    name="relative-adam",
    paper="docleak's benchmark",
    summary="relative matching, Adam, no prior",
    matching=relative,
    solver=Adam(),
)


def measure() -> dict[str, dict[str, float]]:
    """Per attack: medians in milliseconds, their ratio, and the quartiles of the ratio over neighbouring steps."""
    view, knowledge = _victim()
    attacks = (RELATIVE_ADAM, gi_dqa.ATTACK)
    return {attack.name: compared(attack, view, knowledge) for attack in attacks}


def as_markdown(rows: dict[str, dict[str, float]]) -> str:
    """The numbers as a section for people."""
    lines = [
        "",
        "## One gradient-matching step, beside a bare PyTorch loop",
        "",
        "| attack | docleak, ms | bare loop, ms | ratio (quartiles) | target |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        spread = f"{row['ratio_lower_quartile']:.3f}-{row['ratio_upper_quartile']:.3f}"
        lines.append(
            f"| `{name}` | {row['engine_ms']:.1f} | {row['bare_ms']:.1f} | {row['ratio']:.3f} ({spread}) "
            f"| {'met' if row['ratio'] <= row['target'] else 'missed'}: {row['target']:.2f} |"
        )
    steps = max(row["steps"] for row in rows.values())
    lines += [
        "",
        f"Tiny Donut, one page; medians of {steps:.0f} steps, the two taking turns step by step. The bare loop does",
        "the same forward, gradient and double backward pass, with the plain sum of squares and Adam",
        "(`bench/attack.py`).",
        "",
    ]
    return "\n".join(lines)


def _victim() -> tuple[GradientView, Knowledge]:
    model = donut_start(seed=0)
    page = model.fit(make_pages(1, seed=0)[0])
    inputs = [model.encode(page, page.questions[0])]
    gradient = client_gradient(model, pixels_of(page.image)[None], inputs)
    template = pixels_of(blank_template(page))[None]
    private = torch.from_numpy(private_mask(page))[None]
    return GradientView(model, gradient), Knowledge(template, private, inputs)


def compared(
    attack: GradientAttack, view: GradientView, knowledge: Knowledge, *, warmup: int = WARMUP, steps: int = STEPS
) -> dict[str, float]:
    """Medians in milliseconds of the attack's steps and of the bare loop's, which take turns, and their ratio."""
    assert attack.solver is not None and not isinstance(attack.solver, LevenbergMarquardt)
    turns = TakingTurns(attack.solver, _bare_loop(view, knowledge))
    draws = 1 + attack.whitening.draws if attack.matching is None else 0
    generator = torch.Generator().manual_seed(0)
    replace(attack, solver=turns).run(view, knowledge, budget=draws + warmup + steps, generator=generator)
    return _summary(turns.engine[warmup:], turns.bare[warmup:])


@dataclass(frozen=True)
class TakingTurns:
    """A solver that lets the bare loop make a step after each of its own, and times both.

    At its turn neither side holds a graph of the other's: memory that is in use makes a step slower.
    """

    solver: Solver
    bare_step: Callable[[], None]
    engine: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
        """The solver's own minimise; its time between two evaluations counts as the engine's."""
        resumed = time.perf_counter()

        def timed(unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
            nonlocal resumed
            answer = objective(unknowns, progress)
            stopped = clock(unknowns.device)
            self.bare_step()
            ended = clock(unknowns.device)
            self.engine.append(stopped - resumed)
            self.bare.append(ended - stopped)
            resumed = clock(unknowns.device)
            return answer

        return self.solver.minimise(timed, start, budget=budget)


def clock(device: torch.device) -> float:
    """Seconds by the clock, once ``device`` has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _summary(engine: list[float], bare: list[float]) -> dict[str, float]:
    ratios = [mine / other for mine, other in zip(engine, bare, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "engine_ms": 1e3 * statistics.median(engine),
        "bare_ms": 1e3 * statistics.median(bare),
        "ratio": statistics.median(engine) / statistics.median(bare),
        "ratio_lower_quartile": low,
        "ratio_upper_quartile": high,
        "steps": len(ratios),
        "target": TARGET,
    }


def _bare_loop(view: GradientView, knowledge: Knowledge) -> Callable[[], None]:
    """One step of the loop that a reader of the paper would write, for this model and one page."""
    module = view.model.module.eval()
    parameters = [module.get_parameter(name) for name in view.names]
    observed = [view.gradient[name] for name in view.names]
    drawn = torch.rand(knowledge.template.shape, generator=torch.Generator().manual_seed(0))
    pixels = drawn.to(knowledge.template.device).requires_grad_(True)
    optimiser = torch.optim.Adam([pixels], lr=Adam().learning_rate)
    (example,) = knowledge.inputs
    there = {name: value.to(pixels.device) for name, value in example.tensors.items()}
    loss_at = (_donut if isinstance(view.model, Donut) else _layoutlmv3)(module, there)

    def step() -> None:
        dummy = torch.autograd.grad(loss_at(pixels), parameters, create_graph=True, materialize_grads=True)
        distance = torch.stack([(a - b).square().sum() for a, b in zip(dummy, observed, strict=True)]).sum()
        (pixels.grad,) = torch.autograd.grad(distance, pixels)
        optimiser.step()
        with torch.no_grad():
            pixels.clamp_(0.0, 1.0)

    with torch.no_grad():
        theirs = view.model.loss(pixels, knowledge.inputs).mean()
        if not torch.allclose(loss_at(pixels), theirs, rtol=1e-5):
            raise RuntimeError("the bare loop's loss is not the adapter's: they would not do the same work")
    return step


def _donut(module: Any, tensors: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
    def loss_at(image: Tensor) -> Tensor:
        encoded = module.encoder(pixel_values=(image - 0.5) / 0.5).last_hidden_state
        ids = tensors["decoder_input_ids"][None]
        logits = module.decoder(input_ids=ids, encoder_hidden_states=encoded, use_cache=False).logits
        return F.cross_entropy(logits[0], tensors["labels"], ignore_index=-100)

    return loss_at


def _layoutlmv3(module: Any, tensors: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
    ids, boxes = tensors["input_ids"][None], tensors["bbox"][None]
    ends = tensors["start"][None], tensors["end"][None]

    def loss_at(image: Tensor) -> Tensor:
        out = module(input_ids=ids, bbox=boxes, attention_mask=torch.ones_like(ids), pixel_values=(image - 0.5) / 0.5)
        return (F.cross_entropy(out.start_logits, ends[0]) + F.cross_entropy(out.end_logits, ends[1])) / 2

    return loss_at
