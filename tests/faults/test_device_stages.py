"""A call that fails, hangs or is slow at each stage of the pipeline, on all device ranks of a rehearsed fleet or on one."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import SOON, patient

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, expect_ways, left_over, on_host, run_fleet, vendor

# What fails, by vendor and stage: the operation, the call, and how the error begins and ends. Of a reduction to the
# host's rank the devices' ranks only copy out, but for what their library moves; of a broadcast from it they only copy
# in. The devices of Ascend have no gates: a function that they call on the host tells of what they have done, and that
# is their launch. NVIDIA's do the same where their streams know no values. (AMD's always do.)
_DRIVERS = {"nvidia": "NVIDIA driver: ", "amd": "AMD runtime: ", "ascend": "Ascend ACL: "}
_STAGES = {
    "nvidia": {
        "copy out": ("reduce", "cuMemcpyAsync:12:700", "cuMemcpyAsync failed with CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        "copy in": ("broadcast", "cuMemcpyAsync:12:700", "cuMemcpyAsync failed with CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        "event record": ("all_reduce", "cuEventRecord:5:999", "cuEventRecord failed with CUDA_ERROR_UNKNOWN (999"),
        "event wait": ("all_reduce", "cuStreamWaitEvent:5:999", "cuStreamWaitEvent failed with CUDA_ERROR_UNKNOWN (999"),
        "gate wait": (
            "all_reduce",
            "cuStreamWaitValue64:15:999",
            "cuStreamWaitValue64_v2 failed with CUDA_ERROR_UNKNOWN (999",
        ),
        "gate write": (
            "all_reduce",
            "cuStreamWriteValue64:15:999",
            "cuStreamWriteValue64_v2 failed with CUDA_ERROR_UNKNOWN (999",
        ),
        "library": ("all_reduce", "ncclReduceScatter:5:3", "nccl reduce_scatter: internal error.*(3)"),
        "launch": ("all_reduce", "cuLaunchHostFunc:9:999", "cuLaunchHostFunc failed with CUDA_ERROR_UNKNOWN (999"),
    },
    "amd": {
        "copy out": ("reduce", "hipMemcpyAsync:12:700", "hipMemcpyAsync failed with hipErrorIllegalAddress (700"),
        "copy in": ("broadcast", "hipMemcpyAsync:12:700", "hipMemcpyAsync failed with hipErrorIllegalAddress (700"),
        "event record": ("all_reduce", "hipEventRecord:5:999", "hipEventRecord failed with hipErrorUnknown (999"),
        "event wait": ("all_reduce", "hipStreamWaitEvent:5:999", "hipStreamWaitEvent failed with hipErrorUnknown (999"),
        "gate wait": ("all_reduce", "hipStreamWaitValue64:15:999", "hipStreamWaitValue64 failed with hipErrorUnknown (999"),
        "gate write": (
            "all_reduce",
            "hipStreamWriteValue64:15:999",
            "hipStreamWriteValue64 failed with hipErrorUnknown (999",
        ),
        "library": ("all_reduce", "ncclReduceScatter:5:3", "rccl reduce_scatter: internal error.*(3)"),
    },
    "ascend": {
        "copy out": ("reduce", "aclrtMemcpyAsync:12:507015", "aclrtMemcpyAsync failed with .*507015"),
        "copy in": ("broadcast", "aclrtMemcpyAsync:12:507015", "aclrtMemcpyAsync failed with .*507015"),
        "event record": ("all_reduce", "aclrtRecordEvent:5:507015", "aclrtRecordEvent failed with .*507015"),
        "event wait": ("all_reduce", "aclrtStreamWaitEvent:5:507015", "aclrtStreamWaitEvent failed with .*507015"),
        "library": ("all_reduce", "HcclReduceScatter:5:4", "hccl reduce_scatter: .*4"),
        "launch": ("all_reduce", "aclrtLaunchHostFunc:9:507015", "aclrtLaunchHostFunc failed with .*507015"),
    },
}


def three_operations(comm: isthmus.Comm, operation: str) -> tuple[str, float, float]:
    """Of 19 or 20 chunks each, and a barrier: what went wrong, how long it took, and the communicator's end."""
    host = comm.size - 1
    x: Any = np.ones(160_000, np.float32)
    stream = None
    if not on_host():
        x, stream = DeviceArray.of(x), vendor().stream()
    said, begun = "nothing failed", time.monotonic()
    try:
        for _ in range(3):
            if operation == "reduce":
                comm.reduce(x, host, "max", stream=stream)
            elif operation == "broadcast":
                comm.broadcast(x, host, stream=stream)
            else:
                comm.all_reduce(x, "max", x, stream=stream)
        comm.barrier()
    except isthmus.Error as error:
        said = str(error)
    took, begun = time.monotonic() - begun, time.monotonic()
    if said != "nothing failed":
        comm.abort("seen")
    comm.destroy()
    ended = time.monotonic() - begun
    if stream is not None:
        vendor().end_stream(stream)
    return said, took, ended


