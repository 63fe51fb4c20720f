"""Ranks call different things: an error on every rank, at the latest in its next operation, that says who called what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isthmus
from jobs import RARELY, Me, Zygote, job, results

N = {"small": 64, "large": 300_000}
Call = Callable[[isthmus.Comm, int], Any]

# what rank 1 calls, what the others call, and the words by which the text tells them apart
CASES: dict[str, tuple[Call, Call, tuple[str, str]]] = {
    "collective": (
        lambda comm, n: comm.broadcast(np.ones(n, np.float32)),
        lambda comm, n: comm.all_reduce(np.ones(n, np.float32)),
        ("broadcast", "all_reduce"),
    ),
    "barrier": (
        lambda comm, n: comm.barrier(),
        lambda comm, n: comm.all_reduce(np.ones(n, np.float32)),
        ("barrier", "all_reduce"),
    ),
    "dtype": (
        lambda comm, n: comm.all_reduce(np.ones(n, np.int32)),
        lambda comm, n: comm.all_reduce(np.ones(n, np.float32)),
        ("int32", "float32"),
    ),
    "op": (
        lambda comm, n: comm.all_reduce(np.ones(n, np.float32), "max"),
        lambda comm, n: comm.all_reduce(np.ones(n, np.float32), "min"),
        ("max", "min"),
    ),
    "count": (
        lambda comm, n: comm.all_reduce(np.ones(n + 16, np.float32)),
        lambda comm, n: comm.all_reduce(np.ones(n, np.float32)),
        ("{more} elements", "{count} elements"),
    ),
    "root": (
        lambda comm, n: comm.broadcast(np.ones(n, np.float32), 1),
        lambda comm, n: comm.broadcast(np.ones(n, np.float32), 0),
        ("root 1", "root 0"),
    ),
    "gather-count": (
        lambda comm, n: comm.all_gather(np.ones(n + 16, np.float32)),
        lambda comm, n: comm.all_gather(np.ones(n, np.float32)),
        ("{more} elements", "{count} elements"),
    ),
}


@pytest.mark.parametrize("size", N)
@pytest.mark.parametrize("case", CASES)
def test_every_rank_is_told(zygote: Zygote, shape: str, case: str, size: str) -> None:
    odd, usual, words = CASES[case]
    n = N[size]

    def body(me: Me) -> Any:
        comm = me.init()

        def both() -> None:
            (odd if me.rank == 1 else usual)(comm, n)
            comm.barrier()  # at the latest here

        return me.caught(both)

    with job(zygote, 3, body, shape, settings=RARELY) as ranks:
        for failure in results(ranks):
            assert failure["kind"] == "MismatchError", failure
            assert "rank 1" in failure["text"], failure
            for word in words:
                assert word.format(more=n + 16, count=n) in failure["text"].lower(), failure


def test_counts_of_v_collectives(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()
        counts = [100, 200] if me.rank == 0 else [100, 201]

        def both() -> None:
            comm.all_gather_v(np.ones(counts[me.rank]), counts)
            comm.barrier()

        return me.caught(both)

    with job(zygote, 2, body, shape) as ranks:
        for failure in results(ranks):
            assert failure["kind"] == "MismatchError" and "all_gather_v" in failure["text"], failure


@pytest.mark.parametrize(("sent", "expected"), [(10, 11), (11, 10), (300_000, 299_999), (0, 5), (5, 0), (200_000, 5)])
def test_sizes_that_only_two_ranks_know(zygote: Zygote, sent: int, expected: int) -> None:
    """all_to_all_v in shared memory: what one sends and what the other expects are compared before anything moves."""

    def body(me: Me) -> Any:
        comm = me.init()
        give, take = [4, 4, 4], [4, 4, 4]
        if me.rank == 0:
            give[2] = sent
        if me.rank == 2:
            take[0] = expected
        return me.caught(lambda: comm.all_to_all_v(np.ones(sum(give)), give, take))

    with job(zygote, 3, body) as ranks:
        for failure in results(ranks):
            assert failure["kind"] == "MismatchError" and "all_to_all_v" in failure["text"], failure
            assert f"rank 0 (pid {ranks[0].pid}" in failure["text"], failure
            assert f"sends {sent} elements to rank 2, which expects {expected}" in failure["text"], failure


@pytest.mark.parametrize(("sent", "expected"), [(10, 11), (400_000, 400_001), (10, 400_000), (400_000, 0)])
def test_messages_of_another_size(zygote: Zygote, shape: str, sent: int, expected: int) -> None:
    def body(me: Me) -> Any:
        comm = me.init()

        def both() -> None:
            if me.rank == 0:
                comm.send(np.ones(sent), 1)
            else:
                comm.recv(np.ones(expected), 0)
            comm.barrier()

        return me.caught(both)

    with job(zygote, 2, body, shape) as ranks:
        for failure in results(ranks):
            assert failure["kind"] == "MismatchError", failure
            assert f"{sent} x float64" in failure["text"] and f"{expected} x float64" in failure["text"], failure


def test_messages_of_another_dtype(zygote: Zygote, shape: str) -> None:
    def body(me: Me) -> Any:
        comm = me.init()

        def both() -> None:
            if me.rank == 0:
                comm.send(np.ones(10, np.int32), 1)
            else:
                comm.recv(np.ones(10, np.float32), 0)
            comm.barrier()

        return me.caught(both)

    with job(zygote, 2, body, shape) as ranks:
        for failure in results(ranks):
            assert failure["kind"] == "MismatchError", failure
            assert "int32" in failure["text"] and "float32" in failure["text"], failure
