"""Abort and destroy: local, from anywhere, in any order, with work pending, and nothing is left afterwards."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import isthmus
from events import until
from jobs import Me, Zygote, all_say, job, names_in_dev_shm, results
from patience import SOON, patient


@pytest.mark.parametrize("count", [4, 4 << 20], ids=["small", "large"])
def test_abort_from_another_thread_ends_the_call(zygote: Zygote, shape: str, count: int) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("joined")
        if me.rank == 0:
            me.hear()  # all have left the barrier, which would fail otherwise
            threading.Timer(0.2, comm.abort, ("the loss is NaN",)).start()
        if me.rank == 2:  # learns of it in its next operation
            me.hear()
        # Rank 2 may come before it is told: of what the others left in shared memory it makes this sum, and not the next.
        failure = me.caught(lambda: [comm.all_reduce(np.ones(count)) for _ in range(2)])
        me.send("failed")
        comm.abort("again")  # idempotent
        return failure

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "joined")
        ranks[0].tell("go")
        all_say(ranks[:2], "failed")
        ranks[2].tell("go")
        ranks[2].expect("failed")
        for failure in results(ranks):
            assert failure["kind"] == "AbortedError", failure
            assert "the loss is NaN" in failure["text"] and "rank 0" in failure["text"], failure


def test_abort_ends_pending_work_of_every_kind(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        x, y = np.ones(1 << 20), np.empty(1 << 20)
        if me.rank == 0:
            me.hear()
            comm.abort("enough")
            return [me.caught(comm.barrier)]
        works = [
            comm.all_reduce(x, async_op=True),
            comm.recv(y, 0, 3, async_op=True),
            comm.recv(np.empty(4), isthmus.ANY_SOURCE, 4, async_op=True),
            comm.broadcast(np.ones(8), async_op=True),
        ]
        me.send("pending")
        return [me.caught(work.wait) for work in works]

    with job(zygote, 2, body, shape) as ranks:
        ranks[1].expect("pending")
        ranks[0].tell("go")
        for failure in itertools.chain.from_iterable(results(ranks)):
            assert failure["kind"] == "AbortedError" and "enough" in failure["text"], failure


def test_revoke_by_any_thread_ends_what_is_pending_on_all_ranks_with_who_and_why(zygote: Zygote, shape: str) -> None:
    """It returns while another thread of the rank is in an operation, also where a rank is stopped and takes no word."""

    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        if me.rank == 2:
            me.send("pending")
            me.hear()
            return [me.caught(lambda: comm.all_reduce(np.ones(1 << 20)))]
        x, y = np.ones(1 << 20), np.empty(1 << 20)
        works = [comm.all_reduce(x, async_op=True), comm.recv(y, 2, 3, async_op=True)]
        me.send("pending")
        returned = []
        if me.rank == 1:
            me.hear()
            inside = threading.Thread(target=lambda: returned.append(me.caught(works[0].wait)))
            inside.start()
            other = threading.Thread(target=lambda: returned.append(comm.revoke("the loss is NaN")))
            other.start()
            other.join()
            me.send("revoked", works[1].exception is not None or comm.error is not None)
            inside.join()
            comm.revoke("again")
        return [me.caught(work.wait) for work in works] + [me.caught(comm.barrier)]

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "pending")
        ranks[2].signal(signal.SIGSTOP)
        ranks[1].tell("revoke")
        assert ranks[1].expect("revoked")
        said = results(ranks[:2])
        ranks[2].signal(signal.SIGCONT)
        ranks[2].tell("go on")
        for failure in itertools.chain(*said, ranks[2].result()):
            assert failure["kind"] == "AbortedError", failure
            assert "revoked by rank 1 (" in failure["text"] and failure["text"].endswith("the loss is NaN"), failure


def test_after_a_revoke_the_ranks_agree_and_go_on_by_a_shrink(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("joined")
        if me.rank == 0:
            me.hear()  # all have left the barrier, which would fail otherwise
            comm.revoke("enough")
        failure = me.caught(lambda: [comm.barrier() for _ in range(1000)])
        return failure["kind"], comm.agree(3), comm.shrink().size

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "joined")
        ranks[0].tell("go")
        assert results(ranks) == [("AbortedError", (3, []), 3)] * 3


def test_aborting_one_communicator_leaves_the_others_untouched(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        doomed = comm.split(0, name="doomed")
        assert doomed is not None
        x = np.ones(1 << 20)
        work = comm.all_reduce(x, async_op=True)
        if me.rank == 0:
            doomed.abort("doomed")
        failure = me.caught(lambda: [doomed.barrier() for _ in range(1000)])
        work.wait()
        assert (x == 3).all()
        for _ in range(100):
            y = np.full(1000, 1.0)
            comm.all_reduce(y)
            assert (y == 3).all()
        assert comm.error is None
        fresh = comm.split(0)
        assert fresh is not None
        fresh.barrier()
        return failure

    with job(zygote, 3, body, shape) as ranks:
        for failure in results(ranks):
            assert failure["kind"] == "AbortedError" and "doomed" in failure["text"], failure


def test_a_timeout_of_one_communicator_leaves_the_others_untouched(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        doomed = comm.split(0, name="doomed")
        assert doomed is not None
        failure = None
        if me.rank == 0:
            failure = me.caught(lambda: doomed.barrier(timeout=0.3))
        x = np.ones(100_000)
        comm.all_reduce(x)
        assert (x == 2).all()
        return failure

    with job(zygote, 2, body, shape) as ranks:
        assert results(ranks)[0]["kind"] == "TimeoutError"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_destroy_in_any_order_with_work_pending(zygote: Zygote, shape: str, order: tuple[int, ...]) -> None:
    """Each rank destroys its communicators in its own order while receives that nobody answers are pending."""

    def body(me: Me) -> Any:
        comm = me.init()
        comms = [comm, comm.split(0), comm.split(0)]
        for one in comms:
            assert one is not None
            one.set_timeout(0.3)
        works = [c.recv(np.empty(1 << 16), isthmus.ANY_SOURCE, 9, async_op=True) for c in comms if c is not None]
        begin = time.monotonic()
        for i in order if me.rank == 0 else reversed(order):
            one = comms[i]
            assert one is not None
            one.destroy()
        took = time.monotonic() - begin
        return took, [me.caught(work.wait)["kind"] for work in works]

    with job(zygote, 2, body, shape) as ranks:
        for took, kinds in results(ranks):
            assert took < 3 * 0.3 + SOON, took
            assert all(kind in ("TimeoutError", "AbortedError", "PeerLostError") for kind in kinds), kinds


def test_receives_that_wait_when_all_leave_hold_up_nobodys_end(zygote: Zygote, shape: str) -> None:
    """From one rank and from anybody, in other threads; the communicator's deadline is far away."""

    def body(me: Me) -> Any:
        comm = me.init(timeout=10 * SOON)
        comm.barrier()
        works = [comm.recv(np.ones(4), source, 7, async_op=True) for source in (1 - me.rank, isthmus.ANY_SOURCE)]
        begin = time.monotonic()
        comm.destroy()
        took = time.monotonic() - begin
        return took, [me.caught(work.wait)["text"] for work in works]

    with job(zygote, 2, body, shape) as ranks:
        for took, texts in results(ranks):
            assert took < SOON
            assert all("recv" in text and ("destroyed" in text) for text in texts), texts


