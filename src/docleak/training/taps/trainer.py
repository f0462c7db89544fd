"""What one local epoch of ``transformers``' Trainer, or of TRL's SFTTrainer, would send if it were a client's round."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from docleak.models.base import IGNORED, dropout_rate, trainable
from docleak.training.taps.recorder import Recorder, Sent

#: torch's classes by the names of LocalPlan, and what of them is imitated: settings with these values alone.
OPTIMISERS = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd"}
IMITATED = {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "momentum": 0, "nesterov": False, "maximize": False}
#: Half precision, as Trainer's arguments call it.
HALF = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class TrainerTap(TrainerCallback):  # type: ignore[misc]
    """A callback, ``callbacks=[TrainerTap("updates")]``, that records a training's first epoch as a client's update.

    Weights before and after of what is trained (all of a model, or its adapters), the optimiser, the rate of every
    step, batch size, and which examples of the data set each step saw. One copy of these weights is held in memory
    until the epoch ends. ``client`` is what the report calls it; see ``Recorder`` for ``limit_gb``. Refused at once: a
    directory that holds another training. Later faults are warnings, and the training goes on.
    """

    def __init__(self, directory: str | Path, *, client: str = "trainer", limit_gb: float = 10.0) -> None:
        self.recorder, self.client = Recorder(directory, limit_gb=limit_gb), client
        self._restore: Callable[[], None] = lambda: None
        self._forget()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Copy the weights before, and note whether the optimiser has a state of earlier steps."""
        if state.is_world_process_zero:
            self._forget()
            loader, processing = kwargs.get("train_dataloader"), kwargs.get("processing_class")
            self._safely(lambda: self._continue(args, state, kwargs.get("optimizer"), loader))
            self._safely(lambda: self._begin(model, loader, processing))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Note the rate of the step."""
        if self._start:
            self._safely(lambda: self._note_rates(state.global_step, optimizer))

    def _note_rates(self, step: int, optimizer: Any) -> None:
        first, *others = rates = _values(getattr(optimizer, "optimizer", optimizer), "lr")
        self._rates[step] = first
        if others:
            self._apart = f"learning rate: {_listed(rates)}, of some weights each"

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the update."""
        self._safely(lambda: self._record(args, state, **kwargs))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The same for a training that ended within its first epoch; then wait for the disk."""
        self._safely(lambda: self._record(args, state, **kwargs))
        self.recorder.settle()

    def _forget(self) -> None:
        """Begin anew: of a training that ended by an error nothing is kept."""
        self._restore()
        self._start: dict[str, Tensor] = {}
        self._rates: dict[int, float] = {}  # by step: whoever gives this tap twice is called twice at each
        self._batches: list[list[int]] = []
        self._labels, self._skipped, self._sharers = "", 0, 1
        self._averaged = self._summed = False  # a step's loss is the mean, or the sum, of its batches' means
        self._continued: list[str] = []
        self._apart = ""  # where weights have rates of their own
        self._elsewhere = False  # the loss is not the one that the network computes

    def _safely(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as fault:  # a user's training must not end because it is watched
            self._start = {}
            self.recorder.warn(f"this training's epoch is not recorded: {type(fault).__name__}: {fault}")

    def _continue(self, args: Any, state: Any, optimizer: Any, loader: Any) -> None:
        kept, done = getattr(optimizer, "state", None) or {}, getattr(state, "global_step", 0)
        if any(isinstance(value, Tensor) and bool(value.any()) for one in kept.values() for value in one.values()):
            self._continued = [f"optimiser: its state after {done or 'no one knows how many'} earlier steps"]
        if done and not args.ignore_data_skip and has_length(loader):  # the sampler gives out what is skipped, too
            parts = args.gradient_accumulation_steps
            self._skipped = done % -(-len(loader) // parts) * parts

    def _begin(self, model: Any, loader: Any, processing: Any) -> None:
        self._start = _copied(model)
        if any(value.numel() == 0 for value in self._start.values()) or not self._start:
            self._start = {}
            self.recorder.warn("the weights are shared out among processes, or none is trained; nothing is recorded.")
            return
        if len(active := _active(model)) > 1:
            self._start = {}
            self.recorder.warn(f"the adapters {' and '.join(active)} are active at once, which no audit loads; "
                               "nothing is recorded.")  # fmt: skip
            return
        sampler: Any = getattr(loader, "batch_sampler", None)
        if (sharers := getattr(sampler, "num_processes", 1)) > 1:  # accelerate's: what all processes get comes from it
            self._sharers = 1 if sampler.split_batches else sharers
            sampler = sampler.batch_sampler
        if sampler is not None:
            self._restore = _watched(sampler, self._batches)
        self._look(model, getattr(processing, "tokenizer", processing))

    def _look(self, model: nn.Module, tokenizer: Any) -> None:
        """Note of the first batch that reaches the network what its loss is taken of, and if it is trained on."""

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def first(module: nn.Module, args: Any, inputs: dict[str, Any]) -> None:
            seen.remove()
            self._safely(lambda: self._note_loss(module, inputs, tokenizer))

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def after(module: nn.Module, args: Any, outputs: Any) -> None:
            if torch.is_grad_enabled():
                answered.remove()
                self._safely(lambda: self._watch_loss(outputs))

        seen = model.register_forward_pre_hook(first, with_kwargs=True)
        answered = model.register_forward_hook(after)

    def _watch_loss(self, outputs: Any) -> None:
        """Note whether a gradient comes back through the loss that the network computes."""
        whole = outputs[:1] if isinstance(outputs, tuple) else (getattr(outputs, "loss", None),)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else next(iter(whole), None)
        self._elsewhere = True

        def reached(gradient: Tensor) -> None:
            self._elsewhere = False

        if isinstance(loss, Tensor) and loss.requires_grad:
            loss.register_hook(reached)  # type: ignore[no-untyped-call]

    def _note_loss(self, model: nn.Module, inputs: Mapping[str, Any], tokenizer: Any) -> None:
        if hasattr(tokenizer, "get_added_vocab"):
            self._labels = labels_of(inputs, tokenizer)
        told = "num_items_in_batch" in inputs  # the tokens of all batches of a step, which Trainer does not divide by
        self._averaged = not (told and _counts(model))
        self._summed = told and self._averaged

    def _record(self, args: Any, state: Any, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        start, self._start = self._start, {}
        self._restore()
        if not start:
            return
        received, steps = _copied(model), len(self._rates)
        details = {**_told(args, model, optimizer), **self._seen(args)}
        if self._averaged and details.get("padding") == "none":
            details["mean"] = "examples"
        if self._labels:
            details["labels"] = self._labels
        details |= {"steps": steps, "learning_rates": [*self._rates.values()], **self._source(model)}
        if names := _undecayed(model, optimizer):
            details["undecayed"] = names
        told = [*_not_imitated(args, model, optimizer), *filter(None, [self._apart]), *self._continued]
        if self._elsewhere and not args.label_smoothing_factor:  # which is said above
            told.append("loss: not the one the network computes (compute_loss_func, or a Trainer's own compute_loss)")
        if self._summed and (parts := args.gradient_accumulation_steps * args.world_size) > 1:
            told.append(f"loss: a step takes the sum of the means of up to {parts} batches")
        if args.world_size > 1 and {*map(len, details.get("batches", ()))} != {details["batch_size"]}:
            told.append(f"batches: {args.world_size} processes, whose shares of every step are not all known")
        if told:
            details["not_imitated"] = told
        self.recorder.record(Sent(
            1, self.client, start, received, details=details, kind=self.recorder.kind,
            examples=len({number for batch in details.get("batches", ()) for number in batch}),
        ))  # fmt: skip

    def _seen(self, args: Any) -> dict[str, Any]:
        """The examples of each step, by their numbers in the data set; nothing where the loader did not tell."""
        accumulated = args.gradient_accumulation_steps * self._sharers
        used = self._batches[self._skipped * self._sharers :][: len(self._rates) * accumulated]
        if not used or not all(isinstance(number, int) for batch in used for number in batch):
            return {}
        steps = range(0, len(used), accumulated)
        return {"batches": [[n for batch in used[at : at + accumulated] for n in batch] for at in steps]}

    def _source(self, model: Any) -> dict[str, Any]:
        """The model that the audit is to load, and how many of its parameters were not trained; of adapters a folder
        beside the updates, which names their base."""
        active = _active(model)
        kept = {part for layer in model.modules() for part in getattr(layer, "adapter_layer_names", ())}  # by peft
        whose = [f".{part}.{name}." for part in kept for name in active]
        sent = (p for name, p in model.named_parameters() if not active or any(one in f"{name}." for one in whose))
        source: dict[str, Any] = {"frozen": count} if (count := sum(not p.requires_grad for p in sent)) else {}
        if active:
            folder = self.recorder.folder / "model"
            model.save_pretrained(str(folder))
            inner = folder.joinpath(*active)  # where peft keeps those that have a name of their own
            source["model"] = str(inner if inner.is_dir() else folder)
        elif name := str(getattr(model, "name_or_path", "") or ""):
            source["model"] = str(Path(name).absolute()) if Path(name).is_dir() else name
        return source


def labels_of(inputs: Mapping[str, Any], tokenizer: Any) -> str:
    """Which of ``Batching.labels`` the labels (B, T) of a batch are; "" where they are none of them, or not there.

    Only where the network reads prompt and answer as one row can that be told.
    """
    ids, labels, mask = (inputs.get(name) for name in ("input_ids", "labels", "attention_mask"))
    if ids is None or labels is None or ids.shape != labels.shape:
        return ""
    there = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    if bool((labels[:, 1:][there[:, 1:]] != IGNORED).all()):
        return "all"
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    rows = [row[row != IGNORED].tolist() for row in labels]
    ends = [[place for place, token in enumerate(row) if token in special] for row in rows]
    if not all(ends):
        return ""
    behind = {tokenizer.decode(row[end[-1] + 1 :]) for row, end in zip(rows, ends, strict=True)}
    if behind == {""}:
        return "answer"
    return "turn" if all(text and not text.strip() for text in behind) else ""


def _counts(model: Any) -> bool:
    """Whether the network divides its loss by the number of tokens that it is told, as ``transformers``' losses do."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else getattr(model, "_orig_mod", model)
    code = getattr(inspect.unwrap(type(base).forward), "__code__", None)
    return code is not None and "loss_function" in code.co_names


