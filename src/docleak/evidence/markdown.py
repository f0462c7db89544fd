"""The numbers of one or several runs as a Markdown table, for documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from docleak.documents.visible import in_markdown, without_html
from docleak.evidence.report_data import AttackResult, ModelResult, prepare
from docleak.evidence.report_verdict import verdict
from docleak.files import reported, write_atomically
from docleak.metrics import Estimate
from docleak.runs.run import Run

HEAD = (
    "| attack | Binary (picture) | fuzz ratio | PSNR, dB | FFT2D | MSE | gradient explained | evaluations | seconds |"
)


def write_markdown(runs: Sequence[Run], file: Path, *, rng: np.random.Generator) -> Path:
    """Write ``file``; intervals are those of the report drawn with the same ``rng`` seed."""
    data = prepare(runs, rng)
    lines: list[str] = []
    for model in data.models:
        lines += [f"### {in_markdown(model.title)}", "", *_table(model), ""]
        found = verdict(model, data.engines)
        lines += [without_html(f"**{found.label}.** {found.sentence} {found.more}".rstrip()), ""]
        lines += [without_html(f"Route by route: {found.routes}."), ""] if found.routes else []
    lines += [f"{without_html(sentence)}  " for sentence in data.shortages]
    commands = dict.fromkeys(str(run.info.get("command", "")) for run in runs)
    signatures = dict.fromkeys(str(run.info.get("signature", "")) for run in runs)
    lines += [f"Command: {in_markdown(text)}  " for text in commands if text]
    lines += [f"Signature: {without_html(text)}  " for text in signatures if text]
    lines += [f"Read by {', '.join(data.engines)}; 95 % intervals, bootstrap over documents."]
    with reported(file):
        write_atomically(file, ("\n".join(lines) + "\n").encode())
    return file


def _table(model: ModelResult) -> list[str]:
    rows = [HEAD, "|" + "---|" * 9]
    rows += [_row(attack) for attack in model.attacks]
    for name, estimates in (("blank template (floor)", model.floor), ("true page (ceiling)", model.ceiling)):
        rows.append(f"| {name} | {_share(estimates['binary'])} | {_plain(estimates['fuzz_ratio'], 3)} |" + " |" * 6)
    fields = model.attacks[0].counts.scored
    return [*rows, "", f"{model.documents} documents, {fields} private fields."]


def _row(attack: AttackResult) -> str:
    e = attack.estimates
    cells = [
        in_markdown(attack.attack),
        _share(e["binary"]),
        _plain(e["fuzz_ratio"], 3),
        _plain(e["psnr"], 1),
        _plain(e["fft2d"], 4),
        _plain(e["mse"], 0),
        "-" if attack.explained.mean is None else f"{attack.explained.mean:.3f}",
        "-" if attack.evaluations.mean is None else f"{attack.evaluations.mean:.0f}",
        "-" if attack.seconds.mean is None else f"{attack.seconds.mean:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _share(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    interval = "" if estimate.low is None or estimate.high is None else f" [{estimate.low:.0%}, {estimate.high:.0%}]"
    return f"{estimate.value:.1%}{interval}"


def _plain(estimate: Estimate, digits: int) -> str:
    if estimate.value is None:
        return "-"
    text = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
