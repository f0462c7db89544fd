"""What is read in its order: ``python -m scripts.order answers`` of VT5, ``python -m scripts.order pages`` of families.

Answers of batches are read out of the gradient of the shipped VT5s, as sent and under noise; pages, questions and
answers out of that of vision-language models of random weights whose language model has three layers and is 384 wide.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from docleak.attacks.gradients.algebra.order import recover_answers
from docleak.attacks.gradients.algebra.recover import recover
from docleak.errors import AttackError
from docleak.models import load_model
from docleak.models.vlm import tiny
from docleak.studies.gradient.case import Case, build_case, pages_for
from docleak.studies.gradient.config import Exposure

SEEDS = (5, 6, 7)
BATCHES, NOISE = (1, 4, 16), (0.0, 1e-7, 1e-6, 1e-5, 1e-4)
FAMILIES = ("llava", "gemma3", "qwen3_vl", "paligemma", "qwen2_vl", "idefics3")
WIDTH = 384


def case_of(source: str, count: int, seed: int, defense: str = "none") -> Case:
    """A client's gradient on synthetic pages, whose server knows neither question nor answer."""
    model = load_model(source)
    exposure = Exposure(question_known=False, answer_known=False, defense=defense)
    return build_case(model, pages_for(model, "synthetic", count=count, seed=seed), exposure, seed=seed)


def answers() -> None:
    """A row for each model, batch and noise, over seeds."""
    print("| model | answers in a gradient | noise | right | wrong | the attacker is sure | seconds |")
    print("|---|---|---|---|---|---|---|")
    settings = [(b, 0.0) for b in BATCHES] + [(4, noise) for noise in NOISE[1:]]
    for name in ("vt5-public", "vt5-trained"):
        for count, noise in settings:
            right = wrong = of = sure = 0
            started = time.perf_counter()
            for seed in SEEDS:
                case = case_of(name, count, seed, f"noise:sigma={noise:g}" if noise else "none")
                true = {tuple(example.tensors["labels"].tolist()[:-1]) for example in case.inputs}
                try:
                    recovered = recover_answers(case.view)
                except AttackError:
                    recovered = None
                read = set(recovered.tokens) if recovered else set()
                right, wrong, of = right + len(read & true), wrong + len(read - true), of + len(true)
                sure += recovered is not None and recovered.exact
            seconds = (time.perf_counter() - started) / len(SEEDS)
            cells = [name, count, f"{noise:g}", f"{right} of {of}", wrong, f"{sure} of {len(SEEDS)}", f"{seconds:.1f}"]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def pages() -> None:
    """A row for each family: what is read, or why it is not."""
    print("| family | question | answer | largest error of the picture | the attacker is sure | seconds | else |")
    print("|---|---|---|---|---|---|---|")
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            _make(family, Path(folder) / family)
            case = case_of(str(Path(folder) / family), 1, SEEDS[0])
        started = time.perf_counter()
        try:
            recovered = recover(case.view, case.knowledge)
        except AttackError as fault:
            print(f"| {family} | - | - | - | - | {time.perf_counter() - started:.0f} | {fault} |", flush=True)
            continue
        seconds = time.perf_counter() - started
        true, read = (case.view.model.transcript(one) for one in (case.inputs[0], recovered.inputs[0]))
        assert recovered.pixels is not None
        cells = [family, *("read" if a == b else "wrong" for a, b in ((true.question, read.question),
                 (true.answer, read.answer))), f"{float((recovered.pixels - case.pixels).abs().max()):.1e}",
                 "yes" if recovered.exact else "no", f"{seconds:.0f}", ""]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


def _make(family: str, folder: Path) -> None:
    """The tiny model of a family with room in its language model, and a layer more."""
    made = tiny._wider(tiny.FAMILIES[family](), WIDTH)
    layers = {"layer_types": ["sliding_attention", *["full_attention"] * 2]} if "layer_types" in made.text else {}
    heads = {"num_attention_heads": WIDTH // 12, "num_key_value_heads": WIDTH // 24}
    before = tiny.FAMILIES[family]
    tiny.FAMILIES[family] = lambda: replace(made, text={**made.text, **heads, "num_hidden_layers": 3, **layers})
    try:
        tiny.make_tiny(family, folder, seed=SEEDS[0])
    finally:
        tiny.FAMILIES[family] = before


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"answers": answers, "pages": pages}[sys.argv[1]]()
