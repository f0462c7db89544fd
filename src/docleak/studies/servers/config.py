"""What is audited of an active server."""

from __future__ import annotations

from dataclasses import dataclass

from docleak.attacks.registries import SERVERS
from docleak.documents.ranges import CLIENTS, SECURE_LIMIT, SEED, Range
from docleak.errors import AttackError
from docleak.options import option
from docleak.registry import Choice

#: Threat models of this kind, in the words of reports.
TITLE = "Active server of a federated training: it manipulates the model that it sends"


@dataclass(frozen=True)
class ServersConfig:
    """Each of ``clients`` computes one gradient on ``batch_size`` pages of its own, of the model that a server of
    ``servers`` made of ``models``. With several clients the server has the sum alone, as secure aggregation gives it:
    exactly or, with a ``limit``, in docleak's fixed point. ``public`` pages of nobody are what it prepares with."""

    models: tuple[str, ...] = option(
        ("donut-start", "layoutlmv3-start", "vt5-start"),
        "Shipped name, directory, hub name, or a folder of adapters. Repeat for several.", "--model", repeat=True,
    )  # fmt: skip
    documents: str = option(
        "synthetic", "synthetic, or pages of your own: a folder, or FORMAT:PATH (docleak data list)."
    )
    servers: tuple[Choice, ...] = option(
        ("imprint", "decepticons", "trap-weights", "adapter-bins"), "Comma-separated manipulations.", "--server"
    )
    batch_size: int = option(1, "Pages in one client's gradient.", range=Range(1, 10_000))
    clients: int = option(1, "Clients whose gradients are summed; the server sees the sum.", range=CLIENTS)
    limit: float = option(
        0.0, "Of docleak's secure aggregation: the largest value that its fixed point holds; 0: the sum is exact.",
        "--secure-limit", range=SECURE_LIMIT,
    )  # fmt: skip
    public: int = option(12, "Public pages that the server prepares with.", range=Range(2, 10_000))
    seed: int = option(5, "Seed of pages and draws.", range=SEED)

    def __post_init__(self) -> None:
        if not self.servers or not self.models:
            raise AttackError("no model or no server is named; expected one of each, or more.")
        object.__setattr__(self, "servers", SERVERS.all_chosen(self.servers))
