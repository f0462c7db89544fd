"""The options of a private training that say nothing without --epsilon or --noise, and those that were given."""

from __future__ import annotations

import click
from click.core import ParameterSource

#: Options that say nothing where neither --epsilon nor --noise asks for privacy.
OF_A_TARGET = ("delta", "clip_norm", "unit", "unit_rate", "denominator", "published_counting")


def given(*names: str) -> list[str]:
    """Which of the present command's options stand on its command line, as they are written there."""
    context = click.get_current_context(silent=True)
    if context is None:
        return []
    said = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return [f"--{name.replace('_', '-')}" for name in said]
