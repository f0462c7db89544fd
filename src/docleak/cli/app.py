"""Command definitions; each body only parses, calls one function and prints."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
import typer.main

import docleak
from docleak import spec
from docleak.cli import attacks, data, deploy, models, train
from docleak.cli.answers import BlueRedFolder, PublicModel, Releases, audit_releases, parse_releases
from docleak.cli.budget import budget
from docleak.cli.defend import defend
from docleak.cli.extraction import (
    Extraction,
    PublicDocuments,
    audit_extraction,
)
from docleak.cli.guard import Guarded
from docleak.cli.output import Progress, emit, list_all, note, working_in
from docleak.cli.report import report
from docleak.cli.reproduce import reproduce
from docleak.cli.settings import default_workers, parse_size, pick_device, split_stages
from docleak.cli.studies import run_and_report
from docleak.cli.updates import Clients, LocalTraining, Round, Updates, refuse_several
from docleak.errors import DocleakError

if TYPE_CHECKING:
    from docleak.studies.gradient.config import GradientConfig

app = typer.Typer(
    cls=Guarded,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(attacks.app, name="attack")
app.add_typer(data.app, name="data")
app.add_typer(models.app, name="models")
app.add_typer(train.app, name="train")
app.add_typer(deploy.app, name="deploy")
app.command()(budget)
app.command()(defend)
app.command()(reproduce)
app.command()(report)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"docleak {docleak.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and stop."),
    ] = False,
) -> None:
    """Train document models together, and measure what they leak. Start with: docleak audit"""


MODEL_HELP = "Shipped name, directory, hub name (owner/model) or hub name at a revision (owner/model@v1.0)."
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines; no progress bar.")]
Out = Annotated[Path, typer.Option(help="Run directory; an interrupted run in it is continued.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Documents = Annotated[
    str, typer.Option(help="synthetic, or pages of your own: a folder, or FORMAT:PATH (docleak data list).")
]
Pages = Annotated[int, typer.Option(help="How many pages to attack, each on its own.")]
Budget = Annotated[int, typer.Option(help="Gradient evaluations per attack and page, the same for all attacks.")]
Seed = Annotated[int, typer.Option(help="Seed of pages, starts and draws.")]
BatchSize = Annotated[int, typer.Option(help="Pages averaged into the client's gradient; the first is the target.")]
Rounds = Annotated[
    int, typer.Option(help="Rounds in which the client sends a gradient of the same batch, ten training steps apart.")
]
TrainMode = Annotated[bool, typer.Option("--train-mode", help="The client computes its gradient with dropout on.")]
Stages = Annotated[
    str, typer.Option(help="Only these parameters are sent: vision,text,fusion,output. Empty: all of them.")
]
Ocr = Annotated[str, typer.Option(help="Engine that reads the pictures: rapidocr, tesseract, trocr:PATH.")]
Workers = Annotated[int, typer.Option(help="Worker processes, one thread each; 0 means one per core.")]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Read pickled .npy files (they can run code: only files you trust).")
]
AllowFailed = Annotated[
    bool, typer.Option("--allow-failed-self-test", help="Attack although the true page does not match the gradient.")
]
ImageSize = Annotated[
    str,
    typer.Option(
        metavar="WxH",
        help="Run the model on pages of this size in pixels, for instance 320x608 (Donut only). Empty: its own.",
    ),
]
NoQuestion = Annotated[bool, typer.Option("--no-question", help="The adversary does not know the question.")]
NoAnswer = Annotated[bool, typer.Option("--no-answer", help="The adversary does not know the answer.")]

RecoverText = Annotated[
    bool,
    typer.Option(
        "--recover-text", help="The adversary knows no text: it reads question and answer out of the gradient."
    ),
]
DefenseOption = Annotated[
    str, typer.Option("--defense", help="What the client or the template's owner does; see docleak defend --list.")
]
CleanTemplate = Annotated[
    bool, typer.Option("--clean-template", help="The adversary takes perturbations off the published template first.")
]


@app.command()
def audit(
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"{MODEL_HELP} Repeat for several. Default: the four shipped models."),
    ] = None,
    documents: Documents = "synthetic",
    updates: Updates = None,
    round_number: Round = 0,
    client: Clients = None,
    local: LocalTraining = "",
    blue_red: BlueRedFolder = None,
    release: Releases = None,
    public: PublicModel = "",
    extraction: Extraction = "",
    public_documents: PublicDocuments = "",
    attacks: Annotated[str, typer.Option(help="Comma-separated; see docleak attack --list.")] = "",
    pages: Pages = 1,
    budget: Budget = 100,
    image_size: ImageSize = "",
    seed: Seed = 5,
    out: Out = Path("docleak-audit"),
    batch_size: BatchSize = 1,
    rounds: Rounds = 1,
    train_mode: TrainMode = False,
    stages: Stages = "",
    no_question: NoQuestion = False,
    no_answer: NoAnswer = False,
    recover_text: RecoverText = False,
    defense: DefenseOption = "none",
    clean_template: CleanTemplate = False,
    compare_defenses: Annotated[
        bool | None,
        typer.Option(
            "--compare-defenses/--no-compare-defenses",
            help="End with a comparison of defences on the most exposed model. Default: with the default attacks.",
        ),
    ] = None,
    ocr: Ocr = "rapidocr",
    device: Device = "auto",
    workers: Workers = 0,
    allow_failed_self_test: AllowFailed = False,
    allow_pickle: AllowPickle = False,
    json_output: Json = False,
) -> None:
    """Measure what a server reads out of one client's gradient, and write an HTML report.

    With no arguments: the shipped tiny Donut and LayoutLMv3, at the start of training and trained,
    on a synthetic invoice, then a small released model, in a few minutes on a laptop.
    With --model DIR --documents DIR: yours.
    With --updates DIR: what the server of a federated training received.
    With --blue-red DIR: what released models remember of providers, and who can be told to have taken part.
    With --extraction MODEL: which blacked-out fields can be read out of the weights of an extraction model.
    """
    from docleak.studies.gradient.config import CLOSED_FORM, Exposure, GradientConfig, with_closed_form

    if extraction:
        audit_extraction(extraction, documents, public_documents, public, out, seed, device, workers, json_output)
        return
    if blue_red is not None:
        audit_releases(
            blue_red, parse_releases(release or [], model or []), public, out, seed, device,
            workers or default_workers(), json_output,
        )  # fmt: skip
        return
    if updates is not None:
        from docleak.studies.updates.study import UpdatesConfig, UpdatesStudy

        refuse_several(models=len(model or ()), attacks=len(spec.names(attacks)))
        captured = UpdatesConfig(
            str(updates), (model or [""])[0], documents, round_number, tuple(client or ()), attacks or "gi-dqa", budget,
            local=local, ocr=ocr, seed=seed, allow_failed_self_test=allow_failed_self_test, allow_pickle=allow_pickle,
        )  # fmt: skip
        run_and_report(UpdatesStudy(captured, device=pick_device(device)), out, workers, json_output)
        return
    chosen: dict[str, Any] = {"models": tuple(model)} if model else {}
    named: dict[str, Any] = {}
    asked = spec.names(attacks)
    if asked or batch_size > 1:
        others = [name for name in GradientConfig().attacks if name != CLOSED_FORM]
        named["attacks"] = with_closed_form(asked or others, batch_size=batch_size)
    config = GradientConfig(
        **chosen, **named, documents=documents, pages=pages, budget=budget, seed=seed, batch_size=batch_size,
        exposure=Exposure(
            train_mode, split_stages(stages), not no_question, not no_answer, recover_text=recover_text,
            defense=defense, clean_template=clean_template,
        ),
        ocr=ocr, rounds=rounds,
        image_size=parse_size(image_size), allow_failed_self_test=allow_failed_self_test, allow_pickle=allow_pickle,
    )  # fmt: skip
    plain = config.exposure == Exposure() and config.batch_size == 1 and config.rounds == 1
    if compare_defenses and not plain:
        raise DocleakError(
            "--compare-defenses compares on one client's plain gradient of one page; leave out the options that change "
            "what is seen or known, or use docleak defend."
        )
    compared = plain and not attacks if compare_defenses is None else compare_defenses
    shipped = compared and not model and documents == "synthetic"
    asked = asked or (config.attacks if recover_text else ())
    _audit(config, out, device, workers, json_output, compared=compared, shipped=shipped, asked=asked)


@attacks.app.command(attacks.BY_NAME, hidden=True)
def attack(
    name: Annotated[str, typer.Argument(help="Name of the attack, for instance gi-dqa.")] = "",
    show_list: Annotated[bool, typer.Option("--list", help="List the attacks and stop.")] = False,
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "donut-start",
    documents: Documents = "synthetic",
    gradient: Annotated[
        str, typer.Option(help="A client's recorded gradient (.safetensors) instead of one computed here.")
    ] = "",
    pages: Pages = 1,
    budget: Budget = 150,
    image_size: ImageSize = "",
    seed: Seed = 5,
    out: Out = Path("docleak-attack"),
    batch_size: BatchSize = 1,
    rounds: Rounds = 1,
    train_mode: TrainMode = False,
    stages: Stages = "",
    no_question: NoQuestion = False,
    no_answer: NoAnswer = False,
    recover_text: RecoverText = False,
    defense: DefenseOption = "none",
    clean_template: CleanTemplate = False,
    ocr: Ocr = "rapidocr",
    device: Device = "auto",
    workers: Workers = 0,
    allow_failed_self_test: AllowFailed = False,
    allow_pickle: AllowPickle = False,
    json_output: Json = False,
) -> None:
    """Run one attack on one model, with all its knobs."""
    if show_list:
        list_all(attacks.summaries(), json_output)
        return
    from docleak.studies.gradient.config import Exposure, GradientConfig

    known = Exposure(
        train_mode, split_stages(stages), not no_question, not no_answer, gradient or None, recover_text=recover_text,
        defense=defense, clean_template=clean_template,
    )  # fmt: skip
    config = GradientConfig(
        models=(model,), attacks=(name,), documents=documents, pages=pages, budget=budget, seed=seed,
        batch_size=batch_size, exposure=known, ocr=ocr, rounds=rounds, image_size=parse_size(image_size),
        allow_failed_self_test=allow_failed_self_test, allow_pickle=allow_pickle,
    )  # fmt: skip
    _audit(config, out, device, workers, json_output)


def _audit(
    config: GradientConfig, out: Path, device: str, workers: int, json_output: bool, *, compared: bool = False,
    shipped: bool = False, asked: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Carry the audit out, then what may follow it: a comparison of defences, and the shipped examples."""
    from docleak.cli.studies import command_line as typed
    from docleak.cli.studies import say
    from docleak.studies.engine import carry_out
    from docleak.studies.gradient.defences import DefenceStudy, most_exposed
    from docleak.studies.gradient.models import require_applicable, shortage, skipped
    from docleak.studies.gradient.reading import DEFENCES
    from docleak.studies.gradient.study import GradientStudy
    from docleak.studies.registry import report_on
    from docleak.studies.shipped import shipped_examples

    device, processes = pick_device(device), workers or default_workers()
    require_applicable(config, device)
    if lacking := shortage(config, device):
        note(lacking)
    for (model, name), why in skipped(config, device).items():
        if name in asked:  # of the closed form, which nobody asked for, the report says why it is missing
            note(f"{name} is left out on {model}: {why}.")
    with working_in(out):
        with Progress(quiet=json_output, out=out) as watcher:
            study = GradientStudy(config, device=device)
            run = carry_out(study, out, workers=processes, command=typed(), watcher=watcher)
            if compared:
                comparison = DefenceStudy(most_exposed(config, run), device=device)
                carry_out(comparison, out / DEFENCES, workers=processes, command=typed(), watcher=watcher)
            for folder, example in shipped_examples(config.seed, device) if shipped else ():
                carry_out(example, out / folder, workers=processes, command=typed(), watcher=watcher)
                report_on([out / folder])
        page, readings = report_on([out])
    say(page, readings, json_output=json_output)


@cache
def command_line() -> click.Command:
    """All commands, made once and guarded."""
    return typer.main.get_command(app)


@app.command()
def doctor(json_output: Json = False) -> None:
    """Check that this installation can do its work, and say what to do where it cannot."""
    from docleak.cli.doctor import checks

    results = checks()
    width = max(len(c.name) for c in results)
    lines = [f"{'ok ' if c.passed else 'NO '} {c.name:{width}}  {c.detail}" for c in results]
    emit({c.name: {"passed": c.passed, "detail": c.detail} for c in results}, "\n".join(lines), json_output=json_output)
    if all(c.passed or c.optional for c in results):
        return
    if json_output:  # the object is printed: a second one with the error would make it unreadable
        raise typer.Exit(1)
    raise DocleakError("this installation cannot do its work; see the lines marked NO.")
