"""``docleak attack canaries``: a lower bound on epsilon from one training, beside what the accountant claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from docleak.cli.settings import pick_device
from docleak.cli.studies import run_and_report

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
    out: Annotated[Path, typer.Option(help="Run directory; an interrupted run in it is continued.")] = Path(
        "docleak-canaries"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    workers: Annotated[int, typer.Option(help="Worker processes, one thread each; 0 means one per core.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress.")]
    = False,
) -> None:  # fmt: skip
    """Train with canary providers, without noise and with --epsilon, guess which were there, and bound epsilon.

    Fails with a ContradictionError if more is measured than the accountant allows.
    """
    from docleak.privacy.mechanism import probability
    from docleak.studies.canaries.audit import CanaryConfig
    from docleak.studies.canaries.study import CanaryStudy

    config = CanaryConfig(
        model=model, epsilon=epsilon, canaries=count, others=others, guesses=guesses or 2 * count // 3, rounds=rounds,
        clip_norm=clip_norm, unit_rate=probability(unit_rate, what="unit rate"), delta=delta,
        learning_rate=learning_rate, confidence=confidence, every_round=every_round, seed=seed,
    )  # fmt: skip
    run_and_report(CanaryStudy(config, device=pick_device(device)), out, workers, json_output)
