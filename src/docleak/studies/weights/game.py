"""A game that is ready to be played: models, scrubbed pages and the fields to be read back; and one field's attack."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from docleak.attacks.weights import Finding, PublicKnowledge, WeightsView
from docleak.attacks.weights.asking import ask
from docleak.documents import Page
from docleak.documents.copies import PageText, copies_of, shared, text_of
from docleak.documents.game import require_disjoint
from docleak.documents.locate import letters
from docleak.errors import DocumentError, ModelError
from docleak.metrics.extraction import match
from docleak.models.encoders.finished import load_finished
from docleak.models.encoders.loading import load_encoder
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import suits
from docleak.models.encoders.scrubbing import SecretField, extract, scrub, unplayable
from docleak.models.encoders.tasks import NEEDS, entities_of, label_of
from docleak.models.encoders.tokens import TokenPage
from docleak.models.shipped import CHECKPOINTS, SHIPPED_ENCODERS
from docleak.runs.identity import digest_of
from docleak.studies.study import Tell, plain
from docleak.studies.weights.config import WeightsConfig
from docleak.training.extraction.kept import STREAM, Divided, Fitting, divided, fitted, require_enough


@dataclass(frozen=True, eq=False)
class Game:
    """``pages`` are the private ones by name, as the target reads them; ``target`` is trained only in ``ready``.

    ``texts`` are the words of all private and public pages, by part and name, to find copies of a field among them.
    ``left_out`` counts, by reason, the private fields that are not played, ``split`` the pages of each part.
    ``fitting`` says how the public model is trained.
    """

    config: WeightsConfig
    target: EncoderModel
    fitting: Fitting
    pages: Mapping[str, TokenPage]
    secrets: tuple[SecretField, ...]
    texts: Mapping[str, Mapping[str, PageText]]
    left_out: Mapping[str, int]
    split: Mapping[str, int]
    knowledge: PublicKnowledge | None = None
    printed: tuple[str, ...] = field(default=(), repr=False)


def game_of(config: WeightsConfig, device: str = "cpu") -> Game:
    """The fields and pages of a game, before its models are trained; made anew only where files have changed.

    Raises DocumentError where the data set is too small, has no fields of the right length or no links, or private and
    public pages overlap; ModelError where a finished target, its labels or the public model's vocabulary do not fit;
    and whatever loading raises.
    """
    return _game(config, device, digest_of(plain(config)))


@lru_cache(maxsize=3)
def _game(config: WeightsConfig, device: str, files: str) -> Game:
    whole = divided(config.data())
    finished = load_finished(config.target, device=device) if config.target else None
    task = finished.task if finished else config.task
    there = sum(suits(page, task) for page in whole.pages)
    require_enough(config.data(), f"words and {NEEDS[task]}" if task in NEEDS else "words", there, len(whole.pages))
    others = divided(config.public_data())
    private, public = whole.part("private", task), others.part("public")
    parts = {"private": private, "public": public}
    if finished is None:
        target, fitting = config.target_fitting().start(device), config.public_fitting()
        require_apart(private, [*public, *others.part("validation")] * bool(config.public_documents))
        parts |= {"validation": whole.part("validation", task)}
        require_disjoint({name: [page.document or page.name for page in part] for name, part in parts.items()})
    else:
        require_apart(private, list(others.pages))
        target = with_classes_of(finished, private)
        start = public_start(config.model, target, device=device)
        fitting = replace(config.public_fitting(), model=start, vision=target.config.vision)
        public = list(others.pages)
        parts |= {"validation": others.part("validation")}
    pages = {page.name: target.encode(page) for page in private}
    fields = [(page, secret) for page in private for secret in extract(page, pages[page.name])]
    secrets = [secret for page, secret in fields if not _is_class(secret, page, target)]
    left_out = unplayable(private, pages)
    if len(secrets) < len(fields):
        left_out["that name the page's class"] = len(fields) - len(secrets)
    last = config.first + config.fields if config.fields else None
    chosen = [secrets[int(i)] for i in _drawing(config, whole).permutation(len(secrets))][config.first : last]
    if not chosen:
        if secrets:
            raise DocumentError(
                f"{config.documents}: {len(private)} private pages have {len(secrets)} private fields of 3 to 15 "
                f"tokens, and the first {config.first} are left out. Give more pages."
            )
        why = "; ".join(f"{count} {reason}" for reason, count in left_out.items()) or "they have no private field"
        raise DocumentError(
            f"{config.documents}: none of the {len(private)} private pages has a private field of 3 to 15 tokens "
            f"within the model's {target.max_tokens} ({why}). Give pages with fields."
        )
    if config.noise:
        pages = {name: _noisy(page, config.seed) for name, page in pages.items()}
    texts = {
        part: {page.name: text_of(page, document=page.document or page.name) for page in given}
        for part, given in (("private", private), ("public", public))
    }
    printed = tuple(_plain(" ".join(word.text for word in page.words)) for page in private)
    split = {name: len(part) for name, part in parts.items()}
    return Game(config, target, fitting, pages, tuple(chosen), texts, left_out, split, printed=printed)


def trained(config: WeightsConfig, which: str, store: Path, *, device: str, tell: Tell = lambda epoch: None) -> Path:
    """The folder of a game's "target" or "public" model, as ``fitted`` leaves it."""
    if config.trained:
        return CHECKPOINTS / config.trained / which
    fitting = config.target_fitting() if which == "target" else game_of(config, device).fitting
    return fitted(fitting, store, device=device, tell=tell)


