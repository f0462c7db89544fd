"""One case of a gradient audit: a client, its batch, what the server sees of it, and what is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.recover import recover
from docleak.attacks.gradients.algebra.recovered import Recovered
from docleak.attacks.gradients.cleaning import without_perturbation
from docleak.attacks.gradients.engine import inference_mode_of
from docleak.attacks.gradients.matching import distance_at
from docleak.attacks.gradients.view import GradientView, Knowledge, require_all
from docleak.defenses import DEFENSES, GradientDefense, TemplateDefense
from docleak.defenses.defense import announced_noise, imitated, protected, published
from docleak.documents import Page, Question, blank_template, load_pages, private_mask, repeats_of
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError, GradientError
from docleak.models import DocumentModel, Encoded, pixels_of, trainable
from docleak.models.base import device_of
from docleak.spec import counted_words
from docleak.studies.gradient.config import Exposure
from docleak.training.taps.weights import names_in
from docleak.training.update import client_gradient


@dataclass(frozen=True)
class Case:
    """The evaluator's side holds the truth (pixels, inputs); ``view`` and ``knowledge`` are the adversary's."""

    pages: tuple[Page, ...]  # as the model sees them; the first one is the target
    question: Question
    pixels: Tensor
    inputs: Sequence[Encoded]
    clean: GradientView  # what the client computed, before any defence; the self-test is about this one
    view: GradientView
    knowledge: Knowledge
    recovered: Recovered | None = None

    @property
    def answered(self) -> bool:
        """Whether the answer is in what the client trained on: a LayoutLMv3 marks none that it does not find."""
        return bool(self.view.model.transcript(self.inputs[0]).answer)


def pages_for(model: DocumentModel, documents: str, *, count: int, seed: int) -> list[Page]:
    """The first ``count`` pages with private fields, fitted to the model; synthetic ones are made at its size."""
    if documents == "synthetic":
        try:
            source: Sequence[Page] = make_pages(count, seed=seed, size=model.image_size)
            return [model.fit(page) for page in source]
        except DocumentError:  # the model's input is too small for a whole invoice: scale one down
            source = make_pages(count, seed=seed)
            return [model.fit(page) for page in source]
    source = load_pages(documents, seed=seed)
    chosen: list[Page] = []
    for page in source:
        if page.private_fields:
            chosen.append(model.fit(page))
        if len(chosen) == count:
            return chosen
    if not chosen:
        raise DocumentError(
            f"none of {counted_words(len(source), 'page')} of {documents!r} has a private field with a "
            "place on the page; an audit "
            "needs to know what to look for. Mark them by mouse (docleak data mark FOLDER), or add 'fields' to "
            "pages.jsonl (docs/data-format.md)."
        )
    return chosen


def answered_question(page: Page) -> Question | None:
    """The first question with an answer."""
    return next((q for q in page.questions if q.answers and q.answers[0].strip()), None)


def question_of(page: Page) -> Question:
    """The first question with an answer, or one made from the first private field."""
    if question := answered_question(page):
        return question
    field = page.private_fields[0]
    return Question(f"What is the {field.key.replace('_', ' ')}?", (field.value,), field.key)


def build_case(
    model: DocumentModel, pages: Sequence[Page], exposure: Exposure, *, seed: int, later: Sequence[DocumentModel] = ()
) -> Case:
    """Let a client compute its gradient on ``pages`` (a batch), and set up the server's view of it.

    ``later`` are the models of later rounds, in which the client computes a gradient of the same batch again.
    """
    questions = [question_of(page) for page in pages]
    inputs = [model.encode(page, question) for page, question in zip(pages, questions, strict=True)]
    generator = torch.Generator().manual_seed(seed + 1)
    if exposure.random_text:
        inputs = [model.scramble(e, question=True, answer=True, generator=generator) for e in inputs]
    pixels = torch.stack([pixels_of(page.image, device_of(model)) for page in pages])
    rounded = rounding_of(Path(exposure.gradient_file)) if exposure.gradient_file else 0.0
    rounds = [
        GradientView(m, _gradient(m, pixels, inputs, exposure, seed), len(pages), exposure.train_mode, slack=rounded)
        for m in (model, *later)
    ]
    defense = DEFENSES.load(exposure.defense)
    drawn = torch.Generator().manual_seed(seed + 2)
    sent = [_defended(r, defense, drawn) if isinstance(defense, GradientDefense) else r for r in rounds]
    clean, view = (replace(first, later=tuple(others)) for first, *others in (rounds, sent))
    knowledge = _knowledge(model, pages, inputs, exposure, generator)
    if isinstance(defense, TemplateDefense):
        blank = [model.encode(blank_page(page), MADE_UP) for page in pages]
        drawn = torch.Generator().manual_seed(seed + 2)
        knowledge = replace(knowledge, template=published(defense, model, knowledge, blank, generator=drawn))
    if exposure.clean_template:
        knowledge = replace(knowledge, template=without_perturbation(knowledge.template))
    recovered = None
    if exposure.recover_text:
        recovered = recover(view, knowledge)
        knowledge = replace(knowledge, inputs=recovered.inputs, text_recovered=True)
    return Case(tuple(pages), questions[0], pixels, inputs, clean, view, knowledge, recovered)


#: The share that counts as all of a gradient.
WHOLE = 0.99


def of_truth(case: Case) -> dict[str, float]:
    """Of a defended gradient the share that the true page and text explain, as an attack's is counted, where that is
    not all of it, and the noise that the defence announces: noise explains itself to nobody, announced or not."""
    view, knows = case.view.largest, case.knowledge
    if view.gradient is case.clean.largest.gradient:
        return {}
    with inference_mode_of(case.view):
        blank = distance_at(view, knows.template, knows.inputs)
        share = 1 - distance_at(view, case.pixels, case.inputs) / blank if blank > 0 else 0.0
    return {"of_truth": share, "noise": view.noise} if share < WHOLE else {}


def _defended(view: GradientView, defense: GradientDefense, generator: torch.Generator) -> GradientView:
    sent = protected(defense, view.gradient, view.model, generator=generator)
    noise = announced_noise(defense, view.gradient, view.model)
    return replace(view, gradient=sent, imitate=partial(imitated, defense), noise=noise)


#: What the owner of a template asks it; nothing of any client is in it.
MADE_UP = Question("What is written here?", ("nothing",))


def blank_page(page: Page) -> Page:
    """The page as its template's owner has it: blank, and without the words of private fields."""
    private = {index for field in (*page.private_fields, *repeats_of(page)) for index in field.words}
    words = tuple(word for index, word in enumerate(page.words) if index not in private)
    return replace(page, image=blank_template(page), words=words, fields=(), questions=())


