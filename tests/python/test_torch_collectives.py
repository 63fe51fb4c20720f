"""torch.distributed's collectives on the backend: every method, with the shapes and dtypes that torch allows."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import torch_ranks
from torch_ranks import raises

TOGETHER = "torch"  # whose ranks are forked by one server

WORLD = 3

NUMBERS = [
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
]
# Carried, though no arithmetic is defined on them here.
OPAQUE = [torch.bool, torch.complex32, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def values(dtype: torch.dtype, rank: int, count: int = 6) -> torch.Tensor:
    """Small numbers that every dtype holds exactly, different on each rank."""
    numbers = torch.arange(1, count + 1, dtype=torch.float32) % 4 + rank
    return (numbers % 2).to(torch.bool) if dtype == torch.bool else numbers.to(dtype)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal dtype, shape and bits."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.contiguous().view(torch.uint8).equal(right.contiguous().view(torch.uint8))
    )


@pytest.mark.parametrize("async_op", [False, True], ids=["blocking", "async"])
def test_all_reduce_sums_every_dtype(async_op: bool) -> None:
    def body() -> None:
        for dtype in NUMBERS:
            x = values(dtype, dist.get_rank())
            work = dist.all_reduce(x, async_op=async_op)
            if async_op:
                work.wait()
            expected = sum(values(torch.float32, r) for r in range(WORLD))
            assert same(x, expected.to(dtype)), (dtype, x)

    torch_ranks.run(WORLD, body)


def test_all_reduce_knows_every_operation() -> None:
    def body() -> None:
        rank = dist.get_rank()

        def reduced(numbers: list[float], op: ReduceOp, dtype: torch.dtype) -> list[float]:
            x = torch.tensor(numbers, dtype=dtype)
            dist.all_reduce(x, op)
            return x.tolist()

        assert reduced([rank + 1.0, -rank], ReduceOp.PRODUCT, torch.float32) == [6.0, 0.0]
        assert reduced([rank, -rank], ReduceOp.MIN, torch.float64) == [0, -2]
        assert reduced([rank, -rank], ReduceOp.MAX, torch.int16) == [2, 0]
        assert reduced([rank + 1, 3], ReduceOp.AVG, torch.float32) == [2.0, 3.0]
        assert reduced([rank + 1, 3], ReduceOp.AVG, torch.bfloat16) == [2.0, 3.0]
        assert reduced([6 | rank], ReduceOp.BAND, torch.int32) == [6 & 7 & 6]
        assert reduced([1 << rank], ReduceOp.BOR, torch.uint8) == [7]
        assert reduced([1 << rank], ReduceOp.BXOR, torch.int64) == [7]
        assert reduced([rank == 1, False], ReduceOp.SUM, torch.bool) == [True, False]
        assert reduced([rank == 1, True], ReduceOp.PRODUCT, torch.bool) == [False, True]

    torch_ranks.run(WORLD, body)


def test_premul_sum_takes_its_factor_as_a_number_or_as_a_tensor() -> None:
    def body() -> None:
        for factor in (0.5, torch.tensor([0.5])):
            x = torch.full((5,), 2.0 * (dist.get_rank() + 1))
            dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
            assert x.tolist() == [6.0] * 5
            out, parts = torch.empty(2), torch.full((2 * WORLD,), 4.0)
            dist.reduce_scatter_tensor(out, parts, dist._make_nccl_premul_sum(factor))
            assert out.tolist() == [6.0, 6.0]

    torch_ranks.run(WORLD, body)


def test_a_combination_without_meaning_is_an_error_that_harms_nothing() -> None:
    def body() -> None:
        for x, op in (
            (torch.ones(3, dtype=torch.bool), ReduceOp.AVG),
            (torch.ones(3), ReduceOp.BAND),
            (torch.ones(3, dtype=torch.float8_e4m3fnuz), ReduceOp.SUM),
        ):
            raises("", lambda x=x, op=op: dist.all_reduce(x, op), NotImplementedError)
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [3, 3, 3]

    torch_ranks.run(WORLD, body)


def test_broadcast_carries_every_dtype_from_every_root() -> None:
    def body() -> None:
        for i, dtype in enumerate(NUMBERS + OPAQUE):
            root = i % WORLD
            x = values(dtype, root) if dist.get_rank() == root else torch.zeros(6).to(dtype)
            dist.broadcast(x, root)
            assert same(x, values(dtype, root)), dtype

    torch_ranks.run(WORLD, body)


def test_reduce_fills_the_root_only() -> None:
    def body() -> None:
        for root in range(WORLD):
            x = torch.full((4,), float(dist.get_rank() + 1))
            dist.reduce(x, root)
            assert x.tolist() == [6.0 if dist.get_rank() == root else dist.get_rank() + 1.0] * 4

    torch_ranks.run(WORLD, body)


def test_all_gather_fills_lists_of_tensors_of_unequal_sizes() -> None:
    def body() -> None:
        rank = dist.get_rank()
        for sizes in ([4, 4, 4], [0, 3, 5], [7, 0, 1]):
            out = [torch.empty(n) for n in sizes]
            dist.all_gather(out, torch.full((sizes[rank],), float(rank)))
            assert [t.tolist() for t in out] == [[float(r)] * n for r, n in enumerate(sizes)]

    torch_ranks.run(WORLD, body)


def test_all_gather_fills_neighbouring_views_without_a_copy() -> None:
    def body() -> None:
        flat = torch.zeros(WORLD * 4)
        dist.all_gather(list(flat.chunk(WORLD)), torch.full((4,), float(dist.get_rank())))
        assert flat.tolist() == [r for r in range(WORLD) for _ in range(4)]

    torch_ranks.run(WORLD, body)


def test_all_gather_carries_every_dtype() -> None:
    def body() -> None:
        for dtype in NUMBERS + OPAQUE:
            out = [torch.zeros(6).to(dtype) for _ in range(WORLD)]
            dist.all_gather(out, values(dtype, dist.get_rank()))
            assert all(same(t, values(dtype, r)) for r, t in enumerate(out)), dtype

    torch_ranks.run(WORLD, body)


def test_all_gather_into_tensor_and_reduce_scatter_tensor() -> None:
    def body() -> None:
        rank = dist.get_rank()
        out = torch.empty(WORLD * 2, 3)
        dist.all_gather_into_tensor(out, torch.full((2, 3), float(rank)))
        assert out[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
        part = torch.empty(2, 3)
        dist.reduce_scatter_tensor(part, out + rank, ReduceOp.SUM)
        assert part.tolist() == [[3.0 * rank + 3] * 3] * 2
        dist.reduce_scatter_tensor(part, out + rank, ReduceOp.AVG)
        assert part.tolist() == [[rank + 1.0] * 3] * 2

    torch_ranks.run(WORLD, body)


def test_all_gather_and_reduce_scatter_work_in_place() -> None:
    def body() -> None:
        rank = dist.get_rank()
        whole = torch.zeros(WORLD * 4)
        mine = whole[rank * 4 : rank * 4 + 4]
        mine.fill_(rank + 1)
        dist.all_gather_into_tensor(whole, mine)
        assert whole.tolist() == [r + 1 for r in range(WORLD) for _ in range(4)]
        dist.reduce_scatter_tensor(mine, whole)
        assert mine.tolist() == [3.0 * (rank + 1)] * 4

    torch_ranks.run(WORLD, body)


def test_reduce_scatter_takes_lists_of_unequal_sizes() -> None:
    def body() -> None:
        rank = dist.get_rank()
        for sizes in ([2, 2, 2], [0, 1, 4]):
            out = torch.empty(sizes[rank])
            dist.reduce_scatter(out, [torch.full((n,), float(r + rank)) for r, n in enumerate(sizes)])
            assert out.tolist() == [3.0 * rank + 3] * sizes[rank]

    torch_ranks.run(WORLD, body)


def test_gather_and_scatter() -> None:
    def body() -> None:
        rank = dist.get_rank()
        for root in range(WORLD):
            out = [torch.empty(3) for _ in range(WORLD)] if rank == root else None
            dist.gather(torch.full((3,), float(rank)), out, root)
            if out is not None:
                assert [t.tolist() for t in out] == [[float(r)] * 3 for r in range(WORLD)]
            part = torch.empty(3)
            dist.scatter(part, [t * 2 for t in out] if out is not None else None, root)
            assert part.tolist() == [rank * 2.0] * 3

    torch_ranks.run(WORLD, body)


def test_all_to_all_single_with_and_without_split_sizes() -> None:
    def body() -> None:
        rank = dist.get_rank()
        out = torch.empty(WORLD * 2)
        dist.all_to_all_single(out, torch.arange(WORLD * 2, dtype=torch.float32) + 10 * rank)
        assert out.tolist() == [10.0 * r + 2 * rank + i for r in range(WORLD) for i in range(2)]
        # Rank s sends s + d rows to rank d.
        sent = [rank + d for d in range(WORLD)]
        received = [s + rank for s in range(WORLD)]
        rows = torch.full((sum(sent), 2), float(rank), dtype=torch.float64)
        out = torch.empty((sum(received), 2), dtype=torch.float64)
        dist.all_to_all_single(out, rows, received, sent)
        assert out[:, 1].tolist() == [float(s) for s in range(WORLD) for _ in range(s + rank)]

    torch_ranks.run(WORLD, body)


def test_all_to_all_single_is_the_same_call_however_a_rank_writes_its_sizes() -> None:
    """None on one rank and the equal list on the others; and a load that is even for one rank alone."""

    def body() -> None:
        rank = dist.get_rank()
        out = torch.empty(WORLD * 2)
        sizes = None if rank == 0 else [2] * WORLD
        dist.all_to_all_single(out, torch.arange(WORLD * 2, dtype=torch.float32) + 10 * rank, sizes, sizes)
        assert out.tolist() == [10.0 * r + 2 * rank + i for r in range(WORLD) for i in range(2)]
        # Rank 0 sends and gets one of everybody; the others give their next but one each a different number.
        sent = [1] * WORLD if rank == 0 else [1, *((rank + d) % WORLD for d in range(1, WORLD))]
        received = [1] * WORLD if rank == 0 else [1, *((s + rank) % WORLD for s in range(1, WORLD))]
        out = torch.empty(sum(received))
        sizes = (None, None) if rank == 0 else (received, sent)
        dist.all_to_all_single(out, torch.full((sum(sent),), float(rank)), *sizes)
        assert out.tolist() == [float(s) for s in range(WORLD) for _ in range(received[s])]

    torch_ranks.run(WORLD, body)


def test_all_to_all_exchanges_lists_of_unequal_sizes() -> None:
    def body() -> None:
        rank = dist.get_rank()
        for dtype in (torch.float32, torch.complex64, torch.bool, torch.int16):
            sent = [torch.full((rank + 2 * d,), rank).to(dtype) for d in range(WORLD)]
            out = [torch.zeros(s + 2 * rank).to(dtype) for s in range(WORLD)]
            dist.all_to_all(out, sent)
            assert all(same(t, torch.full((s + 2 * rank,), s).to(dtype)) for s, t in enumerate(out))

    torch_ranks.run(WORLD, body)


def test_coalesced_collectives_treat_each_tensor_by_itself() -> None:
    def body() -> None:
        rank = dist.get_rank()
        group = dist.group.WORLD
        tensors = [torch.full((n,), float(rank)) for n in (1, 0, 5)]
        dist.all_reduce_coalesced(tensors)
        assert [t.tolist() for t in tensors] == [[3.0], [], [3.0] * 5]

        inputs = [torch.full((n,), float(rank)) for n in (2, 3)]
        outputs = [torch.empty(n * WORLD) for n in (2, 3)]
        group.allgather_into_tensor_coalesced(outputs, inputs).wait()
        assert [t.tolist() for t in outputs] == [[float(r) for r in range(WORLD) for _ in range(n)] for n in (2, 3)]

        parts = [torch.empty(n) for n in (2, 3)]
        group.reduce_scatter_tensor_coalesced(parts, outputs).wait()
        assert [t.tolist() for t in parts] == [[3.0 * rank] * n for n in (2, 3)]

        lists = [[torch.empty(2), torch.empty(3)] for _ in range(WORLD)]
        dist.all_gather_coalesced(lists, inputs)
        assert [[t.tolist() for t in row] for row in lists] == [[[float(r)] * 2, [float(r)] * 3] for r in range(WORLD)]

    torch_ranks.run(WORLD, body)


def test_tensors_without_elements_pass_through_everything() -> None:
    def body() -> None:
        none = torch.empty(0)
        dist.all_reduce(none)
        dist.broadcast(none, 1)
        dist.reduce(none, 2)
        dist.all_gather([torch.empty(0) for _ in range(WORLD)], none)
        dist.all_gather_into_tensor(torch.empty(0), none)
        dist.reduce_scatter_tensor(none, torch.empty(0))
        dist.all_to_all_single(torch.empty(0), none)
        dist.gather(none, [torch.empty(0) for _ in range(WORLD)] if dist.get_rank() == 0 else None)
        dist.scatter(none, [torch.empty(0) for _ in range(WORLD)] if dist.get_rank() == 0 else None)
        dist.all_to_all([torch.empty(0) for _ in range(WORLD)], [torch.empty(0) for _ in range(WORLD)])

    torch_ranks.run(WORLD, body)


@pytest.mark.parametrize("async_op", [False, True], ids=["blocking", "async"])
def test_tensors_that_are_not_contiguous_are_carried_and_nothing_beside_them_is_touched(async_op: bool) -> None:
    def body() -> None:
        rank = dist.get_rank()

        def done(work: dist.Work | None) -> None:
            if work is not None:
                work.wait()

        grid = torch.full((4, 6), -1.0)
        column = grid[:, 2]
        column.copy_(torch.arange(4.0) + rank)
        done(dist.all_reduce(column, async_op=async_op))
        assert column.tolist() == [3.0, 6.0, 9.0, 12.0]
        grid[:, 2] = -1
        assert grid.eq(-1).all()

        turned = (torch.arange(6.0) * (1 if rank == 1 else 0)).view(2, 3).t()
        done(dist.broadcast(turned, 1, async_op=async_op))
        assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]

        wide = torch.zeros(WORLD, 4)
        done(dist.all_gather([row[::2] for row in wide], torch.arange(4.0)[::2] + rank, async_op=async_op))
        assert wide.tolist() == [[r, 0, r + 2, 0] for r in range(WORLD)]

        last = torch.zeros(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        last += rank
        done(dist.all_reduce(last, async_op=async_op))
        assert last.eq(3).all() and last.is_contiguous(memory_format=torch.channels_last)

        whole = torch.empty(6, WORLD)
        done(dist.all_gather_into_tensor(whole.t(), torch.full((6,), float(rank)), async_op=async_op))
        assert whole.tolist() == [[0.0, 1.0, 2.0]] * 6

        out = torch.zeros(2, 2)
        done(dist.reduce_scatter([row for row in out][0][::1], [torch.full((4,), 1.0)[::2]] * WORLD, async_op=async_op))
        assert out.tolist() == [[3.0, 3.0], [0.0, 0.0]]

    torch_ranks.run(WORLD, body)


def test_a_conjugate_view_is_sent_as_what_it_shows() -> None:
    def body() -> None:
        x = torch.full((3,), complex(1, 2)).conj()
        out = torch.empty(WORLD * 3, dtype=torch.complex64)
        dist.group.WORLD._allgather_base(out, x).wait()
        assert out.tolist() == [complex(1, -2)] * (3 * WORLD)

    torch_ranks.run(WORLD, body)


def test_a_parameter_that_requires_grad_can_be_reduced_in_place() -> None:
    def body() -> None:
        weight = torch.ones(4, 4, requires_grad=True)
        with torch.no_grad():
            dist.all_reduce(weight[:, 0])
            dist.all_reduce(weight.t()[1])
        assert weight[:, :2].eq(3).all() and weight[:, 2:].eq(1).all()

    torch_ranks.run(WORLD, body)


def test_shapes_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    def body() -> None:
        rank = dist.get_rank()
        world = dist.group.WORLD
        raises("must have 3 times", lambda: dist.all_gather_into_tensor(torch.empty(5), torch.empty(2)), ValueError)
        raises("must have 3 times", lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.empty(7)), ValueError)
        raises("the group 3 ranks", lambda: world.allgather([[torch.empty(1)] * 2], [torch.empty(1)]).wait(), ValueError)
        raises("its entry in the list", lambda: dist.all_gather([torch.empty(2)] * 3, torch.empty(3)), ValueError)
        raises("different dtypes", lambda: world.alltoall_base(torch.empty(3), torch.empty(3).int(), [], []), ValueError)
        raises("expected one tensor", lambda: world.allreduce([torch.ones(1), torch.ones(1)]).wait(), ValueError)
        raises("is not a rank", lambda: world.broadcast(torch.ones(1), 7).wait(), ValueError)
        x = torch.full((2,), float(rank))
        dist.all_reduce(x)
        assert x.tolist() == [3.0, 3.0]

    torch_ranks.run(WORLD, body)


def test_what_is_not_a_dense_host_tensor_is_refused_with_advice() -> None:
    def body() -> None:
        backend = torch_ranks.backend()
        sparse = torch.eye(3).to_sparse()
        raises("to_dense", lambda: backend.allreduce([sparse]), NotImplementedError)
        raises("to_dense", lambda: dist.all_reduce(sparse), NotImplementedError)
        raises(
            "a tensor on meta was passed, and this rank works on host memory",
            lambda: backend.allreduce([torch.empty(3, device="meta")]),
            NotImplementedError,
        )

    torch_ranks.run(WORLD, body)


def test_one_rank_alone_is_a_group() -> None:
    def body() -> None:
        x = torch.arange(3.0)
        dist.all_reduce(x)
        out = torch.empty(3)
        dist.all_gather_into_tensor(out, x)
        dist.barrier()
        assert out.tolist() == [0, 1, 2]

    torch_ranks.run(1, body)


def test_large_tensors_arrive_whole() -> None:
    def body() -> None:
        count = 3_000_001
        x = torch.arange(count, dtype=torch.int32) % 1000 + dist.get_rank()
        dist.all_reduce(x)
        assert x.equal((torch.arange(count, dtype=torch.int32) % 1000) * WORLD + 3)

    torch_ranks.run(WORLD, body)
