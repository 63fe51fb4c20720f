"""A communicator gains ranks: processes come with a ticket, and all have the new communicator or none has it."""

from __future__ import annotations

import concurrent.futures
import os
import random
import re
import signal
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import isthmus
from jobs import DEADLINE, Me, Rank, Zygote, all_say, forever, job, newcomers, results, total, until_failed
from patience import SOON, patient


def come(me: Me, **more: Any) -> isthmus.Comm:
    """The newcomer's part: joins with the ticket that the test tells it."""
    return isthmus.join(me.hear(), **{**me.options, **more})


def joins(me: Me) -> Any:
    comm = come(me)
    return comm.rank, comm.size, comm.name, total(comm, me)


def refused(me: Me) -> Any:
    return me.caught(lambda: come(me))


def tickets_of(ranks: list[Rank], maker: int) -> str:
    """Who makes a ticket says it to the test, which passes it on to the others."""
    ticket: str = ranks[maker].expect("ticket")
    for rank in ranks:
        if rank.rank != maker:
            rank.tell(ticket)
    return ticket


def shared_ticket(me: Me, comm: isthmus.Comm, maker: int = 0, **more: Any) -> str:
    if me.rank != maker:
        return str(me.hear())
    ticket = comm.ticket(**more)
    me.send("ticket", ticket)
    return ticket


@pytest.mark.parametrize("maker", [0, 2])
def test_a_process_that_comes_with_a_ticket_stands_behind_the_old_ranks(zygote: Zygote, shape: str, maker: int) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        ticket = shared_ticket(me, comm, maker)
        grown = comm.grow(ticket)
        return (grown.rank, grown.size, grown.name, total(grown, me)), (comm.size, total(comm, me))

    with job(zygote, 3, body, shape) as ranks, newcomers(zygote, 3, 1, joins, shape) as (new,):
        new.tell(tickets_of(ranks, maker))
        assert new.result() == (3, 4, "job/grow", 6.0)
        assert results(ranks) == [((place, 4, "job/grow", 6.0), (3, 3.0)) for place in range(3)]


def test_members_go_on_until_the_newcomer_has_come(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm, 1)
        steps = 0
        while True:
            waiting = np.array([comm.joiners(ticket)], np.int32)
            comm.all_reduce(waiting, "max")
            if waiting[0]:
                return total(comm.grow(ticket), me), steps
            steps += 1
            if steps == 3:
                me.send("stepped")

    with job(zygote, 2, body, shape) as ranks, newcomers(zygote, 2, 1, joins, shape) as (new,):
        ticket = tickets_of(ranks, 1)
        all_say(ranks, "stepped")
        new.tell(ticket)
        assert new.result()[:2] == (2, 3)
        for found, steps in results(ranks):
            assert found == 3.0 and steps >= 3


