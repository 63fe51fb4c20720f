"""isthmus.elastic takes in new processes: between steps or after a loss, by tickets that a living rank publishes."""

from __future__ import annotations

import random
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isthmus
from events import until
from isthmus import elastic
from jobs import DEADLINE, Me, Rank, Zygote, all_say, job, newcomers
from patience import SOON, patient

STEPS = 8
Hook = Callable[[isthmus.Comm, int, "Part"], object]


class Part:
    """What one process does in the job, and what it has heard."""

    def __init__(self, me: Me, before: Hook | None = None, tickets: bool = True, **quorum: Any) -> None:
        self.me, self.before = me, before
        self.changes: list[Any] = []
        self.tickets: list[str] = []
        self.awaited = False
        self.state = elastic.State({"w": np.full(50_000, float(me.rank)), "log": np.zeros(STEPS, np.int64)})
        self.given: dict[str, Any] = {
            "steps": STEPS,
            "quorum": elastic.Quorum(**{"answer": patient(8), **quorum}),
            "on_change": lambda old, new: self.changes.append((old and old.numbers, new.numbers, new.step)),
            "on_ticket": self.publish if tickets else None,
        }

    def publish(self, text: str) -> None:
        self.tickets.append(text)
        self.me.send("ticket", text)

    def step(self, comm: isthmus.Comm, number: int) -> None:
        if self.before:
            self.before(comm, number, self)
        self.state["log"][number] = comm.all_reduce(np.ones(50_000))[0]
        self.state["w"] += 1

    def end(self, comm: isthmus.Comm) -> Any:
        return comm.size, self.state["log"].tolist(), self.changes, self.state["w"].tobytes()

    def run(self, **options: Any) -> Any:
        return self.end(elastic.run(self.step, self.me.init(**options), self.state, **self.given))

    def join(self, **more: Any) -> Any:
        options = {**self.me.options, **more}
        return self.end(elastic.join(self.step, self.me.hear(), self.state, **self.given, **options))

    def await_joiner(self, comm: isthmus.Comm, count: int = 1) -> None:
        """Until so many wait with the newest ticket, which this rank has published. Once in a job."""
        if self.awaited:
            return
        self.awaited = True
        until = time.monotonic() + DEADLINE
        while comm.joiners(self.tickets[-1]) < count:
            assert time.monotonic() < until, "nobody has come"
            time.sleep(0.001)


def victim_of(rank: int, at: int) -> Hook:
    """That rank waits in step `at`, until it is killed."""

    def before(comm: isthmus.Comm, number: int, part: Part) -> None:
        if number == at and part.me.rank == rank:
            part.me.send("in the step")
            part.me.hear()

    return before


def next_ticket(rank: Rank) -> str:
    return str(rank.expect("ticket"))


def kill(*victims: Rank) -> None:
    """Once all of them are in the step: who were late would hear of the first one's end in the step before."""
    all_say(list(victims), "in the step")
    for victim in victims:
        victim.signal(signal.SIGKILL)
        victim.wait()


def ends_of(ranks: list[Rank]) -> list[Any]:
    """What became of them, whatever tickets they have published before."""
    ends = []
    for rank in ranks:
        while (said := rank.next())[0] in ("ticket", "in"):
            pass
        assert said[0] == "result", said
        ends.append(said[1])
    return ends


def alike(ends: list[Any]) -> None:
    assert len({one[3] for one in ends}) == 1 and len({str(one[1]) for one in ends}) == 1, [one[:3] for one in ends]


