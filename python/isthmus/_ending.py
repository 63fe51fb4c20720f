"""How a process ends by an exception: the other ranks hear which exception it was, and their processes end later.

rank 1 (raises)                         rank 0
exception that nobody catches
raised(text) - - - - - - - - - - - - -> operations end in PeerLostError, with the text
process ends                            its own exception ends the program: linger() waits
launcher names rank 1                   rank 1's process is gone: a second later the process ends
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from types import TracebackType

from . import _core

_LONGEST = 5.0
"""Seconds, at most, that the end of this process waits for the end of the process that raised."""
_LONGEST_FAILED = 20.0
"""The same, where this process ends by an exception too, so that a launcher might name it."""
_JOIN = 5.0
"""Seconds, at most, that the end of this process waits for one of its own threads."""
_SEEN = 1.0
"""Seconds between the end of the process that raised and the end of this one. torchrun looks ten times a second."""


def one_line(kind: type[BaseException], error: BaseException | None) -> str:
    """The exception in one short line: the name of its class, and up to 200 characters of its text."""
    try:
        text = " ".join(str(error).split()) if error is not None else ""
    except Exception:  # the exception's own __str__ fails
        text = ""
    name = kind.__qualname__ if len(kind.__qualname__) <= 100 else kind.__name__[:100]
    line = f"{name}: {text[:200]}{'...' if len(text) > 200 else ''}" if text else name
    return line.encode(errors="backslashreplace").decode()  # the name of a file in it may be no UTF-8


def linger() -> None:
    """Waits until the process of the rank that raised is gone, or is not heard any more. Without one: returns at once.

    A launcher names the first process that ends. The first to end should be the process that raised.
    """
    longest = _LONGEST_FAILED if failed else _LONGEST
    begin = time.monotonic()
    state = _core.raiser(0.0)
    while state == 1 and (waited := time.monotonic() - begin) < longest:
        time.sleep(0.01)
        state = _core.raiser(waited)
    if state == 2:
        time.sleep(_SEEN)


failed = False
"""An exception that nobody has caught ends this process."""

threads: list[threading.Thread] = []
"""Isthmus' own Python threads. Each ends when the last communicator is gone.

A thread that came back from C++ after the interpreter's end would end the process.
"""


def join_threads() -> None:
    """Waits for each of `threads`, 5 s at most. Called when all communicators are gone, before the interpreter ends."""
    for thread in threads:
        thread.join(_JOIN)


def install() -> None:
    """Tells the other ranks of an exception that nobody catches in the main thread, before the exception is printed.

    Two kinds of exceptions are not told, because the program may go on: those in an interactive interpreter, and those of
    other threads. At the interpreter's end linger() runs.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global failed
        try:
            if not (hasattr(sys, "ps1") or sys.flags.interactive):
                failed = True
                _core.raised(one_line(kind, error))
        finally:
            before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(_core.raised_settle)  # last: where Ctrl-C ends a program, Python ends it by the signal, without exit()
    atexit.register(linger)
