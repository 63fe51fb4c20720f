"""A rank that does not call, and communicators used in different orders: a deadline that says so, not a hang."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from typing import Any

import numpy as np

from events import once_inside
from jobs import RARELY, Me, Zygote, all_say, job, results, until_failed
from patience import SOON, patient

SHORT = 0.3  # the deadline of one operation, to which all others have come before it begins


def test_a_rank_that_does_not_call_is_named_with_its_last_call(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        comm.all_gather(np.ones(100))
        me.send("ready")
        me.hear()
        if me.rank == 2:
            until_failed(comm)  # before that it may make the sum of what the others left in shared memory
            return me.caught(lambda: comm.all_reduce(np.ones(4)))
        if me.rank == 3:
            return me.caught(lambda: comm.all_reduce(np.ones(4), timeout=SHORT))
        work = comm.all_reduce(np.ones(4), async_op=True)
        me.send("called")
        return me.caught(work.wait)

    with job(zygote, 4, body, shape, settings=RARELY) as ranks:
        all_say(ranks, "ready")
        for rank in ranks[:2]:
            rank.tell("go")
            rank.expect("called")
        ranks[3].tell("go")
        failures = results([ranks[0], ranks[1], ranks[3]])
        assert SHORT < failures[-1]["took"] < SHORT + SOON, failures
        for failure in failures:
            assert failure["kind"] == "TimeoutError", failure
            assert re.search(r"rank 2 \([^)]*\) has not called it: .*all_gather", failure["text"]), failure
        ranks[2].tell("go")
        late = ranks[2].result()
        assert late["kind"] == "TimeoutError" and "rank 2" in late["text"], late


def test_the_deadline_of_a_collective_behind_another_one_is_kept(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("ready")
        me.hear()
        if me.rank == 1:  # of what rank 0 left in shared memory it may make this sum, and not what comes behind
            return me.caught(lambda: (comm.all_reduce(np.ones(4)), comm.barrier()))
        work = comm.all_reduce(np.ones(4), async_op=True)
        behind = me.caught(lambda: comm.barrier(timeout=SHORT))
        return behind, me.caught(work.wait)

    with job(zygote, 2, body, shape, settings=RARELY) as ranks:
        all_say(ranks, "ready")
        ranks[0].tell("go")
        behind, first = ranks[0].result()
        assert behind["took"] < SHORT + SOON, behind
        for failure in (behind, first):
            assert failure["kind"] == "TimeoutError", failure
            late, before = r"#3 barrier .*did not finish within 0\.3 s: ", "it waits for #2 all_reduce .* before it: "
            assert re.search(late + before + "rank 1 .*has not called it", failure["text"]), failure
        ranks[1].tell("go")
        assert ranks[1].result()["kind"] == "TimeoutError"


def test_a_receive_that_nobody_sends_to_names_the_sender(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("out")  # who has left a barrier may fail before the others have
        me.hear()
        if me.rank == 0:
            return me.caught(lambda: comm.recv(np.ones(4), 1, 5, timeout=SHORT))
        return me.caught(comm.barrier)

    with job(zygote, 2, body, shape) as ranks:
        all_say(ranks, "out")
        ranks[0].tell("go")
        failure = ranks[0].result()
        assert failure["kind"] == "TimeoutError" and failure["took"] < SHORT + SOON, failure
        assert "rank 1" in failure["text"] and "recv" in failure["text"], failure
        ranks[1].tell("go")
        late = ranks[1].result()
        assert late["kind"] == "TimeoutError", late


def test_two_communicators_in_different_order(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        one, two = comm.split(0, name="one"), comm.split(0, name="two")
        assert one is not None and two is not None
        x = np.ones(1 << 20)
        if me.rank == 0:
            me.hear()
            failure = me.caught(lambda: one.all_reduce(x, timeout=SHORT))
            two.abort("given up")
        else:
            work = two.all_reduce(x, async_op=True)
            me.send("called")
            failure = me.caught(work.wait)
        comm.barrier()  # the third communicator is unharmed
        return failure

    with job(zygote, 2, body, shape, settings=RARELY) as ranks:
        ranks[1].expect("called")
        ranks[0].tell("go")
        first, second = results(ranks)
        # Whoever gives up first sees where the other is.
        assert first["kind"] == "TimeoutError" and first["took"] < SHORT + SOON, first
        assert "'one'" in first["text"] and "'two'" in first["text"], first
        assert second["kind"] == "AbortedError" and "given up" in second["text"], second


def test_a_late_rank_at_init_is_named(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        if me.rank == 2:
            me.hear()
            return None
        return me.caught(lambda: me.init(timeout=patient(3)))

    with job(zygote, 4, body, shape) as ranks:
        for rank in (ranks[0], ranks[1], ranks[3]):
            failure = rank.result()
            assert failure["kind"] == "TimeoutError" and failure["took"] < patient(3) + SOON, failure
            assert "rank 2 of 4 did not arrive" in failure["text"], failure
        ranks[2].tell("go")
        ranks[2].result()


def test_ctrl_c_ends_a_blocking_call(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("out")  # who has left a barrier may fail before the others have
        me.hear()
        if me.rank == 0:
            once_inside(comm, lambda: me.send("inside"))
            return me.caught(lambda: comm.all_reduce(np.ones(1 << 16)))
        until_failed(comm)  # before that a barrier meets an all_reduce, and is refused for that
        return me.caught(comm.barrier)

    with job(zygote, 2, body, shape) as ranks:
        all_say(ranks, "out")
        ranks[0].tell("go")
        ranks[0].expect("inside")
        ranks[0].signal(signal.SIGINT)
        failure = ranks[0].result()
        assert failure["kind"] == "KeyboardInterrupt", failure
        ranks[1].tell("go")
        other = ranks[1].result()
        assert other["kind"] == "InterruptedError" and "interrupted on rank 0" in other["text"], other


def test_ctrl_c_ends_init(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        if me.rank == 1:
            return me.hear()
        return me.caught(lambda: (me.send("calls"), me.init()))

    with job(zygote, 2, body) as ranks:
        ranks[0].expect("calls")
        time.sleep(0.3)  # it is well inside; before that it would be the same
        ranks[0].signal(signal.SIGINT)
        assert ranks[0].result()["kind"] == "KeyboardInterrupt"


def test_a_forked_child_may_not_call_while_the_parent_goes_on(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        x = np.ones(1 << 16)
        forked = threading.Event()
        failed: list[BaseException] = []

        def work() -> None:
            """Goes on until both ranks have forked."""
            going = np.ones(1)
            try:
                while going[0]:
                    comm.all_reduce(x, "max")
                    going[0] = not forked.is_set()
                    comm.all_reduce(going, "max")
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    kinds = {me.caught(call)["kind"] for call in (comm.barrier, lambda: comm.all_reduce(np.ones(4)))}
                    os._exit(0 if kinds == {"ForkedError"} else 1)
                assert os.waitpid(pid, 0)[1] == 0
        finally:
            forked.set()
            thread.join()
        assert not failed, failed
        comm.barrier()

    with job(zygote, 2, body, shape) as ranks:
        results(ranks)


def test_a_child_that_ends_normally_harms_nothing(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        pid = os.fork()
        if pid == 0:
            comm.destroy()  # as an interpreter's exit would
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        x = np.ones(1 << 18)
        comm.all_reduce(x)
        return float(x[-1])

    with job(zygote, 2, body, shape) as ranks:
        assert results(ranks) == [2.0, 2.0]
