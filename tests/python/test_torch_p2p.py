"""Sends and receives, coalescing blocks, and batches of both, through torch.distributed."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

import isthmus.torch
import torch_ranks
from torch_ranks import hear, raises, tell

TOGETHER = "torch"  # whose ranks are forked by one server

CPU = torch.device("cpu")


def test_messages_are_matched_by_tag_and_in_order() -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            for tag in (7, 3, 7):
                dist.send(torch.tensor([tag, tag + 1.0]), 1, tag=tag)
            dist.send(torch.tensor([9.0]), 1)
        else:
            x = torch.empty(2)
            for tag in (3, 7, 7):
                dist.recv(x, 0, tag=tag)
                assert x.tolist() == [tag, tag + 1.0]
            y = torch.empty(1)
            assert dist.recv(y, 0) == 0 and y.item() == 9

    torch_ranks.run(2, body)


def test_recv_from_any_rank_says_who_sent() -> None:
    def body() -> None:
        rank = dist.get_rank()
        if rank:
            dist.send(torch.tensor([float(rank)]), 0)
        else:
            x = torch.empty(1)
            seen = set()
            for _ in range(2):
                source = dist.recv(x)
                assert x.item() == source
                seen.add(source)
            assert seen == {1, 2}

    torch_ranks.run(3, body)


def test_isend_and_irecv_do_not_block_and_need_no_order() -> None:
    def body() -> None:
        rank = dist.get_rank()
        x, y = torch.full((1000,), float(rank)), torch.empty(1000)
        works = [dist.irecv(y, 1 - rank), dist.isend(x, 1 - rank)]
        for work in works:
            work.wait()
        assert y.eq(1 - rank).all() and works[0]._source_rank() == 1 - rank

    torch_ranks.run(2, body)


def test_every_dtype_and_views_that_are_not_contiguous_can_be_sent() -> None:
    def body() -> None:
        real = (torch.bool, torch.int16, torch.uint16, torch.bfloat16, torch.float8_e5m2)
        for dtype in (*real, torch.complex64, torch.complex32):
            if dist.get_rank() == 0:
                dist.send(torch.ones(3, 4).to(dtype)[:, ::2], 1)
            else:
                x = torch.zeros(4, 6).to(dtype)
                dist.recv(x[1:, ::3], 0)
                assert dtype not in real or x.float().sum().item() == 6
                assert x[1:, ::3].contiguous().view(torch.uint8).equal(torch.ones(3, 2).to(dtype).view(torch.uint8))

    torch_ranks.run(2, body)


def test_a_rank_can_send_to_itself() -> None:
    def body() -> None:
        rank = dist.get_rank()
        y = torch.empty(2)
        works = [dist.isend(torch.full((2,), float(rank)), rank), dist.irecv(y, rank)]
        for work in works:
            work.wait()
        assert y.tolist() == [rank, rank]

    torch_ranks.run(2, body)


def test_a_message_of_another_size_is_an_error_that_says_both_sizes() -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            dist.isend(torch.ones(5), 1)
            hear("both sizes")
        else:
            text = raises("mismatch", lambda: dist.recv(torch.empty(3), 0))
            assert ("5" in text and "3" in text) or ("20" in text and "12" in text)
            tell("both sizes")

    torch_ranks.run(2, body)


def test_bad_peers_and_tags_are_refused() -> None:
    def body() -> None:
        backend = torch_ranks.backend()
        raises("not a rank", lambda: backend.send([torch.ones(1)], 5, 0), ValueError)
        raises("not a rank", lambda: backend.recv([torch.ones(1)], -2, 0), ValueError)
        raises("negative", lambda: backend.send([torch.ones(1)], 1, -1), ValueError)

    torch_ranks.run(2, body)


def test_batch_isend_irecv_is_one_submission_in_any_order() -> None:
    def body() -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        out = [torch.empty(50_000) for _ in range(world)]
        sends = [dist.P2POp(dist.isend, torch.full((50_000,), 10.0 * rank + d), d) for d in range(world) if d != rank]
        receives = [dist.P2POp(dist.irecv, out[s], s) for s in range(world) if s != rank]
        works = dist.batch_isend_irecv(sends + receives if rank % 2 else receives + sends)
        assert len(works) == 1
        for work in works:
            work.wait()
        assert all(out[s].eq(10.0 * s + rank).all() for s in range(world) if s != rank)

    torch_ranks.run(3, body)


def test_the_coalescing_manager_joins_collectives_with_and_without_a_device() -> None:
    def body() -> None:
        for device in (None, CPU):
            tensors = [torch.full((n,), 1.0) for n in (3, 1, 2)]
            with _coalescing_manager(device=device):
                for t in tensors:
                    dist.all_reduce(t)
            assert [t.tolist() for t in tensors] == [[2.0] * 3, [2.0], [2.0] * 2]

            outs = [torch.empty(2 * n) for n in (1, 4)]
            with _coalescing_manager(device=device, async_ops=True) as block:
                for out in outs:
                    dist.all_gather_into_tensor(out, torch.full((out.numel() // 2,), float(dist.get_rank())))
            block.wait()
            assert [t.tolist() for t in outs] == [[0, 1], [0] * 4 + [1] * 4]

            parts = [torch.empty(n) for n in (1, 4)]
            with _coalescing_manager(device=device):
                for part, out in zip(parts, outs, strict=True):
                    dist.reduce_scatter_tensor(part, out)
            assert [t.tolist() for t in parts] == [[2.0 * dist.get_rank()], [2.0 * dist.get_rank()] * 4]

    torch_ranks.run(2, body)


def test_a_block_may_hold_collectives_sends_and_receives() -> None:
    def body() -> None:
        rank = dist.get_rank()
        x, y, z = torch.ones(3), torch.empty(2), torch.full((2, 2), float(rank))
        with _coalescing_manager(device=CPU, async_ops=True) as block:
            dist.irecv(y, 1 - rank)
            dist.broadcast(z[:, 0], 1, async_op=True)
            dist.isend(torch.full((2,), float(rank)), 1 - rank)
        block.wait()
        assert y.tolist() == [1 - rank] * 2 and z.tolist() == [[1, rank]] * 2 and x.eq(1).all()

    torch_ranks.run(2, body)


def test_nothing_of_a_block_is_done_if_a_call_in_it_fails_and_the_group_works_on() -> None:
    def body() -> None:
        backend = torch_ranks.backend()
        x = torch.ones(2)
        backend._start_coalescing()
        backend.allreduce([x])
        raises("no meaning", lambda: backend.allreduce([torch.ones(2)], _options(dist.ReduceOp.BAND)), NotImplementedError)
        raises("cancelled", backend._end_coalescing, NotImplementedError)
        assert x.tolist() == [1, 1]
        dist.all_reduce(x)
        assert x.tolist() == [2, 2]

    torch_ranks.run(2, body)


def _options(op: dist.ReduceOp) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def test_a_block_that_an_exception_left_open_is_dropped_by_the_next_one() -> None:
    def body() -> None:
        backend = torch_ranks.backend()
        x, y = torch.ones(2), torch.ones(2)
        backend._start_coalescing()
        left = backend.allreduce([x])
        raises("has not ended", left.wait, ValueError)
        backend._start_coalescing()
        backend.allreduce([y])
        backend._end_coalescing().wait()
        assert x.tolist() == [1, 1] and y.tolist() == [2, 2]
        raises("without startCoalescing", backend._end_coalescing, ValueError)

    torch_ranks.run(2, body)


def test_a_blocking_collective_in_a_block_is_done_when_the_block_is() -> None:
    def body() -> None:
        rank = dist.get_rank()
        x, out, mine = torch.full((3,), float(rank)), [torch.empty(1), torch.empty(1)], torch.tensor([rank + 1.0])
        with _coalescing_manager(device=CPU):
            dist.broadcast(x, 1)
            dist.all_gather(out, mine)
            dist.barrier()
            assert x.tolist() == [rank] * 3
        assert x.tolist() == [1, 1, 1] and [t.item() for t in out] == [1, 2]

    torch_ranks.run(2, body)


def test_a_blocking_call_of_a_group_that_has_not_begun_the_block_is_refused() -> None:
    def body() -> None:
        other = dist.new_group([0, 1])
        with _coalescing_manager(device=CPU, async_ops=True) as block:
            raises("has not ended", lambda: dist.barrier(other), ValueError)
        block.wait()

    torch_ranks.run(2, body)


def _abandon(group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Leaves a block by an exception of the program's; what the block was to change."""
    x = torch.full((2,), 7.0 + dist.get_rank())
    with contextlib.suppress(KeyError), _coalescing_manager(group, device=CPU):
        dist.broadcast(x, 0, group)
        raise KeyError("the program's own")
    return x


