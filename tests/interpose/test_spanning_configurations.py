"""The configurations with which programs make communicators: what the real library gets of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doors import DOORS, Door, preloaded
from doors import run as run_program
from spanning import HANDED, check, fleet, run

pytestmark = pytest.mark.computes

# The configuration ends where memory ends, and while the library has it nobody may write to it. The program has it no longer
# when the group ends, or when an init that does not block has returned. OURS REAL CALL GROUP SIZE RUNTIME BLOCKING.
CONFIGS = """
import ctypes, mmap, struct, sys, time
PAGE, ROOM = mmap.PAGESIZE, 3 * mmap.PAGESIZE
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
call, grouped, size, blocking = sys.argv[3], sys.argv[4] == "group", int(sys.argv[5]), int(sys.argv[7])
libc, one, comm = ctypes.CDLL(None), Id(), ctypes.c_void_p()
memory = mmap.mmap(-1, ROOM)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
def protect(offset, bytes, allowed):
    assert libc.mprotect(ctypes.c_void_p(start + offset), ctypes.c_size_t(bytes), allowed) == 0
texts = [ctypes.create_string_buffer(text) for text in (b"a network", b"a communicator")]
config = bytearray((i * 7 + 3) % 251 + 1 for i in range(max(size, 56)))
struct.pack_into("=QIIi", config, 0, size, 0xcafebeef, 99999, blocking)
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
IN_PROGRESS = 7
def well(code, expected=0):
    assert code == expected, (code, library.ncclGetLastError(None))
well(library.ncclGetUniqueId(ctypes.byref(one)))
real = ctypes.CDLL(sys.argv[2])
given = ctypes.c_void_p(start + at)
goes_on = IN_PROGRESS if not blocking and not grouped else 0
if grouped:
    well(library.ncclGroupStart())
if call == "ncclCommInitRankConfig":
    well(library.ncclCommInitRankConfig(ctypes.byref(comm), 1, one, 0, given), goes_on)
elif call == "ncclCommInitRankScalable":
    well(library.ncclCommInitRankScalable(ctypes.byref(comm), 1, 0, 1, ctypes.byref(one), given), goes_on)
else:
    well(library.ncclCommSplit(ctypes.c_void_p(77), 5, 6, ctypes.byref(comm), given))
