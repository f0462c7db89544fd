"""Train an encoder on one task, validate it (Dentan et al., 2024, Table 2: one number in 0..1 per model), and keep the
two checkpoints that the paper attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from docleak.documents.ranges import EPOCHS, RATE
from docleak.errors import DocumentError, ModelError, refuse
from docleak.models.base import IGNORED, broken_weights
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import all_asked
from docleak.models.encoders.scrubbing import patched
from docleak.models.encoders.tasks import NOTHING, Task, mask_tokens
from docleak.models.encoders.tokens import TokenPage
from docleak.options import option

#: Batches whose pages are sorted by length together, so that little is padded and much is shuffled.
POOL = 16
#: Panel of help.
GROUP = "Training"


@dataclass(frozen=True)
class FitConfig:
    """AdamW with a linear warm-up, then a constant learning rate; dropout as the model's configuration says.

    Dentan et al. (2024), section 5.1: 300 epochs for "mlm" and 150 for the other tasks, validated after each;
    optimiser, learning rate and batches it does not name. The model is validated every ``validate_every`` epochs and
    after the last. With ``patch`` the picture does not show the words of "mlm" that are to be guessed (a control of
    ours).
    """

    epochs: int = option(300, "Epochs of the target; without it, half as many for other tasks than mlm.", group=GROUP,
                         range=EPOCHS)  # fmt: skip
    batch_size: int = 8
    learning_rate: float = option(5e-5, "Of both models; use 5e-5 for base-size ones.", group=GROUP, range=RATE)
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
        refuse(ModelError, faults, "training cannot be set up: ")


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
    model: EncoderModel, private: Sequence[TokenPage], validation: Sequence[TokenPage], config: FitConfig, *,
    seed: int, on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Fitted:  # fmt: skip
    """Train ``model`` in place on pages that it encoded; masks of "mlm" are drawn anew each epoch.

    For "qa" every question of a page is an example.

    ``seed`` is that of order, masks and dropout (torch's global generator, which is put back). Raises DocumentError for
    an empty part, ModelError where the loss is not finite.
    """
    if not private or not validation:
        raise DocumentError(
            f"{len(private)} pages to train on and {len(validation)} to validate with; expected at least one of each."
        )
    if broken := broken_weights(model.module):
        raise ModelError(f"{model.name!r} cannot be trained: {broken}. Give another checkpoint.")
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
    model: EncoderModel, pages: Sequence[TokenPage], config: FitConfig, optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float:  # fmt: skip
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


#: An entity: its class and its positions; a link: (from, to); an answer: (first, last); a page's class alone.
Found = tuple[int, ...]


@dataclass(frozen=True)
class Validation:
    """``loss`` is the mean over pages, or over questions; ``accuracy`` that of Table 2: see ``validate``."""

    loss: float
    accuracy: float


@torch.no_grad()
def validate(
    model: EncoderModel, pages: Sequence[TokenPage], *, batch_size: int, seed: int, patch: bool = False
) -> Validation:
    """Loss, and the share of masked tokens guessed ("mlm"), of answers whose span is exactly right ("qa") or of pages
    classified rightly ("classify"), or the F1 score of entities or links (the other tasks).

    Masks are drawn with ``seed``, so that epochs are compared on the same ones; ``patch`` hides in the picture what
    they mask. The paper writes "accuracy", and calls its values consistent with those of BROS's authors, who report F1.
    """
    model.module.eval()
    if model.task == "mlm":
        ready: Sequence[TokenPage] = masked(model, pages, torch.Generator().manual_seed(seed), patch=patch)
    else:
        ready = all_asked(pages)
    losses: list[float] = []
    right = guessed = true = 0
    for batch_pages in in_batches(sorted(ready, key=len), batch_size):
        batch = model.collate(batch_pages)
        hidden = model.hidden(batch)
        losses += model.module.head.loss(hidden, batch).tolist()
        rows = {name: row.cpu() for name, row in model.module.head.predict(hidden, batch).items()}
        for i, page in enumerate(batch_pages):
            predicted = {name: torch.where(page.labels[name] == IGNORED, IGNORED, row[i, : len(page)])
                         for name, row in rows.items()}  # fmt: skip
            ours, theirs = things(model.task, predicted), things(model.task, page.labels)
            right, guessed, true = right + len(ours & theirs), guessed + len(ours), true + len(theirs)
    f1 = 2 * right / (guessed + true) if guessed + true else 0.0
    return Validation(sum(losses) / len(losses), f1)


def masked(
    model: EncoderModel, pages: Sequence[TokenPage], generator: torch.Generator, *, patch: bool = False
) -> list[TokenPage]:
    """``mask_tokens`` with the model's own vocabulary; ``patch`` hides in the picture, too, what is to be guessed.

    ModelError where a model that sees no picture is to have it patched.
    """
    tokenizer = model.tokenizer
    plain = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    drawn = mask_tokens(pages, vocabulary=plain, mask_id=tokenizer.mask_token_id, generator=generator)
    if not patch:
        return drawn
    hidden = []
    for page in drawn:
        if page.image is None:
            raise ModelError("masked words cannot be hidden in the picture: the model sees none. Train a bimodal one.")
        hidden.append(replace(page, image=patched(page.image, page.boxes[page.labels["token"] != IGNORED])))
    return hidden


def in_batches(pages: Sequence[TokenPage], size: int) -> Iterable[Sequence[TokenPage]]:
    """Consecutive batches; the last may be smaller."""
    return (pages[i : i + size] for i in range(0, len(pages), size))


def things(task: Task, rows: Mapping[str, Tensor]) -> set[Found]:
    """What the label rows (T,) of one page say: masked tokens, entities, links, an answer or a class."""
    if task == "mlm":
        token = rows["token"]
        return {(i, int(token[i])) for i in (token != IGNORED).nonzero().flatten().tolist()}
    if task == "qa":
        return set(zip(*((rows[name] == 1).nonzero().flatten().tolist() for name in ("start", "end")), strict=True))
    if task == "classify":
        return {(int(rows["class"][0]),)}
    if task == "ee-bio":
        return set(tagged(rows["tag"].tolist()))
    if task == "ee-spade":
        return set(chained(rows["initial"].tolist(), rows["predecessor"].tolist()))
    source = rows["source"].tolist()
    return {(a, b) for b, a in enumerate(source) if a not in (NOTHING, IGNORED)}


def tagged(tags: Sequence[int]) -> list[Found]:
    """Entities of a row of BIO tags: (class, positions...). A tag I that follows no tag of its class begins one."""
    entities: list[list[int]] = []
    before = 0
    for i, tag in enumerate(tags):
        if tag > 0:
            kind = (tag - 1) // 2
            continues = tag % 2 == 0 and before > 0 and (before - 1) // 2 == kind
            if continues:
                entities[-1].append(i)
            else:
                entities.append([kind, i])
        before = tag
    return [tuple(entity) for entity in entities]


def chained(initial: Sequence[int], predecessor: Sequence[int]) -> list[Found]:
    """Entities of SPADE's rows: from each first token along the tokens that name it, and so on, as predecessor.

    Where several tokens name the same predecessor, the nearest behind it follows.
    """
    after: dict[int, int] = {}
    for token, before in enumerate(predecessor):
        if before >= 0 and (before not in after or abs(token - before) < abs(after[before] - before)):
            after[before] = token
    entities = []
    for first, kind in enumerate(initial):
        if kind > 0:
            entity, token, seen = [kind - 1, first], first, {first}
            while (token := after.get(token, -1)) >= 0 and token not in seen:
                seen.add(token)
                entity.append(token)
            entities.append(tuple(entity))
    return entities
