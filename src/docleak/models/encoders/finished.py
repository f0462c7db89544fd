"""Extraction models that are trained already, head and all: docleak's own, and those that transformers saved.

Of transformers' ones, ``...ForTokenClassification`` is EE-BIO, its labels named in config.json,
``...ForQuestionAnswering`` answers by a span and reads the question before the page, and ``...ForMaskedLM`` is MLM.
Other heads (BROS' SPADE among them) are of other shapes than docleak's, and refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from docleak.errors import ModelError
from docleak.models.encoders.heads import SpanHead, TagHead
from docleak.models.encoders.loading import MODEL_TYPE, found_encoder, load_backbone, load_encoder
from docleak.models.encoders.model import BACKBONES, EncoderModel
from docleak.models.files import weights_in
from docleak.models.loading import short_name

#: What a checkpoint's heads are called; LayoutLMv3's have a layer of their own before the scores.
TAGS, SPANS, WORDS = "classifier", "qa_outputs", "cls.predictions.transform.dense"
OUTSIDE = "O"


def load_finished(source: str, *, device: str | torch.device = "cpu") -> EncoderModel:
    """A trained extraction model from a directory or hub name, its task told by the head that it has.

    Raises ModelError for an architecture that is no token encoder, for a bare backbone or a head that docleak does not
    know, for labels that are not O, B-... and I-..., and whatever ``load_encoder`` raises.
    """
    where, revision, values = found_encoder(source)
    if values.get("model_type") == MODEL_TYPE:
        return load_encoder(source, device=device)
    kind = values.get("model_type")
    if kind not in BACKBONES:
        raise ModelError(f"model {source!r} is of architecture {kind!r}; extraction models are {', '.join(BACKBONES)}.")
    weights = weights_in(where, revision)
    more: dict[str, Any] = {"vision": None, "seed": 0, "name": short_name(source)}
    if has_head(weights, TAGS):
        order, classes = tags_of(values, source)
        model = load_backbone(where, values, revision, "ee-bio", classes, **more)
        assert isinstance(model.module.head, TagHead)
        _fill(model, model.module.head.tags, weights, TAGS, order)
    elif has_head(weights, SPANS):
        model = load_backbone(where, values, revision, "qa", (), question_first=True, **more)
        assert isinstance(model.module.head, SpanHead)
        _fill(model, model.module.head.span, weights, SPANS, (0, 1))
    elif has_head(weights, WORDS):
        model = load_backbone(where, values, revision, "mlm", (), whole=True, **more)
    else:
        beside = sorted(key for key in weights if not key.startswith((f"{kind}.", "embeddings.", "encoder.")))
        raise ModelError(
            f"model {source!r} has no head that docleak can attack: beside its backbone the file holds "
            f"{', '.join(beside[:3]) or 'nothing'}. Expected {TAGS} ({kind} for token classification), {SPANS} (for "
            f"question answering) or {WORDS} (for masked language modelling); save the whole trained model, not its "
            "backbone."
        )
    model.module.to(device)
    return model


def tags_of(values: Mapping[str, Any], source: str) -> tuple[list[int], tuple[str, ...]]:
    """For each of our tags (O, B-first, I-first, B-second ...) the checkpoint's row, and the classes in order."""
    labels = {str(label): int(number) for number, label in (values.get("id2label") or {}).items()}
    classes = tuple(sorted({label[2:] for label in labels if label[:2] in ("B-", "I-") and label[2:]}))
    wanted = [OUTSIDE, *(f"{part}-{name}" for name in classes for part in "BI")]
    if not classes or set(wanted) != set(labels):
        raise ModelError(
            f"the labels of model {source!r} are {', '.join(sorted(labels)[:6]) or 'not named'}"
            f"{' ...' if len(labels) > 6 else ''}; expected O and, for each kind of entity, B-KIND and I-KIND. Name "
            "them in config.json under id2label, as they were in training."
        )
    return [labels[label] for label in wanted], classes


def has_head(weights: Mapping[str, Tensor], name: str) -> bool:
    """Whether the file holds a head of that name, with or without a layer of its own."""
    return f"{name}.weight" in weights or f"{name}.out_proj.weight" in weights


@torch.no_grad()
def _fill(
    model: EncoderModel, scorer: nn.Module, weights: Mapping[str, Tensor], name: str, order: Sequence[int]
) -> None:  # fmt: skip
    """Put the checkpoint's head into ours, its rows in our ``order`` of labels."""
    layers: dict[str, nn.Module] = {name: scorer}
    if isinstance(scorer, nn.Sequential):
        layers = {f"{name}.dense": scorer[0], f"{name}.out_proj": scorer[-1]}
    last = list(layers)[-1]
    for there, layer in layers.items():
        rows = list(order) if there == last else slice(None)
        for part, ours in layer.named_parameters():
            theirs = weights.get(f"{there}.{part}")
            if theirs is None or theirs.shape != ours.shape:
                shape = "not there" if theirs is None else f"of the shape {tuple(theirs.shape)}"
                raise ModelError(
                    f"the head of model {model.name!r}: {there}.{part} is {shape}; {len(order)} labels of a "
                    f"{model.config.architecture} need {tuple(ours.shape)}. Save the model again."
                )
            ours.copy_(theirs[rows])
    model.drawn = ""
