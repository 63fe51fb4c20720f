"""What people build on torch.distributed: DDP, FSDP2, DTensor, meshes, objects, checkpoints, functional collectives."""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import torch_ranks

TOGETHER = "torch"  # whose ranks are forked by one server


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.sin(torch.arange(5 * 8, dtype=torch.float32).view(5, 8) * (rank + 1) + step)


def bits_agree(model: nn.Module) -> bool:
    """Whether all ranks hold the same parameter bits."""
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    out = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(out, flat)
    return all(o.view(torch.int32).equal(flat.view(torch.int32)) for o in out)


def trained_alone(world: int, steps: int) -> list[torch.Tensor]:
    """Parameters after the same steps in one process, on the mean of the ranks' losses."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(model(batch(r, step)).square().mean() for r in range(world)) / world).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def check_ddp() -> None:
    """Trains with the default group, as one process would with the mean of the losses."""
    ddp = nn.parallel.DistributedDataParallel(small_model(), bucket_cap_mb=0.0002)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        ddp(batch(dist.get_rank(), step)).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close([p.detach() for p in ddp.parameters()], trained_alone(dist.get_world_size(), 4))
    assert bits_agree(ddp)


def test_ddp_trains_as_one_process_does() -> None:
    torch_ranks.run(3, check_ddp)


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """48 of them, each with the process that made it."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.sin(torch.arange(8, dtype=torch.float32) * (i + 1)), os.getpid()


def test_a_loop_trains_on_data_of_workers_that_fork_while_the_group_lives() -> None:
    """Each epoch forks its own workers from a process whose communicator has threads, memory and connections. They die with
    the epoch and take nothing of it with them."""

    def body() -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        model, alone = small_model(), small_model()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, alone)]
        samples = Samples()
        sampler: DistributedSampler[int] = DistributedSampler(samples, world, rank, shuffle=False)  # rank, rank + world, ...
        loader = DataLoader(samples, batch_size=4, sampler=sampler, num_workers=2, multiprocessing_context="fork")
        made_by = set()
        for _ in range(2):
            for step, (x, pids) in enumerate(loader):
                made_by |= set(pids.tolist())
                first = step * 4 * world
                everyones = torch.stack([samples[i][0] for i in range(first, first + 4 * world)])
                for optimizer, m, data in zip(optimizers, (model, alone), (x, everyones), strict=True):
                    optimizer.zero_grad()
                    m(data).square().mean().backward()
                    if m is model:
                        for p in m.parameters():
                            dist.all_reduce(p.grad, dist.ReduceOp.AVG)
                    optimizer.step()
        assert len(made_by) == 4 and os.getpid() not in made_by
        torch.testing.assert_close(list(model.parameters()), list(alone.parameters()))
        assert not torch.equal(next(model.parameters()), next(small_model().parameters())), "nothing was learnt"
        assert bits_agree(model)

    torch_ranks.run(2, body)


def test_ddp_skips_synchronisation_on_demand_and_joins_uneven_inputs() -> None:
    def body() -> None:
        rank = dist.get_rank()
        ddp = nn.parallel.DistributedDataParallel(small_model())
        with ddp.no_sync():
            ddp(batch(rank)).sum().backward()
        ddp(batch(rank)).sum().backward()
        assert bits_agree(ddp)
        with ddp.join():
            for step in range(1 + 2 * rank):
                ddp(batch(rank, step)).sum().backward()

    torch_ranks.run(2, body)


def test_ddp_runs_a_communication_hook_on_our_futures() -> None:
    def body() -> None:
        calls = []

        def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with types, and they are strings here
            calls.append(bucket.index())
            x = bucket.buffer().to(torch.bfloat16)
            future = dist.all_reduce(x, async_op=True).get_future()
            return future.then(lambda f: f.value()[0].float() / dist.get_world_size())

        ddp = nn.parallel.DistributedDataParallel(small_model(), bucket_cap_mb=0.0002)
        ddp.register_comm_hook(None, hook)
        for step in range(3):
            ddp(batch(dist.get_rank(), step)).sum().backward()
        assert len(calls) >= 3
        grads = torch.cat([p.grad.reshape(-1) for p in ddp.parameters() if p.grad is not None])
        out = [torch.empty_like(grads) for _ in range(2)]
        dist.all_gather(out, grads)
        assert out[0].equal(out[1])

    torch_ranks.run(2, body)


