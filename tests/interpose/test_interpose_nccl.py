"""NVIDIA's own NCCL behind its door, as it is in its wheel: all that it does without a device.

The library is in build/vendor-headers, where the set-up of `make test` puts it (scripts/vendor_headers.py).
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

import vendor_headers
from doors import DOORS, ROOT, preloaded, run
from interpose_entries import read_table
from test_spanning_python import job

pytestmark = preloaded
DOOR = DOORS["nccl"]
VERSION = vendor_headers.NCCL.split("==")[1]
TAIL = 80  # what of an id the door may write to

# DOOR is what programs get by the name, REAL the library itself, past it. Whatever `answer` is then.
BOTH = """
import ctypes, json, sys
door, real = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL(sys.argv[1])
for library in (door, real):
    library.ncclGetErrorString.restype = library.ncclGetLastError.restype = ctypes.c_char_p
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 128)]
def version(library):
    number = ctypes.c_int(-1)
    assert library.ncclGetVersion(ctypes.byref(number)) == 0
    return number.value
def unique_id(library):
    one = Id((ctypes.c_ubyte * 128)(*[0xAA] * 128))
    code = library.ncclGetUniqueId(ctypes.byref(one))
    assert code == 0, (code, library.ncclGetLastError(None))
    return bytes(one).hex()
def group(library, spoilt):
    nothing, zero = ctypes.c_void_p(), ctypes.c_size_t()
    codes = [library.ncclGroupStart()]
    if spoilt:
        codes.append(library.ncclAllReduce(nothing, nothing, zero, 7, 0, nothing, nothing))
    return codes + [library.ncclGroupEnd()]
"""
VERSIONS = "answer = [[version(one), [one.ncclGetErrorString(code).decode() for code in range(9)]] for one in (door, real)]"
# The addresses and ports of this process' network on which somebody waits.
IDS = """
answer = [unique_id(door), unique_id(real)]
rows = [line.split() for line in open("/proc/self/net/tcp")][1:]
answer.append([row[1] for row in rows if row[3] == "0A"])
"""
GROUPS = "answer = [group(one, spoilt) for one in (door, real) for spoilt in (True, False)]"


@pytest.fixture(scope="module")
def real() -> Path:
    """The library of the wheel."""
    if platform.machine() != "x86_64":
        pytest.skip("the library that is fetched is for x86-64")
    path = ROOT / "build" / "vendor-headers" / vendor_headers.NCCL_LIBRARY
    if not path.is_file():
        reason = f"no NCCL in {path.parent}: scripts/vendor_headers.py fetches it"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    return path


def answer(real: Path, program: str, **more: str) -> tuple[Any, str]:
    """What a program found that was started behind the door, and what it logged."""
    given = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_FAMILY": "AF_INET", "ISTHMUS_INTERFACE": "lo", "ISTHMUS_LOG": "info"}
    words = (sys.executable, "-c", f"{BOTH}{program}\nprint(json.dumps(answer))\n", real)
    ended = run(*words, LD_PRELOAD=DOOR.path, **{DOOR.setting: real}, **given, **more)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def ids(real: Path, **more: str) -> tuple[bytes, bytes, list[str]]:
    """One by the door, one by the library itself, and where the process listens then."""
    (ours, bare, listens), _ = answer(real, IDS, **more)
    return bytes.fromhex(ours), bytes.fromhex(bare), listens


def test_the_version_and_the_texts_of_errors_are_the_librarys(real: Path) -> None:
    (ours, bare), logged = answer(real, VERSIONS)
    major, minor, patch = map(int, VERSION.split("."))
    assert ours == bare and ours[0] == 10000 * major + 100 * minor + patch
    assert len(set(ours[1])) > 5
    assert f"interpose: NCCL {VERSION} in {real}\n" in logged, "it was the door that answered"


def test_a_unique_id_is_the_librarys_in_front_and_says_behind_how_the_ranks_meet(real: Path) -> None:
    """The library's: a number, and the address and port at which this process waits for the ranks."""
    ours, bare, listens = ids(real)
    assert ours[:8] != bare[:8], "one was made for each call"
    for one in (ours, bare):
        family, port, host = one[8:10], int.from_bytes(one[10:12], "big"), one[12:16]
        assert (family, host) == (b"\x02\x00", bytes((127, 0, 0, 1))), one.hex()
        assert f"0100007F:{port:04X}" in listens, one.hex()
        assert one[16:-TAIL] == bytes(128 - TAIL - 16), one.hex()
    assert ours[-TAIL:].startswith(b"Isthmusn") and any(ours[8 - TAIL :]), ours.hex()
    assert bare[40:] == bytes(88), bare.hex()


def test_an_id_that_every_rank_makes_for_itself_is_the_librarys_to_the_last_byte(real: Path) -> None:
    ours, bare, _ = ids(real, NCCL_COMM_ID="127.0.0.1:5555")
    assert ours == bare and bare[10:16] == bytes((5555 >> 8, 5555 & 255, 127, 0, 0, 1))


def test_switched_off_the_door_adds_nothing_to_an_id(real: Path) -> None:
    ours, bare, _ = ids(real, ISTHMUS_DISABLE="1")
    assert ours[-TAIL:] == bare[-TAIL:] == bytes(TAIL)


def test_a_group_with_a_call_without_a_communicator_fails_and_the_next_does_not(real: Path) -> None:
    """So the door makes a group of the library's fail where an operation that Isthmus carries was refused in it."""
    spoilt, next_one, bare_spoilt, bare_next = answer(real, GROUPS)[0]
    assert spoilt == bare_spoilt == [0, 4, 4] and next_one == bare_next == [0, 0]


# What a program asks of a communicator, and how it ends one.
LIFE = {f"ncclComm{what}" for what in ("Count", "UserRank", "CuDevice", "GetAsyncError", "Finalize", "Destroy")}
# As docs/explain/interpose.md says: an abort ends the program, as does a shrink that begins with one; that and a split ask
# for the device first; and the last does not look at the communicator.
OTHERWISE = {"ncclCommAbort", "ncclCommShrink", "ncclCommSplit", "ncclGinBarrierCreateRequirement"}


def test_the_library_refuses_a_handle_of_ours_in_every_call_but_four(real: Path, tmp_path: Path) -> None:
    """And the program goes on, with its communicator as it was."""
    rows = [row for row in read_table(DOOR.rows) if row.is_in("nccl") and row.communicator is not None]
    calls = {row.name: row.parameters for row in rows if row.result == "Result" and row.name not in OTHERWISE}
    assert len(calls) > 40 and set(calls) > LIFE and not OTHERWISE & set(calls)
    (told, result), (_, others) = job("na", "strayed", tmp_path, REAL=str(real), CALLS=json.dumps(calls))
    assert set(told) == set(calls)
    assert {name: found for name, found in told.items() if found[0] != 4} == {}
    # It is the handle that is refused, and no other argument.
    assert "corrupted comm object" in told["ncclCommCount"][1]
    assert "has already been destroyed" in told["ncclCommDestroy"][1]
    assert result == others == [3.0] * 3
