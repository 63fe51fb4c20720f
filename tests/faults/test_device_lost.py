"""Device ranks whose peer is killed or stopped for: their devices are free then, and who shares a stream is told."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import SOON

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, left_over, on_host, run_fleet
from events import until


@pytest.mark.parametrize(
    "fleet",
    ["nvidia:3", "nvidia:2,cpu:1", "nvidia:1,cpu:1,nvidia:1", "amd:2,cpu:1", "ascend:3", "ascend:2,cpu:1"],
)
def test_a_killed_rank_of_the_island_is_named_by_all_others_whose_devices_are_free_then(fleet: str) -> None:
    """Who hears of it may free memory at once, which waits for all that the device has to do, and end later."""

    def body(comm: isthmus.Comm) -> tuple[str, float]:
        x: Any = np.ones(150_000, np.float32)
        x = x if on_host() else DeviceArray.of(x)
        said = "nothing was lost"
        try:
            for turn in range(100):
                comm.all_reduce(x, "max", x)
                if comm.rank == 1 and turn == 3:
                    os.kill(os.getpid(), 9)
        except isthmus.PeerLostError as error:
            said = str(error)
        begun = time.monotonic()
        del x
        return said, time.monotonic() - begun

    first, killed, third = run_fleet(fleet, body, expect={1: -9})
    assert killed is None
    for said, took in (first, third):
        assert "rank 1" in said, said
        assert took < SOON, took


def test_a_communicator_that_ends_broken_without_work_of_its_own_stops_nobody_elses() -> None:
    """The seventeenth communicator of one vendor's ranks shares the stream of the first."""

    def body(comm: isthmus.Comm) -> bool:
        more = [comm.split(0) for _ in range(16)]
        idle = more[-1]
        x = DeviceArray.of(np.ones(5000, np.float32))
        work = comm.all_reduce(x, "sum", x, async_op=True)
        idle.abort("not needed")
        idle.destroy()
        work.wait()
        return bool((x.get() == comm.size).all())

    assert all(run_fleet("ascend:2", body, switches={"SLOW": "HcclAllReduce:1:900"}))


@pytest.mark.parametrize("others", [0, 15])
def test_who_shares_a_stream_that_had_to_be_stopped_is_told_so_and_nobody_else(others: int, tmp_path: Path) -> None:
    """Communicators of one vendor's ranks have streams of their own, but the seventeenth shares the first one's."""

    def body(comm: isthmus.Comm, folder: str, others: int) -> tuple[str, str, float]:
        more = [comm.split(0) for _ in range(others)]
        assert len(more) == others
        pair = comm.split(comm.rank % 2)
        x, y = (DeviceArray.of(np.ones(5000, np.float32)) for _ in range(2))
        pair.all_reduce(y, "sum", y)  # its first call allocates, which would wait for the device with the driver locked
        if comm.rank == 1:
            until(lambda: len(list(Path(folder).iterdir())) == 2)
            os.kill(os.getpid(), 9)
        stands = comm.all_reduce(x, "sum", x, async_op=True)
        behind = pair.all_reduce(y, "sum", y, async_op=True)
        (Path(folder) / f"both.{comm.rank}").touch()
        said, begun = [], time.monotonic()
        for work in (stands, behind):
            try:
                work.wait()
                said.append("nothing failed")
            except isthmus.Error as error:
                said.append(str(error))
        return said[0], said[1], time.monotonic() - begun

    first, killed, third = run_fleet("ascend:3", body, str(tmp_path), others, expect={1: -9})
    assert killed is None
    for stands, behind, took in (first, third):
        assert "rank 1" in stands, stands
        assert took < SOON, took
        if not others:
            assert behind == "nothing failed"
            continue
        # HCCL may have noticed by itself, and say so first; or the other rank of the pair.
        assert "its stream was stopped" in behind or "hccl communicator: " in behind, behind


@pytest.mark.parametrize("seconds", [0.06, 0.1, 0.14, 1])
def test_the_others_are_told_where_their_queues_are_full_of_what_waits_for_the_killed_rank(seconds: float) -> None:
    """A thread that stood in a call of HCCL's then, because the queue was full, comes out, and nothing is left behind.

    Whenever the rank is killed: while another thread has the driver locked, and waits for room or for the device, too.
    """

    def body(comm: isthmus.Comm, seconds: float) -> tuple[str, float, dict[str, int]]:
        x: Any = np.ones(50_000, np.float32)
        x = x if on_host() else DeviceArray.of(x)
        comm.barrier()
        if comm.rank == 1:
            time.sleep(seconds)
            os.kill(os.getpid(), 9)

        def all_of_them(x: Any) -> None:
            for work in [comm.all_reduce(x, "max", x, async_op=True) for _ in range(100)]:
                work.wait()

        said, begun = "nothing was lost", time.monotonic()
        try:
            all_of_them(x)
        except isthmus.PeerLostError as error:
            said = str(error)
        took = time.monotonic() - begun
        comm.destroy()
        del x
        return said, took, left_over()

    first, killed, third = run_fleet("ascend:3", body, seconds, switches={"QUEUE_DEPTH": "16"}, expect={1: -9})
    assert killed is None
    for said, took, left in (first, third):
        assert "rank 1" in said, said
        assert took < SOON and not any(left.values()), (took, left)


def test_where_a_stream_cannot_be_stopped_the_others_are_told_all_the_same_and_end() -> None:
    """HCCL has no call that ends what waits for a rank that was killed. Its communicator stays, and the device waits."""

    def body(comm: isthmus.Comm) -> tuple[str, float]:
        x: Any = np.ones(150_000, np.float32)
        if not on_host():
            x = DeviceArray.of(x)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))  # freeing it would wait for the device
        said, begun = "nothing was lost", time.monotonic()
        try:
            for turn in range(100):
                begun = time.monotonic()
                comm.all_reduce(x, "max", x)
                if comm.rank == 1 and turn == 3:
                    os.kill(os.getpid(), 9)
        except isthmus.PeerLostError as error:
            said = str(error)
        comm.destroy()
        return said, time.monotonic() - begun

    no_abort = ",".join(f"aclrtStreamAbort:{nth}:507000" for nth in range(1, 5))
    first, killed, third = run_fleet("ascend:2,cpu:1", body, switches={"FAIL": no_abort}, expect={1: -9})
    assert killed is None
    for said, took in (first, third):
        assert "rank 1" in said, said
        assert took < SOON, took
