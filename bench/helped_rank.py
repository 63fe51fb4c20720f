"""One rank of bench/helped.py: times messages and collectives, and says what it found as one line of JSON (rank 1)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import isthmus

REPEATS, MIB = int(sys.argv[1]), int(sys.argv[2])


def main() -> None:
    with isthmus.init() as comm:
        count = MIB << 18
        mine, theirs = np.arange(count, dtype=np.float32) + comm.rank, np.zeros(count, np.float32)
        other = 1 - comm.rank

        def both() -> None:
            with isthmus.group():
                comm.send(mine, other)
                comm.recv(theirs, other)

        calls: dict[str, Callable[[], Any]] = {
            "one way": lambda: comm.send(mine, 1) if comm.rank == 0 else comm.recv(theirs, 0),
            "both ways": both,
            "all_reduce": lambda: comm.all_reduce(mine, out=theirs),
        }
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        found: dict[str, float] = {}
        for name, call in calls.items():
            call()
            comm.barrier()
            begun = time.monotonic()
            for _ in range(REPEATS):
                call()
            found[name] = (time.monotonic() - begun) / REPEATS
            theirs.fill(np.nan)
            call()
            right = np.arange(count, dtype=np.float32) + other
            if name == "all_reduce":
                right += mine
            assert (theirs == right).all() or (name == "one way" and comm.rank == 0), name
        links = [link for link in comm.topology()["links"] if link["kind"] == "tcp"]
        moved = sum(link["bytes_sent"] + link["bytes_received"] for link in links)
        helped = sum(link["bytes_helped"] for link in links)
        if comm.rank == 1:
            streams = max(len(link["streams"]) for link in isthmus.context_stats()["streams"])
            print(json.dumps({"seconds": found, "streams": streams, "helped": helped / moved}), flush=True)


if __name__ == "__main__":
    main()
