"""The study of defences: the same attack, pages and budget under each, and what each costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from docleak.defenses import DEFENSES, GradientDefense, TemplateDefense
from docleak.documents import blank_template
from docleak.documents.page import Image
from docleak.metrics.image import ssim
from docleak.models import image_of
from docleak.report.page import Reading, Section, run_facts
from docleak.report.pictures import picture
from docleak.report.severity import Part
from docleak.report.statement import Scope
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.gradient.case import build_case
from docleak.studies.gradient.choices import Choice, chart, choices_of, effects, row_json, said_of, table_of
from docleak.studies.gradient.config import FLOOR, NONE, DefenceConfig, GradientConfig, least_budget
from docleak.studies.gradient.measures import categories_of, measures_of
from docleak.studies.gradient.models import audited_pages, inapplicable, model_of, unchanged
from docleak.studies.gradient.results import prepare
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.gradient.utility import sent_bytes, utility_under
from docleak.studies.gradient.verdict import sampled
from docleak.studies.gradient.words import ADVICE
from docleak.studies.identity import model_key
from docleak.studies.study import Study, Tell, Unit, one_of

LIMITS = (
    "A defence that stopped this attack may not stop the next one.",
    "The comparison is of one model and few pages: a first look, not a rate.",
)


class DefenceStudy(Study[DefenceConfig]):
    """A unit is an attack on one page under one defence, or what that defence costs."""

    kind = "defences"
    Config = DefenceConfig

    @cached_property
    def studies(self) -> dict[str, GradientStudy]:
        """The audit under each defence."""
        audit = self.config.audit
        return {
            spec: GradientStudy(replace(audit, exposure=replace(audit.exposure, defense=spec)), device=self.device)
            for spec in self.config.defenses
        }

    @cached_property
    def inapplicable(self) -> dict[str, str]:
        """The defences under which the attack cannot be made, each with the reason."""
        (source,), (attack,) = self.config.audit.models, self.config.audit.attacks
        model = model_of(self.config.audit, source, self.device)
        reasons = {spec: inapplicable(model, attack, study.config) for spec, study in self.studies.items()}
        return {spec: f"{attack}: {why}" for spec, why in reasons.items() if why and spec != NONE}

    def units(self) -> list[Unit]:
        """Page by page under every defence under which the attack can be made, then the costs of all."""
        attacks = [
            Unit(f"{number:02d}--{unit.id}", unit.size, unit.turn, (spec, unit))
            for number, (spec, study) in enumerate(self.studies.items()) if spec not in self.inapplicable
            for unit in study.units()
        ]  # fmt: skip
        costs = [Unit(f"{number:02d}--cost", 1, 10**6, (spec, None)) for number, spec in enumerate(self.studies)]
        return [*attacks, *costs]

    def identity(self) -> Mapping[str, str]:
        """The audit's."""
        return self.studies[NONE].identity()

    def facts(self) -> Mapping[str, Any]:
        """The audit's, and under which defences its attack is not tried."""
        without = {"inapplicable": self.inapplicable} if self.inapplicable else {}
        return {**self.studies[NONE].facts(), **without}

    def settings(self) -> dict[str, Any]:
        """Without permissions, as an audit's."""
        return {**super().settings(), "audit": self.studies[NONE].settings()}

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """One attack, or what a defence costs, with the templates that are published under it."""
        spec, attack = unit.what
        if attack is None:
            return self._cost(spec)
        record, images = self.studies[spec].compute(replace(attack, id=unit.id), run, tell)
        return {**record, "defence": spec}, dict(images)

    def _cost(self, spec: str) -> tuple[dict[str, Any], dict[str, Image]]:
        audit, defense = self.studies[spec].config, DEFENSES.load(spec)
        (source,) = audit.models
        model, kept, likeness, images = model_of(audit, source, self.device), [], [], dict[str, Image]()
        for number, page in enumerate(audited_pages(source, self.device, audit)):
            with unchanged((model,), f"defence {spec}"):
                case = build_case(model, [page], audit.exposure, seed=audit.seed + number)
            ours = torch.cat([value.flatten() for value in case.clean.gradient.values()])
            blank = {name: torch.zeros_like(value) for name, value in case.clean.gradient.items()}
            sent = torch.cat([value.flatten() for value in {**blank, **case.view.gradient}.values()])
            kept.append(float(torch.nn.functional.cosine_similarity(ours.double(), sent.double(), dim=0)))
            if isinstance(defense, TemplateDefense):
                published, clean = image_of(case.knowledge.template[0]), blank_template(page)
                images[f"template-{number:03d}"] = published
                images[f"beside-clean-{number:03d}"] = np.hstack([clean, published])
                likeness.append(ssim(clean, published, np.ones(clean.shape[:2], dtype=bool)))
        steps = self.config.utility_steps
        trained = steps and not isinstance(defense, TemplateDefense)  # which leaves training alone
        record = {
            "cost": spec,
            "kept": float(np.mean(kept)) if isinstance(defense, GradientDefense) else 1.0,
            "ssim": float(np.mean(likeness)) if likeness else None,
            "bytes_per_round": sent_bytes(spec, source),
            "utility": asdict(utility_under(spec, source, steps=steps, seed=audit.seed)) if trained else None,
        }
        return record, images

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """Which defence would have stopped what was tried, and the table of all of them."""
        run = one_of(runs)
        choices = choices_of(run, rng)
        table, lines = table_of(choices), said_of(choices)
        audit = run.config["audit"]
        pages = counted_words(audit["pages"], "page")
        spent = counted_words(audit["budget"], "gradient evaluation")
        how = f"{audit['attacks'][0]} on {audit['models'][0]}, {pages}, {spent} each"
        exposed = _exposed(run)
        templates = [
            {"name": choice.summary, **picture(run.read_image(choice.cost["unit"], choice.cost["images"][name]),
                                               f"Clean and published template side by side: {choice.summary}")}
            for choice in choices for name in ("beside-clean-000",) if name in choice.cost.get("images", {})
        ]  # fmt: skip
        body = render(
            "defences.html.j2", lines=lines, how=how, exposed=exposed, chart=chart(choices), table=table, advice=ADVICE,
            templates=templates,
        )  # fmt: skip
        return Reading(
            question="Which defence would have stopped it?",
            lead=f"The same attack under each defence: {how}.",
            parts=_parts(run, choices, lines[0]),
            counted=lines[0],
            notices=tuple(filter(None, [run.info.get("questions_made")])),
            sections=(Section("advice", "What to do", "What to do about it", body),),
            lines=(*lines, exposed, "", table.to_text()),
            results={"defences": [row_json(choice) for choice in choices], "measured": lines, "exposure": exposed},
            tables={"defences": table},
            limits=LIMITS,
            runs=(run_facts(run.path, run.manifest()),),
            synthetic=audit["documents"] == "synthetic",
            shows="pictures of templates, their private fields blanked" if templates else "",
            measures=tuple(
                one for choice in choices if choice.context
                for one in measures_of(choice.context, f"{choice.context.title}, {choice.summary}")
            ),
            scope=Scope(
                system="" if _beside(run) else f"Training of {audit['models'][0]}, shared under each defence",
                material="" if _beside(run) else pages, adversary="whoever receives one client's gradient",
                categories=categories_of([choice.context for choice in choices if choice.context]),
                sample="" if _beside(run) else sampled([one.context for one in choices[:1] if one.context]),
                remedies=tuple(effects(choices)), unfinished=_unfinished(run, choices),
            ),
        )  # fmt: skip


