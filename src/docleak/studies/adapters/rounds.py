"""What is measured of a family of vision-language models; clients that send adapters over rounds, and what the server
reads of it: words, and whether a page was there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.first_layer import Sent, Words, recover_words
from docleak.attacks.gradients.algebra.subspace import Rows, Subspace
from docleak.attacks.gradients.local_steps import Optimiser
from docleak.defenses import DEFENSES, GradientDefense
from docleak.defenses.defense import announced_noise, protected
from docleak.documents import Page
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, refuse, those
from docleak.models import load_model, pixels_of, trainable
from docleak.models.base import device_of
from docleak.models.lora import Lora, adapt
from docleak.models.vlm.model import LANGUAGE, VisionLanguage
from docleak.training.federated.local import train_locally
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.update import client_gradient


@dataclass(frozen=True)
class AdapterConfig:
    """A ``family`` is made on the spot (``models.vlm.tiny``), its language model ``width`` wide, its weights drawn by
    ``initialisation``: spread or default.

    Its whole gradient is one page's (``gradient``; ``budget`` evaluations of gi-dqa on the picture, 0 for none, where
    the language model is as narrow as ``models make`` makes it, for an evaluation is cheap then). Its
    adapters of ``rank`` on ``targets`` are trained for ``rounds`` by ``clients`` with a page each, ``steps`` steps a
    round. The server sees what client 0 sends, or, ``secure`` or under ``noise_multiplier``, the mean of all. Updates
    pass ``defense`` in units of a gradient; with ``clip`` each is scaled to that norm at most, and Gaussian noise of
    ``noise_multiplier`` times ``clip`` is added to the sum: differential privacy per client.
    """

    family: str = "qwen2_vl"
    initialisation: str = "spread"
    width: int = 576
    gradient: bool = True
    budget: int = 0
    rounds: int = 8
    rank: int = 32
    targets: str = "q_proj+k_proj+v_proj"
    frozen_a: bool = False
    clients: int = 1
    steps: int = 1
    optimiser: str = "sgd"
    learning_rate: float = 0.3
    defense: str = "none"
    secure: bool = False
    clip: float = 0.0
    noise_multiplier: float = 0.0
    unseen: int = 0
    others: int = 12
    seed: int = 5

    def __post_init__(self) -> None:
        least = {"rounds": 0, "rank": 1, "clients": 1, "steps": 1, "unseen": 0, "others": 0, "budget": 0, "clip": 0,
                 "noise_multiplier": 0}  # fmt: skip
        faults = [f"{name} is {getattr(self, name)}; expected {low} or more" for name, low in least.items()
                  if not getattr(self, name) >= low]  # fmt: skip
        faults += those(
            (self.width % 12, f"width is {self.width}; expected a multiple of 12"),
            (self.noise_multiplier and not self.clip,
             "noise_multiplier without clip has no sensitivity; expected a clip above 0"),
            (self.optimiser not in ("sgd", "adamw"), f"optimiser is {self.optimiser!r}; expected sgd or adamw"),
            (self.initialisation not in ("spread", "default"),
             f"initialisation is {self.initialisation!r}; expected spread or default"),
        )  # fmt: skip
        refuse(AttackError, faults)

    @property
    def summed(self) -> bool:
        """Whether the server sees the mean of all clients alone."""
        return self.secure or self.noise_multiplier > 0


Named = dict[str, Tensor]


@dataclass(frozen=True)
class Federation:
    """The model as it is sent to clients, their pages (one each), and ``unseen`` ones."""

    config: AdapterConfig
    model: VisionLanguage
    pages: Sequence[Page]
    others: Sequence[Page]
    unseen: Sequence[Page]

    @classmethod
    def of(cls, base: Path, folder: Path, config: AdapterConfig, device: str = "cpu") -> Federation:
        """Adapters on the model in ``base``, written to ``folder``; each page has its first question."""
        adapt(str(base), folder, Lora.parsed(f"r={config.rank},targets={config.targets}"), seed=config.seed)
        model = load_model(str(folder), device=device)
        assert isinstance(model, VisionLanguage)
        for name, parameter in model.module.named_parameters():
            if config.frozen_a and ".lora_A." in name:
                parameter.requires_grad_(False)
        made = [
            replace(model.fit(page), questions=page.questions[:1])
            for page in make_pages(config.clients + config.others + config.unseen, seed=config.seed)
        ]
        here, there = config.clients, config.clients + config.others
        return cls(config, model, made[:here], made[here:there], made[there:])

    @property
    def optimiser(self) -> Optimiser:
        """The clients'."""
        return Optimiser(self.config.optimiser, self.config.learning_rate, 0.0)

    def round(self, number: int, generator: torch.Generator) -> Sent:
        """Train every client from the weights that the model holds, move it by the mean, return what the server saw."""
        c, start = self.config, {n: p.detach().clone() for n, p in trainable(self.model.module)}
        plan = LocalPlan(epochs=c.steps, batch_size=1, learning_rate=c.learning_rate, weight_decay=0.0,
                         optimiser=c.optimiser, dropout=False)  # fmt: skip
        sent: list[Named] = []
        for page in self.pages:
            done = train_locally(self.model, [page], plan, client="one", rng=np.random.default_rng(number))
            self._put(start)
            delta = {name: torch.from_numpy(value).to(start[name]) for name, value in done.update.delta.items()}
            sent.append(self._protected(delta, generator))
        noise = c.noise_multiplier * c.clip / len(sent)
        mean = {
            name: torch.stack([one[name] for one in sent]).mean(0)
            + noise * torch.randn(start[name].shape, generator=generator).to(start[name])
            for name in start
        }
        self._put({name: start[name] - value for name, value in mean.items()})
        seen = Sent.of(mean if c.summed else sent[0], start, self.optimiser, c.steps)
        extra = self._announced(delta) + noise / (c.learning_rate * c.steps)
        return replace(seen, noise={n: seen.noise.get(n, 0.0) + extra for n in seen.update}) if extra else seen

    def _announced(self, delta: Named) -> float:
        c, defense = self.config, DEFENSES.load(self.config.defense)
        if not isinstance(defense, GradientDefense):
            return 0.0
        return announced_noise(defense, {n: v / (c.learning_rate * c.steps) for n, v in delta.items()}, self.model)

    def _protected(self, delta: Named, generator: torch.Generator) -> Named:
        """What leaves the client instead of ``delta``."""
        c, defense = self.config, DEFENSES.load(self.config.defense)
        scale = c.learning_rate * c.steps
        if isinstance(defense, GradientDefense):
            sent = protected(defense, {n: v / scale for n, v in delta.items()}, self.model, generator=generator)
            delta = {name: scale * sent[name] if name in sent else torch.zeros_like(v) for name, v in delta.items()}
        if c.clip:
            norm = float(torch.stack([value.square().sum() for value in delta.values()]).sum().sqrt())
            delta = {name: value * min(1.0, c.clip / max(norm, 1e-30)) for name, value in delta.items()}
        return delta

    @torch.no_grad()
    def _put(self, values: Named) -> None:
        for name, parameter in trainable(self.model.module):
            parameter.copy_(values[name])

    @torch.no_grad()
    def loss(self) -> float | None:
        """Mean loss on unseen pages; None of none."""
        losses = [float(self.model.loss(*self._input(page))[0]) for page in self.unseen]
        return float(np.mean(losses)) if losses else None

    def bytes(self) -> int:
        """What a client sends in a round: float32, of top-k a number and its place each."""
        sent = sum(parameter.numel() for _, parameter in trainable(self.model.module))
        share = getattr(DEFENSES.load(self.config.defense), "share", None)
        return 4 * sent if share is None else round(8 * share * sent)

    def _input(self, page: Page) -> tuple[Tensor, list[Any]]:
        device = device_of(self.model)
        return pixels_of(page.image, device)[None], [self.model.encode(page, page.questions[0])]

    def read(self, rounds: Sequence[Sent]) -> Words | str:
        """The words in what was sent, or why there are none."""
        try:
            return recover_words(self.model, rounds)
        except AttackError as fault:
            return str(fault)

    def true(self) -> set[int]:
        """Words of all pages behind what the server saw; the last of an answer has no loss, and is not among them."""
        asked = self.pages if self.config.summed else self.pages[:1]
        return set().union(*(self.model.tokens_moved(self._input(page)[1][0]) for page in asked))

    def _first(self, name: str) -> bool:
        """Whether a parameter is an adapter's A on the first layer that reads words."""
        layers = getattr(self.model, "answer_layers", None)
        here = ["layers.0."] if layers is None else [f"{layers.decoder}.{first}." for first in layers.first]
        of_text = layers is not None or any(part in name for part in LANGUAGE)
        return ".lora_A." in name and of_text and any(one in name for one in here)

    def residuals(self, rounds: Sequence[Sent]) -> tuple[float, list[float]] | None:
        """Of client 0's page, and of the others: the share of the page's own gradient of the first layer's A outside
        of the span of all rounds; None where nothing of that layer moved."""
        name = next((n for n in rounds[-1].update if self._first(n)), "")
        blocks = [Rows(one.update[name], _of_rows(one.noise.get(name, 0.0))) for one in rounds] if name else []
        space = Subspace.of(blocks)
        if not space.rank:
            return None
        shares = []
        for page in (self.pages[0], *self.others):
            gradient = client_gradient(self.model, *self._input(page))[name].to(space.directions)
            outside = (gradient - gradient @ space.directions.T @ space.directions).norm() / gradient.norm()
            shares.append(float(outside))
        return shares[0], shares[1:]


def _of_rows(noise: Tensor | float) -> Tensor | float:
    return noise.square().mean(1).sqrt() if isinstance(noise, Tensor) and noise.ndim == 2 else noise
