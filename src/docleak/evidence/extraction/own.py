"""The audit of a user's own extraction model: its weights by path, its private pages, and public pages like them.

Nothing is known of how the target was trained. The public model, which the paper's adversary trains on public pages of
the same kind, is trained here; it must not start from the target, or public data would know what the target knows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from docleak.attacks.weights import DEFAULT_METRIC, CdmiConfig, PublicKnowledge, WeightsAttack
from docleak.documents import Page
from docleak.documents.copies import shared, text_of
from docleak.errors import AttackError, DocumentError, ModelError
from docleak.evidence.extraction.game import (
    STREAM,
    Game,
    OnEpoch,
    assemble,
    card_of,
    check_play,
    train_one,
    trainings,
    usable_pages,
)
from docleak.files import read_stored, write_atomically
from docleak.models.encoders.finished import load_finished
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.model import EncoderConfig, EncoderModel
from docleak.models.encoders.tasks import entities_of
from docleak.models.shipped import SHIPPED_ENCODERS
from docleak.runs.identity import digest_of
from docleak.training.extraction.fit import FitConfig

TRAINED = "target"


@dataclass(frozen=True)
class OwnConfig:
    """Everything that the audit's numbers depend on.

    ``target`` is the model as ``load_finished`` takes it, ``documents`` the private pages it was trained on, ``public``
    others that it was not trained on. ``start`` is what the public model starts from, with the target's vocabulary; ""
    is the shipped one that has it. ``pages`` and ``fields`` of 0 are all.
    """

    target: str
    documents: str
    public: str
    start: str = ""
    pages: int = 0
    fields: int = 100
    attempts: int = 8
    metric: str = DEFAULT_METRIC
    repeats: bool = False
    validation: float = 0.16
    seed: int = 0
    attack: WeightsAttack = CdmiConfig()
    public_training: FitConfig = trainings("mlm", epochs=0, learning_rate=1e-3)[1]

    def __post_init__(self) -> None:
        given = {"a model": self.target, "its private pages": self.documents, "public pages": self.public}
        missing = [what for what, value in given.items() if not value]
        check_play(self, [f"{', '.join(missing)} must be named"] if missing else [])
        if self.documents == self.public:
            raise AttackError(
                f"private and public pages are both {self.documents!r}; expected pages that the model was trained on, "
                "and others that it was not."
            )

    def sources(self) -> tuple[str, ...]:
        """The data set whose pages are played on."""
        return (self.documents,)


def set_up_own(
    config: OwnConfig, folder: Path, *, device: str = "cpu", on_epoch: OnEpoch = lambda which, epochs, epoch: None
) -> Game:
    """Load the target, train the public model that ``folder`` does not hold yet, and choose the fields.

    Raises DocumentError where private and public pages share pages or one set has none, ModelError where the target,
    its labels or the public model's vocabulary do not fit, and whatever loading raises.
    """
    target = load_finished(config.target, device=device)
    private = usable_pages(config.documents, config, target.task, least=1)
    public = usable_pages(config.public, config, "mlm", least=2)
    require_apart(private, public)
    target = with_classes_of(target, private)
    start = public_start(config.start, target, device=device)
    rng = np.random.default_rng(np.random.SeedSequence((config.seed, STREAM)))
    models = folder / _digest(config)
    if not (models / "card.json").is_file():
        _train_public(config, start, public, models, rng=rng, on_epoch=on_epoch)
    knowledge = PublicKnowledge(load_encoder(str(models / "public"), device=device))
    card = read_stored(models / "card.json")
    chosen = np.random.default_rng(np.random.SeedSequence((config.seed, STREAM, 1)))
    return assemble(config, target, knowledge, private, public, card, rng=chosen)


def require_apart(private: Sequence[Page], public: Sequence[Page]) -> None:
    """DocumentError naming pages that are in both parts, by document or by text: what is public is no secret."""
    ours, theirs = ({p.name: text_of(p, document=p.document) for p in pages} for pages in (private, public))
    documents = {p.document for p in ours.values()} & {p.document for p in theirs.values()} - {""}
    pairs = shared(ours, theirs)
    if documents or pairs:
        found = [f"document {name!r}" for name in sorted(documents)] + [f"{a!r} and {b!r}" for a, b in pairs]
        raise DocumentError(
            f"private and public pages overlap: {', '.join(found[:3])}{' ...' if len(found) > 3 else ''} are the same. "
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
    config: EncoderConfig = replace(model.config, classes=classes)
    return EncoderModel(model.module, model.tokenizer, config, name=model.name)


def public_start(source: str, target: EncoderModel, *, device: str = "cpu") -> EncoderModel:
    """What the public model starts from, a masked language model of the target's own vocabulary and eyes.

    "" is the shipped one that has it. ModelError if none does.
    """
    more: dict[str, Any] = {"task": "mlm", "vision": target.config.vision, "device": device}
    vocabulary = target.tokenizer.get_vocab()
    for name in [source] if source else SHIPPED_ENCODERS:
        start = load_encoder(name, **more)
        if start.tokenizer.get_vocab() == vocabulary and start.max_tokens >= target.max_tokens:
            return start
    raise ModelError(
        f"model {target.name!r} has a vocabulary of {len(vocabulary)} pieces and reads {target.max_tokens} tokens; "
        f"{source or 'no shipped model'} does not. Name with --public a model with the same tokenizer that never saw "
        "the private pages, such as the one that the target's training began with (microsoft/layoutlm-base-uncased)."
    )


def _train_public(
    config: OwnConfig, start: EncoderModel, pages: Sequence[Page], folder: Path, *, rng: np.random.Generator,
    on_epoch: OnEpoch,
) -> None:  # fmt: skip
    model = start.for_task("mlm", (), seed=config.seed, name="public")
    names = sorted({page.document or page.name for page in pages})
    if len(names) < 2:
        raise DocumentError(
            f"{config.public}: {len(names)} documents; expected 2 or more, one of them to validate with."
        )
    count = min(max(1, round(config.validation * len(names))), len(names) - 1)
    held = {names[int(i)] for i in rng.permutation(len(names))[:count]}
    train = [page for page in pages if (page.document or page.name) not in held]
    held_out = [page for page in pages if (page.document or page.name) in held]
    fitted = train_one(model, train, held_out, config.public_training, seed=1000 * config.seed + 2, on_epoch=on_epoch)
    save_encoder(fitted.restore(model, "precision"), folder / "public")
    card = {"split": {"public": len(train), "validation": len(held_out)}, "public": card_of(fitted)}
    write_atomically(folder / "card.json", json.dumps(card, indent=1).encode())


def _digest(config: OwnConfig) -> str:
    """Ten digits of what the public model depends on."""
    same = replace(config, fields=0, attempts=1, metric="max-gap", attack=CdmiConfig(), repeats=False)
    return digest_of(asdict(same), length=10)
