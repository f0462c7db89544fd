"""Models of reconstruction games, each trained once and kept under the name of all that it depends on.

STORE/private-layoutlm-tiny-mlm-3f9c2a1b/precision/   the checkpoints: also loss, last, epoch-10 ...
                                        /card.json    pages, epochs and claim (``runs.artefact``)
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from docleak.documents import Page, load_pages
from docleak.documents.copies import deduplicated, text_of
from docleak.documents.game import GameSplit, require_disjoint, shadow_split, split_game
from docleak.documents.pages import document_names
from docleak.errors import DocumentError
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.model import EncoderModel, build
from docleak.models.encoders.questions import suits
from docleak.models.encoders.tasks import Task, classes_for
from docleak.models.encoders.tokens import TokenPage
from docleak.models.encoders.vision import VisionConfig
from docleak.privacy.budget import delta_warning
from docleak.privacy.lineage import Lineage, Trained, claim_of
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.runs.artefact import made_once
from docleak.runs.identity import digest_of
from docleak.training.extraction.fit import Epoch, FitConfig, fit
from docleak.training.extraction.private import PrivateFit, fit_privately
from docleak.training.lineage import lineage_of, write_lineage
from docleak.training.private.units import units_of

#: Kept checkpoints that are the best of their training; the others are "last" and "epoch-N".
BEST = ("precision", "loss")
#: Keeps the game's streams apart from others of the same seed.
STREAM = 0xCD31
#: How a data set is divided -> how many documents that takes: into private, public and validation pages; so that only
#: its public pages are divided, as the adversary can by itself; all private; all public but for validation.
LEAST = {"game": 3, "shadow": 3, "private": 1, "public": 2}
Division = Literal["game", "shadow", "private", "public"]


@dataclass(frozen=True)
class Data:
    """The documents of one data set and how they are divided; ``pages`` of 0 are all, ``validation`` is a share."""

    documents: str
    pages: int
    validation: float
    seed: int
    division: Division = "game"

    def rng(self) -> np.random.Generator:
        """The stream that divides the documents."""
        return np.random.default_rng(np.random.SeedSequence((self.seed, STREAM)))


@dataclass(frozen=True)
class Divided:
    """The pages of a data set and the numbers of its parts; ``rng`` is what the division left of its stream."""

    pages: tuple[Page, ...]
    split: GameSplit
    rng: np.random.Generator

    def part(self, name: str, task: Task = "mlm") -> list[Page]:
        """The pages of private, public or validation that have what a task needs."""
        return [page for page in (self.pages[i] for i in getattr(self.split, name)) if suits(page, task)]


@dataclass(frozen=True)
class Fitting:
    """A model to be trained from ``model``; equal ones are trained once. ``part`` of the data is what it is trained on.

    ``without`` are pairs of a field's key and a pattern: pages on which such a field matches it are left out. Every
    second page has ``copies`` further scans; ``deduplicate`` then takes near-duplicates out. ``private`` trains with
    differential privacy. ``dropout`` below 0 and ``max_tokens`` of 0 leave what the checkpoint says; pages are cut
    behind ``max_tokens``. Every ``keep_every`` epochs the weights are kept (0: never).
    """

    part: Literal["private", "public"]
    model: str
    data: Data
    task: Task
    vision: VisionConfig | None
    training: FitConfig
    seed: int = 0
    keep_every: int = 0
    dropout: float = -1.0
    max_tokens: int = 0
    without: tuple[tuple[str, str], ...] = ()
    copies: int = 0
    deduplicate: bool = False
    private: PrivateFit | None = None

    @property
    def name(self) -> str:
        """For people, with the digits that tell it from others, and from the same one begun from other files."""
        said = re.sub(r"[^A-Za-z0-9_+.-]+", "-", f"{self.part}-{self.model.rsplit('/', 1)[-1]}-{self.task}")
        return f"{said}-{digest_of(asdict(self))}"

    def start(self, device: str) -> EncoderModel:
        """What its training begins with: the backbone with a head for the task."""
        start = load_encoder(self.model, task="mlm", vision=self.vision, seed=self.seed, device=device)
        if self.dropout >= 0:
            rates = {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout}
            config = replace(start.config, backbone={**start.config.backbone, **rates})
            other = build(config, start.tokenizer, seed=self.seed, name=start.name)
            other.module.load_state_dict(start.module.state_dict())
            other.module.to(device)
            start = other
        classes = classes_for(self.task, [page for page in divided(self.data).pages if suits(page, self.task)])
        return self.cut(start.for_task(self.task, classes, seed=self.seed, name=self.part))

    def cut(self, model: EncoderModel) -> EncoderModel:
        """The model, reading no more than ``max_tokens``."""
        if self.max_tokens:
            model.max_tokens = min(model.max_tokens, self.max_tokens)
        return model


def divided(data: Data) -> Divided:
    """The division of a data set by document, the same for every task. DocumentError for pages that make no game."""
    return _divided(data, digest_of(asdict(data)))


@lru_cache(maxsize=3)
def _divided(data: Data, files: str) -> Divided:
    given = list(load_pages(data.documents, count=data.pages or None, seed=data.seed))
    pages = [page for page in given if page.words]
    require_enough(data, "words", len(pages), len(given))
    if len({page.name for page in pages}) < len(pages):
        raise DocumentError(f"{data.documents}: {len(pages)} pages do not have as many names; give each its own.")
    rng, documents = data.rng(), document_names(pages)
    if data.division == "private":
        return Divided(tuple(pages), GameSplit(tuple(range(len(pages))), (), ()), rng)
    if data.division == "public":
        return Divided(tuple(pages), _validated(data, pages, rng), rng)
    split = split_game(documents, validation=data.validation, rng=rng)
    if data.division == "shadow":
        split = shadow_split(split, documents, rng=rng)
    require_disjoint({name: [documents[i] or str(i) for i in part] for name, part in asdict(split).items()})
    return Divided(tuple(pages), split, rng)


def require_enough(data: Data, what: str, there: int, given: int) -> None:
    """DocumentError where too few of the ``given`` pages have ``what`` a game needs."""
    if there < LEAST[data.division]:
        raise DocumentError(
            f"{data.documents}: {there} of {given} pages have {what}; a game needs {LEAST[data.division]} documents or "
            "more."
        )


def _validated(data: Data, pages: Sequence[Page], rng: np.random.Generator) -> GameSplit:
    """All pages public, but for those of some documents to validate with."""
    names = sorted({page.document or page.name for page in pages})
    if len(names) < 2:
        raise DocumentError(
            f"{data.documents}: {len(names)} documents; expected 2 or more, one of them to validate with."
        )
    count = min(max(1, round(data.validation * len(names))), len(names) - 1)
    held = {names[int(i)] for i in rng.permutation(len(names))[:count]}
    there = [(page.document or page.name) in held for page in pages]
    public, validation = (tuple(i for i, is_held in enumerate(there) if is_held == held) for held in (False, True))
    return GameSplit((), public, validation)


def fitted(
    fitting: Fitting, store: Path, *, device: str = "cpu", tell: Callable[[int], None] = lambda epoch: None
) -> Path:
    """The folder of a trained model, which is trained if it is not there; ``tell`` is told each validated epoch.

    RunError for one of another docleak, DocumentError for too few pages, and whatever training raises.
    """
    folder = store / fitting.name
    made_once(folder, lambda: _train(fitting, folder, device, tell))
    return folder


def _train(fitting: Fitting, folder: Path, device: str, tell: Callable[[int], None]) -> dict[str, Any]:
    """How the trained model did: pages, seconds, best epochs and all validated ones, and its claim."""
    began, whole = time.perf_counter(), divided(fitting.data)
    model = fitting.start(device)
    given = with_copies(_kept(whole.part(fitting.part), fitting), fitting.copies, fitting.data.rng())
    pages = without_duplicates(given) if fitting.deduplicate else given
    validation = encoded(model, whole.part("validation"))

    def on_epoch(epoch: Epoch) -> None:
        if fitting.keep_every and epoch.number % fitting.keep_every == 0:
            save_encoder(model, folder / f"epoch-{epoch.number}")
        tell(epoch.number)

    seed, plan, claim = 1000 * fitting.seed + 1 + (fitting.part == "public"), None, {}
    if fitting.private is None:
        train = encoded(model, pages)
        history = fit(model, train, validation, fitting.training, seed=seed, on_epoch=on_epoch)
    else:  # coins and noise follow from the seed, so that a table can be repeated
        named, plan = units_of(pages, fitting.private.kind, client=fitting.part), fitting.private.plan()
        units = {key: made for key, unit in named.items() if (made := encoded(model, unit))}
        train = [page for unit in units.values() for page in unit]
        history = fit_privately(
            model, units, validation, fitting.private, plan, validate_every=fitting.training.validate_every,
            batch_size=2 * fitting.training.batch_size, seed=seed,
            randomness=Randomness.seeded(fitting.seed, fitting.part), on_epoch=on_epoch,
        )  # fmt: skip
        claim = {"units": len(units)}
    lineage = _lineage(fitting, plan, folder.name)
    if fitting.private is not None:
        claim["claim"] = _claim(lineage, fitting.private)  # type: ignore[assignment]
    save_encoder(model, folder / "last")
    for criterion in BEST:
        save_encoder(history.restore(model, criterion), folder / criterion)
    for criterion in ("last", *BEST):
        write_lineage(folder / criterion, lineage)
    return {
        "pages": {"train": len(train), "validation": len(validation)},
        "duplicates": len(given) - len(pages),
        **claim,
        "seconds": time.perf_counter() - began,
        "best": {criterion: asdict(epoch) for criterion, epoch in history.best.items()},
        "epochs": [asdict(epoch) for epoch in history.epochs],
    }


def encoded(model: EncoderModel, pages: Sequence[Page]) -> list[TokenPage]:
    """Pages as the model reads them; those without what its task needs (``tasks.NEEDS``) are left out."""
    return [model.encode(page) for page in pages if suits(page, model.task)]


def _lineage(fitting: Fitting, plan: DpPlan | None, name: str) -> Lineage:
    """What the model comes from: its start's lineage, and this training."""
    what = f"training for a game ({fitting.task}, {fitting.part} part)"
    spent = plan.guarantee() if plan else None
    accountant, epsilon = (f"{spent.accountant} {spent.version}", spent.epsilon) if spent else ("", None)
    return lineage_of(fitting.model).after(Trained(name, what, plan, epsilon, accountant, repeatable=plan is not None))


