"""Membership of documents: scores on planted leaks, controls that forbid conclusions, fields, and a whole audit."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from docleak.attacks.answers.asking import AnswersView, Item, Spoken
from docleak.attacks.answers.documents import Asked, document_features, documents_in
from docleak.attacks.answers.tuning import Tuning, tune
from docleak.attacks.registries import DOCUMENTS
from docleak.documents import Page
from docleak.documents.folder import save
from docleak.documents.names import provider_key
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.metrics.blind import blind_auc
from docleak.metrics.estimate import Estimate
from docleak.metrics.membership import auc
from docleak.models import load_model
from docleak.models.lora import Lora, adapt
from docleak.privacy.lineage import PUBLIC, Fingerprints, Lineage, Trained
from docleak.report.page import write_report
from docleak.report.policy import Policy, Rule, check, overall
from docleak.report.severity import overall as verdict_of
from docleak.studies.answers import heatmap
from docleak.studies.answers.config import parse_release
from docleak.studies.answers.documents import (
    WORDING,
    Sides,
    asked_about,
    facts_of,
    rates_of,
    recorded,
    sides_of,
    strangers,
    trained_on,
)
from docleak.studies.answers.heatmap import COLOURS, Ranked, as_one, heat_map, known_in, likelier, ranked_fields
from docleak.studies.answers.measured import measures_of
from docleak.studies.answers.reading import documents_table
from docleak.studies.answers.red import replies_to
from docleak.studies.answers.replies import remembering
from docleak.studies.answers.study import AnswersStudy
from docleak.studies.answers.verdict import said_of, sentences, severity_of
from docleak.studies.engine import carry_out
from docleak.training.lineage import write_fingerprints, write_lineage

MODEL = "vt5-public"


def asked(leak: float, count: int = 60, seed: int = 0, references: bool = True) -> tuple[list[Asked], np.ndarray]:
    """``count`` documents of 3 questions, every other one a member, whose questions the target knows by ``leak``."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        for question in range(3):
            hard = float(rng.uniform(0.5, 3))
            gain = leak * (number % 2 == 0) * rng.uniform(0.5, 1)
            loss = max(0.01, hard * (1 - gain) + rng.normal(0, 0.05))
            before = (hard + float(rng.normal(0, 0.05)),) if references else ()
            rows.append(Asked(f"d{number:03d}", f"k{question}", loss, 1 - loss / 4, loss / 3, 2 + (loss > 1), before))
    return rows, np.arange(count) % 2 == 0


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    return [replace(page, questions=page.questions[:2]) for page in make_pages(44, seed=3)]


