"""Playing a row's game, and what is kept of it: estimates, and each field's matches, from which pictures are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from docleak.attacks.weights import PublicKnowledge
from docleak.evidence.extraction.game import Game, GameConfig, assemble
from docleak.evidence.extraction.play import attack_field
from docleak.evidence.extraction.table import Ranked, read_table
from docleak.metrics.estimate import Estimate
from docleak.metrics.extraction import Floats, Match, as_array, match, over_documents
from docleak.models.encoders.loading import load_encoder
from docleak.models.encoders.questions import suits
from docleak.models.encoders.tokens import TokenPage
from docleak.recipes.extraction.config import ExtractionConfig
from docleak.recipes.extraction.store import card_of, divided, drawing, fitted, folder_of
from docleak.runs.claim import claimed
from docleak.runs.identity import digest_of
from docleak.runs.run import Run

#: Names of a table's numbers: ours -> ``evidence.extraction.table``'s.
NAMES = {
    "ipf": "improvement_factor", "perfect": "perfect", "hamming": "hamming", "hamaac": "hamming_aac",
    "accauc": "accuracy_auc", "at1": "accuracy_at_1%", "at5": "accuracy_at_5%", "at100": "accuracy_at_100%",
}  # fmt: skip
#: Keeps a distance of 0 from being divided by; no epsilon of eq. 6.
TINY = 1e-9
BASELINE = {f"base_{name}": f"baseline_{NAMES[name]}" for name in NAMES if name != "ipf"}


@dataclass(frozen=True)
class Outcome:
    """One field: one-shot matches of attack and baseline."""

    document: str
    ours: Match
    theirs: Match


@dataclass(frozen=True)
class Reading:
    """One field of the multi-shot attack, the most plausible first; ``copies`` counts private pages that print it."""

    key: str
    value: str
    guess: str
    tokens: int
    perfect: float
    hamming: float
    copies: int = 0


@dataclass(frozen=True)
class Measured:
    """What a row found: its estimates by name, the target's card, and the fields that they are made of."""

    estimates: Mapping[str, Estimate]
    card: Mapping[str, Any]
    outcomes: tuple[Outcome, ...] = ()
    readings: tuple[Reading, ...] = ()
    baseline: tuple[Reading, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def measured(config: ExtractionConfig, store: Path, device: str) -> Measured:
    """Train what is missing, attack what is left, and measure."""
    if config.shows == "validation":
        fitted(config.target(), store, device)
        return Measured(_validation(config, store), _card(config, store))
    folder = attack_folder(config, store)
    with claimed(folder, whole=True, wait=True):
        run = _attacked(config, folder, store, device)
    table = read_table(run, rng=np.random.default_rng(config.seed))
    units = {str(unit["unit"]): unit for unit in run.units()}
    outcomes = tuple(_outcome(unit) for unit in units.values())
    names = NAMES | BASELINE
    estimates = {name: table.estimates[theirs] for name, theirs in names.items()} | _validation(config, store)
    estimates["distances"] = _distances(outcomes, config.seed)
    printed = _printed(config)
    surest, likeliest = (
        tuple(_reading(each, units, printed) for each in side) for side in (table.fields, table.baseline)
    )
    facts = {"fields": len(units), "calls": table.calls, "seconds": table.seconds}
    return Measured(estimates, _card(config, store), outcomes, surest, likeliest, facts)


def attack_folder(config: ExtractionConfig, store: Path) -> Path:
    """Where the attack's fields are kept: rows of any table that ask for the same share them."""
    return store / f"attack-{digest_of(_identity(config, store))}"


def fields_done(config: ExtractionConfig, store: Path) -> int:
    """How far the attack is."""
    folder = attack_folder(config, store) / "units"
    return sum(1 for _ in folder.glob("*/unit.json")) if folder.is_dir() else 0


def to_json(found: Measured) -> dict[str, Any]:
    """Plain values for ``from_json``."""
    return asdict(found)


def from_json(value: Mapping[str, Any]) -> Measured:
    """What ``to_json`` wrote."""
    readings, baseline = (tuple(Reading(**each) for each in value[side]) for side in ("readings", "baseline"))
    outcomes = tuple(Outcome(o["document"], Match(**o["ours"]), Match(**o["theirs"])) for o in value["outcomes"])
    estimates = {name: Estimate(**each) for name, each in value["estimates"].items()}
    return Measured(estimates, value["card"], outcomes, readings, baseline, value["facts"])


def three_distances(ours: Floats, theirs: Floats) -> float:
    """IpF without its first term, exact readings: by how much three mean distances fell, arrays (N, 4)."""
    before, after = (np.maximum(side.mean(axis=0)[1:], TINY) for side in (theirs, ours))
    return float((before / after).mean())


def _distances(outcomes: tuple[Outcome, ...], seed: int) -> Estimate:
    ours, theirs = (as_array([getattr(o, side) for o in outcomes]) for side in ("ours", "theirs"))
    return over_documents(
        [o.document for o in outcomes], lambda chosen: three_distances(ours[chosen], theirs[chosen]),
        rng=np.random.default_rng(seed),
    )  # fmt: skip


def _attacked(config: ExtractionConfig, folder: Path, store: Path, device: str) -> Run:
    """The run with every field attacked."""
    run = Run.open(folder, _identity(config, store))
    game = _game(config, store, device)
    for number, secret in enumerate(game.secrets):
        if not run.has(secret.name):
            attack_field(run, game, number)
    return run


def _identity(config: ExtractionConfig, store: Path) -> dict[str, Any]:
    """What the attack's numbers depend on."""
    return {
        "kind": "cdmi", "attack": asdict(config.attack()), "attempts": config.attempts, "metric": config.metric,
        "criterion": config.criterion, "fields": config.fields, "first": config.first, "noise": config.noise,
        "seed": config.seed, "private": asdict(config.target().data),
        "target": folder_of(config.target(), store).name, "public": folder_of(config.public(), store).name,
        **({"answers_only": True} if config.answers_only else {}),
    }  # fmt: skip


def _game(config: ExtractionConfig, store: Path, device: str) -> Game:
    target = load_encoder(str(fitted(config.target(), store, device) / config.criterion), device=device)
    public = load_encoder(str(fitted(config.public(), store, device) / "precision"), device=device)
    if config.max_tokens:
        target.max_tokens = min(target.max_tokens, config.max_tokens)
    data = config.target().data
    whole = divided(data)
    settings = GameConfig(
        documents=data.documents, pages=data.pages, model=config.model, task=config.task, bimodal=config.bimodal,
        fields=0, attempts=config.attempts, metric=config.metric, seed=config.seed, attack=config.attack(),
    )  # fmt: skip
    private, others = ([p for p in whole.part(n) if suits(p, config.task)] for n in ("private", "public"))
    game = assemble(settings, target, PublicKnowledge(public), private, others, {}, rng=drawing(data))
    last = config.first + config.fields if config.fields else None
    pages = {name: _noisy(page, config.seed) for name, page in game.pages.items()} if config.noise else game.pages
    return replace(game, secrets=game.secrets[config.first : last], pages=pages, answers_only=config.answers_only)


def _noisy(page: TokenPage, seed: int) -> TokenPage:
    """Gaussian noise of the picture's own mean and standard deviation in its place; none for a blind model."""
    if page.image is None:
        return page
    generator = torch.Generator().manual_seed(seed * 1_000_003 + sum(page.name.encode()))
    pixels = page.image.float()
    noise = torch.randn(pixels.shape, generator=generator) * pixels.std() + pixels.mean()
    return replace(page, image=noise.clamp(0, 255).to(torch.uint8))


def _card(config: ExtractionConfig, store: Path) -> dict[str, Any]:
    return card_of(config.target(), store) or {}


def _validation(config: ExtractionConfig, store: Path) -> dict[str, Estimate]:
    """Validation accuracy, loss and number of the epoch that is attacked; the nearest validated one for others."""
    card = _card(config, store)
    if config.criterion in card["best"]:
        epoch = card["best"][config.criterion]
    else:
        kept = config.criterion.removeprefix("epoch-")
        epoch = next(e for e in card["epochs"] if str(e["number"]) == kept or e is card["epochs"][-1])
    told = {"accuracy": epoch["validation"]["accuracy"], "loss": epoch["validation"]["loss"], "epoch": epoch["number"]}
    return {name: Estimate(float(value), None, None, 0, 0) for name, value in told.items()}


def _outcome(unit: Mapping[str, Any]) -> Outcome:
    ours, theirs = (match(unit["tokens"], unit[side][0]["tokens"]) for side in ("attempts", "baseline"))
    return Outcome(str(unit["document"]), ours, theirs)


def _printed(config: ExtractionConfig) -> list[str]:
    """The private pages' words in one line each, to count copies of a value."""
    return [
        _plain(" ".join(word.text for word in page.words)) for page in divided(config.target().data).part("private")
    ]


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _reading(found: Ranked, units: Mapping[str, Mapping[str, Any]], printed: list[str]) -> Reading:
    copies = sum(_plain(found.value) in text for text in printed) if found.match.perfect else 0
    return Reading(
        found.key, found.value, found.guess, len(units[found.name]["tokens"]), found.match.perfect,
        found.match.hamming, copies,
    )  # fmt: skip
