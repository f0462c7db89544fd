"""The audited models, the pages that they are audited and trained on, loaded once in each process, and which attack
applies to which model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import islice

import numpy as np

from docleak.attacks.asking import left_alone
from docleak.attacks.gradients.algebra.patches import obstacle
from docleak.attacks.gradients.algebra.tower import obstacle as tower_obstacle
from docleak.attacks.registries import ATTACKS
from docleak.defenses import DEFENSES
from docleak.documents import Page, Question, load_pages
from docleak.documents.loaders import SYNTHETIC
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocumentError
from docleak.files import Stamps, stamps
from docleak.models import DocumentModel, load_model, trainable
from docleak.models.stages import STAGES
from docleak.models.vlm.model import VisionLanguage
from docleak.spec import split_name
from docleak.studies.gradient.case import answered_question, pages_for
from docleak.studies.gradient.config import CLOSED_FORM, Exposure, GradientConfig
from docleak.studies.gradient.texts import text_obstacle
from docleak.training.pretrain import PretrainConfig, pretrain


@dataclass(frozen=True)
class TrainingPages:
    """Pages of ``documents`` that are of no document among the first ``attacked`` with private fields, which are what
    is attacked; synthetic ones are others. ``seed`` is the audit's, ``image_size`` that of the audited model."""

    documents: str
    attacked: int
    seed: int
    image_size: tuple[int, int] | None

    @classmethod
    def of(cls, config: GradientConfig) -> TrainingPages:
        """Those of an audit."""
        return cls(config.documents, config.pages + config.batch_size - 1, config.seed, config.image_size)

    @property
    def said(self) -> str:
        """In words."""
        if self.documents == SYNTHETIC:
            return "other synthetic pages"
        return f"the other pages of {self.documents}, none of a document that is attacked"

    def first(self, model: DocumentModel, count: int, seed: int) -> Sequence[Page]:
        """The first ``count`` at most, each with a question at least, synthetic ones made with ``seed``; DocumentError
        where there is none."""
        if self.documents == SYNTHETIC:
            return make_pages(count, seed=seed, size=model.image_size, split="train")
        pages = list(islice(self._others(), count))
        if not pages:
            raise DocumentError(
                f"{self.documents!r} has no page to train on beside the {self.attacked} that are attacked: a training "
                "before the gradient, or between rounds, takes other documents with questions or private fields. Give "
                "more documents, or attack fewer (--pages)."
            )
        return pages

    def _others(self) -> Iterator[Page]:
        source = load_pages(self.documents, seed=self.seed)
        with_fields = islice((page for page in source if page.private_fields), self.attacked)
        attacked = {one for page in with_fields for one in (page.document or page.name, _picture(page))}
        others = (page for page in source if not attacked & {page.document or page.name, _picture(page)})
        return (asked for page in others if (asked := _asked(page)).questions)


def _picture(page: Page) -> str:
    """By which copies of a picture are known."""
    return sha256(page.image.tobytes()).hexdigest()


def _asked(page: Page) -> Page:
    """The page with those of its questions that have an answer; without any, with one of each private field."""
    questions = tuple(q for q in page.questions if q.answers and q.answers[0].strip())
    made = tuple(Question(f"What is the {f.key.replace('_', ' ')}?", (f.value,), f.key) for f in page.private_fields)
    return replace(page, questions=questions or made)


#: Training before the audited gradient (GI-DQA figure 6 counts its steps but not their learning rate; ours is this).
FINE_TUNING = PretrainConfig(pages_per_step=4, questions_per_page=2, learning_rate=1e-3, warmup_steps=1,
                             reading_weight=0.0, dropout=False, decay=False)  # fmt: skip


def skipped(config: GradientConfig, device: str) -> dict[tuple[str, str], str]:
    """(model, attack) -> why the attack cannot be made on that model; empty where nothing at all can be."""
    reasons = _reasons(config, device)
    return {pair: why for pair, why in reasons.items() if why} if not all(reasons.values()) else {}


