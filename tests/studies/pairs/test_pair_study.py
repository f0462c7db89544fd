"""Runs of pair attacks: the evaluator's matching, resuming, shuffling, and what the table says."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from docleak.attacks.pairs import PairFinding, PairView
from docleak.documents.folder import save
from docleak.documents.pairs import Pair, make_scenes
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, ModelError, RunError
from docleak.models.encoders.tiny import SPECIALS, bert_tokenizer
from docleak.models.pair import PairModel, build_pair
from docleak.models.pair.aligner import load_aligner
from docleak.recipes.rows import tables_of
from docleak.report.page import Reading, joined
from docleak.runs.run import Run
from docleak.studies.engine import Silence, begin, carry_out
from docleak.studies.pairs.case import PairCase, assign, build_pair_case, pictures_of, score_pairs, self_tests
from docleak.studies.pairs.client import client_of, set_up
from docleak.studies.pairs.config import PairConfig
from docleak.studies.pairs.privacy import encodings_of
from docleak.studies.pairs.reading import gain, verdict
from docleak.studies.pairs.study import PairStudy
from docleak.studies.registry import report_on
from docleak.studies.study import TableRow
from docleak.training.private.pairs import accuracy_of
from tests.small import Returning

CONFIG = PairConfig(count=2, public=3, attacks=("mmgia", "tag"), budget=12, image_size=(32, 16))


@pytest.fixture(scope="module")
def model() -> PairModel:
    return build_pair("lenet5", "bert-tiny", classes=("scatter", "tower"), image_size=(32, 16), seed=0)


def truth_as_finding(case: PairCase, order: list[int]) -> PairFinding:
    """What a perfect attack would find, in another order."""
    labels = tuple(tuple(int(side[i]) for i in order) for side in case.labels)
    rows = tuple(tuple(case.rows[i]) for i in order)
    texts = tuple(case.texts[i] for i in order)
    return PairFinding(case.pixels[order], texts, rows, (labels[0], labels[1]), 1.0, 1.0, 1, 1, 0.0, 0.0, 0.0)


def test_assignment_is_the_best_of_all() -> None:
    gains = np.random.default_rng(0).random((4, 4))
    best = max(permutations(range(4)), key=lambda p: sum(gains[i, j] for i, j in enumerate(p)))
    assert assign(gains.tolist()) == list(best)


def test_a_client_and_what_the_adversary_has_are_on_the_device_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def noted(made: Callable[..., Any]) -> Callable[..., Any]:
        def make(*given: Any, device: Any = "unsaid", **settings: Any) -> Any:
            asked.append((made.__name__, str(device)))
            return made(*given, **settings)

        return make

    for made in (build_pair, load_aligner):
        monkeypatch.setattr(f"docleak.studies.pairs.client.{made.__name__}", noted(made))
    setting = PairStudy(replace(CONFIG, seed=11), device="meta").setting
    assert asked == [("build_pair", "meta"), ("load_aligner", "meta")]
    setting.fresh()
    assert asked[2:] == [("build_pair", "cpu")], "that of the model"


def test_attacks_on_one_client_share_what_was_loaded_and_drawn(tmp_path: Path) -> None:
    corpus = tmp_path / "said.txt"
    corpus.write_text("a red tower\n")
    config = replace(CONFIG, corpus=str(corpus))
    first, again = set_up(config), set_up(replace(config, attacks=("mmgia-d",), budget=99, batch_size=2, noise=0.5))
    assert again.model is first.model and again.aligner is first.aligner and again.language is first.language
    assert (again.config.budget, again.config.noise, first.config.budget) == (99, 0.5, 12)
    assert set_up(replace(config, seed=1)).model is not first.model
    corpus.write_text("a red tower and a blue one\n")
    assert set_up(config).language is not first.language, "the file is another one now"


def test_an_attack_that_does_not_align_needs_no_aligner(tmp_path: Path) -> None:
    """Of a text model of another vocabulary the default aligner was asked for, and another one refused as idle."""
    pieces = [*SPECIALS, *"abcdefghijklmnopqrstuvwxyz.", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    tokenizer = bert_tokenizer({piece: number for number, piece in enumerate(pieces)})
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    network = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), num_labels=2, **shape))
    network.save_pretrained(tmp_path / "text")
    tokenizer.save_pretrained(tmp_path / "text")
    config = replace(CONFIG, text=str(tmp_path / "text"), attacks=("tag", "mgis", "lamp"), count=1, budget=4)
    assert set_up(config).aligner is None
    run = carry_out(PairStudy(config), tmp_path / "run")
    assert len(run.units()) == 3 and not any("aligner" in known for known in run.info["knows"])
    with pytest.raises(ModelError, match="was made for 1466 tokens"):
        set_up(replace(config, attacks=("mmgia",), budget=12))


def test_a_budget_too_small_for_an_attack_is_refused_beforehand() -> None:
    for words in ({"attacks": ("tag", "mmgia"), "budget": 11}, {"rounds": 4, "budget": 15}, {"budget": 3}):
        with pytest.raises(AttackError, match=r"expected at least: mmgia 1[26]"):
            PairConfig(**words)
    assert PairConfig(rounds=4, budget=16).budget == 16 and PairConfig(attacks=("tag",), budget=4).budget == 4


def test_a_perfect_reconstruction_in_any_order_has_full_marks(model: PairModel) -> None:
    pairs = make_scenes(20, seed=4)[:3]
    case = build_pair_case(model, pairs)
    for score in score_pairs(case, truth_as_finding(case, [2, 0, 1])):
        assert score.ssim == pytest.approx(1.0)
        assert (score.rouge1, score.rouge_l, score.tokens) == (1.0, 1.0, 1.0)
        assert score.label and score.together and score.read == score.true
    shown = pictures_of(case, truth_as_finding(case, [2, 0, 1]), 1)
    assert np.array_equal(shown["truth"], shown["reconstruction"])


def test_what_the_vocabulary_cannot_write_is_not_counted_as_unread(model: PairModel) -> None:
    """Words of another script are one token for all; nobody reads which, and what stands beside them counts."""
    one, other = make_scenes(2, seed=4)
    case = build_pair_case(model, [replace(one, text="date 東京"), replace(other, text="東京")])
    rows = tuple(tuple(1 if i == model.tokenizer.unk_token_id else i for i in row) for row in case.rows)
    scores = score_pairs(case, replace(truth_as_finding(case, [0, 1]), tokens=rows))
    assert [(score.tokens, score.written, score.unwritten) for score in scores] == [(1.0, 1, 2), (0.0, 0, 2)]
    unread = [{"tokens": 0.0, "ssim": 0.01, "label": False, "written": n, "unwritten": 2} for n in (0, 0, 4)]
    judgement = verdict(["tag"], [{"attack": "tag", "batch": 0, "scores": unread}])
    assert judgement["severity"] == "untold", "most could not be read by anybody"
    assert any("cannot write all of 3 of the texts, and nothing of 2" in line for line in judgement["lines"])
    assert verdict(["tag"], [{"attack": "tag", "batch": 0, "scores": unread[1:]}])["severity"] == "none"


def test_a_text_of_another_pair_is_no_full_mark(model: PairModel) -> None:
    different = list({pair.text: pair for pair in make_scenes(20, seed=4)}.values())[:3]
    case = build_pair_case(model, different)
    finding = truth_as_finding(case, [0, 1, 2])
    mixed = replace(finding, texts=(finding.texts[1], finding.texts[2], finding.texts[0]),
                    tokens=(finding.tokens[1], finding.tokens[2], finding.tokens[0]))  # fmt: skip
    assert not any(score.together for score in score_pairs(case, mixed))
    wrong = replace(finding, texts=("x",) * 3, tokens=((1,),) * 3)
    assert max(score.rouge_l for score in score_pairs(case, wrong)) == 0.0


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"train_embeddings": True}], ids=str)
def test_self_test_passes_on_the_truth_and_notices_another(options: dict[str, bool]) -> None:
    model = build_pair("lenet5", "bert-tiny", classes=("scatter", "tower"), image_size=(32, 16), seed=0, **options)
    case = build_pair_case(model, make_scenes(3, seed=0))
    assert all(test.passed for test in self_tests(case).values())
    planted = replace(case, pixels=case.pixels.flip(-1))
    assert not self_tests(planted)["image"].passed
    assert not self_tests(replace(case, ids=case.ids.roll(1, dims=1)))["text"].passed


def test_networks_can_be_trained_before_the_step_that_is_attacked() -> None:
    drawn, trained = set_up(CONFIG), set_up(replace(CONFIG, trained=60))
    assert trained.model.name == f"{drawn.model.name} after 60 steps on scenes"
    unseen = encodings_of(drawn.model, make_scenes(200, seed=31))
    before, after = (accuracy_of(setting.model, unseen) for setting in (drawn, trained))
    assert min(after) > 0.8 > 0.7 > max(before)
    again = trained.fresh().module.state_dict()
    assert all(torch.equal(again[name], value) for name, value in trained.model.module.state_dict().items())
    assert all(test.passed for test in self_tests(trained.case(0)).values())


def test_only_classifiers_of_scenes_can_be_trained_on_scenes() -> None:
    with pytest.raises(RunError, match=r"classes of 'cifar100:DIR' are apple, bee, and networks are trained on scenes"):
        client_of(replace(CONFIG, pairs="cifar100:DIR", trained=1), ["apple", "bee"])


class Stopping(Silence):
    """Notes which units are finished, and presses Ctrl-C after so many."""

    def __init__(self, after: int = 10**9) -> None:
        self.after, self.done = after, list[str]()

    def reached(self, label: str, number: int, of: int) -> None:
        if number == of:
            self.done.append(label)
        if len(self.done) == self.after:
            raise KeyboardInterrupt


def reading_of(run: Run) -> Reading:
    return PairStudy.read([run], np.random.default_rng(0))


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    out, first, then = tmp_path / "run", Stopping(after=3), Stopping()
    with pytest.raises(KeyboardInterrupt):
        carry_out(PairStudy(CONFIG), out, watcher=first)
    kept = {u["unit"]: u["scores"] for u in Run.load(out).units()}
    said = joined([reading_of(Run.load(out))]).sentence
    assert "The run is not finished: 3 of 4 attacks on a gradient." in said, "no verdict on what is not there"
    run = carry_out(PairStudy(CONFIG), out, watcher=then)
    assert first.done == ["mmgia-0000", "tag-0000", "mmgia-0001"] and then.done == ["tag-0001"]
    records = {u["unit"]: u["scores"] for u in run.units()}
    assert all(records[name] == scores for name, scores in kept.items())
    scope, table = reading_of(run).scope, reading_of(run).tables["attacks"]
    assert scope is not None and scope.reached == "2 pairs of a picture and a text"
    manifest = run.manifest()
    for pairs, made in (("scenes", True), ("pages:synthetic", True), ("scenes,openi:mine", False), ("openi:x", False)):
        changed = json.dumps({**manifest, "config": {**manifest["config"], "pairs": pairs}})
        (run.path / "run.json").write_text(changed)
        assert reading_of(run).synthetic is made
    assert [row.name for row in table.rows] == ["mmgia", "tag"]
    by_hand = np.mean([s["ssim"] for u in run.units() if u["attack"] == "mmgia" for s in u["scores"]])
    assert table.rows[0].values["ssim"].value == pytest.approx(by_hand)  # type: ignore[union-attr]
    assert table.rows[0].facts["evaluations_per_modality"] == [12, 12]
    assert any("stage 2 took" in line for line in reading_of(run).lines)
    assert (run.folder("mmgia-0000") / "reconstruction-0.png").is_file()
    assert not list((out / "attempts").glob("*.json"))


def test_an_empty_run_has_no_table(tmp_path: Path) -> None:
    run = begin(PairStudy(CONFIG), tmp_path / "run")
    with pytest.raises(RunError, match="no finished attack"):
        reading_of(run)
    (table,) = tables_of([TableRow("MMGIA", "pair", PairStudy(CONFIG), run)])
    assert table.cells(table.rows[0]) == ["-", "-"]


def test_public_texts_hold_none_of_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        "docleak.studies.pairs.client.fit_trigrams",
        lambda texts, tokenizer, name: seen.extend(texts),
    )
    setting = set_up(replace(CONFIG, count=20, public=200))
    assert seen and not {p.text for p in setting.targets} & set(seen)


def test_shuffled_targets_have_both_labels() -> None:
    setting = set_up(replace(CONFIG, count=6, shuffle=True))
    case = setting.case(0)
    pair: Pair = setting.targets[0]
    assert "|" in pair.name
    assert int(case.labels[1][0]) == setting.model.class_of(pair.labels[1])


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [({"batch_size": 3}, AttackError, "multiple"), ({"attacks": ("nonsense",)}, AttackError, "unknown pair attack"),
     ({"threshold": 2.0}, AttackError, "threshold"), ({"trained": -1}, AttackError, "0 .as drawn. or more"),
     ({"attacks": ("lamp", "tag"), "threshold": 0.5}, AttackError, "second stage, which lamp, tag does not have")],
)  # fmt: skip
def test_configurations_that_make_no_sense(changes: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        replace(CONFIG, **changes)  # type: ignore[arg-type]


def test_a_label_the_model_does_not_know(model: PairModel) -> None:
    with pytest.raises(ModelError, match="knows no class"):
        build_pair_case(model, [replace(make_scenes(1, seed=0)[0], label="other")])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from docleak.cli import main

    out = tmp_path / "run"
    words = ["attack", "mmgia", "--count", "1", "--public", "2", "--budget", "12", "--image-size", "32x16",
             "--workers", "1", "--out", str(out), "--json"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["docleak", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    value = json.loads(capsys.readouterr().out)
    assert value["rows"][0]["row"] == "mmgia" and value["rows"][0]["ours"]["ssim"]["n"] == 1
    assert any("length" in line or "tokens" in line for line in value["knows"])
    assert Run.load(out).has("mmgia-0000")
    assert torch.get_num_threads() == 1


def test_gains_are_paired_by_batch() -> None:
    def unit(attack: str, batch: int, *values: float) -> dict[str, object]:
        return {"unit": f"{attack}-{batch:04d}", "batch": batch, "scores": [{"ssim": value} for value in values]}

    ours = [unit("a", 0, 0.5, 0.7), unit("a", 1, 0.4), unit("a", 2, 0.9)]
    other = [unit("b", 0, 0.4, 0.4), unit("b", 1, 0.6), unit("b", 3, 0.1)]
    estimate = gain(ours, other, "ssim", np.random.default_rng(0))
    assert estimate.value == pytest.approx((0.1 + 0.3 - 0.2) / 3)
    assert (estimate.n, estimate.groups) == (3, 2)
    same = gain(ours, ours, "ssim", np.random.default_rng(0))
    assert (same.value, same.low, same.high) == (0, 0, 0)
    assert gain(ours[2:], other, "ssim", np.random.default_rng(0)).value is None


def test_the_claim_of_a_private_client_is_about_pairs(tmp_path: Path) -> None:
    config = replace(CONFIG, count=1, attacks=("mmgia-stage1",), budget=4, epsilon=10.0)
    carry_out(PairStudy(config), tmp_path)
    page = report_on([tmp_path])[0].read_text()
    said = page[page.index("The client ran DP-SGD") :].partition("</p>")[0]
    assert "epsilon 9.995 at delta 1e-05 per record (one pair of picture and text added or removed)" in said
    assert "question" not in page and ".." not in said


@pytest.mark.parametrize(
    ("right", "count", "severity", "words"),
    [
        (8, 8, "partial", "the classes of 8 of 8 pairs."),
        (2, 2, "untold", "the classes of 2 of 2 pairs; a coin for each does as well with 25% probability."),
        (3, 8, "none", "the classes of 3 of 8 pairs; a coin for each does as well with 86% probability."),
    ],
)
def test_classes_that_come_out_are_no_all_clear(right: int, count: int, severity: str, words: str) -> None:
    scores = [{"tokens": 0.0, "ssim": 0.01, "label": number < right} for number in range(count)]
    units = [{"attack": "mgis", "batch": batch, "scores": [score]} for batch, score in enumerate(scores)]
    judgement = verdict(["mgis"], units)
    assert judgement["severity"] == severity and words in judgement["sentence"]


@pytest.mark.parametrize(
    ("right", "classes", "fused", "severity"),
    [(5, 60, False, "partial"), (1, 60, False, "untold"), (15, 2, False, "untold"), (15, 2, True, "none")],
)
def test_a_class_of_many_is_no_coins(right: int, classes: int, fused: bool, severity: str) -> None:
    """Of sixty classes five of thirty are no chance; nor are fifteen of two, where both networks must be right."""
    scores = [{"tokens": 0.0, "ssim": 0.01, "label": number < right} for number in range(30)]
    units = [{"attack": "mgis", "batch": batch, "scores": [score]} for batch, score in enumerate(scores)]
    judgement = verdict(["mgis"], units, classes=classes, fused=fused)
    assert judgement["severity"] == severity
    if right == 1:
        assert "one of 60 drawn for each does as well with 40% probability" in judgement["sentence"]


def test_a_few_classes_of_many_in_batches_are_no_all_clear() -> None:
    """Three of forty right of sixty classes, each in another batch: no two draws for each give that."""
    scores = [[{"tokens": 0.0, "ssim": 0.01, "label": batch < 3 and not target} for target in range(4)]
              for batch in range(10)]  # fmt: skip
    units = [{"attack": "mgis", "batch": batch, "scores": of} for batch, of in enumerate(scores)]
    assert verdict(["mgis"], units, classes=60)["severity"] == "untold"
    assert verdict(["mgis"], units, classes=2)["severity"] == "none"


def test_the_classes_of_a_batch_stand_or_fall_together() -> None:
    """Who calls all pairs of two batches alike is right of all eight with probability a quarter."""
    scores = [{"tokens": 0.0, "ssim": 0.01, "label": True}] * 4
    units = [{"attack": "mgis", "batch": batch, "scores": scores} for batch in range(2)]
    judgement = verdict(["mgis"], units)
    assert judgement["severity"] == "untold" and "with at most 25% probability" in judgement["sentence"]
    one = [{"tokens": 0.0, "ssim": 0.01, "label": number < 1} for number in range(4)]
    told = verdict(["mgis"], [{"attack": "mgis", "batch": 0, "scores": one}])["sentence"]
    assert "a coin for each gradient does as well with at most 100% probability" in told, "it is 50 %"
    many = [{"attack": "mgis", "batch": batch, "scores": scores} for batch in range(6)]
    assert verdict(["mgis"], many)["severity"] == "partial"


@pytest.mark.parametrize(
    ("tokens", "others", "severity"),
    [(0.6, [0.1] * 10, "partial"), (0.6, [0.1], "untold"), (0.6, [0.1] * 5 + [0.6] * 5, "untold"),
     (0.95, [0.6] * 10, "severe"), (0.1, [0.6] * 10, "none")],
)  # fmt: skip
def test_texts_that_are_like_any_other_are_not_counted(tokens: float, others: list[float], severity: str) -> None:
    """A language model writes what people write: half of "there is a box with ..." stands in many texts."""
    scores = [{"tokens": tokens, "ssim": 0.01, "label": False, "other_tokens": others}]
    units = [{"attack": "lamp", "batch": batch, "scores": scores} for batch in range(2)]
    judgement = verdict(["lamp"], units)
    assert judgement["severity"] == severity
    assert ("Texts that were in no gradient" in judgement["sentence"]) == (severity == "untold")


def test_parts_of_texts_that_no_public_one_is_as_long_as_are_told_apart() -> None:
    """Half the tokens of three texts counted as a leak, though nothing said that any text is not as like."""
    plain = {"ssim": 0.0, "label": False}
    held = {**plain, "tokens": 0.6, "other_tokens": (0.1,) * 9}
    lone, whole = {**plain, "tokens": 0.6, "other_tokens": ()}, {**plain, "tokens": 0.95, "other_tokens": ()}

    def said(*scores: dict[str, Any]) -> dict[str, Any]:
        return verdict(["mmgia"], [{"attack": "mmgia", "batch": 0, "scores": [*scores]}], classes=9)

    alone = said(*[lone] * 3)
    assert alone["severity"] == "untold" and "0 others with half" in alone["lines"][0]
    assert "Of 3 more texts half came back, too, but no text as long" in alone["sentence"]
    some = said(held, held, held, lone)
    assert some["severity"] == "partial" and "3 others with half" in some["lines"][0]
    assert "Of 1 more text half came back" in some["sentence"]
    read = said(whole, {**plain, "tokens": 0.0, "other_tokens": ()})
    assert read["severity"] == "severe" and "no text as long" not in read["sentence"], "word for word it needs no other"


def test_what_came_back_is_held_against_texts_as_long_that_nobody_sent(model: PairModel) -> None:
    there, public = make_scenes(1, seed=4), make_scenes(60, seed=5)
    case = build_pair_case(model, there)
    (score,) = score_pairs(case, truth_as_finding(case, [0]), public)
    length = len(case.rows[0])
    lengths = [int(model.token_ids([pair.text], longest=40)[1].sum()) - 2 for pair in public]
    assert len(score.others) == 20 and len(score.other_tokens) == lengths.count(length) > 0
    assert 0 < max(score.other_tokens) <= 1


def test_of_a_batch_what_nobody_sent_has_the_same_choice_as_the_targets(model: PairModel) -> None:
    """A target has the best of four that came back; others had one, and chance alone was a leak in 60 of 100 runs."""
    case = build_pair_case(model, there := make_scenes(2, seed=4))
    scores = score_pairs(case, truth_as_finding(case, [0, 1]), there)
    assert [score.others for score in scores] == [pytest.approx((1.0, 1.0))] * 2


def test_a_run_that_is_not_finished_is_no_all_clear(tmp_path: Path) -> None:
    config = replace(CONFIG, attacks=("mgis", "tag"), budget=4, noise=10.0)
    run = carry_out(PairStudy(config), tmp_path)
    assert reading_of(run).parts[0].severity == "none"
    (run.folder("tag-0001") / "unit.json").unlink()
    assert reading_of(run).parts[0].severity == "untold", "of an attack that was not made nothing is known"


def test_classes_are_those_of_one_attack() -> None:
    """The best of six guesses is right more often than a coin."""
    attacks = [f"attack-{number}" for number in range(6)]
    units = [
        {"attack": name, "batch": batch, "scores": [{"tokens": 0.0, "ssim": 0.01, "label": batch % 6 == number}]}
        for batch in range(6)
        for number, name in enumerate(attacks)
    ]
    judgement = verdict(attacks, units)
    assert judgement["severity"] == "none" and "the classes of 1 of 6 pairs" in judgement["sentence"]
    assert "Classes, by attack-0: 1 of 6 were read out of the gradient." in judgement["lines"]
    same = [{**unit, "scores": [{**score, "label": True} for score in unit["scores"]]} for unit in units]
    assert verdict(attacks, same)["severity"] == "partial"


@pytest.mark.parametrize(
    ("ssim", "others", "severity"),
    [(0.6, 0.3, "severe"), (0.6, 0.6, "untold"), (0.95, 0.6, "severe"), (0.1, 0.6, "none")],
)
def test_pictures_that_are_like_any_other_are_not_counted(ssim: float, others: float, severity: str) -> None:
    """A generator makes pictures like those that it learned from, and what a client sent is noise."""
    scores = [{"tokens": 0.0, "ssim": ssim, "label": False, "others": [others] * 5 + [0.0] * 5}]
    units = [{"attack": "gifd", "batch": batch, "scores": scores} for batch in range(2)]
    judgement = verdict(["gifd"], units)
    assert judgement["severity"] == severity
    assert ("Pictures that were in no gradient" in judgement["sentence"]) == (severity == "untold")


def test_one_picture_in_outline_does_not_hide_many_that_are_blurred() -> None:
    """Nineteen that no other picture is like were not counted where a twentieth, by itself no finding, was clearer."""
    blurred, clearer = ({"tokens": 0.0, "ssim": ssim, "label": False, "others": [0.0] * 20} for ssim in (0.4, 0.6))
    units = [{"attack": "gifd", "batch": at, "scores": [clearer if at == 0 else blurred]} for at in range(20)]
    judgement = verdict(["gifd"], units, classes=60)
    assert judgement["severity"] == "partial" and "in no gradient" not in judgement["sentence"]
    assert verdict(["gifd"], units[:1], classes=60)["severity"] == "untold", "one of one is chance's with 1 in 21"
    alike = [{**unit, "scores": [{**clearer, "others": [0.4] * 20}]} for unit in units]
    assert verdict(["gifd"], alike, classes=60)["severity"] == "severe", "any picture is as blurred, and none as clear"


@pytest.mark.parametrize(
    ("named", "right", "severity", "label"),
    [(19, 19, "partial", "Words come out"), (19, 9, "none", "Nothing recognisable"), (8, 8, "none", None)],
)
def test_words_that_the_table_names_are_no_all_clear(named: int, right: int, severity: str, label: str | None) -> None:
    """Half of the words, and hardly another; a batch counts once, whatever attacks it."""
    words = {"named": named, "right": right, "true": 19}
    scores = [{"tokens": 0.0, "ssim": 0.01, "label": False}]
    units = [{"attack": name, "batch": 0, "scores": scores, "words": words} for name in ("tag", "lamp")]
    judgement = verdict(["tag", "lamp"], units)
    assert judgement["severity"] == severity and label in (None, judgement["label"])
    assert f"names {named} words, without their order; {right} of the texts' 19" in "\n".join(judgement["lines"])
    assert (f"names {right} of the texts' 19 words" in judgement["sentence"]) == (severity == "partial")


def test_a_client_that_trains_its_table_tells_its_words_and_one_that_adds_noise_does_not(tmp_path: Path) -> None:
    config = replace(CONFIG, attacks=("tag",), train_embeddings=True)
    run = carry_out(PairStudy(config), tmp_path / "open")
    for record in run.units():
        assert record["words"]["named"] == record["words"]["right"] == record["words"]["true"] > 3
    (_, (said,)) = report_on([run.path])
    assert said.parts[0].severity == "partial" and said.parts[0].label == "Words come out"
    noisy = carry_out(PairStudy(replace(config, noise=0.01)), tmp_path / "noisy")
    assert all(record["words"] is None for record in noisy.units())
    assert not any("which words occur" in line for line in noisy.info["knows"])


@pytest.mark.parametrize("option", ["image_attack", "text_attack"])
def test_an_exchanged_attack_that_is_none_is_refused_before_a_folder_is_made(option: str) -> None:
    with pytest.raises(AttackError, match=r"unknown .*attack .dlgg.. "):
        PairConfig(**{option: "dlgg"})


def test_the_closed_form_is_tried_where_no_attack_is_named() -> None:
    assert "span" in PairConfig().attacks


def test_texts_that_are_cut_are_counted_and_the_noise_is_known(tmp_path: Path) -> None:
    save(make_pages(8, seed=3), tmp_path / "pages")
    config = replace(
        CONFIG, pairs=f"pages:{tmp_path / 'pages'}", count=6, public=2, attacks=("mmgia-stage1",), budget=4, noise=0.5
    )
    setting = set_up(config)
    tokenizer, targets = setting.model.tokenizer, setting.targets
    (reading,) = report_on([carry_out(PairStudy(config), tmp_path / "run").path])[1]
    long = sum(len(tokenizer(pair.text)["input_ids"]) > 40 for pair in targets)
    assert 0 < long < 6
    assert any(
        f"reads texts up to 38 tokens: of {long} of 6 the rest entered no gradient" in line for line in reading.lines
    )
    assert "the standard deviation of the noise on every number (0.5)" in reading.results["knows"]


def test_a_fused_model_has_learnt_the_pictures_classes() -> None:
    """A text of another pair has another class there, of which its gradient says nothing."""
    model = build_pair("lenet5", "bert-tiny", classes=("scatter", "tower"), image_size=(32, 16), seed=0, fused=True)
    (pair,) = make_scenes(1, seed=4)
    other = "tower" if pair.label == "scatter" else "scatter"
    case = build_pair_case(model, [replace(pair, text_label=other)])
    finding = truth_as_finding(case, [0])
    (score,) = score_pairs(case, replace(finding, labels=(finding.labels[0], finding.labels[0])))
    assert score.label


def test_a_client_whose_claim_is_not_worked_out_is_no_open_one(tmp_path: Path) -> None:
    config = replace(CONFIG, count=1, attacks=("mmgia-stage1",), budget=4, epsilon=10.0)
    run = carry_out(PairStudy(config), tmp_path)
    (run.folder("privacy") / "unit.json").unlink()
    (reading,) = report_on([tmp_path])[1]
    assert "The client ran DP-SGD for epsilon 10; what that guarantees is not worked out yet." in reading.lines


def test_the_report_shows_both_modalities_and_says_how_bad_it_is(tmp_path: Path) -> None:
    config = PairConfig(count=2, attacks=("mmgia", "mmgia-stage1"), budget=12, public=5)
    run = carry_out(PairStudy(config), tmp_path)
    page_file, (reading,) = report_on([tmp_path])
    page = page_file.read_text()
    assert page.count("data:image/png;base64,") == 2 * (1 + 2)
    for row in reading.tables["attacks"].rows:
        for text in row.facts["texts"]:
            assert all(html.escape(text[side], quote=False).split()[0] in page for side in ("read", "true"))
    places = [
        page.index(f'<section id="{name}"') for name in ("numbers-of-all", "attacks", "threat", "limits", "pairs")
    ]
    assert places == sorted(places)
    assert "Against stage 1 alone" in page
    units = [u for u in run.units() if "scores" in u]
    read_all = [{**u, "scores": [{**s, "tokens": 1.0, "ssim": 0.9} for s in u["scores"]]} for u in units]
    nothing = [
        {**u, "scores": [{**s, "tokens": 0.0, "ssim": 0.01, "label": False} for s in u["scores"]]} for u in units
    ]
    both = ["mmgia", "mmgia-stage1"]
    assert (
        verdict(both, read_all)["severity"],
        verdict(both, nothing)["severity"],
    ) == ("severe", "none")
    assert verdict(both, read_all)["sentence"].startswith("2 of 2 texts")
    other = [full if full["attack"] == "mmgia-stage1" else none for full, none in zip(read_all, nothing, strict=True)]
    judgement = verdict(both, other)
    assert judgement["severity"] == "severe" and judgement["sentence"].startswith("2 of 2 texts")
    assert "Texts: the best of mmgia and mmgia-stage1 for each pair: " in judgement["lines"][0]
    assert "by attack: mmgia 0 texts and 0 pictures, mmgia-stage1 2 texts and 2 pictures" in judgement["lines"][-1]


def test_a_model_that_an_attack_wrote_into_is_loaded_again_by_the_next_run(tmp_path: Path) -> None:
    """In a notebook the mended attack was measured on what the refused one had left."""

    def halving(view: PairView, knowledge: object) -> None:
        with torch.no_grad():
            next(view.model.module.parameters()).mul_(0.5)

    config = replace(CONFIG, attacks=(Returning(halving),), count=1)
    before = next(set_up(config).model.module.parameters()).clone()
    with pytest.raises(AttackError, match="attack 'mine' leaves the client's model with other weights"):
        carry_out(PairStudy(config), tmp_path / "run")
    assert torch.equal(next(set_up(config).model.module.parameters()), before)
