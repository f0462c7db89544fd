"""What follows from a federation's settings alone, and what travels."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from docleak.documents.loaders import load_pages
from docleak.documents.silos import write_silos
from docleak.errors import DocumentError, FederationError, RunError
from docleak.models import load_model
from docleak.models.shipped import CHECKPOINTS
from docleak.privacy.lineage import Trained, united
from docleak.privacy.mechanism import Mechanism
from docleak.privacy.plan import DpPlan
from docleak.runs.run import Run
from docleak.training.federated.federation import Federation, drawn, impossible
from docleak.training.federated.fedopt import FedOpt, ServerState
from docleak.training.federated.local import parameters_of
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.federated.party import evaluate
from docleak.training.federated.record import KIND, FederatedRun, RoundRow, load_run
from docleak.training.federated.silo import find_silos, one_silo, open_party, synthetic_silos
from docleak.training.federated.summary import Cost, network_of
from docleak.training.federated.wire import Compression, pack, relative_error, unpack
from docleak.training.lineage import lineage_of, write_lineage

SILOS = tuple(f"silo-{i}" for i in range(10))


def test_settings_travel_as_json_and_wrong_ones_are_named() -> None:
    federation = Federation(
        "m", 7, 0.3, 2, 0.1, 5, LocalPlan(epochs=2, objective="tm"), FedOpt("fedadam", 0.1), Compression("topk", 0.01)
    )
    assert Federation.from_json(federation.to_json()) == federation
    saved = json.loads(federation.to_json())
    saved["local"]["lerning_rate"] = saved["local"].pop("learning_rate")
    with pytest.raises(FederationError, match=r"local\.lerning_rate is an unknown key"):
        Federation.from_json(json.dumps(saved))
    for text, said in (("{", "no JSON"), ("[]", r"it is \[\]"), ('{"local": 3}', "local is 3")):
        with pytest.raises(FederationError, match=said):
            Federation.from_json(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"participation": 0.0}, "participation is 0.0"),
        ({"participation": 1.5}, "participation is 1.5"),
        ({"holdout": 1.0}, "holdout is 1.0"),
        ({"minimum": -1}, "minimum is -1"),
    ],
)
def test_settings_that_make_no_sense(change: dict[str, float], said: str) -> None:
    with pytest.raises(FederationError, match=said):
        replace(Federation(), **change)


def test_sampling_is_uniform_without_replacement_and_from_the_seed() -> None:
    federation = Federation(participation=0.3, seed=1)
    rounds = [federation.sampled(SILOS, number) for number in range(1, 2001)]
    assert all(len(set(chosen)) == 3 and list(chosen) == sorted(chosen) for chosen in rounds)
    counts = Counter(name for chosen in rounds for name in chosen)
    # 2000 draws of 3 in 10: mean 600, standard deviation sqrt(2000 * 0.3 * 0.7) = 20.5; five of them either way
    assert all(abs(counts[name] - 600) < 103 for name in SILOS)
    assert federation.sampled(SILOS[::-1], 5) == federation.sampled(SILOS, 5)
    assert rounds != [replace(federation, seed=2).sampled(SILOS, number) for number in range(1, 2001)]
    assert len(replace(federation, participation=0.01).sampled(SILOS, 1)) == 1


@pytest.mark.parametrize(
    ("silos", "share", "taken"),
    [
        (3, 0.35, 1),
        (3, 0.7, 2),
        (10, 0.35, 3),
        (10, 0.7, 7),
        (30, 0.35, 10),
        (30, 0.7, 21),
        (10, 0.2, 2),
        (100, 0.29, 29),
    ],
)
def test_the_fraction_of_a_client_is_left_out(silos: int, share: float, taken: int) -> None:
    """Every (K, C) of FeDocVQA's tables, as its authors' int(C K); their 0.35 of 10 is 3, which half-even made 4. The
    last is 28.999999999999996 to a computer."""
    assert drawn(Federation(participation=share), silos) == taken


@pytest.mark.parametrize(("silos", "share"), [(10, 0.35), (3, 0.1), (7, 0.5), (20, 0.2), (30, 0.1), (100, 0.29)])
def test_a_private_round_takes_no_more_than_the_rate_and_nobody_knows_whom(silos: int, share: float) -> None:
    plan = DpPlan(Mechanism(1.0, 9, client_rate=share), clip_norm=1.0, denominator=1, delta=1e-3)
    federation, names = Federation(participation=share, privacy=plan), [f"s{i}" for i in range(silos)]
    taken = drawn(federation, silos)
    assert share - 1 / silos < taken / silos <= share * (1 + 1e-9)
    assert bool(impossible(federation, silos)) is (not taken)
    with pytest.raises(FederationError, match="server's own coins"):
        federation.sampled(names, 1)
    coins = np.random.default_rng(5)
    rounds = [federation.sampled(names, 1, coins) for _ in range(40)]
    assert {len(chosen) for chosen in rounds} == {taken} and (len(set(rounds)) > 1 or not taken)


def test_each_silo_and_round_draws_from_a_stream_of_its_own() -> None:
    federation = Federation(seed=1)
    drawn = {federation.client_rng(name, number).integers(2**62) for name in SILOS for number in range(1, 6)}
    assert len(drawn) == 50
    assert federation.client_rng("a", 1).integers(2**62) == federation.client_rng("a", 1).integers(2**62)


def test_a_document_is_kept_by_a_coin_of_its_own() -> None:
    names = [f"d{i}" for i in range(4000)]
    kept = {name for name in names if Federation(holdout=0.25, seed=1).keeps(name)}
    assert abs(len(kept) - 1000) < 140, "five standard deviations of binomial(4000, 1/4)"
    assert kept == {name for name in reversed(names) if Federation(holdout=0.25, seed=1).keeps(name)}
    assert kept < {name for name in names if Federation(holdout=0.5, seed=1).keeps(name)}
    other = {name for name in names if Federation(holdout=0.25, seed=2).keeps(name)}
    assert abs(len(kept & other) - 250) < 80
    assert not any(Federation(holdout=0.0).keeps(name) for name in names)


@pytest.mark.parametrize(
    ("text", "kind"), [("none", "none"), ("fp16", "fp16"), ("topk:0.01", "topk"), ("topk:1e-2", "topk")]
)
def test_compressions_by_name(text: str, kind: str) -> None:
    compression = Compression.of(text)
    assert compression.kind == kind and Compression.of(str(compression)) == compression


@pytest.mark.parametrize("text", ["gzip", "topk", "topk:0", "topk:2", "topk:.", ""])
def test_compressions_that_are_none(text: str) -> None:
    with pytest.raises(FederationError):
        Compression.of(text)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["none", "fp16", "topk:0.3", "topk:1"]))
def test_what_is_packed_is_unpacked_with_the_stated_error(seed: int, text: str) -> None:
    rng = np.random.default_rng(seed)
    delta = {"a": rng.normal(size=(3, 5)).astype(np.float32), "b": rng.normal(size=7).astype(np.float32),
             "scalar": np.float32(rng.normal()).reshape(())}  # fmt: skip
    compression, shapes = Compression.of(text), {name: value.shape for name, value in delta.items()}
    unpacked = unpack(pack(delta, compression), shapes, compression)
    assert {name: value.shape for name, value in unpacked.items()} == shapes
    wrong = np.concatenate([(unpacked[name] - delta[name]).ravel() for name in delta]).astype(np.float64)
    whole = np.concatenate([value.ravel() for value in delta.values()]).astype(np.float64)
    assert relative_error(delta, compression) == pytest.approx(np.linalg.norm(wrong) / np.linalg.norm(whole), rel=1e-5)
    if text == "topk:0.3":
        for name, value in delta.items():
            kept = int(np.ceil(0.3 * value.size))
            largest = np.sort(np.abs(value).ravel())[-kept:]
            np.testing.assert_array_equal(np.sort(np.abs(unpacked[name]).ravel())[-kept:], largest)
            assert np.count_nonzero(unpacked[name]) == kept
    elif text != "fp16":
        assert not wrong.any()


def test_broken_sparse_updates_and_overflow_are_refused() -> None:
    compression = Compression("topk", 0.5)
    packed = pack({"a": np.ones(4, np.float32)}, compression)
    with pytest.raises(FederationError, match="sparse parameter 'a'"):
        unpack({**packed, "a::index": np.array([1, 99], np.uint32)}, {"a": (4,)}, compression)
    with pytest.raises(FederationError, match="sparse parameter 'a'"):
        unpack({"a::index": packed["a::index"]}, {"a": (4,)}, compression)
    with pytest.raises(FederationError, match="half precision"):
        pack({"a": np.full(2, 1e6, np.float32)}, Compression("fp16"))


def test_bytes_of_an_update_by_its_compression() -> None:
    """4 bytes a number, 2 in half precision; 4 and 4 for its place for each of the largest tenth."""
    cost = Cost(trainable=1000, counted=1200)
    kinds = (Compression(), Compression("fp16"), Compression("topk", 0.1))
    assert [cost.up(kind) for kind in kinds] == [4000, 2000, 800] and cost.down() == 4000


def test_costs_in_both_countings() -> None:
    cost = Cost.of(network_of("vt5-base"))
    federation = Federation(rounds=10, holdout=0)
    assert cost.trainable == 225_659_136 and cost.counted == 225_659_136 + 3 * 32128 * 768
    assert cost.as_published(federation, 2) / 2**30 == pytest.approx(44.66, abs=0.005)
    assert cost.sent(federation, 2) == 10 * 2 * 2 * 4 * cost.trainable
    half = replace(federation, compression=Compression("fp16"), participation=0.5)
    assert cost.sent(half, 2) == 10 * (4 + 2) * cost.trainable
    tied = nn.ModuleList([nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)])
    tied[1].weight = tied[0].weight
    assert Cost.of(tied) == Cost(9, 18)


def test_silos_are_found_made_and_missed(tmp_path: Path) -> None:
    made = synthetic_silos(tmp_path / "silos", 2, 8, seed=0)
    assert list(made) == ["synthetic-0", "synthetic-1"]
    assert synthetic_silos(tmp_path / "silos", 2, 8, seed=0) == made, "what is there is used"
    (only,) = one_silo("synthetic", 4, tmp_path / "one", seed=0).values()
    assert len(open_party(only, Federation(holdout=0.0)).training) == 4
    assert one_silo(str(only), 0, tmp_path / "unused", seed=0) == {only.name: only}
    assert one_silo(str(only), 0, tmp_path / "silos", seed=0) == {only.name: only}, "a folder that is named is taken"
    assert one_silo(str(only), 4, tmp_path / "silos", seed=0) == {only.name: only}
    (fewer,) = one_silo(str(only), 3, tmp_path / "fewer", seed=0).values()
    assert len(open_party(fewer, Federation(holdout=0.0)).training) == 3, "--pages of a folder was ignored"
    with pytest.raises(FederationError, match="expected a folder of silos"):
        find_silos(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"no run\.json"):
        load_run(tmp_path)
    with pytest.raises(DocumentError):
        open_party(tmp_path / "nowhere", Federation())


def test_silos_made_of_something_else_are_not_trained_on(tmp_path: Path) -> None:
    """Whoever asked for five silos of 50 invoices was given the two of 8 that an earlier training had left."""
    made = synthetic_silos(tmp_path / "silos", 2, 8, seed=0)
    for more, said in (((3, 8, 0), "clients 3, documents 8, seed 0"), ((2, 9, 0), "clients 2, documents 9, seed 0"),
                       ((2, 8, 1), "clients 2, documents 8, seed 1")):  # fmt: skip
        with pytest.raises(FederationError) as refused:
            synthetic_silos(tmp_path / "silos", *more[:2], seed=more[2])
        assert str(refused.value) == (
            f"{tmp_path / 'silos'} was made of clients 2, documents 8, seed 0, as silos.json beside it says; expected "
            f"{said}. Pass another out, or delete both."
        )
    with pytest.raises(FederationError, match=r"documents 8, seed 0, as .*; expected documents synthetic, pages 8"):
        one_silo("synthetic", 8, tmp_path / "silos", seed=0)
    one_silo("synthetic", 4, tmp_path / "central" / "silos", seed=0)
    with pytest.raises(FederationError, match=r"pages 4, seed 0, as .*; expected documents synthetic, pages 5, seed 0"):
        one_silo("synthetic", 5, tmp_path / "central" / "silos", seed=0)
    (tmp_path / "silos.json").write_text("{")
    with pytest.raises(FederationError, match="cannot be read"):
        synthetic_silos(tmp_path / "silos", 2, 8, seed=0)
    (tmp_path / "silos.json").unlink()
    with pytest.raises(FederationError, match=r"no silos\.json beside it says what it was made of; expected clients 2"):
        synthetic_silos(tmp_path / "silos", 2, 8, seed=0)
    assert all(folder.is_dir() for folder in made.values()), "what is refused stays"


def test_silos_of_a_folder_of_the_same_name_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--documents pages --out ../runs/central`` from another folder trained on the pages that the first call had."""
    for number, folder in enumerate(("alice", "bob")):
        synthetic_silos(tmp_path / folder / "made", 1, 8, seed=number)
        (tmp_path / folder / "made" / "synthetic-0").rename(tmp_path / folder / "pages")
    monkeypatch.chdir(tmp_path / "alice")
    made = one_silo("pages", 4, tmp_path / "silos", seed=0)
    assert one_silo("pages", 4, tmp_path / "silos", seed=0) == made
    picture = next((tmp_path / "alice" / "pages").glob("*.png"))
    picture.write_bytes(picture.read_bytes()[::-1])
    assert one_silo("pages", 4, tmp_path / "silos", seed=0) == made, "pictures are many: their sizes are looked at"
    monkeypatch.chdir(tmp_path / "bob")
    with pytest.raises(
        FederationError, match=r"of documents pages, pages 4, seed 0, contents (\w+), .*contents (?!\1)"
    ):
        one_silo("pages", 4, tmp_path / "silos", seed=0)


