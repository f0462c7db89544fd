"""What MMGIA's second stage costs beside its first, at equal gradient evaluations.

The tiny pair on scenes: the time that one run spends in stage 1 (both modalities) and in stage 2, by its own clock.
"""

from __future__ import annotations

import statistics

import torch

from docleak.attacks.registries import PAIRS as PAIR_ATTACKS
from docleak.documents.pairs import make_scenes
from docleak.models.pair import build_pair
from docleak.models.pair.aligner import load_aligner
from docleak.models.pair.language import fit_trigrams
from docleak.studies.pairs.case import build_pair_case

PAIRS, BUDGET = 3, 60
#: Stage 2 may add this share of stage 1's time.
TARGET = 0.25


def measure() -> dict[str, float]:
    """Medians over pairs: seconds of both stages, and stage 2's share of stage 1."""
    pairs = make_scenes(PAIRS + 50, seed=1)
    model = build_pair("lenet5", "bert-tiny", classes=("scatter", "tower"), image_size=(64, 16), seed=0)
    language = fit_trigrams([pair.text for pair in pairs[PAIRS:]], model.tokenizer, name="scenes")
    aligner, attack = load_aligner("aligner-tiny", model.tokenizer), PAIR_ATTACKS.load("mmgia")
    first, second = [], []
    for pair in pairs[:PAIRS]:
        case = build_pair_case(model, [pair], aligner=aligner, language=language)
        finding = attack.run(case.view, case.knowledge, budget=BUDGET, generator=torch.Generator().manual_seed(0))
        first.append(finding.image_seconds + finding.text_seconds)
        second.append(finding.align_seconds)
    share = statistics.median(b / a for a, b in zip(first, second, strict=True))
    return {
        "stage_1_seconds": statistics.median(first),
        "stage_2_seconds": statistics.median(second),
        "stage_2_share": share,
        "target": TARGET,
    }


def as_markdown(numbers: dict[str, float]) -> str:
    """The numbers as a section for people."""
    met = "met" if numbers["stage_2_share"] <= numbers["target"] else "missed"
    return "\n".join([
        "",
        "## MMGIA's second stage",
        "",
        f"Stage 1 {numbers['stage_1_seconds']:.1f} s, stage 2 {numbers['stage_2_seconds']:.2f} s: it adds "
        f"{numbers['stage_2_share']:.1%} (target at most {numbers['target']:.0%}: {met}). Medians of {PAIRS} scenes, "
        f"{BUDGET} gradient evaluations per modality (`bench/pairs.py`).",
        "",
    ])  # fmt: skip
