"""The torch backend on tensors of devices, in rehearsed fleets: one group of several vendors' devices and CPUs.

The tensors are those of isthmus.rehearsal_torch, in the memory that the simulated vendor gives.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import devices
from devices import expect_ways, on_host, vendor
from patience import SOON, patient

pytestmark = pytest.mark.computes

ROOT = Path(__file__).resolve().parents[2]
TOGETHER = "torch devices"
# An interpreter for each rank would take most of its time for `import torch`.
run_fleet = partial(devices.run_fleet, modules=("torch_preloaded",), env={"OMP_NUM_THREADS": "1"})


def start() -> Any:
    """This rank's torch device, with the default group made."""
    import torch
    import torch.distributed as dist

    import isthmus.torch  # noqa: F401

    if on_host():
        device = torch.device("cpu")
    elif "REHEARSAL_FLEET" not in os.environ:  # tests/gpu, on a real one
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
    else:
        from isthmus import rehearsal_torch

        device = torch.device(rehearsal_torch.register())
    dist.init_process_group("isthmus")
    return device


def every_collective() -> int:
    """Checks each on tensors of one's own device, small and large, dense and not; how many were checked."""
    import torch
    import torch.distributed as dist

    import isthmus.torch

    device = start()
    expect_ways(isthmus.torch.topology())
    rank, world = dist.get_rank(), dist.get_world_size()
    ranks = range(world)
    checked = 0

    def same(got: Any, expected: Any) -> None:
        nonlocal checked
        assert got.device.type == device.type
        assert torch.equal(got.cpu(), expected), (got.cpu().flatten()[:4], expected.flatten()[:4])
        checked += 1

    def of(r: int, n: int, dtype: Any) -> Any:
        return (torch.arange(n) % 7 + r).to(dtype)

    for n, dtype in ((3, torch.float32), (1000, torch.int64), (70_000, torch.bfloat16), (120_001, torch.float64)):
        mine, all_of = of(rank, n, dtype).to(device), [of(r, n, dtype) for r in ranks]
        total = torch.stack(all_of).double().sum(0).to(dtype)
        x = mine.clone()
        dist.all_reduce(x)
        same(x, total)
        spread = torch.zeros(n, 3, dtype=dtype, device=device)
        column = spread[:, 1]  # not dense
        column.copy_(mine)
        dist.all_reduce(column, dist.ReduceOp.MAX)
        same(spread, torch.stack([torch.zeros(n, dtype=dtype), all_of[-1], torch.zeros(n, dtype=dtype)], 1))
        x = mine.clone()
        dist.reduce(x, dst=world - 1)
        if rank == world - 1:
            same(x, total)
        x = mine.clone()
        dist.broadcast(x, src=world - 1)
        same(x, all_of[-1])
        pieces = [torch.empty(n, dtype=dtype, device=device) for _ in ranks]
        dist.all_gather(pieces, mine)
        for piece, expected in zip(pieces, all_of, strict=True):
            same(piece, expected)
        whole = torch.empty(n * world, dtype=dtype, device=device)
        dist.all_gather_into_tensor(whole, mine)
        same(whole, torch.cat(all_of))
        uneven = [torch.empty(n + r, dtype=dtype, device=device) for r in ranks]
        dist.all_gather(uneven, of(rank, n + rank, dtype).to(device))
        for r in ranks:
            same(uneven[r], of(r, n + r, dtype))
        block = torch.empty(n, dtype=dtype, device=device)
        dist.reduce_scatter_tensor(block, torch.cat([mine + r for r in ranks]))
        same(block, (total.double() + rank * world).to(dtype))
        dist.reduce_scatter(block, [mine + r for r in ranks])
        same(block, (total.double() + rank * world).to(dtype))
        there = torch.empty(n * world, dtype=dtype, device=device)
        dist.all_to_all_single(there, torch.cat([mine + r for r in ranks]))
        same(there, torch.cat([of(r, n, dtype) + rank for r in ranks]))
        lists = [torch.empty(n, dtype=dtype, device=device) for _ in ranks]
        dist.all_to_all(lists, [mine + r for r in ranks])
        for r in ranks:
            same(lists[r], of(r, n, dtype) + rank)
        gathered = [torch.empty(n, dtype=dtype, device=device) for _ in ranks] if rank == 0 else None
        dist.gather(mine, gathered, dst=0)
        for r, piece in enumerate(gathered or []):
            same(piece, all_of[r])
        dist.scatter(block, [mine + r for r in ranks] if rank == 0 else None, src=0)
        same(block, all_of[0] + rank)
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, {"rank": rank})
    assert [one["rank"] for one in everyone] == list(ranks)
    dist.barrier()
    dist.destroy_process_group()
    return checked