def test_nothing_of_a_block_that_an_exception_leaves_is_done_and_every_group_works_on() -> None:
    def body() -> None:
        other = dist.new_group([0, 1])
        for abandoned, used in ((None, other), (other, None), (None, None), (other, other)):
            x = _abandon(abandoned)
            y = torch.tensor([dist.get_rank()])
            dist.broadcast(y, 1, group=used)
            assert y.item() == 1 and x.tolist() == [7.0 + dist.get_rank()] * 2
            y.fill_(dist.get_rank())
            with _coalescing_manager(used, device=CPU):
                dist.broadcast(y, 0, group=used)
            assert y.item() == 0

    torch_ranks.run(2, body)


def test_a_message_that_is_refused_in_a_batch_leaves_no_block_open() -> None:
    def body() -> None:
        rank = dist.get_rank()
        x, y = torch.full((2,), float(rank)), torch.empty(2)
        bad = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank, tag=-1)]
        raises("negative", lambda: dist.batch_isend_irecv(bad), ValueError)
        dist.broadcast(x, 1)
        assert x.tolist() == [1, 1]

    torch_ranks.run(2, body)


def test_a_call_that_is_refused_cancels_its_block_and_no_later_call_of_the_block_is_done() -> None:
    def body() -> None:
        backend, x, y = torch_ranks.backend(), torch.ones(2), torch.ones(1)
        backend._start_coalescing()
        backend.allreduce([x])
        raises("negative", lambda: backend.send([x], 1, -1), ValueError)
        raises("a call in it was refused; leave the block", lambda: backend.allreduce([y]), ValueError)
        raises("cancelled", lambda: dist.all_reduce(y), ValueError)
        raises("cancelled", backend._end_coalescing, ValueError)
        assert x.tolist() == [1, 1] and y.tolist() == [1]
        dist.all_reduce(y)
        assert y.tolist() == [2]
        raises("without startCoalescing", backend._end_coalescing, ValueError)

    torch_ranks.run(2, body)


