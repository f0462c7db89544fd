"""The sample report as browsers show it: printed, and by axe-core in light and dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[2] / "docs" / "sample" / "report.html"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000")
ASKED = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
ASK = """<script>addEventListener("load", () => axe.run(document, {runOnly: %s}).then(found => {
  const told = document.createElement("pre"); told.id = "axe";
  told.textContent = JSON.stringify(found.violations.map(one => [one.id, one.nodes[0].html]));
  document.body.replaceChildren(told); }))</script></body>"""

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium here")


def test_the_default_audit_is_twelve_pages_of_a4(tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    subprocess.run([CHROMIUM, *FLAGS, "--no-pdf-header-footer", f"--print-to-pdf={file}", SAMPLE.as_uri()],
                   check=True, capture_output=True, timeout=120)  # fmt: skip
    text = file.read_bytes()
    sides = {(round(float(w)), round(float(h))) for w, h in re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", text)}
    assert sides == {(595, 842)}
    assert 8 < len(re.findall(rb"/Type\s*/Page\b(?!s)", text)) <= 12


@pytest.mark.parametrize(("scheme", "spoilt"), [(0, False), (1, False), (1, True)], ids=["dark", "light", "spoilt"])
def test_axe_finds_nothing(scheme: int, spoilt: bool, tmp_path: Path) -> None:
    page = SAMPLE.read_text("utf-8")
    faults = violations(page.replace("--quiet: #566270", "--quiet: #b0b6bd") if spoilt else page, tmp_path, scheme)
    assert [one[0] for one in faults] == (["color-contrast"] if spoilt else []), faults


def violations(page: str, folder: Path, scheme: int) -> list[list[str]]:
    """What axe-core finds in a page shown out of ``folder`` in the dark (0) or light (1) scheme: [rule, element]."""
    place = find_spec("axe_core_python")
    if place is None or place.origin is None:
        pytest.skip("axe-core-python is not installed")
    axe = (Path(place.origin).parent / "axe.min.js").read_text("utf-8").replace("</script", "<\\/script")
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    file = folder / "page.html"
    file.write_text(page.replace("</body>", f"<script>{axe}</script>{ASK % json.dumps(ASKED)}"), "utf-8")
    shown = subprocess.run(
        [CHROMIUM, *FLAGS, f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", file.as_uri()],
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    told = re.search(r'<pre id="axe">(.*?)</pre>', shown, re.DOTALL)
    assert told is not None
    return [list(map(str, one)) for one in json.loads(html.unescape(told[1]))]
