"""docleak's own attacks as an entry: from the benchmark's files to files of answers, with nothing else to look at."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

from docleak.attacks.answers.asking import nls
from docleak.attacks.answers.attack import AZK, ProvidersView
from docleak.attacks.answers.features import Reply, provider_features
from docleak.attacks.gradients.algebra.bag import bag_of_words
from docleak.attacks.gradients.algebra.first_layer import Sent, recover_words
from docleak.attacks.gradients.algebra.recover import RECOVERABLE, recover
from docleak.attacks.gradients.local_steps import Optimiser
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.attacks.registries import ATTACKS
from docleak.documents.files import to_box
from docleak.documents.page import Word
from docleak.errors import AttackError, RunError
from docleak.files import TEMPORARY, drafted_folder, parse_json, read_json_object, write_json, write_png
from docleak.models import load_model, pixels_of
from docleak.models.base import DocumentModel, Encoded, image_of, trainable
from docleak.models.vlm.model import VisionLanguage
from docleak.studies.benchmark.files import ANSWER, CASES, ENTRY, MODELS, Benchmark
from docleak.studies.benchmark.tracks import encoded_form, form_of, generator_of
from docleak.studies.gradient.case import read_gradient
from docleak.studies.updates.words import tokens_of
from docleak.training.federated.local import set_parameters

#: The floor: it reads no text, draws pixels, and guesses who is a member.
FLOOR = "random"


@dataclass(frozen=True)
class Received:
    """A case of updates as the server has it: the model of the last round, the mean over examples, what is known."""

    model: DocumentModel
    view: GradientView
    knowledge: Knowledge
    rounds: Sequence[Sent]
    optimiser: Optimiser
    steps: int


def enter(
    benchmark: Benchmark, answers: Path, attack: str, *, budget: int, seed: int, commit: str = "",
    on_case: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> dict[str, Any]:  # fmt: skip
    """Answer every case by one of docleak's attacks on gradients, and the releases by AZK; returns entry.json.

    The text is read by algebra first, of all but the floor's. Cases that ``answers`` has already are left as they are;
    RunError where they are of another entry.
    """
    entry = {
        "name": f"docleak {attack}", "version": benchmark.about["version"], "edition": benchmark.edition,
        "about": f"docleak benchmark attack --attack {attack} --budget {budget} --seed {seed}", "commit": commit,
    }  # fmt: skip
    if answers.is_dir() and any(not path.name.startswith(TEMPORARY) for path in answers.iterdir()):
        there = read_json_object(answers / ENTRY, error=RunError, advice="Pass a new folder.")
        if {**there, "commit": commit} != entry:
            raise RunError(
                f"{answers} holds answers of {there.get('about')!r}, edition {there.get('edition')}; pass a new folder "
                "or one of this attack, budget, seed and edition to go on with."
            )
    write_json(answers / ENTRY, entry)
    for done, (name, case) in enumerate(benchmark.cases.items()):
        on_case(done, len(benchmark.cases), name)
        if (answers / name / ANSWER).is_file():
            continue
        started = time.perf_counter()
        answered = _members if case["sent"] == "answers" else _read
        said, pictures = answered(benchmark.folder, name, case, attack, budget, seed)
        with drafted_folder(answers / name) as draft:
            for number, pixels in enumerate(pictures):
                write_png(draft / f"page-{number}.png", image_of(pixels))
            write_json(draft / ANSWER, {**said, "seconds": round(time.perf_counter() - started, 2)})
    return entry


def receive(folder: Path, case: Mapping[str, Any]) -> Received:
    """What an attack on gradients takes, of one case's files and its model."""
    place, model = folder / CASES / str(case["name"]), load_model(str(folder / MODELS / str(case["model"])))
    templates, masks, encoded = list[Tensor](), list[Tensor](), list[Encoded]()
    for page in case["pages"]:
        template, mask = (np.asarray(Pillow.open(place / page[one]).convert("RGB")) for one in ("template", "private"))
        words = [Word(word["text"], to_box(word["box"])) for word in page["words"]]
        encoded.append(encoded_form(model, form_of(template, words)))
        templates.append(pixels_of(template))
        masks.append(torch.from_numpy(mask[:, :, 0] > 0))
    knowledge = Knowledge(torch.stack(templates), torch.stack(masks), encoded, False, False, False)
    optimiser = Optimiser("sgd", float(case["learning_rate"]) or 1.0)
    rounds = []
    for files in case["rounds"]:
        update = read_gradient(place / files["update"])
        if "start" in files:
            set_parameters(model, {n: v.numpy() for n, v in read_gradient(place / files["start"]).items()})
        start = {name: p.detach().clone() for name, p in trainable(model.module)}
        if case["sent"] == "delta":
            rounds.append(Sent.of(update, start, optimiser, case["steps"]))
            update = optimiser.as_gradient(update, start, case["steps"])
        else:
            update = {name: value / case["clients"] for name, value in update.items()}
            rounds.append(Sent(update, dict.fromkeys(update, float(case["noise"]) / case["clients"])))
    view = GradientView(model, update, len(case["pages"]), noise=float(case["noise"]) / case["clients"])
    return Received(model, view, knowledge, rounds, optimiser, int(case["steps"]))


