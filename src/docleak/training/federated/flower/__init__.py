"""The one package that knows Flower: one ClientApp and Strategy, run in one process or on SuperLink and SuperNodes.

Flower's own FedAvgM, FedAdam, secure aggregation and differential privacy are not used: their formulas and guarantees
are others. Its strategies also average over the survivors of a round; here a missing or broken reply stops it.
"""

import importlib
import os

from docleak.errors import MissingExtraError

# Flower reports home and looks for updates unless this is set before its first import.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

try:
    importlib.import_module("flwr.supercore.task_identity")  # absent before 1.3x, as much else that is used here
except ImportError as error:
    raise MissingExtraError(
        f"federated training needs Flower 1.41 ({error}). Install it with: pip install 'docleak[federated]'"
    ) from error
