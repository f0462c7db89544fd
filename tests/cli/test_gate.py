"""What the documents show of the gate is run, on an undefended and on a defended model; what else runs are told as."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pandas
import pytest
import yaml

import docleak
from docleak.cli import main
from docleak.errors import RunError
from docleak.report.card import BEGIN, END
from docleak.report.redaction import private_values
from docleak.report.schema import Results
from docleak.runs.run import Run

GATE = (Path(__file__).parents[2] / "docs" / "gate.md").read_text("utf-8")
POLICY, = re.findall(r"^```toml\n(.*?)^```", GATE, re.MULTILINE | re.DOTALL)  # fmt: skip
GITHUB, GITLAB = (yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", GATE, re.MULTILINE | re.DOTALL))
AUDIT, CHECK = (step["run"] for step in GITHUB["jobs"]["leak"]["steps"] if str(step.get("run")).startswith("docleak"))
DEFENCES = {"plain": "none", "defended": GITHUB["jobs"]["leak"]["env"]["DEFENSE"]}
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the runs of both, by the command lines of the documents."""
    where = tmp_path_factory.mktemp("gate")
    with contextlib.chdir(where), pytest.MonkeyPatch.context() as patch:
        (where / "policy.toml").write_text(POLICY)
        for name, defence in DEFENCES.items():
            line = AUDIT.replace('"$MODEL"', GITHUB["jobs"]["leak"]["env"]["MODEL"]).replace('"$DEFENSE"', defence)
            words = shlex.split(line.replace("--out leak", f"--out {name}"))
            patch.setattr(sys, "argv", [*words, "--workers", "1"])
            with pytest.raises(SystemExit) as stop, contextlib.redirect_stdout(io.StringIO()):
                main()
            assert not stop.value.code
        yield where


