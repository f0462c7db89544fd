"""Take one unit away, and look at everything that a silo sends: for ``test_removal``, and as a script.

A case is a federation with data drawn from a seed. The same messages are put to a silo with all its pages and to the
same silo without one unit; coins are the same, and there is no noise, so that what differs is what the unit did.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor, nn

from docleak.documents.folder import INDEX, save
from docleak.documents.names import provider_key
from docleak.documents.page import Page, Question
from docleak.models.base import Answer, Encoded
from docleak.models.stages import Stage
from docleak.privacy.mechanism import Mechanism, Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated import party
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower.app import client_app
from docleak.training.federated.flower.grid import LocalGrid
from docleak.training.federated.flower.messages import array_record, config_record
from docleak.training.federated.local import parameters_of
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.scores import SENSITIVITY

LETTERS = "abcdefgh"
#: A question that no loss can be computed of.
EXPLODES = "nan"


class Tiny(nn.Module):
    """A tied table, a layer, and a frozen one: 96 + 156 numbers that are trained."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Embedding(8, 12)
        self.head = nn.Linear(12, 8, bias=False)
        self.head.weight = self.table.weight
        self.middle = nn.Linear(12, 12)
        self.frozen = nn.Linear(3, 12).requires_grad_(False)
        for p in self.parameters():
            nn.init.normal_(p, generator=generator)


