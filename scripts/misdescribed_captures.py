"""Captures of a Flower app that is not ours, described wrongly: what the audit says of each.

    python scripts/misdescribed_captures.py [--optimiser sgd|adamw] [--out docs/results/updates.md]

A ServerApp's strategy with ``docleak.tap`` and a ClientApp that trains ``transformers``' own
LayoutLMv3ForQuestionAnswering on made-up receipts; Flower's messages are handed over in this process. Each capture is
audited with a description that is true, and with one that is not.
tests/studies/updates/test_misdescribed.py runs the same.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import peft
import PIL.Image
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import FedAvg
from PIL import ImageDraw, ImageFont

import docleak
from docleak.documents import Field, Page, Question, Word, load_pages
from docleak.documents.folder import save
from docleak.models import load_model
from docleak.models.layoutlmv3 import LayoutLMv3
from docleak.models.start import spread
from docleak.models.tiny import byte_pair_tokenizer
from docleak.training.federated.flower.grid import LocalGrid

SIDE = 96
SHOPS = ("Aldi Sued", "Rewe Markt", "Edeka Nord", "Spar Express", "Lidl Mitte", "Penny West")
ITEMS = ("bread", "milk", "coffee", "apples", "cheese", "paper", "soap", "juice", "butter", "rice")
CLIENTS = (7, 8)
#: How the app trains where a case says nothing else, and how it is then described.
BASE: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "lr": 0.05, "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01},
}


@dataclass(frozen=True)
class Case:
    """What the client really did (``client``), what the audit is told (``local``), and what is sent on the way."""

    name: str
    client: Mapping[str, Any] = field(default_factory=dict)
    local: str = ""
    swapped: bool = False  # the folders of the two clients' pages are exchanged
    other_pages: bool = False  # the pages are nobody's
    cause: str = ""  # its key among the causes; "" is a true description


#: What differs from BASE in ``client`` is not told, what stands in ``local`` is not true.
CASES = (
    Case("rate", local="lr=0.02", cause="learning rate"),
    Case("optimiser", local="optimiser=OTHER", cause="optimiser"),
    Case("decay", local="weight_decay=0.1", cause="weight decay"),
    Case("pages", other_pages=True, cause="pages"),
    Case("order", client={"order": "reversed"}, cause="order"),
    Case("dropout", client={"dropout": True}, local="dropout=no", cause="dropout"),
    Case("padding", client={"padding": "max_length"}, cause="padding"),
    Case("padding, rate", client={"padding": "max_length"}, local="lr=0.02", cause="padding"),
    Case("fp16", client={"half": True}, cause="precision"),
    Case("clipped", client={"clip": True}, cause="clipping"),
    Case("noised", client={"noise": True}, cause="noise"),
    Case("partial", client={"only": ("qa_outputs", "encoder.layer.1", "patch_embed")}, cause="partial"),
    Case("merged LoRA", client={"adapters": 2}, cause="adapters"),
    Case("swapped", swapped=True, cause="other client"),
)
#: True descriptions, of the same app under the settings that the cases change.
CONTROLS = (
    Case("as described"),
    Case("padding, told", client={"padding": "max_length"}, local="padding=max_length"),
    Case("batch of two", client={"batch_size": 2}, local="batch_size=2"),
)


def receipt(number: int, rng: np.random.Generator) -> Page:
    """A receipt of 96 x 96 pixels: shop, two items, total and a date, of which three are private."""
    picture = PIL.Image.new("RGB", (SIDE, SIDE), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(10)
    total, day = f"{rng.integers(10, 99)}.{rng.integers(10, 99)}", f"{rng.integers(1, 28)}.{rng.integers(1, 12)}.2026"
    lines = [SHOPS[rng.integers(len(SHOPS))], *(f"{ITEMS[i]} {rng.integers(1, 9)}" for i in rng.choice(len(ITEMS), 2))]
    lines += [f"Total {total}", f"Date {day}"]
    words: list[Word] = []
    owners: list[list[int]] = []
    for row, line in enumerate(lines):
        x = 4.0
        owners.append([])
        for text in line.split():
            width = float(pen.textlength(text, font=font))
            pen.text((x, 4 + 17 * row), text, fill="black", font=font)
            owners[-1].append(len(words))
            words.append(Word(text, (x, 4 + 17 * row, min(SIDE - 1.0, x + width), 17 + 17 * row)))
            x += width + 4
    fields = (
        Field("shop", lines[0], tuple(owners[0])), Field("total", total, (owners[3][1],)),
        Field("date", day, (owners[4][1],)),
    )  # fmt: skip
    asked = (Question("What is the total?", (total,), "total"), Question("Which day was it on?", (day,), "date"))
    return Page(f"receipt-{number}", np.asarray(picture), tuple(words), fields, (asked[number % 2],))


def receipts(seed: int, count: int = 2) -> list[Page]:
    """Of one client, one question each."""
    rng = np.random.default_rng(seed)
    return [receipt(10 * seed + number, rng) for number in range(count)]


def write_model(folder: Path) -> Path:
    """A LayoutLMv3 of 0.1 M parameters with the vocabulary of the receipts, as ``save_pretrained`` writes it."""
    import transformers as t

    texts = [" ".join(word.text for word in page.words) for seed in range(200, 230) for page in receipts(seed)]
    texts += [question.text for page in receipts(0) for question in page.questions]
    tokenizer = byte_pair_tokenizer(texts * 2, vocabulary=420)
    config = t.LayoutLMv3Config(
        vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=66, coordinate_size=8, shape_size=8, input_size=SIDE, patch_size=16,
        max_2d_position_embeddings=1024, num_labels=2, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        attn_implementation="eager",
    )  # fmt: skip
    module: Any = t.LayoutLMv3ForQuestionAnswering(config)
    spread(module, generator=torch.Generator().manual_seed(0))
    LayoutLMv3(module.eval(), tokenizer, name="receipts").save(str(folder))
    return folder


def batch_of(tokenizer: Any, pages: Sequence[Page], padding: Any) -> dict[str, torch.Tensor]:
    """What the app gives its model: the tokenizer's own padding, pixels in [-1, 1]."""
    boxes = [[[int(v * 1000 / SIDE) for v in word.box] for word in page.words] for page in pages]
    out = tokenizer(
        [page.questions[0].text for page in pages], [[word.text for word in page.words] for page in pages],
        boxes=boxes, padding=padding, max_length=64, truncation="only_second", return_tensors="pt",
    )  # fmt: skip
    spans = []
    for row, page in enumerate(pages):
        owned = next(f.words for f in page.fields if f.key == page.questions[0].key)
        places = zip(out.word_ids(row), out.sequence_ids(row), strict=True)
        tokens = [i for i, (word, part) in enumerate(places) if part == 1 and word in owned]
        spans.append((tokens[0], tokens[-1]))
    pixels = torch.stack([torch.from_numpy(np.array(page.image)).permute(2, 0, 1) / 255.0 for page in pages])
    first, last = (torch.tensor(values) for values in zip(*spans, strict=True))
    return {**out, "pixel_values": (pixels - 0.5) / 0.5, "start_positions": first, "end_positions": last}