def slots() -> tuple[int, int]:
    """Bytes in use, and rings that are lost, once all have left what was destroyed here."""
    until = time.monotonic() + SOON
    while (stats := isthmus.context_stats())["leaving"] and time.monotonic() < until:
        time.sleep(0.01)
    assert not stats["leaving"], stats
    return stats["staging_used"], stats["rings_lost"]


def fails_and_then_works(operation: str) -> tuple[str, float, float, str, int, int, dict[str, int]]:
    other = isthmus.init(name="other")  # so that the pool of slots outlives the one that fails
    comm = isthmus.init()
    expect_ways(comm.topology())
    assert comm.topology()["bridge"] == os.environ["ISTHMUS_BRIDGE"]
    said, took, ended = three_operations(comm, operation)
    before, lost = slots()
    if not on_host():
        ctypes.CDLL("librehearsal.so").rehearsal_forgive()
    said_then, _, _ = three_operations(isthmus.init(name="after"), operation)
    after, _ = slots()
    other.barrier()  # what is left at different times is left behind
    other.destroy()
    return said, took, ended, said_then, after - before, lost, {} if on_host() else left_over(communicators=2)


def ends_on_all_ranks(maker: str, stage: str, bridge: str, switches: dict[str, str], failing: str) -> None:
    """An operation of that stage, whose call fails on the rank that the pattern `failing` describes: all ranks are told so.

    Then abort and destroy succeed, nothing is left, and a communicator after it works, in the slots of the one before.
    """
    operation, _, words = _STAGES[maker][stage]
    results = run_fleet(
        f"{maker}:2,cpu:1",
        fails_and_then_works,
        operation,
        init=False,
        bridge=bridge,
        switches=switches,
        env={"ISTHMUS_CHUNK_BYTES": "4096"},
    )
    # The error of the rank whose call failed is the end of everybody's.
    chunk = r"(, chunk \d+ of (?:19|20))?" if stage.startswith("event") else r", chunk \d+ of (?:19|20)"
    # Its own operation is the same on the others, who are told how it went there.
    elsewhere = r"(on rank \d of 'world' over .*: )?"
    failed = rf"{operation} \(.*\) {elsewhere}on rank {failing}( of 'world')? over \w+ and [a-z ]+{chunk}: "
    failed += "" if stage == "library" else _DRIVERS[maker]
    expected = failed + ".*".join(map(re.escape, words.split(".*")))
    for said, took, ended, said_then, more, lost, left in results:
        assert re.search(expected, said), said
        assert took < SOON and ended < SOON, (took, ended)
        assert said_then == "nothing failed", said_then
        assert (more, lost) == (0, 0), f"{more}, {lost}, {left}"
        assert not any(left.values()), f"{left}"


@pytest.mark.product(12)
@pytest.mark.parametrize("bridge", ["shm", "tcp"])
@pytest.mark.parametrize(("maker", "stage"), [(maker, stage) for maker, stages in _STAGES.items() for stage in stages])
def test_every_stage_of_every_vendor_over_every_link_fails_on_all_ranks_with_vendor_call_and_code(
    maker: str, stage: str, bridge: str
) -> None:
    """In the middle of an operation of 19 or 20 chunks, on both ranks of the island; events order whole operations, too."""
    switches = {"FAIL": _STAGES[maker][stage][1]}
    if stage == "launch" and maker == "nvidia":
        switches["CUDA_NO_STREAM_VALUES"] = "1"
    ends_on_all_ranks(maker, stage, bridge, switches, failing="[01]")


@pytest.mark.parametrize(
    ("maker", "stage", "bridge"),
    [
        ("nvidia", "copy in", "shm"),
        ("nvidia", "library", "tcp"),
        ("amd", "copy out", "tcp"),
        ("amd", "library", "shm"),
        ("ascend", "copy in", "shm"),
        ("ascend", "library", "tcp"),
    ],
)
def test_one_rank_that_fails_is_named_to_its_neighbour_inside_the_library_and_leaves_nothing_there(
    maker: str, stage: str, bridge: str
) -> None:
    """All calls of the other rank of the island are well; it stands in one of the library's, to which nobody else comes.

    The short queue of the rank that fails makes it wait for its device: when it fails the island has come as far as that.
    Ascend's ranks wait at every exchange anyway, and what the neighbour's stream holds then is stopped.
    """
    switches = {"1:FAIL": _STAGES[maker][stage][1]}
    if maker != "ascend":
        switches["1:QUEUE_DEPTH"] = "4"
    ends_on_all_ranks(maker, stage, bridge, switches, failing="1")


