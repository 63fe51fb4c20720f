"""A failed operation leaves what it writes as it was, where the call says keep_input=True."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus import launch
from jobs import Me, Zygote, all_say, job, results

SIZES = {"small": 4, "large": 1 << 17}


def numbers(me: Me, count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float64) + me.rank


@pytest.mark.parametrize("how", ["blocking", "async"])
@pytest.mark.parametrize("count", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("call", ["all_reduce", "all_to_all"])
def test_what_fails_in_place_leaves_its_input_and_runs_again_on_what_is_left(
    zygote: Zygote, shape: str, call: str, count: int, how: str
) -> None:
    """Rank 1 is killed with the others in the operation, for which it has not come."""

    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        x, before = numbers(me, count * 6), numbers(me, count * 6)
        out = {"out": x} if call == "all_to_all" else {}
        me.send("ready")
        if me.rank == 1:
            me.hear()
        if how == "async":
            work = getattr(comm, call)(x, keep_input=True, async_op=True, **out)
            lost = me.caught(work.wait)
        else:
            lost = me.caught(lambda: getattr(comm, call)(x, keep_input=True, **out))
        kept = bool((x == before).all())
        rest = comm.shrink()
        getattr(rest, call)(x, keep_input=True, **out)
        return lost["kind"], kept, float(x.sum()), float(before.sum())

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGKILL)
        said = results([ranks[0], ranks[2]])
        sums = [before for *_, before in said]
        for kind, kept, total, _ in said:
            assert kind == "PeerLostError" and kept
            assert call != "all_reduce" or total == sum(sums)


@pytest.mark.parametrize("count", SIZES.values(), ids=SIZES)
def test_a_broadcast_whose_root_is_lost_and_a_reduce_on_its_root_leave_what_was_there(
    zygote: Zygote, shape: str, count: int
) -> None:
    """Rank 1 is the root of the broadcast. (Who only gives may be done before the loss is known.)"""

    def body(me: Me) -> Any:
        comm, second = me.init(name="first"), me.init(name="second", address=me.hear())
        comm.barrier()
        x, y = numbers(me, count), numbers(me, count)
        me.send("ready")
        if me.rank == 1:
            me.hear()
        lost = [me.caught(lambda: comm.broadcast(x, 1, keep_input=True))["kind"]]
        if me.rank == 0:
            lost.append(me.caught(lambda: second.reduce(y, 0, keep_input=True))["kind"])
        return lost, bool((x == numbers(me, count)).all()), bool((y == numbers(me, count)).all())

    with job(zygote, 3, body, shape) as ranks:
        address = f"127.0.0.1:{launch.free_port()}"
        for rank in ranks:
            rank.tell(address)
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGKILL)
        for lost, *kept in results([ranks[0], ranks[2]]):
            assert set(lost) == {"PeerLostError"} and kept == [True, True]


def test_what_fails_in_the_middle_is_restored(zygote: Zygote, shape: str) -> None:
    """Of a long all_reduce whose ranks are all in it: one is killed at some time within it, again and again."""

    def body(me: Me) -> Any:
        comm = me.init()
        x = numbers(me, 1 << 20)
        me.send("ready")
        done = 0
        while True:
            before = x.copy()
            try:
                comm.all_reduce(x, "max", keep_input=True)
            except isthmus.PeerLostError:
                return bool((x == before).all()), done > 0
            done += 1
            x += me.rank + 1

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[2].signal(signal.SIGKILL)
        for kept, _ in results(ranks[:2]):
            assert kept


def test_an_operation_that_ends_well_is_as_without_it(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x = np.full(300_000, 1.0 + me.rank)
        comm.all_reduce(x, keep_input=True)
        out = np.zeros(3)
        comm.all_reduce(np.ones(3), out=out, keep_input=True)
        return float(x[0]), float(x[-1]), out.tolist()

    with job(zygote, 2, body, shape) as ranks:
        assert results(ranks) == [(3.0, 3.0, [2.0] * 3)] * 2


def test_in_a_group_and_for_a_message_nothing_is_kept(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x = np.ones(3)

        def grouped() -> None:
            with isthmus.group():
                comm.all_reduce(x, keep_input=True)

        said = me.caught(grouped)
        comm.all_reduce(x)
        return said["kind"], said["text"], x.tolist()

    with job(zygote, 2, body) as ranks:
        for kind, text, x in results(ranks):
            assert kind == "UnsupportedError" and "in a group" in text and x == [2.0] * 3, text