def client_app(model_folder: Path, folder: Path, case: Case, told: Mapping[str, Any]) -> ClientApp:
    """A client of somebody else: ``transformers``, torch's optimisers, a loop over its pages."""
    from transformers import AutoTokenizer, LayoutLMv3ForQuestionAnswering

    did = {"order": "", "dropout": False, "padding": True, "half": False, "only": (), "batch_size": 1, **case.client}
    mods = [LocalDpMod(1e6, 1e-4, 1.0, 0.1)] if did.get("noise") else []
    app = ClientApp(mods=[*mods, *([fixedclipping_mod] if did.get("clip") else [])])
    tokenizer = AutoTokenizer.from_pretrained(str(model_folder))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.manual_seed(11)
        model = LayoutLMv3ForQuestionAnswering.from_pretrained(str(model_folder))
        arrays = message.content["arrays"]
        model.load_state_dict({n: torch.from_numpy(a.numpy()) for n, a in arrays.items()}, strict=False)
        if rank := did.get("adapters"):
            model = peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=["query", "value"]))
        model.train(did["dropout"])
        kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[str(told["optimizer"])]
        steps = kind(model.parameters(), lr=float(told["lr"]), weight_decay=float(told["weight_decay"]))
        pages = list(load_pages(f"folder:{folder / 'pages' / str(context.node_id)}", seed=0))
        pages = pages[::-1] if did["order"] == "reversed" else pages
        for at in range(0, len(pages), did["batch_size"]):
            loss = model(**batch_of(tokenizer, pages[at : at + did["batch_size"]], did["padding"])).loss
            steps.zero_grad()
            loss.backward()
            steps.step()
        named = dict((model.merge_and_unload() if did.get("adapters") else model).named_parameters())
        kept = {n: v for n, v in named.items() if not did["only"] or any(part in n for part in did["only"])}
        values = {n: (v.half() if did["half"] else v).detach().numpy() for n, v in kept.items()}
        content = RecordDict({
            "arrays": ArrayRecord({name: Array(value) for name, value in values.items()}),
            "metrics": MetricRecord({"num-examples": len(pages)}),
        })  # fmt: skip
        return Message(content, reply_to=message)

    return app