class TinyModel:
    """The least that is a model: answers a question with one of eight letters, from its words and the mean colour."""

    architecture, name = "tiny-letters", "tiny-letters"
    image_size = (4, 4)

    def __init__(self) -> None:
        self.module = Tiny()

    def fit(self, page: Page) -> Page:
        return page

    def encode(self, page: Page, question: Question) -> Encoded:
        letter = LETTERS.find(question.answers[0][:1]) if question.answers else 0
        ids = torch.tensor([ord(c) % 8 for c in question.text])
        return Encoded({"ids": ids, "label": torch.tensor([letter]),
                        "fine": torch.tensor([question.text != EXPLODES])})  # fmt: skip

    def loss(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> Tensor:
        logits = self._logits(pixels, inputs, pages)
        labels = torch.cat([one.tensors["label"] for one in inputs])
        fine = torch.cat([one.tensors["fine"] for one in inputs])
        return torch.where(fine, nn.functional.cross_entropy(logits, labels, reduction="none"), math.nan)

    def answer(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None = None) -> list[Answer]:
        best = self._logits(pixels, inputs, pages).softmax(1).max(1)
        return [Answer(LETTERS[int(i)], float(p)) for p, i in zip(*best, strict=True)]

    def _logits(self, pixels: Tensor, inputs: Sequence[Encoded], pages: Sequence[int] | None) -> Tensor:
        colours = pixels.mean((2, 3))[list(pages) if pages is not None else list(range(len(inputs)))]
        words = torch.stack([self.module.table(one.tensors["ids"]).mean(0) for one in inputs])
        logits: Tensor = self.module.head(torch.tanh(self.module.middle(words) + self.module.frozen(colours)))
        return logits

    def stage(self, parameter_name: str) -> Stage:
        return "text"

    def save(self, directory: str) -> None:
        Path(directory).mkdir(parents=True)


@dataclass(frozen=True)
class Case:
    """A federation, and how its data are drawn. ``faults``: units that cannot be trained on are among them."""

    seed: int
    silos: int
    providers: int
    unit: Unit
    holdout: float
    local: LocalPlan
    clip_norm: float
    denominator: int
    unit_rate: float
    faults: bool

    def federation(self, noise: float = 0.0, **more: Any) -> Federation:
        rate = 1.0 if self.unit is Unit.CLIENT else self.unit_rate
        plan = DpPlan(Mechanism(noise, 2, rate, unit=self.unit), self.clip_norm, self.denominator, 1e-5)
        holdout = 0.0 if self.unit is Unit.CLIENT else self.holdout
        return Federation("tiny", 2, holdout=holdout, seed=self.seed, local=self.local, privacy=plan, **more)

    def pages(self, silo: int) -> list[Page]:
        """What a silo holds: pages of some providers, of several spellings, perhaps with faults; perhaps one only."""
        rng = np.random.default_rng((self.seed, silo))
        made = []
        for number in range(self.providers):
            name = f"Provider {silo}.{number} GmbH"
            for page in range(int(rng.integers(1, 4 - self.providers // 3))):
                spelled = [name, name.upper(), f" {name.lower()}  ", name.replace(" ", "\u00a0\u200b")][rng.integers(4)]
                texts = ["".join(rng.choice(list(LETTERS), 4)) for _ in range(int(rng.integers(1, 3)))]
                questions = [Question(text, (str(rng.choice(list(LETTERS))),)) for text in texts]
                if self.faults and rng.random() < 0.2:
                    questions = [] if rng.random() < 0.5 else [*questions, Question(EXPLODES, ("a",))]
                image = np.broadcast_to(rng.integers(0, 255, 3, dtype=np.uint8), (4, 4, 3)).copy()
                made.append(
                    Page(f"p{silo}-{number}-{page}", image, questions=tuple(questions), provider=spelled,
                         document=f"d{silo}-{number}-{page // 2}")
                )  # fmt: skip
        return [made[i] for i in rng.permutation(len(made))]

    def unit_of(self, row: Mapping[str, Any], silo: str) -> str:
        """The unit that a page belongs to, told apart by the test's own means."""
        if self.unit is Unit.CLIENT:
            return silo
        return str(row["document"]) if self.unit is Unit.DOCUMENT else provider_key(row["provider"])


@dataclass
class Tally:
    """How many units were taken away, and the greatest move of anything over what was accounted for it.

    ``other`` are moves of what nothing was accounted for: counts, words, errors, shapes.
    """

    removals: int = 0
    sums: float = 0.0
    scores: float = 0.0
    other: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return math.inf if self.other else max(self.sums, self.scores)

    def add(self, other: Tally) -> None:
        self.removals += other.removals
        self.sums, self.scores = max(self.sums, other.sums), max(self.scores, other.scores)
        self.other += other.other


def removals(case: Case, folder: Path) -> Tally:
    """Take every unit of every silo away in turn, and compare all that the silo then says."""
    tally, federation = Tally(), case.federation()
    for number in range(case.silos):
        silo = folder / f"silo-{number}"
        save(case.pages(number), silo)
        index = silo / INDEX
        lines = index.read_text(encoding="utf-8").splitlines(keepends=True)
        if case.faults:  # one picture that cannot be read
            broken = np.random.default_rng((case.seed, number, 1)).choice(sorted(silo.glob("*.png")))
            broken.write_bytes(b"no picture")
        owners = [case.unit_of(json.loads(line), silo.name) for line in lines]
        whole = list(said(silo, federation, case))
        for name in sorted(set(owners)):
            left = [line for line, owner in zip(lines, owners, strict=True) if owner != name]
            index.write_text("".join(left), encoding="utf-8")
            tally.removals += 1
            for before, after in zip(whole, said(silo, federation, case), strict=True):
                _compare(tally, case, before, after)
        index.write_text("".join(lines), encoding="utf-8")
    return tally


def said(silo: Path, federation: Federation, case: Case) -> Iterator[Message]:
    """A silo's replies: it is met, trains a round, in some cases two, and is evaluated on what it keeps."""
    numbers = count()
    app = client_app(randomness=lambda: Randomness.seeded(case.seed, next(numbers)))
    grid = LocalGrid(app, {1: {"silo": str(silo), "name": silo.name}})
    for message in _asked(federation, case):
        yield from grid.send_and_receive([message])


@lru_cache(maxsize=1)
def _asked(federation: Federation, case: Case) -> tuple[Message, ...]:
    """What a server sends to a silo of this case, whatever the silo holds; the grid hands copies on."""
    rng = np.random.default_rng(case.seed)
    start = parameters_of(TinyModel())  # type: ignore[arg-type]
    kinds = ["query", "train", *["train"] * (case.seed % 5 == 0), *["evaluate"] * (federation.holdout > 0)]
    told, asked = federation.to_json(), []
    for number, kind in enumerate(kinds):
        content = RecordDict({"config": config_record({"federation": told, "round": number, "clients": case.silos})})
        if kind != "query":
            weights = {k: (v + 0.3 * rng.normal(size=v.shape)).astype(np.float32) for k, v in start.items()}
            content["arrays"] = array_record(weights)
        asked.append(Message(content, 1, kind, group_id=str(number)))
    return tuple(asked)


def _compare(tally: Tally, case: Case, before: Message, after: Message) -> None:
    words = [_words(message) for message in (before, after)]
    if words[0] != words[1]:
        tally.other.append(f"{words[0]} became {words[1]}")
        return
    if before.has_error():
        return
    arrays = [message.content.array_records.get("arrays", {}) for message in (before, after)]
    if {k: v.shape for k, v in arrays[0].items()} != {k: v.shape for k, v in arrays[1].items()}:
        tally.other.append("other arrays")
        return
    moved = [(arrays[0][k].numpy().astype(float) - arrays[1][k].numpy()).ravel() for k in arrays[0]]
    if moved:
        length = float(np.linalg.norm(np.concatenate(moved))) * case.denominator
        tally.sums = max(tally.sums, length / case.clip_norm)
    scores = [_scores(message) for message in (before, after)]
    if scores[0].size:
        tally.scores = max(tally.scores, float(np.linalg.norm(scores[0] - scores[1])) / SENSITIVITY)


#: What may move, and is accounted for.
ACCOUNTED = ("score", "units")


def _words(message: Message) -> object:
    """All of a reply that nothing is accounted for: settings, numbers, the names of arrays, and errors."""
    if message.has_error():
        return ("error", message.error.code, message.error.reason)
    metrics = {f"{name}.{key}": value for name, record in message.content.metric_records.items()
               for key, value in record.items() if key not in ACCOUNTED}  # fmt: skip
    settings = {name: dict(record) for name, record in message.content.config_records.items()}
    return metrics, settings, sorted(message.content.array_records)


def _scores(message: Message) -> np.ndarray:
    metrics = message.content.metric_records.get("metrics", {})
    return np.array([metrics[name] for name in ACCOUNTED if name in metrics], dtype=float)


def random_case(rng: np.random.Generator, **fixed: Any) -> Case:
    """A case by a generator, where hypothesis is not at hand."""
    local = LocalPlan(
        epochs=int(rng.integers(1, 3)), batch_size=int(rng.integers(2, 5)), max_steps=int(rng.integers(0, 3)),
        learning_rate=float(10 ** rng.uniform(-3, 0)), optimiser=str(rng.choice(["adamw", "sgd"])), dropout=False,
    )  # fmt: skip
    case = Case(
        seed=int(rng.integers(2**31)), silos=int(rng.integers(1, 4)), providers=int(rng.choice([1, 2, 2, 2, 3, 5])),
        unit=Unit(rng.choice(["provider", "provider", "document", "client"])),
        holdout=float(rng.choice([0.0, 0.3, 0.6])), local=local, clip_norm=float(10 ** rng.uniform(-3, 1)),
        denominator=int(rng.integers(1, 9)), unit_rate=float(rng.choice([1.0, 0.6])), faults=bool(rng.random() < 0.3),
    )  # fmt: skip
    return replace(case, **fixed)


if __name__ == "__main__":
    import sys
    import tempfile
    import time

    party.load_model = lambda source, **_: TinyModel()  # type: ignore[assignment]
    party._model.cache_clear()
    torch.set_num_threads(1)
    whole, began, generator = Tally(), time.process_time(), np.random.default_rng(0)
    while whole.removals < int((sys.argv[1:] or ["2000"])[0]):
        with tempfile.TemporaryDirectory() as directory:
            whole.add(removals(random_case(generator), Path(directory)))
    print(f"{whole.removals} units taken away in {time.process_time() - began:.0f} s of CPU; greatest move over what "
          f"was accounted: sums {whole.sums:.8f}, scores {whole.scores:.8f}, other {len(whole.other)}")  # fmt: skip
    print("\n".join(whole.other[:3]))
