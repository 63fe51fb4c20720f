"""A rank whose control thread gets no processor for a while: what it has not heard yet is not taken for a failure."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from held import held
from jobs import DEADLINE, Me, Zygote, all_say, job, total
from patience import SOON, patient

CONTROL = "isthmus-control"
LONG = 2.0  # a broken connection is told much sooner where the control connection says nothing


def test_a_rank_that_has_left_is_not_taken_for_cut_off_where_its_word_was_not_heard_yet(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.all_reduce(np.ones(1000))
        me.send("ready", me.rank)
        if me.rank == 1:
            me.hear()
            comm.destroy()
            return None
        me.send("waits")
        return me.caught(lambda: comm.recv(np.ones(1000), 1, 5))

    with job(zygote, 2, body, "tcp") as ranks:
        all_say(ranks, "ready")
        ranks[0].expect("waits")
        with held(ranks[0].pid, CONTROL):
            ranks[1].tell("leave")
            ranks[1].result()
            ranks[1].wait()
            time.sleep(patient(LONG))
        failure = ranks[0].result()
        assert failure["kind"] == "PeerLostError" and "has destroyed its side" in failure["text"], failure


def test_a_broken_connection_is_told_at_once_however_seldom_the_heartbeats_are(zygote: Zygote) -> None:
    """The control thread sleeps from one heartbeat to the next, and is woken for what it may have to hear before."""

    def body(me: Me) -> Any:
        comm = me.init(settings={"HEARTBEAT_MS": "60000"})
        comm.all_reduce(np.ones(1000))
        me.send("ready", me.rank)
        if me.rank == 0:
            return me.caught(lambda: comm.recv(np.ones(1000), 1, 5))
        me.hear()
        for entry in list(Path("/proc/self/fd").iterdir()):  # the data connection: the control connections are Unix sockets
            with suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername():
                    one.shutdown(socket.SHUT_RDWR)
        me.hear()
        return None

    with job(zygote, 2, body, "tcp") as ranks:
        all_say(ranks, "ready")
        ranks[1].tell("cut")
        failure = ranks[0].result()
        assert failure["kind"] == "PeerLostError" and "data connection broke" in failure["text"], failure
        assert failure["took"] < SOON, failure
        ranks[1].tell("end")
        ranks[1].result()


@pytest.mark.parametrize("others", ["wait", "have given up"])
def test_a_rank_that_gave_up_a_shrink_comes_in_with_its_next_call(zygote: Zygote, shape: str, others: str) -> None:
    """It had not heard the id with which the others went on. That one serves, or they all meet again."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready", me.rank)
        while (seconds := me.hear()) is not None:
            comm.set_timeout(seconds)
            if me.rank == 2:
                continue
            try:
                rest = comm.shrink([2], abort=True)
            except isthmus.Error as error:
                me.send("gave up", type(error).__name__)
                continue
            me.send("made", total(rest, me))
            rest.destroy()
        return None

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        with held(ranks[1].pid, CONTROL):
            ranks[0].tell(DEADLINE if others == "wait" else patient(3))
            ranks[1].tell(patient(1))
            assert ranks[1].expect("gave up") == "TimeoutError"
            if others != "wait":
                assert ranks[0].expect("gave up") == "TimeoutError"
        ranks[1].tell(DEADLINE)
        if others != "wait":
            ranks[0].tell(DEADLINE)
        assert [ranks[r].expect("made") for r in (0, 1)] == [1.0, 1.0]
        for rank in ranks:
            rank.tell(None)
            rank.result()
