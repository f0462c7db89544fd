"""What a reader of a round's sum learns of one provider where each silo compresses its own share of the noise.

    python -m scripts.compressed_shares [--seed N] [--trials 1500]

A hundred silos with 2,000 weights send noise alone, but for one provider that moves one weight by the whole clipping
norm, in half of the trials. Each sends the largest thousandth of its update, packed as docleak packs it; a trial is
called one with the provider where that weight's sum is above half of the norm.
``docleak train`` refuses such a plan.
"""

from __future__ import annotations

import argparse

import numpy as np

from docleak.privacy.budget import noise_for
from docleak.privacy.empirical import Trials, lower_bound
from docleak.privacy.mechanism import Mechanism
from docleak.training.federated.wire import Compression, pack, unpack

SILOS, WEIGHTS, MOVED, CLIP, DELTA = 100, 2000, 7, 0.5, 1e-5


def summed(moves: bool, sigma: float, compression: Compression, rng: np.random.Generator) -> float:
    """The sum at the weight that the provider moves, of one round."""
    total = 0.0
    for silo in range(SILOS):
        update = sigma * CLIP / np.sqrt(SILOS) * rng.standard_normal(WEIGHTS)
        update[MOVED] += CLIP * (moves and silo == 0)
        packed = pack({"w": update.astype(np.float32)}, compression)
        total += float(unpack(packed, {"w": (WEIGHTS,)}, compression)["w"][MOVED])
    return total


def main() -> None:
    """Print what is claimed, and what the trials show at least."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=1500)
    given = parser.parse_args()
    rng, compression = np.random.default_rng(given.seed), Compression.of("topk:0.001")
    claimed = noise_for(Mechanism(1.0, 1), 1.0, DELTA)
    sigma = claimed.mechanism.noise_multiplier
    hits, alarms = (
        sum(summed(moves, sigma, compression, rng) > CLIP / 2 for _ in range(given.trials)) for moves in (True, False)
    )
    print(f"Claimed: {claimed.sentence()}")
    trials = Trials(hits=hits, members=given.trials, alarms=alarms, others=given.trials)
    print(f"Measured: {lower_bound(trials, delta=DELTA).sentence()}")


if __name__ == "__main__":
    main()
