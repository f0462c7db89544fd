"""Games on the weights of extraction models: ``docleak attack cdmi`` and ``docleak audit --extraction``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from docleak.cli.output import counter, emit, working_in
from docleak.cli.settings import default_workers, pick_device
from docleak.errors import AttackError

if TYPE_CHECKING:
    from docleak.attacks.weights import WeightsAttack
    from docleak.evidence.extraction.game import GameConfig
    from docleak.evidence.extraction.own import OwnConfig
    from docleak.runs.run import Run
    from docleak.training.extraction.fit import Epoch


Extraction = Annotated[
    str,
    typer.Option(
        help="Audit the weights of an extraction model instead: its directory or hub name, with --documents (the pages "
        "it was trained on) and --public-documents. Or layoutlm-tiny, bros-tiny, bert-tiny: one is trained here first."
    ),
]
PublicDocuments = Annotated[
    str,
    typer.Option(help="With --extraction: pages like the private ones that the model was not trained on."),
]
#: Pages of a data set in the game that trains its target here.
PAGES = 120


def audit_extraction(
    extraction: str, documents: str, public_documents: str, start: str, out: Path, seed: int, device: str, workers: int,
    json_output: bool,
) -> None:  # fmt: skip
    """Audit a user's own extraction model, or one that is trained here."""
    config = config_of(extraction, documents, public_documents, start, seed)
    play_and_report(config, out, pick_device(device), workers or default_workers(), json_output)


def attack_of(variant: str, *, candidates: int, weight: float, top_p: float, mean: str) -> WeightsAttack:
    """The paper's attack, the stronger one, or another of WEIGHTS; AttackError for an option that it does not have."""
    from docleak.attacks.weights import WEIGHTS, CdmiConfig, StrongConfig

    if variant == "paper":
        return CdmiConfig(candidates=candidates, weight=weight, top_p=top_p, mean=cast(Any, mean))
    if variant != "strong":
        attack, paper = WEIGHTS.load(variant), CdmiConfig()
        if (candidates, weight, top_p, mean) != (paper.candidates, paper.weight, paper.top_p, paper.mean):
            raise AttackError(
                f"--candidates, --weight, --top-p and --mean belong to --variant paper and strong; found {variant!r}. "
                "Leave them out, and say its options behind its name (NAME:key=value)."
            )
        return attack
    if mean != "geometric" or top_p != CdmiConfig().top_p:
        raise AttackError("--mean and --top-p belong to --variant paper; leave them out.")
    return StrongConfig(candidates=candidates, weight=weight)


def config_of(extraction: str, documents: str, public_documents: str, start: str, seed: int) -> GameConfig | OwnConfig:
    """The user's own model where public pages are named, else a shipped backbone to train; AttackError for neither."""
    from docleak.documents.loaders import SYNTHETIC
    from docleak.evidence.extraction.game import GameConfig
    from docleak.evidence.extraction.own import OwnConfig
    from docleak.models.shipped import SHIPPED_ENCODERS

    if public_documents:
        return OwnConfig(target=extraction, documents=documents, public=public_documents, start=start, seed=seed)
    if extraction not in SHIPPED_ENCODERS or start:
        raise AttackError(
            f"--extraction {extraction} is audited on its own pages: name those it was trained on with --documents, "
            "and others like them with --public-documents. To train a model here first, name "
            f"{', '.join(SHIPPED_ENCODERS)}."
        )
    pages = PAGES if documents == SYNTHETIC else 0
    return GameConfig(model=extraction, documents=documents, pages=pages, seed=seed)


def play_and_report(
    config: GameConfig | OwnConfig, out: Path, device: str, workers: int, json_output: bool, *, calibrated: bool = True
) -> None:
    """Play the game with progress, write its report, and print the verdict and the numbers.

    ``calibrated`` also plays the adversary's shadow game, which takes as long again.
    """
    import numpy as np

    from docleak.evidence.extraction.exhibits import save_exhibits
    from docleak.evidence.extraction.play import open_game, play
    from docleak.evidence.extraction.shadow import play_shadow
    from docleak.evidence.extraction.table import read_table

    told: dict[str, Any] = {} if json_output else {"on_epoch": _show_epoch}
    with working_in(out):
        run = open_game(config, out, command="docleak " + shlex.join(sys.argv[1:]))
        with counter(quiet=json_output) as on_field:
            game = play(run, config, device=device, workers=workers, on_field=on_field, **told)
        if calibrated:
            print("The adversary's own game on public pages, to learn how sure it can be:", file=sys.stderr)
            with counter(quiet=json_output) as on_field:
                play_shadow(run, config, game, device=device, workers=workers, on_field=on_field, **told)
        save_exhibits(run, game, read_table(run, rng=np.random.default_rng(config.seed)))
        report_extraction(run, json_output)


def report_extraction(run: Run, json_output: bool) -> None:
    """Write the report of a finished game from what is on disk, and print what it says."""
    import numpy as np

    from docleak.evidence.extraction.report import verdict_in, write_report
    from docleak.evidence.extraction.table import as_json, as_text, read_table

    seed = int(run.config.get("seed", 0))
    page = write_report(run, rng=np.random.default_rng(seed))
    table = read_table(run, rng=np.random.default_rng(seed))
    verdict = verdict_in(run, table)
    threat = run.info.get("threat", "")
    value = {
        "run": str(run.path), "report": str(page), "threat": threat, "verdict": verdict.headline,
        "severity": verdict.severity, "label": verdict.label, **as_json(table),
    }  # fmt: skip
    said = "\n".join((verdict.headline, *verdict.sentences))
    emit(value, f"{threat}\n\n{said}\n\n{as_text(table)}\n\nReport: {page}", json_output=json_output)


def weights_example(run: Path, device: str, workers: int, *, quiet: bool) -> str:
    """The part of an audit without arguments that reads the shipped model's weights; returns what to print of it."""
    from docleak.evidence.extraction.report import verdict_in
    from docleak.evidence.extraction.shipped import RELEASED, audit_weights

    if not quiet:
        print(f"Reading scrubbed fields out of the weights of {RELEASED}.", file=sys.stderr)
    with counter(quiet=quiet) as on_field:
        played, table = audit_weights(
            run, device=device, workers=workers or default_workers(), on_field=on_field,
            command="docleak " + shlex.join(sys.argv[1:]),
        )  # fmt: skip
    return f"{RELEASED}, weights: {verdict_in(played, table).headline}"


def _show_epoch(which: str, epochs: int, epoch: Epoch) -> None:
    found = epoch.validation
    print(
        f"{which} model, epoch {epoch.number} of {epochs}: validation accuracy {found.accuracy:.3f}, "
        f"loss {found.loss:.3f}",
        file=sys.stderr,
    )