@pytest.fixture(scope="module")
def folders(pages: list[Page], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("sides")
    for name, part in (("in", pages[:6]), ("out", pages[6:12])):
        save(part, home / name)
    return {name: f"folder:{home / name}" for name in ("in", "out")}


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_a_planted_leak_is_found_and_none_where_there_is_none(name: str) -> None:
    attack = DOCUMENTS.load(name)
    rows, members = asked(0.9)
    assert auc(attack.run(rows), members) > (0.75 if name in ("loss", "distance", "docmia") else 0.97)
    held = [auc(attack.run(asked(0.0, seed=seed)[0]), members) for seed in range(12)]
    assert 0.4 < np.mean(held) < 0.6
    if attack.reference:
        with pytest.raises(AttackError, match="reference model"):
            attack.run(asked(0.9, references=False)[0])


def test_a_reference_takes_out_what_is_hard_for_every_model() -> None:
    rows, members = asked(0.3)
    scores = {name: auc(DOCUMENTS.load(name).run(rows), members) for name in ("loss", "reference", "informia")}
    assert scores["reference"] > scores["loss"] + 0.1 and scores["informia"] > scores["loss"] + 0.1


def test_a_reference_that_tells_nothing_costs_the_calibrated_score_nothing() -> None:
    rows, members = asked(0.5)
    rng, names = np.random.default_rng(1), ("loss", "reference", "informia", "calibrated")
    noise = [replace(one, references=(float(rng.uniform(0.1, 8)),)) for one in rows]  # a start that never saw such
    told = {name: auc(DOCUMENTS.load(name).run(noise), members) for name in names}
    assert told["calibrated"] > max(told["loss"] - 0.05, told["reference"] + 0.1, told["informia"] + 0.1)
    good = {name: auc(DOCUMENTS.load(name).run(asked(0.3)[0]), members) for name in names}
    assert good["calibrated"] > max(good["loss"] + 0.1, good["reference"] - 0.02), "one that tells takes difficulty out"
    itself = [replace(one, references=(one.loss,)) for one in rows]
    assert not DOCUMENTS.load("calibrated").run(itself).any(), "its own start tells it nothing"


def test_a_key_that_is_hard_for_all_is_no_sign() -> None:
    rows, members = asked(0.5)
    harder = [replace(one, key=f"k{number % 3}", loss=one.loss * 10 ** (number % 3 - 1), references=(1.0,))
              for number, one in enumerate(rows)]  # fmt: skip
    drawn = [one for number, one in enumerate(harder) if number % 9 not in (0, 4, 8)]  # not all documents have all keys
    aucs = {name: auc(DOCUMENTS.load(name).run(drawn), members) for name in ("loss", "calibrated")}
    assert aucs["calibrated"] > aucs["loss"] + 0.05


def test_the_order_of_questions_and_the_names_of_documents_tell_nothing() -> None:
    rows, _ = asked(0.5, count=12)
    for name in DOCUMENTS:
        attack = DOCUMENTS.load(name)
        before = dict(zip(documents_in(rows), attack.run(rows), strict=True))
        turned = [replace(one, document=f"x{one.document}") for one in reversed(rows)]
        after = dict(zip(documents_in(turned), attack.run(turned), strict=True))
        assert [after[f"x{key}"] for key in before] == pytest.approx(list(before.values()))
    table = document_features(rows)
    assert table.values.shape == (12, 12) and (table.questions == 3).all()
    first = [one.loss for one in rows if one.document == "d000"]
    assert table.values[0, :3].tolist() == pytest.approx([np.mean(first), min(first), max(first)])


def test_the_blind_baseline_sees_other_vendors_and_nothing_in_a_fair_draw(pages: list[Page]) -> None:
    members = np.arange(44) < 22
    fair = [blind_auc([[page] for page in np.random.default_rng(seed).permutation(np.array(pages, dtype=object))],
                      members, seed=seed) for seed in range(3)]  # fmt: skip
    assert sum((one.low or 1) <= 0.5 <= (one.high or 0) for one in fair) >= 2
    other = [[renamed(page) if inside else page] for page, inside in zip(pages, members, strict=True)]
    assert (blind_auc(other, members, seed=0).low or 0) > 0.5
    with pytest.raises(AttackError, match="4 and 40 documents; expected 5"):
        blind_auc([[page] for page in pages], np.arange(44) < 4, seed=0)


def test_the_blind_baseline_refuses_about_one_fair_draw_in_twenty() -> None:
    """Ten of these thirty were refused, with a mean AUC of 0.58: documents of a provider told of one another."""
    pages, members = [[page] for page in make_pages(120, seed=12)], np.zeros((30, 120), dtype=np.bool_)
    for seed, chosen in enumerate(members):
        chosen[np.random.default_rng(seed).permutation(120)[:60]] = True
    drawn = [blind_auc(pages, chosen, seed=seed) for seed, chosen in enumerate(members)]
    assert sum(not (one.low or 0) <= 0.5 <= (one.high or 1) for one in drawn) <= 4
    assert abs(np.mean([one.value or 0 for one in drawn]) - 0.5) < 0.04


@pytest.mark.parametrize("count", [11, 22])
def test_questions_that_one_side_words_otherwise_forbid_a_conclusion(pages: list[Page], count: int) -> None:
    """The pages are one pile and so are keys and answers; members alone are asked "Tell me ..."."""
    drawn = pages[: 2 * count]
    worded = [replace(page, questions=tuple(replace(q, text=f"Tell me the {q.key}.") for q in page.questions))
              for page in drawn[:count]]  # fmt: skip
    for members, apart in ((worded, True), (drawn[:count], False)):
        sides = Sides.of(members, drawn[count:])
        rows = [Asked(name, "k", 1.0, 0.5, 0.3, 2, (1.0,)) for name in sides.all()]
        told = facts_of(sides, rows, seed=0)
        assert (WORDING in told["differs"]) is apart
        said = record(0.8, differs=tuple(told["differs"]))
        assert severity_of(said) == ("untold" if apart else "severe")
        assert ("in the same words" in sentences(said)[0]) is apart


def renamed(page: Page) -> Page:
    """The page of another vendor: its first word."""
    first = replace(page.words[0], text="Zyxwvut")
    return replace(page, words=(first, *page.words[1:]), fields=())


def test_documents_that_are_not_two_sets_are_refused_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: list[Page]
) -> None:
    from docleak.cli import main

    for members, others in (("/nowhere", "synthetic"), ("synthetic", "synthetic")):
        out = tmp_path / "run"
        words = ["audit", "answers", "--release", "m=vt5-public", "--members", members, "--non-members", others]
        monkeypatch.setattr(sys, "argv", ["docleak", *words, "--out", str(out)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1 and not out.exists()
    for name, four in (("four", slice(4)), ("more", slice(4, 10))):
        save(pages[four], tmp_path / name)
    with pytest.raises(AttackError, match="the sets have 4 and 6 documents; expected 5"):
        sides_of(str(tmp_path / "four"), str(tmp_path / "more"), seed=0)


def test_a_page_on_both_sides_and_a_side_without_questions_are_refused(pages: list[Page]) -> None:
    with pytest.raises(AttackError, match=r"1 page is among the members and among the others: .* Leave it out"):
        Sides.of(pages[:3], [pages[2], pages[4]])
    darker = replace(pages[2], image=(pages[2].image // 2).astype(np.uint8))
    with pytest.raises(AttackError, match="same picture, or same words"):
        Sides.of(pages[:3], [darker, pages[4]])
    with pytest.raises(AttackError, match="0 of 2 pages of members"):
        Sides.of([replace(page, questions=()) for page in pages[:2]], pages[4:6])
    sides = Sides.of(pages[:3], pages[3:8])
    assert (len(sides.members), len(sides.others)) == (3, 5) and len(sides.all()) == 8
    assert sides.bare == (0, 0)
    bare = Sides.of([*pages[:3], replace(pages[8], questions=())], pages[3:8])
    assert len(bare.members) == 3 and bare.bare == (1, 0), "what is left out is counted"


def test_documents_that_cannot_be_asked_about_are_told(tmp_path: Path, pages: list[Page]) -> None:
    save([*pages[:5], *(replace(page, questions=()) for page in pages[5:7])], tmp_path / "in")
    save(pages[7:12], tmp_path / "out")
    given = {"releases": (parse_release(MODEL),), "members": str(tmp_path / "in"), "non_members": str(tmp_path / "out")}
    study = AnswersStudy(AnswersStudy.of_options(given, {"measures": ("documents",)}), device="cpu")
    reading = AnswersStudy.read([carry_out(study, tmp_path / "run")], np.random.default_rng(0))
    told = "2 documents said to be trained on and 0 others have no question with an answer, and were left out."
    assert reading.notices == (told,)


def test_tuning_moves_what_is_learnt_less_and_leaves_the_model_as_it_was(pages: list[Page]) -> None:
    model = load_model(MODEL)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    trained = [p.requires_grad for p in model.module.parameters()]
    items = [Item(page, page.questions[0]) for page in pages[:4]]
    wrong = [Item(i.page, replace(i.question, answers=("zq 77 zq",))) for i in items]
    moved = tune(model, [*items, *wrong], Tuning(steps=2))
    known, strange = (np.median([one.distance for one in part]) for part in (moved[:4], moved[4:]))
    assert strange > known > 0 and {one.steps for one in moved} <= {1, 2}
    assert all(bool((value == before[name]).all()) for name, value in model.module.state_dict().items())
    assert [p.requires_grad for p in model.module.parameters()] == trained
    assert tune(model, items[:2], Tuning(steps=2, sampled=1)) == tune(model, items[:2], Tuning(steps=2, sampled=1))


@pytest.mark.parametrize("kind", ["donut-trained", "layoutlmv3-trained", "llava-trained", "adapters"])
def test_every_kind_of_model_can_be_asked(kind: str, pages: list[Page], tmp_path: Path) -> None:
    source = kind
    if kind == "adapters":
        pytest.importorskip("peft", reason="the extra adapters is not installed")
        adapt("llava-trained", tmp_path / kind, Lora.parsed("r=2,targets=q_proj+v_proj"), seed=0)
        source = str(tmp_path / kind)
    model = load_model(source)
    flags = [p.requires_grad for p in model.module.parameters()]
    sides = Sides.of(*([replace(page, questions=page.questions[:1])] for page in pages[:2]))
    rows = asked_about(sides, remembering(AnswersView(model, scores=True), tmp_path), [], model)
    assert [one.loss > 0 and one.distance > 0 and one.steps > 0 for one in rows] == [True, True]
    assert [p.requires_grad for p in model.module.parameters()] == flags, "adapters alone are trained, before and after"
    page, (field, *_) = pages[0], (f for f in pages[0].fields if f.key == pages[0].questions[0].key)
    if kind != "layoutlmv3-trained":
        assert likelier(model, page, page.questions[0].text, field, ["zq 77 zq zq"]) == 0, "on the page it is read"


def test_a_value_is_ranked_among_others_and_the_page_shows_it(pages: list[Page]) -> None:
    page, model = pages[0], load_model(MODEL)
    question = page.questions[0].text
    place, field = next((n, f) for n, f in enumerate(page.fields) if f.key == page.questions[0].key)
    assert likelier(model, page, question, field, ["zq 77 zq zq"] * 3) < 3
    assert likelier(model, page, question, field, [field.value] * 4) == 2, "ties count half"
    ranked = Ranked("d", 0, place, field.key, True, 19, 0.0, 7.0)
    shown = heat_map(page, {place: ranked})
    plain = heat_map(page, {})
    assert shown.shape == plain.shape and (shown != plain).any() and COLOURS[0][0] == 0.0
    rows = [
        replace(ranked, document=f"d{n}", member=n % 2 == 0, above=0.0 if n % 2 == 0 else float(n)) for n in range(20)
    ]
    shares = known_in(rows, seed=0)
    assert shares[""]["known"].value == 1 and shares[""]["others"].value == 0 and (shares[""]["gap"].low or 0) > 0.5
    assert shares[field.key]["chance"].value == pytest.approx(0.05) and (shares[""]["beyond"].low or 0) > 0.3


def test_what_a_document_says_twice_counts_once(pages: list[Page], monkeypatch: pytest.MonkeyPatch) -> None:
    """A field in two places, or on two pages, is one secret, and a question that is listed twice one answer."""
    monkeypatch.setattr(heatmap, "likelier", lambda *_: 0.0)
    once = [replace(page, document=f"d{number}") for number, page in enumerate(pages[:16])]
    listed = [replace(page, fields=page.fields * 2, questions=page.questions * 2) for page in once[:8]]
    again = [replace(page, name=f"{page.name} again") for page in listed]
    counts, model = [], load_model(MODEL)

    def asker(items: Iterable[Item]) -> list[Spoken]:
        return [Spoken("", 1.0, 1.0) for _ in items]

    for members in (once[:8], [*listed, *again]):
        sides = Sides.of(members, once[8:])
        ranked = ranked_fields(sides, model, None, rng=np.random.default_rng(0))
        replies = asked_about(sides, asker, [], model), replies_to(members, asker)
        counts.append((sum(one.member for one in ranked), *map(len, replies)))
    assert counts[0] == counts[1] and counts[0][0] > 0 and counts[0][2] == 16


def record(
    low: float, others: int = 120, differs: tuple[str, ...] = (), known: float = -0.1, *, sure: float = 0.0,
    high: float = 0.9, **facts: Any,
) -> dict[str, Any]:  # fmt: skip
    numbers = {"rmia": {"auc": Estimate(0.7, low, high), "tpr_at_1_fpr": Estimate(0.2, sure, 0.3)}}
    share = {"known": Estimate(0.4, 0.3, 0.5, 90), "others": Estimate(0.1, 0.0, 0.2, 90),
             "gap": Estimate(0.3, known, 0.5), "chance": Estimate.exactly(0.05)}  # fmt: skip
    saved = [{part: {name: one.to_json() for name, one in of.items()} for part, of in parts.items()}
             for parts in (numbers, {"": share})]  # fmt: skip
    return {
        "label": "x", "control": False, "bill": {"epsilon": None, "claim": ""},
        "documents": {"numbers": saved[0], "differs": list(differs), "members": 120, "others": others,
                      "controls": {"no model": Estimate(0.5, 0.4, 0.6).to_json()}, "strangers": 0, "answered": 0.6,
                      "recorded": True, "learnt": Estimate(0.2, 0.1, 0.3).to_json(), **facts},
        "fields": {"numbers": saved[1], "remarks": {}},
    }  # fmt: skip


def test_attacks_that_packages_add_belong_to_the_run_and_are_read_without_them(
    tmp_path: Path, pages: list[Page]
) -> None:
    save(pages[:5], tmp_path / "in")
    save(pages[7:12], tmp_path / "out")
    given = {"releases": (parse_release(MODEL),), "members": str(tmp_path / "in"), "non_members": str(tmp_path / "out")}
    study = AnswersStudy(AnswersStudy.of_options(given, {}), device="cpu")
    assert study.identity() == {}
    DOCUMENTS.register("theirs", replace(DOCUMENTS.load("loss"), summary="again"))
    try:
        assert list(study.identity()) == ["attack on documents theirs"]
        sides = Sides.of(pages[:5], pages[7:12])
        rates = rates_of(sides, [Asked(name, "", n, 0.5, 1.0, 1) for n, name in enumerate(sides.all())], seed=0)
        assert rates["theirs"] == rates["loss"], "each under its name, though both call themselves loss"
        DOCUMENTS.register("broken", "no_such_module:ATTACK")
        with pytest.raises(AttackError, match="no_such_module"):
            study.identity()
    finally:
        DOCUMENTS.unregister("theirs")
        DOCUMENTS.unregister("broken")
    told = record(0.55)
    told["documents"]["numbers"]["theirs"] = told["documents"]["numbers"]["rmia"]
    assert [row.note for row in documents_table([told]).rows][-1] == ""


def test_what_is_concluded() -> None:
    assert severity_of(record(0.55)) == "partial" and said_of(record(0.55)) == "Tells its documents from others"
    assert severity_of(record(0.8)) == severity_of(record(0.55, known=0.1)) == "severe"
    assert said_of(record(0.45, known=0.1)) == "Knows fields of its documents"
    clear = record(0.45, high=0.7)
    assert severity_of(clear) == "none" and severity_of(record(0.45, others=60, high=0.7)) == "untold"
    refused = record(0.9, differs=("no model",), known=0.1)
    assert severity_of(refused) == "untold" and "differ without" in sentences(refused)[0]
    assert "20.0 % [0.0, 30.0]" in sentences(record(0.55))[0]
    surely = record(0.45, sure=0.1)
    assert severity_of(surely) == "partial", "no AUC, and yet some documents for sure"
    assert "yet rmia finds 20.0 % [10.0, 30.0] of them at 1 % false alarms" in sentences(surely)[0]
    assert "up to 0.90 is not excluded" in sentences(record(0.45))[0]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"high": 0.9}, "so few documents do not exclude an AUC of 0.90"),
        ({"others": 60}, "60 others do not resolve"),
        ({"strangers": 3}, "knows no provider of 3 of the 120 documents"),
        ({"recorded": False}, "nothing of the release says that it was trained on these documents"),
        ({"answered": 0.05}, "5 % of the questions right, and a model that guesses"),
        ({"learnt": Estimate(0.0, -0.1, 0.1).to_json()}, "as if it never saw them"),
        ({"controls": {"no model": Estimate(0.5).to_json()}, "differs": ["no model"]}, "are too few: no model has no"),
    ],
)
def test_a_wrong_input_is_no_all_clear(facts: dict[str, Any], says: str) -> None:
    """Documents that were not trained on, too few of them, a model that guesses: neither verdict nor gate says safe."""
    sound = record(0.45, high=0.7)
    assert severity_of(sound) == "none"
    there = {key: value for key, value in facts.items() if key != "differs"}
    wrong = record(0.45, **{"high": 0.7, **there}, differs=tuple(facts.get("differs", ())))
    assert severity_of(wrong) == "untold" and said_of(wrong) == "Could not tell" and says in sentences(wrong)[0]
    policy = Policy(rule=(Rule(measure="document-auc", at_most=0.75),))
    told = [overall(check(policy, measures_of(of), verdict_of([], ""))) for of in (sound, wrong)]
    assert told == ["pass", "pass" if "others" in facts else "could not tell"]
    swapped = record(0.2, high=0.35)
    assert severity_of(swapped) == "untold" and "given the wrong way round?" in sentences(swapped)[0]
    assert "which is below chance" in sentences(swapped)[0] and "chance is within" not in sentences(swapped)[0]
    assert overall(check(policy, measures_of(swapped), verdict_of([], ""))) == "could not tell"
    without = record(0.45, high=0.7)
    del without["documents"]["learnt"]
    assert severity_of(without) == "untold" and "--public" in sentences(without)[0]
    assert severity_of(record(0.8, **{"high": 0.9, **there})) == "severe", "what is found stays found"


