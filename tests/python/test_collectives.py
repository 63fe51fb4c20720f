"""What every call does, on ranks that are threads and on ranks that are processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isthmus

Run = Callable[..., list[Any]]


def test_all_reduce_replaces_x_and_returns_it(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[float]:
        x = np.full(3, comm.rank + 1.0, np.float32)
        assert comm.all_reduce(x) is x
        return x.tolist()

    assert ranks(3, body) == [[6.0] * 3] * 3


def test_all_reduce_fills_out_and_leaves_x(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> tuple[list[int], list[int]]:
        x, out = np.array([comm.rank, -comm.rank]), np.zeros(2, np.int64)
        assert comm.all_reduce(x, "min", out) is out
        return x.tolist(), out.tolist()

    assert ranks(3, body) == [([r, -r], [0, -2]) for r in range(3)]


def test_premul_sum_multiplies_each_ranks_data_by_its_scale(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> float:
        return float(comm.all_reduce(np.ones(1), "premul_sum", scale=[0.5, 0.25, 0.0][comm.rank])[0])

    assert ranks(3, body) == [0.75] * 3


def test_reduce_gives_the_result_to_the_root_only(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> tuple[Any, list[int]]:
        x = np.array([comm.rank + 1])
        result = comm.reduce(x, 1, "prod")
        return (None if result is None else result.tolist()), x.tolist()

    assert ranks(3, body) == [(None, [1]), ([6], [6]), (None, [3])]


def test_broadcast_copies_the_roots_x(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[list[int]]:
        x = np.full(2, comm.rank)
        comm.broadcast(x, 2)
        out = np.zeros(2, np.int64)
        comm.broadcast(np.array([7, 8]) if comm.rank == 0 else None, 0, out)
        return [x.tolist(), out.tolist()]

    assert ranks(3, body) == [[[2, 2], [7, 8]]] * 3


def test_all_gather_stacks_by_rank(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        x = np.array([[comm.rank, 10]])
        made = comm.all_gather(x)
        assert made.shape == (3, 1, 2)
        out = np.zeros((3, 2), np.int64)
        out[comm.rank] = x
        assert comm.all_gather(out[comm.rank], out) is out  # in place
        return [made.reshape(3, 2).tolist(), out.tolist()]

    assert ranks(3, body) == [[[[0, 10], [1, 10], [2, 10]]] * 2] * 3


def test_all_gather_v_places_blocks_of_unequal_size(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        counts = [2, 0, 1]
        x = np.full(counts[comm.rank], comm.rank, np.int8)
        placed = np.full(6, -1, np.int8)
        comm.all_gather_v(x, counts, placed, displs=[4, 0, 1])
        return [comm.all_gather_v(x, counts).tolist(), placed.tolist()]

    assert ranks(3, body) == [[[0, 0, 2], [-1, 2, -1, -1, 0, 0]]] * 3


def test_reduce_scatter_v_takes_blocks_from_where_they_lie(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[int]:
        counts = [2, 0, 1]
        displs = [4, 0, 1] if comm.rank == 0 else [0, 9, 3]  # each rank's own
        x = np.full(10, -1)
        x[displs[0] : displs[0] + 2] = [10, 20]
        x[displs[2]] = comm.rank
        with pytest.raises(isthmus.ArgumentError, match="x has 5 elements, but the blocks reach to element 6"):
            comm.reduce_scatter_v(x[:5], counts, displs=[4, 0, 1])
        result: list[int] = comm.reduce_scatter_v(x, counts, displs=displs).tolist()
        return result

    assert ranks(3, body) == [[30, 60], [], [3]]


def test_reduce_scatter_gives_rank_r_block_r(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        x = np.arange(6) + comm.rank
        rows = comm.reduce_scatter(np.arange(6).reshape(3, 2))
        return [comm.reduce_scatter(x).tolist(), rows.tolist(), comm.reduce_scatter_v(x, [1, 2, 3], "max").tolist()]

    blocks = [[3, 6], [9, 12], [15, 18]]
    assert ranks(3, body) == [
        [blocks[0], [0, 3], [2]],
        [blocks[1], [6, 9], [3, 4]],
        [blocks[2], [12, 15], [5, 6, 7]],
    ]


def test_all_to_all_transposes(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        x = np.array([10 * comm.rank + d for d in range(3)])
        made = comm.all_to_all(x)
        assert comm.all_to_all(x, x) is x  # in place
        return [made.tolist(), x.tolist()]

    assert ranks(3, body) == [[[r, 10 + r, 20 + r]] * 2 for r in range(3)]


def test_all_to_all_v_sends_each_rank_its_count(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[int]:
        x = np.full(3, comm.rank)  # rank r sends d elements to rank d
        return comm.all_to_all_v(x, [0, 1, 2], [comm.rank] * 3).tolist()

    assert ranks(3, body) == [[], [0, 1, 2], [0, 0, 1, 1, 2, 2]]


def test_gather_and_scatter_have_a_root(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        gathered = comm.gather(np.array([comm.rank]), 1)
        uneven = comm.gather_v(np.full(comm.rank, comm.rank), [0, 1, 2], 2)
        out = np.zeros(2, np.int64)
        comm.scatter(np.arange(6) if comm.rank == 0 else None, 0, out)
        part = np.zeros([2, 0, 1][comm.rank], np.int64)
        comm.scatter_v(np.arange(9) if comm.rank == 1 else None, [2, 0, 1], 1, part, displs=[7, 0, 3])
        return [None if a is None else a.reshape(-1).tolist() for a in (gathered, uneven, out, part)]

    assert ranks(3, body) == [
        [None, None, [0, 1], [7, 8]],
        [[0, 1, 2], None, [2, 3], []],
        [None, [1, 2, 2], [4, 5], [3]],
    ]


def test_send_and_recv_match_by_source_and_tag(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        if comm.rank == 0:
            comm.send(np.array([1.0]), 1, tag=5)
            comm.send(np.array([2.0]), 1, tag=6)
            return []
        late, early = np.zeros(1), np.zeros(1)
        sources = [comm.recv(late, 0, tag=6), comm.recv(early, 0, tag=5)]
        return [late[0], early[0], sources]

    assert ranks(2, body)[1] == [2.0, 1.0, [0, 0]]


def test_recv_from_any_source_tells_the_sender(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[Any]:
        if comm.rank != 0:
            comm.send(np.array([comm.rank]), 0, tag=comm.rank)
            return []
        x = np.zeros(1, np.int64)
        blocking = (comm.recv(x, isthmus.ANY_SOURCE, tag=2), int(x[0]))
        work = comm.recv(x, tag=1, async_op=True)
        assert work.wait() is x
        return [blocking, (work.source, int(x[0]))]

    assert ranks(3, body)[0] == [(2, 2), (1, 1)]


def test_a_rank_may_send_to_itself(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> int:
        x = np.zeros(1, np.int64)
        with isthmus.group():
            comm.recv(x, comm.rank)
            comm.send(np.array([comm.rank + 10]), comm.rank)
        return int(x[0])

    assert ranks(2, body) == [10, 11]


def test_barrier_holds_until_the_last_rank_has_come(ranks: Run) -> None:
    import time

    def body(comm: isthmus.Comm) -> list[tuple[float, float]]:
        times = []
        for late in range(comm.size):
            comm.barrier()
            if comm.rank == late:
                time.sleep(0.05)
            came = time.monotonic()  # one clock for all ranks
            comm.barrier()
            times.append((came, time.monotonic()))
        return times

    for barrier in zip(*ranks(3, body), strict=True):
        came, left = zip(*barrier, strict=True)
        assert min(left) >= max(came)


def test_split_makes_communicators_ordered_by_key(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> Any:
        part = comm.split(color=comm.rank % 2 if comm.rank < 3 else -1, key=-comm.rank)
        if part is None:
            return None
        with part:
            return part.rank, part.size, comm.rank, part.all_gather(np.array([comm.rank])).reshape(-1).tolist()

    assert ranks(4, body) == [(1, 2, 0, [2, 0]), (0, 1, 1, [1]), (0, 2, 2, [2, 0]), None]


def test_parts_without_a_name_are_numbered_so_that_an_error_says_which(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[str | None]:
        parts = [comm.split(0), comm.split(comm.rank - 1), comm.split(0, name="mine"), comm.split(comm.rank)]
        return [part.name if part else None for part in parts]

    one, two = ranks(2, body)
    assert one == ["world/split", None, "mine", "world/split 4"]
    assert two == ["world/split", "world/split 2", "mine", "world/split 4"]


def test_a_group_takes_sends_and_receives_in_any_order(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[int]:
        got = np.zeros((comm.size, 1), np.int64)
        with isthmus.group():
            for peer in range(comm.size):
                if peer != comm.rank:
                    assert comm.send(np.array([10 * comm.rank + peer]), peer) is None  # all send first: no deadlock
            for peer in range(comm.size):
                if peer != comm.rank:
                    assert comm.recv(got[peer], peer) is None
        return got.reshape(-1).tolist()

    assert ranks(3, body) == [[0, 10, 20], [1, 0, 21], [2, 12, 0]]


def test_a_group_of_collectives_is_done_at_its_end(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[list[float]]:
        arrays = [np.full(n, comm.rank + 1.0) for n in (1, 100, 100_000)]
        with isthmus.group():
            for x in arrays:
                comm.all_reduce(x)
        return [sorted(set(x.tolist())) for x in arrays]

    assert ranks(3, body) == [[[6.0]] * 3] * 3


def test_an_asynchronous_group_is_one_work(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> float:
        x, y = np.ones(5), np.ones(5)
        with isthmus.group(async_op=True) as group:
            comm.all_reduce(x)
            comm.all_reduce(y)
        assert group.work is not None
        group.work.wait()
        return float(x[0] + y[0])

    assert ranks(2, body) == [4.0, 4.0]


def test_an_exception_in_a_group_submits_nothing(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[float]:
        x = np.ones(3)
        with pytest.raises(ZeroDivisionError), isthmus.group():
            comm.all_reduce(x)
            raise ZeroDivisionError
        untouched = x.tolist()
        with pytest.raises(isthmus.ArgumentError), isthmus.group():
            comm.all_reduce(x)
            comm.all_reduce(np.ones((4, 4)).T[1:])
        assert x.tolist() == untouched
        return comm.all_reduce(x).tolist()  # the communicator is unharmed

    assert ranks(2, body) == [[2.0] * 3] * 2


def test_communicators_are_independent(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> list[float]:
        others = [comm.split(0, comm.rank, f"c{i}") for i in range(20)]
        works = []
        arrays = [np.full(1000, i + comm.rank, np.float64) for i in range(20)]
        for other, x in zip(others, arrays, strict=True):
            assert other is not None
            works.append(other.all_reduce(x, async_op=True))
        for work in reversed(works):
            work.wait()
        for other in others:
            assert other is not None
            other.destroy()
        return [float(x[0]) for x in arrays]

    assert ranks(2, body) == [[2.0 * i + 1 for i in range(20)]] * 2


def test_a_message_of_many_chunks_arrives_whole(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> bool:
        n = 8_000_003
        x = np.arange(n, dtype=np.float32)
        comm.all_reduce(x)
        return bool((x == np.arange(n, dtype=np.float32) * 2).all())

    assert ranks(2, body) == [True, True]


def test_explain_prints_the_plan_and_holds_it_as_data(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> tuple[str, Any]:
        plan = comm.explain("all_reduce", nbytes=1 << 20, dtype="float32", op="sum")
        assert str(comm.explain("all_reduce", count=1 << 18, dtype=np.float32)) == str(plan)
        return str(plan), plan.data.get("digest")

    (text, digest), (_, other) = ranks(2, body)
    assert "all_reduce" in text and len(text.splitlines()) > 3
    assert digest == other and digest is not None


def test_topology_and_dump_are_dicts(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> Any:
        comm.all_reduce(np.ones(4))
        return comm.topology(), comm.dump(), comm.sequence

    for topology, dump, sequence in ranks(4, body, islands="a:2,b:2"):
        assert [island["ranks"] for island in topology["islands"]] == [[0, 1], [2, 3]]
        assert len(topology["ranks"]) == 4
        assert dump and sequence >= 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c, x: c.all_reduce(x, "median"), "op='median' is none of"),
        (lambda c, x: c.all_reduce(x, "premul_sum"), "needs scale="),
        (lambda c, x: c.all_reduce(x, scale=2.0), "scale= is premul_sum's"),
        (lambda c, x: c.all_reduce(x, timeout=0), "timeout=0 must be more than 0"),
        (lambda c, x: c.all_reduce(x, timeout=float("nan")), "timeout=nan must be"),
        (lambda c, x: c.broadcast(x, 2), "root=2 is no rank; ranks are 0 to 1"),
        (lambda c, x: c.reduce(x, -1), "root=-1 is no rank"),
        (lambda c, x: c.send(x, 9), "peer=9 is no rank"),
        (lambda c, x: c.send(x, 0, tag=-3), "tag=-3 must be 0 or more"),
        (lambda c, x: c.recv(x, -2), "peer=-2 is no rank"),
        (lambda c, x: c.send(x, 2**40), "peer is out of range"),
        (lambda c, x: c.reduce_scatter(np.ones(5)), "5 elements, which 2 ranks cannot share"),
        (lambda c, x: c.all_to_all(np.ones(5)), "use all_to_all_v"),
        (lambda c, x: c.all_gather(x, np.ones(7)), "out has 7 elements; it needs 8"),
        (lambda c, x: c.all_gather_v(x, [4]), "counts has 1 entries; it needs one for each of the 2 ranks"),
        (lambda c, x: c.all_gather_v(x, [4, -1]), r"counts\[1\] must be from 0"),
        (lambda c, x: c.all_gather_v(x, [2**63, 2**63]), "add up to more than"),
        (lambda c, x: c.all_gather_v(x, [9, 9]), r"x has 4 elements; it needs 9, counts\[rank\]"),
        (lambda c, x: c.all_gather_v(x, [4, 4], np.ones(8), displs=[0, 5]), "reach to element 9"),
        (lambda c, x: c.all_to_all_v(x, [2, 3], [1, 1]), "x has 4 elements, but the blocks reach to element 5"),
        (lambda c, x: c.scatter(None, 1 - c.rank), "a rank that is not the root needs out"),
        (lambda c, x: c.scatter(None, c.rank), "the root needs x"),
    ],
)
def test_a_bad_argument_is_named_and_harms_nothing(call: Any, text: str, threads: Run) -> None:
    def body(comm: isthmus.Comm) -> list[float]:
        x = np.ones(4)
        with pytest.raises(isthmus.ArgumentError, match=text):
            call(comm, x)
        return comm.all_reduce(x).tolist()

    assert threads(2, body) == [[2.0] * 4] * 2


@pytest.mark.parametrize(
    ("dtype", "op"),
    [("complex64", "min"), ("float32", "band"), ("bool", "avg"), ("bool", "premul_sum"), ("complex128", "premul_sum")],
)
def test_a_combination_without_a_meaning_is_named(dtype: str, op: str, threads: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        with pytest.raises(isthmus.UnsupportedError, match=f"(?s)(?=.*{dtype})(?=.*{op})"):
            comm.all_reduce(np.ones(2, dtype), op, scale=1.0 if op == "premul_sum" else None)

    threads(2, body)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_premul_sum_of_integers_is_exact_and_wraps(dtype: str, threads: Run) -> None:
    """For few and for many elements: of 2**n + a factor a counts, and what no double holds does too."""
    bits = 8 * np.dtype(dtype).itemsize
    factors = [-3, 2**bits - 2 ** (bits - 3) - 1]

    def body(comm: isthmus.Comm) -> list[Any]:
        data = [np.arange(n).astype(dtype) * (comm.rank + 5) for n in (7, 300_001)]
        return [comm.all_reduce(x, "premul_sum", scale=factors[comm.rank]) for x in data]

    for sums in threads(2, body):
        for x, n in zip(sums, (7, 300_001), strict=True):
            each = [np.arange(n).astype(dtype) * (r + 5) for r in range(2)]
            want = sum(d.astype(np.uint64) * np.uint64(f % 2**64) for d, f in zip(each, factors, strict=True))
            assert x.dtype == dtype and (x == want.astype(dtype)).all()


def test_premul_sum_of_integers_takes_whole_factors(threads: Run) -> None:
    def body(comm: isthmus.Comm) -> None:
        x = np.ones(2, np.int32)
        for scale in (0.5, float("nan"), 2.0**63):
            with pytest.raises(isthmus.ArgumentError, match="premul_sum of int32 takes a whole number"):
                comm.all_reduce(x, "premul_sum", scale=scale)
        assert (comm.all_reduce(x, "premul_sum", scale=-2.0) == -4).all()

    threads(2, body)


def test_wrong_calls_read_like_pythons_own_errors(threads: Run) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(TypeError, match=r"all_reduce\(\) got an unexpected keyword argument 'reduction'"):
            comm.all_reduce(np.ones(1), reduction="sum")
        with pytest.raises(TypeError, match=r"all_reduce\(\) needs the argument 'x'"):
            comm.all_reduce()
        with pytest.raises(TypeError, match=r"got multiple values for argument 'x'"):
            comm.all_reduce(np.ones(1), x=np.ones(1))
        with pytest.raises(TypeError, match=r"at most 3 positional"):
            comm.all_reduce(np.ones(1), "sum", None, True)

    threads(1, body)


def test_receive_blocks_that_overlap_are_refused_on_the_caller_and_the_communicator_goes_on(ranks: Run) -> None:
    def body(comm: isthmus.Comm) -> float:
        counts, apart = [2] * comm.size, [3 * (comm.size - 1 - r) for r in range(comm.size)]
        out = np.zeros(4 * comm.size)
        for displs in ([0] * comm.size, [*range(0, comm.size)], [1, 0, 8]):
            with pytest.raises(isthmus.ArgumentError, match="overlap"):
                comm.all_gather_v(np.ones(2), counts, out, displs)
            with pytest.raises(isthmus.ArgumentError, match="overlap"):
                comm.all_to_all_v(np.ones(2 * comm.size), counts, counts, recv_displs=displs, out=out)
        comm.all_gather_v(np.full(2, comm.rank + 1.0), counts, out, apart)  # in any order, with gaps
        return float(out.sum())

    results = ranks(3, body)
    assert results == [12.0] * 3
