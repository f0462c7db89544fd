"""One page of a batch, read by an honest server, and by one that fishes for it: the tables of docs/results/batches.md.

    python -m scripts.batches measure cases.jsonl               an honest server
    python -m scripts.batches measure cases.jsonl --gain 4      one that sends a head multiplied by 4
    python -m scripts.batches fish tokens.jsonl --models vt5-trained,donut-trained   what fishing reads of each model
    python -m scripts.batches guard                             what the guard says of such heads
    python -m scripts.batches page cases.jsonl                  the table

Each case is a batch of pages of its own: what taking its gradient for one page's gives, beside the truth. Cases go to
the file one by one, and what is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from docleak.attacks.gradients.matching import dummy_gradient
from docleak.attacks.servers.fishing import Fishing
from docleak.attacks.servers.view import PublicPages, Sent
from docleak.documents.page import Page
from docleak.models import DocumentModel, load_model
from docleak.studies.gradient.case import Case, build_case, pages_for
from docleak.studies.gradient.config import Exposure
from docleak.studies.gradient.texts import one_page
from docleak.studies.servers.study import of_one, share, tensors
from docleak.training.guard.guard import Guard, inspect
from docleak.training.update import client_gradient

MODELS = ("layoutlmv3-trained", "layoutlmv3-start")
SIZES = (2, 4, 8)
#: Of synthetic pages. Thresholds were chosen on seeds 5 to 19, and SPANS after a look at those from 1000 on.
SEED = 2000


@dataclass(frozen=True)
class Asked:
    """One batch: which model, its head multiplied by ``gain``, which data set, size and number."""

    model: str
    gain: float
    documents: str
    size: int
    number: int

    @property
    def key(self) -> str:
        return f"{self.model} {self.gain:g} {self.documents} {self.size} {self.number}"


def asked(arguments: argparse.Namespace) -> Iterator[Asked]:
    """Batches of every model and size in turn; of receipts as far as they go."""
    documents = "receipts" if arguments.receipts else "synthetic"
    for number in range(arguments.batches):
        for model in arguments.models.split(","):
            for size in map(int, arguments.sizes.split(",")):
                yield Asked(model, arguments.gain, documents, size, number)


@lru_cache(maxsize=4)
def _model(name: str, gain: float = 1.0) -> DocumentModel:
    model = load_model(name)
    server, nobody = Fishing(gain=gain), PublicPages(torch.zeros(0, 3, 1, 1), [])
    return server.manipulate(model, nobody, generator=torch.Generator()).model


@lru_cache(maxsize=2)
def _pages(name: str, receipts: str, count: int) -> list[Page]:
    return pages_for(_model(name), receipts, count=count, seed=0)


def case_of(one: Asked, receipts: str) -> Case | None:
    """The client's batch; None where there are not enough receipts for one more."""
    model, seed = _model(one.model, one.gain), SEED + one.number
    if one.documents == "synthetic":
        return build_case(model, pages_for(model, "synthetic", count=one.size, seed=seed), Exposure(), seed=seed)
    pages = _pages(one.model, receipts, max(SIZES) * 10)[one.number * one.size :][: one.size]
    return build_case(model, pages, Exposure(), seed=seed) if len(pages) == one.size else None


def norms(case: Case) -> list[float]:
    """The length of each page's own gradient, largest first; for the table alone."""
    lengths = []
    for number in range(len(case.pages)):
        alone = case.pixels[number : number + 1], case.inputs[number : number + 1]
        gradient = dummy_gradient(case.view.model, *alone, case.view.names, create_graph=False)
        lengths.append(sum(float(value.double().square().sum()) for value in gradient.values()) ** 0.5)
    return sorted(lengths, reverse=True)


def measure(arguments: argparse.Namespace) -> None:
    """Append what is missing."""
    there = (
        {json.loads(line)["key"] for line in arguments.out.read_text().splitlines()} if arguments.out.exists() else ()
    )
    for one in asked(arguments):
        case = None if one.key in there else case_of(one, arguments.receipts)
        if case is None:
            continue
        started = time.process_time()
        record = one_page(case)
        seconds = time.process_time() - started
        lengths = norms(case)
        kept = ("claimed", "believed_exact", "exact", "tokens", "tokens_right", "sure", "left", "psnr", "wrong_parts")
        fields = record["fields_read"]
        assert isinstance(fields, list)
        line = {
            "key": one.key, **vars(one), **{name: record[name] for name in kept}, "fields": len(fields),
            "fields_read": sum(map(bool, fields)), "ratio": lengths[0] / lengths[1], "cpu_seconds": seconds,
        }  # fmt: skip
        with arguments.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def page(arguments: argparse.Namespace) -> None:
    """The tables, of what was measured."""
    groups: dict[tuple[str, str, float, int, bool], list[dict[str, Any]]] = {}
    for line in arguments.out.read_text().splitlines():
        one = json.loads(line)
        name = one["model"], one["documents"], one.get("gain", 1.0), one["size"], "placed" in one
        groups.setdefault(name, []).append(one)
    print(HEAD)
    for (model, documents, gain, size, tokens), group in sorted(groups.items(), key=lambda item: str(item[0])):
        if not tokens:
            print(_row(f"{model}, {documents}" + (f", head x {gain:g}" if gain != 1 else ""), size, group))
    print(TOKENS)
    for (model, _, gain, _, tokens), group in sorted(groups.items()):
        if tokens:
            print(_tokens(f"{model}, head " + ("as it is" if gain == 1 else f"x {gain:g}"), group))