def test_what_shows_that_a_release_saw_its_documents(pages: list[Page], tmp_path: Path) -> None:
    sides = Sides.of(pages[:22], pages[22:])
    names = list(sides.all())
    rows = [replace(one, document=names[int(one.document[1:])], nls=float(number % 4 > 0))
            for number, one in enumerate(asked(0.9, count=44)[0])]  # fmt: skip
    told = trained_on(sides, rows, seed=0)
    members = [one for one in rows if one.document in sides.members]
    assert told["answered"] == pytest.approx(np.mean([one.nls for one in members])) and told["learnt"]["low"] > 0
    assert "learnt" not in trained_on(sides, [replace(one, references=()) for one in rows], seed=0)
    assert strangers(sides, MODEL) == strangers(sides, str(tmp_path)) == 0, "no record"
    assert not recorded(sides, MODEL)
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    known = {provider_key(of[0].provider) for of in sides.members.values()}
    (model / "model.safetensors").write_bytes(b"weights")
    whose = Fingerprints().with_names("a", known)
    write_fingerprints(model.parent, whose)
    assert not recorded(sides, str(model)), "no lineage says whose training that is"
    write_lineage(model, Lineage(PUBLIC, "x", (Trained("a", "a training", None, providers=whose.digest("a")),)))
    apart = Sides(sides.members, {name: [replace(page, provider=f"other {page.provider}") for page in of]
                                  for name, of in sides.others.items()})  # fmt: skip
    assert strangers(apart, str(model)) == 0 and recorded(apart, str(model))
    both = Sides(apart.members, {**apart.others, "x": [replace(pages[0], name="another of a member")]})
    assert not recorded(both, str(model)), "the others' providers were trained on, too, so that they may have been"
    (model / "model.safetensors").write_bytes(b"another model's")
    assert not recorded(apart, str(model)), "another model was put into the folder"
    missing = provider_key(next(iter(sides.members.values()))[0].provider)
    write_fingerprints(model.parent, Fingerprints().with_names("a", known - {missing}))
    assert strangers(sides, str(model)) == sum(provider_key(of[0].provider) == missing for of in sides.members.values())
    assert not recorded(apart, str(model))


