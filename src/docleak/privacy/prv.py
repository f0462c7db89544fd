"""Opacus' PRV accountant (Gopi et al., 2021) without the rest of Opacus, which would bring torch and take seconds.

It computes with numpy and scipy. Only its base class names ``opacus.optimizers``, for a hook into training loops.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from docleak.errors import MissingExtraError
from docleak.privacy.mechanism import Mechanism

ACCOUNTANT = "opacus.accountants.prv"
#: By how much more than the truth its epsilon may be, about: it is what Opacus is asked for.
PRV_ERROR = 0.01
#: Where Opacus counts an order of RDP, nearly all of the accountant's time, and does so twice.
ORDERS, ORDER = "opacus.accountants.analysis.rdp", "_compute_rdp"
#: What stands in for modules of Opacus while that one is imported.
STAND_INS = {"opacus.optimizers": {"DPOptimizer": object}}


def epsilon_of_prv(parts: Sequence[Mechanism], delta: float, error: float = PRV_ERROR) -> float:
    """The upper bound on epsilon of ``parts`` together, whose units are drawn on their own, at most ``error`` above it,
    and never below 0, which Opacus' own may be at a large delta; errors as from Opacus."""
    accountant = _module().PRVAccountant()
    accountant.history = [(m.noise_multiplier, m.rate, m.rounds) for m in parts]
    return max(0.0, float(accountant.get_epsilon(delta, eps_error=error)))


@lru_cache(maxsize=1)
def _module() -> Any:
    """The module, which is not left among the imported ones where stand-ins were used."""
    if "opacus" in sys.modules:
        return _imported()
    spec = find_spec("opacus")
    if spec is None or spec.submodule_search_locations is None:
        raise MissingExtraError("the PRV accountant needs opacus: pip install 'docleak[privacy]'.")
    package = ModuleType("opacus")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["opacus"] = package
    for name, values in STAND_INS.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(values)
    try:
        return _imported()
    except ImportError:  # another version of Opacus, which names more
        _forget()
        return _imported()
    finally:
        if sys.modules.get("opacus") is package:
            _forget()


def _imported() -> ModuleType:
    """The accountant's module, whose orders are counted once."""
    module, orders = import_module(ACCOUNTANT), import_module(ORDERS)
    count = getattr(orders, ORDER, None)
    if count is not None and not hasattr(count, "cache_info"):
        setattr(orders, ORDER, lru_cache(maxsize=4096)(count))
    return module


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opacus"]:
        del sys.modules[name]
