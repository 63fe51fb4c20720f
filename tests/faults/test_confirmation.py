"""A rank that stops between the agreements of a call that makes a communicator holds up nobody who names it."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import DEADLINE, Me, Zygote, all_say, job, results, total
from patience import patient
from test_grow import shared_ticket, tickets_of

# What a rank says in the first agreements: of a shrink, a grow, a reconfigure that has a ticket and works, a grow in that.
SHRINKS, GROWS, RECONFIGURES, GOES_OVER = 0x6973746D7368726B, 0x6973746D67726F77, 0x69737265636F6E03, 0x6973746D6F766572
FIRST = {"shrink": [SHRINKS], "grow": [GROWS], "reconfigure": [RECONFIGURES, GOES_OVER]}


@pytest.mark.parametrize("how", FIRST)
def test_those_that_call_again_and_name_it_go_on_also_with_one_that_still_waits_in_the_first_call(
    zygote: Zygote, shape: str, how: str
) -> None:
    """Rank 2 stops behind what all have agreed on first. Rank 1 waits longer than the others, which call again."""

    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        comm.set_timeout(patient(24 if me.rank == 1 else 8))
        if me.rank == 2:
            for flags in FIRST[how]:
                comm.agree(flags)
            me.hear()
            return None
        calls = {
            "shrink": comm.shrink,
            "grow": lambda: comm.grow(ticket),
            "reconfigure": lambda: comm.reconfigure(ticket=ticket),
        }
        if how == "shrink" and me.rank == 1:  # it goes on by itself
            rest = comm.shrink()
            return (), rest.size, total(rest, me)
        said = me.caught(calls[how])
        if me.rank != 1:
            me.send("late")
            me.hear()
        comm.set_timeout(DEADLINE)
        if how == "shrink":
            rest = comm.shrink(failed=[2] if me.rank == 0 else [])
            return said["ranks"], rest.size, total(rest, me)
        comm.reconfigure([2] if me.rank == 0 else [])
        return said["ranks"], comm.size, total(comm, me)

    with job(zygote, 4, body, shape) as ranks:
        tickets_of(ranks, 0)
        again = [ranks[0], ranks[3]]
        all_say(again, "late")
        for rank in again:
            rank.tell("again")
        found = results([ranks[0], ranks[1], ranks[3]])
        assert [rest for _, *rest in found] == [[3, 4.0]] * 3
        assert found[0][0] == found[2][0] == (2,), "who was waited for"
        ranks[2].tell("end")
        ranks[2].result()
