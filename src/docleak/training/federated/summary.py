"""What came of a federated training: its last model, and its numbers in words."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from docleak.errors import RunError
from docleak.files import drafted_folder, reported
from docleak.models.loading import load_model
from docleak.models.t5 import T5_BASE, ReaderConfig
from docleak.privacy.accounting import claimed_in_words, guarantee, rounded_up
from docleak.privacy.budget import delta_warning
from docleak.privacy.ledger import Ledger
from docleak.privacy.lineage import BOUND, epsilon_with_scores
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.second import second_opinion
from docleak.spec import counted_words
from docleak.training.federated.capture import UPDATES, recorded
from docleak.training.federated.federation import Federation, drawn, noise_shares
from docleak.training.federated.local import set_parameters
from docleak.training.federated.party import model_of
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.scores import evaluation_cost, evaluation_distance, kept_of
from docleak.training.federated.wire import Compression
from docleak.training.lineage import write_lineage

FLOAT, HALF, INDEX = 4, 2, 4  # bytes


@dataclass(frozen=True)
class Cost:
    """Numbers of a model that travel: ``trainable`` with a tied weight once, ``counted`` with each of its uses.

    Tito et al. (2024) print 44.66 GB and do not say how they count: it is what the entries of PyTorch's state dict come
    to in GiB, in which T5's tied embedding stands four times. Frozen weights travel neither there (6.1) nor here.
    """

    trainable: int
    counted: int

    @classmethod
    def of(cls, module: nn.Module) -> Cost:
        """The cost of a network, which may be on the meta device."""
        return cls(
            sum(p.numel() for p in module.parameters() if p.requires_grad),
            sum(p.numel() for _, p in module.named_parameters(remove_duplicate=False) if p.requires_grad),
        )

    def down(self) -> int:
        """Bytes of the model as the server sends it to one silo: float32."""
        return FLOAT * self.trainable

    def up(self, compression: Compression) -> int:
        """Bytes of one silo's update (top-k rounds up per parameter, which is left out here)."""
        if compression.kind == "fp16":
            return HALF * self.trainable
        if compression.kind == "topk":
            return round((FLOAT + INDEX) * compression.share * self.trainable)
        return FLOAT * self.trainable

    def sent(self, federation: Federation, silos: int) -> int:
        """Bytes of the whole training, both ways; framing adds less than 2 %, evaluation a model a silo each time."""
        clients = drawn(federation, silos)
        return federation.rounds * clients * (self.down() + self.up(federation.compression))

    def as_published(self, federation: Federation, silos: int) -> int:
        """Bytes of the training as Tito et al. (2024) seem to count: float32, both ways, a tied weight for each use."""
        clients = drawn(federation, silos)
        return federation.rounds * clients * 2 * FLOAT * self.counted


#: What the server sees of one silo under a privacy plan, without and with secure aggregation, and what another silo.
SEEN = {
    False: "Whoever sees a single silo's update, as the server does, sees only that silo's share of the noise: towards "
    "the server, this training alone costs epsilon {}.",
    True: "The server sees sums with the whole noise, as long as it follows the protocol (docs/secure-aggregation.md).",
}
OTHER = "Another silo can take its own share of the noise off a sum: towards it, this training alone costs epsilon {}."
TOGETHER = "All others together can take all but one share off: towards them, this training alone costs epsilon {}."
#: What no silo can see, and the accounting rests on.
AT_ONE = "Each {0} is counted at one silo: towards nobody is anything claimed of a {0} at several."
NOISED = "ANLS is from noised sums; the intervals are of that noise, and say nothing of other documents."
TRIALS = "Trials of other settings on the same pages are not counted."
#: Of a sum over two silos, which secure aggregation hides from the server alone.
OF_TWO = "A sum may be of two silos: each of them takes its own update off it, and has the other's."


def network_of(source: str) -> nn.Module:
    """The network whose numbers are counted; ``vt5-base`` and ``fedocvqa-base`` have the papers' sizes, no values."""
    if source == "vt5-base":
        from docleak.models.vt5 import DIT_BASE, VT5

        with torch.device("meta"):
            return VT5.build(ReaderConfig(T5_BASE, DIT_BASE))
    if source == "fedocvqa-base":
        from docleak.models.fedocvqa import MAE_BASE, FeDocVQA

        with torch.device("meta"):
            return FeDocVQA.build(ReaderConfig(T5_BASE, MAE_BASE))
    return load_model(source).module


def save_model(run: FederatedRun, device: str) -> Path:
    """Write the model of the last round to OUT/model, which every command takes as --model."""
    state = run.state()
    if state is None:
        raise RunError(f"{run.path} has no finished round, so there is no model to save.")
    model = model_of(run.federation, device)
    set_parameters(model, state.weights())
    out = run.path / "model"
    with reported(out), drafted_folder(out) as draft:
        model.save(str(draft))
        write_lineage(draft, run.lineage())
    return out


