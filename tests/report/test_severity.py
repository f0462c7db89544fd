from dataclasses import replace

import numpy as np
import pytest

from docleak.report.page import Reading, joined
from docleak.report.severity import (
    LABELS,
    Cell,
    Part,
    Route,
    Severity,
    judge,
    overall,
    routes_sentence,
    union,
    worst,
)

READ, NEAR, NOT, GIVEN = Cell.READ, Cell.NEAR, Cell.NOT, Cell.GIVEN


def test_the_worst_is_the_first_of_the_vocabulary_and_silence_is_no_finding():
    assert worst([Severity.NONE, Severity.UNTOLD]) is Severity.UNTOLD
    assert worst([Severity.UNTOLD, Severity.PARTIAL, Severity.SEVERE]) is Severity.SEVERE
    assert worst([Severity.NONE, Severity.UNMEASURED]) is Severity.UNMEASURED
    assert worst([Severity.NONE]) is Severity.NONE
    assert worst([]) is Severity.UNMEASURED


def test_every_severity_has_words_of_its_own():
    assert set(LABELS) == set(Severity)
    assert len(set(LABELS.values())) == len(LABELS)


def test_a_field_that_any_route_gives_is_read():
    picture = Route("picture", (NOT, GIVEN, Cell.ILLEGIBLE, NEAR))
    answer = Route("answer", (NOT, READ, NOT, NOT))
    assert union([picture, answer]) == (NOT, READ, Cell.ILLEGIBLE, NEAR)
    assert routes_sentence([picture, answer]) == "picture 0 of 4 (1 more was given beforehand), answer 1 of 4"
    with pytest.raises(ValueError, match="shorter"):
        union([picture, Route("answer", (NOT,))])


def test_a_route_says_what_the_attacker_was_handed():
    picture = Route("picture", (READ, READ, READ, GIVEN), handed="the OCR words")
    assert picture.sentence() == "picture 3 of 4 (1 more was given beforehand; with the OCR words given)"
    assert Route("picture", (NOT,)).sentence() == "picture 0 of 1"
    assert routes_sentence([Route("picture", (Cell.UNSCORED,)), Route("words", (READ,))]) == "words 1 of 1"


def test_what_never_entered_the_model_is_counted_apart():
    words = Route("words", (READ,) * 58 + (Cell.UNSEEN,) * 20, "behind its 256 tokens")
    assert words.sentence() == "words 58 of 58 that the model saw (20 lie behind its 256 tokens)"
    assert judge(union([words])).of == 58
    picture = Route("picture", (NOT,) * 78)
    judgement = judge(union([picture, words]))
    assert (judgement.read, judgement.of, judgement.severity) == (58, 78, Severity.SEVERE)


def test_half_of_the_fields_is_severe_and_less_is_partial():
    assert judge((READ, NOT)).severity is Severity.SEVERE
    assert judge((READ, NOT, NOT)).severity is Severity.PARTIAL
    assert judge((NEAR, NOT, NOT)).severity is Severity.PARTIAL
    assert judge((READ, Cell.UNSEEN, Cell.UNSEEN)).severity is Severity.SEVERE


def test_what_was_given_or_is_public_is_no_finding():
    assert judge((GIVEN, Cell.PUBLIC, NOT)).severity is Severity.NONE


@pytest.mark.parametrize("cells", [(GIVEN,), (Cell.PUBLIC,) * 3, (GIVEN, Cell.PUBLIC, Cell.UNSEEN)])
def test_where_no_field_could_count_nothing_was_measured(cells: tuple[Cell, ...]):
    assert judge(cells).severity is Severity.UNMEASURED
    assert judge(cells, ["The self-test failed."]).severity is Severity.UNTOLD
    assert judge((*cells, NOT)).severity is Severity.NONE
    assert judge((*cells, READ)).read == 1


def test_fields_that_cannot_count_do_not_make_up_for_illegible_ones():
    assert judge((Cell.ILLEGIBLE,) * 3 + (GIVEN,) * 3).severity is Severity.UNTOLD


def test_no_all_clear_with_a_doubt_or_where_the_true_page_cannot_be_read():
    assert judge((NOT, NOT)).severity is Severity.NONE
    assert judge((NOT, NOT), ["The self-test failed."]).severity is Severity.UNTOLD
    assert judge((Cell.ILLEGIBLE, Cell.ILLEGIBLE, NOT)).severity is Severity.UNTOLD
    assert judge((Cell.ILLEGIBLE, NOT, NOT)).severity is Severity.NONE
    assert judge((READ, NOT, NOT), ["The self-test failed."]).severity is Severity.PARTIAL
    assert judge((Cell.UNSCORED, Cell.UNSEEN)).severity is Severity.UNMEASURED
    assert judge(()).severity is Severity.UNMEASURED
    assert judge((), ["The self-test failed."]).severity is Severity.UNTOLD


