"""Pages from templates: everything escaped, every name known, nothing loaded, and no character that hides another."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from docleak.documents.visible import visible

#: What a browser may do with a page of ours: show it, with its own styles and the pictures inside it, and nothing else.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def _finalised(value: Any) -> Any:
    """What a template prints of a value: markup (of macros) is finished, all else may come from data."""
    if isinstance(value, Markup | jinja2.Undefined):
        return value
    return visible(str(value))


@cache
def environment() -> jinja2.Environment:
    """The templates. ``policy``, for the page's head, and ``percent`` are known to all of them."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("docleak.report"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_finalised,
    )  # fmt: skip
    made.globals["policy"] = POLICY
    made.filters["percent"] = percent
    return made


def render(template: str, **values: Any) -> Markup:
    """The template, compiled once in a process, filled with ``values``, as HTML.

    Raises jinja2.UndefinedError for a name that the template uses and nobody gave.
    """
    return Markup(environment().get_template(template).render(**values))


def percent(value: float | None, digits: int = 0) -> str:
    """A share as a percentage."""
    return "–" if value is None else f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"
