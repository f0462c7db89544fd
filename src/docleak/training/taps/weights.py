"""An update as two files of weights, before and after: for trainings that no tap was put into."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from docleak.errors import FederationError, ModelError
from docleak.files import Stamps, stamps
from docleak.models.base import trainable
from docleak.models.files import WEIGHTS, shards, tensors_in
from docleak.training.federated.capture import CapturedUpdate, Shapes, naming

#: Adapters' files, before a whole model's.
FILES = ("adapter_model.safetensors", "adapter_model.bin", *WEIGHTS)
#: Where trainings keep a state beside other things.
NESTED = ("state_dict", "model_state_dict", "model", "module")
CLIENT = "given"


@dataclass(frozen=True)
class WeightsPair(CapturedUpdate):
    """The weights in the files or folders ``before`` and ``after``: an update that was not recorded, but kept."""

    before: Path = Path()
    after: Path = Path()

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.before} and {self.after}"

    def start_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights before, by name."""
        return {name: value.shape for name, value in self._before().items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights after, by name."""
        return {name: value.shape for name, value in self._arrays().items()}

    def _before(self) -> dict[str, NDArray[Any]]:
        return self._named(weights_in(self.before))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return self._named(_after(self.before, self.after))


def weights_pair(before: Path, after: Path) -> WeightsPair:
    """FederationError where a file holds no weights, both hold the same, or none of one is in the other."""
    begun, ended = weights_in(before), _after(before, after)
    lacking = [name for name in ended if name not in begun or begun[name].shape != ended[name].shape]
    if len(lacking) == len(ended):
        raise FederationError(
            f"{before} and {after} have no weights in common: {_some(begun)} and {_some(ended)}. Expected the same "
            "model before and after training."
        )
    if lacking:
        raise FederationError(
            f"{after} has {len(lacking)} of {len(ended)} tensors that {before} has not, or in another shape, first "
            f"{lacking[0]!r}. Expected the same model before and after training, or a part of it after."
        )
    if all(np.array_equal(begun[name], value) for name, value in ended.items()):
        raise FederationError(f"{before} and {after} hold the same weights: nothing was trained between them.")
    return WeightsPair(after.parent, 1, CLIENT, "weights", 0, {}, {}, before, after)


def weights_in(source: Path) -> Mapping[str, NDArray[Any]]:
    """Floating-point tensors by name, as float32 or wider: of a .safetensors file, a state that torch.save wrote
    (loaded with weights_only, so that nothing in it is run), an index of shards, or a folder of save_pretrained."""
    return _weights_in(source, stamps(source))


@lru_cache(maxsize=2)
def _weights_in(source: Path, files: Stamps) -> Mapping[str, NDArray[Any]]:
    try:
        tensors = {name: value for file in _files_of(source) for name, value in tensors_in(file).items()}
    except ModelError as fault:
        raise FederationError(str(fault)) from fault
    states = {key: value for key, value in tensors.items() if isinstance(value, Mapping) and _holds_tensors(value)}
    known = [key for key in NESTED if key in states]
    if known or (len(states) == 1 and not _holds_tensors(tensors)):
        tensors = dict(states[[*known, *states][0]])
    arrays = {
        str(name): (value.double() if value.element_size() == 8 else value.float()).numpy()
        for name, value in tensors.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    if not arrays:
        parts = f" It holds {', '.join(map(repr, [*tensors][:6]))}: save one of them alone." if tensors else ""
        raise FederationError(f"{source} holds no tensors by name; expected a state of weights.{parts}")
    return arrays


def names_in(module: nn.Module, arrays: Shapes, came: Collection[str]) -> dict[str, str]:
    """Name -> the module's own, of ``arrays``: wrappers' prefixes taken off, a list by the order of its parameters, a
    tied weight by its first name where it is among those that ``came`` under another alone, as safetensors keeps it."""
    state = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    whole = {name: tuple(value.shape) for name, value in module.named_parameters()}
    moved = {name: tuple(value.shape) for name, value in trainable(module)}
    names = naming(arrays, (whole, state, moved))
    known, first = {names.get(name) for name in came}, dict[int, str]()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if (other := first.setdefault(id(parameter), name)) not in known:
            names |= {one: other for one, meant in names.items() if meant == name}
    return names


def _files_of(source: Path) -> list[Path]:
    """The files that hold the weights of a file, of an index of shards, or of a folder; FederationError without any."""
    file = source
    if source.is_dir():
        there = [name for name in FILES if (source / name).is_file()]
        if not there:
            raise FederationError(f"{source} has no weights; expected one of {', '.join(FILES)} in it.")
        file = source / there[0]
    elif not source.is_file():
        raise FederationError(f"{source} is not there; expected a file or folder of weights.")
    return shards(str(file.parent), file, None) if file.name.endswith(".index.json") else [file]


def _after(before: Path, after: Path) -> dict[str, NDArray[Any]]:
    """By the names of the weights before, where those differ by what a wrapper adds; without other names of a tied
    weight, which safetensors leaves out of one file and torch.save does not."""
    begun, ended = weights_in(before), weights_in(after)
    shapes = {name: value.shape for name, value in ended.items()}
    names = naming(shapes, [{name: value.shape for name, value in begun.items()}])
    named = {names.get(name, name): value for name, value in ended.items()}
    both = [value for name, value in named.items() if name in begun]
    return {n: v for n, v in named.items() if n in begun or not any(np.array_equal(v, one) for one in both)}


def _holds_tensors(state: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, Tensor) for value in state.values())


def _some(names: Mapping[str, Any]) -> str:
    return f"{len(names)} ({', '.join(sorted(names)[:2])} ...)"
