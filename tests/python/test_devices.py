"""Ranks that work on the memory of a device, in rehearsed fleets, whose driver and library are as mean as a vendor's may be.

Every fleet runs with one hardware queue a device, device addresses of pinned memory that are not the host's, random
delays and a driver that locks while it allocates. A touch of device memory by the host
is a fault, and misuse of the driver ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
import matrix
from devices import DeviceArray, OnDevice, expect_ways, on_host, run_fleet, vendor
from events import until
from islands import needs_oneccl
from patience import SOON
from reference import DTYPES
from test_islands import all_reduces, many_chunks, other_collectives


def mine(comm: isthmus.Comm) -> Any:
    """The communicator of a rank of a fleet, on whose device the test's arrays are put."""
    return comm if on_host() else OnDevice(comm)


def run_cells(comm: isthmus.Comm, cells: Sequence[matrix.Cell], labels: Sequence[str | None]) -> int:
    where = mine(comm)
    for cell in cells:
        matrix.run_cell(where, cell, labels)
    return len(cells)


def without_library(
    fleet: str, labels: Sequence[str | None], bridge: str | None, settings: dict[str, str], seed: int
) -> int:
    cells = matrix.pairwise(seed=seed)

    def body(comm: isthmus.Comm) -> int:
        unique_id = bytearray(isthmus.unique_id() if comm.rank == 0 else bytes(128))
        comm.broadcast(unique_id)
        options = {"island": labels[comm.rank], "bridge": bridge, "settings": {"CCL": "none", **settings}}
        with isthmus.init(comm.rank, comm.size, unique_id=bytes(unique_id), **options) as plain:
            return run_cells(plain, cells, labels)

    done = run_fleet(fleet, body, bridge=bridge, timeout=300)
    assert done == [len(cells)] * len(labels)
    return len(cells)


@pytest.mark.computes
@pytest.mark.product(6)
@pytest.mark.parametrize(
    ("fleet", "labels", "bridge", "settings"),
    [
        ("nvidia:1,cpu:1", "aa", None, {}),
        ("nvidia:1,cpu:1", "ab", "tcp", {}),
        ("nvidia:3", "aaa", None, {"CHUNK_BYTES": "4096"}),
        ("nvidia:2,cpu:1", "abb", "shm", {}),
        ("nvidia:1,cpu:1,nvidia:1", "aba", "tcp", {"CHUNK_BYTES": "4096"}),
        ("nvidia:3", "abc", "tcp", {"CHUNK_BYTES": "8192", "BRIDGE_RATES": "a:9.5,b:1"}),
        ("nvidia:1,amd:1", "ab", None, {}),
        ("amd:1,nvidia:1,amd:1,cpu:1", "abac", "tcp", {"CHUNK_BYTES": "8192"}),
        ("ascend:2,cpu:1", "aab", None, {}),
        ("ascend:1,amd:1,nvidia:1,cpu:1", "abcd", "tcp", {"CHUNK_BYTES": "8192"}),
    ],
)
def test_a_pairwise_cover_on_device_memory_gives_the_references_bits(
    fleet: str, labels: str, bridge: str | None, settings: dict[str, str], matrix_counts: dict[str, int]
) -> None:
    """Every collective, and messages; island labels are one letter a rank."""
    count = without_library(fleet, labels, bridge, settings, seed=1)
    matrix_counts[f"rehearsed {fleet} as {labels} {bridge or ''}"] = count


def islands_of_libraries(comm: isthmus.Comm) -> int:
    expect_ways(comm.topology())
    where = mine(comm)
    other_collectives(where)
    return all_reduces(where)


@pytest.mark.computes
@pytest.mark.product(8)
@pytest.mark.parametrize(
    ("fleet", "bridge"),
    [
        ("nvidia:2", None),
        ("nvidia:3", None),
        ("nvidia:1,cpu:1", None),
        ("nvidia:2,cpu:1", None),
        ("cpu:1,nvidia:2", "tcp"),
        ("nvidia:1,cpu:1,nvidia:1", None),
        ("nvidia:2@a,nvidia:2@b", None),
        ("nvidia:1@a,nvidia:1@b,nvidia:1@a,nvidia:1@b,cpu:1", "tcp"),
        ("nvidia:3@a,cpu:1,nvidia:2@b", None),
        ("amd:2", None),
        ("nvidia:1,amd:1", None),
        ("nvidia:2,amd:2", None),
        ("nvidia:1,amd:1,nvidia:1,amd:1,cpu:1", "tcp"),
        ("amd:3@a,nvidia:1,amd:2@b", None),
        ("ascend:2", None),
        ("ascend:2,cpu:1", None),
        ("nvidia:1,ascend:1,nvidia:1,amd:1,ascend:1,nvidia:1", None),
    ],
)
def test_islands_with_the_vendors_library_give_what_numpy_gives(fleet: str, bridge: str | None) -> None:
    done = run_fleet(fleet, islands_of_libraries, bridge=bridge, timeout=240)
    assert len(set(done)) == 1 and done[0] > 0


@pytest.mark.parametrize("fleet", ["nvidia:2,cpu:1", "amd:2,cpu:1", "ascend:2,cpu:1"])
def test_a_fleet_of_interpreters_that_are_started_one_by_one(fleet: str) -> None:
    """As `isthmus rehearse` starts programs; the ranks of the other tests are forked."""

    def body(comm: isthmus.Comm) -> tuple[float, str]:
        device = comm.topology()["ranks"][comm.rank]["device"]
        return float(mine(comm).all_reduce(np.full(100_000, comm.rank + 1.0, np.float32))[-1]), device

    device = {"nvidia": "cuda:0", "amd": "hip:0", "ascend": "acl:0"}[fleet.partition(":")[0]]
    assert run_fleet(fleet, body, fresh=True) == [(6.0, device), (6.0, device), (6.0, "host")]


@pytest.mark.computes
@pytest.mark.parametrize("bridge", [None, "tcp"])
def test_bridges_are_weighed_by_the_makers_names(bridge: str | None) -> None:
    """Islands that nobody has labelled: what is declared of a maker's is theirs."""

    def body(comm: isthmus.Comm) -> list[float]:
        islands_of_libraries(comm)
        return [group["weight"] for group in comm.topology()["groups"]]

    rates = {"ISTHMUS_BRIDGE_RATES": "nvidia:4,amd:1"}
    assert run_fleet("nvidia:2,amd:1,nvidia:1", body, bridge=bridge, env=rates, timeout=240) == [[4, 1]] * 4


@pytest.mark.parametrize("fleet", ["nvidia:2,cpu:1", "amd:2,nvidia:1", "ascend:2,nvidia:2"])
@pytest.mark.parametrize("bridge", [None, "tcp"])
def test_messages_of_twenty_chunks_use_their_slots_again(fleet: str, bridge: str | None) -> None:
    def body(comm: isthmus.Comm) -> None:
        expect_ways(comm.topology())
        many_chunks(mine(comm))

    run_fleet(fleet, body, bridge=bridge, env={"ISTHMUS_CHUNK_BYTES": "4K"}, timeout=240)


@pytest.mark.computes
@needs_oneccl
def test_four_vendors_libraries_in_one_communicator(tmp_path: Any) -> None:
    """Rehearsed ones on device memory, and a real one, oneCCL, on host memory."""
    from islands import ONECCL

    def body() -> Any:
        settings = {"CCL_LIBRARY": str(ONECCL)} if os.environ.get("ISTHMUS_CCL") == "oneccl" else {}
        with isthmus.init(settings=settings) as comm:
            return islands_of_libraries(comm), [group["ccl"] for group in comm.topology()["groups"]]

    results = run_fleet("nvidia:2,oneccl:2,amd:2,ascend:2", body, init=False, timeout=240)
    assert {tuple(groups) for _, groups in results} == {("nccl", "oneccl", "rccl", "hccl")}