COLUMNS = (
    "model, pages", "batch", "batches", "first to second gradient", "all tokens of one page", "one page whole",
    "claimed", "believed whole", "wrongly", "fields of claimed pages", "PSNR, dB", "CPU s",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"
TOKENS = """
| model | batches | tokens of one page | beside them, of other pages | a page told apart |
|---|---|---|---|---|"""


def _tokens(name: str, group: list[dict[str, Any]]) -> str:
    """A page is told apart if at least 90 % of it is read, and of what is read at least 80 % is of it."""
    apart = [
        one["tokens_read"] >= 0.9 * one["tokens"] and one["tokens_wrong"] <= 0.25 * one["tokens_read"] for one in group
    ]
    wrong = sum(one["tokens_wrong"] for one in group)
    told = _share(sum(apart), len(group))
    return f"| {name} | {len(group)} | {_of(group, 'tokens_read', 'tokens')} | {wrong} | {told} |"


def _row(name: str, size: int, group: list[dict[str, Any]]) -> str:
    count, claimed = len(group), [one for one in group if one["claimed"]]
    believed = [one for one in group if one["believed_exact"]]
    ratios = sorted(one["ratio"] for one in group)
    cells = [
        name, str(size), str(count), f"{ratios[count // 2]:.3g} ({ratios[0]:.2g} to {ratios[-1]:.2g})",
        _share(sum(one["tokens_right"] == one["tokens"] for one in group), count),
        _share(sum(one["exact"] for one in group), count), str(len(claimed)), str(len(believed)),
        str(sum(not one["exact"] for one in believed)), _of(claimed, "fields_read", "fields"),
        f"{sum(one['psnr'] for one in claimed) / len(claimed):.1f}" if claimed else "-",
        f"{sum(one['cpu_seconds'] for one in group) / count:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _of(group: list[dict[str, Any]], right: str, of: str) -> str:
    return f"{sum(one[right] for one in group)} of {sum(one[of] for one in group)}" if group else "-"


def _share(count: int, of: int) -> str:
    estimate = share(count, of, "batches")
    return f"{count}: {100 * count / of:.0f} % [{100 * (estimate.low or 0):.0f}, {100 * (estimate.high or 0):.0f}]"


def fish(arguments: argparse.Namespace) -> None:
    """What the server reads of batches of 4 with the head as it is, and multiplied: tokens of the page most are of."""
    done = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    there = {json.loads(line)["key"] for line in done}
    for number in range(arguments.batches):
        for name in arguments.models.split(","):
            for gain in (1.0, arguments.gain):
                one = Asked(name, gain, "synthetic", 4, number)
                if one.key in there:
                    continue
                model, seed = _model(name, gain), SEED + number
                pixels, inputs = tensors(model, pages_for(model, "synthetic", count=4, seed=seed))
                loot = Fishing(gain=gain).read(Sent(model), client_gradient(model, pixels, inputs))
                line = {"key": one.key, **vars(one), **of_one(loot, inputs)}
                with arguments.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)


def guard(_: argparse.Namespace) -> None:
    """Heads multiplied at once, and little by little: what the guard says in the first round and beside the last."""
    print("| model | gain | first round | beside the last model | in steps of 1.85 |\n|---|---|---|---|---|")
    for name in ("layoutlmv3-start", "layoutlmv3-trained", "donut-trained", "vt5-trained", "llava-trained"):
        plain = _weights(_model(name))
        for gain in (1.85, 1.95, 4.0, 16.0):
            asked = _weights(_model(name, gain))
            first, beside = inspect(asked), inspect(asked, plain)
            slow, steps = Guard(), [min(1.85**step, gain) for step in range(1 + math.ceil(math.log(gain, 1.85)))]
            stopped = any(slow.check(_weights(_model(name, step))).refused for step in steps)
            cells = ["refused" if said else "passes" for said in (first.refused, beside.refused, stopped)]
            print(
                f"| {name} | {gain:g} | {cells[0]} | {cells[1]} | {cells[2]} in {len(steps) - 1} rounds |", flush=True
            )


def _weights(model: DocumentModel) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.module.named_parameters() if p.requires_grad}


def main() -> None:
    """Measure, or print the page's table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "fish", "guard", "page"))
    parser.add_argument("out", type=Path, nargs="?", default=Path("batches.jsonl"))
    parser.add_argument("--batches", type=int, default=20, help="Of each model, data set and size.")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--gain", type=float, default=1.0, help="What a fishing server multiplies the head by.")
    parser.add_argument("--receipts", default="", help="Real receipts instead of synthetic pages: sroie:PATH.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    {"measure": measure, "fish": fish, "guard": guard, "page": page}[arguments.what](arguments)


if __name__ == "__main__":
    main()
