"""Measure what ``docleak plan`` says, on configurations drawn at random: ``python scripts/plan_measured.py``.

Each is a small Qwen2 with pages of random words and picture vectors, trained as the configuration says; the attack is
docleak's own. *Open* is measured where at least half of the words are read and at most one in a hundred of those is
wrong, or where the page in the update is nearer to its span than all of twelve others. Pictures are configurations of
their own: a small SigLIP tower before a small decoder, pages of random grey, no template, open where 99 % of the first
page's pixels are read to a grey level.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from docleak.attacks.gradients.algebra.first_layer import Sent
from docleak.attacks.gradients.algebra.patches import System, numbers_of, pixels_of_system
from docleak.attacks.gradients.algebra.subset_sums import FLOAT32
from docleak.attacks.gradients.algebra.subspace import Rows, Subspace, members
from docleak.attacks.gradients.local_steps import Optimiser
from docleak.files import write_atomically
from docleak.models.start import spread
from docleak.privacy.channels import Shape, State, plan

VOCABULARY, FOREIGN = 1000, 12
RATES = {"sgd": 0.3, "adamw": 1e-3}
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def drawn(seed: int) -> Shape:
    """A configuration."""
    generator = torch.Generator().manual_seed(seed)

    def one(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (), generator=generator))]

    rank = one(0, 2, 4, 8, 16)
    return Shape(
        width=one(64, 128, 256), vocabulary=VOCABULARY, words=one(5, 10, 20, 40, 80), patches=one(0, 4, 16, 60),
        rank=rank, adapted=one(0, 1, 2, 3, 3, 3), frozen_a=bool(rank) and one(0, 0, 0, 0, 1) == 1,
        table=rank == 0 and one(0, 0, 1) == 1, pages=one(1, 1, 2, 3), local_steps=one(1, 1, 2),
        rounds=one(1, 2, 3, 4, 6, 10), optimiser=one("sgd", "sgd", "sgd", "adamw"),
    )  # fmt: skip


class Lora(nn.Module):
    """A linear layer with adapters, B zero."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner
        self.a = nn.Parameter((torch.rand(rank, inner.in_features) * 2 - 1) / inner.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 2 * (x @ self.a.T) @ self.b.T


@dataclass(frozen=True)
class Measured:
    """What the attack got of one configuration."""

    words: bool
    page: bool
    recall: float
    wrong: int


class Client:
    """A model, pages of words and picture vectors, and what is trained of it."""

    def __init__(self, shape: Shape, seed: int) -> None:
        import transformers as t

        torch.manual_seed(seed)
        self.shape = shape
        settings = t.Qwen2Config(
            hidden_size=shape.width, intermediate_size=2 * shape.width, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, vocab_size=VOCABULARY, max_position_embeddings=1024, tie_word_embeddings=False,
        )  # fmt: skip
        self.net: Any = t.Qwen2ForCausalLM(settings).eval().requires_grad_(False)
        self.table = self.net.model.embed_tokens.weight
        layer = self.net.model.layers[0]
        trained: dict[str, nn.Parameter] = {}
        for name in PROJECTIONS[3 - shape.adapted :]:
            inner = getattr(layer.self_attn, name)
            if shape.rank:
                setattr(layer.self_attn, name, Lora(inner, shape.rank))
                low = getattr(layer.self_attn, name)
                trained |= {f"{name}.b": low.b} | ({} if shape.frozen_a else {f"{name}.a": low.a})
            else:
                trained[f"{name}.a"] = inner.weight
        trained["out"] = self.net.model.layers[1].mlp.down_proj.weight
        if shape.table:
            trained["table"] = self.table
        for parameter in trained.values():
            parameter.requires_grad_(True)
        self.trained, self.norm = trained, layer.input_layernorm
        order = torch.randperm(VOCABULARY)
        self.pages = [self._page(order[i * shape.words :][: shape.words]) for i in range(shape.pages)]

    def _page(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return ids, torch.randn(self.shape.patches, self.shape.width) * float(self.table.detach().std())

    def vectors(self, page: tuple[Tensor, Tensor]) -> Tensor:
        """What the first layer reads of a page, its last word apart."""
        ids, picture = page
        with torch.no_grad():
            return self.norm(torch.cat([picture, self.table[ids[:-1]]]))

    def loss(self) -> Tensor:
        losses = []
        for ids, picture in self.pages:
            read = torch.cat([picture, nn.functional.embedding(ids, self.table)])[None]
            labels = torch.cat([torch.full((len(picture),), -100), ids])[None]
            losses.append(self.net(inputs_embeds=read, labels=labels).loss)
        return torch.stack(losses).mean()

    def round(self) -> Sent:
        """Train as the shape says; what is sent of all that is trained."""
        shape = self.shape
        optimiser = Optimiser(shape.optimiser, RATES[shape.optimiser], 0.0)
        kind = torch.optim.SGD if shape.optimiser == "sgd" else torch.optim.AdamW
        start = {name: p.detach().clone() for name, p in self.trained.items()}
        steps = kind(self.trained.values(), lr=optimiser.learning_rate, weight_decay=0.0)
        for _ in range(shape.local_steps):
            steps.zero_grad()
            self.loss().backward()
            steps.step()
        delta = {name: start[name] - p.detach() for name, p in self.trained.items()}
        return Sent.of(delta, start, optimiser, shape.local_steps)


def measured(shape: Shape, seed: int) -> Measured:
    """Train, attack, and hold against the truth."""
    client = Client(shape, seed)
    frozen = client.norm(client.table.detach())
    sent = [client.round() for _ in range(shape.rounds)]
    true = {int(i) for ids, _ in client.pages for i in ids[:-1]}
    blocks = []
    for one in sent if shape.rank else sent[-1:]:
        for name, value in one.update.items():
            if name.endswith(".a") and bool(value.any()):
                noise = one.noise.get(name, 0.0)
                rows = noise.square().mean(1).sqrt() if isinstance(noise, Tensor) and noise.ndim == 2 else noise
                blocks.append(Rows(value, rows))
    space = Subspace.of(blocks or [Rows(torch.zeros(1, shape.width))])
    if shape.table:
        moved = sent[0].update["table"].abs().sum(1) > 0
        read = {int(i) for i in moved.nonzero().flatten()}
    else:
        read = {int(i) for i in members(space, frozen).taken.nonzero().flatten()}
    others = {int(i) for ids, _ in client.pages for i in ids[-1:]}
    right, wrong = len(read & true), len(read - true - others)
    distance = float(space.residual(client.vectors(client.pages[0])).mean()) if space.rank else 1.0
    foreign = [client._page(torch.randperm(VOCABULARY)[: shape.words]) for _ in range(FOREIGN)]
    nearest = min(float(space.residual(client.vectors(page)).mean()) for page in foreign) if space.rank else 1.0
    told = 2 * right >= len(true) and 100 * wrong <= max(1, len(read))
    return Measured(told, distance < nearest - 1e-6, right / max(1, len(true)), wrong)


PATCH, ANSWERED = 4, 6


def drawn_picture(seed: int) -> Shape:
    """A configuration whose tower is trained."""
    generator = torch.Generator().manual_seed(seed)

    def one(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (), generator=generator))]

    return Shape(
        width=64, vocabulary=VOCABULARY, words=ANSWERED, rank=0, adapted=0, tower_width=one(32, 64, 96, 160),
        tower_patches=one(16, 25, 49, 64, 81), pages=one(1, 1, 1, 2), tiles=one(1, 1, 1, 4),
        optimiser=one("sgd", "sgd", "sgd", "adamw"), local_steps=one(1, 1, 1, 2), rounds=1,
    )  # fmt: skip