def _claim(lineage: Lineage, private: PrivateFit) -> str:
    """The claim over the lineage, and what is taken as given: who is in which part, which pages validate, and which
    classes there are."""
    warning = delta_warning(private.delta, private.units, private.unit)
    return (
        f"{claim_of(lineage).sentence} It is for one {private.unit} more or less in the private part: how the data set "
        f"was divided is drawn from its whole list, document by document, and taken as public, as are the parts of the "
        f"adversary and of validation, where the same provider may be, too, and which classes a head tells apart, "
        f"which are those of all pages.{f' Warning: {warning}' if warning else ''}"
    )


def _kept(pages: list[Page], fitting: Fitting) -> list[Page]:
    """Pages on which no field of a named key matches its pattern."""
    patterns = {key: re.compile(pattern, re.IGNORECASE) for key, pattern in fitting.without}
    kept = [p for p in pages if not any(f.key in patterns and patterns[f.key].search(f.value) for f in p.fields)]
    if not kept:
        raise DocumentError(
            f"{fitting.data.documents}: none of {len(pages)} pages is left without {dict(fitting.without)}."
        )
    return kept


#: Of a second scan, the share of words in which one letter is misread.
SLIPS = 0.05
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def with_copies(pages: list[Page], copies: int, rng: np.random.Generator) -> list[Page]:
    """``pages``, and of every second one so many further scans, each filed as a document of its own."""
    return pages + [_scanned(page, number, rng) for page in pages[::2] for number in range(1, copies + 1)]


def without_duplicates(pages: list[Page]) -> list[Page]:
    """The pages that are no near-duplicate of an earlier one of another document (``copies.deduplicated``)."""
    return [pages[i] for i in deduplicated([text_of(page, document=page.document or page.name) for page in pages])]


def _scanned(page: Page, number: int, rng: np.random.Generator) -> Page:
    """The same page under another name, with slips of OCR; what is annotated stays where it was."""
    words = list(page.words)
    for i in np.flatnonzero(rng.random(len(words)) < SLIPS):
        text = words[i].text
        place = int(rng.integers(len(text)))
        slip = LETTERS[int(rng.integers(len(LETTERS)))]
        words[i] = replace(words[i], text=text[:place] + slip + text[place + 1 :])
    again = f"copy-{number}"
    return replace(
        page, name=f"{page.name}-{again}", document=f"{page.document or page.name}-{again}", words=tuple(words)
    )