if grouped or goes_on:
    protect(0, 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[at : at + size] = bytes(size)
    for text in texts:
        text.value = b"another"
if grouped:
    well(library.ncclGroupEnd())
name, state, count, until = comm.value, ctypes.c_int(goes_on), ctypes.c_int(), time.monotonic() + 100
while state.value == IN_PROGRESS and time.monotonic() < until:
    well(library.ncclCommGetAsyncError(ctypes.c_void_p(name), ctypes.byref(state)))
    time.sleep(0.01)
own = 78 if call == "ncclCommSplit" else 77
while comm.value != own and time.monotonic() < until:
    time.sleep(0.01)
assert state.value == 0 and comm.value == own, (state, comm, name)
if name != own:
    # The copy: for the door it is the library's. The library itself does not know it.
    well(library.ncclCommCount(ctypes.c_void_p(name), ctypes.byref(count)))
    assert goes_on and count.value == 1 and real.ncclCommCount(ctypes.c_void_p(name), ctypes.byref(count)) == 4
assert ctypes.c_int.in_dll(real, "configs").value == 1
got = bytearray((ctypes.c_ubyte * 8192).in_dll(real, "kept_config"))
kept = [bytes(text).split(b"\\0")[0] for text in (ctypes.c_char * 64 * 2).in_dll(real, "kept_texts")]
want = bytearray(config + bytes(8192 - size))
if size >= 56:
    assert kept == [b"a network", b"a communicator"], kept
    if grouped or goes_on:  # the texts of a copy are copies, and stay: the library may read them later
        for place, text in zip((32, 48), kept):
            (address,) = struct.unpack_from("=Q", got, place)
            assert call == "ncclCommSplit" or size > 4096 or ctypes.string_at(address, len(text) + 1) == text + b"\\0", text
            got[place : place + 8] = want[place : place + 8]
wrong = [i for i in range(8192) if got[i] != want[i]]
assert not wrong, wrong
print("as it was given, and its own handle")
"""


def configured(
    door: Door, real: Path, call: str, grouped: str, size: int, blocking: int = 1
) -> subprocess.CompletedProcess[str]:
    runtime = door.simulated / door.runtime
    words = (sys.executable, "-c", CONFIGS, door.path, real, call, grouped, str(size), runtime, str(blocking))
    settings = {door.setting: real, "ISTHMUS_INTERFACE": "lo", "ISTHMUS_TIMEOUT": "20", "ISTHMUS_LOG": "info"}
    overwritten = {"MALLOC_PERTURB_": "85", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}  # memory that is given back
    return run_program(*words, LD_LIBRARY_PATH=door.simulated, REHEARSAL_QUIET="1", **settings, **overwritten)


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
    assert ended.stdout == "as it was given, and its own handle\n", ended
    if call != "ncclCommSplit" and size <= 4096:
        assert f"{door.name} {HANDED}" in ended.stderr, ended.stderr


@preloaded
@pytest.mark.parametrize("grouped", ["alone", "group"])
@pytest.mark.parametrize("call", ["ncclCommInitRankConfig", "ncclCommInitRankScalable"])
@pytest.mark.parametrize("vendor", ["nccl", "rccl"])
def test_an_init_that_does_not_block_gives_the_librarys_own_handle_when_it_is_done(
    vendor: str, call: str, grouped: str, fake: Callable[..., Path]
) -> None:
    """Alone it has to return before anybody knows whose the communicator is; what it gave then stays another name. The
    configuration is the program's again by then, and what the library gets of it is the same.
    """
    door = DOORS[vendor]
    ended = configured(door, fake(door.soname, "later", "KEEPS_CONFIGS"), call, grouped, 999, blocking=0)
    assert ended.stdout == "as it was given, and its own handle\n", ended
    assert f"{door.name} {HANDED}" in ended.stderr, ended.stderr


@preloaded
@pytest.mark.parametrize("grouped", ["alone", "group"])
def test_another_byte_of_a_configuration_would_be_noticed(grouped: str, fake: Callable[..., Path]) -> None:
    real = fake("libnccl.so.2", "later", "KEEPS_CONFIGS", "CUTS_CONFIGS")
    ended = configured(DOORS["nccl"], real, "ncclCommInitRankConfig", grouped, 999)
    assert ended.returncode == 1 and "AssertionError: [998]" in ended.stderr, ended


# Makes a communicator without blocking, and says whether the thread that made it has ended when that is done. Then ends the
# communicator, waits until the thread has ended, and says how the end went. OURS REAL RUNTIME ENDING HANDLE.
MAKER = """
import ctypes, os, struct, sys, time
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
ending, which, one, comm = sys.argv[4], sys.argv[5], Id(), ctypes.c_void_p()
library, runtime = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[3], mode=ctypes.RTLD_GLOBAL)
library.ncclGetLastError.restype = ctypes.c_char_p
if hasattr(runtime, "cuInit"):
    context = ctypes.c_void_p()
    assert runtime.cuInit(0) == 0 and runtime.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert runtime.cuCtxSetCurrent(context) == 0
IN_PROGRESS, OWN = 7, 77
config = ctypes.create_string_buffer(struct.pack("=QIIii", 24, 0xcafebeef, 21400, 0, -(2**31)), 24)
assert library.ncclGetUniqueId(ctypes.byref(one)) == 0
assert library.ncclCommInitRankConfig(ctypes.byref(comm), 1, one, 0, config) == IN_PROGRESS
real, given, until = ctypes.CDLL(sys.argv[2]), comm.value, time.monotonic() + 100
makers, ended = ((ctypes.c_int * 8).in_dll(real, name) for name in ("makers", "makers_ended"))
def eventually(what):
    while not what():
        assert time.monotonic() < until
        time.sleep(0.002)
