"""A rank is killed: the others learn of it within two seconds and are told which one it was."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from jobs import Me, Zygote, all_say, job, names_in_dev_shm

LIMIT = 2.0


def loop(me: Me, count: int) -> dict[str, Any]:
    """Collectives without end; how the first failure looked, and the operation after it."""
    comm = me.init()
    x = np.ones(count, np.float32)
    gathered = np.empty(count * me.world, np.float32)
    me.send("ready")

    def forever() -> None:
        while True:
            comm.all_reduce(x, "max")
            comm.all_gather(x, gathered)
            comm.broadcast(x, 0)
            comm.barrier()

    first = me.caught(forever)
    again = me.caught(comm.barrier)
    assert again["kind"] == first["kind"] and again["took"] < 5, again  # at once, not at its deadline
    return first


def check(reports: list[dict[str, Any]], victim: int, since: float) -> None:
    for report in reports:
        assert report["kind"] == "PeerLostError", report
        assert f"rank {victim}" in report["text"], report
        assert report["at"] - since < LIMIT, report


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("count", [4, 1 << 20], ids=["small", "large"])
def test_the_others_fail_and_name_it(zygote: Zygote, shape: str, victim: int, count: int) -> None:
    with job(zygote, 4, lambda me: loop(me, count), shape) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.1)
        since = ranks[victim].signal(signal.SIGKILL)
        check([rank.result() for rank in ranks if rank.rank != victim], victim, since)


def test_during_an_operation_the_text_says_which(zygote: Zygote) -> None:
    """The type and the count are the caller's, also where it cannot begin yet: the victim has not ended the one before."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        if me.rank == 1:
            time.sleep(60)
        comm.broadcast(np.ones(100_000), 0)  # its root waits for nobody
        me.send("entered")
        return me.caught(lambda: comm.all_reduce(np.ones(4_000_000, np.float32)))

    with job(zygote, 2, body) as ranks:
        all_say(ranks, "ready")
        ranks[0].expect("entered")
        time.sleep(0.3)
        since = ranks[1].signal(signal.SIGKILL)
        report = ranks[0].result()
        check([report], 1, since)
        assert "this rank was in #2 all_reduce (float32, sum, 4000000 elements)" in report["text"], report


def test_its_sleeping_children_do_not_keep_it_alive(zygote: Zygote, shape: str) -> None:
    """DataLoader's workers hold copies of every descriptor of their parent."""

    def body(me: Me) -> Any:
        comm = me.init()
        children = []
        for _ in range(2 if me.rank == 1 else 0):
            children.append(os.fork())
            if children[-1] == 0:
                time.sleep(20)
                os._exit(0)
        me.send("ready", children)

        def forever() -> None:
            while True:
                comm.barrier()
                comm.all_reduce(np.ones(1000, np.float32), "max")

        return me.caught(forever)

    with job(zygote, 3, body, shape) as ranks:
        children = all_say(ranks, "ready")[1]
        try:
            time.sleep(0.1)
            since = ranks[1].signal(signal.SIGKILL)
            check([ranks[0].result(), ranks[2].result()], 1, since)
            for child in children:
                os.kill(child, 0)  # they did live on
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)


def test_a_waiter_that_was_asleep_learns_of_it(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        if me.rank == 2:
            time.sleep(60)
        return me.caught(lambda: comm.all_reduce(np.ones(10)))

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.5)
        since = ranks[2].signal(signal.SIGKILL)
        check([ranks[0].result(), ranks[1].result()], 2, since)


def test_a_receive_from_the_killed_rank_fails_and_so_does_one_from_anybody(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        if me.rank == 1:
            time.sleep(60)
        return me.caught(lambda: comm.recv(np.empty(1 << 20), 1 if me.rank == 0 else isthmus.ANY_SOURCE, 7))

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.2)
        since = ranks[1].signal(signal.SIGKILL)
        check([ranks[0].result(), ranks[2].result()], 1, since)