def capture(folder: Path, model_folder: Path, case: Case, optimiser: str) -> Path:
    """One round of the two clients, recorded by the tap; the folder of pages that the audit is given."""
    told = BASE[optimiser]
    for number, client in enumerate(CLIENTS):
        save(receipts(number + 1), folder / "pages" / str(client))
        given = 50 + number if case.other_pages else 2 - number if case.swapped else number + 1
        save(receipts(given), folder / "given" / str(client))
    config = ConfigRecord({**told, "batch_size": case.client.get("batch_size", 1), "clipping_norm": 0.05})
    strategy = docleak.tap(FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2), folder / "updates")
    start = {name: p.detach().numpy() for name, p in load_model(str(model_folder)).module.named_parameters()}  # type: ignore[union-attr]
    app = client_app(model_folder, folder, case, told)
    strategy.start(
        LocalGrid(app, {client: {} for client in CLIENTS}),
        ArrayRecord({name: Array(value) for name, value in start.items()}),
        num_rounds=1, train_config=config,
    )  # fmt: skip
    return folder / "updates"


def local_of(case: Case, optimiser: str) -> str:
    """What --local says of the case."""
    other = {"sgd": "adamw", "adamw": "sgd"}[optimiser]
    rate = {"sgd": "lr=0.02", "adamw": "lr=2e-4"}[optimiser]
    said = case.local.replace("OTHER", other).replace("lr=0.02", rate)
    return ",".join(filter(None, ("" if "dropout" in said or case.client.get("dropout") else "dropout=no", said)))


class NothingRead:
    """An OCR engine that reads nothing, so that what is counted as read came out as words."""

    name, version = "nothing", "1"

    def read(self, crops: list[Any]) -> list[Any]:
        from docleak.metrics import Reading

        return [Reading("", 0.0) for _ in crops]


def audited(case: Case, optimiser: str, model_folder: Path, folder: Path) -> tuple[dict[str, Any], Any]:
    """The first client's record, and the run."""
    from docleak.studies.engine import carry_out
    from docleak.studies.updates.config import UpdatesConfig
    from docleak.studies.updates.study import UpdatesStudy

    recorded = capture(folder, model_folder, case, optimiser)
    config = UpdatesConfig(
        str(recorded), model=str(model_folder), documents=str(folder / "given"), clients=(str(CLIENTS[0]),),
        attack="random", budget=1, steps=(), batch_sizes=(), local=local_of(case, optimiser),
    )  # fmt: skip
    run = carry_out(UpdatesStudy(config), folder / "out")
    (record,) = run.units()
    return record, run


def row_of(case: Case, optimiser: str, record: Mapping[str, Any]) -> list[str]:
    """A row of the table: case, verdict, self-test, the first two causes, whether the true one is among them."""
    from docleak.studies.updates.verdict import severity_of

    test, causes = record["check"]["self_test"], record["check"]["causes"]
    named = case.cause in [cause["key"] for cause in causes[:2]]
    said = [cause["key"] + (" (reproduces)" if cause["reproduces"] else "") for cause in causes[:2]]
    distance = "none" if test is None else f"{test['distance']:.0e}"
    right = ("yes" if named else "NO") if case.cause else ("none named" if not causes else "FALSE ALARM")
    return [case.name, optimiser, severity_of(record).label, distance, ", ".join(said) or "–", right]


HEADER = """# Captures that are described wrongly

What `docleak audit updates` says of a Flower app that is not ours, when it is told something untrue of it: a
strategy (FedAvg) with `docleak.tap`, and a ClientApp that trains `transformers`' LayoutLMv3ForQuestionAnswering (0.1 M
parameters, random) on made-up receipts; two clients, two questions each, batches of one. Strategy, messages, mods
(fixedclipping_mod, LocalDpMod) and client are Flower's and real, and are run in one process. OCR is off: verdicts are
of the words. `tests/studies/updates/test_misdescribed.py` runs the same. Made by

    python scripts/misdescribed_captures.py --out docs/results/updates.md

A leak under a wrong description is a leak all the same: the words are held against the true pages, and against pages
that nobody has.

| case | optimiser | verdict | self-test | first two causes named | the true one among them |
|---|---|---|---|---|---|
"""


def main() -> None:
    """Write or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimiser", choices=[*BASE], action="append")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    from docleak.studies.updates import sight

    sight._engine = lambda name: NothingRead()  # type: ignore[assignment]
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as where:
        model_folder = write_model(Path(where) / "model")
        for optimiser in given.optimiser or BASE:
            for number, case in enumerate((*CASES, *CONTROLS)):
                record, _ = audited(case, optimiser, model_folder, Path(where) / optimiser / str(number))
                rows.append(row_of(case, optimiser, record))
                print(*rows[-1], sep=" | ", file=sys.stderr)
    wrong = [row for row in rows if row[0] not in [case.name for case in CONTROLS]]
    clear = sum(row[2] == "No field read" for row in wrong)
    named = sum(row[-1] == "yes" for row in wrong)
    told = f"{len(wrong)} wrong descriptions: {clear} all-clears, the true cause among the first two in {named}."
    alarms = sum(row[-1] == "FALSE ALARM" for row in rows)
    told += f" {len(rows) - len(wrong)} true descriptions: {alarms} alarms."
    text = HEADER + "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\n{told}\n"
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, encoding="utf-8")
    print(told)


if __name__ == "__main__":
    main()
