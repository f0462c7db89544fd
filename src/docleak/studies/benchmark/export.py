"""Make the benchmark: a folder for attackers, and a folder with the key that only the scorer may see."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from docleak.attacks.answers.asking import AnswersView, Item, ask
from docleak.documents import Page
from docleak.documents.files import require_new
from docleak.documents.folder import save
from docleak.errors import ModelError, RunError
from docleak.files import drafted_folder, read_json_object, reported, write_atomically, write_json, write_png
from docleak.models import load_model, pixels_of
from docleak.models.base import DocumentModel, trainable
from docleak.models.lora import ADAPTER, Lora, adapt, load_peft
from docleak.models.shipped import CHECKPOINTS
from docleak.studies.benchmark.files import ABOUT, CASE, CASES, KEY, MODELS, edition_of, seal
from docleak.studies.benchmark.tracks import (
    ADAPTERS_SEED,
    TRACKS,
    VERSION,
    Track,
    drawn,
    form_of,
    generator_of,
    pages_behind,
    public_side,
    public_tokens,
    release_behind,
    secret_tokens,
)
from docleak.training.federated.local import train_in_place, train_locally
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.update import client_gradient

#: Linear layers that carry the adapters.
TARGETS = ("q_proj", "k_proj", "v_proj")


def export(
    folder: Path, key: Path, *, seed: int, public: bool, tracks: Sequence[Track] = TRACKS,
    on_case: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> dict[str, Any]:  # fmt: skip
    """Write ``folder`` for attackers and ``key`` for the scorer, each whole or not at all; returns benchmark.json.

    With ``public`` the seed stands in both, so that everybody can make the key; else in the key alone. ``on_case`` is
    told of cases and of a release's epochs, which take longest. Raises DocumentError where one of the folders is not
    new, RunError where one lies in the other, and ModelError where adapters are asked for without peft.
    """
    if folder.resolve().is_relative_to(key.resolve()) or key.resolve().is_relative_to(folder.resolve()):
        raise RunError(f"the key's folder is {key}, the benchmark's {folder}; expected two apart. Name another --key.")
    require_new(folder, "benchmarks")
    require_new(key, "keys of a benchmark")
    if any(track.rank for track in tracks):
        load_peft()
    names = [name for track in tracks for name in track.names()]
    done, total = 0, sum(len(track.names()) * (1 + track.trained) for track in tracks)
    truth: dict[str, dict[str, Any]] = {}
    pages: list[Page] = []
    with reported(folder), drafted_folder(folder) as draft:
        exact = {"tracks": repr(tracks).encode()}
        for track in tracks:
            source = _model_of(track, draft / MODELS)
            for case in track.names():
                on_case(done, total, case)
                write = _answers if track.sent == "answers" else _updates
                steps = partial(_epoch, on_case, done, total, f"{case}, epoch", track.epochs)
                truth[case], behind, pixels = write(draft / CASES / case, track, case, source, seed, steps)
                done += 1 + track.trained
                exact |= pixels
                pages += behind
        about = {
            "version": VERSION,
            "edition": edition_of(draft, exact),
            "seed": seed if public else None,
            "tracks": {track.name: track.about for track in tracks},
            "cases": names,
        }
        write_json(draft / ABOUT, about)
        seal(draft)
        told = {"version": VERSION, "edition": about["edition"], "seed": str(seed), "cases": truth}
        save(pages, key, also=lambda place: write_json(place / KEY, told))
    return about


def _epoch(
    on_case: Callable[[int, int, str], None], done: int, total: int, label: str, epochs: int, seen: int, count: int
) -> None:
    """Tell of an epoch when its last example was seen."""
    if seen % count == 0:
        on_case(done + seen // count, total, f"{label} {seen // count} of {epochs}")


def _model_of(track: Track, models: Path) -> str:
    """Put the track's model beside the others, if it is not there; returns what to load."""
    if track.sent == "answers":
        return track.model  # the released model is what is not given
    if not (models / track.model).exists():
        shutil.copytree(CHECKPOINTS / track.model, models / track.model)
    if not track.rank:
        return str(models / track.model)
    adapters = models / f"{track.model}-lora"
    if not adapters.exists():
        adapt(str(models / track.model), adapters, Lora(track.rank, 2 * track.rank, TARGETS), seed=ADAPTERS_SEED)
        told = read_json_object(adapters / ADAPTER, error=ModelError, advice="")
        write_json(adapters / ADAPTER, {**told, "base_model_name_or_path": track.model})  # no path of this machine
        (adapters / "docleak.json").unlink()
    return str(adapters)


