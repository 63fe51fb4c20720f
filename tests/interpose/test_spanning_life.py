"""How communicators come to be behind the front doors and how they end: ids, the census, groups, streams, parts, failures.

The vendors are simulated; the programs know their vendor's library alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from doors import DOORS, HERE, Door, compile_c, preloaded
from doors import run as run_program
from spanning import Rank, check, fleet, run

FLOATS = np.arange(5, dtype=np.float32)
SPANS, VENDORS = "Isthmus carries the communicator", "gets the communicator"


def given(number: int, times: int = 1) -> bytes:
    return (FLOATS * (number + 1)).tobytes() * times


def summed(ranks: int) -> bytes:
    return (FLOATS * (ranks * (ranks + 1) // 2)).tobytes()


def sums(ranks: list[Rank], *before: str, after: tuple[str, ...] = ("destroy",), maker: int = 0) -> None:
    """One all_reduce of each, with lines before and after it."""
    ranks[maker].say("id")
    for number, rank in enumerate(ranks):
        rank.say(*before, "all_reduce 7 0 5 0 0 0", "wait", *after)
        rank.inputs.append(given(number))
        rank.environment.setdefault("ISTHMUS_LOG", "info")


# ---- ids and the census ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendors", ["na", "an", "naa", "nananna"])
@pytest.mark.parametrize("maker", [0, -1])
def test_any_rank_makes_the_id(vendors: str, maker: int, scripted: dict[str, Path]) -> None:
    ranks = fleet(vendors)
    sums(ranks, "init", "ask", maker=maker)
    run(ranks, scripted)
    check(ranks)
    used = {"nccl": 0, "rccl": 0}
    for number, rank in enumerate(ranks):
        assert rank.output == summed(len(ranks))
        assert rank.printed == f"rank {number} of {len(ranks)} on {used[rank.vendor]}\n"
        used[rank.vendor] += 1
        assert SPANS in rank.logged


def test_a_process_that_is_no_rank_makes_the_id(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("nan")
    for number, rank in enumerate(ranks[:2]):
        rank.say(f"join {number} 2", "all_reduce 7 0 5 0 0 0", "wait", f"touch done.{number}", "destroy")
        rank.inputs.append(given(number))
    ranks[2].say("id", "expect done.0", "expect done.1")
    run(ranks, scripted, tmp_path)
    check(ranks)
    assert ranks[0].output == ranks[1].output == summed(2)


def test_an_id_of_another_vendors_process_is_no_id_of_the_library(scripted: dict[str, Path], tmp_path: Path) -> None:
    """Both ranks are NVIDIA's, and the id is RCCL's: NCCL could make nothing of it, so Isthmus carries the communicator."""
    ranks = fleet("nna")
    for number, rank in enumerate(ranks[:2]):
        rank.say(f"join {number} 2", "all_reduce 7 0 5 0 0 0", "wait", f"touch done.{number}", "destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    ranks[2].say("id", "expect done.0", "expect done.1")
    run(ranks, scripted, tmp_path)
    check(ranks)
    for rank in ranks[:2]:
        assert rank.output == summed(2) and SPANS in rank.logged and "served by nccl" in rank.logged


def test_the_ranks_of_one_vendor_get_its_library(scripted: dict[str, Path]) -> None:
    for vendors, library in (("nnn", "NCCL"), ("aa", "RCCL")):
        ranks = fleet(vendors)
        sums(ranks, "init")
        run(ranks, scripted)
        check(ranks)
        for rank in ranks:
            assert rank.output == summed(len(ranks)) and f"{library} {VENDORS}" in rank.logged


@preloaded
def test_the_library_of_one_vendor_sees_what_it_sees_without_isthmus(scripted: dict[str, Path], tmp_path: Path) -> None:
    """Recorded by the simulated library: every call of it, and of the driver, with how often it was made."""

    def calls(name: str, behind: bool, *lines: str) -> list[dict[str, int]]:
        ranks = fleet("nn")
        ranks[0].say("id")
        for number, rank in enumerate(ranks):
            rank.say(*lines, "all_reduce 7 0 5 0 0 0", "group", "all_reduce 7 0 5 0 0 0", "all_reduce 7 0 5 0 0 1", "end")
            rank.say("split 0 0", "all_reduce 7 0 5 0 0 0", "wait", "destroy", "comm 0", "finalize", "destroy")
            rank.inputs.append(given(number, 4))
            rank.environment["REHEARSAL_TRACE"] = str(tmp_path / f"{name}.{number}")
        run(ranks, scripted, tmp_path / name, behind=behind)
        check(ranks)
        assert all(rank.output == summed(2) * 4 for rank in ranks)
        records = [json.loads((tmp_path / f"{name}.{number}").read_text()) for number in range(2)]
        assert all(record["misuses"] == 0 for record in records)
        return [record["calls"] for record in records]

    bare = calls("bare", False, "init")
    assert bare[0]["ncclAllReduce"] == 4 and bare[0]["ncclCommInitRank"] == 1
    # The version of the library, once.
    assert calls("behind", True, "init") == [seen | {"ncclGetVersion": 1} for seen in bare]
    # An init in a group is made at its end, so the device that the program worked on at the call is asked for, and set then.
    bare = calls("bare group", False, "group", "init", "end")
    extra = {"ncclGetVersion": 1, "cuCtxGetCurrent": 2, "cuCtxGetDevice": 2}
    moved = [seen | extra | {"cuCtxSetCurrent": seen["cuCtxSetCurrent"] + 2} for seen in bare]
    assert calls("group", True, "group", "init", "end") == moved


@pytest.mark.parametrize("off", ["1", "0"])
def test_a_rank_without_isthmus_works_in_a_job_of_one_vendor(off: str, scripted: dict[str, Path]) -> None:
    """It comes to the vendor's library at once, the others when they have waited for it, but not for ISTHMUS_TIMEOUT."""
    ranks = fleet("nnn")
    sums(ranks, "init", maker=int(off))
    for rank in ranks:
        rank.environment |= {"ISTHMUS_CENSUS": "0.5", "ISTHMUS_TIMEOUT": "300"}
    ranks[1 - int(off)].environment["ISTHMUS_DISABLE"] = "1"
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.output == summed(3)
        if number == 1 - int(off):
            assert rank.logged == ""
        else:
            assert f"rank {1 - int(off)}: did not come" in rank.logged and "taken for ranks without Isthmus" in rank.logged


