"""How communicators come to be: in groups, several a process, without blocking; and what their handles are meanwhile."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from doors import DOORS, preloaded
from doors import run as run_program
from spanning import FLOATS, HANDED, SPANS, Rank, check, fleet, given, run, summed, sums


def test_one_process_may_be_several_ranks(scripted: dict[str, Path]) -> None:
    """Two NVIDIA devices in one process, joined in a group, and an AMD process between them."""
    ranks = fleet("na")
    ranks[0].say("id", "group", "device 0", "join 0 3", "device 1", "join 2 3", "end")
    ranks[0].say(
        "group", "device 0", "comm 0", "all_reduce 7 0 5 0 0 0", "device 1", "comm 1", "all_reduce 7 0 5 0 0 0", "end"
    )
    ranks[0].say("wait", "comm 0", "ask", "comm 1", "ask", "destroy", "comm 0", "destroy")
    ranks[1].say("join 1 3", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    ranks[0].inputs += [given(0), given(2)]
    ranks[1].inputs.append(given(1))
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].output == summed(3) * 2 and ranks[1].output == summed(3)
    assert ranks[0].printed == "rank 0 of 3 on 0\nrank 2 of 3 on 1\n"


def test_several_ranks_of_one_process_and_vendor_get_the_librarys_own(scripted: dict[str, Path]) -> None:
    ranks = fleet("n")
    ranks[0].say("id", "group", "device 0", "join 0 2", "device 1", "join 1 2", "end")
    ranks[0].say(
        "group", "device 0", "comm 0", "all_reduce 7 0 5 0 0 0", "device 1", "comm 1", "all_reduce 7 0 5 0 0 0", "end"
    )
    ranks[0].say("wait", "comm 0", "ask", "comm 1", "ask", "destroy", "comm 0", "destroy")
    ranks[0].inputs += [given(0), given(1)]
    ranks[0].environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted)
    check(ranks)
    assert ranks[0].output == summed(2) * 2 and ranks[0].printed == "rank 0 of 2 on 0\nrank 1 of 2 on 1\n"
    assert ranks[0].logged.count(HANDED) == 2


LIFE = ("ask", "all_reduce 7 0 5 0 0 0", "group", "all_reduce 7 0 5 0 0 0", "all_reduce 7 0 5 0 0 1", "end", "wait")


@pytest.mark.parametrize("ending", ["destroy", "abort"])
@pytest.mark.parametrize("vendors", ["nn", "aa", "na", "nan"])
def test_a_program_may_copy_its_handle_before_the_group_ends(
    vendors: str, ending: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """The variable that the call wrote to is something else by then; what is done with the copy is what the handle can."""
    ranks = fleet(vendors)
    size = len(ranks)
    spans = len(set(vendors)) > 1
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("group", f"early {number} {size}", "end", *LIFE, "suspend", "split 0 0", *LIFE, "destroy")
        rank.say("comm 0", "scale 7 1", "all_reduce 7 -1 5 0 0 0", "unscale", "wait", "finalize", f"touch done.{number}")
        rank.say(*[f"expect done.{other}" for other in range(size)], ending, "all_reduce 7 0 0 0 0 0", ending)
        rank.inputs += [given(number)] * 6 + [np.float32(2).tobytes(), given(number)]
        rank.environment["ISTHMUS_LOG"] = "info"
        rank.environment["REHEARSAL_TRACE"] = str(tmp_path / f"trace.{number}")
    run(ranks, scripted, tmp_path)
    for number, rank in enumerate(ranks):
        assert rank.code == 0, rank.printed + rank.logged
        assert (SPANS if spans else HANDED) in rank.logged
        assert rank.output == summed(size) * 6 + (FLOATS * (size * (size + 1))).tobytes()
        told = rank.printed.splitlines()
        assert told[0].startswith(f"rank {number} of {size}") and told[2].startswith(f"rank {number} of {size}"), told
        why = "spans several vendors" if spans else "the real library has no such function"
        assert "suspend: 5, " in told[1] and why in told[1]
        assert all("was destroyed or aborted" in line for line in told[3:]) and len(told) == 5, told
        assert json.loads((tmp_path / f"trace.{number}").read_text())["misuses"] == 0


@pytest.mark.parametrize("vendors", ["nn", "na"])
def test_a_variable_that_still_has_its_handle_gets_the_vendors_own(vendors: str, scripted: dict[str, Path]) -> None:
    """As without a group; the handle of a communicator that spans vendors stays what it is."""
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("group", f"join {number} 2", "keep", "end", "changed")
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        assert rank.printed == ("it has changed\n" if vendors == "nn" else "it is the same\n")


@pytest.mark.parametrize("vendors", ["nn", "aa"])
def test_the_variable_of_an_init_that_does_not_block_gets_the_librarys_own_handle_when_that_is_done(
    vendors: str, scripted: dict[str, Path]
) -> None:
    """A copy of the handle that the call gave stays another name of it. Rank 1 comes when rank 0 has a copy."""
    ranks = fleet(vendors)
    ranks[0].say("id", "init 0", "keep", "touch kept", "poll 7", "resolved")
    ranks[1].say("expect kept", "init 0", "poll 7")
    for number, rank in enumerate(ranks):
        rank.say("ask", "all_reduce 7 0 5 0 0 0", "wait", *(["recall"] if number == 0 else []))
        rank.say("ask", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(given(number, 2))
    run(ranks, scripted)
    check(ranks)
    assert "it has changed\n" in ranks[0].printed, ranks[0].printed
    for number, rank in enumerate(ranks):
        assert rank.printed.count(f"rank {number} of 2 on {number}\n") == 2 and rank.output == summed(2) * 2, rank.printed


@pytest.mark.parametrize("vendors", ["nn", "na"])
def test_a_variable_whose_memory_is_gone_when_the_group_ends_is_let_alone(vendors: str, scripted: dict[str, Path]) -> None:
    ranks = fleet(vendors)
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("group", f"gone {number} 2", "end", "ask", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    assert all(rank.output == summed(2) for rank in ranks)


def test_an_init_that_does_not_block_keeps_the_librarys_own_number_of_a_failure(scripted: dict[str, Path]) -> None:
    """The simulated library fails the call with ncclUnhandledCudaError."""
    ranks = fleet("nn")
    ranks[0].say("id")
    for rank in ranks:
        rank.environment["REHEARSAL_FAIL"] = "ncclCommInitRankConfig:1:1"
        rank.say("init 0", "poll 7", "abort")
    run(ranks, scripted)
    for rank in ranks:
        assert rank.code == 0 and " state: 1, " in rank.printed, rank.printed + rank.logged
        assert "NCCL did not make the communicator (1)" in rank.printed, rank.printed


def test_the_texts_of_very_many_errors_do_not_fill_the_memory(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    sums(ranks, "init", "wrong 10", "wrong 5000")
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        told = rank.printed.splitlines()
        assert told[0] == "ncclBroadcast: rank 1009 is not in 0 to 1", told
        assert "the text of this one is in the log" in told[1], told
        assert "ncclBroadcast: rank 5999 is not in 0 to 1" in rank.logged


def test_a_group_that_fails_leaves_no_handle(scripted: dict[str, Path]) -> None:
    """One variable has the handle, another one has not any more; both handles are none then."""
    ranks = fleet("na")
    ranks[0].say("id", "group", "join 0 2", "destroy", "end", "ask", "destroy")
    ranks[0].say("use other", "id", "group", "early 0 2", "end", "bare all_reduce 0", "destroy")
    ranks[1].say("join 1 3", "use other", "join 1 3")  # of another number of ranks
    run(ranks, scripted, spans=False)
    told = ranks[0].printed.splitlines()
    assert ranks[0].code == 0, ranks[0].logged
    assert "destroy: 5, " in told[0] and "that has not ended" in told[0], told
    assert " end: " in told[1] and told[2] == "none", told
    assert " end: " in told[3] and "was destroyed or aborted" in told[4] and "was destroyed or aborted" in told[5], told


def test_an_init_may_be_aborted_before_its_group_ends(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    ranks[0].say("id", "group", "join 0 2", "abort", "end", "ask", "init", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    ranks[1].say("init", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    for number, rank in enumerate(ranks):
        rank.inputs.append(given(number))
    run(ranks, scripted)
    told = ranks[0].printed.splitlines()
    assert ranks[0].code == ranks[1].code == 0
    assert " end: 5, " in told[0] and "aborted the communicator before the group ended" in told[0] and told[1] == "none", (
        told
    )
    assert ranks[0].output == ranks[1].output == summed(2)


def test_a_part_may_be_copied_before_the_group_ends(scripted: dict[str, Path]) -> None:
    """Rank 0's part is its library's own, and so is rank 1's; then both are in one of both vendors."""
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init")
        for color in (number, 0):
            rank.say("group", "comm 0", f"early_part {color} 0", "end", "ask", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
            rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == f"rank 0 of 1 on 0\nrank {number} of 2 on 0\n"
        assert rank.output == given(number) + summed(2)


@preloaded
def test_a_thread_that_cannot_be_made_fails_the_init(scripted: dict[str, Path], refusing: Callable[[Rank], None]) -> None:
    ranks = fleet("na")
    ranks[0].say("id", "refuse 0", "init 0", "ask")
    ranks[1].say("init 0", "poll 7", "abort")
    refusing(ranks[0])
    run(ranks, scripted, spans=False)
    told = ranks[0].printed.splitlines()
    assert ranks[0].code == ranks[1].code == 0, ranks[0].logged + ranks[1].logged
    assert " init: 2, " in told[0] and "no thread to make the communicator" in told[0] and told[1:] == ["none"], told
    # Who comes when the other has ended finds nobody; who came before, and waited, has lost it.
    gone = " state: 2, .* no longer listens| state: 6, .* left the rendezvous; it has probably ended"
    assert re.search(gone, ranks[1].printed), ranks[1].printed


@preloaded
@pytest.mark.parametrize("after", [0, 1])
def test_a_thread_that_cannot_be_made_fails_the_group_and_no_rank_begins(
    after: int, scripted: dict[str, Path], refusing: Callable[[Rank], None]
) -> None:
    """So the same ids serve when the group is made once more. The library's own group is over."""
    ranks = fleet("na")
    both = ("group", "device 0", "join 0 3", "device 1", "join 2 3")
    ranks[0].say("id", *both, f"refuse {after}", "end", "ask", *both, "end")
    ranks[0].say(
        "group",
        "device 0",
        "comm 2",
        "all_reduce 7 0 5 0 0 0",
        "device 1",
        "comm 3",
        "all_reduce 7 0 5 0 0 0",
        "end",
        "wait",
    )
    ranks[0].say("destroy", "comm 2", "destroy")
    ranks[1].say("join 1 3", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
    ranks[0].inputs += [given(0), given(2)]
    ranks[1].inputs.append(given(1))
    refusing(ranks[0])
    run(ranks, scripted)
    told = ranks[0].printed.splitlines()
    assert ranks[0].code == ranks[1].code == 0, ranks[0].logged + ranks[1].logged
    assert len(told) == 2 and " end: 2, " in told[0] and "Isthmus: " in told[0] and told[1] == "none", told
    assert ranks[0].output == summed(3) * 2 and ranks[1].output == summed(3)


def test_an_init_that_does_not_block_says_when_it_is_done(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    sums(ranks, "init 0", "poll 7")
    run(ranks, scripted)
    check(ranks)
    for rank in ranks:
        told = rank.printed.splitlines()
        assert told[0].endswith("init: 7, NCCL operation in progress, ") or " init: 7, NCCL operation in progress" in told[0]
        assert told[1].endswith("state: 0, ") and rank.output == summed(2)


@pytest.mark.parametrize("vendors", ["na", "an", "nn", "aa"])
def test_an_init_that_does_not_block_waits_for_nobody(vendors: str, scripted: dict[str, Path], tmp_path: Path) -> None:
    """Rank 1 comes to the census when rank 0's call has returned. Till then the state is "in progress"."""
    ranks, spans = fleet(vendors), len(set(vendors)) > 1
    ranks[0].say("id", "init 0", "bare all_reduce 0", "touch returned", "poll 7")
    ranks[1].say("expect returned", "sleep 100", "init 0", "poll 7")
    for number, rank in enumerate(ranks):
        rank.say("ask", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        if spans:  # a handle of the library's own is that library's business
            rank.say("destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted, tmp_path)
    for number, rank in enumerate(ranks):
        assert rank.code == 0, rank.printed + rank.logged
        told = rank.printed.splitlines()
        assert " init: 7, " in told[0] and (number == 1 or " all_reduce: 4, " in told.pop(1)), told
        assert told[1].endswith("state: 0, ") and told[2].startswith(f"rank {number} of 2 on "), told
        assert len(told) == 3 + spans and (not spans or " destroy: 4, " in told[3]), told
        assert rank.output == summed(2) and (SPANS if spans else HANDED) in rank.logged


def test_an_init_may_be_aborted_while_its_ranks_meet(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("na")
    ranks[0].say("id", "init 0", "abort", "touch aborted", "bare all_reduce 0", "expect seen")
    ranks[1].say("expect aborted", "init 0", "poll 7", "poll 0", "touch seen", "abort")
    run(ranks, scripted, tmp_path)
    assert ranks[0].code == ranks[1].code == 0, ranks[0].logged + ranks[1].logged
    assert "was destroyed or aborted" in ranks[0].printed.splitlines()[-1], ranks[0].printed
    assert " state: 6, " in ranks[1].printed.splitlines()[-1], ranks[1].printed


def test_the_thread_that_joins_an_island_completes_the_init_of_its_library(scripted: dict[str, Path]) -> None:
    """Up to NCCL 2.26 the job of an init is the thread's own, until a call of the thread's needs the communicator. The ranks
    of one vendor are an island, whose communicator does not block. The program itself makes no such call.
    """
    ranks = fleet("nna")
    ranks[0].say("id")
    for rank in ranks:
        rank.say("init", "bare all_reduce 0", "wait", "abort")
    ranks[0].environment["REHEARSAL_FAIL"] = "ncclCommCount:1:3"
    run(ranks, scripted, spans=False)
    assert "nccl init: " in ranks[0].printed + ranks[0].logged, ranks[0].printed + ranks[0].logged


@pytest.mark.parametrize("vendors", ["nn", "aa", "na"])
def test_a_communicator_may_be_destroyed_while_its_ranks_meet(
    vendors: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """The destroy waits for the census. It ends the communicator, whosever that turns out to be."""
    ranks = fleet(vendors)
    ranks[0].say("id", "init 0", "touch begun", "destroy", "touch ended")
    ranks[1].say("expect begun", "init", "expect ended", "abort")
    run(ranks, scripted, tmp_path)
    check(ranks)
    assert " destroy: " not in ranks[0].printed and ranks[1].printed == "", ranks[0].printed + ranks[1].printed


def test_an_abort_ends_a_destroy_that_waits_for_a_rank_that_never_comes(scripted: dict[str, Path], tmp_path: Path) -> None:
    """Long before the census gives up, of which rank 1 does not know."""
    ranks = fleet("na")
    ranks[0].say("id", "init 0", "abort_later 300", "destroy", "touch ended", "kill")
    ranks[1].say("expect ended")
    for rank in ranks:
        rank.environment["ISTHMUS_TIMEOUT"] = "1000"  # later than run() waits
    run(ranks, scripted, tmp_path, spans=False)
    assert (ranks[0].code, ranks[1].code) == (-9, 0), ranks[0].printed + ranks[0].logged
    assert "was destroyed or aborted" in ranks[0].printed, ranks[0].printed


def test_rccls_init_of_several_ranks_of_a_device_spans_vendors(scripted: dict[str, Path]) -> None:
    """Whether the rank's library has it does not matter then. Where that is to have the communicator, it does."""
    ranks = fleet("na")
    sums(ranks, "init")
    ranks[1].lines[0] = "multi"
    run(ranks, scripted)
    check(ranks)
    assert all(rank.output == summed(2) and SPANS in rank.logged for rank in ranks)
    alone = fleet("a")
    alone[0].say("id", "multi")
    run(alone, scripted)
    assert "multi: 5, invalid usage" in alone[0].printed
    assert f"ncclCommInitRankMulti: the library at {DOORS['rccl'].real} has no such function" in alone[0].printed


@pytest.mark.parametrize("vendors", ["na", "an", "nan", "nn"])
def test_ranks_may_come_with_several_ids(vendors: str, scripted: dict[str, Path]) -> None:
    """Made by different ranks; the census is held with the first. Whether a rank's library has the call matters only where
    that gets the communicator."""
    ranks = fleet(vendors)
    ranks[1].say("use second", "id", "use id")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say(f"scalable {number} {len(ranks)} second", "ask", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == summed(len(ranks)) and rank.printed.startswith(f"rank {number} of {len(ranks)} on ")
        assert (HANDED if vendors == "nn" else SPANS) in rank.logged and "was not ended" not in rank.logged


NO_PLACE = """
import ctypes, sys
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
library, one, driver, context = ctypes.CDLL(sys.argv[1]), Id(), ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == driver.cuCtxSetCurrent(context) == 0
library.ncclGetLastError.restype = ctypes.c_char_p
assert library.ncclGetUniqueId(ctypes.byref(one)) == 0
codes = library.ncclCommSuspend(None, 1) != 0, library.ncclCommInitRank(None, 1, one, 0)
print(*codes, library.ncclGetLastError(None).decode())
"""


@preloaded
def test_an_init_without_a_place_for_the_handle_says_so() -> None:
    """Not what went wrong before it."""
    environment = {"LD_LIBRARY_PATH": str(DOORS["nccl"].simulated), "REHEARSAL_QUIET": "1", "ISTHMUS_INTERFACE": "lo"}
    ended = run_program(sys.executable, "-c", NO_PLACE, DOORS["nccl"].path, **environment)
    assert ended.stdout == "True 4 ncclCommInitRank: the address for the communicator is NULL\n", ended


INIT_MULTI = """
import ctypes, sys
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
library, one, comm = ctypes.CDLL(sys.argv[1]), Id(), ctypes.c_void_p()
library.ncclGetLastError.restype = ctypes.c_char_p
assert library.ncclGetUniqueId(ctypes.byref(one)) == 0 and bytes(one.bytes)[48:55] == b"Isthmus"
print(library.ncclCommInitRankMulti(ctypes.byref(comm), 1, one, 0, 9), comm.value, library.ncclGetLastError(None).decode())
"""


@preloaded
def test_an_rccl_that_has_the_init_of_several_ranks_gets_it_as_it_was_made(fake: Callable[..., Path]) -> None:
    real = fake("librccl.so.1", "older", "INIT_MULTI")
    words = (sys.executable, "-c", INIT_MULTI, DOORS["rccl"].path)
    ended = run_program(*words, ISTHMUS_REAL_RCCL=real, ISTHMUS_INTERFACE="lo", ISTHMUS_TIMEOUT="20", ISTHMUS_LOG="info")
    assert ended.stdout == "0 77 rank 0 of 1, and 9\n", ended
    assert f"RCCL {HANDED}" in ended.stderr
