"""A silo's SuperNode in a process of its own: python -m docleak.training.federated.flower.node ARGUMENTS OF IT.

Flower's node, with four changes. Its server learns within 20 seconds that it is gone, not within a minute. It ends, to
be started again, where Flower's would stay alive without doing anything: when its server has forgotten it, and when
the process that trains was killed. It takes no other code from the server than docleak's own app. And the processes
that answer messages are forked from one that has imported PyTorch (``executor``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.proto.fab_pb2 import Fab as SentFab
from flwr.supercore.fab import Fab

from docleak.training.federated.deploy.app import foreign_code
from docleak.training.federated.deploy.watch import AT_WORK, KILLED, LOST, was_killed

#: Seconds between signs of life; the server waits for two. Flower takes no fewer than these.
SIGN_OF_LIFE = 10
#: Seconds between looks at the processes of this node.
LOOK = 1.0
#: The environment's word for the folder that the silo keeps.
KEEP = "DOCLEAK_KEEP"
#: Flower's command: the package has a function of the module's name.
COMMAND: Any = import_module("flwr.supernode.cli.flower_supernode")
#: What this module changes in Flower, for it has no settings for it.
CONNECTION: Any = import_module("flwr.supernode.fleet_http_connection")
HEARTBEAT: Any = import_module("flwr.supercore.heartbeat")
LOOP: Any = import_module("flwr.supernode.start_client_internal")
#: What starts the processes that answer messages, instead of Flower's flower-superexec.
EXECUTOR = "docleak.training.federated.flower.executor"
#: Set, the node executes whatever its server sends, as Flower's does.
ANY_CODE = "DOCLEAK_ANY_CODE"


def main() -> None:
    """Run the node until it loses its server, then end this process with all its threads."""
    for module in (HEARTBEAT, CONNECTION):
        module.HEARTBEAT_DEFAULT_INTERVAL = SIGN_OF_LIFE
    if not os.environ.get(ANY_CODE):
        _take_only_docleaks_app()
    LOOP.subprocess = SimpleNamespace(Popen=_started)
    keep = Path(os.environ[KEEP])
    (keep / AT_WORK).unlink(missing_ok=True)
    threading.Thread(target=_watch, args=(keep,), name="docleak-watch", daemon=True).start()
    code = LOST
    try:
        COMMAND.flower_supernode()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else LOST
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Flower's own threads would keep it alive


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """The one process that Flower's node starts, ``flower-superexec``, in docleak's place of it."""
    return subprocess.Popen([sys.executable, "-m", EXECUTOR, *command[1:]])


def _take_only_docleaks_app() -> None:
    """Have Flower's check of signed apps ask ``foreign_code``: a run with other code is answered with an error."""
    start = COMMAND.start_client_internal
    received = CONNECTION.fab_from_proto

    def started(**settings: Any) -> None:  # Flower's own keywords, of which one is replaced
        start(**{**settings, "trusted_entities": {"docleak": "the app of the docleak installed here"}})

    def taken(sent: SentFab) -> Fab:
        fab = received(sent)
        return Fab(fab.hash_str, fab.content, {"valid_license": "see foreign_code"})

    def verified(fab: Fab, entities: dict[str, str]) -> bool:
        if why := foreign_code(fab.content):
            print(f"docleak: the code that the server sends is refused: {why}.", file=sys.stderr, flush=True)
        return not why

    COMMAND.start_client_internal = started
    CONNECTION.fab_from_proto = taken
    LOOP._verify_fab = verified


def _watch(keep: Path) -> None:
    """End this process when one of its children has ended, or the one that trains was killed."""
    while True:
        time.sleep(LOOK)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            ended = 0
        if ended or was_killed(keep):
            print("docleak: the process that trains was killed; this node ends.", file=sys.stderr, flush=True)
            os._exit(KILLED)


if __name__ == "__main__":
    main()
