"""``python -m scripts.readers llava FOLDER``: train a tiny vision-language model to answer about synthetic invoices.

Its tower begins as the shipped Donut's encoder. As for that one (``docleak.training.reading``), heads that are thrown
away ask every cell for its character, its field and its place in it, of the tower's output and of the language model's
middle, and the last layer's attention is shown the cell of the character to say next. FOLDER/state.pt is written every
hundred steps; the same command goes on from there. ``--after``, another training's FOLDER or a shipped model, gives
all but the projector.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from docleak.documents.page import Page, Question
from docleak.documents.synthetic import make_page
from docleak.documents.synthetic_values import KEYS
from docleak.files import drafted_folder, reported, write_atomically, write_json
from docleak.models import load_model
from docleak.models.base import pixels_of
from docleak.models.donut import Donut
from docleak.models.lora import Lora, adapt
from docleak.models.vlm.model import VisionLanguage
from docleak.training.checkpoints import measure, write_checkpoint
from docleak.training.reading import ReadingHead
from scripts.readers.german import german_page
from scripts.readers.packing import Packer, attend
from scripts.readers.start import FAMILIES, WIDTH, reader_start, take_over

PAGES, WARM_UP = 8000, 100
#: Kinds of invoices: one page by its number.
PAGE: dict[str, Callable[..., Page]] = {"english": make_page, "german": german_page}


def _begun(family: str, given: argparse.Namespace, heads: nn.Module) -> VisionLanguage:
    """The model before its training; ``heads`` take over those of another training."""
    donut = load_model("donut-trained")
    assert isinstance(donut, Donut)
    model = reader_start(family, donut, seed=given.seed)
    if given.after and given.after.is_dir():
        other = reader_start(given.after_family, donut, seed=given.seed)
        saved = torch.load(given.after / "state.pt", weights_only=True)
        other.module.load_state_dict(saved["net"])
        heads.load_state_dict(saved["heads"])
        take_over(model, other)
    elif given.after:
        take_over(model, _shipped(given.after))
    return model


def _adapted(given: argparse.Namespace) -> VisionLanguage:
    """Adapters on ``--after``, drawn anew; the base is frozen."""
    folder = given.out / "drawn"
    if not folder.exists():
        adapt(str(given.after), folder, Lora.parsed(given.lora), seed=given.seed)
    return _shipped(folder)


def _shipped(name: Path) -> VisionLanguage:
    model = load_model(str(name))
    assert isinstance(model, VisionLanguage)
    return model


class Trainer:
    """A model, the heads that are thrown away, and AdamW; the tower's learning rate is its own."""

    def __init__(self, family: str, given: argparse.Namespace) -> None:
        self.given, self.step, self.seconds = given, 0, 0.0
        self.heads = nn.ModuleList([ReadingHead(WIDTH, keys=sorted(KEYS)) for _ in range(2)])
        self.model = _adapted(given) if given.lora else _begun(family, given, self.heads)
        self.network = self.model.module
        self.packer, self.kept = Packer(self.model), dict[str, Tensor]()
        text = self.network.model.language_model
        ALL_ATTENTION_FUNCTIONS["packed"] = attend(text, len(self.packer.picture), self.kept)
        text.config._attn_implementation = "packed"
        tower = list(self.network.model.vision_tower.parameters())
        seen = {id(p) for p in tower}
        rest = [p for p in [*self.network.parameters(), *self.heads.parameters()] if id(p) not in seen]
        rest, tower = ([p for p in part if p.requires_grad] for part in (rest, tower))
        self.rates = given.learning_rate, given.learning_rate * given.tower
        groups = [{"params": group, "lr": rate} for group, rate in zip((rest, tower), self.rates, strict=True)]
        self.optimiser = torch.optim.AdamW(groups, weight_decay=0.01)
        self.file = given.out / "state.pt"
        if self.file.is_file():
            saved = torch.load(self.file, weights_only=True)
            self.network.load_state_dict(saved["net"])
            self.heads.load_state_dict(saved["heads"])
            self.optimiser.load_state_dict(saved["opt"])
            self.step, self.seconds = saved["step"], saved["seconds"]
        self.began = time.process_time() - self.seconds

    def rate(self) -> float:
        """Linear warm-up, 1, and over the last ``decay`` steps down to 0.02."""
        left = (self.given.steps - self.step) / max(1, self.given.decay)
        return min((self.step + 1) / WARM_UP, max(0.02, min(1.0, left)))

    def losses(self, pages: Sequence[Page], asked: Sequence[Sequence[Question]], *, frozen: bool) -> list[Tensor]:
        """Of answers, of pointing, and of reading in the tower and in the middle of the language model."""
        packed, packer = self.packer.pack(pages, asked), self.packer
        pixels = torch.stack([pixels_of(page.image) for page in pages])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cells, out = packer.run(pixels, packed, frozen=frozen)
            says = packed.labels[:, 1:] >= 0
            logits = self.network.lm_head(out.last_hidden_state[:, :-1][says]).float()
        answers = F.cross_entropy(logits, packed.labels[:, 1:][says])
        row, place, cell = packed.pointing.T
        attention = self.kept["last"][row, :, place - len(packer.picture), cell].mean(1)
        pointing = -attention.clamp_min(1e-9).log().mean()
        seen = cells.float().reshape(len(pages), -1, WIDTH)[:, packer.order]
        middle = out.hidden_states[2][:, packer.places].float()
        reading = [head.loss(x, pages, packer.grid) for head, x in zip(self.heads, (seen, middle), strict=True)]
        return [answers, pointing, *reading]

    def train_step(self, rng: np.random.Generator) -> list[float]:
        """One step over pages drawn anew; the losses."""
        numbers = rng.integers(PAGES, size=self.given.pages)
        pages = [
            self.model.fit(PAGE[self.given.invoices](int(n), seed=self.given.seed, split="train")) for n in numbers
        ]
        asked = [[page.questions[int(k)] for k in rng.permutation(len(page.questions))] for page in pages]
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.rate()
        losses = self.losses(pages, asked, frozen=self.step < self.given.frozen)
        self.optimiser.zero_grad(set_to_none=True)
        torch.stack(losses).sum().backward()
        moved = [p for group in self.optimiser.param_groups for p in group["params"] if p.grad is not None]
        nn.utils.clip_grad_norm_(moved, 1.0)
        self.optimiser.step()
        self.step += 1
        return [float(loss.detach()) for loss in losses]

    def save(self) -> None:
        """Write what the training goes on from."""
        import io

        state: dict[str, Any] = {
            "net": self.network.state_dict(), "heads": self.heads.state_dict(), "opt": self.optimiser.state_dict(),
            "step": self.step, "seconds": time.process_time() - self.began,
        }  # fmt: skip
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomically(self.file, buffer.getvalue())

    def finish(self, name: str) -> dict[str, object]:
        """Write OUT/NAME with its card; what it answers of 100 unseen invoices is measured."""
        self.network.model.language_model.config._attn_implementation = "eager"
        given, start = self.given, self.given.after
        recipe = (
            f"{f'LoRA {given.lora} on {start.name}' if given.lora else self._start()}, seed {given.seed}; "
            f"{self.step} steps of {given.pages} pages, "
            f"all their questions, at {given.learning_rate:g}, shown where to look (python -m scripts.readers), AdamW, "
            f"{PAGES} synthetic invoices (split train{'' if given.invoices == 'english' else ', ' + given.invoices}), "
            f"{(time.process_time() - self.began) / 60:.0f} min of one CPU thread"
        )
        if given.lora:
            before = {f"{key} before": value for key, value in measure(_shipped(start), self.unseen()).items()}
            card = {"base": start.name, "recipe": recipe, **before, **measure(self.model, self.unseen())}
            folder = given.out / name
            with reported(folder), drafted_folder(folder) as draft:
                self.model.save(str(draft))
                write_json(draft / "docleak.json", card)
            return card
        return write_checkpoint(self.model, given.out / name, {"recipe": recipe, **measure(self.model, self.unseen())})

    def _start(self) -> str:
        began = f"language model of {self.given.after.name}, " if self.given.after else ""
        return f"tower of donut-trained, {began}the rest spread"

    def unseen(self) -> list[Page]:
        """Invoices of the same kind that no training saw."""
        page = PAGE[self.given.invoices]
        return [page(number, seed=self.given.seed, split="validation") for number in range(self.given.unseen)]