@pytest.mark.parametrize("late", ["one by one", "of several vendors"])
def test_ranks_that_come_late_are_waited_for(late: str, scripted: dict[str, Path], tmp_path: Path) -> None:
    """While others come; and, where one vendor's library could not serve those that came, for ISTHMUS_TIMEOUT."""
    ranks = fleet("nnna" if late == "one by one" else "nan")
    sums(ranks, "init")
    waits = 3.0
    for rank in ranks:
        rank.environment["ISTHMUS_CENSUS"] = str(waits)
    # Each less late than that after the one before it; or the last one more than that.
    times = [waits * 0.6, waits * 1.2, waits * 1.8] if late == "one by one" else [0, 2 * waits]
    timers = []
    for rank, (number, seconds) in zip(ranks[1:], enumerate(times, 1), strict=True):
        rank.lines.insert(0, f"expect late.{number}")
        timers.append(threading.Timer(seconds, (tmp_path / f"late.{number}").touch))
        timers[-1].start()
    run(ranks, scripted, tmp_path)
    for timer in timers:
        timer.join()
    check(ranks)
    assert all(rank.output == summed(len(ranks)) and SPANS in rank.logged for rank in ranks)


def touch_when_two_have_gone(folder: Path) -> threading.Thread:
    """Leaves the file that a late rank waits for when ranks 0 and 1 have left the census, and nobody listens any more."""

    def gone(number: int) -> bool:
        log = folder / f"stderr.{number}"
        return log.exists() and "taken for ranks without Isthmus" in log.read_text()

    def watch() -> None:
        until = time.monotonic() + 30
        while not (gone(0) and gone(1)) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(2)
        (folder / "late").touch()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_rank_that_comes_too_late_for_the_census_finds_the_others(scripted: dict[str, Path], tmp_path: Path) -> None:
    """They are with the vendor's library by then, and nobody listens for it any more."""
    ranks = fleet("nnn")
    sums(ranks, "init")
    for rank in ranks[:2]:
        rank.environment["ISTHMUS_CENSUS"] = "0.5"
    ranks[2].lines.insert(0, "expect late")
    late = touch_when_two_have_gone(tmp_path)
    run(ranks, scripted, tmp_path)
    late.join()
    check(ranks)
    assert all(rank.output == summed(3) for rank in ranks)
    assert "no longer listens" in ranks[2].logged and "taken for ranks without Isthmus" in ranks[2].logged


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
    assert f"RCCL {VENDORS}" in ended.stderr


