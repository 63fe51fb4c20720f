"""Groups of programs for NCCL and RCCL in which something fails, and what else is refused while a communicator is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from doors import preloaded
from spanning import TWO_DEVICES, WITHOUT_GATES, Rank, fleet, given, run, summed

INVALID_ARGUMENT, INVALID_USAGE, SYSTEM, INTERNAL = 4, 5, 2, 3
HALF = "(of the group nothing was launched on '"
# In a group: of the library's own communicator, which is number 1, and of the one that spans vendors.
BOTH = ("comm 1", "all_reduce 7 0 5 0 0 0", "comm 0", "all_reduce 7 0 5 0 0 1")
NOTHING = bytes(20)


def with_parts(vendors: str = "na") -> list[Rank]:
    """Each with a communicator of all, and one of its own library alone."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", f"split {number} 0")
    return ranks


def told(rank: Rank, lines: int) -> list[str]:
    assert rank.code == 0, rank.printed + rank.logged
    printed = rank.printed.splitlines()
    assert len(printed) == lines, printed
    return printed


# ---- communicators that are not ready yet ------------------------------------------------------------------------------


def waiting() -> list[Rank]:
    """With a communicator of ranks 0 and 1, and another one, number 1, that rank 0 asks for without waiting and rank 1 in
    a group: so it is not made before the other one of that group, for which rank 2 waits for the file `go`."""
    ranks = fleet("nan")
    ranks[0].say("id", "join 0 2", "expect j", "use other", "id", "join 0 2 0")
    ranks[1].say("join 1 2", "touch j", "group", "use other", "join 1 2", "use third", "join 0 2", "end", "comm 1")
    ranks[2].say("expect other", "use third", "id", "expect go", "join 1 2")
    return ranks


