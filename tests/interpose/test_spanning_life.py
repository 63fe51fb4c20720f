"""How communicators end: ranks that die and abort, groups that fail, calls that are refused, handles that stray."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from doors import DOORS, HERE, compile_c, preloaded
from spanning import WITHOUT_GATES, check, eventually, fleet, given, inside_a_call, run, summed, sums


def test_a_killed_rank_is_seen_by_the_others(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("nan")
    sums(ranks, "init", after=())
    for rank in ranks[:2]:
        rank.say("touch ready", "poll 0", "all_reduce 7 0 0 0 0 0", "abort")
    ranks[2].say("expect ready", "kill")
    run(ranks, scripted, tmp_path)
    assert ranks[2].code == -9
    for rank in ranks[:2]:
        assert rank.code == 0, rank.printed + rank.logged
        told = rank.printed.splitlines()
        assert " state: 6, " in told[0] and "rank 2" in told[0], told
        assert " all_reduce: 6, remote process exited" in told[1] and "rank 2" in told[1], told
        assert len(told) == 2


@pytest.mark.parametrize(
    ("vendors", "ending", "together"),
    [("hn", "kill", False), ("hn", "destroy", True), ("na", "kill", True), ("na", "destroy", False)],
)
def test_a_call_that_waits_says_that_the_exchange_failed(
    vendors: str, ending: str, together: bool, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """No stream of rank 0's waits for the host, so the call returns when the exchange is over. Rank 1 never comes to it.
    It ends when rank 0's flight record says that the call is running.
    """
    ranks = fleet(vendors)
    record = tmp_path / "record"
    ranks[0].environment |= WITHOUT_GATES | {"ISTHMUS_DUMP": str(record)}
    ranks[0].say("id", "init", "touch ready", *(["group"] if together else []), "bare all_reduce 0")
    ranks[0].say(*(["end"] if together else []), "poll 0", "destroy")
    ranks[1].say("init", "expect running", ending)

    def let_go(job: list[subprocess.Popen[bytes]]) -> None:
        eventually((tmp_path / "ready").exists, "rank 0 has no communicator")
        eventually(inside_a_call(job[0], record), "rank 0 does not come to the exchange")
        (tmp_path / "running").touch()

    run(ranks, scripted, tmp_path, meanwhile=let_go)
    assert ranks[0].code == 0, ranks[0].printed + ranks[0].logged
    told = ranks[0].printed.splitlines()
    code = 21 if vendors[0] == "h" else 6
    assert f" {'end' if together else 'all_reduce'}: {code}, " in told[0] and f" state: {code}, " in told[1], told
    call = "HcclGroupEnd: " if together else "HcclAllReduce: "
    why = ranks[0].logged if vendors[0] == "h" else told[0]  # HCCL has no call that gives a text
    assert (call in why) == (vendors[0] == "h") and "rank 1" in why and "#1 all_reduce (float32, sum, 1 elements)" in why, (
        why
    )


@pytest.mark.parametrize("vendors", ["na", "an"])
def test_an_abort_of_a_rank_that_has_ended_its_operations_lets_the_others_end_theirs(
    vendors: str, scripted: dict[str, Path]
) -> None:
    """So PyTorch up to 2.5 ends a good run. Rank 1 aborts while the stream of rank 0 is held up before the last operation;
    rank 0 aborts when that has ended. A later operation with a rank that has aborted fails, and names it.
    """
    ranks = fleet(vendors)
    sums(ranks, "init", after=())
    last = "broadcast 7 0 5 1 0 0"
    ranks[0].say("all_reduce 7 0 5 0 0 0", "wait", "hold 0", last, "touch held", "expect aborted", "release", "wait")
    ranks[0].say("all_reduce 7 0 5 0 0 0", "poll 0", "destroy")
    ranks[1].say("all_reduce 7 0 5 0 0 0", "wait", "expect held", last, "wait", "abort", "ask", "abort", "touch aborted")
    for number, rank in enumerate(ranks):
        rank.inputs += [given(number), given(number), *([given(number)] if number == 0 else [])]
    run(ranks, scripted)
    assert ranks[0].code == ranks[1].code == 0, ranks[0].logged + ranks[1].logged
    assert ranks[0].output == summed(2) * 2 + given(1)
    assert " state: 6, " in ranks[0].printed.splitlines()[0] and "rank 1" in ranks[0].printed, ranks[0].printed
    told = ranks[1].printed.splitlines()
    assert all("was destroyed or aborted" in line for line in (told[0], told[1], told[2], told[-1])), told


@pytest.mark.parametrize("waits", ["finalize", "destroy", "split 0 0"])
def test_an_abort_by_another_thread_ends_a_call_that_waits_for_a_rank_that_never_comes(
    waits: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Rank 1 does not come to the operation, or to the split. Nothing has a deadline."""
    ranks = fleet("na")
    pending = [] if waits.startswith("split") else ["bare all_reduce 0"]
    ranks[0].say("id", "init", *pending, "touch ready", "abort_later 300", waits, "touch over")
    ranks[1].say("init", "expect ready", "expect over", "abort")
    for rank in ranks:
        rank.unset.append("ISTHMUS_TIMEOUT")
    run(ranks, scripted, tmp_path)
    assert ranks[0].code == ranks[1].code == 0, ranks[0].printed + ranks[0].logged
    assert "abort" in ranks[0].printed, ranks[0].printed