@pytest.fixture
def call(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(runs)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["docleak", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return (int(stop.value.code or 0), *capsys.readouterr())

    return run


def test_the_gate_fails_on_the_undefended_and_passes_on_the_defended(call: Call, runs: Path) -> None:
    for name, code in (("plain", 1), ("defended", 0)):
        words = shlex.split(CHECK.replace("check leak", f"check {name}"))
        assert call(*words[1:])[0] == code
        results = json.loads((runs / "docleak.sarif").read_text())["runs"][0]["results"]
        assert len(results) == code and f'failures="{code}"' in (runs / "junit.xml").read_text()
    assert [line for line in GITLAB["leak"]["script"] if line.startswith("docleak audit")] == [AUDIT]


def test_the_reason_for_a_rule_is_printed_beside_what_breaks_it(call: Call) -> None:
    code, out, _ = call("check", "plain", "--policy", "policy.toml")
    assert code == 1 and "The rule is there for: DPIA, measure 3" in out
    code, out, _ = call("check", "plain", "--policy", "policy.toml", "--json")
    assert json.loads(out)["checked"][0]["rule_is_for"] == "DPIA, measure 3"
    assert "DPIA" not in call("check", "defended", "--policy", "policy.toml")[1]
    assert not docleak.load_run("plain").measures()["unbounded"].any(), "told of epsilons that nobody claims alone"


def test_what_cannot_be_told_or_read_is_neither(call: Call, runs: Path) -> None:
    (runs / "other.toml").write_text("[[rule]]\nmeasure = 'memorisation'\nat_most = 1\n")
    code, out, _ = call("check", "defended", "--policy", "other.toml", "--json")
    assert code == 2 and json.loads(out)["outcome"] == "could not tell"
    for words in (("defended", "--policy", "none.toml"), ("nothing", "--policy", "policy.toml")):
        code, out, err = call("check", *words, "--junit", "unread.xml", "--sarif", "unread.sarif")
        assert (code, out) == (2, "") and err.startswith("docleak: ")
        assert 'errors="1"' in (runs / "unread.xml").read_text()
        assert json.loads((runs / "unread.sarif").read_text())["runs"][0]["results"] == []


@pytest.mark.parametrize("text", ["[[rule]", "foo = 1", "", "[[rule]]\nmeasure = 'verdict'\nat_worst = 'bad'\n", None])
def test_a_policy_that_does_not_parse_is_no_finding(call: Call, runs: Path, text: str | None) -> None:
    if text is not None:
        (runs / "wrong.toml").write_text(text)
    for more in ((), ("--json",)):
        code, out, err = call("check", "plain", "--policy", "" if text is None else "wrong.toml", *more)
        assert code == 2 and err.startswith("docleak: " + ("--policy is empty" if text is None else "wrong.toml "))
        assert not more or f"docleak: {json.loads(out)['error']}\n" == err


@pytest.mark.parametrize("fault", [OSError("the disk is full"), MemoryError("1 GiB")])
def test_where_the_machine_fails_there_is_no_finding(
    call: Call, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr("docleak.studies.registry.read_runs", lambda _: (_ for _ in ()).throw(fault))
    code, _, err = call("check", "plain", "--policy", "policy.toml")
    assert code == 2 and str(fault) in err
    for option in ("--junit", "--sarif"):
        assert call("check", "plain", "--policy", "policy.toml", option, "")[0] == 2
    assert call("check", "", "--policy", "policy.toml")[0] == 2
    assert call("report", "")[0] == 1


@pytest.mark.parametrize("kind", ["github-workflows", "gitlab-ci"])
def test_the_workflow_files_are_what_those_services_read(kind: str, tmp_path: Path) -> None:
    """By the schemas that check-jsonschema brings; nothing is asked of a network."""
    number = ["github-workflows", "gitlab-ci"].index(kind)
    text = re.findall(r"^```yaml\n(.*?)^```", GATE, re.MULTILINE | re.DOTALL)[number]
    for content, code in ((text, 0), (text.replace("script:", "scripts:").replace("runs-on:", "runs:"), 1)):
        (tmp_path / "ci.yaml").write_text(content)
        words = ("-m", "check_jsonschema", "--builtin-schema", f"vendor.{kind}", str(tmp_path / "ci.yaml"))
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr


def test_results_are_what_the_published_schema_says(call: Call, runs: Path) -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs" / "results.schema.json").read_text())
    call("report", "defended")
    results = json.loads((runs / "defended" / "results.json").read_text())
    jsonschema.validate(results, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**results, "measures": [{"measure": "fields-read"}]}, schema)


def test_two_runs_side_by_side(call: Call, runs: Path) -> None:
    code, out, _ = call("compare", "plain", "defended", "--json", "--markdown", "beside.md")
    comparison = json.loads(out)
    assert code == 0 and [one["setting"] for one in comparison["changed"]] == ["exposure.defense"]
    read = next(one for one in comparison["differences"] if one["measure"] == "fields-read")
    assert read["paired"] and read["bounded"] and read["difference"]["value"] == read["difference"]["low"] == -1
    assert -0.1 < read["difference"]["high"] < 0 and "so the two differ" in " ".join(comparison["lines"])
    assert "no resample differs, so bounded by the ends of both intervals, over" in " ".join(comparison["lines"])
    table = (runs / "beside.md").read_text()
    assert "| bounded by both |" in table and "| -100.0 [-100.0, " in table and "] percentage points |" in table
    shares = next(line for line in comparison["lines"] if line.startswith("Private fields read"))
    assert re.search(r"100\.0% .* to 0\.0% .*, by -100\.0 \[-100\.0, -\d+\.\d\] percentage points, ", shares)
    assert not any("percentage points" in line for line in comparison["lines"] if line.startswith("Gradient explained"))
    matched = next(one for one in comparison["differences"] if one["measure"] == "gradient-explained")
    assert matched["paired"] and matched["difference"]["groups"] == matched["first"]["n"] > 1, "by the same pages"
    shutil.copytree(runs / "plain", runs / "copy")
    for other, said in (("./plain", "are one folder"), ("copy", "are one run, which was copied")):
        code, out, err = call("compare", "plain", other)
        assert code == 1 and said in err and not out, "it was a comparison in which nothing differs"
    shutil.copytree(runs / "defended", runs / "copy" / "more")
    (runs / "copy" / "run.json").write_bytes(
        (runs / "plain" / "run.json").read_bytes().replace(b'"created": "', b'"created": "1')
    )
    within = "Not compared: copy/more, which lies in copy; name the two folders that are meant."
    code, out, _ = call("compare", "plain", "copy", "--json")
    assert code == 0 and within in json.loads(out)["lines"] and "No setting differs." in json.loads(out)["lines"]
    code, out, _ = call("compare", "copy", "copy/more", "--json")
    assert code == 0 and not any("Not compared" in line for line in json.loads(out)["lines"]), "it is the other one"
    shutil.copytree(runs / "defended", runs / "half")
    shutil.rmtree(next((runs / "half" / "units").iterdir()))
    doubt = "Of the second, LayoutLMv3 (tiny), start of federated training: The run is not finished: "
    code, out, _ = call("compare", "plain", "half", "--markdown", "half.md")
    assert code == 0 and doubt in out and doubt in (runs / "half.md").read_text() and "so the two differ" not in out
    assert "percentage points; no interval: 5 documents, providers or clients, and fewer than 6 decide" in out


def test_a_redacted_edition_holds_no_true_value(call: Call, runs: Path) -> None:
    (runs / "about.toml").write_text('organisation = "Example SE"\nfields = {total = "amounts"}\n')
    call("report", "plain", "--about", "about.toml")
    full = (runs / "plain" / "report.html").read_text("utf-8")
    assert call("report", "plain", "--about", "about.toml", "--redacted")[0] == 0
    values = private_values(Run(runs / "plain").units())
    assert len(values) > 15 and sum(value in full for value in values) > 15, "the full edition shows them"
    page, results = ((runs / "plain" / name).read_bytes() for name in ("report-redacted.html", "results-redacted.json"))
    for value in values:
        assert (
            value.encode() not in page and value.encode() not in results and json.dumps(value).encode() not in results
        )
    assert b"<img" not in page and b"base64" not in page and b"Example SE" in page and b"[redacted]" not in page
    assert "models" not in json.loads(results) and Results.model_validate_json(results).redacted
    assert (runs / "plain" / "report.html").read_text("utf-8") == full


def test_a_redacted_edition_is_renewed_when_the_run_went_on(call: Call, runs: Path) -> None:
    """It said what half of the run had given, and named the hash of results that were there no more."""
    half = runs / "goes-on"
    shutil.copytree(
        runs / "plain", half, ignore=shutil.ignore_patterns("report-redacted.html", "results-redacted.json")
    )
    units = sorted((half / "units").iterdir())
    shutil.move(units[-1], runs / "kept")
    assert call("report", "goes-on", "--redacted")[0] == 0
    page, verdict = half / "report-redacted.html", half / "results-redacted.json"
    assert "not finished" in page.read_text("utf-8")
    shutil.move(runs / "kept", units[-1])
    assert call("report", "goes-on")[0] == 0
    assert "not finished" not in page.read_text("utf-8")
    now = hashlib.sha256((half / "results.json").read_bytes()).hexdigest()
    assert now in page.read_text("utf-8")
    assert json.loads(verdict.read_text())["verdict"] == json.loads((half / "results.json").read_text())["verdict"]


def test_a_redacted_edition_does_not_say_in_which_folder_the_run_is(call: Call, runs: Path) -> None:
    """A notice names the run, by a place that is struck however the run was named."""
    shutil.copytree(runs / "plain", runs / "acme-mutual")
    file = runs / "acme-mutual" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "docleak": "0.0.9"}))
    assert call("report", "acme-mutual", "--redacted")[0] == 0
    page = (runs / "acme-mutual" / "report-redacted.html").read_text("utf-8")
    assert "[redacted]: computed by docleak 0.0.9" in page and "acme-mutual" not in page


