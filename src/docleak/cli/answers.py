"""``docleak attack membership`` and ``memorisation``, and ``docleak audit --blue-red``: what released models tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from docleak import spec
from docleak.cli.settings import pick_device
from docleak.cli.studies import run_and_report
from docleak.errors import AttackError

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
Out = Annotated[Path, typer.Option(help="Run directory; an interrupted run in it is continued.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Workers = Annotated[int, typer.Option(help="Worker processes, one thread each; 0 means one per core.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress.")]

#: Options of ``docleak audit``.
BlueRedFolder = Annotated[
    Path | None,
    typer.Option(
        "--blue-red",
        help="Audit released models instead, on this division of their providers (docleak data make OUT --blue-red).",
    ),
]
Releases = Annotated[
    list[str] | None,
    typer.Option(
        "--release",
        help="With --blue-red: LABEL=MODEL, a model or a run directory of docleak train. Repeat to compare.",
    ),
]
PublicModel = Annotated[
    str,
    typer.Option(
        "--public",
        help="With --blue-red: the public model that the releases started from. With --extraction: what the public "
        "model starts from, with the same tokenizer.",
    ),
]


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
    out: Out = Path("docleak-membership"),
    device: Device = "auto",
    workers: Workers = 0,
    json_output: Json = False,
) -> None:
    """Ask about RED and tell members from others; without arguments of the small released model that docleak ships."""
    try:
        least = tuple(int(text) for text in spec.items(minimum))
    except ValueError:
        least = ()
    if not least or min(least) < 0 or seeds < 1:
        raise AttackError(f"--minimum is {minimum!r} and --seeds {seeds}; expected numbers such as 0,5,10, and a seed.")
    settings = {"measures": ("gap", "membership"), "keys": (key,), "minimum": least, "seeds": seeds, "seed": seed}
    _attack(model, public, data, settings, out, device, workers, json_output, known=known, searched=searched)


def memorisation(
    model: Model = "",
    public: Public = "",
    data: Data = None,
    keys: Annotated[
        str, typer.Option(help="Keys to hide and ask for, comma-separated.")
    ] = "provider_name,provider_email,provider_tax_number,registration_id",
    seed: Seed = 0,
    out: Out = Path("docleak-memorisation"),
    device: Device = "auto",
    workers: Workers = 0,
    json_output: Json = False,
) -> None:
    """Hide answers and ask for them; without arguments of the small released model that docleak ships."""
    wanted = tuple(spec.items(keys))
    if not wanted:
        raise AttackError("--keys is empty; expected keys of the documents, such as provider_name.")
    settings = {"measures": ("memorisation", "disclosure"), "keys": wanted, "seed": seed}
    _attack(model, public, data, settings, out, device, workers, json_output)


def _attack(
    model: str, public: str, data: Path | None, settings: dict[str, Any], out: Path, device: str, workers: int,
    json_output: bool, *, known: float = 0.15, searched: int = 0,
) -> None:  # fmt: skip
    """Attack the model on its division; the shipped ones where none is given."""
    if model and data is None:
        raise AttackError(
            "--model is given without --data, so nobody knows whose documents it saw. Divide them first: docleak data "
            "make OUT --blue-red; then train on OUT/silos."
        )
    if data is not None and not model:
        raise AttackError("--data is given without --model. Train one: docleak train federated --silos DATA/silos.")
    from docleak.studies.answers.config import AnswersConfig, Release, attacks_of
    from docleak.studies.answers.shipped import PUBLIC, RELEASED, SHIPPED
    from docleak.studies.answers.study import AnswersStudy

    if not model and not json_output:
        print(f"No model was given: asking {RELEASED}, which docleak ships, about its providers.", file=sys.stderr)
    start = "" if public == "none" else public or ("" if model else PUBLIC)
    attacks = attacks_of(known=known, searched=searched)
    release = Release("released model", model or RELEASED)
    config = AnswersConfig((release,), str(data or SHIPPED), start, attacks=attacks, **settings)
    run_and_report(AnswersStudy(config, device=pick_device(device)), out, workers, json_output)


def parse_releases(releases: list[str], models: list[str]) -> tuple[tuple[str, str], ...]:
    """(label, source) pairs of --release, or one of --model; AttackError for anything else."""
    if (releases and models) or len(models) > 1 or not (releases or models):
        raise AttackError(
            "--blue-red audits one --model, or models to compare as --release LABEL=MODEL, repeated; got "
            f"{len(models)} --model and {len(releases)} --release."
        )
    if models:
        return (("released model", models[0]),)
    expected = "LABEL=MODEL, as in 'FL+DP 8=runs/private'"
    return tuple(spec.pair(text, what="--release", expected=expected, error=AttackError) for text in releases)


def audit_releases(
    blue_red: Path, releases: tuple[tuple[str, str], ...], public: str, out: Path, seed: int, device: str,
    workers: int, json_output: bool,
) -> None:  # fmt: skip
    """Everything that can be measured of each of the releases."""
    from docleak.studies.answers.config import AnswersConfig, Release
    from docleak.studies.answers.study import AnswersStudy

    config = AnswersConfig(tuple(Release(*pair) for pair in releases), str(blue_red), public, seed=seed)
    run_and_report(AnswersStudy(config, device=pick_device(device)), out, workers, json_output)