def require_applicable(config: GradientConfig, device: str) -> None:
    """AttackError, before anything is written, where none of the attacks can be made on any of the models, or one of
    these has no parameters of what is to be sent, or to be frozen."""
    faults = [
        why for source in config.models if (why := stage_fault(model_of(config, source, device), config.exposure))
    ]
    if faults:
        raise AttackError(f"{'; '.join(faults)}. Name stages that it has.")
    reasons = _reasons(config, device)
    if all(reasons.values()):
        raise AttackError(f"none of the attacks applies: {'; '.join(dict.fromkeys(reasons.values()))}.")


def _reasons(config: GradientConfig, device: str) -> dict[tuple[str, str], str]:
    return {(m, a): inapplicable(model_of(config, m, device), a, config) for m in config.models for a in config.attacks}


def shortage(config: GradientConfig, device: str) -> str:
    """A sentence if there are fewer pages with private fields than asked for, else ""."""
    count = min(len(audited_pages(source, device, config)) for source in config.models)
    audited = count - config.batch_size + 1
    if audited >= config.pages:
        return ""
    batches = f" in batches of {config.batch_size}" if config.batch_size > 1 else ""
    return (
        f"Asked for {config.pages} pages{batches}; {config.documents} has {count} with private fields, so {audited} "
        f"{'is' if audited == 1 else 'are'} audited."
    )


def questions_made(config: GradientConfig, device: str) -> str:
    """A sentence if pages have no question with an answer, for which docleak makes one, else ""."""
    pages = audited_pages(config.models[0], device, config)
    bare = sum(answered_question(page) is None for page in pages)
    if not bare:
        return ""
    return (
        f"{bare} of {len(pages)} pages {'has' if bare == 1 else 'have'} no question with an answer; there the question "
        "that the client trains on was made by docleak, for the first private field."
    )


def inapplicable(model: DocumentModel, attack: str, config: GradientConfig) -> str:
    """Why ``attack`` cannot be made on this model under ``config``; "" where it can."""
    exposure = config.exposure
    if why := stage_fault(model, exposure):
        return why
    if exposure.recover_text and (why := text_obstacle(model, config.batch_size)):
        return f"{why}, which --recover-text asks for"
    if getattr(ATTACKS.load(attack), "recompute", False) and model.architecture != "donut":
        return f"{model.name} is a {model.architecture}, and recompute=yes is for the blocks of a Donut"
    if split_name(attack)[0] != CLOSED_FORM:
        blind = f"{model.name} is a {model.architecture}, which reads words and boxes and no picture"
        return "" if getattr(model, "sees", True) else f"{blind}; closed-form reads its text"
    frozen = getattr(DEFENSES.load(exposure.defense), "frozen", ())
    stages = {model.stage(name) for name, _ in trainable(model.module)} - set(frozen)
    stages &= set(exposure.stages or stages)
    sent = [name for name, _ in trainable(model.module) if model.stage(name) in stages]
    if isinstance(model, VisionLanguage):
        return tower_obstacle(model, sent, config.batch_size)
    return obstacle(model.architecture, model.name, sent, config.batch_size, one_page=False).rstrip(".")


def stage_fault(model: DocumentModel, exposure: Exposure) -> str:
    """Why the model has no parameters of the stages that are to be sent, or frozen, and of which it has; "" where it
    has, and some are left to be sent."""
    of = {model.stage(name) for name, _ in trainable(model.module)}
    there, frozen = [stage for stage in STAGES if stage in of], getattr(DEFENSES.load(exposure.defense), "frozen", ())
    for asked in (exposure.stages, frozen):
        if asked and not of & set(asked):
            return f"{model.name} trains no parameters of {' or '.join(asked)}, only of {', '.join(there)}"
    if not (of & set(exposure.stages or of)) - set(frozen):
        return f"freezing {'+'.join(frozen)} leaves nothing to send of {model.name}, which trains {', '.join(there)}"
    return ""


@lru_cache(maxsize=2)
def _model(source: str, device: str, image_size: tuple[int, int] | None, seed: int, files: Stamps) -> DocumentModel:
    return load_model(source, device=device, image_size=image_size, seed=seed)


@lru_cache(maxsize=2)
def _trained(source: str, device: str, steps: int, pages: TrainingPages, files: Stamps) -> DocumentModel:
    model = deepcopy(_model(source, device, pages.image_size, pages.seed, stamps(source)))
    _fine_tune(model, steps, pages, pages.seed)
    return model


