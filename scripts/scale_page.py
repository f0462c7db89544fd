"""docs/results/scale.md and docs/scale.md, of the numbers in docs/results/scale.json. Nothing is measured here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docleak.files import write_atomically
from docleak.models.sizes import MOST_MODEL_PIXELS
from scripts.scale import DRAWN, PAPER_ROUNDS, PAPER_SILOS, SHARE, law

MEMORY = 24e9
#: Part -> (what grows, in what, what is measured by key -> unit).
LAWS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "pixels": ("pixels of a page (tiny Donut)", {"seconds": "seconds of an evaluation", "bytes": "bytes of an evaluation"}),
    "parameters": ("parameters (a Donut that gets wider, 128 x 128 pixels)",
                   {"seconds": "seconds of a client's gradient", "bytes": "bytes of it, weights among them"}),
    "rounds": ("rounds (one silo, a step each)", {"seconds": "seconds so far", "bytes": "bytes of the folder"}),
    "providers": ("providers of a silo, all drawn", {"seconds": "seconds of a private round"}),
    "silos": ("silos", {"seconds": "seconds of a training of two rounds, with its start", "bytes": "peak memory, bytes"}),
}  # fmt: skip


def write_pages(results: Path) -> None:
    """Both pages."""
    saved = json.loads((results / "scale.json").read_text())
    numbers = {part: entry["numbers"] for part, entry in saved.items()}
    measured = [*head(saved), *silo_lines(numbers), *law_lines(numbers), *node_lines(numbers)]
    write_atomically(results / "scale.md", "\n".join([*measured, ""]).encode())
    paper = [
        *PAPER.splitlines(),
        *byte_lines(numbers),
        *audit_lines(numbers),
        *epsilon_lines(numbers),
        *break_lines(numbers),
    ]
    write_atomically(results.parent / "scale.md", "\n".join([*paper, ""]).encode())


def head(saved: Mapping[str, Any]) -> Iterator[str]:
    """What the page is, and where it was measured."""
    where = next(iter(saved.values()))["where"]
    yield "# How costs grow"
    yield ""
    yield (f"Written by `python -m scripts.scale`, of docs/results/scale.json: one thread of a shared machine with "
           f"{where['cores']} cores and 24 GB, Python {where['python']}, torch {where['torch']}; seconds are the processor's. "
           f"Tiny models, synthetic pages. What follows for large ones is arithmetic: [scale](../scale.md).")  # fmt: skip
    yield ""


def silo_lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    """One machine, many silos."""
    rows = numbers["silos"]
    yield "## A thousand silos on one machine"
    yield ""
    yield (f"`docleak data make SILOS --partition K --documents synthetic --count 2K`, then `docleak train federated --silos SILOS "
           f"--participation {DRAWN}/K --rounds 2 --max-steps 1 --batch-size 2 --holdout 0 --no-capture` (tiny VT5, {DRAWN} silos a "
           "round), each training a process of its own; once each.")  # fmt: skip
    yield ""
    yield "| silos | peak memory, MiB | processor, s | seconds on the shared machine |"
    yield "|---|---|---|---|"
    for row in rows:
        yield f"| {row['size']:,} | {row['bytes'] / 2**20:.1f} | {row['seconds']:.1f} | {row['wall']:.0f} |"
    yield ""
    first, last = rows[0], rows[-1]
    grown = (last["bytes"] - first["bytes"]) / 2**20
    more = (last["seconds"] - first["seconds"]) / (last["size"] - first["size"])
    yield (f"From {first['size']} to {last['size']:,} silos the peak moves by {grown:+.1f} MiB, {100 * grown * 2**20 / first['bytes']:+.1f} %: "
           f"one silo's pages and one model are in memory at a time. A silo more costs {1e3 * more:.0f} ms once: its folder is opened "
           "and it introduces itself. Evaluation, which asks every silo after each round, was left out (`--evaluate-every` says how often), "
           "so were secure aggregation and a privacy plan.")  # fmt: skip
    yield ""


def law_lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    """The exponents."""
    yield "## Growth laws"
    yield ""
    yield ("Least squares in logarithms, y = a x^k; intervals are Student's t, 95 %, over the sizes. Bytes of the first two are counted "
           "on tensors without content, every storage from its allocation to its end, and are exact; of silos they are the process's peak.")  # fmt: skip
    yield ""
    yield "| x | from, to (sizes) | y | at the first, at the last | exponent k |"
    yield "|---|---|---|---|---|"
    for part, (what, keys) in LAWS.items():
        rows = numbers.get(part, [])
        for key, measured in keys.items():
            if len(rows) >= 3:
                slope, low, high = law(rows, key)
                yield (f"| {what} | {rows[0]['size']:,}, {rows[-1]['size']:,} ({len(rows)}) | {measured} "
                       f"| {rows[0][key]:.3g}, {rows[-1][key]:.3g} | {slope:.2f} [{low:.2f}, {high:.2f}] |")  # fmt: skip
    yield ""
    yield ("A constant part flattens an exponent: seconds of silos are mostly Python's and PyTorch's start, and so is the memory. "
           "With three sizes an interval is wide, and one that leaves [0, 2] says nothing.")  # fmt: skip
    yield ""


def node_lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    """SuperLink, where it was measured."""
    if (nodes := numbers.get("nodes")) is None:
        return
    yield f"## {nodes['count']} SuperNodes over a SuperLink"
    yield ""
    yield (f"`python -m scripts.scale nodes --count {nodes['count']}`: `docleak deploy`'s start commands, TLS on 127.0.0.1, one round of "
           f"the tiny VT5. {nodes['silos_averaged']} of {nodes['count']} updates were averaged. All nodes were started within "
           f"{nodes['seconds_starting']:.0f} s, the training took {nodes['seconds_training']:.0f} s, its round "
           f"{nodes['seconds_round']:.0f} s; {nodes['seconds_processor']:.0f} s of the processor in all, on a machine that was busy with "
           f"other work. {nodes['processes']} processes; at most {nodes['bytes_of_a_node'] / 2**20:.0f} MiB a node and "
           f"{nodes['bytes_of_the_server'] / 2**20:.0f} MiB for the server's side (shared pages divided among those who share them).")  # fmt: skip
    yield ""


PAPER = f"""# What a very large training would meet

