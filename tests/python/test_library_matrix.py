"""Every collective x dtype x op that a vendor's library has a part in, on islands that it serves, at least once each:
oneCCL's own, and simulated ones. All_reduce also with what no library has, which is planned without.

Contributions are small whole numbers, so whatever order a library adds in, there is one right value.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import isthmus
import matrix
import reference as ref
from devices import OnDevice, run_fleet
from islands import needs_oneccl, run_islands

PLAIN = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
BASIC = ("sum", "prod", "min", "max")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
# Which reductions are the library's inside an island. Where there is a bridge, an avg is a sum there, divided at the end (of
# float16 and float8 a sum of multiplied numbers, where the library has that); an island alone needs a library that has one.
SERVED = {
    "oneccl": {(dtype, op) for dtype in PLAIN for op in (*BASIC, "avg")},
    "nccl": {(dtype, op) for dtype in (*PLAIN, *FLOAT8) for op in (*BASIC, "avg")},
    "rccl": {(dtype, op) for dtype in (*PLAIN, *FLOAT8) for op in (*BASIC, "avg")},
    "hccl": {(dtype, op) for dtype in ("int8", "int32", "float16", "float32") for op in (*BASIC, "avg")}
    | {("int16", "sum"), ("int16", "avg")}
    | {("bfloat16", op) for op in ("sum", "min", "max", "avg")},
}
REDUCING, MOVING = ("all_reduce", "reduce", "reduce_scatter"), ("broadcast", "all_gather")
AVERAGES = MULTIPLIES = ("nccl", "rccl")
COUNTS = (701, 3)  # by the islands' pieces, and by one rank of each: ISTHMUS_EAGER_BYTES lies between them


@functools.cache
def small(dtype: str, count: int, seed: int) -> ref.Array:
    """1 and 2, so that every type holds every sum and product of three ranks."""
    values = (np.arange(count) * 7 + np.arange(count) // 5 + seed) % 2 + 1
    return (values % 2).astype(np.bool_) if dtype == "bool" else values.astype(np.float32).astype(ref.DTYPES[dtype])


def whole(dtype: str, rank: int) -> float:
    return rank + 1.0


def cells(family: str) -> list[matrix.Cell]:
    """In turns of both sizes, and in place."""
    found = []
    for collective in (*REDUCING, *MOVING):
        all_of_them = list(matrix.cells(collective, [0]))
        for i, cell in enumerate(one for one in all_of_them if not one.in_place):
            multiplied = family in MULTIPLIES and cell.op == "premul_sum" and (cell.dtype, "sum") in SERVED[family]
            if collective in ("all_reduce", *MOVING) or (cell.dtype, cell.op) in SERVED[family] or multiplied:
                found.append(cell._replace(count=COUNTS[i % 2], in_place=i // 2 % 2 == 1))
    return found


def served(comm: isthmus.Comm) -> set[tuple[str, str]]:
    """What the plan of an all_reduce leaves to the library."""
    return {
        (dtype, op)
        for dtype in ref.DTYPES
        for op in ref.OPS
        if ref.combines(dtype, op) and json.loads(comm._explain("all_reduce", 8192, dtype, op, 0))["ccl"]
    }


def every_cell(comm: isthmus.Comm, family: str, labels: Sequence[str]) -> Any:
    matrix._sample, matrix.scale = small, whole  # type: ignore[assignment]
    here: Any = comm if comm.topology()["ranks"][comm.rank]["device"] == "host" else OnDevice(comm)
    for cell in cells(family):
        matrix.run_cell(here, cell, labels)
    name = next((group["ccl"] for group in comm.topology()["groups"] if comm.rank in group["ranks"]), "")
    return name, served(comm)


def check(found: list[Any], family: str, alone: bool, counts: dict[str, int]) -> None:
    for rank, (name, by_library) in enumerate(found):
        wanted = SERVED[family] if name else set()
        if alone and family not in AVERAGES:
            wanted = {(dtype, op) for dtype, op in wanted if op != "avg"}
        if family not in MULTIPLIES:
            wanted = wanted - {("float16", "avg")}
        elif name and alone:
            wanted = wanted | {(dtype, "premul_sum") for dtype, _ in wanted}
        assert by_library == wanted, (rank, name)
    assert [name for name, _ in found[:2]] == [family, family]
    counts[f"{family}, {'an island alone' if alone else 'an island and a host rank'}"] = len(cells(family))


ENVIRONMENT = {"ISTHMUS_EAGER_BYTES": "512"}


@pytest.mark.parametrize("alone", [False, True], ids=["bridged", "alone"])
@pytest.mark.parametrize(("vendor", "family"), [("nvidia", "nccl"), ("amd", "rccl"), ("ascend", "hccl")])
def test_a_simulated_librarys_island(vendor: str, family: str, alone: bool, matrix_counts: dict[str, int]) -> None:
    fleet, labels = (f"{vendor}:2", "aa") if alone else (f"{vendor}:2,cpu:1", "aab")
    check(run_fleet(fleet, every_cell, family, labels, env=ENVIRONMENT), family, alone, matrix_counts)


@needs_oneccl
@pytest.mark.parametrize("alone", [False, True], ids=["bridged", "alone"])
def test_an_island_of_oneccl(alone: bool, matrix_counts: dict[str, int]) -> None:
    islands, labels = ("A:2", "aa") if alone else ("A:2,b:1", "aab")
    check(run_islands(islands, every_cell, "oneccl", labels, env=ENVIRONMENT), "oneccl", alone, matrix_counts)


@pytest.mark.parametrize("family", SERVED)
def test_no_combination_is_left_out(family: str) -> None:
    found = {(cell.collective, cell.dtype, cell.op) for cell in cells(family)}
    assert {(collective, *pair) for collective in REDUCING for pair in SERVED[family]} <= found
    assert {(collective, dtype, "") for collective in MOVING for dtype in ref.DTYPES} <= found
    assert {("all_reduce", cell.dtype, cell.op) for cell in matrix.cells("all_reduce")} <= found
    assert {(cell.count, cell.in_place) for cell in cells(family)} == {(n, place) for n in COUNTS for place in (False, True)}