@pytest.mark.product(4)
@pytest.mark.parametrize(
    ("fleet", "bridge"),
    [
        ("nvidia:2", None),
        ("nvidia:1,amd:1", None),
        ("amd:2,cpu:1", None),
        ("nvidia:1,cpu:1,amd:1", "tcp"),
        ("nvidia:2,amd:2", "tcp"),
        ("ascend:2,cpu:1,nvidia:1", None),
    ],
)
def test_every_collective_on_tensors_of_devices(fleet: str, bridge: str | None) -> None:
    checked = run_fleet(fleet, every_collective, bridge=bridge, init=False, timeout=240)
    assert min(checked) >= 4 * 15


def test_wait_holds_the_stream_and_not_the_thread() -> None:
    """The operation stands on the stream that was current; wait() orders the one that is current then."""

    def body() -> Any:
        import torch
        import torch.distributed as dist

        device = start()
        n = 60_000
        dist.all_reduce(torch.ones(n, device=device))  # what a first call brings along has happened
        if on_host():
            got = torch.ones(n)
            dist.all_reduce(got)
            return float(got[0])
        first, second = torch.Stream(device), torch.Stream(device)
        # Nothing may be allocated while a stream is held: the driver would wait for it.
        x, ones, copy = torch.zeros(n, device=device), torch.ones(n, device=device), torch.zeros(n, device=device)
        torch.accelerator.synchronize()
        with first:
            go_on = vendor().hold(first.native_handle)
            x.copy_(ones)
            work = dist.all_reduce(x, async_op=True)
        with second:
            work.wait()
            copy.copy_(x)  # behind the operation, though nobody has waited for it
            held = not work.is_completed()
        go_on()
        second.synchronize()
        return held, float(copy.cpu()[0]), float(copy.cpu()[-1])

    *devices, host = run_fleet("nvidia:1,amd:1,cpu:1", body, init=False, switches={"QUEUES": "4"})
    assert host == 3.0
    assert devices == [(True, 3.0, 3.0)] * 2


def test_what_the_stream_gets_behind_an_asynchronous_collective_runs_beside_it_until_wait() -> None:
    """As with NCCL: DDP goes on with its backward pass while buckets are on their way. A future holds up nothing either."""

    def body() -> Any:
        import torch
        import torch.distributed as dist

        device = start()
        n = 60_000
        dist.all_reduce(torch.ones(n, device=device))  # what a first call brings along has happened
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.wait(["beside"])
            got = torch.full((n,), 2.0, device=device)
            dist.all_reduce(got)
            both = torch.zeros(2 * n, device=device)
            dist.all_gather_into_tensor(both, got)
            return float(both.cpu()[-1])
        stream, later = torch.Stream(device), torch.Stream(device)
        x, ones, y = torch.ones(n, device=device), torch.ones(n, device=device), torch.zeros(n, device=device)
        copy, both = torch.zeros(n, device=device), torch.zeros(2 * n, device=device)
        torch.accelerator.synchronize()
        with stream:
            work = dist.all_reduce(x, async_op=True)
            future = work.get_future()
            y.copy_(ones)
        stream.synchronize()  # the other rank has not called yet
        beside = not work.is_completed()
        store.set("beside", "1")
        with later:
            future.wait()
            copy.copy_(x)
        with stream:
            work.wait()
            gathered = dist.all_gather_into_tensor(both, x, async_op=True)
            gathered.wait()
        for each in (stream, later):
            each.synchronize()
        return beside, float(y.cpu()[-1]), float(copy.cpu()[0]), float(both.cpu()[-1])

    for fleet in ("nvidia:1,amd:1", "amd:1,nvidia:1", "nvidia:2"):
        first, second = run_fleet(fleet, body, init=False, switches={"QUEUES": "4"})
        assert first == (True, 1.0, 3.0, 3.0), fleet
        assert second == 3.0, fleet


