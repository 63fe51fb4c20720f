"""The ranks that live agree: on flags, on who is out, and on the communicator with which they go on."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from events import until
from jobs import DEADLINE, Me, Zygote, all_say, forever, job, results, total
from patience import SOON, patient


def test_flags_are_anded_and_operations_go_on(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        answers = [comm.agree(0b1111 & ~(1 << me.rank)), comm.agree(), comm.agree(5)]
        return answers, total(comm, me)

    with job(zygote, 3, body, shape) as ranks:
        assert results(ranks) == [([(0b1000, []), (2**64 - 1, []), (5, [])], 3.0)] * 3


@pytest.mark.parametrize("victims", [[0], [2], [0, 1, 3]], ids=str)
def test_all_survivors_get_the_same_answer_and_go_on(zygote: Zygote, shape: str, victims: list[int]) -> None:
    """Where most have ended, too: their processes are known to have ended, so no other half of a network can live on."""

    def body(me: Me) -> Any:
        comm = me.init(name="job")
        me.send("ready")
        lost = me.caught(lambda: forever(comm))
        me.hear()  # all victims have ended
        flags, out = comm.agree(0b111 ^ (me.rank == 4))
        rest = comm.shrink()
        return lost["kind"], (flags, out), (rest.size, rest.name, total(rest, me))

    with job(zygote, 5, body, shape) as ranks:
        all_say(ranks, "ready")
        for victim in victims:
            ranks[victim].signal(signal.SIGKILL)
        for victim in victims:
            ranks[victim].wait()
        left = [rank for rank in ranks if rank.rank not in victims]
        for rank in left:
            rank.tell("go on")
        whole = float(sum(rank.rank for rank in left))
        assert results(left) == [("PeerLostError", (0b110, victims), (len(left), "job/shrink", whole))] * len(left)


def test_who_came_to_lead_late_in_its_call_names_nobody(zygote: Zygote, shape: str) -> None:
    """Rank 3 names rank 0 when three quarters of rank 1's time are over. Then rank 1 leads, and has hardly asked rank 2."""

    def body(me: Me) -> Any:
        comm = me.init()
        limit = patient(12)  # a deadline is the subject
        if me.rank == 0:
            return me.hear()
        late = None
        if me.rank == 1:
            me.send("calls")
            late = me.caught(lambda: comm.agree(timeout=limit))
            me.send("late")
        else:
            me.hear()
        if me.rank == 3:
            time.sleep(0.75 * limit)
        answer = comm.agree(7 - me.rank, failed=[0] if me.rank == 3 else [], timeout=DEADLINE)
        return answer, late and (late["kind"], late["ranks"])

    with job(zygote, 4, body, shape) as ranks:
        ranks[1].expect("calls")
        ranks[3].tell("call")
        ranks[1].expect("late")
        ranks[2].tell("call")
        found = results(ranks[1:])
        assert [answer for answer, _ in found] == [(6 & 5 & 4, [0])] * 3
        assert [late for _, late in found] == [("TimeoutError", ()), None, None]
        ranks[0].tell("end")
        ranks[0].result()


