"""What is compared of defences; nothing that computes is imported before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from docleak.defenses.registry import DEFENSES
from docleak.documents.ranges import Range
from docleak.errors import AttackError
from docleak.options import Option, only, option
from docleak.studies.gradient.config import GradientConfig

#: What stands for no defence.
NONE = "none"
DEFAULT = ("noise:sigma=1e-4", "clip:norm=0.1", "top-k:share=0.01", "freeze", "safe-template:epsilon=8/255")


def compared() -> GradientConfig:
    """What is compared where nothing else is asked for."""
    return GradientConfig(models=("layoutlmv3-start",), attacks=("gi-dqa",), pages=2)


@dataclass(frozen=True)
class DefenceConfig:
    """``audit`` has one model and one attack; ``utility_steps`` of training under each defence measure its utility (0:
    none is measured)."""

    audit: GradientConfig = field(
        default_factory=compared, metadata=only(
            "documents", "pages", "budget", "seed", "ocr", "allow_failed_self_test",
            models=Option("Shipped name, directory or hub name of the one model.", "--model"),
            attacks=Option("The one attack that measures them.", "--attack"),
        ),
    )  # fmt: skip
    defenses: tuple[str, ...] = option(
        DEFAULT, "Defences such as noise:sigma=1e-4 or safe-template:epsilon=8/255. Without any: one of each.",
        argument=True,
    )  # fmt: skip
    utility_steps: int = option(
        400, "Training steps under each defence; 0 measures no utility.", range=Range(0, 10_000_000)
    )

    def __post_init__(self) -> None:
        if len(self.audit.models) != 1 or len(self.audit.attacks) != 1:
            raise AttackError(
                f"defences are compared on one model by one attack; found {len(self.audit.models)} and "
                f"{len(self.audit.attacks)}."
            )
        chosen = DEFENSES.all_chosen((NONE, *self.defenses))
        object.__setattr__(self, "defenses", tuple(dict.fromkeys(chosen)))
