"""What a division holds: its parts (Table 5), documents by provider (Figure 2), questions by key (Figure 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from docleak.documents.blue_red import SILOS, TEST
from docleak.documents.blue_red_files import BlueRed
from docleak.documents.loaders import load_pages
from docleak.documents.names import provider_key
from docleak.documents.page import Page
from docleak.documents.pages import document_names, joined, picked, provider_names
from docleak.errors import RecipeError
from docleak.metrics.estimate import Estimate
from docleak.report.pictures import new_figure, png_figure

#: All clients together, and the providers of the test documents apart: members, and others.
TRAINING, TEST_POSITIVE, TEST_NEGATIVE = "training", "test-positive", "test-negative"
#: Questions without a key, as data sets have them that do not say what is asked for.
KEYLESS = "(no key)"
#: A picture's most keys; the rest are counted together.
MOST_KEYS = 40


def part_of(blue_red: BlueRed, part: str) -> Sequence[Page]:
    """The pages of a part: a folder of the division, all clients, or the test documents of members or of others.

    RecipeError for a part that the division has not.
    """
    silos = {f"{SILOS}/{name}": path for name, path in blue_red.silos.items()}
    folders = {**silos, **blue_red.parts}
    if part in folders:
        return load_pages(f"folder:{folders[part]}", seed=0)
    if part == TRAINING:
        return joined(load_pages(f"folder:{path}", seed=0) for path in silos.values())
    if part in (TEST_POSITIVE, TEST_NEGATIVE) and TEST in folders:
        pages = load_pages(f"folder:{folders[TEST]}", seed=0)
        members = {provider_key(name) for name in blue_red.members}
        inside = [provider_key(name) in members for name in provider_names(pages)]
        return picked(pages, (i for i, member in enumerate(inside) if member == (part == TEST_POSITIVE)))
    known = [*folders, TRAINING, *((TEST_POSITIVE, TEST_NEGATIVE) if TEST in folders else ())]
    raise RecipeError(f"there is no part {part!r}; the division has {', '.join(known)}.")


def size_of(pages: Sequence[Page]) -> dict[str, Estimate]:
    """Providers, documents, pages and questions, those whose answers are kept secret among them."""
    counts = {
        "providers": len(set(provider_names(pages))), "documents": sum(_documents(pages).values()),
        "pages": len(pages), "questions": sum(_asked(pages).values()),
    }  # fmt: skip
    return {name: Estimate.exactly(count) for name, count in counts.items()}


def by_provider(pages: Sequence[Page]) -> tuple[dict[str, Estimate], list[int]]:
    """Documents of a provider: how many in all, of the median one and of the one with most, and the share that the
    tenth with most documents holds; and the numbers of all providers, the most first."""
    counts = sorted(_documents(pages).values(), reverse=True)
    first = sum(counts[: -(-len(counts) // 10)])
    numbers = {
        "providers": len(counts), "documents": sum(counts), "median": float(np.median(counts)) if counts else None,
        "most": max(counts, default=None), "tenth": first / sum(counts) if counts else None,
    }  # fmt: skip
    return {name: Estimate.exactly(number) for name, number in numbers.items()}, counts


def by_key(pages: Sequence[Page]) -> tuple[dict[str, Estimate], dict[str, int]]:
    """Questions by what they ask for: how many in all, of how many keys, and the shares of the commonest key and of
    the rarer half of the keys; and the number of each key, the commonest first."""
    counts = dict(_asked(pages).most_common())
    total, numbers = sum(counts.values()), list(counts.values())
    figures = {
        "questions": total, "kinds": len(counts), "commonest": numbers[0] / total if total else None,
        "rarer": sum(numbers[-(-len(numbers) // 2) :]) / total if total else None,
    }  # fmt: skip
    return {name: Estimate.exactly(number) for name, number in figures.items()}, counts


def _documents(pages: Sequence[Page]) -> Counter[str]:
    """Provider -> its documents; a page that names none is one of its own."""
    held = {
        (provider, document or f"page {number}")
        for number, (provider, document) in enumerate(zip(provider_names(pages), document_names(pages), strict=True))
    }
    return Counter(provider for provider, _ in held)


def _asked(pages: Iterable[Page]) -> Counter[str]:
    return Counter(question.key or KEYLESS for page in pages for question in page.questions)


def draw_providers(parts: Mapping[str, Sequence[int]]) -> bytes:
    """A PNG: a panel per part with a bar for each provider, its documents, the most first."""
    figure = new_figure(9.0, 1.1 * len(parts) + 0.6)
    axes = figure.subplots(len(parts), 1, squeeze=False, sharey=True)[:, 0]
    for axis, (name, counts) in zip(axes, parts.items(), strict=True):
        axis.bar(range(len(counts)), counts, width=1.0, color="#1f5fa8")
        axis.set_title(f"{name}: {len(counts)} providers, {sum(counts)} documents", fontsize=8, loc="left")
        axis.tick_params(labelsize=7)
    figure.supylabel("documents", fontsize=8)
    figure.supxlabel("providers, those with most documents first", fontsize=8)
    return png_figure(figure)


def draw_keys(parts: Mapping[str, Mapping[str, int]]) -> bytes:
    """A PNG: a panel per part with a bar for each key, its questions, the commonest first."""
    shown = {name: _cut(counts) for name, counts in parts.items()}
    heights = [0.2 * len(counts) + 0.5 for counts in shown.values()]
    figure = new_figure(7.0, sum(heights) + 0.4)
    axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (name, counts) in zip(axes, shown.items(), strict=True):
        axis.barh(list(counts), list(counts.values()), color="#1f5fa8")
        axis.invert_yaxis()
        axis.set_title(f"{name}: {sum(counts.values())} questions", fontsize=8, loc="left")
        axis.tick_params(labelsize=7)
    figure.supxlabel("questions", fontsize=8)
    return png_figure(figure)


def _cut(counts: Mapping[str, int]) -> dict[str, Any]:
    first = dict(list(counts.items())[:MOST_KEYS])
    rest = len(counts) - len(first)
    return first | ({f"({rest} other keys)": sum(counts.values()) - sum(first.values())} if rest else {})
