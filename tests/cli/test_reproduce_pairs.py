"""``docleak reproduce`` on recipes of pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Command = Callable[..., tuple[Any, str, str]]


def planned(command: Command, *words: str) -> list[dict[str, object]]:
    code, out, err = command("reproduce", *words, "--dry-run", "--json")
    assert code == 0, err
    return list(json.loads(out)["plan"])


def test_pairs_are_no_pages(command: Command) -> None:
    """What docs/reproduce.md and docs/pairs.md say."""
    (first, *_) = planned(command, "mmgia/table3", "--documents", "scenes", "--pages", "4")
    assert first["words"] == "4 batches x 400 evaluations of each modality"
    code, _, err = command("reproduce", "mmgia/table1", "--documents", "nlvr-true:nowhere", "--dry-run")
    assert code == 1 and "there is no folder 'nowhere'" in err
    for idle in ("donut|", "(donut)|nonsense", "DONUT"):
        code, _, err = command("reproduce", "gi-dqa/table1", "--rows", idle, "--dry-run")
        assert code == 1 and "There are: Random (donut); " in err and " more" in err, err
    code, _, err = command("reproduce", "gi-dqa/table1", "--documents", "scenes", "--dry-run")
    assert code == 1 and "scenes" in err and "Traceback" not in err


def test_several_data_sets_sizes_and_checkpoints(command: Command) -> None:
    words = (
        "--documents",
        "scenes",
        "--documents",
        "pages:synthetic",
        "--rows",
        "GIFD",
        "--image-size",
        "scenes=32x16",
    )
    rows = planned(command, "mmgia/table1", *words)
    targets = ["lenet5, scenes", "lenet5, pages", "resnet18, scenes", "resnet18, pages"]
    assert [row["model"] for row in rows] == targets
    for wrong, said in (
        (("--image-size", "openi=8x8"), "no row has pairs of openi"),
        (("--documents", "scenes"), "names a data set twice"),
        (("--model", "clip=x"), "one of the recipe's models"),
        (("--ocr", "rapidocr"), "means nothing to recipe 'mmgia/table1'"),
    ):
        code, _, err = command("reproduce", "mmgia/table1", *words, *wrong, "--dry-run")
        assert code == 1 and said in err, err
    code, _, err = command("reproduce", "mmgia/figure3a", "--scale", "paper", "--model", "aligner=x", "--dry-run")
    assert code == 1 and "--model clip-vit-base-patch32=DIR or --model pubmed-clip-vit-base-patch32=DIR" in err


def test_another_reader_of_pictures(command: Command) -> None:
    code, _, err = command("reproduce", "gi-dqa/table1", "--ocr", "trocr:nowhere", "--dry-run")
    assert code == 1 and "TrOCR cannot be loaded from 'nowhere'" in err
    code, _, err = command("reproduce", "gi-dqa/table1", "--ocr", "nobody", "--dry-run")
    assert code == 1 and "unknown OCR engine 'nobody'" in err
