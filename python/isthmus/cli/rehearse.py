"""`isthmus rehearse`: local ranks of any program, with simulated vendors' libraries where the fleet has those vendors."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .. import rehearse
from .._errors import ArgumentError
from .launch import add_keep_going, program_of, report


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "rehearse",
        help="start local ranks of a program, with simulated vendors",
        description="isthmus rehearse --fleet nvidia:2,cpu:1 -- python program.py",
    )
    parser.add_argument(
        "--fleet",
        required=True,
        metavar="nvidia:2,cpu:1",
        help=f"the ranks in order, as VENDOR:RANKS or VENDOR:RANKS@ISLAND, of {', '.join(rehearse.VENDORS)}",
    )
    parser.add_argument("--bridge", choices=["auto", "shm", "tcp", "ucx"], help="link between the islands")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds, after which the ranks are killed")
    add_keep_going(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="switches",
        help="a switch of the simulation: JITTER_US=0 is REHEARSAL_JITTER_US=0 on all ranks, 1:JITTER_US=0 on rank 1 alone; "
        "may be given again",
    )
    parser.add_argument("--links", metavar="FILE", help="rates of devices and bridges, as JSON; those of bridges need root")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="after --: the program and its arguments")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    program = program_of(options)
    if not program:
        print("isthmus rehearse: no program; write it after --")
        return 2
    try:
        switches = dict(_pair(text) for text in options.switches)
        job = rehearse.start(
            program, options.fleet, bridge=options.bridge, switches=switches, links=options.links, show=True
        )
    except ArgumentError as error:
        print(f"isthmus rehearse: {error}", file=sys.stderr)
        return 2
    with job:
        return report("rehearse", job, options)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentError(f"--set {text}: write NAME=VALUE")
    return name, value
