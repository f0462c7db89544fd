"""Pages from the templates of this package: everything escaped, every name known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jinja2

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("docleak.evidence"), autoescape=True, undefined=jinja2.StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip


def render(template: str, *, filters: dict[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """The template filled with ``values``, as HTML. ``percent`` is always among the filters.

    Raises jinja2.UndefinedError for a name that the template uses and nobody gave.
    """
    environment = _ENVIRONMENT.overlay()
    environment.filters = {**_ENVIRONMENT.filters, "percent": percent, **(filters or {})}
    return environment.get_template(template).render(**values)


def percent(value: float | None, digits: int = 0) -> str:
    """A share as a percentage."""
    return "–" if value is None else f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"
