"""commit=True: an operation is done on all ranks, or on none that lives, and then its input is there again."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import pytest

import isthmus
from jobs import DEADLINE, Me, Rank, Zygote, all_say, job, results, total, until_failed
from patience import SOON, patient
from test_abort_meanwhile import in_it


def numbers(me: Me, count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float64) + me.rank


def test_one_that_is_done_on_all_is_as_without_it(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x, out, y = np.full(300_000, 1.0 + me.rank), np.zeros(3), np.full(6, 1.0 + me.rank)
        comm.all_reduce(x, commit=True)
        comm.all_reduce(np.ones(3), out=out, commit=True)
        comm.broadcast(y, 1, commit=True)
        comm.all_to_all(numbers(me, 6), commit=True)
        root = comm.reduce(np.ones(4), 2, commit=True)
        return float(x[0]), float(x[-1]), out.tolist(), y.tolist(), root is None or root.tolist(), total(comm, me)

    with job(zygote, 3, body, shape) as ranks:
        found = results(ranks)
        assert [one[:4] for one in found] == [(6.0, 6.0, [3.0] * 3, [2.0] * 6)] * 3
        assert [one[4] for one in found] == [True, True, [3.0] * 4] and [one[5] for one in found] == [3.0] * 3


def go_on(ranks: list[Rank]) -> None:
    all_say(ranks, "out")
    for rank in ranks:
        rank.tell("go on")


def test_what_has_ended_well_here_is_undone_where_a_rank_is_killed_that_had_not_come(zygote: Zygote, shape: str) -> None:
    """A broadcast ends on its root, and on each rank that has heard it, whether or not rank 2 has called it."""

    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("out")  # who has left a barrier may fail before the others have
        me.hear()
        x = numbers(me, 4)
        if me.rank == 2:
            in_it(comm, me)
            me.send("the root waits")
        if me.rank > 1:
            me.hear()
            until_failed(comm)  # else rank 2 may still count as one that has said its word
        lost = me.caught(lambda: comm.broadcast(x, 0, commit=True))
        kept = x.tolist() == numbers(me, 4).tolist()
        rest = comm.shrink()
        rest.broadcast(x, 0, commit=True)
        return lost["kind"], lost["ranks"], "ended well here" in lost["text"], kept, x.tolist()

    with job(zygote, 4, body, shape) as ranks:
        go_on(ranks)
        ranks[2].expect("the root waits")
        ranks[2].signal(signal.SIGKILL)
        ranks[3].tell("come")
        found = results([ranks[0], ranks[1], ranks[3]])
        assert [(kind, lost, kept, x) for kind, lost, _, kept, x in found] == [
            ("PeerLostError", (2,), True, [0.0, 1.0, 2.0, 3.0])
        ] * 3
        assert found[0][2], "it had ended well on the root"


@pytest.mark.parametrize("call", ["all_reduce", "all_to_all"])
@pytest.mark.parametrize("count", [12, 12 << 14], ids=["small", "large"])
def test_where_a_rank_is_killed_in_the_middle_all_others_have_done_as_many(
    zygote: Zygote, shape: str, call: str, count: int
) -> None:
    """One after the other until rank 2 is killed at some time. The others have done as many, and do the next one again."""

    def body(me: Me) -> Any:
        comm = me.init()
        x = numbers(me, count)
        out = {"out": x} if call == "all_to_all" else {}
        done = 0
        while True:
            before = x.copy()
            try:
                getattr(comm, call)(x, commit=True, **out)
            except isthmus.PeerLostError as error:
                ranks = error.ranks
                break
            done += 1
            if me.rank == 0 and done == 3:
                me.send("stepped")
            if call == "all_reduce":
                x /= comm.size
        kept = bool((x == before).all())
        rest = comm.shrink()
        getattr(rest, call)(x, commit=True, **out)
        return kept, ranks, done, rest.size

    with job(zygote, 4, body, shape) as ranks:
        ranks[0].expect("stepped")
        ranks[2].signal(signal.SIGKILL)
        found = results([ranks[0], ranks[1], ranks[3]])
        assert [one[0] for one in found] == [True] * 3, "the input is there again"
        assert {one[1] for one in found} == {(2,)} and {one[3] for one in found} == {3}
        assert len({one[2] for one in found}) == 1 and found[0][2] >= 3, "as many operations on each"


@pytest.mark.parametrize("how", ["has not called", "is stopped"])
def test_one_that_does_not_come_is_named_and_hears_that_it_was_left_out(zygote: Zygote, shape: str, how: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        x = numbers(me, 4)
        me.send("ready")
        me.hear()
        if me.rank == 2:
            me.hear()
        said = me.caught(lambda: comm.broadcast(x, 0, commit=True, timeout=patient(2)))
        kept = x.tolist() == numbers(me, 4).tolist()
        size = comm.shrink().size if me.rank != 2 else None
        return said["kind"], said["ranks"], kept, size

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        if how == "is stopped":
            ranks[2].signal(signal.SIGSTOP)
        for rank in ranks:
            rank.tell("go on")
        for kind, *found in results([rank for rank in ranks if rank.rank != 2]):  # one that needs rank 2 itself is late
            assert kind in ("PeerLostError", "TimeoutError") and found == [(2,), True, 3]
        if how == "is stopped":
            ranks[2].signal(signal.SIGCONT)
        ranks[2].tell("come")
        kind, _, kept, _ = ranks[2].result()
        assert kind in ("AbortedError", "PeerLostError", "TimeoutError") and kept


def test_a_rank_that_hears_of_a_loss_by_another_call_and_shrinks_meets_those_that_were_in_one(
    zygote: Zygote, shape: str
) -> None:
    """Rank 0 waits for a message meanwhile: the agreement of rank 1 is the first one of rank 0's shrink."""

    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("ready")
        if me.rank == 2:
            me.hear()
        x = numbers(me, 4)
        said = me.caught(lambda: comm.all_reduce(x, commit=True) if me.rank == 1 else comm.recv(x, 2))
        rest = comm.shrink()
        return said["kind"], rest.size, total(rest, me)

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[2].signal(signal.SIGKILL)
        assert results(ranks[:2]) == [("PeerLostError", 2, 1.0)] * 2