def test_sync_batch_norm_statistics_cover_all_ranks() -> None:
    def body() -> None:
        x = batch(dist.get_rank())
        mean = x.mean(0)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        out = torch.empty(2 * 5, 8)
        dist.all_gather_into_tensor(out, x)
        torch.testing.assert_close(mean, out.mean(0))

    torch_ranks.run(2, body)


def test_fsdp2_trains_as_one_process_does() -> None:
    def body() -> None:
        from torch.distributed.fsdp import fully_shard

        world = dist.get_world_size()
        model = small_model()
        mesh = init_device_mesh("cpu", (world,))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(batch(dist.get_rank(), step)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            optimizer.step()
        whole = [p.full_tensor().detach() for p in model.parameters()]
        torch.testing.assert_close(whole, trained_alone(world, 3))

    torch_ranks.run(2, body)


def test_hsdp_shards_and_replicates_on_a_two_dimensional_mesh() -> None:
    def body() -> None:
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = small_model()
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            model(batch(dist.get_rank(), step)).square().mean().backward()
            optimizer.step()
        torch.testing.assert_close([p.full_tensor().detach() for p in model.parameters()], trained_alone(4, 2))

    torch_ranks.run(4, body)


def test_dtensor_redistributes_between_all_placements() -> None:
    def body() -> None:
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

        world = dist.get_world_size()
        mesh = init_device_mesh("cpu", (world,))
        whole = torch.arange(35.0).view(7, 5)  # divides evenly nowhere
        for dim in (0, 1):
            sharded = distribute_tensor(whole, mesh, [Shard(dim)])
            assert sharded.full_tensor().equal(whole)
            assert sharded.redistribute(mesh, [Shard(1 - dim)]).full_tensor().equal(whole)
            assert sharded.redistribute(mesh, [Replicate()]).to_local().equal(whole)
        partial = DTensor.from_local(whole, mesh, [Partial()])
        assert partial.redistribute(mesh, [Replicate()]).to_local().equal(whole * world)
        assert partial.redistribute(mesh, [Shard(0)]).full_tensor().equal(whole * world)
        left = distribute_tensor(whole, mesh, [Shard(0)])
        right = distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])
        torch.testing.assert_close((left @ right).full_tensor(), whole @ whole.t())

    torch_ranks.run(3, body)


def test_tensor_parallel_layers_compute_what_the_whole_layer_does() -> None:
    def body() -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (2,))
        model = small_model()
        expected = model(batch(0))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        torch.testing.assert_close(model(batch(0)), expected)

    torch_ranks.run(2, body)


