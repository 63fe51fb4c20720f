"""NVIDIA's own NCCL behind its door, as it is in its wheels: all that the newest and the oldest do without a device.

The libraries are in build/vendor-headers, where the set-up of `make test` puts them (scripts/vendor_headers.py).
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

import vendor_headers
from doors import DOORS, ROOT, preloaded, run
from interpose_entries import read_table
from interpose_names import SOURCES, list_of, numbers, read_list
from test_spanning_python import job

pytestmark = preloaded
DOOR = DOORS["nccl"]
TAIL = 80  # what of an id the door may write to
FILLED = 0xAA  # what the program has in an id before the call

# DOOR is what programs get by the name, REAL the library itself, past it, which is opened before the door's first call, as
# PyTorch does, or behind it. Whatever `answer` is then.
BOTH = f"""
import ctypes, json, sys
path, first, slots = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
door = ctypes.CDLL("libnccl.so.2")
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
def version(library):
    number = ctypes.c_int(-1)
    assert library.ncclGetVersion(ctypes.byref(number)) == 0
    return number.value
if first == "door":
    version(door)
real = ctypes.CDLL(path)
for library in (door, real):
    library.ncclGetErrorString.restype = library.ncclGetLastError.restype = ctypes.c_char_p
nothing, zero = ctypes.c_void_p(), ctypes.c_size_t()
def new_id(library):
    one = Id((ctypes.c_ubyte * 128)(*[{FILLED}] * 128))
    code = library.ncclGetUniqueId(ctypes.byref(one))
    assert code == 0, (code, library.ncclGetLastError(None))
    return one
def unique_id(library):
    return bytes(new_id(library)).hex()
def texts(library):
    return [library.ncclGetErrorString(code).decode() for code in range(9)]
def bcast(library):
    return [library.ncclBcast(nothing, zero, 7, 0, nothing, nothing), library.ncclGetLastError(None).decode()]
def group(library, *calls):
    return [library.ncclGroupStart(), *(call(library) for call in calls), library.ncclGroupEnd()]
def all_reduce(library):
    return library.ncclAllReduce(nothing, nothing, zero, 7, 0, nothing, nothing)
def init(library):
    comm = ctypes.c_void_p(77)
    code = library.ncclCommInitRank(ctypes.byref(comm), 1, new_id(library), 0)
    return [code, library.ncclGetLastError(None).decode()]
def called_back():
    "Whose function each of the library's calls of its own public ones comes to."
    def whole(line):
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        return begin, end, line.split()[-1]
    places = [whole(line) for line in open("/proc/self/maps")]
    base = min(begin for begin, _, file in places if file == path)
    at = {{name: ctypes.c_size_t.from_address(base + slot).value for name, slot in slots.items()}}
    return {{name: next(file for begin, end, file in places if begin <= to < end) for name, to in at.items()}}
"""
VERSIONS = "answer = [[version(one), texts(one)] for one in (door, real)]"
# The addresses and ports of this process' network on which somebody waits.
IDS = """
answer = [unique_id(door), unique_id(real)]
rows = [line.split() for line in open("/proc/self/net/tcp")][1:]
answer.append([row[1] for row in rows if row[3] == "0A"])
"""
GROUPS = "answer = [group(one, *calls) for one in (door, real) for calls in ((all_reduce,), (), (bcast,), ())]"
# Somebody connects to where the id says that the library waits for its ranks, and begins as the library of a rank does. This
# process is rank 0 of two.
VISITED = """
import socket
one = new_id(door)
words = bytes(one)
with socket.create_connection((socket.inet_ntoa(words[12:16]), int.from_bytes(words[10:12], "big"))) as visitor:
    visitor.sendall(words[:8] + bytes(4))
