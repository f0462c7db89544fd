"""What to do after a gradient audit: what it measured of defences, and the command that measures them."""

from __future__ import annotations

import shlex

from docleak.report.page import Section
from docleak.report.templating import render
from docleak.studies.gradient.exposed import defence_of
from docleak.studies.gradient.results import ReportData
from docleak.studies.gradient.words import ADVICE
from docleak.studies.identity import model_key


def advice_section(data: ReportData) -> Section:
    """That no defence was measured or only one, and what would measure them."""
    body = render("advice.html.j2", advice=ADVICE, command=defend_command(data), defended=only_defended(data))
    return Section("advice", "What to do", "What to do about it", body)


def only_defended(data: ReportData) -> tuple[str, ...]:
    """That only the training under its defence was measured; nothing where it has none."""
    defence = defence_of(data.runs[0])
    return (
        f"Only the training with the defence {defence} in place was measured, and nothing without it, so nothing here "
        "says what this defence changes.",
    ) if defence else ()  # fmt: skip


def defend_command(data: ReportData) -> str:
    """The command that measures the run's defence, or without one those that there are, on the audited pages and the
    model that told most."""
    config = data.runs[0].config
    most = max(data.models, key=lambda model: model.findings.judgement.read)
    size = config.get("image_size")
    keys = {model_key(str(name), tuple(size) if size else None): name for name in config["models"]}
    source = str(keys.get(most.model, config["models"][0]))
    return shlex.join([
        "docleak", "defend", *filter(None, [defence_of(data.runs[0])]), "--model", source,
        "--documents", str(config["documents"]), "--seed", str(config["seed"]), "--pages", "10",
        "--utility-steps", "400",
    ])  # fmt: skip
