"""Train an encoder on one task, and keep the two checkpoints that the paper attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from docleak.documents.ranges import Range
from docleak.errors import DocumentError, ModelError
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import all_asked
from docleak.models.encoders.tokens import TokenPage
from docleak.options import option
from docleak.training.extraction.validation import Validation, in_batches, masked, validate

#: Batches whose pages are sorted by length together, so that little is padded and much is shuffled.
POOL = 16
#: Panel of help.
GROUP = "Training"


@dataclass(frozen=True)
class FitConfig:
    """AdamW with a linear warm-up, then a constant learning rate; dropout as the model's configuration says.

    Dentan et al. (2024), section 5.1: 300 epochs for "mlm" and 150 for the other tasks, validated after each. The
    model is validated every ``validate_every`` epochs and after the last. With ``patch`` the picture does not show the
    words of "mlm" that are to be guessed (a control of ours).
    """

    epochs: int = option(300, "Epochs of the target; without it, half as many for other tasks than mlm.", group=GROUP,
                         range=Range(1, 10_000))  # fmt: skip
    batch_size: int = 8
    learning_rate: float = option(
        5e-5, "Of both models; use 5e-5 for base-size ones.", group=GROUP, range=Range(0, 1e3)
    )
    weight_decay: float = 0.01
    warmup_epochs: float = 1.0
    max_norm: float = 1.0
    validate_every: int = 1
    patch: bool = False

    def __post_init__(self) -> None:
        whole = {name: getattr(self, name) for name in ("epochs", "batch_size", "validate_every")}
        real = {name: getattr(self, name) for name in ("learning_rate", "weight_decay", "warmup_epochs", "max_norm")}
        faults = [f"{name} is {value}; expected 1 or more" for name, value in whole.items() if value < 1]
        faults += [f"{k} is {v}; expected 0 or more" for k, v in real.items() if not (math.isfinite(v) and v >= 0)]
        if faults:
            raise ModelError("training cannot be set up: " + "; ".join(faults) + ".")


@dataclass(frozen=True)
class Epoch:
    """One validated epoch: its number from 1, the mean training loss, and the validation."""

    number: int
    train_loss: float
    validation: Validation


@dataclass
class Fitted:
    """The best epochs by validation accuracy ("precision") and by validation loss ("loss"), with their weights."""

    epochs: list[Epoch] = field(default_factory=list)
    best: dict[str, Epoch] = field(default_factory=dict)
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def note(self, epoch: Epoch, model: EncoderModel) -> None:
        """Keep the weights if this epoch is the best so far by either criterion; of equal ones the first counts."""
        self.epochs.append(epoch)
        validation = epoch.validation
        best = {name: other.validation for name, other in self.best.items()}
        better = {
            "precision": not best or validation.accuracy > best["precision"].accuracy,
            "loss": not best or validation.loss < best["loss"].loss,
        }
        for criterion, is_better in better.items():
            if is_better:
                self.best[criterion] = epoch
                self.weights[criterion] = {k: v.detach().clone() for k, v in model.module.state_dict().items()}

    def restore(self, model: EncoderModel, criterion: str) -> EncoderModel:
        """Put the weights of a criterion's best epoch into ``model``, in evaluation mode."""
        model.module.load_state_dict(self.weights[criterion])
        model.module.eval()
        return model


def fit(
    model: EncoderModel,
    private: Sequence[TokenPage],
    validation: Sequence[TokenPage],
    config: FitConfig,
    *,
    seed: int,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Fitted:
    """Train ``model`` in place on pages that it encoded; masks of "mlm" are drawn anew each epoch.

    For "qa" every question of a page is an example.

    ``seed`` is that of order, masks and dropout (torch's global generator, which is put back). Raises DocumentError for
    an empty part, ModelError where the loss is not finite.
    """
    if not private or not validation:
        raise DocumentError(
            f"{len(private)} pages to train on and {len(validation)} to validate with; expected at least one of each."
        )
    private = all_asked(private)
    rng = np.random.default_rng(np.random.SeedSequence((seed, 0xF17)))
    masks = torch.Generator().manual_seed(int(rng.integers(2**62)))
    parameters = list(model.module.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
    warmup = config.warmup_epochs * math.ceil(len(private) / config.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / max(warmup, 1)))
    fitted = Fitted()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**62)))
        for number in range(1, config.epochs + 1):
            model.module.train()
            ready = masked(model, private, masks, patch=config.patch) if model.task == "mlm" else list(private)
            losses = [_step(model, batch, config, optimiser, schedule) for batch in _shuffled(ready, config, rng)]
            if not math.isfinite(sum(losses)):
                raise ModelError(f"the training loss of epoch {number} is {sum(losses)}. Lower the learning rate.")
            if number % config.validate_every == 0 or number == config.epochs:
                measured = validate(model, validation, batch_size=2 * config.batch_size, seed=seed, patch=config.patch)
                epoch = Epoch(number, float(np.mean(losses)), measured)
                fitted.note(epoch, model)
                on_epoch(epoch)
    model.module.eval()
    return fitted


def _step(
    model: EncoderModel,
    pages: Sequence[TokenPage],
    config: FitConfig,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float:
    loss = model.loss(model.collate(pages)).mean()
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if config.max_norm:
        torch.nn.utils.clip_grad_norm_(model.module.parameters(), config.max_norm)
    optimiser.step()
    schedule.step()
    return float(loss.detach())


def _shuffled(pages: Sequence[TokenPage], config: FitConfig, rng: np.random.Generator) -> Iterator[Sequence[TokenPage]]:
    """Every page once, in batches of similar length, both drawn anew."""
    order = [pages[int(i)] for i in rng.permutation(len(pages))]
    pools = in_batches(order, POOL * config.batch_size)
    batches = [batch for pool in pools for batch in in_batches(sorted(pool, key=len), config.batch_size)]
    return (batches[int(i)] for i in rng.permutation(len(batches)))