def test_a_rank_that_is_stopped_is_named_left_out_and_hears_it_when_it_goes_on(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        me.hear()
        if me.rank == 0:
            alone = [me.caught(lambda: comm.agree(timeout=DEADLINE)) for _ in range(2)]
            return [(one["kind"], one["text"]) for one in alone]
        late = me.caught(lambda: comm.agree(timeout=patient(1)))
        me.send("late")  # nobody calls again while another still waits
        me.hear()
        answer = comm.agree(6 if me.rank == 1 else 3, failed=[0] if me.rank == 2 else [])
        rest = comm.shrink()
        return (late["kind"], late["text"]), answer, total(rest, me)

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[0].signal(signal.SIGSTOP)
        for rank in ranks:
            rank.tell("go on")
        all_say(ranks[1:], "late")
        for rank in ranks[1:]:
            rank.tell("again")
        for late, answer, whole in results(ranks[1:]):
            assert late[0] == "TimeoutError" and "rank 0" in late[1], late
            assert answer == (2, [0]) and whole == 6.0
        ranks[0].signal(signal.SIGCONT)
        (first, text), (second, _) = ranks[0].result()
        assert first == second == "AbortedError" and "go on without this one" in text, text


def test_who_leads_knows_all_that_have_not_called_and_the_others_know_that_it_waits(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        if me.rank in (1, 3):
            me.hear()
            return None
        late = [me.caught(lambda: comm.agree(timeout=patient(5))) for _ in range(1)]
        me.send("late")
        me.hear()
        answer = comm.agree(1, failed=late[0]["ranks"])
        return late[0]["kind"], late[0]["ranks"], late[0]["text"], answer

    with job(zygote, 5, body, shape) as ranks:
        called = [ranks[0], ranks[2], ranks[4]]
        all_say(called, "late")
        for rank in called:
            rank.tell("again")
        for rank, (kind, missing, text, answer) in zip(called, results(called), strict=True):
            assert kind == "TimeoutError" and missing == ((1, 3) if rank.rank == 0 else ()), text
            assert ("rank 1" in text and "rank 3" in text) if rank.rank == 0 else "rank 0" in text and "waits" in text, text
            assert answer == (1, [1, 3])
        for rank in (ranks[1], ranks[3]):
            rank.tell("end")
            rank.result()


def test_one_that_leads_and_does_not_call_is_data_for_all_others(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        if me.rank == 0:
            me.hear()
            return None
        return me.caught(lambda: comm.agree(timeout=patient(4)))["ranks"]

    with job(zygote, 3, body) as ranks:
        assert results(ranks[1:]) == [(0,)] * 2
        ranks[0].tell("end")
        ranks[0].result()


def test_a_rank_that_does_not_come_to_the_second_agreement_of_a_shrink_is_named_and_then_left_out(
    zygote: Zygote, shape: str
) -> None:
    """Rank 2 takes part in the agreement on who is left, and in nothing behind it, as one that stops then."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")  # who has left a barrier may shrink, and so abort, before the others have
        me.hear()
        comm.set_timeout(patient(12))  # a quarter of it is for the second agreement
        if me.rank == 2:
            comm.agree(0x6973_746D_7368_726B)  # what a rank says in that of a shrink
            me.hear()
            return None
        late = me.caught(comm.shrink)
        me.send("late")
        me.hear()
        comm.set_timeout(DEADLINE)
        rest = comm.shrink(failed=[2] if me.rank == 0 else [])
        return (late["kind"], late["ranks"]), rest.size, rest.timeout, total(rest, me)

    with job(zygote, 4, body, shape) as ranks:
        all_say(ranks, "ready")
        for rank in ranks:
            rank.tell("go")
        called = [ranks[0], ranks[1], ranks[3]]
        all_say(called, "late")
        for rank in called:
            rank.tell("again")
        for late, *said in results(called):
            assert late == ("TimeoutError", (2,)) and said == [3, DEADLINE, 4.0]
        ranks[2].tell("end")
        ranks[2].result()


@pytest.mark.product(4)
@pytest.mark.parametrize("seed", range(12))
def test_ranks_that_die_while_the_others_shrink_are_left_out_of_what_comes_of_it(
    zygote: Zygote, shape: str, seed: int
) -> None:
    """Of seven ranks two end almost together, and then two more: most of the second ones in the middle of a shrink."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        while comm.size > 3:
            me.caught(lambda comm=comm: forever(comm))
            comm = comm.shrink()
            me.send("size", comm.size)
        return total(comm, me)

    chance = random.Random(seed)
    with job(zygote, 7, body, shape) as ranks:
        all_say(ranks, "ready")
        left = list(ranks)
        for size in (5, 3):
            for pause in (0.0, chance.uniform(0, 0.02)):
                time.sleep(pause)  # no order depends on it
                victim = chance.choice(left)
                victim.signal(signal.SIGKILL)
                left.remove(victim)
            for rank in left:
                while rank.expect("size") != size:
                    pass
        assert results(left) == [float(sum(rank.rank for rank in left))] * 3


def test_one_of_two_goes_on_alone_once_the_other_has_ended_however_long_its_kernel_takes_for_that(zygote: Zygote) -> None:
    """As of a process whose device or memory is slow to give back: its connections are closed, and it is not gone yet."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        if me.rank == 0:
            failure = me.caught(lambda: forever(comm))
            return failure["kind"], comm.agree(3)
        me.hear()

        def rest() -> None:
            """What is left of the process once its first thread has ended."""
            until(lambda: Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0] == "Z")
            for entry in list(Path("/proc/thread-self/fd").iterdir()):
                with suppress(OSError):
                    if str(entry.readlink()).startswith("socket:"):
                        os.close(int(entry.name))
            time.sleep(patient(5))
            os._exit(0)

        threading.Thread(target=rest).start()
        libc = ctypes.CDLL(None)
        libc.syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit(2): of this thread alone

    with job(zygote, 2, body) as ranks:
        all_say(ranks, "ready")
        ranks[1].tell("go")
        assert ranks[0].result() == ("PeerLostError", (3, [1]))


def test_one_that_has_lost_the_others_while_they_may_live_does_not_go_on_but_where_it_is_told_to(zygote: Zygote) -> None:
    """Rank 1 is named by rank 0 and lives, so neither is sure to be the only one."""

    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        me.hear()
        if me.rank == 1:
            me.hear()
            return None
        refused = me.caught(lambda: comm.agree(failed=[1]))
        return (refused["kind"], refused["text"], refused["took"]), comm.agree(3, failed=[1], allow_minority=True)

    with job(zygote, 2, body) as ranks:
        all_say(ranks, "ready")
        for rank in ranks:
            rank.tell("go on")
        (kind, text, took), answer = ranks[0].result()
        ranks[1].tell("end")
        ranks[1].result()
        assert kind == "PeerLostError" and "no more than half" in text and took < SOON, text
        assert answer == (3, [1])


def test_an_abort_does_not_end_it_and_destroy_does(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        me.send("ready")
        me.hear()
        comm.abort("enough")
        answer = comm.agree(7 - me.rank)
        comm.destroy()
        return answer, me.caught(lambda: comm.agree())["text"]

    with job(zygote, 3, body) as ranks:
        all_say(ranks, "ready")
        for rank in ranks:
            rank.tell("go on")
        for answer, text in results(ranks):
            assert answer == (7 & 6 & 5, []) and "destroyed" in text


def test_what_cannot_be_is_refused_at_once(zygote: Zygote) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        calls = [
            lambda: comm.agree(failed=[2]),
            lambda: comm.agree(failed=[-1]),
            lambda: comm.agree(failed=[me.rank]),
            lambda: comm.agree(timeout=-1),
            lambda: comm.shrink([1 - me.rank], failed=[1 - me.rank]),
        ]
        said = [me.caught(call) for call in calls]
        return [(one["kind"], one["text"]) for one in said], max(one["took"] for one in said), comm.agree(4), total(comm, me)

    with job(zygote, 2, body) as ranks:
        for number, (said, took, answer, whole) in enumerate(results(ranks)):
            assert [kind for kind, _ in said] == ["ArgumentError"] * 5 and took < SOON
            assert "no rank 2" in said[0][1] and "no rank -1" in said[1][1] and f"rank {number} names itself" in said[2][1]
            assert "timeout -1" in said[3][1] and "not both" in said[4][1]
            assert answer == (4, []) and whole == 1.0
