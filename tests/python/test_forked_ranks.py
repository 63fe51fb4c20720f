"""The ranks of these tests, which are forked from one process that has Isthmus loaded, end as programs do."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import isthmus
from ranks import RankError, run_processes


def test_a_rank_ends_after_its_threads_with_its_exit_functions_and_with_those_of_libraries(tmp_path: Path) -> None:
    def body(comm: isthmus.Comm) -> None:
        places = [f"{tmp_path}/{comm.rank}-{what}" for what in ("thread", "exit")]

        def last() -> None:
            threading.main_thread().join()  # until the rank's function has come to its end
            Path(places[0]).touch()

        threading.Thread(target=last).start()
        atexit.register(lambda: Path(places[1]).write_text(str(Path(places[0]).exists())))
        # What a library has for its end: the C library's own, of a stream that nobody flushes.
        c = ctypes.CDLL(None)
        c.fopen.restype = ctypes.c_void_p
        stream = ctypes.c_void_p(c.fopen(f"{tmp_path}/{comm.rank}-library".encode(), b"w"))
        c.fputs(b"said", stream)

    run_processes(2, body)
    for rank in range(2):
        assert (tmp_path / f"{rank}-exit").read_text() == "True", "the thread comes before the exit functions"
        assert (tmp_path / f"{rank}-library").read_text() == "said"


def test_what_a_rank_has_left_in_a_circle_is_collected_before_it_ends(tmp_path: Path) -> None:
    def body(comm: isthmus.Comm) -> None:
        class Circle:
            me: Any

            def __del__(self) -> None:
                (tmp_path / str(comm.rank)).touch()

        circle = Circle()
        circle.me = circle

    run_processes(2, body)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_what_a_rank_writes_is_there_when_it_has_ended() -> None:
    def body(comm: isthmus.Comm) -> None:
        sys.stdout.write("written by one")  # into a pipe, so that it is kept until the end
        if comm.rank == 1:
            raise ValueError("raised by the other")

    with pytest.raises(RankError, match=r"(?s)rank 1 of 2: exit status 1.*written by one.*raised by the other"):
        run_processes(2, body)


def test_a_rank_that_is_killed_in_its_exit_functions_has_that_status() -> None:
    def body(comm: isthmus.Comm) -> None:
        if comm.rank == 0:
            atexit.register(lambda: os.kill(os.getpid(), signal.SIGKILL))

    run_processes(2, body, expect={0: -9})