def test_a_captured_stream_is_refused_and_the_group_goes_on() -> None:
    def body() -> tuple[list[str], float]:
        import torch
        import torch.distributed as dist

        device = start()
        x, ones = torch.ones(1000, device=device), torch.ones(1000, device=device)
        stream = torch.Stream(device)
        said = []
        with stream:
            vendor().begin_capture(stream.native_handle)
            for call in (
                lambda: dist.all_reduce(x),
                lambda: dist.broadcast(x, 0),
                lambda: dist.send(x, 1 - dist.get_rank()),
            ):
                try:
                    call()
                    said.append("accepted")
                except RuntimeError as error:
                    said.append(str(error))
            vendor().end_capture(stream.native_handle)
        x.copy_(ones)
        dist.all_reduce(x)
        total = float(x.cpu()[-1])
        dist.destroy_process_group()
        return said, total

    for said, total in (*run_fleet("nvidia:1,amd:1", body, init=False), *run_fleet("ascend:2", body, init=False)):
        assert len(said) == 3
        assert all("captured into a graph" in text and "outside of the capture" in text for text in said), said
        assert total == 2.0


def test_a_tensor_that_is_dropped_in_flight_keeps_its_memory_until_the_operation_is_over() -> None:
    """Its place is not given out again, neither on its own stream nor on another."""

    def body() -> list[float]:
        import torch
        import torch.distributed as dist

        device = start()
        rank, n = dist.get_rank(), 300_000
        dist.broadcast(torch.ones(n, device=device), 0)  # what a first call brings along has happened
        got = []
        aside = None if on_host() else torch.Stream(device)
        for turn in range(8):
            x = torch.full((n,), turn + 1.0 if rank == 0 else 0.0, device=device)
            gathered = torch.zeros(n * 3, device=device)
            works = [dist.broadcast(x, 0, async_op=True), dist.all_gather_into_tensor(gathered, x, async_op=True)]
            if rank == 0:
                del x
            others = [torch.full((n,), -1.0, device=device) for _ in range(2)]
            if aside is not None:
                with aside:
                    others += [torch.full((n,), -2.0, device=device) for _ in range(2)]
            for work in works:
                work.wait()
            values = gathered.cpu()
            got += [float(values.min()), float(values.max())]
            assert [float(other.cpu().sum()) / n for other in others[:2]] == [-1.0] * 2
            del others
        dist.destroy_process_group()
        return got

    expected = [float(turn + 1) for turn in range(8) for _ in range(2)]
    slow = {"QUEUES": "4", "JITTER_US": "2000"}
    for fleet in ("nvidia:1,amd:1,cpu:1", "ascend:2,nvidia:1"):
        for got in run_fleet(fleet, body, init=False, switches=slow):
            assert got == expected, fleet


