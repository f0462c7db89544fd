"""Low-rank adapters (LoRA; Hu et al., 2022) on a model, by ``peft``: the base is frozen, and only they move.

What is trainable is what a client sends, so gradients, bytes, clipping and taps are those of the adapters alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docleak import spec
from docleak.documents.ranges import SEED
from docleak.errors import ModelError
from docleak.files import read_json_object
from docleak.models.base import DocumentModel, device_of, trainable
from docleak.models.files import drawn_with, new_model, optional_file, taken
from docleak.models.loading import config_of, load_model, loadable, short_name

#: The file that makes a folder one of adapters.
ADAPTER = "adapter_config.json"
INSTALL = "Adapters need the extra adapters: pip install 'docleak[adapters]'."


@dataclass(frozen=True)
class Lora:
    """Rank ``r``; the adapters' output is scaled by ``alpha`` / r. ``targets`` are the last parts of layers' names
    (``q_proj``), joined by + in text; without them every linear layer but the output layer."""

    r: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.r < 1 or self.alpha < 1:
            raise ModelError(f"LoRA has r={self.r} and alpha={self.alpha}; expected 1 or more of each.")

    @classmethod
    def parsed(cls, text: str) -> Lora:
        """``r=8,targets=q_proj+v_proj``; ModelError for anything else."""
        made: Lora = spec.told(cls, text, what="--lora", error=ModelError)
        return made


@dataclass(frozen=True)
class Drawn(Lora):
    """Adapters, and what draws them."""

    seed: int = 0


def adapt_asked(source: str, out: Path, said: str) -> None:
    """``adapt`` as a text says it (``published.made``): r=8,alpha=16,targets=q_proj+v_proj,seed=1."""
    asked: Drawn = spec.told(Drawn, said, what=f"the adapters on {source!r}", error=ModelError)
    if not SEED.holds(asked.seed):
        raise ModelError(f"the adapters on {source!r}: seed is {asked.seed}, expected {SEED}.")
    adapt(source, out, asked, seed=asked.seed)


def adapt(source: str, out: Path, lora: Lora, *, seed: int) -> dict[str, Any]:
    """Write a folder of adapters for the model ``source`` to ``out``, as a fine-tuning begins; returns its card.

    A is drawn with ``seed`` and B is 0, as in ``peft``: the model answers as before, and a first gradient moves B
    alone. Raises ModelError where no layer has a target's name, and for networks that are not transformers' own.
    """
    if fault := taken(out):
        raise ModelError(f"{fault}.")
    peft = load_peft()
    model = load_model(source)
    _require_plain(model, source)
    widest = max((max(layer.weight.shape) for layer in _linear(model).values()), default=lora.r)
    if lora.r > widest:  # no more directions than that, and memory without end
        raise ModelError(f"LoRA has r={lora.r}; the widest layer of {source!r} is {widest} wide. Give at most that.")
    config = peft.LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, target_modules=list(lora.targets) or "all-linear", lora_dropout=0.0
    )
    module: Any = model.module
    with drawn_with(seed), loadable(f"adapters of {source!r}", expected=_expected(model, lora)):
        module.add_adapter(config)
    local = Path(source).expanduser().is_dir()
    module.peft_config["default"].base_model_name_or_path = str(Path(source).resolve()) if local else source
    sent = sum(parameter.numel() for _, parameter in trainable(module))
    card = {
        "recipe": f"LoRA of rank {lora.r} on {short_name(source)}, drawn with seed {seed}",
        "base": source,
        "r": lora.r,
        "alpha": lora.alpha,
        "targets": sorted(config.target_modules),
        "seed": seed,
        "trainable": sent,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
    }
    with new_model(out, card) as draft:
        model.save(str(draft))
    return card


def adapter_file(where: str, revision: str | None) -> Path | None:
    """The configuration of a folder or hub repository of adapters; None where it holds none, or is not in reach."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return optional_file(where, ADAPTER, revision=revision)
    except (HfHubHTTPError, HFValidationError, OSError, ValueError, RuntimeError):
        return None  # what is wrong with it is said where its config.json is looked for


def load_adapted(file: Path, source: str, where: str, revision: str | None, **options: Any) -> DocumentModel:
    """The base that ``file`` names with the adapters beside it, trainable, the base frozen; ``options`` of load_model.

    Raises ModelError for other kinds of adapters than LoRA, and for a quantised base.
    """
    told = read_json_object(file, error=ModelError, advice="Save the adapters again.")
    kind, base = told.get("peft_type"), str(told.get("base_model_name_or_path") or "")
    if kind != "LORA" or not base:
        raise ModelError(
            f"{source!r} holds adapters of type {kind!r} on the base {base!r}; expected LORA, and the name or folder "
            f"of a model in {ADAPTER}'s base_model_name_or_path."
        )
    if told.get("use_dora"):
        raise ModelError(
            f"the adapters {source!r} are DoRA's (use_dora in {ADAPTER}), which are not read; expected those of plain "
            "LoRA. Train them with use_dora=False."
        )
    if "quantization_config" in config_of(base):
        raise ModelError(
            f"the base {base!r} of the adapters {source!r} is quantised; attacks need its derivatives in float32. Name "
            f"the model that it was quantised from in {ADAPTER}."
        )
    load_peft()
    model = load_model(base, **options)
    _require_plain(model, base)
    device = device_of(model)
    module: Any = model.module
    with loadable(f"adapters {source!r}", expected=f"{ADAPTER} and adapter_model.safetensors that fit {base!r}"):
        report = module.load_adapter(
            where, is_trainable=True, adapter_kwargs={"revision": revision} if revision else {}
        )
    lacking = sorted(report.missing_keys)
    if lacking or report.unexpected_keys:
        raise ModelError(
            f"the adapters {source!r} do not fit their base {base!r}: {len(lacking)} of their tensors are missing and "
            f"{len(report.unexpected_keys)} unknown, first: {[*lacking, *sorted(report.unexpected_keys)][0]}."
        )
    module.peft_config["default"].base_model_name_or_path = base
    module.to(device).eval()
    model.name = short_name(source)
    return model


def _require_plain(model: DocumentModel, source: str) -> None:
    if getattr(model.module, "peft_config", None):
        raise ModelError(f"{source!r} has adapters already; expected a model without any. Name its base.")
    if not hasattr(model.module, "add_adapter"):
        raise ModelError(
            f"{source!r} is a {model.architecture}, whose network is docleak's own; adapters are added to those of "
            "transformers (donut, layoutlmv3, vision-language models)."
        )


def _linear(model: DocumentModel) -> dict[str, Any]:
    """The linear layers by name."""
    from torch import nn

    return {name: part for name, part in model.module.named_modules() if isinstance(part, nn.Linear)}


def _expected(model: DocumentModel, lora: Lora) -> str:
    names = sorted({name.rpartition(".")[2] for name in _linear(model)})
    return f"targets ({', '.join(lora.targets) or 'all'}) among its linear layers: {', '.join(names)}"


def load_peft() -> Any:
    """The package ``peft``; ModelError, which says how to install it, where it is not."""
    try:
        import peft
    except ImportError as fault:
        raise ModelError(f"no peft is installed ({fault}). {INSTALL}") from fault
    return peft
