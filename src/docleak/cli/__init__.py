"""The ``docleak`` command."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import threading

try:
    from typer import TyperException as UsageFault  # type: ignore[attr-defined] # newer ones have their own click
except ImportError:  # Flower holds typer at 0.20
    from click import ClickException as UsageFault

# Before numpy and torch are loaded: several threads per process on busy cores are many times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without a network the hub's client prints each of its tries; docleak says once what is missing.
os.environ.setdefault("HF_HUB_VERBOSITY", "error")

#: mallopt's names for the variables of the environment that set the same, and their values in bytes.
KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": (-1, 1 << 30), "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20)}


def main() -> None:
    """Entry point: errors docleak raises on purpose become one message on stderr and exit code 1, of ``check`` 2.

    With --json, every error is one JSON object on stdout as well, also that of a command line that cannot be parsed
    (exit code 2).
    """
    from typer import Abort

    import docleak.runs.collector  # noqa: F401
    from docleak.cli.app import command_line
    from docleak.cli.output import as_json, fail
    from docleak.errors import DocleakError

    _keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without the letter
    umask = os.umask(0o077)  # what libraries write shows people's pages, too
    before = None
    if threading.current_thread() is threading.main_thread():  # no other may
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: it ends what it started
    try:
        code = command_line()(standalone_mode=not as_json())  # alone, typer draws its own panel of a wrong command line
        raise SystemExit(code if isinstance(code, int) else 0)
    except DocleakError as error:
        fail(_noted(str(error), error))
    except UsageFault as error:
        fail(error.format_message() or "no command was given; see docleak --help", code=2)
    except Abort:
        fail("aborted")
    except OSError as error:  # a path that cannot be read or written; wherever docleak knows more, it says so itself
        fail(_noted(f"{error}. Check the path, its permissions and the space left.", error))
    except MemoryError as error:
        fail(_noted(f"there is not enough memory for this ({error}). Ask for less of it.", error))
    finally:
        os.umask(umask)
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _noted(message: str, error: BaseException) -> str:
    """The message, and whose code raised it, where that is known; a worker's traceback is left out."""
    notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
    return "\n".join([message, *notes])


def _keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory, here and in the processes that this one starts.

    By default it gives the megabytes of a freed tensor back to the system and fetches them anew, page by page, for
    the next one: about a tenth of the time of a gradient attack. Settings of the environment stand; elsewhere than
    on Linux with glibc nothing happens.
    """
    if sys.platform != "linux" or any(name in os.environ for name in KEEP_FREED_MEMORY):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for name, (number, size) in KEEP_FREED_MEMORY.items():
        os.environ[name] = str(size)
        if mallopt is not None:
            mallopt(number, size)