def test_a_kind_of_data_for_a_key_that_no_private_field_has_is_told(call: Call, runs: Path) -> None:
    """Not refused: one description serves several reports."""
    (runs / "about.toml").write_text('[fields]\ntotl = "amounts"\ntax_number = "numbers"\n')
    code, out, err = call("report", "plain", "--about", "about.toml", "--json")
    assert code == 0 and json.loads(out)
    said = " ".join(err.split())
    assert (
        "Notice: about.toml: no private field reported here has the key 'totl' that [fields] names; the keys are"
        in said
    )
    assert "tax_number, total. Correct it, unless" in said and "'tax_number'" not in said
    (runs / "about.toml").write_text('fields = {total = "amounts"}\n')
    assert "[fields]" not in call("report", "plain", "--about", "about.toml")[2]


def test_a_redacted_edition_is_alone_and_prints_no_value(call: Call, runs: Path) -> None:
    code, out, _ = call("report", "plain", "--redacted")
    values = private_values(Run(runs / "plain").units())
    assert code == 0 and not [value for value in values if value in out] and "The redacted edition: " in out
    code, _, err = call("report", "plain", "--redacted", "--markdown", "t.md", "--units", "t.csv")
    assert code == 1 and "--markdown and --units would hold what --redacted leaves out" in err
    assert not (runs / "t.md").exists() and not (runs / "t.csv").exists()
    page = (runs / "plain" / "report-redacted.html").read_text("utf-8")
    assert str(runs) not in page and not any(str(unit["page"]) in page for unit in Run(runs / "plain").units())


