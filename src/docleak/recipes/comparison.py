"""Defences side by side: what each leaves of the leak, and what it costs (``docleak defend``)."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

import docleak
from docleak.defenses import GradientDefense, TemplateDefense, parse_defense
from docleak.documents import Page, blank_template
from docleak.documents.visible import in_markdown, without_html
from docleak.evidence.applicable import least_budget
from docleak.evidence.audit import FLOOR, AuditConfig, model_of, require_applicable
from docleak.evidence.case import build_case, pages_for
from docleak.evidence.report_data import ModelResult, prepare
from docleak.evidence.utility import Utility, undefended, utility_under
from docleak.files import read_stored, write_atomically, write_png
from docleak.metrics.image import ssim
from docleak.models import DocumentModel, image_of
from docleak.recipes.audits import AuditExperiment, experiments
from docleak.recipes.recipe import Recipe, Row
from docleak.recipes.runner import OnUnit, reproduce
from docleak.recipes.table import Line, cells, lines_of
from docleak.report.severity import routes_sentence
from docleak.report.templating import render
from docleak.runs.identity import sources_of
from docleak.runs.run import Run
from docleak.studies.identity import model_key

DEFAULT = ("noise:sigma=1e-4", "clip:norm=0.1", "top-k:share=0.01", "freeze", "safe-template:epsilon=8/255")


#: Leakages and benefits closer than this are taken to be equal.
SAME = 0.002


@dataclass(frozen=True)
class Choice:
    """One defence with what was measured of it. ``dominated`` names a choice that leaks less and costs no more."""

    spec: str
    summary: str
    line: Line
    utility: Utility | None
    template_ssim: float | None = None
    update_kept: float | None = None  # cosine between what is sent and the client's gradient, mean over pages
    dominated: str = ""

    @property
    def words(self) -> float | None:
        """Share of the private fields in the text that linear algebra reads, of those that the model saw; None where
        that was not tried."""
        if self.line.context is None:
            return None
        read = [route for route in self.line.context.findings.routes if route.name in ("words", "answer")]
        return max((route.read / route.of for route in read if route.of), default=None)

    @property
    def leakage(self) -> float | None:
        """The larger of the picture's mean fuzz ratio (finer than the share of exact fields where pages are few) and
        the share of fields read by any route."""
        if self.line.result is None or self.line.context is None:
            return None
        fuzz = self.line.result.estimates["fuzz_ratio"].value
        return None if fuzz is None else max(fuzz, self.line.context.findings.share.value or 0.0)

    @property
    def benefit(self) -> float | None:
        """ANLS of a model trained under it, or where none was trained, the share of the update's direction kept."""
        return self.update_kept if self.utility is None else self.utility.anls


def recipe_of(specs: Sequence[str], config: AuditConfig) -> Recipe:
    """A row per defence, none first; everything else as in ``config``."""
    chosen = ["none", *[spec for spec in specs if spec != "none"]]
    rows = tuple(Row(parse_defense(spec).summary, ("model",), {"defense": spec}) for spec in dict.fromkeys(chosen))
    fixed = {"documents": config.documents, "pages": config.pages, "budget": config.budget, "seed": config.seed,
             "ocr": config.ocr, "attack": config.attacks[0], "image_size": config.image_size,
             **({"allow_pickle": True} if config.allow_pickle else {})}  # fmt: skip
    scales = {"tiny": {"models": {"model": config.models[0]}}}
    return Recipe("defences", "Defences", "docleak", "what each defence leaves of the leak", rows, fixed, scales)


def compare(
    specs: Sequence[str],
    config: AuditConfig,
    out: Path,
    *,
    device: str,
    workers: int,
    command: str,
    utility_steps: int = 0,
    on_unit: OnUnit = lambda done, total, label: None,
) -> tuple[Path, list[Choice]]:
    """Run (or resume) the attack of ``config`` under every defence, measure what each costs, and write the page.

    AttackError, before anything is computed, where the attack cannot be made on the model.
    """
    began = time.perf_counter()
    require_applicable(config, device)
    recipe = recipe_of(specs, config)
    planned = experiments(recipe, "tiny", out, {})
    torch.set_num_threads(1)
    reproduce(recipe, planned, out, scale="tiny", device=device, workers=workers, command=command, on_unit=on_unit)
    named = {e.config.exposure.defense: e for e in planned}
    ssims = {
        spec: write_templates(e, out, device)
        for spec, e in named.items()
        if isinstance(parse_defense(spec), TemplateDefense)
    }
    done = iter(range(1, len(planned) + 1))
    utilities = measure_utilities(
        planned, out, steps=utility_steps, on_done=lambda spec: on_unit(next(done), len(planned), f"utility, {spec}")
    )
    kept = {spec: update_kept(e, device) for spec, e in named.items()}
    choices = choices_of(planned, utilities, ssims, kept)
    facts = {"Command": command, "Model": config.models[0], "Attack": config.attacks[0],
             "Budget": f"{config.pages} document{'s' * (config.pages > 1)}, {config.budget} gradient evaluations each",
             "Training steps for utility": str(utility_steps),
             "Wall time of this call": f"{time.perf_counter() - began:.0f} s"}  # fmt: skip
    return write_comparison(choices, out, facts), choices


