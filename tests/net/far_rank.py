"""One rank of test_far.py: what its communicator says of the path between the hosts, and whether collectives are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import isthmus
from host_rank import right, wrong_blocks


def most(setting: str) -> int:
    return int(Path("/proc/sys/net/ipv4", setting).read_text().split()[2])


with isthmus.init() as comm:
    said = comm.topology()
    stages = comm.explain("all_reduce", nbytes=16 << 20).data["stages"]
    print(
        json.dumps(
            {
                "round_trip_us": said["round_trip_us"],
                "far": said["far"],
                "streams": [len(link["streams"]) for link in isthmus.context_stats()["streams"]],
                "window": min(most("tcp_wmem"), most("tcp_rmem") // 3 * 2),
                "turns": max(stage["skew"] for stage in stages),
                "right": all(right(comm, int(count)) for count in sys.argv[1:]) and not wrong_blocks(comm),
            }
        ),
        flush=True,
    )