def test_over_tcp_islands_of_unlike_numbers_of_ranks_share_what_crosses() -> None:
    """Four, two and one rank behind equal bridges: no bridge carries what it would if each block went straight to all.

    n are the bytes of all blocks. The rank that is alone gets 6/7 n of an all_gather, and no island needs to carry more.
    The island of four would send 2 * 4/7 n, and get as much of a reduce_scatter. Each link carries the bytes that the plan
    says, and the frames' headers.
    """
    block = 300_000
    fleet, islands = "nvidia:4,amd:2,ascend:1", ([0, 1, 2, 3], [4, 5], [6])

    def body(comm: isthmus.Comm) -> Any:
        def carried() -> tuple[int, int]:
            links = comm.topology()["links"]
            return sum(x.get("bytes_sent", 0) for x in links), sum(x.get("bytes_received", 0) for x in links)

        where, own = mine(comm), slice(comm.rank * block, (comm.rank + 1) * block)
        every = (np.arange(block * comm.size) % 61).astype(np.float32)
        total = comm.size * every + sum(range(comm.size))
        calls: dict[str, tuple[int, Callable[[], Any], Any]] = {
            "all_gather": (block, lambda: where.all_gather(every[own]), every),
            "reduce_scatter": (block, lambda: where.reduce_scatter(every + comm.rank), total[own]),
            "all_reduce": (every.size, lambda: where.all_reduce(every + comm.rank), total),
        }
        done = {}
        for what, (count, call, right) in calls.items():
            before = carried()  # ahead of the barrier: whoever has left it sends already
            comm.barrier()
            result = np.asarray(call()).reshape(-1)
            comm.barrier()
            stated = comm.explain(what, nbytes=4 * count).data["link_bytes"]
            done[what] = (bool((result == right).all()), stated, *(b - a for a, b in zip(before, carried(), strict=True)))
        return done

    ranks = run_fleet(fleet, body, bridge="tcp", timeout=240)
    n = 4 * block * len(ranks)
    for what, most in {"all_gather": 0.87, "reduce_scatter": 0.87, "all_reduce": 1.36}.items():
        for right, stated, sent, _ in (rank[what] for rank in ranks):
            assert right, what
            assert stated <= sent < 1.01 * stated + 64 * 1024, what
        for island in islands:
            for way in (2, 3):
                loads = [ranks[r][what][way] for r in island]
                assert sum(loads) < most * n, f"{what}: {loads}"
                assert max(loads) < 1.06 * min(loads), f"{what}: {loads} are not equal parts"


def test_devices_whose_streams_cannot_wait_are_served_too() -> None:
    """A driver without the memory operations of streams: calls then block until their exchange is over."""
    done = run_fleet("nvidia:2,cpu:1,nvidia:1", islands_of_libraries, switches={"CUDA_NO_STREAM_VALUES": "1"}, timeout=240)
    assert len(set(done)) == 1 and done[0] > 0


def test_many_in_flight_on_one_hardware_queue_keep_their_order() -> None:
    def body(comm: isthmus.Comm) -> float:
        device = not on_host()
        x = np.full(60_000, float(comm.rank + 1))
        gathered = np.zeros(60_000 * comm.size)
        a, b = (DeviceArray.of(x), DeviceArray.of(gathered)) if device else (x, gathered)
        works = []
        for _ in range(10):
            works.append(comm.all_reduce(a, "max", a, async_op=True))
            works.append(comm.all_gather(a, b, async_op=True))
            works.append(comm.reduce_scatter(b, "sum", a, async_op=True))
            works.append(comm.all_reduce(a, "avg", a, async_op=True))
            works.append(comm.all_to_all(b, b, async_op=True))
        for work in works:
            work.wait()
        return float((a.get() if device else a)[7])

    for fleet in ("nvidia:2", "nvidia:2,cpu:1", "nvidia:1,cpu:1,nvidia:1"):
        results = run_fleet(fleet, body)
        assert set(results) == {float(len(results)) ** 11}, fleet


def test_the_users_stream_orders_the_operation_and_nobody_waits_on_the_host() -> None:
    """The data is on the user's stream only after the call has returned, and is read there before anybody has waited."""

    def body(comm: isthmus.Comm) -> Any:
        # A library's first call allocates, which waits for all that the device has to do.
        mine(comm).all_reduce(np.ones(200_000, np.float32))
        if on_host():
            return float(comm.all_reduce(np.full(200_000, 1.0, np.float32))[0])
        n = 200_000
        there = vendor()
        x = DeviceArray.of(np.zeros(n, np.float32))
        pinned = np.full(n, 5.0, np.float32)
        result = np.zeros(n, np.float32)
        for array in (pinned, result):
            there.register(array.ctypes.data, array.nbytes)
        stream = there.stream()
        go_on = there.hold(stream)
        there.copy_in(x.address, pinned.ctypes.data, x.nbytes, stream)
        work = comm.all_reduce(x, "sum", x, async_op=True, stream=stream)  # waits for nothing, or it would do so for good
        there.copy_out(result.ctypes.data, x.address, x.nbytes, stream)
        time.sleep(0.2)
        early = work.done
        go_on()
        there.synchronize(stream)
        got = float(result[0]), float(result[-1])
        work.wait()
        there.end_stream(stream)
        for array in (pinned, result):
            there.unregister(array.ctypes.data)
        return early, got

    for fleet in ("nvidia:1,cpu:1", "nvidia:2,cpu:1", "amd:1,cpu:1", "amd:2,nvidia:1,cpu:1"):
        *devices, host = run_fleet(fleet, body)
        total = 5.0 * len(devices) + 1
        assert host == total
        assert devices == [(False, (total, total))] * len(devices)


def behind_what_was_left(comm: isthmus.Comm) -> list[Any]:
    """Fills on the default stream that have returned and are not done, then calls without a stream: what they make of it."""
    count = 300
    there, place = (vendor(), DeviceArray) if not on_host() else (None, None)
    previous, following = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size

    def array() -> Any:
        zeros = np.zeros(count, np.int8)
        return place.of(zeros) if place else zeros

    a, sent, got = array(), array(), array()
    comm.all_reduce(a, "sum", a)  # first calls may wait for the device
    comm.send(sent, following, async_op=True)
    comm.recv(got, previous)
    comm.barrier()
    if there:
        there.synchronize(0)
        go_on = there.hold(0)
        for x in (a, sent, got):
            there.fill(x.address, comm.rank + 1, count)
    else:
        for x in (a, sent, got):
            x[:] = comm.rank + 1
    works = [comm.all_reduce(a, "sum", a, async_op=True)]
    if there:
        time.sleep(0.1)
        go_on()
    works += [comm.send(sent, following, async_op=True), comm.recv(got, previous, async_op=True)]
    for work in works:
        work.wait()
    return [np.unique(x.get() if there else x).tolist() for x in (a, got)]


@pytest.mark.parametrize("fleet", ["nvidia:1,cpu:1", "nvidia:2,cpu:1", "amd:1,cpu:1", "amd:2,nvidia:1"])
def test_an_operation_without_a_stream_comes_behind_what_the_vendors_calls_have_left_to_do(fleet: str) -> None:
    results = run_fleet(fleet, behind_what_was_left, switches={"QUEUES": "8"})
    total = sum(range(1, len(results) + 1))
    assert results == [[[total], [(rank - 1) % len(results) + 1]] for rank in range(len(results))]


@pytest.mark.parametrize("fleet", ["nvidia:1,cpu:1", "amd:1,cpu:1", "nvidia:2"])
def test_a_receive_without_a_stream_does_not_wait_for_what_the_default_stream_is_given_later(
    fleet: str, tmp_path: Path
) -> None:
    def body(comm: isthmus.Comm, held: Path) -> list[float]:
        last = []
        for count in (300, 300_000):
            turn = held / str(count)
            x = np.full(count, 7.0, np.float32)
            if comm.rank == 0:
                got = DeviceArray.of(np.zeros(count, np.float32))
                work = comm.recv(got, 1, async_op=True)
                go_on = vendor().hold(0)
                turn.touch()
                try:
                    work.wait(timeout=SOON)
                finally:
                    go_on()
                last.append(float(got.get()[-1]))
            else:
                until(turn.exists, "the receive")
                comm.send(x if on_host() else DeviceArray.of(x), 0)
        return last

    assert run_fleet(fleet, body, tmp_path, switches={"QUEUES": "8"})[0] == [7.0, 7.0]


