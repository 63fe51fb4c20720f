"""What goes wrong around a vendor's library that blocks and has no abort (oneCCL): our deadlines and errors hold all the
same, a thread that is stuck inside it is left behind, and the process ends."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus import launch
from jobs import ONECCL, Me, Zygote, all_say, job, until_failed
from patience import SOON, patient

pytestmark = pytest.mark.usefixtures("oneccl")
SHORT = 0.5  # the deadline of one operation, to which all others have come before it begins


def loop(me: Me, count: int) -> dict[str, Any]:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python's own is to ignore it, and a program in C has this
    errors = tempfile.TemporaryFile()
    os.dup2(errors.fileno(), 2)
    os.environ["ISTHMUS_LOG"] = "warn"
    settings = {"CCL_LIBRARY": str(ONECCL)} if me.options["island"].isupper() else {}
    alone = isthmus.init(0, 1, unique_id=isthmus.unique_id(), settings=settings)  # it keeps the counters
    comm = me.init()
    x = np.ones(count, np.float32)
    me.send("ready")

    def forever() -> None:
        while True:
            comm.all_reduce(x, "max")
            comm.broadcast(x, 0)

    first = me.caught(forever)
    again = me.caught(comm.barrier)
    assert again["kind"] == first["kind"] and again["took"] < SOON, again  # at once, not at its deadline
    begin = time.monotonic()
    comm.destroy()
    first["destroyed"] = time.monotonic() - begin
    first["abandoned"] = isthmus.context_stats()["abandoned_threads"]
    alone.destroy()
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL
    errors.seek(0)
    first["warnings"] = [line for line in errors.read().decode().splitlines() if "a thread of stream" in line]
    return first


@pytest.mark.product(8)
@pytest.mark.parametrize(("islands", "victim"), [("AA", 1), ("AAbb", 0), ("AAbb", 1), ("AAbb", 3), ("ABAB", 2)])
@pytest.mark.parametrize("count", [4, 1 << 20], ids=["small", "large"])
def test_a_killed_rank_is_named_and_a_stuck_thread_left_behind(
    zygote: Zygote, islands: str, victim: int, count: int
) -> None:
    with job(zygote, len(islands), lambda me: loop(me, count), islands) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.2)
        ranks[victim].signal(signal.SIGKILL)
        for rank in ranks:
            if rank.rank == victim:
                continue
            report = rank.result()
            assert report["kind"] == "PeerLostError", report
            assert f"rank {victim}" in report["text"], report
            assert report["destroyed"] < SOON, report
            assert report["abandoned"] <= (islands[rank.rank].isupper() and 1), report
            assert len(report["warnings"]) == report["abandoned"], report
            for line in report["warnings"]:
                assert re.search(r"stream 'host' is stuck in (all_reduce|reduce_scatter|all_gather|broadcast) ", line), line


@pytest.mark.product(8)
@pytest.mark.parametrize(
    ("islands", "late", "first"),
    [("AA", 1, 0), ("AAb", 1, 0), ("AAb", 1, 2), ("AAb", 2, 0), ("AAb", 2, 1), ("bAA", 1, 0), ("bAA", 1, 2)],
)
@pytest.mark.parametrize("count", [7, 200_000], ids=["small", "large"])
def test_a_rank_that_does_not_call_is_named_at_the_deadline(
    zygote: Zygote, islands: str, late: int, first: int, count: int
) -> None:
    """Also by those who wait in the library for a rank of theirs that waits for another island's.

    The deadline is that of rank `first`, and what it says is everybody's error.
    """

    def body(me: Me) -> Any:
        settings = {"HEARTBEAT_MS": "5000"}  # who is late with an answer has a second for it
        if me.options["island"].isupper():
            settings |= {"CCL": "oneccl", "CCL_LIBRARY": str(ONECCL)}
        comm = me.init(settings=settings)
        x = np.ones(count, np.float32)
        comm.all_reduce(x)
        me.hear()
        if me.rank == late:
            until_failed(comm)  # before that it may make the sum of what the others left in shared memory
            return me.caught(lambda: comm.all_reduce(x))
        work = comm.all_reduce(x, timeout=patient(3) if me.rank == first else None, async_op=True)
        me.send("called")
        return me.caught(work.wait)

    with job(zygote, len(islands), body, islands) as ranks:
        for rank in (*(rank for rank in ranks if rank.rank not in (first, late)), ranks[first]):
            rank.tell("go")
            rank.expect("called")
        reports = [rank.result() for rank in ranks if rank.rank != late]
        ranks[late].tell("go")
        reports.append(ranks[late].result())
        for report in reports:
            assert f"rank {late}" in report["text"] and "has not called it" in report["text"], report
        assert {report["kind"] for report in reports} == {"TimeoutError"}, reports


def test_a_stopped_rank_is_named_at_the_deadline(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x = np.ones(200_000, np.float32)
        comm.all_reduce(x)
        me.send("ready")
        me.hear()
        work = comm.all_reduce(x, timeout=SHORT if me.rank == 0 else None, async_op=True)
        me.send("called")
        return me.caught(work.wait)

    with job(zygote, 3, body, "AAb") as ranks:
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGSTOP)
        for rank in (ranks[2], ranks[0]):
            rank.tell("go")
            rank.expect("called")
        for rank in (ranks[0], ranks[2]):
            report = rank.result()
            assert "rank 1" in report["text"] and "does not answer" in report["text"], report
            assert report["took"] < SHORT + SOON, report


@pytest.mark.parametrize("islands", ["AA", "AAb"])
def test_ranks_that_call_different_things_are_told_who_called_what(zygote: Zygote, islands: str) -> None:
    """The library compares nothing: ranks of one island that ask for another sum would both be given one."""

    def body(me: Me) -> Any:
        comm = me.init()
        x = np.ones(50_000, np.float32)

        def calls() -> None:
            comm.all_reduce(x, "max" if me.rank == 1 else "min")
            comm.all_reduce(x)

        return me.caught(calls)

    with job(zygote, len(islands), body, islands) as ranks:
        for rank in ranks:
            report = rank.result()
            assert report["kind"] == "MismatchError" and "max" in report["text"] and "min" in report["text"], report


def test_counts_of_blocks_that_a_library_moves_are_compared(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        counts = [100, 200] if me.rank == 0 else [101, 200]

        def both() -> None:
            comm.reduce_scatter_v(np.ones(sum(counts), np.float32), counts)
            comm.barrier()

        return me.caught(both)

    with job(zygote, 2, body, "AA") as ranks:
        for rank in ranks:
            report = rank.result()
            assert report["kind"] == "MismatchError" and "reduce_scatter_v" in report["text"], report


def test_abort_ends_what_waits_and_leaves_a_communicator_without_the_library_alone(zygote: Zygote) -> None:
    other = f"127.0.0.1:{launch.free_port()}"

    def body(me: Me) -> Any:
        comm = me.init()
        plain = me.init(name="plain", settings={}, address=other)
        x = np.ones(100_000, np.float32)
        comm.all_reduce(x)
        me.send("summed")
        if me.rank == 0:  # the library waits for rank 1 meanwhile
            me.hear()
            work = comm.all_reduce(x, async_op=True)
            time.sleep(0.2)
            comm.abort("enough")
            me.send("aborted")
            report = me.caught(work.wait)
        else:
            me.hear()
            until_failed(comm)  # a call before that is heard has all it needs: rank 0's library still waits for it
            report = me.caught(lambda: comm.all_reduce(x))
        total = float(plain.all_reduce(np.ones(1000, np.float32))[0])
        comm.destroy()
        return report, total

    with job(zygote, 2, body, "AA") as ranks:
        all_say(ranks, "summed")
        ranks[0].tell("go")
        ranks[0].expect("aborted")
        ranks[1].tell("go")
        for rank in ranks:
            report, total = rank.result()
            assert report["kind"] == "AbortedError" and "enough" in report["text"], report
            assert total == 2


def test_a_process_with_a_stuck_thread_is_told_to_start_anew(zygote: Zygote) -> None:
    other = f"127.0.0.1:{launch.free_port()}"

    def body(me: Me) -> Any:
        comm = me.init()
        if me.rank == 0:
            me.caught(lambda: comm.all_reduce(np.ones(100_000, np.float32), timeout=patient(2)))
            me.send("failed")
        else:
            me.hear()
        comm.destroy()
        return me.caught(lambda: me.init(name="again", address=other))

    with job(zygote, 2, body, "AA") as ranks:
        ranks[0].expect("failed")
        ranks[1].tell("go")
        for rank in ranks:
            text = rank.result()["text"]
            assert "rank 0" in text and "stuck" in text and "start a new process" in text, text


def test_destroy_with_work_in_flight_ends(zygote: Zygote) -> None:
    def body(me: Me) -> float:
        comm = me.init()
        x = np.ones(500_000, np.float32)
        works = [comm.all_reduce(x, "max", async_op=True) for _ in range(30)]
        begin = time.monotonic()
        comm.destroy()
        took = time.monotonic() - begin
        for work in works:
            work.wait()
        return took

    with job(zygote, 3, body, "AAb") as ranks:
        assert max(rank.result() for rank in ranks) < SOON


@pytest.mark.parametrize("maker", ["waits", "gives up and ends"])
def test_a_rank_that_is_stopped_while_it_leaves_ends_its_part_of_the_library_with_the_others_or_not_at_all(
    zygote: Zygote, maker: str
) -> None:
    """oneCCL ends a process that ends its part when rank 0, which made the communicator's id, is gone."""
    other = f"127.0.0.1:{launch.free_port()}"

    def body(me: Me) -> Any:
        settings = {"CCL_LIBRARY": str(ONECCL)}
        alone = isthmus.init(0, 1, unique_id=isthmus.unique_id(), settings=settings)  # it keeps the counters
        comm = me.init()
        x = np.ones(100_000, np.float32)
        comm.all_reduce(x)
        me.send("ready")
        me.hear()
        me.send("leaves")
        comm.destroy()
        me.send("left", isthmus.context_stats()["abandoned_threads"])
        world, first = me.hear()
        if world:
            me.rank, me.world = me.rank - first, world
            again = me.init(name="again", address=other)
            again.all_reduce(x)
            again.destroy()
        alone.destroy()
        return float(x[0])

    with job(zygote, 3, body, "AAA") as ranks:
        all_say(ranks, "ready")
        ranks[1].tell("leave")
        ranks[1].expect("leaves")
        time.sleep(0.3)  # it has said that it leaves
        ranks[1].signal(signal.SIGSTOP)
        for rank in (ranks[0], ranks[2]):
            rank.tell("leave")
            rank.expect("leaves")
        left, world = ranks, 3
        if maker == "waits":
            time.sleep(3)
        else:
            assert ranks[0].expect("left") == 0
            ranks[0].tell((0, 0))
            ranks[0].result()
            left, world = ranks[1:], 2
        ranks[1].signal(signal.SIGCONT)
        for rank in left:
            assert rank.expect("left") == 0, "a thread is stuck in the library"
        for rank in left:
            rank.tell((world, 3 - world))
        assert [rank.result() for rank in left] == [3.0 * world] * world


def test_a_rank_killed_while_the_others_join_the_library_fails_their_init(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        me.send("ready")
        if me.rank == 1:
            me.hear()
        return me.caught(lambda: me.init(timeout=patient(3)))

    with job(zygote, 3, body, "AAb") as ranks:
        all_say(ranks, "ready")
        time.sleep(0.3)
        ranks[1].signal(signal.SIGKILL)
        for rank in (ranks[0], ranks[2]):
            assert "rank 1" in rank.result()["text"]


def test_a_rank_that_ends_inside_the_librarys_init_is_named_at_once_by_who_waits_for_it_there(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        if me.rank == 1:
            os.environ["FI_PROVIDER"] = "nowhere"  # a transport that there is not: the library ends the process
        return me.caught(lambda: me.init(timeout=10 * SOON))

    with job(zygote, 3, body, "AAb") as ranks:
        for rank in (ranks[0], ranks[2]):
            report = rank.result()
            assert report["kind"] == "PeerLostError" and "rank 1" in report["text"], report
            assert report["took"] < SOON, report
