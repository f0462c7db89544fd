"""What was audited of a model, and with what result, as the Hugging Face Hub's model cards say it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docleak.documents.visible import in_markdown, without_html
from docleak.errors import RunError
from docleak.report.page import Reading, joined, measures_table
from docleak.report.policy import VERDICT

#: What stands around the section in a card that has more to say.
BEGIN, END = "<!-- docleak: begin -->", "<!-- docleak: end -->"
TAG = "privacy-audit"


def model_card(readings: Sequence[Reading], digest: str, before: str = "") -> str:
    """The card ``before`` ("" for a new one) with the section on this audit put in or renewed, and its front matter
    with the tag and the verdict. RunError for a card whose front matter cannot be read, or whose marks of the section
    are not one pair."""
    from huggingface_hub import ModelCard
    from yaml import YAMLError

    try:
        card = ModelCard(before or "---\n{}\n---\n", ignore_metadata_errors=False)
    except (ValueError, TypeError, AttributeError, YAMLError) as fault:
        raise RunError(
            f"the model card's front matter cannot be read ({fault}). Mend it, or name a new file."
        ) from fault
    tags = list(card.data.get("tags") or [])
    card.data["tags"] = tags if TAG in tags else [*tags, "docleak", TAG]
    verdict, measures = joined(readings), [one for reading in readings for one in reading.measures]
    audit: dict[str, Any] = {
        VERDICT: str(verdict.severity), "results_sha256": digest,
        "measures": [
            {"measure": one.what, "of": one.of, "value": one.estimate.value, "low": one.estimate.low,
             "high": one.estimate.high} for one in measures
        ],
    }  # fmt: skip
    card.data["docleak"] = audit
    text, section = card.text.strip("\n"), "\n".join([BEGIN, *_section(readings, digest), END])
    head, begun, rest = text.partition(BEGIN)
    marks = text.count(BEGIN), text.count(END)
    if marks not in ((0, 0), (1, 1)) or (begun and END not in rest):
        raise RunError(
            f"the model card has {BEGIN} {marks[0]} times and {END} {marks[1]} times; expected one of each, in this "
            "order, around the section, or none: nobody can tell what of the card is docleak's. Mend it, or name a new "
            "file."
        )
    text = head + section + rest.partition(END)[2] if begun else f"{text}\n\n{section}".strip("\n")
    return f"---\n{card.data.to_yaml()}\n---\n\n{text}\n"


def write_card(readings: Sequence[Reading], digest: str, file: Path) -> Path:
    """Put the section into the card at ``file``, or write a new card there."""
    from docleak.files import reported, write_atomically

    with reported(file):
        try:
            before = file.read_text(encoding="utf-8") if file.is_file() else ""
        except UnicodeDecodeError as fault:
            raise RunError(f"the model card {file} is not UTF-8 ({fault.reason}). Save it as UTF-8.") from fault
        write_atomically(file, model_card(readings, digest, before).encode("utf-8", "backslashreplace"))
    return file


def _section(readings: Sequence[Reading], digest: str) -> list[str]:
    verdict = joined(readings)
    measures = [one for reading in readings for one in reading.measures]
    runs = [run for reading in readings for run in reading.runs]
    lines = ["## Privacy audit", "", without_html(f"**{verdict.label}.** {verdict.sentence}"), ""]
    for reading in readings:
        if scope := reading.scope:
            told = "; ".join(filter(None, [scope.system, scope.material]))
            lines += [without_html(f"- Audited: {told}. Attacker: {scope.adversary}.")] if told else []
    lines += [without_html(f"- {part.name}: {part.said}. {part.sentence}") for part in verdict.parts]
    lines += ["", measures_table(measures).to_markdown()] if measures else [""]
    limits = dict.fromkeys(limit for reading in readings for limit in reading.limits)
    lines += ["What this does not say:", "", *(without_html(f"- {limit}") for limit in limits), ""]
    made = f" {in_markdown(str(runs[0]['docleak']))}, run begun {runs[0]['created'][:10]}" if runs else ""
    return [*lines, f"Made with docleak{made}; SHA-256 of its results.json: `{digest}`.", ""]
