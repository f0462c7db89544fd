"""What it is worth to know a text's length: ``python -m scripts.text_lengths nlvr-true:DIR``.

docleak's attacks on pairs are told how many tokens a text has, as LAMP is; Zheng et al. (2025) do not say. Here stage 1
of MMGIA reads the same pairs with the length that it is told, with the usual one of the public texts, and with every
length that one of these has, of which it keeps the one whose gradient comes nearest: what it has instead of knowing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from docleak.attacks.pairs.together import PairFinding
from docleak.metrics.estimate import Estimate, ratio_interval
from docleak.metrics.text import rouge
from docleak.studies.pairs.case import LONGEST, PairCase
from docleak.studies.pairs.client import Setting
from docleak.studies.pairs.config import PairConfig
from docleak.studies.pairs.study import PairStudy

ATTACK = "mmgia-stage1"
HOW = ("told", "the usual one", "tried, the nearest kept")


@dataclass(frozen=True)
class Read:
    """One pair: its text's length, the lengths that were taken, and ROUGE-L, each in the order of HOW."""

    length: int
    taken: tuple[int, int, int]
    rouge_l: tuple[float, float, float]


def lengths_of(setting: Setting) -> list[int]:
    """Tokens without special ones of each public text."""
    return [int(setting.model.token_ids([pair.text], longest=LONGEST)[1].sum()) - 2 for pair in setting.public]


def attacked(case: PairCase, config: PairConfig, length: int, seed: int) -> PairFinding:
    """Stage 1 that believes in a ``length``."""
    knowledge = replace(case.knowledge, lengths=(length,))
    generator = torch.Generator().manual_seed(seed)
    return config.attack(ATTACK).run(case.view, knowledge, budget=config.budget, generator=generator)


def read(setting: Setting, number: int, public: Sequence[int]) -> Read:
    """One pair with what is told, usual and tried."""
    case, config = setting.case(number), setting.config
    (length,) = case.knowledge.lengths
    usual = int(np.median(public))
    by_length = {one: attacked(case, config, one, number) for one in {length, usual, *public}}
    nearest = max(set(public), key=lambda one: by_length[one].text_quality)
    taken = (length, usual, nearest)
    scores = [rouge(by_length[one].texts[0], case.texts[0]).rouge_l for one in taken]
    return Read(length, taken, (scores[0], scores[1], scores[2]))


def table(pairs: Sequence[Read], seed: int) -> str:
    """The page's lines."""
    rng = np.random.default_rng(seed)
    lines = ["| length | ROUGE-L | right in |", "|---|---|---|"]
    for column, name in enumerate(HOW):
        scores = np.array([pair.rouge_l[column] for pair in pairs])
        mean = Estimate(float(scores.mean()), *ratio_interval(scores, np.ones(len(scores)), rng, 0.95, 2000, True))
        right = sum(pair.taken[column] == pair.length for pair in pairs)
        lines.append(f"| {name} | {mean.text()} | {right} of {len(pairs)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a text's length is worth to an attack on pairs.")
    parser.add_argument("pairs", help="scenes, nlvr-true:DIR, ...")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--public", type=int, default=80)
    parser.add_argument("--budget", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    config = PairConfig(pairs=told.pairs, count=told.count, public=told.public, budget=told.budget, seed=told.seed,
                        attacks=(ATTACK,))  # fmt: skip
    setting = PairStudy(config).setting
    public = lengths_of(setting)
    print(f"{len(set(public))} lengths from {min(public)} to {max(public)} among {len(public)} public texts")
    print(table([read(setting, number, public) for number in range(told.count)], told.seed))
    print(f"{time.process_time() - began:.0f} s of one thread")


if __name__ == "__main__":
    main()