@pytest.mark.parametrize(
    ("fleet", "bridge"),
    [
        ("nvidia:1,cpu:1", None),
        ("nvidia:2,cpu:1", None),
        ("nvidia:2", None),
        ("amd:1,nvidia:1", None),
        ("amd:2,cpu:1", None),
        ("ascend:1,cpu:1", None),
        ("ascend:2,nvidia:1", None),
        ("nvidia:2,cpu:1", "tcp"),
        ("amd:2,nvidia:1", "tcp"),
        ("ascend:2,cpu:1", "tcp"),
    ],
)
def test_steady_traffic_makes_no_call_that_waits_allocates_or_registers(fleet: str, bridge: str | None) -> None:
    """And it makes those that copy, signal and order; the library's where a rank has a neighbour of its vendor.

    Whether a device has failed is asked where nothing of it has gone on for 100 ms, and then of the rank's two streams.
    Pools grow with what is in flight at one time, which depends on who runs when; so a rank has more rounds until there was
    one in which it made no such call. What is made for each operation would be in every round.
    """

    def body(comm: isthmus.Comm) -> tuple[dict[str, int], dict[str, int]]:
        n = 300_000
        x: Any = np.ones(n, np.float32)
        y: Any = np.ones(n * comm.size, np.float32)
        small: Any = np.ones(16, np.float32)
        x_in, small_in = x.copy(), small.copy()
        engine, stream = None, None
        if not on_host():
            x, y, small, x_in, small_in = map(DeviceArray.of, (x, y, small, x_in, small_in))
            engine, stream = ctypes.CDLL("librehearsal.so"), vendor().stream()
            engine.rehearsal_calls.restype = ctypes.c_ulong
        before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size

        def turn() -> None:
            comm.all_reduce(x, "max", x, stream=stream)
            comm.all_gather(x, y, stream=stream)
            comm.broadcast(x, 0, stream=stream)
            comm.reduce(x, 0, "max", x, stream=stream)
            comm.reduce_scatter(y, "max", x, stream=stream)
            comm.all_to_all(y, y, stream=stream)
            comm.all_reduce(small, "max", small, stream=stream)
            comm.gather(x, 0, y if comm.rank == 0 else None, stream=stream)
            comm.scatter(y if comm.rank == 0 else None, 0, out=x, stream=stream)
            for message, into in ((x, x_in), (small, small_in)):
                with isthmus.group():
                    comm.send(message, after, stream=stream)
                    comm.recv(into, before, stream=stream)

        def counted(turns: int) -> tuple[dict[str, int], dict[str, int]]:
            """The forbidden calls of so many turns, and the others."""
            if not engine:
                for _ in range(turns):
                    turn()
                return {}, {}
            begun = time.monotonic()
            engine.rehearsal_reset_calls()
            for _ in range(turns):
                turn()
            there = vendor()
            calls = {name: int(engine.rehearsal_calls(name.encode())) for name in (*there.forbidden, *there.used)}
            queries = 2 + 2 * int((time.monotonic() - begun) / 0.1)
            wrong = {n: calls[n] for n in there.forbidden if calls[n] > (queries if n.endswith("StreamQuery") else 0)}
            return wrong, {name: calls[name] for name in there.used}

        for _ in range(5):
            turn()
        for _ in range(4):
            wrong, made = counted(10)
            bad = np.array([len(wrong)])
            if not comm.all_reduce(bad, "max")[0]:
                break
        if stream:
            vendor().end_stream(stream)
        return wrong, made

    parts = fleet.split(",")
    neighbours = [int(part[-1]) > 1 for part in parts for _ in range(int(part[-1]))]
    for (wrong, made), together in zip(run_fleet(fleet, body, bridge=bridge), neighbours, strict=True):
        assert not wrong
        *ours, library = made or [None]
        expected = (ours if len(parts) > 1 else []) + ([library] if library and together else [])
        assert all(made[name] for name in expected if name), made