def _updates(
    place: Path, track: Track, case: str, source: str, seed: int, on_examples: Callable[[int, int], None]
) -> tuple[dict[str, Any], list[Page], dict[str, bytes]]:
    """Write one case of updates; returns its truth, pages, and the pixels that everybody may see."""
    model = load_model(source)
    pages = pages_behind(model, track, case, seed)
    shown, forms, exact = list[dict[str, Any]](), list[Page](), dict[str, bytes]()
    for number, page in enumerate(pages):
        template, mask, words = public_side(page)
        names = f"template-{number}.png", f"private-{number}.png"
        for name, picture in zip(names, (template, mask), strict=True):
            write_png(place / name, picture)
            exact[f"{case}/{name}"] = picture.tobytes()
        shown.append({"template": names[0], "private": names[1], "words": [asdict(word) for word in words]})
        forms.append(form_of(template, words))
    public = public_tokens(model, forms)
    secret = secret_tokens(model, pages, public)
    rounds = []
    for number, (start, update) in enumerate(_sent(model, track, pages, case, seed)):
        files = {"update": f"update-{number}.safetensors"}
        _save(place / files["update"], update)
        if track.rounds > 1:
            files["start"] = f"start-{number}.safetensors"
            _save(place / files["start"], start)
        rounds.append(files)
    write_json(place / CASE, {
        "track": track.name, "sent": track.sent, "model": Path(source).name, "clients": track.clients,
        "steps": track.steps, "optimiser": "sgd", "learning_rate": track.learning_rate, "noise": track.noise,
        "rounds": rounds, "pages": shown, "public_tokens": sorted(public),
    })  # fmt: skip
    return {"pages": [page.name for page in pages], "tokens": sorted(secret)}, pages, exact


def _sent(
    model: DocumentModel, track: Track, pages: Sequence[Page], case: str, seed: int
) -> Iterable[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """(the trainable weights before, what the server receives) of each round."""
    inputs = [model.encode(page, page.questions[0]) for page in pages]
    pixels = torch.stack([pixels_of(page.image) for page in pages])
    noise = generator_of(seed, case, "noise")
    order = np.random.default_rng(drawn(seed, case, "order"))
    plan = LocalPlan(epochs=track.steps, batch_size=1, learning_rate=track.learning_rate, weight_decay=0.0,
                     optimiser="sgd", max_steps=track.steps, dropout=False)  # fmt: skip
    for _ in range(track.rounds):
        start = {name: p.detach().clone().contiguous() for name, p in trainable(model.module)}
        if track.sent == "gradient":
            update = client_gradient(model, pixels, inputs)  # of the mean
            update = {name: track.clients * value for name, value in update.items()}
        else:
            moved = train_locally(model, pages, plan, client="client", rng=order).update.delta
            update = {name: torch.from_numpy(value) for name, value in moved.items()}
        if track.noise:
            update = {
                name: value + track.noise * torch.randn(value.shape, generator=noise) for name, value in update.items()
            }
        yield start, update


def _save(file: Path, tensors: dict[str, Tensor]) -> None:
    save_file({name: value.contiguous() for name, value in tensors.items()}, str(file))


def _answers(
    place: Path, track: Track, case: str, source: str, seed: int, on_examples: Callable[[int, int], None]
) -> tuple[dict[str, Any], list[Page], dict[str, bytes]]:
    """Train the released model, and write what it answers about pages that nobody trained on."""
    release, model = release_behind(track, case, seed), load_model(source)
    plan = LocalPlan(epochs=track.epochs, batch_size=16, learning_rate=1e-3, optimiser="adamw")
    train_in_place(
        model, release.trained, plan, client="release", rng=np.random.default_rng(drawn(seed, case, "order")),
        on_examples=on_examples,
    )  # fmt: skip
    items = [Item(page, question) for page in release.asked for question in page.questions]
    lines = [
        json.dumps({
            "provider": item.page.provider, "document": item.page.name.rsplit("-", 1)[-1], "key": item.question.key,
            "question": item.question.text, "answers": list(item.question.answers), "text": said.text,
            "confidence": said.confidence,
        }, ensure_ascii=False)
        for item, said in zip(items, ask(AnswersView(model, scores=True), items), strict=True)
    ]  # fmt: skip
    write_atomically(place / "replies.jsonl", "".join(f"{line}\n" for line in lines).encode())
    write_json(place / CASE, {
        "track": track.name, "sent": track.sent, "replies": "replies.jsonl", "providers": sorted(release.members),
    })  # fmt: skip
    return {"members": release.members}, list(release.trained), {}