def facts_of(run: FederatedRun, silos: Mapping[str, Path], *, rng: np.random.Generator) -> dict[str, Any]:
    """The numbers of a finished training, for machines; intervals are over documents."""
    rows = run.rows()
    scored = {number: kept_of(run.scores(number) or (), rng=rng) for number in range(len(rows) + 1)}
    anls = {number: kept.to_json() for number, kept in scored.items() if kept is not None}
    places = {
        name: run.path / at for name, at in {"model": "model", "curves": "curves.png", "updates": UPDATES}.items()
    }
    return {
        "run": str(run.path), **{name: str(at) if at.exists() else "" for name, at in places.items()},
        "rounds_planned": run.federation.rounds,
        "silos": {name: str(path) for name, path in silos.items()},
        "rounds": [{**row.facts(), **anls.get(row.round, {})} for row in rows],
        "start": anls.get(0, {}),
        "kept": None if run.federation.privacy is not None else sum(silo.kept for silo in run.silos()),
        "holdout": run.federation.holdout,
        "privacy": _privacy(run), "lineage": run.claim().to_dict(),
        "secure": run.federation.secure is not None,
        "secure_limit": _of_two(run.federation, len(run.silos())),
    }  # fmt: skip


def _privacy(run: FederatedRun) -> dict[str, Any] | None:
    """What holds for the model after the begun rounds, by its whole lineage, and to whom; None without a plan.

    ``epsilon`` is None where there is no bound; ``epsilon_of_this_training`` is what its rounds cost by themselves.
    """
    ledger = run.ledger()
    spent = ledger.spent() if ledger else None
    if ledger is None or spent is None:
        return None
    if run.federation.privacy is not None and run.federation.privacy.published_counting:
        spent = run.federation.privacy.bound(ledger.begun)
    claim, lineage = run.claim(), run.lineage()
    everything = claim.epsilon
    if claim.kind == BOUND and any(training.scores for training in lineage.trainings):
        everything = epsilon_with_scores(lineage, spent.delta)
    silos, plan = len(run.silos()), ledger.plan
    seen = seen_by_parties(ledger, run.federation, silos)
    limit = [seen, _covered(run), f"{TRIALS} How long silos take is not hidden."]
    if claim.kind == BOUND and (warning := delta_by_plan(plan, silos)):
        limit.insert(0, warning)
    several = sum(training.plan is not None for training in lineage.trainings) > 1
    if several and claim.epsilon is not None and everything is not None and everything > claim.epsilon:
        limit.insert(
            -1, f"With those scores, whoever is trained on in one training and kept in another pays epsilon "
            f"{rounded_up(everything)} at most."
        )  # fmt: skip
    if claim.kind == BOUND:
        limit.insert(0, "It holds for the released models.")
    return {
        "claim": f"after {counted_words(ledger.begun, 'round')}, {claim.sentence}",
        "kind": claim.kind,
        "epsilon": None if claim.epsilon is None or everything is None else max(claim.epsilon, everything),
        "epsilon_of_this_training": max(spent.epsilon, evaluation_cost(run.federation, run.evaluations())),
        "delta": spent.delta,
        "rounds_begun": ledger.begun,
        "limit": " ".join(filter(None, limit)),
    }


def delta_by_plan(plan: DpPlan, silos: int) -> str:
    """Why the plan's delta is too large for as many units as its constants say, which are public; "" where it is not.
    The true number is not public."""
    units = 1 if plan.mechanism.unit is Unit.CLIENT else plan.denominator / plan.mechanism.unit_rate
    about = math.ceil(units * max(silos, 1))
    warning = delta_warning(plan.delta, about, plan.mechanism.unit)
    return f"Of about {about} {plan.mechanism.unit}s, by the plan's public numbers, {warning}" if warning else ""


def seen_by_parties(ledger: Ledger, federation: Federation, silos: int) -> str:
    """What the server, and another silo, see of one silo of a private training, and what its rounds cost towards them;
    "" without noise; where one silo adds all of it, only whom the accounting covers."""
    plan, shares = ledger.plan, noise_shares(federation, silos)
    unit = plan.mechanism.unit
    at_one = AT_ONE.format(unit) if silos > 1 and unit is not Unit.CLIENT and plan.mechanism.noise_multiplier else ""
    if not plan.mechanism.noise_multiplier or shares < 2:
        return at_one

    def cost(part: float) -> str:
        seen = plan.bound(ledger.begun).mechanism.of_noise(part)
        epsilon = guarantee(seen, plan.delta).epsilon
        told = claimed_in_words(epsilon, plan.delta, seen.unit)
        return f"{told}{second_opinion([seen], plan.delta, epsilon)}"

    server = SEEN[federation.secure is not None].format(cost(1 / shares))
    others = [OTHER.format(cost(1 - 1 / shares)), TOGETHER.format(cost(1 / shares)) if shares > 2 else ""]
    return " ".join(filter(None, [server, *others, _of_two(federation, silos), at_one]))


def _of_two(federation: Federation, silos: int) -> str:
    few = federation.secure is not None and noise_shares(federation, silos) <= 2
    return OF_TWO * (few and drawn(federation, silos) > 1)


