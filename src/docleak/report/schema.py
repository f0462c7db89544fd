"""The schema of results.json: these types, by which every file is checked before it is written.

What all kinds of runs have in common is typed to the last value; what a study adds is typed one level deep, and of a
study from outside the package it may be anything under a name of its own. A change of a type is a new ``SCHEMA``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from docleak.errors import RunError
from docleak.metrics.estimate import Estimate

SCHEMA = "docleak-results-1"
Json = dict[str, JsonValue]
Level = Literal["severe", "partial", "untold", "unmeasured", "none"]
#: Keys of ``docleak.report.measure.MEASURES``.
MeasureName = Literal["fields-read", "gradient-explained", "membership", "memorisation", "document-auc",
                      "document-tpr-at-10-fpr", "document-tpr-at-1-fpr", "document-fields-known", "presence-auc",
                      "epsilon-measured", "epsilon-claimed"]  # fmt: skip


class Strict(BaseModel):
    """No other keys, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class Number(Estimate):
    """A measured number; see ``docleak.metrics.estimate.Estimate``."""

    __pydantic_config__ = Strict.model_config


class PartOf(Strict):
    """The verdict on one model, client, release or defence."""

    part: str
    severity: Level
    label: str
    sentence: str


class Verdict(Strict):
    """The worst of the parts."""

    severity: Level
    label: str
    sentence: str
    parts: list[PartOf]


class Measured(Strict):
    """A number that a policy can bound; ``doubts`` say why a low one is no all-clear."""

    measure: MeasureName
    of: str
    unbounded: bool
    doubts: list[str]
    estimate: Number


class RunOf(Strict):
    """A run that the results were computed from."""

    kind: str
    docleak: str
    created: str
    signature: str
    code: str = ""


class FieldFound(Strict):
    """One private field: what all routes say, and each of them; never its value."""

    page: str
    key: str
    found: str
    routes: dict[str, str]


class RouteOf(Strict):
    """Fields that one route gave, of those that it was tried on."""

    name: str
    read: int
    of: int
    cells: dict[str, int]


class Findings(Strict):
    """The private fields of one model's pages."""

    severity: Level
    label: str
    read: int
    of: int
    cells: dict[str, int]
    share: Number
    routes: list[RouteOf]
    doubts: list[str]
    untried: list[str]
    unread: list[str]
    fields: list[FieldFound]


class Counts(Strict):
    """Fields by how well one attack's picture was read."""

    exact: int
    near: int
    no: int
    unscored: int


class AttackOn(Strict):
    """One attack on one model's gradients."""

    attack: str
    pages: list[str]
    fields: Counts
    estimates: dict[str, Number]
    explained: Number
    evaluations: Number
    seconds: Number
    budget: Number


class GradientModel(Strict):
    """One model of a gradient audit."""

    model: str
    title: str
    moment: str
    documents: int
    verdict: Findings
    skipped: list[str]
    best_attack: str
    attacks: list[AttackOn]
    floor: dict[str, Number]
    ceiling: dict[str, Number]


class Results(BaseModel):
    """A whole results.json."""

    model_config = ConfigDict(extra="allow", strict=True, title=SCHEMA)
    __pydantic_extra__: dict[str, JsonValue]

    format: Literal["docleak-results-1"] = Field(description="The schema that this file follows.")
    redacted: bool = Field(description="Whether what a study adds was left out.")
    verdict: Verdict
    measures: list[Measured]
    runs: list[RunOf]
    # audits of gradients
    models: list[GradientModel] | None = None
    docleak: list[str] | None = None
    signature: list[str | None] | None = None
    ocr_engine: list[str] | None = None
    shortage: list[str] | None = None
    drawn: list[str] | None = None
    interval: str | None = None
    # comparisons of defences
    defences: list[Json] | None = None
    measured: list[str] | None = None
    # updates
    updates: list[Json] | None = None
    cells: list[Json] | None = None
    falls: list[str] | None = None
    absent: list[str] | None = None
    missing: list[str] | None = None
    # weights, answers, canaries, pairs, trainings
    weights: Json | None = None
    releases: list[Json] | None = None
    audits: dict[str, Json] | None = None
    model: str | None = None
    knows: list[str] | None = None
    rows: list[Json] | None = None
    privacy: Json | None = None
    training: Json | None = None


def checked(results: Mapping[str, Any]) -> bytes:
    """``results`` as the bytes of a results.json; RunError, with the first faults, if they do not follow the schema."""
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    encoded = text.encode("utf-8", "backslashreplace")
    try:
        Results.model_validate_json(encoded)
    except ValidationError as fault:
        told = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in fault.errors()[:5]]
        raise RunError(
            f"the results do not follow {SCHEMA}: {'; '.join(told)}. A study that adds keys of its own names them "
            "otherwise than docleak's."
        ) from fault
    return encoded


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of results.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:{SCHEMA}",
            **Results.model_json_schema()}  # fmt: skip