def test_a_rank_that_makes_another_call_in_its_place_is_no_agreement(zygote: Zygote, shape: str) -> None:
    """Rank 1 does not come to it: it agrees on something of its own. The others undo it, and the communicator has failed."""

    def body(me: Me) -> Any:
        comm = me.init()
        x = numbers(me, 4)
        if me.rank == 1:
            comm.agree(3)
            return None
        said = me.caught(lambda: comm.broadcast(x, 0, commit=True))
        return said["kind"], "another call" in said["text"], x.tolist() == numbers(me, 4).tolist(), comm.error is not None

    with job(zygote, 3, body, shape) as ranks:
        found = results(ranks)
        assert [found[0], found[2]] == [("MismatchError", True, True, True)] * 2


def test_where_one_rank_alone_gives_it_all_hear_at_once_that_the_calls_differ(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x = numbers(me, 4)
        said = me.caught(lambda: [comm.barrier(), comm.all_reduce(x, commit=me.rank == 1), comm.barrier()])
        undone = me.rank != 1 or x.tolist() == numbers(me, 4).tolist()
        return said["kind"], ", commit)" in said["text"], said["took"] < SOON, undone

    with job(zygote, 3, body, shape) as ranks:
        assert results(ranks) == [("MismatchError", True, True, True)] * 3


def test_threads_of_one_rank_have_one_at_a_time(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        arrays = [np.ones(4) for _ in range(20)]

        def half(of: list[np.ndarray]) -> None:
            for x in of:
                comm.all_reduce(x, commit=True)

        threads = [threading.Thread(target=half, args=(arrays[i::2],)) for i in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return all(x.tolist() == [2.0] * 4 for x in arrays)

    with job(zygote, 2, body) as ranks:
        assert results(ranks) == [True, True]


def test_what_it_cannot_be_with_is_refused_and_nothing_has_begun(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x = np.ones(3)

        def grouped() -> None:
            with isthmus.group():
                comm.all_reduce(x, commit=True)

        said = [me.caught(grouped), me.caught(lambda: comm.all_reduce(x, commit=True, async_op=True))]
        comm.all_reduce(x)
        return [(one["kind"], one["text"]) for one in said], x.tolist()

    with job(zygote, 2, body) as ranks:
        for (group, alone), x in results(ranks):
            assert group[0] == alone[0] == "UnsupportedError" and "group" in group[1] and "async_op" in alone[1]
            assert x == [2.0] * 3


def test_ctrl_c_ends_a_wait_for_the_others_and_theirs_at_once(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("out")
        me.hear()
        x = numbers(me, 4)
        if me.rank == 2:
            in_it(comm, me)
            me.send("the root waits")
        if me.rank > 1:
            me.hear()
            return None
        said = me.caught(lambda: comm.broadcast(x, 0, commit=True))
        return said["kind"], said["took"] < DEADLINE, x.tolist() == numbers(me, 4).tolist()

    with job(zygote, 4, body, shape) as ranks:
        go_on(ranks)
        ranks[2].expect("the root waits")
        ranks[0].signal(signal.SIGINT)
        assert results(ranks[:2]) == [("KeyboardInterrupt", True, True), ("InterruptedError", True, True)]
        for rank in ranks[2:]:
            rank.tell("end")


def test_after_one_that_failed_the_next_ends_at_once_also_where_nobody_else_calls(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("ready")
        first = me.caught(lambda: [comm.all_reduce(np.ones(200_000, np.float32), "max", commit=True) for _ in range(10**6)])
        again = me.caught(lambda: comm.all_reduce(np.ones(4), commit=True)) if me.rank == 0 else {"kind": None, "took": 0}
        me.send("tried")
        me.hear()
        return first["kind"], again["kind"], again["took"] < DEADLINE / 4

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGKILL)
        left = [ranks[0], ranks[2]]
        all_say(left, "tried")
        for rank in left:
            rank.tell("end")
        assert results(left) == [("PeerLostError", "PeerLostError", True), ("PeerLostError", None, True)]