@pytest.mark.parametrize(
    ("measure", "bound", "outcome"),
    [
        ("document-auc", 0.9, "pass"), ("document-auc", 0.89, "could not tell"), ("document-auc", 0.59, "finding"),
        ("document-tpr-at-1-fpr", 0.3, "pass"), ("document-tpr-at-1-fpr", 0.05, "finding"),
        ("document-tpr-at-10-fpr", 1.0, "could not tell"), ("document-fields-known", 0.5, "pass"),
        ("document-fields-known", 0.4, "could not tell"), ("document-fields-known", 0.05, "could not tell"),
    ],
)  # fmt: skip
def test_a_gate_bounds_the_greatest_of_all_scores(measure: str, bound: float, outcome: str) -> None:
    known = record(0.55, sure=0.1)
    lower = {"auc": Estimate(0.65, 0.6, 0.8), "tpr_at_1_fpr": Estimate(0.1, 0.05, 0.2)}
    known["documents"]["numbers"]["loss"] = {name: one.to_json() for name, one in lower.items()}
    policy = Policy(rule=(Rule(measure=measure, at_most=bound),))  # type: ignore[arg-type]

    def held(of: dict[str, Any]) -> str:
        return overall(check(policy, measures_of(of), verdict_of([], "")))

    assert held(known) == outcome
    refused = {**known, "documents": {**known["documents"], "differs": ["no model asked"]}}
    assert held(refused) == "could not tell", "the sets differ by themselves, whatever the scores say"
    fields = {**known, "fields": record(0.55, known=0.1, sure=0.1)["fields"]}
    if measure == "document-fields-known":
        assert held(fields) == ("finding" if bound < 0.1 else outcome)
    else:
        assert held(fields) == ("could not tell" if outcome == "pass" else outcome), "another route tells"


