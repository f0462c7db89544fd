"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

# Before any library that reads them is imported: no test may use the network or more than one core.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")

import pytest
import torch

torch.set_num_threads(1)

SHARED_DATA = Path(__file__).parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real development data beside the checkout; tests that need it skip without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real development data is not at {SHARED_DATA}")
    return SHARED_DATA