def test_silos_that_were_not_finished_are_made_as_they_are_asked_for_now(tmp_path: Path) -> None:
    """The record is written first: without silos it says of none what they were made of."""
    synthetic_silos(tmp_path / "silos", 2, 8, seed=0)
    shutil.rmtree(tmp_path / "silos")
    assert len(synthetic_silos(tmp_path / "silos", 3, 9, seed=0)) == 3
    assert len(synthetic_silos(tmp_path / "silos", 3, 9, seed=0)) == 3


def test_a_folder_beside_silos_is_a_silo_a_run_or_hidden(tmp_path: Path) -> None:
    files = {"alice": "pages.jsonl", ".git": "HEAD", ".docleak-draft": "pages.jsonl", "training": "run.json"}
    for name, file in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("")
    (tmp_path / "README").write_text("")
    assert list(find_silos(tmp_path)) == ["alice"]
    (tmp_path / "bob").mkdir()
    with pytest.raises(FederationError, match=r"bob is an empty folder; expected pages\.jsonl in it"):
        find_silos(tmp_path)


def test_a_silo_without_pages(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "pages.jsonl").write_text("")
    with pytest.raises((FederationError, DocumentError), match=r"empty|no pages"):
        open_party(empty, Federation())


def test_a_partys_pages_are_split_by_document_and_scored_by_document(tmp_path: Path) -> None:
    (path,) = one_silo("synthetic", 6, tmp_path / "one", seed=0).values()
    federation = Federation(holdout=0.5)
    party = open_party(path, federation)
    documents = [
        {page.document for page in (pages[i] for i in range(len(pages)))} for pages in (party.training, party.kept)
    ]
    assert all(documents) and not documents[0] & documents[1]
    assert documents[1] == {name for name in documents[0] | documents[1] if federation.keeps(name)}
    model = load_model("vt5-start")
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    scores = evaluate(party, model, parameters_of(model))
    asked = sum(len([q for q in party.kept[i].questions if q.answers]) for i in range(len(party.kept)))
    assert len(scores) == len(documents[1]) and sum(score.questions for score in scores) == asked
    assert all(torch.equal(p, before[name]) for name, p in model.module.named_parameters())


