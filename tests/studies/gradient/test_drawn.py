"""What a checkpoint does not bring is drawn with the run's own seed, and the audit says with which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from docleak.models import load_model
from docleak.models.published import make
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.models import model_of
from docleak.studies.gradient.study import GradientStudy


def head(config: GradientConfig, source: str) -> torch.Tensor:
    return model_of(config, source, "cpu").module.get_parameter("qa_outputs.dense.weight").detach().clone()


def test_the_seed_of_an_audit_draws_the_head(tmp_path: Path) -> None:
    make("layoutlmv3-base", tmp_path / "base", seed=0, scale="narrow")
    source = str(tmp_path / "base")
    config = GradientConfig((source,), attacks=("random",), budget=5, seed=3)
    told: list[str] = []
    GradientStudy(config).check(told.append)
    assert len(told) == 1 and told[0].startswith("base brings no qa_outputs:") and "drawn with seed 3" in told[0]
    drawn = head(config, source)
    assert torch.equal(drawn, load_model(source, seed=3).module.get_parameter("qa_outputs.dense.weight"))
    assert not torch.equal(drawn, head(replace(config, seed=4), source))
