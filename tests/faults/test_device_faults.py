"""Device ranks of rehearsed fleets when a call of a driver or a library fails, hangs or is slow."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import SOON, patient

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, left_over, on_host, run_fleet, vendor
from events import once_inside, until

DEADLINE = patient(5)  # where it has to pass, and this rank's own copies have ended before


def until_it_fails(comm: isthmus.Comm, deadline: float | None = None) -> tuple[str, float, dict[str, int]]:
    """Operations of all stages, until one ends in an error: what it said, how long it took, what is left after destroy."""
    device = not on_host()
    n = 160_000  # whole chunks of an island of two
    x: Any = np.ones(n, np.float32)
    y: Any = np.ones(n * comm.size, np.float32)
    if device:
        x, y = DeviceArray.of(x), DeviceArray.of(y)
    if deadline:
        comm.barrier()  # the deadlines run from nearly the same time
        comm.set_timeout(deadline)
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
        assert took < SOON
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


@pytest.mark.parametrize(
    ("fleet", "switch", "fault", "kind"),
    [
        ("nvidia:1,cpu:1", "FAIL", "cuMemcpyAsync:9:700", "DeviceError"),
        ("nvidia:1,cpu:1", "FAIL_LATE", "cuMemcpyAsync:9:700", "DeviceError"),
        ("nvidia:1,cpu:1", "FAIL", "cuStreamCreate:1:2", "DeviceError"),
        ("amd:1,cpu:1", "FAIL", "hipStreamWaitValue64:9:999", "DeviceError"),
        ("ascend:1,cpu:1", "FAIL_LATE", "aclrtMemcpyAsync:9:507015", "DeviceError"),
        ("nvidia:2,cpu:1", "FAIL", "ncclBroadcast:3:1", "DeviceError"),  # the library says that its device failed
        ("nvidia:2,cpu:1", "FAIL", "ncclReduceScatter:2:3", "SystemError"),
        ("ascend:2,cpu:1", "FAIL", "HcclReduceScatter:2:15", "DeviceError"),
        ("ascend:2,cpu:1", "FAIL_LATE", "HcclReduceScatter:2:15", "DeviceError"),
        ("ascend:2,cpu:1", "FAIL", "HcclReduceScatter:2:4", "SystemError"),
    ],
)
def test_a_failure_of_a_device_is_a_device_error_and_a_librarys_own_a_system_error(
    fleet: str, switch: str, fault: str, kind: str
) -> None:
    """On every rank."""

    def body() -> str:
        try:
            with isthmus.init() as comm:
                x: Any = np.ones(160_000, np.float32)
                y: Any = np.ones(160_000 * comm.size, np.float32)
                if not on_host():
                    x, y = DeviceArray.of(x), DeviceArray.of(y)
                for _ in range(40):
                    comm.all_reduce(x, "max", x)
                    comm.broadcast(x, 0)
                    comm.all_gather(x, y)
                    comm.reduce_scatter(y, "max", x)
        except isthmus.Error as error:
            return type(error).__name__
        return "nothing failed"

    told = run_fleet(fleet, body, init=False, switches={switch: fault})
    assert told == [kind] * len(told)


def test_a_switch_of_one_rank_is_told_to_that_rank_alone() -> None:
    def body() -> tuple[str | None, str | None]:
        return os.environ.get("REHEARSAL_SEED"), os.environ.get("REHEARSAL_SLOW")

    switches = {"1:SEED": "5", "SEED": "3", "2:SLOW": "ncclAllReduce:1:200"}
    told = run_fleet("nvidia:1,amd:1,cpu:1", body, init=False, switches=switches)
    assert told == [("3", None), ("5", None), ("3", "ncclAllReduce:1:200")]
    for wrong in ("3:SEED", "x:SEED", ":SEED", "-1:SEED"):
        with pytest.raises(isthmus.ArgumentError, match=rf"'{wrong}' is for no rank of the fleet, which has 3 \(0 to 2\)"):
            run_fleet("nvidia:1,amd:1,cpu:1", body, init=False, switches={wrong: "1"})
    with pytest.raises(isthmus.ArgumentError, match="'1:SEEDS' is no switch; there are QUEUES, "):
        run_fleet("nvidia:1,amd:1,cpu:1", body, init=False, switches={"1:SEEDS": "1"})


@pytest.mark.product(8)
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
        assert fault in said and took < SOON, said


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
    for said, took, left in run_fleet(fleet, until_it_fails, switches={"FAIL_LATE": fault}):
        assert words in said and "rank " in said, said
        assert took < SOON
        assert not any(left.values()), left


def beside_a_communicator_that_lives_on(pieces: bool) -> tuple[str, int, int]:
    """What went wrong, and then the bytes of staging memory in use, and the rings that nobody gets any more."""
    keeper = isthmus.init(name="keeper")  # so that the memory outlives the one that fails
    comm = isthmus.init()
    said, _, _ = pieces_until_it_fails(comm, None) if pieces else until_it_fails(comm)
    until(lambda: not isthmus.context_stats()["leaving"], "all ranks have left what failed")
    stats = isthmus.context_stats()
    assert stats["communicators"] == 1, stats
    keeper.abort("seen")  # its device may have failed
    keeper.destroy()
    return said, stats["staging_used"], stats["rings_lost"]


@pytest.mark.product(6)
@pytest.mark.parametrize(
    ("fleet", "switch", "fault", "pieces"),
    [
        ("nvidia:2,cpu:1", "FAIL", "cuMemcpyAsync:23:700", False),
        ("nvidia:2,cpu:1", "FAIL_LATE", "cuMemcpyAsync:9:700", False),
        ("nvidia:2,cpu:1", "FAIL", "ncclBroadcast:3:1", False),
        ("amd:1,nvidia:1", "FAIL_LATE", "cuMemcpyAsync:23:700", False),
        ("amd:2,cpu:1", "FAIL", "hipStreamWaitValue64:9:999", False),
        ("ascend:2,cpu:1", "FAIL", "HcclReduceScatter:2:4", False),
        ("ascend:1,cpu:1", "FAIL_LATE", "aclrtMemcpyAsync:9:507015", False),
        ("nvidia:2", "FAIL", "cuMemcpyAsync:40:700", True),
        ("nvidia:2", "FAIL_LATE", "cuMemcpyAsync:40:700", True),
    ],
)
@pytest.mark.parametrize("bridge", ["shm", "tcp"])
def test_after_a_failure_as_much_staging_memory_is_free_as_without_one(
    fleet: str, switch: str, fault: str, pieces: bool, bridge: str
) -> None:
    def run(switches: dict[str, str]) -> list[Any]:
        return run_fleet(
            fleet, beside_a_communicator_that_lives_on, pieces, init=False, bridge=bridge, switches=switches, timeout=240
        )

    well, failed = run({}), run({switch: fault})
    assert {said for said, _, _ in well} == {"nothing failed"}
    assert all("on rank " in said for said, _, _ in failed), failed
    for (_, used, _), (said, still, lost) in zip(well, failed, strict=True):
        assert (still, lost) == (used, 0), said


@pytest.mark.parametrize("fault", ["ncclReduceScatter:2", "ncclAllReduce:1", "ncclBroadcast:4"])
def test_a_library_that_hangs_is_a_timeout_and_can_be_left(fault: str) -> None:
    hangs = not fault.startswith("ncclAllReduce")  # that is not part of a large all_reduce across a bridge
    deadline, env = DEADLINE if hangs else None, {"ISTHMUS_EAGER_BYTES": "8192"}
    results = run_fleet("nvidia:2,cpu:1", until_it_fails, deadline, switches={"HANG": fault}, env=env)
    for said, took, left in results:
        if not hangs:
            assert said == "nothing failed"
            continue
        assert "rank " in said and ("deadline" in said or "timed out" in said or "within" in said or "s ago" in said), said
        assert took < DEADLINE + SOON
        assert left.get("communicator", 0) == 0


@pytest.mark.parametrize(
    ("fleet", "call"), [("nvidia:2", "ReduceScatter"), ("nvidia:2", "AllGather"), ("amd:2", "ReduceScatter")]
)
def test_the_deadline_names_the_librarys_call_that_the_device_has_not_come_past(fleet: str, call: str) -> None:
    family = {"nvidia": "nccl", "amd": "rccl"}[fleet.split(":")[0]]
    named = {"ReduceScatter": "reduce_scatter", "AllGather": "all_gather"}[call]
    expected = f"did not finish within {DEADLINE:g} s: what was given to {family} has not ended: {named}, "
    expected += "and all ranks of its group"
    switches, env = {"HANG": f"nccl{call}:2"}, {"ISTHMUS_HEARTBEAT_MS": "5000"}  # so no rank is silent for several of them
    for said, _, _ in run_fleet(fleet, until_it_fails, DEADLINE, switches=switches, env=env):
        assert expected in said, said


@pytest.mark.parametrize(
    ("fleet", "switch", "fault", "words"),
    [
        ("ascend:2,cpu:1", "FAIL", "aclrtMemcpyAsync:23:507015", "aclrtMemcpyAsync failed with "),
        ("ascend:2,cpu:1", "FAIL", "HcclReduceScatter:2:4", "hccl reduce_scatter: "),
        ("ascend:2,cpu:1", "FAIL", "HcclAllGather:1:4", "hccl all_gather: "),
        ("amd:2,cpu:1", "FAIL", "ncclAllGather:1:5", "rccl all_gather: invalid usage"),
        ("amd:2,cpu:1", "FAIL_LATE", "hipMemcpyAsync:9:700", "hipErrorIllegalAddress (700"),
        ("ascend:2,cpu:1", "FAIL_LATE", "aclrtMemcpyAsync:9:507015", "507015"),
        ("nvidia:2,cpu:1", "FAIL_LATE", "ncclReduceScatter:2:1", "CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        ("amd:2,cpu:1", "FAIL_LATE", "ncclAllGather:1:1", "hipErrorIllegalAddress (700"),
        ("ascend:2,cpu:1", "FAIL_LATE", "HcclReduceScatter:2:15", "507053"),
    ],
)
def test_the_same_of_every_vendors_copies_and_library(fleet: str, switch: str, fault: str, words: str) -> None:
    """At the call, and late: a call that was well, whose work fails on the stream. Nothing is left of either."""
    for said, took, left in run_fleet(fleet, until_it_fails, switches={switch: fault}):
        assert words in said and "rank " in said, said
        if fault.split(":")[2].startswith("5070"):
            assert "507015" in said, said
        assert took < SOON
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
    for said, _, left in run_fleet(fleet, until_it_fails, switches={"SLOW": fault}):
        assert said == "nothing failed"
        assert not any(left.values()), left


@pytest.mark.product(6)
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
        comm.barrier()
        comm.set_timeout(DEADLINE)
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

    run_fleet(fleet, body, str(tmp_path), switches={"HANG": fault})
    for rank in range(3):
        said, took, aborted, destroyed = json.loads((tmp_path / f"said.{rank}").read_text())
        assert "rank " in said and f"within {DEADLINE:g} s" in said, said
        assert took < DEADLINE + SOON and aborted < SOON and destroyed < SOON, (took, aborted, destroyed)


def pieces_until_it_fails(comm: isthmus.Comm, deadline: float | None) -> tuple[str, float, dict[str, int]]:
    """The same of host memory that is longer than the staging memory."""
    if deadline:
        comm.barrier()
        comm.set_timeout(deadline)
    x = np.ones(3_000_000, np.float32)
    said, begun = "nothing failed", time.monotonic()
    try:
        for _ in range(20):
            begun = time.monotonic()
            comm.all_reduce(x, "max", np.empty_like(x))
    except isthmus.Error as error:
        said = str(error)
        comm.abort("seen")
    took = time.monotonic() - begun
    comm.destroy()
    return said, took, left_over()


@pytest.mark.parametrize(
    ("fleet", "switch", "fault", "words"),
    [
        ("nvidia:2", "FAIL", "cuMemcpyAsync:5:700", "cuMemcpyAsync failed with CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        ("nvidia:2", "FAIL", "cuMemcpyAsync:40:700", "cuMemcpyAsync failed with CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        ("amd:2", "FAIL", "hipStreamWaitValue64:6:999", "hipStreamWaitValue64 failed with"),
        ("nvidia:2", "FAIL_LATE", "cuMemcpyAsync:40:700", "CUDA_ERROR_ILLEGAL_ADDRESS (700"),
        ("ascend:2", "FAIL", "aclrtMemcpyAsync:40:507015", "aclrtMemcpyAsync failed with"),
        ("nvidia:2", "HANG", "ncclAllReduce:2", "what was given to nccl has not ended: all_reduce"),
    ],
)
def test_host_memory_that_goes_in_pieces_ends_everywhere_when_one_fails(
    fleet: str, switch: str, fault: str, words: str
) -> None:
    env = {"ISTHMUS_STAGING_BYTES": "4M"}
    deadline = DEADLINE if switch == "HANG" else None
    for said, took, left in run_fleet(fleet, pieces_until_it_fails, deadline, switches={switch: fault}, env=env):
        assert words in said and "rank " in said, said
        assert took < SOON + (deadline or 0)
        assert not any(left.values()) or (switch == "HANG" and left["communicator"] == 0), left


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
        assert took < SOON


def test_a_late_rank_is_named_while_the_others_wait_in_the_library(tmp_path: Path) -> None:
    def body(comm: isthmus.Comm, folder: str) -> str:
        called, failed = Path(folder) / "called", Path(folder) / "failed"
        device = not on_host()
        x: Any = np.ones(150_000, np.float32)
        x = DeviceArray.of(x) if device else x
        comm.all_reduce(x, "max", x)
        if comm.rank == 2:
            once_inside(comm, called.touch)
        else:
            until((called if comm.rank == 1 else failed).exists)
        try:
            comm.all_reduce(x, "max", x, timeout=patient(4) if comm.rank == 1 else None)
        except isthmus.Error as error:
            failed.touch()
            return str(error)
        return "in time"

    for said in run_fleet("nvidia:2,cpu:1", body, str(tmp_path)):
        assert "rank 0" in said, said