def messages() -> int:
    """Sends and receives in every form that torch has; how many were checked."""
    import torch
    import torch.distributed as dist

    device = start()
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    checked = 0

    def of(r: int, n: int) -> Any:
        return torch.arange(n) % 1000 + 10.0 * r

    def same(got: Any, expected: Any) -> None:
        nonlocal checked
        assert got.device.type == device.type and torch.equal(got.cpu(), expected), (got.cpu()[:4], expected[:4])
        checked += 1

    for n in (1, 5000, 700_000):
        mine = of(rank, n).to(device)
        got = torch.zeros(n, device=device)
        for first in ("send", "recv"):  # in either order, on a device with one queue
            works = []
            for what in (first, "recv" if first == "send" else "send"):
                works.append(dist.isend(mine, after) if what == "send" else dist.irecv(got, before))
            for work in works:
                work.wait()
            same(got * 2, of(before, n) * 2)  # on the stream, behind the message
            got.zero_()
        operations = [dist.P2POp(dist.irecv, got, before), dist.P2POp(dist.isend, mine, after)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(got, of(before, n))
        column = torch.zeros(n, 2, device=device)[:, 1]  # not dense
        if rank == 0:
            for r in range(1, world):
                dist.send(mine, r)
                source = dist.recv(column)  # from any rank
                same(column, of(source, n))
        else:
            dist.recv(got, 0)
            same(got, of(0, n))
            dist.send(mine, 0)
        work = dist.irecv(got, before, tag=5)
        dist.send(mine, after, tag=5)
        work.wait()
        same(got, of(before, n))
    dist.barrier()
    dist.destroy_process_group()
    return checked


@pytest.mark.parametrize(
    "fleet", ["nvidia:2", "nvidia:1,amd:1", "amd:1,cpu:1,nvidia:1", "ascend:2", "ascend:1,cpu:1,nvidia:1"]
)
def test_messages_of_tensors_of_devices(fleet: str) -> None:
    assert min(run_fleet(fleet, messages, init=False, timeout=240)) >= 3 * 5


@pytest.mark.parametrize("fleet", ["nvidia:2", "nvidia:1,amd:1,cpu:1", "ascend:2"])
@pytest.mark.parametrize("queues", ["1", "4"])
def test_a_receive_into_a_tensor_that_is_not_dense_holds_up_no_send_behind_it(fleet: str, queues: str) -> None:
    def body() -> None:
        import torch
        import torch.distributed as dist

        device = start()
        rank, world = dist.get_rank(), dist.get_world_size()
        after, before = (rank + 1) % world, (rank - 1) % world
        for n in (3, 5000, 700_000):
            spread = torch.zeros(n, 2, device=device)
            mine = torch.full((n,), 1.0 + rank, device=device)
            works = [dist.irecv(spread[:, 1], before), dist.isend(mine, after)]
            for work in works:
                work.wait()
            expected = torch.stack([torch.zeros(n), torch.full((n,), 2.0 * (1 + before))], 1)
            assert torch.equal((spread * 2).cpu(), expected)
            work = dist.irecv(spread[:, 0], before, tag=1)
            dist.isend(mine, after, tag=1).wait()
            assert work.get_future_result().wait() == 0 and work.is_completed()
            assert torch.equal(spread[:, 0].cpu(), torch.full((n,), 1.0 + before))
        dist.barrier()
        dist.destroy_process_group()

    run_fleet(fleet, body, init=False, switches={"QUEUES": queues})


@pytest.mark.parametrize("fleet", ["nvidia:1,amd:1,cpu:1", "ascend:2,nvidia:1"])
@pytest.mark.parametrize("queues", ["1", "4"])
def test_futures_hooks_and_blocks(fleet: str, queues: str) -> None:
    def body() -> list[float]:
        import torch
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _coalescing_manager

        device = start()
        world = dist.get_world_size()
        got = []
        x = torch.ones(50_000, device=device)
        work = dist.all_reduce(x, async_op=True)
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        doubled.wait()
        got.append(float(doubled.value()[0].cpu()))
        assert work.get_future_result().wait() == 0
        assert work.is_completed() and work.result()[0] is not None
        parts = [torch.full((1000 * (i + 1),), 1.0, device=device) for i in range(3)]
        with _coalescing_manager(device=device):
            for part in parts:
                dist.all_reduce(part)
        got += [float(part.sum().cpu()) / len(part) for part in parts]
        work = dist.all_reduce(x, async_op=True)
        assert work.wait(torch.distributed.distributed_c10d.timedelta(seconds=SOON)) and work.is_completed()
        dist.destroy_process_group()
        return [value / world for value in got]

    assert run_fleet(fleet, body, init=False, switches={"QUEUES": queues}) == [[2.0, 1.0, 1.0, 1.0]] * 3


@pytest.mark.parametrize(("maker", "name"), [("nvidia", "cuda"), ("amd", "hip"), ("ascend", "acl")])
def test_what_cannot_be_is_refused_by_name(maker: str, name: str) -> None:
    def body() -> list[str]:
        import torch
        import torch.distributed as dist

        device = start()
        said = []

        def refused(attempt: Any) -> None:
            try:
                attempt()
                said.append("accepted")
            except (RuntimeError, ValueError) as error:
                said.append(str(error))

        x = torch.ones(10, device=device)
        other = torch.device("rehearsal", 1 - x.device.index)
        y = torch.ones(10, device=other)
        refused(lambda: dist.all_gather([torch.ones(10), x], x))
        refused(lambda: dist.all_gather([y, x], x))
        refused(lambda: dist.all_reduce(y))
        refused(lambda: dist.send(y, 1 - dist.get_rank()))
        dist.all_reduce(x)  # and goes on
        said.append(str(float(x[0].cpu())))
        return said

    for mixed, two, elsewhere, sent, after in run_fleet(f"{maker}:2", body, init=False, switches={"DEVICES": "2"}):
        assert "tensors on" in mixed and "in one call" in mixed, mixed
        assert "tensors on" in two and "rehearsal:0" in two and "rehearsal:1" in two, two
        for said in (elsewhere, sent):
            assert re.search(rf"is memory of {name}:[01], and this rank works on {name}:[01]", said), said
        assert after == "2.0"


def test_a_tensor_of_a_device_on_a_rank_of_the_host_is_refused() -> None:
    def body() -> str:
        import torch
        import torch.distributed as dist

        import isthmus.torch  # noqa: F401
        from isthmus import rehearsal_torch

        device = rehearsal_torch.register()
        os.environ["ISTHMUS_DEVICE"] = "host"
        dist.init_process_group("isthmus")
        try:
            dist.all_reduce(torch.ones(10, device=device))
        except RuntimeError as error:
            return str(error)
        return "accepted"

    for said in run_fleet("nvidia:2", body, init=False):
        assert "a tensor on rehearsal:0 was passed, and this rank works on host memory" in said, said
        assert "ISTHMUS_DEVICE" in said


@pytest.mark.parametrize(
    ("current", "local", "ranks", "rocm", "chosen"),
    [
        (2, None, None, None, "cuda:2"),  # torch.cuda.set_device(2)
        (0, "1", "2", None, "cuda:0"),  # set_device(0): the program's own choice
        (1, None, None, "6.3", "hip:1"),
        (None, "3", "4", None, "cuda:3"),  # nothing was chosen: the launcher has one rank a device
        (None, "3", "8", None, None),
        (None, None, None, None, None),
    ],
)
def test_the_ranks_device_is_torchs_or_the_launchers(
    monkeypatch: pytest.MonkeyPatch,
    current: int | None,
    local: str | None,
    ranks: str | None,
    rocm: str | None,
    chosen: str | None,
) -> None:
    import torch

    import isthmus.torch as face

    monkeypatch.delenv("ISTHMUS_DEVICE", raising=False)
    for name, value in (("LOCAL_RANK", local), ("LOCAL_WORLD_SIZE", ranks)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    assert face._device(None) is None or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: current is not None)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.version, "hip", rocm)
    assert face._device(None) == chosen
    assert face._device(face.Options(settings="CCL=none; isthmus_device=host")) is None
    assert face._device(face.Options(settings="CCL=none")) == chosen
    # The same of Huawei's extension of torch, where it is the one that has devices.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert face._device(None) is None
    npu = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: current is not None,
        _is_in_bad_fork=lambda: False,
        current_device=lambda: current,
        device_count=lambda: 4,
    )
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    assert face._device(None) == (f"acl:{chosen.split(':')[1]}" if chosen else None)
    monkeypatch.setenv("ISTHMUS_DEVICE", "host")
    assert face._device(None) is None


