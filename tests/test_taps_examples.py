"""The examples of recorded updates, run whole against the real frameworks: Flower, Trainer, SFTTrainer, NVFlare."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

from tests.forking import Forked

FOLDER = Path(__file__).parents[1] / "examples"
#: The examples' own, with the shortest attacks that there are: their whitening takes 17 evaluations.
QUICK = ("--steps=1", "--batch-sizes=1", "--budget=18", "--picture-budget=18")
#: Example -> the package that it needs beside docleak's own, and what it says.
EXAMPLES = {
    "trainer_callback.py": ("", "the server reads 160 (100"),
    "trainer_callback.py --lora": ("peft", "Words: not read"),
    "flower_quickstart.py": ("flwr", "the server reads 110 (100"),
    "flower_quickstart.py --client": ("flwr", "Round 1, client 0"),
    "sft_trainer.py": ("trl", "Round 1, client trainer"),
    "nvflare_filter.py": ("nvflare", "Round 1, client site-1"),
    "nvflare_filter.py percentile": ("nvflare", "Round 1, client site-1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_records_and_is_audited_at_the_first_command(example: str, tmp_path: Path) -> None:
    """All of them: pytest -m slow tests/test_taps_examples.py, with trl and nvflare installed or on PYTHONPATH."""
    needed, said = EXAMPLES[example]
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: pip install -c constraints.txt {needed}")
    name, *options = example.split()

    def run() -> None:
        sys.path.insert(0, str(FOLDER))
        importlib.import_module("somebodys_app").QUICK = QUICK  # type: ignore[attr-defined]
        sys.argv = [name, str(tmp_path), *options]
        runpy.run_path(str(FOLDER / name), run_name="__main__")

    process = Forked(run, tmp_path)
    code = process.wait(600)
    out, err = process.communicate()
    assert code == 0, out[-2000:] + err[-4000:]
    assert "Verdict: " in out and said in out, out
    assert next((tmp_path / "audit").glob("report.html")).is_file()
