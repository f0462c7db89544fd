"""``python -m scripts.mutants``: how many small wrong changes do the tests beside the code notice?

Options: ``--only TEXT`` (source files whose path contains it; may be repeated), ``--identity ID`` (one mutant, in the
sample or not), ``--out FILE`` (results as JSON, from which a later run goes on), ``--seconds`` (of CPU, after which it
stops). Exit 1 where a mutant passes the tests and is not explained, or an explanation is stale.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from scripts.mutants.operators import mutants_of
from scripts.mutants.outcomes import Results, explained, stale
from scripts.mutants.runner import Workshop
from scripts.mutants.table import BESIDE, ROOT, SOURCE, TESTS, sample


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="source files whose path contains this")
    parser.add_argument("--identity", action="append", default=[], help="this mutant, in the sample or not")
    parser.add_argument("--out", type=Path, help="write the results there, after every mutant; go on from there")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant after so many of CPU")
    options = parser.parse_args(arguments)
    sources = [source for source in BESIDE if not options.only or any(part in source for part in options.only)]
    reasons, start, bad = explained(), time.monotonic(), 0
    for fault in stale(reasons):
        print(f"stale: {fault}", file=sys.stderr)
        bad = 1
    results = Results.of(options.out)
    workshop = Workshop([module(source) for source in sources], ROOT)
    for source in sources:
        chosen = sample(source)
        if options.identity:
            chosen = [m for m in mutants_of(SOURCE / source, ROOT) if m.identity in options.identity]
        chosen = [mutant for mutant in chosen if mutant.identity not in results]
        if not chosen:
            continue
        tests = [TESTS / name for name in BESIDE[source]]
        if sum(os.times()[:4]) > options.seconds:
            break
        cost = workshop.cost(tests)
        for mutant in chosen:
            if sum(os.times()[:4]) > options.seconds:
                break
            outcome = workshop.attempt(mutant, module(source), tests, cost)
            results.add(source, mutant, outcome, reasons.get(mutant.identity))
            if not outcome.noticed:
                print(f"{source}:{mutant.line} {mutant}  [{reasons.get(mutant.identity, 'NOT EXPLAINED')}]", flush=True)
    print(results.table(time.monotonic() - start))
    return max(bad, int(bool(results.unexplained)))


def module(source: str) -> str:
    return "docleak." + source.removesuffix(".py").replace("/", ".")


if __name__ == "__main__":
    sys.exit(main())
