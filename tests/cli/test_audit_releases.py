"""``docleak audit --blue-red``: released models side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import docleak
from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import open_issuers, write_blue_red
from docleak.errors import AttackError, ContradictionError, RunError
from docleak.evidence.answers import audit as release_audit
from docleak.evidence.answers.audit import ReleasesConfig, bill_of
from docleak.evidence.answers.report import CONTROL, comparison, said_of, severity_of, summary_text, verdict_json

Command = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def blue_red(tmp_path: Path) -> Path:
    plan = BlueRedPlan(clients=2, red=0.4, test=0.34, validation=0.0)
    write_blue_red(open_issuers(16, 4.0, plan, seed=0), tmp_path / "data")
    return tmp_path / "data"


def test_releases_are_compared_with_what_they_cost_and_claim(command: Command, blue_red: Path, tmp_path: Path) -> None:
    private = ("--epsilon", 8, "--denominator", 2, "--delta", 1e-3, "--holdout", 0, "--evaluate-every", 0)
    small = ("--silos", blue_red / "silos", "--rounds", 1, "--max-steps", 1, "--batch-size", 2, "--no-capture")
    code, _, err = command("train", "federated", *small, *private, "--out", "private")
    assert code == 0, err
    asked = (
        "--blue-red",
        blue_red,
        "--release",
        "FL+DP 8=private",
        "--release",
        "plain=vt5-start",
        "--public",
        "vt5-start",
    )
    code, out, err = command("audit", *asked, "--out", "audit")
    assert code == 0, err
    assert "public model:" in out and "FL+DP 8:" in out and "plain:" in out
    assert "Claimed: epsilon" in out and "It claims no differential privacy" in out
    records = {r["label"]: r for r in json.loads((tmp_path / "audit" / "results.json").read_text())}
    assert list(records) == ["public model", "FL+DP 8", "plain"]
    row = comparison(records["FL+DP 8"])
    assert 0 < row["claimed"] <= 8 and row["bytes"] > 4e6 and row["measured"] <= row["claimed"]
    assert records["plain"]["bytes"] is None and said_of(records["public model"]) == CONTROL
    same = {name: value for name, value in records["plain"]["membership"].items() if name not in ("model", "public")}
    control = records["public model"]["membership"]
    assert same == {name: value for name, value in control.items() if name not in ("model", "public")}, "one model"
    page = (tmp_path / "audit" / "report.html").read_text()
    assert page.count("<img") >= 3 and "<small>one place</small>" not in page and "FL+DP 8" in page and "<svg" in page
    code, again, _ = command("audit", *asked, "--out", "audit")
    assert code == 0 and again == out and "answers of" not in _
    code, out, _ = command("audit", *asked[:-2], "--public", "vt5-public", "--out", "audit", "--json")
    assert code == 1 and "other releases or settings" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--release", "a=vt5-start", "--model", "vt5-start"), "1 --model and 1 --release"),
        (("--release", "vt5-start"), "expected LABEL=MODEL"),
        (("--release", "a/b=vt5-start"), "a name of its own"),
        (("--release", "a=vt5-start", "--release", "a=vt5-public"), "a name of its own"),
        (("--model", "vt5-start", "--attacks", "dlg"), "--attacks cannot be combined with --blue-red"),
        ((), "0 --model and 0 --release"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    options: tuple[str, ...], said: str, command: Command, blue_red: Path
) -> None:
    code, out, _ = command("audit", "--blue-red", blue_red, *options, "--json")
    assert code == 1 and said in json.loads(out)["error"]


def test_releases_need_a_division(command: Command) -> None:
    code, out, _ = command("audit", "--release", "a=vt5-start", "--json")
    assert code == 1 and "--blue-red: give that too" in json.loads(out)["error"]


def test_a_release_that_shows_more_than_it_claims_is_a_loud_error(
    blue_red: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: the measured epsilon of a private release is above its claim."""
    from docleak.documents.blue_red_files import read_blue_red
    from docleak.privacy.lineage import PUBLIC, Lineage, Trained, claim_of
    from docleak.privacy.mechanism import Mechanism
    from docleak.privacy.plan import DpPlan

    plan = DpPlan(Mechanism(2.0, 3), 0.5, 2, 1e-5)
    claim = claim_of(Lineage(PUBLIC, "synthetic pages", (Trained("a", "a training", plan),)))
    assert claim.epsilon is not None
    bill = release_audit.Bill("x", 0, 2, False, claim)
    release_audit._hold(bill, read_blue_red(blue_red), {"epsilon_measured": claim.epsilon - 0.1})
    with pytest.raises(ContradictionError, match="contradicts the accounting"):
        release_audit._hold(bill, read_blue_red(blue_red), {"epsilon_measured": claim.epsilon + 0.1})


