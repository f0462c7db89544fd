"""The audit: every chosen model x page x attack is one unit, computed once and kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import docleak
from docleak.attacks.gradients import load_attack
from docleak.attacks.gradients.selftest import self_test
from docleak.documents import Page, blank_template
from docleak.errors import AttackError, DocumentError, RunError
from docleak.evidence.case import Case, Exposure, build_case, pages_for, read_gradient
from docleak.evidence.run import Run
from docleak.metrics import load_engine, score_page
from docleak.models import DocumentModel, image_of, load_model, model_card, title_of, trainable

#: Called with (unit id, evaluations done, budget); from worker processes through a queue.
OnProgress = Callable[[str, int, int], None]
SNAPSHOTS = 8
#: Parts of a config that let a unit be computed but change none of its numbers: a run may be resumed with others.
PERMISSIONS = ("allow_failed_self_test", "allow_pickle")


@dataclass(frozen=True)
class AuditConfig:
    """What is audited. Everything that changes a number is here, and nothing else."""

    models: tuple[str, ...] = ("donut-start", "donut-trained", "layoutlmv3-start", "layoutlmv3-trained")
    documents: str = "synthetic"
    pages: int = 1
    attacks: tuple[str, ...] = ("gi-dqa", "april", "inverting-gradients", "dlg", "random")
    budget: int = 150
    seed: int = 5
    batch_size: int = 1
    exposure: Exposure = Exposure()
    ocr: str = "rapidocr"
    allow_failed_self_test: bool = False
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        for name in self.attacks:
            load_attack(name)
        for what in ("pages", "budget", "batch_size"):
            if getattr(self, what) < 1:
                raise AttackError(f"{what} is {getattr(self, what)}; expected at least 1.")


@dataclass(frozen=True)
class Unit:
    """One model, one target page (by index), one attack."""

    model: str
    page: int
    attack: str

    @property
    def id(self) -> str:
        return f"{title_key(self.model)}--{self.page:03d}--{self.attack}"


def title_key(model: str) -> str:
    """A short name for a model in unit ids: its last path part and a digest of the whole."""
    last = model.rstrip("/").split("/")[-1]
    return last if last == model else f"{last}-{hashlib.sha256(model.encode()).hexdigest()[:6]}"


def units_of(config: AuditConfig) -> list[Unit]:
    """All units, the default attack on every model first, so that pictures come early."""
    pairs = [(attack, model) for attack in config.attacks for model in config.models]
    return [Unit(model, page, attack) for attack, model in pairs for page in range(config.pages)]


@lru_cache(maxsize=2)
def _model(source: str, device: str) -> DocumentModel:
    return load_model(source, device=device)


@lru_cache(maxsize=1)
def _engine(name: str) -> Any:
    return load_engine(name)


@lru_cache(maxsize=4)
def _pages(source: str, device: str, config: AuditConfig) -> tuple[Page, ...]:
    count = config.pages + config.batch_size - 1
    model = _model(source, device)
    return tuple(pages_for(model, config.documents, count=count, seed=config.seed, allow_pickle=config.allow_pickle))


def run_unit(run: Run, config: AuditConfig, unit: Unit, device: str, report: OnProgress) -> None:
    """Compute one unit and write it; the self-test comes first and stops it if the truth does not match."""
    model = _model(unit.model, device)
    pages = _pages(unit.model, device, config)
    if unit.page + config.batch_size > len(pages):
        return  # fewer pages with private fields than asked for
    batch = pages[unit.page : unit.page + config.batch_size]
    case = build_case(model, batch, config.exposure, seed=config.seed + unit.page)
    test = self_test(case.view, case.pixels, case.inputs)
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
        "template.png": blank_template(batch[0]),
        "reconstruction.png": image_of(finding.pixels[0]),
    }
    engine = _engine(config.ocr)
    record = {
        **_describe(unit, model, case, config),
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


def _describe(unit: Unit, model: DocumentModel, case: Case, config: AuditConfig) -> dict[str, object]:
    page = case.pages[0]
    shown = "start" if unit.model.endswith("-start") else "trained" if unit.model.endswith("-trained") else "other"
    return {
        "model": title_key(unit.model),
        "model_title": title_of(unit.model),
        "architecture": model.architecture,
        "moment": shown,
        "attack": unit.attack,
        "page": page.name,
        "document": page.document,
        "provider": page.provider,
        "question": case.question.text,
        "answer": case.question.answers[0],
        "view": {
            "batch_size": config.batch_size,
            "train_mode": config.exposure.train_mode,
            "words_known": case.knowledge.words_known and bool(case.inputs[0].words_seen),
            "tensors": len(case.view.gradient),
            "numbers": sum(v.numel() for v in case.view.gradient.values()),
        },
        "knowledge": list(case.knowledge.sentences()),
        "fields": [
            {"key": f.key, "value": f.value, "boxes": [list(b) for b in page.field_boxes(f)]}
            for f in page.private_fields
        ],
        "images": {"truth": "truth.png", "template": "template.png", "reconstruction": "reconstruction.png"},
    }


def run_audit(
    config: AuditConfig, out: Path, *, device: str, workers: int, on_progress: OnProgress, command: str = ""
) -> Run:
    """Run (or resume) the audit in ``out``, in ``workers`` processes of one thread; the report prints ``command``."""
    for source in config.models:  # fail early, in this process, before anything is written
        _model(source, device)
        found = len(_pages(source, device, config))
        if found < config.batch_size:
            raise DocumentError(
                f"{config.documents!r} has {found} pages with private fields, fewer than a batch of "
                f"{config.batch_size}. Lower --batch-size or give more pages."
            )
    _engine(config.ocr)
    if config.exposure.gradient_file:
        read_gradient(Path(config.exposure.gradient_file))
    run = Run.open(out, {key: value for key, value in asdict(config).items() if key not in PERMISSIONS})
    todo = [unit for unit in units_of(config) if not run.has(unit.id)]
    _write_info(run, config, device)
    run.write_info("command", command)
    torch.set_num_threads(1)
    if workers == 1 or len(todo) == 1:
        for unit in todo:
            run_unit(run, config, unit, device, on_progress)
    else:
        _run_parallel(run, config, todo, device, workers, on_progress)
    return run


def _write_info(run: Run, config: AuditConfig, device: str) -> None:
    from docleak.evidence.threat import threat_model

    models = {}
    for source in config.models:
        model = _model(source, device)
        recipe = model_card(source)
        models[title_key(source)] = {
            "title": title_of(source),
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
        + f" | gradient view, B = {config.batch_size} | {', '.join(config.attacks)} | {config.budget} evaluations"
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


def weights_hash(model: DocumentModel) -> str:
    """Ten hexadecimal digits over all trainable parameters' names and bytes."""
    digest = hashlib.sha256()
    for name, parameter in trainable(model.module):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:10]