def test_a_cancelled_block_that_an_exception_leaves_or_that_is_begun_again_is_dropped() -> None:
    def body() -> None:
        backend, x = torch_ranks.backend(), torch.ones(2)

        def refused() -> None:
            raises("negative", lambda: backend.send([x], 1, -1), ValueError)

        with contextlib.suppress(KeyError), _coalescing_manager(device=CPU):
            refused()
            raise KeyError("the program's own")
        backend.allreduce([x]).wait()
        assert x.tolist() == [2, 2]
        backend._start_coalescing()
        refused()
        backend._start_coalescing()
        backend.allreduce([x])
        backend._end_coalescing().wait()
        assert x.tolist() == [4, 4]

    torch_ranks.run(2, body)


def test_a_call_that_is_refused_in_an_inner_block_cancels_the_outer_too() -> None:
    def body() -> None:
        other, backend, x = dist.new_group([0, 1]), torch_ranks.backend(), torch.ones(2)
        inner = isthmus.torch.backend_of(other)
        backend._start_coalescing()
        backend.allreduce([x])
        inner._start_coalescing()
        raises("negative", lambda: inner.send([x], 1, -1), ValueError)
        raises("cancelled", inner._end_coalescing, ValueError)
        raises("cancelled", lambda: backend.allreduce([x]), ValueError)
        inner._start_coalescing()
        raises("cancelled", lambda: inner.allreduce([x]), ValueError)
        raises("cancelled", inner._end_coalescing, ValueError)
        raises("cancelled", backend._end_coalescing, ValueError)
        assert x.tolist() == [1, 1]
        dist.all_reduce(x)
        assert x.tolist() == [2, 2]

    torch_ranks.run(2, body)


