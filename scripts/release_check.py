"""What must hold before a release: python scripts/release_check.py [--here].

Asks whether all files name one version, builds sdist and wheel, checks them, installs the wheel into a new environment
outside the repository, and uses it there: its version, the default audit, and with the extra for adapters the whole
public benchmark, whose edition must be that of the committed leaderboard. ``--here`` takes the dependencies of the
environment that runs this instead of installing them; then only docleak itself is new, and extras are there. Ends with
exit code 1 at the first thing that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
BUILD = "import setuptools.build_meta as b, sys; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
#: What the README says: everything that needs no arguments, with what ``pip install docleak`` brings and no extra.
AUDIT = ("audit", "--out", "audit")


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed; nothing of the repository is on its path."""
    print("$", *command, flush=True)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nrelease_check: this failed, so there is no release yet.")
    return done.stdout


def version() -> str:
    """The one version that the package, the changelog's newest section, CITATION.cff and the README name."""
    places = {
        "src/docleak/__init__.py": r'__version__ = "([^"]+)"',
        "CHANGELOG.md": r"^## ([0-9][^ ]*)",
        "CITATION.cff": r"^version: (.+)$",
        "README.md": r"\*\*Version ([^ *]+)\*\*",
    }
    named = {
        file: match[1] if (match := re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)) else "none"
        for file, pattern in places.items()
    }
    if len({*named.values()}) > 1:
        sys.exit(f"release_check: the version differs: {', '.join(f'{file} {said}' for file, said in named.items())}.")
    return named["CITATION.cff"]


def build(into: Path) -> tuple[Path, Path]:
    """(sdist, wheel), the wheel out of the unpacked sdist, so that what is not in the sdist is missed."""
    sdist = into / run(sys.executable, "-c", BUILD, "sdist", into, cwd=ROOT).split()[-1]
    run("tar", "-xzf", sdist, cwd=into)
    source = into / sdist.name.removesuffix(".tar.gz")
    return sdist, into / run(sys.executable, "-c", BUILD, "wheel", into, cwd=source).split()[-1]


def installed(wheel: Path, folder: Path, *, here: bool) -> Path:
    """The bin folder of a new environment that has the wheel."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    if here:
        places = run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder).strip()
        there = [path for path in sys.path if Path(path).name == "site-packages"]
        (Path(places) / "dependencies.pth").write_text("\n".join(there) + "\n")
    options = ["--no-deps"] if here else ["--constraint", str(ROOT / "constraints.txt")]
    run(python, "-m", "pip", "install", "--quiet", *options, wheel, cwd=folder)
    return folder / "bin"


def twine(folder: Path, *, here: bool) -> Path:
    """The twine on the path, or one in an environment of its own, since flwr bears none beside it."""
    if there := shutil.which("twine"):
        return Path(there)
    if here:
        sys.exit("release_check: there is no twine, and --here installs nothing. pipx install twine")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "twine", cwd=folder.parent)
    return folder / "bin" / "twine"


def main() -> None:
    """Ask, build, check, install, use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="use this environment's dependencies")
    here = parser.parse_args().here
    print(f"version {version()}")
    with TemporaryDirectory(prefix="docleak-release-") as name:
        folder = Path(name)
        sdist, wheel = build(folder)
        run(twine(folder / "twine", here=here), "check", "--strict", sdist, wheel, cwd=folder)
        commands = installed(wheel, folder / "environment", here=here)
        where = run(commands / "python", "-c", "import docleak; print(docleak.__file__)", cwd=folder).strip()
        if not Path(where).is_relative_to(folder):
            sys.exit(f"release_check: docleak was imported from {where}, not from the wheel.")
        print(run(commands / "docleak", "--version", cwd=folder).strip())
        print(run(commands / "docleak", *AUDIT, cwd=folder).strip())
        if not (folder / "audit" / "report.html").is_file():
            sys.exit("release_check: the audit wrote no report.html.")
        if not here:
            extra = [f"docleak[adapters] @ {wheel.as_uri()}", "--constraint", str(ROOT / "constraints.txt")]
            run(commands / "python", "-m", "pip", "install", "--quiet", *extra, cwd=folder)
        about = json.loads(run(commands / "docleak", "benchmark", "export", "bench", "--json", cwd=folder))
        board = json.loads((ROOT / "docs" / "results" / "leaderboard.json").read_text())["benchmark"]
        if about["edition"] != board["edition"]:
            sys.exit(f"release_check: the benchmark is edition {about['edition']}, its leaderboard {board['edition']}.")
        print(f"benchmark: edition {about['edition']}")
        for made in (sdist, wheel):
            print(f"{made.name}: {made.stat().st_size / 1e6:.1f} MB")
    print("release_check: all of it holds.")


if __name__ == "__main__":
    main()
