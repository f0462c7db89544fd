"""DP-SGD (Abadi et al., 2016) per record, the usual comparison: Opacus' optimiser over single questions and answers.

It protects one question with its answer. A provider with n of them is protected n times less, and more than n times:
``record_claim`` says what is left. Provider-level privacy is ``training.private.rounds``.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from docleak.documents.coins import coin, told_apart
from docleak.documents.names import provider_key
from docleak.documents.page import Page
from docleak.documents.pages import document_names, page_names, provider_names
from docleak.errors import FederationError, MissingExtraError, PrivacyError, RunError
from docleak.files import drafted_folder, reported
from docleak.models import load_model
from docleak.models.base import DocumentModel, in_mode, trainable
from docleak.models.device import seed_torch
from docleak.models.published.made import made_at
from docleak.privacy.accounting import Guarantee, epsilon_of_group, guarantee, rounded_up
from docleak.privacy.budget import delta_warning
from docleak.privacy.lineage import BOUND, Trained, claim_of
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.privacy.second import Accountant
from docleak.runs.identity import digest_of
from docleak.runs.run import Run
from docleak.training.federated.federation import Federation
from docleak.training.federated.local import batch_loss
from docleak.training.federated.record import KIND
from docleak.training.federated.silo import open_party
from docleak.training.federated.validation import mean_loss
from docleak.training.lineage import declared_start, keep_fingerprints, lineage_of, read_fingerprints, write_lineage
from docleak.training.objectives.objective import Example, objective_of
from docleak.training.private.moving import require_moving
from docleak.training.private.units import unit_names

OnStep = Callable[[int], None]


@dataclass(frozen=True)
class RecordOptimiser:
    """AdamW over noisy gradients; a step is a round of the plan. ``dropout``: as the model's configuration says."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    dropout: bool = False


@dataclass(frozen=True)
class RecordTraining:
    """What a training cost: ``claim`` by our accounting of the plan, ``counted`` by Opacus' of the steps it took (PRV).

    ``most_records`` is the greatest number of questions of one provider; it is private, as ``mean_loss`` is.
    """

    claim: Guarantee
    counted: Guarantee
    records: int
    most_records: int
    mean_loss: float


def train_by_record(
    model: DocumentModel, pages: Sequence[Page], plan: DpPlan, optimiser: RecordOptimiser, *, randomness: Randomness,
    on_step: OnStep | None = None,
) -> RecordTraining:  # fmt: skip
    """Train ``model`` in place: ``plan.mechanism.rounds`` steps, each over the questions its coins draw.

    Every question's gradient over all trainable parameters together (a tied weight once) is clipped to C; the sum gets
    noise and is divided by the public constant M. Its coin and dropout follow from the step's secret and the question
    itself (``record_names``), so that no question changes what another one does; one whose gradient cannot be made, or
    is not finite, contributes nothing. Gradients are made by a backward pass per question: Opacus' hooks
    count T5's table of relative positions once per query instead of once per example. Raises PrivacyError unless the
    unit is the record.
    """
    objective = objective_of("qa")
    examples = objective.examples(pages)
    names = record_names(pages, examples)
    _check(plan)
    named = [p for _, p in trainable(model.module)]
    inner = torch.optim.AdamW(named, lr=optimiser.learning_rate, weight_decay=optimiser.weight_decay)
    stepper = dp_optimiser(inner, plan, randomness)
    accountant = _opacus("opacus.accountants").create_accountant(mechanism="prv")
    stepper.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=plan.mechanism.rate))
    losses: list[float] = []
    with torch.random.fork_rng(devices=[]), in_mode(model.module, training=optimiser.dropout):
        for number in range(plan.mechanism.rounds):
            secret = randomness.coins.bytes(32)
            drawn = [i for i, name in enumerate(names) if coin(secret, "draw", name) < plan.mechanism.rate]
            seeds = [int(2**53 * coin(secret, "dropout", names[i])) for i in drawn]
            losses += _step(model, pages, [examples[i] for i in drawn], stepper, seeds=seeds)
            if on_step is not None:
                on_step(number + 1)
    stepper.zero_grad(set_to_none=True)
    (seen,) = [Mechanism(noise, steps, rate, unit=Unit.RECORD) for noise, rate, steps in accountant.history]
    owners = [provider_key(name) for name in provider_names(pages)]
    most = max(Counter(owners[example.page] for example in examples).values(), default=0)
    counted = guarantee(seen, plan.delta, Accountant.PRV)
    return RecordTraining(plan.guarantee(), counted, len(examples), most, _mean(losses))


def _mean(losses: Sequence[float]) -> float:
    known = [loss for loss in losses if math.isfinite(loss)]
    return float(np.mean(known)) if known else math.nan


