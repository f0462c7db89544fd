"""Commands whose options are the fields of a dataclass; several commands share options by inheriting them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def with_options(kind: Callable[..., T], run: Callable[[T], None]) -> Callable[..., None]:
    """``run`` as a function for ``app.command``, with an option for each field of the dataclass ``kind``.

    Fields are annotated with ``typer.Option``; a field that a derived class declares again keeps its place.
    """

    def command(**values: Any) -> None:
        run(kind(**values))

    hints = get_type_hints(kind, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(kind)  # type: ignore[arg-type]
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {field.name: field.annotation for field in parameters}
    command.__doc__ = run.__doc__
    return command