@pytest.mark.parametrize(("option", "ending"), [("--markdown", ".md"), ("--units", ".csv"), ("--model-card", ".md")])
def test_a_place_that_takes_no_file_is_refused_before_anything_is_written(
    call: Call, runs: Path, option: str, ending: str
) -> None:
    page = runs / "plain" / "report.html"
    call("report", "plain")
    (runs / f"folder{ending}").mkdir(exist_ok=True)
    before = page.stat().st_mtime_ns
    for place in (f"folder{ending}", f"plain/run.json/t{ending}"):
        code, out, err = call("report", "plain", option, place)
        assert code == 1 and not out and f"cannot write {place}" in err and "Name" in err and "--out" not in err
    assert page.stat().st_mtime_ns == before, "no report was written again"
    code, _, _ = call("report", "plain", option, f"below/there/t{ending}")
    assert code == 0 and (runs / "below" / "there" / f"t{ending}").is_file()


TAKEN = {
    "report plain --markdown plain/run.json": "expected a file that ends in .md",
    "report plain --markdown plain/report.html": "expected a file that ends in .md",
    "report plain --model-card plain/results.json": "expected a file that ends in .md",
    "report plain --markdown same.md --model-card same.md": "--markdown and --model-card are the same file",
    "compare plain defended --markdown plain/units/x/unit.json": "expected a file that ends in .md",
    "check plain --policy p.toml --junit plain/run.json": "expected a file that ends in .xml",
    "check plain --policy p.toml --sarif plain/run.json": "it would take its place",
    "check plain --policy p.toml --sarif p.toml": "expected a file that ends in .sarif or .json",
    "check plain --policy p.json --sarif p.json": "--sarif and --policy are the same file",
}


@pytest.mark.parametrize("line", TAKEN)
def test_no_output_takes_the_place_of_what_is_there(call: Call, runs: Path, line: str) -> None:
    for name in ("p.toml", "p.json"):
        (runs / name).write_text('[[rule]]\nmeasure = "verdict"\nat_worst = "none"\n')
    before = {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()}
    code, out, err = call(*line.split())
    assert code == (2 if line.startswith("check") else 1) and TAKEN[line] in err and not out
    assert {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()} == before


def test_a_report_goes_into_no_other_run(call: Call, runs: Path) -> None:
    before = (runs / "defended" / "run.json").read_bytes()
    code, _, err = call("report", "plain", "--out", "defended")
    assert code == 1 and "defended holds another run" in err
    with pytest.raises(RunError, match="holds another run"):
        docleak.load_run(runs / "plain").report(runs / "defended")
    assert (runs / "defended" / "run.json").read_bytes() == before
    assert call("report", "plain", "--out", "plain")[0] == 0


def test_where_a_run_takes_no_report_its_folder_can_be_said(call: Call, runs: Path) -> None:
    page = runs / "plain" / "report.html"
    page.unlink(missing_ok=True)
    page.mkdir()
    code, _, err = call("report", "plain")
    assert code == 1 and "report.html" in err and "Name a folder for the report with --out." in err
    with pytest.raises(RunError, match="Name a folder for the report with 'out'"):
        docleak.load_run(runs / "plain").report()
    page.rmdir()
    page.parent.chmod(0o500)
    try:
        code, _, err = call("report", "plain")
        assert os.geteuid() == 0 or (code == 1 and "Permission denied" in err and "--out" in err)
    finally:
        page.parent.chmod(0o700)
    assert call("report", "plain", "--out", "elsewhere")[0] == 0


def test_the_first_page(call: Call, runs: Path) -> None:
    import hashlib

    call("report", "defended")
    page = (runs / "defended" / "report.html").read_text("utf-8")
    digest = hashlib.sha256((runs / "defended" / "results.json").read_bytes()).hexdigest()
    first = page[page.index('<section class="first"') : page.index("</section>")]
    for words in (digest, "no proof of confidentiality", "GDPR Art. 32(1)(d)", "to be filled in", "Signature",
                  "in place was measured, and nothing without it", "To measure it, run docleak defend"):  # fmt: skip
        assert words in first
    assert "28/2024" not in first, "the opinion is about models"
    alts = re.findall(r'<img [^>]*alt="([^"]*)"', page)
    assert alts and len(set(alts)) == len(alts)
    (runs / "about.toml").write_text('organisation = "Somebody SE"\n')
    for words in (("--about", "about.toml"), ()):
        assert call("report", "defended", *words)[0] == 0
        assert "Somebody SE" in (runs / "defended" / "report.html").read_text("utf-8"), "kept for the next edition"
    (runs / "defended" / "about.json").write_text("{")
    code, _, err = call("report", "defended")
    assert code == 1 and "Delete it, or pass --about" in err
    (runs / "defended" / "about.json").unlink()
    (runs / "wrong.toml").write_text("organization = 'x'\ndata = 'x'\n")
    code, _, err = call("report", "defended", "--about", "wrong.toml")
    assert code == 1 and "organization" in err and "data" in err


