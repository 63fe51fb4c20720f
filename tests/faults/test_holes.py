"""Communicators with holes: ranks keep their numbers where others have left, and collectives go on with those who stay."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs import Me, Zygote, all_say, forever, job, results
from test_grow import come, newcomers, shared_ticket, tickets_of

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, run_fleet

UNTOUCHED = -77
GARBAGE = 2**30  # in the blocks of holes: a sum with it is another one
GONE = [[2], [0], [4], [1, 3], [0, 2, 4], [0, 1, 2, 3]]  # of five: in the middle, in front, behind, alone


def data(slot: int, count: int, salt: int = 0) -> Any:
    return (np.arange(count) % 1000 + 1000 * slot + salt).astype(np.int32)


class Memory:
    """Arrays of a rank: the host's, or on its device."""

    def __init__(self, comm: isthmus.Comm, devices: Sequence[int]) -> None:
        self.comm, self.on_device, self.commits = comm, comm.rank in devices, not devices

    def put(self, x: Any) -> Any:
        return DeviceArray.of(x) if self.on_device else x.copy()

    def new(self, count: int) -> Any:
        return self.put(np.full(count, UNTOUCHED, np.int32))

    def get(self, x: Any) -> Any:
        return x.get() if self.on_device else x

    def part(self, x: Any, first: int, count: int) -> Any:
        return x.part(first, count) if self.on_device else x[first : first + count]

    def holds(self, x: Any, expected: Any, what: str) -> None:
        found = self.get(x)
        wrong = np.flatnonzero(found != expected)
        assert wrong.size == 0, (what, self.comm.rank, self.comm.members, wrong[:5], found[wrong[:5]], expected[wrong[:5]])


def stacked(comm: isthmus.Comm, blocks: dict[int, Any], sizes: Sequence[int], hole: int) -> Any:
    """The buffer with a block for each slot: those of members, and `hole` in the others."""
    filled = [blocks.get(slot, np.full(size, hole, np.int32)) for slot, size in enumerate(sizes)]
    return np.concatenate(filled) if filled else np.empty(0, np.int32)


def single_blocks(comm: isthmus.Comm, memory: Memory, count: int) -> None:
    me, members = comm.rank, comm.members
    whole = np.sum([data(s, count) for s in members], axis=0, dtype=np.int32)
    x = memory.put(data(me, count))
    comm.all_reduce(x)
    memory.holds(x, whole, "all_reduce")
    comm.barrier()
    for root in members:
        x, out = memory.put(data(me, count, root)), memory.new(count)
        comm.reduce(x, root, "max", out if me == root else None)
        memory.holds(out, data(members[-1], count, root) if me == root else UNTOUCHED, "reduce")
        x = memory.put(data(me, count, root))
        comm.broadcast(x, root)
        memory.holds(x, data(root, count, root), "broadcast")


def equal_blocks(comm: isthmus.Comm, memory: Memory, count: int) -> None:
    me, members, sizes = comm.rank, comm.members, [count] * comm.size
    all_blocks = stacked(comm, {s: data(s, count) for s in members}, sizes, UNTOUCHED)
    out = memory.new(count * comm.size)
    comm.all_gather(memory.put(data(me, count)), out)
    memory.holds(out, all_blocks, "all_gather")
    out = memory.put(stacked(comm, {me: data(me, count)}, sizes, UNTOUCHED))
    own = memory.part(out, me * count, count)
    comm.all_gather(own, out)
    memory.holds(out, all_blocks, "all_gather in place")
    given = stacked(comm, {d: data(me, count, 10 * d) for d in members}, sizes, GARBAGE)
    out = memory.new(count)
    comm.reduce_scatter(memory.put(given), "sum", out)
    memory.holds(out, np.sum([data(s, count, 10 * me) for s in members], axis=0, dtype=np.int32), "reduce_scatter")
    out = memory.new(count * comm.size)
    exchanged = {s: data(s, count, 10 * me) for s in members}
    comm.all_to_all(memory.put(given), out)
    memory.holds(out, stacked(comm, exchanged, sizes, UNTOUCHED), "all_to_all")
    x = memory.put(given)
    comm.all_to_all(x, x)
    memory.holds(x, stacked(comm, exchanged, sizes, GARBAGE), "all_to_all in place")
    if memory.commits:
        x = memory.put(given)
        comm.all_to_all(x, x, commit=True)
        memory.holds(x, stacked(comm, exchanged, sizes, GARBAGE), "all_to_all on all or none")
    for root in members:
        out = memory.new(count * comm.size)
        comm.gather(memory.put(data(me, count)), root, out if me == root else None)
        memory.holds(out, all_blocks if me == root else UNTOUCHED, "gather")
        out = memory.new(count)
        comm.scatter(memory.put(given) if me == root else None, root, out)
        memory.holds(out, data(root, count, 10 * me), "scatter")


