"""Groups and barriers of programs for HCCL in jobs that span vendors: simulated ranks, as in test_spanning_hccl.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from doors import DOORS, HERE, compile_c, preloaded
from spanning import GAP, HANDED, SPANS, TWO_DEVICES, Rank, at_once, check, fleet, given, run, summed, sums
from test_spanning_census import OVER, late, when_two_have_gone
from test_spanning_collectives import contribution
from test_spanning_hccl import NOT_SUPPORTED, PARAMETER, labelled

POINTER, SYSTEM, RUNTIME = 2, 8, 15
BOTH_ADD_UP = (
    "group",
    "device 0",
    "comm 0",
    "all_reduce 7 0 5 0 0 0",
    "device 1",
    "comm 1",
    "all_reduce 7 0 5 0 0 0",
    "end",
)
BOTH_END = ("group", "destroy", "comm 0", "destroy", "end")


# ---- inits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendors", ["hn", "ha"])
def test_one_process_may_be_several_ranks(vendors: str, scripted: dict[str, Path]) -> None:
    """Two Ascend devices in one process, joined in a group, and a process of another vendor between them."""
    ranks = fleet(vendors)
    ranks[0].say("id", *TWO_DEVICES, *BOTH_ADD_UP, "wait", *BOTH_END)
    ranks[1].say("join 1 3", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    ranks[0].inputs += [given(0), given(2)]
    ranks[1].inputs.append(given(1))
    ranks[0].environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].output == summed(3) * 2 and ranks[1].output == summed(3) and ranks[0].printed == ""
    assert ranks[0].logged.count(SPANS) == 2


def test_several_ranks_of_one_process_get_the_librarys_own(scripted: dict[str, Path]) -> None:
    """What their configurations and root infos said, though both were variables of a function that has returned."""
    ranks = fleet("h")
    ranks[0].say("id", "group", "device 0", "join 0 2 1", "device 1", "join 1 2 1", "end", "device 0", "comm 0", "name")
    ranks[0].say(*BOTH_ADD_UP, "wait", "device 1", "comm 1", "destroy", "device 0", "comm 0", "destroy")
    ranks[0].inputs += [given(0), given(1)]
    ranks[0].environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].output == summed(2) * 2 and ranks[0].printed == "called by name\n"
    assert ranks[0].logged.count(f"HCCL {HANDED}") == 2


@preloaded
def test_the_library_sees_a_group_of_inits_as_without_isthmus(scripted: dict[str, Path], tmp_path: Path) -> None:
    """But that the device that the program worked on at the call is asked for, and set when the group ends."""

    def calls(name: str, behind: bool) -> list[dict[str, int]]:
        ranks = fleet("hh")
        ranks[0].say("id")
        for number, rank in enumerate(ranks):
            rank.say("group", f"join {number} 2", "end", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
            rank.inputs.append(given(number))
            rank.environment["REHEARSAL_TRACE"] = str(tmp_path / f"{name}.{number}")
        run(ranks, scripted, tmp_path / name, behind=behind)
        check(ranks)
        assert all(rank.output == summed(2) for rank in ranks)
        records = [json.loads((tmp_path / f"{name}.{number}").read_text()) for number in range(2)]
        assert all(record["misuses"] == 0 for record in records)
        return [record["calls"] for record in records]

    bare = calls("bare", False)
    assert bare[0]["HcclCommInitRootInfo"] == bare[0]["HcclGroupEnd"] == 1
    asked = ("aclrtGetDevice", "aclrtGetCurrentContext", "aclrtSetCurrentContext")
    extra = [seen | {name: seen.get(name, 0) + 2 for name in asked} for seen in bare]
    assert calls("behind", True) == extra


def test_a_group_that_fails_leaves_no_handle(scripted: dict[str, Path]) -> None:
    ranks = fleet("hn")
    ranks[0].say("id", "group", "join 0 2", "end", "ask")
    ranks[1].say("join 1 3")  # of another number of ranks
    run(ranks, scripted, spans=False)
    told = ranks[0].printed.splitlines()
    assert ranks[0].code == 0 and " end: " in told[0] and told[1:] == ["none"], told + [ranks[0].logged]


def test_where_one_communicator_of_a_group_cannot_be_made_there_is_no_handle_of_the_others(
    scripted: dict[str, Path],
) -> None:
    """Two devices of one process, each with a process of another vendor; whichever comes first is refused a stream."""
    ranks = fleet("hnn")
    ranks[0].say("id", "use other", "id", "use id", "group", "device 0", "join 0 2")
    ranks[0].say("use other", "device 1", "join 0 2", "end", "comm 0", "ask", "comm 1", "ask")
    ranks[0].environment["REHEARSAL_FAIL"] = "aclrtCreateStreamWithConfig:1:207000"
    ranks[1].say("join 1 2")
    ranks[2].say("use other", "join 1 2")
    run(ranks, scripted)
    told = ranks[0].printed.splitlines()
    assert ranks[0].code == 0 and f" end: {RUNTIME}, " in told[0] and told[1:] == ["none"] * 2, told + [ranks[0].logged]
    assert "HcclGroupEnd: a communicator in it could not be made (of the group nothing was launched" in ranks[0].logged


@preloaded
@pytest.mark.parametrize("after", [0, 1])
def test_a_thread_that_cannot_be_made_fails_the_group_and_no_rank_begins(
    after: int, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """So the same root info serves when the group is made once more. The library's own group is over."""
    library = tmp_path / "librefuse.so"
    compile_c("-shared", "-fPIC", HERE / "refuse.c", "-o", library, "-ldl", "-pthread")
    ranks = fleet("hn")
    again = [line.replace("comm 0", "comm 2").replace("comm 1", "comm 3") for line in (*BOTH_ADD_UP, "wait", *BOTH_END)]
    ranks[0].say("id", *TWO_DEVICES[:-1], f"refuse {after}", "end", "ask", *TWO_DEVICES, *again)
    ranks[1].say("join 1 3", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    ranks[0].inputs += [given(0), given(2)]
    ranks[1].inputs.append(given(1))
    ranks[0].environment["LD_PRELOAD"] = f"{DOORS['hccl'].path}:{library}"
    run(ranks, scripted)
    told = ranks[0].printed.splitlines()
    assert ranks[0].code == ranks[1].code == 0, ranks[0].logged + ranks[1].logged
    assert len(told) == 2 and f" end: {SYSTEM}, " in told[0] and told[1] == "none", told
    assert ranks[0].output == summed(3) * 2 and ranks[1].output == summed(3)


def test_a_rank_that_comes_too_late_for_the_census_finds_the_others(scripted: dict[str, Path], tmp_path: Path) -> None:
    """They are with the library by then, and it hears at once that the census is over."""
    ranks = fleet("hhh")
    at_once(ranks[:2])
    sums(ranks, "init")
    late(ranks, "late")
    for rank in ranks[:2]:
        rank.environment["ISTHMUS_TIMEOUT"] = str(GAP)
    run(ranks, scripted, tmp_path, meanwhile=when_two_have_gone(tmp_path))
    check(ranks)
    assert all(rank.output == summed(3) for rank in ranks)
    assert OVER in ranks[2].logged and "taken for ranks without Isthmus" in ranks[2].logged


def test_a_part_works_on_the_device_of_its_parent(scripted: dict[str, Path]) -> None:
    ranks = fleet("hh")
    labelled(ranks, "xy")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "device 3", "part 1 0 1", f"device {number}", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.say("comm 0", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert rank.printed == "" and rank.output == summed(2), rank.logged


# ---- operations ------------------------------------------------------------------------------------------------------


def two_communicators(vendors: str) -> list[Rank]:
    """Each rank has both of them."""
    ranks = fleet(vendors)
    ranks[0].say("id", "init", "expect joined", "use other", "id", "init")
    for rank in ranks[1:]:
        rank.say("init", "touch joined", "use other", "init")
    return ranks


@pytest.mark.parametrize("count", [5, 2_000_000])
def test_a_group_may_be_of_several_communicators(count: int, scripted: dict[str, Path]) -> None:
    """Both span vendors and have the same device: collectives, and messages that cross each other."""
    ranks = two_communicators("hn")
    data = [contribution(rank, count, np.dtype(np.float32)).tobytes() for rank in range(2)]
    for number, rank in enumerate(ranks):
        rank.say("group", "comm 0", "all_reduce 7 0 5 0 0 0", "comm 1", "all_reduce 7 0 5 0 0 0", "end")
        first, second = ("send", "recv") if number == 0 else ("recv", "send")
        messages = [f"comm 0\n{first} 7 0 {count} {1 - number} 0 0", f"comm 1\n{second} 7 0 {count} {1 - number} 0 1"]
        rank.say("group", *(messages if number == 0 else messages[::-1]), "comm 0", "all_reduce 7 0 5 0 0 0", "end")
        rank.say("wait", "destroy", "comm 1", "destroy")
        rank.inputs += [given(number)] * 2 + [data[number], given(number)]
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == "" and rank.output == summed(2) * 2 + data[1 - number] + summed(2)


@pytest.mark.parametrize("count", [5, 2_000_000])
def test_the_ranks_of_one_thread_may_send_each_other_something(count: int, scripted: dict[str, Path]) -> None:
    ranks = fleet("hn")
    data = contribution(1, count, np.dtype(np.float32)).tobytes()
    first = ("device 0", "comm 0", f"send 7 0 {count} 2 0 0", f"recv 7 0 {count} 2 0 1")
    second = ("device 1", "comm 1", f"recv 7 0 {count} 0 0 0", f"send 7 0 {count} 0 0 1")
    ranks[0].say("id", *TWO_DEVICES, "group", *first, *second, "end", "wait", *BOTH_END)
    ranks[1].say("join 1 3", "destroy")
    ranks[0].inputs += [data] * 2
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].printed == "" and ranks[0].output == data * 2


def test_several_processes_of_several_devices_each(scripted: dict[str, Path]) -> None:
    """Four ranks of one island, two a thread, and one of another vendor; groups in groups."""
    ranks, times = fleet("hhn"), 10
    ranks[0].say("id")
    for process, rank in enumerate(ranks[:2]):
        a, b = 2 * process, 2 * process + 1
        rank.environment["DEVICE"] = "0"
        rank.say("group", "group", f"device {a}", f"join {a} 5", "end", f"device {b}", f"join {b} 5", "end")
        for _ in range(times):
            rank.say("group", f"device {a}", "comm 0", "all_reduce 7 0 5 0 0 0")
            rank.say(f"device {b}", "comm 1", "all_reduce 7 0 5 0 0 0", "end")
            rank.inputs += [given(a), given(b)]
        rank.say("wait", *BOTH_END)
    ranks[2].say("join 4 5", *["all_reduce 7 0 5 0 0 0"] * times, "wait", "destroy")
    ranks[2].inputs += [given(4)] * times
    run(ranks, scripted)
    check(ranks)
    assert [rank.output for rank in ranks] == [summed(5) * times * 2] * 2 + [summed(5) * times]


def test_a_group_may_be_of_a_communicator_of_each_kind(scripted: dict[str, Path]) -> None:
    ranks = fleet("hhn")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init")
        rank.inputs.append(given(number))
        if rank.vendor == "nccl":
            rank.say("all_reduce 7 0 5 0 0 0", "wait")
            continue
        rank.say("part 1 0 1", "group", "all_reduce 7 0 5 0 0 0", "comm 0", "all_reduce 7 0 5 0 0 0", "end", "wait")
        rank.say("comm 1", "destroy", "comm 0")
        rank.inputs.append(given(number))
    for rank in ranks:
        rank.say("destroy")
    run(ranks, scripted)
    check(ranks)
    assert [rank.output for rank in ranks] == [summed(2) + summed(3)] * 2 + [summed(3)]


def test_what_is_refused_in_a_group_is_the_groups_result(scripted: dict[str, Path]) -> None:
    """And nothing of it begins, of neither communicator."""
    ranks = two_communicators("hn")
    ranks[0].say("group", "comm 0", "all_reduce 7 0 5 0 0 0", "comm 1", "typed 12 0", "end", "peek")
    for number, rank in enumerate(ranks):
        rank.say("comm 0", "all_reduce 7 0 5 0 0 0", "wait", "destroy", "comm 1", "destroy")
        rank.inputs += [given(number)] * (2 - number)
    run(ranks, scripted)
    check(ranks)
    told = ranks[0].printed.splitlines()
    assert [line.split()[1:3] for line in told[:2]] == [["typed:", f"{NOT_SUPPORTED},"], ["end:", f"{NOT_SUPPORTED},"]], told
    assert told[2].endswith("peek: 0") and ranks[0].output == bytes(20) + summed(2) and ranks[1].output == summed(2)


def each_kind() -> list[Rank]:
    """Two ranks of HCCL with a rank of NCCL, who have a part of HCCL's own as well."""
    ranks = fleet("hhn")
    ranks[0].say("id")
    for rank in ranks:
        rank.say("init", *(["part 1 0 1"] if rank.vendor == "hccl" else []))
    return ranks


@pytest.mark.parametrize("when", ["in the call", "in a call that is HCCL's alone", "at the end"])
def test_where_isthmus_refuses_something_the_log_says_what_of_the_group_was_launched(
    when: str, scripted: dict[str, Path]
) -> None:
    """HCCL has no call that makes a group fail, so its part is; of Isthmus' nothing is."""
    ranks = each_kind()
    calls = {"in the call": ["typed 12 0"], "in a call that is HCCL's alone": ["bare enqueue 0"]}
    refused = calls.get(when, ["capture 1", "all_reduce 7 0 5 0 0 1"])
    after = [] if when in calls else ["stop 1"]
    for number, rank in enumerate(ranks[:2]):
        rank.say("group", "comm 1", "all_reduce 7 0 5 0 0 0", "comm 0", "all_reduce 7 0 5 0 0 0", *refused, "end", *after)
        rank.say("wait", "comm 1", "destroy", "comm 0", "destroy")
        rank.inputs += [given(number)] * (2 + len(after))
    ranks[2].say("destroy")
    run(ranks, scripted)
    check(ranks)
    for rank in ranks[:2]:
        assert f" end: {NOT_SUPPORTED}, " in rank.printed
        assert rank.output == summed(2) + bytes(20) * (1 + len(after)), rank.logged
        assert "of the group nothing was launched on " in rank.logged
        assert "; what it has on communicators of HCCL's own was)" in rank.logged


def test_what_is_found_at_the_end_stops_the_operations_of_all_devices(scripted: dict[str, Path]) -> None:
    """One thread, two devices; the second one's stream is being captured."""
    ranks = fleet("hn")
    ranks[0].say("id", *TWO_DEVICES, "device 1", "capture 1", "group", "device 0", "comm 0", "all_reduce 7 0 5 0 0 0")
    ranks[0].say("device 1", "comm 1", "all_reduce 7 0 5 0 0 1", "end", "stop 1", *BOTH_ADD_UP, "wait", *BOTH_END)
    ranks[1].say("join 1 3", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    ranks[0].inputs += [given(0), given(2)] * 2
    ranks[1].inputs.append(given(1))
    run(ranks, scripted)
    check(ranks)
    assert f" end: {NOT_SUPPORTED}, " in ranks[0].printed and ranks[0].output == bytes(40) + summed(3) * 2, ranks[0].logged
    assert ranks[1].output == summed(3)


def test_a_rank_may_send_itself_something_in_a_group(scripted: dict[str, Path]) -> None:
    ranks = fleet("hn")
    sums(ranks, "init")
    ranks[0].lines[2:2] = ["group", "recv 7 0 5 0 0 0", "send 7 0 5 0 0 0", "end"]
    ranks[0].inputs.insert(0, given(3))
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].printed == "" and ranks[0].output == given(3) + summed(2) and ranks[1].output == summed(2)


def test_a_message_of_nothing_is_none_between_ranks_of_hccl(scripted: dict[str, Path]) -> None:
    """One end alone may make the call, and need not give memory; with a rank of another vendor it is a message as NCCL's."""
    ranks = fleet("hhn")
    labelled(ranks, "xyz")
    ranks[0].say("id", "init", "send 7 0 0 1 0 0", "send 7 0 5 1 0 0", "send 7 0 0 2 0 0", "send 7 0 5 2 0 0", "empty_batch")
    ranks[1].say("init", "recv 7 0 5 0 0 0", "recv 7 0 0 0 0 0", "empty_batch")
    ranks[2].say("init", "recv 7 0 0 0 0 0", "recv 7 0 5 0 0 0")
    for rank in ranks:
        rank.say("wait", "destroy")
    ranks[0].inputs += [given(3), given(4)]
    run(ranks, scripted)
    check(ranks)
    assert [rank.output for rank in ranks] == [b"", given(3), given(4)]
    assert [rank.printed for rank in ranks] == ["", "", ""]


@pytest.mark.parametrize("group", [False, True])
def test_a_barrier_comes_behind_what_the_streams_of_all_ranks_hold(group: bool, scripted: dict[str, Path]) -> None:
    ranks = fleet("hh")
    labelled(ranks, "xy")
    call = ["group", "barrier 0", "end"] if group else ["barrier 0"]
    ranks[0].say("id", "init", *call, "wait", "touch passed", "destroy")
    ranks[1].say("init", "hold 0", "later 300 passed", *call, "wait", "destroy")
    run(ranks, scripted)
    check(ranks)
    assert ranks[1].printed == "passed is not there\n"


def test_a_barrier_in_a_capture_is_refused(scripted: dict[str, Path]) -> None:
    ranks = fleet("hh")
    labelled(ranks, "xy")
    sums(ranks, "init")
    ranks[0].lines[2:2] = ["capture 1", "barrier 1", "stop 1"]
    run(ranks, scripted)
    check(ranks)
    assert f"barrier: {NOT_SUPPORTED}, " in ranks[0].printed and "being captured into a graph" in ranks[0].logged
    assert [rank.output for rank in ranks] == [summed(2)] * 2


@pytest.mark.parametrize("vendors", ["hn", "ah"])
def test_a_group_in_a_capture_is_refused_and_the_communicator_goes_on(vendors: str, scripted: dict[str, Path]) -> None:
    """All of it at its end, and each call by itself; then what was refused is done out of the capture."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "capture 1", "group", "bare send 1", "bare recv 1", "end")
        for call in ("broadcast", "all_reduce"):
            rank.say("group", f"bare {call} 1", "end")
        rank.say("bare send 1", "bare recv 1", "bare broadcast 1", "stop 1")
        rank.say("group", f"send 7 0 5 {1 - number} 0 1", f"recv 7 0 5 {1 - number} 0 1", "end")
        rank.say("group", "broadcast 7 0 5 1 0 0", "all_reduce 7 0 5 0 0 0", "end", "wait", "destroy")
        rank.inputs.append(given(number, 3))
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        assert rank.code == 0, rank.printed + rank.logged
        told = rank.printed.splitlines()
        assert [line.split()[1] for line in told] == [*["end:"] * 3, "send:", "recv:", "broadcast:"], told
        assert all(line.split()[2] == f"{NOT_SUPPORTED}," for line in told), told  # NCCL's number for it is the same
        why = rank.logged if rank.vendor == "hccl" else rank.printed  # HCCL's programs have no call that tells it
        assert why.count("being captured into a graph") == 6, rank.printed + rank.logged
        assert rank.output == given(1 - number) + given(1) + summed(2)


def test_a_count_of_more_bytes_than_there_are_numbers_for_is_refused(scripted: dict[str, Path]) -> None:
    """Two to the power of 61 elements of eight bytes are none where the product is cut."""
    ranks = fleet("hn")
    sums(ranks, "init")
    ranks[0].lines[2:2] = ["huge 61", "huge 62", "huge 58"]
    run(ranks, scripted)
    check(ranks)
    assert [line.split()[1:3] for line in ranks[0].printed.splitlines()] == [["huge:", f"{PARAMETER},"]] * 3
    assert [rank.output for rank in ranks] == [summed(2)] * 2


def test_memory_that_is_not_there_is_refused(scripted: dict[str, Path]) -> None:
    ranks = fleet("hn")
    sums(ranks, "init")
    ranks[0].lines[2:2] = [f"missing {call}" for call in ("all_reduce", "broadcast", "scatter", "send")]
    run(ranks, scripted)
    check(ranks)
    assert [line.split()[1:3] for line in ranks[0].printed.splitlines()] == [["missing:", f"{POINTER},"]] * 4
    assert [rank.output for rank in ranks] == [summed(2)] * 2 and "a buffer is NULL" in ranks[0].logged
