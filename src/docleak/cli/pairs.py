"""``docleak attack mmgia`` and its peers: picture and text of one client, out of its two gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from docleak import spec
from docleak.attacks.registries import PAIRS
from docleak.cli.settings import parse_size
from docleak.cli.studies import run_and_report
from docleak.errors import AttackError


def register(app: typer.Typer) -> None:
    """Add a command per attack; they differ in nothing but their attack."""
    for name, entry in PAIRS.entries.items():
        app.command(name, help=f"{entry}.")(_command(name))


def _command(name: str) -> Callable[..., None]:
    def attack(
        pairs: Annotated[
            str,
            typer.Option(
                help="scenes, nlvr:DIR, nlvr-true:DIR, flickr30k:DIR, openi:DIR, cifar100:DIR, or pages:SPEC."
            ),
        ] = "scenes",
        count: Annotated[int, typer.Option(help="Pairs to attack.")] = 4,
        skip: Annotated[int, typer.Option(help="Pairs of the data set to pass over first.")] = 0,
        public: Annotated[int, typer.Option(help="Further pairs whose texts the adversary has.")] = 100,
        compare: Annotated[str, typer.Option(help="Other attacks on the same pairs, comma-separated.")] = "",
        image: Annotated[
            str, typer.Option(help="lenet5, resnet-tiny, resnet18, resnet50, or an image classifier's directory.")
        ] = "lenet5",
        text: Annotated[
            str, typer.Option(help="bert-tiny, tinybert4, bert-base, bert-large, or a text classifier's directory.")
        ] = "bert-tiny",
        fused: Annotated[bool, typer.Option("--fused", help="One classifier over both features.")] = False,
        train_embeddings: Annotated[
            bool, typer.Option("--train-embeddings", help="The client also trains its tables of words and positions.")
        ] = False,
        image_size: Annotated[str, typer.Option(metavar="WxH", help="Pixels of the pictures.")] = "64x16",
        batch_size: Annotated[int, typer.Option(help="Pairs averaged into one gradient.")] = 1,
        image_attack: Annotated[str, typer.Option(help="Another attack on the picture, such as dlg or gifd.")] = "",
        text_attack: Annotated[str, typer.Option(help="Another attack on the text: dlg-text, tag, lamp.")] = "",
        budget: Annotated[
            int, typer.Option(help="Gradient evaluations per modality and batch, for all attacks.")
        ] = 300,
        aligner: Annotated[str, typer.Option(help="aligner-tiny, or a CLIP's directory or hub name.")] = "aligner-tiny",
        language: Annotated[
            str, typer.Option(help="trigrams, or a causal model's directory or hub name.")
        ] = "trigrams",
        corpus: Annotated[str, typer.Option(help="Text file of public sentences, one a line.")] = "",
        shuffle: Annotated[bool, typer.Option("--shuffle", help="Give every picture another pair's text.")] = False,
        threshold: Annotated[
            float | None, typer.Option(help="MMGIA's similarity that ends the loop (-1 to 1).")
        ] = None,
        rounds: Annotated[int | None, typer.Option(help="MMGIA's turns of both stages at most.")] = None,
        strength: Annotated[
            float | None, typer.Option(help="Of mmgia-prior: how much the alignment counts beside the gradient.")
        ] = None,
        generator: Annotated[str, typer.Option(help="GIFD's: generator-tiny, or a directory.")] = "generator-tiny",
        trained: Annotated[
            int, typer.Option(help="Steps on scenes that the networks took before the attack; 0: as drawn.")
        ] = 0,
        noise: Annotated[float, typer.Option(help="Standard deviation of what the client adds to every number.")] = 0.0,
        epsilon: Annotated[
            float, typer.Option(help="The client runs DP-SGD with this epsilon per pair (delta 1e-5); 0: none.")
        ] = 0.0,
        allow_pickle: Annotated[
            bool, typer.Option("--allow-pickle", help="Read CIFAR-100's pickles (only files you trust).")
        ] = False,
        seed: Annotated[int, typer.Option(help="Seed of pairs, models, starts and draws.")] = 0,
        out: Annotated[Path, typer.Option(help="Run directory; an interrupted run in it is continued.")] = Path(
            f"docleak-{name}"
        ),
        workers: Annotated[int, typer.Option(help="Worker processes, one thread each; 0 means one per core.")] = 0,
        json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    ) -> None:
        size = parse_size(image_size)
        if size is None:
            raise AttackError("the image size is empty; expected WIDTHxHEIGHT, for instance 64x16.")
        from docleak.studies.pairs.client import PairConfig
        from docleak.studies.pairs.study import PairStudy

        config = PairConfig(
            pairs=pairs, count=count, skip=skip, public=public, image=image, text=text, fused=fused,
            train_embeddings=train_embeddings, image_size=size, batch_size=batch_size,
            attacks=tuple(dict.fromkeys((name, *spec.names(compare)))), image_attack=image_attack,
            text_attack=text_attack, budget=budget, aligner=aligner, language=language, corpus=corpus,
            shuffle=shuffle, threshold=threshold, rounds=rounds, strength=strength, generator=generator,
            trained=trained, noise=noise, epsilon=epsilon, allow_pickle=allow_pickle, seed=seed,
        )  # fmt: skip
        run_and_report(PairStudy(config), out, workers, json_output)

    return attack