def test_a_two_dimensional_mesh_has_groups_for_rows_and_columns() -> None:
    def body() -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        rank = dist.get_rank()
        for name, expected in (("dp", (rank % 2) * 2 + 2), ("tp", (rank // 2) * 4 + 1)):
            x = torch.tensor([float(rank)])
            dist.all_reduce(x, group=mesh[name].get_group())
            assert x.item() == expected

    torch_ranks.run(4, body)


def test_functional_collectives() -> None:
    def body() -> None:
        rank = dist.get_rank()
        group = dist.group.WORLD
        x = torch.full((2, 2), float(rank))
        assert functional.all_reduce(x, "sum", group).tolist() == [[1, 1], [1, 1]]
        assert functional.all_reduce(x, "avg", group).tolist() == [[0.5, 0.5], [0.5, 0.5]]
        assert functional.all_gather_tensor(x, 0, group)[:, 0].tolist() == [0, 0, 1, 1]
        assert functional.all_gather_tensor(x, 1, group)[0].tolist() == [0, 0, 1, 1]
        assert functional.reduce_scatter_tensor(torch.ones(4, 2), "sum", 0, group).tolist() == [[2, 2], [2, 2]]
        assert functional.broadcast(x, 1, group).eq(1).all()
        swapped = functional.all_to_all_single(torch.full((3,), float(rank)), [1 + rank, 1 + rank], [1, 2], group)
        assert swapped.tolist() == [0.0] * (1 + rank) + [1.0] * (1 + rank)
        many = functional.all_reduce_coalesced([x, x + 1], "sum", group)
        assert [m[0, 0].item() for m in many] == [1, 3]

    torch_ranks.run(2, body)


def test_gradients_flow_through_the_autograd_collectives() -> None:
    def body() -> None:
        import torch.distributed.nn.functional as F

        x = torch.full((3,), 1.0 + dist.get_rank(), requires_grad=True)
        F.all_reduce(x * 2).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [4.0] * 3
        y = torch.ones(2, requires_grad=True)
        torch.stack(F.all_gather(y)).sum().backward()
        assert y.grad is not None and y.grad.tolist() == [2.0, 2.0]

    torch_ranks.run(2, body)


def test_object_collectives() -> None:
    def body() -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        mine = {"rank": rank, "text": "x" * (1 + 1000 * rank)}
        everyone: list[object] = [None] * world
        dist.all_gather_object(everyone, mine)
        assert [len(o["text"]) for o in everyone] == [1, 1001, 2001]
        said = [mine if rank == 1 else None]
        dist.broadcast_object_list(said, src=1)
        assert said[0]["rank"] == 1
        gathered = [None] * world if rank == 2 else None
        dist.gather_object(mine, gathered, dst=2)
        assert gathered is None or [o["rank"] for o in gathered] == [0, 1, 2]
        part: list[object] = [None]
        dist.scatter_object_list(part, [f"for {r}" for r in range(world)] if rank == 0 else None, src=0)
        assert part == [f"for {rank}"]
        if rank == 0:
            dist.send_object_list([mine], dst=1)
        elif rank == 1:
            got: list[object] = [None]
            dist.recv_object_list(got, src=0)
            assert got[0]["rank"] == 0

    torch_ranks.run(3, body)


def test_a_distributed_checkpoint_is_saved_and_loaded() -> None:
    def body(folder: str) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(24.0).view(6, 4)
        dcp.save({"w": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder)
        state = {"w": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(1)])}
        dcp.load(state, checkpoint_id=folder)
        assert state["w"].full_tensor().equal(whole)

    with tempfile.TemporaryDirectory() as folder:
        torch_ranks.run(2, body, folder)


def test_zero_redundancy_optimizer() -> None:
    def body() -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        ddp = nn.parallel.DistributedDataParallel(small_model())
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            ddp(batch(dist.get_rank(), step)).square().mean().backward()
            optimizer.step()
        torch.testing.assert_close([p.detach() for p in ddp.parameters()], trained_alone(2, 2))

    torch_ranks.run(2, body)


def test_a_pipeline_of_two_stages() -> None:
    def body() -> None:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        rank = dist.get_rank()
        layers = small_model()
        part = nn.Sequential(layers[0], layers[1]) if rank == 0 else nn.Sequential(layers[2])
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
        x, target = torch.ones(8, 8), torch.zeros(8, 4)
        if rank == 0:
            schedule.step(x)
        else:
            losses: list[torch.Tensor] = []
            schedule.step(target=target, losses=losses)
            torch.testing.assert_close(torch.stack(losses).mean(), small_model()(x).square().mean())

    torch_ranks.run(2, body)


def test_torch_distributed_debug_detail_wraps_the_backend() -> None:
    def body() -> None:
        x = torch.ones(3)
        dist.all_reduce(x)
        out = torch.empty(6)
        dist.all_gather_into_tensor(out, x)
        dist.barrier()
        assert out.eq(2).all()

    torch_ranks.run(2, body, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
