"""torch.distributed over an island that oneCCL serves and host ranks, in one group."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

import torch_ranks
from islands import ONECCL, needs_oneccl
from test_torch_training import check_ddp

pytestmark = [needs_oneccl, pytest.mark.computes]
TOGETHER = "torch"


def join(islands: str) -> None:
    """One letter a rank; capitals have oneCCL."""
    rank = int(os.environ["RANK"])
    os.environ["ISTHMUS_ISLAND"] = islands[rank]
    if islands[rank].isupper():
        os.environ.update(ISTHMUS_CCL="oneccl", ISTHMUS_CCL_LIBRARY=str(ONECCL))
    dist.init_process_group("isthmus", init_method=f"file://{os.environ['TEST_STORE']}", rank=rank, world_size=len(islands))


def test_ddp_trains_as_one_process_does(tmp_path: object) -> None:
    def body(islands: str) -> None:
        join(islands)
        check_ddp()

    for islands in ("AA", "AAb", "ABAB"):
        torch_ranks.run(len(islands), body, islands, env={"TEST_STORE": f"{tmp_path}/{islands}"}, init=False)


def test_groups_and_collectives(tmp_path: object) -> None:
    def body(islands: str) -> None:
        join(islands)
        rank, world = dist.get_rank(), dist.get_world_size()
        for count in (3, 100_000, 700_001):
            x = torch.full((count,), float(rank))
            dist.all_reduce(x)
            assert x.eq(sum(range(world))).all()
            parts = [torch.empty(count, dtype=torch.bfloat16) for _ in range(world)]
            dist.all_gather(parts, torch.full((count,), float(rank), dtype=torch.bfloat16))
            assert all(part.eq(r).all() for r, part in enumerate(parts))
            y = torch.full((count,), float(rank))
            dist.broadcast(y, world - 1)
            assert y.eq(world - 1).all()
        inside = dist.new_group([0, 1])
        if rank < 2:
            z = torch.ones(50_000)
            dist.all_reduce(z, group=inside)
            assert z.eq(2).all()
        gathered: list[object] = [None] * world
        dist.all_gather_object(gathered, {"rank": rank})
        assert gathered == [{"rank": r} for r in range(world)]

    torch_ranks.run(4, body, "AAbb", env={"TEST_STORE": f"{tmp_path}/store"}, init=False)
