"""From the tiny Donut to the published one, one thing at a time: how many evaluations until ``gi-dqa`` reads a page.

    python -m scripts.donut_ladder --out docs/results/gi-dqa/donut-ladder.md --keep FOLDER [--rungs NAME,NAME]

Networks are made with random weights. Each rung runs in a process of its own, so that its peak memory is its own, and
ends with the first look (one every LOOK evaluations) at which every field is read that OCR reads on the true page. What
is in FOLDER is not computed again; the page is written of all that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docleak.attacks.gradients import GradientAttack, GradientView, Knowledge
from docleak.attacks.gradients.matching import dummy_of, relative
from docleak.attacks.registries import ATTACKS
from docleak.documents import Page, blank_template, private_mask
from docleak.documents.synthetic import make_pages
from docleak.metrics.ocr import load_engine
from docleak.metrics.score import score_page
from docleak.models.base import image_of, pixels_of
from docleak.models.donut import Donut
from docleak.models.fast import quicken
from docleak.models.start import spread
from docleak.models.tiny import character_tokenizer
from docleak.training.update import client_gradient

HEADING = "## What it shows"
LOOK = 20


@dataclass(frozen=True)
class Rung:
    """A network, a page, and how its gradient is attacked; the defaults are the tiny Donut's.

    ``decoder`` is (width, layers, heads, inner width); ``vocabulary`` 0 is that of characters; ``fields`` is how many
    of the page's private fields are masked, the first ones; ``sent`` the beginnings of the tensors' names that are
    sent, all if empty.
    """

    depths: tuple[int, ...] = (2, 2)
    width: int = 48
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 8
    decoder: tuple[int, int, int, int] = (96, 2, 4, 256)
    vocabulary: int = 0
    spread: bool = True
    double: bool = False
    size: tuple[int, int] = (256, 256)
    fields: int = 2
    attack: str = "gi-dqa"
    draws: int = 16
    sent: tuple[str, ...] = ()
    budget: int = 100


TINY = Rung()
FOUR = replace(TINY, depths=(2, 2, 2, 2))
DEEP = replace(TINY, depths=(2, 2, 14, 2))
BASE = Rung(
    depths=(2, 2, 14, 2), width=128, heads=(4, 8, 16, 32), window=10, decoder=(1024, 4, 16, 4096), vocabulary=57525,
    size=(320, 320),
)  # fmt: skip
FIRST_STAGE = ("encoder.embeddings.", "encoder.encoder.layers.0.")
RUNGS = {
    "tiny": TINY,
    "one field": replace(TINY, fields=1),
    "all fields": replace(TINY, fields=99, budget=200),
    "page 320 x 320": replace(TINY, size=(320, 320)),
    "page 320 x 320, window 10": replace(TINY, size=(320, 320), window=10),
    "page 480 x 640, all fields": replace(TINY, size=(480, 640), fields=99, budget=60),
    "width 128": replace(TINY, width=128, heads=(4, 8)),
    "decoder 192 x 4": replace(TINY, decoder=(192, 4, 6, 768)),
    "57,525 tokens": replace(TINY, vocabulary=57525),
    "default weights": replace(TINY, spread=False),
    "float64": replace(TINY, double=True),
    "4 draws": replace(TINY, draws=4),
    "light start": replace(TINY, attack="gi-dqa:start=light"),
    "blocks 2-2-2-2": FOUR,
    "blocks 2-2-2-2, all layers matched": replace(FOUR, attack="gi-dqa:layers=all"),
    "blocks 2-2-2-2, first stage matched": replace(FOUR, sent=FIRST_STAGE),
    "blocks 2-2-2-2, all fields": replace(FOUR, fields=99, budget=200),
    "blocks 2-2-2-2, width 128, all fields": replace(FOUR, width=128, heads=(4, 8, 16, 32), fields=99, budget=200),
    "blocks 2-2-14-2": DEEP,
    "blocks 2-2-14-2, all layers matched": replace(DEEP, attack="gi-dqa:layers=all"),
    "Donut-base": BASE,
    "Donut-base, default weights": replace(BASE, spread=False),
    "Donut-base, all fields": replace(BASE, fields=99, budget=150),
    "blocks 2-2-2-2, all fields, 4 draws": replace(FOUR, fields=99, budget=200, draws=4),
    "Donut-base, all fields, 4 draws": replace(BASE, fields=99, budget=150, draws=4),
    "twice the heads": replace(TINY, heads=(6, 12)),
    "blocks 2-2-2-2, all fields, history of 50": replace(FOUR, fields=99, budget=200, attack="gi-dqa:history=50"),
}


def build(rung: Rung, seed: int) -> Donut:
    """The network of a rung, in evaluation mode."""
    import transformers as t

    tokenizer = character_tokenizer()
    tokens = rung.vocabulary or len(tokenizer)
    width, layers, heads, inner = rung.decoder
    torch.manual_seed(seed)
    encoder = t.DonutSwinConfig(
        image_size=list(rung.size[::-1]), patch_size=4, embed_dim=rung.width, depths=list(rung.depths),
        num_heads=list(rung.heads[: len(rung.depths)]), window_size=rung.window, drop_path_rate=0.0,
    )  # fmt: skip
    decoder = t.MBartConfig(
        vocab_size=tokens, d_model=width, decoder_layers=layers, encoder_layers=layers, decoder_attention_heads=heads,
        decoder_ffn_dim=inner, max_position_embeddings=144, is_decoder=True, add_cross_attention=True,
        scale_embedding=True, add_final_layer_norm=True, is_encoder_decoder=False, pad_token_id=1, bos_token_id=0,
        eos_token_id=2, decoder_start_token_id=0,
    )  # fmt: skip
    module: Any = t.VisionEncoderDecoderModel(
        encoder=t.DonutSwinModel(encoder), decoder=t.MBartForCausalLM._from_config(decoder, attn_implementation="eager")
    )
    module.config.decoder_start_token_id, module.config.pad_token_id, module.config.vocab_size = 0, 1, tokens
    if rung.spread:
        spread(module, generator=torch.Generator().manual_seed(seed))
    module = quicken(module.eval())
    return Donut(module.double() if rung.double else module, tokenizer, image_size=rung.size, name="rung")


def page_of(rung: Rung, seed: int) -> Page:
    """The first synthetic page of that size, of which only the first fields are private."""
    page = make_pages(1, seed=seed, size=rung.size)[0]
    kept = [field.key for field in page.private_fields][: rung.fields]
    return replace(page, fields=tuple(replace(field, private=field.key in kept) for field in page.fields))


def attack_of(rung: Rung) -> GradientAttack:
    """The attack of a rung, with as many draws for the whitening as it says."""
    attack = ATTACKS.load(rung.attack)
    assert isinstance(attack, GradientAttack)
    return replace(attack, whitening=replace(attack.whitening, draws=rung.draws))


class Read(Exception):
    """Ends an attack that has nothing left to find."""


def climb(rung: Rung, seed: int) -> dict[str, Any]:
    """Attack one page until it is read or the budget is spent; what it took."""
    model, page, engine = build(rung, seed), page_of(rung, seed), load_engine("rapidocr")
    kind = torch.float64 if rung.double else torch.float32
    pixels, template = (pixels_of(image)[None].to(kind) for image in (page.image, blank_template(page)))
    inputs = [model.encode(page, page.questions[0])]
    gradient = client_gradient(model, pixels, inputs)
    if rung.sent:
        gradient = {name: value for name, value in gradient.items() if name.startswith(rung.sent)}
    view = GradientView(model, gradient)
    private = torch.from_numpy(private_mask(page))[None]
    knowledge = Knowledge(template, private, inputs)
    ceiling = sum(bool(field.exact) for field in score_page(page, page.image, engine).fields)
    looks: list[dict[str, float]] = []
    clock: list[float] = []
    last = template

    def seen(number: int, loss: float, found: Tensor) -> None:
        nonlocal last
        last = found.detach().clamp(0, 1)
        clock.append(time.process_time())
        if number % LOOK and number < rung.budget:
            return
        score = score_page(page, image_of(last[0].float()), engine)
        fuzz = float(np.mean([field.fuzz for field in score.fields]))
        exact = sum(bool(field.exact) for field in score.fields)
        looks.append({"evaluations": number, "matching": loss, "psnr": score.psnr or 0.0, "fuzz": fuzz, "read": exact})
        clock.append(float("nan"))
        if exact >= ceiling:
            raise Read

    attack = attack_of(rung)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(int(private.sum()), generator=generator).to(kind)
    start = template.clone()
    start[:, :, private[0]] = 0.6 + 0.4 * drawn if attack.start == "light" else drawn
    began = time.process_time()
    with suppress(Read):
        attack.run(view, knowledge, budget=rung.budget, generator=generator, on_evaluation=seen, start_at=start)
    seconds = time.process_time() - began
    distance = float(relative(view)(dummy_of(view, last, inputs, create_graph=False)))
    return {
        "unknowns": int(private.sum()),
        "fields": len(page.private_fields),
        "ceiling": ceiling,
        "parameters": sum(parameter.numel() for parameter in model.module.parameters()),
        "looks": looks,
        "relative": distance,
        "seconds": seconds,
        "step": float(np.nanmedian(np.diff(clock))),
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def as_markdown(results: dict[str, dict[str, Any]], seed: int) -> str:
    """All rungs that were climbed, in order."""
    lines = [
        "# From the tiny Donut to Donut-base",
        "",
        "`python -m scripts.donut_ladder --out docs/results/gi-dqa/donut-ladder.md --keep FOLDER`",
        "",
        "One synthetic page, random weights, nothing but the gradient, the template and the text of the question and",
        "answer. A rung ends with the first look, one every"
        f" {LOOK} evaluations, at which all is read that OCR reads on the",
        "true page; *evaluations* are those it had until then, the 17 gradients of whitening included. *Relative",
        "distance* is the mean over the tensors sent of |g' - g|² / |g|² at that look. Seconds are of one CPU core.",
        "",
        "| rung | parameters | unknown pixels | fields read | PSNR, dB | relative distance | evaluations "
        "| s an evaluation | s in all | memory, GB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rung in results.items():
        look = rung["looks"][-1]
        asked = rung["ceiling"]
        read = f"{look['read']:.0f} of {asked}" + ("" if look["read"] >= asked else " (budget spent)")
        lines.append(
            f"| {name} | {rung['parameters'] / 1e6:.1f} M | {rung['unknowns']:,} | {read} | {look['psnr']:.1f} "
            f"| {rung['relative']:.1e} | {look['evaluations']:.0f} | {rung['step']:.2f} | {rung['seconds']:.0f} "
            f"| {rung['gigabytes']:.1f} |"
        )
    rows = ["", "| rung | PSNR in dB (fields read) by evaluations |", "|---|---|"]
    for name, rung in results.items():
        looks = [f"{look['evaluations']:.0f}: {look['psnr']:.1f} ({look['read']:.0f})" for look in rung["looks"]]
        rows.append(f"| {name} | {', '.join(looks)} |")
    if missing := [name for name in RUNGS if name not in results]:
        rows += ["", f"Not climbed yet: {'; '.join(missing)}."]
    commits = ", ".join(sorted({rung["commit"] for rung in results.values()}))
    signature = [
        "",
        f"Seed: {seed}; torch {torch.__version__}; {os.cpu_count()} cores, other work beside it; {commits}",
    ]
    return "\n".join([*lines, *rows, *signature, ""])


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty"]
    return "commit " + subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _one(name: str, file: Path, seed: int) -> None:
    torch.set_num_threads(1)
    record = {**climb(RUNGS[name], seed), "commit": _commit()}
    file.write_text(json.dumps(record, indent=1) + "\n")
    look = record["looks"][-1]
    print(f"{name}: {look}, {record['step']:.2f} s, {record['gigabytes']:.1f} GB", flush=True)


def main() -> None:
    """Climb what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--rungs", help="only these, separated by semicolons")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    files = {name: given.keep / f"{number:02}.json" for number, name in enumerate(RUNGS)}
    if given.one:
        _one(given.one, files[given.one], given.seed)
        return
    given.keep.mkdir(parents=True, exist_ok=True)
    wanted = given.rungs.split(";") if given.rungs else list(RUNGS)
    unknown = set(wanted) - set(RUNGS)
    if unknown:
        parser.error(f"no rung {sorted(unknown)}; expected some of {list(RUNGS)}")
    command = [sys.executable, "-m", "scripts.donut_ladder", "--keep", str(given.keep), "--seed", str(given.seed)]
    with ThreadPoolExecutor(given.workers) as pool:
        missing = [name for name in wanted if not files[name].is_file()]
        list(pool.map(lambda name: subprocess.run([*command, "--one", name], check=True), missing))
    if given.out:
        results = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
        text = given.out.read_text() if given.out.is_file() else ""
        kept = text[text.index(HEADING) :] if HEADING in text else f"{HEADING}\n\nTo be written.\n"
        given.out.write_text(f"{as_markdown(results, given.seed)}\n{kept}")


if __name__ == "__main__":
    main()
