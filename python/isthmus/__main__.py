"""The command line: `isthmus doctor`, `settings`, `topo`, `explain`, `trace`, `tune`, `bench`, and what starts jobs."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence

from . import __version__
from ._errors import Error
from .cli import bench, doctor, explain, topo, trace, tune
from .cli import launch as launch_command
from .cli import rehearse as rehearse_command
from .cli import run as run_command
from .cli import settings as settings_command


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="isthmus", description="Collectives over ranks of several islands.")
    top.add_argument("--version", action="version", version=f"isthmus {__version__}")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = (doctor, settings_command, topo, explain, trace, tune, bench, launch_command, rehearse_command, run_command)
    for module in modules:
        module.add_parser(subparsers)
    return top


def _end(number: int, _frame: object) -> None:
    """Turns SIGTERM and SIGHUP into SystemExit, so that a command ends its ranks and network namespaces, as after Ctrl-C.

    The exit status is the one that a shell gives: 128 and the signal's number.
    """
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited: the kernel would reap the ranks, status and all
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):  # a character that the output does not have ends no command
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        if given[:1] == ["bench"]:  # all words after "bench" belong to the benchmark, --help included
            return bench.run(given[1:])
        options = parser().parse_args(given)
        status = int(options.run(options))
        if sys.stdout is not None:  # closed by who started this
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head`: nobody reads any more. The interpreter must not flush stdout again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Error as error:
        print(f"isthmus: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        print(f"isthmus: {place}{error.strerror or error}", file=sys.stderr)
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:  # a full disk: the interpreter must not try again when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