comm = ctypes.c_void_p(77)
answer = [door.ncclCommInitRank(ctypes.byref(comm), 2, one, 0), door.ncclGetLastError(None).decode()]
"""
INITS = "answer = [init(door), init(real), group(door), version(door), texts(door)]"
# The first id opens what carries communicators, and its meeting goes on.
COMING_BACK = """
open_one = unique_id(door)
answer = [called_back(), bcast(door), bcast(real), group(door, bcast), group(door), init(door)]
answer += [unique_id(door)[96:112] == open_one[96:112], group(door, bcast, bcast), group(door), texts(door) == texts(real)]
"""


@dataclass(frozen=True)
class Real:
    """A library of a wheel's."""

    requirement: str
    path: Path

    @property
    def version(self) -> str:
        return self.requirement.split("==")[1]

    @property
    def names(self) -> frozenset[str]:
        package = self.requirement.split("==")[0]
        (found,) = [w.names for w in read_list(list_of("nccl")) if (w.package, w.version) == (package, self.version)]
        return found


@pytest.fixture(params=[vendor_headers.NCCL, vendor_headers.OLDEST_NCCL])
def real(request: pytest.FixtureRequest) -> Real:
    """Each of them in turn."""
    if platform.machine() != "x86_64":
        pytest.skip("the library that is fetched is for x86-64")
    path = (ROOT / "build" / "vendor-headers" / vendor_headers.NCCL_LIBRARIES[request.param]).resolve()
    if not path.is_file():
        reason = f"no NCCL in {path.parent}: scripts/vendor_headers.py fetches it"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    return Real(request.param, path)


def answer(real: Real, program: str, first: str = "real", slots: str = "{}", **more: str) -> tuple[Any, str]:
    """What a program found that was started behind the door, and what it logged."""
    given = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_FAMILY": "AF_INET", "ISTHMUS_INTERFACE": "lo", "ISTHMUS_LOG": "info"}
    given |= {"CUDA_VISIBLE_DEVICES": ""} | more
    words = (sys.executable, "-c", f"{BOTH}{program}\nprint(json.dumps(answer))\n", real.path, first, slots)
    ended = run(*words, LD_PRELOAD=DOOR.path, **{DOOR.setting: real.path}, **given)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def ids(real: Real, **more: str) -> tuple[bytes, bytes, list[str]]:
    """One by the door, one by the library itself, and where the process listens then."""
    (ours, bare, listens), _ = answer(real, IDS, **more)
    return bytes.fromhex(ours), bytes.fromhex(bare), listens


def test_the_newest_and_the_oldest_are_those_of_the_lists() -> None:
    """As for the names of the others: tests/interpose/names."""
    listed = sorted({wheel.version for wheel in read_list(list_of("nccl"))}, key=numbers)
    fetched = [requirement.split("==")[1] for requirement in (vendor_headers.OLDEST_NCCL, vendor_headers.NCCL)]
    assert fetched == [listed[0], listed[-1]] and numbers(fetched[0])[:2] == SOURCES["nccl"].oldest


def test_the_version_and_the_texts_of_errors_are_the_librarys(real: Real) -> None:
    (ours, bare), logged = answer(real, VERSIONS)
    major, minor, patch = map(int, real.version.split("."))
    assert ours == bare and ours[0] == 10000 * major + 100 * minor + patch
    assert len(set(ours[1])) > 5
    assert f"interpose: NCCL {real.version} in {real.path}\n" in logged, "it was the door that answered"


def test_a_unique_id_is_the_librarys_in_front_and_says_behind_how_the_ranks_meet(real: Real) -> None:
    """The library's: a number, and the address and port at which this process waits for the ranks. The rest of an id is
    zeros, or what the program had there: up to 2.22 the library leaves it alone.
    """
    ours, bare, listens = ids(real)
    assert ours[:8] != bare[:8], "one was made for each call"
    left = FILLED if numbers(real.version) < (2, 23) else 0
    for one in (ours, bare):
        family, port, host = one[8:10], int.from_bytes(one[10:12], "big"), one[12:16]
        assert (family, host) == (b"\x02\x00", bytes((127, 0, 0, 1))), one.hex()
        assert f"0100007F:{port:04X}" in listens, one.hex()
        assert one[16:40] == bytes(24), one.hex()
    assert ours[40:-TAIL] == bytes(8) and bare[40:] == bytes([left] * 88), (ours.hex(), bare.hex())
    assert ours[-TAIL:].startswith(b"Isthmusn") and any(ours[8 - TAIL :]), ours.hex()


