"""Ports for tests whose programs must know them before anybody listens."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack


def two_ports() -> int:
    """A free port whose next one is free, too.

    They lie below those that the system gives by itself (ip_local_port_range): another test's connection does not take them
    by chance before they are used.
    """
    for _ in range(1000):
        port = random.randrange(20000, 32000, 2)
        with ExitStack() as both:
            try:
                for one in (port, port + 1):
                    both.enter_context(socket.socket()).bind(("", one))
            except OSError:
                continue
        return port
    raise AssertionError("no two ports are free")
