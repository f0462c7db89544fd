"""``docleak models``: the shipped checkpoints, and how they are made."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from docleak.cli.command import DRAWN
from docleak.cli.output import as_json, emit, working_in
from docleak.documents.ranges import SEED, Range
from docleak.options import option, required


def list_models() -> None:
    """List the shipped checkpoints with size, recipe and answer quality."""
    from docleak.models import SHIPPED, model_card
    from docleak.models.shipped import CHECKPOINTS, SHIPPED_ENCODERS, SHIPPED_FOR_PAIRS

    titles = {**SHIPPED, **SHIPPED_ENCODERS, **SHIPPED_FOR_PAIRS}
    rows = {name: {"title": title, **model_card(str(CHECKPOINTS / name))} for name, title in titles.items()}
    lines = []
    for name, row in rows.items():
        size = f"{row['parameters']:,} parameters, " if "parameters" in row else ""
        lines.append(f"{name:20} {row['title']}: {size}{_quality(row)}")
        lines.append(f"{'':21}{row.get('recipe') or row.get('made_by', '')}")
    emit(rows, "\n".join(lines))


def _quality(card: Mapping[str, Any]) -> str:
    """What a card says of how good its model is."""
    if (share := card.get("masked_accuracy_of_documents")) is not None:
        return f"guesses {share:.1%} of masked tokens on unseen documents, {card['masked_accuracy']:.1%} with invoices"
    if "masked_accuracy" in card:
        return f"guesses {card['masked_accuracy']:.1%} of masked tokens on unseen invoices"
    if "anls" in card:
        return f"ANLS {card['anls']:.3f} on {card['anls_questions']} unseen questions"
    if "own_text_first_of_20" in card:
        return f"finds the text of an unseen scene among twenty in {card['own_text_first_of_20']:.1%}"
    if "own_text_beats_another" in card:
        return f"tells the text of an unseen scene from another's in {card['own_text_beats_another']:.1%}"
    if "variance_left" in card:
        return f"leaves {card['variance_left']:.1%} of the variance of unseen pictures"
    return "untrained"


def pretrain(
    architecture: str = required(
        "donut, layoutlmv3, vt5, vt5-public, fedocvqa; layoutlm, bros, bert, layoutlmv3-words.", argument=True
    ),
    out: Path = required("Folder for the checkpoints: start and trained, or an encoder's one.", argument=True),
    steps: int = option(0, "Training steps; 0 means the recorded recipe's.", range=Range(0, 10_000_000)),
    documents: str = option("", "layoutlm and the others that guess words: pages to train on beside the invoices."),
    seed: int = option(0, "Seed of initialisation, pages and order.", range=SEED),
) -> None:
    """Make the tiny checkpoints: initialise, save the start, train on synthetic invoices, save, measure on others."""
    from docleak.errors import ModelError
    from docleak.models.encoders.tiny import TINY
    from docleak.training.checkpoints import make_checkpoints, make_encoder

    if documents and architecture not in TINY:
        raise ModelError(f"--documents is for models that guess words ({', '.join(TINY)}); leave it out.")
    make = partial(make_encoder, documents=documents) if architecture in TINY else make_checkpoints
    with working_in(out, resumes=False):
        card = make(architecture, out, steps=steps or None, seed=seed, quiet=as_json())
    emit(card, f"{card['recipe']}\n{_quality(card)}, saved in {out}")


def assemble(
    architecture: str = required("vt5 or fedocvqa.", argument=True),
    out: Path = required("New folder for the model, which every command takes as --model.", argument=True),
    text: str = required("The T5 (t5-base): directory of save_pretrained, or hub name."),
    vision: str = required("vt5: a DiT or BEiT. fedocvqa: a ViT-MAE, as wide as the T5."),
    seed: int = option(0, "Draws the spatial tables and projections that join the two.", range=SEED),
    allow_pickle: bool = option(
        False, "Read pytorch_model.bin (weights only) where there are no safetensors."
    ),
    parts_are_public: bool = option(
        False, "Declare that parts of which nothing is recorded saw no private pages. It is recorded as your "
        "declaration.",
    ),
    dry_run: bool = option(False, "Check that the two fit and print sizes; read no weights."),
) -> None:  # fmt: skip
    """Put a VT5 or FeDocVQA's model together from a published T5 and a published picture encoder."""
    from docleak.models.assemble import assemble as put_together
    from docleak.training.lineage import assembled

    with nullcontext() if dry_run else working_in(out, whole=True, resumes=False):
        card = put_together(
            architecture, out, text=text, vision=vision, seed=seed, allow_pickle=allow_pickle, dry_run=dry_run
        )
    said = f"{card['recipe']}\n{card['trainable']:,} parameters to train, of {card['parameters']:,}"
    if not dry_run:
        lineage = assembled(out, [text, vision], public=parts_are_public)
        card, said = {**card, "lineage": lineage.to_dict()}, f"{said}, saved in {out}\nIts origin is {lineage.origin}."
    emit(card, said)


