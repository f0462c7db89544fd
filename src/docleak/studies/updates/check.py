"""Whether anything may be concluded of a captured update: the checks, the alarms, and the causes of those that ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from docleak.attacks.gradients.algebra.bag import tables_of
from docleak.attacks.gradients.selftest import SelfTest
from docleak.models.base import trainable
from docleak.spec import counted_words
from docleak.studies.updates.case import SAME, UpdateCase
from docleak.studies.updates.causes import Diagnosis
from docleak.studies.updates.round import ImitatedRound
from docleak.studies.updates.secure import is_secure
from docleak.studies.updates.told import unlike
from docleak.studies.updates.traces import Cause
from docleak.training.objectives.tasks import QUESTIONS

#: Steps and examples up to which the self-test imitates a client's whole round.
TESTED_STEPS, TESTED_EXAMPLES = 40, 64
#: Share of a table's rows from which "read" means that nothing was told apart.
ALL_ROWS = 0.9
#: Relative distance from which more of it says nothing.
FAR = 100
#: Share of right tokens below which a bag is mostly wrong.
MOSTLY_WRONG = 0.5

#: The round with the pages of the other clients, by name; made only where causes are looked for.
Others = Callable[[], Mapping[str, ImitatedRound]]


def told_test(test: SelfTest | None) -> dict[str, Any] | None:
    """A self-test as records hold it."""
    return None if test is None else {"distance": test.distance, "tolerance": test.tolerance, "passed": test.passed}


def check(case: UpdateCase, words: Mapping[str, Any], others: Others) -> dict[str, Any]:
    """The self-test of the whole round with the true pages, the recorded number of examples, what the words say of
    themselves; where the round is not reproduced, its possible causes.

    {"self_test": None where the round was not imitated, "doubts": sentences that forbid an all-clear, "causes"}. The
    rounds that make up a sum are trained again or not at all.
    """
    total = is_secure(case.update)
    tested = not total and imitable(case.round)
    test = case.round.test() if tested else None
    doubts = [*_of_round(case, test, tested=tested), *([] if total else _of_examples(case)), *_of_words(case, words)]
    failed = tested and (test is None or not test.passed or bool(case.unsent))
    if test is not None and test.passed:  # what came is reproduced: what did not come is all that there is to explain
        causes = tuple(_search(case, {}).left_out()) if failed else ()
    else:
        causes = diagnosed(case, others) if failed else ()
    said = [{**asdict(cause), "reproduces": cause.reproduces} for cause in causes]
    return {"self_test": told_test(test), "doubts": doubts, "causes": said}


def imitable(taken: ImitatedRound) -> bool:
    """Whether the self-test can imitate the whole round, and it is short enough."""
    short = len(taken.batches) <= TESTED_STEPS and len(taken.truth.examples) <= TESTED_EXAMPLES
    return taken.plan.objective == QUESTIONS and short


def diagnosed(case: UpdateCase, others: Others) -> tuple[Cause, ...]:
    """Possible causes, the most probable first."""
    return _search(case, others()).causes()


def _search(case: UpdateCase, others: Mapping[str, ImitatedRound]) -> Diagnosis:
    update = case.update
    return Diagnosis(
        case.round, update.received(), update.start(), case.unsent, update.kind, unlike(update), tuple(update.names),
        others=others,
    )  # fmt: skip


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
            f"Nothing could be checked: {counted_words(len(case.batches), 'step')} over "
            f"{counted_words(len(case.round.truth.examples), 'example')} of "
            f"the objective {case.plan.objective!r}; up to {TESTED_STEPS} steps over {TESTED_EXAMPLES} questions are "
            "imitated."
        )
    elif tested and test is None:
        lines.append("Nothing of the update rises above the rounding of the weights it was sent as.")
    elif test is not None and not test.passed:
        inverted = case.plan.optimiser == "adamw" and len(case.batches) == 1
        of = ", in the gradients to which one AdamW step is inverted" if inverted else ""
        measured = f"{test.distance:.1e}" if test.distance < FAR else f"above {FAR}"
        lines.append(
            f"The self-test failed: the true pages, trained as described, give another update (relative distance "
            f"{measured}, expected at most {test.tolerance:.0e}{of})."
        )
    if case.unsent:
        count = sum(1 for _ in trainable(case.model.module))
        lines.append(
            f"{len(case.unsent)} of the model's {count} tensors did not come; what they hold was not looked at."
        )
    return lines


def _of_examples(case: UpdateCase) -> list[str]:
    reported, there = case.update.examples, len(case.examples)
    if case.update.kind == "gradient" or reported in (0, there, len(case.round.truth.examples)):
        return []
    return [
        f"The client reported {counted_words(reported, 'example')}, and these pages have {there} (on "
        f"{counted_words(len(case.pages), 'page')}): they are probably not what it trained on."
    ]


def _of_words(case: UpdateCase, words: Mapping[str, Any]) -> list[str]:
    if "failed" in words:
        return []
    lines = []
    _, axes = tables_of(case.model)
    sizes = {name: len(p) for name, p in case.model.module.named_parameters()}
    full = [axis for axis, seen in words["places"].items() if seen["found"] >= ALL_ROWS * sizes[axes[axis]]]
    if full:
        lines.append(f"All coordinates {' and '.join(full)} seem read: every row of the table moved, so none is told.")
    if words["found"] and words["precision"] < MOSTLY_WRONG:
        lines.append(f"Most of the tokens read are wrong ({words['right']} of {words['found']} are right).")
    return lines
