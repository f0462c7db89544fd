"""``docleak audit --blue-red``: what released models remember of providers, and whether one can tell who took part."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from docleak import spec
from docleak.cli.answers import answers_progress
from docleak.cli.output import emit, working_in
from docleak.cli.settings import default_workers, pick_device
from docleak.errors import AttackError

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


def named_releases(releases: list[str], models: list[str]) -> tuple[tuple[str, str], ...]:
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
    """Audit, write the report and print what was found."""
    import torch

    from docleak.evidence.answers.audit import ReleasesConfig, run_releases
    from docleak.evidence.answers.report import summary_text, verdict_json, write_report

    torch.set_num_threads(1)
    config = ReleasesConfig(str(blue_red), releases, public, seed=seed)
    with working_in(out):
        records = run_releases(
            config, out, device=pick_device(device), on_progress=answers_progress(quiet=json_output), workers=workers
        )
        page = write_report(config, records, out, command="docleak " + shlex.join(sys.argv[1:]))
    emit(
        {"report": str(page), "results": str(out / "results.json"), "releases": len(records),
         "verdict": verdict_json(records)},
        f"{summary_text(records)}\n\nReport: {page}", json_output=json_output,
    )  # fmt: skip


def audit_example(run: Path, seed: int, device: str, workers: int, *, quiet: bool) -> str:
    """The part of an audit without arguments that asks the shipped released model; returns what to print of it."""
    from docleak.evidence.answers.report import summary_text
    from docleak.evidence.answers.shipped import RELEASED, audit_shipped

    if not quiet:
        print(f"Asking the released model {RELEASED} about its providers.", file=sys.stderr)
    records = audit_shipped(
        run, seed=seed, device=device, workers=workers or default_workers(),
        on_progress=answers_progress(quiet=quiet), command="docleak " + shlex.join(sys.argv[1:]),
    )  # fmt: skip
    return summary_text(records[-1:])
