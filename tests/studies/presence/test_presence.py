"""Whether a page was in an update: told where it can be, and not told where nothing says so."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocumentError
from docleak.metrics.clustered import ALONE
from docleak.report.page import write_report
from docleak.studies.engine import carry_out
from docleak.studies.presence.config import PresenceConfig
from docleak.studies.presence.pages import deal
from docleak.studies.presence.reading import OLDER, OTHERS, SCORES, cutoff_of, rows_of, told
from docleak.studies.presence.study import PresenceStudy
from docleak.studies.registry import read_runs, report_on

LAYER = "decoder.model.decoder.layers.1.fc1.weight"


@pytest.mark.parametrize(
    "settings", [{}, {"optimiser": "adamw", "learning_rate": 1e-3, "precision": "bfloat16", "layer": LAYER}]
)
def test_pages_of_the_update_are_told_from_others(settings: dict[str, object], tmp_path: Path) -> None:
    run = carry_out(PresenceStudy(PresenceConfig(pages=8, controls=2, **settings)), tmp_path / "run")
    (reading,) = read_runs([run])
    values = reading.tables["presence"].rows[0].values
    assert values["alignment_auc"].value == 1.0 and values["alignment_auc"].n == 8
    if not settings:
        assert values["residual_auc"].value == 1.0 and values["residual_errors"].value == 0.0
        assert values["rank"] < values["width"]
        gap = [(min(p["residual"] for p in r["inside"]), max(p["residual"] for p in r["outside"])) for r in run.units()]
        assert all(inside > outside + 2 for inside, outside in gap)
    assert "by loss AUC" in reading.parts[0].sentence


def test_the_signed_page_says_of_what_model_how_many_pages_and_who_asks(tmp_path: Path) -> None:
    study = PresenceStudy(PresenceConfig(pages=8, controls=2))
    run = carry_out(study, tmp_path / "run")
    page, (reading,) = report_on([run.path])
    asked = "4 pages in 2 updates and 4 in none"
    assert f"An honest-but-curious server of a training of donut-start asked about {asked}. Pages" in reading.counted
    assert reading.scope is not None and reading.scope.reached == asked
    assert reading.scope.system == "Federated training of donut-start"
    assert "receives one client's update" in reading.scope.adversary
    facts = page.read_text().split("Purpose of the audit")[1].split("Auditor")[0]
    assert "4 in none" in facts and "honest-but-curious server" in facts
    assert "Made-up pages" in facts and "Confidential." not in page.read_text()
    real = write_report([replace(reading, synthetic=False)], tmp_path / "real").read_text()
    assert "true values and pictures" not in real and "shows no true value and no picture of what was audited;" in real
    shown = [replace(reading, synthetic=False), replace(reading, shows="true values")]
    beside = write_report(shown, tmp_path / "beside").read_text()
    assert "no picture of what was audited, but for made-up pages;" in beside and "Confidential." not in beside
    (run.folder(study.units()[1].id) / "unit.json").unlink()
    (half,) = read_runs([run])
    assert half.scope is not None and half.scope.unfinished == "1 of 2 updates"


def test_pages_of_a_folder_are_dealt_and_not_taken_in_its_order(tmp_path: Path) -> None:
    """Invoices that stand before receipts are no update that is told from none."""
    save(make_pages(20, seed=1), tmp_path / "pages")
    dealt = deal(PresenceConfig(documents=str(tmp_path / "pages"), pages=16, batch_size=8, controls=4))
    there = [page.name for subject in (*dealt.asked, *dealt.controls) for page in subject.pages]
    assert len(set(there)) == 20
    for part in (there[:8], there[8:16]):
        assert any(name in sorted(there)[:10] for name in part) and any(name in sorted(there)[10:] for name in part)


def test_providers_are_dealt_once_and_their_other_pages_are_in_no_update() -> None:
    dealt = deal(PresenceConfig(pages=16, batch_size=4, per_provider=2, controls=2, warm_up=1))
    names = [{page.provider for page in (*s.pages, *s.others)} for s in (*dealt.asked, *dealt.controls)]
    assert all(len(one) == 1 for one in names) and len(set.union(*names)) == len(names) == 2 * 2 * 2 + 2
    assert len({page.name for page in dealt.pages}) == len(dealt.pages) == 10 * 4 + 4
    assert not {page.provider for page in dealt.warm_up} & set.union(*names)


def test_providers_of_the_update_are_told_from_others(tmp_path: Path) -> None:
    asked = PresenceConfig(pages=16, batch_size=2, per_provider=1, controls=2)
    run = carry_out(PresenceStudy(asked), tmp_path / "run")
    (reading,) = read_runs([run])
    theirs, others = reading.tables["presence"].rows
    assert theirs.values["residual_auc"].value == 1.0 and theirs.values["residual_auc"].of == "providers"
    assert others.values["residual_auc"].value > 0.75 and theirs.values["blind_auc"].n == 16  # by the letterhead
    pairs = [(one["residual"], more["residual"]) for r in run.units() for one, more in zip(*_inside(r), strict=True)]
    assert all(one > more + 1 for one, more in pairs)
    assert reading.question == "Was this provider in this update?"
    assert "By other pages of theirs" in reading.parts[0].sentence and "Without model or update" in reading.counted


def _inside(record: dict[str, Any]) -> tuple[Any, Any]:
    return record["inside"], record["inside_others"]


def test_scores_that_know_nothing_are_near_one_half() -> None:
    rng = np.random.default_rng(0)
    kinds = ("inside", "outside", "controls")
    records = [{kind: [{"loss": float(v)} for v in rng.normal(size=4)] for kind in kinds} for _ in range(50)]
    auc, wrong = told(records, "loss", rng)
    assert auc.low < 0.5 < auc.high and wrong.low < 0.5 <= wrong.high


def test_the_best_of_several_scores_has_to_hold_for_all_of_them(tmp_path: Path) -> None:
    """Simulated, pages whose scores know nothing were told apart in 6 of 100 runs by whichever of four chance favoured;
    by intervals that hold for all four in none."""
    config = asdict(PresenceConfig(pages=32, batch_size=4, per_provider=2))

    def severity(ahead: float) -> str:
        record: dict[str, Any] = {"rank": 1, "width": 2}
        for kind in (kind + which for kind in ("inside", "outside", "controls") for which in ("", OTHERS)):
            record[kind] = [dict.fromkeys(SCORES, n + ahead * (kind == "inside")) for n in range(24)]
        run = SimpleNamespace(path=tmp_path, config=config, info={}, units=lambda: [record])
        rows, part, _ = rows_of(run, np.random.default_rng(0))  # type: ignore[arg-type]
        assert (rows[0].values["residual_auc"].low > 0.5) is (ahead > 4)
        assert ("By intervals that hold for all 4 scores that see the update none is above 1/2" in part.sentence) is (
            part.severity == "untold"
        )
        return part.severity

    assert [severity(ahead) for ahead in (3.5, 5.0, 18.0)] == ["untold", "untold", "severe"]


def test_the_cut_goes_into_a_gap_of_residuals_and_nowhere_else() -> None:
    controls = np.array([0.9, 1.0, 1.1])
    assert 2.0 < cutoff_of("residual", np.array([0.5, 2.0, 10.0, 11.0]), controls) < 10.0
    assert cutoff_of("residual", np.array([0.5, 2.0, 3.0]), controls) == controls.mean() + 3 * controls.std()
    assert cutoff_of("alignment", np.array([0.5, 2.0, 10.0]), controls) == controls.mean() + 3 * controls.std()


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AttackError, match="no round of 2 x 4"):
        PresenceConfig(pages=6, batch_size=4)
    with pytest.raises(AttackError, match="expected sgd or adamw"):
        PresenceConfig(optimiser="adam")
    with pytest.raises(AttackError, match="trains no linear layer"):
        PresenceStudy(PresenceConfig(layer="no.such.weight")).facts()
    with pytest.raises(DocumentError):
        _ = deal(PresenceConfig(documents="funsd:" + str(tmp_path)))
    with pytest.raises(AttackError, match="no whole providers of 3 pages"):
        PresenceConfig(batch_size=4, per_provider=3)
    with pytest.raises(AttackError, match="of 2 pages, in updates of 1, one page is in an update, which gives no rate"):
        PresenceConfig(pages=2, batch_size=1)
    with pytest.raises(AttackError, match="one provider is in an update, which gives no rate; expected 2 or more"):
        PresenceConfig(pages=4, batch_size=2, per_provider=2)
    with pytest.raises(DocumentError, match="providers with 200 pages"):
        _ = deal(PresenceConfig(batch_size=100, pages=400, per_provider=100))


def null_record(rng: np.random.Generator, providers: int, pages: int) -> dict[str, Any]:
    """Scores that know nothing of who is in, and are alike on the pages of a provider."""
    record: dict[str, Any] = {"rank": 1, "width": 2}
    for kind in ("inside", "outside", "controls"):
        shared = rng.normal(size=(providers, len(SCORES)))
        record[kind] = [
            {**dict(zip(SCORES, 2 * shared[n % providers] + rng.normal(size=len(SCORES)), strict=True)),
             "whose": f"{kind} {n % providers}"} for n in range(pages)
        ]  # fmt: skip
    return record


@pytest.mark.parametrize(("providers", "most"), [(1, 0.0), (2, 0.06)])
def test_pages_of_a_provider_stand_or_fall_together(providers: int, most: float, tmp_path: Path) -> None:
    """Ten pages of one provider in, ten of another out, were told apart in 56 % of 200 simulated updates that say
    nothing of either; of two providers a side in 36 %."""
    told_apart, draws = 0, 15
    for seed in range(draws):
        record = null_record(np.random.default_rng(seed), providers, 10)
        run = SimpleNamespace(path=tmp_path, config=asdict(PresenceConfig()), info={}, units=lambda one=record: [one])
        _, part, measure = rows_of(run, np.random.default_rng(0))  # type: ignore[arg-type]
        told_apart += part.severity != "untold"
        if providers == 1:
            assert measure.estimate.high is None and ALONE in part.sentence, "no interval is none from 0 to 0"
    assert told_apart <= most * draws


@pytest.mark.parametrize("providers", [1, 2, 5])
def test_errors_are_counted_over_providers(providers: int) -> None:
    """A cut between two kinds of providers is wrong about 19 % of their pages; counted page by page 50, 35 and 12 % of
    the intervals missed that."""
    missed, draws = 0, 60
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        record: dict[str, Any] = {"rank": 1, "width": 2, "controls": [{"alignment": score} for score in (0.5, 1.0)]}
        for kind, ahead in (("inside", 4.0), ("outside", 0.0)):
            shared = rng.normal(size=providers)
            whose = [n % providers for n in range(10)]
            record[kind] = [
                {"alignment": 2 * shared[of] + rng.normal() + ahead, "whose": f"{kind} {of}"} for of in whose
            ]
        cut = cutoff_of("alignment", np.zeros(1), np.array([0.5, 1.0]))
        truth = (norm.cdf((cut - 4) / 5**0.5) + norm.sf(cut / 5**0.5)) / 2
        errors = told([record], "alignment", np.random.default_rng(seed))[1]
        assert errors.low is not None and errors.high is not None and errors.groups == 2 * providers
        missed += not errors.low <= truth <= errors.high
    assert missed <= 0.05 * draws


def test_a_run_that_does_not_say_whose_its_pages_are_says_so(tmp_path: Path) -> None:
    """Its interval was printed as one over providers."""
    record = null_record(np.random.default_rng(0), 2, 10)
    for said, whose in ((False, True), (True, False)):
        if not whose:
            record |= {kind: [{s: page[s] for s in SCORES} for page in record[kind]] for kind in ("inside", "outside")}
        run = SimpleNamespace(path=tmp_path, config=asdict(PresenceConfig()), info={}, units=lambda one=record: [one])
        _, part, measure = rows_of(run, np.random.default_rng(0))  # type: ignore[arg-type]
        assert (OLDER.removesuffix(".") in part.sentence, OLDER in measure.doubts) == (said, said)
