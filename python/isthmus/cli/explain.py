"""`isthmus explain`: the plan of one collective, as text or data."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import _core, init
from .common import add_rank_options, ask_ranks, under_launcher


def parse_bytes(text: str) -> int:
    """64, 64K, 8M or 1G, in powers of two."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 0)
    number = text[:-1] if factor else text
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no size; write 64, 64K, 8M or 1G")
    return int(number) * (factor or 1)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "explain",
        help="what a collective would do",
        description="Prints the plan of rank 0: under torchrun, mpirun or srun for that job, else for local ranks.",
    )
    parser.add_argument("collective", help="all_reduce, broadcast, all_gather, ..., send, recv")
    parser.add_argument(
        "-b", "--bytes", type=parse_bytes, default=1 << 20, metavar="SIZE", help="of the message (default 1M)"
    )
    parser.add_argument("-d", "--dtype", default="float32", choices=_core.dtypes(), metavar="DTYPE", help="default float32")
    parser.add_argument("-o", "--op", default="sum", choices=_core.ops(), metavar="OP", help="default sum")
    parser.add_argument("-r", "--root", type=int, default=0, metavar="RANK", help="or peer (default 0)")
    parser.add_argument("--json", action="store_true", help="print the data")
    add_rank_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    arguments = {"nbytes": options.bytes, "dtype": options.dtype, "op": options.op, "root": options.root}
    if under_launcher() and options.ranks is None:
        with init() as comm:
            plan = comm.explain(options.collective, **arguments).data
            comm.barrier()
            if comm.rank != 0:
                return 0
    else:
        plan = ask_ranks("explain", {"collective": options.collective, **arguments}, options)
    print(json.dumps(plan, indent=2) if options.json else plan.get("text", plan))
    return 0