def ready(config: WeightsConfig, store: Path, *, device: str = "cpu") -> Game:
    """The game with its trained models, those of ``store`` where they are there."""
    return _ready(config, store, device, digest_of(plain(config)))


@lru_cache(maxsize=2)
def _ready(config: WeightsConfig, store: Path, device: str, files: str) -> Game:
    game = game_of(config, device)
    public = load_encoder(str(trained(config, "public", store, device=device) / "precision"), device=device)
    if config.target:
        return replace(game, knowledge=PublicKnowledge(public))
    target = load_encoder(str(trained(config, "target", store, device=device) / config.criterion), device=device)
    return replace(game, target=config.target_fitting().cut(target), knowledge=PublicKnowledge(public))


def forget() -> None:
    """Load all games anew: an attack wrote into a model."""
    _ready.cache_clear()
    _game.cache_clear()


def shadow_of(config: WeightsConfig, device: str = "cpu") -> tuple[WeightsConfig | None, str]:
    """The game that the adversary can play by itself; or None, and why there is no such game: too few public documents,
    no fields on them, or no labels for the task."""
    try:
        target = game_of(config, device).target
        start = (config.model or public_start("", target)) if config.target else ""
        shadow = config.shadow_game(target.task, start=start, bimodal=target.bimodal)
        game_of(shadow, device)
    except (DocumentError, ModelError) as fault:
        return None, str(fault)
    return shadow, ""


def _drawing(config: WeightsConfig, whole: Divided) -> np.random.Generator:
    """Draws the order in which fields are attacked."""
    if config.target:
        return np.random.default_rng(np.random.SeedSequence((config.seed, STREAM, 1)))
    if not config.draw_apart:
        return deepcopy(whole.rng)
    rng = config.data().rng()
    rng.bit_generator.advance(2**64)  # type: ignore[attr-defined] # apart from the division's draws
    return rng


def _is_class(secret: SecretField, page: Page, target: EncoderModel) -> bool:
    """Whether the field prints the page's class, which the adversary is given with the page's labels."""
    label = label_of(page)
    return target.task == "classify" and label in target.config.classes and letters(secret.value) == letters(label)


def _noisy(page: TokenPage, seed: int) -> TokenPage:
    """Gaussian noise of the picture's own mean and standard deviation in its place; none for a blind model."""
    if page.image is None:
        return page
    generator = torch.Generator().manual_seed(seed * 1_000_003 + sum(page.name.encode()))
    pixels = page.image.float()
    noise = torch.randn(pixels.shape, generator=generator) * pixels.std() + pixels.mean()
    return replace(page, image=noise.clamp(0, 255).to(torch.uint8))


# -- a finished model of the user's own --------------------------------------------------------------------------------


def require_apart(private: Sequence[Page], public: Sequence[Page]) -> None:
    """DocumentError naming pages that are in both parts, by document or by text: what is public is no secret."""
    ours, theirs = ({p.name: text_of(p, document=p.document) for p in pages} for pages in (private, public))
    documents = {p.document for p in ours.values()} & {p.document for p in theirs.values()} - {""}
    twins = [f"document {name!r}" for name in sorted(documents)]
    twins += [f"{a!r} and {b!r}" for a, b in shared(ours, theirs)]
    if twins:
        raise DocumentError(
            f"private and public pages overlap: {', '.join(twins[:3])}{' ...' if len(twins) > 3 else ''} are the same. "
            "Take them out of the public pages: an adversary who has them already reads nothing."
        )


