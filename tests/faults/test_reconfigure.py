"""A communicator goes over to a new epoch in its place: other ranks, the same object, and what did not change stays."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from typing import Any

import numpy as np

import isthmus
from jobs import DEADLINE, Me, Zygote, all_say, forever, job, results, total
from patience import patient
from test_grow import come, newcomers, shared_ticket, tickets_of


def sockets() -> set[str]:
    """The connections of this process by TCP, by the inodes of their sockets."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(number))) as one:
            one.getpeername()
            if one.family != socket.AF_UNIX:
                found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def about(comm: isthmus.Comm, me: Me) -> tuple[int, int, str, float]:
    return comm.rank, comm.size, comm.name, total(comm, me)


def test_after_a_loss_the_communicator_itself_goes_on_over_the_sockets_that_there_were(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        total(comm, me)
        before = sockets()
        me.send("ready")
        me.caught(lambda: forever(comm))
        comm.reconfigure()
        return about(comm, me), sorted(sockets() - before), bool(sockets() & before), comm.error

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGKILL)
        left = [rank for rank in ranks if rank.rank != 1]
        assert results(left) == [((place, 3, "job", 5.0), [], shape == "tcp", None) for place in range(3)]


def test_ranks_that_live_may_be_left_out_by_either_list(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        total(comm, me)
        before = sockets()
        me.send("ready")
        me.hear()  # all have ended the operation, which the call of others would end here
        if me.rank in (0, 3):
            return me.caught(comm.barrier)["kind"]
        comm.reconfigure([0, 3]) if me.rank == 1 else comm.reconfigure(members=[1, 2, 4])
        return about(comm, me), sorted(sockets() - before)

    with job(zygote, 5, body, shape) as ranks:
        all_say(ranks, "ready")
        for rank in ranks:
            rank.tell("go on")
        found = results(ranks)
        assert [found[0], found[3]] == ["AbortedError"] * 2
        assert [found[1], found[2], found[4]] == [((place, 3, "job", 7.0), []) for place in range(3)]


def test_operations_that_are_in_flight_end_before(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x = np.full(300_000, me.rank, np.float32)
        works = [comm.all_reduce(x, async_op=True) for _ in range(3)]
        comm.reconfigure()
        over = [work.done for work in works]
        for work in works:
            work.wait()
        return over, float(x[0]), float(x[-1]), about(comm, me)[1:]

    with job(zygote, 3, body, shape) as ranks:
        assert results(ranks) == [([True] * 3, 27.0, 27.0, (3, "world", 3.0))] * 3


def test_newcomers_come_into_it_and_have_the_slots_of_the_lost(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        ticket = shared_ticket(me, comm, 2)
        me.send("ready")
        me.caught(lambda: forever(comm))
        comm.reconfigure(ticket=ticket, slots=[1])
        return comm.rank, comm.size, comm.name, summed(comm)

    def spare(me: Me) -> Any:
        comm = come(me)
        return comm.rank, comm.size, comm.name, summed(comm)

    with job(zygote, 4, body, shape) as ranks, newcomers(zygote, 4, 1, spare, shape) as (new,):
        ticket = tickets_of(ranks, 2)
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGKILL)
        new.tell(ticket)
        assert new.result() == (1, 4, "job", 6.0)
        assert results([ranks[0], ranks[2], ranks[3]]) == [(place, 4, "job", 6.0) for place in (0, 2, 3)]


def summed(comm: isthmus.Comm) -> float:
    x = np.full(50_000, comm.rank, np.float64)
    comm.all_reduce(x)
    assert (x == x[0]).all()
    return float(x[0])


def test_it_grows_while_it_works_and_has_the_old_ranks_sockets(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        ticket = shared_ticket(me, comm)
        summed(comm)
        before = sockets()
        me.send("ready")
        comm.reconfigure(ticket=ticket)
        return comm.rank, comm.size, summed(comm), sorted(before - sockets())

    def spare(me: Me) -> Any:
        comm = come(me)
        return comm.rank, comm.size, summed(comm)

    with job(zygote, 3, body, shape) as ranks, newcomers(zygote, 3, 1, spare, shape) as (new,):
        ticket = tickets_of(ranks, 0)
        all_say(ranks, "ready")
        new.tell(ticket)  # not before: it waits over a connection that ends with the call
        assert new.result() == (3, 4, 6.0)
        assert results(ranks) == [(place, 4, 6.0, []) for place in range(3)]


def test_where_nobody_comes_it_is_as_it_was_and_after_a_loss_it_has_the_ranks_that_are_left(
    zygote: Zygote, shape: str
) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        comm.set_timeout(patient(3))
        ticket = shared_ticket(me, comm)
        nobody = me.caught(lambda: comm.reconfigure(ticket=ticket))
        comm.set_timeout(DEADLINE)
        whole = about(comm, me)
        me.send("ready")
        me.caught(lambda: forever(comm))
        comm.set_timeout(patient(8))
        lost = me.caught(lambda: comm.reconfigure(ticket=ticket))
        return nobody["kind"], whole, lost["kind"], "gone over to the 2 ranks" in lost["text"], about(comm, me)

    with job(zygote, 3, body, shape) as ranks:
        tickets_of(ranks, 0)
        all_say(ranks, "ready")
        ranks[2].signal(signal.SIGKILL)
        for place, found in enumerate(results(ranks[:2])):
            assert found == ("TimeoutError", (place, 3, "job", 3.0), "TimeoutError", True, (place, 2, "job", 1.0))


def test_meanwhile_other_calls_are_refused_and_name_it(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        if me.rank == 1:
            me.hear()  # until rank 0 was refused
            comm.reconfigure()
            return total(comm, me)
        goes = threading.Thread(target=comm.reconfigure)
        goes.start()
        while True:  # until the other thread is in it
            try:
                comm.set_timeout(DEADLINE)
            except isthmus.ArgumentError as error:
                me.send("refused", str(error))
                break
        goes.join()
        return total(comm, me)

    with job(zygote, 2, body) as ranks:
        assert "another thread is in isthmus_comm_reconfigure" in ranks[0].expect("refused")
        ranks[1].tell("go on")
        assert results(ranks) == [1.0, 1.0]


def test_what_cannot_be_is_refused_at_once_and_changes_nothing(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        said = [
            me.caught(call)["text"]
            for call in (
                lambda: comm.reconfigure([me.rank]),
                lambda: comm.reconfigure([7]),
                lambda: comm.reconfigure(members=[0, 7]),
                lambda: comm.reconfigure([0], members=[1]),
                lambda: comm.reconfigure(n=1),
                lambda: comm.reconfigure(ticket="isthmus-nonsense"),
                lambda: comm.reconfigure(ticket=comm.ticket(), n=65),
                lambda: comm.reconfigure(ticket=comm.ticket(), n=2, slots=[1]),
            )
        ]
        return said, total(comm, me)

    with job(zygote, 2, body) as ranks:
        for said, sum_of in results(ranks):
            for text, part in zip(
                said,
                (
                    "is among those that are excluded",
                    "there is no rank 7 among 2",
                    "there is no rank 7 among 2",
                    "`exclude` or `members`, not both",
                    "1 newcomers and no ticket",
                    "ticket",
                    "65 newcomers: must be from 1 to 64",
                    "1 slots for 2 newcomers",
                ),
                strict=True,
            ):
                assert part in text, text
            assert sum_of == 1.0


def test_unlike_calls_are_named(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = comm.ticket()
        unlike = me.caught(lambda: comm.reconfigure(ticket=ticket if me.rank == 0 else None))
        if me.rank == 0:
            other = me.caught(comm.reconfigure)
        else:
            comm.agree(0)
            other = {"kind": None}
        return unlike["kind"], unlike["text"], other["kind"], total(comm, me)

    with job(zygote, 2, body) as ranks:
        for rank, (kind, text, other, sum_of) in enumerate(results(ranks)):
            assert kind == "MismatchError" and "some ranks give a ticket and others none" in text
            assert other == ("AbortedError" if rank == 0 else None) and sum_of == 1.0


def test_a_call_that_failed_within_goes_on_where_it_stood(zygote: Zygote, shape: str) -> None:
    """Rank 2 stops behind the first agreement of the shrink. Rank 1 waits longer than the others, and goes on with them."""
    reconfigures, works, no_ticket = 0x6973_7265_636F_6E00, 1, 4  # what a rank says in the agreement of a reconfigure
    shrinks = 0x6973_746D_7368_726B  # and in that of the shrink behind it

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")  # who has left a barrier may abort before the others have
        me.hear()
        comm.set_timeout(patient(24 if me.rank == 1 else 8))
        if me.rank == 2:
            comm.agree(reconfigures | works | no_ticket)
            comm.agree(shrinks)
            me.hear()
            return None
        if me.rank == 1:
            comm.reconfigure()
        else:
            late = me.caught(comm.reconfigure)
            assert late["kind"] == "TimeoutError" and late["ranks"] == (2,), late
            me.send("late")
            me.hear()
            comm.set_timeout(DEADLINE)
            comm.reconfigure([2] if me.rank == 0 else [])
        return comm.size, total(comm, me)

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        for rank in ranks:
            rank.tell("go")
        all_say([ranks[0], ranks[3]], "late")
        for rank in (ranks[0], ranks[3]):
            rank.tell("again")
        assert results([ranks[0], ranks[1], ranks[3]]) == [(3, 4.0)] * 3
        ranks[2].tell("end")
        ranks[2].result()
