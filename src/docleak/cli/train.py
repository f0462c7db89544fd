"""``docleak train``: train over silos that keep their pages, or over one that has them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docleak.cli.output import counter, emit, note, working_in
from docleak.cli.phases import phase_settings
from docleak.cli.private_options import evaluations_of, given, pages_under, privacy_plan
from docleak.cli.settings import pick_device
from docleak.cli.studies import command_line
from docleak.errors import FederationError, PrivacyError

if TYPE_CHECKING:
    from docleak.training.federated.federation import Federation
    from docleak.training.federated.local import LocalPlan
    from docleak.training.federated.secure.plan import SecurePlan
    from docleak.training.federated.training import Training
    from docleak.training.private.record_run import RecordTrainingConfig

app = typer.Typer(
    help="Train a document question-answering model federatedly or centrally.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Model = Annotated[str, typer.Option(help="Shipped name, directory or hub name; with --dry-run also vt5-base.")]
Rounds = Annotated[int, typer.Option(help="Rounds in all; a run that has fewer is continued.")]
Epochs = Annotated[int, typer.Option(help="Local epochs of a round.")]
Steps = Annotated[int, typer.Option(help="At most so many optimiser steps of a silo in a round; 0 for no limit.")]
Batch = Annotated[int, typer.Option(help="Questions in a step.")]
Rate = Annotated[float, typer.Option(help="Learning rate of the silos' AdamW (or SGD), which begins anew each round.")]
Decay = Annotated[float, typer.Option(help="Weight decay of the silos' optimiser.")]
Local = Annotated[str, typer.Option(help="The silos' optimiser: adamw or sgd.")]
Objective = Annotated[str, typer.Option(help="What is learnt: qa, or a self-pretraining objective: tm, lm, tlm.")]
Dropout = Annotated[bool, typer.Option("--dropout/--no-dropout", help="Train with the model's dropout.")]
Holdout = Annotated[float, typer.Option(help="Share of its documents that a silo keeps to evaluate on.")]
Epsilon = Annotated[float | None, typer.Option(help="Train with differential privacy of this epsilon.")]
Noise = Annotated[float | None, typer.Option(help="The same by its noise multiplier (docleak budget).")]
Delta = Annotated[float, typer.Option(help="Delta that belongs to epsilon; far below 1/providers.")]
Clip = Annotated[float, typer.Option(help="C: each provider's difference is clipped to this norm.")]
PrivateUnit = Annotated[
    str,
    typer.Option(
        "--unit",
        help="Whose presence is hidden: provider, document, client; central also record: one question, by DP-SGD.",
    ),
]
UnitRate = Annotated[str, typer.Option(help="Probability that a provider trains in a round, such as 0.2 or 1000/4149.")]
Denominator = Annotated[
    int, typer.Option(help="M: a public constant that sums are divided by; every silo has as many.")
]
Phases = Annotated[
    str,
    typer.Option(
        help="Several trainings under one --epsilon, as docleak budget --phases plans them: NAME:ROUNDS:RATE, "
        "separated by commas."
    ),
]
PhaseName = Annotated[str, typer.Option(help="Which of --phases this is; it says the rounds and the unit rate.")]
StartIsPublic = Annotated[
    bool,
    typer.Option(
        "--start-is-public",
        help="Declare that the start model, of which nothing is recorded, saw no private "
        "pages. It is recorded as your declaration.",
    ),
]
Every = Annotated[int, typer.Option(help="Evaluate after every so many rounds, and the last; 0 never.")]
Capture = Annotated[bool, typer.Option(help="Record each update in OUT/updates, for docleak audit --updates.")]
Seed = Annotated[int, typer.Option(help="Seed of sampling, orders, dropout and what is kept.")]
Out = Annotated[Path, typer.Option(help="Run directory; an interrupted training in it is continued.")]
AsBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write OUT/tensorboard, an event file.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be sent and done, and stop.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress.")]


@app.command()
def federated(
    silos: Annotated[
        Path | None, typer.Option(help="Folder of silos (docleak data make --partition). Empty: synthetic ones.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Synthetic silos to make where --silos is not given.")] = 3,
    documents: Annotated[int, typer.Option(help="Synthetic invoices of all silos together.")] = 240,
    model: Model = "vt5-start",
    rounds: Rounds = 6,
    participation: Annotated[float, typer.Option(help="Share C of the silos that train in a round.")] = 1.0,
    minimum: Annotated[int, typer.Option(help="Average a round with so many updates; 0: every sampled silo's.")] = 0,
    server: Annotated[str, typer.Option(help="Server optimiser: fedavg, fedavgm, fedadam.")] = "fedavg",
    server_rate: Annotated[float, typer.Option(help="Learning rate of the server.")] = 1.0,
    beta1: Annotated[float, typer.Option(help="Momentum of fedavgm and fedadam.")] = 0.9,
    beta2: Annotated[float, typer.Option(help="Second moment of fedadam.")] = 0.999,
    epochs: Epochs = 1,
    max_steps: Steps = 35,
    batch_size: Batch = 16,
    learning_rate: Rate = 2e-3,
    weight_decay: Decay = 0.01,
    optimiser: Local = "adamw",
    objective: Objective = "qa",
    dropout: Dropout = False,
    holdout: Holdout = 0.2,
    compression: Annotated[str, typer.Option(help="How updates are sent: none, fp16, topk:SHARE.")] = "none",
    epsilon: Epsilon = None,
    noise: Noise = None,
    delta: Delta = 1e-5,
    clip_norm: Clip = 0.5,
    unit: PrivateUnit = "provider",
    unit_rate: UnitRate = "1",
    denominator: Denominator = 0,
    published_counting: Annotated[
        bool,
        typer.Option("--published-counting", help="Count drawn clients (--participation) as the paper does. No bound."),
    ] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Secure aggregation: the server learns sums of updates only.")
    ] = False,
    secure_threshold: Annotated[
        int, typer.Option(help="Silos that a sum needs; 0: two thirds and one, under --epsilon all.")
    ] = 0,
    secure_limit: Annotated[
        float, typer.Option(help="Largest value a silo may send, times its questions; public. 0: 1000.")
    ] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds a silo has for a message; then it is stopped.")] = 21600.0,
    phases: Phases = "",
    phase: PhaseName = "",
    start_is_public: StartIsPublic = False,
    evaluate_every: Every = 1,
    capture: Capture = True,
    seed: Seed = 0,
    out: Out = Path("docleak-train"),
    tensorboard: AsBoard = False,
    device: Device = "auto",
    dry_run: DryRun = False,
    json_output: Json = False,
) -> None:
    """Train over silos on Flower, in one process without sockets; docleak deploy runs the same over a network."""
    from docleak.training.federated.federation import Federation, impossible
    from docleak.training.federated.fedopt import FedOpt
    from docleak.training.federated.local import LocalPlan
    from docleak.training.federated.silo_folders import find_silos, synthetic_silos
    from docleak.training.federated.training import Training
    from docleak.training.federated.wire import Compression

    plan = LocalPlan(
        epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, weight_decay=weight_decay,
        optimiser=optimiser, max_steps=max_steps, dropout=dropout, objective=objective,
    )  # fmt: skip
    epsilon, noise, rounds, unit_rate = phase_settings(
        phases, phase, epsilon, noise, rounds, unit_rate, delta=delta, unit=unit, client_rate=participation
    )
    private = privacy_plan(
        epsilon, noise, rounds, delta=delta, clip_norm=clip_norm, unit=unit, unit_rate=unit_rate,
        client_rate=participation, denominator=denominator, published_counting=published_counting,
    )  # fmt: skip
    federation = Federation(
        model, rounds, participation, minimum, holdout, seed, plan, FedOpt(server, server_rate, beta1, beta2),
        Compression.of(compression), private, _secure_plan(secure, secure_threshold, secure_limit),
        evaluations_of(private, rounds, evaluate_every),
    )  # fmt: skip
    count = len(find_silos(silos)) if silos else clients
    if faults := impossible(federation, count) if count > 0 else []:
        raise FederationError("; ".join(faults) + ".")
    if dry_run:
        _say_cost(federation, count, json_output=json_output)
        return
    training = Training(federation, evaluate_every, capture, tensorboard, timeout, start_is_public)
    _train(
        training,
        lambda: find_silos(silos) if silos else synthetic_silos(out / "silos", clients, documents, seed=seed),
        out, device, json_output,
    )  # fmt: skip


@app.command()
def central(
    documents: Annotated[str, typer.Option(help="synthetic, a folder, or FORMAT:PATH.")] = "synthetic",
    pages: Annotated[
        int, typer.Option(help="Synthetic invoices to make; of other pages, at most so many (0: all).")
    ] = 240,
    model: Model = "vt5-start",
    rounds: Annotated[int, typer.Option(help="Rounds, each of which ends with an evaluation and a checkpoint.")] = 6,
    epochs: Epochs = 1,
    max_steps: Steps = 35,
    batch_size: Batch = 16,
    learning_rate: Rate = 2e-3,
    weight_decay: Decay = 0.01,
    optimiser: Local = "adamw",
    objective: Objective = "qa",
    dropout: Dropout = False,
    holdout: Holdout = 0.2,
    epsilon: Epsilon = None,
    noise: Noise = None,
    delta: Delta = 1e-5,
    clip_norm: Clip = 0.5,
    unit: PrivateUnit = "provider",
    unit_rate: UnitRate = "1",
    denominator: Denominator = 0,
    phases: Phases = "",
    phase: PhaseName = "",
    start_is_public: StartIsPublic = False,
    evaluate_every: Every = 1,
    capture: Capture = False,
    seed: Seed = 0,
    out: Out = Path("docleak-train"),
    tensorboard: AsBoard = False,
    device: Device = "auto",
    dry_run: DryRun = False,
    json_output: Json = False,
) -> None:
    """Train on pages that are all in one place: the same code with one silo, whose optimiser begins anew each round."""
    from docleak.training.federated.federation import Federation
    from docleak.training.federated.local import LocalPlan
    from docleak.training.federated.silo_folders import one_silo
    from docleak.training.federated.training import Training

    plan = LocalPlan(
        epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, weight_decay=weight_decay,
        optimiser=optimiser, max_steps=max_steps, dropout=dropout, objective=objective,
    )  # fmt: skip
    epsilon, noise, rounds, unit_rate = phase_settings(
        phases, phase, epsilon, noise, rounds, unit_rate, delta=delta, unit=unit, client_rate=1.0
    )
    private = privacy_plan(
        epsilon, noise, rounds, delta=delta, clip_norm=clip_norm, unit=unit, unit_rate=unit_rate, client_rate=1.0,
        denominator=denominator,
    )  # fmt: skip
    silo = partial(one_silo, documents, pages_under(private, documents, pages), out / "silos", seed=seed)
    if private is not None and private.mechanism.unit == "record":
        from docleak.training.private.record_run import RecordTrainingConfig
        from docleak.training.private.records import RecordOptimiser

        local = given("epochs", "max_steps", "batch_size", "evaluate_every")
        others = {"--capture": capture, "--tensorboard": tensorboard, "--dry-run": dry_run}
        _refuse_for_records(plan, {**others, **dict.fromkeys(local, True)})
        how = RecordOptimiser(learning_rate, weight_decay, dropout)
        config = RecordTrainingConfig(private, model, how, holdout, seed, start_is_public)
        _train_records(config, silo, out, device, json_output)
        return
    federation = Federation(
        model, rounds, holdout=holdout, seed=seed, local=plan, privacy=private,
        evaluations=evaluations_of(private, rounds, evaluate_every),
    )  # fmt: skip
    if dry_run:
        _say_cost(federation, 1, json_output=json_output)
        return
    training = Training(federation, evaluate_every, capture, tensorboard, start_is_public=start_is_public)
    _train(training, silo, out, device, json_output)


def _secure_plan(secure: bool, threshold: int, limit: float) -> SecurePlan | None:
    from docleak.training.federated.secure.plan import SecurePlan

    if not secure and (threshold or limit):
        raise FederationError("--secure-threshold and --secure-limit belong to --secure; give it, or leave them out.")
    return SecurePlan(threshold, limit) if secure else None


def _train(
    training: Training, silos: Callable[[], Mapping[str, Path]], out: Path, device: str, json_output: bool
) -> None:
    """Train, draw the curves, and say what came of it."""
    import numpy as np

    from docleak.studies.trainings import draw_curves
    from docleak.training.federated.summary import facts_of, text_of
    from docleak.training.federated.training import train

    with counter(quiet=json_output) as on_unit, working_in(out):
        run = train(
            training, silos, out, device=pick_device(device), command=command_line(),
            on_begin=lambda run, found: Turns(training.federation, len(found), run.last_round(), on_unit), say=note,
        )  # fmt: skip
        draw_curves(run)
    facts = facts_of(run, silos(), rng=np.random.default_rng(training.federation.seed))
    emit(facts, text_of(facts), json_output=json_output)


@dataclass
class Turns:
    """Progress over the silos' turns."""

    federation: Federation
    silos: int
    done: int
    on_unit: Callable[[int, int, str], None]

    def __post_init__(self) -> None:
        from docleak.training.federated.federation import drawn

        self._total = (self.federation.rounds - self.done) * drawn(self.federation, self.silos)
        self._turns = 0

    def __call__(self, number: int, silo: str, kind: str) -> None:
        """A silo begins its turn."""
        self._turns += kind == "train"
        words = {"query": "meeting", "train": f"round {number}: training", "evaluate": f"round {number}: evaluating"}
        doing = words.get(kind, f"round {number}: secure aggregation,")
        self.on_unit(max(0, self._turns - 1), max(1, self._total), f"{doing} {silo}")


