"""What the subcommands share: how they start local ranks, and the options that say which."""

from __future__ import annotations

import argparse
import array
import json
import os
import signal
import sys
import threading
from typing import Any

from .. import Comm, launch
from .._errors import Error
from .._package import FOLDER
from ..rehearse import FLEET

ANSWER = "isthmus answer: "
"""Begins rank 0's line that is one. Libraries print to the same output, some when the process ends."""

# Ranks take the package of this process, behind Python's own modules and before other packages. Python puts the working
# directory before all else with -c and with -m: what lies there is none of the ranks' modules.
_RANK = (
    "import sys; sys.path[0] or sys.path.pop(0); folder = sys.argv.pop(1); "
    "at = (i for i, p in enumerate(sys.path) if p.endswith('-packages')); sys.path.insert(next(at, len(sys.path)), folder); "
    "from isthmus.cli.probe import main; main()"
)
_RANK_VARIABLES = ("ISTHMUS_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def add_rank_options(parser: argparse.ArgumentParser, default_ranks: int | None = None) -> None:
    parser.add_argument("--ranks", type=int, metavar="N", default=default_ranks, help="start N local ranks")
    parser.add_argument("--islands", metavar="a:2,b:2", help="labels of the ranks' islands, in order")
    parser.add_argument("--bridge", choices=["auto", "shm", "tcp", "ucx"], help="link between the islands")
    parser.add_argument("--ccl", metavar="a=oneccl", help="libraries that serve islands, by label")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for the whole run (default 60)")


def under_launcher() -> bool:
    """torchrun, mpirun, srun or `isthmus launch` has started this process as a rank."""
    return any(name in os.environ for name in _RANK_VARIABLES)


def ask_ranks(question: str, arguments: dict[str, Any], options: argparse.Namespace) -> Any:
    """Starts local ranks that all put `question` (isthmus.cli.probe), and returns rank 0's answer."""
    ranks = options.ranks or (len(launch.parse_islands(options.islands, _count(options.islands))) if options.islands else 2)
    command = [sys.executable, "-c", _RANK, str(FOLDER.parent), question, json.dumps(arguments)]
    env = {"ISTHMUS_TIMEOUT": f"{options.timeout:g}"}
    where = {"islands": options.islands, "bridge": options.bridge, "ccl": options.ccl}
    with launch.start(command, ranks, **where, env=env) as job:
        results = job.wait(options.timeout + 5)
    for result in results:
        if result.returncode != 0:
            lines = (result.stderr or result.stdout).strip().splitlines()
            raise Error(
                f"rank {result.rank} of {ranks} failed: {lines[-1] if lines else f'exit status {result.returncode}'}"
            )
    said = [line for line in results[0].stdout.splitlines() if line.startswith(ANSWER)]
    if not said:
        raise Error(f"rank 0 of {ranks} ended without an answer")
    return json.loads(said[-1].removeprefix(ANSWER))


def before_exec() -> None:
    """Gives back the signals that Python ignores: the program that this process becomes would go on ignoring them."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)


def mark(data: dict[str, Any]) -> dict[str, Any]:
    """Data that is to be printed or drawn. In a rehearsal it says that it comes from one."""
    fleet = os.environ.get(FLEET)
    return {"rehearsal": fleet, **data} if fleet else data


def whole_topology(comm: Comm) -> dict[str, Any]:
    """Collective. Comm.topology() with the links of all ranks; by itself a rank knows its own."""
    topology = comm.topology()
    mine = bytearray(json.dumps(topology.get("links", [])).encode())
    sizes = array.array("q", [0]) * comm.size
    comm.all_gather(array.array("q", [len(mine)]), sizes)
    texts = bytearray(sum(sizes))
    comm.all_gather_v(mine, sizes, texts)
    links = []
    for size in sizes:
        links += json.loads(bytes(texts[:size]))
        del texts[:size]
    topology["links"] = links
    return topology


def _count(islands: str) -> int:
    return sum(int(part.partition(":")[2] or 1) if part.partition(":")[2].isdecimal() else 1 for part in islands.split(","))
