"""One rank of test_links.py: an all_reduce, timed. Says what it found as a line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

import isthmus


def main() -> None:
    comm = isthmus.init()
    x = np.ones(int(sys.argv[1]) // 4, np.float32)
    comm.all_reduce(x)  # makes the connections
    times = []
    for _ in range(2):
        comm.barrier()
        begin = time.monotonic()
        comm.all_reduce(x)
        times.append((begin, time.monotonic()))  # one clock for all ranks
    topology = comm.topology()
    found = {
        "x": float(x[-1]),
        "times": times,
        "hosts": [host["ranks"] for host in topology["hosts"]],
        "namespace": os.stat("/proc/self/ns/net").st_ino,
        "weights": {group["island"]: group["weight"] for group in topology["groups"]},
        "local": [os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]],
    }
    print(json.dumps(found), flush=True)
    comm.destroy()


if __name__ == "__main__":
    main()
