"""Write the files that MMGIA's tiny targets ship with: word pieces of public texts, and the trained aligner.

    python -m scripts.pair_files vocabulary      src/docleak/models/pair/vocabulary.txt
    python -m scripts.pair_files aligner         src/docleak/models/checkpoints/aligner-tiny
    python -m scripts.pair_files described       src/docleak/models/checkpoints/aligner-described
    python -m scripts.pair_files generator       src/docleak/models/checkpoints/generator-tiny
    python -m scripts.pair_files generator       FOLDER cifar100:DIR:split=train 32x32 50000
    python -m scripts.pair_files text            FOLDER

The last but one trains a generator of one's own, on so many pictures of a data set at that size; the last a bert-tiny
to guess masked words, for a text model that was pretrained (reproduce mmgia/table2 --model bert-tiny=lenet5+FOLDER).
All else comes from docleak's own scenes and synthetic invoices, and the list of common words below. The trainer of word
pieces breaks ties by chance, so that a second run gives a slightly different list: the one in the package stays, and
the aligner belongs to it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from docleak.documents.pairs import Pair, load_pairs, make_scenes, resized
from docleak.files import write_atomically
from docleak.models.base import pixels_of
from docleak.models.encoders.tiny import word_piece_tokenizer
from docleak.models.pair.aligner import FOUND_OF_20, build_aligner, save_aligner
from docleak.models.pair.generator import GeneratorConfig, build_generator, save_generator
from docleak.models.pair.shapes import pair_tokenizer, text_classifier
from docleak.models.sizes import parse_size
from docleak.spec import split_name
from scripts.aligning import AligningConfig, similarity_of, train_aligner
from scripts.generating import GeneratingConfig, train_generator
from scripts.masking import MaskingConfig, guessed, train_masked

PIECES = 1500
COMMON = """
a an the this that these those it its he she they them his her their we you i is are was be been being has have had do
does not no any all each every both some none only exactly least most more less than as same different other another
one two three four five six seven eight nine ten first second third last and or but if then when where which who what
with without of in on at to from by for over under above below near next between behind left right middle top bottom
side edge corner wall floor base center touching stacked together closely nearly contain contains containing having
object objects item items thing shape shapes color colors colored small big large tall short medium size height square
squares circle circles triangle triangles block blocks tower towers box boxes image picture photo yellow black blue
red green white brown orange grey gray pink purple man woman boy girl child people person men women dog cat bird horse
car street road house tree water sky grass snow beach field sitting standing walking running playing holding wearing
looking riding shirt hat table chair food group young old normal abnormal chest lung lungs heart clear acute
"""
#: Scenes that are trained on, and the size they are read in.
SCENES, SIZE = 20_000, (64, 16)
GENERATOR_SCENES = 5_000


def vocabulary(file: Path) -> None:
    """Learn word pieces, so that the common words and those of scenes are whole."""
    texts = [pair.text for pair in make_scenes(3000, seed=1)] + [" ".join(COMMON.split())] * 200
    texts += [pair.text for pair in load_pairs("pages:synthetic", count=300, seed=1)]
    tokenizer = word_piece_tokenizer(texts, vocabulary=PIECES)
    pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    write_atomically(file, ("\n".join(pieces) + "\n").encode())


def aligner(folder: Path) -> None:
    """Train one on scenes."""
    _aligner(folder, AligningConfig(), described=False)


def described(folder: Path) -> None:
    """Train one on described scenes, whose texts can be told apart."""
    _aligner(folder, AligningConfig(epochs=30, noise=0.1), described=True)


def _aligner(folder: Path, config: AligningConfig, *, described: bool) -> None:
    """Train, and say on other scenes how well it tells texts apart."""
    torch.set_num_threads(1)
    tokenizer, began = pair_tokenizer(), time.process_time()
    pairs = [resized(pair, SIZE) for pair in make_scenes(SCENES, seed=11, described=described)]
    model = build_aligner(len(tokenizer), seed=0)
    rng = np.random.default_rng(0)
    train_aligner(model, pairs, tokenizer, config, rng=rng, on_epoch=lambda n, loss: print(f"epoch {n}: {loss:.3f}"))
    unseen = [resized(pair, SIZE) for pair in make_scenes(300, seed=99, described=described)]
    near = similarity_of(model, unseen, tokenizer)
    diagonal = near.diagonal()
    auc = float((diagonal[:, None] > near).float().mean() * len(near) / (len(near) - 1))
    card = {
        "made_by": f"scripts/pair_files.py {'described' if described else 'aligner'}", "scenes": SCENES,
        "epochs": config.epochs, "cpu_seconds": round(time.process_time() - began),
        "own_text_beats_another": round(auc, 3), FOUND_OF_20: round(first_of(near, unseen, 20), 3),
    }  # fmt: skip
    print(card)
    save_aligner(model, folder, card)


def first_of(near: torch.Tensor, pairs: Sequence[Pair], among: int) -> float:
    """Of so many pairs at a time, the share whose picture (row of ``near``) is nearest to its own text."""
    right = [
        pairs[begin + int(block.argmax())].text == pairs[begin + row].text
        for begin in range(0, len(pairs) - among + 1, among)
        for row, block in enumerate(near[begin : begin + among, begin : begin + among])
    ]
    return sum(right) / len(right)


def generator(folder: Path, spec: str = "", size: str = "", count: str = "") -> None:
    """Train on pictures of scenes, or of a data set, and say how much of unseen ones' variance it leaves."""
    torch.set_num_threads(1)
    began, (width, height) = time.process_time(), parse_size(size) if size else SIZE
    number = int(count or GENERATOR_SCENES)
    unseen = load_pairs(spec, count=300, skip=number, seed=0) if spec else make_scenes(300, seed=99)
    pairs = load_pairs(spec, count=number, seed=0) if spec else make_scenes(number, seed=13)
    pairs, unseen = ([resized(pair, (width, height)) for pair in some] for some in (pairs, unseen))
    shape = GeneratorConfig(height=height, width=width)
    made, config = build_generator(shape, seed=0), GeneratingConfig()
    encoder = train_generator(
        made, pairs, config, rng=np.random.default_rng(0), noise=torch.Generator().manual_seed(0),
        on_epoch=lambda n, error: print(f"epoch {n}: {error:.4f}", flush=True),
    )  # fmt: skip
    pixels = torch.stack([pixels_of(pair.image) for pair in unseen])
    with torch.no_grad():
        left = (made.network.picture(encoder(pixels)[0]) - pixels).square().mean() / pixels.var()
    card = {
        "made_by": "scripts/pair_files.py generator",
        "trained_on": f"{number:,} pictures of {split_name(spec or 'scenes')[0]}, {width} x {height} pixels",
        "epochs": config.epochs,
        "cpu_seconds": round(time.process_time() - began), "variance_left": round(float(left), 3),
    }  # fmt: skip
    print(card)
    save_generator(made, folder, card)