def make(
    name: str = option(
        "", "A published checkpoint, such as donut-base, or a vision-language family; see --list.", argument=True
    ),
    out: Path | None = option(
        None, "New folder for it; empty: the checkpoint's name.", argument=True
    ),
    show_list: bool = option(False, "List the published checkpoints and stop.", "--list"),
    seed: int = option(0, "Draws the weights.", range=SEED),
    spread: bool = option(
        False, "Draw weights so that gradients of all layers are alike in size, as of a trained model; else as the "
        "constructor does.",
    ),
    narrow: bool = option(False, "The same files and tensors, but small: to try commands, and of reproduce's narrow "
                          "scale."),
) -> None:  # fmt: skip
    """Make a checkpoint that papers begin with, of its published size and files, but with random weights."""
    from docleak.models.published import PUBLISHED, published
    from docleak.models.vlm.tiny import KNOWN, make_tiny

    if show_list or not name:
        known = {one: published(one) for one in PUBLISHED}
        sizes = {
            one: f"{row.parameters / 1e6:,.1f} M parameters, {row.bytes / 2**20:,.0f} MiB" for one, row in known.items()
        }
        lines = [f"{one:30} {row.repository}, {sizes[one]}; {row.paper}" for one, row in known.items()]
        lines.append(f"Vision-language families, of which docleak knows a tiny model (--narrow): {', '.join(KNOWN)}")
        listed = {
            one: {"repository": row.repository, "paper": row.paper, "parameters": row.parameters, "bytes": row.bytes,
                  "seen": row.seen, "inferred": row.inferred}
            for one, row in known.items()
        }  # fmt: skip
        emit(listed, "\n".join(lines))
        return
    from docleak.models.published import make as write
    from docleak.training.lineage import DRAWN, write_lineage

    folder = out or Path(name)
    drawn: Literal["default", "spread"] = "spread" if spread else "default"
    with working_in(folder, whole=True, resumes=False):
        if name in KNOWN:
            card = make_tiny(name, folder, seed=seed, initialisation=drawn, narrow=narrow)
        else:
            card = write(name, folder, seed=seed, initialisation=drawn, scale="narrow" if narrow else "published")
    card = write_lineage(folder, DRAWN, card)
    emit(card, f"{card['recipe']}, saved in {folder}")


def adapt(
    model: str = required("The base: shipped name, directory or hub name.", argument=True),
    out: Path = required("New folder for the adapters, which every command takes as --model.", argument=True),
    lora: str = option("r=8", "r=8,alpha=16,targets=q_proj+v_proj; without targets every linear layer."),
    seed: int = option(0, "Draws the adapters.", range=SEED),
) -> None:
    """Put low-rank adapters (LoRA) on a model: the base is frozen, and the adapters are what clients train and send."""
    from docleak.models.lora import Lora
    from docleak.models.lora import adapt as write
    from docleak.training.lineage import assembled

    with working_in(out, whole=True, resumes=False):
        card = write(model, out, Lora.parsed(lora), seed=seed)
    card = {**card, "lineage": assembled(out, [model], public=False).to_dict()}  # drawn at random: the base's
    said = f"LoRA of rank {card['r']} on {', '.join(card['targets'])}"
    emit(
        card, f"{said}: {card['trainable']:,} of {card['parameters']:,} parameters to train, saved in {out}"
    )  # fmt: skip


def attention(
    models: tuple[str, ...] = required("Donuts: shipped names, directories or hub names.", argument=True),
    out: Path = option(Path("attention.png"), "The picture, a PNG."),
    documents: str = option("synthetic", "synthetic, a folder, or FORMAT:PATH; its first page."),
    key: str = option("date", "The field that is asked for; empty: the first question."),
    seed: int = option(0, "Seed of the synthetic page.", range=SEED, need=DRAWN),
) -> None:
    """Where a Donut's decoder looks for each character of an answer (GI-DQA, figure 5)."""
    from docleak.files import write_png
    from docleak.models import load_model
    from docleak.models.attention import attention_maps, attention_picture, spread_of
    from docleak.studies.gradient.case import pages_for, question_of

    loaded = [load_model(name) for name in models]
    page = pages_for(loaded[0], documents, count=1, seed=seed)[0]
    question = next((q for q in page.questions if q.key == key and q.answers), question_of(page))
    spread = {m.name: spread_of(attention_maps(m, m.fit(page), question)) for m in loaded}
    write_png(out, attention_picture(loaded, page, question))
    text = "\n".join(f"{name}: attention spread over {cells:.1f} cells" for name, cells in spread.items())
    emit({"picture": str(out), "cells": spread}, f"{text}\n{out}")


ABOUT = "Shipped checkpoints and how they are made."
COMMANDS = (list_models, pretrain, assemble, make, adapt, attention)