# The configuration ends where memory ends, and while the library has it nobody may write to it. Of a group the program
# has it no longer when the group ends. OURS REAL CALL GROUP SIZE RUNTIME.
CONFIGS = """
import ctypes, mmap, struct, sys
PAGE, ROOM = mmap.PAGESIZE, 3 * mmap.PAGESIZE
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
call, grouped, size = sys.argv[3], sys.argv[4] == "group", int(sys.argv[5])
libc, one, comm = ctypes.CDLL(None), Id(), ctypes.c_void_p()
memory = mmap.mmap(-1, ROOM)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
def protect(offset, bytes, allowed):
    assert libc.mprotect(ctypes.c_void_p(start + offset), ctypes.c_size_t(bytes), allowed) == 0
texts = [ctypes.create_string_buffer(text) for text in (b"a network", b"a communicator")]
config = bytearray((i * 7 + 3) % 251 + 1 for i in range(max(size, 56)))
struct.pack_into("=QIIi", config, 0, size, 0xcafebeef, 99999, 1)
for place, text in zip((32, 48), texts):
    struct.pack_into("=Q", config, place, ctypes.addressof(text))
config, at = bytes(config[:size]), 2 * PAGE - size
memory[at : at + size] = config
protect(2 * PAGE, PAGE, 0)
protect(0, 2 * PAGE, mmap.PROT_READ)
library, runtime = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[6], mode=ctypes.RTLD_GLOBAL)
library.ncclGetLastError.restype = ctypes.c_char_p
if hasattr(runtime, "cuInit"):
    context = ctypes.c_void_p()
    assert runtime.cuInit(0) == 0 and runtime.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert runtime.cuCtxSetCurrent(context) == 0
def well(code):
    assert code == 0, (code, library.ncclGetLastError(None))
well(library.ncclGetUniqueId(ctypes.byref(one)))
real = ctypes.CDLL(sys.argv[2])
given = ctypes.c_void_p(start + at)
if grouped:
    well(library.ncclGroupStart())
if call == "ncclCommInitRankConfig":
    well(library.ncclCommInitRankConfig(ctypes.byref(comm), 1, one, 0, given))
elif call == "ncclCommInitRankScalable":
    well(library.ncclCommInitRankScalable(ctypes.byref(comm), 1, 0, 1, ctypes.byref(one), given))
else:
    well(library.ncclCommSplit(ctypes.c_void_p(77), 5, 6, ctypes.byref(comm), given))
if grouped:
    protect(0, 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[at : at + size] = bytes(size)
    for text in texts:
        text.value = b"another"
    well(library.ncclGroupEnd())
assert comm.value == (78 if call == "ncclCommSplit" else 77), comm
assert ctypes.c_int.in_dll(real, "configs").value == 1
got = bytearray((ctypes.c_ubyte * 8192).in_dll(real, "kept_config"))
kept = [bytes(text).split(b"\\0")[0] for text in (ctypes.c_char * 64 * 2).in_dll(real, "kept_texts")]
want = bytearray(config + bytes(8192 - size))
if size >= 56:
    assert kept == [b"a network", b"a communicator"], kept
    if grouped:  # the texts of a copy are copies
        for place in (32, 48):
            got[place : place + 8] = want[place : place + 8]
wrong = [i for i in range(8192) if got[i] != want[i]]
assert not wrong, wrong
print("as it was given")
"""


