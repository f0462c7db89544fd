"""What the gradients of an audit hold in memory at most, counted on tensors that have a size and no content."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from docleak.attacks.gradients import ATTACKS, GradientAttack
from docleak.attacks.gradients.matching import dummy_gradient
from docleak.attacks.gradients.shallow import STAGES
from docleak.documents.synthetic import make_pages
from docleak.models import load_model, trainable
from docleak.models.base import Encoded
from docleak.models.donut import Donut
from docleak.models.recompute import recomputation
from docleak.studies.gradient.config import GradientConfig


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all storages that operations made and nobody freed, and the most there were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.most = 0
        self.known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def add(self, tensor: Tensor) -> None:
        """Count what holds ``tensor``, once."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return

        def freed(_: object) -> None:
            self.alive -= size
            del self.known[key]

        self.known[key] = weakref.ref(storage, freed)
        self.alive += size
        self.most = max(self.most, self.alive)

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What torch calls for every operation."""
        made = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        return made


def held(config: GradientConfig) -> int:
    """Bytes of the weights, the gradient that is sent, and what the client's gradient or an evaluation adds, at most.

    Nothing is computed. 0 of models that are no Donut: their pages are small whatever their size. A page of synthetic
    text stands for the audited ones; what the interpreter and its libraries take is not counted.
    """
    model = load_model(config.models[0], image_size=config.image_size, seed=config.seed)
    if not isinstance(model, Donut):
        return 0
    page = model.fit(make_pages(1, seed=config.seed)[0])
    inputs = [model.encode(page, page.questions[0])] * config.batch_size
    model.module.to("meta")
    attacks = [attack for attack in map(ATTACKS.load, config.attacks) if isinstance(attack, GradientAttack)]
    return max(_held(model, inputs, attack) for attack in (None, *(one for one in attacks if one.solver is not None)))


def _held(model: Donut, inputs: Sequence[Encoded], attack: GradientAttack | None) -> int:
    """Of an evaluation of an attack, with the pass to the pixels; of None the client's own gradient."""
    named = dict(trainable(model.module))
    names = list(named)
    if attack is not None and attack.layers == "shallow":
        names = [name for name in named if model.early(name, STAGES)] or names
    constant = [named[name].requires_grad_(False) for name in named.keys() - set(names)]
    storages = Storages()
    with torch.device("meta"), storages, recomputation(attack is not None and attack.recompute):
        sent = [torch.empty_like(value) for value in named.values()]  # by then it is there
        for value in (*model.module.parameters(), *model.module.buffers(), *sent):
            storages.add(value)
        width, height = model.image_size
        pixels = torch.empty(len(inputs), 3, height, width, requires_grad=attack is not None)
        encoded = [Encoded({key: value.to("meta") for key, value in one.tensors.items()}, one.tokens) for one in inputs]
        dummy = dummy_gradient(model, pixels, encoded, names, create_graph=attack is not None)
        if attack is not None:
            torch.autograd.grad(torch.stack([value.square().sum() for value in dummy.values()]).sum(), pixels)
    for parameter in constant:
        parameter.requires_grad_(True)
    return storages.most
