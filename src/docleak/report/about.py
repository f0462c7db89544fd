"""What people say of an audit, for the page that is signed: ``about.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from docleak.documents.ranges import short
from docleak.errors import PolicyError
from docleak.files import read_json_object

#: Characters of a text at most.
LONGEST = 600
#: pydantic's names of faults, and what was expected instead.
EXPECTED = {
    "string_type": "a text", "tuple_type": "a list of texts", "dict_type": "a table of texts",
    "string_too_long": f"a text of at most {LONGEST} characters",
}  # fmt: skip
#: Where a report keeps what it was given, for the next edition of it.
ABOUT = "about.json"

Text = Annotated[str, StringConstraints(strip_whitespace=True, max_length=LONGEST)]


class About(BaseModel):
    """Everything may be left out; the page then says what the run knows, or leaves a line to write on.

    ``data`` are categories of data and of the people whom they are about; ``fields`` says of keys of private fields
    what kind of data they are (``iban = "bank details"``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    organisation: Text = ""
    system: Text = ""
    purpose: Text = ""
    scope: Text = ""
    data: tuple[Text, ...] = ()
    fields: dict[str, Text] = {}
    auditor: Text = ""
    date: Text = ""


def kept_about(folder: Path) -> About | None:
    """What an earlier report into the folder was given; None if nothing, PolicyError for what can no longer be read."""
    file = folder / ABOUT
    if not file.is_file():
        return None
    advice = "Delete it, or pass --about."
    values = read_json_object(file, error=PolicyError, advice=advice)
    try:
        return About.model_validate(values)
    except ValidationError as fault:
        raise PolicyError(f"{file} is not what a report wrote: {'; '.join(_told(fault))}. {advice}") from fault


def read_about(file: Path) -> About:
    """The description at ``file``; PolicyError, with all faults, for what is none."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise PolicyError(f"{file} cannot be read as a description of an audit ({fault}). Expected TOML.") from fault
    try:
        return About.model_validate(values)
    except ValidationError as fault:
        told = "".join(f"\n  - {one}" for one in _told(fault))
        known = ", ".join(About.model_fields)
        raise PolicyError(
            f"{file} does not describe an audit:{told}\nIt takes {known}; all may be left out."
        ) from fault


def _told(fault: ValidationError) -> list[str]:
    """Each fault as a phrase."""
    told = []
    for one in fault.errors(include_url=False):
        parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in one["loc"]]
        place = "".join(parts).removeprefix(".")
        if one["type"] == "extra_forbidden":
            told.append(f"{place} is an unknown key")
            continue
        told.append(f"{place} is {short(one['input'])}, expected {EXPECTED.get(one['type'], one['msg'])}")
    return told
