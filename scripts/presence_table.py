"""Membership of pages under what clients do: ``python scripts/presence_table.py --out FILE`` writes a table.

A small Qwen2-VL (width 240, random weights, pages of 56 x 84 pixels), whole and by LoRA (rank 16 on query, key, value).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from docleak.files import write_atomically
from docleak.models.lora import Lora, adapt
from docleak.models.vlm import tiny
from docleak.studies.engine import carry_out
from docleak.studies.presence.config import PresenceConfig
from docleak.studies.presence.study import PresenceStudy
from docleak.studies.registry import read_runs

#: Name -> settings; each a row.
ROWS: dict[str, dict[str, Any]] = {
    "whole, SGD": {"learning_rate": 0.01},
    "whole, SGD, 4 steps": {"learning_rate": 0.01, "local_steps": 4},
    "whole, SGD, sent as bfloat16": {"learning_rate": 0.01, "precision": "bfloat16"},
    "whole, AdamW": {"optimiser": "adamw", "learning_rate": 1e-3},
    "whole, AdamW, bfloat16": {"optimiser": "adamw", "learning_rate": 1e-3, "precision": "bfloat16"},
    "whole, AdamW, 4 steps": {"optimiser": "adamw", "learning_rate": 1e-3, "local_steps": 4},
    "LoRA, SGD": {"learning_rate": 0.1, "warm_up": 4},
    "LoRA, AdamW": {"optimiser": "adamw", "learning_rate": 1e-3, "warm_up": 4},
}
HEAD = """# Was this page in this update?

`python scripts/presence_table.py`: {count} pages in updates and as many others, 2 in each update, seed {seed}, one CPU
thread, torch {torch}. A small Qwen2-VL, width 240, random weights, pages of 56 x 84 pixels. *Errors* are the share of
wrong decisions, of both kinds, at a cut-off set by two pages a round that are known to be out (their mean and 3
standard deviations, or a gap of a factor of 10 above all of them). The loss sees no update. 95 % intervals over pages.

| client | residual: AUC | errors | alignment: AUC | errors | loss: AUC | errors | rank |
|---|---|---|---|---|---|---|---|
"""


def make(folder: Path) -> None:
    """The base and its adapters."""
    made = tiny.FAMILIES["qwen2_vl"]()
    vision = {**made.vision, "hidden_size": 240}
    tiny.FAMILIES["qwen2_vl"] = lambda: replace(
        made, text={**made.text, "hidden_size": 240, "num_attention_heads": 20}, vision=vision
    )
    tiny.make_tiny("qwen2_vl", folder / "base", seed=0)
    for file in (folder / "base" / "preprocessor_config.json", folder / "base" / "processor_config.json"):
        if file.exists():
            settings = json.loads(file.read_text())
            images = settings.get("image_processor", settings)
            images |= {"max_pixels": 56 * 84, "min_pixels": 28 * 28}
            images["size"] = {"longest_edge": 56 * 84, "shortest_edge": 28 * 28}
            file.write_text(json.dumps(settings))
    adapt(str(folder / "base"), folder / "lora", Lora.parsed("r=16,targets=q_proj+k_proj+v_proj"), seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--rows", default="", help="Only rows with this in their name; A|B takes either.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=None, help="Where runs are kept, to go on with.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.runs or Path(tempfile.mkdtemp())
    if not (folder / "lora").exists():
        make(folder)
    lines = []
    for name, settings in ROWS.items():
        if not any(part in name for part in arguments.rows.split("|")):
            continue
        source, started = "lora" if name.startswith("LoRA") else "base", time.perf_counter()
        config = PresenceConfig(
            model=str(folder / source), pages=arguments.pages, controls=2, seed=arguments.seed, **settings
        )
        run = carry_out(PresenceStudy(config), folder / f"{name.replace(', ', '-').replace(' ', '-')}-{arguments.seed}")
        (reading,) = read_runs([run])
        row = reading.tables["presence"].rows[0].values
        parts = [row[f"{score}_{what}"] for score in ("residual", "alignment", "loss") for what in ("auc", "errors")]
        lines.append(f"| {name} | {' | '.join(part.text(3) for part in parts)} | {row['rank']:.0f} of {row['width']} |")
        print(lines[-1], f"{time.perf_counter() - started:.0f} s", flush=True)
        head = HEAD.format(count=arguments.pages // 2, seed=arguments.seed, torch=torch.__version__)
        write_atomically(arguments.out, (head + "\n".join([*lines, ""])).encode())


if __name__ == "__main__":
    main()