def unequal_blocks(comm: isthmus.Comm, memory: Memory, count: int, placed: bool) -> None:
    """The counts of holes are room where displacements are left out, and 0 where they are given."""
    me, members = comm.rank, comm.members
    sizes = [count + slot if slot in members or not placed else 0 for slot in range(comm.size)]
    gap = 3 if placed else 0
    displs = [sum(sizes[:slot]) + gap * slot for slot in range(comm.size)]
    extent = sum(sizes) + gap * comm.size

    def laid(blocks: dict[int, Any], hole: int, of: Sequence[int] = sizes, at: Sequence[int] = displs) -> Any:
        buffer = np.full(sum(of) + gap * comm.size, hole, np.int32)
        for slot, block in blocks.items():
            buffer[at[slot] : at[slot] + of[slot]] = block
        return buffer

    at = {"displs": displs} if placed else {}
    all_blocks = laid({s: data(s, sizes[s]) for s in members}, UNTOUCHED)
    out = memory.new(extent)
    comm.all_gather_v(memory.put(data(me, sizes[me])), sizes, out, **at)
    memory.holds(out, all_blocks, "all_gather_v")
    given = laid({d: data(me, sizes[d], 10 * d) for d in members}, GARBAGE)
    out = memory.new(sizes[me])
    comm.reduce_scatter_v(memory.put(given), sizes, "sum", out, **at)
    expected = np.sum([data(s, sizes[me], 10 * me) for s in members], axis=0, dtype=np.int32)
    memory.holds(out, expected, "reduce_scatter_v")
    theirs = [sizes[me] if slot in members or not placed else 0 for slot in range(comm.size)]  # all send me as much
    their_displs = [sum(theirs[:slot]) + gap * slot for slot in range(comm.size)]
    out = memory.new(sum(theirs) + gap * comm.size)
    both = {"send_displs": displs, "recv_displs": their_displs} if placed else {}
    comm.all_to_all_v(memory.put(given), sizes, theirs, out, **both)
    memory.holds(
        out, laid({s: data(s, sizes[me], 10 * me) for s in members}, UNTOUCHED, theirs, their_displs), "all_to_all_v"
    )
    for root in members:
        out = memory.new(extent)
        comm.gather_v(memory.put(data(me, sizes[me])), sizes, root, out if me == root else None, **at)
        memory.holds(out, all_blocks if me == root else UNTOUCHED, "gather_v")
        out = memory.new(sizes[me])
        comm.scatter_v(memory.put(given) if me == root else None, sizes, root, out, **at)
        memory.holds(out, data(root, sizes[me], 10 * me), "scatter_v")


def messages(comm: isthmus.Comm, memory: Memory, count: int) -> None:
    """Around the ring of the members, and to whoever receives from anybody."""
    me, members = comm.rank, comm.members
    place = members.index(me)
    after, before = members[(place + 1) % len(members)], members[place - 1]
    out = memory.new(count)
    with isthmus.group():
        comm.send(memory.put(data(me, count)), after)
        comm.recv(out, before)
    memory.holds(out, data(before, count), "send and recv")
    if len(members) > 1:
        if me == members[0]:
            comm.send(memory.put(data(me, count)), members[-1], 5)
        if me == members[-1]:
            assert comm.recv(out, tag=5) == members[0], "the sender is named by its slot"
        if me == members[0]:
            comm.send(memory.put(data(me, count)), members[-1], 6)
        if me == members[-1]:
            work = comm.recv(out, tag=6, async_op=True)
            work.wait()
            assert work.source == members[0]