def test_an_id_that_every_rank_makes_for_itself_is_the_librarys_to_the_last_byte(real: Real) -> None:
    """But for the number in front, which the oldest makes anew for each."""
    ours, bare, _ = ids(real, NCCL_COMM_ID="127.0.0.1:5555")
    same = 8 if real.requirement == vendor_headers.OLDEST_NCCL else 0
    assert ours[same:40] == bare[same:40] and bare[10:16] == bytes((5555 >> 8, 5555 & 255, 127, 0, 0, 1))
    assert b"Isthmus" not in ours and set(ours[40:]) <= {0, bare[-1]}, ours.hex()


def test_switched_off_the_door_adds_nothing_to_an_id(real: Real) -> None:
    ours, bare, _ = ids(real, ISTHMUS_DISABLE="1")
    assert ours[-TAIL:] == bare[-TAIL:] and len(set(ours[-TAIL:])) == 1


def test_a_group_with_a_call_without_a_communicator_fails_and_the_next_does_not(real: Real) -> None:
    """So the door makes a group of the library's fail where an operation that Isthmus carries was refused in it."""
    found = answer(real, GROUPS)[0]
    ours, bare = found[:4], found[4:]
    assert ours == bare
    (begun, (code, why), ended), following = ours[2:]
    assert ours[:2] == [[0, 4, 4], [0, 0]] and (begun, code, ended, following) == (0, 4, 4, [0, 0])
    assert "comm argument is NULL" in why


def test_an_init_without_a_device_is_the_librarys_refusal(real: Real) -> None:
    """The door decides who gets the communicator, and the library says why there is none. Nothing of it is left."""
    (ours, bare, following, version, texts), logged = answer(real, INITS)
    assert ours == bare and ours[0] == 1 and ours[1].startswith("Cuda failure "), ours
    assert "interpose: ncclCommInitRank, rank 0 of 1: NCCL gets the communicator (rank 0: nccl " in logged
    assert following == [0, 0] and version > 21900 and len(texts) == 9


@pytest.mark.parametrize("first", ["real", "door"])
def test_who_connects_to_the_librarys_own_listener_is_taken_for_a_rank_without_isthmus(real: Real, first: str) -> None:
    """The library takes the connection at once. Nothing else ends this census."""
    given = {"ISTHMUS_CENSUS": "100000", "ISTHMUS_TIMEOUT": "100000"}
    (code, why), logged = answer(real, VISITED, first, **given)
    assert "rank 1 of 2 did not come to where the communicator's ranks meet" in logged
    assert "and 1 connection came to the listener that the vendor's library has for the id (127.0.0.1:" in logged
    assert "taken for ranks without Isthmus, so NCCL gets the communicator" in logged
    assert code == 1 and why.startswith("Cuda failure "), (code, why)


def slots(real: Real) -> dict[str, int]:
    """Where the library has the address of each public function of its own that it calls as anybody would."""
    with open(real.path, "rb") as file:
        elf = ELFFile(file)
        table, calls = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".rela.plt")
        found = {table.get_symbol(one["r_info_sym"]).name: one["r_offset"] for one in calls.iter_relocations()}
    return {name: found[name] for name in {row.name for row in read_table(DOOR.rows) if row.is_in("nccl")} & set(found)}


