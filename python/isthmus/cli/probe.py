"""One rank of a question that the command line asks: joins, works it out, and rank 0 prints one line of JSON."""

from __future__ import annotations

import array
import json
import sys
import time
from typing import Any

import isthmus

from .common import ANSWER, whole_topology


def topology(comm: isthmus.Comm, _arguments: dict[str, Any]) -> Any:
    return whole_topology(comm)


def explain(comm: isthmus.Comm, arguments: dict[str, Any]) -> Any:
    collective = arguments.pop("collective")
    return comm.explain(collective, **arguments).data


def selftest(comm: isthmus.Comm, _arguments: dict[str, Any]) -> Any:
    """Sums small and large messages, checks every element, and times the small one."""
    for count in (1, 1000, 1_000_000):
        data = array.array("f", [comm.rank + 1.0]) * count
        comm.all_reduce(data)
        expected = comm.size * (comm.size + 1) / 2
        if data.count(expected) != count:
            raise SystemExit(f"all_reduce of {count} float32 gave a wrong sum on rank {comm.rank}")
    small = array.array("f", [1.0, 1.0])
    rounds = 2000
    comm.barrier()
    begin = time.perf_counter()
    for _ in range(rounds):
        comm.all_reduce(small, "max")
    microseconds = (time.perf_counter() - begin) / rounds * 1e6
    return {"ranks": comm.size, "all_reduce_8B_us": round(microseconds, 2), "topology": whole_topology(comm)}


QUESTIONS = {"topology": topology, "explain": explain, "selftest": selftest}


def main() -> None:
    question, arguments = sys.argv[1], json.loads(sys.argv[2])
    try:
        with isthmus.init() as comm:
            answer = QUESTIONS[question](comm, arguments)
            comm.barrier()
            if comm.rank == 0:
                print(f"\n{ANSWER}{json.dumps(answer)}", flush=True)
    except isthmus.Error as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


if __name__ == "__main__":
    main()
