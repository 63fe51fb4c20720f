"""Asynchronous operations."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import isthmus
from patience import SOON

Run = Callable[..., list[Any]]


def test_wait_gives_what_the_blocking_call_would_have_returned(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        x, out = np.ones(4), np.zeros(4)
        work = comm.all_reduce(x, out=out, async_op=True)
        assert work.wait() is out and work.result is out and out.tolist() == [2.0] * 4
        assert work.done and work.exception is None and work.source is None
        assert work.duration is not None and work.duration >= 0
        assert comm.barrier(async_op=True).wait() is None
        assert work.wait(timeout=1) is out  # once more

    ranks(2, body)


def test_an_operation_that_fails_as_a_wait_runs_out_says_why_it_failed(ranks: Run) -> None:
    """And not that it still runs, as the wait would have said."""

    def body(comm: isthmus.Comm) -> None:
        for turn in range(200):
            other = comm.split(0)
            assert other is not None
            if comm.rank == 0:
                work = other.all_reduce(np.ones(4), async_op=True)
                comm.barrier()
                while not work.done:
                    with suppress(isthmus.Error):
                        work.wait(timeout=0.00002)
                assert "still running" not in str(work.exception), turn
                other.destroy()
            else:
                comm.barrier()
                other.abort("the end")
                other.destroy()

    ranks(2, body)


def test_works_may_be_waited_for_in_any_order(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[float]:
        arrays = [np.full(10 ** (i % 6), float(i)) for i in range(30)]
        works = [comm.all_reduce(x, async_op=True) for x in arrays]
        assert [work.sequence for work in works] == sorted({work.sequence for work in works})
        for work in reversed(works):
            work.wait()
        return [float(x[-1]) for x in arrays]

    assert ranks(2, body) == [[2.0 * i for i in range(30)]] * 2


def test_a_work_that_is_not_done_says_so(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        x = np.ones(4)
        if comm.rank == 1:  # comes when the other rank has looked
            comm.recv(np.empty(1), 0)
        work = comm.all_reduce(x, async_op=True)
        if comm.rank == 0:
            assert not work.done and work.exception is None and work.duration is None
            with pytest.raises(isthmus.ArgumentError, match="still running"):
                _ = work.result
            with pytest.raises(isthmus.TimeoutError):
                work.wait(timeout=0.05)
            assert not work.done  # the wait ended, the operation did not
            comm.send(np.ones(1), 1)
        work.wait()
        assert x.tolist() == [2.0] * 4

    ranks(2, body)


def test_polling_done_is_enough_to_finish(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        x = np.ones(100_000, np.float32)
        work = comm.all_reduce(x, async_op=True)
        deadline = time.monotonic() + SOON
        while not work.done:
            assert time.monotonic() < deadline
        assert (x == 2).all()

    ranks(2, body)


def test_a_work_keeps_its_arrays_alive_also_when_nobody_keeps_the_work(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> float:
        for i in range(20):
            comm.all_reduce(np.full(50_000, float(i)), async_op=True)  # array and work are dropped at once
            gc.collect()
        junk = [np.zeros(50_000) for _ in range(40)]  # would land in freed memory
        last = np.ones(1)
        comm.all_reduce(last)
        comm.barrier()
        return float(last[0]) + sum(float(j.sum()) for j in junk)

    assert ranks(2, body) == [2.0, 2.0]


def test_an_array_in_flight_is_released_when_the_operation_is_done() -> None:
    with isthmus.init(0, 1, unique_id=isthmus.unique_id()) as comm:
        x = np.ones(8)
        before = sys.getrefcount(x)
        work = comm.all_reduce(x, async_op=True)
        work.wait()
        del work
        for _ in range(100):
            comm.all_reduce(x)
        assert sys.getrefcount(x) == before


def test_the_end_of_a_communicator_releases_the_arrays_of_works_that_nobody_has(threads: Run) -> None:
    """Rank 0's receive is in flight when its work is dropped, and ends with the communicator."""

    def body(comm: isthmus.Comm, over: threading.Barrier) -> None:
        if comm.rank == 0:
            x = np.ones(4)
            before = sys.getrefcount(x)
            comm.recv(x, 1, tag=3, async_op=True)  # the work is dropped at once
            assert sys.getrefcount(x) > before
            comm.abort("enough")
            comm.destroy()
            assert sys.getrefcount(x) == before
        over.wait(2 * SOON)

    threads(2, body, threading.Barrier(2))


def test_a_failed_work_raises_at_every_question(threads: Run) -> None:
    def body(comm: isthmus.Comm, over: threading.Barrier) -> None:
        if comm.rank == 0:
            work = comm.recv(np.ones(4), 1, tag=3, async_op=True)
            comm.abort("enough")
            with pytest.raises(isthmus.AbortedError, match="enough"):
                work.wait()
            assert work.done and isinstance(work.exception, isthmus.AbortedError)
            with pytest.raises(isthmus.AbortedError, match="enough"):
                _ = work.result
        over.wait(2 * SOON)

    threads(2, body, threading.Barrier(2))


def test_an_operation_can_be_waited_for_after_the_communicator_is_destroyed(threads: Run) -> None:
    def body(comm: isthmus.Comm) -> float:
        x = np.ones(1000)
        work = comm.all_reduce(x, async_op=True)
        comm.destroy()  # waits for what is pending
        work.wait()
        return float(x[0])

    assert threads(2, body) == [2.0, 2.0]


def test_others_are_busy_where_a_rank_of_another_communicator_is_and_not_where_one_of_this_is(threads: Run) -> None:
    """The two ranks share a process, and so see each other's operations. What gives way must know whose they are."""
    pending, seen = threading.Event(), threading.Event()

    def body(comm: isthmus.Comm) -> tuple[bool, bool] | None:
        other = comm.split(0)
        assert other is not None
        x = np.ones(4)
        if comm.rank == 0:
            work = comm.all_reduce(x, async_op=True)  # rank 1 comes to it when it has looked
            pending.set()
            assert seen.wait(SOON)
            work.wait()
            return None
        assert pending.wait(SOON)
        looks = comm._others_busy(), other._others_busy()
        seen.set()
        comm.all_reduce(x)
        return looks

    assert threads(2, body) == [None, (False, True)]