def data_hash(pages: list[Page]) -> str:
    """Ten hexadecimal digits over the pages' names, pixels and field values."""
    digest = hashlib.sha256()
    for page in pages:
        digest.update(page.name.encode() + page.image.tobytes())
        digest.update("|".join(f.value for f in page.fields).encode())
    return digest.hexdigest()[:10]


def _worker_start() -> None:
    import signal

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled once, by the parent


def _work(run: Run, config: AuditConfig, unit: Unit, device: str, queue: Any) -> None:
    run_unit(run, config, unit, device, lambda *event: queue.put(event))


def _run_parallel(
    run: Run, config: AuditConfig, todo: list[Unit], device: str, workers: int, on_progress: OnProgress
) -> None:
    context = get_context("spawn")
    with context.Manager() as manager:
        queue = manager.Queue()
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_worker_start)
        try:
            waiting: set[Future[None]] = {pool.submit(_work, run, config, unit, device, queue) for unit in todo}
            while waiting:
                done, waiting = wait(waiting, timeout=0.3, return_when=FIRST_COMPLETED)
                for event in _drain(queue):
                    on_progress(*event)
                for future in done:
                    future.result()
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        pool.shutdown()


def _drain(queue: Any) -> Iterator[tuple[str, int, int]]:
    while not queue.empty():
        yield queue.get()
