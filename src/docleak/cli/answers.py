"""``docleak attack membership`` and ``memorisation``: what a released model's answers give away of its providers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from docleak import spec
from docleak.cli.output import emit, note, working_in
from docleak.cli.settings import pick_device
from docleak.errors import AttackError

if TYPE_CHECKING:
    from docleak.evidence.answers.play import OnProgress, Release

#: Commands: name -> what --list says.
ANSWER_COMMANDS = {
    "membership": "Which providers were in the training of a released model (Tito et al., 2024, section 5.2).",
    "memorisation": "What a released model says that its page no longer shows (Tito et al., 2024, section 5.1).",
}

Model = Annotated[str, typer.Option(help="The released model: a directory or hub name. Empty: docleak's own example.")]
Public = Annotated[
    str, typer.Option(help="The public model it started from; none: unknown. Empty: of --model unknown.")
]
Data = Annotated[Path | None, typer.Option(help="Folder that `docleak data make OUT --blue-red` wrote.")]
Seed = Annotated[int, typer.Option(help="Seed of data, training and draws.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("membership", help=ANSWER_COMMANDS["membership"])(membership)
    app.command("memorisation", help=ANSWER_COMMANDS["memorisation"])(memorisation)


def membership(
    model: Model = "",
    public: Public = "",
    data: Data = None,
    minimum: Annotated[
        str, typer.Option(help="Providers with more than so many questions; several numbers.")
    ] = "0,5,10",
    known: Annotated[float, typer.Option(help="Share of the providers that APK is told about.")] = 0.15,
    searched: Annotated[int, typer.Option(help="Random forests that APK compares; 0: one with its defaults.")] = 0,
    seeds: Annotated[int, typer.Option(help="Draws of whom APK knows; results are means.")] = 5,
    key: Annotated[str, typer.Option(help="Key that the memorisation test hides, for the vote.")] = "provider_name",
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder; an interrupted run in it is continued.")] = Path(
        "docleak-membership"
    ),
    device: Device = "auto",
    json_output: Json = False,
) -> None:
    """Ask about RED and tell members from others; without arguments of the small released model that docleak ships."""
    from docleak.evidence.answers.play import attack_membership, default_plan

    try:
        least = tuple(int(text) for text in spec.items(minimum))
    except ValueError:
        least = ()
    if not least or min(least) < 0 or seeds < 1:
        raise AttackError(f"--minimum is {minimum!r} and --seeds {seeds}; expected numbers such as 0,5,10, and a seed.")
    plan = default_plan(known=known, searched=searched, minimum=least, seeds=seeds, seed=seed, key=key)
    with working_in(out):
        release = _release(model, public, data, out, pick_device(device), quiet=json_output)
        found = attack_membership(release, plan, out, answers_progress(quiet=json_output))
    _say(found, out, json_output)


def memorisation(
    model: Model = "",
    public: Public = "",
    data: Data = None,
    keys: Annotated[
        str, typer.Option(help="Keys to hide and ask for, comma-separated.")
    ] = "provider_name,provider_email,provider_tax_number,registration_id",
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder; an interrupted run in it is continued.")] = Path(
        "docleak-memorisation"
    ),
    device: Device = "auto",
    json_output: Json = False,
) -> None:
    """Hide answers and ask for them; without arguments of the small released model that docleak ships."""
    from docleak.evidence.answers.play import attack_memorisation

    wanted = spec.items(keys)
    if not wanted:
        raise AttackError("--keys is empty; expected keys of the documents, such as provider_name.")
    with working_in(out):
        release = _release(model, public, data, out, pick_device(device), quiet=json_output)
        found = attack_memorisation(release, wanted, out, answers_progress(quiet=json_output), seed=seed)
    _say(found, out, json_output)


def _release(model: str, public: str, data: Path | None, out: Path, device: str, *, quiet: bool) -> Release:
    """The model that is attacked, and its division; the shipped ones where none is given."""
    import torch

    from docleak.documents.blue_red_files import read_blue_red
    from docleak.evidence.answers.play import Release
    from docleak.evidence.answers.shipped import DIVISION, PUBLIC, RELEASED, shipped_division

    torch.set_num_threads(1)
    if model and data is None:
        raise AttackError(
            "--model is given without --data, so nobody knows whose documents it saw. Divide them first: docleak data "
            "make OUT --blue-red; then train on OUT/silos."
        )
    if model and data is not None:
        return Release(model, "" if public == "none" else public, read_blue_red(data), device)
    if data is not None:
        raise AttackError("--data is given without --model. Train one: docleak train federated --silos DATA/silos.")
    if not quiet:
        print(f"No model was given: asking {RELEASED}, which docleak ships, about its providers.", file=sys.stderr)
    return Release(RELEASED, "" if public == "none" else public or PUBLIC, shipped_division(out / DIVISION), device)


def answers_progress(*, quiet: bool) -> OnProgress:
    """A line on stderr every few seconds."""
    last = monotonic()

    def told(source: str, done: int) -> None:
        nonlocal last
        if not quiet and monotonic() - last >= 5.0:
            last = monotonic()
            note(f"{done} answers of {source}")

    return told


def _say(found: Mapping[str, Any], out: Path, json_output: bool) -> None:
    value = {name: item for name, item in found.items() if name != "text"}
    emit({**value, "out": str(out)}, f"{found['text']}\n\nWritten to {out}", json_output=json_output)