def every_collective(comm: isthmus.Comm, counts: Sequence[int], devices: Sequence[int] = ()) -> None:
    """`devices`: the slots whose ranks work on one."""
    memory = Memory(comm, devices)
    for count in counts:
        single_blocks(comm, memory, count)
        equal_blocks(comm, memory, count)
        for placed in (False, True):
            unequal_blocks(comm, memory, count, placed)
        messages(comm, memory, count)
    x = np.full(7, comm.rank, np.float32)
    x = memory.put(x)
    comm.all_reduce(x, "avg")
    memory.holds(x, np.float32(sum(comm.members)) / np.float32(len(comm.members)), "avg counts ranks and not holes")


@pytest.mark.parametrize("gone", GONE, ids=str)
def test_every_collective_is_its_definition_over_the_slots_that_have_a_rank(
    zygote: Zygote, shape: str, gone: list[int]
) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        if me.rank in gone:
            return None
        rest = comm.shrink(gone, dense=False)
        every_collective(rest, (1, 300, 70_000))
        return rest.rank, rest.size, rest.members, [one["rank"] for one in rest.topology()["ranks"]]

    with job(zygote, 5, body, shape) as ranks:
        left = [rank for rank in range(5) if rank not in gone]
        assert results(ranks) == [None if r in gone else (r, 5, tuple(left), left) for r in range(5)]


def on_a_fleet(gone: list[int], devices: list[int], libraries: str) -> Any:
    comm = isthmus.init(settings={"CCL": libraries})
    if comm.rank in gone:
        return None
    rest = comm.shrink(gone, dense=False)
    every_collective(rest, (2, 20_000), devices)
    path = rest.explain("all_to_all", count=2, dtype="int32").data["path"]
    return rest.members, path


@pytest.mark.parametrize("gone", [[1], [0], [3], [1, 2]], ids=str)
@pytest.mark.parametrize(
    ("fleet", "devices", "bridge", "libraries"),
    [
        ("nvidia:4", 4, None, "auto"),
        ("amd:4", 4, "tcp", "auto"),
        ("ascend:4", 4, None, "auto"),
        ("nvidia:2,amd:2", 4, None, "auto"),
        ("nvidia:2,ascend:2", 4, "tcp", "auto"),
        ("nvidia:3,cpu:1", 3, None, "auto"),
        ("nvidia:2,amd:1,cpu:1", 3, None, "none"),  # what is small goes by one hop
    ],
)
def test_every_collective_of_devices_too(
    fleet: str, devices: int, bridge: str | None, libraries: str, gone: list[int]
) -> None:
    left = tuple(rank for rank in range(4) if rank not in gone)
    found = run_fleet(fleet, on_a_fleet, gone, list(range(devices)), libraries, bridge=bridge, init=False)
    path = "one hop" if libraries == "none" and len(left) > 1 else "plan"
    assert found == [None if rank in gone else (left, path) for rank in range(4)]


def test_after_a_loss_each_rank_keeps_its_number_and_errors_name_slots(zygote: Zygote, shape: str) -> None:
    """The second loss happens in the communicator with a hole: its number is a slot, in the text and in error.ranks."""

    def body(me: Me) -> Any:
        comm = me.init(name="job")
        me.send("ready")
        me.caught(lambda: forever(comm))
        comm.reconfigure(dense=False)
        found = comm.rank, comm.size, comm.members, comm.name
        me.send("again")
        lost = me.caught(lambda: forever(comm))
        out = comm.agree()[1]
        comm.reconfigure(dense=False)
        every_collective(comm, (100,))
        said = lost["kind"], lost["ranks"], "rank 3 (pid " in lost["text"]
        return found, said, out, (comm.rank, comm.size, comm.members)

    with job(zygote, 5, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGKILL)
        all_say([ranks[r] for r in (0, 2, 3, 4)], "again")
        ranks[3].signal(signal.SIGKILL)
        assert results([ranks[r] for r in (0, 2, 4)]) == [
            ((r, 5, (0, 2, 3, 4), "job"), ("PeerLostError", (3,), True), [3], (r, 5, (0, 2, 4))) for r in (0, 2, 4)
        ]