def test_a_rank_that_is_lost_ends_the_operation_of_the_others() -> None:
    def body() -> str:
        import torch
        import torch.distributed as dist

        device = start()
        x = torch.ones(80_000, device=device)
        try:
            for turn in range(200):
                dist.all_reduce(x, dist.ReduceOp.MAX)
                if turn == 3 and dist.get_rank() == 1:
                    os.kill(os.getpid(), 9)
                x[0].item()  # no call waits for the device, so all might be over before the loss is noticed
        except RuntimeError as error:
            return str(error)
        return "nothing was lost"

    first, lost, last = run_fleet("nvidia:1,amd:1,cpu:1", body, init=False, expect={1: -9})
    assert lost is None
    assert "rank 1" in first and "rank 1" in last


def data_parallel() -> tuple[list[float], float]:
    """Trains; this rank's parameters, and by how much its loss went down."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = start()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=0.005)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(8):
        x = torch.randn(16, 20, generator=generator).to(device)
        loss = torch.nn.functional.cross_entropy(model(x), x.argmax(1) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parameters = torch.cat([p.detach().cpu().flatten() for p in model.parameters()]).tolist()
    dist.destroy_process_group()
    return parameters, losses[0] - losses[-1]


def sharded() -> tuple[list[float], list[float], bool]:
    """A training by FSDP2 on a mesh of ranks on devices and on the CPU, each on batches of its own: what the parameters have
    become; what those of the whole model become on the CPU, on all ranks' batches; whether each shard is on its device."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    device = start()
    world = dist.get_world_size()

    def new_model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))

    def loss_of(model: Any, rank: int, step: int, where: Any) -> Any:
        x = torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * rank + step)).to(where)
        return torch.nn.functional.cross_entropy(model(x), x.argmax(1) % 3)

    def train(model: Any, loss: Callable[[int], Any]) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()
            loss(step).backward()
            optimizer.step()

    whole, model = new_model(), new_model().to(device)
    train(whole, lambda step: sum(loss_of(whole, rank, step, "cpu") for rank in range(world)) / world)
    mesh = DeviceMesh(device.type, list(range(world)))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    train(model, lambda step: loss_of(model, dist.get_rank(), step, device))
    there = all(p.to_local().device.type == device.type for p in model.parameters())
    parameters = torch.cat([p.full_tensor().detach().cpu().flatten() for p in model.parameters()]).tolist()
    dist.destroy_process_group()
    return parameters, torch.cat([p.detach().flatten() for p in whole.parameters()]).tolist(), there


