"""docleak: train document models together, and measure what they leak."""

from docleak.lazy import imported_on_use

__version__ = "0.2.0"

__getattr__ = imported_on_use("docleak", {"tap": "training.federated.flower.tap"})  # it needs Flower
