"""The processes below others: their children, those of these, and so on. /proc says so; where it cannot be read, none.

A process whose parent has ended is the child of another one, and below nobody here.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

_WALKS = 50  # the most through /proc
_PAUSE = 0.005  # seconds between two looks at who has ended


@dataclass(frozen=True)
class _Seen:
    """What /proc/PID/stat says."""

    parent: int
    began: int  # in ticks since the machine's start: another process that has the number later began later
    ended: bool


def _seen(pid: int | str) -> _Seen | None:
    """None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()  # behind the name, which may hold anything
    except OSError:
        return None
    # A program's first thread may end before others: then the process is a zombie that has threads, and goes on.
    return _Seen(int(words[1]), int(words[19]), words[0] in (b"Z", b"X") and int(words[17]) <= 1)


def _below(roots: Collection[int]) -> dict[int, int]:
    """Their numbers and when they began, parents before their children."""
    try:
        names = [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return {}
    children: dict[int, list[tuple[int, int]]] = {}
    for name in names:
        if one := _seen(name):
            children.setdefault(one.parent, []).append((int(name), one.began))
    found: dict[int, int] = {}
    parents = list(roots)
    for parent in parents:
        for pid, began in children.get(parent, ()):
            if pid not in found:
                found[pid] = began
                parents.append(pid)
    return found


class Below:
    """The processes below some children of this process, of whose end nobody has been told yet. One thread at a time.

    stop() and then kill(), also where stop() was interrupted: else what is stopped stays so.
    """

    def __init__(self, roots: Collection[int]) -> None:
        self._roots = roots
        self._began: dict[int, int] = {}

    def stop(self) -> None:
        """Stops `roots` and all below, so that none of them can start another one, or hear that its child was killed.

        Where they start so many processes that 50 walks through /proc do not find the last, the rest is not found.
        """
        for pid in self._roots:
            with suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
        for _ in range(_WALKS if self._roots else 0):
            new = {pid: began for pid, began in _below(self._roots).items() if self._began.get(pid) != began}
            if not new:
                return
            self._began.update(new)
            self._signal(new, signal.SIGSTOP)

    def kill(self) -> None:
        """Kills what is below `roots`, and not these: children before their parents, and all before the roots.

        The kernel lets the stopped processes of a group go on where the last parent of another group of theirs has ended.
        """
        self._signal(dict(reversed(self._began.items())), signal.SIGKILL)

    def wait(self, seconds: float) -> None:
        """Waits until those that were killed have ended, so many seconds at most."""
        until = time.monotonic() + seconds
        while any(self._lives(pid, began) for pid, began in self._began.items()) and time.monotonic() < until:
            time.sleep(_PAUSE)

    def _lives(self, pid: int, began: int) -> bool:
        one = _seen(pid)
        return one is not None and one.began == began and not one.ended

    def _signal(self, processes: dict[int, int], number: int) -> None:
        for pid, began in processes.items():
            if self._lives(pid, began):
                with suppress(OSError):  # it has just ended, or is another user's
                    os.kill(pid, number)
