"""Sends: what is on its way when something happens to the receiver, and what nobody receives yet."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

from jobs import Me, Zygote, all_say, job, results
from patience import patient

SHORT = 0.5  # the deadline of a send that begins when its receiver has been stopped


def test_sends_to_a_stopped_rank_end_at_their_deadline(zygote: Zygote, shape: str) -> None:
    """They leave at once until the link is full; then one of them waits, and its deadline counts as any other's."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        me.hear()
        comm.set_timeout(SHORT)

        def forever() -> None:
            while True:
                comm.send(np.ones(1000, np.uint8), 1, 5)

        return me.caught(forever)

    with job(zygote, 2, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGSTOP)
        ranks[0].tell("go")
        failure = ranks[0].result()
        assert failure["kind"] == "TimeoutError" and "rank 1" in failure["text"], failure
        assert "does not answer" in failure["text"] and "send to rank 1" in failure["text"], failure


def test_a_large_send_to_a_rank_that_stops_halfway_ends_at_its_deadline(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x = np.ones(64 << 20, np.uint8)
        me.send("ready")
        if me.rank == 1:
            comm.recv(x[: 32 << 20], 0, 5)
            work = comm.recv(x, 0, 5, async_op=True)  # grants the next one
            me.send("granted")
            work.wait()
            return None
        comm.send(x[: 32 << 20], 1, 5)
        me.hear()
        return me.caught(lambda: comm.send(x, 1, 5, timeout=SHORT))

    with job(zygote, 2, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].expect("granted")
        ranks[1].signal(signal.SIGSTOP)
        ranks[0].tell("go")
        failure = ranks[0].result()
        assert failure["kind"] == "TimeoutError" and "rank 1" in failure["text"], failure


def test_a_send_to_a_rank_that_dies_does_not_succeed(zygote: Zygote, shape: str) -> None:
    """The receiver has taken a part of it. What was not delivered is not reported as sent."""

    def body(me: Me) -> Any:
        comm = me.init()
        x = np.full(512 << 20, me.rank, np.uint8)
        comm.barrier()
        if me.rank == 1:
            _pending = comm.recv(x, 0, 5, async_op=True)
            while x[0] == 1:  # until the first byte comes
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return me.caught(lambda: comm.send(x, 1, 5))

    with job(zygote, 2, body, shape) as ranks:
        failure = ranks[0].result()
        assert failure["kind"] == "PeerLostError" and "rank 1" in failure["text"], failure


def test_a_broadcast_to_a_stopped_rank_names_it_and_not_one_that_waits(zygote: Zygote) -> None:
    """The root has handed everything to the links and waits for them alone."""

    def body(me: Me) -> Any:
        comm = me.init()
        x = np.ones(12 << 20, np.uint8)
        comm.broadcast(x, 0)
        comm.set_timeout(patient(2))
        me.send("ready")
        me.hear()

        def both() -> None:
            comm.broadcast(x, 0)
            comm.barrier()

        return me.caught(both)

    with job(zygote, 3, body, "tcp") as ranks:
        all_say(ranks, "ready")
        ranks[2].signal(signal.SIGSTOP)
        for rank in ranks[:2]:
            rank.tell("go")
        for failure in [rank.result() for rank in ranks[:2]]:
            assert failure["kind"] == "TimeoutError" and "rank 2" in failure["text"], failure
            assert "does not answer" in failure["text"], failure


def test_messages_that_nobody_receives_yet_do_not_hold_up_a_collective(zygote: Zygote, shape: str) -> None:
    """More of them than the credit of a peer, small enough to be sent ahead."""

    def body(me: Me) -> bool:
        comm = me.init()
        count, size = 1500, 16 * 1024
        peer = 1 - me.rank
        works = [comm.send(np.full(size, i % 251, np.uint8), peer, 3, async_op=True) for i in range(count)]
        comm.barrier()
        total = comm.all_reduce(np.ones(100_000))
        right = bool((total == 2).all())
        for i in range(count):
            x = np.zeros(size, np.uint8)
            comm.recv(x, peer, 3)
            right = right and bool((x == i % 251).all())
        for work in works:
            work.wait()
        return right

    with job(zygote, 2, body, shape) as ranks:
        assert results(ranks) == [True, True]
