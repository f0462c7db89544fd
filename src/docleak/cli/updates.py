"""``docleak audit --updates``: attack what a federated server has received."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from docleak.errors import DocleakError

Updates = Annotated[
    Path | None,
    typer.Option(
        help="Audit the updates that docleak train or docleak.tap recorded there, instead of a gradient computed here."
    ),
]
Round = Annotated[int, typer.Option("--round", help="With --updates: the round to audit; 0 is the first recorded.")]
Clients = Annotated[
    list[str] | None, typer.Option("--client", help="With --updates: only this client. Repeat for several.")
]
LocalTraining = Annotated[
    str,
    typer.Option(
        "--local",
        help="With --updates: how clients train where it is not recorded: optimiser=sgd,learning_rate=0.1,batch_size=1",
    ),
]


def refuse_several(*, models: int, attacks: int) -> None:
    """DocleakError for more than one model or attack: recorded updates are of one model, and take one attack."""
    several = [f"several {option}" for option, count in (("--model", models), ("--attacks", attacks)) if count > 1]
    if several:
        raise DocleakError(f"{' and '.join(several)} cannot be combined with --updates. Give one.")
