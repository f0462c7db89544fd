"""One case of a gradient audit: a client, its batch, what the server sees of it, and what is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from docleak.attacks.gradients.view import GradientView, Knowledge, require_all
from docleak.documents import Page, Question, blank_template, load_pages, private_mask
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError, GradientError
from docleak.models import DocumentModel, Encoded, Stage, pixels_of, trainable
from docleak.training.update import client_gradient


@dataclass(frozen=True)
class Case:
    """The evaluator's side holds the truth (pixels, inputs); ``view`` and ``knowledge`` are the adversary's."""

    pages: tuple[Page, ...]  # as the model sees them; the first one is the target
    question: Question
    pixels: Tensor
    inputs: Sequence[Encoded]
    view: GradientView
    knowledge: Knowledge


def pages_for(model: DocumentModel, documents: str, *, count: int, seed: int, allow_pickle: bool = False) -> list[Page]:
    """The first ``count`` pages with private fields, fitted to the model; synthetic ones are made at its size."""
    if documents == "synthetic":
        try:
            source: Sequence[Page] = make_pages(count, seed=seed, size=model.image_size)
            return [model.fit(page) for page in source]
        except DocumentError:  # the model's input is too small for a whole invoice: scale one down
            source = make_pages(count, seed=seed)
            return [model.fit(page) for page in source]
    source = load_pages(documents, seed=seed, allow_pickle=allow_pickle)
    chosen: list[Page] = []
    for page in source:
        if page.private_fields:
            chosen.append(model.fit(page))
        if len(chosen) == count:
            return chosen
    if not chosen:
        raise DocumentError(
            f"none of the {len(source)} pages of {documents!r} has a private field with a place on the page; an audit "
            "needs to know what to look for. Add 'fields' to pages.jsonl (see docs/data-format.md)."
        )
    return chosen


def question_of(page: Page) -> Question:
    """The first question with an answer, or one made from the first private field."""
    for question in page.questions:
        if question.answers and question.answers[0].strip():
            return question
    field = page.private_fields[0]
    return Question(f"What is the {field.key.replace('_', ' ')}?", (field.value,), field.key)


@dataclass(frozen=True)
class Exposure:
    """How the client trained and what of it the server receives and knows."""

    train_mode: bool = False
    stages: tuple[Stage, ...] = ()
    question_known: bool = True
    answer_known: bool = True
    gradient_file: str | None = None


def build_case(model: DocumentModel, pages: Sequence[Page], exposure: Exposure, *, seed: int) -> Case:
    """Let a client compute its gradient on ``pages`` (a batch), and set up the server's view of it."""
    device = next(model.module.parameters()).device
    questions = [question_of(page) for page in pages]
    inputs = [model.encode(page, question) for page, question in zip(pages, questions, strict=True)]
    pixels = torch.stack([pixels_of(page.image, device) for page in pages])
    names = [n for n, _ in trainable(model.module) if not exposure.stages or model.stage(n) in exposure.stages]
    if exposure.gradient_file:
        unsent = {n for n, _ in trainable(model.module)} - set(names)
        recorded = read_gradient(Path(exposure.gradient_file), device)
        gradient = {name: value for name, value in recorded.items() if name not in unsent}
        require_all(model, gradient, unsent)
    else:
        torch.manual_seed(seed)  # dropout masks of a client in training mode
        gradient = client_gradient(model, pixels, inputs, train_mode=exposure.train_mode, names=names)
    view = GradientView(model, gradient, len(pages), exposure.train_mode)
    generator = torch.Generator().manual_seed(seed + 1)
    known = [
        model.scramble(e, question=not exposure.question_known, answer=not exposure.answer_known, generator=generator)
        if not (exposure.question_known and exposure.answer_known)
        else e
        for e in inputs
    ]
    template = torch.stack([pixels_of(blank_template(page), device) for page in pages])
    private = torch.stack([torch.from_numpy(private_mask(page)) for page in pages]).to(device)
    knowledge = Knowledge(template, private, known, exposure.question_known, exposure.answer_known)
    return Case(tuple(pages), questions[0], pixels, inputs, view, knowledge)


def read_gradient(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Named gradient tensors from a safetensors file (no pickles)."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise GradientError(f"there is no gradient file {str(path)!r}; expected a .safetensors file of named tensors.")
    try:
        return {name: value.float().to(device) for name, value in load_file(str(path)).items()}
    except SafetensorError as error:
        raise GradientError(
            f"{str(path)!r} is not a safetensors file ({error}). Save the gradient with safetensors.torch.save_file."
        ) from error