def _train_records(
    config: RecordTrainingConfig,
    silo: Callable[[], Mapping[str, Path]],
    out: Path,
    device: str,
    json_output: bool,
) -> None:
    """Train by DP-SGD over single questions, and say what came of it."""
    from docleak.training.private.record_run import train_records

    with counter(quiet=json_output) as on_step, working_in(out, resumes=False):
        record = train_records(
            config, silo, out, device=pick_device(device), command=command_line(), say=note,
            on_step=lambda done, of: on_step(done, of, "steps of DP-SGD"),
        )  # fmt: skip
    losses = " -> ".join(f"{loss:.3f}" for loss in record["loss_kept_before_and_after"])
    text = (
        f"{record['steps']} steps over {record['records']} questions; loss on kept documents "
        f"{losses or 'not measured'}.\nPrivacy: {record['claim']}\nModel: {record['model']}"
    )
    emit(record, text, json_output=json_output)


def _refuse_for_records(local: LocalPlan, given_in_vain: Mapping[str, bool]) -> None:
    """PrivacyError for options that DP-SGD has no use for; those that only shape local rounds are not looked at."""
    idle = [name for name, value in given_in_vain.items() if value]
    idle += [f"--objective {local.objective}"] * (local.objective != "qa")
    idle += [f"--optimiser {local.optimiser}"] * (local.optimiser != "adamw")
    if idle:
        raise PrivacyError(
            f"--unit record trains by DP-SGD (questions and answers, AdamW), which has no {', '.join(idle)}. Leave "
            "that out; --rounds are its steps, and each draws its questions by coins (--unit-rate)."
        )


