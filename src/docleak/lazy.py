"""Names of a package that are imported when they are asked for: ``docleak --help`` must not load torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def imported_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of ``package`` (PEP 562): ``homes`` maps its public names to the modules that have them."""

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
