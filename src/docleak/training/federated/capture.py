"""What a server received, on disk: each client's update as it came, and the weights that it started from. No Flower.

DIR/capture.json                       {"format": 1, "docleak": version}
DIR/round-0001/start.safetensors       the weights the server sent in that round
DIR/round-0001/CLIENT.safetensors      the arrays as received
DIR/round-0001/CLIENT.json             {"client", "examples", "kind", "details"}, written last

docs/recorded-updates.md says what ``details`` may hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

import docleak
from docleak.errors import FederationError, denied
from docleak.files import TEMPORARY, json_values, private_folder, read_json_object, shaped, write_atomically, write_json

if TYPE_CHECKING:
    from docleak.training.federated.federation import Federation
    from docleak.training.federated.fedopt import ClientUpdate, ServerState

FORMAT = 1
#: In the folder of a training: the updates as the server received them.
UPDATES = "updates"
MANIFEST, START, ARRAYS, RECORD = "capture.json", "start", ".safetensors", ".json"
#: What the arrays of an update are; a delta is theta_t - y_k, as in ``fedopt.ClientUpdate``.
Kind = Literal["weights", "delta", "gradient"]
KINDS = get_args(Kind)
AGAIN = "Capture the round again."
FITTING = "\nExpected finite arrays of the weights that were sent, with their names and shapes."
LONGEST_NAME = 200  # characters of a client's name once encoded; file systems end at 255
#: What every training of docleak's own says of itself, and what of that decides how its updates are audited.
OWN_KEYS = ("seed", "holdout", "privacy", "secure")
MEANT = ("privacy", "secure", "masked")
#: What wrappers put before a name: DistributedDataParallel, torch.compile, checkpoints, Opacus, peft, Lightning.
PREFIXES = re.compile(r"^(?:(?:module|_orig_mod|_checkpoint_wrapped_module|_module|base_model\.model|model)\.)+")
#: What stands within names: of peft, which leaves it out where it saves; of layers that were compiled or checkpointed.
WITHIN = re.compile(
    r"\.modules_to_save\.[^.]+(?=\.|$)|(\.lora_(?:[AB]|magnitude_vector)(?=\.[^.]+\.)"
    r"|\.(?:lora_embedding_[AB]|trainable_tokens_delta)(?=\.[^.]+$))\.[^.]+"
    r"|\.(?:_orig_mod|_checkpoint_wrapped_module)(?=\.)"
)
#: A position in a list instead of a name.
NUMBERED = re.compile(r"(?:arr_|parameter_|param_)?(\d+)")

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]
#: Parameter name -> values.
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class CapturedUpdate:
    """One client's update of one round; arrays are read from disk when asked for.

    ``examples`` is the n_k that the client reported. ``details`` is what is known of its training, as JSON: those keys
    of ``LocalPlan`` that were sent, and ``steps``, ``seed`` and whatever else message and reply carried. ``names`` are
    the model's for arrays that came under others.
    """

    folder: Path
    round: int
    client: str
    kind: Kind
    examples: int
    details: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)

    def called(self, names: Mapping[str, str]) -> CapturedUpdate:
        """The same update with the model's names for arrays that came under others."""
        return replace(self, names=dict(names))

    def _named(self, values: Mapping[str, T]) -> dict[str, T]:
        return {self.names.get(name, name): value for name, value in values.items()}

    @property
    def ours(self) -> Mapping[str, Any]:
        """``details`` as docleak's own training writes them: all of OWN_KEYS, plans as plans, and no tap's mark. {} of
        another program, whose seed, privacy or resolution are words of its own."""
        told = self.details
        plans = all(isinstance(told.get(key), Mapping | None) for key in ("privacy", "secure"))
        whole = plans and "recorded_by" not in told and all(key in told for key in OWN_KEYS)
        return told if whole else {}

    @property
    def alien(self) -> tuple[str, ...]:
        """Words of another program's configuration that would say of docleak's what the server sees: not believed."""
        return () if self.ours else tuple(key for key in MEANT if self.details.get(key) not in (None, False, ""))

    @property
    def name(self) -> str:
        """What tells this update from the others of the capture, for people."""
        return f"round {self.round}, client {self.client}"

    def start(self) -> dict[str, NDArray[Any]]:
        """The weights the server sent, theta_t. Raises FederationError where values are not finite."""
        arrays = self._before()
        _refuse(f"{self.name}, the weights before", _infinite(arrays))
        return arrays

    def start_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights the server sent, by name."""
        return self._named(_shapes(self.folder / f"{START}{ARRAYS}"))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the arrays that came, by name; fewer than those of ``start`` where the client sends only a part."""
        return self._named(_shapes(self.folder / f"{_encoded(self.client)}{ARRAYS}"))

    def _before(self) -> dict[str, NDArray[Any]]:
        return self._named(_loaded(self.folder / f"{START}{ARRAYS}"))

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return self._named(_loaded(self.folder / f"{_encoded(self.client)}{ARRAYS}"))

    def received(self) -> dict[str, NDArray[Any]]:
        """The arrays as they came. Raises FederationError where values are not finite."""
        arrays = self._arrays()
        _refuse(self.name, _infinite(arrays))
        return arrays

    def delta(self) -> dict[str, NDArray[np.float32]]:
        """Delta_k = theta_t - y_k, subtracted in float64 and rounded once. Raises FederationError for a gradient."""
        if self.kind == "gradient":
            raise FederationError(f"{self.name} is a gradient; it has no weight delta. Use received().")
        received = self.received()
        if self.kind == "delta":
            return {name: value.astype(np.float32) for name, value in received.items()}
        start = self.start()
        return {
            name: (start[name].astype(np.float64) - value.astype(np.float64)).astype(np.float32)
            for name, value in received.items()
        }