def _say_cost(federation: Federation, silos: int, *, json_output: bool) -> None:
    from docleak.training.federated.cost import Cost
    from docleak.training.federated.federation import drawn
    from docleak.training.federated.summary import network_of

    cost = Cost.of(network_of(federation.model))
    clients = drawn(federation, silos)
    sent, published = cost.sent(federation, silos), cost.as_published(federation, silos)
    facts = {
        "model": federation.model, "trainable": cost.trainable, "rounds": federation.rounds,
        "clients_per_round": clients,
        "bytes_down_per_client": cost.down(), "bytes_up_per_client": cost.up(federation.compression),
        "bytes_total": sent, "bytes_total_as_published": published,
    }  # fmt: skip
    text = (
        f"{federation.model}: {cost.trainable:,} numbers are trained and travel, a tied weight once.\n"
        f"A round: {clients} of {silos} silos, each {cost.down() / 2**20:,.2f} MiB down and "
        f"{cost.up(federation.compression) / 2**20:,.2f} MiB up ({federation.compression}).\n"
        f"{federation.rounds} rounds: docleak sends {sent / 2**30:,.2f} GiB. The papers' counting, in which every "
        f"use of a tied weight travels: {published / 2**30:,.2f} GiB.\n"
        "Framing adds less than 2 %; each evaluation sends the model once more to every silo."
    )
    emit(facts, text, json_output=json_output)
