"""Averages between islands of numbers whose sum is out of the type's range: what a library sums there must be in it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import isthmus
import reference as ref
from devices import OnDevice, run_fleet
from islands import needs_oneccl, run_islands

FLEETS = ("nvidia:2,amd:2", "nvidia:3,cpu:1", "nvidia:2,amd:1,ascend:2")
COUNTS = (120, 1_200_000)  # a leader exchange, and several chunks
LARGE = {"float16": 60_000.0, "float8_e4m3fn": 384.0, "float8_e5m2": 49_152.0}
STEP = {"float16": 32, "float8_e4m3fn": 0, "float8_e5m2": 0}


def contribution(rank: int, count: int, dtype: str) -> ref.Array:
    """Numbers near the largest of the type, and others on other ranks, where there are some."""
    values = LARGE[dtype] + STEP[dtype] * ((np.arange(count) + 5 * rank) % 16)
    return values.astype(np.float32).astype(ref.DTYPES[dtype])


def averages(comm: isthmus.Comm, dtype: str) -> tuple[dict[tuple[str, int], bytes], str]:
    """What every rank has after an all_reduce, rank 1 after a reduce, and all together after a reduce_scatter."""
    host = comm.topology()["ranks"][comm.rank]["device"] == "host"
    here: Any = comm if host else OnDevice(comm)
    found = {}
    for count in COUNTS:
        x = contribution(comm.rank, count, dtype)
        found["all_reduce", count] = here.all_reduce(x, "avg", np.zeros_like(x)).tobytes()
        out = here.reduce(x, 1, "avg", np.zeros_like(x))
        if comm.rank == 1:
            found["reduce", count] = out.tobytes()
        block = np.zeros(count // comm.size, x.dtype)
        found["reduce_scatter", count] = here.reduce_scatter(x, "avg", block).tobytes()
        assert (ref.bits(x) == ref.bits(contribution(comm.rank, count, dtype))).all(), "the input was changed"
    return found, str(comm.explain("all_reduce", nbytes=1 << 20, dtype=dtype, op="avg"))


def check(ranks: list[tuple[dict[tuple[str, int], bytes], str]], dtype: str) -> None:
    kind, rounding = ref.DTYPES[dtype], {"float16": 2**-11, "float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}[dtype]
    for count in COUNTS:
        want = np.mean([contribution(r, count, dtype).astype(np.float64) for r in range(len(ranks))], 0)
        every = {found["all_reduce", count] for found, _ in ranks}
        assert len(every) == 1, "ranks with other bits"
        scattered = b"".join(found["reduce_scatter", count] for found, _ in ranks)
        reduced = ranks[1][0]["reduce", count]
        for name, data in ("all_reduce", every.pop()), ("reduce", reduced), ("reduce_scatter", scattered):
            got = np.frombuffer(data, kind).astype(np.float64)
            # One of each library, and one at the end.
            np.testing.assert_allclose(got, want, rtol=2 * rounding, err_msg=f"{name} of {count} {dtype}")


@pytest.mark.parametrize("bridge", ["shm", "tcp"])
@pytest.mark.parametrize("fleet", FLEETS)
def test_an_average_between_islands_is_in_range_where_the_sum_is_not(fleet: str, bridge: str) -> None:
    ranks = run_fleet(fleet, averages, "float16", bridge=bridge)
    check(ranks, "float16")
    text = ranks[0][1]
    halves = "times 1/4" if "nvidia:3" in fleet else "times 1/2"
    sums = rf"nccl reduce_scatter of [^\n]* {halves}(, \d+ calls together)? \(full chunks\)"
    assert re.search(sums, text), "the library sums"
    if "ascend" in fleet:  # its library has no factor
        assert "hccl" not in ranks[-1][1]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_an_average_of_float8_is_in_range_where_the_sum_is_not(dtype: str) -> None:
    check(run_fleet("nvidia:2,cpu:1", averages, dtype), dtype)


def small_numbers(comm: isthmus.Comm, dtypes: tuple[str, ...]) -> list[bytes]:
    here: Any = comm if comm.topology()["ranks"][comm.rank]["device"] == "host" else OnDevice(comm)
    found = []
    for dtype in dtypes:
        x = ((np.arange(5000) * 3 + comm.rank) % 17 / 16 + comm.rank).astype(np.float32).astype(ref.DTYPES[dtype])
        found.append(here.all_reduce(x, "avg", np.zeros_like(x)).tobytes())
    return found


def test_what_a_library_sums_exactly_is_the_average_of_numbers_md_to_the_last_bit() -> None:
    """Islands of three: their factor is a power of two, so no number is rounded that a sum would not round."""
    dtypes = ("float16", "bfloat16", "float32", "float64")
    fleet = "nvidia:3,amd:2,cpu:1"
    for bridge in ("shm", "tcp"):
        ranks = run_fleet(fleet, small_numbers, dtypes, bridge=bridge)
        for i, dtype in enumerate(dtypes):
            given = [
                ((np.arange(5000) * 3 + r) % 17 / 16 + r).astype(np.float32).astype(ref.DTYPES[dtype]) for r in range(6)
            ]
            want = ref.reduce(given, dtype, "avg", [[0, 1, 2], [3, 4], [5]], [1.0] * 6)
            assert {found[i] for found in ranks} == {want.tobytes()}, (dtype, bridge)


@needs_oneccl
@pytest.mark.parametrize("bridge", [None, "tcp"])
def test_a_library_without_a_factor_is_not_asked_for_the_average(bridge: str | None) -> None:
    ranks = run_islands("A:2,b:1", averages, "float16", bridge=bridge)
    check(ranks, "float16")
    assert "oneccl" not in ranks[0][1]
