"""Tries mutants: a process that has imported every library is forked for each, and only in the fork is docleak mutated.

No mutated code is ever written to a file. A fork runs the mirrored tests in its own pytest, cheapest first, until one
fails; it has CPU seconds to do so, by which loops without end are noticed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from scripts.mutants.operators import Mutant, mutated_tree

#: Libraries that docleak or its tests import only where they need them: once here instead of once a mutant.
LIBRARIES = (
    "torch", "transformers", "numpy", "scipy.stats", "scipy.optimize", "scipy.integrate", "sklearn.metrics",
    "sklearn.calibration", "sklearn.ensemble", "sklearn.linear_model", "skimage.metrics", "PIL.Image", "PIL.ImageFont",
    "hypothesis", "rapidfuzz", "safetensors.torch", "dp_accounting", "dp_accounting.pld.privacy_loss_distribution",
    "opacus.accountants", "cryptography.hazmat.primitives.ciphers", "torch.func", "torch.autograd.functional",
)  # fmt: skip
#: CPU seconds of a test and of all: this many times what they take without a change, and some more.
PATIENCE, LEAST_SECONDS = 3.0, 10.0
#: Tests that take more CPU seconds than this without a change are left out, as those marked slow are.
LONGEST = 12.0
MOST_MEMORY = 20 * 2**30
NOTICED = {"failed", "endless", "crashed"}


@dataclass(frozen=True)
class Outcome:
    """``result``: failed, endless, crashed (all noticed) or passed; ``test``: which noticed; ``seconds`` of CPU."""

    result: str
    test: str
    seconds: float
    output: str = ""

    @property
    def noticed(self) -> bool:
        return self.result in NOTICED


class Workshop:
    """Imports what the tests of ``modules`` need, and forks for every question."""

    def __init__(self, modules: Sequence[str], root: Path) -> None:
        import hypothesis

        self.root = root
        self._costs: dict[tuple[Path, ...], dict[str, float]] = {}
        os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
        sys.path.insert(0, str(root / "src"))  # this tree's docleak, whatever is installed
        os.environ.update(PYTHONPATH=str(root / "src"), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")  # plugins: 0.8 s a fork
        for name in (*LIBRARIES, *modules):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        for name in [name for name in sys.modules if name.split(".")[0] == "docleak"]:
            del sys.modules[name]
        hypothesis.settings.register_profile("mutants", database=None, derandomize=True, deadline=None)
        hypothesis.settings.load_profile("mutants")
        self._compiled = tempfile.TemporaryDirectory()  # what one fork has compiled, the next one loads
        sys.pycache_prefix, sys.dont_write_bytecode = self._compiled.name, False
        gc.collect()
        gc.freeze()  # forks need not go through all of this again

    def cost(self, tests: Sequence[Path]) -> dict[str, float]:
        """Seconds of every test (its node) without a change, but the longest; RuntimeError where one fails."""
        if tuple(tests) not in self._costs:
            outcome, seconds = self._fork(tests, None, {}, limit=900)
            if outcome.result != "passed":
                raise RuntimeError(f"without a change, {outcome.test or tests} fails:\n{outcome.output[-3000:]}")
            self._costs[tuple(tests)] = {test: cost for test, cost in seconds.items() if cost <= LONGEST}
        return self._costs[tuple(tests)]

    def attempt(self, mutant: Mutant, module: str, tests: Sequence[Path], cost: Mapping[str, float]) -> Outcome:
        """Whether the tests notice the mutant of ``module``."""
        code = compile(mutated_tree(mutant), str(mutant.path), "exec")
        limit = int(PATIENCE * sum(cost.values()) + LEAST_SECONDS)
        return self._fork(tests, (module, code), cost, limit=limit)[0]

    def _fork(
        self, tests: Sequence[Path], mutated: tuple[str, CodeType] | None, cost: Mapping[str, float], *, limit: int
    ) -> tuple[Outcome, dict[str, float]]:
        with tempfile.TemporaryDirectory() as folder:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            child = os.fork()
            if child == 0:
                _be_the_child(Path(folder), self.root, tests, mutated, cost, limit)
            status = _wait(child, 10 * limit)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            report, output = Path(folder) / "report.json", Path(folder) / "output"
            record = json.loads(report.read_text()) if report.is_file() else {"failed": "", "seconds": {}}
            text = output.read_text(errors="replace") if output.is_file() else ""
        return Outcome(_result(status), record["failed"], seconds, text), record["seconds"]


def _wait(child: int, most: float) -> int:
    """The child's status; it is killed after ``most`` seconds of the clock."""
    start = time.monotonic()
    while True:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            return status
        if time.monotonic() - start > most:
            os.kill(child, signal.SIGXCPU)
            return os.waitpid(child, 0)[1]
        time.sleep(0.02)


def _result(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "endless" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "crashed"
    code = os.WEXITSTATUS(status)
    if code == pytest.ExitCode.OK:
        return "passed"
    if code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        return "failed"
    raise RuntimeError(f"pytest ended with {pytest.ExitCode(code)!r} instead of a verdict.")


def _be_the_child(
    folder: Path, root: Path, tests: Sequence[Path], mutated: tuple[str, CodeType] | None, cost: Mapping[str, float],
    limit: int,
) -> None:  # fmt: skip
    """Runs the tests and ends this process."""
    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(root)
        if mutated is not None:
            sys.meta_path.insert(0, _Replaced(*mutated))
        watch = _Watch(cost)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "-m", "not slow", "--tb=line"]
        code = int(pytest.main([*options, f"--basetemp={folder / 'tmp'}", *map(str, tests)], plugins=[watch]))
        (folder / "report.json").write_text(json.dumps({"failed": watch.failed, "seconds": watch.seconds}))
    finally:
        sys.stdout.flush()
        os._exit(code)


class _Watch:
    """A pytest plugin: cheap tests first, and which failed, how long each took."""

    def __init__(self, cost: Mapping[str, float]) -> None:
        self.cost = cost
        self.seconds: dict[str, float] = {}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.cost:
            items[:] = sorted((i for i in items if i.nodeid in self.cost), key=lambda item: self.cost[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        """Fixtures may run in any test, so that a test has a tenth of what all cost, too."""
        if self.cost:
            mine = PATIENCE * (self.cost.get(nodeid, 0.0) + sum(self.cost.values()) / 10) + LEAST_SECONDS
            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
            resource.setrlimit(resource.RLIMIT_CPU, (min(int(time.process_time() + mine), hard), hard))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


class _Replaced(importlib.abc.MetaPathFinder):
    """Finds one module as always, and gives it other code."""

    def __init__(self, module: str, code: CodeType) -> None:
        self.module, self.code = module, code

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            code = self.code

            class Mutated(importlib.machinery.SourceFileLoader):
                def get_code(self, fullname: str) -> CodeType:
                    return code

            spec.loader = Mutated(name, str(spec.origin))
        return spec
