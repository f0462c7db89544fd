"""What the gradients of an audit hold in memory at most, counted on tensors that have a size and no content."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import cache
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
from docleak.runs.identity import digest_of
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
    attacks = [attack for attack in map(ATTACKS.load, config.attacks) if isinstance(attack, GradientAttack)]
    passes = [(attack.layers, attack.recompute) for attack in attacks if attack.solver is not None]
    source = config.models[0]
    files = digest_of({"model": source})
    return max(
        _held(source, files, config.image_size, config.seed, config.batch_size, matched) for matched in (None, *passes)
    )


@cache
def _on_meta(source: str, files: str, size: tuple[int, int] | None, seed: int) -> tuple[Donut, Encoded] | None:
    """The model of such ``files`` without its numbers, and a page as it reads it."""
    model = load_model(source, image_size=size, seed=seed)
    if not isinstance(model, Donut):
        return None
    page = model.fit(make_pages(1, seed=seed)[0])
    example = model.encode(page, page.questions[0])
    model.module.to("meta")
    return model, example


@cache
def _held(
    source: str, files: str, size: tuple[int, int] | None, seed: int, batch_size: int, matched: tuple[str, bool] | None
) -> int:
    """Of an evaluation that matches such layers, recomputed or not, with the pass to the pixels; of None the client's
    own gradient. Counted once in a process, as tables of one paper often hold the same."""
    there = _on_meta(source, files, size, seed)
    if there is None:
        return 0
    model, inputs = there[0], [there[1]] * batch_size
    layers, recompute = matched or ("all", False)
    named = dict(trainable(model.module))
    names = list(named)
    if layers == "shallow":
        names = [name for name in named if model.early(name, STAGES)] or names
    constant = [named[name].requires_grad_(False) for name in named.keys() - set(names)]
    storages = Storages()
    with torch.device("meta"), storages, recomputation(recompute):
        sent = [torch.empty_like(value) for value in named.values()]  # by then it is there
        for value in (*model.module.parameters(), *model.module.buffers(), *sent):
            storages.add(value)
        width, height = model.image_size
        pixels = torch.empty(len(inputs), 3, height, width, requires_grad=matched is not None)
        encoded = [Encoded({key: value.to("meta") for key, value in one.tensors.items()}, one.tokens) for one in inputs]
        dummy = dummy_gradient(model, pixels, encoded, names, create_graph=matched is not None)
        if matched is not None:
            torch.autograd.grad(torch.stack([value.square().sum() for value in dummy.values()]).sum(), pixels)
    for parameter in constant:
        parameter.requires_grad_(True)
    return storages.most