def test_intervals_hold_for_all_scores_together(pages: list[Page]) -> None:
    sides = Sides.of(pages[:22], pages[22:])
    names = {name: number for number, name in enumerate(sides.all())}
    rows = [replace(one, document=name) for one in asked(0.9, count=44)[0] for name, n in names.items()
            if one.document == f"d{n:03d}"]  # fmt: skip
    rates = rates_of(sides, rows, seed=0)
    assert set(rates) == set(DOCUMENTS) and rates["rmia"]["tpr_at_1_fpr"].value is None
    assert "it takes 100" in rates["rmia"]["tpr_at_1_fpr"].why
    told = facts_of(sides, rows, seed=0)
    assert len(told["controls"]) == 3 and len(told["scores"]) == 44
    assert sum(row["member"] for row in told["scores"]) == 22


def test_a_whole_audit(folders: dict[str, str], tmp_path: Path) -> None:
    given = {"releases": (parse_release(f"a={MODEL}"),), "members": folders["in"], "non_members": folders["out"]}
    study = AnswersStudy(AnswersStudy.of_options({**given, "public": MODEL}, {}))
    run = carry_out(study, tmp_path / "run")
    (one,) = run.units()
    assert one["documents"]["numbers"]["reference"]["auc"]["value"] == 0.5, "its own start tells it nothing"
    reading = AnswersStudy.read([run], np.random.default_rng(0))
    assert [part.severity for part in reading.parts] == ["untold"] and set(reading.tables) >= {"documents"}
    assert "12 documents" in reading.lead and "loss, reference" in str(reading.sections)
    caption = str(escape(reading.tables["documents"].caption))
    for private in (None, frozenset({"none of the values"})):
        page = write_report([reading], tmp_path, private=private).read_text("utf-8")
        assert page.count(caption) == 1, "each table stands once in either edition"
    for wrong, said in (({"non_members": ""}, "go together"), ({"division": "x"}, "instead of --division")):
        with pytest.raises(AttackError, match=said):
            AnswersStudy.of_options({**given, **wrong}, {})