def _exposed(run: Run) -> str:
    """What the adversary sees and knows under every defence, of which each is one more thing."""
    told = run.info["threat_model"]
    return (
        f"Under every defence the adversary sees {'; '.join(told['sees'])}. It knows {'; '.join(told['knows'])} (the "
        "template as published, where the defence changes it); and the defence, which it imitates."
    )


def _beside(run: Run) -> bool:
    """Whether the run lies in an audit's folder, which says what of this would be said twice."""
    return (run.path.parent / "run.json").is_file()


def _unfinished(run: Run, choices: Sequence[Choice]) -> str:
    """How far the comparison is, in words; "" where it is finished."""
    pages = min(int(run.config["audit"]["pages"]), int(run.info["found"]))
    made = sum(len(choice.context.units) for choice in choices if choice.context)
    costs = sum(bool(choice.cost) for choice in choices)
    planned = pages * sum(not choice.inapplicable for choice in choices)
    if made >= planned and costs == len(choices):
        return ""
    return f"{made} of {counted_words(planned, 'attack')} on a page, {costs} of {counted_words(len(choices), 'cost')}"


def _parts(run: Run, choices: Sequence[Choice], sentence: str) -> tuple[Part, ...]:
    """How bad it is without a defence, or where that is not known, under each; none in an audit's folder, where the
    audit says that of more pages."""
    plain = choices[0].context
    if _beside(run):
        return ()
    if plain is None:
        return tuple(Part(f"{choice.context.title}, {choice.summary}", choice.context.severity, sentence)
                     for choice in choices if choice.context)  # fmt: skip
    return (Part(f"{plain.title}, no defence", plain.severity, sentence),)


def most_exposed(config: GradientConfig, run: Run) -> DefenceConfig:
    """What a comparison at the end of an audit runs: one page, half the budget, on the model of which most was read by
    any route (of equals, the one whose pictures came nearest, then the first), by the first attack made on it."""
    models = prepare([run], np.random.default_rng(0)).models
    keys = {model_key(source, config.image_size): source for source in config.models}
    chosen = min(models, key=lambda m: (-(m.findings.share.value or 0.0), m.best.rank()))
    made = {attempt.attack for attempt in chosen.attacks}
    attack = next((name for name in config.attacks if name in made), FLOOR)
    budget = max(config.budget // 2, least_budget(attack, config.rounds))
    return DefenceConfig(
        replace(config, models=(keys[chosen.model],), attacks=(attack,), pages=1, budget=budget), utility_steps=0
    )
