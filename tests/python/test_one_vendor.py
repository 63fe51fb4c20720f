"""One vendor means that vendor: where one library serves all ranks, device memory is touched by the library's calls alone.

The simulation counts the calls by name, and the bytes that copies carry between devices and the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import devices
import isthmus
from devices import DeviceArray, left_over, on_host, run_fleet, vendor
from events import until
from reference import DTYPES

COUNT = 300_000  # elements of float32: no small form, and several chunks where there is a bridge
NAMES = {
    "nccl": "AllReduce Reduce Broadcast AllGather ReduceScatter Send Recv GroupStart GroupEnd".split(),
    "Hccl": "AllReduce Reduce Broadcast AllGather ReduceScatter AlltoAll Send Recv BatchSendRecv".split(),
}
Calls = dict[str, int]


def prefix() -> str:
    return "Hccl" if vendor().family == "hccl" else "nccl"


class Watch:
    """What the simulated driver and library have done for this process since the last look."""

    def __init__(self) -> None:
        self.engine = ctypes.CDLL("librehearsal.so")
        self.engine.rehearsal_calls.restype = self.engine.rehearsal_carried.restype = ctypes.c_ulong

    def reset(self) -> None:
        self.engine.rehearsal_reset_calls()

    def calls(self) -> Calls:
        counts = {name: int(self.engine.rehearsal_calls(f"{prefix()}{name}".encode())) for name in NAMES[prefix()]}
        return {name: count for name, count in counts.items() if count}

    def carried(self) -> tuple[int, int]:
        """Bytes from the device to the host, and to the device."""
        return int(self.engine.rehearsal_carried(1)), int(self.engine.rehearsal_carried(0))


def operations(comm: isthmus.Comm) -> dict[str, Callable[[], Any]]:
    """Every collective, on memory that lies on the device before it is called."""
    n, me, root = comm.size, comm.rank, 1
    block, other = (DeviceArray.of(np.full(COUNT, me + 1.0, np.float32)) for _ in range(2))
    whole, into = (DeviceArray.of(np.ones(COUNT * n, np.float32)) for _ in range(2))
    counts = [COUNT // (r + 1) for r in range(n)]
    mine, rest = block.part(0, counts[me]), other.part(0, counts[me])
    all_of = whole.part(0, sum(counts))
    there = into.part(0, sum(counts))
    # From rank r to rank q, as much as the other way round.
    both = [COUNT // (me + q + 1) for q in range(n)]
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: comm.all_reduce(block, "sum", other),
        "reduce": lambda: comm.reduce(block, root, "max", other if me == root else None),
        "broadcast": lambda: comm.broadcast(block, root),
        "all_gather": lambda: comm.all_gather(block, into),
        "reduce_scatter": lambda: comm.reduce_scatter(whole, "sum", other),
        "all_to_all": lambda: comm.all_to_all(whole, into),
        "all_to_all in place": lambda: comm.all_to_all(whole, whole),
        "all_to_all_v": lambda: comm.all_to_all_v(whole.part(0, sum(both)), both, both, into.part(0, sum(both))),
        "gather": lambda: comm.gather(block, root, into if me == root else None),
        "scatter": lambda: comm.scatter(whole if me == root else None, root, other),
        "gather_v": lambda: comm.gather_v(mine, counts, root, there if me == root else None),
        "scatter_v": lambda: comm.scatter_v(all_of if me == root else None, counts, root, rest),
        "all_gather_v": lambda: comm.all_gather_v(mine, counts, there),
        "reduce_scatter_v": lambda: comm.reduce_scatter_v(all_of, counts, "sum", rest),
    }
    if prefix() == "nccl":  # no library of Huawei's multiplies
        calls["all_reduce of multiplied numbers"] = lambda: comm.all_reduce(block, "premul_sum", other, scale=me + 1.0)
        calls["reduce_scatter of multiplied numbers"] = lambda: comm.reduce_scatter(whole, "premul_sum", other, scale=0.5)
        calls["reduce_scatter_v of multiplied numbers"] = lambda: comm.reduce_scatter_v(
            all_of, counts, "premul_sum", rest, scale=0.5
        )
    return calls


def library_calls(name: str, n: int, root: bool) -> Calls:
    """What the library is asked for, on a root and elsewhere."""
    single = {"all_reduce": "AllReduce", "reduce": "Reduce", "broadcast": "Broadcast", "all_gather": "AllGather"}
    single["reduce_scatter"] = "ReduceScatter"
    base = name.split(" ")[0]
    if base in single:
        return {single[base]: 1}
    several = {"all_gather_v": "Broadcast", "reduce_scatter_v": "Reduce"}
    if prefix() == "Hccl":
        return {several[base]: n} if base in several else {"AlltoAll" if base == "all_to_all" else "BatchSendRecv": 1}
    group = {"GroupStart": 1, "GroupEnd": 1}
    if base in several:
        return {several[base]: n, **group}
    if base.startswith("all_to_all"):
        return {"Send": n, "Recv": n, **group}
    many, one = ("Recv", "Send") if base.startswith("gather") else ("Send", "Recv")
    return {many: n - 1, **group} if root else {one: 1, **group}


def counted(comm: isthmus.Comm) -> dict[str, tuple[Calls, Calls, tuple[int, int]]]:
    watch, found = Watch(), {}
    for name, call in operations(comm).items():
        call()  # the first one may allocate
        comm.barrier()
        watch.reset()
        call()
        found[name] = watch.calls(), library_calls(name, comm.size, comm.rank == 1), watch.carried()
        comm.barrier()
    return found


@pytest.mark.parametrize("fleet", ["nvidia:3", "amd:2", "ascend:3"])
def test_every_collective_of_one_vendors_ranks_is_calls_of_its_library_alone(fleet: str) -> None:
    for found in run_fleet(fleet, counted):
        assert len(found) == (14 if fleet.startswith("ascend") else 17)
        for name, (made, expected, carried) in found.items():
            assert made == expected, name
            assert carried == (0, 0), f"{name}: no byte goes by the host"


@pytest.mark.parametrize("fleet", ["nvidia:2", "ascend:2"])
def test_without_the_library_the_same_bytes_go_by_the_host(fleet: str) -> None:
    """The control of the test above."""

    def body() -> dict[str, tuple[Calls, Calls, tuple[int, int]]]:
        with isthmus.init(settings={"CCL": "none"}) as comm:
            return counted(comm)

    for found in run_fleet(fleet, body, init=False):
        for name, (made, _, (out, back)) in found.items():
            assert not made, name
            assert out + back >= 4 * COUNT // 3, name


def exchanged(comm: isthmus.Comm) -> dict[str, tuple[Calls, tuple[int, int]]]:
    names = ("all_to_all", "all_to_all_v", "gather", "scatter", "gather_v", "scatter_v")
    watch, calls, found = Watch(), operations(comm), {}
    for name in names:
        calls[name]()
        comm.barrier()
        watch.reset()
        calls[name]()
        comm.barrier()
        found[name] = watch.calls(), watch.carried()
    return found


@pytest.mark.parametrize("fleet", ["nvidia:2,amd:2", "ascend:2,nvidia:2"])
@pytest.mark.parametrize("bridge", ["auto", "tcp"])
def test_of_two_vendors_blocks_only_those_that_leave_their_island_touch_the_host(fleet: str, bridge: str) -> None:
    """Each once, on its way out of a device or into one. What stays among ranks 0 and 1, or 2 and 3, is their library's."""
    root, inside = 1, ((0, 1), (2, 3))
    for me, found in enumerate(run_fleet(fleet, exchanged, bridge=bridge)):
        beyond = inside[1 - me // 2]
        of_root, at_root = root not in beyond, me == root
        both = 4 * sum(COUNT // (me + q + 1) for q in beyond)
        fixed = 4 * COUNT * len(beyond)
        varying = 4 * sum(COUNT // (q + 1) for q in beyond)
        own, own_v = (0, 0) if of_root else (4 * COUNT, 4 * (COUNT // (me + 1)))
        assert {name: carried for name, (_, carried) in found.items()} == {
            "all_to_all": (fixed, fixed),
            "all_to_all_v": (both, both),
            "gather": (own, fixed if at_root else 0),
            "scatter": (fixed if at_root else 0, own),
            "gather_v": (own_v, varying if at_root else 0),
            "scatter_v": (varying if at_root else 0, own_v),
        }
        for name, (calls, _) in found.items():
            assert bool(calls) == (of_root or name.startswith("all_to_all")), (name, calls)


def values(comm: isthmus.Comm) -> None:
    """A reduction of numbers that each rank has multiplied: by its own factor, of every type that the library has."""
    n, me = comm.size, comm.rank
    dtypes = ["float32", "float64", "float16", "bfloat16", "int8", "int32", "uint64"]
    for dtype in dtypes:
        x = DeviceArray.of((np.arange(5000) % 3).astype(np.float32).astype(DTYPES[dtype]))
        for factors in ([2.0, 3.0, 4.0], [1.0, 1.0, 5.0]):  # and another one of the same type
            out = DeviceArray.of(np.zeros(5000, np.float32).astype(DTYPES[dtype]))
            comm.all_reduce(x, "premul_sum", out, scale=factors[me])
            total = sum(factors[:n]) * (np.arange(5000) % 3)
            assert (out.get().astype(np.float64) == total).all(), (dtype, factors)


@pytest.mark.parametrize("fleet", ["nvidia:3", "amd:2"])
def test_the_library_multiplies_by_each_ranks_own_factor(fleet: str) -> None:
    run_fleet(fleet, values)


def beside_a_gate(comm: isthmus.Comm, told: Path) -> bool:
    """Whether an operation that crosses was still at its gate when one of the island's alone had ended."""
    ones = np.ones(COUNT, np.float32)
    inside = comm.split(0 if comm.rank < 2 else 1)
    assert inside is not None
    if on_host():
        comm.all_reduce(ones.copy())
        until(lambda: len(list(told.iterdir())) == 2, "the ends of the island's operations")
        comm.all_reduce(ones)  # the others' gates open behind it
        return True
    crossing, block, whole = (DeviceArray.of(np.resize(ones, COUNT * n)) for n in (1, 1, 2))
    stream = vendor().stream()
    comm.all_reduce(crossing)  # the first ones may allocate, and allocating waits for the device
    inside.all_gather(block, whole, stream=stream)
    vendor().synchronize(stream)
    late = comm.all_reduce(crossing, async_op=True)
    inside.all_gather(block, whole, async_op=True, stream=stream, timeout=30).wait()
    vendor().synchronize(stream)
    still = not late.done
    (told / str(comm.rank)).touch()
    late.wait()
    vendor().end_stream(stream)
    return still and bool((crossing.get() == 7).all())


@pytest.mark.parametrize("fleet", ["nvidia:2,cpu:1", "amd:2,cpu:1"])
def test_an_islands_operation_ends_while_another_communicators_gate_is_shut(fleet: str, tmp_path: Path) -> None:
    """Where the device has queues for both streams: the prefetch of FSDP beside the sum of gradients."""
    assert run_fleet(fleet, beside_a_gate, tmp_path, switches={"QUEUES": "4"}) == [True] * 3


def many_communicators(made: int) -> tuple[int, int, list[float], int]:
    """Streams that this process has with one communicator and with more, what all gave, and what is left behind them."""
    with isthmus.init() as comm:
        engine = ctypes.CDLL("librehearsal.so")
        engine.rehearsal_live.restype = ctypes.c_size_t
        before = int(engine.rehearsal_live(b"stream"))
        x = DeviceArray.of(np.full(COUNT, comm.rank + 1.0, np.float32))
        parts = [comm.split(0) for _ in range(made)]
        after = int(engine.rehearsal_live(b"stream"))
        outs = [DeviceArray.of(np.zeros(COUNT, np.float32)) for _ in parts]
        works = [part.all_reduce(x, "sum", out, async_op=True) for part, out in zip(parts, outs, strict=True) if part]
        for work in works:
            work.wait()
        sums = [float(out.get()[-1]) for out in outs]
        for part in parts:
            if part:
                part.destroy()
    left = left_over(made + 1)
    return before, after, sums, left["stream"]


@pytest.mark.parametrize("fleet", ["nvidia:2", "amd:2", "ascend:2"])
def test_sixteen_communicators_of_one_vendor_have_streams_and_the_others_share_them(fleet: str) -> None:
    """The second stream, for what the library does not do, is everybody's."""
    for before, after, sums, left in run_fleet(fleet, many_communicators, 20, init=False):
        second = 0 if fleet.startswith("ascend") else 1  # a device without gates runs nothing beside
        assert (before, after) == (1 + second, 16 + second)
        assert sums == [3.0] * 20
        assert left == 0


def lists() -> dict[str, tuple[Calls, tuple[int, int]]]:
    """The forms of torch whose tensors lie apart, and are of unequal sizes where they may."""
    import torch
    import torch.distributed as dist

    from test_torch_devices import start

    device = start()
    rank, world = dist.get_rank(), dist.get_world_size()
    ranks, watch, found = range(world), Watch(), {}

    def tensors(sizes: Any) -> list[Any]:
        return [torch.full((size,), 1.0, device=device) for size in sizes]

    same, uneven = [COUNT] * world, [COUNT // (r + 1) for r in ranks]
    both = [COUNT // (rank + q + 1) for q in ranks]
    mine, *_ = tensors([COUNT])
    pieces, unequal, own = tensors(same), tensors(uneven), tensors([uneven[rank]])[0]
    given, taken = tensors(both), tensors(both)
    root = rank == 0
    for name, call in {
        "all_gather": lambda: dist.all_gather(pieces, mine),
        "all_gather, unequal": lambda: dist.all_gather(unequal, own),
        "reduce_scatter": lambda: dist.reduce_scatter(mine, pieces),
        "all_to_all": lambda: dist.all_to_all(taken, given),
        "gather": lambda: dist.gather(mine, pieces if root else None, dst=0),
        "scatter": lambda: dist.scatter(mine, pieces if root else None, src=0),
    }.items():
        call()
        dist.barrier()
        torch.rehearsal.synchronize()
        watch.reset()
        call()
        torch.rehearsal.synchronize()
        found[name] = watch.calls(), watch.carried()
        dist.barrier()
    dist.destroy_process_group()
    return found


def test_the_lists_of_torch_are_the_librarys_too() -> None:
    pytest.importorskip("torch")
    run_torch = partial(devices.run_fleet, modules=("torch_preloaded",), env={"OMP_NUM_THREADS": "1"})
    for rank, found in enumerate(run_torch("nvidia:2", lists, init=False)):
        group = {"GroupStart": 1, "GroupEnd": 1}
        assert {name: calls for name, (calls, _) in found.items()} == {
            "all_gather": {"Broadcast": 2, **group},
            "all_gather, unequal": {"Broadcast": 2, **group},
            "reduce_scatter": {"Reduce": 2, **group},
            "all_to_all": {"Send": 2, "Recv": 2, **group},
            "gather": {"Recv" if rank == 0 else "Send": 1, **group},
            "scatter": {"Send" if rank == 0 else "Recv": 1, **group},
        }
        assert {carried for _, carried in found.values()} == {(0, 0)}