def with_classes_of(model: EncoderModel, pages: Sequence[Page]) -> EncoderModel:
    """The model with its classes spelled as the pages spell them; ModelError for entities that it has no class for."""
    if model.task not in ("ee-bio", "ee-spade"):
        return model
    labels = sorted({entity.label for page in pages for entity in entities_of(page)})
    spelled = {label.casefold(): label for label in labels}
    classes = tuple(spelled.get(name.casefold(), name) for name in model.config.classes)
    unknown = sorted(set(labels) - set(classes))
    if unknown:
        raise ModelError(
            f"the private pages have entities {', '.join(unknown[:5])}, for which model {model.name!r} has no class; "
            f"it knows {', '.join(model.config.classes)}. Annotate the pages as they were for its training."
        )
    return EncoderModel(model.module, model.tokenizer, replace(model.config, classes=classes), name=model.name)


def public_start(source: str, target: EncoderModel, *, device: str = "cpu") -> str:
    """What the public model starts from: a masked language model of the target's own vocabulary and eyes. It must not
    be the target, or public data would know what the target knows. "" is the shipped one; ModelError if none fits, and
    for the target's own weights."""
    vocabulary = target.tokenizer.get_vocab()
    for name in [source] if source else SHIPPED_ENCODERS:
        start = load_encoder(name, task="mlm", vision=target.config.vision, device=device)
        if source and target.task == "mlm" and _alike(start, target):
            raise ModelError(
                f"model {source!r} is the target itself: what the adversary guesses without it would be what it tells. "
                "Name with --model a model with the same tokenizer that never saw the private pages."
            )
        if start.tokenizer.get_vocab() == vocabulary and start.max_tokens >= target.max_tokens:
            return name
    raise ModelError(
        f"model {target.name!r} has a vocabulary of {len(vocabulary)} pieces and reads {target.max_tokens} tokens; "
        f"{f'{source} does not' if source else 'no shipped model does'}. Name with --model a model with the same "
        "tokenizer that never saw the private pages, such as the one that the target's training began with "
        "(microsoft/layoutlm-base-uncased)."
    )


def _alike(one: EncoderModel, other: EncoderModel) -> bool:
    """Whether both have the same weights, by name."""
    ours, theirs = one.module.state_dict(), other.module.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


# -- one field ---------------------------------------------------------------------------------------------------------


def view_of(game: Game, secret: SecretField) -> WeightsView:
    """What the adversary is given of one field: SCRUB of algorithm 1. The truth stays behind."""
    hidden = (*secret.positions, *(secret.repeats if game.config.repeats else ()))
    scrubbed = scrub(game.pages[secret.page], hidden, mask_id=game.target.tokenizer.mask_token_id)
    return WeightsView(game.target, scrubbed, secret.positions, game.config.answers_only)


def attack_field(game: Game, number: int) -> dict[str, Any]:
    """The record of one field: the attack's attempts and the baseline's, each with a generator of its own, and for the
    owner where else the value stands."""
    secret, config, began = game.secrets[number], game.config, time.perf_counter()
    assert game.knowledge is not None
    view, seed = view_of(game, secret), 2 * (config.seed * 1_000_003 + number)
    finding, baseline = (
        ask(attack, view, game.knowledge, budget=config.attempts, generator=drawn, forget=forget)
        for attack, drawn in (
            (config.attack, torch.Generator().manual_seed(seed)),
            (config.attack.baseline(), torch.Generator().manual_seed(seed + 1)),
        )
    )
    page = game.texts["private"][secret.page]
    return {
        **asdict(secret),
        "pieces": game.target.tokenizer.convert_ids_to_tokens(list(secret.tokens)),
        "attempts": _attempts(finding, secret, game),
        "baseline": _attempts(baseline, secret, game),
        "copies": {
            part: asdict(copies_of(secret.value, page, list(pages.values()))) for part, pages in game.texts.items()
        },
        "printed_on": sum(_plain(secret.value) in text for text in game.printed),
        "calls": finding.calls,
        "seconds": time.perf_counter() - began,
    }


def _attempts(finding: Finding, secret: SecretField, game: Game) -> list[dict[str, Any]]:
    attempts, tokenizer = [], game.target.tokenizer
    for attempt in finding.attempts:
        tokens = list(attempt.tokens)
        words = {"text": str(tokenizer.decode(tokens)), "pieces": tokenizer.convert_ids_to_tokens(tokens)}
        attempts.append({**asdict(attempt), **words, **asdict(match(secret.tokens, attempt.tokens))})
    return attempts


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
