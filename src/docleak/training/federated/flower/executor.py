"""What starts the process that answers a message at a silo: ``python -m`` this, ARGUMENTS OF flower-superexec.

Flower starts a new Python for every message, which imports PyTorch and the rest of docleak for seconds before it looks
at the message. Here a message's process is forked from one that has imported them and does nothing else. Each message
still has a process of its own, in which nothing of the last one is left.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

#: What Flower calls the process that answers a message, and the function that it runs.
CLIENT_APP = "flwr-clientapp"
ENTRANCE = "flwr.supernode.cli.flwr_clientapp"
#: What the process that others are forked from imports: what a message at a silo needs, whatever its model is.
NEEDED = (
    "docleak.runs.collector",
    ENTRANCE,
    "docleak.training.federated.flower.client",
    "transformers.modeling_utils",
    "transformers.generation.utils",
)


def main() -> None:
    """Flower's SuperExec, which forks. Where forking behind PyTorch is not safe, it starts processes as ever."""
    if sys.platform == "linux":
        context = get_context("forkserver")
        context.set_forkserver_preload(list(NEEDED))

        def start(command: Sequence[str], **streams: Any) -> Any:
            if command[0] != CLIENT_APP or streams:
                return subprocess.Popen(command, **streams)
            # A daemon is not waited for: it ends with this process.
            process = context.Process(target=answer, args=(tuple(command),), daemon=True)
            process.start()
            return process

        executor: Any = import_module("flwr.supercore.superexec.executor.subprocess_executor")
        executor.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    import_module("flwr.supercore.cli.flower_superexec").flower_superexec()


def answer(command: Sequence[str]) -> None:
    """Answer one message, as Flower's command of that name does with these arguments."""
    sys.argv = list(command)
    import_module(ENTRANCE).flwr_clientapp()


if __name__ == "__main__":
    main()
