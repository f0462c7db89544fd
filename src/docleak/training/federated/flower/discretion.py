"""The one place that decides what of a silo's failure the server is told.

Under a privacy plan, with secure aggregation, and wherever a silo keeps limits of its own, that is one sentence that is
always the same: an exception of any kind may name what is protected. The silo's operator reads all of it in the
silo's log, with its causes.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

from docleak.errors import DocleakError
from docleak.files import OWNERS_FILE
from docleak.training.federated.deploy.watch import at_work
from docleak.training.federated.flower.messages import config_record, settings_in

#: All that a server is told where a silo says nothing of its own.
REDACTED = "it could not take part; its own log says why"
#: Where a silo's operator reads what the server is not told, in the folder that the silo keeps.
LOG = "silo.log"
#: The entry of a node's configuration that names that folder.
KEEP = "keep"


def answered(message: Message, context: Context, work: Callable[[], RecordDict]) -> Message:
    """The reply that ``work`` makes, or a refusal: nothing that is raised goes any further in words of its own."""
    try:
        with at_work(keep_of(context.node_config)):
            content = work()
    except Exception as error:
        said = told(error, message.content, context.node_config)
        name = str(context.node_config.get("name", "")) or Path(str(context.node_config.get("silo", ""))).name
        content = RecordDict({"fault": config_record({"silo": name or "unnamed", "message": said})})
    return Message(content, reply_to=message)


def told(error: Exception, content: RecordDict, node: Mapping[str, Any]) -> str:
    """What the server is told of ``error``; all of it goes to the silo's own log where the server is not told."""
    if not is_reticent(content, node):
        return str(error) if isinstance(error, DocleakError) else f"failed: {type(error).__name__}: {error}"
    _note(error, node)
    return REDACTED


def is_reticent(content: RecordDict, node: Mapping[str, Any]) -> bool:
    """Whether the federation of a message, or the silo itself, keeps everything but updates to itself.

    A message that does not say so in a way that can be read counts as one that does.
    """
    from docleak.training.federated.federation import Federation  # they bring PyTorch, which few replies need
    from docleak.training.federated.silo_limits import has_limits

    if has_limits(keep_of(node)):
        return True
    try:
        return Federation.from_json(str(settings_in(content, "config")["federation"])).reticent
    except (DocleakError, KeyError, TypeError, ValueError):
        return True


def keep_of(node: Mapping[str, Any]) -> Path | None:
    """The folder that a silo keeps for itself, by its node's configuration."""
    return Path(str(node[KEEP])) if node.get(KEEP) else None


def _note(error: Exception, node: Mapping[str, Any]) -> None:
    """To the silo's stderr, and to its log, which only its owner may read."""
    name, keep = str(node.get("name", "")) or "unnamed", keep_of(node)
    whole = "".join(traceback.format_exception(error))
    print(f"docleak: silo {name!r}: {error if isinstance(error, DocleakError) else whole}", file=sys.stderr)
    if keep is not None:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        try:
            with os.fdopen(os.open(keep / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNERS_FILE), "a") as log:
                log.write(f"{at} silo {name!r} (process {os.getpid()})\n{whole}\n")
        except OSError as fault:  # a full disk must not change what the server is told
            print(f"docleak: silo {name!r}: {keep / LOG} cannot be written ({fault}).", file=sys.stderr)
