"""One thread of another process, held for a while: it gets no processor, while the rest of the process goes on."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17  # of ptrace(2)
EPOLL_WAIT = ("232", "281", "22")  # epoll_wait and epoll_pwait of x86-64, epoll_pwait of AArch64
ALL_THREADS = 0x40000000  # __WALL of waitpid(2)

_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long


def thread_named(pid: int, name: str) -> int:
    """The one thread of process `pid` that has this name."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # one that ends meanwhile
            if (task / "comm").read_text() == f"{name}\n":
                found.append(int(task.name))
    assert len(found) == 1, f"threads of {pid} that are named {name}: {found}"
    return found[0]


@contextmanager
def held(pid: int, name: str) -> Iterator[None]:
    """Holds that thread while it sleeps in epoll_wait, so that it holds no lock.

    The process must be a descendant of this one; this thread holds it, and lets go of it.
    """
    thread = thread_named(pid, name)
    while True:
        if _ptrace(SEIZE, thread, None, None) != 0:
            pytest.skip(f"a thread cannot be held here: {os.strerror(ctypes.get_errno())}")
        assert _ptrace(INTERRUPT, thread, None, None) == 0, os.strerror(ctypes.get_errno())
        os.waitpid(thread, ALL_THREADS)
        if Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()[0] in EPOLL_WAIT:
            break
        _ptrace(DETACH, thread, None, None)
        time.sleep(0.001)
    try:
        yield
    finally:
        _ptrace(DETACH, thread, None, None)
