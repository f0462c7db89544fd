"""``docleak train``: train over silos that keep their pages, or over one that has them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from docleak.cli.command import DEVICE, RUN, Line, Said, group
from docleak.cli.output import counter, emit, note, working_in
from docleak.cli.studies import command_line
from docleak.documents.ranges import CLIENTS, COUNT, TIMEOUT, Range
from docleak.errors import FederationError, PrivacyError
from docleak.models.device import pick_device
from docleak.options import Need, only, option, options_of
from docleak.spec import counted_words
from docleak.training.settings import FEDERATED, PRIVATE, TrainingSettings

if TYPE_CHECKING:
    from docleak.training.federated.federation import Federation

PAGES = "Pages"
#: What a training by DP-SGD has no use for, besides settings.
IDLE_FOR_RECORDS = ("capture", "tensorboard", "dry_run")
_MADE = Need(lambda options: options.silos is None, "silos made here, without --silos")
_CENTRAL = [name for name, asked in options_of(TrainingSettings).items() if asked.option.group != FEDERATED]


@dataclass(frozen=True)
class Options:
    """What both commands take."""

    settings: TrainingSettings = TrainingSettings()
    phases: str = option(
        "", "Several trainings under one --epsilon, as docleak budget --phases plans them: NAME:ROUNDS:RATE, "
        "separated by commas.", group=PRIVATE,
    )  # fmt: skip
    phase: str = option("", "Which of --phases this is; it says the rounds and the unit rate.", group=PRIVATE)
    start_is_public: bool = option(
        False, "Declare that the start model, of which nothing is recorded, saw no private pages. It is recorded as "
        "your declaration.", group=PRIVATE,
    )  # fmt: skip
    capture: bool = option(False, "Record each update in OUT/updates, for docleak audit updates.", group=RUN, both=True)
    out: Path = option(Path("docleak-train"), "Run directory; an interrupted training in it is continued.", group=RUN)
    tensorboard: bool = option(False, "Also write OUT/tensorboard, an event file.", group=RUN)
    device: str = DEVICE
    dry_run: bool = option(False, "Say what would be sent and done, and stop.", group=RUN)


@dataclass(frozen=True)
class Federated(Options):
    """What a training over silos takes."""

    silos: Path | None = option(
        None, "Folder of silos (docleak data make --partition). Empty: synthetic ones.", group=PAGES
    )
    clients: int = option(
        3, "Synthetic silos to make where --silos is not given.", group=PAGES, range=CLIENTS, need=_MADE
    )
    documents: int = option(
        240, "Synthetic invoices of all silos together.", group=PAGES, range=Range(1, 100_000), need=_MADE
    )
    timeout: float = option(
        21600.0, "Seconds a silo has for a message; then it is stopped.", group=FEDERATED, range=TIMEOUT
    )
    guard: bool = option(
        False, "Silos inspect each model before they train it, and refuse a manipulated one (docleak guard).",
        group=FEDERATED,
    )  # fmt: skip
    capture: bool = option(True, "Record each update in OUT/updates, for docleak audit updates.", group=RUN, both=True)


@dataclass(frozen=True)
class Central(Options):
    """What a training on pages in one place takes."""

    settings: TrainingSettings = field(default=TrainingSettings(), metadata=only(*_CENTRAL))
    documents: str = option("synthetic", "synthetic, a folder, or FORMAT:PATH.", group=PAGES)
    pages: int = option(
        240, "Synthetic invoices to make; of other pages, at most so many (0: all).", group=PAGES, range=COUNT
    )


def of_phase(settings: TrainingSettings, phases: str, name: str, said: Said) -> TrainingSettings:
    """The settings of the phase ``name``: its rounds, its unit rate, and the noise found for all phases together.

    Without ``phases`` they stay what they are. PrivacyError for settings that contradict the plan; ``said`` are those
    that were given, by name as they were written.
    """
    from docleak.privacy.mechanism import Mechanism, Unit, choice, probability
    from docleak.privacy.phases import noise_for_phases, phase_of, phases_of

    if empty := [said[one] for one, text in (("phases", phases), ("phase", name)) if one in said and not text.strip()]:
        raise PrivacyError(f"{' and '.join(empty)} given without a text; name trainings, or leave it out.")
    if not phases and not name:
        return settings
    if not phases or not name:
        raise PrivacyError(
            "--phases and --phase belong together: all trainings of the plan, and which of them this is."
        )
    if settings.epsilon is None or settings.noise is not None:
        raise PrivacyError("--phases plans the noise for one --epsilon of all phases; give that, and no --noise.")
    planned = phases_of(phases)
    chosen = phase_of(planned, name)
    differs = {
        "rounds": settings.rounds != chosen.rounds,
        "unit_rate": probability(settings.unit_rate, what="unit rate") != chosen.unit_rate,
    }
    if other := [said[setting] for setting, differ in differs.items() if differ and setting in said]:
        raise PrivacyError(
            f"phase {name!r} has {chosen.rounds} rounds at unit rate {chosen.unit_rate:g} by --phases, and "
            f"{' and '.join(other)} {'say' if len(other) > 1 else 'says'} otherwise. Leave that out."
        )
    unit = choice(Unit, settings.unit, what="unit")
    noise = noise_for_phases(
        planned, Mechanism(1.0, 1, client_rate=settings.participation, unit=unit), settings.epsilon, settings.delta
    )
    return replace(settings, epsilon=None, noise=noise, rounds=chosen.rounds, unit_rate=repr(chosen.unit_rate))


def federated(options: Federated, said: Said) -> None:
    """Train over silos on Flower, in one process without sockets; docleak deploy runs the same over a network."""
    from docleak.training.federated.federation import impossible
    from docleak.training.federated.silo import find_silos, synthetic_division, synthetic_silos

    settings = of_phase(options.settings, options.phases, options.phase, said)
    federation = settings.federation(said)
    count = len(find_silos(options.silos)) if options.silos else options.clients
    if faults := impossible(federation, count):
        raise FederationError("; ".join(faults) + ".")
    if options.dry_run and not options.silos:  # what could not be divided is refused now, too
        synthetic_division(options.clients, options.documents, seed=settings.seed)

    def silos() -> dict[str, Path]:
        return (
            find_silos(options.silos)
            if options.silos
            else synthetic_silos(options.out / "silos", options.clients, options.documents, seed=settings.seed)
        )

    _train(options, federation, settings.evaluate_every, count, silos, timeout=options.timeout, guard=options.guard)


def central(options: Central, said: Said) -> None:
    """Train on pages that are all in one place: the same code with one silo, whose optimiser begins anew each round."""
    from docleak.privacy.planning import pages_under
    from docleak.training.federated.silo import one_silo
    from docleak.training.private.records import text_of_records, train_records

    settings = of_phase(options.settings, options.phases, options.phase, said)
    asked = f"--pages {options.pages}" if "pages" in said else ""
    pages = pages_under(settings.plan(said), options.documents, options.pages, asked=asked)
    silo = partial(one_silo, options.documents, pages, options.out / "silos", seed=settings.seed)
    if settings.unit == "record":
        named = {*options_of(TrainingSettings), *IDLE_FOR_RECORDS}
        config = settings.records(
            {name: flag for name, flag in said.items() if name in named}, start_is_public=options.start_is_public
        )
        with counter() as on_step, working_in(options.out, resumes=False):
            record = train_records(
                config, silo, options.out, device=pick_device(options.device), command=command_line(), say=note,
                on_step=lambda done, of: on_step(done, of, "steps of DP-SGD"),
            )  # fmt: skip
        emit(record, text_of_records(record))
        return
    _train(options, settings.federation(said), settings.evaluate_every, 1, silo)


def train_group(panel: str) -> TyperGroup:
    """Both commands."""
    lines = [Line(federated, "train", kind=Federated), Line(central, "train", kind=Central)]
    return group("train", "Train a document question-answering model federatedly or centrally.", lines, panel=panel)


def _train(
    options: Options,
    federation: Federation,
    evaluate_every: int,
    count: int,
    silos: Callable[[], Mapping[str, Path]],
    **how: Any,
) -> None:
    """Train, draw the curves, and say what came of it; or what it would cost."""
    import numpy as np

    from docleak.models.loading import locate
    from docleak.studies.training.rounds import draw_curves
    from docleak.training.federated.summary import facts_of, text_of
    from docleak.training.federated.training import Training, train

    if options.dry_run:
        _say_cost(federation, count)
        return
    locate(federation.model)  # before pages are made for it
    training = Training(
        federation, evaluate_every, options.capture, options.tensorboard, start_is_public=options.start_is_public, **how
    )
    with counter() as on_unit, working_in(options.out):
        run = train(
            training, silos, options.out, device=pick_device(options.device), command=command_line(),
            on_begin=lambda run, found: Turns(federation, len(found), run.last_round(), on_unit), say=note,
        )  # fmt: skip
        draw_curves(run)
    facts = facts_of(run, silos(), rng=np.random.default_rng(federation.seed))
    emit(facts, text_of(facts))


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


def _say_cost(federation: Federation, silos: int) -> None:
    from docleak.privacy.ledger import Ledger
    from docleak.training.federated.federation import drawn
    from docleak.training.federated.summary import Cost, delta_by_plan, network_of, seen_by_parties

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
        f"{counted_words(federation.rounds, 'round')}: docleak sends {sent / 2**30:,.2f} GiB. With every "
        f"use of a tied weight, as PFL-DocVQA's paper seems to count: {published / 2**30:,.2f} GiB.\n"
        "Framing adds less than 2 %; each evaluation sends the model once more to every silo."
    )
    if (plan := federation.privacy) is not None:
        bound, warning = plan.bound(), delta_by_plan(plan, silos)
        seen = seen_by_parties(Ledger(plan, plan.mechanism.rounds), federation, silos)
        facts["privacy"] = {**plan.to_dict(), "epsilon": bound.epsilon, "warning": warning}
        text += (
            f"\nPrivacy, of this training alone: {' '.join(filter(None, [bound.sentence(), warning, seen]))} Updates "
            f"are clipped at {plan.clip_norm:g} and their sum is divided by {plan.denominator:g}. What its start was "
            "trained on, and scores of whom it keeps, are counted when it is run."
        )
    emit(facts, text)
