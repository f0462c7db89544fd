"""Command definitions; each body only parses, calls one function and prints."""

from __future__ import annotations

import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import click
import typer
import typer.main

import docleak
from docleak.cli import attacks, data, deploy, models, train
from docleak.cli.answers import BlueRedFolder, PublicModel, Releases, audit_releases, parse_releases
from docleak.cli.budget import budget
from docleak.cli.defend import defend
from docleak.cli.extraction import (
    Extraction,
    PublicDocuments,
    audit_extraction,
    weights_example,
)
from docleak.cli.guard import Guarded
from docleak.cli.output import counter, emit, note, progress, working_in
from docleak.cli.report import report
from docleak.cli.reproduce import reproduce
from docleak.cli.settings import default_workers, parse_size, pick_device, split_attacks, split_stages
from docleak.cli.updates import Clients, LocalTraining, Round, Updates, audit_updates, refuse_several
from docleak.errors import DocleakError

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
    from docleak.evidence.applicable import CLOSED_FORM, with_closed_form
    from docleak.evidence.audit import AuditConfig
    from docleak.evidence.case import Exposure

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
        from docleak.evidence.updates import UpdatesConfig

        refuse_several(models=len(model or ()), attacks=len(split_attacks(attacks)))
        captured = UpdatesConfig(
            str(updates), (model or [""])[0], documents, round_number, tuple(client or ()), attacks or "gi-dqa", budget,
            local=local, ocr=ocr, seed=seed, allow_failed_self_test=allow_failed_self_test, allow_pickle=allow_pickle,
        )  # fmt: skip
        audit_updates(captured, out, device, workers or default_workers(), json_output)
        return
    chosen: dict[str, Any] = {"models": tuple(model)} if model else {}
    named: dict[str, Any] = {}
    asked = split_attacks(attacks)
    if asked or batch_size > 1:
        others = [name for name in AuditConfig().attacks if name != CLOSED_FORM]
        named["attacks"] = with_closed_form(asked or others, batch_size=batch_size)
    config = AuditConfig(
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
    _run_and_report(config, out, device, workers, json_output, compared=compared, shipped=shipped, asked=asked)


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
    from docleak.attacks.gradients import ATTACKS, load_attack
    from docleak.evidence.audit import AuditConfig
    from docleak.evidence.case import Exposure

    if show_list:
        rows = {key: load_attack(key).summary for key in ATTACKS} | attacks.OTHERS
        emit(rows, "\n".join(f"{key:22}{text}" for key, text in rows.items()), json_output=json_output)
        return
    known = Exposure(
        train_mode, split_stages(stages), not no_question, not no_answer, gradient or None, recover_text=recover_text,
        defense=defense, clean_template=clean_template,
    )  # fmt: skip
    config = AuditConfig(
        models=(model,), attacks=(load_attack(name).name,), documents=documents, pages=pages, budget=budget, seed=seed,
        batch_size=batch_size, exposure=known, ocr=ocr, rounds=rounds, image_size=parse_size(image_size),
        allow_failed_self_test=allow_failed_self_test, allow_pickle=allow_pickle,
    )  # fmt: skip
    _run_and_report(config, out, device, workers, json_output)


def _run_and_report(
    config: object, out: Path, device: str, workers: int, json_output: bool, *, compared: bool = False,
    shipped: bool = False, asked: tuple[str, ...] = (),
) -> None:  # fmt: skip
    import numpy as np

    from docleak.evidence.audit import AuditConfig, compute_units, open_audit, planned_units, require_applicable
    from docleak.evidence.report import summary_text, verdict_json, write_report
    from docleak.runs.run import DEFENCES

    assert isinstance(config, AuditConfig)
    device = pick_device(device)
    require_applicable(config, device)
    with working_in(out):
        run = open_audit(config, out, device=device, command="docleak " + shlex.join(sys.argv[1:]))
        units = {unit.id: config.budget for unit in planned_units(config, device)}
        finished = {unit for unit in units if run.has(unit)}
        if run.info["shortage"]:
            note(run.info["shortage"])
        for left_out in run.info["skipped"]:
            if left_out["attack"] not in asked:
                continue  # the closed form, which nobody asked for: the report says why it is missing
            note(f"{left_out['attack']} is left out on {left_out['model']}: {left_out['why']}.")
        if not json_output:
            there = "1 unit" if len(units) == 1 else f"{len(units)} units"
            before = f", {len(finished)} done already" if finished else ""
            print(f"{there}{before}; pictures appear in {out / 'units'} while this runs.", file=sys.stderr)
        with progress(units, finished=finished, quiet=json_output) as report:
            compute_units(run, config, device=device, workers=workers or default_workers(), on_progress=report)
        if compared:
            from docleak.recipes import comparison

            most = comparison.most_exposed(config, run)
            with counter(quiet=json_output) as on_unit:
                comparison.compare(
                    comparison.DEFAULT, most, out / DEFENCES, device=device, workers=workers or default_workers(),
                    command="docleak " + shlex.join(sys.argv[1:]), on_unit=on_unit,
                )  # fmt: skip
        examples = []
        if shipped:
            examples.append(_released_example(out, config.seed, device, workers, quiet=json_output))
            examples.append(weights_example(out, device, workers, quiet=json_output))
        page = write_report(run, rng=np.random.default_rng(config.seed))
    said = "\n".join((summary_text(run, np.random.default_rng(config.seed)), *examples))
    text = f"{said}\n\nReport: {page}"
    said_json = verdict_json(run, np.random.default_rng(config.seed))
    facts = {"units": len(units), "shortage": run.info["shortage"], "verdict": said_json}
    emit({"report": str(page), "results": str(run.path / "results.json"), **facts}, text, json_output=json_output)


def _released_example(out: Path, seed: int, device: str, workers: int, *, quiet: bool) -> str:
    """The part of an audit without arguments that asks the shipped released model; returns what to print of it."""
    from docleak.cli.output import Progress
    from docleak.evidence.overview import RELEASED, released_reading
    from docleak.studies.answers.study import AnswersStudy, shipped_audit
    from docleak.studies.engine import carry_out
    from docleak.studies.registry import report_on

    with Progress(quiet=quiet) as watcher:
        watcher.said("Asking the released model that docleak ships about its providers.")
        study = AnswersStudy(shipped_audit(seed), device=device)
        command = "docleak " + shlex.join(sys.argv[1:])
        carry_out(study, out / RELEASED, workers=workers or default_workers(), command=command, watcher=watcher)
    report_on([out / RELEASED])
    reading = released_reading(out)
    assert reading is not None
    return "\n".join(reading.lines)


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
