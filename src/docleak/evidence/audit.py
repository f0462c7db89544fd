"""The audit: every chosen model x page x attack is one unit, computed once and kept on disk."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import docleak
from docleak.attacks.gradients import load_attack
from docleak.attacks.gradients.selftest import self_test
from docleak.documents import Page, repeats_of
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocumentError, RunError
from docleak.evidence.applicable import CLOSED_FORM, inapplicable, require_budget
from docleak.evidence.case import Case, Exposure, build_case, pages_for, read_gradient
from docleak.evidence.texts import text_obstacle, text_record
from docleak.metrics import load_engine, score_page
from docleak.models import DocumentModel, image_of, load_model, model_card, trainable
from docleak.runs.pool import OnProgress, compute
from docleak.runs.run import Run
from docleak.studies.identity import data_hash, model_key, model_title, title_key, weights_hash
from docleak.training.pretrain import PretrainConfig, pretrain

SNAPSHOTS = 8
#: Training before the audited gradient (GI-DQA figure 6 counts its steps but not their learning rate; ours is this).
FINE_TUNING = PretrainConfig(
    pages_per_step=4,
    questions_per_page=2,
    learning_rate=1e-3,
    warmup_steps=1,
    reading_weight=0.0,
    dropout=False,
    decay=False,
)
#: What stands for the picture of a model that no attack applies to: it sees no gradient.
FLOOR = "random"
#: Pixels a side of a page may have; more is a slip of the keyboard.
LONGEST_SIDE = 10_000
#: Parts of a config that let a unit be computed but change none of its numbers: a run may be resumed with others.
PERMISSIONS = ("allow_failed_self_test", "allow_pickle")


@dataclass(frozen=True)
class AuditConfig:
    """What is audited. Everything that changes a number is here, and nothing else."""

    models: tuple[str, ...] = ("donut-start", "donut-trained", "layoutlmv3-start", "layoutlmv3-trained")
    documents: str = "synthetic"
    pages: int = 1
    attacks: tuple[str, ...] = ("gi-dqa", "april", "inverting-gradients", "dlg", "random", CLOSED_FORM)
    budget: int = 100
    seed: int = 5
    batch_size: int = 1
    exposure: Exposure = Exposure()
    ocr: str = "rapidocr"
    fine_tune_steps: int = 0  # training steps on synthetic pages before the client's gradient is taken
    image_size: tuple[int, int] | None = None  # width and height of the pages; None: the checkpoint's own
    rounds: int = 1  # in which the client sends a gradient of the same batch, each with the weights of its round
    round_steps: int = 10  # training steps on other pages (synthetic ones) between two rounds
    allow_failed_self_test: bool = False
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        for name in self.attacks:
            load_attack(name)
        for what in ("pages", "budget", "batch_size", "rounds", "round_steps"):
            if getattr(self, what) < 1:
                raise AttackError(f"{what} is {getattr(self, what)}; expected at least 1.")
        require_budget(self.attacks, self.budget, rounds=self.rounds)
        if self.fine_tune_steps < 0:
            raise AttackError(f"fine_tune_steps is {self.fine_tune_steps}; expected 0 or more.")
        if self.rounds > 1 and self.exposure.gradient_file:
            raise AttackError(f"a recorded gradient is that of one round; found rounds = {self.rounds}. Leave one out.")
        if self.image_size is not None and not all(1 <= side <= LONGEST_SIDE for side in self.image_size):
            raise AttackError(f"image_size is {self.image_size}; expected width and height of 1 to {LONGEST_SIDE}.")


@dataclass(frozen=True)
class Unit:
    """One model, one target page (by index), one attack."""

    model: str
    page: int
    attack: str

    @property
    def id(self) -> str:
        return f"{title_key(self.model)}--{self.page:03d}--{self.attack}"


def units_of(config: AuditConfig) -> list[Unit]:
    """All units, the default attack on every model first, so that pictures come early."""
    pairs = [(attack, model) for attack in config.attacks for model in config.models]
    return [Unit(model, page, attack) for attack, model in pairs for page in range(config.pages)]


def planned_units(config: AuditConfig, device: str) -> list[Unit]:
    """The units of ``config`` whose pages there are, and whose attack applies to their model.

    A model that none of the attacks applies to has units of the floor, so that its text is read all the same.
    """
    found = {source: len(_pages(source, device, config)) - config.batch_size + 1 for source in config.models}
    left_out = skipped(config, device)
    made = [unit for unit in units_of(config) if (unit.model, unit.attack) not in left_out]
    bare = [source for source in config.models if not any(unit.model == source for unit in made)]
    text = [source for source in bare if not text_obstacle(model_of(config, source, device), config.batch_size)]
    made += [Unit(source, page, FLOOR) for source in text for page in range(config.pages)]
    return [unit for unit in made if unit.page < found[unit.model]]


def skipped(config: AuditConfig, device: str) -> dict[tuple[str, str], str]:
    """(model, attack) -> why the attack cannot be made on that model; empty where nothing at all can be."""
    pairs = [(source, attack) for source in config.models for attack in config.attacks]
    reasons = {(m, a): inapplicable(model_of(config, m, device), a, config) for m, a in pairs}
    left_out = {pair: why for pair, why in reasons.items() if why}
    return left_out if len(left_out) < len(pairs) else {}


def require_applicable(config: AuditConfig, device: str) -> None:
    """AttackError, before anything is written, where none of the attacks can be made on any of the models."""
    left_out = skipped(config, device)
    reasons = [inapplicable(model_of(config, m, device), a, config) for m in config.models for a in config.attacks]
    if not left_out and all(reasons):
        raise AttackError(f"none of the attacks applies: {'; '.join(dict.fromkeys(reasons))}.")


def shortage(config: AuditConfig, device: str) -> str:
    """A sentence if there are fewer pages with private fields than asked for, else ""."""
    found = min(len(_pages(source, device, config)) for source in config.models)
    audited = found - config.batch_size + 1
    if audited >= config.pages:
        return ""
    batches = f" in batches of {config.batch_size}" if config.batch_size > 1 else ""
    return (
        f"Asked for {config.pages} pages{batches}; {config.documents} has {found} with private fields, so {audited} "
        f"{'is' if audited == 1 else 'are'} audited."
    )


@lru_cache(maxsize=2)
def _model(
    source: str, device: str, fine_tune_steps: int, seed: int, image_size: tuple[int, int] | None
) -> DocumentModel:
    model = load_model(source, device=device, image_size=image_size)
    if fine_tune_steps:
        _fine_tune(model, fine_tune_steps, seed)
    return model


def _fine_tune(model: DocumentModel, steps: int, seed: int) -> None:
    pages = make_pages(4 * FINE_TUNING.pages_per_step * steps, seed=seed, size=model.image_size, split="train")
    pretrain(model, pages, replace(FINE_TUNING, steps=steps), rng=np.random.default_rng(seed))


def model_of(config: AuditConfig, source: str, device: str) -> DocumentModel:
    """The audited model, after the training steps that the config asks for."""
    seed = config.seed if config.fine_tune_steps else 0
    return _model(source, device, config.fine_tune_steps, seed, config.image_size)


@lru_cache(maxsize=1)
def _later(source: str, device: str, config: AuditConfig) -> tuple[DocumentModel, ...]:
    """The models of the rounds after the first: each the one before it, trained on by others."""
    found = [model_of(config, source, device)]
    for number in range(1, config.rounds):
        found.append(deepcopy(found[-1]))
        _fine_tune(found[-1], config.round_steps, config.seed + number)
    return tuple(found[1:])


@lru_cache(maxsize=1)
def _engine(name: str) -> Any:
    return load_engine(name)


@lru_cache(maxsize=4)
def _pages(source: str, device: str, config: AuditConfig) -> tuple[Page, ...]:
    count = config.pages + config.batch_size - 1
    model = model_of(config, source, device)
    return tuple(pages_for(model, config.documents, count=count, seed=config.seed, allow_pickle=config.allow_pickle))


def run_unit(run: Run, config: AuditConfig, unit: Unit, device: str, report: OnProgress) -> None:
    """Compute one unit and write it; the self-test comes first and stops it if the truth does not match."""
    model = model_of(config, unit.model, device)
    pages = _pages(unit.model, device, config)
    if unit.page + config.batch_size > len(pages):
        return  # fewer pages with private fields than asked for
    batch = pages[unit.page : unit.page + config.batch_size]
    later = _later(unit.model, device, config)
    case = build_case(model, batch, config.exposure, seed=config.seed + unit.page, later=later)
    test = self_test(case.clean, case.pixels, case.inputs)
    if not config.allow_failed_self_test:
        test.require()
    step = max(1, config.budget // SNAPSHOTS)

    def on_evaluation(number: int, loss: float, pixels: Tensor) -> None:
        report(unit.id, number, config.budget)
        if number % step == 0 and unit.attack != "random":
            run.write_snapshot(unit.id, number, image_of(pixels[0].clamp(0, 1)))

    generator = torch.Generator().manual_seed(config.seed * 1000 + unit.page)
    attack = load_attack(unit.attack)
    finding = attack.run(
        case.view, case.knowledge, budget=config.budget, generator=generator, on_evaluation=on_evaluation
    )
    images = {
        "truth.png": batch[0].image,
        "template.png": image_of(case.knowledge.template[0]),
        "reconstruction.png": image_of(finding.pixels[0]),
    }
    engine = _engine(config.ocr)
    record = {
        **_describe(unit, model, case, config),
        "recovered": text_record(case, look=unit.attack == _first_attack(model, config)),
        "attack_summary": attack.summary,
        "attack_paper": attack.paper,
        "self_test": {"distance": test.distance, "passed": test.passed, "note": "; ".join(test.causes)},
        "finding": {
            "matching": finding.matching if finding.evaluations else None,
            "explained": finding.explained,
            "evaluations": finding.evaluations,
            "budget": config.budget,
            "seconds": finding.seconds,
            "history": [list(item) for item in finding.history],
        },
        "score": score_page(batch[0], images["reconstruction.png"], engine).to_json(),
        "floor": score_page(batch[0], images["template.png"], engine).to_json(),
        "ceiling": score_page(batch[0], images["truth.png"], engine).to_json(),
    }
    run.write_unit(unit.id, record, images)
    report(unit.id, config.budget, config.budget)


def _first_attack(model: DocumentModel, config: AuditConfig) -> str:
    """The attack whose unit also reads the text: the first that can be made on this model."""
    return next((attack for attack in config.attacks if not inapplicable(model, attack, config)), FLOOR)


def _describe(unit: Unit, model: DocumentModel, case: Case, config: AuditConfig) -> dict[str, object]:
    page = case.pages[0]
    shown = "start" if unit.model.endswith("-start") else "trained" if unit.model.endswith("-trained") else "other"
    return {
        "model": model_key(unit.model, config.image_size),
        "model_title": model_title(unit.model, config.image_size),
        "architecture": model.architecture,
        "moment": shown,
        "attack": unit.attack,
        "page": page.name,
        "document": page.document,
        "provider": page.provider,
        "size": [page.width, page.height],
        "question": case.question.text,
        "answer": case.question.answers[0],
        "view": {
            "batch_size": config.batch_size,
            "rounds": config.rounds,
            "train_mode": config.exposure.train_mode,
            "words_known": case.knowledge.words_known and bool(case.inputs[0].words_seen),
            "answer_known": case.knowledge.answer_known,
            "defense": config.exposure.defense,
            "tensors": len(case.view.gradient),
            "numbers": sum(v.numel() for v in case.view.gradient.values()),
        },
        "knowledge": list(case.knowledge.sentences()),
        "fields": [
            {"key": f.key, "value": f.value, "boxes": [list(b) for b in page.field_boxes(f)]}
            for f in page.private_fields
        ],
        "repeats": [
            {"key": f.key, "value": f.value, "boxes": [list(b) for b in page.field_boxes(f)]} for f in repeats_of(page)
        ],
        "images": {"truth": "truth.png", "template": "template.png", "reconstruction": "reconstruction.png"},
    }


def open_audit(config: AuditConfig, out: Path, *, device: str, command: str = "") -> Run:
    """Begin or resume the audit in ``out`` without computing anything; raises early what can be known early."""
    for source in config.models:  # in this process, before anything is written
        model_of(config, source, device)
        found = len(_pages(source, device, config))
        if found < config.batch_size:
            raise DocumentError(
                f"{config.documents!r} has {found} pages with private fields, fewer than a batch of "
                f"{config.batch_size}. Lower --batch-size or give more pages."
            )
    left_out = skipped(config, device)
    _engine(config.ocr)
    if config.exposure.gradient_file:
        read_gradient(Path(config.exposure.gradient_file))
    run = Run.open(out, {key: value for key, value in asdict(config).items() if key not in PERMISSIONS})
    _write_info(run, config, device)
    run.write_info("command", command)
    run.write_info("shortage", shortage(config, device))
    run.write_info(
        "found", min(len(_pages(source, device, config)) for source in config.models) - config.batch_size + 1
    )
    run.write_info("skipped", [
        {"model": model_key(source, config.image_size), "attack": attack, "why": why}
        for (source, attack), why in left_out.items()
    ])  # fmt: skip
    return run


def run_audit(
    config: AuditConfig, out: Path, *, device: str, workers: int, on_progress: OnProgress, command: str = ""
) -> Run:
    """Run (or resume) the audit in ``out``, in ``workers`` processes of one thread; the report prints ``command``."""
    require_applicable(config, device)
    run = open_audit(config, out, device=device, command=command)
    compute_units(run, config, device=device, workers=workers, on_progress=on_progress)
    return run


def compute_units(run: Run, config: AuditConfig, *, device: str, workers: int, on_progress: OnProgress) -> None:
    """Compute what is missing in a run that ``open_audit`` opened; RunError if another process is at it."""
    todo = [unit for unit in planned_units(config, device) if not run.has(unit.id)]
    with run.claimed():
        compute(partial(_work, run, config, device), todo, workers=workers, on_progress=on_progress)


def _work(run: Run, config: AuditConfig, device: str, unit: Unit, report: OnProgress) -> None:
    run_unit(run, config, unit, device, report)


def _write_info(run: Run, config: AuditConfig, device: str) -> None:
    from docleak.evidence.threat import threat_model

    models = {}
    for source in config.models:
        model = model_of(config, source, device)
        recipe = model_card(source)
        models[model_key(source, config.image_size)] = {
            "title": model_title(source, config.image_size),
            "parameters": sum(p.numel() for _, p in trainable(model.module)),
            "hash": weights_hash(model),
            "trained": recipe.get("recipe", ""),
            "anls": recipe.get("anls"),
        }
    data = data_hash([page for source in config.models for page in _pages(source, device, config)])
    recorded = config.exposure.gradient_file
    signature = (
        f"docleak {docleak.__version__} | seed {config.seed} | data {data} | "
        + " ".join(f"{name}:{entry['hash']}" for name, entry in models.items())
        + (f" | recorded gradient {hashlib.sha256(Path(recorded).read_bytes()).hexdigest()[:10]}" if recorded else "")
        + f" | gradient view, B = {config.batch_size}"
        + (f", {config.rounds} rounds, {config.round_steps} steps apart" if config.rounds > 1 else "")
        + f" | {', '.join(config.attacks)} | {config.budget} evaluations"
    )
    before = run.info.get("signature")
    if before not in (None, signature) and run.units():
        raise RunError(
            f"{run.path} holds results of other weights, pages or gradients under the same names:\n"
            f"  - there: {before}\n  - now: {signature}\nPass another --out, or delete the directory."
        )
    run.write_info("models", models)
    run.write_info("threat_model", threat_model(config))
    run.write_info("signature", signature)
