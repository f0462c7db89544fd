"""Defences: what a client, or the owner of a template, can do before anything is exposed."""

from typing import TYPE_CHECKING

from docleak.lazy import imported_on_use

if TYPE_CHECKING:
    from docleak.defenses.defense import Defense, GradientDefense, NoDefense, Noisy, TemplateDefense
    from docleak.defenses.registry import DEFENSES

__all__ = ["DEFENSES", "Defense", "GradientDefense", "NoDefense", "Noisy", "TemplateDefense"]
__getattr__ = imported_on_use(__name__, {**dict.fromkeys(__all__, "defense"), "DEFENSES": "registry"})
