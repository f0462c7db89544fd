"""Pixels in closed form at the shape of SigLIP-so400m: ``python scripts/tower_pixels.py --patches 256 --layers 27``.

A SigLIP tower (d 1152, patches of 14 pixels, random weights, float32) reads a synthetic invoice. The loss is that of
an answer behind a projector and a small random decoder, or (``--loss linear``) a random linear function of the tower's
output. The attack sees the gradients of the table of positions and of the patch weight, and no template; what it gives
is read by OCR beside the true page.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from docleak.attacks.gradients.algebra.patches import System, numbers_of, pixels_of_system
from docleak.attacks.gradients.algebra.subset_sums import FLOAT32
from docleak.documents.page import Image, Page
from docleak.documents.synthetic import make_pages
from docleak.metrics import load_engine, read_fields
from docleak.models import image_of, pixels_of
from docleak.models.start import spread

WIDTH, PATCH = 1152, 14
#: The decoder's own width, vocabulary, and tokens of the prompt and of the answer.
DECODER, VOCABULARY, PROMPT, ANSWER = 512, 4000, 20, 10


@dataclass(frozen=True)
class Client:
    """A tower and what stands behind it."""

    tower: Any
    projector: nn.Linear
    decoder: Any
    prompt: Tensor

    @classmethod
    def drawn(cls, side: int, layers: int, initialisation: str, seed: int) -> Client:
        """Weights as ``transformers`` draws them, or spread (``models.start``)."""
        import transformers as t

        torch.manual_seed(seed)
        of_tower = t.SiglipVisionConfig(
            hidden_size=WIDTH, intermediate_size=4304, num_hidden_layers=layers, num_attention_heads=16,
            image_size=side, patch_size=PATCH, vision_use_head=False,
        )  # fmt: skip
        of_decoder = t.LlamaConfig(
            hidden_size=DECODER, intermediate_size=2 * DECODER, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=8, vocab_size=VOCABULARY, max_position_embeddings=2048,
        )  # fmt: skip
        parts = [t.SiglipVisionModel(of_tower), nn.Linear(WIDTH, DECODER), t.LlamaForCausalLM(of_decoder)]
        generator = torch.Generator().manual_seed(seed)
        for part in parts:
            part.eval().requires_grad_(False)
            if initialisation == "spread":
                spread(part, generator=generator)
        prompt = torch.randint(VOCABULARY, (1, PROMPT + ANSWER), generator=generator)
        return cls(parts[0], parts[1], parts[2], prompt)

    def trained(self) -> list[nn.Parameter]:
        """The table of positions and the patch weight."""
        named = dict(self.tower.named_parameters())
        ends = ("position_embedding.weight", "patch_embedding.weight")
        return [next(p for name, p in named.items() if name.endswith(end)).requires_grad_(True) for end in ends]

    def loss(self, pixels: Tensor, kind: str) -> Tensor:
        """Of one page (1, 3, H, W) in [0, 1]."""
        out = self.tower(pixel_values=2 * pixels - 1).last_hidden_state
        if kind == "linear":
            return (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(1))).mean()
        words = self.decoder.get_input_embeddings()(self.prompt)
        asked = torch.full((1, out.shape[1] + PROMPT), -100)
        labels = torch.cat([asked, self.prompt[:, PROMPT:]], 1)
        loss: Tensor = self.decoder(inputs_embeds=torch.cat([self.projector(out), words], 1), labels=labels).loss
        return loss


def system_of(moved: Tensor, sent: Tensor) -> System:
    """The linear system of the patches, from the gradients of the table and of the patch weight."""
    gradients, columns = numbers_of(moved), numbers_of(sent)
    sums = columns.transpose(2, 3, 1, 0).reshape(PATCH * PATCH, 3, -1)
    sums = (sums + gradients.sum(axis=0)) / 2
    return System(gradients, sums, PATCH, FLOAT32 * float(np.sqrt(np.square(sums).mean())))


def compared(page: Page, picture: Image) -> str:
    """What OCR reads of the recovered picture and of the true page, at the private fields."""
    engine = load_engine("rapidocr")
    true, recovered = read_fields(page, page.image, engine), read_fields(page, picture, engine)
    legible = sum(bool(reading.text) for reading in true.values())
    alike = sum(reading.text == recovered[index].text for index, reading in true.items())
    levels = np.abs(page.image.astype(int) - picture)
    return (
        f"OCR of {alike} of {len(true)} fields equal to that of the true page, where {legible} are legible; of the "
        f"8-bit pictures {float((levels > 0).mean()):.2%} of numbers differ, by {int(levels.max())} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=256)
    parser.add_argument("--layers", type=int, default=27)
    parser.add_argument("--loss", choices=("language", "linear"), default="language")
    parser.add_argument("--initialisation", choices=("spread", "default"), default="spread")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    side = PATCH * int(arguments.patches**0.5)
    (page,) = make_pages(1, seed=arguments.seed, size=(side, side))
    pixels = pixels_of(page.image)[None]
    client = Client.drawn(side, arguments.layers, arguments.initialisation, arguments.seed)
    trained, started = client.trained(), time.perf_counter()
    moved, sent = torch.autograd.grad(client.loss(pixels, arguments.loss), trained)
    seconds, started = time.perf_counter() - started, time.perf_counter()
    unknown = torch.ones(1, side, side, dtype=torch.bool)
    recovered, determined, conditions = pixels_of_system(system_of(moved, sent), torch.full_like(pixels, 0.5), unknown)
    attack, wrong = time.perf_counter() - started, (recovered - pixels).abs()
    print(
        f"{arguments.patches} patches, {arguments.layers} layers, {arguments.loss}, {arguments.initialisation}, seed "
        f"{arguments.seed}: {float((wrong <= 1 / 255).float().mean()):.2%} of pixels within 1/255, largest error "
        f"{float(wrong.max()):.1e}, determined {float(determined.float().mean()):.1%}, client {seconds:.0f} s, attack "
        f"{attack:.0f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB at the peak; "
        + "; ".join(f"{one.name}: {one.found}" for one in conditions)
        + f"; {compared(page, image_of(recovered[0]))}",
        flush=True,
    )


if __name__ == "__main__":
    main()
