"""Islands that a vendor's library serves, beside each other and beside host ranks: real oneCCL on one machine.

Sums are of small integers, so whatever order a library adds in, there is one right value.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

import isthmus
from hosts import missing
from islands import ONECCL, join, needs_oneccl, run_islands
from patience import WHOLE
from ranks import run_processes, run_threads
from reference import DTYPES, bits

pytestmark = needs_oneccl

SHAPES = (
    "A:2",
    "A:3",
    "A:2,b:1",
    "b:1,A:2",
    "A:2,b:2",
    "A,b,A",
    "b,A,A,b,A",
    "A:3,b:1,C:2",
    "A,B,A,B",
    "A:2,B:2,c:1",
    "A:1,b:1",
    "A,B,A,b,B,A",
)
# What oneCCL has, and what is planned without it: float8, booleans, complex numbers, 16-bit integers, bitwise operations.
ALL_REDUCES = [
    *((dtype, op) for dtype in "float32 float64 int32 uint8 int64".split() for op in "sum prod min max avg".split()),
    *(("int32", op) for op in ("band", "bxor")),
    *((dtype, "sum") for dtype in ("bfloat16", "float16", "int16", "complex64", "float8_e5m2")),
    ("float32", "premul_sum"),
    ("bool", "max"),
]
COUNTS = (0, 1, 7, 2049, 70_001, 800_000)
LONG = (("float32", "sum"), ("float64", "avg"), ("int32", "max"), ("bfloat16", "sum"))  # for the longest of them


def repeated(period: Any, count: int) -> Any:
    """The period again and again, `count` elements: at the speed of a copy, however many ranks make as many of them."""
    out = np.empty(count, period.dtype)
    filled = min(count, len(period))
    out[:filled] = period[:filled]
    while filled < count:
        more = min(filled, count - filled)
        out[filled : filled + more] = out[:more]
        filled += more
    return out


def contribution(rank: int, count: int, dtype: str) -> Any:
    return repeated(((np.arange(3) + rank) % 3 + 1).astype(np.float32).astype(DTYPES[dtype]), count)


def expected(world: int, count: int, dtype: str, op: str) -> Any:
    return repeated(_expected(world, dtype, op), count)


def _expected(world: int, dtype: str, op: str) -> Any:
    """Of the three elements that follow each other in what every rank contributes."""
    all_ranks = np.stack([contribution(r, 3, dtype).astype(np.int64) for r in range(world)])
    if op == "avg":
        total = all_ranks.sum(0)
        if "int" in dtype:
            return (total.astype(DTYPES[dtype]).astype(np.int64) // world).astype(DTYPES[dtype])
        return (total.astype(DTYPES[dtype]) / np.asarray(world, DTYPES[dtype])).astype(DTYPES[dtype])
    folds = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "band": np.bitwise_and}
    if op == "premul_sum":
        return (all_ranks.sum(0) * 2).astype(DTYPES[dtype])
    if op == "bxor":
        return np.bitwise_xor.reduce(all_ranks, 0).astype(DTYPES[dtype])
    if dtype == "bool":
        return np.ones(3, np.bool_)
    return folds[op].reduce(all_ranks, 0).astype(DTYPES[dtype])


def all_reduces(comm: isthmus.Comm) -> int:
    done = 0
    for dtype, op in ALL_REDUCES:
        for count in COUNTS if (dtype, op) in LONG else COUNTS[:4]:
            want = expected(comm.size, count, dtype, op)
            for in_place in (False, True):
                x = contribution(comm.rank, count, dtype)
                out = x if in_place else np.zeros_like(x)
                kept = x.copy()
                comm.all_reduce(x, op, out, scale=2.0) if op == "premul_sum" else comm.all_reduce(x, op, out)
                same = bits(out) == bits(want)
                assert same.all(), (dtype, op, count, in_place, np.flatnonzero(~same)[:4])
                assert in_place or (bits(x) == bits(kept)).all(), "the input was changed"
                done += 1
    return done


@pytest.mark.computes
@pytest.mark.product(8)
@pytest.mark.parametrize("islands", SHAPES)
def test_all_reduce_is_that_of_numpy(islands: str) -> None:
    done = run_islands(islands, all_reduces)
    assert set(done) == {2 * (len(ALL_REDUCES) * 4 + len(LONG) * 2)}


@pytest.mark.computes
@pytest.mark.parametrize("islands", ["A:2,b:2", "A,B,A,B,c"])
def test_all_reduce_over_tcp_is_that_of_numpy(islands: str) -> None:
    assert len(set(run_islands(islands, all_reduces, bridge="tcp"))) == 1


def other_collectives(comm: isthmus.Comm) -> None:
    n, me = comm.size, comm.rank
    for dtype in ("float32", "int64", "bfloat16", "int16"):
        for count in (0, 1, 5, 3000, 200_000):
            mine = contribution(me, count, dtype)
            every = [contribution(r, count, dtype) for r in range(n)]
            joined = np.concatenate(every)

            def same(got: Any, want: Any, what: str) -> None:
                assert (bits(got) == bits(want)).all(), (what, dtype, count)  # noqa: B023

            same(comm.all_gather(mine), joined, "all_gather")
            place = np.zeros(n * count, DTYPES[dtype])
            own = place[me * count : (me + 1) * count]
            own[:] = mine
            same(comm.all_gather(own, place), joined, "all_gather in place")
            wide = np.concatenate([contribution(me + r, count, dtype) for r in range(n)])
            want = expected(n, count, dtype, "sum") if me == 0 else None
            total = np.stack([contribution(r + me, count, dtype).astype(np.int64) for r in range(n)]).sum(0)
            same(comm.reduce_scatter(wide), total.astype(DTYPES[dtype]), "reduce_scatter")
            for root in (0, n - 1):
                reduced = comm.reduce(mine.copy(), root, "sum", np.zeros_like(mine))
                if me == root:
                    same(reduced, expected(n, count, dtype, "sum"), "reduce")
                x = contribution(root, count, dtype) if me == root else np.zeros_like(mine)
                same(comm.broadcast(x, root), contribution(root, count, dtype), "broadcast")
            turned = np.concatenate([contribution(r + me, count, dtype) for r in range(n)])
            same(comm.all_to_all(wide), turned, "all_to_all")
            same(comm.all_to_all(wide, wide), turned, "all_to_all in place")
            for root in (0, n - 1):
                gathered = comm.gather(mine, root)
                if me == root:
                    same(gathered, joined, "gather")
                blocks = np.stack([contribution(root + r, count, dtype) for r in range(n)]) if me == root else None
                same(comm.scatter(blocks, root, np.zeros_like(mine)), contribution(root + me, count, dtype), "scatter")
            assert want is None or want.size == count
    comm.barrier()
    got = np.zeros(3, np.int32)
    sent = comm.send(np.full(3, me, np.int32), (me + 1) % n, async_op=True)
    comm.recv(got, (me - 1) % n)
    sent.wait()
    assert (got == (me - 1) % n).all()


@pytest.mark.computes
@pytest.mark.product(6)
@pytest.mark.parametrize("islands", ["A:2", "A:3", "A:2,b:1", "A,b,A,b", "A:2,B:2", "b,A,A,C,C,b"])
def test_the_other_collectives_are_those_of_numpy(islands: str) -> None:
    run_islands(islands, other_collectives)


def many_chunks(comm: isthmus.Comm) -> None:
    n, me, count = comm.size, comm.rank, 170_003
    mine = contribution(me, count, "float32")
    for turn in range(2):
        assert (comm.all_reduce(mine, "sum", np.zeros_like(mine)) == expected(n, count, "float32", "sum")).all(), turn
        joined = np.concatenate([contribution(r, count, "float32") for r in range(n)])
        assert (comm.all_gather(mine).reshape(-1) == joined).all(), turn
        for root in range(n):
            x = contribution(root, count, "float32") if me == root else np.zeros_like(mine)
            assert (comm.broadcast(x, root) == contribution(root, count, "float32")).all(), (turn, root)
            reduced = comm.reduce(mine.copy(), root, "sum", np.zeros_like(mine))
            assert me != root or (reduced == expected(n, count, "float32", "sum")).all(), (turn, root)
        wide = np.concatenate([contribution(me + r, count, "float32") for r in range(n)])
        total = np.stack([contribution(r + me, count, "float32") for r in range(n)]).sum(0)
        assert (comm.reduce_scatter(wide) == total).all(), turn


@pytest.mark.product(4)
@pytest.mark.parametrize("bridge", ["auto", "tcp"])
@pytest.mark.parametrize("islands", ["A:2,b:1", "b,A,A,C,C"])
def test_messages_of_twenty_chunks_use_their_slots_again(islands: str, bridge: str) -> None:
    run_islands(islands, many_chunks, bridge=bridge, env={"ISTHMUS_CHUNK_BYTES": "4K"})


@pytest.mark.computes
def test_all_ranks_hold_the_same_bits_of_real_numbers() -> None:
    """No integers here: whatever order the library adds in, everybody holds what it gave."""

    def body(comm: isthmus.Comm) -> bytes:
        x = np.random.default_rng(comm.rank).standard_normal(500_003).astype(np.float32)
        return comm.all_reduce(x, out=np.empty_like(x)).tobytes()

    for islands in ("A:3", "A:2,b:2", "A,B,A,B,c"):
        first, *others = run_islands(islands, body)
        assert all(other == first for other in others), islands


def test_operations_in_flight_keep_their_order() -> None:
    """Some go to the library, some do not; each reads what the one before has written."""

    def body(comm: isthmus.Comm) -> Any:
        x = np.full(100_000, float(comm.rank + 1), np.float64)
        gathered = np.zeros(100_000 * comm.size)
        works = []
        for _ in range(20):
            works.append(comm.all_reduce(x, "max", x, async_op=True))  # the library
            works.append(comm.all_gather(x, gathered, async_op=True))  # not, among several islands
            works.append(comm.reduce_scatter(gathered, "sum", x, async_op=True))
            works.append(comm.all_reduce(x, "avg", x, async_op=True))
            works.append(comm.all_reduce(x, "min", x, async_op=True))
            works.append(comm.all_reduce(x[:3], "max", x[:3], async_op=True))
        for work in works:
            work.wait()
        return x[0], x[-1], gathered[0]

    for islands in ("A:2", "A:2,b:1", "A,B,b,A,B"):
        results = run_islands(islands, body)
        world = len(results)
        # Every round multiplies by the world: the sum of as many equal numbers.
        assert set(results) == {(float(world) ** 21, float(world) ** 21, float(world) ** 20)}, islands


def test_a_communicator_inside_one_island_and_one_across() -> None:
    def body(comm: isthmus.Comm) -> Any:
        inside = comm.split(0 if comm.rank < 2 else 1)
        assert inside is not None
        across = comm.split(comm.rank % 2, name="across")
        assert across is not None
        plans = [json.loads(c._explain("all_reduce", 1 << 20, "float32", "sum", 0))["ccl"] for c in (comm, inside, across)]
        sums = [float(c.all_reduce(np.full(30_000, comm.rank, np.float32))[0]) for c in (inside, across, comm)]
        inside.destroy()
        sums.append(float(comm.all_reduce(np.ones(1, np.float32))[0]))
        return plans, sums

    a, b, c, d = run_islands("A:2,b:2", body)
    assert a[0] == b[0] == ["oneccl", "oneccl", ""], "one rank of an island needs no library"
    assert c[0] == d[0] == ["", "", ""]
    assert a[1] == [1, 2, 6, 4] and d[1] == [5, 4, 6, 4]


def test_parts_of_an_island_have_the_ranks_that_split_says() -> None:
    """oneCCL's own answers on a communicator that was split are rubbish."""

    def check(comm: isthmus.Comm, rank: int, members: list[int]) -> None:
        assert (comm.rank, comm.size) == (rank, len(members)), (comm.rank, comm.size, rank, members)
        for count in (5, 60_000):  # who has which rank is seen in what each gets
            mine = np.full(count, float(members[rank] + 1))
            total = float(sum(member + 1 for member in members))
            assert (comm.all_reduce(mine.copy()) == total).all()
            gathered = comm.all_gather(mine)
            assert [float(block[0]) for block in gathered] == [member + 1.0 for member in members]
            for root, member in enumerate(members):
                assert (comm.broadcast(mine.copy(), root) == member + 1.0).all(), root
                reduced = comm.reduce(mine.copy(), root)
                assert (reduced is None) == (rank != root) and (reduced is None or (reduced == total).all())
            blocks = np.concatenate([np.full(count, 10.0 * block) for block in range(len(members))])
            assert (comm.reduce_scatter(blocks) == 10.0 * rank * len(members)).all()

    def body(comm: isthmus.Comm) -> list[str]:
        me, served = comm.rank, []
        turned = comm.split(0, -me)
        halves = comm.split(me % 2, me)
        of_turned = turned.split(0 if turned.rank > 0 else -1, 7 * turned.rank) if turned else None
        assert turned is not None and halves is not None
        check(turned, comm.size - 1 - me, list(range(comm.size))[::-1])
        check(halves, me // 2, [r for r in range(comm.size) if r % 2 == me % 2])
        if of_turned:
            check(of_turned, turned.rank - 1, list(range(comm.size - 1))[::-1])
        assert (of_turned is None) == (me == comm.size - 1)
        check(comm, me, list(range(comm.size)))
        for part in (turned, halves, of_turned):
            served.append(json.loads(part._explain("all_reduce", 1 << 20, "float32", "sum", 0))["ccl"] if part else "")
            if part:
                part.destroy()
        return served

    first, second, third, _ = run_islands("A:3,b:1", body)
    assert first == third == ["oneccl", "oneccl", "oneccl"] and second == ["oneccl", "", "oneccl"]


def test_groups_of_ranks_of_an_island_need_none_of_the_librarys() -> None:
    def body(comm: isthmus.Comm) -> list[float]:
        n, me, count = comm.size, comm.rank, 40_000
        got = np.zeros((n, count))
        total, wide = np.full(count, me + 1.0), np.zeros((n, count))
        for _ in range(3):
            with isthmus.group():
                for peer in range(n):
                    comm.send(np.full(count, 10.0 * me + peer), peer)
                    comm.recv(got[peer], peer)
                comm.all_reduce(total, "max")
                comm.all_gather(np.full(count, float(me)), wide)
        assert (got == got[:, :1]).all() and (total == n).all() and (wide == wide[:, :1]).all()
        return [*got[:, 0].tolist(), *wide[:, 0].tolist()]

    for islands in ("A:3", "A:2,b:1"):
        assert run_islands(islands, body) == [[me, 10.0 + me, 20.0 + me, 0, 1, 2] for me in range(3)], islands


def test_the_plan_and_the_topology_name_the_library() -> None:
    def body(comm: isthmus.Comm) -> Any:
        small = comm.explain("all_reduce", nbytes=64)
        large = comm.explain("all_reduce", nbytes=64 << 20)
        short = comm.explain("all_reduce", nbytes=1 << 20, dtype="int16")
        return str(small), str(large), str(short), comm.topology()

    small, large, short, topology = run_islands("A:2,b:2", body)[0]
    assert "served by oneccl" in large and "oneccl reduce_scatter" in large and "oneccl all_gather" in large
    assert "oneccl all_reduce" in small and "oneccl broadcast" in small
    assert "oneccl" not in short, "oneCCL has no 16-bit integers, so its ranks are planned one by one"
    assert [group["ccl"] for group in topology["groups"]] == ["oneccl", ""]
    assert topology["ranks"][0]["ccl_version"].count(".") == 2


def test_a_library_that_is_not_there_is_said_in_one_sentence_on_every_rank() -> None:
    def body() -> str:
        options = {"CCL": "oneccl", "CCL_LIBRARY": "/nowhere/libccl.so.2"} if os.environ["ISTHMUS_ISLAND"] == "a" else {}
        try:
            isthmus.init(settings=options)
        except isthmus.Error as error:
            return str(error)
        return ""

    texts = run_processes(3, body, islands="a:2,b:1", init=False)
    assert all("/nowhere/libccl.so.2 cannot be opened" in text and "install oneCCL 2022.1" in text for text in texts), texts
    assert all("rank 0" in text or "rank 1" in text for text in texts), "who lacks it"


def test_two_ranks_in_one_process_are_refused_by_name() -> None:
    with pytest.raises(AssertionError, match="ranks 0 and 1 are threads of one process"):
        run_threads(2, lambda comm: None, settings={"CCL": "oneccl", "CCL_LIBRARY": str(ONECCL)})


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_may_leave_at_different_times(first: int) -> None:
    """oneCCL ends a process that ends a communicator whose maker is gone."""

    def body(comm: isthmus.Comm, first: int) -> int:
        comm.all_reduce(np.ones(10, np.float32))
        if comm.rank != first:
            time.sleep(2.5)  # ranks that come within two seconds leave together
        return comm.rank

    assert run_islands("A:3", body, first) == [0, 1, 2]


def test_a_process_with_a_stuck_thread_ends_with_its_own_status() -> None:
    def body() -> tuple[str, int]:
        comm = join()
        x = np.ones(200_000, np.float32)
        comm.all_reduce(x)
        try:
            comm.barrier()  # who has passed it knows that all have the sum; in it, the others may already miss somebody
            if comm.rank == 1:
                os._exit(9)
            while True:
                comm.all_reduce(x, "max")
        except isthmus.PeerLostError as error:
            return str(error), os.getpid()

    first, _, third = run_processes(3, body, islands="A:3", init=False, expect={1: 9})
    for text, pid in (first, third):
        assert "rank 1" in text
        assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"{pid}:")], "what its transport keeps there"


