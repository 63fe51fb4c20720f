"""Sends: what is on its way when something happens to the receiver, and what nobody receives yet."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import isthmus
from jobs import RARELY, Me, Zygote, all_say, job, results
from patience import SOON, patient

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
    """The receiver has taken a part of it. What was not delivered is not reported as sent.

    Where the receiver was held up before its end until all was delivered, it is done once more.
    """

    def body(me: Me) -> Any:
        comm = me.init()
        x = np.full(512 << 20, me.rank, np.uint8)
        comm.barrier()
        if me.rank == 1:
            _pending = comm.recv(x, 0, 5, async_op=True)
            while x[0] == 1:  # until the first byte comes
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return me.caught(lambda: (comm.send(x, 1, 5), comm.barrier()))

    for _ in range(5):
        with job(zygote, 2, body, shape) as ranks:
            failure = ranks[0].result()
        assert failure["kind"] == "PeerLostError" and "rank 1" in failure["text"], failure
        if "barrier" not in failure["text"]:
            return
    pytest.fail("the receiver was held up every time")


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

    with job(zygote, 3, body, "tcp", settings=RARELY) as ranks:
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


@pytest.mark.parametrize("source", [0, isthmus.ANY_SOURCE], ids=["of it", "of any"])
@pytest.mark.parametrize("streams", [1, 3])
def test_a_receive_to_which_nothing_comes_ends_soon_after_its_sender_left_whatever_has_come_before(
    zygote: Zygote, shape: str, streams: int, source: int
) -> None:
    """Both sides count alike, however a message goes: else it would wait for its deadline."""
    lengths = [0, 1, 1000, 16 << 10, (16 << 10) + 1, 1 << 20, 40 << 20, 0]

    def body(me: Me) -> Any:
        comm = me.init(timeout=20 * SOON, settings={"TCP_STREAMS": str(streams)})
        data = [np.full(n, 7 if me.rank == 0 else 0, np.uint8) for n in lengths]
        if me.rank == 0:
            for work in [comm.send(x, 1, n, async_op=True) for n, x in enumerate(data)]:
                work.wait()
            comm.destroy()
            me.hear()
            return None
        for late in (False, True):  # half of them come before their receive is called
            for n in range(len(data)):
                if (n % 2 == 1) == late:
                    comm.recv(data[n], source, n)
        assert all((x == 7).all() for x in data)
        return me.caught(lambda: comm.recv(np.empty(8, np.uint8), source))

    with job(zygote, 2, body, shape) as ranks:
        failure = ranks[1].result()
        assert failure["kind"] == "PeerLostError" and failure["took"] < SOON, failure
        assert "destroyed" in failure["text"], failure
        ranks[0].tell("end")
        ranks[0].result()