def record_names(pages: Sequence[Page], examples: Sequence[Example]) -> list[str]:
    """What each question is told from the others by: its page, its words and its answers, not its place in a list."""
    of_page = list(zip(document_names(pages), page_names(pages), strict=True))
    asked = [(of_page[e.page], e.question.text if e.question else "", e.question.answers if e.question else ())
             for e in examples]  # fmt: skip
    return told_apart([repr(one) for one in asked])


def _check(plan: DpPlan) -> None:
    mechanism = plan.mechanism
    if mechanism.unit is not Unit.RECORD or mechanism.client_rate != 1:
        raise PrivacyError(
            f"the plan's unit is {mechanism.unit} and its client rate {mechanism.client_rate:.4g}; DP-SGD needs unit "
            "record and client rate 1."
        )
    plan.guarantee(Accountant.PRV)  # refuses what Opacus cannot count, before anything is trained


def _step(
    model: DocumentModel, pages: Sequence[Page], examples: Sequence[Example], stepper: Any, *, seeds: Sequence[int]
) -> list[float]:
    """One step over ``examples``, of which there may be none: noise alone. Returns their losses, NaN of those left out.

    Opacus clips and adds up one gradient after the other, so that memory does not grow with their number. ``seeds`` are
    those of each example's dropout.
    """
    losses: list[float] = []
    for i, (example, seed) in enumerate(zip(examples, seeds, strict=True)):
        seed_torch(seed)
        stepper.zero_grad(set_to_none=True)
        losses.append(_gradient_or_nothing(model, pages, example, stepper.params))
        stepper.signal_skip_step(do_skip=i < len(examples) - 1)
        stepper.step()
    if not examples:
        stepper.zero_grad(set_to_none=True)
        for p in stepper.params:
            p.grad_sample = p.new_zeros((0, *p.shape))
        stepper.step()
    return losses


def _gradient_or_nothing(
    model: DocumentModel, pages: Sequence[Page], example: Example, parameters: Sequence[torch.nn.Parameter]
) -> float:
    """Put the example's gradient where Opacus looks for it, and return its loss; zero and NaN where it has none."""
    try:
        loss = example_gradient(model, pages, example)
    except Exception:  # any: a training that ends because of one record would tell of it
        loss = math.nan
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    usable = math.isfinite(loss) and all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad_sample = (gradient if usable else torch.zeros_like(p))[None]  # type: ignore[attr-defined]
    return loss if usable else math.nan


def example_gradient(model: DocumentModel, pages: Sequence[Page], example: Example) -> float:
    """Put the gradient of one example's loss into the parameters, which have none yet; returns the loss."""
    loss = batch_loss(model, pages, [example], objective_of("qa"), np.random.default_rng(0))
    loss.backward()  # type: ignore[no-untyped-call]
    cost = float(loss.detach())
    if not math.isfinite(cost):
        raise FederationError(f"the loss of an example is {cost}. Lower the learning rate, or look at the pages.")
    return cost


def dp_optimiser(inner: torch.optim.Optimizer, plan: DpPlan, randomness: Randomness) -> Any:
    """Opacus' optimiser, with noise from our cryptographic stream (its own secure mode needs a package of its own)."""
    kind: Any = _opacus("opacus.optimizers.optimizer").DPOptimizer

    class SecretNoise(kind):  # type: ignore[misc]
        def add_noise(self) -> None:
            std = self.noise_multiplier * self.max_grad_norm
            for p in self.params:
                noise = std * randomness.gaussian(p.numel()).reshape(p.shape)
                p.grad = p.summed_grad.view_as(p) + torch.from_numpy(noise).to(p)

    return SecretNoise(
        inner, noise_multiplier=plan.mechanism.noise_multiplier, max_grad_norm=plan.clip_norm,
        expected_batch_size=plan.denominator,
    )  # fmt: skip


