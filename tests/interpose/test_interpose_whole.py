"""Whole libraries of other people's behind the doors, on demand: what they do without a device (scripts/whole_libraries.py).

They are kept in build/whole. Gigabytes are fetched for them, so only `make test-all` runs these tests. They are skipped
where nothing can be fetched.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import whole_libraries
from doors import DOORS, HERE, ROOT, compile_c, preloaded, run
from interpose_entries import read_table
from interpose_names import symbols
from test_interpose_nccl import BOTH, GROUPS, IDS, INITS, VERSIONS
from test_spanning_python import job

pytestmark = [preloaded, pytest.mark.everything, pytest.mark.timeout(3600)]  # gigabytes may be fetched
LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_FAMILY": "AF_INET", "ISTHMUS_INTERFACE": "lo"}
NO_DEVICE = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
NCCL_GETS_IT = "interpose: ncclCommInitRank, rank 0 of 1: NCCL gets the communicator (rank 0: nccl "


def fetched(name: str) -> Path:
    if platform.machine() != "x86_64":
        pytest.skip("what is fetched is for x86-64")
    try:
        return whole_libraries.assemble(ROOT / "build" / "whole", name)
    except whole_libraries.NotHere as no:
        pytest.skip(str(no))


# ---- PyTorch for CUDA ----------------------------------------------------------------------------------------------------

# LIBTORCH_CUDA INIT. Python has no way to PyTorch's own init, so a small library takes it there (torch_init.cpp).
TORCH = """
import ctypes, json, sys
import torch
from torch.cuda import nccl
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
init, why = ctypes.CDLL(sys.argv[2]), ctypes.create_string_buffer(65536)
one, other = nccl.unique_id(), nccl.unique_id()
made = init.init_alone(one, why, ctypes.c_ulong(len(why)))
print(json.dumps([nccl.version(), one.hex(), other.hex(), made, why.value.decode().splitlines()[0]]))
"""


@pytest.fixture(scope="module")
def torch() -> Path:
    return fetched("torch-cuda")


def of_torch(torch: Path, folder: Path, **more: str | Path) -> tuple[list[Any], str]:
    """What the program printed, and what was logged."""
    init = folder / "libinit.so"
    compile_c("-shared", "-fPIC", HERE / "torch_init.cpp", "-o", init, "-Wl,--allow-shlib-undefined", compiler="c++")
    words = (sys.executable, "-c", TORCH, torch / "torch" / "lib" / "libtorch_cuda.so", init)
    ended = run(*words, seconds=600, PYTHONPATH=torch, ISTHMUS_LOG="info", **LOOPBACK, **NO_DEVICE, **more)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def test_pytorch_for_cuda_makes_its_ids_and_is_refused_its_init_through_the_door(torch: Path, tmp_path: Path) -> None:
    """It loads NCCL by its path when it is imported, so NCCL is bound to the door. Bare it gets the same of NCCL."""
    door, real = DOORS["nccl"], torch / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    (version, one, other, made, why), logged = of_torch(torch, tmp_path, LD_PRELOAD=door.path)
    named = ".".join(map(str, version))
    assert f"interpose: NCCL {named} in {real}\n" in logged and logged.count(NCCL_GETS_IT) == 1, logged
    assert made == 0 and why.startswith("NCCL Error 1: unhandled cuda error"), why
    ids = [bytes.fromhex(text) for text in (one, other)]
    assert ids[0][:8] != ids[1][:8] and [text[48:].startswith(b"Isthmusn") for text in ids] == [True, True]
    (bare_version, bare_one, _, *refused), logged = of_torch(torch, tmp_path)
    assert (bare_version, refused) == (version, [made, why]) and bytes.fromhex(bare_one)[40:] == bytes(88)
    assert "interpose" not in logged


# ---- RCCL and HIP's runtime ----------------------------------------------------------------------------------------------

RCCL = DOORS["rccl"]
HIP = """
import ctypes
runtime, number, version = ctypes.CDLL("libamdhip64.so.5"), ctypes.c_int(-1), ctypes.c_int(-1)
answer = [runtime.hipGetDeviceCount(ctypes.byref(number)), number.value]
answer += [runtime.hipRuntimeGetVersion(ctypes.byref(version)), version.value // 10**7]
"""
NO_SUCH_DEVICE = 100


@pytest.fixture(scope="module")
def rccl() -> Path:
    """The folder of Debian's libraries."""
    return fetched("rccl") / whole_libraries.LIBRARIES


def of_rccl(rccl: Path, program: str) -> tuple[Any, str]:
    """What a program found behind the door, among Debian's libraries, and what it logged. Their loader starts it."""
    loader = (rccl / "ld-linux-x86-64.so.2", "--library-path", rccl, "--preload", RCCL.path)
    text = f"{BOTH.replace(DOORS['nccl'].soname, RCCL.soname)}{program}\nprint(json.dumps(answer))\n"
    words = (sys.executable, "-c", text, (rccl / RCCL.soname).resolve(), "real", "{}")
    ended = run(*loader, *words, ISTHMUS_LOG="info", **LOOPBACK, **NO_DEVICE)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def test_rccl_gives_its_version_and_texts_through_the_door(rccl: Path) -> None:
    (ours, bare), logged = of_rccl(rccl, VERSIONS)
    number = ours[0]
    assert ours == bare and number >= 21300 and len(set(ours[1])) > 5
    named = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    assert f"interpose: RCCL {named} in {(rccl / RCCL.soname).resolve()}\n" in logged


def test_an_id_of_rccls_is_its_own_in_front_and_says_behind_how_the_ranks_meet(rccl: Path) -> None:
    """RCCL's of that age is an address and a port alone."""
    (ours, bare, listens), _ = of_rccl(rccl, IDS)
    for one in map(bytes.fromhex, (ours, bare)):
        assert (one[:2], one[4:8]) == (b"\x02\x00", bytes((127, 0, 0, 1))), one.hex()
        assert f"0100007F:{int.from_bytes(one[2:4], 'big'):04X}" in listens, one.hex()
        assert one[8:48] == bytes(40), one.hex()
    assert bytes.fromhex(ours)[48:].startswith(b"Isthmus") and bytes.fromhex(bare)[48:] == bytes(80)


def test_groups_of_rccls_end_as_without_the_door(rccl: Path) -> None:
    """It looks for the device when a group ends, so that the call without a communicator is refused in the call alone."""
    found, _ = of_rccl(rccl, GROUPS)
    assert found[:4] == found[4:] and found[0][:2] == [0, 4] and found[2][1][0] == 4


def test_an_init_of_rccls_without_a_device_is_its_refusal(rccl: Path) -> None:
    (ours, bare, *_), logged = of_rccl(rccl, INITS)
    assert ours == bare and ours[0] == 1 and ours[1].startswith("HIP failure "), ours
    assert "interpose: ncclCommInitRank, rank 0 of 1: RCCL gets the communicator (rank 0: rccl " in logged


def test_hips_runtime_has_no_device_here(rccl: Path) -> None:
    found, _ = of_rccl(rccl, HIP)
    assert found == [NO_SUCH_DEVICE, 0, 0, 5]


def test_rccl_takes_a_handle_of_ours_for_a_communicator_and_cannot_write_there(rccl: Path, tmp_path: Path) -> None:
    """It looks for no number, and asks for no state. What writes ends the program; the rest is refused, or reads what is
    there, or fails before it looks, as there is no device.
    """
    with open(rccl / RCCL.soname, "rb") as file:
        names = {name for name, has in symbols(file) if has}
    rows = [row for row in read_table(RCCL.rows) if row.is_in("rccl") and row.communicator is not None]
    calls = {row.name: row.parameters for row in rows if row.result == "Result" and row.name in names}
    # The device is simulated, and RCCL has its own runtime.
    loader = (str(rccl / "ld-linux-x86-64.so.2"), "--library-path", f"{rccl}:{RCCL.simulated}")
    given = {"OF": "rccl", "REAL": str(rccl / RCCL.soname), "MODE": str(os.RTLD_DEEPBIND), RCCL.setting: str(RCCL.real)}
    given |= {"CALLS": "{}", "DEADLY": json.dumps(calls)} | NO_DEVICE
    (_, _, others), (_, ended, result) = job("na", "strayed", tmp_path, before_amds=loader, **given)
    assert set(ended) == set(calls) and result == others == [3.0] * 3
    assert {name: code for name, code in ended.items() if code not in (0, 1)} == {
        "ncclCommAbort": -signal.SIGSEGV,
        "ncclRedOpCreatePreMulSum": -signal.SIGSEGV,
        "ncclAllToAll": -signal.SIGSEGV,
        "ncclCommDestroy": 4,
        "ncclRedOpDestroy": 4,
    }
    assert {name for name, code in ended.items() if code == 0} == {
        f"ncclComm{what}" for what in ("Count", "CuDevice", "UserRank", "GetAsyncError")
    }
