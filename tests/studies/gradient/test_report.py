from __future__ import annotations

import base64
import html
import io
import json
import re
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from docleak.attacks.registries import ATTACKS
from docleak.documents import load_pages
from docleak.errors import RunError
from docleak.metrics import PageScore, Reading
from docleak.runs.run import Run
from docleak.studies.gradient.reading import summary_lines
from docleak.studies.gradient.results import ReportData, prepare
from tests.studies.gradient.telling import summary_text, write_markdown, write_report

MakeRun = Callable[..., Run]
CHROMIUM = Path("/usr/bin/chromium")
VOID = {"meta", "img", "br", "link", "rect"}


class Outline(HTMLParser):
    """Checks that tags nest, and collects pictures, links and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def report(run: Run | list[Run], **more: Any) -> Outline:
    return Outline(write_report(run, **more).read_text("utf-8"))


@pytest.fixture(scope="module")
def run(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("run") / "out", pages=2)


@pytest.fixture(scope="module")
def page(run: Run) -> Outline:
    return report(run)


def scores(run: Run, model: str, attack: str) -> list[PageScore]:
    return [PageScore.from_json(u["score"]) for u in run.units() if (u["model"], u["attack"]) == (model, attack)]


def test_the_verdict_comes_first_and_is_recomputed(run: Run, page: Outline) -> None:
    best = [field for score in scores(run, "donut-start", "gi-dqa") for field in score.fields]
    exact = sum(field.exact is True for field in best)
    assert exact == len(best)
    sentence = (
        f"From one client's gradient at the start of training, the server read {exact} of {len(best)} private fields "
        "exactly, on 2 pages."
    )
    assert sentence in page.text and "Severe leak" in page.text
    assert page.text.index(sentence) < page.text.index("Threat model: who could do this")
    assert f"From one client's gradient later in training, the server read none of {len(best)}" in page.text
    assert "The picture shown is by gi-dqa, the attack that recovered most on average of the 2 tried" in page.text
    assert f"Route by route: picture {exact} of {len(best)}, answer 0 of {len(best)}." in page.text


def test_every_number_is_recomputed_from_the_units(run: Run, page: Outline) -> None:
    results = json.loads((run.path / "results.json").read_text("utf-8"))
    assert [model["model"] for model in results["models"]] == ["donut-start", "donut-trained"]
    for model in results["models"]:
        assert model["documents"] == 2
        for attack in model["attacks"]:
            page_scores = scores(run, model["model"], attack["attack"])
            fields = [field for score in page_scores for field in score.fields]
            means = {
                "binary": np.mean([bool(field.exact) for field in fields]),
                "fuzz_ratio": np.mean([field.fuzz for field in fields if field.fuzz is not None]),
                "psnr": np.mean([score.psnr for score in page_scores if score.psnr is not None]),
                "mse": np.mean([score.mse for score in page_scores if score.mse is not None]),
            }
            for column, mean in means.items():
                estimate = attack["estimates"][column]
                assert estimate["value"] == pytest.approx(mean)
                assert estimate["groups"] == 2 and estimate["low"] <= mean + 1e-9 <= estimate["high"] + 2e-9
            assert f"{attack['estimates']['psnr']['value']:,.1f}" in page.text
            assert f"{attack['estimates']['mse']['low']:,.0f} to {attack['estimates']['mse']['high']:,.0f}" in page.text
            assert f"{attack['explained']['value']:.3f}" in page.text
        assert model["ceiling"]["binary"]["value"] == 1 and model["floor"]["binary"]["value"] == 0


def test_reports_are_the_same_for_the_same_seed(run: Run) -> None:
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_it_contains_everything_asked_for(run: Run, page: Outline) -> None:
    for words in (
        "Honest-but-curious server", "the weights the client started from", "change the model or the protocol",
        "Self test, the true page must reproduce the observed gradient: 2 of 2 passed", "Step by step",
        "ceiling", "floor", "General advice", "docleak audit --documents synthetic --seed 0", "Honest limits",
        run.info["signature"], run.manifest()["environment"]["numpy"], "95 %", "n = 2 pages of 2 documents",
    ):  # fmt: skip
        assert words in page.text.replace("\xa0", " "), words
    pages = load_pages("synthetic", seed=0, count=2)
    assert all(field.value in page.text for p in pages for field in p.private_fields)
    for score in scores(run, "donut-trained", "gi-dqa"):
        assert all(field.read in page.text for field in score.fields if field.read)


def test_it_is_self_contained_and_every_picture_is_described(page: Outline) -> None:
    source = [
        value for _, attrs in page.tags for key, value in attrs.items() if key in ("src", "href", "srcset", "data")
    ]
    assert source and all(value and value.startswith(("data:image/png;base64,", "#")) for value in source)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    alts = [str(attrs.get("alt") or "") for attrs in pictures]
    assert len(pictures) > 50 and all(alts) and len(set(alts)) == len(alts), "each picture has a text of its own"
    assert all(attrs.get("aria-label") for tag, attrs in page.tags if attrs.get("role") == "img")
    captions = page.text
    assert (
        "random pixels, a floor: no gradient went into it" in captions and "made from the gradient, by dlg" in captions
    )
    assert "made from the gradient, by random" not in captions
    for attrs in pictures[:10]:
        PIL.Image.open(io.BytesIO(base64.b64decode(str(attrs["src"]).split(",")[1]))).verify()
    targets = {attrs["id"] for _, attrs in page.tags if attrs.get("id")}
    assert all(str(attrs["href"])[1:] in targets for tag, attrs in page.tags if tag == "a")


def test_the_style_loads_nothing(run: Run) -> None:
    text = write_report(run).read_text("utf-8")
    assert not re.search(r"https?://|@import|url\(|//[a-z]+\.", re.sub(r"data:image/png;base64,[^\"]*", "", text))


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}\x1b[31m\x00\u202etxt\u2066"


def test_hostile_text_is_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",))
    (record,) = run.units()
    for key in ("score", "floor", "ceiling"):
        record[key]["fields"][0].update(key=HOSTILE, value=HOSTILE, read=HOSTILE)
    record["fields"][0].update(key=HOSTILE, value=HOSTILE)
    record.update(page=HOSTILE, question=HOSTILE, provider=HOSTILE, model_title=HOSTILE, attack_summary=HOSTILE,
                  knowledge=[HOSTILE])  # fmt: skip
    run.write_unit(record["unit"], record, {})
    run.write_info("threat_model", {"title": HOSTILE, "adversary": HOSTILE, "sees": [HOSTILE]})
    run.write_info("command", HOSTILE)
    page = report(run)
    assert not [tag for tag, attrs in page.tags if tag == "script" or "onerror" in attrs]
    assert page.text.count("<script>alert(1)</script>") > 8 and "{{ 7*7 }}" in page.text
    raw = (run.path / "report.html").read_text("utf-8") + summary_text(run)
    assert (
        not set(raw) & set("\x1b\x00\u202e\u2066") and "\\u202etxt\\u2066" in page.text and "\\u001b[31m" in page.text
    )
    (policy,) = [attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy and policy.startswith("default-src 'none'; img-src data:;")


def test_one_page_is_called_an_example(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",))
    page = report(run)
    assert "an example of what can happen, not a rate" in page.text and "one document gives no interval" in page.text
    assert "of the 1 tried" not in page.text


@pytest.mark.parametrize("model", ["donut-start", "donut-trained"])
def test_batches_failed_self_tests_and_known_words_are_told(make_run: MakeRun, tmp_path: Path, model: str) -> None:
    run = make_run(
        tmp_path / "out",
        models=(model,),
        attacks=("gi-dqa",),
        change={
            "view": {"batch_size": 4, "train_mode": True, "tensors": 2, "numbers": 1234567, "words_known": True},
            "self_test": {"distance": 0.4, "passed": False, "note": "dropout was on"},
            "finding": {"explained": None, "evaluations": None, "budget": 9, "seconds": None, "matching": None},
        },
    )
    text = report(run).text
    assert "From one client's gradient over a batch of 4 pages" in text
    assert "The self test failed" in text and "dropout was on" in text and "1,234,567 numbers" in text
    assert "the attacks on the picture were given them" in text


def test_without_an_ocr_engine_nothing_is_claimed(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",))
    (record,) = run.units()
    for key in ("score", "floor", "ceiling"):
        record[key]["engine"] = None
        for field in record[key]["fields"]:
            field.update(read=None, exact=None, fuzz=None, confidence=None)
    run.write_unit(record["unit"], record, {})
    text = report(run).text
    assert "whether their text can be read was not measured" in text and "Not measured" in text
    assert "Install one" in text and "Severe" not in text and "No field read" not in text


class BlindEngine:
    """Reads nothing anywhere, as an engine does on print that is too small."""

    name, version = "blind", "1"

    def read(self, crops: list[Any]) -> list[Reading]:
        return [Reading("", 0.0) for _ in crops]


@pytest.mark.parametrize("size", [[192, 256], None])
def test_where_the_true_page_is_illegible_nothing_is_concluded(
    make_run: MakeRun, tmp_path: Path, size: list[int] | None
) -> None:
    """ "No field read" would sound like safety, though a perfect copy could not be read either."""
    change = {"size": size} if size else {}
    run = make_run(
        tmp_path / "out", pages=2, models=("donut-start",), attacks=("gi-dqa",), engine=BlindEngine(), change=change
    )
    psnr = np.mean([score.psnr for score in scores(run, "donut-start", "gi-dqa") if score.psnr is not None])
    outline = report(run)
    markdown = write_markdown([run], tmp_path / "table.md").read_text()
    summary = summary_text(run)
    for text in (outline.text, summary, markdown):
        assert "No field read" not in text and "no field read" not in text
        assert "could not tell" in text.lower() and "own confidence" not in text.lower()
        assert f"{psnr:.1f}" in text and "0.998" in text, "the likeness stands in the table"
        assert "Audit at a larger size" in text
        assert ("reading: at 192 x 256 pixels the OCR engine reads none" in text) is bool(size)
    assert "This is no finding of safety" in outline.text and "--image-size WIDTHxHEIGHT" in outline.text
    assert "not read, nor on the true page" in outline.text and "0 exact" not in outline.text
    assert not [attrs for _, attrs in outline.tags if str(attrs.get("class")).endswith(" none")]


@pytest.mark.parametrize(("readable", "hardly"), [(6, False), (2, True)])
def test_a_low_ceiling_is_told(make_run: MakeRun, tmp_path: Path, readable: int, hardly: bool) -> None:
    run = make_run(tmp_path / "out", models=("donut-trained",), attacks=("gi-dqa",))
    (record,) = run.units()
    for field in record["ceiling"]["fields"][readable:]:
        field.update(exact=False, fuzz=0.0, read="")
    run.write_unit(record["unit"], record, {})
    text = report(run).text
    assert ("No field read" in text) is not hardly and ("Could not tell" in text) is hardly
    assert ("hardly legible to the engine themselves" in text) is hardly


def test_pages_of_the_same_name_are_counted_by_what_they_hold(make_run: MakeRun, tmp_path: Path) -> None:
    """Synthetic pages of two sizes share their names only; one page seen by two models is one page."""
    run = make_run(tmp_path / "out", attacks=("gi-dqa", "dlg"))
    fields = len(run.units()[0]["fields"])
    asked = "from what a client would send to the server of a joint training, with 2 models."
    assert f"2 attacks tried to rebuild 1 private page ({fields} private fields) {asked}" in report(run).text
    for record in run.units():
        if record["model"] == "donut-trained":
            for key in ("score", "floor", "ceiling"):
                record[key]["fields"][0]["value"] += "0"
                del record[key]["fields"][-1]
            record["fields"][0]["value"] += "0"
            for read in (record["recovered"]["fields_read"], record["recovered"]["fields_by"]["answer"]):
                del read[-1]
            run.write_unit(record["unit"], record, {})
    text = report(run).text
    assert f"2 attacks tried to rebuild 2 private pages ({2 * fields - 1} private fields) {asked}" in text
    assert "different pages, even where the pages have the same name" in text


@pytest.mark.parametrize("known", [True, False])
def test_a_field_whose_value_the_attacker_was_given_is_marked(make_run: MakeRun, tmp_path: Path, known: bool) -> None:
    view = {"batch_size": 1, "train_mode": False, "tensors": 2, "numbers": 9, "answer_known": known}
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",), change={"view": view})
    (record,) = run.units()
    assert record["answer"] in [field["value"] for field in record["fields"]]
    text = report(run).text
    fields = len(record["fields"])
    assert ("1 field holds the answer to the client's question, which the attacker was given" in text) is known
    assert f"the server read {fields - known} of {fields} private fields exactly" in text
    assert (f"picture {fields - 1} of {fields} (1 more was given beforehand)" in text) is known
    assert (", the answer to the client\u2019s question, which the attacker was given" in text) is known


@pytest.mark.parametrize(
    ("start", "loss", "said"),
    [
        ("light", "double", "The search began as light as paper, with its loss in double precision."),
        ("uniform", "float", "The search began from uniform noise, with its loss in single precision."),
        ("given", "float", "The search began where a step before it ended, with its loss in single precision."),
        ("", "", ""),
        (None, None, ""),
    ],
)
def test_what_the_attack_chose_by_the_gradients_size_is_told(
    make_run: MakeRun, tmp_path: Path, start: str | None, loss: str | None, said: str
) -> None:
    chosen = {} if start is None else {"start": start, "loss": loss}
    finding = {"matching": 0.1, "explained": 0.9, "evaluations": 200, "budget": 200, "seconds": 1.0, "history": []}
    change = {"finding": {**finding, **chosen}}
    text = report(make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",), change=change)).text
    assert said in text and text.count("The search began") == bool(said)


def test_made_up_pages_are_not_called_confidential(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", models=("donut-start",), attacks=("gi-dqa",))
    assert "Confidential." in report(run).text
    manifest = run.manifest()
    manifest["config"]["documents"] = "synthetic"
    (run.path / "run.json").write_text(json.dumps(manifest))
    assert "Made-up pages." in report(run).text and "Confidential." not in report(run).text


def test_repeats_and_missing_pages_are_told(make_run: MakeRun, tmp_path: Path) -> None:
    repeat = {"key": "total", "value": "19.00", "boxes": [[1, 1, 9, 9]]}
    run = make_run(tmp_path / "out", pages=2, models=("donut-start",), change={"repeats": [repeat, repeat]})
    run.write_info("shortage", "Asked for 10 pages; DIR has 2 with private fields, so 2 are audited.")
    outline = report(run)
    assert "Private values are printed again at 4 other places on 2 pages" in outline.text
    assert "printed again at 2 other places, blanked too" in outline.text
    assert "Asked for 10 pages" in outline.text and "Asked for 10 pages" in summary_text(run)
    assert "All attacks on a model had the same pages" in outline.text, "fewer pages do not make a comparison unfair"
    assert json.loads((run.path / "results.json").read_text())["shortage"][0].startswith("Asked for 10")
    assert "Asked for 10 pages" in write_markdown([run], tmp_path / "t.md").read_text()


def test_an_unfinished_run_is_reported_and_says_so(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path / "out", pages=2, models=("donut-start",), attacks=("gi-dqa", "dlg"))
    last = [unit for unit in run.units() if unit["attack"] == "dlg"][-1]
    (run.folder(last["unit"]) / "unit.json").unlink()
    assert "Unfinished: dlg has done 1 of 2 pages" in report(run).text
    assert "Unfinished" in summary_text(run)


def test_nothing_to_report_and_damaged_records_are_refused(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "out", {}, kind="gradient")
    with pytest.raises(RunError, match="no finished unit"):
        write_report(run)
    run.write_unit("a", {"model": "m"}, {})
    with pytest.raises(RunError, match=r"holds records that this docleak cannot read \(KeyError"):
        write_report(run)


def test_comparable_runs_are_joined(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / model, models=(model,), attacks=("gi-dqa",)) for model in ("donut-trained", "donut-start")
    ]
    outline = report(runs, out=tmp_path / "joined")
    assert "at the start of training" in outline.text and "later in training" in outline.text
    assert len(json.loads((tmp_path / "joined/results.json").read_text())["models"]) == 2
    shards = [make_run(tmp_path / f"shard{i}", models=("donut-start",), page_at=i, attacks=("gi-dqa",)) for i in (0, 1)]
    assert "on 2 pages" in report(shards).text


def test_runs_that_differ_in_pages_or_budgets_are_not_joined(make_run: MakeRun, tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", models=("donut-start",), attacks=("gi-dqa",))
    budget = make_run(tmp_path / "b", models=("donut-start",), attacks=("dlg",), budget=50)
    pages = make_run(tmp_path / "c", models=("donut-start",), attacks=("dlg",), page_at=1)
    again = make_run(tmp_path / "d", models=("donut-start",), attacks=("gi-dqa",))
    twice = "more than one run|one run, which was copied"
    for other, fault in ((budget, "budgets differ"), (pages, "pages differ"), (again, twice)):
        with pytest.raises(RunError, match=fault):
            write_report([first, other])
    assert write_report([first, first]).is_file(), "named twice it counts once"


def test_the_summary_is_short_and_agrees(run: Run) -> None:
    text = summary_text(run)
    assert len(text.splitlines()) <= 15 and "confidence" not in text
    assert "Severe leak".lower() in text.lower() and "exact 0/" in text and "gradient explained" in text
    assert not re.search(r"<\w", text)


def test_an_attack_of_ones_own_is_in_the_summary(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepare([run], np.random.default_rng(0))
    several = ReportData(data.runs, data.models * 2)
    assert "picture by random" not in "".join(summary_lines(several)), "of several models the best attack alone"
    monkeypatch.delitem(ATTACKS.entries, "random")
    assert "picture by random" in "".join(summary_lines(several))


PROBE = """<iframe id="f" style="width:{width}px;height:3000px;border:0" srcdoc="{page}"></iframe><script>
onload = () => {{ const d = document.getElementById("f").contentDocument, wide = [];
d.querySelectorAll("details").forEach(x => x.open = true);
const right = x => x.getBoundingClientRect().right;
d.querySelectorAll("body *").forEach(x => {{ if (right(x) > {width} + 1) wide.push(x.className); }});
const broken = [...d.images].filter(x => !x.naturalWidth).length;
document.title = JSON.stringify([d.documentElement.scrollWidth, wide.length, broken, d.images.length]); }};
</script>"""


def browse(page: str, width: int, folder: Path) -> tuple[list[int], list[str]]:
    """[width it needs, elements that stick out, broken pictures, pictures], and what the console says."""
    if not CHROMIUM.exists():
        pytest.skip(f"headless Chromium is not at {CHROMIUM}, so nobody looked at the page")
    probe = folder / "probe.html"
    probe.write_text("<!doctype html><title>no</title>" + PROBE.format(width=width, page=html.escape(page)), "utf-8")
    flags = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=5000"),
        *("--dump-dom", "--enable-logging=stderr", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}"),
    ]
    done = subprocess.run([str(CHROMIUM), *flags, str(probe)], capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None and title[1] != "no", done.stderr
    return json.loads(title[1]), re.findall(r".*CONSOLE.*", done.stderr)


@pytest.mark.parametrize("width", [390, 1200])
def test_in_a_browser_it_fits_and_nothing_fails(run: Run, page: Outline, tmp_path: Path, width: int) -> None:
    (needed, wide, broken, pictures), console = browse((run.path / "report.html").read_text("utf-8"), width, tmp_path)
    assert (needed, wide, broken, console) == (width, 0, 0, []) and pictures > 50


def test_the_browser_check_sees_what_is_wrong(tmp_path: Path) -> None:
    bad = '<!doctype html><p style="width:500px">x</p><img src="data:,"><script>console.error("planted")</script>'
    (needed, wide, broken, _), console = browse(bad, 390, tmp_path)
    assert needed > 390 and wide == 1 and broken == 1 and len(console) == 1


TEXT = {
    "exact": True, "believed_exact": True, "tokens": 7, "tokens_right": 7, "wrong_parts": [], "conditions": [],
    "seconds": 0.25, "question": "Who <pays>?", "answer": "Ada", "words": [], "fields_read": [False] * 6,
}  # fmt: skip


def test_words_read_out_of_the_gradient_are_laid_out_on_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    blank = make_run(tmp_path / "blank", models=("donut-trained",), attacks=("random",))
    fields = blank.units()[0]["fields"]
    box = fields[0]["boxes"][0]
    words = [{"text": "Ada&Co", "box": box}, {"text": "Invoice", "box": [0, 0, 9, 5]}]
    recovered = {**TEXT, "words": words, "fields_read": [True] * len(fields)}
    change = {"recovered": recovered, "size": [64, 48]}
    run = make_run(tmp_path / "out", models=("donut-trained",), attacks=("random",), change=change)
    page = report(run)
    shown = [attrs for tag, attrs in page.tags if tag == "text"]
    assert [attrs.get("class") for attrs in shown] == ["secret", None]
    assert float(str(shown[0]["x"])) == box[0] and "Ada&Co" in page.text and "Who <pays>?" in page.text
    assert f"the server read {len(fields)} of {len(fields)} private fields exactly." in page.text
    assert f"Route by route: words {len(fields)} of {len(fields)}." in page.text, "random pixels are no route"
    assert "Severe leak" in page.text and "random pixels, a floor" in page.text
    assert "made from the gradient" not in page.text


def test_an_answer_that_is_no_field_is_no_finding_and_a_floor_is_no_attack(make_run: MakeRun, tmp_path: Path) -> None:
    change = {"recovered": TEXT, "size": [64, 48]}
    text = report(make_run(tmp_path / "out", models=("donut-trained",), attacks=("random",), change=change)).text
    assert "All 7 tokens are right" in text and "reads question and answer exactly" in text
    assert "answer 0 of 6" in text and "No attack on the picture was made" in text and "Could not tell" in text


def test_an_inexact_text_is_not_praised(make_run: MakeRun, tmp_path: Path) -> None:
    recovered = {**TEXT, "exact": False, "believed_exact": False, "tokens_right": 3}
    change = {"recovered": recovered, "size": [64, 48]}
    text = report(make_run(tmp_path / "out", models=("donut-trained",), attacks=("random",), change=change)).text
    assert "3 of 7 tokens are right" in text and "not to trust all of it" in text
    assert "reads 3 of 7 tokens" in text and "read mostly wrong tokens" in text


def test_what_a_batch_gives_away_is_counted(make_run: MakeRun, tmp_path: Path) -> None:
    counts = {"tokens": (9, 9, 9), "coordinates": (20, 20, 21), "places": (4, 5, 11), "boxes": (3, 3, 22)}
    batch = {what: dict(zip(("right", "found", "true"), numbers, strict=True)) for what, numbers in counts.items()}
    change = {"recovered": {"batch": batch}, "size": [64, 48]}
    text = report(make_run(tmp_path / "out", models=("donut-trained",), attacks=("random",), change=change)).text
    assert "tells 9 of the 9 different tokens" in text and "20 of the 21 coordinates" in text
    assert "4 of 11 positions" in text and "3 of 22 tokens" in text and "1 statements were wrong" in text
