"""Parts of a communicator that cannot be made, or are late, are no affair of the other parts and of the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from jobs import DEADLINE, Me, Zygote, job, results
from patience import SOON, patient

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
from devices import DeviceArray, run_fleet
from events import inside_a_call, until, until_asleep

ENV = {"ISTHMUS_TIMEOUT": str(DEADLINE)}


def on_host() -> bool:
    return os.environ.get("ISTHMUS_DEVICE", "host") == "host"


def total(comm: isthmus.Comm) -> float:
    """The sum of the ranks' numbers, from 1, by an operation that goes in chunks."""
    x: Any = np.full(300_000, comm.rank + 1, np.float32)
    there = x if on_host() else DeviceArray.of(x)
    comm.all_reduce(there, "sum", there)
    return float((x if on_host() else there.get())[-1])


def outcome(comm: isthmus.Comm, color: int, key: int = 0) -> tuple[str, float, float | None]:
    """What the split said, how long it took, and the sum of the part."""
    begun = time.monotonic()
    try:
        part = comm.split(color, key)
    except isthmus.Error as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begun, None
    took = time.monotonic() - begun
    return "made" if part else "left out", took, total(part) if part else None


def full() -> list[isthmus.Comm]:
    """Communicators that leave this process no room for one more."""
    held: list[isthmus.Comm] = []
    for bytes in ("65536", "8192", "0"):
        try:
            while True:
                held.append(isthmus.init(0, 1, name="full", settings={"EAGER_BYTES": bytes}))
        except isthmus.Error:
            continue
    return held


@pytest.mark.parametrize(
    ("colors", "full_ranks"),
    [
        ([0, 1, 0, 1, 0, -1], [0]),  # the first of its color
        ([0, 1, 0, 1, 0, -1], [2]),
        ([0, 1, 0, 1], [1, 3]),  # all of one color
        ([0, 1, 1, 1], [0]),  # a color of one rank
    ],
    ids=["first", "another", "all", "alone"],
)
def test_a_part_that_one_rank_cannot_make_fails_alone_and_at_once(
    zygote: Zygote, shape: str, colors: list[int], full_ranks: list[int]
) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        held = full() if me.rank in full_ranks else []
        said = outcome(comm, colors[me.rank])
        sum_of_all = total(comm)
        for one in held:
            one.destroy()
        return said, sum_of_all, outcome(comm, colors[me.rank])

    failed = {colors[rank] for rank in full_ranks}
    with job(zygote, len(colors), body, shape) as ranks:
        for rank, ((said, took, part), sum_of_all, again) in enumerate(results(ranks)):
            color = colors[rank]
            mates = [r for r, c in enumerate(colors) if c == color]
            whole = None if color < 0 else len(mates) * (len(mates) + 1) / 2
            assert took < SOON, (rank, said, took)
            if color in failed:
                first = next(place for place, r in enumerate(mates) if r in full_ranks)
                assert said.startswith(f"ResourceError: init of 'job/split' on rank {first}: "), said
                assert "(mailboxes) are in use" in said, said
            else:
                assert (said, part) == ("left out" if color < 0 else "made", whole)
            assert sum_of_all == len(colors) * (len(colors) + 1) / 2
            assert (again[0], again[2]) == ("left out" if color < 0 else "made", whole)


