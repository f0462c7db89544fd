"""Models and attacks on disk, each once for all tables.

STORE/private-layoutlm-tiny-mlm-unimodal-3f9c2a1b/fitting.json   what the model started from, and how it was trained
                                                 /precision/     the checkpoints: also loss, last, epoch-0010 ...
                                                 /card.json      its validation along the epochs: it is finished
STORE/attack-8e1d0b77/                                           a run (see ``evidence.run``), a unit per field

Whoever wants a model or an attack takes its lock first, so that tables made at the same time compute it once.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import docleak
from docleak.documents import Page, load_pages
from docleak.documents.game import GameSplit, require_disjoint, split_game
from docleak.documents.pages import document_names
from docleak.errors import DocumentError, RecipeError, RunError
from docleak.evidence.extraction.game import STREAM
from docleak.files import reported, write_json
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.model import EncoderModel, build
from docleak.models.encoders.questions import suits
from docleak.models.encoders.tasks import classes_for
from docleak.models.encoders.tokens import TokenPage
from docleak.models.encoders.vision import VisionConfig
from docleak.privacy.lineage import Lineage, Trained, claim_of
from docleak.privacy.mechanism import Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.recipes.extraction.config import BEST, Data, Fitting
from docleak.recipes.extraction.duplicates import with_copies, without_duplicates
from docleak.recipes.manifest import require_version
from docleak.runs.claim import claimed
from docleak.runs.identity import digest_of
from docleak.studies.identity import weights_hash
from docleak.training.extraction.fit import Epoch, Fitted, fit
from docleak.training.extraction.private import fit_privately
from docleak.training.lineage import lineage_of, write_lineage
from docleak.training.private.units import units_of

FITTING, CARD = "fitting.json", "card.json"
#: Of a model; what is not set counts for nothing in its name, so that stores from before go on.
DEFENCES = ("copies", "deduplicate", "private")


@dataclass(frozen=True)
class Divided:
    """The pages of a data set and the numbers of its parts."""

    pages: tuple[Page, ...]
    split: GameSplit

    def part(self, name: str) -> list[Page]:
        """The pages of private, public or validation."""
        return [self.pages[i] for i in getattr(self.split, name)]


@lru_cache(maxsize=2)
def divided(data: Data) -> Divided:
    """The division of a data set by document, the same for every task. DocumentError for pages that make no game."""
    pages = [page for page in load_pages(data.documents, count=data.pages or None, seed=data.seed) if page.words]
    if len({page.name for page in pages}) < len(pages):
        raise DocumentError(f"{data.documents}: {len(pages)} pages do not have as many names; give each its own.")
    documents = document_names(pages)
    split = split_game(documents, validation=data.validation, rng=_rng(data))
    require_disjoint({name: [documents[i] or str(i) for i in part] for name, part in asdict(split).items()})
    return Divided(tuple(pages), split)


def drawing(data: Data) -> np.random.Generator:
    """Draws the order in which fields are attacked, the same for equal lists of fields."""
    rng = _rng(data)
    rng.bit_generator.advance(2**64)  # type: ignore[attr-defined] # apart from the division's draws
    return rng


def fitted(fitting: Fitting, store: Path, device: str) -> Path:
    """The folder of a trained model, which is trained if it is not there."""
    folder = folder_of(fitting, store)
    with claimed(folder, whole=True, wait=True):
        if (folder / FITTING).is_file():
            require_version(json.loads((folder / FITTING).read_text(encoding="utf-8")), folder)
        if not (folder / CARD).is_file():
            _train(fitting, folder, device)
    return folder


def card_of(fitting: Fitting, store: Path) -> dict[str, Any] | None:
    """How a finished model did: split, seconds, best epochs and all validated ones; None while it is not there."""
    file = folder_of(fitting, store) / CARD
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def folder_of(fitting: Fitting, store: Path) -> Path:
    """Where a model is kept."""
    plain = {name: value for name, value in asdict(fitting).items() if value or name not in DEFENCES}
    return store / f"{re.sub(r'[^A-Za-z0-9_+.-]+', '-', fitting.name)}-{digest_of(plain)}"


def encoded(model: EncoderModel, pages: Sequence[Page], max_tokens: int) -> list[TokenPage]:
    """Pages as the model reads them; those without what its task needs (``tasks.NEEDS``) are left out."""
    if max_tokens:
        model.max_tokens = min(model.max_tokens, max_tokens)
    return [model.encode(page) for page in pages if suits(page, model.task)]


def _rng(data: Data) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence((data.seed, STREAM)))


def _train(fitting: Fitting, folder: Path, device: str) -> None:
    began = time.perf_counter()
    whole, training = divided(fitting.data), fitting.training
    start = _start(fitting, device)
    _claim(fitting, start, folder)
    classes = classes_for(fitting.task, whole.pages)
    model = start.for_task(fitting.task, classes, seed=fitting.seed, name=fitting.part)
    given = with_copies(_kept(whole.part(fitting.part), fitting), fitting.copies, _rng(fitting.data))
    pages = without_duplicates(given) if fitting.deduplicate else given
    units, validation = _units(model, pages, fitting), encoded(model, whole.part("validation"), training.max_tokens)
    train = [page for own in units.values() for page in own]

    def on_epoch(epoch: Epoch) -> None:
        if training.keep_every and epoch.number % training.keep_every == 0:
            save_encoder(model, folder / f"epoch-{epoch.number}")

    plan = fitting.private.plan() if fitting.private else None
    if plan is None:
        seed = 1000 * fitting.seed + 1 + (fitting.part == "public")
        found = fit(model, train, validation, training.plan(), seed=seed, on_epoch=on_epoch)
    else:
        found = _fit_privately(model, units, validation, fitting, plan, on_epoch)
    lineage = _lineage(fitting, plan, folder)
    claim = _claim_sentence(lineage, fitting.private.unit) if fitting.private else ""
    with reported(folder):
        save_encoder(model, folder / "last")
        for criterion in BEST:
            save_encoder(found.restore(model, criterion), folder / criterion)
        for name in ("last", *BEST):
            write_lineage(folder / name, lineage)
        card = {
            "pages": {"train": len(train), "validation": len(validation)},
            "duplicates": len(given) - len(pages),
            **({"claim": claim, "units": len(units)} if claim else {}),
            "seconds": time.perf_counter() - began,
            "best": {name: asdict(epoch) for name, epoch in found.best.items()},
            "epochs": [asdict(epoch) for epoch in found.epochs],
        }
        write_json(folder / CARD, card)


def _units(model: EncoderModel, pages: list[Page], fitting: Fitting) -> dict[str, list[TokenPage]]:
    """The pages of each unit of privacy; without private training all are of one."""
    unit = fitting.private.kind if fitting.private else Unit.CLIENT
    named = units_of(pages, unit, client=fitting.part)
    return {name: found for name, own in named.items() if (found := encoded(model, own, fitting.training.max_tokens))}


def _fit_privately(
    model: EncoderModel,
    units: dict[str, list[TokenPage]],
    validation: list[TokenPage],
    fitting: Fitting,
    plan: DpPlan,
    on_epoch: Callable[[Epoch], None],
) -> Fitted:
    """Coins and noise follow from the seed, as everything of a table does."""
    private, training = fitting.private, fitting.training
    assert private is not None
    return fit_privately(
        model, units, validation, private, plan, validate_every=training.validate_every,
        batch_size=2 * training.batch_size, seed=1000 * fitting.seed + 1,
        randomness=Randomness.seeded(fitting.seed, fitting.part), on_epoch=on_epoch,
    )  # fmt: skip


def _lineage(fitting: Fitting, plan: DpPlan | None, folder: Path) -> Lineage:
    """What the model comes from: its start's lineage, and this training."""
    what = f"training of a table ({fitting.task}, {fitting.part} part)"
    spent = plan.guarantee() if plan else None
    accountant, epsilon = (f"{spent.accountant} {spent.version}", spent.epsilon) if spent else ("", None)
    training = Trained(folder.name, what, plan, epsilon, accountant, repeatable=plan is not None)
    return lineage_of(fitting.model).after(training)


