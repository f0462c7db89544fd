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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from docleak.documents.page import Page, Question
from docleak.documents.synthetic import make_page, make_pages
from docleak.documents.synthetic_values import KEYS
from docleak.files import write_atomically
from docleak.models import load_model
from docleak.models.base import pixels_of
from docleak.models.donut import Donut
from docleak.models.vlm.model import VisionLanguage
from docleak.training.checkpoints import measure, write_checkpoint
from docleak.training.reading import ReadingHead
from scripts.readers.packing import Packer, attend
from scripts.readers.start import FAMILIES, WIDTH, reader_start, take_over

PAGES, WARM_UP = 8000, 100


class Trainer:
    """A model, the heads that are thrown away, and AdamW; the tower's learning rate is its own."""

    def __init__(self, family: str, given: argparse.Namespace) -> None:
        donut = load_model("donut-trained")
        assert isinstance(donut, Donut)
        self.given, self.step = given, 0
        self.model = reader_start(family, donut, seed=given.seed)
        self.heads = nn.ModuleList([ReadingHead(WIDTH, keys=sorted(KEYS)) for _ in range(2)])
        self.network = self.model.module
        if given.after and given.after.is_dir():
            other = reader_start(given.after_family, donut, seed=given.seed)
            saved = torch.load(given.after / "state.pt", weights_only=True)
            other.module.load_state_dict(saved["net"])
            take_over(self.model, other)
            self.heads.load_state_dict(saved["heads"])
        elif given.after:
            other = load_model(str(given.after))
            assert isinstance(other, VisionLanguage)
            take_over(self.model, other)
        self.packer, self.kept = Packer(self.model), dict[str, Tensor]()
        text = self.network.model.language_model
        ALL_ATTENTION_FUNCTIONS["packed"] = attend(text, len(self.packer.picture), self.kept)
        text.config._attn_implementation = "packed"
        tower = list(self.network.model.vision_tower.parameters())
        seen = {id(p) for p in tower}
        rest = [p for p in [*self.network.parameters(), *self.heads.parameters()] if id(p) not in seen]
        self.rates = given.learning_rate, given.learning_rate * given.tower
        groups = [{"params": group, "lr": rate} for group, rate in zip((rest, tower), self.rates, strict=True)]
        self.optimiser = torch.optim.AdamW(groups, weight_decay=0.01)
        self.file = given.out / "state.pt"
        if self.file.is_file():
            saved = torch.load(self.file, weights_only=True)
            self.network.load_state_dict(saved["net"])
            self.heads.load_state_dict(saved["heads"])
            self.optimiser.load_state_dict(saved["opt"])
            self.step = saved["step"]

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
        pages = [self.model.fit(make_page(int(n), seed=self.given.seed, split="train")) for n in numbers]
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
            "step": self.step,
        }  # fmt: skip
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomically(self.file, buffer.getvalue())

    def finish(self, name: str) -> dict[str, object]:
        """Write OUT/NAME with its card; what it answers of 100 unseen invoices is measured."""
        self.network.model.language_model.config._attn_implementation = "eager"
        given = self.given
        began = f"after {given.after.name}, " if given.after else ""
        recipe = (
            f"tower of donut-trained, {began}the rest spread, seed {given.seed}; "
            f"{self.step} steps of {given.pages} pages, "
            f"all their questions, at {given.learning_rate:g}, shown where to look (python -m scripts.readers), AdamW, "
            f"{PAGES} synthetic invoices (split train)"
        )
        unseen = make_pages(given.unseen, seed=given.seed, split="validation")
        return write_checkpoint(self.model, given.out / name, {"recipe": recipe, **measure(self.model, unseen)})


def main() -> None:
    """Train until ``--steps``, or for ``--seconds``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--after", type=Path, help="the FOLDER of another training, or a shipped model")
    parser.add_argument("--after-family", default="llava", choices=sorted(FAMILIES))
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--decay", type=int, default=1500, help="steps over which the learning rate falls")
    parser.add_argument("--frozen", type=int, default=500, help="steps in which the tower stays as it is")
    parser.add_argument("--pages", type=int, default=4)
    parser.add_argument("--unseen", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--tower", type=float, default=0.3, help="the tower's learning rate, as a share")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
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
        print(trainer.finish(f"{given.family.removesuffix('_vision')}-trained"))


main()
