"""``docleak audit servers``: what a server reads, beside the guard's opinion, in a report that calls it active."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from docleak.attacks.servers.fishing import Fishing
from docleak.attacks.servers.view import Loot, Token
from docleak.errors import AttackError, ModelError, RunError
from docleak.models import DocumentModel, Encoded
from docleak.report.page import joined
from docleak.report.severity import Severity
from docleak.studies.engine import carry_out
from docleak.studies.registry import report_on, runs_at
from docleak.studies.servers.config import ServersConfig
from docleak.studies.servers.study import ServersStudy, beside_public, of_one, of_tokens, part_of, share, summed
from tests.small import small_donut

CONFIG = ServersConfig(models=("vt5-start",), servers=("decepticons", "adapter-bins"), clients=2, public=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return carry_out(ServersStudy(CONFIG), tmp_path_factory.mktemp("servers") / "run").path


def test_the_report_names_an_active_server_what_it_read_and_the_guard(run: Path) -> None:
    page, (reading,) = report_on([run])
    read, held = sorted(reading.parts, key=lambda part: part.severity is Severity.UNMEASURED)
    assert read.severity is Severity.SEVERE and "an active server reads" in read.sentence
    assert "The guard refuses it" in read.sentence
    assert held.said == "No hold" and "no LoRA" in held.sentence
    assert "manipulates the model that it sends" in reading.counted
    assert "guard refuses 1 in a first round" in reading.counted
    assert "read something in 1 of 1 trial; 1 was not possible: " in reading.counted
    assert "has a PSNR of at least 48 dB to it" in reading.tables["servers"].caption
    html = page.read_text()
    assert "it does NOT keep to the protocol" in html and "sum of 2 clients" in html
    row = reading.tables["servers"].to_frame().set_index("server").filter(like="decepticons", axis=0)
    assert float(row["tokens"].iloc[0]) > 0.5 and row["guard"].iloc[0] == "refused"


def test_the_signed_page_says_what_training_was_attacked_and_that_the_server_is_active(run: Path) -> None:
    page, (reading,) = report_on([run])
    scope = reading.scope
    assert scope is not None and scope.system == "Federated training of VT5 (tiny), start of federated training"
    assert scope.reached == "one gradient of 2 clients with 1 page each" and "an active server" in scope.adversary
    assert scope.remedies[0].startswith("Of 1 manipulated model docleak guard refuses 1 in a first round")
    facts = page.read_text().split("Purpose of the audit")[1].split("Statement to quote")[0]
    assert "of 2 clients" in facts and "manipulates the model" in facts


def test_trials_that_were_not_possible_are_no_trials(tmp_path: Path) -> None:
    config = ServersConfig(models=("vt5-start",), servers=("adapter-bins",), public=4)
    (reading,) = report_on([carry_out(ServersStudy(config), tmp_path / "run").path])[1]
    assert "read something in 0 of 0 trials; 1 was not possible: " in reading.counted
    assert "no LoRA" in reading.counted and "guard" not in reading.counted


def test_what_passes_a_first_round_is_not_said_to_be_refused(tmp_path: Path) -> None:
    config = ServersConfig(models=("donut-start",), servers=("trap-weights:share=0.05,left=0.05",), clients=2)
    run = carry_out(ServersStudy(config), tmp_path / "run")
    (record,) = run.units()
    assert not record["guard"]["refused"] and record["guard_beside"]["refused"]
    (reading,) = report_on([run.path])[1]
    assert "of 1 manipulated model docleak guard refuses 0 in a first round" in reading.counted
    assert "and 1 beside the honest model" in reading.counted
    (part,) = reading.parts
    assert "The guard lets it pass in a first round, and refuses it beside the honest model" in part.sentence


def test_a_model_that_was_written_over_is_loaded_again(tmp_path: Path) -> None:
    identities = []
    for seed in (0, 1):
        small_donut(seed=seed).save(str(tmp_path / "model"))
        identities.append(ServersStudy(ServersConfig(models=(str(tmp_path / "model"),), clients=2)).identity())
    assert identities[0] != identities[1]


def test_a_model_that_holds_no_numbers_is_refused_and_what_no_client_sends_is_no_trial(tmp_path: Path) -> None:
    broken, loud = small_donut(seed=0), small_donut(seed=1)
    with torch.no_grad():
        next(broken.module.parameters()).view(-1)[0] = torch.nan
        for weight in loud.module.parameters():
            weight.mul_(1e18)
    broken.save(str(tmp_path / "broken"))
    loud.save(str(tmp_path / "loud"))
    config = ServersConfig(models=(str(tmp_path / "broken"),), servers=("imprint",), public=4)
    with pytest.raises(ModelError, match=r"weights that are NaN or infinite, in 1 tensor, first .* another checkpoint"):
        carry_out(ServersStudy(config), tmp_path / "one")
    config = ServersConfig(models=(str(tmp_path / "loud"),), servers=("imprint",), public=4)
    (reading,) = report_on([carry_out(ServersStudy(config), tmp_path / "two").path])[1]
    assert "0 of 0 trials; 1 was not possible: what a client computes of it is no number" in reading.counted


def test_a_sum_in_fixed_point_is_rounded_and_refuses_what_it_cannot_hold() -> None:
    import torch

    gradients = [{"w": torch.tensor([0.25, -1.0])}, {"w": torch.tensor([0.5, 1e-12])}]
    assert summed(gradients, 0.0)["w"].tolist() == [0.75, pytest.approx(-1.0)]
    assert summed(gradients, 2.0)["w"].tolist() == [0.75, -1.0]
    from docleak.errors import FederationError

    with pytest.raises(FederationError, match="cannot hold it"):
        summed(gradients, 0.01)


def test_intervals_are_those_of_counts() -> None:
    none, all_ = share(0, 200, "rounds"), share(200, 200, "rounds")
    assert (none.value, none.low) == (0.0, 0.0) and none.high == pytest.approx(1 - 0.025 ** (1 / 200))
    assert all_.high == 1.0 and all_.low == pytest.approx(0.025 ** (1 / 200))
    assert np.isclose(share(1, 2, "rounds").value or 0, 0.5)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(AttackError, match="unknown server"):
        ServersConfig(servers=("imprnt",))
    with pytest.raises(AttackError, match="one of each"):
        ServersConfig(servers=())


def test_a_server_that_reads_one_page_is_held_against_the_page_it_is_most_like() -> None:
    def page(*ids: int) -> Encoded:
        return Encoded({"input_ids": torch.tensor(ids)}, ())

    loot = Loot(tokens=tuple(Token(token, -1, 1.0) for token in (4, 5, 6, 9)))
    counts = of_one(loot, [page(1, 2, 4), page(4, 5, 6, 7)])
    assert (counts["tokens"], counts["tokens_read"], counts["tokens_wrong"], counts["one_page"]) == (4, 3, 1, True)
    both = of_tokens(loot, [page(1, 2, 4), page(4, 5, 6, 7)])
    assert (both["tokens"], both["tokens_read"]) == (6, 3)


@pytest.mark.parametrize(("read", "severity"), [({1, 2}, "untold"), ({1, 2, 3, 4}, "severe"), ({1, 2, 3}, "partial")])
def test_what_stands_on_pages_that_no_client_has_is_no_reading(read: set[int], severity: str) -> None:
    """The question's words and the end of a text stand on every page."""

    def page(*ids: int) -> Encoded:
        return Encoded({"input_ids": torch.tensor(ids)}, ())

    loot = Loot(tokens=tuple(Token(token, -1, 1.0) for token in read))
    private, public = [page(1, 2, 3, 4, 5, 6, 7)], [page(1, 2, 8, 9, 10, 11), page(1, 12, 13)]
    opinion = {"refused": True, "reasons": ["one"]}
    record = {"server": "traps", "model": "vt5-start", "changes": "weights", "guard": opinion, "guard_beside": opinion,
              **of_tokens(loot, private), **beside_public(loot, private, public, of_tokens)}  # fmt: skip
    assert record["tokens_elsewhere"] == 2 and record["pages_compared"] == 1
    part = part_of({"clients": 1, "batch_size": 1}, record)
    assert part.severity == severity
    said = "Of 1 page that no client has, what it reads holds as many tokens as of 1 of the clients'"
    assert (said in part.sentence) == (severity == "untold")


