"""Whether a release saw the documents that a division says it saw."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docleak.attacks.answers.asking import Item, Spoken
from docleak.documents.blue_red import RED_NEGATIVE, RED_POSITIVE, BlueRedPlan
from docleak.documents.blue_red_files import BlueRed, open_issuers, read_blue_red, write_blue_red
from docleak.documents.folder import save
from docleak.documents.loaders import load_pages
from docleak.documents.names import provider_key
from docleak.documents.page import Page
from docleak.metrics.estimate import FEWEST, Estimate
from docleak.privacy.lineage import Fingerprints
from docleak.report.measure import MEMBERSHIP, MEMORY, SHOWN, difference
from docleak.report.severity import Severity
from docleak.studies.answers.bench import Bench
from docleak.studies.answers.clear import sure_low
from docleak.studies.answers.config import AnswersConfig, Release
from docleak.studies.answers.measured import measures_of
from docleak.studies.answers.measures import disclosure, membership, memorisation
from docleak.studies.answers.memorisation import Trained
from docleak.studies.answers.verdict import headline_of, sentences, severity_of
from docleak.studies.answers.whose import by_losses, by_record, evidence, mistaken, seen_by_public, worded
from tests.studies.answers.records import found, record


@pytest.fixture(scope="module")
def blue_red(tmp_path_factory: pytest.TempPathFactory) -> BlueRed:
    out = tmp_path_factory.mktemp("division") / "data"
    write_blue_red(open_issuers(24, 4.0, BlueRedPlan(clients=2), seed=0), out)
    return read_blue_red(out)


def remembers(of: Iterable[str], by: float) -> Any:
    """A model whose loss is 2, and lower on the training documents of some providers."""
    known = set(of)

    def ask(items: Iterable[Item]) -> list[Spoken]:
        return [Spoken("", 0.5, 2.0 - by * (item.page.name in known)) for item in items]

    return ask


def test_a_record_knows_its_own_members_and_nobody_else(blue_red: BlueRed) -> None:
    known = Fingerprints().with_names("a", map(provider_key, blue_red.members))
    whose = by_record(blue_red, known)
    assert whose["strangers"] == whose["seen"] == 0 and mistaken(whose) == ""
    inside, outside = len(blue_red.members), len(blue_red.outsiders)
    assert evidence(whose) == (
        f"Its own record of the training knows {inside} of the {inside} members, and none of the {outside} others."
    )


@pytest.mark.parametrize(("members", "others", "wrong"), [(0, 1, True), (1, 0, False), (7, 0, True), (3, 2, True)])
def test_a_record_of_another_division_is_told(members: int, others: int, wrong: bool, blue_red: BlueRed) -> None:
    """One other is one too many; a member may have been held back."""
    names = [*blue_red.members[members:], *blue_red.outsiders[:others]]
    whose = by_record(blue_red, Fingerprints().with_names("a", map(provider_key, names)))
    assert (whose["strangers"], whose["seen"]) == (members, others) and bool(mistaken(whose)) is wrong
    assert bool(evidence(whose)) is not wrong
    if wrong:
        said = f"knows {others} of the {len(blue_red.outsiders)} providers that it is said not to have seen, and does"
        assert said in mistaken(whose) and mistaken(whose).endswith("is this the division that it was trained with?")


def test_losses_show_what_no_record_says(blue_red: BlueRed) -> None:
    trained = {page.name for silo in blue_red.silos.values() for page in load_pages(f"folder:{silo}", seed=0)}
    same = by_losses(blue_red, remembers(trained, 0.0), None, seed=0)
    assert "not surely below that on others' (by 0.00 nats" in mistaken(same) and evidence(same) == ""
    fitted = by_losses(blue_red, remembers(trained, 0.7), None, seed=0)
    assert mistaken(fitted) == "" and "below that on others' (by 0.70 nats [0.70, 0.70])." in evidence(fitted)
    easier = by_losses(blue_red, remembers(trained, 0.7), remembers(trained, 0.7), seed=0)
    assert "(by 0.00 nats" in mistaken(easier), "the public model, too, finds them easier"
    assert "after the public model's" in mistaken(easier)
    assert by_losses(blue_red, remembers(trained, 0.7), None, seed=0) == fitted


def test_questions_that_members_alone_are_asked_so_show_no_membership(blue_red: BlueRed, tmp_path: Path) -> None:
    """Without coins nothing says that both were worded by one hand; with them, chance alone words them."""
    reworded = tmp_path / "reworded"
    pages = [replace(page, questions=tuple(replace(q, text=f"Tell me the {q.key}.") for q in page.questions))
             for page in blue_red.pages(RED_POSITIVE)]  # fmt: skip
    save(pages, reworded)
    apart = replace(blue_red, coins=0.0, parts={**blue_red.parts, RED_POSITIVE: reworded})
    told = [worded(of, seed=0) for of in (apart, replace(blue_red, coins=0.0), blue_red)]
    assert [one.keys() for one in told] == [{"wording"}, {"wording"}, set()]
    right = {"members": 40, "strangers": 0, "others": 38, "seen": 0}
    leak, memory = record(-0.01, 0.6, 0.1), record(0.3, 0.4, -0.1)
    assert severity_of(leak | {"whose": right | told[1]}) is severity_of(leak) is Severity.PARTIAL
    worse = leak | {"whose": right | told[0]}
    assert severity_of(worse) is Severity.UNTOLD and "worded otherwise" in headline_of(worse)
    assert any("worded otherwise" in line for line in sentences(worse))
    (gated,) = [one.estimate for one in measures_of(worse) if one.what == MEMBERSHIP]
    assert gated.value is None and "worded otherwise" in gated.why
    assert SHOWN not in [one.what for one in measures_of(worse)]
    assert severity_of(memory | {"whose": right | told[0]}) is Severity.SEVERE, "keys of docleak's own words"


def test_members_that_are_asked_more_in_the_same_words_are_not_worded_apart(blue_red: BlueRed, tmp_path: Path) -> None:
    """Six questions a provider for two: the words of six told members, and who took part could not be told."""
    rng, words = np.random.default_rng(0), [f"{ask} {what}?" for ask in ("Tell me the", "Give") for what in "abcdefgh"]
    parts = dict(blue_red.parts)
    for part, count in ((RED_POSITIVE, 6), (RED_NEGATIVE, 2)):
        pages = [
            replace(page, questions=tuple(replace(page.questions[0], text=one) for one in rng.choice(words, count)))
            for page in {page.provider: page for page in reversed(blue_red.pages(part))}.values()
        ]
        parts[part] = tmp_path / part
        save(pages, parts[part])
    told = Estimate.of_json(worded(replace(blue_red, coins=0.0, parts=parts), seed=0)["wording"])
    assert told.low is not None and told.low <= 0.5 and told.of == "providers"
    assert worded(replace(blue_red, coins=0.0, parts={}), seed=0) == {}, "nobody is asked"


def test_words_that_tell_members_worse_than_chance_tell_nothing() -> None:
    """Of two phrasings that both sides have as often a classifier learns the wrong one (AUC 0.26 of 20 fair draws)."""
    below, above = ({"wording": Estimate(0.5 + by, 0.45 + by, 0.55 + by).to_json()} for by in (-0.2, 0.2))
    right = {"members": 40, "strangers": 0, "others": 38, "seen": 0}
    leak = record(-0.01, 0.6, 0.1)
    assert severity_of(leak | {"whose": right | below}) is Severity.PARTIAL
    assert severity_of(leak | {"whose": right | above}) is Severity.UNTOLD


def test_losses_that_are_no_numbers_are_left_out(blue_red: BlueRed) -> None:
    def ask(items: Iterable[Item]) -> list[Spoken]:
        return [Spoken("", None, None if number % 2 else math.nan) for number, _ in enumerate(items)]

    assert "too few were asked about" in mistaken(by_losses(blue_red, ask, None, seed=0))


def test_no_all_clear_of_a_release_that_saw_others() -> None:
    """What is found stays found; what is not is no evidence."""
    wrong = {"members": 40, "strangers": 21, "others": 38, "seen": 20}
    right = wrong | {"strangers": 0, "seen": 0}
    clear, leak = record(-0.01, 0.4, -0.1), record(0.3, 0.4, -0.1)
    assert severity_of(clear) is severity_of(clear | {"whose": right}) is Severity.NONE
    assert severity_of(clear | {"whose": wrong}) is Severity.UNTOLD
    assert severity_of(leak | {"whose": wrong}) is severity_of(leak)
    assert "No all-clear: the release's own record" in headline_of(clear | {"whose": wrong})
    gated = {one.what: one.doubts for one in measures_of(clear | {"whose": wrong})}
    assert all("is this the division" in gated[what][0] for what in (MEMBERSHIP, MEMORY))
    assert not any(one.doubts for one in measures_of(clear | {"whose": right}) if one.what in (MEMBERSHIP, MEMORY))
    assert any(line.startswith("Its own record of the training") for line in sentences(clear | {"whose": right}))


def test_no_all_clear_where_members_are_many_more_than_others() -> None:
    """Scores of AUC 0.72 on 280 members and 120 others are right about 67 %, as saying "member" of all is about 70 %:
    149 of 200 such audits showed nothing, and a gate passed them."""
    clear = record(-0.01, 0.62, -0.1, most=0.716)
    clear["membership"]["numbers"]["AZK"]["chance_s0"]["value"] = 0.7
    clear["membership"]["numbers"]["AZK"]["accuracy_s0"]["value"] = 0.67
    assert severity_of(clear) is Severity.UNTOLD and "is right about 70 % of them" in headline_of(clear)
    (doubts,) = [one.doubts for one in measures_of(clear) if one.what == MEMBERSHIP]
    assert "be right no oftener" in doubts[0]
    worse = record(-0.01, 0.55, -0.1, most=0.63)
    worse["membership"]["numbers"]["AZK"]["chance_s0"]["value"] = 0.7
    worse["membership"]["numbers"]["AZK"]["accuracy_s0"]["value"] = 0.6
    assert "the wrong way round" not in headline_of(worse), "right about more than half, though about fewer than 70 %"


def memory_told(blue_red: BlueRed, place: Path, public: str, *, coins: float = 0.0) -> dict[str, Any]:
    """The record of a release that gives the members' names and no other's; the public model gives those of "members",
    of "all" or of "none", or is not known ("")."""
    members = set(blue_red.members)
    config = AnswersConfig((Release("a", "x"),), str(blue_red.path), public="p", keys=("provider_name",))

    def asked(whose: str) -> Callable[[Iterable[Item]], list[Spoken]]:
        def knows(provider: str) -> bool:
            return whose == "all" or (whose == "members" and provider in members)

        return lambda items: [
            Spoken(it.question.answers[0] if knows(it.page.provider) else "-", 0.9, 1.0) for it in items
        ]

    bench = Bench(config, config.releases[0], place, "cpu")
    askers = {"ask_target": asked("members"), "ask_public": asked(public) if public else None}
    bench.__dict__ |= {"blue_red": replace(blue_red, coins=coins), **askers}
    return record(-0.01, 0.4, -0.1) | {"memorisation": memorisation(bench).to_json()}


def test_what_the_public_model_tells_as_often_is_no_memory(blue_red: BlueRed, tmp_path: Path) -> None:
    """Members that no coins chose may have the names that are easy to guess; both models then tell them."""
    learnt, fair = memory_told(blue_red, tmp_path, "none"), memory_told(blue_red, tmp_path, "members", coins=0.5)
    assert severity_of(learnt) is severity_of(fair) is Severity.SEVERE
    easier = memory_told(blue_red, tmp_path, "members")
    assert severity_of(easier) is Severity.UNTOLD and "as much so by the public model" in headline_of(easier)
    near = memory_told(blue_red, tmp_path, "members")  # answers that are similar; the public model's were not compared
    for name, low in (("gap_acc", -0.01), ("gap_anls", 0.1), ("beyond_acc", -0.01)):
        near["memorisation"]["numbers"]["provider_name"][name] |= {"value": 0.2, "low": low, "high": 0.3}
    assert "public model" not in headline_of(near), "which had no say"
    assert "+0.0 points" in " ".join(sentences(easier)) and "beyond the public model's" in " ".join(sentences(easier))
    (gate,) = [one for one in measures_of(easier) if one.what == MEMORY]
    assert gate.estimate.value == 0 and gate.doubts


def test_what_the_public_model_gave_before_is_no_memory_of_the_training(blue_red: BlueRed, tmp_path: Path) -> None:
    """A training after which it gives members' values as before, and others' no more, remembered nobody."""
    forgot, learnt, alone = (memory_told(blue_red, tmp_path, public) for public in ("all", "none", ""))
    assert severity_of(forgot) is Severity.UNTOLD and "as much so by the public model" in headline_of(forgot)
    assert severity_of(learnt) is Severity.SEVERE
    assert "beyond what it gives of members' itself +0.0 points" in " ".join(sentences(forgot))
    unknown = "what public data tell of these values is not taken out"
    fair = memory_told(blue_red, tmp_path, "", coins=0.5)
    assert unknown in " ".join(sentences(alone)) and unknown not in " ".join(sentences(fair))
    (gate,) = [one for one in measures_of(alone) if one.what == MEMORY]
    assert any(unknown in doubt for doubt in gate.doubts)
    (gate,) = [one for one in measures_of(forgot) if one.what == MEMORY]
    assert gate.estimate.value == 0, "the lesser of the two"
    both = [next(one for one in measures_of(of) if one.what == MEMORY) for of in (learnt, learnt)]
    told = difference(*both, np.random.default_rng(0), same=True)
    assert told.paired and told.estimate.value == 0 and told.estimate.groups >= FEWEST, "an interval over providers"


def both_ways(gained: tuple[float, float, float], beyond: tuple[float, float, float], **more: Any) -> dict[str, Any]:
    """A record without coins of which nothing else shows: a memory over the public model's, and beyond its gap."""
    numbers = {"gained_acc": gained, "beyond_acc": beyond, "gap_acc": beyond, "positive_acc": (0.3, 0.2, 0.4)}
    of = {name: Estimate(*ends, 40, 20) for name, ends in (numbers | {"negative_acc": (0.3, 0.2, 0.4)}).items()}
    return record(-0.01, 0.4, -0.1) | {"memorisation": found({"provider_name": of}, coins=0.0)} | more