def asked(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--after", type=Path, help="the FOLDER of another training, or a shipped model")
    parser.add_argument("--after-family", default="llava", choices=sorted(FAMILIES))
    parser.add_argument("--lora", default="", help="Train adapters alone, on the shipped model of --after: r=8")
    parser.add_argument("--invoices", default="english", choices=sorted(PAGE))
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--decay", type=int, default=1500, help="steps over which the learning rate falls")
    parser.add_argument("--frozen", type=int, default=500, help="steps in which the tower stays as it is")
    parser.add_argument("--pages", type=int, default=4)
    parser.add_argument("--unseen", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--tower", type=float, default=0.3, help="the tower's learning rate, as a share")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    return parser.parse_args(arguments)


def main() -> None:
    """Train until ``--steps``, or for ``--seconds``."""
    given = asked()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    trainer, began, recent = Trainer(given.family, given), time.monotonic(), []
    while trainer.step < given.steps and time.monotonic() - began < given.seconds:
        recent.append(trainer.train_step(np.random.default_rng((given.seed, trainer.step))))
        if trainer.step % 50 == 0:
            print(f"step {trainer.step} of {given.steps}: answers, pointing, reading twice:", end=" ")
            print(*(f"{loss:.3f}" for loss in np.mean(recent, 0)), flush=True)
            recent.clear()
        if trainer.step % 100 == 0:
            trainer.save()
    trainer.save()
    if trainer.step >= given.steps:
        print(trainer.finish(f"{given.family.removesuffix('_vision')}-{'adapted' if given.lora else 'trained'}"))


if __name__ == "__main__":
    main()
