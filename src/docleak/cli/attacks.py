"""``docleak attack``: gradient attacks by name, and the attacks that have a command of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from docleak.attacks.registries import ATTACKS, PAIRS
from docleak.cli import answers, canaries
from docleak.cli.answers import ANSWER_COMMANDS
from docleak.cli.canaries import CANARY_COMMANDS
from docleak.cli.extraction import attack_of, play_and_report
from docleak.cli.pairs import register

#: The command that takes the name of a gradient attack as its argument.
BY_NAME = "by-name"
#: Attacks on what is no gradient: name -> what --list says.
OTHERS = {
    "cdmi": "Reads scrubbed fields back out of a trained extraction model's weights (Dentan et al., 2024).",
    **ANSWER_COMMANDS,
    **CANARY_COMMANDS,
}


def summaries() -> dict[str, str]:
    """What --list says: name of an attack -> what it does."""
    return ATTACKS.summaries() | PAIRS.summaries() | OTHERS


class AttackGroup(TyperGroup):
    """``docleak attack NAME ...`` runs the command NAME where there is one, else the gradient attack of that name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put BY_NAME before anything that is no command of the group and does not ask for its help."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [BY_NAME, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """BY_NAME is no word that anybody writes: usage lines and errors leave it out."""
        name, command, rest = super().resolve_command(ctx, args)
        return ("" if name == BY_NAME else name), command, rest


app = typer.Typer(
    cls=AttackGroup,
    no_args_is_help=True,
    help="Run one attack. `docleak attack NAME` runs the gradient attack NAME (see --list); others are listed below.",
)
register(app)
answers.register(app)
canaries.register(app)


@app.command()
def cdmi(
    documents: Annotated[
        str, typer.Option(help="synthetic, or pages of your own: a folder, or FORMAT:PATH (docleak data list).")
    ] = "synthetic",
    pages: Annotated[int, typer.Option(help="Pages of the data set; 0 means all.")] = 120,
    model: Annotated[
        str, typer.Option(help="Backbone to start from: layoutlm-tiny, bros-tiny, bert-tiny, a directory or hub name.")
    ] = "layoutlm-tiny",
    task: Annotated[
        str, typer.Option(help="mlm, ee-bio, ee-spade, el, qa or classify: what the target is trained for.")
    ] = "mlm",
    bimodal: Annotated[bool, typer.Option("--bimodal", help="The models also see the picture.")] = False,
    criterion: Annotated[
        str, typer.Option(help="Attack the epoch with the best validation accuracy (precision) or loss, or the last.")
    ] = "precision",
    variant: Annotated[
        str,
        typer.Option(
            help="paper (algorithm 2), or strong: another order, a beam, the field's own loss; equal calls. Or one "
            "of your own: MODULE:OBJECT."
        ),
    ] = "paper",
    fields: Annotated[int, typer.Option(help="Private fields to attack, drawn at random; 0 means all.")] = 100,
    attempts: Annotated[int, typer.Option(help="Reconstructions per field; the first is the one-shot variant.")] = 8,
    candidates: Annotated[int, typer.Option(help="Tokens tried at each position (N_c).")] = 128,
    weight: Annotated[float, typer.Option(help="Weight of the target in the mean, 0 to 1.")] = 0.4,
    top_p: Annotated[float, typer.Option(help="Mass of the likeliest candidates that are sampled from.")] = 0.10,
    mean: Annotated[str, typer.Option(help="geometric or arithmetic.")] = "geometric",
    metric: Annotated[
        str,
        typer.Option(
            help="What a field's attempts are chosen and the fields sorted by: weakest-token (ours), or the paper's "
            "raw-perplexity, perplexity-ratio, raw-and-ratio, max-gap, max-ratio."
        ),
    ] = "weakest-token",
    epochs: Annotated[int, typer.Option(help="Epochs of the target; 0 means the default of the task.")] = 0,
    learning_rate: Annotated[float, typer.Option(help="Of both models; use 5e-5 for base-size ones.")] = 1e-3,
    control: Annotated[bool, typer.Option("--control", help="The target never sees the private pages.")] = False,
    repeats: Annotated[
        bool, typer.Option("--repeats", help="Also mask where the page prints the value again.")
    ] = False,
    target: Annotated[
        str,
        typer.Option(help="A finished extraction model of your own to attack: a directory or hub name, head included."),
    ] = "",
    public_documents: Annotated[
        str, typer.Option(help="With --target: pages like the private ones that it was not trained on.")
    ] = "",
    public: Annotated[
        str, typer.Option(help="With --target: what the public model starts from, with the same tokenizer.")
    ] = "",
    calibrate: Annotated[
        bool,
        typer.Option(
            help="Also state how probably each reading is right, learnt on public pages; takes as long again."
        ),
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of pages, division, training and draws.")] = 0,
    out: Annotated[Path, typer.Option(help="Run directory; an interrupted run in it is continued.")] = Path(
        "docleak-cdmi"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    workers: Annotated[int, typer.Option(help="Worker processes, one thread each; 0 means one per core.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """Train a model on private pages, scrub their fields, and read them back out of its weights.

    Reported beside what public data alone would guess. With no arguments: a tiny LayoutLM on synthetic invoices.
    """
    from docleak.studies.weights.config import WeightsConfig, trainings

    attack = attack_of(variant, candidates=candidates, weight=weight, top_p=top_p, mean=mean)
    trained, guessing = trainings(cast(Any, task), epochs=epochs, learning_rate=learning_rate)
    same: dict[str, Any] = {
        "documents": documents, "fields": fields, "attempts": attempts, "metric": metric, "repeats": repeats,
        "seed": seed, "attack": attack, "public_training": guessing, "calibrate": calibrate,
    }  # fmt: skip
    if target:
        config = WeightsConfig(target=target, public_documents=public_documents, model=public, pages=0, **same)
    else:
        config = WeightsConfig(
            pages=pages, model=model, task=cast(Any, task), bimodal=bimodal, criterion=criterion, control=control,
            target_training=trained, **same,
        )  # fmt: skip
    play_and_report(config, out, device, workers, json_output)
