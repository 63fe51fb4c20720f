"""What tests wait for instead of a time: that something holds, that a rank stands inside a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import isthmus
from patience import SOON


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Returns as soon as the condition holds."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {SOON} s"
        time.sleep(0.005)


def inside_a_call(comm: isthmus.Comm) -> bool:
    """Whether an operation of this rank has begun and has not ended."""
    return any(entry["state"] == "running" for entry in comm.dump()["entries"])


def once_inside(comm: isthmus.Comm, action: Callable[[], object]) -> None:
    """Lets another thread do that when this rank stands inside its next operation."""

    def act() -> None:
        until(lambda: inside_a_call(comm), "an operation")
        action()

    threading.Thread(target=act, daemon=True).start()