{PAPER_SILOS:,} silos, millions of pages, a model of seven billion parameters: nobody has run docleak on that. This page is arithmetic, from what was
[measured on small things](results/scale.md), from docleak's own accountants, and from limits that stand in its code. Each table
says which. Written by `python -m scripts.scale page`.
"""


def byte_lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    """What travels, and what a server holds."""
    sizes, drawn = numbers["sizes"], round(PAPER_SILOS * SHARE)
    yield ""
    yield "## Bytes"
    yield ""
    yield (f"Qwen2.5-VL's default configuration in `transformers` has {sizes['parameters']:,} parameters (counted on the meta device); LoRA of rank 16 on the "
           f"{sizes['layers']} layers called q_proj and v_proj has {sizes['lora']:,}. A round takes {drawn} of {PAPER_SILOS:,} silos "
           f"(`--participation {SHARE}`); float32, as docleak sends it. Arithmetic.")  # fmt: skip
    yield ""
    yield "| trained | one silo, down and up | a round | 1,000 rounds | the server's state on disk: FedAvg, FedAdam |"
    yield "|---|---|---|---|---|"
    for name, count in (("everything", sizes["parameters"]), ("LoRA", sizes["lora"])):
        one = 8 * count
        yield f"| {name} | {_bytes(one)} | {_bytes(drawn * one)} | {_bytes(1000 * drawn * one)} | {_bytes(8 * count)}, {_bytes(24 * count)} |"
    yield ""
    yield (f"The state is float64 and, above 64 MiB of weights, in files between steps; the last two rounds' are kept. In memory are the model as it is sent "
           f"({_bytes(4 * sizes['parameters'])}) and one update ({_bytes(4 * sizes['parameters'])}) at least. `--compression fp16` halves "
           f"what goes up. An evaluation sends the model to all {PAPER_SILOS:,} silos, not to {drawn}: {_bytes(4 * sizes['parameters'] * PAPER_SILOS)} "
           "for everything each time; `--evaluate-every 0` sends none. The largest single tensor has "
           f"{_bytes(4 * sizes['largest'])}; whether Flower's messages carry it was not tried.")  # fmt: skip
    yield ""


def audit_lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Memory, evaluations and how many pages."""
    count = numbers["sizes"]["parameters"]
    rows = numbers["pixels"]
    yield "## An audit"
    yield ""
    yield (f"*Memory.* Weights and one gradient of everything are {_bytes(8 * count)} in float32 before anything is attacked, the graph of a second derivative "
           "comes on top. Closed forms read a few named tensors only and need no graph; a client of LoRA sends "
           f"{_bytes(4 * numbers['sizes']['lora'])}.")  # fmt: skip
    yield ""
    slope, *_ = law(rows, "seconds")
    at = rows[-1]["seconds"] * (4.9e6 / rows[-1]["size"]) ** slope
    yield (f"*Evaluations.* One of the tiny Donut takes {rows[-1]['seconds']:.2f} s at {rows[-1]['size']:,} pixels (measured) and, if its law goes on "
           f"({slope:.2f}), {at:.0f} s at Donut's 4.9 million (extrapolated). At 200 evaluations a page, a million pages of the small size are "
           f"{200 * rows[-1]['seconds'] * 1e6 / 86400 / 365.25:,.1f} years of one core. Nobody audits a million pages: pages are drawn.")  # fmt: skip
    yield ""
    yield "*How many pages.* If none of n pages drawn by chance is read, the share of all that this attack would read is at most (Clopper-Pearson, 95 %, two sides; arithmetic):"
    yield ""
    yield "| n | at most | core hours at the small size |"
    yield "|---|---|---|"
    for n in (20, 100, 400, 4_000):
        yield f"| {n:,} | {1 - 0.025 ** (1 / n):.2%} | {200 * n * rows[-1]['seconds'] / 3600:,.1f} |"
    yield ""
    yield "It does not depend on how many pages there are. It is about the attack that was run, and about pages like those that were drawn."
    yield ""