def _opacus(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError("record-level training needs Opacus: pip install 'docleak[privacy]'.") from error


def record_claim(found: RecordTraining, *, alone: bool) -> str:
    """What this training adds, by both countings, and what is not protected: sentences for people.

    ``alone`` says that it is all that the model's claim is of, and a bound: only then is it what holds for the model.
    """
    claim, most = found.claim, found.most_records
    together = epsilon_of_group(claim, max(most, 1))
    holds = "It holds for the model" if alone else "It is of this training alone, and not what holds for the model"
    return (
        f"This training adds {claim.sentence()} Opacus {version('opacus')} counts epsilon "
        f"{rounded_up(found.counted.epsilon)} for the "
        f"{found.counted.mechanism.rounds} steps it took (PRV). This protects one question with its answer, not a "
        f"provider: the provider with most has {most} of them, and for all of its questions together epsilon is "
        f"{rounded_up(together)} at the same delta (of a group no second accountant is asked). {holds}; counts and "
        "losses printed here are exact, of the pages themselves, and not for others."
    )


#: The one unit of such a run: what came of it. OUT/model is the model.
UNIT = "training"


@dataclass(frozen=True)
class RecordTrainingConfig:
    """Everything that changes a number of the training; a round of ``privacy`` is a step of its optimiser."""

    privacy: DpPlan
    model: str = "vt5-start"
    optimiser: RecordOptimiser = field(default_factory=RecordOptimiser)
    holdout: float = 0.2
    seed: int = 0
    start_is_public: bool = False


def train_records(
    config: RecordTrainingConfig, silo: Callable[[], Mapping[str, Path]], out: Path, *, device: str = "cpu",
    command: str = "", on_step: Callable[[int, int], None] = lambda done, of: None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:  # fmt: skip
    """Train on the one silo's pages, and write the unit's record and OUT/model; the former's content.

    A run that was cut off begins anew: its noise and coins are kept nowhere. Its model is written at the end, whole or
    not at all, so that nothing of it was released. RunError for a finished run in ``out``. ``on_step`` is told how many
    steps of how many are done, ``say`` what should be known besides.
    """
    made_at(config.model)  # what cannot be made is refused before a run is begun
    start = lineage_of(config.model)
    start = declared_start(start) if config.start_is_public else start
    begun = (out / "run.json").is_file()
    run = Run.open(out, {"by": "record", **asdict(config)}, kind=KIND, command=command)
    if (out / "model").exists() or run.info.get("released"):
        raise RunError(f"{out} holds a finished training, whose budget is spent. Give another folder (out).")
    if begun:
        say(
            f"A training in {out} was cut off before its model was written. Nothing of it was released, so that none "
            "of its budget is spent, unless somebody saw its process. This one begins anew."
        )
    torch.set_num_threads(1)
    model, plan = load_model(config.model, device=device, seed=config.seed), config.privacy
    require_moving(model)
    (directory,) = silo().values()
    party = open_party(directory, Federation(config.model, holdout=config.holdout, seed=config.seed))
    rounds = plan.mechanism.rounds
    losses: list[float] = []

    def validate() -> None:
        if len(party.kept):
            rng = np.random.default_rng(config.seed)
            losses.append(mean_loss(model, party.kept, "qa", batch_size=16, rng=rng))

    validate()
    trained = train_by_record(
        model, party.training, plan, config.optimiser, randomness=Randomness.fresh(),
        on_step=lambda done: on_step(done, rounds),
    )  # fmt: skip
    validate()
    warning = delta_warning(plan.delta, trained.records, "record")
    if warning:
        say(f"Warning: {warning}")
    identity = secrets.token_hex(8)
    names = set(unit_names(party.training, Unit.PROVIDER))
    if "" not in names:
        keep_fingerprints(out, identity, names, start=config.model)
    known = read_fingerprints(out)
    lineage = start.after(
        Trained(
            identity, f"record-level training ({rounds} steps of DP-SGD)", plan, trained.claim.epsilon,
            f"{trained.claim.accountant} {trained.claim.version}",
            known.digest(identity) if known and identity in known.hashes else None, digest_of(plan.to_dict()),
        )
    )  # fmt: skip
    claim = claim_of(lineage, known)
    alone = claim.kind == BOUND and len(lineage.trainings) == 1
    record = {
        "model": str(out / "model"), "records": trained.records, "most_records_of_a_provider": trained.most_records,
        "epsilon_per_record": claim.epsilon, "epsilon_by_opacus": trained.counted.epsilon, "steps": rounds,
        "loss_kept_before_and_after": losses,
        "claim": " ".join(filter(None, [claim.sentence, record_claim(trained, alone=alone), warning])),
        "lineage": claim.to_dict(),
    }  # fmt: skip
    run.write_unit(UNIT, record, {})  # before the model: what is released has its record
    with reported(out), drafted_folder(out / "model") as draft:
        model.save(str(draft))
        write_lineage(draft, lineage)
    run.write_info("released", True)
    return record


def text_of_records(record: Mapping[str, Any]) -> str:
    """What came of it, for people."""
    losses = " -> ".join(f"{loss:.3f}" for loss in record["loss_kept_before_and_after"])
    return (
        f"{record['steps']} steps over {record['records']} questions; loss on kept documents "
        f"{losses or 'not measured'}.\nPrivacy: {record['claim']}\nModel: {record['model']}"
    )
