"""Named arrays in Flower's records, and what a message weighs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from numpy.typing import NDArray


def array_record(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    """Named arrays as Flower carries them."""
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})


def arrays_in(content: RecordDict) -> dict[str, NDArray[Any]]:
    """The named arrays of a message's record ``arrays``."""
    return {name: array.numpy() for name, array in content.array_records["arrays"].items()}


def metrics_in(content: RecordDict) -> dict[str, Any]:
    """The numbers, and lists of numbers, of a message's record ``metrics``."""
    return dict(content.metric_records["metrics"])


def settings_in(content: RecordDict, name: str) -> dict[str, Any]:
    """The settings of a message's record ``name``."""
    return dict(content.config_records[name])


def metric_record(values: Mapping[str, Any]) -> MetricRecord:
    """Python numbers, or lists of them, as Flower carries them."""
    return MetricRecord(dict(values))


def config_record(values: Mapping[str, Any]) -> ConfigRecord:
    """Texts and numbers as Flower carries them."""
    return ConfigRecord(dict(values))


def wire_bytes(message: Message) -> int:
    """The bytes of everything a message is serialised into, content that occurs twice once."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