def test_a_part_of_a_part_that_fails_leaves_both_above_it(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        part = comm.split(me.rank // 4)
        assert part is not None
        held = full() if me.rank == 6 else []
        said, took, _ = outcome(part, part.rank % 2)
        sums = total(part), total(comm)
        assert len(held) != 1
        return said, took, sums

    with job(zygote, 8, body, shape) as ranks:
        for rank, (said, took, sums) in enumerate(results(ranks)):
            assert took < SOON and sums == (10.0, 36.0)
            if rank in (4, 6):
                assert said.startswith("ResourceError: init of 'job/split/split' on rank 1: "), said
            else:
                assert said == "made"


def test_operations_of_the_parent_that_are_under_way_end_well(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(name="job")
        held = full() if me.rank == 3 else []
        arrays = [np.full(1_000_000, comm.rank + 1.0, np.float32) for _ in range(4)]
        works = [comm.all_reduce(x, async_op=True) for x in arrays]
        said, took, _ = outcome(comm, me.rank % 2)
        for work in works:
            work.wait()
        assert len(held) != 1
        return said, took, [float(x[-1]) for x in arrays], total(comm)

    with job(zygote, 4, body, shape) as ranks:
        for rank, (said, took, sums, after) in enumerate(results(ranks)):
            assert took < SOON and sums == [10.0] * 4 and after == 10.0
            assert said.startswith("ResourceError: init of 'job/split' on rank 1: ") if rank % 2 else said == "made"


VENDOR_OF = {"nvidia": "NVIDIA driver: cuDeviceGetName failed", "amd": "AMD runtime: hipDeviceGetName failed"}


@pytest.mark.parametrize(
    ("fleet", "colors", "faults", "words"),
    [
        ("nvidia:2,amd:2,cpu:2", [0, 0, 1, 1, 2, 2], {"1:FAIL": "cuDeviceGetName:2:999"}, (0, 1, VENDOR_OF["nvidia"])),
        ("nvidia:2,amd:2,cpu:2", [0, 0, 1, 1, 2, -1], {"2:FAIL": "hipDeviceGetName:2:999"}, (1, 0, VENDOR_OF["amd"])),
        ("nvidia:2,amd:2,cpu:2", [0, 1, 0, 1, 0, 1], {"2:FAIL": "hipDeviceGetName:2:999"}, (0, 1, VENDOR_OF["amd"])),
        ("nvidia:2,amd:2,cpu:2", [0, 0, 1, 1, 1, 1], {"FAIL": "cuDeviceGetName:2:999"}, (0, 0, VENDOR_OF["nvidia"])),
        ("nvidia:2,cpu:2", [0, 0, 1, 1], {"1:FAIL": "ncclCommInitRankConfig:2:3"}, (0, 1, "nccl init: internal error")),
        ("amd:2,cpu:2", [1, 1, 0, 0], {"0:FAIL": "ncclCommInitRankConfig:2:3"}, (1, 0, "rccl init: internal error")),
        ("ascend:2,cpu:2", [0, 0, 0, 1], {"1:FAIL": "HcclCommInitRootInfo:2:11"}, (0, 1, "hccl init: connection failed")),
    ],
    ids=["nvidia", "amd", "mixed", "all of a color", "nccl", "rccl", "hccl"],
)
@pytest.mark.parametrize("bridge", ["shm", "tcp"])
def test_a_device_that_fails_to_open_in_one_color_fails_that_color_alone_and_at_once(
    fleet: str, colors: list[int], faults: dict[str, str], words: tuple[int, int, str], bridge: str
) -> None:
    def body(comm: isthmus.Comm, colors: list[int]) -> Any:
        said = outcome(comm, colors[comm.rank])
        sum_of_all = total(comm)
        return said, sum_of_all, outcome(comm, colors[comm.rank])

    results = run_fleet(fleet, body, colors, switches=faults, env=ENV, bridge=bridge)
    failed, place, text = words
    for rank, ((said, took, part), sum_of_all, again) in enumerate(results):
        color, size = colors[rank], colors.count(colors[rank])
        whole = None if color < 0 else size * (size + 1) / 2
        assert took < SOON, (rank, said, took)
        if color == failed:
            assert f"init of 'world/split' on rank {place}: " in said and text in said, said
        else:
            assert (said, part) == ("left out" if color < 0 else "made", whole)
        assert sum_of_all == len(colors) * (len(colors) + 1) / 2
        assert (again[0], again[2]) == ("left out" if color < 0 else "made", whole)


CALL = "ncclCommInitRankConfig"
HELD = {"1:SLOW": f"{CALL}:2:600000"}  # rank 1 is inside its library for ever, once it makes a part
PATIENT = {"ISTHMUS_TIMEOUT": "600"}


def ends_inside(ready: Callable[[], bool]) -> None:
    """A thread that ends this process, once it is inside the library and `ready`."""
    calls = ctypes.CDLL("librehearsal.so").rehearsal_calls
    calls.restype = ctypes.c_ulong

    def body() -> None:
        until(lambda: calls(CALL.encode()) == 2)
        until(ready)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=body, daemon=True).start()


def done(folder: str, *ranks: int) -> Callable[[], bool]:
    return lambda: all((Path(folder) / f"done.{rank}").exists() for rank in ranks)


def test_nobody_waits_for_the_ranks_of_another_color_and_one_that_ends_is_named(tmp_path: Path) -> None:
    """Rank 1 ends when the other colors have what they came for."""

    def body(comm: isthmus.Comm, folder: str) -> tuple[str, float, float | None]:
        if comm.rank == 1:
            ends_inside(done(folder, 3, 4, 5))
        said = outcome(comm, [0, 0, 0, 1, 1, -1][comm.rank])
        (Path(folder) / f"done.{comm.rank}").touch()
        return said

    said = run_fleet("nvidia:2,cpu:4", body, str(tmp_path), switches=HELD, env=PATIENT, expect={1: -9})
    assert [one[0] for one in said[3:]] == ["made", "made", "left out"], said
    for one in (said[0], said[2]):
        assert "PeerLostError" in one[0] and "rank 1" in one[0], one


def test_one_that_is_interrupted_tells_the_others_of_its_color(tmp_path: Path) -> None:
    """Rank 2 has waited long enough for rank 1, and rank 3 does not wait for rank 2."""

    def body(comm: isthmus.Comm, folder: str) -> str:
        def interrupt() -> None:
            until(done(folder, 4))
            until(lambda: not inside_a_call(comm))  # it knows all colors
            until_asleep(threading.main_thread())
            os.kill(os.getpid(), signal.SIGINT)

        if comm.rank == 1:
            ends_inside(done(folder, 2, 3))
        if comm.rank == 2:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Thread(target=interrupt, daemon=True).start()
        try:
            said = outcome(comm, [0, 0, 0, 0, 1][comm.rank])[0]
        except KeyboardInterrupt:
            said = "interrupted"
        if comm.rank == 1:  # rank 0 may have ended first, and rank 1's library with it
            os.kill(os.getpid(), signal.SIGKILL)
        (Path(folder) / f"done.{comm.rank}").touch()
        return said

    said = run_fleet("nvidia:2,cpu:3", body, str(tmp_path), switches=HELD, env=PATIENT, expect={1: -9})
    assert said[2] == "interrupted" and said[4] == "made", said
    assert "InterruptedError: split #" in said[3] and "rank 2 has given up" in said[3], said[3]


def test_a_parent_that_is_aborted_ends_the_making_of_its_parts(tmp_path: Path) -> None:
    def body(comm: isthmus.Comm, folder: str) -> str:
        if comm.rank == 1:
            ends_inside(done(folder, 2, 3, 4))
        said = outcome(comm, [0, 0, 0, 0, 1][comm.rank])[0]
        if comm.rank == 1:  # rank 0 may have ended first, and rank 1's library with it
            os.kill(os.getpid(), signal.SIGKILL)
        if comm.rank == 4:
            comm.abort("enough")
        (Path(folder) / f"done.{comm.rank}").touch()
        return said

    said = run_fleet("nvidia:2,cpu:3", body, str(tmp_path), switches=HELD, env=PATIENT, expect={1: -9})
    assert said[4] == "made", said
    for rank in (2, 3):
        assert "AbortedError" in said[rank] and "enough" in said[rank], said[rank]


def test_a_split_behind_another_threads_split_ends_at_its_deadline_and_by_ctrl_c(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init(timeout=10 * SOON)
        if me.rank == 1:
            me.hear()
            return None
        first: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: first.append(me.caught(lambda: comm.split(0))))
        thread.start()
        until_asleep(thread)
        comm.set_timeout(0.3)
        late = me.caught(lambda: comm.split(0))
        comm.set_timeout(10 * SOON)
        interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        stopped = me.caught(lambda: (interrupt.start(), comm.split(0)))  # wherever in it the signal comes
        comm.abort()
        thread.join()
        return late, stopped, first[0]

    with job(zygote, 2, body, shape) as ranks:
        late, stopped, first = ranks[0].result()
        assert late["kind"] == "TimeoutError" and "another thread of this rank" in late["text"], late
        assert stopped["kind"] == "KeyboardInterrupt", stopped
        assert late["took"] < SOON and stopped["took"] < SOON, (late, stopped)
        assert first["kind"] == "AbortedError", first
        ranks[1].tell("end")
        ranks[1].result()


def test_the_wait_for_another_threads_split_takes_nothing_from_the_deadline_of_what_comes_behind_it(zygote: Zygote) -> None:
    limit = patient(12)

    def body(me: Me) -> Any:
        comm = me.init(timeout=limit)
        x = np.zeros(1, np.float32)
        comm.all_reduce(x)
        if me.rank == 1:  # one split is 0.6 of the limit late, the other, behind it, 1.2
            for _ in range(2):
                time.sleep(0.6 * limit)
                comm.split(0).destroy()
            return []
        said: list[str] = []

        def part() -> None:
            try:
                comm.split(0).destroy()
            except isthmus.Error as error:
                said.append(str(error))

        threads = [threading.Thread(target=part) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return said

    with job(zygote, 2, body) as ranks:
        for rank in ranks:
            assert rank.result() == []
