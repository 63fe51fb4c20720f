"""Groups of operations, and streams of every kind, captured ones too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spanning import FLOATS, TWO_DEVICES, WITHOUT_GATES, check, fleet, given, run, summed


def test_nothing_of_a_group_begins_before_it_ends(scripted: dict[str, Path]) -> None:
    """Groups in groups, two communicators, one of them the vendor's own."""
    ranks = fleet("nan")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", f"split {number % 2} 0", "group", "group")  # the NVIDIA ranks are a part of their own
        rank.say("comm 0", "all_reduce 7 0 5 0 1 0", "comm 1", "all_reduce 7 0 5 0 1 0", "comm 0", "all_reduce 1 0 5 0 0 1")
        rank.say("end", "peek", f"touch peeked.{number}", *[f"expect peeked.{other}" for other in range(3)])
        rank.say("peek", "end", "peek", "wait", "comm 1", "destroy", "comm 0", "destroy")
        rank.inputs += [given(number), given(number), np.full(5, number + 1, np.uint8).tobytes()]
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        part = [0, 2] if number != 1 else [1]
        inside = (FLOATS * sum(r + 1 for r in part)).tobytes()
        assert rank.output == summed(3) + inside + bytes([6] * 5)
        assert [line.split(maxsplit=1)[1] for line in rank.printed.splitlines()] == ["peek: 0", "peek: 0", "peek: 6"]


@pytest.mark.parametrize("vendors", ["nn", "na"])
def test_a_group_that_is_only_simulated_does_nothing(vendors: str, scripted: dict[str, Path]) -> None:
    """The vendor's own says how long it would take; between vendors that is refused. A group that is done follows."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "group", "all_reduce 7 0 5 0 1 0", "all_reduce 7 0 5 0 1 1", "simulate")
        rank.say("group", "group", "simulate", "all_reduce 7 0 5 0 0 0", "peek", "end", "wait")
        rank.say("all_reduce 7 0 5 0 0 0", "peek", "destroy")
        # The smallest floats: their first bytes add up.
        rank.inputs += [given(number, 2), given(number), np.full(5, number + 1, np.uint32).view(np.float32).tobytes()]
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        assert rank.code == 0, rank.printed + rank.logged
        assert rank.output == given(number, 2) + summed(2)
        told = [line.split(maxsplit=1)[1] for line in rank.printed.splitlines()]
        if vendors == "na":
            refusal = "ncclGroupSimulateEnd: this communicator spans several vendors or islands"
            assert told.pop(0).startswith("simulate: 5, invalid usage") and refusal in rank.printed
        assert told[0] == ("simulated: 2" if vendors == "nn" else "simulated: 0"), told
        assert told[1:] == ["simulated: -1", "peek: 0", "peek: 3"], told


def test_operations_come_behind_what_their_stream_holds(scripted: dict[str, Path]) -> None:
    """The inputs are copied on streams that are held up until all calls have been made; so no call waited for them.

    A first receive is made before: for it the device allocates, and that waits for all streams.
    """
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        peer = 1 - number
        rank.say("init", "group", f"send 7 0 5 {peer} 0 1", f"recv 7 0 5 {peer} 0 0", "end", "wait")
        rank.say("hold 0", "hold 1", "all_reduce 7 0 5 0 0 0", "all_reduce 7 0 5 0 0 1")
        rank.say("group", f"send 7 0 5 {peer} 0 1", f"recv 7 0 5 {peer} 0 0", "all_reduce 7 0 5 0 0 2", "end")
        rank.say("touch called", "release", "wait", "destroy")
        rank.inputs.append(given(number, 5))
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == given(1 - number) + summed(2) * 2 + given(1 - number) + summed(2)


def keep_the_order(vendors: str, programs: dict[str, Path], queues: int) -> None:
    """What was given to a stream before is seen, and what is given to it after comes behind, of a group too. The stream is
    held up meanwhile: with NVIDIA and AMD until the calls are made, with Ascend, whose calls wait, for a while.
    """
    ranks, world = fleet(vendors), len(vendors)
    ranks[0].say("id")
    kinds = range(5)
    for number, rank in enumerate(ranks):
        rank.environment["REHEARSAL_QUEUES"] = str(queues)
        behind, ahead = (number + 1) % world, (number - 1) % world
        messages = (f"send 7 0 5 {behind} 0 0", f"recv 7 0 5 {ahead} 0 0")
        later, now = (["later 50 called"], []) if rank.vendor == "hccl" else ([], ["release"])
        rank.say("init", "group", *messages, "end", "wait")
        for kind in kinds:
            rank.say(
                f"kind 0 {kind}", "hold 0", *later, "all_reduce 7 0 5 0 0 0", "then 0", "broadcast 7 0 5 1 0 0", "then 0"
            )
            rank.say(
                *now, "wait", "hold 0", *later, "group", *messages, "all_reduce 7 0 5 0 0 0", "end", "then 0", *now, "wait"
            )
        rank.say("destroy")
        rank.inputs.append(given(number, 1 + 4 * len(kinds)))
    run(ranks, programs)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == ("called is not there\n" * 10 if rank.vendor == "hccl" else "")
        got = given((number - 1) % world)
        assert rank.output == got + (summed(world) * 2 + given(1, 2) + got + summed(world) * 2) * len(kinds)


MANY = 12  # with so many hardware queues a stream has one of its own, and no order but its own


@pytest.mark.parametrize("queues", [1, MANY])
@pytest.mark.parametrize("vendors", ["na", "hn", "ah", "nah"])
def test_operations_keep_the_order_of_every_kind_of_stream(vendors: str, queues: int, scripted: dict[str, Path]) -> None:
    """The NULL stream by both its names, the thread's, blocking ones and others; Ascend's are of one kind."""
    keep_the_order(vendors, scripted, queues)


def test_so_they_do_in_programs_whose_null_stream_is_each_threads(scripted_per_thread: dict[str, Path]) -> None:
    """What the program does with NULL is on its thread's stream, and the library, which is not compiled so, takes it for the
    device's: these two wait for each other."""
    keep_the_order("na", scripted_per_thread, MANY)