def _active(model: Any) -> list[str]:
    """The names of the adapters that are active; none without any."""
    if not getattr(model, "peft_config", None):
        return []
    active = model.active_adapters
    return [*(active() if callable(active) else active)]


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in trainable(model)}


def _told(args: Any, model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """What Trainer knows of its steps, by the names of LocalPlan; of an optimiser that is not imitated, its class."""
    inner = getattr(optimizer, "optimizer", optimizer)
    decay = max(_values(inner, "weight_decay"), default=0)
    name = type(inner).__name__
    if name == "Adam" and _values(inner, "decoupled_weight_decay") == [True]:
        name = "AdamW"
    halves = [HALF[value.dtype] for _, value in trainable(model) if value.dtype in HALF]
    told: dict[str, Any] = {
        "recorded_by": "docleak.TrainerTap", "optimiser": OPTIMISERS.get(name, name),
        "learning_rate": float(args.learning_rate), "weight_decay": float(decay),
        "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "epochs": 1, "max_norm": float(args.max_grad_norm or 0.0), "dropout": dropout_rate(model) > 0,
        "precision": halves[0] if halves else "fp16" if args.fp16 else "bf16" if args.bf16 else "float32",
    }  # fmt: skip
    if args.per_device_train_batch_size == 1:  # accumulated gradients of examples that no others are padded to
        told["padding"] = "none"
    return told


def _not_imitated(args: Any, model: nn.Module, optimizer: Any) -> list[str]:
    """What of this training an audit does not repeat, a sentence a cause, as ``details`` of a capture have it."""
    inner = getattr(optimizer, "optimizer", optimizer)
    said = []
    for key, usual in IMITATED.items() if type(inner).__name__ in OPTIMISERS else ():
        if others := [value for value in _values(inner, key) if value != usual]:
            said.append(f"optimiser: {key} {others[-1]}")
    if len(decays := [value for value in _values(inner, "weight_decay") if value]) > 1:  # "undecayed" says of none
        said.append(f"weight decay: {_listed(decays)}, of some weights each")
    taken = {id(value) for group in inner.param_groups for value in group["params"]}
    weights = [value for _, value in trainable(model)]
    if 0 < (count := sum(id(value) in taken for value in weights)) < len(weights):  # 0: what it holds are copies
        said.append(f"optimiser: it holds {count} of the {len(weights)} tensors that are trained")
    size = args.per_device_train_batch_size
    parts = args.gradient_accumulation_steps * args.world_size
    if parts > 1 and size > 1:
        said.append(f"padding: steps add up {parts} batches of {size}, each padded and averaged alone")
    if args.label_smoothing_factor:
        said.append(f"loss: labels smoothed by {args.label_smoothing_factor:g}")
    if args.neftune_noise_alpha:
        said.append(f"noise: NEFTune's, alpha {args.neftune_noise_alpha:g}")
    return said


def _undecayed(model: nn.Module, optimizer: Any) -> list[str]:
    """Names of what is trained without decay, where other weights decay."""
    groups = getattr(optimizer, "optimizer", optimizer).param_groups
    still = {id(value) for group in groups if not group.get("weight_decay") for value in group["params"]}
    names = [name for name, value in trainable(model) if id(value) in still]
    return names if any(group.get("weight_decay") for group in groups if group["params"]) else []


def _values(optimizer: Any, key: str) -> list[Any]:
    """What an optimiser's groups of weights have as ``key``, each value once."""
    values = [group[key] for group in optimizer.param_groups if group["params"] and key in group]
    return list(dict.fromkeys(float(v) if isinstance(v, Tensor) else tuple(v) if isinstance(v, list) else v
                              for v in values))  # fmt: skip


def _listed(values: Sequence[float]) -> str:
    return " and ".join(f"{value:g}" for value in values)


def _watched(sampler: Any, batches: list[list[int]]) -> Callable[[], None]:
    """``sampler`` noting in ``batches`` what it gives out, until the returned function is called.

    Its class is exchanged for one below it, so that whoever asks what it is hears the same.
    """
    kind = type(sampler)

    def noting(self: Any) -> Iterator[Any]:
        for batch in kind.__iter__(self):
            batches.append(list(batch))
            yield batch

    sampler.__class__ = type(kind.__name__, (kind,), {"__iter__": noting})

    def restore() -> None:
        sampler.__class__ = kind

    return restore