def test_what_counts_as_memory_and_as_membership() -> None:
    def share(value: float, low: float, high: float) -> dict[str, Any]:
        return {"value": value, "low": low, "high": high, "questions": 40, "providers": 20}

    def record(memory_low: float, accuracy_low: float, gap_low: float) -> dict[str, Any]:
        found = {name: [share(0.3, 0.2, 0.4)] * 2 for name in ("positive", "negative")}
        found["difference"] = [share(0.1, memory_low, 0.2)] * 2
        counts = {"members": 50, "providers": 100}
        attack = {"accuracy": 0.7, "low": accuracy_low, "high": 0.9, "rates": {"auc": 0.6}, **counts}
        gap = [share(0.1, gap_low, 0.3)] * 2
        member = {
            "attacks": {"AZK": [attack]},
            "gap": gap,
            "gap_beyond_public": None,
            "epsilon_measured": 0.0,
            "measured": "x",
            "members": 50,
            "others": 50,
        }
        return {
            "label": "x", "control": False, "utility": None, "bytes": None, "secure": False, "epsilon": None,
            "claim": "", "membership": member, "memorisation": {"keys": {"provider_name": {"target": found}}},
        }  # fmt: skip

    assert severity_of(record(0.01, 0.4, -0.1)) == "severe"
    assert severity_of(record(-0.01, 0.55, -0.1)) == "partial"
    assert severity_of(record(-0.01, 0.4, 0.02)) == "partial"
    assert severity_of(record(-0.01, 0.45, -0.1)) == "none"
    assert "provider name: 30.0 %" in summary_text([record(0.01, 0.4, -0.1)])
    clean = record(-0.01, 0.45, -0.1)
    keys = clean["memorisation"]["keys"]
    silent = {"provider_name": {"asked": 9, "trained": 0}}
    assert severity_of({**clean, "memorisation": {"keys": keys, "disclosed": silent}}) == "none"
    telling = {**clean, "memorisation": {"keys": keys, "disclosed": {"provider_name": {"asked": 9, "trained": 2}}}}
    assert severity_of(telling) == "partial" and said_of(telling) == "Says values of its training"
    assert "(different values: provider name 2 in 9 questions)" in summary_text([telling])
    machine = verdict_json([telling])
    assert (machine["severity"], machine["releases"][0]["label"]) == ("partial", "Says values of its training")
    unknown = {**keys["provider_name"]["target"], "difference": [{"value": None, "low": None, "high": None}] * 2}
    both = {**keys, "provider_email": {"target": unknown}}
    assert severity_of({**clean, "memorisation": {"keys": both}}) == "untold", "one key of two was measured"


def test_a_model_that_is_no_run_has_no_bill() -> None:
    assert bill_of("vt5-start").bytes is None and bill_of("vt5-start").claim.epsilon is None  # type: ignore[union-attr]
    with pytest.raises(AttackError, match="at least one of each"):
        ReleasesConfig("x", (("a", "b"),), keys=())


def test_an_audit_is_not_continued_with_a_retrained_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    first = ReleasesConfig(str(tmp_path / "data"), (("one", str(tmp_path / "one")),))
    both = ReleasesConfig(first.blue_red, (*first.releases, ("two", str(tmp_path / "two"))))
    out = tmp_path / "out"
    for config in (first, both, first):
        release_audit._claim_folder(config, out)
    (tmp_path / "one" / "file").write_text("trained again")
    with pytest.raises(RunError, match=r"results of other weights or pages.*\n  - .*one: its files have the hash"):
        release_audit._claim_folder(both, out)
    (tmp_path / "one" / "file").write_text("one")
    monkeypatch.setattr(docleak, "__version__", "99.0")
    with pytest.raises(RunError, match="other releases or settings"):
        release_audit._claim_folder(both, out)
