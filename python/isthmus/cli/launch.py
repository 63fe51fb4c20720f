"""`isthmus launch`: local ranks of any program."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

from .. import launch


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "launch",
        help="start local ranks of a program",
        description="isthmus launch --ranks 4 --islands a:2,b:2 --bridge tcp -- python program.py",
    )
    parser.add_argument("--ranks", type=int, required=True, metavar="N")
    parser.add_argument("--islands", metavar="a:2,b:2", help="labels of the ranks' islands, in order")
    parser.add_argument("--bridge", choices=["auto", "shm", "tcp", "ucx"], help="link between the islands")
    parser.add_argument("--ccl", metavar="a=oneccl", help="libraries that serve islands, by label")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds, after which the ranks are killed")
    add_keep_going(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="after --: the program and its arguments")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    program = program_of(options)
    if not program:
        print("isthmus launch: no program; write it after --")
        return 2
    if taken := [name for name in ("ISTHMUS_RANK", "ISTHMUS_WORLD_SIZE", "ISTHMUS_ADDRESS") if name in os.environ]:
        print(f"isthmus launch: {' and '.join(taken)}: it gives these to the ranks itself; unset them", file=sys.stderr)
        return 2
    where = {"islands": options.islands, "bridge": options.bridge, "ccl": options.ccl}
    with launch.start(program, options.ranks, **where, capture=False) as job:
        return report("launch", job, options)


def add_keep_going(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="a rank that fails does not end the others: for programs that go on without it (isthmus.elastic); else "
        "they are killed 15 s later",
    )


def program_of(options: argparse.Namespace) -> list[str]:
    """The program and its arguments, which stand after --."""
    words: list[str] = options.program
    return words[1:] if words[:1] == ["--"] else words


def report(command: str, job: launch.Job, options: argparse.Namespace) -> int:
    """Waits for the ranks, names those that failed, and gives the command's exit status: 1 where one failed.

    They are named in the order in which they ended.
    """
    results = job.wait(options.timeout, keep_going=options.keep_going)
    bad = [results[rank] for rank in job.ended if results[rank].returncode != 0]
    for result in bad:
        print(f"isthmus {command}: rank {result.rank} {how(result)}")
    return 1 if bad else 0


def how(result: launch.Result) -> str:
    """How a rank that failed ended."""
    if result.killed:
        return f"{result.killed}, and was killed"
    if result.returncode < 0:
        return f"ended with status {result.returncode} ({signal.strsignal(-result.returncode) or 'an unknown signal'})"
    return f"ended with status {result.returncode}"
