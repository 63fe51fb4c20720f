"""What a device's runtime says of the memory that a rank was given: that it fails, or that it knows of no such memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import SOON

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, on_host, run_fleet, vendor

QUESTIONS = {"nvidia": "cuPointerGetAttribute", "amd": "hipPointerGetAttributes", "ascend": "aclrtPointerGetAttributes"}
NAMES = {"nvidia": "NVIDIA driver", "amd": "AMD runtime", "ascend": "Ascend ACL"}


def reduce_until_it_fails(comm: isthmus.Comm) -> tuple[str, float, float]:
    x: Any = np.ones(20_000, np.float32)
    if not on_host():
        x = DeviceArray.of(x)
    said, begun = "nothing failed", time.monotonic()
    try:
        for _ in range(5):
            begun = time.monotonic()
            comm.all_reduce(x, "max", x)
        comm.barrier()
    except isthmus.Error as error:
        said = str(error)
    took, begun = time.monotonic() - begun, time.monotonic()
    comm.abort("seen")
    comm.destroy()
    return said, took, time.monotonic() - begun


@pytest.mark.parametrize(
    ("kind", "switch", "nth", "code"),
    [
        ("nvidia", "FAIL", 1, 700),  # the first of three questions that are asked of one pointer
        ("nvidia", "FAIL", 2, 700),
        ("nvidia", "FAIL", 3, 999),
        ("nvidia", "FAIL", 7, 201),
        ("nvidia", "FAIL_FOR_GOOD", 4, 700),
        ("amd", "FAIL_FOR_GOOD", 2, 700),
        ("ascend", "FAIL", 1, 507015),
        ("ascend", "FAIL_FOR_GOOD", 2, 507015),
    ],
)
def test_a_runtime_that_cannot_say_whose_memory_it_is_has_failed_on_all_ranks(
    kind: str, switch: str, nth: int, code: int
) -> None:
    """Only "I know no such memory" means the host's. The rest is the device's failure, and the communicator can be left."""
    fault = f"{QUESTIONS[kind]}:{nth}:{code}"
    for said, took, left in run_fleet(f"{kind}:1,cpu:1", reduce_until_it_fails, switches={switch: fault}):
        assert "the device of rank 0" in said, said
        assert f"{NAMES[kind]}: {QUESTIONS[kind]} failed with" in said and str(code) in said, said
        assert took < SOON and left < SOON, (took, left)


class Claimed:
    """What says that it lies on the device, at any address."""

    def __init__(self, address: int, count: int) -> None:
        self.shape, self.dtype = (count,), np.dtype(np.float32)
        self.__cuda_array_interface__ = {"shape": self.shape, "typestr": "<f4", "data": (address, False), "version": 3}


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:1,cpu:1", "ascend:2"])
def test_an_address_that_the_runtime_does_not_know_is_no_memory_of_a_device(fleet: str) -> None:
    """Refused before anything begins, on the rank that gave it. Pinned memory of the host is the device's as well."""

    def body(comm: isthmus.Comm) -> list[tuple[int, str]]:
        n, said = 3000, []
        ones = np.ones(n, np.float32)
        if not on_host():
            freed = DeviceArray.of(ones)
            there, good, every = freed.address, DeviceArray.of(ones), DeviceArray.of(np.ones(n * comm.size, np.float32))
            del freed
            for address in (0xDEAD0000, there, ones.ctypes.data):
                bad = Claimed(address, n)
                for call in (
                    lambda bad=bad: comm.all_reduce(bad, "max", bad),
                    lambda bad=bad: comm.all_reduce(bad, "max", good),
                    lambda bad=bad: comm.all_reduce(good, "max", bad),
                    lambda bad=bad: comm.all_reduce(bad, "max", ones),
                    lambda bad=bad: comm.broadcast(bad, 0),
                    lambda bad=bad: comm.all_gather(bad, every),
                    lambda bad=bad: comm.gather_v(bad, [n] * comm.size, out=every if comm.rank == 0 else None),
                    lambda bad=bad: comm.send(bad, 1 - comm.rank),
                    lambda bad=bad: comm.recv(bad, 1 - comm.rank, async_op=True),
                ):
                    try:
                        call()
                        said.append((address, "accepted"))
                    except isthmus.ArgumentError as error:
                        said.append((address, str(error)))
        x = ones if on_host() else DeviceArray.of(ones)
        comm.all_reduce(x, "sum", x)
        comm.all_reduce(x[:0] if on_host() else Claimed(0xDEAD0000, 0))  # nothing, wherever it is
        pinned = np.zeros(8192, np.float32)
        page = pinned[(-pinned.ctypes.data % 4096) // 4 :][:1024]
        page[:] = 1
        if not on_host():
            vendor().register(page.ctypes.data, page.nbytes)
        comm.all_reduce(page if on_host() else Claimed(page.ctypes.data, 1024), "sum")
        if not on_host():
            vendor().unregister(page.ctypes.data)
        assert float((x if on_host() else x.get())[-1]) == float(page[-1]) == comm.size
        return said

    for said in run_fleet(fleet, body):
        assert len(said) in (0, 27)
        for turn, (address, text) in enumerate(said):
            assert ":0, on which this rank works, knows no memory at this address" in text, (turn, text)
            assert f"{address:#x}" in text and "Pass memory" in text, (turn, text)
            assert text.startswith(("all_", "broadcast: ", "gather_v: ", "send: ", "recv: ")), text