def _gradient(
    model: DocumentModel, pixels: Tensor, inputs: Sequence[Encoded], exposure: Exposure, seed: int
) -> dict[str, Tensor]:
    names = [n for n, _ in trainable(model.module) if not exposure.stages or model.stage(n) in exposure.stages]
    if not exposure.gradient_file:
        torch.manual_seed(seed)  # dropout masks of a client in training mode
        return client_gradient(model, pixels, inputs, train_mode=exposure.train_mode, names=names)
    unsent = {n for n, _ in trainable(model.module)} - set(names)
    recorded = read_gradient(Path(exposure.gradient_file), device_of(model))
    names_of = names_in(model.module, {name: tuple(value.shape) for name, value in recorded.items()}, recorded)
    gradient = {known: value for name, value in recorded.items() if (known := names_of.get(name, name)) not in unsent}
    if missing := set(names) - gradient.keys():  # torch leaves no gradient where the loss does not reach
        reached = client_gradient(model, pixels, inputs, names=missing)
        gradient |= {name: value for name, value in reached.items() if not bool(value.any())}
    require_all(model, gradient, unsent)
    return gradient


def _knowledge(
    model: DocumentModel,
    pages: Sequence[Page],
    inputs: Sequence[Encoded],
    exposure: Exposure,
    generator: torch.Generator,
) -> Knowledge:
    question, answer = exposure.question_known, exposure.answer_known
    known = [
        e if question and answer else model.scramble(e, question=not question, answer=not answer, generator=generator)
        for e in inputs
    ]
    template = torch.stack([pixels_of(blank_template(page), device_of(model)) for page in pages])
    private = torch.stack([torch.from_numpy(private_mask(page)) for page in pages]).to(device_of(model))
    return Knowledge(template, private, known, question, answer)


def read_gradient(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Named gradient tensors from a safetensors file (no pickles)."""
    return {name: value.float().to(device) for name, value in _stored(path).items()}


def rounding_of(path: Path) -> float:
    """How far, by the squared share of a number, rounding to the file's coarsest floats moves it: 5e-6 of bfloat16."""
    kinds = {value.dtype for value in _stored(path).values() if value.is_floating_point()}
    return max((torch.finfo(kind).eps ** 2 / 12 for kind in kinds), default=0.0)


def _stored(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise GradientError(f"there is no gradient file {str(path)!r}; expected a .safetensors file of named tensors.")
    try:
        return dict(load_file(str(path)))
    except SafetensorError as error:
        raise GradientError(
            f"{str(path)!r} is not a safetensors file ({error}). Save the gradient with safetensors.torch.save_file."
        ) from error
