"""What mkdocs adds to docs/ when it builds the site (a hook of mkdocs.yml).

Generated are the command line out of its own help, the recipes, the list of results, the changelog, and pages of the
notebooks with what they show. Links out of docs/ become text. Pages that the navigation does not name get a place in
it: results by their folder, others under "More".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAPERS = {"": "docleak", "cdmi": "CDMI", "fedocvqa": "FeDocVQA", "gi-dqa": "GI-DQA", "mmgia": "MMGIA",
          "pfl-docvqa": "PFL-DocVQA"}  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a place for every page without one."""
    from docleak.recipes import list_recipes

    results = sorted(file.src_uri for file in files.documentation_pages() if file.src_uri.startswith("results/"))
    made = {
        "reference/commands.md": commands(),
        "reference/recipes.md": recipes(list_recipes().values()),
        "reference/results.md": result_list(results),
        "reference/changelog.md": (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](../"),
    }
    made |= {
        str(Path(file.src_uri).with_suffix(".md")): notebook(DOCS / file.src_uri)
        for file in files
        if file.src_uri.endswith(".ipynb")
    }
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    nav: list[Any] = config.nav or []
    named = set(leaves(nav))
    if more := [page for page in unlisted(files) if page not in named]:
        nav.append({"More": more})
    next(entry["Results"] for entry in nav if "Results" in entry).extend(
        {title: [{title_of(page): page} for page in pages]} for title, pages in by_paper(results)
    )
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Links to files of the repository outside docs/ become their text; a dead link stays one."""

    def told(link: re.Match[str]) -> str:
        target = (DOCS / page.file.src_uri).parent.joinpath(link[2]).resolve()
        return link[1] if target.exists() and not target.is_relative_to(DOCS) else link[0]

    markdown = re.sub(r"(\]\([^):\s]+)\.ipynb\)", r"\1.md)", markdown)
    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#\s]+)\)", told, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """What may be wider than a phone is scrolled by keyboard, too. Material takes the attribute off ``code`` itself."""
    html = html.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")
    code = r"(<pre><span></span><code>)(.*?)(</code></pre>)"
    return re.sub(code, r'\1<span tabindex="0">\2</span>\3', html, flags=re.DOTALL)


def notebook(path: Path) -> str:
    """A notebook's text, code and stored outputs as Markdown; pictures are in the page."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output, escape(cell["metadata"].get("alt", ""))) for output in cell.get("outputs", [])]
    parts.insert(1, f'<a href="{path.name}" download>This notebook</a>, to run it yourself.')
    return "\n\n".join(parts) + "\n"


def _output(output: Any, alt: str) -> str:
    shown = output.get("data", {"text/plain": output.get("text")})
    if "image/png" in shown:
        return f'<img class="shown" alt="{alt}" src="data:image/png;base64,{shown["image/png"]}">'
    if "text/html" in shown:
        table = re.search(r"<table.*</table>", "".join(shown["text/html"]), re.DOTALL)
        return re.sub(r"\n\s*", "", table[0]).replace(' border="1" class="dataframe"', "") if table else ""
    return f"```text\n{''.join(shown['text/plain']).rstrip()}\n```"


def unlisted(files: Files) -> list[str]:
    """Pages that are no results."""
    return sorted(file.src_uri for file in files.documentation_pages() if not file.src_uri.startswith("results/"))


def leaves(nav: Any) -> Iterator[str]:
    """The pages that a navigation names."""
    for entry in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else [nav]:
        if isinstance(entry, str):
            yield entry
        else:
            yield from leaves(entry)


def by_paper(results: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(paper, its pages): folders of docs/results; what lies in none is docleak's own."""
    folders = {page: page.split("/")[1] if page.count("/") > 1 else "" for page in results}
    for folder in sorted(set(folders.values()), key=lambda name: PAPERS.get(name, name).lower()):
        pages = [page for page in results if folders[page] == folder]
        yield PAPERS.get(folder, folder), sorted(pages, key=_numbered)


def _numbered(page: str) -> tuple[str, int, str]:
    """table2 before table10."""
    match = re.match(r"(\D*)(\d*)(.*)", Path(page).stem)
    assert match is not None
    return match[1], int(match[2] or 0), match[3]


def title_of(page: str) -> str:
    """The page's heading, behind the number of the paper's table or figure."""
    stem = Path(page).stem
    heading = re.search(r"^#+ (.*)", (DOCS / page).read_text(), re.MULTILINE)
    place = re.fullmatch(r"(table|figure|section|appendix)(\w+?)(-.*)?", stem)
    said = heading[1] if heading else stem
    return f"{place[1].capitalize()} {place[2]}: {said}" if place else said


def result_list(results: list[str]) -> str:
    """Every page of results, by paper."""
    lines = ["# Results", "", "What was measured, on what and by which command stands on each page.", ""]
    for paper, pages in by_paper(results):
        lines += [f"## {paper}", "", *(f"- [{title_of(page)}](../{page})" for page in pages), ""]
    return "\n".join(lines)


def recipes(known: Any) -> str:
    """The recipes, in the words of ``docleak reproduce --list``."""
    rows = [f"| `{recipe.name}` | {_cell(recipe.title)} |" for recipe in known]
    said = "Each is run by `docleak reproduce NAME`: [rerunning the papers' tables](../reproduce.md)."
    return "\n".join(["# Recipes", "", said, "", "| recipe | what it measures |", "|---|---|", *rows, ""])


def commands() -> str:
    """Every command with its arguments and options, as its --help has them."""
    from docleak.cli.app import command_line
    from docleak.cli.guard import commands_of

    lines = ["# Command line", "", "Written from `docleak COMMAND --help` when this page was built.", ""]
    for path, command in commands_of(command_line()):
        lines += [f"## docleak {path}", "", _cell(command.help or command.short_help or ""), ""]
        shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
        if shown:
            lines += ["| option | what it says |", "|---|---|", *(_row(one) for one in shown), ""]
    return "\n".join(lines)


def _row(parameter: click.Parameter) -> str:
    record = parameter.get_help_record(click.Context(click.Command("docleak"), show_default=True))
    name, said = record or (parameter.human_readable_name, "")
    return f"| `{name.replace('|', '/')}` | {_cell(said)} |"


def _cell(text: str) -> str:
    """Text for people as Markdown that says the same, on one line."""
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", " ".join(escape(text.replace("\\[", "["), quote=False).split()))
