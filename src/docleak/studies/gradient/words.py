"""The sentences of a report that are the same for every model: columns, notices, advice, limits, formats.

Every sentence is computed from the numbers, or is general and says so.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from docleak.metrics import Estimate
from docleak.report.page import Section
from docleak.report.templating import render
from docleak.studies.gradient.config import CLOSED_FORM
from docleak.studies.gradient.exposed import defence_of, tested
from docleak.studies.gradient.findings import blind
from docleak.studies.gradient.results import ReportData
from docleak.studies.identity import model_key

#: Names of models and pages that Python gave as objects (``studies.given``), in a run that was read again.
GIVEN_MODEL, GIVEN_PAGES = r".+-[0-9a-f]{10}", r"\d+ pages? given \([0-9a-f]+\)"
#: PSNR in dB from which private pixels are usually legible, where the original is.
ALIKE = 20
#: Short heading -> what a column of the table means.
METRICS = (
    (
        "Picture: read exactly",
        "Binary: share of private fields whose text an OCR engine reads back from the picture with no character wrong. "
        "What left by words, question or answer is not in this table; the verdict counts every route.",
    ),
    ("Fuzz ratio", "How much of a field's text was read back, 1 = all of it, 0 = none (edit similarity)."),
    (
        "PSNR",
        f"Likeness of the private pixels in decibels; higher is more alike. {ALIKE} dB and more is usually legible, if "
        "the true page is.",
    ),
    ("FFT2D", "Distance of the spectra of the private pixels; lower is more alike, 0 = identical."),
    ("MSE", "Mean squared error of the private pixels on the scale 0-255; lower is more alike."),
    (
        "Gradient explained",
        "How well the gradient that was sent is matched: of what the template that the attacker had (the blank one, or "
        "the one published under a defence) leaves unexplained, the share that the reconstruction explains; below 0 it "
        "explains less than that template. The attacker can compute it without the page. It is no probability, and "
        "does not say whether anything was read: a gradient can be matched by a picture that nobody can read.",
    ),
    ("Evaluations", "Gradient evaluations spent: the attacker's cost, the same budget for every attack."),
)

LARGER = (
    "Audit at a size at which the true page can be read: --image-size WIDTHxHEIGHT with Donut, otherwise a model with "
    "a larger input. And look at the pictures."
)

ADVICE = (
    "Do not let anyone see one client's gradient of the first rounds. Use secure aggregation, so that the server only "
    "learns the sum over many clients, or differential privacy per provider, with noise added before the update "
    "leaves the client.",
    "Make updates coarser: larger batches and several local steps per update mix more pages into each number. That "
    "makes it harder, though not impossible, to take one page out.",
    "Do not publish the blank templates of the forms you train on: they give the attacker all pixels that are public.",
    "Keep logs, crash dumps and debugging copies of single updates as confidential as the pages themselves.",
)

LIMITS = (
    "A picture that stayed blurred is no proof of safety: it shows that these attacks, with this budget, did not "
    "succeed. A later attack may.",
    "The attack named in a verdict is the one that recovered most here. It was picked after seeing the results, so its "
    "number leans to the high side when several attacks are close.",
    "Each attack was given the knowledge listed under the threat model, no less. An attacker with less would do worse; "
    "one who knows more, for example other pages of the same customer, could do better.",
    "Text is what one OCR engine reads. A person can read more than it does from the same picture: look at them.",
    "Intervals describe other pages like these. They do not carry over to other kinds of documents or other models.",
)


def notices(data: ReportData) -> list[str]:
    """What makes the comparison unequal or untrustworthy; printed above everything else."""
    warnings = []
    for model in data.models:
        most = len(model.best.units)
        for attack in model.attacks:
            if len(attack.units) < most:
                warnings.append(
                    f"Unfinished: {attack.attack} has done {len(attack.units)} of {most} pages on {model.title}. "
                    "Run the same command again to complete it."
                )
        if model.self_test_failed:
            warnings.append(
                f"The self test failed on {model.title} for {', '.join(model.self_test_failed[:5])}: the true page "
                f"does not reproduce {tested(model.units[0].record)}, so a weak result there says nothing about safety."
            )
        if len({attack.budget.value for attack in model.attacks}) > 1:
            warnings.append(f"The attacks on {model.title} had different budgets; the table cannot rank them fairly.")
    return warnings


def share(estimate: Estimate) -> str:
    """A fraction as a whole percentage."""
    return "not measured" if estimate.value is None else f"{100 * estimate.value:.0f}\N{NO-BREAK SPACE}%"


def between(estimate: Estimate) -> str:
    """The interval in words, or why there is none."""
    if estimate.low is None or estimate.high is None:
        return "no interval from one document"
    return f"95 % interval {100 * estimate.low:.0f} to {100 * estimate.high:.0f} %"


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def advice_section(data: ReportData) -> Section:
    """That no defence was measured or only one, and what would measure them."""
    body = render("advice.html.j2", advice=ADVICE, command=defend_command(data), defended=only_defended(data))
    return Section("advice", "What to do", "What to do about it", body)


def only_defended(data: ReportData) -> tuple[str, ...]:
    """That only the training under its defence was measured; nothing where it has none."""
    defence = defence_of(data.runs[0])
    return (
        f"Only the training with the defence {defence} in place was measured, and nothing without it, so nothing here "
        "says what this defence changes.",
    ) if defence else ()  # fmt: skip


def defend_command(data: ReportData) -> str:
    """The command that measures the run's defence, or without one those that there are, on the audited pages and the
    model that told most; PAGES and MODEL stand for what Python gave as objects, which no command line can name."""
    config = data.runs[0].config
    most = max(data.models, key=lambda model: model.findings.judgement.read)
    size = config.get("image_size")
    keys = {model_key(str(name), tuple(size) if size else None): name for name in config["models"]}
    source, documents = str(keys.get(most.model, config["models"][0])), str(config["documents"])
    if re.fullmatch(GIVEN_MODEL, source) and not Path(source).exists():
        source = "MODEL"
    if re.fullmatch(GIVEN_PAGES, documents):
        documents = "PAGES"
    return shlex.join([
        "docleak", "defend", *filter(None, [defence_of(data.runs[0])]), "--model", source,
        *(("--attack", CLOSED_FORM) if blind(most.units[0].record) else ()),
        "--documents", documents, "--seed", str(config["seed"]), "--pages", "10",
        "--utility-steps", "400",
    ])  # fmt: skip