def test_fewer_public_pages_are_held_against_as_few_of_the_clients() -> None:
    """Six pages of twelve without a client held less than all twelve clients' pages, and so all of it was read."""

    def page(*ids: int) -> Encoded:
        return Encoded({"input_ids": torch.tensor(ids)}, ())

    loot = Loot(tokens=tuple(Token(token, -1, 1.0) for token in (1, 2, 3)))
    private, public = [page(1, 4), page(2, 5), page(3, 6)], [page(1, 7)]
    record = beside_public(loot, private, public, of_tokens)
    assert record == {"tokens_elsewhere": 1, "tokens_compared": 1, "pages_compared": 1}
    opinion = {"refused": True, "reasons": ["one"]}
    record |= {"server": "traps", "model": "vt5-start", "changes": "weights", "guard": opinion, "guard_beside": opinion}
    part = part_of({"clients": 3, "batch_size": 1}, {**record, **of_tokens(loot, private)})
    assert part.severity is Severity.UNTOLD and "reads 3 of 6 different tokens" in part.sentence


def test_of_an_older_run_it_is_not_said_that_tokens_were_held_against_public_pages(run: Path, tmp_path: Path) -> None:
    (reading,) = report_on([run])[1]
    assert any("any as many public ones" in limit for limit in reading.limits)
    older = Path(shutil.copytree(run, tmp_path / "older"))
    for file in older.glob("units/*/unit.json"):
        record = json.loads(file.read_text())
        file.write_text(json.dumps({key: value for key, value in record.items() if not key.endswith("_elsewhere")}))
    (reading,) = report_on([older])[1]
    assert any("not held against public pages" in limit for limit in reading.limits)


