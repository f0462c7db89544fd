"""What SARIF 2.1.0 allows of the logs that docleak writes, as a JSON Schema: sections 3.13 to 3.58 of the standard.

Stricter than the standard's own schema: what docleak does not write is not allowed here.
"""

from __future__ import annotations

from typing import Any


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object", "additionalProperties": False, "required": list(required),
        "properties": {**required, **optional},
    }  # fmt: skip


def _list(of: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": of, **more}


TEXT = {"type": "string", "minLength": 1}
MESSAGE = _object({"text": TEXT})
LEVEL = {"enum": ["none", "note", "warning", "error"]}
PLACE = _object({
    "artifactLocation": _object({"uri": {"type": "string", "format": "uri-reference", "pattern": "^[!-~]+$"}}),
    "region": _object({"startLine": {"type": "integer", "minimum": 1}}),
})  # fmt: skip
RESULT = _object({
    "ruleId": TEXT, "ruleIndex": {"type": "integer", "minimum": 0},
    "kind": {"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]}, "level": LEVEL,
    "message": MESSAGE,
    "locations": _list(_object({
        "physicalLocation": PLACE, "logicalLocations": _list(_object({"name": TEXT, "kind": TEXT}), uniqueItems=True),
    }), minItems=1),
    "partialFingerprints": {"type": "object", "additionalProperties": TEXT, "minProperties": 1},
})  # fmt: skip
RULE = _object({
    "id": TEXT, "shortDescription": MESSAGE, "fullDescription": MESSAGE,
    "defaultConfiguration": _object({"level": LEVEL}),
})  # fmt: skip
INVOCATION = _object(
    {"executionSuccessful": {"type": "boolean"}},
    toolExecutionNotifications=_list(_object({"message": MESSAGE, "level": LEVEL}), uniqueItems=True),
)
RUN = _object({
    "tool": _object({"driver": _object({"name": TEXT, "version": TEXT, "rules": _list(RULE, uniqueItems=True)})}),
    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]}, "invocations": _list(INVOCATION),
    "results": _list(RESULT),
})  # fmt: skip
LOG = _object({
    "$schema": {"type": "string", "format": "uri"}, "version": {"const": "2.1.0"},
    "runs": _list(RUN, minItems=1, maxItems=1),
})  # fmt: skip