@pytest.mark.parametrize("first", ["real", "door"])
def test_calls_of_the_library_that_come_back_to_the_door_do_what_they_did_inside(real: Real, first: str) -> None:
    """A program that loads the library by its path before the door does, as PyTorch, has it bound to the door: its ncclBcast
    is a call of ncclBroadcast by the public name. That comes to the door, which carries communicators by then, and goes back
    to the library. Opened by the door first, the library calls itself. Both give the same.
    """
    found, logged = answer(real, COMING_BACK, first, json.dumps(slots(real)))
    back, ours, bare, spoilt, following, refused, same, twice, last, texts = found
    assert {"ncclBroadcast", "ncclGetUniqueId", "ncclGetErrorString"} <= set(back)
    assert set(back.values()) == {str(DOOR.path.resolve() if first == "real" else real.path)}
    assert ours == bare == [4, "Broadcast : comm argument is NULL"]
    assert spoilt == [0, ours, 4] and twice == [0, ours, ours, 4] and following == last == [0, 0]
    assert refused[0] == 1 and same and texts and logged.count("NCCL gets the communicator") == 1


# What a program asks of a communicator, and how it ends one.
LIFE = {f"ncclComm{what}" for what in ("Count", "UserRank", "CuDevice", "GetAsyncError", "Finalize", "Destroy")}
# As docs/explain/interpose.md says: an abort ends the program, as does a shrink that begins with one; that and a split ask
# for the device first; and the last does not look at the communicator.
OTHERWISE = {"ncclCommAbort", "ncclCommShrink", "ncclCommSplit", "ncclGinBarrierCreateRequirement"}


def strayed(real: Real, mode: int, folder: Path, deadly: tuple[str, ...], *unknown: str) -> dict[str, list[Any]]:
    """What a handle of ours is to the library, opened so: of each call but these its code, and the last error.

    The deadly ones end the program. It goes on otherwise, with its communicator as it was.
    """
    rows = [row for row in read_table(DOOR.rows) if row.is_in("nccl") and row.communicator is not None]
    known = {row.name: row.parameters for row in rows if row.result == "Result" and row.name in real.names}
    calls = {name: kinds for name, kinds in known.items() if name not in OTHERWISE.union(deadly, unknown)}
    assert set(calls) > LIFE
    given = {"OF": "nccl", "CALLS": json.dumps(calls), "DEADLY": json.dumps({name: known[name] for name in deadly})}
    (told, ended, result), (*_, others) = job("na", "strayed", folder, REAL=str(real.path), MODE=str(mode), **given)
    assert set(told) == set(calls) and result == others == [3.0] * 3
    assert ended == dict.fromkeys(deadly, -signal.SIGSEGV)
    return told


@pytest.mark.parametrize("mode", [os.RTLD_LOCAL, os.RTLD_DEEPBIND], ids=["comes-back", "stays-inside"])
@pytest.mark.parametrize("real", [vendor_headers.NCCL], indirect=True)
def test_the_newest_refuses_a_handle_of_ours_in_every_call_but_four(real: Real, mode: int, tmp_path: Path) -> None:
    """Whether what it calls of its own functions comes to the door or not. An abort follows it, where nobody can write."""
    told = strayed(real, mode, tmp_path, ("ncclCommAbort",))
    assert len(told) > 40 and {name: found for name, found in told.items() if found[0] != 4} == {}
    # It is the handle that is refused, and no other argument.
    assert "corrupted comm object" in told["ncclCommCount"][1]
    assert "has already been destroyed" in told["ncclCommDestroy"][1]


@pytest.mark.parametrize("real", [vendor_headers.OLDEST_NCCL], indirect=True)
def test_the_oldest_takes_a_handle_of_ours_for_a_communicator_that_has_failed(real: Real, tmp_path: Path) -> None:
    """As opened by the door, so that it asks itself for the state: an invalid argument. To register does not ask for it, and
    ends the program; what to deregister does depends on what it is given.
    """
    deadly = ("ncclCommAbort", "ncclCommRegister")
    told = strayed(real, os.RTLD_DEEPBIND, tmp_path, deadly, "ncclCommDeregister")
    assert told.pop("ncclCommGetAsyncError")[0] == 0
    assert len(told) > 14 and {name: found for name, found in told.items() if found[0] != 4} == {}
    assert "before the previous operation returned ncclSuccess" in told["ncclCommCount"][1]
    assert "has already been destroyed" in told["ncclCommDestroy"][1]
