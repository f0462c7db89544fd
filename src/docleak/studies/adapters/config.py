"""What is measured of a family of vision-language models; nothing that computes is imported before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from docleak.errors import AttackError


@dataclass(frozen=True)
class AdapterConfig:
    """A ``family`` is made on the spot (``models.vlm.tiny``), its language model ``width`` wide, its weights drawn by
    ``initialisation``: spread or default.

    Its whole gradient is one page's (``gradient``; ``budget`` evaluations of gi-dqa on the picture, 0 for none, where
    the language model is as narrow as ``models make`` makes it, for an evaluation is cheap then). Its
    adapters of ``rank`` on ``targets`` are trained for ``rounds`` by ``clients`` with a page each, ``steps`` steps a
    round. The server sees what client 0 sends, or, ``secure`` or under ``noise_multiplier``, the mean of all. Updates
    pass ``defense`` in units of a gradient; with ``clip`` each is scaled to that norm at most, and Gaussian noise of
    ``noise_multiplier`` times ``clip`` is added to the sum: differential privacy per client.
    """

    family: str = "qwen2_vl"
    initialisation: str = "spread"
    width: int = 576
    gradient: bool = True
    budget: int = 0
    rounds: int = 8
    rank: int = 32
    targets: str = "q_proj+k_proj+v_proj"
    frozen_a: bool = False
    clients: int = 1
    steps: int = 1
    optimiser: str = "sgd"
    learning_rate: float = 0.3
    defense: str = "none"
    secure: bool = False
    clip: float = 0.0
    noise_multiplier: float = 0.0
    unseen: int = 0
    others: int = 12
    seed: int = 5

    def __post_init__(self) -> None:
        least = {"rounds": 0, "rank": 1, "clients": 1, "steps": 1, "unseen": 0, "others": 0, "budget": 0, "clip": 0,
                 "noise_multiplier": 0}  # fmt: skip
        faults = [f"{name} is {getattr(self, name)}; expected {low} or more" for name, low in least.items()
                  if not getattr(self, name) >= low]  # fmt: skip
        if self.width % 12:
            faults.append(f"width is {self.width}; expected a multiple of 12")
        if self.noise_multiplier and not self.clip:
            faults.append("noise_multiplier without clip has no sensitivity; expected a clip above 0")
        if self.optimiser not in ("sgd", "adamw"):
            faults.append(f"optimiser is {self.optimiser!r}; expected sgd or adamw")
        if self.initialisation not in ("spread", "default"):
            faults.append(f"initialisation is {self.initialisation!r}; expected spread or default")
        if faults:
            raise AttackError("; ".join(faults) + ".")

    @property
    def summed(self) -> bool:
        """Whether the server sees the mean of all clients alone."""
        return self.secure or self.noise_multiplier > 0
