"""jax_privacy's bounds (Apache-2.0) of each set of scores; runs in an environment with jax_privacy alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from exchange import answer, asked, timed
from jax_privacy import auditing

job, arrays = asked()
error, delta = job["error"], job["delta"]
#: The repository's own, newer than the release: its epsilon_from_gdp no longer takes the wrong direction for evidence.
spec = importlib.util.spec_from_file_location("newest", Path(job["source"]) / "jax_privacy" / "auditing.py")
newest: Any = importlib.util.module_from_spec(spec) if spec else None
sys.modules["newest"] = newest
spec.loader.exec_module(newest)  # type: ignore[union-attr]


def strategy(name: str) -> Any:
    """Its own way to pick a threshold."""
    if name == "explicit":
        return auditing.Explicit(0.0)
    return {"Bonferroni": auditing.Bonferroni, "Split": auditing.Split, "MultiSplit": auditing.MultiSplit}[name](
        **({} if name == "Bonferroni" else {"seed": 0})
    )


def bound(of: Any, method: str, how: str) -> float:
    """One of its bounds."""
    if method == "gdp":
        return float(of.epsilon_from_gdp(error, delta))
    if method == "clopper_pearson":
        return float(of.epsilon_clopper_pearson(error, delta, one_sided=False, threshold_strategy=strategy(how)))
    call = {"one_run": of.epsilon_one_run, "one_run_fdp": of.epsilon_one_run_fdp}[method]
    return float(call(error, delta, threshold_strategy=strategy(how)))


found: list[dict[str, Any]] = []
for name, wanted in job["sets"].items():
    scores, coins = arrays[f"{name}/scores"], arrays[f"{name}/coins"]
    for method, how in wanted:
        library = newest if how == "repository" else auditing
        auditor = library.CanaryScoreAuditor(scores[coins], scores[~coins])
        epsilon, seconds = timed(lambda m=method, h=how, a=auditor: bound(a, m, h))
        found.append({"set": name, "method": method, "how": how, "epsilon": epsilon, "seconds": seconds})
answer({"bounds": found})