def configured(door: Door, real: Path, call: str, grouped: str, size: int) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-c", CONFIGS, door.path, real, call, grouped, str(size), door.simulated / door.runtime)
    settings = {door.setting: real, "ISTHMUS_INTERFACE": "lo", "ISTHMUS_TIMEOUT": "20", "ISTHMUS_LOG": "info"}
    return run_program(*words, LD_LIBRARY_PATH=door.simulated, REHEARSAL_QUIET="1", **settings)


@preloaded
@pytest.mark.parametrize("size", [20, 999, 5001])
@pytest.mark.parametrize("grouped", ["alone", "group"])
@pytest.mark.parametrize("call", ["ncclCommInitRankConfig", "ncclCommInitRankScalable", "ncclCommSplit"])
@pytest.mark.parametrize("vendor", ["nccl", "rccl"])
def test_a_configuration_of_a_later_version_goes_to_the_library_whole(
    vendor: str, call: str, grouped: str, size: int, fake: Callable[..., Path]
) -> None:
    """Whatever it is that Isthmus does not know, and nothing that is behind it."""
    door = DOORS[vendor]
    ended = configured(door, fake(door.soname, "later", "KEEPS_CONFIGS"), call, grouped, size)
    assert ended.stdout == "as it was given\n", ended
    if call != "ncclCommSplit" and size <= 4096:
        assert f"{door.name} {VENDORS}" in ended.stderr, ended.stderr


@preloaded
@pytest.mark.parametrize("grouped", ["alone", "group"])
def test_another_byte_of_a_configuration_would_be_noticed(grouped: str, fake: Callable[..., Path]) -> None:
    real = fake("libnccl.so.2", "later", "KEEPS_CONFIGS", "CUTS_CONFIGS")
    ended = configured(DOORS["nccl"], real, "ncclCommInitRankConfig", grouped, 999)
    assert ended.returncode == 1 and "AssertionError: [998]" in ended.stderr, ended


def test_a_rank_of_another_vendor_that_comes_too_late_is_told_what_to_set(scripted: dict[str, Path], tmp_path: Path) -> None:
    """The others are with their library, and wait there for a third rank, as they would without Isthmus."""
    ranks = fleet("nna")
    ranks[0].say("id", "init 0", "expect over")
    ranks[1].say("init 0", "expect over")
    ranks[2].say("expect late", "init", "touch over")
    for rank in ranks:
        rank.environment["ISTHMUS_CENSUS"] = "0.5"
    late = touch_when_two_have_gone(tmp_path)
    run(ranks, scripted, tmp_path)
    late.join()
    assert [rank.code for rank in ranks] == [0, 0, 0]
    assert "no longer listens" in ranks[2].printed and "ISTHMUS_CENSUS" in ranks[2].printed, ranks[2].printed
    assert all("rank 2: did not come" in rank.logged for rank in ranks[:2])


def test_an_id_that_was_made_without_isthmus_is_the_vendors(scripted: dict[str, Path]) -> None:
    ranks = fleet("nn")
    sums(ranks, "init")
    ranks[0].environment["ISTHMUS_DISABLE"] = "1"
    run(ranks, scripted)
    check(ranks)
    assert all(rank.output == summed(2) for rank in ranks) and VENDORS not in ranks[1].logged


def test_an_id_that_ranks_make_for_themselves_is_left_alone(scripted: dict[str, Path], tmp_path: Path) -> None:
    """NCCL_COMM_ID: every rank makes the id, and they must be alike."""
    ranks = fleet("n")
    ranks[0].say("id")
    for setting, tail in (({}, True), ({"NCCL_COMM_ID": "127.0.0.1:4000"}, False)):
        ranks[0].environment |= setting
        run(ranks, scripted, tmp_path)
        check(ranks)
        assert ((tmp_path / "id").read_bytes()[48:55] == b"Isthmus") == tail


@pytest.mark.parametrize("maker", ["n", "a"])
def test_a_variable_may_hold_anything_before_an_id_and_one_id_after_the_other(
    maker: str, scripted: dict[str, Path], tmp_path: Path
) -> None:
    """Simulated RCCL, 2.22.3, writes its own part of an id alone, and the rest stays as it was; NCCL, 2.29.3, all of it."""
    ranks = fleet("na")
    making = "na".index(maker)
    for number, rank in enumerate(ranks):
        for use in ("first", "second"):
            rank.say(f"use {use}", *(["id"] if number == making else []), "init", "all_reduce 7 0 5 0 0 0", "wait")
            rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted, tmp_path)
    check(ranks)
    for rank in ranks:
        assert rank.output == summed(2) * 2 and rank.logged.count(SPANS) == 2
    first, second = ((tmp_path / name).read_bytes() for name in ("first", "second"))
    assert first[48:56] == second[48:56] == b"Isthmus" + maker.encode().replace(b"a", b"r") and first[56:] != second[56:]


