"""What a federated training sends: as docleak serialises it, and as the papers count it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from docleak.training.federated.federation import Federation, drawn
from docleak.training.federated.wire import Compression

FLOAT, HALF, INDEX = 4, 2, 4  # bytes


@dataclass(frozen=True)
class Cost:
    """Numbers of a model that travel: ``trainable`` with a tied weight once, ``counted`` with each of its uses.

    Nguyen & Karatzas (2024) and Tito et al. (2024) count the entries of PyTorch's state dict, in which T5's tied
    embedding stands four times; frozen weights do not travel in either.
    """

    trainable: int
    counted: int

    @classmethod
    def of(cls, module: nn.Module) -> Cost:
        """The cost of a network, which may be on the meta device."""
        return cls(
            sum(p.numel() for p in module.parameters() if p.requires_grad),
            sum(p.numel() for _, p in module.named_parameters(remove_duplicate=False) if p.requires_grad),
        )

    def down(self) -> int:
        """Bytes of the model as the server sends it to one silo: float32."""
        return FLOAT * self.trainable

    def up(self, compression: Compression) -> int:
        """Bytes of one silo's update (top-k rounds up per parameter, which is left out here)."""
        if compression.kind == "fp16":
            return HALF * self.trainable
        if compression.kind == "topk":
            return round((FLOAT + INDEX) * compression.share * self.trainable)
        return FLOAT * self.trainable

    def sent(self, federation: Federation, silos: int) -> int:
        """Bytes of the whole training, both ways; framing adds less than 2 %, evaluation a model a silo each time."""
        clients = drawn(federation, silos)
        return federation.rounds * clients * (self.down() + self.up(federation.compression))

    def as_published(self, federation: Federation, silos: int) -> int:
        """Bytes of the same training in the papers' counting: float32, both ways, every use of a tied weight."""
        clients = drawn(federation, silos)
        return federation.rounds * clients * 2 * FLOAT * self.counted