@pytest.mark.parametrize("work", ["all_reduce", "all_gather", "barrier"])
def test_what_it_had_given_before_counts(zygote: Zygote, work: str) -> None:
    """It has ended the operation and is gone before another rank so much as looks: that one has its result all the same."""

    def body(me: Me) -> Any:
        comm = me.init()
        x, gathered = np.full(100, me.rank + 1.0), np.zeros(200)

        def begin() -> isthmus.Work:
            if work == "all_reduce":
                return comm.all_reduce(x, async_op=True)
            return comm.all_gather(x, gathered, async_op=True) if work == "all_gather" else comm.barrier(async_op=True)

        if me.rank == 1:
            me.hear()
            begin().wait()
            me.send("ended")
            time.sleep(60)
        begun = begin()
        me.send("begun")
        me.hear()
        begun.wait()
        assert work != "all_reduce" or (x == 3).all()
        assert work != "all_gather" or (gathered == np.repeat([1.0, 2.0], 100)).all()
        return me.caught(lambda: comm.all_reduce(x))

    with job(zygote, 2, body) as ranks:
        ranks[0].expect("begun")
        time.sleep(0.1)  # the cells are written
        ranks[0].signal(signal.SIGSTOP)
        ranks[1].tell("call")
        ranks[1].expect("ended")
        ranks[1].signal(signal.SIGKILL)
        ranks[1].wait(10)
        since = ranks[0].signal(signal.SIGCONT)
        ranks[0].tell("look")
        check([ranks[0].result()], 1, since)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_during_init_while_a_rank_is_late(zygote: Zygote, shape: str, victim: int) -> None:
    """The victim dies inside init; the last rank comes after that. Nobody waits longer than init's deadline."""

    def body(me: Me) -> Any:
        if me.rank == 3:
            me.hear()
        me.send("ready")
        return me.caught(lambda: me.init(timeout=2))

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks[:3], "ready")
        time.sleep(0.3)
        ranks[victim].signal(signal.SIGKILL)
        ranks[3].tell("go")
        ranks[3].expect("ready")
        for rank in ranks:
            if rank.rank == victim:
                continue
            failure = rank.result()
            assert failure["took"] < 8, failure  # init's deadline of 2 s, and what it takes to say who is missing
            assert failure["kind"] in ("PeerLostError", "TimeoutError"), failure
            assert f"rank {victim}" in failure["text"], failure


def test_at_any_moment_of_init(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        me.send("ready")
        begin = time.monotonic()
        try:
            comm = me.init(timeout=2)
            comm.barrier(timeout=2)
            comm.barrier(timeout=2)
        except isthmus.Error as error:
            return type(error).__name__, str(error), time.monotonic() - begin
        return "finished", "", time.monotonic() - begin

    for step in range(12):
        with job(zygote, 3, body, shape) as ranks:
            all_say(ranks, "ready")
            time.sleep(step * 0.003)
            ranks[1].signal(signal.SIGKILL)
            for rank in (ranks[0], ranks[2]):
                kind, text, took = rank.result()
                assert took < 3.5 and kind in ("PeerLostError", "TimeoutError", "finished"), (kind, text, took)
                assert kind == "finished" or "rank 1" in text, (kind, text)


def test_during_an_abort(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        if me.rank == 0:
            me.hear()
            comm.abort("enough")
        if me.rank == 1:
            time.sleep(60)
        return me.caught(lambda: comm.all_reduce(np.ones(1 << 18)))

    for _ in range(5):
        with job(zygote, 4, body, shape) as ranks:
            all_say(ranks, "ready")
            ranks[0].tell("abort")
            since = ranks[1].signal(signal.SIGKILL)
            for rank in (ranks[0], ranks[2], ranks[3]):
                failure = rank.result()
                assert failure["at"] - since < LIMIT, failure
                assert failure["kind"] in ("AbortedError", "PeerLostError"), failure
                assert "enough" in failure["text"] or "rank 1" in failure["text"], failure


def test_nothing_is_left_in_dev_shm(zygote: Zygote) -> None:
    with job(zygote, 2, lambda me: loop(me, 1000)) as ranks:
        all_say(ranks, "ready")
        assert not names_in_dev_shm(ranks)  # shared memory has no name even while it is used
        for rank in ranks:
            assert "/dev/shm/" not in Path(f"/proc/{rank.pid}/maps").read_text()
        for rank in ranks:
            rank.signal(signal.SIGKILL)
        for rank in ranks:
            rank.wait(10)
    assert not names_in_dev_shm(ranks)