def test_data_parallel_training_gives_all_ranks_the_same_bits() -> None:
    """Also buffers, gradient buckets and an optimizer's state live on each rank's own device."""
    results = run_fleet("nvidia:2,amd:1,cpu:1", data_parallel, init=False)
    assert all(parameters == results[0][0] and gained > 0 for parameters, gained in results)


def the_failure_of_a_device() -> str:
    """What a rank is told when a copy of Isthmus' to or from the device of rank 0 cannot be submitted."""
    import torch
    import torch.distributed as dist

    device = start()
    x = torch.ones(100_000, device=device)
    try:
        for _ in range(40):
            dist.all_reduce(x)
        dist.barrier()
    except dist.DistBackendError as error:
        return str(error)
    return "nothing failed"


def test_a_failure_of_a_device_is_a_backend_error_that_says_so() -> None:
    fault = {"FAIL": "cuStreamWaitValue64:9:719"}
    for said in run_fleet("nvidia:1,cpu:1", the_failure_of_a_device, init=False, switches=fault):
        assert said.startswith("isthmus: device error - ") and "rank 0" in said and "(719" in said, said


def test_the_example_runs_on_cpus_too() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(ROOT / "examples" / "train_digits.py"), "--islands", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    limits: dict[str, Any] = {"timeout": patient(270), "stdin": subprocess.DEVNULL}
    ended = subprocess.run(command, text=True, capture_output=True, env=environment, **limits)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert "all ranks hold identical bits" in ended.stdout and "tcp" in ended.stdout


def the_example(where: str = "") -> tuple[str, object]:
    """One epoch of it on this rank, which takes `where`, if given, for its device: what it says, and how it ends."""
    import contextlib
    import io

    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(ROOT / "examples"))
    import train_digits

    train_digits.EPOCHS = 1
    if where:
        train_digits.device_of = lambda _: torch.device(where)
    sys.argv = ["train_digits.py", "--device", "auto"]
    said = io.StringIO()
    end: object
    with contextlib.redirect_stdout(said):
        try:
            end = train_digits.main()
        except SystemExit as error:
            end = error.code
            dist.barrier()  # nobody leaves while another still makes the group
            dist.destroy_process_group()
    return said.getvalue(), end


def test_the_example_trains_on_each_ranks_own_device_and_says_so() -> None:
    said, _ = run_fleet("nvidia:1,ascend:1,cpu:1", the_example, init=False)[0]
    for rank, where in enumerate(["rehearsal:0", "rehearsal:0", "cpu"]):
        assert re.search(rf"^  rank {rank}: parameters [0-9a-f]{{32}} on {where}$", said, re.MULTILINE), said
    assert "all ranks hold identical bits" in said


def test_the_example_makes_one_island_of_cpus() -> None:
    said, _ = run_fleet("cpu:4", the_example, init=False)[0]
    assert "all ranks hold identical bits" in said and "tcp" not in said, said


def test_the_example_ends_where_its_tensors_are_not_on_the_ranks_device() -> None:
    ends = [end for _, end in run_fleet("nvidia:1,amd:1", the_example, "cpu", init=False)]
    why = "rank {} works on {}, and its parameters are on cpu"
    assert ends == [why.format(0, "cuda:0"), why.format(1, "hip:0")]
