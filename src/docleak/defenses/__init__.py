"""Defences: what a client, or the owner of a template, can do before anything is exposed."""

from docleak.defenses.defense import (
    DEFENSES,
    Defense,
    GradientDefense,
    NoDefense,
    Noisy,
    TemplateDefense,
    parse_defense,
)

__all__ = ["DEFENSES", "Defense", "GradientDefense", "NoDefense", "Noisy", "TemplateDefense", "parse_defense"]