def test_a_silo_may_keep_nothing_but_not_everything(tmp_path: Path) -> None:
    (path,) = one_silo("synthetic", 2, tmp_path / "one", seed=0).values()
    kept = {seed: [Federation(seed=seed, holdout=0.5).keeps(name)
                   for name in {page.document for page in load_pages(f"folder:{path}", seed=0)}]
            for seed in range(20)}  # fmt: skip
    none, both = (next(seed for seed, coins in kept.items() if sum(coins) == n) for n in (0, 2))
    party = open_party(path, Federation(seed=none, holdout=0.5))
    model = load_model("vt5-start")
    assert len(party.kept) == 0 and evaluate(party, model, parameters_of(model)) == ()
    with pytest.raises(FederationError, match=r"^[^']* keeps all of its 2 pages to evaluate on"):
        open_party(path, Federation(seed=both, holdout=0.5))


def test_silos_of_two_partitions_do_not_mix(tmp_path: Path) -> None:
    made = synthetic_silos(tmp_path / "silos", 2, 8, seed=0)
    with pytest.raises(DocumentError, match="new folder"):
        write_silos((), {}, next(iter(made.values())).parent, by="providers", seed=0)


@pytest.mark.parametrize("left", ["scores", "updates"])
def test_a_private_training_takes_no_folder_in_which_something_was_released(left: str, tmp_path: Path) -> None:
    plan = DpPlan(Mechanism(1.0, 3), clip_norm=1.0, denominator=1, delta=1e-3)
    run = FederatedRun.open(tmp_path, Federation(holdout=0.5))
    FederatedRun.open(tmp_path, Federation(holdout=0.2))  # nothing left a silo yet
    if left == "scores":
        run.write_scores(0, [])
    else:
        (tmp_path / "updates" / "0001").mkdir(parents=True)
        (tmp_path / "updates" / "0001" / "a.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="privacy: null there"):
        FederatedRun.open(tmp_path, Federation(holdout=0.2, privacy=plan))
    FederatedRun.open(tmp_path, Federation(holdout=0.2))


def test_the_lineage_of_a_start_is_kept_only_once_something_came_of_it(tmp_path: Path) -> None:
    plan = DpPlan(Mechanism(1.0, 3), clip_norm=1.0, denominator=1, delta=1e-3)
    start, out = tmp_path / "start", tmp_path / "out"
    shutil.copytree(CHECKPOINTS / "vt5-start", start)
    federation = Federation(str(start), holdout=0.0, privacy=plan)
    assert not FederatedRun.open(out, federation).lineage().trainings
    weights = next(start.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes() + b" ")
    write_lineage(start, lineage_of("vt5-start").after(Trained("other", "central training (qa, 1 round)", None)))
    run = FederatedRun.open(out, federation)  # killed before its first round, and the start was trained on since
    ledger = run.ledger()
    assert ledger is not None
    run.write_ledger(ledger.begin_round())
    assert [one.identity for one in run.lineage().trainings] == ["other", run.identity]
    shutil.copytree(out, tmp_path / "copy")
    assert FederatedRun.open(out, federation).identity == run.identity
    copy = FederatedRun.open(tmp_path / "copy", federation)  # and gone on with beside the first
    for one in (run, copy):
        ledger = one.ledger()
        assert ledger is not None
        one.write_ledger(ledger.begin_round())
    plans = [one.plan for one in united([run.lineage(), copy.lineage()]).trainings if one.plan]
    assert [plan.mechanism.rounds for plan in plans] == [2, 1], "the second was begun twice, with noise of its own"
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(RunError, match="holds results of other weights"):
        FederatedRun.open(out, federation)


def test_a_folder_of_an_older_docleak_is_refused_with_the_version_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "federation.json").write_text('{"docleak": "0.1.0", "federation": {}}')
    for opened in (lambda: FederatedRun.open(tmp_path, Federation()), lambda: load_run(tmp_path)):
        with pytest.raises(RunError, match=r"begun by docleak 0\.1\.0 .* Docleak 0\.1\.0 reads it"):
            opened()


def test_scores_of_a_round_that_is_done_again_stay_counted(tmp_path: Path) -> None:
    plan = DpPlan(Mechanism(1.0, 3), clip_norm=1.0, denominator=1, delta=1e-3)
    run = FederatedRun.open(tmp_path, Federation(holdout=0.2, privacy=plan))
    state = replace(ServerState.of({"w": np.zeros(2, np.float32)}), round=1)
    for times in (1, 2, 3):
        run.write_round(RoundRow(1, (), 0.0, 0.0), state)
        assert run.scores(1) is None, "those of the model before are not its own"
        run.write_scores(1, [])
        assert run.evaluations() == times and run.rounds_seen() == 1


def test_a_training_that_was_ended_as_it_began_is_gone_on_with(tmp_path: Path) -> None:
    """Killed after its run was made, and before it knew how many rounds."""
    federation = Federation("vt5-start", rounds=2)
    config = json.loads(federation.to_json())
    config.pop("rounds")
    Run.open(tmp_path, config, kind=KIND, command="docleak train federated")
    with pytest.raises(RunError, match="ended before it began"):
        load_run(tmp_path)
    FederatedRun.open(tmp_path, federation)
    assert load_run(tmp_path).federation == federation
