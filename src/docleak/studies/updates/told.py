"""What a capture and --local say of how a client trained, in the words of docleak's own plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from docleak import spec
from docleak.attacks.gradients.local_steps import LABELS, LONGEST, UNPADDED, Batching
from docleak.documents.pages import gathered
from docleak.errors import AttackError, FederationError
from docleak.models.base import DocumentModel
from docleak.studies.updates.round import Batches
from docleak.training.federated.capture import CapturedUpdate
from docleak.training.federated.local_plan import OPTIMISERS, LocalPlan

#: What others call the keys of LocalPlan.
ALIASES = {"lr": "learning_rate", "optimizer": "optimiser", "local_epochs": "epochs", "clip_norm": "max_norm"}
#: Keys of --local beside those of LocalPlan: how the client's own code makes a batch's loss.
BATCHING = ("padding", "mean", "labels")
#: What a capture may say of it; anything else is another program's word.
SAID = ("none", "longest", "max_length", "examples", "tokens", *LABELS)
#: What transformers does by itself: pad to the longest of a batch, and average over its tokens.
OF_TRANSFORMERS = Batching(LONGEST, "tokens")
#: What taps and others call half precision.
HALF = ("fp16", "bf16", "float16", "bfloat16")
#: Without these nothing can be said of how the client trained.
NEEDED = ("optimiser", "learning_rate", "batch_size")
#: Stand for these where only the rest is looked at.
ANY = {"optimiser": "sgd", "learning_rate": 0.1, "batch_size": 1}


def batching_of(
    local: str, model: DocumentModel, default: Batching, details: Mapping[str, Any] | None = None
) -> Batching:
    """How the client makes a batch's loss: ``default``, unless a capture's ``details`` or ``local`` say
    padding=longest, max_length, none or a number of tokens, mean=examples or tokens, or labels=answer, turn or all."""
    recorded = {key: str((details or {}).get(key)) for key in BATCHING}
    told = {key: value for key, value in recorded.items() if value in SAID} | _told(local)
    padding = told.get("padding", str(default.padding)).lower()
    mean, labels = told.get("mean", default.mean), told.get("labels", default.labels)
    most = getattr(model, "max_tokens", LONGEST)
    lengths = {"none": UNPADDED, "no": UNPADDED, "longest": LONGEST, "max_length": most}
    try:
        return Batching(lengths[padding] if padding in lengths else int(padding), mean, labels)
    except (ValueError, AttackError) as fault:
        raise FederationError(
            f"--local says padding={padding},mean={mean},labels={labels}; expected padding longest, "
            "max_length, none or a number of tokens, a mean over examples or tokens, and labels answer, turn or all."
        ) from fault


def told_plan(update: CapturedUpdate, local: str = "") -> dict[str, Any]:
    """What the capture's details and ``local`` say of the client's training, by the names of LocalPlan's fields.

    A gradient is a step at a rate of 1, whatever else the capture says; ``local`` may say that it was scaled.
    """
    told = _recorded(update)
    if update.kind == "gradient":
        one = {"optimiser": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "batch_size": max(1, update.examples)}
        told |= {**one, "epochs": 1, "max_steps": 1}
    told |= _told(local)
    if str(told.get("optimiser")).lower() == "adam":
        asked = bool(update.ours) or not {"optimiser", "weight_decay"}.isdisjoint(_told(local))
        told |= _adam(update, told, asked=asked)
    if told.get("weight_decay") is None and str(told.get("optimiser")).lower() == "sgd":
        told["weight_decay"] = 0.0  # torch's default
    if told.get("epochs") is None and (_number(told.get("steps")) or 0) > 0:
        told |= {"epochs": int(told["steps"]), "max_steps": told.get("max_steps") or int(told["steps"])}
    if told.get("optimiser") is not None:
        told["optimiser"] = str(told["optimiser"]).lower()
    return {key: value for key, value in told.items() if value is not None}


def lacking(told: Mapping[str, Any]) -> list[str]:
    """What has to be known of a client's training, and is not."""
    return [key for key in NEEDED if key not in told]


def plan_of(update: CapturedUpdate, local: str = "", guess: Mapping[str, Any] | None = None) -> LocalPlan:
    """How the client trained: what is told, and ``guess`` beneath it; FederationError lists what is not told."""
    said, beneath = told_plan(update, local), dict(guess or {})
    if "epochs" in said:
        beneath.pop("max_steps", None)  # which ends other epochs than these
    told = {**beneath, **said}
    if missing := lacking(told):
        raise FederationError(
            f"{update.name}: the capture does not say the client's {', '.join(missing)} (it says "
            f"{', '.join(sorted(update.details)) or 'nothing'}). Say it, for instance with "
            "--local optimiser=sgd,learning_rate=0.1,batch_size=1,epochs=1."
        )
    values = {field.name: told[field.name] for field in fields(LocalPlan) if told.get(field.name) is not None}
    return spec.build(LocalPlan, values, what=update.name, error=FederationError)