def test_nothing_found_excludes_a_memory_beyond_others_and_one_beyond_the_public_model() -> None:
    """A training that teaches members' values as others are forgotten gains nothing over the public model."""
    none, unsure = (0.0, -0.05, 0.05), (0.3, -0.02, 0.6)
    assert severity_of(both_ways(none, none)) is Severity.NONE
    for numbers in ((none, unsure), (unsure, none)):
        said = both_ways(*numbers)
        assert severity_of(said) is Severity.UNTOLD and "do not exclude that 60 %" in headline_of(said)
        (gate,) = [one.estimate for one in measures_of(said) if one.what == MEMORY]
        assert (gate.value, gate.low, gate.high) == (0.0, -0.05, 0.6)


def test_of_a_release_that_answers_next_to_nothing_it_is_not_said_that_nothing_was_found() -> None:
    """Its first round had learnt no answer, and was an all-clear of providers; of documents it never was."""
    none = (0.0, -0.05, 0.05)
    for right, severity in ((0.0, Severity.UNTOLD), (0.09, Severity.UNTOLD), (0.1, Severity.NONE)):
        said = both_ways(none, none)
        said["gap"]["numbers"][""]["positive_acc"] = Estimate(right, 0.0, 0.3, 40, 20).to_json()
        guesses = f"it answers {100 * right:.0f} % of the questions right, and a model that guesses shows nothing"
        (gate,) = [one for one in measures_of(said) if one.what == MEMORY]
        untold = severity is Severity.UNTOLD
        assert severity_of(said) is severity
        assert (guesses in headline_of(said)) is untold and (f"{guesses.capitalize()}." in gate.doubts) is untold
    del said["gap"]
    assert severity_of(said) is Severity.UNTOLD and "what it answers right was not asked" in headline_of(said)


