"""Whether anything may be concluded of a captured update: the checks, the alarms, and the causes of those that ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scipy import stats

from docleak.attacks.gradients.algebra.bag import TABLES
from docleak.attacks.gradients.selftest import SelfTest
from docleak.evidence.update_case import SAME, UpdateCase
from docleak.evidence.update_causes import Cause, Diagnosis
from docleak.evidence.update_trial import Trial
from docleak.training.objectives.table import QUESTIONS

#: Steps and examples up to which the self-test imitates a client's whole round.
TESTED_STEPS, TESTED_EXAMPLES = 40, 64
#: Share of a table's rows from which "read" means that nothing was told apart.
ALL_ROWS = 0.9
#: Share of right tokens below which a bag is mostly wrong.
MOSTLY_WRONG = 0.5
#: Chance of calling fields told that are not, where the checks have failed.
BY_CHANCE = 0.01

#: Tokens that are read and true, as a share of those that are either, from which a bag is that of these pages.
SAME_TOKENS = 0.9

#: The other clients of the round with their pages, by name; made only where causes are looked for.
Others = Callable[[], Mapping[str, Trial]]


@dataclass(frozen=True)
class Check:
    """``doubts`` are sentences that forbid an all-clear; ``test`` is None where the round was not imitated."""

    test: SelfTest | None
    doubts: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()

    def to_json(self) -> dict[str, Any]:
        test = self.test and {"distance": self.test.distance, "tolerance": self.test.tolerance,
                              "passed": self.test.passed}  # fmt: skip
        causes = [{**asdict(cause), "reproduces": cause.reproduces} for cause in self.causes]
        return {"self_test": test, "doubts": list(self.doubts), "causes": causes}


def check(case: UpdateCase, words: Mapping[str, Any], others: Others) -> Check:
    """The self-test of the whole round with the true pages, the recorded number of examples, what the words say of
    themselves; where the round is not reproduced, its possible causes."""
    trial = trial_of(case)
    test = trial.test() if trial else None
    doubts = [*_of_round(case, test, tested=trial is not None), *_of_examples(case), *_of_words(case, words)]
    failed = trial is not None and (test is None or not test.passed or bool(case.unsent))
    causes = diagnosed(case, trial, others) if failed and trial else ()
    return Check(test, tuple(doubts), causes)


def check_of_sum(case: UpdateCase, words: Mapping[str, Any]) -> Check:
    """Of a sum of silos, whose rounds are trained again or not at all."""
    return Check(None, (*_of_round(case, None, tested=False), *_of_words(case, words)))


def trial_of(case: UpdateCase) -> Trial | None:
    """The round with the true pages; None where it cannot be imitated, or is too long."""
    used = case.trained_on
    if case.plan.objective != QUESTIONS or len(case.batches) > TESTED_STEPS or len(used) > TESTED_EXAMPLES:
        return None
    examples = sorted({number for batch in case.batches for number in batch})
    places = {number: place for place, number in enumerate(examples)}
    batches = [[places[number] for number in batch] for batch in case.batches]
    return Trial.of(case.model, case.delta, case.plan, case.batching, case.pages, used, batches)


def diagnosed(case: UpdateCase, trial: Trial, others: Others) -> tuple[Cause, ...]:
    """Possible causes, the most probable first."""
    return Diagnosis(trial, case.update.received(), case.update.start(), case.unsent, others()).causes()


def beyond_chance(words: Mapping[str, Any]) -> bool:
    """Whether more private fields of these pages are told than of pages that nobody has (Fisher's exact test), or the
    tokens read are those of these pages, and of none of those."""
    (held, of), (chance, among) = words["fields"], words["control"]
    table = [[held, of - held], [chance, among - chance]]
    if of and among and stats.fisher_exact(table, alternative="greater").pvalue < BY_CHANCE:
        return True
    controls = words.get("control_tokens", ())
    return bool(controls) and alike(words) > max(SAME_TOKENS, *controls)


def alike(words: Mapping[str, Any]) -> float:
    """Tokens that are both read and true, as a share of those that are either."""
    either = words["found"] + words["true"] - words["right"]
    return float(words["right"] / either) if either else 0.0


def _of_round(case: UpdateCase, test: SelfTest | None, *, tested: bool) -> list[str]:
    lines = []
    distance = case.replay.distance
    replayed = distance is not None and distance <= SAME
    if distance is not None and not replayed:
        lines.append(
            f"Trained again from the recorded seed, the client sends something else (distance {distance:.1e})."
        )
    if not tested and not replayed:
        lines.append(
            f"Nothing could be checked: {len(case.batches)} steps over {len(case.trained_on)} examples of the "
            f"objective {case.plan.objective!r}; up to {TESTED_STEPS} steps over {TESTED_EXAMPLES} questions are "
            "imitated."
        )
    elif tested and test is None:
        lines.append("Nothing of the update rises above the rounding of the weights it was sent as.")
    elif test is not None and not test.passed:
        lines.append(
            f"The self-test failed: the true pages, trained as described, give another update (relative distance "
            f"{test.distance:.1e}, expected at most {test.tolerance:.0e})."
        )
    if case.unsent:
        count = len(case.unsent) + len(case.delta)
        lines.append(
            f"{len(case.unsent)} of the model's {count} tensors did not come; what they hold was not looked at."
        )
    return lines


def _of_examples(case: UpdateCase) -> list[str]:
    reported, there = case.update.examples, len(case.examples)
    if case.update.kind == "gradient" or not reported or reported == there:
        return []
    return [
        f"The client reported {reported} examples, and these pages have {there} (on {len(case.pages)} pages): they are "
        "probably not what it trained on."
    ]


def _of_words(case: UpdateCase, words: Mapping[str, Any]) -> list[str]:
    if "failed" in words:
        return []
    lines = []
    _, axes = TABLES[case.model.architecture]
    sizes = {name: len(p) for name, p in case.model.module.named_parameters()}
    full = [axis for axis, seen in words["places"].items() if seen["found"] >= ALL_ROWS * sizes[axes[axis]]]
    if full:
        lines.append(f"All coordinates {' and '.join(full)} seem read: every row of the table moved, so none is told.")
    if words["found"] and words["precision"] < MOSTLY_WRONG:
        lines.append(f"Most of the tokens read are wrong ({words['right']} of {words['found']} are right).")
    return lines