def start_of(directory: Path, round: int) -> Path:
    """The file of the weights before a round, which is written with the round's first update."""
    return directory / f"round-{round:04d}" / f"{START}{ARRAYS}"


def write_update(
    directory: Path, *, round: int, client: str, start: Arrays, received: Arrays, kind: str, examples: int,
    details: Mapping[str, Any],
) -> Path:  # fmt: skip
    """Record one update and return its JSON file; an update of the same round and client is replaced.

    ``start`` is written with the round's first update, and must be the same for the others. Each file appears whole or
    not at all, the JSON last. ``received`` may be a part of the arrays. Raises FederationError for arrays that do not
    fit ``start`` or are not finite, for ``details`` that JSON cannot hold, and for a directory that holds something
    else or another training.
    """
    folder, encoded = Path(directory) / f"round-{round:04d}", _encoded(client)
    what = f"round {round}, client {client!r}"
    if kind not in KINDS or examples < 0 or round < 0:
        raise FederationError(
            f"{what}: kind {kind!r} with {examples} examples; expected one of {', '.join(KINDS)}, and rounds and "
            "examples of 0 or more."
        )
    shapes = {name: tuple(value.shape) for name, value in start.items()}
    _refuse(what, _misfits(shapes, {name: tuple(value.shape) for name, value in received.items()}))
    _refuse(what, _infinite(received))
    record = {
        "client": client,
        "examples": int(examples),
        "kind": kind,
        "details": json_values(details, what, error=FederationError),
    }
    begin(Path(directory))
    private_folder(folder)
    _write_start(start_of(Path(directory), round), start)
    file = folder / f"{encoded}{RECORD}"
    if file.exists() and (other := _read_update(file).client) != client:
        raise FederationError(f"{what}: {file} is client {other!r}'s. Clients' names must differ beyond upper case.")
    write_atomically(folder / f"{encoded}{ARRAYS}", _packed(received))
    write_json(file, record)
    return file


def record_update(
    capture: Path, federation: Federation, state: ServerState, update: ClientUpdate, said: Mapping[str, Any]
) -> None:
    """Write an update of the round after ``state`` to ``capture``; ``said`` is what its silo says besides."""
    plan, secure = federation.privacy, federation.secure
    details = {
        **asdict(federation.local), "seed": federation.seed, "privacy": None if plan is None else plan.to_dict(),
        "model": federation.model, "holdout": federation.holdout, "compression": str(federation.compression),
        "secure": None if secure is None else asdict(secure), **said,
    }  # fmt: skip
    write_update(
        capture, round=state.round + 1, client=update.client, start=state.weights(), kind="delta",
        received={key: value.astype(np.float32) for key, value in update.delta.items()}, examples=update.examples,
        details=details,
    )  # fmt: skip


