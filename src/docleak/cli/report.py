"""``docleak report``, ``check``, ``compare``, ``schema``: what finished runs say, to people and to machines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from docleak.cli.output import emit, note
from docleak.cli.studies import in_json, say, written
from docleak.errors import DocleakError
from docleak.options import option, required

#: Keys of private fields that a notice names.
KEYS_SHOWN = 20

STUDIES: Any = option(
    (), "MODULE:CLASS of your own study, of runs of which one is; reading a run imports no file that only it names.",
    "--study", repeat=True,
)  # fmt: skip


def report(
    runs: tuple[Path, ...] = required("Run directories; several are put into one report.", argument=True),
    out: Path | None = option(None, "Folder for the report; needed to join several runs."),
    about: Path | None = option(None, "TOML file that says who audited what and why, for the first page."),
    redacted: bool = option(False, "An edition beside it without pictures and true values."),
    markdown: Path | None = option(None, "Also write the numbers as Markdown tables here."),
    model_card: Path | None = option(None, "Also put a section on the audit into this model card (README.md)."),
    units: Path | None = option(None, "Also write a row per finished unit here: .csv or .parquet."),
    studies: tuple[str, ...] = STUDIES,
) -> None:
    """Write (again) the HTML report of one or several finished runs, from what is on disk."""
    from docleak.report.about import read_about
    from docleak.report.card import write_card
    from docleak.report.page import digest_of, joined, write_markdown
    from docleak.studies.registry import load_study, once, report_on
    from docleak.studies.results import load_run, table_file

    for name in studies:
        load_study(name)
    if redacted and (whole := [name for name, file in (("--markdown", markdown), ("--units", units)) if file]):
        raise DocleakError(
            f"{' and '.join(whole)} would hold what --redacted leaves out. Write them in a call without --redacted."
        )
    if units is not None:
        table_file(units)
    described = read_about(about) if about else None
    page, readings = report_on(runs, out, about=described, redacted=redacted)
    keys = sorted({key for reading in readings if reading.scope for key in reading.scope.categories})
    if described and (idle := [key for key in described.fields if key not in keys]):
        named = ", ".join(keys[:KEYS_SHOWN]) + f" and {len(keys) - KEYS_SHOWN} more" * (len(keys) > KEYS_SHOWN)
        note(
            f"Notice: {about}: no private field reported here has the key {' or '.join(map(repr, idle))} that [fields] "
            f"names; the keys are {named or 'not known'}. Correct it, unless it is for other reports."
        )
    files = {"Markdown": markdown, "Model card": model_card, "Units": units}
    beside = {name: file for name, file in files.items() if file is not None}
    if markdown is not None:
        write_markdown(readings, markdown)
    if model_card is not None:
        write_card(readings, digest_of(readings), model_card)
    if units is not None:
        load_run(once(runs)).write(units)
    if redacted:
        verdict = joined(readings)
        told = [f"{verdict.label}. The redacted edition: {page}", *written(beside)]
        emit({"report": str(page), "severity": str(verdict.severity), **in_json(beside)}, "\n".join(told))
        return
    say(page, readings, beside)


def check(
    runs: tuple[Path, ...] = required("Run directories.", argument=True),
    policy: Path = required("TOML file with the rules."),
    junit: Path | None = option(None, "Also write JUnit XML here."),
    sarif: Path | None = option(None, "Also write SARIF 2.1.0 here."),
    studies: tuple[str, ...] = STUDIES,
) -> None:
    """Hold finished runs against a policy: exit code 0 if it holds, 1 for a finding, 2 where it could not be told."""
    from docleak.files import reported, write_atomically
    from docleak.report import gate_files
    from docleak.report.page import joined
    from docleak.report.policy import check as check_policy
    from docleak.report.policy import overall, read_policy
    from docleak.studies.registry import load_study, read_runs, runs_at

    named = " ".join(map(str, runs))

    def write(as_junit: bytes, as_sarif: bytes) -> None:
        for file, text in ((junit, as_junit), (sarif, as_sarif)):
            if file is not None:
                with reported(file):
                    write_atomically(file, text)

    try:
        rules = read_policy(policy)
        for name in studies:
            load_study(name)
        readings = read_runs(runs_at(runs))
        checked = check_policy(rules, [one for reading in readings for one in reading.measures], joined(readings))
    except DocleakError as error:  # neither a pass nor a finding
        with suppress(DocleakError):
            write(gate_files.junit_unread(str(error), named), gate_files.sarif_unread(str(error)))
        raise
    write(gate_files.junit(checked, named), gate_files.sarif(checked, policy))
    outcome = overall(checked)
    lines = [f"{str(one.outcome).upper():14}  {one.rule.sentence}; {one.part}: {one.told}" for one in checked]
    value = {"outcome": str(outcome), "exit_code": outcome.code, "checked": [one.to_json() for one in checked]}
    emit(value, "\n".join([*lines, "", f"Policy: {outcome}."]))
    raise typer.Exit(outcome.code)


def compare(
    first: Path = required("Run directory.", argument=True),
    second: Path = required("Run directory of the same kind.", argument=True),
    markdown: Path | None = option(None, "Also write the table as Markdown here."),
    studies: tuple[str, ...] = STUDIES,
) -> None:
    """Two runs side by side: what a change of model, defence or data did, with intervals over the same documents."""
    from docleak.files import reported, write_atomically
    from docleak.studies.comparing import compare as compared
    from docleak.studies.registry import load_study

    for name in studies:
        load_study(name)
    comparison = compared(first, second)
    if markdown is not None:
        with reported(markdown):
            write_atomically(markdown, comparison.table().to_markdown().encode("utf-8", "backslashreplace"))
    emit(comparison.to_json(), "\n".join(comparison.lines()))


def schema() -> None:
    """Print the JSON Schema of results.json."""
    import json

    from docleak.report.schema import json_schema

    emit(json_schema(), json.dumps(json_schema(), indent=2))