def test_a_rank_that_never_comes_is_named(scripted: dict[str, Path]) -> None:
    ranks = fleet("nan")
    ranks[0].say("id", "init 1")
    ranks[1].say("init")
    ranks[2].say("ask")  # has no communicator
    for rank in ranks:
        rank.environment["ISTHMUS_TIMEOUT"] = "1"
    run(ranks, scripted)
    for rank in ranks[:2]:
        assert rank.code == 0
        assert "init: 6, remote process exited" in rank.printed and "rank 2 of 3 did not arrive within" in rank.printed


# Takes part in the census as a rank on AMD does, and never in what comes behind it.
SILENT = """
import ctypes, pathlib, struct, sys, time
isthmus, folder = ctypes.CDLL(sys.argv[1]), pathlib.Path(sys.argv[2])
while not (folder / "id").exists():
    time.sleep(0.002)
ticket = ctypes.create_string_buffer((folder / "id").read_bytes()[56:], 72)
mine = struct.pack("8sq64sQ", b"rccl", 22203, b"", 0xCBF29CE484222325)
both, meeting = ctypes.create_string_buffer(2 * len(mine)), ctypes.c_void_p()
assert isthmus.isthmus_meeting_join(ticket, 1, 2, ctypes.c_double(20), ctypes.byref(meeting)) == 0
time.sleep(float(sys.argv[3]))
assert isthmus.isthmus_meeting_exchange(meeting, mine, both, ctypes.c_size_t(len(mine))) == 0
assert both.value == b"nccl"
print("met", flush=True)
sys.stdin.read()
"""


@preloaded
def test_a_rank_that_falls_silent_behind_the_census_costs_the_timeout_and_is_named(
    scripted: dict[str, Path], tmp_path: Path
) -> None:
    """From then on, however long the census took."""
    late, timeout = 1.5, 2.0
    library = DOORS["nccl"].path.parents[1] / "csrc" / "api" / "libisthmus.so"
    words = [sys.executable, "-c", SILENT, str(library), str(tmp_path), str(late)]
    silent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ranks = fleet("n")
    ranks[0].say("id", "touch begun", "join 0 2", "touch ended")
    ranks[0].environment["ISTHMUS_TIMEOUT"] = str(timeout)
    try:
        run(ranks, scripted, tmp_path)
    finally:
        met, _ = silent.communicate(timeout=30)
    assert met == "met\n" and ranks[0].code == 0
    assert "init: 6, remote process exited" in ranks[0].printed
    assert "rank 1 of 2 did not take part in exchange 1 " in ranks[0].printed, ranks[0].printed
    took = (tmp_path / "ended").stat().st_mtime - (tmp_path / "begun").stat().st_mtime
    assert late + 0.9 * timeout < took < late + timeout + 15


# ---- init: groups, several ranks a process, non-blocking -------------------------------------------------------------


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
    assert ranks[0].logged.count(VENDORS) == 2


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
        assert (SPANS if spans else VENDORS) in rank.logged
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


def test_a_group_that_fails_leaves_no_handle(scripted: dict[str, Path]) -> None:
    """One variable has the handle, another one has not any more; both handles are none then."""
    ranks = fleet("na")
    ranks[0].say("id", "group", "join 0 2", "destroy", "end", "ask", "destroy")
    ranks[0].say("use other", "id", "group", "early 0 2", "end", "bare all_reduce 0", "destroy")
    ranks[1].say("join 1 3", "use other", "join 1 3")  # of another number of ranks
    run(ranks, scripted)
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
    run(ranks, scripted)
    told = ranks[0].printed.splitlines()
    assert ranks[0].code == ranks[1].code == 0, ranks[0].logged + ranks[1].logged
    assert " init: 2, " in told[0] and "no thread to make the communicator" in told[0] and told[1:] == ["none"], told
    assert " state: 6, " in ranks[1].printed, ranks[1].printed


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


