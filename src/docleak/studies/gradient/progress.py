"""How far an audit of gradients is: which attacks were not made on all pages that were asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docleak.report.statement import counted_words
from docleak.runs.run import Run
from docleak.studies.gradient.config import FLOOR

#: Attacks that are not finished, told one by one; of more their number.
TOLD = 3


@dataclass(frozen=True)
class Lag:
    """An attack on a model (a key) that was made on ``done`` of the ``planned`` pages."""

    model: str
    attack: str
    done: int
    planned: int


def lags(runs: Sequence[Run], records: Sequence[Mapping[str, Any]]) -> list[Lag]:
    """What is missing of these ``records`` of the runs, attack by attack; what does not apply to a model is not asked
    for. Of a model whose pages are more than were planned, each attack has to be made on all of them."""
    done = Counter((str(record["model"]), str(record["attack"])) for record in records)
    planned: Counter[tuple[str, str]] = Counter()
    for run in runs:
        config, info = run.config.get("audit", run.config), run.info
        pages = min(int(config["pages"]), int(info["found"]))
        left_out = {(one.get("model"), one.get("attack")) for one in info.get("skipped", ())}
        for model in info.get("models", ()):
            asked = {(model, str(attack)) for attack in config.get("attacks", ())} - left_out
            floor = {(model, FLOOR)} & set(done)  # of a model that none of the attacks applies to
            planned.update(dict.fromkeys(asked or floor, pages))
    most = {model: max(count for (of, _), count in done.items() if of == model) for model, _ in done}
    wanted = {pair: max(count, most.get(pair[0], 0)) for pair, count in planned.items()}
    return [Lag(*pair, done[pair], count) for pair, count in sorted(wanted.items()) if done[pair] < count]


def unfinished(runs: Sequence[Run], records: Sequence[Mapping[str, Any]]) -> str:
    """The same in words: "1 of 2 pages by dlg"; "" where all of it is finished."""
    titles = {key: facts.get("title", key) for run in runs for key, facts in run.info.get("models", {}).items()}
    missing = lags(runs, records)
    told = [
        f"{lag.done} of {counted_words(lag.planned, 'page')} by {lag.attack}"
        f"{f' on {titles.get(lag.model, lag.model)}' if len(titles) > 1 else ''}"
        for lag in missing[:TOLD]
    ]
    return "; ".join([*told, *([f"and {len(missing) - TOLD} more"] if len(missing) > TOLD else [])])
