"""One rank of test_streams.py: all_reduces of 64 MiB, or of argv[2] MiB, until the file `over` is there.

Says of each, as a line of JSON, when it began and how long it took, whether it is right to the bit, what has become of the
data streams, and when each change of them since the last line was seen. Where the file `reset` is there, rank 0 resets the
connection of its last stream within the next one.
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
from typing import Any

import numpy as np

import isthmus

BYTES = (int(sys.argv[2]) if len(sys.argv) > 2 else 64) << 20


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


def watch(changes: list[Any], over: threading.Event) -> None:
    """Adds when which streams were connected, at each change."""
    last: list[bool] = []
    while not over.wait(0.005):
        streams = isthmus.context_stats()["streams"]
        now = [stream["connected"] for stream in streams[0]["streams"]] if streams else []
        if now != last:
            changes.append([time.monotonic(), now])
            last = now


def main() -> None:
    folder = Path(sys.argv[1])
    comm = isthmus.init()
    inputs = [np.random.default_rng(rank).random(BYTES // 4, np.float32) for rank in range(2)]
    wanted = inputs[0] + inputs[1]
    number = 0
    changes: list[Any] = []
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(changes, done), daemon=True)
    watcher.start()
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
        said: dict[str, Any] = {"number": number, "right": bool((x == wanted).all()), "begin": begin, "seconds": seconds}
        said["reset"] = doer is not None
        said["heartbeats"] = isthmus.context_stats()["heartbeats"]
        said["changes"], changes[:] = changes[:], []
        print(json.dumps({**said, "streams": isthmus.context_stats()["streams"][0]["streams"]}), flush=True)
    done.set()
    watcher.join()
    comm.destroy()
    print(json.dumps("well"), flush=True)


if __name__ == "__main__":
    main()
