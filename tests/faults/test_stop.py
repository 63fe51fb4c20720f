"""A rank is stopped (SIGSTOP): at the deadline everybody fails, and the text names it and not a neighbour that waits."""

from __future__ import annotations

import re
import signal
import time
from typing import Any

import numpy as np
import pytest

from jobs import RARELY, Me, Zygote, all_say, job
from patience import patient

DEADLINE = patient(4)  # where every operation has it, also those before the stop
SHORT = 0.3  # of one operation, to which all others have come before it begins


def blamed(text: str) -> int:
    """The rank that the sentence after "did not finish" begins with."""
    found = re.search(r"did not finish within [^:]*: (?:rank |\D*?\brank )(\d+)", text)
    assert found, text
    return int(found[1])


@pytest.mark.product(8)
@pytest.mark.parametrize("stopped", [0, 2])
@pytest.mark.parametrize("count", [4, 8 << 20], ids=["between-small-ones", "inside-an-exchange-of-32-MiB"])
def test_collectives_name_the_stopped_rank(zygote: Zygote, shape: str, stopped: int, count: int) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x = np.zeros(count, np.float32)
        me.send("ready")

        def forever() -> None:
            while True:
                comm.all_reduce(x, timeout=DEADLINE)

        return me.caught(forever)

    with job(zygote, 4, body, shape, settings=RARELY) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.15)
        ranks[stopped].signal(signal.SIGSTOP)
        for rank in ranks:
            if rank.rank != stopped:
                failure = rank.result()
                assert failure["kind"] == "TimeoutError" and blamed(failure["text"]) == stopped, failure
        ranks[stopped].signal(signal.SIGCONT)
        late = ranks[stopped].result()  # it wakes up, and is told
        assert late["kind"] in ("TimeoutError", "PeerLostError", "AbortedError"), late


def test_a_chain_of_receives_names_its_end(zygote: Zygote, shape: str) -> None:
    """Rank 0 waits for 1, 1 for 2, 2 for 3, and 3 is stopped. Rank 0 has the shortest deadline: it must not blame rank 1."""

    def body(me: Me) -> Any:
        comm = me.init()
        x = np.zeros(100)
        comm.barrier()
        me.send("ready")
        me.hear()
        work = comm.recv(x, me.rank + 1, timeout=SHORT if me.rank == 0 else None, async_op=True)
        me.send("called")
        return me.caught(work.wait)

    with job(zygote, 4, body, shape, settings=RARELY) as ranks:
        all_say(ranks, "ready")
        ranks[3].signal(signal.SIGSTOP)
        for rank in ranks[2::-1]:
            rank.tell("go")
            rank.expect("called")
        failure = ranks[0].result()
        assert failure["kind"] == "TimeoutError" and blamed(failure["text"]) == 3, failure


def test_a_rank_that_is_late_with_its_answer_is_not_blamed(zygote: Zygote, shape: str) -> None:
    """Rank 0 waits for 1, and 1 for 2, which does nothing. When rank 0 asks, rank 1 is too late for an answer at once, but
    not silent for several heartbeats, which are rare here. Rank 0 waits for it for 2.5 s: where this process was held
    up for as long, it is done once more."""

    def body(me: Me) -> Any:
        comm = me.init()
        x = np.zeros(100)
        comm.barrier()
        if me.rank == 1:
            work = comm.recv(x, 2, async_op=True)
            me.send("ready")
            return me.caught(work.wait)
        me.send("ready")
        me.hear()
        return me.caught(lambda: comm.recv(x, 1, timeout=SHORT))

    for _ in range(5):
        with job(zygote, 3, body, shape, settings=RARELY) as ranks:
            all_say(ranks, "ready")
            ranks[1].signal(signal.SIGSTOP)
            ranks[0].tell("go")
            time.sleep(SHORT + 0.3)
            woken = ranks[1].signal(signal.SIGCONT)
            failure = ranks[0].result()
        assert failure["kind"] == "TimeoutError", failure
        if blamed(failure["text"]) == 2:
            return
        assert woken > failure["at"] - 1.0, failure  # else it had the time to answer
    pytest.fail("this process was held up every time")


def test_a_rank_that_waits_for_the_stopped_one_elsewhere_is_not_blamed(zygote: Zygote, shape: str) -> None:
    """Rank 1 has not called our barrier because it waits on another communicator for rank 2, which is stopped."""

    def body(me: Me) -> Any:
        comm = me.init()
        pair = comm.split(0 if me.rank in (1, 2) else 1)
        assert pair is not None
        me.send("ready")
        me.hear()
        if me.rank == 1:
            work = pair.barrier(async_op=True)
            me.send("called")
            return me.caught(work.wait)
        return me.caught(lambda: comm.barrier(timeout=SHORT))

    with job(zygote, 3, body, shape, settings=RARELY) as ranks:
        all_say(ranks, "ready")
        ranks[2].signal(signal.SIGSTOP)
        ranks[1].tell("go")
        ranks[1].expect("called")
        ranks[0].tell("go")
        failure = ranks[0].result()
        assert failure["kind"] == "TimeoutError", failure
        assert f"pid {ranks[2].pid} " in failure["text"], failure


def test_a_stop_shorter_than_the_deadline_harms_nothing(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> float:
        comm = me.init()
        x = np.empty(1 << 16)
        me.send("ready")
        for _ in range(300):
            x[:] = me.rank + 1
            comm.all_reduce(x)
            assert (x == 6).all()
        return float(x[0])

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGSTOP)
        time.sleep(1)
        ranks[1].signal(signal.SIGCONT)
        assert [rank.result() for rank in ranks] == [6.0] * 3