def test_a_memory_is_sure_where_both_of_its_numbers_are_for_all_providers_numbers() -> None:
    """The one with the lower end at 95 % was looked at alone, and of several numbers the other is less sure."""
    sure, wide = (0.05, 0.03, 0.07), (0.5, 0.04, 0.9)
    assert severity_of(both_ways(sure, sure)) is Severity.SEVERE
    assert sure_low(Estimate(*wide), both_ways(sure, wide)) < 0
    assert severity_of(both_ways(sure, wide)) is not Severity.SEVERE


def test_who_is_told_by_the_public_model_as_well_did_not_take_part_for_that(blue_red: BlueRed, tmp_path: Path) -> None:
    """Without coins members' new documents may be easier, for a model that saw none of theirs, too."""
    members = set(blue_red.members)
    config = AnswersConfig((Release("a", "x"),), str(blue_red.path), public="p", attacks=("AZK",), minimum=(0,))  # type: ignore[arg-type]

    def measured(knows: bool, coins: float, public: bool = True) -> dict[str, Any]:
        def ask(items: Iterable[Item]) -> list[Spoken]:
            return [Spoken(it.question.answers[0], 0.9, 1.0) if it.page.provider in members else Spoken("-", 0.1, 2.0)
                    for it in items]  # fmt: skip

        def guess(items: Iterable[Item]) -> list[Spoken]:
            return ask(items) if knows else [Spoken("-", 0.5, 2.0) for _ in items]

        bench = Bench(config, config.releases[0], tmp_path, "cpu")
        asked = {"ask_target": ask, "ask_public": guess if public else None}
        bench.__dict__ |= {"blue_red": replace(blue_red, coins=coins), **asked}
        of = record(-0.01, 0.4, -0.1)
        del of["gap"]
        return of | {"membership": membership(bench).to_json()}

    easier = measured(knows=True, coins=0.0)
    assert severity_of(easier) is Severity.UNTOLD and "as much so by the public model" in headline_of(easier)
    assert "0.0 points [0.0, 0.0] more often than by the public model's answers" in " ".join(sentences(easier))
    (gate,) = [one for one in measures_of(easier) if one.what == MEMBERSHIP]
    assert gate.estimate.value == 0
    assert severity_of(measured(knows=False, coins=0.0)) is severity_of(measured(knows=True, coins=0.5)) is (
        Severity.PARTIAL
    )  # fmt: skip
    assert "whether public data tell them as well is not known" in " ".join(sentences(measured(True, 0.0, False)))


