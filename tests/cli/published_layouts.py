"""Small data sets in the layouts in which they are handed out, of docleak's synthetic pages."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from docleak.documents import Page
from docleak.documents.issuers import make_issuers
from docleak.documents.phrasings import PHRASINGS
from docleak.documents.synthetic import make_pages


def funsd(folder: Path) -> None:
    """50 training and 4 test forms: a question for each field, linked to its answer."""
    for part, count, name in (("training_data", 50, "train"), ("testing_data", 4, "audit")):
        for below in ("annotations", "images"):
            (folder / "dataset" / part / below).mkdir(parents=True)
        for page in make_pages(count, seed=0, split=name):
            form: list[dict[str, Any]] = []
            for field in page.fields:
                answer = [page.words[number] for number in field.words]
                x0, y0, *_ = answer[0].box
                question = [(field.key, [max(0, int(x0) - 20), int(y0), int(x0) - 1, int(y0) + 6])]
                number = len(form)
                links = [[number, number + 1]]
                told = [(word.text, [*map(int, word.box)]) for word in answer]
                form += [_entity(number, "question", question, links), _entity(number + 1, "answer", told, links)]
            (folder / "dataset" / part / "annotations" / f"{page.name}.json").write_text(json.dumps({"form": form}))
            _save(page, folder / "dataset" / part / "images" / f"{page.name}.png")


def _entity(number: int, label: str, words: list[tuple[str, list[int]]], links: list[list[int]]) -> dict[str, Any]:
    return {
        "id": number, "label": label, "text": " ".join(text for text, _ in words), "box": words[0][1],
        "words": [{"text": text, "box": box} for text, box in words], "linking": links,
    }  # fmt: skip


def sroie(folder: Path) -> None:
    """50 training receipts: a line for each word, and what is to be extracted."""
    root = folder / "SROIE2019" / "train"
    for part in ("img", "box", "entities"):
        (root / part).mkdir(parents=True)
    for page in make_pages(50, seed=1, split="train"):
        lines = []
        for word in page.words:
            x0, y0, x1, y1 = map(int, word.box)
            lines.append(f"{x0},{y0},{x1},{y0},{x1},{y1},{x0},{y1},{word.text}")
        values = [field.value for field in page.fields]
        (root / "box" / f"{page.name}.txt").write_text("\r\n".join(lines))
        keys = ("company", "date", "address", "total")
        (root / "entities" / f"{page.name}.txt").write_text(json.dumps(dict(zip(keys, values, strict=False))))
        _save(page, root / "img" / f"{page.name}.jpg")


def due(folder: Path) -> None:
    """Train and test documents of three data sets of the benchmark, beside each other."""
    for number, name in enumerate(("wtq", "docvqa", "tabfact")):
        for split, count in (("train", 10), ("test", 4)):
            root = folder / name / split
            (root / "images").mkdir(parents=True)
            pages = make_pages(count, seed=number, split="train" if split == "train" else "audit")
            documents, contents = [], []
            for page in pages:
                asked = [{"id": str(i), "key": question.text, "values": [{"value": question.answers[0]}]}
                         for i, question in enumerate(page.questions)]  # fmt: skip
                documents.append({"name": page.name, "extension": "pdf", "language": "en", "split": split,
                                  "annotations": asked})  # fmt: skip
                height, width = page.image.shape[:2]
                whole = {"structure_value": [[0, len(page.words)]], "positions": [[0, 0, width, height]]}
                layer = {"tokens": [word.text for word in page.words], "structures": {"pages": whole},
                         "positions": [[*map(int, word.box)] for word in page.words]}  # fmt: skip
                tool = {"tool_name": "microsoft_cv", "text": "", "tokens_layer": layer}
                contents.append({"name": page.name, "contents": [tool]})
                _save(page, root / "images" / f"{page.name}.png")
            for file, rows in (("document", documents), ("documents_content", contents)):
                (root / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


#: What the questions of PFL-DocVQA ask for here.
ASKED = ("provider_name", "provider_email", "invoice_number", "total")


def pfl_docvqa(folder: Path) -> None:
    """imdb/*.npy of ten providers who are members, each at a client of its own, and 4 who are not, and their pages."""
    (folder / "imdb").mkdir(parents=True)
    (folder / "images").mkdir()
    documents = [5] * 10 + [2] * 4
    pages = make_issuers(range(300, 314), documents, seed=0)
    files: dict[str, list[dict[str, Any]]] = {}
    places = [(provider, document) for provider, count in enumerate(documents) for document in range(count)]
    for number, (provider, document) in enumerate(places):
        page = pages[number]
        client, asked_of = f"train_client_{provider}", "train"
        if provider >= 10:
            client, asked_of = "test", "red_test_negative"
        elif document > 1:
            client, asked_of = (("val", "val"), ("test", "test"), ("test", "red_test_positive"))[document - 2]
        files.setdefault(client, []).extend(_records(page, asked_of, number))
        _save(page, folder / "images" / f"{page.name}.jpg")
    for name, records in files.items():
        array = np.empty(len(records) + 1, dtype=object)
        array[0], array[1:] = {"version": "1"}, records
        np.save(folder / "imdb" / f"imdb_{name}.npy", array, allow_pickle=True)


def _records(page: Page, set_name: str, number: int) -> list[dict[str, Any]]:
    height, width = page.image.shape[:2]
    boxes = np.array([word.box for word in page.words], np.float32) / np.array([width, height] * 2, np.float32)
    values = {field.key: field.value for field in page.fields}
    return [
        {"question": PHRASINGS[key][number % len(PHRASINGS[key])], "answers": values[key], "image_name": page.name,
         "provider": page.provider, "field": key, "ocr_tokens": [word.text for word in page.words],
         "ocr_normalized_boxes": boxes, "set_name": set_name}
        for key in ASKED if key in values
    ]  # fmt: skip


def openi(folder: Path, count: int = 2101) -> None:
    """Open-I as it is unpacked: reports and pictures, normal and abnormal by turns."""
    (folder / "ecgen-radiology").mkdir(parents=True)
    (folder / "NLMCXR_png").mkdir()
    for number in range(1, count + 1):
        shade = np.full((8, 8), number % 256, np.uint8)
        PIL.Image.fromarray(shade).save(folder / "NLMCXR_png" / f"x{number}.png")
        term = "normal" if number % 2 else "opacity"
        (folder / "ecgen-radiology" / f"{number}.xml").write_text(
            f'<eCitation><AbstractText Label="FINDINGS">the heart of case {number} is clear</AbstractText>'
            f'<MeSH><major>{term}</major></MeSH><parentImage id="x{number}"/></eCitation>'
        )


def cifar100(folder: Path, count: int = 1100) -> None:
    """CIFAR-100's test file: pictures of one colour each, of two classes by turns."""
    root = folder / "cifar-100-python"
    root.mkdir(parents=True)
    shades = np.arange(count, dtype=np.uint8)
    content = {b"data": np.repeat(shades[:, None], 3072, axis=1), b"fine_labels": [n % 2 for n in range(count)]}
    (root / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple", b"aquarium_fish"]}))
    (root / "test").write_bytes(pickle.dumps(content))


def flickr30k(folder: Path, count: int = 1100) -> None:
    """Flickr30k's captions, one of a picture, and its pictures."""
    (folder / "flickr30k_images").mkdir(parents=True)
    who = ("man", "dog", "girl")
    for number in range(count):
        _shade(number).save(folder / "flickr30k_images" / f"{number}.jpg")
    lines = [f"{number}.jpg#0\tA {who[number % 3]} walks by house {number} ." for number in range(count)]
    (folder / "results_20130124.token").write_text("\n".join(lines) + "\n")


def nlvr(folder: Path, count: int = 1100) -> None:
    """NLVR's dev split: sentences that are true of their pictures, half of which are of towers."""
    (folder / "dev" / "images" / "0").mkdir(parents=True)
    lines = []
    for number in range(count):
        _shade(number).save(folder / "dev" / "images" / "0" / f"dev-{number}-0-0.png")
        block = {"type": "square", "size": 20, "x_loc": 40 if number % 2 else 10}
        lines.append(json.dumps({
            "sentence": f"There is a block of shade {number}.", "label": "true", "identifier": f"{number}-0",
            "directory": "0", "structured_rep": [[block]],
        }))  # fmt: skip
    (folder / "dev" / "dev.json").write_text("\n".join(lines) + "\n")


def _shade(number: int) -> PIL.Image.Image:
    return PIL.Image.fromarray(np.full((8, 8, 3), number % 256, np.uint8))


def _save(page: Page, file: Path) -> None:
    PIL.Image.fromarray(page.image).save(file)


LAYOUTS = {
    "funsd": funsd, "sroie": sroie, "due": due, "pfl-docvqa": pfl_docvqa, "openi": openi, "cifar100": cifar100,
    "flickr30k": flickr30k, "nlvr-true": nlvr,
}  # fmt: skip
