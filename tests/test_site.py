"""The site builds without a warning or a dead link, and the README's links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import docleak
from scripts import release_check
from tests.report.test_seen import CHROMIUM, violations

ROOT = Path(__file__).parents[1]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strictly: a dead link or anchor is a warning, and a warning an error. The extra ``dev`` installs mkdocs."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=os.environ | quiet, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    page = (tmp_path / "index.html").read_text()
    assert all(f"start/{who}.html" in page for who in ("engineer", "officer", "researcher", "flower"))
    assert "--recover-text" in (tmp_path / "reference" / "commands.html").read_text()
    assert "docleak.audit" in (tmp_path / "python.html").read_text()
    assert "Measure what leaks" in (tmp_path / "reference" / "api.html").read_text()
    notebook = (tmp_path / "notebooks" / "audit.html").read_text()
    assert notebook.count('src="data:image/png') == 2 and 'href="attack.html"' in notebook
    if CHROMIUM:
        assert violations(notebook, tmp_path / "notebooks", 1) == []
    assert (tmp_path / "sample" / "report.html").is_file() and "results/gi-dqa/table1.html" in page


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_the_front_pages_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_all_files_name_one_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert release_check.version() == docleak.__version__
    for file in ("src/docleak/__init__.py", "CHANGELOG.md", "CITATION.cff", "README.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    (tmp_path / "CITATION.cff").write_text("version: 9.9.9\n")
    monkeypatch.setattr(release_check, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=r"CITATION.cff 9\.9\.9"):
        release_check.version()
