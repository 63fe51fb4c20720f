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


def timed(call: Callable[[], Any]) -> float:
    """A call's time: from the end of one to the end of the last of those that follow, by their number. A rank leaves a
    barrier up to one way after another one, so a call behind a barrier would seem short on one rank, and long on the other;
    and so a single one of these that follow each other would.
    """
    call()
    call()
    begun = time.monotonic()
    for _ in range(REPEATS):
        call()
    return (time.monotonic() - begun) / REPEATS


def main() -> None:
    with isthmus.init() as comm:
        found: dict[str, float] = {}
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
                found[f"{name} {mib}"] = timed(call)
        if comm.rank == 0:
            said = comm.topology()
            streams = max(len(link["streams"]) for link in isthmus.context_stats()["streams"])
            says = {"far": said["far"], "round_trip_us": said["round_trip_us"], "streams": streams, "seconds": found}
            print(json.dumps(says), flush=True)


if __name__ == "__main__":
    main()