class Seeing(nn.Module):
    """A tower of the shape before a decoder, whose pages are ``tiles`` pictures each."""

    def __init__(self, shape: Shape) -> None:
        import transformers as t

        super().__init__()
        side = PATCH * round(shape.tower_patches**0.5)
        seen = t.SiglipVisionConfig(
            hidden_size=shape.tower_width, intermediate_size=2 * shape.tower_width, num_hidden_layers=2,
            num_attention_heads=4, image_size=side, patch_size=PATCH, vision_use_head=False,
        )  # fmt: skip
        said = t.LlamaConfig(
            hidden_size=shape.width, intermediate_size=2 * shape.width, num_hidden_layers=2, num_attention_heads=4,
            vocab_size=VOCABULARY,
        )  # fmt: skip
        self.tower: Any = t.SiglipVisionModel(seen)
        self.join = nn.Linear(shape.tower_width, shape.width)
        self.decoder: Any = t.LlamaForCausalLM(said)
        spread(self, generator=torch.Generator().manual_seed(0))
        self.eval().requires_grad_(False)
        ends = ("position_embedding.weight", "patch_embedding.weight")
        self.trained = {
            n: p.requires_grad_(True) for end in ends for n, p in self.named_parameters() if n.endswith(end)
        }

    def forward(self, pages: Tensor, ids: Tensor) -> Tensor:
        """Mean loss of the answers (pages, words) to pages (pages, tiles, 3, H, W) in [0, 1]."""
        losses = []
        for page, words in zip(pages, ids, strict=True):
            seen = self.join(self.tower(pixel_values=2 * page - 1).last_hidden_state).flatten(0, 1)
            read = torch.cat([seen, self.decoder.get_input_embeddings()(words)])[None]
            labels = torch.cat([torch.full((len(seen) + 1,), -100), words[1:]])[None]
            losses.append(self.decoder(inputs_embeds=read, labels=labels).loss)
        return torch.stack(losses).mean()


