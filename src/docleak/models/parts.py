"""The networks a T5 reader is made of, from their configurations or from checkpoints as they are published."""

from __future__ import annotations

from collections.abc import Mapping
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError

from docleak.errors import ModelError
from docleak.models.loading import split_revision
from docleak.models.preprocessing import require_weights


def t5_of(text: Mapping[str, Any] | str, *, allow_pickle: bool = False) -> Any:
    """A ``T5ForConditionalGeneration`` from its config's values, or from a directory or hub name."""
    import transformers as t

    if not isinstance(text, str):
        return t.T5ForConditionalGeneration._from_config(t.T5Config(**text), attn_implementation="eager")
    return pretrained(t.T5ForConditionalGeneration, text, allow_pickle=allow_pickle)


def pretrained(kind: Any, source: str, *, allow_pickle: bool, **options: Any) -> Any:
    """``kind`` from a directory or hub name (with ``@revision``), float32, eager attention.

    Weights are read from safetensors; with ``allow_pickle`` also from pytorch_model.bin, by torch's reader of plain
    tensors (``weights_only``). ModelError where the files cannot be read, or weights are missing.
    """
    import transformers as t

    where, revision = split_revision(source)
    t.utils.logging.disable_progress_bar()
    told = t.utils.logging.get_verbosity()
    t.utils.logging.set_verbosity_error()  # weights of other heads are left aside; missing ones are looked for below
    try:
        module, found = kind.from_pretrained(
            where, revision=revision or "main", attn_implementation="eager", dtype=torch.float32, weights_only=True,
            use_safetensors=None if allow_pickle else True, output_loading_info=True, **options,
        )  # fmt: skip
    except (OSError, RuntimeError, ValueError, UnpicklingError, SafetensorError) as error:
        pickled = "" if allow_pickle else (
            " If its weights are only there as pytorch_model.bin, and you trust them: docleak models assemble "
            "--allow-pickle."
        )  # fmt: skip
        raise ModelError(f"{source!r} could not be loaded ({str(error).strip()}).{pickled}") from error
    finally:
        t.utils.logging.set_verbosity(told)
    require_weights(source, module, found["missing_keys"])
    return module


def values_of(config: Any) -> dict[str, Any]:
    """The values of a transformers config that differ from its class's defaults."""
    return {
        key: value for key, value in config.to_diff_dict().items() if key not in ("model_type", "transformers_version")
    }
