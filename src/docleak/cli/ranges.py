"""The range of every number that hand-written commands take: one without a line here is a fault of docleak's. Options
of studies have theirs beside the fields of their configurations."""

from __future__ import annotations

from docleak.documents.ranges import BUDGET, COUNT, DELTA, MOST_SEED, SEED, SOME, Range

#: Option -> range, for every command that has no line of its own below.
RANGES: dict[str, Range] = {
    "--seed": SEED,
    "--workers": Range(0, 512),
    "--pages": SOME,
    "--budget": BUDGET,
    "--rounds": SOME,
    "--count": SOME,
    "--steps": Range(0, 10_000_000),
    "--evaluate-every": COUNT,
    "--clients": Range(1, 1_000),
    "--clip-norm": Range(0, 1e6, above=True),
    "--epsilon": Range(0, 1e9, above=True),
    "--noise": Range(0, 1e9),
    "--delta": DELTA,
    "--units": Range(0, 10**12),
    "--denominator": Range(0, 10**12),
    "--secure-threshold": Range(0, 1_000),
    "--width": Range(192, 20_000),
    "--height": Range(224, 20_000),
    "--partition": Range(1, 10_000),
    "--issuers": Range(1, 2_196),  # as many as documents.issuers has
    "--per-issuer": Range(3, 1_000),
    "--dpi": Range(36, 1_200),
    "--page": COUNT,
    "--port": Range(1, 65_535),
    "--superlink-port": Range(1, 65_535),
    "--timeout": Range(1, 86_400 * 7),
    "--days": Range(1, 36_500),
    "--noise-std": Range(0, 1e9),
    "--vocabulary": Range(2, 10_000_000),
    "--words": SOME,
    "--patches": COUNT,
    "--rank": COUNT,
    "--adapted": Range(0, 3),
    "--tower-width": COUNT,
    "--tower-patches": SOME,
    "--tiles": SOME,
    "--local-steps": SOME,
}
#: (command, option) -> range, where 0 or -1 stands for something, or the command means another thing.
RANGES_OF: dict[tuple[str, str], Range] = {
    ("reproduce", "--seed"): Range(-1, MOST_SEED),
    ("reproduce", "--pages"): COUNT,
    ("reproduce", "--rounds"): COUNT,
    ("reproduce", "--budget"): Range(0, 10_000_000),
    ("reproduce", "--issuers"): Range(0, 2_196),
    ("reproduce", "--per-issuer"): Range(0, 1_000),
    ("plan", "--width"): Range(8, 1_000_000),
    ("plan", "--clients"): SOME,
}


def range_of(command: str, option: str) -> Range | None:
    """The range of an option of a command such as ``data make``, or None where none is known."""
    return RANGES_OF.get((command, option), RANGES.get(option))
