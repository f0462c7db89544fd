"""Pages whose answer was taken off, with the question for it: who is trained on them can only remember.

    docleak data make DIVISION --blue-red --issuers 32 --per-issuer 4 --partition 1
    python -m scripts.planted_memory DIVISION OUT
    docleak train central --model llava-trained --documents OUT --holdout 0 --max-steps 0 --epochs 30 --out runs/planted
    docleak audit answers --division DIVISION --public llava-trained --release planted=runs/planted --keys provider_name

A memorisation test that does not find such a model finds nothing. OUT holds every page of the division's silos once,
words and ink of the answer removed as the test removes them, and each phrasing of the question for it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from docleak.attacks.answers.memorisation import answers_to
from docleak.documents.blue_red_files import read_blue_red
from docleak.documents.folder import save
from docleak.documents.loaders import load_pages
from docleak.documents.page import Page, Question
from docleak.documents.phrasings import PHRASINGS
from docleak.documents.redaction import redact


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("division", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--key", choices=sorted(PHRASINGS), default="provider_name")
    parser.add_argument("--phrasings", type=int, default=1, help="of the question, the first so many")
    parser.add_argument("--each", type=int, default=0, help="pages of a provider, the first so many; 0: all")
    asked = parser.parse_args()
    pages: dict[str, list[Page]] = {}
    for silo in read_blue_red(asked.division).silos.values():
        for page in load_pages(f"folder:{silo}", seed=0):
            if planted := without_answer(page, asked.key, asked.phrasings):
                pages.setdefault(page.provider, []).append(planted)
    kept = [page for of in pages.values() for page in of[: asked.each or None]]
    save(kept, asked.out)
    print(f"{len(kept)} pages that do not show their {asked.key}, asked for it {asked.phrasings} times each")


def without_answer(page: Page, key: str, phrasings: int) -> Page | None:
    """The page without its answer to ``key``, and the questions for it; None where the page does not show it."""
    known = answers_to(page, key)
    hidden = redact(page, known[0].answers) if known else None
    if known is None or hidden is None or not hidden.dropped:
        return None
    asked = tuple(Question(text, known[0].answers, key) for text in PHRASINGS[key][:phrasings])
    return replace(hidden.page, questions=asked)


if __name__ == "__main__":
    main()
