"""The part that all taps share: updates are written in the background, and what cannot be written is said and left."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.documents.ranges import check_kind, check_path
from docleak.errors import FederationError
from docleak.training.federated.capture import KINDS, begin, naming, recorded, start_of, write_update

LOG = logging.getLogger("docleak.tap")
#: Bytes that may wait to be written; what comes beyond is left out, for the training does not wait.
MOST_WAITING = 4 * 10**9
#: Bytes that a disk keeps free.
SPARE = 10**9
#: Updates that the estimate is of.
ESTIMATED = 100

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Sent:
    """One update as a tap saw it: the weights ``before`` and what was ``sent``, as arrays of numpy, torch or Flower."""

    round: int
    client: str
    before: Mapping[str, Any]
    sent: Mapping[str, Any]
    examples: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "weights"

    @property
    def size(self) -> int:
        """Bytes of both."""
        arrays = (*self.before.values(), *self.sent.values())
        return sum(one.nbytes if hasattr(one, "nbytes") else len(one.data) for one in arrays)


class Recorder:
    """Writes a capture into ``directory``, at most ``limit_gb`` gigabytes of it.

    Refused at once (FederationError): a folder that is not empty and no capture, a kind that there is none of, and
    with ``fresh`` a capture of an earlier training. From then on nothing is raised: what cannot be recorded is a
    warning of the logger ``docleak.tap``. With ``waiting`` each update is written before ``record`` returns, for
    processes that are ended from outside.
    """

    def __init__(
        self, directory: str | Path, *, kind: str = "weights", limit_gb: float = 10.0, fresh: bool = True,
        waiting: bool = False,
    ) -> None:  # fmt: skip
        check_path("the directory", directory, "a folder to record in", FederationError)
        self.folder = Path(directory).expanduser().absolute()
        if kind not in KINDS:
            raise FederationError(f"updates are {kind!r}; expected one of {', '.join(KINDS)}.")
        check_kind("limit_gb", limit_gb, Real, "gigabytes above 0", FederationError)
        if not 0 < limit_gb < float("inf"):
            raise FederationError(f"limit_gb is {limit_gb}; expected gigabytes above 0.")
        try:
            begin(self.folder)
        except OSError as fault:
            raise FederationError(f"{self.folder} cannot be written to: {fault}. Give another directory.") from fault
        if fresh and (rounds := sorted(self.folder.glob("round-*"))):
            raise FederationError(
                f"{self.folder} holds {len(rounds)} rounds of an earlier training. Give a new directory, or delete it."
            )
        self.kind, self.limit = kind, int(limit_gb * 10**9)
        self._written = sum(file.stat().st_size for file in self.folder.rglob("*.safetensors"))
        self._waiting, self._full, self._told = 0, False, False
        self._queue = None if waiting else ThreadPoolExecutor(1, thread_name_prefix="docleak-tap")
        self._futures: list[Future[None]] = []

    def record(self, sent: Sent) -> None:
        """Write the update, later; never raises."""
        if self._full:
            return
        self._estimate(sent)
        free = shutil.disk_usage(self.folder).free
        if self._written + self._waiting + sent.size > self.limit or free - self._waiting - sent.size < SPARE:
            self._full = True
            self.warn(
                f"recording ends before round {sent.round}, client {sent.client}: {self._written / 1e9:.2f} GB are "
                f"there, the limit is {self.limit / 1e9:g} GB (limit_gb), and {free / 1e9:.1f} GB of the disk are "
                "free. The training goes on."
            )
        elif self._queue is None:
            self._write(sent)
        elif self._waiting + sent.size > MOST_WAITING:
            self.warn(f"round {sent.round}, client {sent.client}: not recorded, since writing is slower than training.")
        else:
            self._waiting += sent.size
            self._futures = [future for future in self._futures if not future.done()]
            self._futures.append(self._queue.submit(self._write_later, sent))

    def settle(self) -> None:
        """Wait until all of it is on disk."""
        wait(self._futures)

    def warn(self, message: str) -> None:
        """Say what was not recorded, to people and logs."""
        LOG.warning("docleak.tap: %s", message)

    def _estimate(self, sent: Sent) -> None:
        if self._told:
            return
        self._told = True
        level = logging.WARNING if ESTIMATED * sent.size > self.limit else logging.INFO
        LOG.log(
            level, "docleak.tap: about %.1f MB for each client's update, so that %s holds %d of them within %g GB.",
            sent.size / 1e6, self.folder, self.limit // max(1, sent.size), self.limit / 1e9,
        )  # fmt: skip

    def _write_later(self, sent: Sent) -> None:
        try:
            self._write(sent)
        finally:
            self._waiting -= sent.size

    def _write(self, sent: Sent) -> None:
        try:
            if recorded(self.folder, sent.round, sent.client):
                self.warn(
                    f"round {sent.round}, client {sent.client} was recorded before, and is left as it was. Another "
                    "training needs a directory of its own."
                )
                return
            start, received, details = self._fitted(sent)
            first = not start_of(self.folder, sent.round).exists()
            write_update(
                self.folder, round=sent.round, client=sent.client, start=start, received=received,
                kind=sent.kind, examples=sent.examples, details=details,
            )  # fmt: skip
            written = (received, start) if first else (received,)
            self._written += sum(value.nbytes for arrays in written for value in arrays.values())
        except Exception as fault:  # a user's training must not end because it is watched
            self.warn(f"round {sent.round}, client {sent.client}: not recorded: {fault}")

    def _fitted(self, sent: Sent) -> tuple[Arrays, Arrays, dict[str, Any]]:
        """The arrays in types that files hold, by the names of the weights before; others are left out, and named."""
        start, came = ({name: plain(one) for name, one in arrays.items()} for arrays in (sent.before, sent.sent))
        shapes = {name: value.shape for name, value in came.items()}
        names = naming(shapes, [{name: value.shape for name, value in start.items()}])
        received = {names[name]: value for name, value in came.items() if name in names}
        details = dict(sent.details)
        if unknown := sorted(set(came) - set(names)):
            details["left_out"] = unknown
            self.warn(
                f"round {sent.round}, client {sent.client}: {len(unknown)} of {len(came)} arrays are left out, for "
                f"the weights before have no such names, first {unknown[0]!r}."
            )
        return start, received, details


def plain(value: Any) -> NDArray[Any]:
    """An array of a type that files and numpy know; bfloat16, which numpy does not, as float32."""
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        value = value.float()
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.dtype.kind == "V" or array.dtype.name == "bfloat16":
        bits = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(array.shape)
    return array
