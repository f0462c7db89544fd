"""``docleak attack canaries``: a lower bound on epsilon from one training, beside what the accountant claims."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docleak.cli.output import counter, emit, working_in
from docleak.cli.settings import pick_device

if TYPE_CHECKING:
    from docleak.evidence.canaries import CanaryAudit

#: Commands: name -> what --list says.
CANARY_COMMANDS = {"canaries": "What one private training provably leaks of canary providers (Steinke et al., 2023)."}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("canaries", help=CANARY_COMMANDS["canaries"])(canaries)


def canaries(
    model: Annotated[str, typer.Option(help="Shipped name, directory or hub name of the model to start from.")]
    = "vt5-start",
    count: Annotated[int, typer.Option("--canaries", help="Canary providers; a fair coin includes each.")] = 96,
    others: Annotated[int, typer.Option(help="Other providers, always included; the plan's constant M.")] = 8,
    guesses: Annotated[int, typer.Option(help="Canaries to guess about; 0: two thirds of them.")] = 0,
    epsilon: Annotated[float, typer.Option(help="What the private training claims.")] = 8.0,
    delta: Annotated[float, typer.Option(help="Delta of both bounds; far below 1/canaries.")] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Rounds of the training.")] = 1,
    unit_rate: Annotated[str, typer.Option(help="Probability that a provider trains in a round.")] = "1",
    clip_norm: Annotated[float, typer.Option(help="C: each provider's difference is clipped to this norm.")] = 0.5,
    learning_rate: Annotated[float, typer.Option(help="Of a provider's one step of AdamW.")] = 1e-3,
    confidence: Annotated[float, typer.Option(help="With which the lower bounds hold.")] = 0.95,
    every_round: Annotated[bool, typer.Option("--every-round", help="The adversary sees the model after every round."
                                              )] = False,
    seed: Annotated[int, typer.Option(help="Seed of pages, coins and noise.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of result.json.")] = Path("docleak-canaries"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress.")]
    = False,
) -> None:  # fmt: skip
    """Train with canary providers, without noise and with --epsilon, guess which were there, and bound epsilon.

    Fails with a ContradictionError if more is measured than the accountant allows.
    """
    import torch

    from docleak.cli.budget import probability
    from docleak.evidence.canaries import Bench, CanaryConfig, audit_canaries
    from docleak.files import write_json
    from docleak.models import load_model
    from docleak.privacy.budget import delta_warning

    torch.set_num_threads(1)
    config = CanaryConfig(
        canaries=count, others=others, guesses=guesses or 2 * count // 3, rounds=rounds, clip_norm=clip_norm,
        unit_rate=probability(unit_rate, what="unit rate"), delta=delta, learning_rate=learning_rate,
        confidence=confidence, every_round=every_round, seed=seed,
    )  # fmt: skip
    if warning := delta_warning(delta, count + others, "provider"):
        print(f"Warning: {warning}", file=sys.stderr)
    plans = {"without noise": config.plan(0.0), f"epsilon {epsilon:g}": config.plan_for(epsilon)}
    found: dict[str, CanaryAudit] = {}
    with working_in(out, resumes=False), counter(quiet=json_output) as on_step:
        on_step(0, len(plans) + 1, "differences of the canaries")
        bench = Bench.of(load_model(model, device=pick_device(device)), config)
        for name, plan in plans.items():
            on_step(len(found) + 1, len(plans) + 1, name)
            found[name] = audit_canaries(bench, config, plan, seed=seed)
        value = {"config": config.as_json(), "audits": {name: audit.as_json() for name, audit in found.items()}}
        write_json(out / "result.json", value)
    emit(value, _as_text(found, out), json_output=json_output)
    for audit in found.values():
        audit.check()


def _as_text(found: dict[str, CanaryAudit], out: Path) -> str:
    threat = next(iter(found.values())).threat
    lines = [f"The adversary {threat}."]
    for name, audit in found.items():
        lines += ["", f"Training {name}, {audit.included} canaries included:"]
        lines += [f"  measured, by {score}: {bound.sentence()}" for score, bound in audit.lower.items()]
        lines += [f"  claimed: {audit.upper.sentence()}"]
    return "\n".join([*lines, "", f"Written to {out / 'result.json'}"])