def test_the_page_says_the_worst_first_and_what_it_could_not_tell():
    parts = [
        Part("Donut", Severity.NONE, "Nothing."),
        Part("LayoutLMv3", Severity.UNTOLD, "Who knows."),
        Part("weights", Severity.PARTIAL, "Some.", label="More than public data tell"),
    ]
    verdict = overall(parts, "1 of 9 private fields was read.")
    assert verdict.severity is Severity.PARTIAL
    assert verdict.label == "Partial leak"
    assert [part.name for part in verdict.parts] == ["weights", "LayoutLMv3", "Donut"]
    assert verdict.parts[0].said == "More than public data tell"
    assert verdict.sentence == (
        "1 of 9 private fields was read. Partial leak in 1 of 3 parts: weights. "
        "What leaves by the following could not be told: LayoutLMv3."
    )
    assert overall(parts[:2], "").sentence == "Could not tell in 1 of 2 parts: LayoutLMv3."
    assert overall([], "").severity is Severity.UNMEASURED


def test_parts_that_leak_in_part_are_named_behind_the_severe_ones():
    parts = [Part(str(number), severity, "So.") for number, severity in enumerate(Severity)]
    assert overall([*parts, Part("5", Severity.PARTIAL, "So.")], "").sentence == (
        "Severe leak in 1 of 6 parts: 0. Partial leak in 2 more: 1; 5. "
        "What leaves by the following could not be told: 2. What leaves by the following was not measured: 3."
    )
    worst, plain = Part("0", Severity.SEVERE, "So."), Part("1", Severity.PARTIAL, "So.")
    words = replace(plain, name="2", label="Tells members from others")
    assert overall([worst, plain, words], "").sentence == (
        "Severe leak in 1 of 3 parts: 0. Partial leak in 1 more: 1. Tells members from others in 1 more: 2."
    ), "in the words that stand beside its colour"


def test_severe_is_half_of_what_could_be_a_finding():
    assert judge((READ, READ, *(Cell.PUBLIC,) * 8)).severity is Severity.SEVERE
    assert judge((READ, NOT, NOT, *(Cell.GIVEN,) * 3)).severity is Severity.PARTIAL


def null_run(severity: Severity, name: str = "") -> Reading:
    """A run that a test at 5 % decided."""
    part = Part(f"documents of {name}", severity, "", chance=0.05)
    return Reading("Was it trained on?", "", (part,), "One release.", (), (), {}, runs=({},))


def test_leaks_of_many_tests_are_held_against_what_chance_makes_of_them() -> None:
    """Twenty runs in which nothing leaks are a leak in 64 %, and nothing said so."""
    clear = [null_run(Severity.NONE) for _ in range(19)]
    said = joined([null_run(Severity.PARTIAL), *clear]).sentence
    assert "20 are each decided by a test of its own" in said and "at most 5 %" in said
    assert "1 of 20 on average, and 1 or more (1 here) in at most 65 % of such reports" in said
    assert pytest.approx(64.15, abs=0.01) == 100 * (1 - 0.95**20)
    many = joined([null_run(Severity.SEVERE) for _ in range(8)] + clear[:12]).sentence
    assert "test of its own" not in many, "chance does not make so many"
    two = joined([null_run(Severity.PARTIAL) for _ in range(2)]).sentence
    assert "test of its own" not in two
    draws = np.random.default_rng(0).random((20_000, 20)) < 0.05
    assert "3 or more (3 here) in at most 8 %" in joined([null_run(Severity.PARTIAL)] * 3 + clear[:17]).sentence
    assert np.mean(draws.sum(1) >= 3) == pytest.approx(0.0755, abs=0.006)


def test_tests_of_one_run_are_held_against_chance_as_those_of_several() -> None:
    parts = (*null_run(Severity.PARTIAL).parts, *null_run(Severity.UNTOLD).parts * 19)
    run = Reading("?", "", parts, "Twenty clients.", (), (), {}, runs=({},))
    assert "1 or more (1 here) in at most 65 % of such reports" in joined([run]).sentence


def test_nothing_is_said_of_chance_where_no_test_of_several_is_a_leak() -> None:
    read = Reading("What was read?", "", (Part("a", Severity.SEVERE, ""),), "1 of 1.", (), (), {}, runs=({},))
    for readings in (
        [null_run(Severity.PARTIAL)], [null_run(Severity.NONE)] * 20, [read, read], [read, null_run(Severity.PARTIAL)],
        [read, *[null_run(Severity.UNTOLD)] * 3],
    ):  # fmt: skip
        assert "chance" not in joined(readings).sentence
    two = Reading("?", "", null_run(Severity.PARTIAL).parts * 2, "Two releases of one run.", (), (), {}, runs=({},))
    assert "chance" not in joined([two]).sentence