def picture(shape: Shape, seed: int) -> float:
    """The share of the first picture's pixels that are read to a grey level; a client trains as the shape says."""
    torch.manual_seed(seed)
    net, side = Seeing(shape), PATCH * round(shape.tower_patches**0.5)
    pages, ids = torch.rand(shape.pages, shape.tiles, 3, side, side), torch.randint(VOCABULARY, (shape.pages, ANSWERED))
    optimiser = Optimiser(shape.optimiser, RATES[shape.optimiser], 0.0)
    start = {name: p.detach().clone() for name, p in net.trained.items()}
    kind = torch.optim.SGD if shape.optimiser == "sgd" else torch.optim.AdamW
    steps = kind(net.trained.values(), lr=optimiser.learning_rate, weight_decay=0.0)
    for _ in range(shape.local_steps):
        steps.zero_grad()
        net(pages, ids).backward()
        steps.step()
    delta = {name: start[name] - p.detach() for name, p in net.trained.items()}
    moved, sent = (numbers_of(one) for one in Sent.of(delta, start, optimiser, shape.local_steps).update.values())
    sums = (sent.transpose(2, 3, 1, 0).reshape(PATCH**2, 3, -1) + moved.sum(axis=0)) / 2
    system = System(moved, sums, PATCH, FLOAT32 * float((sums**2).mean() ** 0.5))
    blank, unknown = torch.full_like(pages[0, :1], 0.5), torch.ones(1, side, side, dtype=torch.bool)
    pixels, _, _ = pixels_of_system(system, blank, unknown)
    return float(((pixels - pages[0, :1]).abs() <= 1 / 255).float().mean())


def compared_picture(seed: int) -> tuple[str, State, bool, Shape, Measured]:
    """(channel, planned, measured open) of one configuration with a trained tower."""
    shape = drawn_picture(seed)
    share = picture(shape, seed)
    said = next(channel.state for channel in plan(shape) if channel.name == "picture")
    return "picture", said, share >= 0.99, shape, Measured(False, False, share, 0)


def compared(seed: int) -> list[tuple[str, State, bool, Shape, Measured]]:
    """(channel, planned, measured open) of one configuration."""
    shape = drawn(seed)
    score, said = measured(shape, seed), {channel.name: channel.state for channel in plan(shape)}
    return [(name, said[name], getattr(score, name), shape, score) for name in ("words", "page")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="The first seed.")
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=150.0, help="Stop drawing after so long.")
    parser.add_argument("--out", type=Path, default=Path("docs/results/plan.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started, rows = time.perf_counter(), []
    for seed in itertools.takewhile(
        lambda _: time.perf_counter() - started < arguments.seconds,
        range(arguments.first, arguments.first + arguments.count),
    ):
        rows.append(compared(seed))
    pictures = [compared_picture(seed) for seed in range(arguments.first, arguments.first + arguments.pictures)]
    flat = [*(row for one in rows for row in one), *pictures]
    counts = Counter((name, str(said), opened) for name, said, opened, _, _ in flat)
    misses = [row for row in flat if row[1] is not State.UNTOLD and (row[1] is State.OPEN) != row[2]]
    lines = [
        "# What `docleak plan` says, measured", "",
        f"`python scripts/plan_measured.py`: {len(rows)} configurations and {len(pictures)} of pictures, seeds from "
        f"{arguments.first}, one CPU thread, {time.perf_counter() - started:.0f} s, torch {torch.__version__}. "
        "Small Qwen2 models of random weights, widths 64 to 256, 1,000 words; what is drawn is in `drawn` and "
        "`drawn_picture`.", "",
        "| channel | planned | measured open | measured closed |", "|---|---|---|---|",
        *(f"| {name} | {state} | {counts[name, str(state), True]} | {counts[name, str(state), False]} |"
          for name in ("words", "page", "picture") for state in State), "",
    ]  # fmt: skip
    for name in ("words", "page", "picture"):
        answered = [row for row in flat if row[0] == name and row[1] is not State.UNTOLD]
        right = sum((said is State.OPEN) == opened for _, said, opened, _, _ in answered)
        lines.append(f"Of {name}: {right} of {len(answered)} answers that are open or closed are right.")
    lines += ["", "## Misses", ""]
    plain = Shape()
    for name, said, opened, shape, score in misses:
        differs = {k: v for k, v in vars(shape).items() if v != getattr(plain, k)}
        lines.append(f"- {name}: planned {said}, measured {'open' if opened else 'closed'} (recall {score.recall:.2f}, "
                     f"{score.wrong} wrong): {differs}")  # fmt: skip
    write_atomically(arguments.out, ("\n".join(lines) + "\n").encode())
    print("\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