def _claim_sentence(lineage: Lineage, unit: str) -> str:
    """The claim over the lineage, and what is taken as given: who is in which part, and which pages validate."""
    return (
        f"{claim_of(lineage).sentence} It is for one {unit} more or less in the private part: how the data set was "
        f"divided is drawn from its whole list, document by document, and taken as public, as are the parts of the "
        f"adversary and of validation, where the same provider may be, too."
    )


def _start(fitting: Fitting, device: str) -> EncoderModel:
    """The backbone that targets and public models begin with, with the training's dropout."""
    vision = VisionConfig() if fitting.bimodal else None
    start = load_encoder(fitting.model, task="mlm", vision=vision, seed=fitting.seed, device=device)
    rate = fitting.training.dropout
    if rate < 0:
        return start
    rates = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    config = replace(start.config, backbone={**start.config.backbone, **rates})
    other = build(config, start.tokenizer, seed=fitting.seed, name=start.name)
    other.module.load_state_dict(start.module.state_dict())
    other.module.to(device)
    return other


def _kept(pages: list[Page], fitting: Fitting) -> list[Page]:
    """Pages on which no field of a named key matches its pattern."""
    patterns = {key: re.compile(pattern, re.IGNORECASE) for key, pattern in fitting.without}
    kept = [p for p in pages if not any(f.key in patterns and patterns[f.key].search(f.value) for f in p.fields)]
    if not kept:
        raise RecipeError(
            f"{fitting.data.documents}: none of {len(pages)} pages is left without {dict(fitting.without)}."
        )
    return kept


def _claim(fitting: Fitting, start: EncoderModel, folder: Path) -> None:
    """Note what the model begins with; RunError if an unfinished training began with another."""
    file, now = folder / FITTING, {**asdict(fitting), "weights": weights_hash(start), "docleak": docleak.__version__}
    before = json.loads(file.read_text(encoding="utf-8")).get("weights") if file.is_file() else now["weights"]
    if before != now["weights"]:
        raise RunError(
            f"{folder} was trained from another {fitting.model!r} (weights {before}, now {now['weights']}). Delete the "
            "folder, or give another --out."
        )
    with reported(folder):
        write_json(file, now)
