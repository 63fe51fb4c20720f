"""Forks rank processes from one that has imported everything and used nothing, so that a rank starts in milliseconds.

Protocol on the inherited socket (the first argument): a request is "f" with a descriptor (fork; the child serves that
connection; the answer is its pid), or "w" and a pid (wait for it; the answer is its status). All numbers are 8 bytes.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import sys
import traceback
from multiprocessing.connection import Connection

import cloudpickle

import events
import isthmus
import jobs  # what the ranks use, NumPy too, so that it is here before they are


def serve_child(channel: Connection) -> None:
    """One rank: receives (body, me), runs body(me), answers with ("result", value) or ("error", traceback)."""
    try:
        body, me = cloudpickle.loads(channel.recv_bytes())
        me.channel = channel
        value = body(me)
        for comm in me.comms:
            if not comm.destroyed:
                comm.destroy()
        me.send("result", value)
    except BaseException:
        me.send("error", traceback.format_exc())
        os._exit(1)
    os._exit(0)


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert isthmus.ANY_SOURCE == -1 and events.SOON > 0
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would not be there after a fork"
    jobs.AT_FORK = frozenset(sys.modules)
    gc.collect()
    gc.freeze()  # a rank's collection would copy every page that has an object
    while True:
        kind, descriptors, _, _ = socket.recv_fds(requests, 9, 1)
        if not kind:
            os._exit(0)
        if kind[:1] == b"f":
            pid = os.fork()
            if pid == 0:
                requests.close()
                serve_child(Connection(descriptors[0]))
            os.close(descriptors[0])
            requests.sendall(struct.pack("q", pid))
        else:
            _, status = os.waitpid(struct.unpack("q", kind[1:])[0], 0)
            requests.sendall(struct.pack("q", os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