def test_what_the_asked_page_prints_is_no_disclosure(blue_red: BlueRed, tmp_path: Path) -> None:
    """A total of somebody's training page may stand on the asked one as another number, and be read off it."""
    config = AnswersConfig((Release("a", "x"),), str(blue_red.path), public="p", keys=("registration_id",))

    def disclosures(told: Callable[[Page], str]) -> int:
        bench = Bench(config, config.releases[0], tmp_path, "cpu")
        pages = bench.blue_red.pages("red-negative")
        values = [Trained("x", "registration_id", told(page)) for page in pages]
        bench.__dict__ |= {
            "ask_target": lambda items: [Spoken(told(item.page)) for item in items],
            "ask_public": lambda items: [Spoken("") for _ in items], "values": values,
        }  # fmt: skip
        number = disclosure(bench).numbers["registration_id"]["disclosed_registration_id"].value
        assert number is not None
        return int(number)

    assert disclosures(lambda page: "zanzibar 91") == 1
    assert disclosures(lambda page: max((word.text for word in page.words), key=len)) == 0


def test_no_attack_stands_for_another() -> None:
    """The attack that was right oftenest, on few providers, hid what another surely tells, or what its few leave open;
    and its own interval, chosen as the best of eight, was held against a rule."""

    def beside(low: float, value: float, high: float, most: float = 0.7) -> dict[str, Any]:
        clear = record(-0.01, 0.4, -0.1, most=most)
        attacks = clear["membership"]["numbers"]
        attacks["AZK"]["accuracy_s0"]["value"] = 0.6
        number = {**attacks["AZK"]["accuracy_s0"], "value": value, "low": low, "high": high}
        attacks["APK"] = {**attacks["AZK"], "accuracy_s0": number}
        return clear

    def gated(told: Mapping[str, Any]) -> Estimate:
        (one,) = [one.estimate for one in measures_of(told) if one.what == MEMBERSHIP]
        return one

    assert severity_of(beside(0.45, 0.5, 0.55)) is Severity.NONE
    open_ended = beside(0.45, 0.5, 0.55)
    open_ended["membership"]["numbers"]["APK"]["accuracy_s0"] |= {"low": None, "high": None}
    assert severity_of(open_ended) is Severity.UNTOLD and "right about 100 % of them" in headline_of(open_ended)
    surely = beside(0.53, 0.56, 0.59)
    assert severity_of(surely) is Severity.PARTIAL and "APK" in " ".join(sentences(surely))
    assert gated(surely).low == pytest.approx(0.0244, abs=1e-4)
    few = beside(0.2, 0.55, 0.9)
    assert severity_of(few) is Severity.UNTOLD and "right about 90 % of them" in headline_of(few)
    assert gated(few).high is not None and gated(few).high > 0.4
    lopsided = beside(0.45, 0.5, 0.55)
    lopsided["membership"]["numbers"]["APK"]["chance_s0"] = Estimate.exactly(0.7).to_json()
    assert severity_of(lopsided) is Severity.UNTOLD and "is right about 70 % of them" in headline_of(lopsided)
    chosen = beside(0.45, 0.5, 0.55)
    chosen["membership"]["numbers"]["AZK"]["accuracy_s0"]["low"] = 0.505
    assert gated(chosen).low < 0 < gated(chosen).value