def _covered(run: FederatedRun) -> str:
    """Who is trained on in a private training, who is kept, and what left of those."""
    federation, plan, asked = run.federation, run.federation.privacy, run.evaluations()
    assert plan is not None
    unit, bound = plan.mechanism.unit, ""
    if plan.published_counting and (ledger := run.ledger()) is not None and ledger.begun:
        bound = f"A bound for the same rounds: {plan.bound(ledger.begun).sentence()} "
    if not federation.holdout:
        return f"{bound}Every {unit} of the silos is trained on: none is kept to evaluate on."
    apart = f"{bound}A public coin by name keeps each {unit} with probability {federation.holdout:g} to evaluate on"
    if not asked:
        return f"{apart}; those are not trained on, and nothing was released of them."
    cost = evaluation_cost(federation, asked)
    if math.isinf(cost):
        return f"{apart}; of those each silo sent its summed scores without noise, which is no privacy."
    distance = evaluation_distance(federation, asked)
    second = second_opinion([Mechanism(1 / distance, 1)], plan.delta, cost) if distance else ""
    return (
        f"{apart}: those are not trained on, and of them each silo sent only its summed scores and number with "
        f"Gaussian noise, {asked} times, which costs them epsilon {rounded_up(cost)} at the same delta{second}."
    )


def text_of(facts: Mapping[str, Any]) -> str:
    """The same for people: a line per round, and what to do next."""
    kept = {row["round"]: _interval(row) for row in ({"round": 0, **facts["start"]}, *facts["rounds"])}
    wide = max(len("ANLS of what the silos keep"), *map(len, kept.values()))
    lines = [f"round  loss    {'ANLS of what the silos keep':{wide}}  sent       seconds"]
    for row in ({"round": 0, **facts["start"]}, *facts["rounds"]):
        sent = (row.get("bytes_up", 0) + row.get("bytes_down", 0)) / 2**20
        loss = f"{row['loss']:.3f}" if row.get("loss") is not None else "-"
        seconds = f"{row['seconds_training']:.0f}" if "seconds_training" in row else "-"
        lines.append(f"{row['round']:5}  {loss:6}  {kept[row['round']]:{wide}}  {sent:5.1f} MiB  {seconds}")
    lines += ["", *(f"{name.title()}: {facts[name]}" for name in ("model", "curves") if facts[name])]
    lines += _rounds_told(facts)
    if facts["holdout"] and facts["kept"] == 0:
        lines.append(
            f"Nothing is kept to evaluate on: each document would be by a coin of its own, with probability "
            f"{facts['holdout']:g}, and none fell so."
        )
    if any(row.get("noised") for row in (facts["start"], *facts["rounds"])):
        lines.append(NOISED)
    if facts["privacy"]:
        lines.append(f"Privacy: {facts['privacy']['claim']}\n{facts['privacy']['limit']}")
    else:
        lines.append(f"Privacy: {facts['lineage']['sentence']}")
        lines += [facts["secure_limit"]] if facts["secure_limit"] else []
    sent = (client for row in facts["rounds"] for client in row["silos"]
            if facts["updates"] and recorded(Path(facts["updates"]), row["round"], client))  # fmt: skip
    name = next(sent, "")  # of the first round, which is audited unless another is named
    if name and facts["silos"] and not facts["privacy"]:  # the audit cannot train a private round again
        path = facts["silos"][name]
        about, chosen = f"{name}'s updates", ["--client", name, "--documents", f"folder:{path}"]
        if facts["secure"]:
            about, chosen = "masked updates and in their sum", ["--documents", str(Path(path).parent)]
        command = shlex.join(["docleak", "audit", "updates", facts["updates"], *chosen])
        lines.append(f"What the server could read in {about}: {command}")
    return "\n".join(lines)


def _rounds_told(facts: Mapping[str, Any]) -> list[str]:
    """What a training that is not finished has done, and rounds that were paid for and gave nothing."""
    done, planned = len(facts["rounds"]), facts["rounds_planned"]
    told = [] if facts["model"] else [
        f"Not finished: {done} of {counted_words(planned, 'round')}. The same docleak train goes on, and then writes "
        "the model."
    ]  # fmt: skip
    if (begun := (facts["privacy"] or {}).get("rounds_begun", done)) > done:
        told.append(
            f"The weights are of {counted_words(done, 'round')}: of {begun} that were begun {begun - done} ended "
            "without any, and what they cost is counted all the same."
        )
    return told


def _interval(row: Mapping[str, Any]) -> str:
    if "anls" not in row:
        return "-"
    if row["noised"]:
        value = "lost in the noise" if row["anls"] is None else f"{row['anls']:.3f}"
        return value if row["anls"] is None else f"{value} [{row['low']:.3f}, {row['high']:.3f}]"
    of = f"of {counted_words(row['questions'], 'question')} on {counted_words(row['documents'], 'document')}"
    if row["low"] is None:
        return f"{row['anls']:.3f} {of}"
    return f"{row['anls']:.3f} [{row['low']:.3f}, {row['high']:.3f}] {of}"
