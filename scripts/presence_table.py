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
from docleak.studies.presence.reading import SCORES
from docleak.studies.presence.study import PresenceStudy
from docleak.studies.registry import read_runs

#: Two pages of each of two providers in an update.
PROVIDERS: dict[str, Any] = {"batch_size": 4, "per_provider": 2}
#: Name -> settings; each a row, or two where providers are asked about.
ROWS: dict[str, dict[str, Any]] = {
    "whole, SGD": {"learning_rate": 0.01},
    "whole, SGD, 4 steps": {"learning_rate": 0.01, "local_steps": 4},
    "whole, SGD, sent as bfloat16": {"learning_rate": 0.01, "precision": "bfloat16"},
    "whole, AdamW": {"optimiser": "adamw", "learning_rate": 1e-3},
    "whole, AdamW, bfloat16": {"optimiser": "adamw", "learning_rate": 1e-3, "precision": "bfloat16"},
    "whole, AdamW, 4 steps": {"optimiser": "adamw", "learning_rate": 1e-3, "local_steps": 4},
    "LoRA, SGD": {"learning_rate": 0.1, "warm_up": 4},
    "LoRA, SGD, 4 steps": {"learning_rate": 0.1, "warm_up": 4, "local_steps": 4},
    "LoRA, SGD, sent as bfloat16": {"learning_rate": 0.1, "warm_up": 4, "precision": "bfloat16"},
    "LoRA, AdamW": {"optimiser": "adamw", "learning_rate": 1e-3, "warm_up": 4},
    "LoRA, AdamW, 4 steps": {"optimiser": "adamw", "learning_rate": 1e-3, "warm_up": 4, "local_steps": 4},
    "LoRA, AdamW, bfloat16": {"optimiser": "adamw", "learning_rate": 1e-3, "warm_up": 4, "precision": "bfloat16"},
    "providers, whole, SGD": {"learning_rate": 0.01, **PROVIDERS},
    "providers, whole, AdamW": {"optimiser": "adamw", "learning_rate": 1e-3, **PROVIDERS},
    "providers, LoRA, SGD": {"learning_rate": 0.1, "warm_up": 4, **PROVIDERS},
    "providers, LoRA, AdamW": {"optimiser": "adamw", "learning_rate": 1e-3, "warm_up": 4, **PROVIDERS},
}
HEAD = """# Was this page in this update?

`python scripts/presence_table.py`: {count} pages in updates and as many others, 2 in each update, seed {seed}, one CPU
thread, torch {torch}. A small Qwen2-VL, width 240, random weights, pages of 56 x 84 pixels. *Errors* are the share of
wrong decisions, of both kinds, at a cut-off set by two pages a round that are known to be out (their mean and 3
standard deviations, or a gap of a factor of 10 above all of them). The loss sees no update. 95 % intervals over pages.
*Providers* are asked about by the mean over two pages that the update holds, and over two others of the same provider;
intervals are over providers. *Blind* is the AUC of a classifier that sees neither model nor update.

| client | residual: AUC | errors | alignment: AUC | errors | loss: AUC | errors | blind | rank |
|---|---|---|---|---|---|---|---|---|
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
        source, started = "lora" if "LoRA" in name else "base", time.process_time()
        config = PresenceConfig(
            model=str(folder / source), pages=arguments.pages, controls=2, seed=arguments.seed, **settings
        )
        run = carry_out(PresenceStudy(config), folder / f"{name.replace(', ', '-').replace(' ', '-')}-{arguments.seed}")
        (reading,) = read_runs([run])
        rows = reading.tables["presence"].rows
        for row, whose in zip(rows, ("",) if len(rows) == 1 else (": pages sent", ": other pages"), strict=True):
            cells = [row.values[f"{score}_{what}"].text(3) for score in SCORES for what in ("auc", "errors")]
            cells += [row.values["blind_auc"].text(2), f"{row.values['rank']:.0f} of {row.values['width']}"]
            lines.append(f"| {name}{whose} | {' | '.join(cells)} |")
            print(lines[-1], f"{time.process_time() - started:.0f} s of CPU time", flush=True)
        head = HEAD.format(count=arguments.pages // 2, seed=arguments.seed, torch=torch.__version__)
        write_atomically(arguments.out, (head + "\n".join([*lines, ""])).encode())


if __name__ == "__main__":
    main()