@pytest.mark.everything
def test_an_operation_has_no_deadline_where_the_program_sets_none(scripted: dict[str, Path], tmp_path: Path) -> None:
    """Rank 1 comes to it when Isthmus' own deadline, which is ISTHMUS_TIMEOUT's default, has long passed."""
    default = 300
    ranks = fleet("na")
    ranks[0].say("id", "init", "all_reduce 7 0 5 0 0 0", "touch begun", "wait", "destroy")
    ranks[1].say("init", "expect begun", f"sleep {(default + 20) * 1000}", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    for number, rank in enumerate(ranks):
        rank.unset.append("ISTHMUS_TIMEOUT")
        rank.inputs.append(given(number))
    run(ranks, scripted, tmp_path, seconds=default + 200)
    check(ranks)
    assert all(rank.output == summed(2) for rank in ranks)


@pytest.mark.parametrize("vendors", ["na", "an"])
def test_an_abort_ends_what_is_pending(vendors: str, scripted: dict[str, Path], tmp_path: Path) -> None:
    """Rank 1 has not called it. The stream comes to its end, and the others hear of the abort."""
    ranks = fleet(vendors)
    ranks[0].say("id", "init", "bare all_reduce 0", "touch ready", "sleep 100", "abort", "touch aborted", "wait")
    ranks[1].say("init", "expect ready", "expect aborted", "poll 0", "bare all_reduce 0", "wait", "destroy")
    for rank in ranks:
        rank.environment["ISTHMUS_TIMEOUT"] = "1000"  # later than run() waits
    run(ranks, scripted, tmp_path)
    assert ranks[0].code == ranks[1].code == 0 and ranks[0].printed == "", ranks[0].printed + ranks[0].logged
    told = ranks[1].printed.splitlines()
    assert " state: 6, " in told[0] and "the program called abort" in told[0] and "rank 0" in told[0], told
    assert " all_reduce: 6, " in told[1] and len(told) == 2, told


@pytest.mark.parametrize("vendors", ["na", "an"])
def test_an_abort_of_one_communicator_of_a_group_leaves_the_operations_of_the_other(
    vendors: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Rank 0 has a group in flight with an operation on each, on a stream each, and rank 1 has called neither."""
    ranks = fleet(vendors)
    ranks[0].say("id", "init", "use other", "id", "init", "comm 0", "group", "bare all_reduce 0", "comm 1")
    ranks[0].say("all_reduce 7 0 5 0 0 1", "end", "touch ready", "comm 0", "abort", "touch aborted")
    ranks[1].say("init", "use other", "init", "expect ready", "expect aborted", "comm 0", "poll 0", "comm 1")
    ranks[1].say("poll 7", "all_reduce 7 0 5 0 0 1")
    for number, rank in enumerate(ranks):
        rank.say("comm 1", "wait", "poll 7", "destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_TIMEOUT"] = "1000"  # later than run() waits
    run(ranks, scripted, tmp_path)
    check(ranks)
    assert [rank.output for rank in ranks] == [summed(2)] * 2
    (other,), (aborted, before, after) = (rank.printed.splitlines() for rank in ranks)
    assert " state: 6, " in aborted and "the program called abort" in aborted and "rank 0" in aborted
    assert all(line.endswith(" state: 0, ") for line in (other, before, after))


@pytest.mark.parametrize(
    ("vendors", "fault", "code"),
    [
        ("na", "cuStreamWaitValue64:1:719", 1),
        ("an", "hipStreamWaitValue64:1:999", 1),
        ("hn", "aclrtMemcpyAsync:1:507015", 15),
    ],
)
def test_a_call_of_the_device_that_fails_is_the_devices_failure_and_not_the_systems(
    vendors: str, fault: str, code: int, scripted: dict[str, Path]
) -> None:
    """ncclUnhandledCudaError, HCCL_E_RUNTIME: of the communicator, and of the next call. The program does not call these."""
    ranks = fleet(vendors)
    ranks[0].say("id", "init", "bare all_reduce 0", "poll 0", "bare all_reduce 0", "destroy")
    ranks[0].environment["REHEARSAL_FAIL"] = fault
    ranks[1].say("init", "bare all_reduce 0", "poll 0", "destroy")
    run(ranks, scripted)
    for rank in ranks:
        assert rank.code == 0, rank.printed + rank.logged
    name, told = fault.split(":")[0], ranks[0].printed.splitlines()
    (state,) = [line for line in told if " state: " in line]
    refused = [line for line in told if " all_reduce: " in line][-1]
    assert f" state: {code}, " in state and f" all_reduce: {code}, " in refused, told
    assert name in (ranks[0].logged if vendors[0] == "h" else refused), told


@pytest.mark.parametrize("vendors", ["na", "an", "hn"])
def test_an_address_that_is_no_devices_is_refused_and_nothing_is_lost(vendors: str, scripted: dict[str, Path]) -> None:
    """An address of nothing, or of the program's own memory: not read, not written, not sent. The communicator goes on."""
    ranks = fleet(vendors)
    sums(ranks, "init", *[f"wild {mine} {end} 0" for mine in (0, 1) for end in (0, 1)])
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        told = rank.printed.splitlines()
        assert len(told) == 4 and rank.output == summed(2)
        wrong = 1 if vendors[number] == "h" else 4
        texts = rank.logged.splitlines() if vendors[number] == "h" else told
        for line, end in zip(told, ("recv", "send") * 2, strict=True):
            assert f" wild: {wrong}, " in line, line
            found = [text for text in texts if f"all_reduce: {end} at 0x" in text]
            assert found and all("Pass memory that was allocated on" in text for text in found), texts


@pytest.mark.parametrize("vendors", ["na", "an"])
@pytest.mark.parametrize("wrong", ["broadcast 7 0 5 9 0 1", "bare all_reduce 2"])
def test_of_a_group_in_which_a_call_is_refused_nothing_is_launched(
    vendors: str, wrong: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Neither Isthmus' part nor the library's own: one call is refused at once, one at the end (its stream is captured)."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    at_once = wrong.startswith("broadcast")
    for number, rank in enumerate(ranks):
        rank.say("init", f"split {number} 0", *([] if at_once else ["capture 2"]))
        good = ["comm 1", "all_reduce 7 0 5 0 0 0", "comm 0", "all_reduce 7 0 5 0 0 1"]
        rank.say("group", *good, wrong, "comm 1", "all_reduce 7 0 5 0 0 0", "end", *([] if at_once else ["stop 2"]), "wait")
        rank.say("group", *good, "end", "wait", "comm 1", "destroy", "comm 0", "destroy")
        rank.inputs.append(given(number, 6 if at_once else 5))
        rank.environment["REHEARSAL_TRACE"] = str(tmp_path / f"trace.{number}")
    run(ranks, scripted, tmp_path)
    for number, rank in enumerate(ranks):
        assert rank.code == 0, rank.printed + rank.logged
        told = rank.printed.splitlines()
        assert len(told) == 1 + at_once and (" end: 4, " if at_once else " end: 5, ") in told[-1], told
        why = "ncclBroadcast: rank 9 is not in 0 to 1" if at_once else "captured"
        assert all(why in line for line in told), told
        assert rank.output == bytes(80 if at_once else 60) + given(number) + summed(2)
        assert json.loads((tmp_path / f"trace.{number}").read_text())["misuses"] == 0


def test_where_half_of_a_group_is_launched_the_error_says_so(scripted: dict[str, Path]) -> None:
    """What is to be made in it must be there before the rest can be checked; by then the library's part is on its way."""
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say(
            "init", f"split {number} 0", "capture 2", "group", "comm 1", "all_reduce 7 0 5 0 0 0", "comm 0", "split 0 0"
        )
        rank.say("comm 0", "bare all_reduce 2", "end", "stop 2", "wait", "comm 2", "ask", "all_reduce 7 0 5 0 0 0", "wait")
        rank.inputs.append(given(number, 2))
    run(ranks, scripted)
    for number, rank in enumerate(ranks):
        assert rank.code == 0, rank.printed + rank.logged
        told = rank.printed.splitlines()
        assert " end: 5, " in told[0] and "captured" in told[0] and told[1] == f"rank {number} of 2 on 0", told
        assert "(of the group nothing was launched on 'interposed-" in told[0], told
        assert f"'; what it has on communicators of {rank.vendor.upper()}'s own was)" in told[0], told
        assert rank.output == given(number) + summed(2)


def test_a_finalized_communicator_takes_no_more(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    one = "all_reduce 7 0 1 0 0 0"
    sums(ranks, "init", after=("finalize", one, "group", one, "end", "ask", "destroy"))
    for rank in ranks:
        rank.inputs.append(bytes(8))
    run(ranks, scripted)
    for rank in ranks:
        told = rank.printed.splitlines()
        calls = [line.split()[1:3] for line in told[:3]]
        assert calls == [["all_reduce:", "4,"], ["all_reduce:", "4,"], ["end:", "4,"]], told
        assert all("was finalized" in line for line in told[:3]) and len(told) == 4 and rank.code == 0, told


@pytest.mark.parametrize("ending", ["finalize", "destroy"])
@pytest.mark.parametrize("vendors", ["na", "an"])
def test_a_communicator_ends_when_its_operations_have_ended(vendors: str, ending: str, scripted: dict[str, Path]) -> None:
    """The stream is held up until a while after the call. What ends the communicator returns after that, and the operation
    is done.
    """
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        # First calls may wait for the device.
        rank.say("init", "all_reduce 7 0 5 0 0 0", "wait", "hold 0", "all_reduce 7 0 5 0 0 0", f"later 200 ended.{number}")
        rank.say(ending, f"touch ended.{number}", *(["destroy"] if ending == "finalize" else []), "wait")
        rank.inputs.append(given(number, 2))
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == f"ended.{number} is not there\n" and rank.output == summed(2) * 2, rank.printed


@pytest.mark.parametrize("ending", ["finalize", "destroy"])
@pytest.mark.parametrize("vendors", ["nh", "ah"])
def test_a_communicator_ends_when_the_other_vendors_rank_has_come_to_its_operations(
    vendors: str, ending: str, scripted: dict[str, Path]
) -> None:
    """The stream of Ascend's rank is held up, so the operation of the other one, which holds up nothing, is pending."""
    ranks = fleet(vendors)
    ranks[0].say("id", "init", "all_reduce 7 0 5 0 0 0", "wait", "all_reduce 7 0 5 0 0 0", "touch called")
    ranks[0].say(ending, "touch ended", *(["destroy"] if ending == "finalize" else []), "wait")
    ranks[1].say("init", "all_reduce 7 0 5 0 0 0", "wait", "expect called", "hold 0", "later 200 ended")
    ranks[1].say("all_reduce 7 0 5 0 0 0", "wait", "destroy")
    for number, rank in enumerate(ranks):
        rank.inputs.append(given(number, 2))
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].printed == "" and ranks[1].printed == "ended is not there\n", ranks[1].printed
    assert all(rank.output == summed(2) * 2 for rank in ranks)


def test_what_is_the_vendors_alone_is_refused_with_a_reason(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    sums(ranks, "init", "suspend")
    run(ranks, scripted)
    for rank in ranks:
        assert rank.code == 0 and rank.output == summed(2)
        assert "suspend: 5, invalid usage" in rank.printed
        assert "ncclCommSuspend: this communicator spans several vendors or islands" in rank.printed
        assert "To free what it holds, destroy it" in rank.printed
        assert "warning] interpose: ncclCommSuspend: this" in rank.logged


def test_messages_of_different_lengths_are_told_in_bytes(scripted: dict[str, Path]) -> None:
    """Their types need not be the same, and NCCL's have no tags."""
    ranks = fleet("na")
    ranks[0].say("id", "init", "recv 7 0 1000 1 0 0", "poll 0", "abort")
    ranks[1].say("init", "send 7 0 500 0 0 0", "poll 0", "abort")
    ranks[1].inputs.append(bytes(2000))
    run(ranks, scripted)
    told = ranks[0].printed
    assert ranks[0].code == 0 and "recv from rank 1" in told and "(4000 bytes) on rank 0 of" in told, told + ranks[0].logged
    assert "sent 2000 bytes but the receive asked for 4000 bytes; both sides must name the same number of bytes" in told, (
        told
    )
    assert "tag" not in told and "uint8" not in told and "dtype" not in told, told


def test_a_library_that_reads_what_a_handle_points_to_refuses_ours(scripted: dict[str, Path], tmp_path: Path) -> None:
    """It finds no number that communicators begin with, no rank, and no abort, whatever it looks for first."""
    careful = tmp_path / "libcareful.so"
    compile_c("-shared", "-fPIC", HERE / "careful.c", "-o", careful)
    ranks = fleet("na")
    sums(ranks, "init", "stray", "group", "join 0 9", "stray", "abort", "end", "comm 0")
    for rank in ranks:
        rank.environment["CAREFUL"] = str(careful)
    run(ranks, scripted, tmp_path)
    for rank in ranks:
        assert rank.code == 0 and rank.printed.count(" stray: 4 1 -1 4 4\n") == 2 and rank.output == summed(2), rank.printed


@preloaded
def test_without_the_bridge_a_door_is_what_it_was(scripted: dict[str, Path], tmp_path: Path) -> None:
    """A folder with the door alone: one vendor's communicators work, and it is said once that there are no others."""
    door = DOORS["nccl"]
    alone = tmp_path / "alone" / door.soname
    alone.parent.mkdir()
    alone.write_bytes(door.path.read_bytes())
    ranks = fleet("nn")
    sums(ranks, "init")
    for rank in ranks:
        rank.environment["LD_PRELOAD"] = str(alone)
        rank.environment["ISTHMUS_LOG"] = "warn"
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert rank.output == summed(2)
        assert rank.logged.count("\n") == 1 and "libisthmus_bridge.so cannot be used" in rank.logged
