"""What is asked of updates: was this page in it? Nothing that computes is imported before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from docleak.documents.ranges import COUNT, RATE, SEED, SOME, Range
from docleak.errors import AttackError
from docleak.options import Need, option

if TYPE_CHECKING:
    from docleak.training.federated.local_plan import LocalPlan

PRECISIONS = ("float32", "bfloat16")
MODEL, PAGES = "donut-start", 16
MADE = Need(lambda config: not config.updates, "updates that are made here, not recorded ones")
RECORDED = Need(lambda config: bool(config.updates), "recorded updates: docleak audit presence UPDATES")


@dataclass(frozen=True)
class PresenceConfig:
    """Pages are dealt into rounds. In each a client trains on ``batch_size`` of them and sends its update; asked about
    are these and as many others, beside ``controls`` that the adversary itself knows to be out. ``warm_up`` rounds on
    further pages come first: without them LoRA's A cannot move. ``layer`` "" takes the one with most room.

    With ``per_provider`` the question is whether a provider was there: an update holds so many pages of each that is
    in. Its scores are the means over these pages, and over as many others of the provider, which no update holds.

    With ``updates`` none is made: asked about are the pages that the clients of a recorded ``round`` trained on, of
    ``documents`` as an audit of updates finds them, and as many ``others``; without ``pages`` all of them.
    """

    updates: str = option(
        "", "What docleak train, a tap or a callback recorded, a folder; without it updates are made.", argument=True,
        optional=True,
    )  # fmt: skip
    model: str = option(
        "", "Shipped name, directory or hub name of the model, or of adapters on it; without it donut-start, or what "
        "recorded updates say.",
    )  # fmt: skip
    documents: str = option(
        "synthetic", "Pages: synthetic, a folder, FORMAT:PATH; of recorded updates a folder for every client in it."
    )
    others: str = option("", "Pages that no recorded update holds; without it docleak looks for some.", need=RECORDED)
    round: int = option(0, "The recorded round to ask about; 0 is the first.", range=COUNT, need=RECORDED)
    clients: tuple[str, ...] = option(
        (), "Only this client; ID=FOLDER says where its pages are. Repeat for several.", "--client", repeat=True,
        need=RECORDED,
    )  # fmt: skip
    local: str = option(
        "", "How clients train where it is not recorded: optimiser=sgd,learning_rate=0.1,batch_size=1", need=RECORDED
    )
    pages: int | None = option(
        None, "Pages asked about, half of them in an update; without it 16, or all that recorded updates hold.",
        range=SOME,
    )  # fmt: skip
    batch_size: int = option(2, "Pages in one update.", range=SOME, need=MADE)
    local_steps: int = option(1, "Steps on these pages before the update is sent.", range=SOME, need=MADE)
    optimiser: str = option("sgd", "The client's: sgd or adamw.", need=MADE)
    learning_rate: float = option(0.01, "The client's.", range=Range(0, 1e3, above=True), need=MADE)
    weight_decay: float = option(0.0, "The client's.", range=RATE, need=MADE)
    precision: str = option("float32", "How updates are sent: float32 or bfloat16.", need=MADE)
    warm_up: int = option(0, "Rounds on other pages before.", range=COUNT, need=MADE)
    controls: int = option(4, "Pages, or providers, that the adversary knows to be out.", range=SOME)
    per_provider: int = option(
        0, "Ask about providers: so many pages of each in an update, and as many others of it; 0: about pages.",
        range=COUNT, need=MADE,
    )  # fmt: skip
    layer: str = option("", "The weight whose span is looked at; without it the one with most room.")
    seed: int = option(5, "Seed of pages.", range=SEED)

    def __post_init__(self) -> None:
        if self.updates:
            return
        object.__setattr__(self, "model", self.model or MODEL)
        pages = PAGES if self.pages is None else self.pages
        object.__setattr__(self, "pages", pages)
        if self.optimiser not in ("sgd", "adamw") or self.precision not in PRECISIONS:
            raise AttackError(
                f"optimiser {self.optimiser!r} and precision {self.precision!r}; expected sgd or adamw, and "
                f"{' or '.join(PRECISIONS)}."
            )
        if pages < 2 * self.batch_size:
            raise AttackError(
                f"{pages} pages make no round of 2 x {self.batch_size}: half of them are in the update. Ask for "
                "more --pages, or a smaller --batch-size."
            )
        if self.per_provider and self.batch_size % self.per_provider:
            raise AttackError(
                f"an update of {self.batch_size} pages holds no whole providers of {self.per_provider} pages each; "
                "take a --batch-size that is a multiple of --per-provider."
            )
        if self.rounds * self.subjects < 2:
            what = "provider" if self.per_provider else "page"
            raise AttackError(
                f"of {pages} pages, in updates of {self.batch_size}, one {what} is in an update, which gives no "
                "rate; expected 2 or more. Ask for more --pages."
            )

    @property
    def rounds(self) -> int:
        """Updates that are asked about."""
        return (self.pages or 0) // (2 * self.batch_size)

    @property
    def subjects(self) -> int:
        """How many are in an update: pages, or providers."""
        return self.batch_size // max(1, self.per_provider)

    @property
    def plan(self) -> LocalPlan:
        """What a client does in a round: all its pages in each step."""
        from docleak.training.federated.local_plan import LocalPlan

        return LocalPlan(
            epochs=self.local_steps, batch_size=self.batch_size, learning_rate=self.learning_rate,
            weight_decay=self.weight_decay, optimiser=self.optimiser, dropout=False,
        )  # fmt: skip
