"""scripts/kills.py on two kinds of command, and that it would notice what it looks for."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import PIL.Image
import pytest
from safetensors.numpy import save_file

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def kills() -> ModuleType:
    file = Path(__file__).parents[1] / "scripts" / "kills.py"
    spec = importlib.util.spec_from_file_location("kills", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kills"] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_killed_commands_go_on_as_if_nothing_had_happened(kills: ModuleType, tmp_path: Path) -> None:
    outcomes = kills.kill_all(["train", "data"], 2, 3, tmp_path / "work", 10.0, lambda outcomes: None)
    assert not any(outcome.faults for outcome in outcomes)
    assert {outcome.kind for outcome in outcomes} == {"train", "data"}
    assert f"| all | {len(outcomes)} |" in kills.as_table(outcomes)


def test_half_written_files_are_seen_and_drafts_are_not(kills: ModuleType, tmp_path: Path) -> None:
    PIL.Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "page.png")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / ".docleak-1-ab").write_text("{")
    (tmp_path / ".docleak-model-abcdefgh").mkdir()
    (tmp_path / ".docleak-model-abcdefgh" / "config.json").write_text("{")
    assert kills.half_written(tmp_path) == []
    (tmp_path / "page.png").write_bytes((tmp_path / "page.png").read_bytes()[:-20])
    (tmp_path / "run.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
    (tmp_path / "report.html").write_text("<html>")
    assert len(kills.half_written(tmp_path)) == 4


def test_only_times_are_passed_over(kills: ModuleType, tmp_path: Path) -> None:
    for name, seconds, value in (("a", 1.5, 3), ("b", 2.5, 3), ("c", 2.5, 4)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"seconds": seconds, "value": value, "text": f"took {seconds} s"}))
        (folder / "history.csv").write_text(f"round,seconds_training\n{value},{seconds}\n")
        (folder / "weights.safetensors").write_bytes(bytes([value]))
    assert kills.same_files(tmp_path / "a", tmp_path / "b", tmp_path) == []
    different = ["differs: history.csv", "differs: run.json", "differs: weights.safetensors"]
    assert kills.same_files(tmp_path / "a", tmp_path / "c", tmp_path) == different
    (tmp_path / "b" / "more").write_text("")
    assert kills.same_files(tmp_path / "a", tmp_path / "b", tmp_path) == ["only resumed: more"]


def test_a_trainings_drawn_name_and_key_are_passed_over_and_whose_data_it_saw_is_not(
    kills: ModuleType, tmp_path: Path
) -> None:
    for name, letter, number in (("a", "a", 2), ("b", "b", 2), ("c", "c", 3)):
        (tmp_path / name).mkdir()
        hashes = {letter * 16: [str(i) for i in range(number)]}
        (tmp_path / name / "providers.json").write_text(json.dumps({"key": letter * 64, "hashes": hashes}))
        (tmp_path / name / "run.json").write_text(json.dumps({"identity": letter * 16, "rounds": number}))
    assert kills.same_files(tmp_path / "a", tmp_path / "b", tmp_path) == []
    different = ["differs: providers.json", "differs: run.json"]
    assert kills.same_files(tmp_path / "a", tmp_path / "c", tmp_path) == different


def test_masks_are_passed_over_and_what_they_leave_of_the_sum_is_not(kills: ModuleType, tmp_path: Path) -> None:
    for name, mask, total, size in (("a", 1.0, 5.0, 3), ("b", 2.0, 5.0, 3), ("c", 3.0, 6.0, 3), ("d", 3.0, 5.0, 4)):
        for part in ("updates", "units"):
            (tmp_path / name / part).mkdir(parents=True)
        masked, summed = {"w": np.full(size, mask, np.float32)}, {"w": np.full(3, total, np.float32)}
        save_file(masked, tmp_path / name / "updates" / "one.safetensors")
        save_file(summed, tmp_path / name / "units" / "state.safetensors")
    faults = [kills.same_sum(tmp_path / "a", tmp_path / other, tmp_path) for other in "bcd"]
    assert faults == [[], ["differs: units/state.safetensors"], ["differs: updates/one.safetensors"]]


def test_a_process_that_is_left_is_seen(kills: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "GONE_WITHIN", 0.1)
    words = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    parent = subprocess.Popen([sys.executable, "-c", words], start_new_session=True)
    parent.wait(30)
    left = kills.survivors(parent.pid)
    assert len(left) == 1 and "time.sleep(60)" in left[0]
    os.killpg(parent.pid, 9)
    deadline = time.monotonic() + 10
    while kills.survivors(parent.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert kills.survivors(parent.pid) == []


def test_a_ledger_that_forgot_a_round_is_seen(kills: ModuleType, tmp_path: Path) -> None:
    def run(name: str, begun: int, rounds: int) -> Path:
        for number in range(1, rounds + 1):
            unit = tmp_path / name / "units" / f"round-{number:04d}"
            unit.mkdir(parents=True)
            for file in ("state.safetensors", "unit.json"):
                (unit / file).write_bytes(b"")
        (tmp_path / name / "ledger.json").write_text(json.dumps({"begun": begun}))
        return tmp_path / name

    whole, killed = run("whole", 4, 4), run("killed", 2, 1)
    assert kills.same_claim(whole, run("good", 4, 3), killed) == []
    assert "4 rounds; 1 of 4 were lost" in kills.same_claim(whole, run("twice", 4, 4), killed)
    assert "3 rounds in the ledger, 4 without" in kills.same_claim(whole, run("less", 3, 3), killed)[0]
    assert "killed after 2 rounds, the ledger had 1" in kills.same_claim(whole, run("x", 4, 3), run("k", 1, 2))[0]


def test_a_page_of_results_names_every_kill(kills: ModuleType) -> None:
    good = kills.Outcome("train", 3.0, True, False, ())
    bad = kills.Outcome("audit", 4.0, False, False, ("differs: run.json",))
    page = kills.as_page([good, bad], ["--kills 2", "--seed 0"], "abc1234")
    assert "| train | 1 | 0 | 0 | 1 |" in page and "| audit | 1 | 1 | 0 | 0 |" in page
    assert "| 1 | train | 3.0 s | process group | as undisturbed |" in page
    assert "| 2 | audit | 4.0 s | first process | differs: run.json |" in page