def _fine_tune(model: DocumentModel, steps: int, pages: TrainingPages, seed: int) -> None:
    chosen = pages.first(model, 4 * FINE_TUNING.pages_per_step * steps, seed)
    pretrain(model, chosen, replace(FINE_TUNING, steps=steps), rng=np.random.default_rng(seed))


def model_of(config: GradientConfig, source: str, device: str) -> DocumentModel:
    """The audited model, after the training steps that the config asks for. What its checkpoint does not bring is drawn
    with the config's seed."""
    if not config.fine_tune_steps:
        return _model(source, device, config.image_size, config.seed, stamps(source))
    files = stamps(source, config.documents)
    return _trained(source, device, config.fine_tune_steps, TrainingPages.of(config), files)


def later_models(source: str, device: str, config: GradientConfig) -> tuple[DocumentModel, ...]:
    """The models of the rounds after the first: each the one before it, trained on by others."""
    return _later(source, device, config, stamps(source, config.documents)) if config.rounds > 1 else ()


@lru_cache(maxsize=1)
def _later(source: str, device: str, config: GradientConfig, files: Stamps) -> tuple[DocumentModel, ...]:
    models = [model_of(config, source, device)]
    for number in range(1, config.rounds):
        models.append(deepcopy(models[-1]))
        _fine_tune(models[-1], config.round_steps, TrainingPages.of(config), config.seed + number)
    return tuple(models[1:])


def said_of_training(config: GradientConfig) -> str:
    """What training steps before the attacked gradient, and between rounds, are made on here; "" without any."""
    if not config.fine_tune_steps and config.rounds == 1:
        return ""
    f, pages = FINE_TUNING, TrainingPages.of(config)
    return (
        f"steps before the gradient, and between rounds, are on {f.pages_per_step} pages each, of {pages.said}; "
        f"{f.questions_per_page} questions a page at most, AdamW at {f.learning_rate:g}"
    )


def audited_pages(source: str, device: str, config: GradientConfig) -> tuple[Page, ...]:
    """The pages with private fields that batches are made of, as the model sees them: fewer where there are fewer.
    Copies of a picture are of one document: an interval would count them as several. DocumentError for two different
    ones of one name, which would be counted as one, and for a private field with a place and no value, which whatever
    is read would hold."""
    return _pages(source, device, config, stamps(source, config.documents))


def unchanged(models: Sequence[DocumentModel], what: str) -> AbstractContextManager[None]:
    """OwnAttackError where ``what`` ("attack 'mine'") leaves one of the models as another one, unless the error that it
    ends with says so; all are loaded again then."""
    return left_alone(what, [(model.name, model.module) for model in models], forget=_forget)


def _forget() -> None:
    for loaded in (_model, _trained, _later):
        loaded.cache_clear()


@lru_cache(maxsize=4)
def _pages(source: str, device: str, config: GradientConfig, files: Stamps) -> tuple[Page, ...]:
    model = _model(source, device, config.image_size, config.seed, stamps(source))
    pages = pages_for(model, config.documents, count=config.pages + config.batch_size - 1, seed=config.seed)
    named = {page.name: page for page in pages}
    for page in pages:
        if blank := [field.key for field in page.private_fields if not field.value.strip()]:
            raise DocumentError(
                f"page {page.name!r}: the value of {', '.join(blank)} is empty; expected what the page shows there. "
                "Give it, or leave the field out."
            )
        if not np.array_equal(page.image, named[page.name].image):
            raise DocumentError(
                f"{config.documents!r} has two different pages of the name {page.name!r}; expected a name of its own "
                "for each, by which an audit counts them. Give them different names ('name' in pages.jsonl)."
            )
    first: dict[str, Page] = {}
    alike = [first.setdefault(_picture(page), page) for page in pages]
    both = zip(pages, alike, strict=True)
    return tuple(page if page is one else replace(page, document=one.document or one.name) for page, one in both)


def require_pages(config: GradientConfig, device: str) -> None:
    """DocumentError where a model has fewer pages than one batch needs."""
    for source in config.models:
        count = len(audited_pages(source, device, config))
        if count < config.batch_size:
            raise DocumentError(
                f"{config.documents!r} has {count} pages with private fields, fewer than a batch of "
                f"{config.batch_size}. Lower --batch-size or give more pages."
            )