def test_intervals_of_documents_hold_for_their_providers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten documents of each of eight providers a side, nobody trained on any: half of the loss is the provider's."""
    monkeypatch.setattr("docleak.studies.answers.documents.RESAMPLES", 300)
    rng, told = np.random.default_rng(0), 0
    for _ in range(20):
        sides, asked = [], []
        for side in "mo":
            of = {}
            for provider in range(8):
                effect = rng.normal()
                for number in range(10):
                    name = f"{side}{provider}-{number}"
                    page = replace(make_pages(1, seed=0)[0], name=name, provider=f"{side}{provider}")
                    of[name] = [page]
                    asked.append(Asked(name, "total", float(5 + effect + rng.normal()), 0.0, 0.0, 0, ()))
            sides.append(of)
        rates = rates_of(Sides(*sides), asked, seed=0)["loss"]
        told += (rates["auc"].low or 0) > 0.5 or (rates["auc"].high or 1) < 0.5
    assert told <= 1


def test_a_name_on_all_documents_of_a_provider_is_one_reading() -> None:
    """One provider of four has ten documents a side; that its name ranks first on all of them was ten readings."""
    page = make_pages(1, seed=0)[0]
    sides = Sides(*({f"{side}{number}": [replace(page, provider=f"{side}{max(0, number - 9)}")] for number in range(13)}
                    for side in "mo"))  # fmt: skip
    rows = [Ranked(name, 0, 0, "name", name[0] == "m", 19, float(name[0] == "o" or int(name[1:]) > 9), 1.0)
            for name in sides.all()]  # fmt: skip
    alone, whole = (known_in(rows, seed=0, groups=groups)[""] for groups in ({}, as_one(sides)))
    assert alone["gap"].value == whole["gap"].value == pytest.approx(10 / 13)
    assert (alone["gap"].low or 0) > 0 and (whole["gap"].low or 0) <= 0, whole["gap"]
    assert whole["known"].groups == 4
    mixed = Sides(*({name: [replace(pages[0], provider="one")] for name, pages in side.items()}
                    for side in (sides.members, sides.others)))  # fmt: skip
    assert as_one(mixed) == {}, "on both sides: what is alike cancels"


def test_that_a_release_saw_its_documents_is_shown_over_providers() -> None:
    """Of four providers one is answered better, on ten documents: thirteen documents would have shown it."""
    page = make_pages(1, seed=0)[0]
    sides = Sides(*({f"{side}{number}": [replace(page, provider=f"{side}{max(0, number - 9)}")] for number in range(13)}
                    for side in "mo"))  # fmt: skip
    asked = [Asked(name, "total", 2.0 if int(name[1:]) < 10 else 3.1, 0.0, 0.0, 0, (3.0,)) for name in sides.all()]
    learnt = Estimate.of_json(trained_on(sides, asked, seed=0)["learnt"])
    assert learnt.value == pytest.approx((10 - 0.3) / 13) and learnt.groups == 4 and (learnt.low or 0) <= 0
