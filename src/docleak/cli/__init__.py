"""The ``docleak`` command."""

from __future__ import annotations

import os
import sys

# Before numpy and torch are loaded: several threads per process on busy cores are many times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    """Entry point: errors docleak raises on purpose become one message on stderr and exit code 1."""
    from docleak.cli.app import app
    from docleak.cli.output import fail
    from docleak.errors import DocleakError

    try:
        app(standalone_mode=True)
    except DocleakError as error:
        fail(str(error), json_output="--json" in sys.argv)
    except OSError as error:  # a path that cannot be read or written; wherever docleak knows more, it says so itself
        fail(f"{error}. Check the path, its permissions and the space left.", json_output="--json" in sys.argv)