def rests():
    try:
        with open(f"/proc/self/task/{makers[0]}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "S"
    except FileNotFoundError:
        return False
eventually(lambda: comm.value == OWN)
eventually(lambda: ended[0] or rests())
print("ended" if ended[0] else "waits", end=" ")
if ending != "exit":
    code = getattr(library, ending)(ctypes.c_void_p(OWN if which == "own" else given))
    eventually(lambda: ended[0])
    print(code, library.ncclGetLastError(None).decode() if code else "ended")
"""


def ended_maker(door: Door, real: Path, ending: str, handle: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-c", MAKER, door.path, real, door.simulated / door.runtime, ending, handle)
    settings = {door.setting: real, "ISTHMUS_INTERFACE": "lo", "ISTHMUS_TIMEOUT": "20"}
    return run_program(*words, LD_LIBRARY_PATH=door.simulated, REHEARSAL_QUIET="1", **settings)


@preloaded
@pytest.mark.parametrize("handle", ["own", "copy"])
@pytest.mark.parametrize("ending", ["ncclCommDestroy", "ncclCommAbort"])
@pytest.mark.parametrize("vendor", ["nccl", "rccl"])
def test_the_thread_that_made_a_communicator_without_blocking_lives_as_long_as_the_communicator(
    vendor: str, ending: str, handle: str, fake: Callable[..., Path]
) -> None:
    """Up to NCCL 2.26 the library keeps the init's job in that thread's memory."""
    door = DOORS[vendor]
    ended = ended_maker(door, fake(door.soname, "bound", "KEEPS_CONFIGS", "THREAD_BOUND"), ending, handle)
    assert ended.stdout == "waits 0 ended\n", ended


@preloaded
def test_a_program_may_end_before_the_communicators_that_it_made_without_blocking(fake: Callable[..., Path]) -> None:
    ended = ended_maker(DOORS["nccl"], fake("libnccl.so.2", "bound", "KEEPS_CONFIGS", "THREAD_BOUND"), "exit", "own")
    assert (ended.returncode, ended.stdout) == (0, "waits "), ended


@preloaded
def test_no_thread_is_kept_for_a_library_that_keeps_the_job_elsewhere(fake: Callable[..., Path]) -> None:
    real = fake("libnccl.so.2", "bound", "KEEPS_CONFIGS", "THREAD_BOUND", "VERSION=22703")
    ended = ended_maker(DOORS["nccl"], real, "exit", "own")
    assert (ended.returncode, ended.stdout) == (0, "ended "), ended


@preloaded
def test_the_threads_that_make_parts_without_blocking_in_a_group_live_as_long(
    fake: Callable[..., Path], scripted: dict[str, Path], tmp_path: Path
) -> None:
    """The parts are of two parents, so each is made on a thread of its own. Each part is one library's."""
    ranks = fleet("na")
    ranks[0].environment["ISTHMUS_REAL_NCCL"] = str(fake("libnccl.so.2", "bound", "KEEPS_CONFIGS", "THREAD_BOUND"))
    for number, rank in enumerate(ranks):
        rank.environment["ISTHMUS_CCL"] = "none"  # the library has no collectives
        for name in ("first", "second"):
            rank.say(f"use {name}", *(["id"] if number == 0 else []), "init 0", "poll 7")
        rank.say("group", "comm 0", f"split {number} 0", "comm 1", f"split {number} 0", "end")
        rank.say("comm 2", "poll 7", "destroy", "comm 3", "poll 7", "destroy", "comm 0", "destroy", "comm 1", "destroy")
    run(ranks, scripted, tmp_path)
    check(ranks)
    for rank in ranks:
        assert " destroy: " not in rank.printed and rank.printed.count(" state: 0, ") == 4, rank.printed
