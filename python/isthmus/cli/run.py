"""`isthmus run`: an unmodified program of NCCL, RCCL or HCCL behind that vendor's front door."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any

from .. import _interpose, _programs
from .._doors import DOORS
from .._errors import ArgumentError, ConfigError
from .common import before_exec
from .launch import program_of


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="a program of NCCL, RCCL or HCCL behind that vendor's front door",
        description="isthmus run -- python train.py. Becomes the program, with the variables that "
        "lead it there; put it before the innermost command (mpirun ... isthmus run -- PROGRAM).",
    )
    parser.add_argument("--interpose", action="store_true", help="what it does anyway; may be left out")
    parser.add_argument(
        "--vendor", choices=list(DOORS), help="whose front door; by itself that of the library which the program uses"
    )
    parser.add_argument(
        "--hook", action=argparse.BooleanOptionalAction, help="the hook before dlopen; by itself where the program needs it"
    )
    parser.add_argument("--audit", action="store_true", help="by the loader's auditor instead of preloading")
    parser.add_argument("--real", metavar="FILE", help="the vendor's library to forward to")
    parser.add_argument(
        "--print", "--dry-run", action="store_true", dest="show", help="print the variables, and start nothing"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help="after --: the program and its arguments")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    words = program_of(options)
    try:
        program = _programs.examine(words, os.environ)
        choice = _interpose.choose(program, options.vendor, options.hook, options.audit, options.real)
    except (ArgumentError, ConfigError) as error:
        print(f"isthmus run: {error}", file=sys.stderr)
        return 2
    if options.show:
        for name, value in choice.variables.items():
            print(f"{name}={shlex.quote(value)}")
        for line in choice.words:
            print(f"# {line}")
        return 0
    said = " ".join(f"{name}={shlex.quote(value)}" for name, value in choice.variables.items())
    notes = "".join(f"; {line}" for line in choice.words)
    print(f"isthmus run: {choice.door.name}'s front door ({choice.why}): {said}{notes}", file=sys.stderr, flush=True)
    before_exec()
    try:
        os.execvpe(words[0], words, {**os.environ, **choice.variables})
    except OSError as error:
        print(f"isthmus run: {words[0]}: {error.strerror}", file=sys.stderr)
        return 2