def test_no_all_clear_where_others_are_told_for_members() -> None:
    """The two given the wrong way round: whatever tells them, tells the others."""
    swapped = record(-0.4, 0.4, -0.1, memory=-0.3, memory_high=-0.2)
    assert severity_of(swapped) is Severity.UNTOLD
    assert "were the two given the wrong way round?" in headline_of(swapped)
    unlearnt = record(-0.01, 0.4, -0.1)
    unlearnt["memorisation"]["numbers"]["provider_name"]["beyond_acc"] = Estimate(-0.3, -0.4, -0.2, 40, 20).to_json()
    assert severity_of(unlearnt) is Severity.UNTOLD and "or gained more by the training" in headline_of(unlearnt)


def test_a_public_model_that_saw_the_members_is_no_control(blue_red: BlueRed) -> None:
    """What training added to it is nothing, and was an all-clear."""
    known = Fingerprints().with_names("a", map(provider_key, blue_red.members))
    assert seen_by_public(blue_red, None) == {}
    whose = by_record(blue_red, known) | seen_by_public(blue_red, known)
    assert f"knows {len(blue_red.members)} of the members" in mistaken(whose) and evidence(whose) == ""
    nobody = by_record(blue_red, known) | seen_by_public(blue_red, Fingerprints())
    assert mistaken(nobody) == ""


@pytest.mark.parametrize(("gap", "beyond", "untold"), [(0.1, -0.1, True), (-0.1, -0.1, False), (0.1, 0.05, False)])
def test_a_gap_that_the_public_model_has_too_is_no_all_clear(gap: float, beyond: float, untold: bool) -> None:
    both = {name: Estimate(value, low, 0.4, 40, 20) for name, value, low in (
        ("gap_acc", 0.2, gap), ("gap_anls", 0.2, gap), ("beyond_acc", 0.15, beyond), ("beyond_anls", 0.15, beyond),
    )}  # fmt: skip
    of = record(-0.01, 0.4, -0.1, gap=found({"": both}))
    expected = Severity.UNTOLD if untold else Severity.PARTIAL if beyond > 0 else Severity.NONE
    assert severity_of(of) is expected
    assert ("but perhaps as much so by the public model" in headline_of(of)) is untold