NINE_AND_TEN = """
import os
import sys

def fork(body, *arguments):
    child = os.fork()
    if child == 0:
        try:
            body(*arguments)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\\n")
            os._exit(1)
        os._exit(0)
    return child

def rank(number):
    import isthmus, numpy
    if number == 0:
        id = isthmus.unique_id()
        os.write(tell, id)
    else:
        id = os.read(told, 128)
    settings = {"CCL": "oneccl", "CCL_LIBRARY": sys.argv[1]}
    with isthmus.init(number, 2, unique_id=id, island="A", settings=settings) as comm:
        x = numpy.ones(300_000, numpy.float32)
        comm.all_reduce(x)
        assert (x == 2).all()
        assert comm.topology()["groups"][0]["ccl"] == "oneccl"
        print(os.getpid(), flush=True)

told, tell = os.pipe()
while (child := fork(lambda: None)) < 8:
    os.waitpid(child, 0)
os.waitpid(child, 0)
ranks = [fork(rank, number) for number in range(2)]
sys.exit(any([os.waitpid(child, 0)[1] for child in ranks]))
"""


def test_processes_whose_ids_are_of_unlike_lengths_are_an_island_too() -> None:
    """oneCCL's own shared memory does not connect them, and ends both. They are 9 and 10 in a namespace of their own."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        missing("a namespace of process ids needs root and unshare (util-linux)")
    ended = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", NINE_AND_TEN, str(ONECCL)],
        capture_output=True,
        text=True,
        timeout=WHOLE,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(len(line) for line in ended.stdout.splitlines() if line.isdigit()) == [1, 2], ended.stdout
    assert ended.stderr.count("its traffic goes by TCP in this process") == 2, ended.stderr


def test_steady_traffic_of_a_hundred_operations_in_flight() -> None:
    """More device work than a stream's queue holds at first: it grows, and nobody waits for room."""

    def body(comm: isthmus.Comm) -> float:
        arrays = [np.full(300_000, 1.0, np.float32) for _ in range(100)]
        works = [comm.all_reduce(x, "sum", x, async_op=True) for x in arrays]
        for work in works:
            work.wait()
        return float(sum(x.sum() for x in arrays))

    assert set(run_islands("A:2,b:1", body)) == {100 * 300_000 * 3.0}
