#!/usr/bin/env bash
# Make or refresh .venv with docleak and its development tools, at the versions of constraints.txt.
# Does nothing when it is up to date. PYTHON=/path/to/python chooses the interpreter (3.11 or newer).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.docleak-setup

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_new_enough "$PYTHON" && { echo "$PYTHON"; return; }
        echo "PYTHON is '$PYTHON', which is missing or older than Python 3.11. Give one that is 3.11 or newer." >&2
        return 1
    fi
    for candidate in python3 python3.11 python3.12 python3.13; do
        is_new_enough "$candidate" && { command -v "$candidate"; return; }
    done
    echo "No Python 3.11 or newer found ($(python3 --version 2>&1 || true))." >&2
    echo "Install one (Debian: apt-get install python3 python3-venv), or say PYTHON=/path/to/python3.11." >&2
    return 1
}

# What the environment depends on; the folder counts because a virtual environment cannot be moved.
wanted() { { pwd; cat pyproject.toml constraints.txt scripts/setup.sh; } | sha256sum | cut -d' ' -f1; }

version_of() { "$1" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null || echo none; }

# A .venv whose interpreter works, is new enough, and is the version of PYTHON where that was given.
venv_is_usable() {
    is_new_enough $venv/bin/python || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of $venv/bin/python)" ]
}

if ! venv_is_usable; then
    python=$(find_python)
    echo "docleak: making $venv with $("$python" --version)"
    "$python" -m venv --clear $venv || {
        echo "$python cannot make virtual environments. Debian and Ubuntu need: apt-get install python3-venv" >&2
        exit 1
    }
elif [ -x $venv/bin/docleak ] && [ "$(cat $stamp 2>/dev/null)" = "$(wanted)" ]; then
    exit 0
fi

pip() { $venv/bin/python -m pip --disable-pip-version-check --quiet --no-input "$@"; }

echo "docleak: installing into $venv (once; a few minutes)"
# torch on its own and first: with the right version there, nothing below fetches another build of it.
# pip compiles on one core, and the packages' own tests, too.
pip install --no-compile --constraint constraints.txt torch==2.13.0 setuptools
pip install --no-compile --constraint constraints.txt --no-build-isolation --editable '.[dev]'
$venv/bin/python -m compileall -q -j 0 -x '/tests?/' "$($venv/bin/python -c 'import site; print(site.getsitepackages()[0])')" \
    >/dev/null 2>&1 || true # templates among them are no Python
wanted >$stamp
