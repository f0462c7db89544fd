"""``docleak benchmark``: the frozen benchmark, attacked and scored through files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docleak.cli.output import counter, emit, working_in
from docleak.documents.ranges import BUDGET, SEED
from docleak.errors import RunError
from docleak.files import require_place
from docleak.options import Need, option, required

FOLDER: Any = required("The benchmark's folder.", argument=True)
ANSWERS: Any = required("The entry's folder: entry.json, and a folder for each case.", argument=True)
KEY: Any = option(None, "Folder of the key; without it FOLDER.key.")


def _key_of(folder: Path, key: Path | None) -> Path:
    return key or folder.with_name(f"{folder.resolve().name}.key")


def export(
    folder: Path = required("New folder, for attackers.", argument=True),
    key: Path | None = KEY,
    seed: int = option(
        0, "Draws pages, clients and members; it is public.", range=SEED,
        need=Need(lambda given: not given.private, "a public seed, not --private"),
    ),
    private: bool = option(False, "Draw a secret seed of 128 bits, which stands in the key alone."),
) -> None:  # fmt: skip
    """Make the benchmark: what an attack may see in FOLDER, the truth in a key apart.

    Of a public seed anybody can make the key, so its leaderboard is on honour; --private makes a closed one.
    """
    import secrets

    from docleak.studies.benchmark.export import export as make

    hidden = _key_of(folder, key)
    with working_in(folder, whole=True, resumes=False), counter() as on_case:
        drawn = secrets.randbits(128) if private else seed
        about = make(folder, hidden, seed=drawn, public=not private, on_case=on_case)
    said = f"Version {about['version']}, edition {about['edition']}: {len(about['cases'])} cases in {folder}."
    emit({**about, "folder": str(folder), "key": str(hidden)}, f"{said}\nThe key is in {hidden}: keep it apart.")


def attack(
    folder: Path = FOLDER,
    answers: Path = ANSWERS,
    name: str = required("An attack on gradients; see docleak attack --list.", flag="--attack"),
    budget: int = option(150, "Gradient evaluations per case.", range=BUDGET),
    seed: int = option(0, "Of the attack's own random numbers.", range=SEED),
    commit: str = option("", "What code made the answers, for the leaderboard."),
) -> None:
    """Enter one of docleak's attacks, which reads FOLDER alone and writes ANSWERS; finished cases are kept."""
    import docleak
    from docleak.attacks.registries import ATTACKS
    from docleak.studies.benchmark.entering import enter
    from docleak.studies.benchmark.files import opened

    ATTACKS.load(name)
    benchmark = opened(folder)
    with working_in(answers), counter() as on_case:
        commit = commit or f"docleak {docleak.__version__}"
        entry = enter(benchmark, answers, name, budget=budget, seed=seed, commit=commit, on_case=on_case)
    emit(entry, f"Answers of {entry['name']} are in {answers}.")


def score(
    folder: Path = FOLDER,
    answers: Path = ANSWERS,
    key: Path | None = KEY,
    leaderboard: Path | None = option(None, "JSON file to put the row into; the page stands beside it, as .md."),
    missing_as_zero: bool = option(False, "Count cases without an answer as not read, instead of refusing."),
    ocr: str = option("rapidocr", "What reads the pictures: rapidocr, tesseract, or trocr:DIR."),
) -> None:
    """Hold answers against the key; files that were changed, or answer another edition, are refused."""
    from docleak.metrics import load_engine
    from docleak.studies.benchmark.files import opened
    from docleak.studies.benchmark.scoring import enlisted, read_answers, read_key, row_of, table_of
    from docleak.studies.benchmark.scoring import score as measure

    if leaderboard is not None:
        _require_board(leaderboard, folder)
    benchmark = opened(folder)
    given, engine = read_answers(answers, benchmark), load_engine(ocr)
    scores = measure(benchmark, given, read_key(_key_of(folder, key), benchmark), engine,
                     missing_as_zero=missing_as_zero)  # fmt: skip
    row = row_of(given, scores, f"{engine.name} {engine.version}")
    if leaderboard is not None:
        enlisted(leaderboard, benchmark, row)
    tables = [table_of(track, about, [row]) for track, about in benchmark.about["tracks"].items()]
    said = [f"{table.title}\n{table.to_text()}\n{table.caption}" for table in tables]
    said += [f"Leaderboard: {leaderboard}, its page {leaderboard.with_suffix('.md')}"] if leaderboard else []
    emit(row, "\n\n".join(said))


def _require_board(file: Path, folder: Path) -> None:
    """RunError where the leaderboard and its page cannot be written, or would change what is not theirs."""
    page = file.with_suffix(".md")
    if file.suffix != ".json":
        raise RunError(f"--leaderboard is {file}; expected a file that ends in .json.")
    if file.resolve().is_relative_to(folder.resolve()):
        raise RunError(f"--leaderboard is {file}; {folder} stays as it was exported. Name a file outside of it.")
    if page.exists() and not file.exists():
        raise RunError(f"--leaderboard is {file}, which is new; its page would take the place of {page}. Name another.")
    for one in (file, page):
        require_place(one)


ABOUT = "A frozen benchmark in files, for attacks of any framework."
COMMANDS = (export, attack, score)