# ---- groups and streams ------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("vendors", ["na", "hn", "ah", "nah"])
def test_operations_keep_the_order_of_every_kind_of_stream(vendors: str, scripted: dict[str, Path]) -> None:
    """The NULL stream by both its names, the thread's, blocking ones and others; Ascend's are of one kind.

    What was given to the stream before is seen, and what is given to it after comes behind, of a group too. The stream is
    held up meanwhile: with NVIDIA and AMD until the calls are made, with Ascend, whose calls wait, for a while.
    """
    ranks, world = fleet(vendors), len(vendors)
    ranks[0].say("id")
    kinds = range(5)
    for number, rank in enumerate(ranks):
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
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == ("called is not there\n" * 10 if rank.vendor == "hccl" else "")
        got = given((number - 1) % world)
        assert rank.output == got + (summed(world) * 2 + given(1, 2) + got + summed(world) * 2) * len(kinds)


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


# ---- parts --------------------------------------------------------------------------------------------------------------


def test_parts_span_vendors_or_are_the_vendors_own(scripted: dict[str, Path]) -> None:
    """Ranks 0 and 2 are NVIDIA's, 1 and 3 AMD's."""
    ranks = fleet("nana")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", f"split {number % 2} {-number}", "ask")  # of one vendor each, the other way round
        rank.say("comm 0", f"split {number // 2} 0", "ask")  # of two
        rank.say("comm 0", f"split {-1 if number == 3 else 7} 0", "ask")  # one stays away
        rank.say("comm 0", f"split {0 if number < 3 else 1} 0", "ask")  # one of each kind
        for part in (1, 2, 4):
            rank.say(f"comm {part}", "all_reduce 7 0 5 0 0 0")
            rank.inputs.append(given(number))
        rank.say("wait")
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        told = rank.printed.splitlines()
        assert told[0].startswith(f"rank {1 - number // 2} of 2") and told[1].startswith(f"rank {number % 2} of 2")
        assert told[2] == "none" if number == 3 else told[2].startswith(f"rank {number} of 3")
        assert told[3].startswith("rank 0 of 1" if number == 3 else f"rank {number} of 3")
        parts = [[number, (number + 2) % 4], [number, number ^ 1], [3] if number == 3 else [0, 1, 2]]
        assert rank.output == b"".join((FLOATS * sum(r + 1 for r in part)).tobytes() for part in parts)
        library = DOORS[rank.vendor].library.upper()
        assert rank.logged.count(f"{library} gets the part") == (2 if number == 3 else 1)


