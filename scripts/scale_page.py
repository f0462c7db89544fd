"""docs/results/scale.md and docs/scale.md, of the numbers in docs/results/scale.json. Nothing is measured here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docleak.files import write_atomically
from docleak.models.sizes import MOST_MODEL_PIXELS
from docleak.privacy.accounting import rounded_up
from scripts.scale import DRAWN, PAPER_ROUNDS, PAPER_SILOS, SHARE, law

TEMPLATES = Path(__file__).parent / "scale_pages"
#: Bytes of the machine that laws are held against; evaluations of a page; pixels of Donut's own pages.
MEMORY, BUDGET, LARGE = 24e9, 200, 4.9e6
#: Part -> what grows, and the key of what is measured -> what it is.
LAWS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "pixels": ("pixels of a page (tiny Donut, all layers)", {"seconds": "s of an evaluation", "bytes": "its bytes"}),
    "parameters": ("parameters (a wider Donut, 128 x 128)", {"seconds": "s of a client's gradient", "bytes": "bytes"}),
    "rounds": ("rounds (one silo, a step each)", {"seconds": "s so far", "bytes": "bytes of the folder"}),
    "providers": ("providers of a silo, all drawn", {"seconds": "s of a private round"}),
    "silos": ("silos", {"seconds": "s of two rounds, with the start", "bytes": "peak memory, bytes"}),
}
Numbers = Mapping[str, Any]


def write_pages(results: Path) -> None:
    """Both pages."""
    saved = json.loads((results / "scale.json").read_text())
    numbers = {part: entry["numbers"] for part, entry in saved.items()}
    where = saved["silos"]["where"]
    for name, values, target in (
        ("results.md", {**where, **measured(numbers)}, results / "scale.md"),
        ("paper.md", planned(numbers), results.parent / "scale.md"),
    ):
        write_atomically(target, (TEMPLATES / name).read_text().format(**values).encode())


def measured(numbers: Numbers) -> dict[str, Any]:
    """What results.md has places for."""
    silos = numbers["silos"]
    grown = silos[-1]["bytes"] - silos[0]["bytes"]
    rows = [
        f"| {row['size']:,} | {row['bytes'] / 2**20:.1f} | {row['seconds']:.1f} | {row['wall']:.0f} |" for row in silos
    ]
    return {
        "drawn": DRAWN, "silo_table": "\n".join(rows), "law_table": "\n".join(law_rows(numbers)),
        "silos_first": silos[0]["size"], "silos_last": f"{silos[-1]['size']:,}", "silos_grown": f"{grown / 2**20:+.1f}",
        "silos_share": f"{grown / silos[0]['bytes']:+.1%}", "silo_milliseconds": f"{1e3 * each(silos):.0f}",
        "node_lines": nodes(numbers), "grid_lines": grid(numbers),
    }  # fmt: skip


def law_rows(numbers: Numbers) -> Iterator[str]:
    """A row per thing that was measured at three sizes or more."""
    for part, (what, keys) in LAWS.items():
        rows = numbers[part]
        span = f"{rows[0]['size']:,}, {rows[-1]['size']:,} ({len(rows)})"
        for key, name in keys.items():
            slope, low, high = law(rows, key)
            values = f"{rows[0][key]:.3g}, {rows[-1][key]:.3g}"
            yield f"| {what} | {span} | {name} | {values} | {slope:.2f} [{low:.2f}, {high:.2f}] |"


def nodes(numbers: Numbers) -> str:
    """The section on SuperNodes, where they were measured."""
    if "nodes" not in numbers:
        return ""
    n = numbers["nodes"]
    more = {
        "all_gb": (n["count"] * n["bytes_of_a_node"] + n["bytes_of_the_server"]) / 1e9,
        "node_mib": n["bytes_of_a_node"] / 2**20,
        "server_mib": n["bytes_of_the_server"] / 2**20,
    }
    return (TEMPLATES / "nodes.md").read_text().format(**n, **more)


def grid(numbers: Numbers) -> str:
    """The section on an audit over Dask, where it was measured."""
    if "grid" not in numbers:
        return ""
    said = "the same" if numbers["grid"]["alike"] else "NOT the same"
    return (TEMPLATES / "grid.md").read_text().format(**numbers["grid"], alike_said=said)


def planned(numbers: Numbers) -> dict[str, Any]:
    """What paper.md has places for."""
    sizes, pixels, silos, rounds = (numbers[part] for part in ("sizes", "pixels", "silos", "rounds"))
    providers, parameters = numbers["providers"], numbers["parameters"]
    count, lora, second = sizes["parameters"], sizes["lora"], pixels[-1]["seconds"]
    left = (rounds[-1]["bytes"] - rounds[0]["bytes"]) / (rounds[-1]["size"] - rounds[0]["size"])
    pages = [
        f"| {n:,} | {1 - 0.025 ** (1 / n):.2%} | {BUDGET * n * second / 3600:,.1f} |" for n in (20, 100, 400, 4_000)
    ]
    return {
        "silos": f"{PAPER_SILOS:,}", "share": SHARE, "clients": round(PAPER_SILOS * SHARE), "delta": 0.1 / PAPER_SILOS,
        "parameters": f"{count:,}", "lora": f"{lora:,}", "layers": sizes["layers"],
        "byte_table": "\n".join(byte_row(name, some) for name, some in (("everything", count), ("LoRA", lora))),
        "model_bytes": size(4 * count), "evaluation_bytes": size(4 * count * PAPER_SILOS),
        "largest_bytes": size(4 * sizes["largest"]), "pair_bytes": size(8 * count), "lora_bytes": size(4 * lora),
        "second": f"{second:.2f}", "pixels": f"{pixels[-1]['size']:,}",
        "second_large": f"{second + (LARGE - pixels[-1]['size']) * onward(pixels, 'seconds'):.0f}",
        "core_years": f"{BUDGET * second * 1e6 / 86400 / 365.25:,.1f}", "page_table": "\n".join(pages),
        "epsilon_table": "\n".join(epsilon_row(row) for row in numbers["accountants"]),
        "most_rounds": f"{PAPER_ROUNDS[-1]:,}", "taken": f"{PAPER_ROUNDS[-1] * SHARE:.0f}",
        "pixels_end": about(reaches(pixels, MEMORY)), "pixels_limit": f"{MOST_MODEL_PIXELS:,}",
        "parameters_measured": f"{parameters[-1]['size']:,}", "parameters_end": about(reaches(parameters, MEMORY)),
        "silos_measured": f"{silos[-1]['size']:,}", "silos_minutes": f"{PAPER_SILOS * each(silos) / 60:.1f}",
        "rounds_measured": rounds[-1]["size"], "round_bytes": size(left), "rounds_bytes": size(1e6 * left),
        "providers_measured": providers[-1]["size"], "provider_seconds": f"{each(providers):.2f}",
        "providers_days": f"{each(providers) * 1e6 / 86400:,.1f}",
    }  # fmt: skip


def byte_row(name: str, count: int) -> str:
    """What travels, and what the server keeps, where so many numbers are trained."""
    both = 8 * count
    one_round = round(PAPER_SILOS * SHARE) * both
    states = f"{size(8 * count)}, {size(24 * count)}"
    return f"| {name} | {size(both)} | {size(one_round)} | {size(1_000 * one_round)} | {states} |"


def epsilon_row(row: Mapping[str, Any]) -> str:
    """One mechanism by three accountants."""
    how = (
        "provider, by a coin of its own"
        if "unit_rate" in row["rates"]
        else "silo, or provider with its silo; coins known"
    )
    cells = [rounded_up(row[name]) if isinstance(row.get(name), float) else "-" for name in ("pld", "prv", "rdp")]
    return f"| {how} | {row['noise']} | {row['rounds']:,} | {' | '.join(cells)} |"


def each(rows: Sequence[Mapping[str, float]]) -> float:
    """Seconds of one more, between the first size and the last."""
    return float((rows[-1]["seconds"] - rows[0]["seconds"]) / (rows[-1]["size"] - rows[0]["size"]))


def onward(rows: Sequence[Mapping[str, float]], key: str) -> float:
    """``key`` of one more of what grows, between the last two sizes."""
    return float((rows[-1][key] - rows[-2][key]) / (rows[-1]["size"] - rows[-2]["size"]))


def reaches(rows: Sequence[Mapping[str, float]], most: float) -> float:
    """The size at which bytes are ``most``, in a straight line through the last two sizes."""
    return rows[-1]["size"] + (most - rows[-1]["bytes"]) / onward(rows, "bytes")


def about(value: float) -> str:
    """Two digits."""
    return f"{float(f'{value:.2g}'):,.0f}"


def size(count: float) -> str:
    """Bytes in words."""
    unit, name = next((pair for pair in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if count >= pair[0]),
                      (1e3, "kB"))  # fmt: skip
    return f"{count / unit:,.1f} {name}"
