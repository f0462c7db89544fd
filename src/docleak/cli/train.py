"""``docleak train``: train over silos that keep their pages, or over one that has them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docleak.cli.options import with_options
from docleak.cli.output import counter, emit, note, working_in
from docleak.cli.phases import phase_settings
from docleak.cli.private_options import OF_A_TARGET, given
from docleak.cli.settings import pick_device
from docleak.cli.studies import command_line
from docleak.errors import FederationError, PrivacyError

if TYPE_CHECKING:
    from docleak.privacy.plan import DpPlan
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


@dataclass(frozen=True)
class Options:
    """What both commands take."""

    model: Annotated[str, typer.Option(help="Shipped name, directory or hub name; with --dry-run also vt5-base.")] = (
        "vt5-start"
    )
    rounds: Annotated[int, typer.Option(help="Rounds in all; a run that has fewer is continued.")] = 6
    epochs: Annotated[int, typer.Option(help="Local epochs of a round.")] = 1
    max_steps: Annotated[
        int, typer.Option(help="At most so many optimiser steps of a silo in a round; 0 for no limit.")
    ] = 35
    batch_size: Annotated[int, typer.Option(help="Questions in a step.")] = 16
    learning_rate: Annotated[
        float, typer.Option(help="Learning rate of the silos' AdamW (or SGD), which begins anew each round.")
    ] = 2e-3
    weight_decay: Annotated[float, typer.Option(help="Weight decay of the silos' optimiser.")] = 0.01
    optimiser: Annotated[str, typer.Option(help="The silos' optimiser: adamw or sgd.")] = "adamw"
    objective: Annotated[
        str, typer.Option(help="What is learnt: qa, or a self-pretraining objective: tm, lm, tlm.")
    ] = "qa"
    dropout: Annotated[bool, typer.Option("--dropout/--no-dropout", help="Train with the model's dropout.")] = False
    holdout: Annotated[float, typer.Option(help="Share of its documents that a silo keeps to evaluate on.")] = 0.2
    epsilon: Annotated[float | None, typer.Option(help="Train with differential privacy of this epsilon.")] = None
    noise: Annotated[float | None, typer.Option(help="The same by its noise multiplier (docleak budget).")] = None
    delta: Annotated[float, typer.Option(help="Delta that belongs to epsilon; far below 1/providers.")] = 1e-5
    clip_norm: Annotated[float, typer.Option(help="C: each provider's difference is clipped to this norm.")] = 0.5
    unit: Annotated[
        str,
        typer.Option(
            help="Whose presence is hidden: provider, document, client; central also record: one question, by DP-SGD."
        ),
    ] = "provider"
    unit_rate: Annotated[
        str, typer.Option(help="Probability that a provider trains in a round, such as 0.2 or 1000/4149.")
    ] = "1"
    denominator: Annotated[
        int, typer.Option(help="M: a public constant that sums are divided by; every silo has as many.")
    ] = 0
    phases: Annotated[
        str,
        typer.Option(
            help="Several trainings under one --epsilon, as docleak budget --phases plans them: NAME:ROUNDS:RATE, "
            "separated by commas."
        ),
    ] = ""
    phase: Annotated[str, typer.Option(help="Which of --phases this is; it says the rounds and the unit rate.")] = ""
    start_is_public: Annotated[
        bool,
        typer.Option(
            "--start-is-public",
            help="Declare that the start model, of which nothing is recorded, saw no private "
            "pages. It is recorded as your declaration.",
        ),
    ] = False
    evaluate_every: Annotated[int, typer.Option(help="Evaluate after every so many rounds, and the last; 0 never.")] = 1
    capture: Annotated[bool, typer.Option(help="Record each update in OUT/updates, for docleak audit updates.")] = False
    seed: Annotated[int, typer.Option(help="Seed of sampling, orders, dropout and what is kept.")] = 0
    out: Annotated[Path, typer.Option(help="Run directory; an interrupted training in it is continued.")] = Path(
        "docleak-train"
    )
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write OUT/tensorboard, an event file.")] = (
        False
    )
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent and done, and stop.")] = False
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress.")] = (
        False
    )

    def local(self) -> LocalPlan:
        """What a silo does in a round."""
        from docleak.training.federated.local import LocalPlan

        return LocalPlan(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate,
            weight_decay=self.weight_decay, optimiser=self.optimiser, max_steps=self.max_steps, dropout=self.dropout,
            objective=self.objective,
        )  # fmt: skip

    def private(self, client_rate: float = 1.0, *, published_counting: bool = False) -> tuple[DpPlan | None, int]:
        """The privacy plan that is asked for, and the rounds to train, which a phase may say."""
        from docleak.privacy.planning import plan_of

        epsilon, noise, rounds, unit_rate = phase_settings(
            self.phases, self.phase, self.epsilon, self.noise, self.rounds, self.unit_rate, delta=self.delta,
            unit=self.unit, client_rate=client_rate,
        )  # fmt: skip
        plan = plan_of(
            epsilon, noise, rounds, delta=self.delta, clip_norm=self.clip_norm, unit=self.unit, unit_rate=unit_rate,
            client_rate=client_rate, denominator=self.denominator, published_counting=published_counting,
            idle=given(*OF_A_TARGET),
        )  # fmt: skip
        return plan, rounds

    def training(self, federation: Federation, timeout: float = 21600.0) -> Training:
        """The federation, and how it is carried out."""
        from docleak.training.federated.training import Training

        return Training(federation, self.evaluate_every, self.capture, self.tensorboard, timeout, self.start_is_public)


@dataclass(frozen=True)
class Federated(Options):
    """What a training over silos takes besides."""

    silos: Annotated[
        Path | None, typer.Option(help="Folder of silos (docleak data make --partition). Empty: synthetic ones.")
    ] = None
    clients: Annotated[int, typer.Option(help="Synthetic silos to make where --silos is not given.")] = 3
    documents: Annotated[int, typer.Option(help="Synthetic invoices of all silos together.")] = 240
    participation: Annotated[float, typer.Option(help="Share C of the silos that train in a round.")] = 1.0
    minimum: Annotated[int, typer.Option(help="Average a round with so many updates; 0: every sampled silo's.")] = 0
    server: Annotated[str, typer.Option(help="Server optimiser: fedavg, fedavgm, fedadam.")] = "fedavg"
    server_rate: Annotated[float, typer.Option(help="Learning rate of the server.")] = 1.0
    beta1: Annotated[float, typer.Option(help="Momentum of fedavgm and fedadam.")] = 0.9
    beta2: Annotated[float, typer.Option(help="Second moment of fedadam.")] = 0.999
    compression: Annotated[str, typer.Option(help="How updates are sent: none, fp16, topk:SHARE.")] = "none"
    published_counting: Annotated[
        bool,
        typer.Option("--published-counting", help="Count drawn clients (--participation) as the paper does. No bound."),
    ] = False
    secure: Annotated[
        bool, typer.Option("--secure", help="Secure aggregation: the server learns sums of updates only.")
    ] = False
    secure_threshold: Annotated[
        int, typer.Option(help="Silos that a sum needs; 0: two thirds and one, under --epsilon all.")
    ] = 0
    secure_limit: Annotated[
        float, typer.Option(help="Largest value a silo may send, times its questions; public. 0: 1000.")
    ] = 0.0
    timeout: Annotated[float, typer.Option(help="Seconds a silo has for a message; then it is stopped.")] = 21600.0
    capture: Annotated[bool, typer.Option(help="Record each update in OUT/updates, for docleak audit updates.")] = True


@dataclass(frozen=True)
class Central(Options):
    """What a training on pages in one place takes besides."""

    documents: Annotated[str, typer.Option(help="synthetic, a folder, or FORMAT:PATH.")] = "synthetic"
    pages: Annotated[
        int, typer.Option(help="Synthetic invoices to make; of other pages, at most so many (0: all).")
    ] = 240
    rounds: Annotated[int, typer.Option(help="Rounds, each of which ends with an evaluation and a checkpoint.")] = 6


def federated(options: Federated) -> None:
    """Train over silos on Flower, in one process without sockets; docleak deploy runs the same over a network."""
    from docleak.privacy.planning import evaluations_of
    from docleak.training.federated.federation import Federation, impossible
    from docleak.training.federated.fedopt import FedOpt
    from docleak.training.federated.silo_folders import find_silos, synthetic_silos
    from docleak.training.federated.wire import Compression

    local = options.local()
    private, rounds = options.private(options.participation, published_counting=options.published_counting)
    server = FedOpt(options.server, options.server_rate, options.beta1, options.beta2)
    federation = Federation(
        options.model, rounds, options.participation, options.minimum, options.holdout, options.seed, local, server,
        Compression.of(options.compression), private,
        _secure_plan(options.secure, options.secure_threshold, options.secure_limit),
        evaluations_of(private, rounds, options.evaluate_every),
    )  # fmt: skip
    count = len(find_silos(options.silos)) if options.silos else options.clients
    if faults := impossible(federation, count) if count > 0 else []:
        raise FederationError("; ".join(faults) + ".")
    if options.dry_run:
        _say_cost(federation, count, json_output=options.json_output)
        return

    def silos() -> dict[str, Path]:
        return (
            find_silos(options.silos)
            if options.silos
            else synthetic_silos(options.out / "silos", options.clients, options.documents, seed=options.seed)
        )

    _train(options.training(federation, options.timeout), silos, options.out, options.device, options.json_output)


def central(options: Central) -> None:
    """Train on pages that are all in one place: the same code with one silo, whose optimiser begins anew each round."""
    from docleak.privacy.planning import evaluations_of, pages_under
    from docleak.training.federated.federation import Federation
    from docleak.training.federated.silo_folders import one_silo

    local = options.local()
    private, rounds = options.private()
    silo = partial(
        one_silo,
        options.documents,
        pages_under(private, options.documents, options.pages, asked=f"--pages {options.pages}" * bool(given("pages"))),
        options.out / "silos",
        seed=options.seed,
    )
    if private is not None and private.mechanism.unit == "record":
        from docleak.training.private.record_run import RecordTrainingConfig
        from docleak.training.private.records import RecordOptimiser

        idle = given("epochs", "max_steps", "batch_size", "evaluate_every")
        others = {"--capture": options.capture, "--tensorboard": options.tensorboard, "--dry-run": options.dry_run}
        _refuse_for_records(local, {**others, **dict.fromkeys(idle, True)})
        how = RecordOptimiser(options.learning_rate, options.weight_decay, options.dropout)
        config = RecordTrainingConfig(
            private, options.model, how, options.holdout, options.seed, options.start_is_public
        )
        _train_records(config, silo, options.out, options.device, options.json_output)
        return
    federation = Federation(
        options.model, rounds, holdout=options.holdout, seed=options.seed, local=local, privacy=private,
        evaluations=evaluations_of(private, rounds, options.evaluate_every),
    )  # fmt: skip
    if options.dry_run:
        _say_cost(federation, 1, json_output=options.json_output)
        return
    _train(options.training(federation), silo, options.out, options.device, options.json_output)


app.command("federated")(with_options(Federated, federated))
app.command("central")(with_options(Central, central))


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

    from docleak.studies.training.rounds import draw_curves
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
    from docleak.training.private.record_run import text_of_records, train_records

    with counter(quiet=json_output) as on_step, working_in(out, resumes=False):
        record = train_records(
            config, silo, out, device=pick_device(device), command=command_line(), say=note,
            on_step=lambda done, of: on_step(done, of, "steps of DP-SGD"),
        )  # fmt: skip
    emit(record, text_of_records(record), json_output=json_output)


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