def test_half_a_run_whose_only_trial_was_impossible_is_no_missing_hold(tmp_path: Path) -> None:
    config = ServersConfig(models=("vt5-start",), servers=("adapter-bins", "trap-weights"), public=4)
    run = carry_out(ServersStudy(config), tmp_path / "run")
    (reading,) = report_on([run.path])[1]
    traps = next(part for part in reading.parts if "trap-weights" in part.name)
    assert traps.severity is Severity.PARTIAL, "the one token that it reads stands on no other page"
    (run.folder("vt5-start-trap-weights") / "unit.json").unlink()
    verdict = joined(report_on([run.path])[1])
    assert verdict.label == "Not measured" and "The run is not finished: 1 of 2 trials." in verdict.sentence


def test_a_run_that_was_copied_is_one_run(run: Path, tmp_path: Path) -> None:
    """Its rows stood twice, and it was found "in 2 of 2 parts"."""
    copy, folder = tmp_path / "copy", tmp_path / "audit"
    shutil.copytree(run, copy)
    with pytest.raises(RunError, match=r"are one run, which was copied: .* [0-9]+ units? in common.* Name one of them"):
        report_on([run, copy], tmp_path / "report")
    shutil.copytree(run, folder)
    shutil.copytree(run, folder / "backup")
    with pytest.raises(RunError, match="are one run, which was copied"):
        report_on([folder])
    shutil.rmtree(folder / "units")  # a run of which nothing is finished, and one within it
    (tmp_path / "link").symlink_to(folder)
    assert [one.path for one in runs_at([folder, tmp_path / "link"])] == [folder, folder / "backup"]
    once, twice = (report_on([run] * count, tmp_path / "report")[1][0] for count in (1, 2))
    assert twice.tables["servers"].to_json() == once.tables["servers"].to_json(), "named twice it counts once"


@dataclass(frozen=True)
class Own(Fishing):
    """A server of somebody's own whose obstacle is no text."""

    name: str = "mine"

    def obstacle(self, model: DocumentModel) -> Any:
        return True


def test_a_server_of_one_s_own_leaves_no_record_that_no_report_can_read(tmp_path: Path) -> None:
    """It was measured to the end, and the report told to delete the folder."""
    config = ServersConfig(models=("vt5-start",), servers=(Own(),), public=2)
    with pytest.raises(AttackError, match="the obstacle of server 'mine' is True"):
        carry_out(ServersStudy(config), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("unit.json"))
