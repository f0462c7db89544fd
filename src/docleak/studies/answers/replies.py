"""Replies kept on disk, so that every attack on a model asks each question once, and a killed run goes on.

    FOLDER/MODEL-AND-VIEW/GROUP.jsonl     one line per reply, in files written whole or not at all

A reply belongs to the model's weights and settings, the page's content, the question and its true answer, by hash. The
lines also say in words what was asked, and what came back: keep the folder as you keep the pages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path

import numpy as np

import docleak
from docleak.attacks.answers.asking import AnswersView, Item, Spoken, ask, batches
from docleak.attacks.answers.memorisation import Asker
from docleak.documents.page import Page, Question, Word
from docleak.errors import RunError
from docleak.files import reported, write_atomically
from docleak.models.base import DocumentModel
from docleak.runs.claim import claimed
from docleak.studies.identity import weights_hash

#: (page and question, true answer), both as hexadecimal digests.
Key = tuple[str, str]
#: Attributes of an adapter that do not change its answers.
UNHASHED = ("name", "_layout")
#: Items whose replies are written at once.
GROUP = 64


def remembering(view: AnswersView, folder: Path) -> Asker:
    """``ask`` of this view that looks into ``folder`` first, and writes there after each GROUP of items.

    The model is hashed now: make another asker once its weights have changed. A view of text alone also reads what one
    with scores has left. Of processes that ask the same model one does so at a time, and the others find its replies.
    Raises RunError if a file of the folder is damaged, or nothing can be written there.
    """
    digest = model_digest(view.model)
    home = folder / _place(digest, view.scores, view.dropout_seed)
    known: dict[Key, Spoken] = {}
    if not view.scores:
        known |= {(asked, ""): Spoken(s.text) for (asked, _), s in _saved(folder / _place(digest, True, None), set())}
    files: set[Path] = set()
    known |= _saved(home, files)

    def asker(items: Iterable[Item]) -> list[Spoken]:
        with claimed(home, wait=True):
            known.update(_saved(home, files))
            return answered(items)

    def answered(items: Iterable[Item]) -> list[Spoken]:
        answers: list[Spoken] = []
        for part in batches(items, GROUP):
            keys = [key_of(item, scores=view.scores) for item in part]
            replies = {key: said for key in keys if (said := known.get(key))}
            new = {key: item for key, item in zip(keys, part, strict=True) if key not in replies}
            if new:
                replies.update(zip(new, ask(view, new.values()), strict=True))
                files.add(_write(home, new, replies))
                known.update(replies)
            answers += [replies[key] for key in keys]
        return answers

    return asker


def key_of(item: Item, *, scores: bool) -> Key:
    """Digests of what the model reads, and of what its loss is taken of (nothing, for a view without ``scores``)."""
    page, question = item.page, item.question
    words = [(word.text, [round(float(edge), 4) for edge in word.box]) for word in page.words]
    asked = hashlib.sha256(page.image.tobytes())
    asked.update(json.dumps([page.name, page.image.shape, words, question.text]).encode())
    if not scores:
        return asked.hexdigest(), ""
    fields = [(field.key, field.value, field.words) for field in page.fields]  # where LayoutLMv3 finds the answer
    truth = json.dumps([question.key, question.answers, fields])
    return asked.hexdigest(), hashlib.sha256(truth.encode()).hexdigest()


def model_digest(model: DocumentModel) -> str:
    """Sixteen hexadecimal digits over all that an answer depends on: every weight (frozen ones too), the settings.

    What the tokenizer does is in it through a small page, encoded; this version of docleak as well.
    """
    settings = f"{docleak.__version__} {model.architecture} {model.image_size}"
    digest = hashlib.sha256(f"{settings} {weights_hash(model)}".encode())
    for name, value in sorted(vars(model).items()):
        if name not in UNHASHED and (isinstance(value, str | int | float | tuple) or is_dataclass(value)):
            digest.update(f"{name} {value!r}".encode())
    words = (Word("Total", (2, 2, 20, 10)), Word("12.50", (24, 2, 44, 10)))
    page = Page("digest", np.full((32, 48, 3), 255, np.uint8), words)
    encoded = model.encode(model.fit(page), Question("What is the Total?", ("12.50",)))
    for name, tensor in sorted(encoded.tensors.items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def _place(digest: str, scores: bool, dropout_seed: int | None) -> str:
    dropout = "" if dropout_seed is None or not scores else f"-dropout-{dropout_seed}"
    return f"{digest}-{'scores' if scores else 'text'}{dropout}"


def _saved(home: Path, read: set[Path]) -> Iterator[tuple[Key, Spoken]]:
    """What the files of ``home`` hold that have not been ``read`` yet."""
    for file in sorted(set(home.glob("*.jsonl")) - read):
        read.add(file)
        try:
            for line in file.read_text(encoding="utf-8").split("\n")[:-1]:
                row = json.loads(line)
                yield (row["asked"], row["truth"]), Spoken(row["text"], row["confidence"], row["loss"])
        except (OSError, ValueError, KeyError, TypeError) as fault:
            raise RunError(
                f"{file} cannot be read ({type(fault).__name__}: {fault}). Delete it and run again."
            ) from fault


def _write(home: Path, asked: Mapping[Key, Item], replies: Mapping[Key, Spoken]) -> Path:
    lines = []
    for (page, truth), item in asked.items():
        said = replies[page, truth]
        row = {"asked": page, "truth": truth, "page": item.page.name, "question": item.question.text}
        lines.append(json.dumps({**row, "text": said.text, "confidence": said.confidence, "loss": said.loss}) + "\n")
    content = "".join(lines).encode()
    file = home / f"{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
    with reported(home):
        write_atomically(file, content)
    return file
