"""The range of every number that the command line takes: an option without a line here is a fault of docleak's."""

from __future__ import annotations

from docleak.attacks.registries import PAIRS
from docleak.documents.ranges import MOST_SEED, SEED, Range

_COUNT = Range(0, 1_000_000)
_SOME = Range(1, 1_000_000)
_STEPS = Range(0, 10_000_000)
_SHARE = Range(0, 1)
_POSITIVE = Range(0, 1e6, above=True)

#: Option -> range, for every command that has no line of its own below.
RANGES: dict[str, Range] = {
    "--seed": SEED,
    "--workers": Range(0, 512),
    "--pages": _SOME,
    "--budget": Range(1, 10_000_000),
    "--batch-size": Range(1, 100_000),
    "--rounds": _SOME,
    "--round": _COUNT,
    "--count": _SOME,
    "--skip": _COUNT,
    "--public": _COUNT,
    "--trained": _STEPS,
    "--steps": _STEPS,
    "--utility-steps": _STEPS,
    "--max-steps": _STEPS,
    "--epochs": Range(1, 10_000),
    "--evaluate-every": _COUNT,
    "--clients": Range(1, 1_000),
    "--documents": Range(1, 100_000),
    "--minimum": Range(0, 1_000),
    "--participation": Range(0, 1, above=True),
    "--holdout": Range(0, 0.999999),
    "--server-rate": Range(0, 1e3, above=True),
    "--beta1": Range(0, 0.999999),
    "--beta2": Range(0, 0.999999),
    "--learning-rate": Range(0, 1e3),
    "--weight-decay": Range(0, 1e3),
    "--clip-norm": _POSITIVE,
    "--epsilon": Range(0, 1e9, above=True),
    "--noise": Range(0, 1e9),
    "--delta": Range(0, 1, above=True),
    "--units": Range(0, 10**12),
    "--denominator": Range(0, 10**12),
    "--secure-threshold": Range(0, 1_000),
    "--secure-limit": Range(0, 1e9),
    "--threshold": Range(-1, 1),
    "--strength": Range(0, 1e6),
    "--known": _SHARE,
    "--searched": Range(0, 10_000),
    "--seeds": Range(1, 10_000),
    "--canaries": Range(2, 100_000),
    "--others": Range(1, 100_000),
    "--guesses": Range(0, 100_000),
    "--confidence": Range(0.5, 0.999999),
    "--fields": _COUNT,
    "--attempts": Range(1, 10_000),
    "--candidates": Range(1, 1_000_000),
    "--weight": _SHARE,
    "--top-p": _SHARE,
    "--width": Range(192, 20_000),
    "--height": Range(224, 20_000),
    "--partition": Range(1, 10_000),
    "--issuers": Range(1, 100_000),
    "--per-issuer": Range(3, 1_000),
    "--page": _COUNT,
    "--port": Range(1, 65_535),
    "--superlink-port": Range(1, 65_535),
    "--timeout": Range(1, 86_400 * 7),
    "--days": Range(1, 36_500),
    "--noise-std": Range(0, 1e9),
}
#: (command, option) -> range, where 0 or -1 stands for something, or the command means another thing.
RANGES_OF: dict[tuple[str, str], Range] = {
    ("reproduce", "--seed"): Range(-1, MOST_SEED),
    ("reproduce", "--pages"): _COUNT,
    ("reproduce", "--rounds"): _COUNT,
    ("reproduce", "--budget"): Range(0, 10_000_000),
    ("attack cdmi", "--pages"): _COUNT,
    ("attack cdmi", "--epochs"): Range(0, 10_000),
    ("train central", "--pages"): _COUNT,
    **{(f"attack {name}", "--epsilon"): Range(0, 1e9) for name in PAIRS.entries},
}


def range_of(command: str, option: str) -> Range | None:
    """The range of an option of a command such as ``train central``, or None where none is known."""
    return RANGES_OF.get((command, option), RANGES.get(option))
