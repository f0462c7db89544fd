"""Fixtures for all tests."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

# Before any library that reads them is imported: no test may use the network or more than one core.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")

import docleak.runs.collector  # noqa: F401, I001  # before PyTorch
import numpy as np
import PIL.Image
import pytest
import torch
from PIL import ImageDraw, ImageFont

from docleak.documents import Field, Page, Question, Word

torch.set_num_threads(1)
# What a test writes need not outlive a power failure, and every file of a run would wait for the disk twice.
os.fsync = lambda descriptor: None

#: Tens of thousands of small files, on some disks two milliseconds each to delete: in memory, if it has room.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 8 << 30:
    os.environ["TMPDIR"], tempfile.tempdir = str(MEMORY), None

SHARED_DATA = Path(__file__).parents[1].parent / "shared" / "data"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: one process more than cores, for tests wait for other processes; each pays for its own imports."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_collection(session: pytest.Session) -> None:
    """In a fresh clone each process compiles test files of its own first, and then reads what the others compiled."""
    worker: dict[str, str | int] = getattr(session.config, "workerinput", {})
    if not worker or list(session.config.args) != session.config.getini("testpaths"):
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    first = len(files) * int(str(worker["workerid"]).removeprefix("gw")) // int(worker["workercount"])
    for file in files[first:] + files[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting it says what is wrong
            importlib.import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


#: The files that take longest, in that order: begun last, one of them would keep all other processes waiting.
FIRST = (
    "training/test_deployed.py", "cli/test_reproduce_page.py", "studies/weights/test_game.py",
    "training/test_removal.py", "test_architecture.py", "test_taps_examples.py",
    "studies/updates/test_misdescribed.py", "studies/updates/test_updates.py", "test_kills.py",
    "privacy/test_accounting.py", "attacks/test_rounds.py", "cli/test_commands.py", "attacks/test_gi_dqa_joint.py",
    "studies/answers/test_release_rows.py", "studies/gradient/test_audit.py", "models/test_contract.py",
    "cli/test_attack_cdmi.py", "studies/canaries/test_canaries.py", "attacks/test_engine.py",
    "attacks/test_observed.py", "studies/pairs/test_pair_rows.py", "cli/test_train_lineage.py",
    "models/vlm/test_sizes.py", "test_examples.py", "training/test_flower.py", "attacks/test_leak.py",
    "cli/test_train.py", "cli/test_audit_releases.py", "report/test_seen.py", "studies/gradient/test_defences.py",
    "studies/answers/test_answers_shipped.py", "training/test_private_clipping.py", "cli/test_reproduce_trainings.py",
    "cli/test_gate.py", "models/test_loading.py", "studies/pairs/test_pair_study.py",
    "studies/gradient/test_report.py", "test_front.py", "models/vlm/test_model.py", "recipes/test_rehearsal.py",
    "training/test_private_federation.py", "privacy/test_bounded.py", "documents/test_synthetic.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files of FIRST before all others; within a file nothing moves."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """What was imported and collected lives until the end: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real development data beside the checkout; tests that need it skip without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real development data is not at {SHARED_DATA}")
    return SHARED_DATA


def small_page(value: str) -> Page:
    """``Total`` is public, the value below it private, on 64 x 64 pixels."""
    picture = PIL.Image.new("RGB", (64, 64), "white")
    pen = ImageDraw.Draw(picture)
    pen.text((3, 3), "Total", fill="black", font=ImageFont.load_default(10))
    pen.text((32, 40), value, fill="black", font=ImageFont.load_default(12))
    words = (Word("Total", (3, 3, 30, 14)), Word(value, (32, 40, 46, 54)))
    question = Question("Total?", (value,), "total")
    return Page(f"small-{value}", np.asarray(picture), words, (Field("total", value, (1,)),), (question,))


@pytest.fixture(scope="session")
def make_small_page() -> Callable[[str], Page]:
    return small_page
