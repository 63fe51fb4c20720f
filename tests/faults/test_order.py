"""A rank that does not call, and communicators used in different orders: a deadline that says so, not a hang."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from typing import Any

import numpy as np

from jobs import Me, Zygote, all_say, job, results

DEADLINE = 1.0


def test_a_rank_that_does_not_call_is_named_with_its_last_call(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        comm.all_gather(np.ones(100))
        me.send("ready")
        if me.rank == 2:
            me.hear()
            return me.caught(lambda: comm.all_reduce(np.ones(4)))
        return me.caught(lambda: comm.all_reduce(np.ones(4), timeout=DEADLINE))

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        for rank in (ranks[0], ranks[1], ranks[3]):
            failure = rank.result()
            assert failure["kind"] == "TimeoutError" and DEADLINE - 0.2 < failure["took"] < DEADLINE + 1, failure
            assert re.search(r"rank 2 \([^)]*\) has not called it: .*all_gather", failure["text"]), failure
        ranks[2].tell("go")
        late = ranks[2].result()
        assert late["kind"] == "TimeoutError" and "rank 2" in late["text"] and late["took"] < 0.5, late


def test_a_receive_that_nobody_sends_to_names_the_sender(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        if me.rank == 0:
            return me.caught(lambda: comm.recv(np.ones(4), 1, 5, timeout=DEADLINE))
        return me.caught(lambda: [time.sleep(2), comm.barrier()])

    with job(zygote, 2, body, shape) as ranks:
        failure, late = results(ranks)
        assert failure["kind"] == "TimeoutError" and failure["took"] < DEADLINE + 1, failure
        assert "rank 1" in failure["text"] and "recv" in failure["text"], failure
        assert late["kind"] == "TimeoutError", late


def test_two_communicators_in_different_order(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        one, two = comm.split(0, name="one"), comm.split(0, name="two")
        assert one is not None and two is not None
        x = np.ones(1 << 20)

        def crossed() -> None:
            first, second = (one, two) if me.rank == 0 else (two, one)
            first.all_reduce(x, timeout=DEADLINE)
            second.all_reduce(x, timeout=DEADLINE)

        failure = me.caught(crossed)
        comm.barrier(timeout=5)  # the third communicator is unharmed
        return failure

    with job(zygote, 2, body, shape) as ranks:
        failures = results(ranks)
        for failure in failures:
            assert failure["kind"] in ("TimeoutError", "MismatchError") and failure["took"] < 2 * DEADLINE + 2, failure
            assert "'one'" in failure["text"] or "'two'" in failure["text"], failure
        # Whoever gave up first saw where the other was.
        assert any("'one'" in f["text"] and "'two'" in f["text"] for f in failures), failures


def test_a_late_rank_at_init_is_named(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        if me.rank == 2:
            me.hear()
            return None
        return me.caught(lambda: me.init(timeout=3))

    with job(zygote, 4, body, shape) as ranks:
        for rank in (ranks[0], ranks[1], ranks[3]):
            failure = rank.result()
            assert failure["kind"] == "TimeoutError" and failure["took"] < 8, failure
            assert "rank 2 of 4 did not arrive" in failure["text"], failure
        ranks[2].tell("go")
        ranks[2].result()


def test_ctrl_c_ends_a_blocking_call(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("ready")
        if me.rank == 0:
            return me.caught(lambda: comm.all_reduce(np.ones(1 << 16)))
        me.hear()
        return me.caught(comm.barrier)

    with job(zygote, 2, body, shape) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.3)
        since = ranks[0].signal(signal.SIGINT)
        failure = ranks[0].result()
        assert failure["kind"] == "KeyboardInterrupt" and failure["at"] - since < 1, failure
        ranks[1].tell("go")
        other = ranks[1].result()
        assert other["kind"] == "InterruptedError" and "interrupted on rank 0" in other["text"], other
        assert other["took"] < 2, other


def test_ctrl_c_ends_init(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        me.send("ready")
        if me.rank == 0:
            return me.caught(lambda: me.init(timeout=20))
        return me.hear()

    with job(zygote, 2, body) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.3)
        since = ranks[0].signal(signal.SIGINT)
        failure = ranks[0].result()
        assert failure["kind"] == "KeyboardInterrupt" and failure["at"] - since < 1, failure
        ranks[1].tell("go")
        ranks[1].result()


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
