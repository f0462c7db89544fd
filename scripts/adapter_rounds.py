"""Words and a page out of LoRA over rounds at a width of 1,024: ``python scripts/adapter_rounds.py --optimiser sgd``.

A Qwen3-VL of random weights (vocabulary 32,000, two layers, float32) is trained by LoRA of rank 16 on query, key and
value of its first layer, on one page of 200 random words and 100 picture vectors, one row printed per number of rounds.
Rank and cut-off are docleak's, chosen without the truth. Rows are kept in docs/results/adapter-rounds.md.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.first_layer import Sent
from docleak.attacks.gradients.algebra.subspace import Rows, Subspace, members
from docleak.attacks.gradients.local_steps import Optimiser

WIDTH, VOCABULARY, RANK, WORDS, GRID, FIRST = 1024, 32_000, 16, 200, 20, 5
IMAGE, PATCHES = VOCABULARY - 1, GRID * GRID // 4
TARGETS = ("q_proj", "k_proj", "v_proj")


class Client:
    """The model with its adapters, and a page."""

    def __init__(self, seed: int) -> None:
        import transformers as t

        torch.manual_seed(seed)
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
        text = {
            "hidden_size": WIDTH, "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 64, "vocab_size": VOCABULARY, "max_position_embeddings": 2048,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": rope,
        }  # fmt: skip
        vision = {
            "depth": 2, "hidden_size": 256, "out_hidden_size": WIDTH, "intermediate_size": 512, "num_heads": 4,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
            "num_position_embeddings": 576, "deepstack_visual_indexes": [0],
        }  # fmt: skip
        config = t.Qwen3VLConfig(
            vision_config=vision, text_config=text, image_token_id=IMAGE, video_token_id=VOCABULARY - 2,
            vision_start_token_id=VOCABULARY - 3, vision_end_token_id=VOCABULARY - 4,
        )  # fmt: skip
        self.net: Any = t.Qwen3VLForConditionalGeneration(config).eval().requires_grad_(False)
        self.layer = self.net.model.language_model.layers[0]
        self.trained: dict[str, torch.nn.Parameter] = {}
        for name in TARGETS:
            self._adapt(name, getattr(self.layer.self_attn, name))
        self.read: list[Tensor] = []
        self.layer.self_attn.q_proj.register_forward_pre_hook(lambda _, given: self.read.append(given[0].detach()))
        words = torch.randint(0, VOCABULARY - 10, (WORDS,))
        self.ids = torch.cat([words[:FIRST], torch.full((PATCHES,), IMAGE), words[FIRST:]])[None]
        self.true, self.last = set(words[:-1].tolist()), int(words[-1])
        self.picture = self.drawn()

    def _adapt(self, name: str, inner: Any) -> None:
        a = torch.nn.Parameter((torch.rand(RANK, WIDTH) * 2 - 1) / WIDTH**0.5)
        b = torch.nn.Parameter(torch.zeros(inner.out_features, RANK))
        inner.register_forward_hook(lambda _, given, out: out + 2 * (given[0] @ a.T) @ b.T)
        self.trained |= {f"{name}.a": a, f"{name}.b": b}

    @staticmethod
    def drawn() -> Tensor:
        one = torch.rand(GRID * GRID, 3, 1, 16, 16)
        return one.expand(-1, 3, 2, 16, 16).reshape(GRID * GRID, -1).contiguous()

    def loss(self, picture: Tensor) -> Tensor:
        is_image = self.ids == IMAGE
        out: Tensor = self.net(
            input_ids=self.ids, pixel_values=picture, image_grid_thw=torch.tensor([[1, GRID, GRID]]),
            labels=self.ids.masked_fill(is_image, -100), mm_token_type_ids=is_image.long(),
        ).loss  # fmt: skip
        return out

    def vectors(self, picture: Tensor) -> Tensor:
        """What the first layer reads of a picture."""
        with torch.no_grad():
            self.loss(picture)
        return self.read[-1][0, FIRST : FIRST + PATCHES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimiser", default="sgd")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--decay", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--rounds", default="2,3,6,9")
    parser.add_argument("--bfloat16", action="store_true", help="Updates are sent so.")
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    client, asked = Client(arguments.seed), [int(number) for number in arguments.rounds.split(",")]
    optimiser = Optimiser(arguments.optimiser, arguments.rate, arguments.decay)
    kind = torch.optim.SGD if optimiser.kind == "sgd" else torch.optim.AdamW
    with torch.no_grad():
        candidates = client.layer.input_layernorm(client.net.get_input_embeddings().weight)
    picture, other, blocks = client.vectors(client.picture), client.vectors(client.drawn()), []
    for number in range(1, max(asked) + 1):
        start = {name: p.detach().clone() for name, p in client.trained.items() if name.endswith(".a")}
        steps = kind(client.trained.values(), lr=optimiser.learning_rate, weight_decay=optimiser.weight_decay)
        for _ in range(arguments.steps):
            steps.zero_grad()
            client.loss(client.picture).backward()
            steps.step()
        delta = {name: start[name] - client.trained[name].detach() for name in start}
        if arguments.bfloat16:
            delta = {name: value.bfloat16().float() for name, value in delta.items()}
        sent = Sent.of(delta, start, optimiser, arguments.steps)
        for name in (name for name, value in delta.items() if bool(value.any())):
            blocks.append(Rows(sent.update[name], _rows(sent.noise[name], sent.update[name], arguments.bfloat16)))
        if number in asked and blocks:
            began, space = time.perf_counter(), Subspace.of(blocks)
            inside = members(space, candidates)
            read = {int(i) for i in inside.taken.nonzero().flatten()}
            near, far = (float(space.residual(vectors).mean()) for vectors in (picture, other))
            print(
                f"| {optimiser.kind}, {arguments.steps} steps{', bfloat16' if arguments.bfloat16 else ''} | {number} | "
                f"{space.rows} | {space.rank} | {len(read & client.true)} of {len(client.true)} | "
                f"{len(read - client.true - {client.last})} | {'yes' if inside.exact else 'no'} | "
                f"{near:.3f}, {far:.3f} | "
                f"{time.perf_counter() - began:.0f} s |", flush=True,
            )  # fmt: skip


def _rows(noise: Any, values: Tensor, coarse: bool) -> Any:
    rows = noise.square().mean(1).sqrt() if isinstance(noise, Tensor) and noise.ndim == 2 else noise
    return rows + 2.0**-9 / 3**0.5 * values.double().square().mean(1).sqrt() if coarse else rows


if __name__ == "__main__":
    main()
