"""Ranks that stand in a send or a receive: at a deadline the text says so, and names who keeps whom waiting."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import isthmus
from jobs import DEADLINE, Me, Rank, Zygote, all_say, job
from patience import patient

LARGE = 1 << 20  # elements of a message that no sender gives away before its receive
SHORT = patient(1)  # of one operation; the other ranks stand in theirs when it begins

# What a rank does: "send 1 5" is a send of a large message to rank 1 with tag 5.
Script = dict[int, str]


def does(comm: isthmus.Comm, what: str, timeout: float) -> Any:
    call, *numbers = what.split()
    x = np.ones(LARGE)
    if call == "barrier":
        return comm.barrier(timeout=timeout, async_op=True)
    peer, tag = map(int, numbers)
    return (comm.send if call == "send" else comm.recv)(x, peer, tag, timeout=timeout, async_op=True)


def failures(zygote: Zygote, shape: str, world: int, script: Script, first: int) -> dict[int, dict[str, Any]]:
    """How the ranks of the script fail. Rank `first` calls last, and has the short deadline."""

    def body(me: Me) -> Any:
        comm = me.init()
        comm.barrier()
        me.send("ready")
        me.hear()
        if me.rank not in script:
            me.send("idle")
            me.hear()
            return None
        work = does(comm, script[me.rank], SHORT if me.rank == first else DEADLINE)
        me.send("called")
        return me.caught(work.wait)

    def begin(rank: Rank) -> None:
        rank.tell("go on")
        rank.expect("called" if rank.rank in script else "idle")

    with job(zygote, world, body, shape) as ranks:
        all_say(ranks, "ready")
        for rank in ranks:
            if rank.rank != first:
                begin(rank)
        begin(ranks[first])
        found = {rank.rank: rank.result() for rank in ranks if rank.rank in script}
        for rank in ranks:
            if rank.rank not in script:
                rank.tell("end")
    assert all(one["kind"] == "TimeoutError" for one in found.values()), found
    return found


def one_line(pattern: str) -> str:
    """`pattern`, where {n} stands for rank n as texts name it for the first time."""
    return re.sub(r"\{(\d)\}", r"rank \1 \\([^)]*\\)", pattern)


@pytest.mark.parametrize(
    ("stands", "said"),
    [
        ("send 0 5", r"send to rank 0 \(tag 5\), which rank 0 has not received"),
        ("recv 2 0", "recv from rank 2, which has not come from rank 2"),
        ("recv -1 3", r"recv from any rank \(tag 3\), which has come from no rank"),
    ],
)
@pytest.mark.parametrize("first", [0, 2])
def test_a_collective_names_the_rank_that_stands_in_a_message(
    zygote: Zygote, shape: str, stands: str, said: str, first: int
) -> None:
    """Its peer waits for the collective."""
    for rank, found in failures(zygote, shape, 3, {0: "barrier", 1: stands, 2: "barrier"}, first).items():
        assert re.search(one_line("{1} has not called it: it is in " + said), found["text"]), (rank, found)
        assert found["ranks"] == (1,), (rank, found)


def test_a_collective_names_the_rank_to_which_another_sends_in_vain(zygote: Zygote, shape: str) -> None:
    found = failures(zygote, shape, 3, {0: "barrier", 1: "send 2 5"}, 0)[0]
    assert re.search(one_line("{2} has made no receive that matches"), found["text"]), found
    assert "rank 1 is in send to rank 2 with tag 5" in found["text"] and found["ranks"] == (2,), found


@pytest.mark.parametrize(("call", "toward"), [("send", 1), ("recv", 2)])
def test_messages_in_a_ring_name_nobody(zygote: Zygote, shape: str, call: str, toward: int) -> None:
    found = failures(zygote, shape, 3, {rank: f"{call} {(rank + toward) % 3} 4" for rank in range(3)}, 0)
    way = "send to" if call == "send" else "recv from"
    hops = [f"rank {rank} in {way} rank {(rank + toward) % 3} with tag 4" for rank in (0, toward, 2 * toward % 3)]
    for one in found.values():
        assert f"ranks 0, 1, 2 wait for one another in a ring ({', '.join(hops)})" in one["text"], one
        assert one["ranks"] == (), one


def test_two_that_both_send_first_are_a_ring(zygote: Zygote, shape: str) -> None:
    for one in failures(zygote, shape, 2, {0: "send 1 0", 1: "send 0 0"}, 0).values():
        assert one["ranks"] == () and "ranks 0, 1 wait for one another in a ring (" in one["text"], one
        assert "(rank 0 in send to rank 1, rank 1 in send to rank 0)" in one["text"], one


@pytest.mark.parametrize(
    ("script", "first", "named", "said"),
    [
        ({0: "recv 1 0", 1: "send 2 5"}, 0, 2, r"{2} has made no receive that .*\(rank 1 is in send to rank 2 with tag 5"),
        ({0: "send 1 0", 1: "recv 2 0"}, 0, 2, r"{2} has made no send that matches; .*\(rank 1 is in recv from rank 2\)"),
        ({0: "recv 1 8", 1: "send 0 7"}, 0, 1, r"{1} has made no send that matches: it is in send to rank 0 \(tag 7\)"),
        ({0: "recv 1 8", 1: "barrier"}, 0, 1, r"{1} has made no send that matches: it is in #2 barrier"),
        ({2: "send 1 8", 1: "barrier", 0: "recv 2 7"}, 2, 0, r"{0} has not called #2: it is in recv from rank 2 \(tag 7\)"),
    ],
    ids=["whom another sends to", "from whom another receives", "another tag", "a collective", "behind a collective"],
)
def test_a_message_names_who_does_not_take_part_in_it(
    zygote: Zygote, shape: str, script: Script, first: int, named: int, said: str
) -> None:
    for one in failures(zygote, shape, 3, script, first).values():
        assert re.search(one_line(said), one["text"]) and one["ranks"] == (named,), one


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("stands", [1, 3])
def test_a_message_whose_peer_is_in_a_collective_that_waits_for_the_message_is_said_to_cross_it(
    zygote: Zygote, shape: str, stands: int, first: int
) -> None:
    """Over TCP the peer waits for another rank of the collective, which waits for the rank with the message.

    No network is to blame.
    """
    peer = (stands + 1) % 4
    script = dict.fromkeys(range(4), "barrier") | {stands: f"recv {peer} 8"}
    direct = f"{{{peer}}} has made no send that matches: it is in #2 barrier, waiting for rank {stands}"
    crossed = f"it is in recv from rank {peer} .tag 8., and rank {peer} does not come to that before #2 is over"
    for rank, one in failures(zygote, shape, 4, script, first).items():
        about_message = re.search(one_line(f"{direct}|{{{stands}}} has not called #2: {crossed}"), one["text"])
        not_called = re.search(one_line(f"{{{stands}}} has not called it: it is in recv from rank {peer}"), one["text"])
        assert about_message or not_called, (rank, one)
        assert "is slow or blocked" not in one["text"], (rank, one)
        if shape == "tcp" and first == stands:
            assert "does not come to that before #2 is over" in one["text"] and one["ranks"] == (), (rank, one)


def test_a_rank_that_stands_in_a_message_of_another_communicator_is_said_to(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        pair = comm.split(0 if me.rank != 0 else 1, name="pair")
        assert pair is not None
        comm.barrier()
        me.send("ready")
        me.hear()
        if me.rank == 1:
            work = pair.send(np.ones(LARGE), 1, 6, async_op=True)
            me.send("called")
            return me.caught(work.wait)
        return me.caught(lambda: comm.barrier(timeout=SHORT)) if me.rank == 0 else me.hear()

    with job(zygote, 3, body, shape) as ranks:
        all_say(ranks, "ready")
        ranks[1].tell("go on")
        ranks[1].expect("called")
        ranks[0].tell("go on")
        found = ranks[0].result()
        stands = r"it is in send to rank 1 \(tag 6, float64, 1048576 elements\) of 'pair', waiting for {1} to receive it"
        assert re.search(one_line("{1} has not called it: .*" + stands), found["text"]), found
        assert found["ranks"] == (1,), found