def epsilon_lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    """What the accountants say."""
    yield "## Epsilon"
    yield ""
    yield (f"docleak's accountants at delta {0.1 / PAPER_SILOS:g}, a tenth over {PAPER_SILOS:,}; sampling rate {SHARE:g} a round. \"-\": that accountant does not count "
           "this. The number of silos or providers enters by delta and by the rate alone. What enters by M is accuracy: the noise on the mean is z C / M.")  # fmt: skip
    yield ""
    yield "| unit, drawn how | noise multiplier | rounds | PLD | PRV | RDP |"
    yield "|---|---|---|---|---|---|"
    for row in numbers["accountants"]:
        how = "providers by coins of their own" if "unit_rate" in row["rates"] else "silos as a whole, coins known"
        cells = [f"{row[name]:.3g}" if isinstance(row.get(name), float) else "-" for name in ("pld", "prv", "rdp")]
        yield f"| {row['unit']}; {how} | {row['noise']} | {row['rounds']:,} | {' | '.join(cells)} |"
    yield ""
    yield (f"Drawing one silo in a hundred grants little where its coin is known: whoever sees that a silo took part sees it unamplified, and over "
           f"{PAPER_ROUNDS[-1]:,} rounds it takes part about {PAPER_ROUNDS[-1] * SHARE:.0f} times. Coins of the providers themselves are counted in full. A server that "
           "sees single updates sees less noise than this: the numbers are for sums.")  # fmt: skip
    yield ""


def break_lines(numbers: Mapping[str, Any]) -> Iterator[str]:
    """Where each law ends."""
    pixels, parameters, rounds = (numbers[part] for part in ("pixels", "parameters", "rounds"))
    yield "## Where each breaks"
    yield ""
    yield "| what grows | measured to | by its law it ends where | docleak's own limit |"
    yield "|---|---|---|---|"
    yield (f"| pixels | {pixels[-1]['size']:,} | {MEMORY / 1e9:.0f} GB are full at {_reaches(pixels, 'bytes', MEMORY):,.0f} pixels (tiny Donut, all layers matched) "
           f"| {MOST_MODEL_PIXELS:,} |")  # fmt: skip
    yield (f"| parameters | {parameters[-1]['size']:,} | a client's gradient fills {MEMORY / 1e9:.0f} GB at {_reaches(parameters, 'bytes', MEMORY):,.0f} (small pages) "
           "| none |")  # fmt: skip
    silos = numbers["silos"]
    more = (silos[-1]["seconds"] - silos[0]["seconds"]) / (silos[-1]["size"] - silos[0]["size"])
    yield (f"| silos in one process | {silos[-1]['size']:,} | not by memory; {PAPER_SILOS:,} are {PAPER_SILOS * more / 60:.0f} minutes of the processor before the first round, "
           "and in every evaluation | 1,000 for `--clients` (synthetic silos by provider: as many as there are issuers, about 395), 10,000 for `--partition` |")  # fmt: skip
    per = (rounds[-1]["bytes"] - rounds[0]["bytes"]) / (rounds[-1]["size"] - rounds[0]["size"])
    yield (f"| rounds | {rounds[-1]['size']} | a round leaves {per / 1e3:.1f} kB (states of the last two only; no capture): a million are {per * 1e6 / 1e9:.1f} GB. The table is "
           "written anew from all rounds after each, so that this part grows with their square; not measured | 1,000,000 |")  # fmt: skip
    providers = numbers["providers"]
    one = (providers[-1]["seconds"] - providers[0]["seconds"]) / (providers[-1]["size"] - providers[0]["size"])
    yield (f"| providers of one silo | {providers[-1]['size']} | each is a training of its own, {one:.2f} s here: a million in one silo are {one * 1e6 / 86400:,.1f} days a round, "
           "times their rate | none |")  # fmt: skip
    yield ""
    yield ("Measured: the second column, and all in [how costs grow](results/scale.md). Extrapolated: the third. A law that was fitted on small sizes may break earlier "
           "than its arithmetic says, by caches, swap, or a network.")  # fmt: skip


def _reaches(rows: Sequence[Mapping[str, float]], key: str, most: float) -> float:
    """The size at which ``key`` is ``most``, going on from the last row by the law."""
    slope, *_ = law(list(rows), key)
    return float(rows[-1]["size"] * (most / rows[-1][key]) ** (1 / slope))


def _bytes(count: float) -> str:
    for size, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"
