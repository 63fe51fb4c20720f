"""An abort ends a call that makes a communicator while that call waits for other ranks."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isthmus
from events import until_asleep
from jobs import DEADLINE, Me, Zygote, all_say, job, total, until_failed
from patience import SOON
from test_grow import shared_ticket, tickets_of

# What a rank says in the first agreement of each: see test_confirmation.
HERE = re.compile("the communicator was (aborted|destroyed) here meanwhile")  # Python's destroy() aborts calls first
SHRINKS, GROWS, RECONFIGURES = 0x6973746D7368726B, 0x6973746D67726F77, 0x69737265636F6E05
FIRST = {"shrink": [SHRINKS], "grow": [GROWS], "reconfigure": [RECONFIGURES, SHRINKS]}


def in_it(comm: isthmus.Comm, me: Me) -> None:
    """Returns once rank 0 waits in an agreement: it has asked this rank for its word, and has not all others' words."""
    while True:
        said = me.caught(lambda: comm.agree(timeout=0.05))  # whose flags change nothing
        assert said["kind"] == "TimeoutError", said
        if "has called it and waits" in said["text"]:
            return


def ends(comm: isthmus.Comm, me: Me, how: str, call: Callable[[], object]) -> dict[str, Any]:
    """How `call` ends on another thread, where this one aborts it when the test says so."""
    said: list[dict[str, Any]] = []
    waits = threading.Thread(target=lambda: said.append(me.caught(call)))
    waits.start()
    assert me.hear() == "it waits"
    assert waits.is_alive()
    comm.destroy() if how == "destroy" else getattr(comm, how)("enough")
    waits.join(SOON)
    assert said, f"the call goes on after {how}"
    return said[0]


def calls(comm: isthmus.Comm, call: str, ticket: str) -> Callable[[], object]:
    return {"shrink": comm.shrink, "grow": lambda: comm.grow(ticket), "reconfigure": comm.reconfigure}[call]


@pytest.mark.parametrize("how", ["abort", "revoke", "destroy"])
@pytest.mark.parametrize("call", FIRST)
def test_it_ends_a_wait_in_the_first_agreement_and_says_so(zygote: Zygote, shape: str, call: str, how: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        if me.rank == 0:
            return ends(comm, me, how, calls(comm, call, ticket))
        if me.rank == 1:
            in_it(comm, me)
            me.send("it waits")
        me.hear()
        return None

    with job(zygote, 3, body, shape) as ranks:
        tickets_of(ranks, 0)
        ranks[1].expect("it waits")
        ranks[0].tell("it waits")
        said = ranks[0].result()
        assert said["kind"] == "AbortedError" and call in said["text"] and HERE.search(said["text"]), said


@pytest.mark.parametrize("how", ["abort", "revoke", "destroy"])
@pytest.mark.parametrize("call", FIRST)
def test_it_ends_a_wait_behind_the_first_agreement_and_says_so(zygote: Zygote, shape: str, call: str, how: str) -> None:
    """Where all have agreed, and the others do not come to what follows."""

    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        if me.rank == 0:
            return ends(comm, me, how, calls(comm, call, ticket))
        for flags in FIRST[call]:
            comm.agree(flags)
        me.send("agreed")
        me.hear()
        return None

    with job(zygote, 3, body, shape) as ranks:
        tickets_of(ranks, 0)
        for rank in ranks[1:]:
            rank.expect("agreed")
        ranks[0].tell("it waits")
        said = ranks[0].result()
        assert said["kind"] == "AbortedError" and HERE.search(said["text"]), said


def reconfigures(comm: isthmus.Comm, me: Me, **more: Any) -> dict[str, Any]:
    """How it ends on another thread, where this one aborts it once that is in it, and sleeps."""
    said: list[dict[str, Any]] = []
    waits = threading.Thread(target=lambda: said.append(me.caught(lambda: comm.reconfigure(**more))))
    waits.start()
    while True:
        try:
            comm.set_timeout(DEADLINE)
        except isthmus.ArgumentError:
            break
    until_asleep(waits)
    comm.abort("enough")
    waits.join(SOON)
    assert said, "the call goes on"
    return said[0]


def test_it_ends_a_reconfigure_that_waits_for_operations_in_flight(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        if me.rank == 1:
            me.hear()
            return None
        work = comm.all_reduce(np.ones(4), async_op=True)  # to which rank 1 does not come
        said = reconfigures(comm, me)
        return said["kind"], bool(HERE.search(said["text"])), me.caught(work.wait)["kind"]

    with job(zygote, 2, body, shape) as ranks:
        assert ranks[0].result() == ("AbortedError", True, "AbortedError")
        ranks[1].tell("end")


def test_it_ends_a_reconfigure_that_waits_for_newcomers_wherever_that_stands(zygote: Zygote, shape: str) -> None:
    """Also where the ranks that are left have made an epoch of their own: it goes over to that one, and that is aborted."""

    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        comm.barrier()
        me.send("ready")
        if me.rank == 2:
            me.hear()
        until_failed(comm)
        if me.rank == 1:
            return me.caught(lambda: comm.reconfigure(ticket=ticket))["kind"]
        said = reconfigures(comm, me, ticket=ticket)
        return said["kind"], bool(HERE.search(said["text"])), comm.error is not None

    with job(zygote, 3, body, shape) as ranks:
        tickets_of(ranks, 0)
        all_say(ranks, "ready")
        ranks[2].signal(signal.SIGKILL)
        assert ranks[0].result() == ("AbortedError", True, True)


def test_after_it_the_call_may_be_made_again(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        if me.rank == 0:
            ends(comm, me, "abort", comm.reconfigure)
            me.send("aborted")
        if me.rank == 1:
            in_it(comm, me)
            me.send("it waits")
        if me.rank:
            me.hear()
        comm.reconfigure()
        return comm.size, total(comm, me), comm.timeout == DEADLINE

    with job(zygote, 3, body, shape) as ranks:
        ranks[1].expect("it waits")
        ranks[0].tell("it waits")
        ranks[0].expect("aborted")
        for rank in ranks[1:]:
            rank.tell("go on")
        assert [rank.result() for rank in ranks] == [(3, 3.0, True)] * 3


def test_an_agree_of_the_program_goes_on_where_the_communicator_is_aborted_meanwhile(zygote: Zygote, shape: str) -> None:
    """So ranks can agree on what was in their operations when one of their own threads revoked it."""

    def body(me: Me) -> Any:
        comm = me.init()
        if me.rank == 0:
            found: list[Any] = []
            waits = threading.Thread(target=lambda: found.append(comm.agree(6)))
            waits.start()
            me.hear()
            comm.revoke("enough")
            me.send("revoked")
            waits.join()
            return found[0]
        if me.rank == 1:
            in_it(comm, me)
            me.send("it waits")
        me.hear()
        return comm.agree(3)

    with job(zygote, 3, body, shape) as ranks:
        ranks[1].expect("it waits")
        ranks[0].tell("it waits")
        ranks[0].expect("revoked")
        for rank in ranks[1:]:
            rank.tell("go on")
        assert [rank.result() for rank in ranks] == [(2, [])] * 3
