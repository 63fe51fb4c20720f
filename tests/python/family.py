"""Forked children of a test's process, and communicators of their own. Imported by ranks, and by programs of tests."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import isthmus
from patience import SOON


def fork(body: Callable[[], Any]) -> int:
    """A child that runs body() and ends at once; with status 1, and the traceback on stderr, where that raised."""
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        body()
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def reap(children: Iterable[int]) -> None:
    """Waits for their ends, which must be good ones. Those that hang are killed."""
    deadline = time.monotonic() + SOON
    waiting, bad = list(children), {}
    while waiting:
        for child in list(waiting):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                continue
            waiting.remove(child)
            if status:
                bad[child] = f"exit status {os.waitstatus_to_exitcode(status)}"
        if waiting and time.monotonic() > deadline:
            for child in waiting:
                os.kill(child, 9)
                os.waitpid(child, 0)
                bad[child] = f"did not end within {SOON} s"
            break
        time.sleep(0.002)
    assert not bad, bad


def siblings(count: int, body: Callable[[isthmus.Comm], Any], **options: Any) -> list[int]:
    """Children that run body(comm), each a rank of a communicator among them. The first of them makes its id.

    `options` are more words for init.
    """
    read, write = os.pipe()

    def rank(number: int) -> None:
        size = len(unique_id := isthmus.unique_id())
        if number == 0:
            os.write(write, unique_id * (count - 1))
        else:
            unique_id = os.read(read, size)
        with isthmus.init(number, count, unique_id=unique_id, **options) as comm:
            body(comm)

    children = [fork(lambda number=number: rank(number)) for number in range(count)]  # type: ignore[misc]
    os.close(read)
    os.close(write)
    return children
