"""docleak: train document models together, and measure what they leak."""

from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name == "tap":  # it needs Flower, which an audit does not
        from docleak.training.federated.flower.tap import tap

        return tap
    raise AttributeError(f"module 'docleak' has no attribute {name!r}")
