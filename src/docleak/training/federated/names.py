"""Arrays that came under other names than the model's: wrappers' prefixes, adapters' short names, numbered lists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

#: What wrappers put before a parameter's name: DistributedDataParallel, torch.compile, Opacus, peft, Lightning.
PREFIXES = ("module.", "_orig_mod.", "_module.", "base_model.model.", "model.")
#: A position in a list instead of a name.
NUMBERED = re.compile(r"(?:arr_|parameter_|param_)?(\d+)")

Shapes = Mapping[str, tuple[int, ...]]


def naming(found: Shapes, orders: Sequence[Shapes]) -> dict[str, str]:
    """Name that came -> name that is known, of all that can be told.

    ``orders`` are the known arrays in the orders in which a list of them may have been sent; all names of the first
    are known. A name stands for itself, or for the one that is the same without PREFIXES and the ".default" of peft's
    adapters. A list of numbers stands for the first order whose shapes are those of the list.
    """
    known = {name: shape for order in orders for name, shape in order.items()}
    if found and not set(found) & set(known) and all(NUMBERED.fullmatch(name) for name in found):
        listed = sorted(found, key=_position)
        shapes = [found[name] for name in listed]
        fits = (order for order in orders if [*order.values()] == shapes)
        return dict(zip(listed, next(fits, {}), strict=False))
    bare = _unambiguous(known)
    came = Counter(plain(name) for name in found)
    names = {}
    for name in found:
        other = name if name in known else bare.get(plain(name), "")
        if other and (name == other or (came[plain(name)] == 1 and found[name] == known[other])):
            names[name] = other
    return names


def plain(name: str) -> str:
    """A parameter's name without what wrappers add to it."""
    while prefix := next((one for one in PREFIXES if name.startswith(one)), ""):
        name = name[len(prefix) :]
    return name.replace(".default.", ".") if "lora_" in name else name


def _unambiguous(names: Iterable[str]) -> dict[str, str]:
    bare = [(plain(name), name) for name in names]
    count = Counter(short for short, _ in bare)
    return {short: name for short, name in bare if count[short] == 1}


def _position(name: str) -> int:
    number = NUMBERED.fullmatch(name)
    return int(number[1]) if number else -1
