"""One page of a batch, read by an honest server: ``python -m scripts.batches OUT.jsonl`` measures, ``page`` writes.

Each case is a batch of pages of its own: what taking its gradient for one page's gives, beside the truth. Cases go to
the file one by one, and what is there is not computed again. ``python -m scripts.batches page OUT.jsonl`` prints
docs/results/batches.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from docleak.attacks.gradients.matching import dummy_gradient
from docleak.documents.page import Page
from docleak.models import DocumentModel, load_model
from docleak.studies.gradient.case import Case, build_case, pages_for
from docleak.studies.gradient.config import Exposure
from docleak.studies.gradient.texts import one_page
from docleak.studies.servers.study import share

MODELS = ("layoutlmv3-trained", "layoutlmv3-start")
SIZES = (2, 4, 8)
#: Of synthetic pages; thresholds were chosen on seeds 5 to 19, batches of 4.
SEED = 1000


@dataclass(frozen=True)
class Asked:
    """One batch: which model, data set, size and number."""

    model: str
    documents: str
    size: int
    number: int

    @property
    def key(self) -> str:
        return f"{self.model} {self.documents} {self.size} {self.number}"


def asked(arguments: argparse.Namespace) -> Iterator[Asked]:
    """Cases, the trained model's first; receipts as far as they go."""
    for number in range(arguments.batches):
        for model in arguments.models.split(","):
            for documents in ("synthetic", "receipts") if arguments.receipts else ("synthetic",):
                for size in SIZES:
                    yield Asked(model, documents, size, number)


@lru_cache(maxsize=2)
def _model(name: str) -> DocumentModel:
    return load_model(name)


@lru_cache(maxsize=2)
def _pages(name: str, receipts: str, count: int) -> list[Page]:
    return pages_for(_model(name), receipts, count=count, seed=0)


def case_of(one: Asked, receipts: str) -> Case | None:
    """The client's batch; None where there are not enough receipts for one more."""
    model, seed = _model(one.model), SEED + one.number
    if one.documents == "synthetic":
        return build_case(model, pages_for(model, "synthetic", count=one.size, seed=seed), Exposure(), seed=seed)
    pages = _pages(one.model, receipts, max(SIZES) * 60)[one.number * one.size :][: one.size]
    return build_case(model, pages, Exposure(), seed=seed) if len(pages) == one.size else None


def norms(case: Case) -> list[float]:
    """The length of each page's own gradient, largest first; for the table alone."""
    found = []
    for number in range(len(case.pages)):
        alone = case.pixels[number : number + 1], case.inputs[number : number + 1]
        gradient = dummy_gradient(case.view.model, *alone, case.view.names, create_graph=False)
        found.append(sum(float(value.double().square().sum()) for value in gradient.values()) ** 0.5)
    return sorted(found, reverse=True)


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
    """The table, of what was measured."""
    records = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    print(
        "| model, pages | batch | batches | first to second gradient | one page whole | claimed | believed whole | of "
        "these wrong | tokens of claimed pages | fields of claimed pages | PSNR, dB | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["model"], record["documents"], record["size"]), []).append(record)
    for (model, documents, size), group in sorted(groups.items(), reverse=True):
        print(_row(f"{model}, {documents}", size, group))


def _row(name: str, size: int, group: list[dict[str, Any]]) -> str:
    count, claimed = len(group), [one for one in group if one["claimed"]]
    believed = [one for one in group if one["believed_exact"]]
    ratios = sorted(one["ratio"] for one in group)
    cells = [
        name, str(size), str(count), f"{ratios[count // 2]:.1f} ({ratios[0]:.1f} to {ratios[-1]:.0f})",
        _share(sum(one["exact"] for one in group), count), str(len(claimed)), str(len(believed)),
        str(sum(not one["exact"] for one in believed)),
        _of(claimed, "tokens_right", "tokens"), _of(claimed, "fields_read", "fields"),
        f"{sum(one['psnr'] for one in claimed) / len(claimed):.1f}" if claimed else "-",
        f"{sum(one['cpu_seconds'] for one in group) / count:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _of(group: list[dict[str, Any]], right: str, of: str) -> str:
    return f"{sum(one[right] for one in group)} of {sum(one[of] for one in group)}" if group else "-"


def _share(count: int, of: int) -> str:
    found = share(count, of, "batches")
    return f"{count}: {100 * count / of:.0f} % [{100 * (found.low or 0):.0f}, {100 * (found.high or 0):.0f}]"


def main() -> None:
    """Measure, or print the page's table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "page"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--batches", type=int, default=20, help="Of each model, data set and size.")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--receipts", default="", help="Real receipts beside synthetic pages: sroie:PATH.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    {"measure": measure, "page": page}[arguments.what](arguments)


if __name__ == "__main__":
    main()