def test_torchs_manager_keeps_nothing_of_a_block_inside_a_cancelled_one() -> None:
    def body() -> None:
        other, backend, x = dist.new_group([0, 1]), torch_ranks.backend(), torch.ones(2)

        def inner() -> None:
            with _coalescing_manager(other, device=CPU):
                dist.all_reduce(x, group=other)

        def outer() -> None:
            with _coalescing_manager(device=CPU):
                raises("negative", lambda: backend.send([x], 1, -1), ValueError)
                raises("cancelled", inner, ValueError)

        raises("cancelled", outer, ValueError)
        assert x.tolist() == [1, 1]
        dist.all_reduce(x, group=other)  # torch would only note it, if it took the group for one in a block
        assert x.tolist() == [2, 2]

    torch_ranks.run(2, body)


def test_blocks_that_an_exception_leaves_without_their_end_are_over_with_the_block_around_them() -> None:
    def body() -> None:
        other, backend, x = dist.new_group([0, 1]), torch_ranks.backend(), torch.ones(2)
        inner = isthmus.torch.backend_of(other)
        for refused in (False, True):
            backend._start_coalescing()
            inner._start_coalescing()
            inner.allreduce([x])
            if refused:
                raises("negative", lambda: inner.send([x], 1, -1), ValueError)
            raises("cancelled", backend._end_coalescing, ValueError)  # the inner one has no end
            raises("without startCoalescing", inner._end_coalescing, ValueError)
        with contextlib.suppress(KeyError), _coalescing_manager(device=CPU):
            inner._start_coalescing()
            inner.allreduce([x])
            raise KeyError("the program's own")
        assert x.tolist() == [1, 1]
        dist.all_reduce(x, group=other)
        assert x.tolist() == [2, 2]

    torch_ranks.run(2, body)


def test_an_exception_in_an_inner_block_that_is_caught_in_the_outer_cancels_both() -> None:
    def body() -> None:
        other, x = dist.new_group([0, 1]), torch.ones(2)

        def outer() -> None:
            with _coalescing_manager(device=CPU):
                dist.reduce(x, 0)
                _abandon(other)

        raises("cancelled", outer, ValueError)
        y = torch.tensor([dist.get_rank()])
        dist.broadcast(y, 1, group=other)
        assert y.item() == 1 and x.tolist() == [1, 1]

    torch_ranks.run(2, body)


def test_the_block_of_a_group_that_is_destroyed_is_dropped() -> None:
    def body() -> None:
        other = dist.new_group([0, 1])
        backend = isthmus.torch.backend_of(other)
        backend._start_coalescing()
        backend.allreduce([torch.ones(2)])
        dist.destroy_process_group(other)
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [2, 2]
        raises("shut down", backend._end_coalescing, ValueError)

    torch_ranks.run(2, body)


def test_an_empty_block_is_done_at_once() -> None:
    def body() -> None:
        backend = torch_ranks.backend()
        backend._start_coalescing()
        work = backend._end_coalescing()
        work.wait()
        assert work.is_completed()

    torch_ranks.run(1, body)
