"""Which defences there are: what each does and where it is, without importing any.

Other packages add theirs as entry points of ``docleak.defenses``. A new one of docleak's own is a file and a line.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from docleak.errors import DefenseError
from docleak.registry import Entry, Registry

if TYPE_CHECKING:
    from docleak.defenses.defense import Defense


#: How methods of a defence are called: by position, and by keyword.
CALLS = {
    "protect": (("gradient", "model"), ("generator",)),
    "imitate": (("dummy", "observed"), ()),
    "publish": (("model", "knowledge", "blank"), ("generator",)),
}


class Defenses(Registry["Defense"]):
    """DefenseError, too, for one of which nothing, or half of it, would be applied."""

    def _checked(self, thing: Any, name: str) -> Defense:
        from docleak.defenses.defense import NoDefense

        defense = super()._checked(thing, name)
        missing = [method for method in ("protect", "imitate") if not hasattr(defense, method)]
        if missing and not isinstance(defense, NoDefense) and (len(missing) == 1 or not hasattr(defense, "publish")):
            raise self.error(
                f"defence {name!r} is a {type(defense).__name__} without {' and '.join(missing)}; expected protect and "
                "imitate, for what a client sends, or publish, for the template. See docleak.defenses.defense."
            )
        for method, (takes, keywords) in CALLS.items():
            try:
                inspect.signature(getattr(defense, method, _anything)).bind(*takes, **dict.fromkeys(keywords))
            except TypeError as fault:
                called = ", ".join((*takes, *(f"*, {keyword}" for keyword in keywords)))
                raise self.error(
                    f"defence {name!r}: its {method} cannot be called ({fault}); expected {method}({called})."
                ) from fault
        return defense


def _anything(*_: object, **__: object) -> None:
    """What a method that is not there is called like."""


#: ``DEFENSES.load("noise:sigma=1e-7")`` makes one.
DEFENSES = Defenses(
    "defence",
    DefenseError,
    {
        "none": Entry("docleak.defenses.defense:NoDefense", "no defence"),
        "noise": Entry("docleak.defenses.gradients:GradientNoise", "Gaussian noise of sigma on every number sent"),
        "clip": Entry("docleak.defenses.gradients:Clipping", "the gradient clipped to a norm"),
        "top-k": Entry("docleak.defenses.gradients:TopK", "only the largest share of each tensor is sent"),
        "freeze": Entry("docleak.defenses.gradients:Freezing", "stages of the model neither trained nor sent"),
        "safe-template": Entry(
            "docleak.defenses.safe_template:SafeTemplate",
            "the published template perturbed by epsilon; direction and start as printed: docs/fidelity.md",
            "Ben Hemo et al. (2025)",
        ),
    },
    protocol="docleak.defenses.defense:Defense",
    group="docleak.defenses",
    default=True,
)