def text(folder: Path) -> None:
    """Train bert-tiny to guess masked words of scenes' sentences, and say how many of unseen ones it guesses."""
    torch.set_num_threads(1)
    began, config = time.process_time(), MaskingConfig()
    classifier, tokenizer = text_classifier("bert-tiny", torch.Generator().manual_seed(0))
    texts = [
        pair.text
        for number, of in enumerate((False, True))
        for pair in make_scenes(SCENES, seed=17 + number, described=of)
    ]
    unseen = [pair.text for of in (False, True) for pair in make_scenes(500, seed=99, described=of)]
    masked = train_masked(
        classifier, texts, tokenizer, config, seed=0,
        on_step=lambda step, loss: print(f"step {step}: {loss:.3f}", flush=True) if not step % 100 else None,
    )  # fmt: skip
    card = {
        "made_by": "scripts/pair_files.py text", "sentences": len(texts), "steps": config.steps,
        "cpu_seconds": round(time.process_time() - began),
        "masked_words_guessed": round(guessed(masked, unseen, tokenizer, config, seed=1), 3),
    }  # fmt: skip
    print(card)
    classifier.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_atomically(folder / "docleak.json", (json.dumps(card, indent=2) + "\n").encode())


PARTS: dict[str, Callable[..., None]] = {
    "vocabulary": vocabulary,
    "aligner": aligner,
    "described": described,
    "generator": generator,
    "text": text,
}

if __name__ == "__main__":
    name, *rest = sys.argv[1:] or [""]
    if name not in PARTS or len(rest) not in ((1, 4) if name == "generator" else (1,)):
        raise SystemExit(__doc__)
    PARTS[name](Path(rest[0]), *rest[1:])
