"""Games on the weights of extraction models: ``docleak attack cdmi`` and ``docleak audit --extraction``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from docleak.cli.settings import pick_device
from docleak.cli.studies import run_and_report
from docleak.errors import AttackError

if TYPE_CHECKING:
    from docleak.attacks.weights import WeightsAttack
    from docleak.studies.weights.config import WeightsConfig


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
    play_and_report(config_of(extraction, documents, public_documents, start, seed), out, device, workers, json_output)


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


def config_of(extraction: str, documents: str, public_documents: str, start: str, seed: int) -> WeightsConfig:
    """The user's own model where public pages are named, else a shipped backbone to train; AttackError for neither."""
    from docleak.documents.loaders import SYNTHETIC
    from docleak.models.shipped import SHIPPED_ENCODERS
    from docleak.studies.weights.config import WeightsConfig

    if public_documents:
        return WeightsConfig(
            target=extraction, documents=documents, public_documents=public_documents, model=start, pages=0, seed=seed
        )
    if extraction not in SHIPPED_ENCODERS or start:
        raise AttackError(
            f"--extraction {extraction} is audited on its own pages: name those it was trained on with --documents, "
            "and others like them with --public-documents. To train a model here first, name "
            f"{', '.join(SHIPPED_ENCODERS)}."
        )
    pages = PAGES if documents == SYNTHETIC else 0
    return WeightsConfig(model=extraction, documents=documents, pages=pages, seed=seed)


def play_and_report(config: WeightsConfig, out: Path, device: str, workers: int, json_output: bool) -> None:
    """Play the game with progress, write its report, and print the verdict and the numbers."""
    from docleak.studies.weights.study import WeightsStudy

    run_and_report(WeightsStudy(config, device=pick_device(device)), out, workers, json_output)
