"""What a policy said of a run, as continuous integration reads it: JUnit XML, and SARIF 2.1.0."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import docleak
from docleak.documents.visible import visible
from docleak.report.policy import Checked, Outcome

SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def junit(checked: Sequence[Checked], run: str) -> bytes:
    """A test case per rule and part: a failure is a finding, an error what could not be told."""
    return _suites(run, [
        (f"docleak.{one.rule.measure}", f"{one.rule.sentence}: {one.part}", one.outcome, one.why, one.told)
        for one in checked
    ])  # fmt: skip


def junit_unread(why: str, run: str) -> bytes:
    """The file of a policy or run that could not be read: one test case with an error."""
    return _suites(run, [("docleak.check", "policy and runs are read", Outcome.UNTOLD, why, "")])


def _suites(run: str, cases: Sequence[tuple[str, str, Outcome, str, str]]) -> bytes:
    """(class, name, outcome, why, told) of each test case as a file."""
    outcomes = [outcome for _, _, outcome, _, _ in cases]
    totals = {"tests": str(len(cases)), "failures": str(outcomes.count(Outcome.FINDING)),
              "errors": str(outcomes.count(Outcome.UNTOLD))}  # fmt: skip
    root = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(f"docleak check {run}"), **totals})
    for place, name, outcome, why, told in cases:
        case = ElementTree.SubElement(suite, "testcase", {"classname": place, "name": _xml(name)})
        if outcome is not Outcome.PASS:
            kind = "failure" if outcome is Outcome.FINDING else "error"
            fault = ElementTree.SubElement(case, kind, {"message": _xml(why), "type": str(outcome)})
            fault.text = _xml(told)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 has no way to hold."""
    return "".join(letter for letter in visible(text) if letter in "\t\n" or letter >= " ")


def sarif(checked: Sequence[Checked], policy: Path) -> bytes:
    """A result per rule and part that did not pass: a finding fails, what could not be told is open. Places are lines
    of the policy, which is what lies in the repository."""
    rules = list({one.rule.id: one.rule for one in checked}.values())
    numbers = {rule.id: number for number, rule in enumerate(rules)}
    results = [
        {
            "ruleId": one.rule.id,
            "ruleIndex": numbers[one.rule.id],
            "kind": "fail" if one.outcome is Outcome.FINDING else "open",
            "level": "error" if one.outcome is Outcome.FINDING else "none",
            "message": {"text": f"{one.part}: {one.outcome}. {one.told}"},
            "locations": [{
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(policy.as_posix())},
                    "region": {"startLine": max(1, one.rule.line)},
                },
                "logicalLocations": [{"name": one.part, "kind": "module"}],
            }],
            "partialFingerprints": {
                "docleak/v1": hashlib.sha256(f"{one.rule.id}\n{one.part}".encode()).hexdigest(),
            },
        }
        for one in checked if one.outcome is not Outcome.PASS
    ]  # fmt: skip
    described = [
        {"id": rule.id, "shortDescription": {"text": rule.sentence},
         "fullDescription": {"text": rule.why or rule.sentence}, "defaultConfiguration": {"level": "error"}}
        for rule in rules
    ]  # fmt: skip
    return _log(described, results, {"executionSuccessful": True})


def sarif_unread(why: str) -> bytes:
    """The log of a policy or run that could not be read: no result, and the tool says that it did not come to one."""
    told = {"message": {"text": why}, "level": "error"}
    return _log([], [], {"executionSuccessful": False, "toolExecutionNotifications": [told]})


def _log(rules: list[dict[str, Any]], results: list[dict[str, Any]], invocation: dict[str, Any]) -> bytes:
    driver = {"name": "docleak", "version": docleak.__version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "invocations": [invocation],
           "results": results}  # fmt: skip
    log = {"$schema": SARIF, "version": "2.1.0", "runs": [run]}
    return (json.dumps(log, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