def test_several_come_with_one_ticket_and_a_grown_communicator_grows_again(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        grown = comm.grow(shared_ticket(me, comm), 2, name="more")
        comm.destroy()
        again = grown.grow(shared_ticket(me, grown))
        return grown.name, again.size, total(again, me)

    def twice(me: Me) -> Any:
        comm = come(me)
        again = comm.grow(me.hear())
        return (comm.rank, comm.name), again.size, total(again, me)

    with (
        job(zygote, 2, body) as ranks,
        newcomers(zygote, 2, 2, twice) as early,
        newcomers(zygote, 4, 1, joins) as (late,),
    ):
        ticket = tickets_of(ranks, 0)
        for one in early:
            one.tell(ticket)
        ticket = tickets_of(ranks, 0)
        for one in (*early, late):
            one.tell(ticket)
        assert late.result() == (4, 5, "more/grow", 10.0)
        found = results(early)
        assert sorted(places for places, _, _ in found) == [(2, "more"), (3, "more")]
        assert [(size, whole) for _, size, whole in found] == [(5, 10.0)] * 2
        assert results(ranks) == [("more", 5, 10.0)] * 2


def test_newcomers_have_the_slots_that_the_members_give_and_those_that_they_ask_for(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        grown = comm.grow(shared_ticket(me, comm), 2, slots=[0, 2])
        gathered = np.zeros(4, np.int64)
        grown.all_gather(np.array([me.rank]), gathered)
        return grown.rank, gathered.tolist()

    def asks(me: Me) -> Any:
        comm = come(me, slot=2 if me.rank == 2 else None)
        gathered = np.zeros(4, np.int64)
        comm.all_gather(np.array([me.rank]), gathered)
        return comm.rank, gathered.tolist()

    with job(zygote, 2, body) as ranks, newcomers(zygote, 2, 2, asks) as new:
        ticket = tickets_of(ranks, 0)
        for one in new:
            one.tell(ticket)
        assert results(new) == [(2, [3, 0, 2, 1]), (0, [3, 0, 2, 1])]
        assert results(ranks) == [(1, [3, 0, 2, 1]), (3, [3, 0, 2, 1])]


def connected(fd: int) -> bool:
    """Whether the other end is there. Of addresses that race, and of questions whether a process lives, it has closed."""
    with socket.socket(fileno=os.dup(fd)) as one:
        try:
            return one.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:  # it listens
            return False


def sockets() -> list[str]:
    """Of this process, those that are connected."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:") and connected(int(fd)):
                names.append(name)
        except OSError:  # closed meanwhile
            continue
    return sorted(names)


def test_the_sockets_between_old_members_stay(zygote: Zygote, shape: str) -> None:
    """All that were there are there, and there are more only for the newcomer."""

    def body(me: Me) -> Any:
        comm = me.init()
        total(comm, me)
        before, links = sockets(), isthmus.context_stats()["links"]
        ticket = shared_ticket(me, comm)
        grown = comm.grow(ticket)
        total(grown, me)
        total(comm, me)
        after = sockets()
        me.send("looked")
        me.hear()  # whoever ends closes its ends
        return sorted(set(before) - set(after)), len(after) - len(before), isthmus.context_stats()["links"] - links

    with job(zygote, 3, body, shape) as ranks, newcomers(zygote, 3, 1, joins, shape) as (new,):
        new.tell(tickets_of(ranks, 0))
        all_say(ranks, "looked")
        for rank in ranks:
            rank.tell("all have looked")
        new.result()
        for number, (kept, more, links) in enumerate(results(ranks)):
            assert kept == [] and links == 1, (number, kept, links)
            # Rank 0 listens for those with its tickets, too.
            assert number == 0 or more <= 1 + (1 if shape == "tcp" else 0), more


@pytest.mark.parametrize("victims", [[0], [2], [1, 3]], ids=str)
def test_newcomers_take_the_places_of_ranks_that_are_lost(zygote: Zygote, shape: str, victims: list[int]) -> None:
    maker = 4

    def body(me: Me) -> Any:
        comm = me.init(name="job")
        ticket = shared_ticket(me, comm, maker)
        me.send("ready")
        me.caught(lambda: forever(comm))
        whole = comm.replace(me.hear(), ticket)
        gathered = np.zeros(5, np.int64)
        whole.all_gather(np.array([whole.rank]), gathered)
        return whole.rank, whole.name, gathered.tolist()

    def spare(me: Me) -> Any:
        comm = come(me)
        gathered = np.zeros(5, np.int64)
        comm.all_gather(np.array([comm.rank]), gathered)
        return comm.rank, gathered.tolist()

    with job(zygote, 5, body, shape) as ranks, newcomers(zygote, 5, len(victims), spare, shape) as new:
        ticket = tickets_of(ranks, maker)
        all_say(ranks, "ready")
        for victim in victims:
            ranks[victim].signal(signal.SIGKILL)
        for victim in victims:
            ranks[victim].wait()
        left = [rank for rank in ranks if rank.rank not in victims]
        for rank in left:
            rank.tell(victims)
        for one in new:
            one.tell(ticket)
        assert sorted(place for place, _ in results(new)) == victims
        assert results(left) == [(rank.rank, "job", [0, 1, 2, 3, 4]) for rank in left]


CYCLES = int(os.environ.get("TEST_REPLACE_CYCLES") or 4)


def lives(me: Me, comm: isthmus.Comm) -> float:
    """Works until a rank is lost, replaces it, and begins again; until it is told to end."""
    while True:
        me.send("sum", summed(comm))
        if me.hear() == "end":
            return summed(comm)
        me.caught(lambda comm=comm: forever(comm))
        lost, maker = me.hear()
        if comm.rank == maker:
            me.send("ticket", comm.ticket())
        whole = comm.replace(lost, me.hear())
        comm.destroy()
        comm = whole


def summed(comm: isthmus.Comm) -> float:
    x = np.full(100_000, comm.rank, np.float64)
    comm.all_reduce(x)
    assert (x == x[0]).all()
    return float(x[0])


def test_ranks_that_are_lost_again_and_again_are_replaced_each_time(zygote: Zygote, shape: str) -> None:
    world, chance = 4, random.Random(7)
    expected = float(sum(range(world)))
    with ExitStack() as all_of_them, job(zygote, world, lambda me: lives(me, me.init(name="job")), shape) as first:
        ranks = list(first)  # by their present rank
        for _ in range(CYCLES):
            assert all_say(ranks, "sum") == [expected] * world
            for rank in ranks:
                rank.tell("work")
            lost = sorted(chance.sample(range(world), chance.choice([1, 1, 2])))
            time.sleep(chance.uniform(0, 0.05))  # somewhere in their work
            for victim in lost:
                ranks[victim].signal(signal.SIGKILL)
            for victim in lost:
                ranks[victim].wait()
            left = [rank for number, rank in enumerate(ranks) if number not in lost]
            maker = chance.choice([number for number in range(world) if number not in lost])
            for rank in left:
                rank.tell((lost, maker))
            ticket = ranks[maker].expect("ticket")
            for rank in left:
                rank.tell(ticket)
            for victim in lost:
                spare = newcomers(zygote, world, 1, lambda me, slot=victim: lives(me, come(me, slot=slot)), shape)
                (ranks[victim],) = all_of_them.enter_context(spare)
                ranks[victim].tell(ticket)
        assert all_say(ranks, "sum") == [expected] * world
        for rank in ranks:
            rank.tell("end")
        assert results(ranks) == [expected] * world


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_process_without_the_job_key_is_refused_and_the_next_one_comes_in(zygote: Zygote) -> None:
    key = "0123456789abcdef0123456789abcdef"

    def body(me: Me) -> Any:
        comm = me.init(settings={"JOB_KEY": key})
        return total(comm.grow(shared_ticket(me, comm)), me)

    def knows(me: Me) -> Any:
        return total(come(me, settings={"JOB_KEY": key}), me)

    def knows_another(me: Me) -> Any:
        return me.caught(lambda: come(me, settings={"JOB_KEY": key[::-1]}))

    with (
        job(zygote, 2, body) as ranks,
        newcomers(zygote, 2, 1, refused) as (without,),
        newcomers(zygote, 2, 1, knows_another) as (other,),
        newcomers(zygote, 2, 1, knows) as (new,),
    ):
        ticket = tickets_of(ranks, 0)
        for one in (without, other):
            one.tell(ticket)
            said = one.result()
            assert said["kind"] == "AuthError" and "another ISTHMUS_JOB_KEY" in said["text"], said
        new.tell(ticket)
        assert new.result() == 3.0 and results(ranks) == [3.0, 3.0]


def test_a_ticket_serves_once_until_it_expires_and_while_its_maker_lives(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        total(comm.grow(ticket), me)
        used = me.caught(lambda: comm.grow(ticket))
        brief = shared_ticket(me, comm, timeout=0.05)
        if me.rank == 0:
            me.hear()
        return used, me.caught(lambda: comm.grow(brief)), total(comm, me)

    with (
        job(zygote, 2, body) as ranks,
        newcomers(zygote, 2, 1, joins) as (first,),
        newcomers(zygote, 2, 3, refused) as (late, expired, alone),
    ):
        ticket = tickets_of(ranks, 0)
        first.tell(ticket)
        assert first.result()[3] == 3.0
        late.tell(ticket)
        said = late.result()
        assert said["kind"] == "ArgumentError" and "was used" in said["text"] and said["took"] < SOON, said
        brief = tickets_of(ranks, 0)
        time.sleep(0.1)  # the deadline is the subject
        expired.tell(brief)
        said = expired.result()
        assert said["kind"] == "ArgumentError" and "has expired" in said["text"], said
        ranks[0].tell("go on")
        for used, over, found in results(ranks):
            assert "was used" in used["text"] and "has expired" in over["text"] and found == 1.0
            assert used["kind"] == over["kind"] == "ArgumentError"
        alone.tell(ticket)
        said = alone.result()
        assert said["kind"] == "PeerLostError" and "has ended" in said["text"], said


def test_what_is_no_ticket_or_one_of_another_version_is_refused_at_once(zygote: Zygote) -> None:
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

    def body(me: Me) -> Any:
        comm = me.init()
        ticket = comm.ticket()
        texts = ("", "nonsense", ticket[:-1], ticket[:-1] + "!")
        found = [me.caught(lambda text=text: isthmus.join(text)) for text in texts]
        # The version stands in bytes 4 and 5: the second of bytes 3 to 5, six bits a digit.
        at = len("isthmus-") + 4 + 1
        other = ticket[:at] + digits[digits.index(ticket[at]) ^ 4] + ticket[at + 1 :]
        wrong = [lambda n=n: comm.grow(ticket, n) for n in (0, -1, 65)]
        wrong += [lambda slots=slots: comm.grow(ticket, len(slots), slots=slots) for slots in ([0, 0], [3], [-1])]
        wrong.append(lambda: comm.grow(ticket, 2, slots=[1]))
        wrong.append(lambda: isthmus.join(ticket, slot=-2))
        wrong.append(lambda: comm.ticket(timeout=-1))
        refused = [me.caught(call) for call in wrong]
        with isthmus.group():
            refused += [me.caught(lambda: comm.grow(ticket)), me.caught(lambda: isthmus.join(ticket))]
        return found, me.caught(lambda: isthmus.join(other)), refused, total(comm, me)

    with job(zygote, 1, body) as (rank,):
        found, other, refused, whole = rank.result()
        assert all(one["kind"] == "ArgumentError" and "not a ticket" in one["text"] for one in found), found
        assert other["kind"] == "MismatchError" and "protocol version" in other["text"], other
        assert all(one["kind"] == "ArgumentError" and one["took"] < SOON for one in refused), refused
        assert whole == 0.0


def test_who_asks_for_a_slot_that_is_not_free_is_refused_alone(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        while me.rank == 0 and comm.joiners(ticket) < 2:  # one of the rivals, and the bold one
            time.sleep(0.001)
        found = total(comm.grow(ticket), me)
        me.hear()  # who comes late is told so, as long as the maker of the ticket lives
        return found

    def asks(me: Me) -> Any:
        ticket = me.hear()
        slot = {2: 2, 3: 2, 4: 0}[me.rank]
        try:
            comm = isthmus.join(ticket, slot=slot, **me.options)
        except isthmus.Error as error:
            return type(error).__name__, str(error)
        return comm.rank, total(comm, me)

    with job(zygote, 2, body) as ranks, newcomers(zygote, 2, 3, asks) as (first, rival, bold):
        ticket = tickets_of(ranks, 0)
        first.tell(ticket)
        rival.tell(ticket)
        bold.tell(ticket)
        kind, text = bold.result()
        assert kind == "ArgumentError" and "slot 0 is not free" in text and "free are 2" in text, text
        both = [first.result(), rival.result()]
        for rank in ranks:
            rank.tell("all are told")
        seated = [one for one in both if one[0] == 2]
        turned_away = [one for one in both if one[0] == "ArgumentError"]
        assert len(seated) == len(turned_away) == 1, both
        assert re.search(r"another process .* has come for slot 2|was used", turned_away[0][1]), both
        assert len({found for found in results(ranks)}) == 1


@pytest.mark.parametrize("what", ["n", "ticket", "slots", "name"])
def test_members_that_ask_for_unlike_things_name_two_of_them(zygote: Zygote, what: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        odd = me.rank == 2
        n = 2 if odd and what == "n" else 1
        asked = comm.ticket() if odd and what == "ticket" else ticket
        slots = [1] if odd and what == "slots" else None
        name = "other" if odd and what == "name" else "same"
        said = me.caught(lambda: comm.grow(asked, n, slots=slots, name=name))
        return said, total(comm, me), total(comm.grow(ticket), me)

    with job(zygote, 3, body) as ranks, newcomers(zygote, 3, 1, joins) as (new,):
        new.tell(tickets_of(ranks, 0))
        for said, old, grown in results(ranks):
            assert said["kind"] == "MismatchError" and said["took"] < SOON
            assert "rank 0" in said["text"] and "rank 2" in said["text"], said
            assert old == 3.0 and grown == 6.0
        assert new.result()[3] == 6.0


def test_who_does_not_call_grow_is_named_at_the_deadline_and_the_ticket_still_serves(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        comm.set_timeout(patient(1))
        said = me.caught(lambda: comm.grow(ticket)) if me.rank != 2 else None
        me.send("tried")
        me.hear()
        comm.set_timeout(patient(5))
        none = me.caught(lambda: comm.grow(ticket))
        me.send("waited")
        me.hear()
        comm.set_timeout(DEADLINE)
        return said, none, total(comm.grow(ticket), me)

    with job(zygote, 3, body) as ranks, newcomers(zygote, 3, 1, joins) as (new,):
        ticket = tickets_of(ranks, 0)
        all_say(ranks, "tried")
        for rank in ranks:
            rank.tell("nobody has come")
        all_say(ranks, "waited")
        for rank in ranks:
            rank.tell("now somebody comes")
        new.tell(ticket)
        assert new.result()[3] == 6.0
        for number, (said, none, found) in enumerate(results(ranks)):
            assert found == 6.0
            assert none["kind"] == "TimeoutError" and "of 1 processes with the ticket 0 came" in none["text"], none
            if number != 2:
                assert said["kind"] == "TimeoutError" and "rank" in said["text"], said


def test_grow_stands_beside_operations_that_are_in_flight(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        x = np.full(100_000, me.rank + 1, np.float64)
        work = comm.all_reduce(x, async_op=True) if me.rank else None
        grown = comm.grow(ticket)
        found = total(grown, me)
        pending = work is not None and not work.done
        me.send("looked")
        if work is None:
            me.hear()
            comm.all_reduce(x)
        else:
            work.wait()
        return found, float(x[0]), pending == (me.rank != 0)

    with job(zygote, 3, body, shape) as ranks, newcomers(zygote, 3, 1, joins, shape) as (new,):
        new.tell(tickets_of(ranks, 0))
        all_say(ranks, "looked")
        ranks[0].tell("all have looked")
        assert new.result()[3] == 6.0
        assert results(ranks) == [(6.0, 6.0, True)] * 3


def test_a_communicator_that_has_failed_is_shrunk_first(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        me.send("ready")
        me.hear()
        if me.rank == 0:
            comm.abort("enough")
        until_failed(comm)
        said = me.caught(lambda: comm.grow(ticket))
        return said, total(comm.shrink().grow(ticket), me)

    with job(zygote, 2, body) as ranks, newcomers(zygote, 2, 1, joins) as (new,):
        ticket = tickets_of(ranks, 0)
        all_say(ranks, "ready")
        for rank in ranks:
            rank.tell("abort")
        new.tell(ticket)
        assert new.result()[3] == 3.0
        for said, found in results(ranks):
            assert "enough" in said["text"] and "shrunk first" in said["text"], said
            assert found == 3.0


def test_a_newcomer_that_is_killed_or_stopped_in_the_middle_is_named_and_the_old_communicator_works(
    zygote: Zygote, shape: str
) -> None:
    """It is stopped while it waits for the members: they let it in, and it says nothing more."""

    def body(me: Me) -> Any:
        comm = me.init()
        said = []

        def tell_when_let_in(ticket: str) -> None:
            while comm.joiners(ticket):
                time.sleep(0.001)
            me.send("let in")

        for _ in range(2):
            ticket = shared_ticket(me, comm)
            if me.rank == 0:
                while not comm.joiners(ticket):
                    time.sleep(0.001)
                me.send("came")
            me.hear()  # no deadline runs while the newcomer is on its way
            if me.rank == 0:
                threading.Thread(target=tell_when_let_in, args=[ticket]).start()
            comm.set_timeout(patient(8))
            said.append(me.caught(lambda ticket=ticket: comm.grow(ticket)))
            comm.set_timeout(DEADLINE)
        return said, total(comm, me), total(comm.grow(shared_ticket(me, comm)), me)

    with (
        job(zygote, 3, body, shape) as ranks,
        newcomers(zygote, 3, 2, refused, shape) as victims,
        newcomers(zygote, 3, 1, joins, shape) as (new,),
    ):
        for number, victim in enumerate(victims):
            victim.tell(tickets_of(ranks, 0))
            ranks[0].expect("came")
            victim.signal(signal.SIGSTOP)
            for rank in reversed(ranks):
                rank.tell("go on")
            ranks[0].expect("let in")
            if number == 1:
                victim.signal(signal.SIGKILL)
        new.tell(tickets_of(ranks, 0))
        assert new.result()[3] == 6.0
        for (stopped, killed), old, grown in results(ranks):
            assert stopped["kind"] == "TimeoutError" and f"pid {victims[0].pid}" in stopped["text"], stopped
            assert killed["kind"] == "PeerLostError" and f"pid {victims[1].pid}" in killed["text"], killed
            assert stopped["took"] < SOON > killed["took"]
            assert old == 3.0 and grown == 6.0


def test_a_newcomer_with_other_settings_is_an_error_on_all_that_names_the_setting(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        said = me.caught(lambda: comm.grow(shared_ticket(me, comm)))
        return said, total(comm, me), total(comm.grow(shared_ticket(me, comm)), me)

    def differs(me: Me) -> Any:
        return me.caught(lambda: come(me, settings={"CHUNK_BYTES": 8192}))

    with (
        job(zygote, 2, body) as ranks,
        newcomers(zygote, 2, 1, differs) as (other,),
        newcomers(zygote, 2, 1, joins) as (new,),
    ):
        other.tell(tickets_of(ranks, 0))
        refusal = other.result()
        new.tell(tickets_of(ranks, 0))
        assert new.result()[3] == 3.0
        for said, old, grown in results(ranks):
            assert old == 1.0 and grown == 3.0
            for one in (said, refusal):
                assert one["kind"] == "MismatchError" and "ISTHMUS_CHUNK_BYTES" in one["text"], one


def test_who_waits_hears_at_once_that_the_maker_of_the_ticket_has_ended(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        while me.rank == 0 and not comm.joiners(ticket):
            time.sleep(0.001)
        me.send("ready")
        me.hear()
        lost = me.caught(lambda: comm.grow(ticket))  # rank 0 does not call it
        rest = comm.shrink()
        none = me.caught(lambda: rest.grow(ticket))
        return lost, none, total(rest, me)

    with job(zygote, 3, body) as ranks, newcomers(zygote, 3, 1, refused) as (new,):
        new.tell(tickets_of(ranks, 0))
        all_say(ranks, "ready")
        ranks[0].signal(signal.SIGKILL)
        said = new.result()
        assert said["kind"] == "PeerLostError" and "made the ticket" in said["text"] and said["took"] < SOON, said
        for rank in ranks[1:]:
            rank.tell("grow")
        for lost, none, found in results(ranks[1:]):
            assert lost["kind"] == "PeerLostError" and "rank 0" in lost["text"], lost
            assert none["kind"] == "ArgumentError" and "no rank of this communicator has made the ticket" in none["text"]
            assert none["took"] < SOON and found == 3.0


def test_ranks_of_one_process_grow_too_and_a_newcomer_may_be_a_thread_of_a_member(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        ticket = comm.ticket()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            other = pool.submit(lambda: isthmus.join(ticket, **{k: v for k, v in me.options.items() if k != "address"}))
            grown = comm.grow(ticket)
            joined = other.result()
            x, y = np.ones(1000), np.full(1000, 2.0)
            work = pool.submit(lambda: joined.all_reduce(y))
            grown.all_reduce(x)
            work.result()
        return grown.rank, joined.rank, float(x[0]), float(y[999])

    with job(zygote, 1, body) as (rank,):
        assert rank.result() == (0, 1, 3.0, 3.0)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_member_that_is_killed_while_the_others_wait_ends_it_on_all(zygote: Zygote, shape: str, victim: int) -> None:
    """Rank 0 has made the ticket. The newcomer has come with one that only the lost member's grow would let in."""

    def body(me: Me) -> Any:
        comm = me.init()
        ticket = shared_ticket(me, comm)
        me.send("ready")
        me.hear()
        said = me.caught(lambda: comm.grow(ticket))
        return said, total(comm.shrink(), me)

    with job(zygote, 4, body, shape) as ranks:
        tickets_of(ranks, 0)
        all_say(ranks, "ready")
        for rank in ranks:
            rank.tell("grow")
        time.sleep(0.2)  # most of the time they are inside of it; where not, the error is the same
        ranks[victim].signal(signal.SIGKILL)
        for said, found in results([rank for rank in ranks if rank.rank != victim]):
            assert said["kind"] == "PeerLostError" and f"rank {victim}" in said["text"], said
            assert said["took"] < SOON and found == 6.0 - victim