@pytest.mark.parametrize("marks", ["{begin}", "{end}", "{end} {begin}", "{begin} {begin} {end}", "{begin} {end} {end}"])
def test_a_model_card_with_marks_that_are_no_pair_stays_as_it_is(call: Call, runs: Path, marks: str) -> None:
    card = runs / "unpaired.md"
    text = "# x\n" + marks.format(begin=BEGIN, end=END) + "\n# Important\n"
    card.write_text(text)
    code, _, err = call("report", "plain", "--model-card", "unpaired.md")
    assert code == 1 and "expected one of each, in this order" in " ".join(err.split()) and card.read_text() == text


def test_a_model_card_is_renewed_and_keeps_what_it_said(call: Call, runs: Path) -> None:
    card = runs / "README.md"
    card.write_text("---\nlicense: mit\ntags:\n- ocr\n---\n# Mine\n\nText.\n")
    for name in ("plain", "defended"):
        assert call("report", name, "--model-card", "README.md")[0] == 0
    _, front, text = card.read_text().split("---\n", 2)
    data = yaml.safe_load(front)
    assert data["license"] == "mit" and data["tags"] == ["ocr", "docleak", "privacy-audit"]
    assert data["docleak"]["verdict"] == "none" and text.count("## Privacy audit") == 1 and "# Mine" in text
    card.write_bytes(b"# Mine \xff\n")
    code, _, err = call("report", "plain", "--model-card", "README.md")
    assert code == 1 and "is not UTF-8" in err and card.read_bytes() == b"# Mine \xff\n"
    card.write_text("---\n- [\n---\n")
    code, _, err = call("report", "plain", "--model-card", "README.md")
    assert code == 1 and "front matter" in err


def test_a_report_names_every_file_that_it_wrote(call: Call, runs: Path) -> None:
    """Of a model card, a table of units and Markdown not a word was said."""
    files = {"--markdown": "said.md", "--model-card": "card.md", "--units": "said.csv"}
    words = [word for pair in files.items() for word in pair]
    code, out, _ = call("report", "plain", *words)
    assert code == 0 and out.endswith("Markdown: said.md\nModel card: card.md\nUnits: said.csv\n")
    told = json.loads(call("report", "plain", *words, "--json")[1])
    assert (told["markdown"], told["model_card"], told["units"]) == ("said.md", "card.md", "said.csv")
    out = call("report", "plain", "--redacted", "--model-card", "card.md")[1]
    assert out.endswith("Model card: card.md\n")


def test_one_run_that_is_named_twice_is_one_and_a_copy_is_told_before_a_folder_is_asked_for(
    call: Call, runs: Path
) -> None:
    once = call("report", "plain", "--units", "units.csv")[:2]
    assert call("report", "plain", "plain/", "--units", "units.csv")[:2] == once and once[0] == 0
    code, _, err = call("report", *DEFENCES)
    assert code == 1 and "runs are to be joined; say into which folder (out)" in " ".join(err.split())
    shutil.copytree(runs / "plain", runs / "again", dirs_exist_ok=True)
    try:
        code, _, err = call("report", "plain", "again")
        assert code == 1 and "are one run, which" in " ".join(err.split()) and "(out)" not in err
    finally:
        shutil.rmtree(runs / "again")


def test_units_as_a_table(call: Call, runs: Path) -> None:
    call("report", "plain", "--units", "units.csv")
    frame: Any = pandas.read_csv(runs / "units.csv")
    assert len(frame) == 6 and "self_test.passed" in frame
    assert call("report", "plain", "--units", "units.txt")[0] == 1
    pytest.importorskip("pyarrow")
    call("report", "plain", "--units", "units.parquet")
    assert len(pandas.read_parquet(runs / "units.parquet")) == 6