def _adam(update: CapturedUpdate, told: Mapping[str, Any], *, asked: bool) -> dict[str, Any]:
    """Adam without decay is AdamW without decay; with decay Adam adds the weights to the gradient: another step, which
    is refused where it was ``asked`` for, and else left to ``unlike``."""
    decay = told.get("weight_decay") or 0.0
    if asked and float(decay):
        raise FederationError(
            f"{update.name}: optimiser adam with weight_decay {decay}: torch's Adam adds the decay to the gradient, "
            "which is not imitated. Say adamw if that is what ran; without decay adam is imitated."
        )
    return {"optimiser": "adamw", "weight_decay": 0.0}


def _recorded(update: CapturedUpdate) -> dict[str, Any]:
    """The capture's details, named and meant as LocalPlan has them.

    Another program's are read as that program means them: a rate of dropout, a class as the optimiser, -1 for no limit;
    what it calls an objective is its own matter.
    """
    told = {ALIASES.get(name, name): value for name, value in _plain(update).items()}
    if update.ours:
        return told
    told.pop("objective", None)
    told |= {name: max(0, told[name]) for name in ("max_steps", "max_norm") if _number(told.get(name)) is not None}
    if (rate := _number(told.get("dropout"))) is not None:
        told["dropout"] = rate > 0
    if told.get("optimiser") is not None:
        told["optimiser"] = _optimiser(told["optimiser"])
        if told["optimiser"] not in OPTIMISERS:
            del told["optimiser"]  # ``unlike`` names it
    return told


def _plain(update: CapturedUpdate) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in update.details.items()}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _optimiser(name: Any) -> str:
    """ "sgd" of "torch.optim.SGD"."""
    return str(name).rpartition(".")[2].lower()


def unlike(update: CapturedUpdate) -> tuple[str, ...]:
    """What the capture says of the client's training that no plan imitates, a sentence a cause: "optimiser: ..."."""
    details = _plain(update)
    told = details.get("not_imitated")
    name = next((details[key] for key in ("optimiser", "optimizer") if details.get(key) is not None), "sgd")
    said = [] if _optimiser(name) in OPTIMISERS else [f"optimiser: {name}"]
    if _optimiser(name) == "adam" and (decay := details.get("weight_decay") or 0) not in (0, "0", "0.0"):
        said.append(f"optimiser: adam's weight_decay {decay}, which it adds to the gradient")
    said += [text for text in told if isinstance(text, str)] if isinstance(told, list) else []
    for key, text in (("momentum", "momentum {:g}"), ("proximal_mu", "FedProx's pull towards the start, mu {:g}")):
        said += [f"optimiser: {text.format(number)}"] if (number := _number(details.get(key))) else []
    said += [f"precision: {kind}"] if (kind := details.get("precision")) in HALF else []
    return tuple(f"{cause}: {', '.join(texts)}" for cause, texts in gathered(map(spec.split_name, said)).items())


def batches_told(update: CapturedUpdate, count: int) -> Batches:
    """The examples of each step as recorded; () where nothing is, or they are not among so many."""
    told = update.details.get("batches")
    if not isinstance(told, list) or not all(isinstance(batch, list) and batch for batch in told):
        return ()
    known = all(isinstance(number, int) and 0 <= number < count for batch in told for number in batch)
    return tuple(map(tuple, told)) if known else ()


def undecayed_of(update: CapturedUpdate) -> frozenset[str]:
    """Weights that did not decay, as recorded, by the model's names."""
    told = update.details.get("undecayed")
    return frozenset(update.names.get(str(name), str(name)) for name in (told if isinstance(told, list) else ()))


def _told(text: str) -> dict[str, str]:
    """What --local says, by the names of LocalPlan's fields and of BATCHING."""
    known = (*(field.name for field in fields(LocalPlan)), *BATCHING)
    takes = ", ".join(known)
    told = spec.options(text, what="--local", error=FederationError, takes=takes)
    told = {ALIASES.get(key, key): value for key, value in told.items()}
    if unknown := sorted(set(told) - set(known)):
        raise FederationError(f"--local cannot be told {unknown[0]!r}; it takes {takes}, each as key=value.")
    return told
