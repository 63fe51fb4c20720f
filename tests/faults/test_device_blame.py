"""Who is named where a vendor's library would wait for ever, on rehearsed fleets whose ranks have no labels."""

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
from devices import DeviceArray, on_host, run_fleet
from events import once_inside, until

LATE = 1  # of the island; the first rank of it waits inside the library, and the rank outside waits for that one


def called_by_all_but_one(comm: isthmus.Comm, folder: str) -> str:
    """What each is told of the second sum, to which one rank comes too late for the deadline of the last one."""
    called, failed = Path(folder) / "called", Path(folder) / "failed"
    x: Any = np.ones(200_000, np.float32)
    if not on_host():
        x = DeviceArray.of(x)
    comm.all_reduce(x, "max", x)
    said, last = "nothing failed", comm.rank == comm.size - 1
    if comm.rank == LATE or last:
        until((failed if comm.rank == LATE else called).exists)
    try:
        if comm.rank == 0:
            once_inside(comm, called.touch)
        comm.all_reduce(x, "max", x, timeout=1 if last else None)
    except isthmus.Error as error:
        said = str(error)
    failed.touch()
    comm.abort("seen")
    comm.destroy()  # before x is freed: for that the device would wait for a call of HCCL's to which nobody comes
    return said


@pytest.mark.parametrize("fleet", ["nvidia:2,cpu:1", "amd:2,cpu:1", "ascend:2,cpu:1"])
def test_a_rank_that_is_missing_inside_an_island_is_named_by_those_outside(tmp_path: Path, fleet: str) -> None:
    for said in run_fleet(fleet, called_by_all_but_one, str(tmp_path), env={"ISTHMUS_HEARTBEAT_MS": "5000"}):
        assert f"rank {LATE} (" in said and "has not called it" in said, said


@pytest.mark.product(8)
@pytest.mark.parametrize(("sent", "expected"), [(10, 11), (300_000, 5), (0, 7), (70_000, 0)])
@pytest.mark.parametrize("fleet", ["nvidia:3", "amd:2,cpu:1", "ascend:3", "ascend:2,cpu:1"])
def test_counts_that_two_ranks_of_an_island_differ_in_are_named_before_its_library_is_given_them(
    fleet: str, sent: int, expected: int
) -> None:
    """The simulated libraries end a process that gives them such counts."""

    def body(comm: isthmus.Comm) -> tuple[str, float]:
        def blocks(counts: list[int]) -> Any:
            x: Any = np.arange(sum(counts), dtype=np.float32)
            return x if on_host() else DeviceArray.of(x)

        give, take = [40_000] * comm.size, [40_000] * comm.size
        comm.all_to_all_v(blocks(give), give, take, out=blocks(take))
        if comm.rank == 0:
            give[1] = sent
        if comm.rank == 1:
            take[0] = expected
        x, out, said, begun = blocks(give), blocks(take), "nothing failed", time.monotonic()
        try:
            comm.barrier()  # who is late is told of it here
            comm.all_to_all_v(x, give, take, out=out)
        except isthmus.MismatchError as error:
            said = str(error)
        comm.destroy()
        del x, out
        return said, time.monotonic() - begun

    for said, took in run_fleet(fleet, body):
        assert "all_to_all_v" in said and "rank 0 (" in said, said
        assert f"sends {sent} elements to rank 1, which expects {expected}" in said, said
        assert took < SOON, took