SLOW_STREAMS = {"REHEARSAL_QUEUES": str(MANY), "REHEARSAL_LATENCY_US": "3000"}  # of their own, so that order shows


@pytest.mark.parametrize("vendors", ["nn", "na", "an"])
def test_every_stream_of_a_group_comes_behind_all_of_it(vendors: str, scripted: dict[str, Path]) -> None:
    """NCCL's rule for a group that names several streams, of one vendor and of two: what comes on one of them sees what the
    group did on another.
    """
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.environment |= SLOW_STREAMS
        rank.say("init", "group", "all_reduce 7 0 5 0 0 0", "all_reduce 7 0 5 0 0 1", "end", "then 0", "wait")
        rank.say("group", "all_reduce 7 0 5 0 0 2", "all_reduce 7 0 5 0 0 0", "end", "then 2", "wait", "destroy")
        rank.inputs.append(given(number, 4))
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert rank.output == summed(2) * 6


@pytest.mark.parametrize("vendors", ["nn", "na", "an"])
def test_nothing_of_a_group_begins_before_all_its_streams_have_come_to_it(vendors: str, scripted: dict[str, Path]) -> None:
    """One stream is held up for a while, and the operation on the other ends after that."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.environment |= SLOW_STREAMS
        rank.say("init", "group", "all_reduce 7 0 5 0 0 0", "bare all_reduce 1", "end", "wait", "hold 1", "later 300 seen")
        rank.say("group", "all_reduce 7 0 5 0 0 0", "bare all_reduce 1", "end", "peek", "touch seen", "wait", "destroy")
        rank.inputs.append(given(number, 2))
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert rank.printed.splitlines()[0] == "seen is not there" and rank.output == summed(2) * 2, rank.printed


def test_the_streams_of_a_thread_keep_their_order_where_others_make_its_calls(scripted: dict[str, Path]) -> None:
    """Two devices without gates: the calls of one group wait, so not all are this thread's."""
    ranks = fleet("na")
    ranks[0].environment |= WITHOUT_GATES | {"REHEARSAL_QUEUES": str(MANY), "REHEARSAL_LATENCY_US": "3000"}
    ranks[0].say("id", *TWO_DEVICES, "device 0", "kind 0 2", "device 1", "kind 0 2", "group")
    for number in range(2):
        ranks[0].say(f"device {number}", f"comm {number}", "all_reduce 7 0 5 0 0 0", "all_reduce 7 0 5 0 1 0")
    ranks[0].say("end", "then 0", "wait", "comm 0", "destroy", "comm 1", "destroy")
    ranks[1].say("join 1 3", "all_reduce 7 0 5 0 0 0", "all_reduce 7 0 5 0 1 0", "wait", "destroy")
    ranks[0].inputs += [given(0, 2), given(2, 2)]
    ranks[1].inputs.append(given(1, 2))
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].printed == "" and ranks[0].output == summed(3) * 5 and ranks[1].output == summed(3) * 2


def test_a_capture_is_refused_and_the_communicator_goes_on(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say(
            "init", "capture 1", "all_reduce 7 0 0 0 0 1", "group", "bare all_reduce 1", "end", "bare all_reduce 1", "stop 1"
        )
        rank.say("all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    for rank in ranks:
        assert rank.code == 0, rank.printed + rank.logged
        told = rank.printed.splitlines()
        assert len(told) == 2 and all(": 5, " in line and "being captured into a graph" in line for line in told), told
        assert told[0].split()[1] == "end:" and rank.output == summed(2)


@pytest.mark.parametrize("vendors", ["na", "an"])
def test_no_call_is_taken_in_a_capture(vendors: str, scripted: dict[str, Path]) -> None:
    """Each by itself and in a group; then what was refused is done out of the capture."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "capture 1", "bare send 1", "bare recv 1", "bare broadcast 1")
        rank.say("group", "bare send 1", "bare recv 1", "end", "group", "bare broadcast 1", "end", "stop 1")
        rank.say("group", f"send 7 0 5 {1 - number} 0 1", f"recv 7 0 5 {1 - number} 0 1", "end")
        rank.say("broadcast 7 0 5 1 0 0", "all_reduce 7 0 5 0 0 1", "wait", "destroy")
        rank.inputs.append(given(number, 3))
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        assert rank.code == 0, rank.printed + rank.logged
        told = rank.printed.splitlines()
        assert [line.split()[1] for line in told] == ["send:", "recv:", "broadcast:", "end:", "end:"], told
        assert all(": 5, " in line and "being captured into a graph" in line for line in told), told
        # The output of a send is none.
        assert rank.output == given(1 - number) + given(1) + summed(2)