def test_a_newcomer_comes_in_between_two_steps_with_the_state_and_the_number_of_the_step(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            if number == 4 and me.rank == 0 and comm.size == 3:
                part.await_joiner(comm)

        return Part(me, before, full=4).run()

    with job(zygote, 3, body, shape) as ranks, newcomers(zygote, 3, 1, lambda me: Part(me, full=4).join(), shape) as (new,):
        new.tell(next_ticket(ranks[0]))
        next_ticket(ranks[0])  # the first is used, so there is another one
        ends = ends_of([*ranks, new])
        alike(ends)
        came = ends[0][1].count(3)  # before that step
        for size, log, _, _ in ends:
            assert size == 4 and came <= 5 and log == [3] * came + [4] * (STEPS - came)
        assert ends[3][2] == [(None, (0, 1, 2, 3), came)]
        assert ends[0][2] == [(None, (0, 1, 2), 0), ((0, 1, 2), (0, 1, 2, 3), came)]


def test_who_waits_while_the_job_is_full_comes_in_for_a_rank_that_is_lost(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            if number == 3 and me.rank == 0 and not part.awaited:
                part.await_joiner(comm)
                me.send("waits")
            victim_of(1, 3)(comm, number, part)

        return Part(me, before).run()

    with job(zygote, 3, body, shape) as ranks, newcomers(zygote, 3, 1, lambda me: Part(me).join(), shape) as (new,):
        new.tell(next_ticket(ranks[0]))
        ranks[0].expect("waits")
        kill(ranks[1])
        ends = ends_of([ranks[0], ranks[2], new])
        alike(ends)
        for size, log, changes, _ in ends:
            assert size == 3 and log == [3] * STEPS and changes[-1][1] == (0, 2, 3)


def test_with_grace_nobody_goes_on_smaller_while_a_newcomer_may_still_come(zygote: Zygote, shape: str) -> None:
    """Two of four are lost. One newcomer comes at once, and the other when the first is known to wait."""

    def body(me: Me) -> Any:
        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            if number == 3 and comm.size == 4:
                for rank in (1, 2):
                    victim_of(rank, 3)(comm, number, part)

        return Part(me, before, grace=DEADLINE, least=3).run()

    def newcomer(me: Me) -> Any:
        return Part(me, grace=DEADLINE, least=3).join()

    with job(zygote, 4, body, shape) as ranks, newcomers(zygote, 4, 2, newcomer, shape) as new:
        ticket = next_ticket(ranks[0])
        kill(*ranks[1:3])
        for one in new:
            one.tell(ticket)
        ends = ends_of([ranks[0], ranks[3], *new])
        alike(ends)
        for size, log, _, _ in ends:
            assert size == 4 and log == [4] * STEPS
        assert ends[0][2] == [(None, (0, 1, 2, 3), 0), ((0, 1, 2, 3), (0, 3, 4, 5), 3)], "one change, and not two"


@pytest.mark.parametrize("least", [2, 3])
def test_when_the_grace_is_over_the_ranks_go_on_where_they_are_enough(zygote: Zygote, least: int) -> None:
    def body(me: Me) -> Any:
        part = Part(me, victim_of(1, 3), grace=0.3, least=least)
        try:
            return part.run()
        except isthmus.PeerLostError as error:
            return str(error)

    with job(zygote, 3, body) as ranks:
        next_ticket(ranks[0])
        kill(ranks[1])
        for said in ends_of([ranks[0], ranks[2]]):
            if least == 2:
                assert said[:2] == (2, [3] * 3 + [2] * 5)
            else:
                assert "2 ranks are left of 'world', and quorum.least is 3" in said


def test_where_the_rank_with_the_ticket_is_lost_another_one_publishes_its_own(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            victim_of(0, 2)(comm, number, part)
            if number == 5 and me.rank == 1 and comm.size == 2:
                part.await_joiner(comm)

        return Part(me, before).run()

    with job(zygote, 3, body, shape) as ranks, newcomers(zygote, 3, 1, lambda me: Part(me).join(), shape) as (new,):
        next_ticket(ranks[0])
        kill(ranks[0])
        new.tell(next_ticket(ranks[1]))
        ends = ends_of([*ranks[1:], new])
        alike(ends)
        alone = ends[0][1].count(2)  # steps of two ranks
        for size, log, changes, _ in ends:
            assert size == 3 and alone <= 4 and log == [3] * 2 + [2] * alone + [3] * (6 - alone)
            assert changes[-1][1] == (1, 2, 3)


def test_a_newcomer_is_the_one_that_goes_on_when_all_the_others_are_lost(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            if number == 2 and me.rank == 0 and comm.size == 2:
                part.await_joiner(comm)
            elif number == 4 and me.rank < 2:
                me.send("in the step")
                me.hear()

        return Part(me, before, full=3).run()

    with job(zygote, 2, body) as ranks, newcomers(zygote, 2, 1, lambda me: Part(me, full=3).join()) as (new,):
        new.tell(next_ticket(ranks[0]))
        next_ticket(ranks[0])
        kill(*ranks)
        ((size, log, changes, _),) = ends_of([new])
        came = log.count(2)
        assert size == 1 and came <= 3 and log == [2] * came + [3] * (4 - came) + [1] * 4 and changes[-1][1] == (2,)


def test_a_ticket_that_has_expired_is_followed_by_another_one(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        from isthmus.elastic import _door

        _door.TICKET_SECONDS = 0.05

        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            if number == 2 and me.rank == 0:
                time.sleep(0.1)  # the deadline is the subject
                _door.TICKET_SECONDS = 600.0
            if number == 5 and me.rank == 0:
                me.send("waits")
                part.await_joiner(comm)

        return Part(me, before, full=3).run()

    with job(zygote, 2, body) as ranks, newcomers(zygote, 2, 1, lambda me: Part(me, full=3).join()) as (new,):
        tickets = []
        while (said := ranks[0].next())[0] == "ticket":
            tickets.append(said[1])
        assert said == ("waits", None) and len(tickets) > 1
        new.tell(tickets[-1])
        assert [size for size, *_ in ends_of([*ranks, new])] == [3] * 3


@pytest.mark.parametrize("how", ["tensors", "settings"])
def test_a_newcomer_that_does_not_fit_is_refused_alone_and_the_next_comes_in(zygote: Zygote, shape: str, how: str) -> None:
    def body(me: Me) -> Any:
        warnings.simplefilter("ignore")

        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            if number in (2, 5) and me.rank == 0 and comm.size == 2:
                part.awaited = False
                me.send("ticket", part.tickets[-1])
                part.await_joiner(comm)

        return Part(me, before, full=3, every=3).run()

    def misfit(me: Me) -> Any:
        part = Part(me, full=3, every=3)
        if how == "tensors":
            part.state = elastic.State({"w": np.zeros(3), "log": np.zeros(STEPS, np.int64)})
        more = {"settings": {"CHUNK_BYTES": 8192}} if how == "settings" else {}
        return me.caught(lambda: part.join(**more))

    with (
        job(zygote, 2, body, shape) as ranks,
        newcomers(zygote, 2, 1, misfit, shape) as (wrong,),
        newcomers(zygote, 3, 1, lambda me: Part(me, full=3, every=3).join(), shape) as (right,),
    ):
        next_ticket(ranks[0])
        wrong.tell(next_ticket(ranks[0]))
        said = wrong.result()
        assert said["kind"] == "MismatchError" and said["took"] < SOON, said
        first = next_ticket(ranks[0])
        second = next_ticket(ranks[0])
        right.tell(second)
        ends = ends_of([*ranks, right])
        alike(ends)
        assert first == second and ends[0][:2] == (3, [2] * 6 + [3] * 2)


def test_a_newcomer_that_is_killed_as_it_comes_in_keeps_nobody_from_going_on(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            # It may have come in before the first step. Then its ticket was used, and there is another one.
            if number == 2 and me.rank == 0 and len(part.tickets) == 1:
                part.await_joiner(comm)

        return Part(me, before, full=3, every=3).run()

    def newcomer(me: Me) -> Any:
        from isthmus.elastic import _sync

        def stops(self: Any) -> Any:
            me.send("in the step")
            me.hear()

        _sync.Sync.run = stops
        return Part(me, full=3, every=3).join()

    with job(zygote, 2, body, shape) as ranks, newcomers(zygote, 2, 1, newcomer, shape) as (new,):
        new.tell(next_ticket(ranks[0]))
        kill(new)
        ends = ends_of(ranks)
        alike(ends)
        assert ends[0][:2] == (2, [2] * STEPS)


def test_nobody_waits_for_a_newcomer_that_was_counted_and_has_gone_since(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        from isthmus.elastic import _door

        let_in = _door.Door.let_in
        took: list[float] = []

        def late(door: Any, comm: isthmus.Comm, count: int, name: str) -> isthmus.Comm | None:
            if me.rank == 0 and not took:
                me.send("counted")
                until(lambda: comm.joiners(door.tickets[-1]) == 0)
            begin = time.monotonic()
            grown = let_in(door, comm, count, name)
            took.append(time.monotonic() - begin)
            return grown

        _door.Door.let_in = late  # type: ignore[method-assign]

        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            if number == 2 and me.rank == 0 and not took:  # it may have been counted before the first step
                part.await_joiner(comm)

        return Part(me, before, full=3, every=3).run(), took

    with (
        job(zygote, 2, body, shape, timeout=10 * SOON) as ranks,
        newcomers(zygote, 2, 1, lambda me: Part(me, full=3, every=3).join(), shape) as (new,),
    ):
        new.tell(next_ticket(ranks[0]))
        ranks[0].expect("counted")
        new.signal(signal.SIGKILL)
        new.wait()
        said = ends_of(ranks)
        alike([end for end, _ in said])
        assert said[0][0][:2] == (2, [2] * STEPS)
        assert len(said[0][1]) == 1 and said[0][1][0] < SOON, said


def test_ranks_without_on_ticket_do_not_look_and_look_no_more_often_than_every(zygote: Zygote) -> None:
    """A look is one all_reduce. Without looks a step of these has one collective."""

    def body(me: Me) -> Any:
        counts = []
        for tickets, every, full in ((False, 1, 9), (True, 1, 2), (True, 1, 9), (True, 4, 9)):
            part = Part(me, tickets=tickets, every=every, full=full)
            begin: list[int] = []
            part.before = lambda comm, number, part, begin=begin: begin.append(comm.sequence)
            comm = elastic.run(part.step, me.init(name=f"{tickets}{every}{full}"), part.state, **part.given)
            counts.append(begin[-1] - begin[0] - (STEPS - 1))
            comm.destroy()
        return counts

    with job(zygote, 2, body) as ranks:
        assert ends_of(ranks) == [[0, 0, STEPS - 1, 1]] * 2


@pytest.mark.product(3)
@pytest.mark.parametrize("seed", range(9))
def test_ranks_that_are_killed_at_any_time_are_replaced_and_all_end_with_one_state(
    zygote: Zygote, shape: str, seed: int
) -> None:
    steps = 200

    def part_of(me: Me) -> Part:
        part = Part(me, grace=DEADLINE)
        part.state = elastic.State({"w": np.full(50_000, float(me.rank)), "log": np.zeros(steps, np.int64)})
        part.given["steps"] = steps

        def before(comm: isthmus.Comm, number: int, part: Part) -> None:
            while number == steps - 50 and max(part.changes[-1][1]) < 7:  # until the next rank is killed
                comm.barrier()

        def changed(old: Any, new: elastic.Members) -> None:
            part.changes.append((old and old.numbers, new.numbers, new.step))
            if old is None:
                me.send("in")

        part.before, part.given["on_change"] = before, changed
        return part

    chance = random.Random(seed)
    with (
        job(zygote, 5, lambda me: part_of(me).run(), shape) as ranks,
        newcomers(zygote, 5, 3, lambda me: part_of(me).join(), shape) as new,
    ):
        left, tickets, inside = list(ranks), {}, set()

        def newest() -> str:
            """Of those that live: the one that publishes says so without being asked."""
            for rank in left:
                while rank.channel.poll(0):
                    kind, value = rank.next()
                    if kind == "ticket":
                        tickets[rank.rank] = value
                    assert kind in ("ticket", "in"), value
                    inside.add(rank.rank)
            lowest = min((rank.rank for rank in left if rank.rank in tickets), default=None)
            return "" if lowest is None else tickets[lowest]

        def await_inside(all_of: list[Rank]) -> None:
            until = time.monotonic() + DEADLINE
            while not {rank.rank for rank in all_of} <= inside:
                assert time.monotonic() < until, "they are not all in the job"
                newest()
                time.sleep(0.005)

        used: set[str] = set()
        await_inside(left)
        for one in new:
            victim = left.pop(chance.randrange(len(left)))
            time.sleep(chance.uniform(0.0, 0.2))  # no order depends on it
            victim.signal(signal.SIGKILL)
            tickets.pop(victim.rank, None)
            until = time.monotonic() + DEADLINE
            while not (ticket := newest()) or ticket in used:
                assert time.monotonic() < until, "no ticket was published"
                time.sleep(0.005)
            used.add(ticket)
            one.tell(ticket)
            left.append(one)
            if one is not new[-1]:
                await_inside([one])  # else it may have come with the ticket of the next victim
        ends = ends_of(left)
        alike(ends)
        assert {one[0] for one in ends} == {5}
