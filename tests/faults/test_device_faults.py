"""Device ranks of rehearsed fleets when a driver or a library fails, hangs or is not there."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, expect_ways, on_host, run_fleet, vendor

KINDS = ("stream", "event", "communicator", "allocation", "registration")
# What a process keeps of its devices, however many communicators it had: the pages with the words that streams wait for.
KEPT = {"cuda": {"registration": 1}, "hip": {"registration": 1, "allocation": 2}, "acl": {}}


def left_over() -> dict[str, int]:
    """What the process has on its device beyond what it keeps. The last of it goes when the others have left, too."""
    engine = ctypes.CDLL("librehearsal.so")
    engine.rehearsal_live.restype = ctypes.c_size_t
    kept = KEPT[os.environ["ISTHMUS_DEVICE"].split(":")[0]]
    until = time.monotonic() + 5
    while True:
        left = {kind: int(engine.rehearsal_live(kind.encode())) - kept.get(kind, 0) for kind in KINDS}
        if not any(left.values()) or time.monotonic() > until:
            return left
        time.sleep(0.01)


def until_it_fails(comm: isthmus.Comm) -> tuple[str, float, dict[str, int]]:
    """Operations of all stages, until one ends in an error: what it said, how long it took, what is left after destroy."""
    device = not on_host()
    n = 160_000  # whole chunks of an island of two
    x: Any = np.ones(n, np.float32)
    y: Any = np.ones(n * comm.size, np.float32)
    if device:
        x, y = DeviceArray.of(x), DeviceArray.of(y)
    begun = time.monotonic()
    said = "nothing failed"
    try:
        for _ in range(40):
            begun = time.monotonic()
            comm.all_reduce(x, "max", x)
            comm.broadcast(x, 0)
            comm.all_gather(x, y)
            comm.reduce_scatter(y, "max", x)
    except isthmus.Error as error:
        said = str(error)
        comm.abort("seen")
    took = time.monotonic() - begun
    comm.destroy()
    del x, y
    return said, took, left_over() if device else {}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("cuMemcpyAsync:1:700", "cuMemcpyAsync failed with CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        ("cuMemcpyAsync:23:700", "cuMemcpyAsync failed with CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        ("cuStreamWaitValue64:9:999", "cuStreamWaitValue64_v2 failed with CUDA_ERROR_UNKNOWN (999"),
        ("cuStreamWriteValue64:12:999", "cuStreamWriteValue64_v2 failed with"),
        ("ncclReduceScatter:2:3", "nccl reduce_scatter: internal error"),
        ("ncclBroadcast:3:1", "nccl broadcast: unhandled cuda error"),
        ("ncclAllGather:1:5", "nccl all_gather: invalid usage"),
    ],
)
def test_a_failing_call_in_the_middle_ends_the_operation_on_all_ranks_with_its_name_and_code(fault: str, words: str) -> None:
    """Every device rank fails at the same call; the host rank hears it from one of them."""
    ended_everywhere("nvidia:2,cpu:1", fault, words)


def ended_everywhere(fleet: str, fault: str, words: str) -> None:
    for said, took, left in run_fleet(fleet, until_it_fails, switches={"FAIL": fault}):
        assert words in said and "on rank " in said, said
        assert took < 15
        assert not any(left.values()), left


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("hipMemcpyAsync:23:700", "hipMemcpyAsync failed with hipErrorIllegalAddress (700"),
        ("hipStreamWaitValue64:9:999", "hipStreamWaitValue64 failed with hipErrorUnknown (999"),
        ("hipStreamWriteValue64:12:999", "AMD runtime: hipStreamWriteValue64 failed with"),
        ("ncclReduceScatter:2:3", "rccl reduce_scatter: internal error"),
    ],
)
def test_the_same_where_amds_runtime_fails(fault: str, words: str) -> None:
    ended_everywhere("amd:2,cpu:1", fault, words)


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
            "cuStreamWaitValue64:20:999",
            "cuStreamWaitValue64_v2 failed with CUDA_ERROR_UNKNOWN (999",
        ),
        "gate write": (
            "all_reduce",
            "cuStreamWriteValue64:20:999",
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
        "gate wait": ("all_reduce", "hipStreamWaitValue64:20:999", "hipStreamWaitValue64 failed with hipErrorUnknown (999"),
        "gate write": (
            "all_reduce",
            "hipStreamWriteValue64:20:999",
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


@pytest.mark.parametrize("bridge", ["shm", "tcp"])
@pytest.mark.parametrize(("maker", "stage"), [(maker, stage) for maker, stages in _STAGES.items() for stage in stages])
def test_every_stage_of_every_vendor_over_every_link_fails_on_all_ranks_with_vendor_call_and_code(
    maker: str, stage: str, bridge: str
) -> None:
    """In the middle of an operation of 20 chunks; events order whole operations, too. Then abort and destroy succeed."""

    def body(comm: isthmus.Comm, operation: str) -> tuple[str, float, float]:
        expect_ways(comm.topology())
        assert comm.topology()["bridge"] == os.environ["ISTHMUS_BRIDGE"]
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
        comm.abort("seen")
        comm.destroy()
        ended = time.monotonic() - begun
        if stream is not None:
            vendor().end_stream(stream)
        return said, took, ended

    operation, fault, words = _STAGES[maker][stage]
    switches = {"FAIL": fault}
    if stage == "launch" and maker == "nvidia":
        switches["CUDA_NO_STREAM_VALUES"] = "1"
    results = run_fleet(
        f"{maker}:2,cpu:1", body, operation, bridge=bridge, switches=switches, env={"ISTHMUS_CHUNK_BYTES": "4096"}
    )
    # The error of the rank whose call failed is the end of everybody's.
    chunk = r"(, chunk \d+ of 20)?" if stage.startswith("event") else r", chunk \d+ of 20"
    failed = rf"{operation} \(.*\) on rank [01] of 'world' over \w+ and [a-z ]+{chunk}: "
    failed += "" if stage == "library" else _DRIVERS[maker]
    expected = failed + ".*".join(map(re.escape, words.split(".*")))
    for said, took, ended in results:
        assert re.search(expected, said), said
        assert took < 15 and ended < 5, (took, ended)


@pytest.mark.parametrize("fault", ["cuMemcpyAsync", "cuStreamWaitValue64", "cuStreamWriteValue64", "cuStreamWaitEvent"])
@pytest.mark.parametrize("nth", [1, 2, 7])
def test_a_message_on_a_stream_whose_copy_cannot_be_submitted_ends_everywhere(fault: str, nth: int) -> None:
    """Its receive has been posted by then, and its message may be there."""

    def body(comm: isthmus.Comm) -> tuple[str, float]:
        x: Any = np.full(50_000, float(comm.rank), np.float32)
        stream = None
        if not on_host():
            x, stream = DeviceArray.of(x), vendor().stream()
        said, begun = "nothing failed", time.monotonic()
        try:
            for _ in range(10):
                if comm.rank == 0:
                    comm.recv(x, 1, stream=stream)
                else:
                    comm.send(x, 0)
            comm.barrier()
        except isthmus.Error as error:
            said = str(error)
        took = time.monotonic() - begun
        comm.abort("seen")
        comm.destroy()
        return said, took

    for said, took in run_fleet("nvidia:1,cpu:1", body, switches={"FAIL": f"{fault}:{nth}:999"}):
        assert fault in said and took < 10, said


@pytest.mark.parametrize(
    ("fleet", "fault", "words"),
    [
        ("nvidia:2,cpu:1", "cuMemcpyAsync:9:700", "CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        ("nvidia:1,cpu:1", "cuMemcpyAsync:23:700", "CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        ("amd:1,cpu:1", "hipMemcpyAsync:9:700", "hipErrorIllegalAddress (700"),
        ("ascend:1,cpu:1", "aclrtMemcpyAsync:9:507015", "507015"),
    ],
)
def test_a_device_that_fails_at_its_work_is_told_of_long_before_the_deadline(fleet: str, fault: str, words: str) -> None:
    """All calls were well; what they asked for went wrong on the stream, and signals nothing any more."""
    for said, took, left in run_fleet(fleet, until_it_fails, switches={"FAIL_LATE": fault}, env={"ISTHMUS_TIMEOUT": "60"}):
        assert words in said and "rank " in said, said
        assert took < 30
        assert not any(left.values()), left


@pytest.mark.parametrize("fault", ["ncclReduceScatter:2", "ncclAllReduce:1", "ncclBroadcast:4"])
def test_a_library_that_hangs_is_a_timeout_and_can_be_left(fault: str) -> None:
    results = run_fleet(
        "nvidia:2,cpu:1",
        until_it_fails,
        switches={"HANG": fault},
        env={"ISTHMUS_TIMEOUT": "3", "ISTHMUS_EAGER_BYTES": "8192"},
    )
    for said, took, left in results:
        if fault.startswith("ncclAllReduce"):  # not part of a large all_reduce across a bridge
            assert said == "nothing failed"
            continue
        assert "rank " in said and ("deadline" in said or "timed out" in said or "within" in said or "s ago" in said), said
        assert took < 15
        assert left.get("communicator", 0) == 0


@pytest.mark.parametrize(
    ("fleet", "switch", "fault", "words"),
    [
        ("ascend:2,cpu:1", "FAIL", "aclrtMemcpyAsync:23:507015", "aclrtMemcpyAsync failed with "),
        ("ascend:2,cpu:1", "FAIL", "HcclReduceScatter:2:4", "hccl reduce_scatter: "),
        ("ascend:2,cpu:1", "FAIL", "HcclAllGather:1:4", "hccl all_gather: "),
        ("amd:2,cpu:1", "FAIL", "ncclAllGather:1:5", "rccl all_gather: invalid usage"),
        ("amd:2,cpu:1", "FAIL_LATE", "hipMemcpyAsync:9:700", "hipErrorIllegalAddress (700"),
        ("ascend:2,cpu:1", "FAIL_LATE", "aclrtMemcpyAsync:9:507015", "507015"),
    ],
)
def test_the_same_of_every_vendors_copies_and_library(fleet: str, switch: str, fault: str, words: str) -> None:
    """At the call, and late: a call that was well, whose work fails on the stream. Nothing is left of either."""
    results = run_fleet(fleet, until_it_fails, switches={switch: fault}, env={"ISTHMUS_TIMEOUT": "30"})
    for said, took, left in results:
        assert words in said and "rank " in said, said
        if fault.split(":")[2].startswith("5070"):
            assert "507015" in said, said
        assert took < 25
        if fault.startswith("aclrtMemcpyAsync") and left:
            # HCCL cannot end a call to which its other rank never comes. What the queue behind it still points to stays.
            assert left["allocation"] in (0, 1)
            left["allocation"] = 0
        assert not any(left.values()), left


@pytest.mark.parametrize(
    ("fleet", "fault"),
    [
        ("nvidia:2,cpu:1", "cuMemcpyAsync:9:400"),
        ("amd:2,cpu:1", "hipMemcpyAsync:9:400"),
        ("ascend:2,cpu:1", "aclrtMemcpyAsync:9:400"),
        ("nvidia:2,amd:2", "ncclReduceScatter:2:400"),
        ("ascend:2,cpu:1", "HcclReduceScatter:2:400"),
    ],
)
def test_what_is_slow_is_waited_for(fleet: str, fault: str) -> None:
    for said, _, left in run_fleet(fleet, until_it_fails, switches={"SLOW": fault}, env={"ISTHMUS_TIMEOUT": "60"}):
        assert said == "nothing failed"
        assert not any(left.values()), left


@pytest.mark.parametrize(
    ("fleet", "fault", "frees"),
    [
        ("ascend:2,cpu:1", "HcclReduceScatter:2", False),
        ("nvidia:2,cpu:1", "cuMemcpyAsync:9", False),
        ("nvidia:2,cpu:1", "cuMemcpyAsync:9", True),
        ("amd:2,cpu:1", "hipMemcpyAsync:9", False),
        ("ascend:2,cpu:1", "aclrtMemcpyAsync:9", False),
    ],
)
def test_what_hangs_on_a_device_is_a_timeout_on_all_ranks_and_can_be_left(
    tmp_path: Path, fleet: str, fault: str, frees: bool
) -> None:
    """The device never comes out of it: memory that it may still touch is not freed, and the process leaves at once.

    Also where a thread of the program stands in the driver, with its lock, because it frees memory.
    """

    def body(comm: isthmus.Comm, folder: str) -> None:
        x: Any = np.ones(160_000, np.float32)
        y: Any = np.ones(160_000 * comm.size, np.float32)
        if not on_host():
            x, y = DeviceArray.of(x), DeviceArray.of(y)
            memory = vendor().allocate(4096)

            def free() -> None:
                time.sleep(1.5)
                vendor().here()
                vendor().free(memory)

            if frees:
                threading.Thread(target=free, daemon=True).start()
        said, begun = "nothing failed", time.monotonic()
        try:
            for _ in range(20):
                begun = time.monotonic()
                comm.all_reduce(x, "max", x)
                comm.broadcast(x, 0)
                comm.reduce_scatter(y, "max", x)
        except isthmus.Error as error:
            said = str(error)
        took, begun = time.monotonic() - begun, time.monotonic()
        comm.abort("seen")
        aborted, begun = time.monotonic() - begun, time.monotonic()
        comm.destroy()
        answer = json.dumps([said, took, aborted, time.monotonic() - begun])
        (Path(folder) / f"said.{os.environ['ISTHMUS_RANK']}").write_text(answer)
        os._exit(0)

    run_fleet(fleet, body, str(tmp_path), switches={"HANG": fault}, env={"ISTHMUS_TIMEOUT": "4"}, timeout=90)
    for rank in range(3):
        said, took, aborted, destroyed = json.loads((tmp_path / f"said.{rank}").read_text())
        assert "rank " in said and "within 4 s" in said, said
        assert took < 15 and aborted < 1 and destroyed < 15, (took, aborted, destroyed)


@pytest.mark.parametrize(
    ("fleet", "fault", "words"),
    [
        ("nvidia:2,cpu:1", "cuEventRecord:5:999", "cuEventRecord failed with CUDA_ERROR_UNKNOWN (999"),
        ("nvidia:2,cpu:1", "cuStreamWaitEvent:5:999", "cuStreamWaitEvent failed with CUDA_ERROR_UNKNOWN (999"),
        ("amd:2,cpu:1", "hipEventRecord:5:999", "hipEventRecord failed with hipErrorUnknown (999"),
        ("amd:2,cpu:1", "hipStreamWaitEvent:5:999", "hipStreamWaitEvent failed with hipErrorUnknown (999"),
        ("ascend:2,cpu:1", "aclrtRecordEvent:5:507015", "aclrtRecordEvent failed with "),
        ("ascend:2,cpu:1", "aclrtStreamWaitEvent:5:507015", "aclrtStreamWaitEvent failed with "),
    ],
)
def test_a_stream_that_cannot_be_ordered_ends_the_operation_on_all_ranks(fleet: str, fault: str, words: str) -> None:
    def body(comm: isthmus.Comm) -> tuple[str, float]:
        x: Any = np.ones(160_000, np.float32)
        stream = None
        if not on_host():
            x, stream = DeviceArray.of(x), vendor().stream()
        said, begun = "nothing failed", time.monotonic()
        try:
            for _ in range(20):
                begun = time.monotonic()
                comm.all_reduce(x, "max", x, stream=stream)
                comm.broadcast(x, 0, stream=stream)
            comm.barrier()
        except isthmus.Error as error:
            said = str(error)
            comm.abort("seen")
        took = time.monotonic() - begun
        comm.destroy()
        return said, took

    for said, took in run_fleet(fleet, body, switches={"FAIL": fault}):
        assert words in said and fault.split(":")[2] in said and "rank " in said, said
        assert took < 21


def test_a_killed_rank_of_the_island_is_named_by_all_others() -> None:
    def body(comm: isthmus.Comm) -> str:
        device = not on_host()
        x: Any = np.ones(150_000, np.float32)
        x = DeviceArray.of(x) if device else x
        try:
            for turn in range(100):
                comm.all_reduce(x, "max", x)
                if comm.rank == 1 and turn == 3:
                    os.kill(os.getpid(), 9)
        except isthmus.PeerLostError as error:
            return str(error)
        return "nothing was lost"

    for fleet in ("nvidia:3", "nvidia:2,cpu:1", "nvidia:1,cpu:1,nvidia:1"):
        first, killed, third = run_fleet(fleet, body, expect={1: -9})
        assert killed is None
        for said in (first, third):
            assert "rank 1" in said, (fleet, said)


def test_a_late_rank_is_named_while_the_others_wait_in_the_library() -> None:
    def body(comm: isthmus.Comm) -> str:
        device = not on_host()
        x: Any = np.ones(150_000, np.float32)
        x = DeviceArray.of(x) if device else x
        comm.all_reduce(x, "max", x)
        if comm.rank == 0:
            time.sleep(4)
        try:
            comm.all_reduce(x, "max", x, timeout=1.5)
        except isthmus.Error as error:
            return str(error)
        return "in time"

    for said in run_fleet("nvidia:2,cpu:1", body):
        assert "rank 0" in said, said


@pytest.mark.parametrize(
    ("env", "switches", "words"),
    [
        ({}, {"DEVICES": "0"}, "finds no device"),
        ({"ISTHMUS_DEVICE": "cuda:3"}, {}, "this process sees 1 device of that vendor (0 to 0)"),
        ({"ISTHMUS_DEVICE": "cuda:x"}, {}, "must be host, cuda, hip, acl, or one of these with :N"),
        (
            {"ISTHMUS_CCL": "nccl", "ISTHMUS_CCL_LIBRARY": "/nowhere/libnccl.so.2"},
            {},
            "/nowhere/libnccl.so.2 cannot be opened",
        ),
        ({"ISTHMUS_CCL": "oneccl"}, {}, "ISTHMUS_CCL=oneccl does not serve ranks on cuda:0"),
        ({}, {"FAIL": "ncclGetVersion:1:3"}, "does not tell its version"),
        ({}, {"PINNED": "4000000"}, "lower ISTHMUS_STAGING_BYTES"),
        ({}, {"FAIL": "ncclCommInitRankConfig:1:3"}, "nccl init: internal error"),
    ],
    ids=[
        "no device",
        "no such device",
        "no device's name",
        "no library",
        "another's library",
        "no version",
        "no memory to pin",
        "init fails",
    ],
)
def test_what_is_missing_is_said_in_one_sentence_by_every_rank(
    env: dict[str, str], switches: dict[str, str], words: str, fleet: str = "nvidia:2,cpu:1"
) -> None:
    def body(change: dict[str, str]) -> str:
        if not on_host():
            os.environ.update(change)
        try:
            with isthmus.init() as comm:
                return ",".join(group["ccl"] for group in comm.topology()["groups"])
        except isthmus.Error as error:
            return str(error)

    results = run_fleet(fleet, body, env, init=False, switches=switches)
    if words == "does not tell its version":  # auto: the ranks go on without it, and say so
        assert set(results) == {""}
        return
    for said in results:
        assert words in said and "\n" not in said.strip(), said


@pytest.mark.parametrize(
    ("env", "switches", "words"),
    [
        ({}, {"DEVICES": "0"}, "AMD's runtime library is here but finds no device"),
        ({"ISTHMUS_DEVICE": "cuda:0"}, {}, "NVIDIA's driver library (libcuda.so.1) was not found"),
        ({"ISTHMUS_CCL": "nccl"}, {}, "ISTHMUS_CCL=nccl does not serve ranks on hip:0"),
        ({}, {"PINNED": "4000000"}, "lower ISTHMUS_STAGING_BYTES"),
    ],
    ids=["no device", "another's device", "another's library", "no memory to pin"],
)
def test_what_is_missing_of_amds_is_said_too(env: dict[str, str], switches: dict[str, str], words: str) -> None:
    test_what_is_missing_is_said_in_one_sentence_by_every_rank(env, switches, words, "amd:2,cpu:1")


@pytest.mark.parametrize(
    ("fleet", "devices"),
    [
        ("nvidia:2,amd:1,cpu:1", ["cuda:0", "cuda:0", "hip:0"]),
        ("nvidia:1,ascend:2,cpu:1", ["cuda:0", "acl:0", "acl:0"]),
    ],
)
def test_where_little_memory_can_be_pinned_the_pool_is_smaller_and_the_results_the_same(
    tmp_path: Path, fleet: str, devices: list[str]
) -> None:
    def body(folder: str) -> Any:
        errors = Path(folder) / f"errors.{os.environ['ISTHMUS_RANK']}"
        os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        with isthmus.init() as comm:
            limit = isthmus.context_stats()["staging_limit"]
            x: Any = np.full(2_000_000, comm.rank + 1.0, np.float32)
            x = x if on_host() else DeviceArray.of(x)
            for _ in range(3):
                comm.all_reduce(x, "max", x)
            inside = comm.split(comm.rank % 2, 0)
            assert inside is not None
            inside.all_reduce(x, "max", x)
            return limit, float((x if on_host() else x.get())[-1]), errors.read_text()

    pinned = {"PINNED": str(40 << 20)}
    results = run_fleet(fleet, body, str(tmp_path), init=False, switches=pinned, env={"ISTHMUS_LOG": "warn"})
    assert [limit >> 20 for limit, _, _ in results] == [32, 32, 32, 256]
    assert {value for _, value, _ in results} == {4.0}
    for name, (limit, _, said) in zip(devices, results[:-1], strict=True):
        warning = (
            f"only {limit} of {256 << 20} bytes of staging could be pinned for {name}; large operations take more steps"
        )
        assert said.count(warning) == 1 and "(ISTHMUS_STAGING_BYTES)" in said, said
    assert "pinned" not in results[-1][2]


def test_without_the_library_device_ranks_are_planned_one_by_one(tmp_path: Path) -> None:
    """Only the driver is there."""

    def body(folder: str) -> Any:
        ctypes.CDLL(f"{folder}/libcuda.so.1")
        with isthmus.init() as comm:
            x = DeviceArray.of(np.full(100_000, comm.rank + 1.0, np.float32))
            comm.all_reduce(x)
            return float(x.get()[-1]), [group["ccl"] for group in comm.topology()["groups"]]

    from isthmus import rehearse

    real = rehearse.folder()
    (tmp_path / "nvidia").mkdir()
    for name in ("librehearsal.so", "nvidia/libcuda.so.1"):
        (tmp_path / name).symlink_to(real / name)
    (tmp_path / "nvidia" / "libnccl.so.2").write_bytes(b"no library")
    results = run_fleet(
        "nvidia:2",
        body,
        str(real / "nvidia"),
        init=False,
        env={"REHEARSAL_LIBRARIES": str(tmp_path), "ISTHMUS_LOG": "error"},
    )
    assert results == [(3.0, [""])] * 2 or results == [(3.0, ["", ""])] * 2, results
