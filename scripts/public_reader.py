"""``python -m scripts.public_reader OUT --documents sroie:DIR --documents funsd:DIR``: a FeDocVQA that can answer.

The model the tables of federated training begin from (``docleak reproduce fedocvqa/... --model fedocvqa=OUT``): the
architecture of ``fedocvqa-start`` with a vocabulary of the pages given and of synthetic invoices, trained in one place
to answer about both. None of the tables' own documents (wtq, tabfact, vrdu) is among them. Pages of each data set are
held out, and OUT/docleak.json says what the model reaches on them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from docleak.documents.loaders import load_pages, source_names
from docleak.documents.page import Page
from docleak.documents.pages import remembered
from docleak.documents.synthetic import make_pages
from docleak.models.tiny import fedocvqa_start
from docleak.studies.training.study import reads_less
from docleak.training.checkpoints import measure, write_checkpoint
from docleak.training.lineage import PUBLIC, Lineage, write_lineage
from docleak.training.pretrain import PretrainConfig, pretrain

SYNTHETIC, HELD_OUT, FOR_WORDS = 3000, 60, 1000


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", action="append", required=True)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--text-only", type=int, default=1100, help="steps without the picture, which come first")
    parser.add_argument("--max-tokens", type=int, default=320, help="of a page and its question, at most")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    size = (224, 224)
    train: list[Page] = list(make_pages(SYNTHETIC, seed=given.seed, split="train", size=size))
    unseen: dict[str, list[Page]] = {
        "synthetic": list(make_pages(HELD_OUT, seed=given.seed, split="validation", size=size))
    }
    texts = train[:FOR_WORDS]
    for name, source in zip(source_names(given.documents), given.documents, strict=True):
        pages = [page for page in load_pages(source, seed=given.seed) if page.questions]
        order = np.random.default_rng(given.seed).permutation(len(pages))
        unseen[name] = [pages[i] for i in order[:HELD_OUT]]
        train += [pages[i] for i in order[HELD_OUT:]]
        texts = [*texts, *train[-(len(pages) - HELD_OUT) :]]
    model = reads_less(fedocvqa_start(seed=given.seed, pages=texts), given.max_tokens)
    config = PretrainConfig(
        steps=given.steps, pages_per_step=8, questions_per_page=3, learning_rate=given.learning_rate, warmup_steps=50,
        dropout=False, text_only_steps=given.text_only,
    )  # fmt: skip
    began, losses = time.perf_counter(), list[float]()

    def show(step: int, loss: float) -> None:
        losses.append(loss)
        if len(losses) % 50 == 0:
            left = (time.perf_counter() - began) / len(losses) * (given.steps - len(losses))
            print(f"step {len(losses)} of {given.steps}: loss {np.mean(losses[-50:]):.3f}, ETA {left / 60:.0f} min",
                  file=sys.stderr, flush=True)  # fmt: skip

    pretrain(model, remembered(train), config, rng=np.random.default_rng(given.seed), on_step=show)
    minutes = (time.perf_counter() - began) / 60
    reached = {name: measure(model, pages) for name, pages in unseen.items()}
    recipe = (
        f"spread initialisation, seed {given.seed}; {given.steps} steps of 8 pages x 3 questions at "
        f"{given.learning_rate:g} (the first {given.text_only} without the picture), AdamW; {SYNTHETIC} synthetic "
        f"invoices and all but {HELD_OUT} pages each of {', '.join(given.documents)}; {minutes:.0f} min on one thread"
    )
    card: dict[str, object] = {"recipe": recipe, **{f"unseen_{name}": values for name, values in reached.items()}}
    write_checkpoint(model, given.out, card)
    trained = f"synthetic pages that docleak makes, and {', '.join(source_names(given.documents))}, taken for public"
    print(write_lineage(given.out, Lineage(PUBLIC, trained)))


if __name__ == "__main__":
    main()
