"""Processes that say nothing (SIGSTOP), where ISTHMUS_SILENCE_MS says for how long one may: they are lost early."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

import isthmus
from jobs import Me, Zygote, all_say, forever, job, results, total
from patience import SOON, patient

LIMIT = patient(4)  # a machine that is slow, not stopped, is not silent for so long
WATCHED = {"HEARTBEAT_MS": "100", "SILENCE_MS": str(int(LIMIT * 1000))}


@pytest.mark.parametrize("inside", [False, True], ids=["between-operations", "inside-an-operation"])
def test_a_rank_that_is_stopped_is_lost_without_a_deadline_and_the_others_go_on(
    zygote: Zygote, shape: str, inside: bool
) -> None:
    def body(me: Me) -> Any:
        comm = me.init(settings=WATCHED, timeout=10_000)
        me.send("ready")
        if me.rank == 2:
            alone = me.caught(lambda: forever(comm))
            return alone["kind"], alone["text"], me.caught(comm.agree)["kind"]
        if not inside:
            me.hear()
        lost = me.caught(lambda: forever(comm))
        rest = comm.shrink()
        whole = total(rest, me)
        me.send("went on")
        me.hear()  # the third rank goes on: nobody of these hears of it
        return lost["kind"], lost["text"], rest.size, whole, total(rest, me)

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        stopped = ranks[2].signal(signal.SIGSTOP)
        left = [rank for rank in ranks if rank.rank != 2]
        if not inside:
            for rank in left:
                rank.tell("begin")
        all_say(left, "went on")
        assert time.monotonic() - stopped < 1000, "the deadline of the operations has ended them"
        ranks[2].signal(signal.SIGCONT)
        kind, text, agreed = ranks[2].result()
        assert kind == "PeerLostError" and "took this process for lost" in text, text
        # It has lost more than half, or has heard what the others agreed on.
        assert agreed in ("PeerLostError", "AbortedError")
        for rank in left:
            rank.tell("again")
        for kind, text, size, whole, again in results(left):
            assert kind == "PeerLostError" and "rank 2" in text and "has said nothing for" in text, text
            assert (size, whole, again) == (3, 4.0, 4.0)


def test_a_process_that_stops_as_soon_as_init_has_returned_is_lost_too(zygote: Zygote, shape: str) -> None:
    """It may not have sent a heartbeat yet."""

    def body(me: Me) -> Any:
        comm = me.init(settings=WATCHED, timeout=10_000)
        if me.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
            return me.caught(lambda: forever(comm))["kind"]
        lost = me.caught(lambda: forever(comm))
        return lost["kind"], total(comm.shrink(), me)

    with job(zygote, 3, body, shape) as ranks:
        assert results(ranks[:2]) == [("PeerLostError", 1.0)] * 2
        ranks[2].signal(signal.SIGCONT)
        assert ranks[2].result() in ("PeerLostError", "AbortedError")


def test_what_a_stopped_process_may_still_read_is_not_used_again_before_it_has_ended(zygote: Zygote) -> None:
    """It goes on in the midst of a copy from the others' memory, before it hears that they have left it out."""

    def kept(wanted: int) -> int:
        until = time.monotonic() + SOON
        while (found := int(isthmus.context_stats()["leaving"])) != wanted and time.monotonic() < until:
            time.sleep(0.005)
        return found

    def body(me: Me) -> Any:
        comm = me.init(settings=WATCHED, timeout=10_000)
        me.send("ready")
        lost = me.caught(lambda: forever(comm))
        if me.rank == 2:
            return lost["kind"], me.caught(comm.agree)["kind"]
        rest = comm.shrink()
        comm.destroy()
        total(rest, me)
        me.send("left it")
        me.hear()
        stopped = isthmus.context_stats()["leaving"]
        me.send("looked")
        me.hear()  # it has ended
        return stopped, kept(0), total(rest, me)

    with job(zygote, 3, body) as ranks:
        all_say(ranks, "ready")
        ranks[2].signal(signal.SIGSTOP)
        all_say(ranks[:2], "left it")
        time.sleep(0.5)  # several looks at what waits for its readers: the time that passes is the subject
        for rank in ranks[:2]:
            rank.tell("look")
        all_say(ranks[:2], "looked")
        ranks[2].signal(signal.SIGCONT)
        assert ranks[2].result()[0] in ("PeerLostError", "AbortedError")
        for rank in ranks[:2]:
            rank.tell("it has ended")
        assert results(ranks[:2]) == [(1, 0, 1.0)] * 2


def test_a_job_that_is_stopped_as_a_whole_and_goes_on_loses_nobody(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(settings=WATCHED)
        me.send("ready")
        me.hear()
        return total(comm, me)

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        for rank in ranks:
            rank.signal(signal.SIGSTOP)
        time.sleep(2 * LIMIT)  # the time that passes is the subject
        for rank in ranks:
            rank.signal(signal.SIGCONT)
        for rank in ranks:
            rank.tell("sum")
        assert results(ranks) == [6.0] * 4


def test_without_the_setting_a_stopped_rank_goes_on_as_if_nothing_had_been(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        return total(comm, me) if me.hear() else None

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGSTOP)
        for rank in ranks:
            rank.tell("sum")
        time.sleep(2 * LIMIT)  # the time that passes is the subject
        ranks[1].signal(signal.SIGCONT)
        assert results(ranks) == [3.0] * 3


def test_a_limit_of_less_than_three_heartbeats_is_refused(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        return me.caught(lambda: me.init(settings={"HEARTBEAT_MS": "100", "SILENCE_MS": "299"}))

    with job(zygote, 1, body) as ranks:
        failure = ranks[0].result()
        assert failure["kind"] == "ConfigError", failure
        assert "ISTHMUS_SILENCE_MS=299" in failure["text"] and "ISTHMUS_HEARTBEAT_MS=100" in failure["text"]


def test_a_process_that_is_killed_is_lost_at_once_all_the_same(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(settings={"HEARTBEAT_MS": "60000", "SILENCE_MS": "3600000"})
        me.send("ready")
        lost = me.caught(lambda: forever(comm))
        rest = comm.shrink()
        return lost["kind"], "has said nothing" in lost["text"], rest.size

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].signal(signal.SIGSTOP)
        ranks[1].signal(signal.SIGKILL)
        assert results([ranks[0], ranks[2]]) == [("PeerLostError", False, 2)] * 2
