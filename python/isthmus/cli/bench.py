"""`isthmus bench`: the benchmark that ships in the package, and in a source tree the comparison with others."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from .._errors import Error
from .common import before_exec


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="isthmus-bench, or --peers: the same work on others",
        description="Runs isthmus-bench with the arguments given: `isthmus bench all_reduce --ranks 2 -b 8 -e 64M -f 2`. "
        "`isthmus bench --peers ...` runs bench/peers.py of the source tree.",
        add_help=False,
    )
    parser.set_defaults(run=None)


def find_benchmark() -> Path | None:
    """The binary: in the package, else on PATH."""
    packaged = Path(__file__).resolve().parent.parent / "bin" / "isthmus-bench"
    if os.access(packaged, os.X_OK):
        return packaged
    found = shutil.which("isthmus-bench")
    return Path(found) if found else None


def find_peers() -> Path | None:
    """bench/peers.py of the source tree that holds the working directory, or this package."""
    for start in (Path.cwd(), Path(__file__).resolve()):
        for folder in (start, *start.parents):
            script = folder / "bench" / "peers.py"
            if script.is_file() and (folder / "csrc" / "include" / "isthmus" / "isthmus.h").is_file():
                return script
    return None


def run(arguments: list[str]) -> int:
    """Becomes the program; returns only where there is none."""
    if "--peers" in arguments:
        script = find_peers()
        if script is None:
            raise Error("bench --peers: found no bench/peers.py; run it inside a source tree of Isthmus")
        rest = [argument for argument in arguments if argument != "--peers"]
        if not any(word == "--out" or word.startswith("--out=") for word in rest):  # the tree keeps results of whole runs
            rest += ["--out", str(Path.cwd() / "isthmus-peers")]
        before_exec()
        os.execv(sys.executable, [sys.executable, str(script), *rest])
    program = find_benchmark()
    if program is None:
        raise Error("bench: isthmus-bench is neither in the package nor on PATH; build it with `make build`")
    before_exec()
    os.execv(program, [str(program), *arguments])
