"""A rank is killed: the others learn of it, and not at their deadline, and are told which one it was."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from events import once_inside
from jobs import Me, Zygote, all_say, job, names_in_dev_shm
from patience import SOON, patient


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
    assert again["kind"] == first["kind"] and again["took"] < SOON, again  # at once, not at its deadline
    return first


def check(reports: list[dict[str, Any]], victim: int) -> None:
    for report in reports:
        assert report["kind"] == "PeerLostError", report
        assert f"rank {victim}" in report["text"], report


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("count", [4, 1 << 20], ids=["small", "large"])
def test_the_others_fail_and_name_it(zygote: Zygote, shape: str, victim: int, count: int) -> None:
    with job(zygote, 4, lambda me: loop(me, count), shape) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.1)
        ranks[victim].signal(signal.SIGKILL)
        check([rank.result() for rank in ranks if rank.rank != victim], victim)


def test_during_an_operation_the_text_says_which(zygote: Zygote) -> None:
    """The type and the count are the caller's, also where it cannot begin yet: the victim has not ended the one before."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        if me.rank == 1:
            me.hear()  # until it is killed
        comm.broadcast(np.ones(100_000), 0)  # its root waits for nobody
        once_inside(comm, lambda: me.send("inside"))
        return me.caught(lambda: comm.all_reduce(np.ones(4_000_000, np.float32)))

    with job(zygote, 2, body) as ranks:
        all_say(ranks, "ready")
        ranks[0].expect("inside")
        ranks[1].signal(signal.SIGKILL)
        report = ranks[0].result()
        check([report], 1)
        text = report["text"]
        assert text.startswith("#2 all_reduce (float32, sum, 4000000 elements) on rank 0 of "), text
        assert text.count("all_reduce") == 1, text


def test_its_sleeping_children_do_not_keep_it_alive(zygote: Zygote, shape: str) -> None:
    """DataLoader's workers hold copies of every descriptor of their parent."""

    def body(me: Me) -> Any:
        comm = me.init()
        children = []
        for _ in range(2 if me.rank == 1 else 0):
            children.append(os.fork())
            if children[-1] == 0:
                time.sleep(patient(120))
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
            ranks[1].signal(signal.SIGKILL)
            check([ranks[0].result(), ranks[2].result()], 1)
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
            me.hear()
        return me.caught(lambda: comm.all_reduce(np.ones(10)))

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.3)
        ranks[2].signal(signal.SIGKILL)
        check([ranks[0].result(), ranks[1].result()], 2)


def test_a_receive_from_the_killed_rank_fails_and_so_does_one_from_anybody(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        if me.rank == 1:
            me.hear()
        return me.caught(lambda: comm.recv(np.empty(1 << 20), 1 if me.rank == 0 else isthmus.ANY_SOURCE, 7))

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.2)
        ranks[1].signal(signal.SIGKILL)
        check([ranks[0].result(), ranks[2].result()], 1)


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
            me.hear()
        begun = begin()
        me.send("begun")
        me.hear()
        begun.wait()
        assert work != "all_reduce" or (x == 3).all()
        assert work != "all_gather" or (gathered == np.repeat([1.0, 2.0], 100)).all()
        return me.caught(lambda: comm.all_reduce(x))

    with job(zygote, 2, body) as ranks:
        ranks[0].expect("begun")
        time.sleep(0.1)
        ranks[0].signal(signal.SIGSTOP)
        ranks[1].tell("call")
        while not ranks[1].channel.poll(1):  # what rank 0 gives was not written yet
            ranks[0].signal(signal.SIGCONT)
            time.sleep(0.1)
            ranks[0].signal(signal.SIGSTOP)
        ranks[1].expect("ended")
        ranks[1].signal(signal.SIGKILL)
        ranks[1].wait()
        ranks[0].signal(signal.SIGCONT)
        ranks[0].tell("look")
        check([ranks[0].result()], 1)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_during_init_while_a_rank_is_late(zygote: Zygote, shape: str, victim: int) -> None:
    """The victim dies inside init; the last rank comes after that. Nobody waits longer than init's deadline.

    The root is there for late ranks for a second. Who comes after that finds nobody.
    """

    def body(me: Me) -> Any:
        if me.rank == 3:
            me.hear()
        me.send("ready")
        return me.caught(lambda: me.init(timeout=patient(2)))

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
            assert failure["took"] < patient(2) + SOON, failure
            assert failure["kind"] in ("PeerLostError", "TimeoutError"), failure
            told = [victim] if rank.rank == 0 else [victim, 0]
            assert any(f"rank {one}" in failure["text"] for one in told), failure


@pytest.mark.product(8)
@pytest.mark.parametrize("ms", range(0, 36, 3))
def test_at_any_moment_of_init(zygote: Zygote, shape: str, ms: int) -> None:
    def body(me: Me) -> Any:
        me.send("ready")
        try:
            comm = me.init(timeout=patient(3))  # it passes where the victim has not come
            comm.barrier()
            comm.barrier()
        except isthmus.Error as error:
            return type(error).__name__, str(error)
        return "finished", ""

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        time.sleep(ms / 1000)
        ranks[1].signal(signal.SIGKILL)
        for rank in (ranks[0], ranks[2]):
            kind, text = rank.result()
            assert kind in ("PeerLostError", "TimeoutError", "finished"), (kind, text)
            # Who gives up first may be rank 0, and rank 2 then finds nobody.
            assert kind == "finished" or re.search(r"ranks? [\d, ]*\b1\b", text) or rank.rank == 2 and "rank 0" in text, text


def test_during_an_abort(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        if me.rank == 0:
            me.hear()
            comm.abort("enough")
        if me.rank == 1:
            me.hear()
        return me.caught(lambda: comm.all_reduce(np.ones(1 << 18)))

    for _ in range(5):
        with job(zygote, 4, body, shape) as ranks:
            all_say(ranks, "ready")
            ranks[0].tell("abort")
            ranks[1].signal(signal.SIGKILL)
            for rank in (ranks[0], ranks[2], ranks[3]):
                failure = rank.result()
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
            rank.wait()
    assert not names_in_dev_shm(ranks)
