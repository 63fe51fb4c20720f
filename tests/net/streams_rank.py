"""One rank of test_streams.py: all_reduces of 64 MiB until the file `over` is there.

Says of each, as a line of JSON, whether it is right to the bit, and what has become of the data streams. Where the file
`reset` is there, rank 0 resets the connection of its last stream within the next one.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import numpy as np

import isthmus

BYTES = 64 << 20


def to_address(prefix: str) -> list[int]:
    """The descriptors of this process's TCP connections to such an address."""
    found = []
    for entry in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        try:
            other = socket.socket(fileno=os.dup(entry))
        except OSError:
            continue
        try:
            tcp = other.family == socket.AF_INET and other.type == socket.SOCK_STREAM
            if tcp and other.getpeername()[0].startswith(prefix):
                found.append(entry)
        except OSError:
            pass
        finally:
            other.close()
    return found


def reset(descriptor: int) -> None:
    """Ends a TCP connection by RST: connect() to no family."""
    nowhere = struct.pack("=H14x", socket.AF_UNSPEC)
    assert ctypes.CDLL(None, use_errno=True).connect(descriptor, nowhere, len(nowhere)) == 0


def reset_within(comm: isthmus.Comm) -> None:
    """Once more than before has gone out of the operation that has begun."""
    def sent() -> int:
        return sum(link.get("bytes_sent", 0) for link in comm.topology()["links"])

    before = sent()
    while sent() < before + BYTES // 8:
        time.sleep(0.0005)
    reset(to_address("10.213.8.")[-1])


def main() -> None:
    folder = Path(sys.argv[1])
    comm = isthmus.init()
    inputs = [np.random.default_rng(rank).random(BYTES // 4, np.float32) for rank in range(2)]
    wanted = inputs[0] + inputs[1]
    number = 0
    while True:
        x = inputs[comm.rank].copy()
        over = np.array([(folder / "over").exists()], np.int32)
        if comm.all_reduce(over, "max")[0]:
            break
        doer = None
        if comm.rank == 0 and (folder / "reset").exists():
            (folder / "reset").unlink()
            doer = threading.Thread(target=reset_within, args=(comm,))
            doer.start()
        begin = time.monotonic()
        comm.all_reduce(x)
        seconds = time.monotonic() - begin
        if doer:
            doer.join()
        number += 1
        said = {"number": number, "right": bool((x == wanted).all()), "seconds": seconds, "reset": doer is not None}
        print(json.dumps({**said, "streams": isthmus.context_stats()["streams"][0]["streams"]}), flush=True)
    comm.destroy()
    print(json.dumps("well"), flush=True)


if __name__ == "__main__":
    main()