def read_updates(directory: Path) -> tuple[CapturedUpdate, ...]:
    """All updates of a capture, by round and client. Reads no arrays, only their names and shapes.

    Raises FederationError if the directory is no capture, is empty or damaged, or an update does not fit the weights
    that it started from; all faults at once.
    """
    directory = Path(directory)
    manifest = directory / MANIFEST
    if not manifest.is_file():
        if (within := directory / UPDATES / MANIFEST).is_file():
            raise FederationError(f"{directory} is a training; what its silos sent is in it. Give {within.parent}.")
        raise FederationError(
            f"{directory} is no capture: it has no {MANIFEST}. Record updates with docleak.tap(strategy, directory) or "
            "docleak train federated, or give the weights themselves: docleak audit updates --before A --after B."
        )
    _require_format(manifest)
    updates, unread, misfits = [], list[str](), list[str]()
    for folder in sorted(directory.glob("round-[0-9]*")):
        files = sorted(folder.glob(f"*{RECORD}"))
        try:
            shapes = _shapes(folder / f"{START}{ARRAYS}") if files else {}
        except FederationError as fault:
            unread.append(str(fault))
            shapes = {}
        for file in files:
            try:
                update, found = _read_update(file), _shapes(file.with_suffix(ARRAYS))
            except (FederationError, ValueError) as fault:
                unread.append(str(fault))
                continue
            misfits += [f"{file.with_suffix(ARRAYS)} {fault}" for fault in (_misfits(shapes, found) if shapes else ())]
            updates.append(update)
    _refuse(str(directory), unread + misfits, FITTING if misfits else "")
    if not updates:
        raise FederationError(f"{directory} holds no update yet: no round has ended. Wait for one and try again.")
    return tuple(sorted(updates, key=lambda update: (update.round, update.client)))


def begin(directory: Path) -> None:
    """Make the folder of a capture, or find it; FederationError for one that holds something else."""
    manifest = directory / MANIFEST
    if manifest.exists():
        _require_format(manifest)
        return
    private_folder(directory)
    others = sorted(item.name for item in directory.iterdir() if not item.name.startswith(TEMPORARY))
    if others:
        raise FederationError(
            f"{directory} is no capture: it has no {MANIFEST} but holds {', '.join(others[:3])}. Give a new directory."
        )
    write_json(manifest, {"format": FORMAT, "docleak": docleak.__version__})


def _require_format(manifest: Path) -> None:
    version = read_json_object(manifest, error=FederationError, advice=AGAIN).get("format")
    if version != FORMAT:
        raise FederationError(
            f"{manifest} says format {version!r}; this docleak reads {FORMAT}. Use the docleak that wrote it."
        )


def _write_start(file: Path, start: Arrays) -> None:
    if not file.exists():
        _refuse(str(file), _infinite(start))
        write_atomically(file, _packed(start))
        return
    there = _loaded(file)
    same = set(there) == set(start) and all(np.array_equal(there[name], start[name]) for name in there)
    if not same:
        raise FederationError(
            f"{file} holds other weights than those this round started from: the directory belongs to another "
            "training, or clients of one round were sent different models. Give a new directory."
        )


def recorded(directory: Path, round: int, client: str) -> bool:
    """Whether an update of that round and client is there already."""
    return (Path(directory) / f"round-{round:04d}" / f"{_encoded(client)}{RECORD}").is_file()


def _encoded(client: str) -> str:
    """A file name for any client's name, and never ``start``."""
    stem = quote(client, safe=" +,=@")
    if stem.lower() == START:
        stem = f"%{ord(stem[0]):02X}{stem[1:]}"
    if not stem or len(stem) > LONGEST_NAME:
        raise FederationError(
            f"the client's name {client[:40]!r} has {len(stem)} characters once encoded; expected 1 to {LONGEST_NAME}."
        )
    return stem


