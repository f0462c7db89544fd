"""Defences side by side: what each leaves of the leak, and what it costs (``docleak defend``)."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import PIL.Image

from docleak.defenses import TemplateDefense, parse_defense
from docleak.documents import blank_template
from docleak.evidence.audit import AuditConfig, model_of
from docleak.evidence.case import build_case, pages_for
from docleak.evidence.run import write_atomically, write_png
from docleak.evidence.utility import Utility, undefended, utility_under
from docleak.metrics.image import ssim
from docleak.models import image_of
from docleak.recipes.recipe import Recipe, Row
from docleak.recipes.runner import Experiment
from docleak.recipes.table import Line, cells, lines_of

DEFAULT = ("noise:sigma=1e-4", "clip:norm=0.1", "top-k:share=0.01", "freeze", "safe-template:epsilon=8/255")


@dataclass(frozen=True)
class Choice:
    """One defence with what was measured of it. ``dominated`` names a choice that leaks less and costs no more."""

    spec: str
    summary: str
    line: Line
    utility: Utility | None
    template_ssim: float | None = None
    dominated: str = ""

    @property
    def leakage(self) -> float | None:
        """Mean fuzz ratio of the private fields: finer than the share of exact ones where pages are few."""
        return None if self.line.result is None else self.line.result.estimates["fuzz_ratio"].value


def recipe_of(specs: Sequence[str], config: AuditConfig) -> Recipe:
    """A row per defence, none first; everything else as in ``config``."""
    chosen = ["none", *[spec for spec in specs if spec != "none"]]
    rows = tuple(Row(parse_defense(spec).summary, ("model",), {"defense": spec}) for spec in dict.fromkeys(chosen))
    fixed = {"documents": config.documents, "pages": config.pages, "budget": config.budget, "seed": config.seed,
             "ocr": config.ocr, "attack": config.attacks[0], "image_size": config.image_size}  # fmt: skip
    scales = {"tiny": {"models": {"model": config.models[0]}}}
    return Recipe("defences", "Defences", "docleak", "what each defence leaves of the leak", rows, fixed, scales)


def measure_utilities(
    planned: Sequence[Experiment], out: Path, *, steps: int, on_done: Callable[[str], None]
) -> dict[str, Utility]:
    """Utility per defence spec, each kept in ``out``/utility as soon as it is measured; none if ``steps`` is 0."""
    found: dict[str, Utility] = {}
    for number, e in enumerate(planned if steps else ()):
        spec, source = e.config.exposure.defense, e.config.models[0]
        file = out / "utility" / f"{number:02d}.json"
        wanted = {"spec": spec, "source": source, "steps": steps, "seed": e.config.seed}
        saved = json.loads(file.read_text()) if file.is_file() else {}
        if saved.get("asked") == wanted:
            found[spec] = Utility(**saved["utility"])
            continue
        if isinstance(parse_defense(spec), TemplateDefense):
            found[spec] = undefended(found["none"], spec, source)
        else:
            found[spec] = utility_under(spec, source, steps=steps, seed=e.config.seed)
        write_atomically(file, json.dumps({"asked": wanted, "utility": asdict(found[spec])}).encode())
        on_done(spec)
    return found


def write_templates(e: Experiment, out: Path, device: str) -> float:
    """The published templates of a template defence, each beside the clean one; returns their mean SSIM."""
    model = model_of(e.config, e.config.models[0], device)
    likeness = []
    pages = pages_for(model, e.config.documents, count=e.config.pages, seed=e.config.seed)
    for number, page in enumerate(pages):
        case = build_case(model, [page], e.config.exposure, seed=e.config.seed + number)
        published, clean = image_of(case.knowledge.template[0]), blank_template(page)
        name = f"{e.config.exposure.defense.replace('/', '-').replace(':', '-')}-{number:03d}"
        write_png(out / "templates" / f"{name}.png", published)
        write_png(out / "templates" / f"{name}-beside-clean.png", np.hstack([clean, published]))
        likeness.append(ssim(clean, published, np.ones(clean.shape[:2], dtype=bool)))
    return float(np.mean([value for value in likeness if value is not None]))


def choices_of(
    planned: Sequence[Experiment], utilities: Mapping[str, Utility], ssims: Mapping[str, float]
) -> list[Choice]:
    """Every defence with its numbers, dominated ones marked."""
    found = [
        Choice(spec, parse_defense(spec).summary, line, utilities.get(spec), ssims.get(spec))
        for e, line in zip(planned, lines_of(planned, seed=0), strict=True)
        for spec in [e.config.exposure.defense]
    ]
    return [Choice(**{**vars(c), "dominated": _dominating(c, found)}) for c in found]


def _dominating(choice: Choice, others: Sequence[Choice]) -> str:
    if choice.leakage is None or choice.utility is None:
        return ""
    for other in others:
        if other is choice or other.leakage is None or other.utility is None:
            continue
        less, no_worse = other.leakage < choice.leakage - 1e-9, other.utility.anls >= choice.utility.anls - 1e-9
        if less and no_worse:
            return other.summary
    return ""


def chart(choices: Sequence[Choice]) -> str:
    """Leakage against utility as SVG; dominated choices grey. Empty where no utility was measured."""
    shown = [c for c in choices if c.leakage is not None and c.utility is not None]
    if not shown:
        return ""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "docleak"}):
        figure = Figure(figsize=(7.5, 4.6), layout="constrained")
        axes = figure.add_subplot()
        for number, c in enumerate(shown):
            assert c.utility is not None and c.leakage is not None
            colour = "#9aa3af" if c.dominated else "#0b6e4f"
            axes.scatter(c.utility.anls, c.leakage, s=60, color=colour, zorder=3)
            axes.annotate(f"{number + 1}", (c.utility.anls, c.leakage), xytext=(7, 5), textcoords="offset points",
                          color=colour, fontsize=11)  # fmt: skip
        axes.set_xlabel("utility: ANLS on unseen pages after training under the defence (right is better)")
        axes.set_ylabel("leakage: fuzz ratio of private fields (low is better)")
        axes.set_ylim(-0.04, 1.08)
        axes.margins(x=0.12)
        axes.grid(alpha=0.3)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def write_comparison(choices: Sequence[Choice], out: Path, facts: Mapping[str, str]) -> Path:
    """Write defences.html, defences.md and defences.json; returns the page."""
    rows = [_row(number + 1, c) for number, c in enumerate(choices)]
    write_atomically(out / "defences.json", (json.dumps({**facts, "rows": rows}, indent=1) + "\n").encode())
    write_atomically(out / "defences.md", _markdown(rows, facts).encode())
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("docleak.recipes", "templates"), autoescape=True, trim_blocks=True
    )
    beside = sorted((out / "templates").glob("*-000-beside-clean.png"))
    html = environment.get_template("defences.html.j2").render(
        rows=rows, chart=chart(choices), facts=facts, templates=[(file.stem, _uri(file)) for file in beside]
    )
    write_atomically(out / "defences.html", html.encode())
    return out / "defences.html"


def _row(number: int, c: Choice) -> dict[str, Any]:
    values = cells(c.line)
    u = c.utility
    return {
        "number": number,
        "defence": c.summary,
        "spec": c.spec,
        "binary": values[0],
        "fuzz": values[1],
        "psnr": values[2],
        "anls": "not measured" if u is None else f"{u.anls:.3f}",
        "loss": "not measured" if u is None else f"{u.loss:.2f}",
        "kilobytes": "not measured" if u is None else f"{u.bytes_per_round / 1000:,.0f}",
        "milliseconds": "not measured" if u is None else f"{1000 * u.seconds_per_step:.0f}",
        "ssim": "" if c.template_ssim is None else f"{c.template_ssim:.3f}",
        "dominated": c.dominated,
        "failed": dict(c.line.failed),
    }


def _markdown(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, str]) -> str:
    heads = {"number": "", "defence": "defence", "binary": "Binary", "fuzz": "fuzz ratio", "psnr": "PSNR, dB",
             "anls": "ANLS", "loss": "loss", "kilobytes": "kB per round", "milliseconds": "ms per step",
             "ssim": "SSIM of the template", "dominated": "dominated by"}  # fmt: skip
    lines = ["| " + " | ".join(heads.values()) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(row[key]) for key in heads) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"{name}: {value}  " for name, value in facts.items())]) + "\n"


def _uri(file: Path) -> str:
    with PIL.Image.open(file) as picture:
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