def test_a_call_to_a_hole_is_refused_and_lists_the_members(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        if me.rank == 1:
            return None
        rest = comm.shrink([1], dense=False)
        x, both = np.zeros(3, np.int32), np.zeros((4, 3), np.int32)
        said = [
            me.caught(call)["text"]
            for call in (
                lambda: rest.send(x, 1),
                lambda: rest.recv(x, 1),
                lambda: rest.broadcast(x, 1),
                lambda: rest.gather(x, 1),
                lambda: rest.scatter(both, 1, x),
                lambda: rest.reduce(x, 1),
                lambda: rest.shrink([1]),
                lambda: rest.reconfigure([1]),
                lambda: rest.agree(failed=[1]),
                lambda: rest.explain("broadcast", count=3, root=1),
            )
        ]
        outside = me.caught(lambda: rest.shrink([4]))["text"], me.caught(lambda: rest.reconfigure(members=[0, 1]))["text"]
        every_collective(rest, (5,))
        return said, outside

    with job(zygote, 4, body) as ranks:
        for found in results(ranks):
            if found is None:
                continue
            for text in found[0]:
                assert "slot 1 is a hole" in text and "the members are 0,2,3" in text, text
            assert "there is no rank 4 among 4" in found[1][0] and "there is no rank 1 among 4" in found[1][1], found[1]


def test_dense_numbers_close_the_holes_and_unlike_ones_are_refused(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        if me.rank in (0, 3):
            return None
        mixed = me.caught(lambda: comm.shrink([0, 3], dense=me.rank == 2))
        rest = comm.shrink([0, 3], dense=False)
        unlike = me.caught(lambda: rest.shrink(dense=me.rank != 4))
        closed = rest.shrink()
        every_collective(closed, (40,))
        kept, dense = (rest.rank, rest.members), (closed.rank, closed.size, closed.members)
        return mixed["kind"], mixed["text"], unlike["kind"], kept, dense

    with job(zygote, 5, body, shape) as ranks:
        found = results(ranks)
        for place, slot in enumerate((1, 2, 4)):
            kind, text, unlike, kept, closed = found[slot]
            assert kind == unlike == "MismatchError"
            assert "on rank 1 the ranks keep their numbers, on rank 2 they are numbered without gaps" in text, text
            assert kept == (slot, (1, 2, 4)) and closed == (place, 3, (0, 1, 2))


def test_newcomers_come_into_holes_and_behind_the_last_slot(zygote: Zygote, shape: str) -> None:
    """By a slot that is named, by the lowest hole, and where there are no more, behind."""

    def body(me: Me) -> Any:
        comm = me.init(name="job")
        first, second = shared_ticket(me, comm, 0), shared_ticket(me, comm, 0)
        me.send("ready")
        me.caught(lambda: forever(comm))
        me.hear()  # both have ended: else who is to end next may go on with the others for a moment
        comm.reconfigure(dense=False)
        lived = me.caught(lambda: comm.reconfigure(ticket=first, slots=[2], dense=False))["text"]
        comm.reconfigure(ticket=first, slots=[3], dense=False)
        found = [comm.members]
        every_collective(comm, (60,))
        grown = comm.grow(second, 2)
        found.append(grown.members)
        every_collective(grown, (60,))
        return lived, found, grown.rank, grown.size

    def third(me: Me) -> Any:
        comm = come(me)
        assert (comm.rank, comm.size, comm.members) == (3, 4, (0, 2, 3))
        every_collective(comm, (60,))
        grown = comm.grow(me.hear(), 2)
        every_collective(grown, (60,))
        return grown.rank, grown.members

    def later(me: Me) -> Any:
        comm = come(me)
        every_collective(comm, (60,))
        return comm.rank, comm.size, comm.members

    all_of_them = (0, 1, 2, 3, 4)
    with (
        job(zygote, 4, body, shape) as ranks,
        newcomers(zygote, 4, 1, third, shape) as (into_a_hole,),
        newcomers(zygote, 5, 2, later, shape) as (one, other),
    ):
        tickets = [tickets_of(ranks, 0) for _ in range(2)]
        all_say(ranks, "ready")
        for victim in (1, 3):
            ranks[victim].signal(signal.SIGKILL)
        for victim in (1, 3):
            ranks[victim].wait()
        for rank in (ranks[0], ranks[2]):
            rank.tell("go on")
        into_a_hole.tell(tickets[0])
        into_a_hole.tell(tickets[1])
        for new in (one, other):
            new.tell(tickets[1])
        for lived, found, rank, size in results([ranks[0], ranks[2]]):
            assert "slot 2 is not free, a rank lives there" in lived, lived
            assert found == [(0, 2, 3), all_of_them] and rank in (0, 2) and size == 5
        assert into_a_hole.result() == (3, all_of_them)
        assert sorted(results([one, other])) == [(1, 5, all_of_them), (4, 5, all_of_them)]


def test_lost_ranks_are_replaced_and_other_holes_stay(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        ticket = shared_ticket(me, comm, 3)
        if me.rank == 0:
            return None
        rest = comm.shrink([0], dense=False)
        me.send("ready")
        me.caught(lambda: forever(rest))
        whole = rest.replace([2], ticket)
        every_collective(whole, (60,))
        return whole.rank, whole.size, whole.members

    def spare(me: Me) -> Any:
        comm = come(me)
        every_collective(comm, (60,))
        return comm.rank, comm.size, comm.members

    with job(zygote, 4, body, shape) as ranks, newcomers(zygote, 4, 1, spare, shape) as (new,):
        ticket = tickets_of(ranks, 3)
        all_say(ranks[1:], "ready")
        ranks[2].signal(signal.SIGKILL)
        new.tell(ticket)
        assert new.result() == (2, 4, (1, 2, 3))
        assert results([ranks[1], ranks[3]]) == [(rank, 4, (1, 2, 3)) for rank in (1, 3)]


def test_it_is_split_agreed_on_exchanged_over_and_revoked_by_slots(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        if me.rank in (0, 2):
            return None
        rest = comm.shrink([0, 2], dense=False)
        part = rest.split(me.rank % 2, -me.rank)
        assert part is not None
        every_collective(part, (60,))
        agreed = rest.agree(3 if me.rank != 4 else 1)
        rest.barrier()  # who has revoked it ends the barrier of the others
        me.send("together")
        me.hear()
        if me.rank == 3:
            rest.revoke("enough")
        revoked = me.caught(lambda: forever(rest))["text"]
        left = rest.shrink(failed=[5] if me.rank == 1 else [], dense=False) if me.rank != 5 else None
        if left is not None:
            every_collective(left, (60,))
        return (part.rank, part.size, part.members), agreed, "rank 3 (pid " in revoked, left.members if left else None

    with job(zygote, 6, body, shape) as ranks:
        left = [ranks[r] for r in (1, 3, 4, 5)]
        all_say(left, "together")
        for rank in left:
            rank.tell("go on")
        odd = (0, 1, 2)
        expected = [
            ((2, 3, odd), (1, []), True, (1, 3, 4)),
            ((1, 3, odd), (1, []), True, (1, 3, 4)),
            ((0, 1, (0,)), (1, []), True, (1, 3, 4)),
            ((0, 3, odd), (1, []), True, None),
        ]
        assert results(left) == expected


def test_reports_speak_in_slots(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        if me.rank == 0:
            return None
        rest = comm.shrink([0], dense=False)
        x = np.ones(4, np.float32)
        rest.broadcast(x, 3)
        topology, dump = rest.topology(), rest.dump()
        plan = rest.explain("broadcast", count=1 << 18, root=3)
        return (
            [topology[key] for key in ("rank", "size", "members")],
            sorted(link["to"] for link in topology["links"]),
            [dump[key] for key in ("rank", "size")],
            [entry["root"] for entry in dump["entries"] if entry["collective"] == "broadcast"],
            (plan.data["rank"], plan.data["root"], f"broadcast, rank {me.rank} of 3" in str(plan)),
            rest.explain("send", count=4, root=1).data["peer"],
            repr(rest),
        )

    with job(zygote, 4, body, shape) as ranks:
        for rank, found in enumerate(results(ranks)):
            if rank:
                said = f"<isthmus.Comm 'job/shrink' rank {rank} of 4>"
                there = [1, 2, 3]
                assert found == ([rank, 4, there], there, [rank, 4], [3], (rank, 3, True), 1, said)
