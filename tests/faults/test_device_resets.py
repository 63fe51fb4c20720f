"""A program that resets the device under a communicator: the next operation and the one in flight end on all ranks."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import SOON

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, on_host, run_fleet, vendor
from events import once_inside, until, until_asleep

SAYS = {
    "nvidia": ("NVIDIA driver: ", "failed with CUDA_ERROR_CONTEXT_IS_DESTROYED (709"),
    "amd": ("AMD runtime: ", "failed with hipErrorContextIsDestroyed (709"),
    "ascend": ("Ascend ACL: ", "failed with error 107002"),
}


def arrays(comm: isthmus.Comm) -> tuple[Any, Any]:
    x: Any = np.full(160_000, comm.rank + 1.0, np.float32)
    y: Any = np.ones(160_000 * comm.size, np.float32)
    return (x, y) if on_host() else (DeviceArray.of(x), DeviceArray.of(y))


def operations(comm: isthmus.Comm, x: Any, y: Any) -> None:
    comm.all_reduce(x, "max", x)
    comm.broadcast(x, 0)
    comm.all_gather(x, y)
    comm.reduce_scatter(y, "max", x)
    comm.send(x, (comm.rank + 1) % comm.size, async_op=True)
    comm.recv(x, (comm.rank - 1) % comm.size)
    comm.barrier()


def all_there(comm: isthmus.Comm) -> None:
    """Rank 0 goes on when all others have ended what was before."""
    one = np.ones(1)
    for rank in range(1, comm.size):
        if comm.rank == 0:
            comm.recv(one, rank, tag=1)
        elif comm.rank == rank:
            comm.send(one, 0, tag=1)


def works_again() -> float:
    """The device begun anew, and a communicator on it."""
    with isthmus.init() as comm:
        x, y = arrays(comm)
        operations(comm, x, y)
        comm.all_reduce(x, "max", x)
        return float((x if on_host() else x.get())[-1])


def ended(comm: isthmus.Comm) -> float:
    """How long abort and destroy take. The program has its device again already."""
    if comm.rank == 0:
        vendor().here()
        DeviceArray.of(np.ones(1000, np.float32))
    begun = time.monotonic()
    comm.abort("seen")
    comm.destroy()
    return time.monotonic() - begun


@pytest.mark.parametrize("fleet", ["nvidia:2,cpu:1", "amd:2,cpu:1", "ascend:2,cpu:1", "nvidia:1,amd:1"])
def test_the_next_operation_after_a_reset_is_an_error_on_all_ranks_and_the_process_goes_on(fleet: str) -> None:
    """Rank 0 resets its device. What it says has the vendor, the call and its code; and its next communicator works."""

    def body() -> tuple[str, float, float, float]:
        comm = isthmus.init()
        x, y = arrays(comm)
        operations(comm, x, y)
        begun, said = time.monotonic(), "nothing failed"
        try:
            all_there(comm)
            if comm.rank == 0:
                vendor().reset()
            operations(comm, x, y)
        except isthmus.Error as error:
            said = str(error)
        took = time.monotonic() - begun
        return said, took, ended(comm), works_again()

    for said, took, ending, again in run_fleet(fleet, body, init=False):
        assert all(words in said for words in SAYS[fleet.split(":")[0]]) and "rank 0" in said, said
        assert took < SOON and ending < SOON, (took, ending)
        assert again == float(sum(int(part[-1]) for part in fleet.split(",")))


@pytest.mark.parametrize("fleet", ["nvidia:2,cpu:1", "amd:2,cpu:1", "ascend:2,cpu:1"])
def test_the_operation_in_flight_ends_on_all_ranks_when_the_device_is_reset(tmp_path: Path, fleet: str) -> None:
    """The last rank comes late, so the operation of the others stands on their devices when rank 0 resets its own.

    Whoever is first to say so, the library or the device, all hear what the device says.
    """

    def body(folder: str) -> tuple[str, float, float]:
        was_reset, failed = Path(folder) / "reset", Path(folder) / "failed"
        comm = isthmus.init()
        x, y = arrays(comm)
        operations(comm, x, y)

        caller = threading.current_thread()

        def reset() -> None:
            until_asleep(caller)  # its list is on the device
            vendor().here()
            vendor().reset()
            was_reset.touch()

        begun, said = time.monotonic(), "nothing failed"
        try:
            all_there(comm)
            if comm.rank == 0:
                once_inside(comm, reset)
            if comm.rank == comm.size - 1:
                until(failed.exists)
            operations(comm, x, y)
        except isthmus.Error as error:
            said = str(error)
        took = time.monotonic() - begun
        failed.touch()
        until(was_reset.exists)
        return said, took, ended(comm)

    for said, took, ending in run_fleet(fleet, body, str(tmp_path), init=False):
        assert all(words in said for words in SAYS[fleet.split(":")[0]]) and "rank 0" in said, said
        assert took < SOON and ending < SOON, (took, ending)