def _misfits(expected: Shapes, found: Shapes) -> list[str]:
    """Faults of arrays beside the start's; lacking some is none, since a client may send a part of the model."""
    unknown = sorted(set(found) - set(expected))
    faults = [] if found else [f"has no arrays, of the start's {len(expected)}"]
    faults += [f"has {len(unknown)} arrays that the start has not, first {unknown[0]!r}"] if unknown else []
    faults += [
        f"has {name!r} of shape {found[name]}, expected {expected[name]}"
        for name in sorted(set(expected) & set(found))
        if found[name] != expected[name]
    ]
    return faults


def _infinite(arrays: Arrays) -> list[str]:
    return [f"has {name!r} with values that are not finite" for name, v in arrays.items() if not np.isfinite(v).all()]


def _refuse(what: str, faults: list[str], expected: str = FITTING) -> None:
    if faults:
        lines = "".join(f"\n  - {fault}" for fault in faults[:15])
        raise FederationError(f"{what}:{lines}{expected}")


def _read_update(file: Path) -> CapturedUpdate:
    record = read_json_object(file, error=FederationError, advice=AGAIN)
    place = {"folder": str(file.parent), "round": int(file.parent.name.removeprefix("round-"))}
    return shaped(CapturedUpdate, {**record, **place}, FederationError, str(file), AGAIN)


def _packed(arrays: Arrays) -> bytes:
    return save({name: np.asarray(value, order="C") for name, value in arrays.items()})


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    with _opened(file) as arrays:
        return {name: tuple(arrays.get_slice(name).get_shape()) for name in arrays.keys()}  # noqa: SIM118


def _loaded(file: Path) -> dict[str, NDArray[Any]]:
    with _opened(file) as arrays:
        kinds = {arrays.get_slice(name).get_dtype() for name in arrays.keys()}  # noqa: SIM118
        if "BF16" not in kinds:
            return dict(load_file(file))
        from safetensors.torch import load_file as load_tensors  # numpy has no bfloat16; float32 holds all of them

        return {name: value.float().numpy() for name, value in load_tensors(file).items()}


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """The arrays of a file; FederationError for one that cannot be read, here and in what is done with them."""
    try:
        with safe_open(file, framework="numpy") as arrays:
            yield arrays
    except FileNotFoundError as fault:
        raise FederationError(f"{file} is missing. Put it back, or record the training anew.") from fault
    except PermissionError as fault:
        raise FederationError(denied(file)) from fault
    except (OSError, SafetensorError) as fault:
        raise FederationError(f"{file} cannot be read ({fault}). {AGAIN}") from fault


def naming(found: Shapes, orders: Sequence[Shapes]) -> dict[str, str]:
    """Name that came -> name that is known, of all that can be told.

    ``orders`` are the known arrays in the orders in which a list of them may have been sent; all names of the first
    are known. A name stands for itself, or for the one that is the same without PREFIXES and WITHIN, and without parts
    that all begin with where that makes all of them known ("net." of somebody's own wrapper). A list of numbers stands
    for the first order whose shapes are those of the list.
    """
    known = {name: shape for order in orders for name, shape in order.items()}
    if found and not set(found) & set(known) and all(NUMBERED.fullmatch(name) for name in found):
        listed = sorted(found, key=lambda name: int(re.sub(r"\D", "", name)))
        shapes = [found[name] for name in listed]
        fits = (order for order in orders if [*order.values()] == shapes)
        return dict(zip(listed, next(fits, {}), strict=False))
    count = Counter(map(plain, known))
    bare = {plain(name): name for name in known if count[plain(name)] == 1}
    wrapper = _wrapper(found, bare)
    came = {name: plain(name[len(wrapper) :]) for name in found}
    times = Counter(came.values())
    names = {}
    for name in found:
        other = name if name in known else bare.get(came[name], "")
        if other and (name == other or (times[came[name]] == 1 and found[name] == known[other])):
            names[name] = other
    return names


def _wrapper(found: Collection[str], bare: Collection[str]) -> str:
    """The parts that all names of ``found`` begin with, and without which all of them are ``bare``; "" for none."""
    parts = next(iter(found), "").split(".")
    starts = (".".join((*parts[:count], "")) for count in range(len(parts)))
    return next((p for p in starts if all(n.startswith(p) and plain(n[len(p) :]) in bare for n in found)), "")


def plain(name: str) -> str:
    """A parameter's name without what wrappers add to it."""
    return PREFIXES.sub("", WITHIN.sub(r"\1", name))