def test_a_part_may_be_made_in_a_group(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init", "group", f"split 0 {-number}", "end", "ask", "all_reduce 7 0 5 0 0 0", "wait")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == f"rank {1 - number} of 2 on 0\n" and rank.output == summed(2)


def test_several_parts_of_one_communicator_may_be_made_in_a_group(scripted: dict[str, Path]) -> None:
    """Rows and columns of a square, many times over: each part must be of the ranks that asked for it."""
    ranks, times = fleet("nana"), 5
    ranks[0].say("id")
    parts = [[(number // 2 * 2, number // 2 * 2 + 1), (number % 2, number % 2 + 2)] for number in range(4)]
    for number, rank in enumerate(ranks):
        rank.say("init")
        for turn in range(times):
            rank.say("group", "comm 0", f"split {number // 2} 0", "comm 0", f"split {number % 2} 0", "end")
            for part in (1, 2):
                rank.say(f"comm {2 * turn + part}", "all_reduce 7 0 5 0 0 0", "wait")
                rank.inputs.append(given(number))
            for part in (1, 2):
                rank.say(f"comm {2 * turn + part}", "destroy")
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        expected = [(FLOATS * sum(r + 1 for r in part)).tobytes() for part in parts[number]]
        assert rank.output == b"".join(expected) * times


@pytest.mark.parametrize("group", [True, False])
def test_a_part_works_on_the_device_of_its_parent(group: bool, scripted: dict[str, Path]) -> None:
    """Whatever the program works on meanwhile: first parts of the libraries' own, then one of both."""
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("device 2", "init", "device 3")
        for color in (number, 0):
            rank.say(*["group"] * group, "comm 0", f"split {color} 0", *["end"] * group, "ask")
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        assert rank.printed == f"rank 0 of 1 on 2\nrank {number} of 2 on 2\n"


def test_a_part_is_made_as_its_parent_was(scripted: dict[str, Path]) -> None:
    """Not blocking, where the split says nothing of it: a part of the library's own is not there when the call ends."""
    ranks = fleet("na")
    ranks[0].say("id")
    for number, rank in enumerate(ranks):
        rank.say("init 0", "poll 7", f"split {number} 0", "poll 7", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(given(number))
    run(ranks, scripted)
    check(ranks)
    for number, rank in enumerate(ranks):
        told = rank.printed.splitlines()
        assert " split: 7, NCCL operation in progress" in told[2] and told[3].endswith("state: 0, ") and len(told) == 4, told
        assert rank.output == given(number)


def test_a_shrink_that_excludes_nobody_is_refused(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    sums(ranks, "init", "shrink -1 0")
    run(ranks, scripted)
    for rank in ranks:
        assert rank.code == 0 and rank.output == summed(2)
        assert "shrink: 4, invalid argument" in rank.printed and "no rank is excluded" in rank.printed


@pytest.mark.parametrize("gone", [0, 1])
def test_the_ranks_that_remain_may_go_on_without_one(gone: int, scripted: dict[str, Path], tmp_path: Path) -> None:
    """Ranks 0 and 2 are NVIDIA's; without rank 1 its library gets the rest. The simulated libraries have no such call."""
    ranks = fleet("nan")
    ranks[0].say("id")
    left = [r for r in range(3) if r != gone]
    for number, rank in enumerate(ranks):
        rank.say("init")
        if number == gone:
            rank.say("expect done", "destroy")
            continue
        rank.say(f"shrink {gone} 1", f"shrink {gone} 0", "ask", "all_reduce 7 0 5 0 0 0", "wait", "touch done", "destroy")
        rank.inputs.append(given(number))
        rank.environment["ISTHMUS_LOG"] = "info"
    run(ranks, scripted, tmp_path)
    assert ranks[gone].code == 0
    for number in left:
        rank, place = ranks[number], left.index(number)
        assert rank.code == 0, rank.printed + rank.logged
        told = rank.printed.splitlines()
        assert "shrink: 5, " in told[0] and "NCCL_SHRINK_ABORT" in told[0]
        assert told[1].startswith(f"rank {place} of 2")
        assert rank.output == (FLOATS * sum(r + 1 for r in left)).tobytes()
        line = next(line for line in rank.logged.splitlines() if f"ncclCommShrink, rank {place} of 2: " in line)
        assert (VENDORS if gone == 1 else SPANS) in line


# ---- ends ---------------------------------------------------------------------------------------------------------------


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


def test_an_abort_is_seen_by_the_others(scripted: dict[str, Path], tmp_path: Path) -> None:
    ranks = fleet("na")
    sums(ranks, "init", after=())
    ranks[0].say("touch ready", "poll 0", "destroy")
    ranks[1].say("expect ready", "abort", "ask", "abort")
    run(ranks, scripted, tmp_path)
    assert ranks[0].code == ranks[1].code == 0
    assert " state: 6, " in ranks[0].printed and "the program called abort" in ranks[0].printed, ranks[0].printed
    told = ranks[1].printed.splitlines()
    assert all("was destroyed or aborted" in line for line in (told[0], told[1], told[2], told[-1])), told


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


def test_what_is_the_vendors_alone_is_refused_with_a_reason(scripted: dict[str, Path]) -> None:
    ranks = fleet("na")
    sums(ranks, "init", "suspend")
    run(ranks, scripted)
    for rank in ranks:
        assert rank.code == 0 and rank.output == summed(2)
        assert "suspend: 5, invalid usage" in rank.printed
        assert "ncclCommSuspend: this communicator spans several vendors or islands" in rank.printed
        assert "warning] interpose: ncclCommSuspend: this" in rank.logged


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