@pytest.mark.parametrize("call", ["split 0 0", "shrink 1 0"])
def test_there_are_no_parts_of_a_communicator_that_is_not_ready(
    call: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Said as an error: that a part were on its way would be waited for. Once the communicator is there, it has parts."""
    ranks = waiting()
    ranks[0].say(call, "ask" if call == "split 0 0" else "sleep 0", "comm 1", "touch go", "poll 7", "split 0 0", "ask")
    ranks[1].say("split 0 0", "ask")
    run(ranks, scripted, tmp_path)
    assert all(rank.code == 0 for rank in ranks), [rank.printed + rank.logged for rank in ranks]
    lines = ranks[0].printed.splitlines()
    assert " init: 7, " in lines[0], lines
    assert f" {call.split()[0]}: {INVALID_ARGUMENT}, " in lines[1] and "is not ready yet" in lines[1], lines
    assert lines[2:-2] == (["none"] if call == "split 0 0" else []), lines
    assert lines[-2].endswith("state: 0, ") and lines[-1] == "rank 0 of 2 on 0", lines
    assert ranks[1].printed == "rank 1 of 2 on 0\n" and ranks[2].printed == ""


@pytest.mark.parametrize("call", ["split 0 0", "shrink 1 0"])
def test_a_part_of_one_that_is_not_ready_fails_its_group(call: str, scripted: dict[str, Path], tmp_path: Path) -> None:
    """Of which nothing is launched, and that is said."""
    ranks = waiting()
    ranks[0].say("group", "comm 0", "all_reduce 7 0 5 0 0 0", "comm 1", call, "end", "comm 1", "touch go", "poll 7")
    for number, rank in enumerate(ranks[:2]):
        rank.say("comm 0", "all_reduce 7 0 5 0 0 0", "wait")
        rank.inputs.append(given(number, 2 - number))
    run(ranks, scripted, tmp_path)
    lines = told(ranks[0], 4)
    assert ranks[1].code == ranks[2].code == 0, ranks[1].logged + ranks[2].logged
    for line, what in ((lines[1], call.split()[0]), (lines[2], "end")):
        assert f" {what}: {INVALID_ARGUMENT}, " in line and "is not ready yet" in line, lines
    assert lines[3].endswith("state: 0, "), lines
    assert ranks[0].output == NOTHING + summed(2) and ranks[1].output == summed(2)


def test_a_factor_is_not_made_for_a_communicator_that_its_group_makes(scripted: dict[str, Path]) -> None:
    """It would be lost when the communicator comes to be. Afterwards there is one."""
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("group", f"join {number} 2", "scale 7 1", "end", "scale 7 1", "all_reduce 7 -1 5 0 0 0", "wait")
        rank.inputs += [np.float32(3).tobytes(), np.float32(2).tobytes(), given(number)]
    run(ranks, scripted)
    for rank in ranks:
        (line,) = told(rank, 1)
        assert f" scale: {INVALID_ARGUMENT}, " in line and "is not ready yet" in line, line
        assert rank.output == (np.frombuffer(summed(2), np.float32) * 2).tobytes()


# ---- groups that fail --------------------------------------------------------------------------------------------------


def test_where_the_librarys_group_fails_nothing_is_launched(scripted: dict[str, Path]) -> None:
    """What Isthmus carries begins behind the end of the library's own group. The next group is launched."""
    ranks = with_parts()
    for number, rank in enumerate(ranks):
        rank.say("group", *BOTH, "end", "wait", "group", *BOTH, "end", "wait")
        rank.inputs.append(given(number, 4))
        rank.environment["REHEARSAL_FAIL"] = f"ncclGroupEnd:1:{INTERNAL}"
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        (line,) = told(rank, 1)
        assert f" end: {INTERNAL}, " in line and HALF not in line, line
        assert rank.output[20:] == NOTHING + given(number) + summed(2)


def test_a_part_that_fails_in_a_group_says_what_was_launched(scripted: dict[str, Path]) -> None:
    """The library has no id for the part, when its share of the group is on its way."""
    ranks = with_parts()
    for number, rank in enumerate(ranks):
        rank.say("group", *BOTH, f"split {number} 0", "end", "wait")
        rank.inputs.append(given(number, 2))
        # The first id of rank 0 is the job's, and each has one for its part.
        rank.environment["REHEARSAL_FAIL"] = f"ncclGetUniqueId:{3 - number}:{INTERNAL}"
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        (line,) = told(rank, 1)
        assert f" end: {INTERNAL}, " in line and HALF in line, line
        assert f"'; what it has on communicators of {rank.vendor.upper()}'s own was)" in line, line
        assert rank.output == given(number) + NOTHING


def test_an_operation_that_is_the_librarys_alone_fails_its_group(scripted: dict[str, Path]) -> None:
    """On a communicator that spans vendors. Nothing of the group is launched; the group's error has the operation's text."""
    ranks = with_parts()
    for number, rank in enumerate(ranks):
        rank.say("group", *BOTH, "bare signal 0", "end", "wait", "group", *BOTH, "end", "wait")
        rank.inputs.append(given(number, 4))
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        for line, what in zip(told(rank, 2), ("signal", "end"), strict=True):
            assert f" {what}: {INVALID_USAGE}, " in line, line
            assert "ncclSignal: this communicator spans several vendors" in line, line
        assert rank.output == NOTHING * 2 + given(number) + summed(2)


@preloaded
def test_a_call_that_has_no_memory_fails_its_group(scripted: dict[str, Path], refusing: Callable[[Rank], None]) -> None:
    ranks = with_parts()
    for number, rank in enumerate(ranks):
        rank.say("group", *BOTH, "starve 0", "bare all_reduce 2", "end", "wait", "group", *BOTH, "end", "wait")
        rank.inputs.append(given(number, 4))
        refusing(rank)
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        for line, what in zip(told(rank, 2), ("all_reduce", "end"), strict=True):
            assert f" {what}: {SYSTEM}, " in line and "Isthmus: std::bad_alloc" in line, line
        assert rank.output == NOTHING * 2 + given(number) + summed(2)


@preloaded
def test_a_group_that_has_no_memory_to_end_is_not_launched(
    scripted: dict[str, Path], refusing: Callable[[Rank], None]
) -> None:
    """Neither half of it."""
    ranks = with_parts()
    for number, rank in enumerate(ranks):
        rank.say("group", *BOTH, f"join {number} 2", "starve 0", "end", "wait", "group", *BOTH, "end", "wait")
        rank.inputs.append(given(number, 4))
        refusing(rank)
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        (line,) = told(rank, 1)
        assert f" end: {SYSTEM}, " in line and "Isthmus: std::bad_alloc" in line and HALF not in line, line
        assert rank.output == NOTHING * 2 + given(number) + summed(2)


# ---- groups whose library is in progress when they end -------------------------------------------------------------------


def late() -> list[Rank]:
    """Ranks 0 and 1 have a communicator of their own library's, number 1, that does not block, besides that of all."""
    ranks = fleet("nna")
    ranks[0].say("id", "init", "use other", "id", "join 0 2 0", "poll 7")
    ranks[1].say("init", "use other", "join 1 2 0", "poll 7")
    ranks[2].say("init")
    return ranks


def test_what_isthmus_carries_of_a_group_follows_what_the_library_puts_late_on_the_stream(scripted: dict[str, Path]) -> None:
    """The library of rank 0 comes to the stream after the group's end, that of rank 1 at once.

    In two orders on one stream the two parts would wait for each other for good.
    """
    ranks = late()
    for number, rank in enumerate(ranks):
        rank.say(*(("group", *BOTH[:-1], "all_reduce 7 0 5 0 0 0", "end", "comm 1", "poll 7") if number < 2 else BOTH[-1:]))
        rank.say("wait", "comm 0", "destroy")
        rank.inputs.append(given(number, 2 if number < 2 else 1))
    ranks[0].environment["REHEARSAL_NCCL_GROUP_MS"] = "300"
    run(ranks, scripted)
    lines = told(ranks[0], 4)
    assert " init: 7, " in lines[0] and " end: 7, " in lines[2], lines
    assert all(line.endswith(" state: 0, ") for line in lines[1::2]), lines
    assert [rank.output for rank in ranks] == [summed(2) + summed(3)] * 2 + [summed(3)]
    assert all(rank.code == 0 for rank in ranks), [rank.printed + rank.logged for rank in ranks]


def test_an_abort_of_a_communicator_that_is_in_progress_ends_the_end_of_its_group(scripted: dict[str, Path]) -> None:
    """By another thread. Of what Isthmus carries nothing is launched, and the next operation is."""
    ranks = late()
    for number, rank in enumerate(ranks):
        if number < 2:
            rank.say("comm 1", "abort_in 7", "group", "bare all_reduce 0", "comm 0", "bare all_reduce 0", "end")
            rank.environment["REHEARSAL_NCCL_GROUP_MS"] = "1000000"
            rank.environment["ISTHMUS_CCL"] = "none"  # else the next operation would wait for the library as long
        rank.say("comm 0", "all_reduce 7 0 5 0 0 1", "wait", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    for rank in ranks[:2]:
        line = told(rank, 3)[-1]
        assert " end: 6, " in line and "aborted a communicator of the group" in line and HALF in line, line
    assert [rank.output for rank in ranks] == [summed(3)] * 3


# ---- handles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["destroy", "abort"])
@pytest.mark.parametrize("vendors", ["nn", "aa"])
def test_a_copy_of_a_handle_is_none_when_its_communicator_is_destroyed(
    vendors: str, ending: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """The variable has the library's own handle when the group has ended; the copy is of the one that the call gave."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("group", f"join {number} 2", "keep", "end", "all_reduce 7 0 5 0 0 0", "wait", f"touch done.{number}")
        rank.say("expect done.0", "expect done.1", ending, "recall", "all_reduce 7 0 0 0 0 0", "destroy")
        rank.inputs.append(given(number))
        rank.environment["REHEARSAL_TRACE"] = str(tmp_path / f"trace.{number}")
    run(ranks, scripted, tmp_path)
    for number, rank in enumerate(ranks):
        assert all("was destroyed or aborted" in line for line in told(rank, 2)), rank.printed
        assert rank.output == summed(2)
        assert json.loads((tmp_path / f"trace.{number}").read_text())["misuses"] == 0


# ---- one thread of several ranks, where no stream waits for the host ----------------------------------------------------


def of_both(*calls: str) -> list[str]:
    """A group of the same calls, each with the rank, on both devices of a process."""
    lines = ["group"]
    for number, rank in enumerate((0, 2)):
        lines += [f"device {number}", f"comm {number}", *(call.format(rank) for call in calls)]
    return [*lines, "end"]


def of_three(*lines: str) -> list[Rank]:
    """Rank 1 has a process; ranks 0 and 2 are one thread of a process with two devices, without gates."""
    ranks = fleet("na")
    ranks[0].environment |= WITHOUT_GATES
    ranks[0].say("id", *TWO_DEVICES, *lines, "wait", "comm 0", "destroy", "comm 1", "destroy")
    ranks[1].say("join 1 3")
    return ranks


def test_one_thread_drives_two_ranks_of_a_communicator(scripted: dict[str, Path]) -> None:
    """Collectives one after the other, each of all three ranks: the second rank's call does not wait for the first's end."""
    ranks = of_three(*of_both("all_reduce 7 0 5 0 0 0", "broadcast 7 0 5 1 1 1", "all_reduce 7 0 5 0 1 2"))
    ranks[1].say(
        "group", "all_reduce 7 0 5 0 0 0", "end", "broadcast 7 0 5 1 1 1", "all_reduce 7 0 5 0 1 2", "wait", "destroy"
    )
    ranks[0].inputs += [given(0, 3), given(2, 3)]
    ranks[1].inputs.append(given(1, 3))
    run(ranks, scripted)
    assert all(told(rank, 0) == [] for rank in ranks)
    assert ranks[0].output == (summed(3) + given(1) + summed(3)) * 2 and ranks[1].output == summed(3) + given(1) + summed(3)


@pytest.mark.parametrize("count", [5, 2_000_000])
def test_the_ranks_of_one_thread_send_each_other_something_before_a_collective(
    count: int, scripted: dict[str, Path]
) -> None:
    ranks = of_three(
        "group",
        *("device 0", "comm 0", f"send 7 0 {count} 2 0 0", f"recv 7 0 {count} 2 0 1", "all_reduce 7 0 5 0 0 0"),
        *("device 1", "comm 1", f"recv 7 0 {count} 0 0 0", f"send 7 0 {count} 0 0 1", "all_reduce 7 0 5 0 0 0"),
        "end",
    )
    ranks[1].say("all_reduce 7 0 5 0 0 0", "wait", "destroy")
    long = [np.full(count, number, np.float32).tobytes() for number in (1, 2)]
    ranks[0].inputs += [long[0], given(0), long[1], given(2)]
    ranks[1].inputs.append(given(1))
    run(ranks, scripted)
    assert all(told(rank, 0) == [] for rank in ranks)
    assert ranks[0].output == long[1] + summed(3) + long[0] + summed(3) and ranks[1].output == summed(3)


def test_one_thread_drives_ranks_of_two_communicators_on_two_devices(scripted: dict[str, Path]) -> None:
    """Each with another process, and these call each other first, so that neither communicator waits for the other."""
    ranks = fleet("naa")
    ranks[0].environment |= WITHOUT_GATES
    ranks[0].say(
        "id", "use other", "id", "group", "use id", "device 0", "join 0 2", "use other", "device 1", "join 0 2", "end"
    )
    ranks[0].say("group", "device 0", "comm 0", "all_reduce 7 0 5 0 0 0", "device 1", "comm 1", "all_reduce 7 0 5 0 0 0")
    ranks[0].say("end", "wait", "comm 0", "destroy", "comm 1", "destroy")
    ranks[1].say("join 1 2", "expect second", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    ranks[2].say("use other", "join 1 2", "all_reduce 7 0 5 0 0 0", "wait", "touch second", "destroy")
    ranks[0].inputs += [given(0)] * 2
    for rank in ranks[1:]:
        rank.inputs.append(given(1))
    run(ranks, scripted)
    assert all(told(rank, 0) == [] for rank in ranks)
    assert [rank.output for rank in ranks] == [summed(2) * 2, summed(2), summed(2)]


def test_what_is_refused_for_one_rank_of_a_thread_begins_for_none(scripted: dict[str, Path]) -> None:
    """The second device's stream is being captured; the next group is done."""
    again = of_both("all_reduce 7 0 5 0 0 0")
    captured = [line.replace("5 0 0 0", "5 0 0 1") if line.startswith("all_reduce") else line for line in again[4:]]
    ranks = of_three("device 1", "capture 1", *again[:4], *captured, "stop 1", *again)
    ranks[1].say("all_reduce 7 0 5 0 0 0", "wait", "destroy")
    ranks[0].inputs += [given(0), given(2)] * 2
    ranks[1].inputs.append(given(1))
    run(ranks, scripted)
    (line,) = told(ranks[0], 1)
    assert " end: 5, " in line and "captured" in line, line
    assert ranks[0].output == NOTHING * 2 + summed(3) * 2 and ranks[1].output == summed(3)
