"""How a process ends by an error: the other ranks hear what it raised, and end after it."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from types import TracebackType

from . import _core

_LONGEST = 5.0
"""Seconds that the end of this process waits for the end of another's that raised."""
_SEEN = 0.5
"""Seconds that a launcher has to see that end before it sees this one: torchrun looks ten times a second."""


def one_line(kind: type[BaseException], error: BaseException | None) -> str:
    """The exception in one line, and a short one."""
    try:
        text = " ".join(str(error).split()) if error is not None else ""
    except Exception:  # its own __str__ fails
        text = ""
    name = kind.__qualname__ if len(kind.__qualname__) <= 100 else kind.__name__[:100]
    return f"{name}: {text[:200]}{'...' if len(text) > 200 else ''}" if text else name


def linger() -> None:
    """Where a communicator has failed because another rank raised: waits until that one's process is gone.

    A launcher names the first process that ends, and that should be the one which raised.
    """
    until = time.monotonic() + _LONGEST
    state = _core.raiser()
    while state == 1 and time.monotonic() < until:
        time.sleep(0.01)
        state = _core.raiser()
    if state == 2:
        time.sleep(_SEEN)


threads: list[threading.Thread] = []
"""Threads of ours that end when the last communicator is gone. One that came back from C++ later would end the process."""


def join_threads() -> None:
    """Before the interpreter ends, and when all communicators are gone."""
    for thread in threads:
        thread.join(_LONGEST)


def install() -> None:
    """An exception that nobody catches in the main thread is told to the other ranks before it is printed.

    In an interactive interpreter it ends nothing. Nor does that of another thread: the program may go on without it.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if not (hasattr(sys, "ps1") or sys.flags.interactive):
                _core.raised(one_line(kind, error))
        finally:
            before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(linger)
