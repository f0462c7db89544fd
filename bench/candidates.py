"""What CDMI's candidate losses cost beside bare batched forward passes of the same model and length.

Both score the same candidates of one position of one page, in batches of the same size, on the tiny LayoutLM trained to
extract. The bare loop has its whole input ready and calls backbone and head only; the probe fills the candidates in,
takes the loss of every page, and keeps what it found. They take turns, so that whatever else the machine does hits both
alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from docleak.attacks.weights import probing
from docleak.documents.synthetic import make_pages
from docleak.models.encoders import load_encoder
from docleak.models.encoders.heads import RowHead
from docleak.models.encoders.scrubbing import extract, scrub
from docleak.models.encoders.tasks import Task, classes_of

CANDIDATES = 128
ROUNDS = 15
#: The probe's candidates per second, as a share of the bare loop's.
TARGET = 0.9
TASKS: tuple[Task, ...] = ("ee-bio", "ee-spade")


def measure() -> dict[str, dict[str, float]]:
    """Per task: candidates per second of both, and the median ratio with its quartiles."""
    return {task: _measure(task) for task in TASKS}


def _measure(task: Task) -> dict[str, float]:
    pages = make_pages(8, seed=0)
    model = load_encoder("layoutlm-tiny").for_task(task, classes_of(pages), seed=0)
    tokens = model.encode(pages[0])
    positions = extract(pages[0], tokens)[0].positions
    page = scrub(tokens, positions, mask_id=model.tokenizer.mask_token_id)
    candidates = torch.arange(100, 100 + CANDIDATES)
    rows = max(1, probing.BATCH_TOKENS // len(page))
    whole = model.collate([page] * CANDIDATES)
    parts = [slice(start, start + rows) for start in range(0, CANDIDATES, rows)]

    batches = {part.start: model.collate([page] * len(candidates[part])) for part in parts}
    head = model.module.head
    assert isinstance(head, RowHead)

    def bare() -> None:
        with torch.inference_mode():
            for part in parts:
                hidden = model.module(whole.ids[part], whole.boxes[part], whole.mask[part], None)
                head.scores(hidden, batches[part.start])

    def probe() -> None:
        probing.Probe(model, page, positions).losses((), candidates)

    bare()
    probe()
    seconds = [(_time(bare), _time(probe)) for _ in range(ROUNDS)]
    ratios = sorted(plain / ours for plain, ours in seconds)
    lower, ratio, upper = statistics.quantiles(ratios, n=4)
    return {
        "tokens": len(page),
        "bare_per_second": CANDIDATES / statistics.median(plain for plain, _ in seconds),
        "probe_per_second": CANDIDATES / statistics.median(ours for _, ours in seconds),
        "ratio": ratio,
        "ratio_lower_quartile": lower,
        "ratio_upper_quartile": upper,
        "target": TARGET,
    }


def _time(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def as_markdown(rows: dict[str, dict[str, float]]) -> str:
    """The numbers as a section for people."""
    lines = [
        "",
        "## Candidate losses of CDMI, beside bare forward passes",
        "",
        "| target | probe, candidates per second | bare loop | ratio (quartiles) | target |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        spread = f"{row['ratio_lower_quartile']:.3f}-{row['ratio_upper_quartile']:.3f}"
        speeds = f"{row['probe_per_second']:.0f} | {row['bare_per_second']:.0f}"
        verdict = "met" if row["ratio"] >= row["target"] else "missed"
        lines.append(f"| `{name}` | {speeds} | {row['ratio']:.3f} ({spread}) | {verdict}: {row['target']:.2f} |")
    tokens = max(row["tokens"] for row in rows.values())
    lines += [
        "",
        f"Tiny LayoutLM, a page of {tokens:.0f} tokens, {CANDIDATES} candidates; medians of {ROUNDS} rounds, the two",
        "taking turns (`bench/candidates.py`).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, row in measure().items():
        print(name, {key: round(value, 3) for key, value in row.items()})