@pytest.mark.parametrize("fleet", ["nvidia:2,amd:2", "amd:3,nvidia:3"])
def test_a_step_of_sharded_training_makes_the_copies_of_its_plans_and_a_group_of_calls_for_a_chunk(fleet: str) -> None:
    """Counted at the driver and at the library: an all_gather of parameters, and a reduce_scatter of gradients.

    The bytes are the least: a block goes out once, what an island takes of the other comes in once, shared by its ranks; an
    island's sums of all blocks go out once, and a rank's result comes in.

    A copy brings a rank's block to its slot, another its block to the output, and one each what it takes of the other
    island. What the library has summed goes out in one copy, and the rank's block comes in by another.
    """
    block = 600_000

    def body(comm: isthmus.Comm) -> Any:
        there = vendor()
        engine = ctypes.CDLL("librehearsal.so")
        engine.rehearsal_calls.restype = engine.rehearsal_carried.restype = ctypes.c_ulong
        names = (there.used[0], "ncclGroupStart", "ncclGroupEnd", "ncclBroadcast", "ncclReduceScatter")
        where = (np.arange(block * comm.size) % 61).astype(np.float32)
        own = slice(comm.rank * block, (comm.rank + 1) * block)
        parameters, gradients = DeviceArray.of(np.zeros_like(where)), DeviceArray.of(where + comm.rank)
        shard, mine = DeviceArray.of(where[own]), DeviceArray.of(np.zeros(block, np.float32))

        def counted(operation: Callable[[], Any]) -> tuple[list[int], tuple[int, int]]:
            """Calls by their names, and the bytes that went from the device to the host and back."""
            operation()
            comm.barrier()
            engine.rehearsal_reset_calls()
            operation()
            comm.barrier()
            counts = [int(engine.rehearsal_calls(name.encode())) for name in names]
            return counts, (int(engine.rehearsal_carried(1)), int(engine.rehearsal_carried(0)))

        made = (
            counted(lambda: comm.all_gather(shard, parameters)),
            counted(lambda: comm.reduce_scatter(gradients, "sum", mine)),
        )
        plans = [comm.explain(what, nbytes=4 * block).data for what in ("all_gather", "reduce_scatter")]
        total = comm.size * where[own] + sum(range(comm.size))
        right = bool((parameters.get() == where).all() and (mine.get() == total).all())
        return right, made, [(plan["chunks"], plan["chunk"], plan["link_bytes"]) for plan in plans]

    results = run_fleet(fleet, body)
    world = len(results)
    sums = [0, 0]  # bytes of an island's ranks
    for rank, (right, ((gathered, of_gather), (scattered, of_scatter)), plans) in enumerate(results):
        assert right
        assert of_gather == (4 * block, 4 * block)
        assert of_scatter[1] == 4 * block
        sums[2 * rank // world] += of_scatter[0]
        (chunks, _, by_links), (_, chunk, scattered_by_links) = plans
        assert by_links == scattered_by_links == 0
        assert gathered == [3 * chunks, 2 * chunks, 2 * chunks, world * chunks, 0]
        # A last chunk that the ranks of an island cannot share equally goes piece by piece.
        full, last = divmod(4 * block, chunk)
        piece = chunk // (world // 2)
        short = (world if last > rank % (world // 2) * piece else 0) + 1 if last else 0
        assert scattered == [2 * full + short, full + bool(last), full + bool(last), 0, world * full]
    assert sums == [world * 4 * block] * 2


@pytest.mark.computes
@pytest.mark.parametrize(
    ("fleet", "mebibytes", "calls", "most_chunks"),
    [("nvidia:1,amd:1", 1024, 10, 256), ("nvidia:2,amd:2", 256, 11, 64), ("nvidia:4,amd:4", 64, 12, 16)],
)
def test_a_long_all_reduce_enters_the_device_once_and_makes_few_calls_for_a_chunk(
    fleet: str, mebibytes: int, calls: int, most_chunks: int
) -> None:
    """Of the calls to the driver those that give a stream work, and those that choose the device. And the library's.

    A chunk has 4 MiB, what a slot of a ring at a fixed place holds: in a message of up to 256 MiB there are at most 64.
    """

    def body(comm: isthmus.Comm) -> Any:
        engine = ctypes.CDLL("librehearsal.so")
        engine.rehearsal_calls.restype = ctypes.c_ulong
        there = vendor()
        library = {"ncclReduceScatter", "ncclReduce", "ncclAllGather", "ncclBroadcast", "ncclGroupStart", "ncclGroupEnd"}
        choosing = {"cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxGetId", "hipGetDevice", "hipSetDevice"}
        x = DeviceArray.of(np.ones(mebibytes << 18, np.float32))
        comm.all_reduce(x, "max", x)
        comm.barrier()
        engine.rehearsal_reset_calls()
        comm.all_reduce(x, "max", x)
        made = {name: int(engine.rehearsal_calls(name.encode())) for name in {*there.used, *library, *choosing}}
        chunks = comm.explain("all_reduce", nbytes=mebibytes << 20).data["chunks"]
        working = sum(made[name] for name in {*there.used, *library} if name != "ncclAllReduce")
        return chunks, working, sum(made[name] for name in choosing)

    for chunks, working, choosing in run_fleet(fleet, body, switches={"MEMORY": str(3 << 30)}, timeout=300):
        assert chunks <= most_chunks
        assert 0 < working <= calls * chunks + 20
        assert choosing <= 40, "for the whole submission, and for what is asked of the buffers"


@pytest.mark.parametrize("how", ["on a stream", "on a stream, in a group", "without a stream"])
@pytest.mark.parametrize("mebibytes", [1, 64])
def test_a_message_is_tied_to_its_stream_once_and_makes_few_calls_for_a_part(mebibytes: int, how: str) -> None:
    """Of a part a copy, the signal behind it, and before the copy of a receive on a stream a gate.

    Parts that the device worker submits enter the device each: receives without a stream, and sends that wait for slots.
    """

    def body(comm: isthmus.Comm) -> tuple[int, int, int, int]:
        engine = ctypes.CDLL("librehearsal.so")
        engine.rehearsal_calls.restype = ctypes.c_ulong
        there = vendor()
        copies, writes, waits, records, holds, _ = there.used
        choosing = ("cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxGetId", "hipGetDevice", "hipSetDevice")
        x = DeviceArray.of(np.full(mebibytes << 18, 1.0 + comm.rank, np.float32))
        user = there.stream()
        stream = user if how != "without a stream" else None

        def turn() -> None:
            with isthmus.group() if "group" in how else contextlib.nullcontext():
                comm.send(x, 1, stream=stream) if comm.rank == 0 else comm.recv(x, 0, stream=stream)
            there.synchronize(user)
            comm.barrier()

        for _ in range(2):
            turn()
        engine.rehearsal_reset_calls()
        turn()
        made = {name: int(engine.rehearsal_calls(name.encode())) for name in {*there.used, *choosing}}
        assert float(x.get()[-1]) == 1.0
        return (
            made[copies], made[writes] + made[waits], made[records] + made[holds], sum(made[name] for name in choosing)
        )  # fmt: skip

    for rank, (parts, words, ties, choosing) in enumerate(run_fleet("nvidia:1,amd:1", body)):
        gated = rank == 1 and how != "without a stream"
        assert parts == max(1, mebibytes // 4)
        assert words == parts * (2 if gated else 1)
        assert 0 < ties <= (8 if rank == 0 else 4)
        assert choosing <= 12 + 3 * parts


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2"])
def test_a_librarys_communicator_ends_on_a_thread_that_has_its_device(fleet: str) -> None:
    """NCCL would leave a thread that has none on device 0, with a context of hundreds of megabytes there.

    Threads of AMD's runtime have device 0 from the beginning, which is that of these ranks.
    """

    def body(comm: isthmus.Comm) -> tuple[int, int]:
        engine = ctypes.CDLL("librehearsal.so")
        engine.rehearsal_calls.restype = ctypes.c_ulong
        x = DeviceArray.of(np.ones(1000, np.float32))
        for aborts in (False, True):
            part = comm.split(0)
            assert part is not None
            part.all_reduce(x)
            comm.barrier()
            if aborts:
                part.abort("to see how it ends")
            part.destroy()
        ended = sum(int(engine.rehearsal_calls(name)) for name in (b"ncclCommDestroy", b"ncclCommAbort"))
        return ended, int(engine.rehearsal_calls(b"ncclWithoutDevice"))

    assert run_fleet(fleet, body) == [(2, 0)] * 2


def test_two_ranks_that_exchange_long_messages_in_a_group_tie_them_to_their_streams_and_not_each_part() -> None:
    """Most of their parts wait for slots, and are ordered by the thread that ends the group."""

    def body(comm: isthmus.Comm) -> tuple[int, int]:
        engine = ctypes.CDLL("librehearsal.so")
        engine.rehearsal_calls.restype = ctypes.c_ulong
        there = vendor()
        copies, _, _, records, holds, _ = there.used
        x = DeviceArray.of(np.full(1 << 24, 1.0 + comm.rank, np.float32))
        y = DeviceArray.of(np.zeros(1 << 24, np.float32))
        stream = there.stream()
        for _ in range(2):
            comm.barrier()
            engine.rehearsal_reset_calls()
            with isthmus.group():
                comm.recv(y, 1 - comm.rank, stream=stream)
                comm.send(x, 1 - comm.rank, stream=stream)
            there.synchronize(stream)
            made = {name: int(engine.rehearsal_calls(name.encode())) for name in (copies, records, holds)}
            assert float(y.get()[-1]) == 2.0 - comm.rank
        return made[copies], made[records] + made[holds]

    for parts, ties in run_fleet("nvidia:1,amd:1", body):
        assert parts == 2 * 16
        assert 0 < ties <= 16


def test_receives_may_be_called_before_the_sends_as_long_as_the_launch_queue_holds_three_entries_for_a_part() -> None:
    """On streams of their own, and not in a group: a full queue would hold up the thread before it comes to its send."""

    def body(comm: isthmus.Comm) -> float:
        there = vendor()
        x = DeviceArray.of(np.full(1 << 24, 1.0 + comm.rank, np.float32))  # 16 parts
        y = DeviceArray.of(np.zeros(1 << 24, np.float32))
        first, second = there.stream(), there.stream()
        works = [
            comm.recv(y, 1 - comm.rank, stream=first, async_op=True),
            comm.send(x, 1 - comm.rank, stream=second, async_op=True),
        ]
        for work in works:
            work.wait()
        there.synchronize(first)
        return float(y.get()[-1])

    assert run_fleet("nvidia:1,amd:1", body, switches={"QUEUE_DEPTH": "56", "QUEUES": "4"}) == [2.0, 1.0]


@pytest.mark.computes
@pytest.mark.parametrize("fleet", ["nvidia:2@a,amd:1@b,cpu:1@c", "nvidia:1@a,cpu:2@b,nvidia:1@a,amd:2@d"])
def test_slots_that_all_read_and_links_give_the_same_bits(fleet: str) -> None:
    def body(comm: isthmus.Comm) -> tuple[str, bytes]:
        where, total = mine(comm), b""
        for count in (5, 600_001):
            x = np.random.default_rng(comm.rank).standard_normal(count).astype(np.float32)
            where.all_reduce(x, "avg")
            total += x.tobytes()
        return str(comm.explain("all_reduce", nbytes=1 << 20)), total

    slots, links = run_fleet(fleet, body), run_fleet(fleet, body, bridge="tcp")
    assert "slots that all read" in slots[0][0] and "bridged" in links[0][0]
    assert len({total for _, total in slots + links}) == 1


@pytest.mark.computes
def test_a_pool_of_threads_helps_to_reduce_and_changes_no_bit() -> None:
    """ISTHMUS_REDUCE_THREADS, which else depends on the processors that a host has to spare."""

    def body(comm: isthmus.Comm) -> tuple[int, bytes]:
        where, total = mine(comm), b""
        for seed in range(3):
            x = np.random.default_rng(10 * seed + comm.rank).standard_normal(1_500_003).astype(np.float32)
            where.all_reduce(x, "avg")
            total += x.tobytes()
        return isthmus.context_stats()["threads"], total

    for fleet in ("nvidia:1,amd:1", "nvidia:2,cpu:1"):
        alone = run_fleet(fleet, body, env={"ISTHMUS_REDUCE_THREADS": "0"})
        helped = run_fleet(fleet, body, env={"ISTHMUS_REDUCE_THREADS": "2"})
        assert [threads for threads, _ in helped] == [threads + 2 for threads, _ in alone]
        assert len({total for _, total in alone + helped}) == 1, fleet


@pytest.mark.computes
@pytest.mark.product(8)
@pytest.mark.parametrize(
    "fleet",
    [
        "nvidia:1,amd:1",
        "ascend:1,nvidia:1,amd:1",
        "amd:1,cpu:1,nvidia:1",
        "nvidia:1@a,nvidia:1@b",
        "nvidia:2,amd:1",
        "amd:2,cpu:1,nvidia:2",
    ],
)
@pytest.mark.parametrize("switches", [{}, {"SAME_ADDRESS": "1"}, {"QUEUES": "4"}], ids=lambda switches: "".join(switches))
def test_no_processor_touches_what_devices_only_move(fleet: str, switches: dict[str, str]) -> None:
    """A rank's process has no access to the slots in each such operation, and none to receive slots: a touch would end it.

    The devices reach them by another mapping, as they do where they are real. Nothing goes by links in their place. Sums
    are for processors.
    """

    def body(comm: isthmus.Comm) -> list[str]:
        def closed() -> int:
            with open("/proc/self/maps") as maps:
                ranges = [line.split()[0] for line in maps if "memfd:isthmus" in line and " ---s " in line]
            return sum(int(end, 16) - int(begin, 16) for begin, end in (r.split("-") for r in ranges))

        def sent() -> int:
            return sum(link.get("bytes_sent", 0) for link in comm.topology()["links"])

        where, world, me = mine(comm), comm.size, comm.rank
        wrong: list[str] = []
        frames = 20_000  # bytes of all that say where data lies, which is megabytes
        slots = closed()  # for messages, closed all the time
        where.all_gather(np.zeros(3001, np.float32))
        both = closed()
        if (slots == 0) != on_host() or (both <= slots) != on_host():
            wrong.append(f"{slots} bytes closed, and {both} in an operation")

        def moved(what: str, well: bool) -> None:
            """Of an operation that has ended: what it closed is closed until the next one that goes by slots begins."""
            if closed() != both:
                wrong.append(f"{what}: {closed()} bytes closed of {both}")
            if not well:
                wrong.append(what)

        for count in (3001, 1_000_003):  # one chunk, and no one hop; many, and slots are used again
            x = np.arange(count, dtype=np.float32) + me
            everybody = np.stack([np.arange(count, dtype=np.float32) + r for r in range(world)])
            before = sent()
            for root in range(world):
                y = x.copy()
                where.broadcast(y, root)
                moved(f"broadcast from {root} of {count}", (y == everybody[root]).all())
                y = np.zeros((world, count), np.float32)
                where.gather(x, root, **({"out": y} if me == root else {}))
                moved(f"gather to {root} of {count}", me != root or (y == everybody).all())
                y = np.zeros(count, np.float32)
                where.scatter(everybody if me == root else None, root=root, out=y)
                moved(f"scatter from {root} of {count}", (y == everybody[me]).all())
            y = np.zeros((world, count), np.float32)
            where.all_gather(x, y)
            moved(f"all_gather of {count}", (y == everybody).all())
            y = np.zeros((world, count), np.float32)
            where.all_to_all(everybody * (me + 1), y)
            moved(f"all_to_all of {count}", (y == np.stack([everybody[me] * (r + 1) for r in range(world)])).all())
            if sent() - before > frames:
                wrong.append(f"moves of {count}: {sent() - before} bytes went by links")
            y = x.copy()
            where.all_reduce(y)
            if not (y == everybody.sum(axis=0, dtype=np.float32)).all():
                wrong.append(f"all_reduce of {count}")
            if count > 3001 and closed() != slots:  # a part of it is each processor's
                wrong.append(f"all_reduce: {closed()} bytes closed, and receive slots have {slots}")
        if "cpu" in fleet:
            return wrong

        where.all_gather(np.zeros(3001, np.float32))  # closes the slots, which the sum has opened
        before = sent()
        for count in (1, 700, 5000, 100_000, 1_000_003, 3_000_001):  # in one slot, and in more parts than there are slots
            for stream in (None, vendor().stream()):
                x, y = DeviceArray.of(np.arange(count, dtype=np.float32) + me), DeviceArray.of(np.zeros(count, np.float32))
                if stream is None:  # all are asked for before they are sent
                    coming = comm.recv(y, (me - 1) % world, async_op=True)
                    comm.barrier()
                    comm.send(x, (me + 1) % world)
                    coming.wait()
                else:  # sends wait for their slots in the call, receives behind gates or in it
                    with isthmus.group():
                        comm.recv(y, (me - 1) % world, stream=stream)
                        comm.send(x, (me + 1) % world, stream=stream)
                    vendor().synchronize(stream)
                right = (y.get() == np.arange(count, dtype=np.float32) + (me - 1) % world).all()
                moved(f"message of {count}, stream {stream}", right)
        # Small ones, and more than there are slots.
        many = [DeviceArray.of(np.full(1000 + i, 100.0 * me + i, np.float32)) for i in range(40)]
        for stream in (None, vendor().stream()):
            into = [DeviceArray.of(np.zeros(1000 + i, np.float32)) for i in range(40)]
            with isthmus.group():
                for x, y in zip(many, into, strict=True):
                    comm.recv(y, (me - 1) % world, stream=stream)
                    comm.send(x, (me + 1) % world, stream=stream)
            if stream is not None:
                vendor().synchronize(stream)
            for i, y in enumerate(into):
                if not (y.get() == 100.0 * ((me - 1) % world) + i).all():
                    wrong.append(f"message {i} of many, stream {stream}")
        if not 0 < sent() - before <= frames:  # some, or nothing is counted
            wrong.append(f"messages: {sent() - before} bytes went by links")
        return wrong

    switches = {"OWN_MAPPING": "1", **switches}
    environment = {"ISTHMUS_GUARD_SLOTS": "on", "ISTHMUS_GROUP_WAIT_MS": "20000"}
    for wrong in run_fleet(fleet, body, env=environment, switches=switches):
        assert not wrong


@pytest.mark.parametrize("fleet", ["nvidia:1,amd:1", "amd:1,cpu:1"])
def test_a_group_whose_other_side_is_late_fills_the_slots_and_leaves_the_rest_to_links(fleet: str, tmp_path: Path) -> None:
    """With the patience that a group has by default: it ends while the other side has not come, and nothing is lost.

    Twenty parts of 1 MiB, for which there are sixteen slots.
    """
    count = 5 << 20

    def body(comm: isthmus.Comm, ended: Path) -> tuple[bool, float]:
        whole = np.arange(count, dtype=np.float32)
        if comm.rank == 1:
            until(ended.exists, "the end of the other's group")
            y: Any = np.zeros(count, np.float32)
            y, stream = (y, None) if on_host() else (DeviceArray.of(y), vendor().stream())
            with isthmus.group():
                comm.recv(y, 0, stream=stream)
            if stream is not None:
                vendor().synchronize(stream)
            comm.barrier()
            return bool(((y if on_host() else y.get()) == whole).all()), 0
        x, stream = DeviceArray.of(whole), vendor().stream()
        with isthmus.group(async_op=True) as sending:
            comm.send(x, 1, stream=stream)
        ended.touch()
        sending.work.wait()
        vendor().synchronize(stream)
        comm.barrier()
        return True, sum(link.get("bytes_sent", 0) for link in comm.topology()["links"]) / (1 << 20)

    (_, sent), (right, _) = run_fleet(fleet, body, tmp_path / "ended", env={"ISTHMUS_CHUNK_BYTES": "128K"})
    assert right
    assert 4 <= sent < 4.5, f"{sent} MiB went by the link"


@pytest.mark.parametrize(
    "switches",
    [
        {"QUEUES": "4"},
        {"SAME_ADDRESS": "1"},
        {"QUEUE_DEPTH": "8"},
        {"LATENCY_US": "200"},
        {"JITTER_US": "2000", "SEED": "7"},
        {"LOCKING": "0"},
    ],
    ids=lambda switches: ",".join(switches),
)
def test_the_same_on_other_drivers(switches: dict[str, str]) -> None:
    """More queues; unified addresses; a short launch queue, on which a submission waits; slow and unsteady devices."""

    def body(comm: isthmus.Comm) -> float:
        where = mine(comm)
        x = np.full(150_000, float(comm.rank + 1), np.float32)
        for _ in range(3):
            where.all_reduce(x, "max")
            where.broadcast(x, comm.size - 1)
        return float(x[-1])

    for fleet in ("nvidia:2,cpu:1", "nvidia:1,cpu:1"):
        results = run_fleet(fleet, body, switches=switches)
        assert set(results) == {float(len(results))}


def carried_out() -> int:
    """Bytes that this process's simulated device has copied to the host."""
    library = ctypes.CDLL("librehearsal.so")
    library.rehearsal_carried.restype = ctypes.c_ulong
    return int(library.rehearsal_carried(1))


@pytest.mark.parametrize("fleet", ["nvidia:1,amd:1", "amd:1,ascend:1", "nvidia:1,cpu:1"])
@pytest.mark.parametrize("bridge", ["auto", "tcp"])
def test_an_operation_copies_in_while_the_one_before_still_ends(fleet: str, bridge: str, tmp_path: Path) -> None:
    """The other rank calls nothing before this rank has copied the input of both: no result of the first is there."""

    def body(comm: isthmus.Comm, both: Path) -> list[float]:
        make: Any = (lambda host: host) if on_host() else DeviceArray.of
        count = 3 << 17  # three chunks: no copy in waits for a copy out
        comm.barrier()
        x, y = (make(np.full(count, value * (comm.rank + 1), np.float32)) for value in (1, 10))
        if comm.rank == 1:
            until(both.exists, "the copy of both operations' input")
        before = 0 if on_host() else carried_out()
        works = [comm.all_reduce(one, "sum", one, async_op=True) for one in (x, y)]
        if comm.rank == 0:
            until(lambda: carried_out() - before >= 2 * x.nbytes, "the copy of the second operation's input")
            both.touch()
        for work in works:
            work.wait()
        return [float(value) for one in (x, y) for value in (one if on_host() else one.get())[[0, -1]]]

    short = {"ISTHMUS_CHUNK_BYTES": "128K"}
    right = [[3.0, 3.0, 30.0, 30.0]] * 2
    assert run_fleet(fleet, body, tmp_path / "both", bridge=bridge, switches={"QUEUES": "4"}, env=short) == right


def sent_bytes(comm: isthmus.Comm) -> int:
    return sum(link.get("bytes_sent", 0) for link in comm.topology()["links"])


def test_an_operation_exchanges_while_the_device_still_copies_for_the_one_before() -> None:
    """
    Ranks that share no memory, and copies to the device that take their time: the frames of each operation but the first
    go while the one before has not ended. Each rank sends as many bytes as the message has.
    """

    def body(comm: isthmus.Comm) -> tuple[list[bool], list[float]]:
        count = 3 << 17  # three chunks
        arrays = [DeviceArray.of(np.full(count, 10.0**i * (comm.rank + 1), np.float32)) for i in range(4)]
        comm.barrier()
        before = sent_bytes(comm)
        works = [comm.all_reduce(one, "sum", one, async_op=True) for one in arrays]
        over = []
        for i, work in enumerate(works[:-1], 1):
            most = (i + 0.4) * arrays[0].nbytes  # what is beyond these operations' bytes, headers too, is of the next one
            until(lambda of=work, bytes=most: of.done or sent_bytes(comm) - before >= bytes, "the next one's frames")
            over.append(work.done)
        for work in works:
            work.wait()
        return over, [float(value) for one in arrays for value in one.get()[[0, -1]]]

    env, switches = {"ISTHMUS_CHUNK_BYTES": "128K"}, {"QUEUES": "4", "COPY_IN_GBPS": "0.001"}
    right = [3.0 * 10**i for i in range(4) for _ in range(2)]
    ranks = run_fleet("nvidia:1,amd:1", body, bridge="tcp", switches=switches, env=env)
    assert ranks == [([False] * 3, right)] * 2


def test_who_calls_another_operation_is_named_with_the_number_of_the_operation_that_went_ahead() -> None:
    def body(comm: isthmus.Comm) -> str:
        x, y = (DeviceArray.of(np.ones(3 << 17, np.float32)) for _ in range(2))
        comm.barrier()
        try:
            works = [comm.all_reduce(x, "sum", x, async_op=True)]
            works.append(comm.all_reduce(y, "sum" if comm.rank == 0 else "max", y, async_op=True))
            for work in works:
                work.wait()
        except isthmus.MismatchError as error:
            return str(error)
        return "it ended well"

    env, switches = {"ISTHMUS_CHUNK_BYTES": "128K"}, {"QUEUES": "4", "COPY_IN_GBPS": "0.001"}
    for text in run_fleet("nvidia:1,amd:1", body, bridge="tcp", switches=switches, env=env):
        assert "operation #3 of" in text and "sum" in text and "max" in text, text


@pytest.mark.parametrize("count", [1 << 16, 3 << 17], ids=["one chunk", "three"])
def test_on_one_stream_an_operation_reads_what_the_stream_does_behind_the_one_before(count: int) -> None:
    """Behind each operation the stream writes the input of the next: a copy that came early would have the old bytes."""

    def body(comm: isthmus.Comm) -> list[float]:
        stream = vendor().stream()
        arrays = [DeviceArray.of(np.full(count, 99.0, np.float32)) for _ in range(5)]
        inputs = [np.full(count, i * (comm.rank + 1.0), np.float32) for i in range(5)]
        for there in inputs:  # pinned: a copy of plain memory may hold its caller up
            vendor().register(there.ctypes.data, there.nbytes)
        comm.barrier()
        works = []
        for one, there in zip(arrays, inputs, strict=True):
            vendor().copy_in(one.address, there.ctypes.data, one.nbytes, stream)
            works.append(comm.all_reduce(one, "sum", one, stream=stream, async_op=True))
        for work in works:
            work.wait()
        vendor().synchronize(stream)
        for there in inputs:
            vendor().unregister(there.ctypes.data)
        return [float(value) for one in arrays for value in one.get()[[0, -1]]]

    switches = {"QUEUES": "4", "JITTER_US": "2000"}
    row = [3.0 * i for i in range(5) for _ in range(2)]
    assert run_fleet("nvidia:1,amd:1", body, switches=switches) == [row] * 2


@pytest.mark.parametrize("fleet", ["nvidia:1,amd:1", "amd:1,cpu:1"])
def test_an_operation_on_the_result_of_the_one_before_waits_for_it(fleet: str, tmp_path: Path) -> None:
    """The other rank calls nothing before this rank has copied the first input: what did not wait would copy old bytes."""

    def body(comm: isthmus.Comm, copied: Path) -> list[float]:
        make: Any = (lambda host: host) if on_host() else DeviceArray.of
        count = 3 << 17
        comm.barrier()
        x = make(np.full(count, comm.rank + 1, np.float32))
        y, z = (make(np.zeros(count, np.float32)) for _ in range(2))
        if comm.rank == 1:
            until(copied.exists, "the copy of the first input")
        before = 0 if on_host() else carried_out()
        works = [comm.all_reduce(one, "sum", out, async_op=True) for one, out in ((x, y), (y, z), (z, z), (x, y))]
        if comm.rank == 0:
            until(lambda: carried_out() - before >= x.nbytes, "the copy of the first input")
            copied.touch()
        for work in works:
            work.wait()
        return [float(value) for one in (y, z) for value in (one if on_host() else one.get())[[0, -1]]]

    switches = {"QUEUES": "4", "JITTER_US": "2000"}
    assert run_fleet(fleet, body, tmp_path / "copied", switches=switches) == [[3.0, 3.0, 12.0, 12.0]] * 2


@pytest.mark.parametrize("fleet", ["nvidia:2,cpu:1", "amd:2,nvidia:1", "ascend:2,cpu:1"])
@pytest.mark.parametrize("depth", ["1", "2"])
def test_a_launch_queue_of_one_or_two_places_is_enough(fleet: str, depth: str) -> None:
    def body(comm: isthmus.Comm) -> tuple[float, float, float, float]:
        where, world = mine(comm), comm.size
        x = np.full(150_000, comm.rank + 1.0, np.float32)
        few = np.full(8, comm.rank + 1.0, np.float32)
        for _ in range(3):
            where.all_reduce(x, "max")
            where.broadcast(x, world - 1)
            gathered = where.all_gather(np.full(50_000, float(comm.rank), np.float32))
            block = where.reduce_scatter(np.ones((world, 70_001), np.float32))
            where.all_to_all(np.ones((world, 50_000), np.float32))
            where.all_reduce(few, "max")
        return float(x[-1]), float(gathered.sum()) / 50_000, float(block.reshape(-1)[-1]), float(few[0])

    assert run_fleet(fleet, body, switches={"QUEUE_DEPTH": depth}) == [(3.0, 3.0, 3.0, 3.0)] * 3


def test_a_thread_that_allocates_and_frees_all_the_time_hangs_nobody() -> None:
    """Allocation waits for the device with the driver's lock held: nothing that opens a gate may need that lock."""

    def body(comm: isthmus.Comm) -> float:
        if on_host():
            x = np.ones(200_000, np.float32)
            for _ in range(20):
                comm.all_reduce(x, "max")
            return float(x[0])
        there = vendor()
        stop = threading.Event()

        def churn() -> None:
            there.here()
            while not stop.is_set():
                DeviceArray.of(np.zeros(1000, np.float32))

        thread = threading.Thread(target=churn)
        y = DeviceArray.of(np.ones(200_000, np.float32))
        thread.start()
        works = [comm.all_reduce(y, "max", y, async_op=True) for _ in range(20)]
        for work in works:
            work.wait()
        stop.set()
        thread.join()
        return float(y.get()[0])

    for fleet in ("nvidia:1,cpu:1", "nvidia:2,cpu:1", "amd:2,cpu:1"):
        assert set(run_fleet(fleet, body)) == {1.0}


def test_host_memory_on_a_rank_with_a_device() -> None:
    """An object or a count that lives on the host goes through the same communicator."""

    def body(comm: isthmus.Comm) -> Any:
        x = np.full(70_001, float(comm.rank), np.float32)
        inside = comm.split(0 if comm.rank < 2 else 1)
        assert inside is not None
        total = float(comm.all_reduce(x, out=np.empty_like(x))[-1])
        gathered = comm.all_gather(np.array([comm.rank], np.int64)).reshape(-1).tolist()
        within = float(inside.all_reduce(x, out=np.empty_like(x))[0])
        reduced = comm.reduce(x, comm.size - 1, out=np.empty_like(x) if comm.rank == comm.size - 1 else None)
        return total, gathered, within, float(x[0]), None if reduced is None else float(reduced[0])

    for fleet in ("nvidia:2", "nvidia:2,cpu:1"):
        results = run_fleet(fleet, body)
        n = len(results)
        for rank, (total, gathered, within, kept, reduced) in enumerate(results):
            assert (total, gathered, kept) == (n * (n - 1) / 2, list(range(n)), rank)
            assert within == (1.0 if rank < 2 else 2.0)
            assert reduced == (n * (n - 1) / 2 if rank == n - 1 else None)


@pytest.mark.computes
def test_host_memory_larger_than_the_staging_memory_goes_through_a_rank_with_a_device() -> None:
    """Where a library serves it: in pieces, of several operations in flight and of lengths that change."""

    def body(comm: isthmus.Comm) -> Any:
        answers = []
        for count in (3_000_000, 9_000_000, 6_000_000, 10_000_000):
            x = np.full(count, float(comm.rank + 1), np.float32)
            works = [comm.all_reduce(x.copy(), async_op=True) for _ in range(2)]
            answers += [float(work.wait()[-1]) for work in works]
            answers.append(float(comm.broadcast(x, comm.size - 1)[-1]))
        return answers

    for fleet in ("nvidia:2", "amd:2,cpu:1"):
        results = run_fleet(fleet, body, env={"ISTHMUS_STAGING_BYTES": str(32 << 20)})
        n = len(results)
        total = n * (n + 1) / 2
        assert all(answers == [total, total, float(n)] * 4 for answers in results)


def pinned_and_a_stream(comm: isthmus.Comm, way: str, register: bool) -> tuple[bool, list[float]]:
    """Sums of host memory that a stream has still to fill, and that the stream reads behind the call."""
    count = 30_000
    mine = float(comm.rank + 1)
    previous, following = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    if on_host():
        x = np.full(count, mine, np.float32)
        if way == "messages":
            with isthmus.group():
                comm.send(x, following)
                comm.recv(np.empty_like(x), previous)
            return False, []
        for _ in range(2):
            comm.all_reduce(x.copy())
        return False, []
    there = vendor()
    stream = there.stream()
    filled, read = DeviceArray.of(np.full(count, mine, np.float32)), DeviceArray.of(np.zeros(count, np.float32))
    # Pages of their own: one is registered once.
    first, second = (np.frombuffer(mmap.mmap(-1, 4 * count), np.float32) for _ in range(2))
    for x in (first, second):
        if register:
            there.register(x.ctypes.data, x.nbytes)
        comm_of = {"stream": stream, "async_op": way == "async"}
    go_on = there.hold(stream)
    if register:
        for x in (first, second):
            there.copy_out(x.ctypes.data, filled.address, x.nbytes, stream)
    over = threading.Event()

    def call() -> None:
        there.here()
        if way == "messages":
            with isthmus.group():
                comm.send(first, following, stream=stream)
                comm.recv(second, previous, stream=stream)
        elif way == "group":
            with isthmus.group():
                for x in (first, second):
                    comm.all_reduce(x, "sum", x, stream=stream)
        else:
            for x in (first, second):
                work = comm.all_reduce(x, "sum", x, **comm_of)
                assert way != "async" or register or work.done
        over.set()

    thread = threading.Thread(target=call)
    thread.start()
    early = over.wait(0.1)
    if not register:  # what the program itself writes when the stream has come so far
        first[:], second[:] = mine, mine
    go_on()
    thread.join(SOON)
    if register:
        there.copy_in(read.address, second.ctypes.data, read.nbytes, stream)
    there.synchronize(stream)
    got = [float(first[-1]), float(second[0])] + ([float(read.get()[7])] if register else [])
    if register:
        for x in (first, second):
            there.unregister(x.ctypes.data)
    return early, got


@pytest.mark.parametrize("register", [True, False], ids=["pinned", "plain"])
@pytest.mark.parametrize("way", ["call", "async", "group", "messages"])
@pytest.mark.parametrize("fleet", ["nvidia:1,cpu:1", "nvidia:2", "amd:2,nvidia:1", "ascend:1,cpu:1"])
def test_host_memory_that_is_given_with_a_stream_is_ordered_by_it(fleet: str, way: str, register: bool) -> None:
    """By a call that waits; but pinned memory that a library is given is as memory of the device."""
    results = run_fleet(fleet, pinned_and_a_stream, way, register)
    total = sum(range(1, len(results) + 1))
    for rank, (early, got) in enumerate(results):
        sums = [rank + 1, (rank - 1) % len(results) + 1] if way == "messages" else [total, total]
        free = register and way == "async" and not fleet.startswith("ascend") and rank < int(fleet.split(":")[1][0]) > 1
        assert (free or not early) and got in ([], sums + sums[1:] * register)


@pytest.mark.parametrize("fleet", ["nvidia:1,amd:1", "ascend:1,nvidia:1"])
def test_a_captured_stream_is_refused_with_a_reason(fleet: str) -> None:
    """Whatever is called; and the communicator goes on."""

    def body(comm: isthmus.Comm) -> tuple[list[str], float]:
        x = DeviceArray.of(np.ones(1000, np.float32))
        stream = vendor().stream()
        other = 1 - comm.rank
        said = []
        vendor().begin_capture(stream)
        for call in (
            lambda: comm.all_reduce(x, "sum", x, stream=stream),
            lambda: comm.broadcast(x, 0, stream=stream),
            lambda: comm.send(x, other, stream=stream),
            lambda: comm.recv(x, other, stream=stream),
        ):
            try:
                call()
                said.append("accepted")
            except isthmus.UnsupportedError as error:
                said.append(str(error))
        vendor().end_capture(stream)
        after = vendor().stream()
        comm.all_reduce(x, "sum", x, stream=after)
        vendor().synchronize(after)
        return said, float(x.get()[-1])

    for said, total in run_fleet(fleet, body):
        assert [text.split(":")[0] for text in said] == ["all_reduce", "broadcast", "send", "recv"]
        assert all("captured into a graph" in text and "outside of the capture" in text for text in said), said
        assert total == 2.0


def test_waiting_long_does_not_disturb_what_the_program_captures(tmp_path: Path) -> None:
    """Whether the device has failed is asked meanwhile, which a capture for all threads forbids."""

    def body(comm: isthmus.Comm, captured: Path) -> float:
        ones = np.ones(100_000, np.float32)
        if on_host():
            until(lambda: len(list(captured.iterdir())) == comm.size - 1, "the ends of all captures")
            comm.all_reduce(ones)
            return float(ones[-1])
        x, stream = DeviceArray.of(ones), vendor().stream()
        work = comm.all_reduce(x, async_op=True)
        vendor().begin_capture(stream, for_all=True)
        time.sleep(0.5)  # is long: one asks after 0.1 s
        vendor().end_capture(stream)
        (captured / str(comm.rank)).touch()
        work.wait()
        return float(x.get()[-1])

    assert run_fleet("nvidia:1,amd:1,cpu:1", body, tmp_path) == [3.0] * 3


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2"])
def test_a_call_may_need_more_memory_while_the_program_captures(fleet: str) -> None:
    """A capture for all threads forbids to allocate and to pin; Isthmus' own work is no part of it."""

    def body(comm: isthmus.Comm) -> tuple[float, float]:
        x, stream = np.ones(20 << 20, np.float32), vendor().stream()
        vendor().begin_capture(stream, for_all=True)
        y = comm.all_reduce(x)
        other = comm.split(0)
        assert other is not None
        z = other.all_reduce(x[:70_000])
        other.destroy()
        vendor().end_capture(stream)
        return float(y[-1]), float(z[-1])

    assert run_fleet(fleet, body, switches={"MEMORY": str(2 << 30)}) == [(2.0, 4.0)] * 2


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2", "ascend:2"])
def test_what_an_operation_keeps_on_the_device_fits_where_little_is_left(fleet: str) -> None:
    """No power of two has to be free."""

    def body(comm: isthmus.Comm) -> float:
        return float(comm.all_reduce(np.ones(13 << 20, np.float32))[-1])  # 104 MiB on the device, and 56 are there

    assert run_fleet(fleet, body, switches={"MEMORY": str(175 << 20)}) == [2.0] * 2


def test_where_a_call_of_ours_fails_the_program_finds_no_error_of_amds_runtime() -> None:
    """It would take it for its own."""

    def body(comm: isthmus.Comm) -> tuple[str, int]:
        with pytest.raises(isthmus.DeviceError) as failed:
            comm.all_reduce(np.ones(64 << 20, np.float32))
        return str(failed.value), vendor().library.hipGetLastError()

    for text, left in run_fleet("amd:2", body, switches={"MEMORY": str(150 << 20)}, env={"TEST_HIP": "7"}):
        assert "hipMalloc failed with hipErrorOutOfMemory" in text, text
        assert left == 0


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2"])
def test_of_a_group_that_ends_later_no_job_is_left_to_its_thread(fleet: str) -> None:
    """Up to NCCL 2.25: the next group of the thread, or a call behind the thread's end, would run into it."""

    def body(comm: isthmus.Comm) -> list[float]:
        part = comm.split(0)
        assert part is not None
        x, total = DeviceArray.of(np.full(4, comm.rank + 1.0, np.float32)), DeviceArray.of(np.ones(4, np.float32))
        for _ in range(2):
            comm.all_to_all(x, x)
            part.all_reduce(total, "sum", total)
        other = threading.Thread(target=lambda: comm.all_to_all(x, x))
        other.start()
        other.join()
        part.destroy()
        return [*x.get().tolist(), float(total.get()[-1])]

    switches = {"NCCL_VERSION": "22105", "NCCL_GROUP_MS": "20"}
    assert run_fleet(fleet, body, switches=switches) == [[1.0, 1.0, 2.0, 2.0, 4.0]] * 2


@pytest.mark.parametrize("version", ["5", "6", "7"])
def test_every_version_of_amds_runtime(version: str) -> None:
    """They differ in the name of the library and in what they say of a pointer."""

    def body() -> Any:
        from isthmus import _core

        if not on_host():
            vendor()  # opens the version that is tried; Isthmus takes the one that is there
        with isthmus.init() as comm:
            here = mine(comm)
            got = here.all_reduce(np.full(70_000, comm.rank + 1.0, np.float32), "sum")
            host = comm.all_reduce(np.full(10, 1.0), "sum", out=np.empty(10))
            found = [] if on_host() else [d["version"] for d in json.loads(_core.devices()) if d["vendor"] == "hip"]
            return float(got[-1]), float(host[0]), comm.topology()["ranks"][0]["device_name"], found

    for total, ones, name, found in run_fleet("amd:2,cpu:1", body, init=False, env={"TEST_HIP": version}):
        assert (total, ones) == (6.0, 3.0)
        assert all(v.startswith(f"{version}.") for v in found)
        assert name.startswith("Simulated AMD device")


@pytest.mark.parametrize("switch", ["HIP_WAIT_ANYWHERE", "HIP_NO_SIGNAL_MEMORY"])
def test_streams_that_wait_for_other_words(switch: str) -> None:
    """Some of AMD's devices wait only for words that the runtime made; on some there are none, and any pinned word does."""

    def body(comm: isthmus.Comm) -> tuple[float, int]:
        left = 0 if on_host() else vendor().library.hipGetLastError()  # an error that we expected is not the program's
        return float(mine(comm).all_reduce(np.full(70_000, comm.rank + 1.0, np.float32), "sum")[-1]), left

    assert run_fleet("amd:2,cpu:1", body, switches={switch: "1"}) == [(6.0, 0)] * 3


def test_float8_that_is_two_things_is_moved_and_not_reduced() -> None:
    """gfx942 takes the bytes of the float8 types for other numbers than everybody else."""

    def body(comm: isthmus.Comm) -> tuple[set[str], bool]:
        here, said, moved = mine(comm), set(), True
        data = np.arange(600).astype(np.uint8)
        for dtype in ("float8_e4m3fn", "float8_e5m2"):
            x = (data if comm.rank == 0 else np.zeros_like(data)).copy().view(DTYPES[dtype])
            here.broadcast(x, 0)
            every = here.all_gather(x, np.zeros((comm.size, 600), DTYPES[dtype]))
            moved = moved and all((block.view(np.uint8) == data).all() for block in (x, *every))
            reductions: dict[str, Callable[[str], object]] = {
                "all_reduce": lambda op: here.all_reduce(x, op, x),  # noqa: B023
                "reduce": lambda op: here.reduce(x, 0, op),  # noqa: B023
                "reduce_scatter": lambda op: here.reduce_scatter(x, op, x[: 600 // comm.size].copy()),  # noqa: B023
            }
            for name, call in reductions.items():
                for op in ("sum", "avg", "prod", "min", "max"):
                    try:
                        call(op)
                        said.add("reduced")
                    except isthmus.UnsupportedError as error:
                        assert str(error).startswith(f"{name}: ") and f"takes the bytes of {dtype} for" in str(error), error
                        said.add(str(error).replace(f"{name}: ", "").replace(dtype, "float8"))
        return said, moved

    for said, moved in run_fleet("nvidia:1,amd:2", body, switches={"GFX": "942"}):
        assert moved
        (said,) = said  # one sentence for all of them
        assert "rank 1 (hip:0, Simulated AMD device" in said and "fnuz" in said and "rank 0 (cuda:0, " in said, said
        assert "convert to bfloat16" in said
    assert run_fleet("nvidia:1,amd:1", body) == [({"reduced"}, True)] * 2
    for (said,), _ in run_fleet("amd:2", body, switches={"GFX": "942"}):
        assert "rank 0 (hip:0, Simulated AMD device" in said and "fnuz" in said and "rank 1" not in said, said


def test_wrong_memory_is_refused_and_harms_nothing() -> None:
    def body(comm: isthmus.Comm) -> list[str]:
        said = []
        here = DeviceArray.of(np.ones(100, np.float32))
        host = np.ones(100, np.float32)

        def refused(kind: type[Exception], attempt: Any) -> None:
            try:
                attempt()
            except kind as error:
                said.append(str(error))
            else:
                said.append("accepted")

        refused(isthmus.ArgumentError, lambda: comm.all_reduce(here, "sum", host))
        odd = DeviceArray.of(np.ones(100, np.float32))
        odd.read_only = True
        refused(isthmus.ArgumentError, lambda: comm.all_reduce(odd))
        refused(isthmus.UnsupportedError, lambda: comm.all_gather(here))
        comm.all_reduce(here)
        assert here.get()[0] == comm.size
        return said

    for said in run_fleet("nvidia:2", body):
        mixed, read_only, output = said
        assert "send is memory of the device and recv of the host" in mixed
        assert "read-only" in read_only
        assert "out= is needed" in output


def test_device_memory_on_a_rank_of_the_host_is_refused() -> None:
    class Claims:
        shape, dtype = (4,), np.dtype(np.float32)
        __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}  # noqa: RUF012

    with isthmus.init(0, 1) as comm, pytest.raises(isthmus.UnsupportedError, match="set ISTHMUS_DEVICE before init"):
        comm.all_reduce(Claims())
