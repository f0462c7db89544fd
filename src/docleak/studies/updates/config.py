"""What is audited of a capture; nothing that computes is imported before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from docleak.attacks.registries import ATTACKS
from docleak.documents.ranges import BUDGET, COUNT, SEED
from docleak.errors import AttackError
from docleak.options import Need, option
from docleak.registry import Choice


def _one_by_one(config: UpdatesConfig) -> bool:
    """Whether the server sees each client's update."""
    if config.before:
        return True
    from docleak.studies.updates.secure import is_secure
    from docleak.training.federated.capture import read_updates

    return not is_secure(read_updates(Path(config.updates))[0])


SINGLE = Need(_one_by_one, "updates that the server sees one by one, not masked or summed")
#: One of them without the other is refused by the configuration itself.
PAIR = Need(lambda config: not config.updates, "weights instead of a folder of updates")


@dataclass(frozen=True)
class UpdatesConfig:
    """What is audited of a capture. Everything that changes a number is here, and nothing else.

    ``round`` 0 is the first of the capture; no ``clients`` means each client of the round. ``local`` says how the
    clients trained where the capture does not. ``steps`` and ``batch_sizes`` span the table of how leakage falls:
    words in every cell, pictures where one of the two is the least. ``picture_budget`` are its evaluations.
    """

    updates: str = option("", "What docleak train, a tap or a callback recorded: a folder.", argument=True)
    before: str = option("", "Instead: the weights before one client's training, a file or folder.", need=PAIR)
    after: str = option("", "The weights after it.", need=PAIR)
    model: str = option("", "The model that was trained, where the capture does not say it: a directory or hub name.")
    documents: str = option(
        "synthetic", "The clients' pages: synthetic, a folder (or one a client in it), FORMAT:PATH."
    )
    round: int = option(0, "The round to audit; 0 is the first recorded.", range=COUNT)
    clients: tuple[str, ...] = option(
        (), "Only this client; ID=FOLDER says where its pages are. Repeat for several.", "--client", repeat=True
    )
    attack: Choice = option("gi-dqa", "The attack on pictures; see docleak attack --list.", need=SINGLE)
    budget: int = option(100, "Gradient evaluations per update.", range=BUDGET, need=SINGLE)
    picture_budget: int = option(
        60, "Gradient evaluations per cell of the table of how leakage falls.", range=BUDGET, need=SINGLE
    )
    steps: tuple[int, ...] = option((1, 2, 4), "Local steps in that table, comma-separated.", need=SINGLE)
    batch_sizes: tuple[int, ...] = option((1, 2, 4), "Batch sizes in that table, comma-separated.", need=SINGLE)
    local: str = option("", "How clients train where it is not recorded: optimiser=sgd,learning_rate=0.1,batch_size=1")
    ocr: str = option("rapidocr", "Engine that reads the pictures: rapidocr, tesseract, trocr:PATH.", need=SINGLE)
    seed: int = option(5, "Seed of starts and draws.", range=SEED)
    allow_failed_self_test: bool = option(False, "Audit although these pages do not give what was sent.")

    def __post_init__(self) -> None:
        if bool(self.before) != bool(self.after):
            there, lacking = ("--before", "--after") if self.before else ("--after", "--before")
            raise AttackError(
                f"found {there} {self.before or self.after} without {lacking}; expected both: the weights before and "
                "after one client's training."
            )
        if bool(self.updates) == bool(self.before):
            raise AttackError(
                f"found {f'{self.updates} beside --before and --after' if self.updates else 'no update'}; expected "
                "either a folder of recorded updates, or --before and --after with the weights before and after one "
                "client's training."
            )
        object.__setattr__(self, "attack", ATTACKS.chosen(self.attack))
        if min((self.budget, self.picture_budget, *self.steps, *self.batch_sizes), default=1) < 1 or self.round < 0:
            raise AttackError(
                f"budget {self.budget}, steps {self.steps}, batches {self.batch_sizes}, round {self.round}; expected "
                "budgets, steps and batches of at least 1."
            )
