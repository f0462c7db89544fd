"""What ``docleak plan`` has to know of a model, from its configuration: of weights LoRA's B alone is looked at."""

from __future__ import annotations

from typing import Any

from docleak.errors import ModelError
from docleak.files import read_json_object
from docleak.models.files import optional_file, tensors_in
from docleak.models.loading import config_of, locate

#: The first layer's projections, by the ends of their names.
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
#: Parts of the names of a tower's layers; of a language model's any number but 0 is of a later one than the first.
TOWERS = ("vision", "visual", "tower")
#: What tables of tokens are called; LoRA's factor on one has a column a token, which moves where it is read.
TABLES = ("embed_tokens", "word_embeddings", "tok_embeddings", "wte")
#: What else of a layer may carry adapters: nothing of it tells a word exactly. Other names may be of a fused query,
#: key and value (qkv_proj).
BEHIND = ("o_proj", "out_proj", "dense", "gate_proj", "up_proj", "gate_up_proj", "down_proj", "fc1", "fc2")
#: Parts of a tower that LoRA on an attention leaves still, and the output layer, whose rows tell the answer's words.
UNPLANNED = ("position_embedding", "patch_embedding", "pos_embed", "patch_embed", "lm_head", "embed_out")
#: Of adapter_config.json: what trains more than LoRA of one rank on the targets, or otherwise, or not all of them.
UNCOUNTED = (
    *("modules_to_save", "trainable_token_indices", "target_parameters", "rank_pattern", "use_dora", "lora_bias"),
    *("layers_to_transform", "layer_replication", "exclude_modules"),
)
#: What adapters' weights are called, and how peft may have begun them with a B of zeros.
ADAPTERS, ZERO = ("adapter_model.safetensors", "adapter_model.bin"), (True, None, "gaussian", "eva")


def shape_of(source: str) -> dict[str, Any]:
    """Fields of ``privacy.channels.Shape`` that the configuration of a model, or of LoRA on it, says.

    ``patches`` is there where the configuration counts a page's picture vectors, the tower's size where it is SigLIP's
    and trained. ModelError for models that are no decoder of pictures and words, for targets that are a pattern, and
    for adapters that are more, or other, than LoRA of one rank on them.
    """
    from docleak.models.lora import ADAPTER, adapter_file

    where, revision = locate(source)
    file, base, shape = adapter_file(where, revision), source, {"rank": 0, "adapted": len(PROJECTIONS)}
    if file is not None:
        told = read_json_object(file, error=ModelError, advice="Save the adapters again.")
        targets, base = told.get("target_modules"), str(told.get("base_model_name_or_path"))
        if not isinstance(targets, list) or type(told.get("r")) is not int:  # true is an int, too
            raise ModelError(
                f"{ADAPTER} of {source!r} has r={told.get('r')!r} and target_modules={targets!r}; expected a number, "
                "and a list of names. Say --rank and --adapted instead of --model."
            )
        ends = {str(target).split(".")[-1] for target in targets}
        usual = {**dict.fromkeys(UNCOUNTED), "bias": "none", "peft_type": "LORA"}
        other = [f"{key}={value!r}" for key in usual if (value := told.get(key) or usual[key]) != usual[key]]
        adapted = len({str(target).split(".")[-1] for target in targets if _of_first(str(target))} & {*PROJECTIONS})
        strange = {*UNPLANNED} if ends & {*PROJECTIONS} else ends - {*BEHIND, *TABLES}
        if other := [*other, *(f"the target {name}" for name in sorted(ends & strange))]:
            raise ModelError(
                f"{ADAPTER} of {source!r} has {', '.join(other)}: a plan counts LoRA of one rank on layers, and "
                "nothing else that is trained. Run `docleak audit gradient` or `docleak audit updates` on it."
            )
        begun = _begun(where, revision, told.get("init_lora_weights", True))
        shape = {"rank": told["r"], "adapted": adapted, "begun": begun, "table": bool(ends & {*TABLES})}
    config = _filled(config_of(base))
    text, vision = config.get("text_config") or {}, config.get("vision_config") or {}
    if not all(isinstance(text.get(name), int) for name in ("hidden_size", "vocab_size")):
        raise ModelError(
            f"config.json of {base!r} (model_type {config.get('model_type')!r}) has no text_config with a hidden_size "
            "and a vocab_size. A plan covers adapters (LoRA) of decoders of pictures and words alone, and says nothing "
            "of this architecture, whatever its numbers. Run `docleak audit gradient` or `docleak audit updates` on it."
        )
    shape |= {"width": text["hidden_size"], "vocabulary": text["vocab_size"]}
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
    shape.setdefault("table", not tied)
    side, patch, kind = vision.get("image_size"), vision.get("patch_size"), config.get("model_type")
    squared = (side // patch) ** 2 if isinstance(side, int) and isinstance(patch, int) else 0
    counted = config.get("mm_tokens_per_image") or config.get("image_seq_length")
    counted = squared if squared and kind in ("llava", "paligemma") else counted
    shape |= {"patches": counted} if isinstance(counted, int) else {}
    if file is None and squared and vision.get("model_type") == "siglip_vision_model":
        shape |= {"tower_width": vision["hidden_size"], "tower_patches": squared}
    return shape


def _filled(config: dict[str, Any]) -> dict[str, Any]:
    """With what the file leaves out, as it is the default of its kind; as it is of kinds that transformers has not."""
    from transformers import CONFIG_MAPPING

    try:
        return dict(CONFIG_MAPPING[config.get("model_type")].from_dict(config).to_dict())
    except Exception:  # whatever its class makes of a damaged file: what is lacking is said by who asks for it
        return config


def _of_first(target: str) -> bool:
    """Whether the target of adapters may be of a language model's first layer: "q_proj" is, of all layers."""
    parts = target.split(".")
    elsewhere = any(word in part for part in parts for word in TOWERS)
    return not elsewhere and all(int(part) == 0 for part in parts if part.isdecimal())


def _begun(where: str, revision: str | None, drawn: object) -> bool:
    """Whether LoRA's B is not zero: by its weights, or where there are none yet by how peft draws them."""
    files = [file for name in ADAPTERS if (file := optional_file(where, name, revision=revision)) is not None]
    if not files:
        return drawn not in ZERO
    return any(bool(value.any()) for name, value in tensors_in(files[0]).items() if "lora_B" in name)