@pytest.mark.product(6)
@pytest.mark.parametrize(
    ("fleet", "fault", "first", "words"),
    [
        ("nvidia:2,cpu:1", "cuMemcpyAsync:24", 2, r"rank 1 \(pid \d+ on [^)]+\) is still inside it and waits for nobody"),
        ("nvidia:2,cpu:1", "cuMemcpyAsync:24", 0, r"what was given to nccl .*; rank 1 \(.*waits for its own device"),
        ("amd:2,cpu:1", "hipMemcpyAsync:24", 1, r"what was given to rccl has not ended: .*a copy of chunk \d+ of (?:19|20)"),
        ("ascend:2,cpu:1", "aclrtMemcpyAsync:24", 2, r"rank 1 \(pid \d+ on [^)]+\) is still inside it and waits for nobody"),
    ],
)
def test_a_copy_that_hangs_on_one_rank_is_a_timeout_that_names_that_rank_to_all(
    tmp_path: Path, fleet: str, fault: str, first: int, words: str
) -> None:
    """Its neighbour stands in the library, and the host's rank waits for its part of the slot.

    The deadline of rank `first` comes first, and what it says is everybody's error: the rank itself, its neighbour, or the
    one outside.
    """

    deadline = patient(8)

    def body(comm: isthmus.Comm, folder: str) -> None:
        x: Any = np.ones(160_000, np.float32)
        if not on_host():
            x = DeviceArray.of(x)
        comm.barrier()  # the deadlines run from nearly the same time
        said, begun = "nothing failed", time.monotonic()
        try:
            comm.all_reduce(x, "max", x, timeout=deadline if comm.rank == first else None)
        except isthmus.TimeoutError as error:
            said = str(error)
        took, begun = time.monotonic() - begun, time.monotonic()
        comm.abort("seen")
        aborted, begun = time.monotonic() - begun, time.monotonic()
        comm.destroy()
        answer = json.dumps([said, took, aborted, time.monotonic() - begun])
        (Path(folder) / f"said.{os.environ['ISTHMUS_RANK']}").write_text(answer)
        os._exit(0)

    # With rare heartbeats no rank that is asked is silent for several of them.
    switches, env = {"1:HANG": fault}, {"ISTHMUS_CHUNK_BYTES": "4096", "ISTHMUS_HEARTBEAT_MS": "5000"}
    run_fleet(fleet, body, str(tmp_path), switches=switches, env=env)
    for rank in range(3):
        said, took, aborted, destroyed = json.loads((tmp_path / f"said.{rank}").read_text())
        assert re.search(rf"on rank {first}( of 'world')? over .*did not finish within {deadline:g} s: {words}", said), said
        assert took < deadline + SOON and aborted < SOON and destroyed < SOON, (took, aborted, destroyed)


@pytest.mark.parametrize(
    ("fleet", "fault"),
    [
        ("nvidia:2,cpu:1", "cuMemcpyAsync:24:400"),
        ("amd:2,cpu:1", "ncclReduceScatter:9:400"),
        ("ascend:2,cpu:1", "aclrtMemcpyAsync:24:400"),
    ],
)
def test_one_rank_that_is_slow_is_waited_for_and_all_get_what_numpy_gives(fleet: str, fault: str) -> None:
    """The others come to the end of the slots meanwhile, and may not fill again what the slow one has yet to read."""

    def wrong_results(comm: isthmus.Comm) -> list[str]:
        device, world = not on_host(), comm.size
        base = np.arange(160_000, dtype=np.float32) % 1009
        of_rank = np.stack([base + rank for rank in range(world)])
        wrong = []
        x: Any = of_rank[comm.rank].copy()
        y: Any = np.zeros((world, x.size), np.float32)
        if device:
            x, y = DeviceArray.of(x), DeviceArray.of(y)

        def begin() -> None:
            if device:
                x.set(of_rank[comm.rank])
            else:
                x[...] = of_rank[comm.rank]

        def check(name: str, result: Any, expected: Any) -> None:
            if not ((result.get() if device else result) == expected).all():
                wrong.append(name)

        for turn in range(3):
            begin()
            comm.all_reduce(x, "sum", x)
            check(f"all_reduce {turn}", x, of_rank.sum(axis=0))
            begin()
            comm.broadcast(x, turn)
            check(f"broadcast {turn}", x, of_rank[turn])
            begin()
            comm.all_gather(x, y)
            check(f"all_gather {turn}", y, of_rank)
        return wrong

    def body(comm: isthmus.Comm) -> tuple[list[str], float, dict[str, int]]:
        begun = time.monotonic()
        wrong = wrong_results(comm)
        took = time.monotonic() - begun
        comm.destroy()
        return wrong, took, {} if on_host() else left_over()

    env = {"ISTHMUS_CHUNK_BYTES": "4096"}
    for wrong, took, left in run_fleet(fleet, body, switches={"1:SLOW": fault}, env=env):
        assert not wrong and not any(left.values()), (wrong, left)
        assert took > 0.4, "nobody was slow"
