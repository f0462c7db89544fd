"""The examples of recorded updates, run whole against the real frameworks: Flower, Trainer, SFTTrainer, NVFlare."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from docleak.models import load_model
from docleak.models.layoutlmv3 import LayoutLMv3

ROOT = Path(__file__).parents[1]
#: Example -> the package that it needs beside docleak's own, and what it says.
EXAMPLES = {
    "trainer_callback.py": ("", "the server reads 160 (100"),
    "trainer_callback.py --lora": ("peft", "Words: not read"),
    "flower_quickstart.py huggingface": ("flwr", "the server reads 110 (100"),
    "flower_quickstart.py pytorch --client": ("flwr", "the server reads 110 (100"),
    "sft_trainer.py": ("trl", "Round 1, client trainer"),
    "nvflare_filter.py": ("nvflare", "Round 1, client site-1"),
    "nvflare_filter.py percentile": ("nvflare", "Round 1, client site-1"),
}
#: What is not among the developers' packages, and starts processes of its own, is given a process.
APART = ("trl", "nvflare")


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples' model with one of its four layers: what it reads and forgets is in the tables below them."""
    model, folder = load_model("layoutlmv3-start"), tmp_path_factory.mktemp("model")
    assert isinstance(model, LayoutLMv3)
    del model.module.layoutlmv3.encoder.layer[1:]
    model.module.config.num_hidden_layers = 1
    model.save(str(folder))
    return folder


def said_by(example: str, model: Path, out: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the example prints as a script."""
    name, *options = example.split()
    script = str(ROOT / "examples" / name)
    if EXAMPLES[example][0] in APART:
        paths = [str(ROOT / "src"), str(ROOT / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])]
        run = subprocess.run(
            [sys.executable, script, str(out), *options], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
        return run.stdout
    patch.syspath_prepend(ROOT / "examples")
    patch.setenv("UPDATES_AT_CLIENT", "")  # an example sets it: taken away afterwards, and not there before
    patch.delenv("UPDATES_AT_CLIENT")
    patch.setattr(importlib.import_module("somebodys_app"), "MODEL", model)
    patch.setattr(sys, "argv", [script, str(out), *options])
    torch.manual_seed(0)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(script, run_name="__main__")
    printed = capsys.readouterr()
    assert not end.value.code, printed.out[-2000:] + printed.err[-4000:]
    return printed.out


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_records_and_is_audited_at_the_first_command(
    example: str, shallow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them: pytest -m slow tests/test_taps_examples.py, with trl and nvflare installed or on PYTHONPATH."""
    needed, said = EXAMPLES[example]
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install -c constraints.txt {needed}")
    printed = said_by(example, shallow, tmp_path, monkeypatch, capsys)
    assert "Verdict: " in printed and said in printed, printed
    assert next((tmp_path / "audit").glob("report.html")).is_file()
    if example == "sft_trainer.py":  # no dropout: everything of the round is known
        unit = json.loads((tmp_path / "audit" / "units" / "round-0001--trainer" / "unit.json").read_text())
        assert unit["check"]["self_test"]["passed"] and not unit["check"]["doubts"]
