"""Newcomers of other vendors, on rehearsed fleets: islands are made anew, and members keep what they have registered."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import SOON

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, on_host, run_fleet, vendor
from events import until

REGISTER = {"cuda": "cuMemHostRegister", "hip": "hipHostRegister", "acl": "aclrtHostRegister"}


def registrations() -> int:
    if on_host():
        return 0
    vendor()  # with it the simulation is loaded
    calls = ctypes.CDLL("librehearsal.so").rehearsal_calls
    calls.restype = ctypes.c_ulong
    return sum(calls(name.encode()) for name in REGISTER.values())


def summed(comm: isthmus.Comm, count: int = 100_000) -> float:
    x: Any = np.full(count, comm.rank + 1, np.float32)
    there = x if on_host() else DeviceArray.of(x)
    comm.all_reduce(there, "sum", there)
    found = x if on_host() else there.get()
    assert (found == found[0]).all()
    return float(found[0])


def member_or_newcomer(folder: str, members: int) -> Any:
    rank, place = int(os.environ["RANK"]), Path(folder) / "ticket"
    if rank >= members:
        until(place.exists)
        comm = isthmus.join(place.read_text())
        return summed(comm), islands(comm), 0
    old = isthmus.init(rank, members)
    summed(old)
    if rank == 0:
        written = Path(folder) / "written"
        written.write_text(old.ticket())
        written.rename(place)
    until(place.exists)
    before = registrations()
    grown = old.grow(place.read_text())
    found = summed(grown), islands(grown), registrations() - before
    assert summed(old) == members * (members + 1) / 2
    return found


def islands(comm: isthmus.Comm) -> list[list[int]]:
    return [island["ranks"] for island in comm.topology()["islands"]]


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        ("nvidia:2,amd:1", [[0, 1], [2]]),
        ("nvidia:3", [[0, 1, 2]]),
        ("amd:2,ascend:1", [[0, 1], [2]]),
        ("ascend:2,cpu:1", [[0, 1], [2]]),
        ("cpu:2,nvidia:1", [[0, 1], [2]]),
    ],
)
@pytest.mark.parametrize("bridge", ["auto", "tcp"])
def test_a_newcomer_of_any_vendor_has_its_island_and_old_members_register_only_the_rings_of_others(
    tmp_path: Path, fleet: str, expected: list[list[int]], bridge: str
) -> None:
    """A communicator has a ring on each rank, which devices of the others reach. Own memory is not registered again."""
    for found, of, registered in run_fleet(fleet, member_or_newcomer, str(tmp_path), 2, init=False, bridge=bridge):
        assert found == 6.0 and of == expected and registered <= 2, registered


def test_a_newcomer_whose_library_fails_leaves_the_old_communicator_as_it_was(tmp_path: Path) -> None:
    def body(folder: str) -> tuple[str, float]:
        rank, place = int(os.environ["RANK"]), Path(folder) / "ticket"
        if rank == 2:
            until(place.exists)
            try:
                isthmus.join(place.read_text())
            except isthmus.Error as error:
                return str(error), 3.0
            raise AssertionError("its library did not fail")
        old = isthmus.init(rank, 2)
        if rank == 0:
            written = Path(folder) / "written"
            written.write_text(old.ticket())
            written.rename(place)
        until(place.exists)
        try:
            old.grow(place.read_text())
        except isthmus.Error as error:
            return str(error), summed(old)
        raise AssertionError("the newcomer's library did not fail")

    fault = {"2:FAIL": "ncclCommInitRankConfig:1:3"}
    for said, whole in run_fleet("nvidia:3", body, str(tmp_path), init=False, switches=fault, timeout=4 * SOON):
        assert "on rank 2: " in said and "nccl init: internal error" in said, said
        assert whole == 3.0
