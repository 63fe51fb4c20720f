"""An error says as data which ranks it is about: who is lost, or who did not come."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

import isthmus
from jobs import DEADLINE, RARELY, Me, Rank, Zygote, all_say, forever, job, results
from patience import patient
from test_grow import shared_ticket, tickets_of


def go_on(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.tell("go on")


@pytest.mark.parametrize("lost", [[1], [1, 2]], ids=str)
def test_an_operation_names_who_is_lost(zygote: Zygote, shape: str, lost: list[int]) -> None:
    """The first that is heard of: in an operation, in one in flight, in a later one, and as the communicator's error."""

    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        work = comm.recv(np.zeros(3), 1, async_op=True)
        me.send("ready")
        said = [me.caught(lambda: forever(comm)), me.caught(work.wait), me.caught(comm.barrier)]
        of = comm.error
        assert of is not None and isinstance(work.exception, isthmus.Error)
        return [one["kind"] for one in said], [one["ranks"] for one in said], of.ranks, work.exception.ranks

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        for victim in lost:
            ranks[victim].signal(signal.SIGKILL)
        for kinds, named, of, works in results([rank for rank in ranks if rank.rank not in lost]):
            assert kinds == ["PeerLostError"] * 3
            assert of and set(of) <= set(lost) and [*named, works] == [of] * 4, named


@pytest.mark.parametrize("how", ["has not called", "is stopped"])
@pytest.mark.parametrize("count", [4, 1 << 17], ids=["small", "large"])
def test_a_deadline_names_who_did_not_come_on_every_rank(zygote: Zygote, shape: str, how: str, count: int) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("ready")
        me.hear()
        if me.rank == 2:
            me.hear()
            return None
        work = comm.all_reduce(np.ones(count), timeout=patient(2) if me.rank == 0 else DEADLINE, async_op=True)
        if me.rank != 0:
            me.send("called")
        said = me.caught(work.wait)
        return said["kind"], said["ranks"]

    with job(zygote, 4, body, shape, settings=RARELY) as ranks:
        all_say(ranks, "ready")
        if how == "is stopped":
            ranks[2].signal(signal.SIGSTOP)
        others = [ranks[1], ranks[3]]
        go_on(others)
        all_say(others, "called")  # before the deadline runs, which is rank 0's
        go_on([ranks[0], ranks[2]])
        assert results([ranks[0], *others]) == [("TimeoutError", (2,))] * 3


def test_a_message_names_its_peer_and_a_group_the_same(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("out")  # who has left a barrier may fail before the others have
        me.hear()
        if me.rank == 1:
            return None
        x = np.zeros(3)
        if me.rank == 0:
            return me.caught(lambda: comm.recv(x, 1, timeout=patient(2)))

        def grouped() -> None:
            with isthmus.group():
                comm.recv(x, 1, timeout=DEADLINE)

        return me.caught(grouped)  # which hears of the other's deadline

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "out")
        go_on([ranks[0], ranks[2]])
        for said in results([ranks[0], ranks[2]]):
            assert said["kind"] == "TimeoutError" and said["ranks"] == (1,), said
        ranks[1].tell("end")


def test_one_that_has_left_or_raised_is_named_and_an_abort_names_nobody(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("ready")  # who has left a barrier may abort or leave before the others have
        how = me.hear()
        if me.rank == 1:
            if how == "leaves":
                comm.destroy()
            elif how == "aborts":
                comm.abort("enough")
            else:
                try:
                    with comm:
                        raise ValueError("no such file")
                except ValueError:
                    pass
            me.send("done")
            me.hear()
            return None
        said = me.caught(lambda: forever(comm))
        return said["kind"], said["ranks"]

    expected = {"leaves": ("PeerLostError", (1,)), "raises": ("PeerLostError", (1,)), "aborts": ("AbortedError", ())}
    for how, found in expected.items():
        with job(zygote, 3, body, shape) as ranks:
            all_say(ranks, "ready")
            for rank in ranks:
                rank.tell(how)
            ranks[1].expect("done")
            assert results([ranks[0], ranks[2]]) == [found] * 2, how
            ranks[1].tell("end")


def test_a_grow_names_who_has_not_called_it_and_who_is_lost(zygote: Zygote, shape: str) -> None:
    """Who leads the agreement knows who has not called (rank 0)."""

    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        if me.rank == 2:
            me.hear()
            return None
        comm.set_timeout(patient(8))
        late = me.caught(lambda: comm.grow(ticket))
        me.send("late")
        me.caught(lambda: forever(comm))
        lost = me.caught(lambda: comm.grow(ticket))
        return late["kind"], late["ranks"], lost["kind"], lost["ranks"]

    with job(zygote, 3, body, shape) as ranks:
        tickets_of(ranks, 0)
        all_say(ranks[:2], "late")
        ranks[2].signal(signal.SIGKILL)
        found = results(ranks[:2])
        assert [one[0] for one in found] == ["TimeoutError"] * 2 and found[0][1] == (2,)
        assert [one[2:] for one in found] == [("PeerLostError", (2,))] * 2


@pytest.mark.parametrize("call", ["grow", "split"])
def test_one_that_stops_while_it_is_made_is_named_on_all_ranks(zygote: Zygote, shape: str, call: str) -> None:
    """Rank 2 has agreed to grow, or told its color, and does not come to what follows."""
    grows, color = 0x6973_746D_6772_6F77, np.zeros(2, np.int32)

    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        comm.set_timeout(patient(8))
        if me.rank == 2:
            if call == "grow":
                comm.agree(grows)
            else:
                comm.all_gather(color.view(np.uint8))
            me.hear()
            return None
        said = me.caught(lambda: comm.grow(ticket) if call == "grow" else comm.split(0))
        return said["kind"], said["ranks"]

    with job(zygote, 4, body, shape) as ranks:
        tickets_of(ranks, 0)
        assert results([rank for rank in ranks if rank.rank != 2]) == [("TimeoutError", (2,))] * 3
        ranks[2].tell("end")
