"""An NVFlare filter that changes nothing and records what passes: beside a client's task data and its task results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from nvflare.apis.dxo import DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import ReturnCode

from docleak.training.taps.recorder import Recorder, Sent

#: DataKind -> what is written of it: a difference of NVFlare's is y_k - theta_t, docleak's delta the other way round.
KINDS = {DataKind.WEIGHTS: "weights", DataKind.WEIGHT_DIFF: "delta"}
ROUND = "current_round"


class UpdateFilter(Filter):  # type: ignore[misc]
    """Add it to the tasks that come in and, as the last filter, to the results that go out, with the same directory.

    What goes in is the weights before, what goes out the update, after whatever other filters made of it. See
    ``Recorder`` for the directory and ``limit_gb``. Both must run in one process, as they do in a client.
    """

    #: Weights that came in, by directory and site: each chain of filters has an object of its own.
    _sent: ClassVar[dict[tuple[str, str], dict[str, Any]]] = {}

    def __init__(self, directory: str, limit_gb: float = 10.0) -> None:
        super().__init__()
        self.directory, self.limit_gb = str(Path(directory).absolute()), limit_gb
        self._recorder: Recorder | None = None

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """``shareable`` as it came."""
        try:
            self._look(shareable, fl_ctx.get_identity_name(default="site"))
        except Exception as fault:  # a user's training must not end because it is watched
            self.log_warning(fl_ctx, f"docleak: not recorded: {type(fault).__name__}: {fault}")
        return shareable

    def _look(self, shareable: Any, site: str) -> None:
        if shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return
        dxo, key = from_shareable(shareable), (self.directory, site)
        arrays = {name: _numpy(value) for name, value in dxo.data.items()}
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            self._sent[key] = arrays
            return
        kind, start = KINDS[dxo.data_kind], self._sent[key]
        came = {name: -value for name, value in arrays.items()} if kind == "delta" else arrays
        number = int(shareable.get_header(ROUND, dxo.get_meta_prop(ROUND, 0)) or 0) + 1
        details: dict[str, Any] = {"recorded_by": "docleak UpdateFilter"}
        if steps := dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND):
            details["steps"] = int(steps)
        told = {name: value for name, value in (dxo.meta or {}).items() if isinstance(value, int | float | str)}
        if self._recorder is None:
            self._recorder = Recorder(self.directory, limit_gb=self.limit_gb, fresh=False, waiting=True)
        self._recorder.record(Sent(number, site, start, came, details={**told, **details}, kind=kind))


def _numpy(value: Any) -> Any:
    """A copy: filters that follow may change the arrays in place."""
    return np.array(value.detach().cpu().float().numpy() if hasattr(value, "detach") else value)