def test_a_receive_from_anybody_ends_when_all_others_have_left(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(timeout=10 * SOON)
        comm.barrier()
        if me.rank > 0:
            comm.destroy()
            return None
        begin = time.monotonic()
        failure = me.caught(lambda: comm.recv(np.ones(4), isthmus.ANY_SOURCE, 7))
        return time.monotonic() - begin, failure

    with job(zygote, 3, body, shape) as ranks:
        took, failure = results(ranks)[0]
        assert took < SOON and failure["kind"] == "PeerLostError", failure
        assert "all other ranks have destroyed their side of the communicator" in failure["text"], failure
        assert "did not finish within" not in failure["text"], failure


def test_a_rank_that_leaves_with_a_receive_waiting_fails_nobody_else(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        if me.rank == 0:
            waits = comm.recv(np.ones(4), 1, 7, async_op=True)
            comm.destroy()
            me.send("left")
            return me.caught(waits.wait)["text"]
        me.hear()
        x = np.full(3, float(me.rank))
        if me.rank == 1:
            comm.send(x, 2, 3)
            return 0.0
        comm.recv(x, 1, 3)
        return float(x[0])

    with job(zygote, 3, body, shape) as ranks:
        ranks[0].expect("left")
        for rank in ranks[1:]:
            rank.tell("go")
        texts = results(ranks)
        assert "destroyed on rank 0" in texts[0] and texts[1:] == [0.0, 1.0]


def test_a_rank_that_destroyed_is_named_by_those_that_go_on(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("met")  # else a rank may still be in the barrier when the others' failure ends it
        if me.rank == 1:
            me.hear()
            comm.destroy()
            return None
        return me.caught(lambda: comm.all_reduce(np.ones(100)))

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "met")
        ranks[1].tell("destroy")
        for failure in (ranks[0].result(), ranks[2].result()):
            assert failure["kind"] == "PeerLostError", failure
            assert "rank 1" in failure["text"], failure


@pytest.mark.parametrize("count", [4, 1 << 20], ids=["one hop", "a plan"])
def test_a_rank_whose_mailbox_is_given_back_is_named_by_those_that_go_on(zygote: Zygote, shape: str, count: int) -> None:
    def body(me: Me) -> Any:
        whole = me.init()
        part = whole.split(0)
        assert part is not None
        part.all_reduce(np.ones(1 << 20))
        whole.barrier()
        if me.rank == 1:
            part.destroy()
            until(lambda: isthmus.context_stats()["leaving"] == 0)
        whole.barrier()
        return None if me.rank == 1 else me.caught(lambda: part.all_reduce(np.ones(count)))

    with job(zygote, 3, body, shape) as ranks:
        for failure in (ranks[0].result(), ranks[2].result()):
            assert failure["kind"] == "PeerLostError" and failure["took"] < SOON, failure
            assert "rank 1" in failure["text"] and "has destroyed its side" in failure["text"], failure
        ranks[1].result()


def test_a_call_takes_nothing_of_another_communicator_that_has_the_mailbox_of_one_that_ended(
    zygote: Zygote, shape: str
) -> None:
    def body(me: Me) -> Any:
        whole = me.init()
        left = whole.split(0 if me.rank < 2 else -1)
        if me.rank == 1:
            assert left is not None
            left.destroy()
            until(lambda: isthmus.context_stats()["leaving"] == 0)
        right = whole.split(0 if me.rank > 0 else -1)
        ones = np.ones(4)
        if right is not None:
            right.all_reduce(ones)
        whole.barrier()
        if me.rank > 0:
            return None
        assert left is not None
        failure = me.caught(lambda: left.all_reduce(ones))
        return failure, ones.tolist()

    with job(zygote, 3, body, shape) as ranks:
        failure, left = ranks[0].result()
        assert failure["kind"] == "PeerLostError" and "rank 1" in failure["text"], failure
        assert left == [1.0] * 4
        for rank in ranks[1:]:
            rank.result()


def test_a_rank_may_leave_while_others_still_read_its_last_operation(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        for count in (10, 1 << 20):
            comm = me.init() if count == 10 else me.comms[0].split(0)
            assert comm is not None
            x = np.ones(count)
            comm.broadcast(x if me.rank == 0 else x * 0, 0)
            comm.all_reduce(x)
            assert (x == 3).all()
            if count != 10:
                comm.destroy()
        return None

    with job(zygote, 3, body, shape) as ranks:
        results(ranks)


def test_use_after_destroy(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        comm.destroy()
        calls = (comm.barrier, lambda: comm.all_reduce(np.ones(2)), lambda: comm.split(0), comm.topology, comm.dump)
        return [me.caught(call) for call in calls]

    with job(zygote, 2, body, shape) as ranks:
        for failure in itertools.chain.from_iterable(results(ranks)):
            assert failure["kind"] == "ArgumentError" and "destroyed" in failure["text"], failure


def descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # of the listing itself
    return found


class Here:
    """What this process holds: descriptors, threads, mappings of shared memory."""

    def __init__(self) -> None:
        self.descriptors, self.threads = descriptors(), set(os.listdir("/proc/self/task"))
        with open("/proc/self/maps") as maps:
            self.mappings = sum("memfd" in line for line in maps)

    def leftovers(self) -> Any:
        """What is there now and was not there then. Threads that end may be listed a moment longer, even joined ones, and
        a context may be deleted by a thread of its own."""
        deadline = time.monotonic() + SOON
        while True:
            now = Here()
            left = (
                {name: there for name, there in now.descriptors.items() if name not in self.descriptors},
                sorted(now.threads - self.threads),
                now.mappings - self.mappings,
            )
            if left == NOTHING or time.monotonic() > deadline:
                return left
            time.sleep(0.01)


NOTHING: Any = ({}, [], 0)


def use_and_destroy(me: Me) -> None:
    comm = me.init()
    part = comm.split(0)
    assert part is not None
    part.all_reduce(np.ones(1 << 18))
    comm.all_to_all(np.ones(1 << 12))
    comm.barrier()
    part.destroy()
    comm.destroy()


def use_and_abort(me: Me) -> None:
    comm = me.init()
    if me.rank == 0:
        me.caught(lambda: comm.all_reduce(np.ones(1 << 18)))
    else:
        time.sleep(0.1)
        comm.abort("enough")
    comm.destroy()


def fail_to_init(me: Me) -> None:
    me.caught(lambda: isthmus.init(me.rank, 3, **{**me.options, "timeout": patient(0.5)}))  # there is no rank 2


@pytest.mark.parametrize("use", [use_and_destroy, use_and_abort, fail_to_init])
def test_destroy_leaves_nothing(zygote: Zygote, shape: str, use: Any) -> None:
    def body(me: Me) -> Any:
        before = Here()
        use(me)
        return before.leftovers()

    with job(zygote, 2, body, shape) as ranks:
        for left in results(ranks):
            assert left == NOTHING, left
    assert not names_in_dev_shm(ranks)


def test_init_and_destroy_many_times_does_not_grow(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        before = Here()
        for i in range(8):
            comm = isthmus.init(me.rank, me.world, **{**me.options, "address": me.hear()})
            comm.all_reduce(np.ones(1000))
            comm.destroy()
            left = before.leftovers()
            assert left == NOTHING, (i, left)
            me.send("round", i)

    from isthmus import launch

    with job(zygote, 2, body, shape) as ranks:
        for _ in range(8):
            address = f"127.0.0.1:{launch.free_port()}"
            for rank in ranks:
                rank.tell(address)
            all_say(ranks, "round")
        results(ranks)