def most_exposed(config: AuditConfig, run: Run) -> AuditConfig:
    """What a comparison of defences at the end of an audit runs: one page, half the budget, on the model of which
    most was read by any route (of equals, the one that is attacked fastest), by the first attack made on it."""
    models = prepare([run], np.random.default_rng(0)).models
    keys = {model_key(source, config.image_size): source for source in config.models}

    def rank(model: ModelResult) -> tuple[float, float]:
        return -(model.findings.share.value or 0.0), model.best.seconds.mean or 0.0

    chosen = min(models, key=rank)
    made = {found.attack for found in chosen.attacks}
    attack = next((name for name in config.attacks if name in made), FLOOR)
    budget = max(config.budget // 2, least_budget(attack, config.rounds))
    return replace(config, models=(keys[chosen.model],), attacks=(attack,), pages=1, budget=budget)


def measure_utilities(
    planned: Sequence[AuditExperiment], out: Path, *, steps: int, on_done: Callable[[str], None]
) -> dict[str, Utility]:
    """Utility per defence spec, each kept in ``out``/utility as soon as it is measured; none if ``steps`` is 0."""
    found: dict[str, Utility] = {}
    for number, e in enumerate(planned if steps else ()):
        spec, source = e.config.exposure.defense, e.config.models[0]
        file = out / "utility" / f"{number:02d}.json"
        wanted = {"spec": spec, "source": source, "steps": steps, "seed": e.config.seed,
                  "docleak": docleak.__version__, "sources": sources_of({"model": source}, apart_from=out)}  # fmt: skip
        saved = read_stored(file) if file.is_file() else {}
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


def write_templates(e: AuditExperiment, out: Path, device: str) -> float:
    """The published templates of a template defence, each beside the clean one; returns their mean SSIM."""
    model = model_of(e.config, e.config.models[0], device)
    likeness = []
    pages = _pages_of(e.config, model)
    for number, page in enumerate(pages):
        case = build_case(model, [page], e.config.exposure, seed=e.config.seed + number)
        published, clean = image_of(case.knowledge.template[0]), blank_template(page)
        name = f"{e.config.exposure.defense.replace('/', '-').replace(':', '-')}-{number:03d}"
        write_png(out / "templates" / f"{name}.png", published)
        write_png(out / "templates" / f"{name}-beside-clean.png", np.hstack([clean, published]))
        likeness.append(ssim(clean, published, np.ones(clean.shape[:2], dtype=bool)))
    return float(np.mean([value for value in likeness if value is not None]))


def _pages_of(config: AuditConfig, model: DocumentModel) -> list[Page]:
    return pages_for(model, config.documents, count=config.pages, seed=config.seed, allow_pickle=config.allow_pickle)


def choices_of(
    planned: Sequence[AuditExperiment],
    utilities: Mapping[str, Utility],
    ssims: Mapping[str, float],
    kept: Mapping[str, float],
) -> list[Choice]:
    """Every defence with its numbers, dominated ones marked."""
    found = [
        Choice(spec, parse_defense(spec).summary, line, utilities.get(spec), ssims.get(spec), kept.get(spec))
        for e, line in zip(planned, lines_of(planned, seed=0), strict=True)
        for spec in [e.config.exposure.defense]
    ]
    return [Choice(**{**vars(c), "dominated": _dominating(c, found)}) for c in found]


def _dominating(choice: Choice, others: Sequence[Choice]) -> str:
    if choice.leakage is None or choice.benefit is None:
        return ""
    for other in others:
        if other is choice or other.leakage is None or other.benefit is None:
            continue
        less, no_worse = other.leakage < choice.leakage - SAME, other.benefit >= choice.benefit - SAME
        if less and no_worse:
            return other.summary
    return ""


def update_kept(e: AuditExperiment, device: str) -> float:
    """Cosine between what is sent under the defence and the client's own gradient, mean over the pages."""
    defense, config = parse_defense(e.config.exposure.defense), e.config
    if not isinstance(defense, GradientDefense):
        return 1.0
    model = model_of(config, config.models[0], device)
    found = []
    for number, page in enumerate(_pages_of(config, model)):
        case = build_case(model, [page], config.exposure, seed=config.seed + number)
        own = torch.cat([value.flatten() for value in case.clean.gradient.values()])
        sent = torch.cat(
            [case.view.gradient.get(name, torch.zeros_like(v)).flatten() for name, v in case.clean.gradient.items()]
        )
        found.append(float(torch.nn.functional.cosine_similarity(own.double(), sent.double(), dim=0)))
    return float(np.mean(found))


def chart(choices: Sequence[Choice]) -> str:
    """Leakage against utility as SVG; dominated choices grey. Empty where no utility was measured."""
    shown = [c for c in choices if c.leakage is not None and c.benefit is not None]
    if not shown:
        return ""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "docleak"}):
        figure = Figure(figsize=(7.5, 4.6), layout="constrained")
        axes = figure.add_subplot()
        for place, numbers in _places(choices).items():
            colour = "#9aa3af" if all(choices[n].dominated for n in numbers) else "#0b6e4f"
            axes.scatter(*place, s=60, color=colour, zorder=3)
            label = ", ".join(str(n + 1) for n in numbers)
            axes.annotate(label, place, xytext=(7, 5), textcoords="offset points", color=colour, fontsize=11)
        trained = any(c.utility for c in shown)
        axes.set_xlabel(
            "utility: ANLS on unseen pages after training under the defence (right is better)"
            if trained
            else "share of the update's direction that arrives (cosine; right is better)"
        )
        axes.set_ylabel("leakage: private text read, 0 to 1 (low is better)")
        axes.set_ylim(-0.04, 1.08)
        axes.margins(x=0.12)
        axes.grid(alpha=0.3)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _places(choices: Sequence[Choice]) -> dict[tuple[float, float], list[int]]:
    """(benefit, leakage) -> the numbers of the choices that lie there, to three digits."""
    found: dict[tuple[float, float], list[int]] = {}
    for number, c in enumerate(choices):
        if c.leakage is not None and c.benefit is not None:
            found.setdefault((round(c.benefit, 3), round(c.leakage, 3)), []).append(number)
    return found


