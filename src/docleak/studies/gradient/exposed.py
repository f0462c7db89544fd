"""What a client sent and under which defence, in parts of a report's sentences (all "" for a whole, plain gradient);
and how far an audit is: which attacks were not made on all pages that were asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docleak.defenses.registry import DEFENSES
from docleak.runs.run import Run
from docleak.spec import counted_words, split_name
from docleak.studies.gradient.config import FLOOR

#: The defence of docleak's that changes the template; its others leave it blank.
PERTURBED = "safe-template"
#: Attacks that are not finished, told one by one; of more their number.
TOLD = 3


def defence_of(run: Run) -> str:
    """The defence under which the gradient was taken, by its name and options; "" where there is none."""
    defence = str((run.config.get("exposure") or {}).get("defense", "none"))
    return "" if defence == "none" else defence


def part_sent(run: Run) -> str:
    """Which part of the gradient was sent, to stand behind "gradient"; "" where all of it was."""
    stages = (run.config.get("exposure") or {}).get("stages")
    return f" of the {' and '.join(stages)} parameters alone" if stages else ""


def in_place(run: Run) -> str:
    """The defence as a part of a sentence; "" where there is none."""
    return f"with the defence {defence} in place" if (defence := defence_of(run)) else ""


def published(run: Run) -> str:
    """How the template that the attacker had differs from the blank one, or may; "" where it is the blank one."""
    name, _ = split_name(defence_of(run))
    if not name or (name in DEFENSES.entries and name != PERTURBED):
        return ""
    how = f"{'perturbed' if name == PERTURBED else 'published'} by the defence {defence_of(run)}"
    cleaned = (run.config.get("exposure") or {}).get("clean_template")
    return f"{how}, the perturbation taken off again as far as the attacker could" if cleaned else how


def other_than_usual(exposure: Mapping[str, Any]) -> list[str]:
    """What of an exposure is not the default, part sent and defence apart."""
    recovered = bool(exposure.get("recover_text"))
    told = {
        "dropout on": exposure.get("train_mode"),
        "as recorded": exposure.get("gradient_file"),
        "random text": exposure.get("random_text"),
        "text read out of it": recovered,
        "question not known": not (exposure.get("question_known", True) or recovered),
        "answer not known": not (exposure.get("answer_known", True) or recovered),
        "template cleaned": exposure.get("clean_template"),
    }
    return [words for words, holds in told.items() if holds]


def signed(exposure: Mapping[str, Any]) -> str:
    """All of an exposure that is not the default, to stand behind other settings in a run's signature."""
    stages, defence = exposure["stages"], exposure["defense"]
    part = [f"{' and '.join(stages)} parameters alone"] if stages else []
    defended = [f"defence {defence}"] if defence != "none" else []
    return "".join(f", {told}" for told in (*part, *other_than_usual(exposure), *defended))


def tested(record: Mapping[str, Any]) -> str:
    """The gradient that a unit's self-test is about: what the client computed, before any defence."""
    plain = record["view"].get("defense", "none") == "none"
    return "the observed gradient" if plain else "the gradient before the defence"


def measured_on(run: Run) -> str:
    """What was measured, where not the whole gradient was sent, not without a defence, or not as usual."""
    part, others = part_sent(run), other_than_usual(run.config.get("exposure") or {})
    apart = f" ({', '.join(others)})" if others else ""
    seen = f"from the gradient{part}{apart}" if part or apart else ""
    return ", ".join(filter(None, [seen, in_place(run)]))


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
    without = unbegun(runs)
    for run in (run for run in runs if run not in without):
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


def unbegun(runs: Sequence[Run]) -> list[Run]:
    """Of several runs those that have no finished unit. Whether their pages are the others' cannot be told of them."""
    return [run for run in runs if not run.units()] if len(runs) > 1 else []


def unfinished(runs: Sequence[Run], records: Sequence[Mapping[str, Any]]) -> str:
    """The same in words: "1 of 2 pages by dlg", runs of which nothing is there, and what failed for good; "" where all
    of it is finished."""
    titles = {key: facts.get("title", key) for run in runs for key, facts in run.info.get("models", {}).items()}
    missing = lags(runs, records)
    told = [
        f"{lag.done} of {counted_words(lag.planned, 'page')} by {lag.attack}"
        f"{f' on {titles.get(lag.model, lag.model)}' if len(titles) > 1 else ''}"
        for lag in missing[:TOLD]
    ]
    told += [f"and {len(missing) - TOLD} more"] if len(missing) > TOLD else []
    told += [f"nothing of {run.path}" for run in unbegun(runs)]
    failed = [f"{unit}: {error.rstrip('.')}" for run in runs for unit, error in run.failures().items()]
    return "; ".join([*told, *([f"{len(failed)} failed for good, first {failed[0]}"] if failed else [])])
