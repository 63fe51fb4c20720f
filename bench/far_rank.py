"""One rank of bench/far.py: times collectives, and says the seconds as one line of JSON (rank 0)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import isthmus

REPEATS = int(sys.argv[1])
MIBS = [int(word) for word in sys.argv[2:]]


def timed(comm: isthmus.Comm, call: Callable[[], Any]) -> list[float]:
    call()
    seconds = []
    for _ in range(REPEATS):
        comm.barrier()
        begin = time.monotonic()
        call()
        seconds.append(time.monotonic() - begin)
    return seconds


def main() -> None:
    with isthmus.init() as comm:
        found: dict[str, list[float]] = {}
        for mib in MIBS:
            count = mib << 18
            whole, out = np.ones(count, np.float32), np.empty(count, np.float32)
            part = np.ones(count // comm.size, np.float32)
            calls: dict[str, Callable[[], Any]] = {
                "all_reduce": lambda whole=whole, out=out: comm.all_reduce(whole, out=out),
                "reduce_scatter": lambda whole=whole, part=part: comm.reduce_scatter(whole, out=part),
                "all_gather": lambda part=part, out=out: comm.all_gather(part, out=out),
                "all_to_all": lambda whole=whole, out=out: comm.all_to_all(whole, out=out),
            }
            for name, call in calls.items():
                found[f"{name} {mib}"] = timed(comm, call)
        if comm.rank == 0:
            said = comm.topology()
            print(json.dumps({"far": said["far"], "round_trip_us": said["round_trip_us"], "seconds": found}), flush=True)


if __name__ == "__main__":
    main()