def write_comparison(choices: Sequence[Choice], out: Path, facts: Mapping[str, str]) -> Path:
    """Write defences.html, defences.md and defences.json; returns the page."""
    rows = [_row(number + 1, c) for number, c in enumerate(choices)]
    saved = {**facts, "chart": chart(choices), "rows": rows}
    write_atomically(out / "defences.json", (json.dumps(saved, indent=1) + "\n").encode())
    write_atomically(out / "defences.md", _markdown(rows, facts).encode())
    beside = sorted((out / "templates").glob("*-000-beside-clean.png"))
    html = render(
        "defences.html.j2", rows=rows, chart=chart(choices), facts=facts,
        templates=[(file.stem, _uri(file)) for file in beside],
    )  # fmt: skip
    write_atomically(out / "defences.html", html.encode("utf-8", "backslashreplace"))
    return out / "defences.html"


def _row(number: int, c: Choice) -> dict[str, Any]:
    values = cells(c.line)
    u, said = c.utility, None if c.line.context is None else c.line.context.findings
    return {
        "number": number,
        "defence": c.summary,
        "spec": c.spec,
        "binary": values[0],
        "fuzz": values[1],
        "psnr": values[2],
        "words": "" if c.words is None else f"{100 * c.words:.0f}%",
        "kept": "" if c.update_kept is None else f"{c.update_kept:.3f}",
        "anls": "not measured" if u is None else f"{u.anls:.3f}",
        "loss": "not measured" if u is None else f"{u.loss:.2f}",
        "kilobytes": "not measured" if u is None else f"{u.bytes_per_round / 1000:,.0f}",
        "milliseconds": "not measured" if u is None else f"{1000 * u.seconds_per_step:.0f} ms",
        "ssim": "" if c.template_ssim is None else f"{c.template_ssim:.3f}",
        "read": None if said is None else said.judgement.read,
        "of": None if said is None else said.judgement.of,
        "routes": "" if said is None else routes_sentence(said.routes),
        "severity": None if c.line.context is None else str(c.line.context.severity),
        "leakage": c.leakage,
        "benefit": c.benefit,
        "dominated": c.dominated,
        "failed": dict(c.line.failed),
    }


def _markdown(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, str]) -> str:
    heads = {
        "number": "",
        "defence": "defence",
        "binary": "Binary (picture)",
        "fuzz": "fuzz ratio",
        "psnr": "PSNR, dB",
        "routes": "by any route",
        "words": "fields in the text",
        "kept": "update kept",
        "anls": "ANLS",
        "loss": "loss",
        "kilobytes": "kB per round",
        "milliseconds": "a step takes",
        "ssim": "SSIM of the template",
        "dominated": "dominated by",
    }
    lines = ["| " + " | ".join(heads.values()) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(in_markdown(str(row[key])) for key in heads) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"{name}: {without_html(value)}  " for name, value in facts.items())]) + "\n"


def _uri(file: Path) -> str:
    with PIL.Image.open(file) as picture:
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