def _read(
    folder: Path, name: str, case: Mapping[str, Any], attack: str, budget: int, seed: int
) -> tuple[dict[str, Any], Sequence[Tensor]]:
    """Text by algebra, then the pixels by the attack; a case that it cannot take is answered by what was read."""
    got = receive(folder, {**case, "name": name})
    said: dict[str, Any] = {}
    knowledge = got.knowledge
    if attack != FLOOR:
        said, knowledge = _text(got)
    if attack != FLOOR and (case["sent"] == "delta" or len(case["pages"]) > 1):
        return _noted(said, "no picture: of several steps or pages, docleak's entry reads words alone"), ()
    try:
        run = ATTACKS.load(attack).run
        finding = run(got.view, knowledge, budget=budget, generator=generator_of(seed, "attack", name))
    except AttackError as fault:
        return _noted(said, str(fault)), ()
    return said, list(finding.pixels)


def _noted(said: Mapping[str, Any], note: str) -> dict[str, Any]:
    return {**said, "notes": [*said.get("notes", ()), note]}


def _text(got: Received) -> tuple[dict[str, Any], Knowledge]:
    """What linear algebra reads, as an answer, and the knowledge that comes of it."""
    model, notes = got.model, list[str]()
    if len(got.knowledge.inputs) == 1 and model.architecture in RECOVERABLE:
        try:
            recovered = recover(got.view, got.knowledge)
            example, read = recovered.inputs[0], model.transcript(recovered.inputs[0])
            words = [{"text": w.text, "box": [round(float(edge), 2) for edge in w.box], "page": 0} for w in read.words]
            said = {"tokens": sorted(tokens_of(model, example)), "words": words, "answer": read.answer}
            return said, replace(got.knowledge, inputs=recovered.inputs, text_recovered=True)
        except AttackError as fault:
            notes.append(str(fault))
    try:
        if isinstance(model, VisionLanguage):
            tokens = recover_words(model, got.rounds).tokens
        else:
            tokens = bag_of_words(model, got.view.gradient, optimiser=got.optimiser, steps=got.steps).tokens
        return {"tokens": sorted(tokens), "notes": notes}, got.knowledge
    except AttackError as fault:
        return {"notes": [*notes, str(fault)]}, got.knowledge


def _members(
    folder: Path, name: str, case: Mapping[str, Any], attack: str, budget: int, seed: int
) -> tuple[dict[str, Any], Sequence[Tensor]]:
    """A score for each provider: AZK's, or drawn for the floor."""
    if attack == FLOOR:
        drawn = torch.rand(len(case["providers"]), generator=generator_of(seed, "attack", name)).tolist()
        return {"scores": dict(zip(case["providers"], drawn, strict=True))}, ()
    lines = (folder / CASES / name / case["replies"]).read_text(encoding="utf-8").splitlines()
    replies = []
    for line in lines:
        row = parse_json(line)
        right = row["text"].lower().strip() in [answer.lower().strip() for answer in row["answers"]]
        said = nls(row["text"], row["answers"])
        replies.append(Reply(row["provider"], row["document"], row["key"], float(right), said, None, row["confidence"]))
    table = provider_features(replies)
    guess = AZK.run(ProvidersView(table, table.providers), {}, seed=seed)
    return {"scores": dict(zip(guess.providers, guess.scores.tolist(), strict=True))}, ()
