"""Enter DAGER's own functions in the benchmark: ``python scripts/enter_dager.py CHECKOUT FOLDER ANSWERS``.

CHECKOUT is one of insait-institute/dager-gradient-inversion (Petrov et al., NeurIPS 2024, Apache-2.0), of which
``get_layer_decomp`` and ``check_if_in_span`` run as they are, with their first threshold, on the first layer of Donut's
decoder: a word counts as read that lies in the span at any position. Of the benchmark only files are read, and nothing
of docleak. Other tracks are not entered: what reads LayoutLMv3's words also needs their boxes, and one round of
adapters spans too little.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

TRACK, THRESHOLD = "gradient-donut", 1e-3
DECODER = "decoder.model.decoder"
#: MBart's first position has this row of its table.
FIRST = 2


def candidates_of(model: Path) -> Tensor:
    """(positions, words, width): what the first layer's query reads for every word at every position."""
    config = json.loads((model / "config.json").read_text())["decoder"]
    weights = load_file(model / "model.safetensors")

    def normed(vectors: Tensor, name: str) -> Tensor:
        scale, shift = (weights[f"{DECODER}.{name}.{part}"] for part in ("weight", "bias"))
        return F.layer_norm(vectors, vectors.shape[-1:], scale, shift)

    words = weights[f"{DECODER}.embed_tokens.weight"]
    if config.get("scale_embedding"):
        words = words * config["d_model"] ** 0.5
    vectors = words[None] + weights[f"{DECODER}.embed_positions.weight"][FIRST:, None]
    return normed(normed(vectors, "layernorm_embedding"), "layers.0.self_attn_layer_norm")


def main(checkout: Path, folder: Path, answers: Path) -> None:
    """Answer the cases of the track, and say whose answers these are."""
    sys.path[:0] = [str(checkout.resolve())]
    peer: Any = importlib.import_module("utils.functional")
    about = json.loads((folder / "benchmark.json").read_text())
    for name in about["cases"]:
        case = json.loads((folder / "cases" / name / "case.json").read_text())
        if case["track"] != TRACK:
            continue
        started = time.perf_counter()
        update = load_file(folder / "cases" / name / case["rounds"][0]["update"])
        candidates = candidates_of(folder / "models" / case["model"])
        _, basis = peer.get_layer_decomp(update[f"{DECODER}.layers.0.self_attn.q_proj.weight"])
        near = peer.check_if_in_span(basis, candidates.flatten(0, 1)).reshape(candidates.shape[:2]) < THRESHOLD
        said = {"tokens": near.any(0).nonzero().flatten().tolist(), "seconds": round(time.perf_counter() - started, 2)}
        (answers / name).mkdir(parents=True, exist_ok=True)
        (answers / name / "answer.json").write_text(json.dumps(said))
    git = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    told = (
        "get_layer_decomp and check_if_in_span of insait-institute/dager-gradient-inversion, by scripts/enter_dager.py"
    )
    entry = {"name": "DAGER", "version": about["version"], "edition": about["edition"], "about": told,
             "commit": f"theirs {commit}"}  # fmt: skip
    (answers / "entry.json").write_text(json.dumps(entry))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
