"""Tiny, published size and paper side by side: what of a table's numbers depends on the size of the networks.

    python -m scripts.sizes docs/results --out docs/results/sizes.md

Reads the stored tables that the scoreboard reads (``scripts.scoreboard``); a table that is stored at one scale alone is
left out, and a number of a single document is no number here. Nothing is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docleak.metrics.estimate import Estimate
from docleak.recipes import Recipe
from scripts.scoreboard import stored, write_page

EXPLAINED = """\
The same rows with docleak's tiny networks, with networks of the published size and random weights, and in print. No
column differs from another in size alone. Between tiny and base differ the initialisation and the number of documents,
too, and, as the pages of the tables say, gradient evaluations (GI-DQA: 150 and 60; MMGIA's table 3: 400 and 60), pages
(receipts in two of GI-DQA's columns), pairs and pictures (MMGIA: 20 or 60 of NLVR at 64 x 16, 4 scenes at 32 x 32, with
another network for pictures) and training (PFL-DocVQA: five to ten rounds of whole epochs, and one training or ten
rounds of a step). The printed numbers are of other data and the paper's budget, CDMI's and PFL-DocVQA's of pretrained
networks; GI-DQA and MMGIA do not say of which.

**The same at both sizes**, and so no matter of a tiny network alone:

- GI-DQA, table 1: docleak's solver reads most fields or all of them, of Donut (87 %, and 100 % under the default
  initialisation) and of LayoutLMv3 under the spread one (100 % both); APRIL and random pixels read next to none.
- Tables 7 and 8, LayoutLMv3 under the spread initialisation: Safe Template takes what is read from all of it to next
  to nothing (random perturbations of 32/255, adversarial ones of 8/255), and noise of 1e-7, under which the paper's
  attack reads nothing, takes away none.
- Table 4: all fields of a page come out of LayoutLMv3's gradient of two pages, as of one (26 and 6 pages).
- Section 5: LayoutLMv3's gradients from after the fusion give the picture (91 and 100 %), where the paper got nothing.
- MMGIA, table 2: every word of a TinyBERT's sentences comes out by stage 1 alone, LAMP and MMGIA, and the picture
  beside a ResNet does not (mean SSIM of 0.02 at most). Table 3: less of the words comes out of larger batches (98, 65
  and 34 % of one, two and four pairs at once; 100, 88 and 54 %), and MGIS stays below.
- GI-DQA's closed form, in no table here: every token, box and field of LayoutLMv3, [at this size too](base.md).

**Otherwise at the published size**, which is not to say because of it:

- Inverting Gradients reads 53 % of the tiny LayoutLMv3's fields and 4 % of the large one's under the spread
  initialisation, with 150 and 60 evaluations; DLG 17 and 30 %.
- Under the default initialisation docleak's solver reads 13 % of the large LayoutLMv3's fields, and none of receipts.
- MMGIA's pictures, a mean SSIM of 0.60 out of the tiny network in table 3, do not come out of ResNet-50 (0.02). Those
  of LeNet-5, the same network at both scales, have 0.99 in table 1 after 3,000 evaluations and 0.22 after 60: that is
  their number, for after 3,000 the base scale's pictures come out, too ([its page](mmgia/table1-base.md)).

**Not told by random weights**: what pretrained ones and a training make of it (PFL-DocVQA's answers and members, CDMI's
fields).
"""


def sizes(folder: Path, recipes: Mapping[str, Recipe]) -> str:
    """The page as Markdown."""
    parts = ["# Which findings depend on size\n", EXPLAINED]
    for name, recipe in recipes.items():
        tables = stored(folder, name)
        if len({table["scale"] for table in tables}) > 1:
            compared = (
                _compared(recipe, tables)
                or "At base scale of a single document: what it costs, and nothing of what leaks.\n"
            )
            parts.append(f"## {name}: {recipe.title}\n\n{compared}")
            for table in tables:
                parts.append(f"Scale {table['at']}: `{table['Command']}`; {table['Models']}  ")
            parts.append("")
    return "\n".join(parts)


def _compared(recipe: Recipe, tables: Sequence[Mapping[str, Any]]) -> str:
    """A line per row and number of two documents or more in the first table and another; "" for none."""
    scales = [str(table["at"]) for table in tables]
    lines = list[str]()
    columns = recipe.study.columns
    for row in recipe.rows:
        for key, column in columns.items():
            cells, printed = [], dict[str, str]()
            for table in tables:
                same = [
                    one for one in table["rows"] if one["row"] == row.name and isinstance(one["ours"].get(key), dict)
                ]
                told = []
                for one in same:
                    number = Estimate.of_json(one["ours"][key])
                    if number.value is not None and number.groups > 1:
                        told.append(f"{one['model']} {column.text(number)} ({number.groups})")
                    if key in one["paper"]:
                        printed[one["model"].removesuffix("-spread")] = column.printed(one["paper"][key])
                cells.append("; ".join(told))
            if cells[0] and any(cells[1:]):
                shown = " | ".join(cell or "-" for cell in cells)
                paper = "; ".join(f"{model} {value}" for model, value in printed.items())
                lines.append(f"| {row.name} | {column.head} | {shown} | {paper or '-'} |")
    head = f"| row | number | {' | '.join(f'{scale} (n)' for scale in scales)} | paper |"
    return "\n".join([head, "|" + "---|" * (3 + len(scales)), *lines, ""]) if lines else ""


if __name__ == "__main__":
    write_page(__doc__, sizes)
