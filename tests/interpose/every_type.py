"""All that CuPy's class for communicators can do, with all types that it names: the same calls for a rank of any vendor."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from patience import SOON

COUNT = 1000
# By NCCL's numbers. Of bfloat16 the values are made here, from float32.
TYPES = {
    0: "int8",
    1: "uint8",
    2: "int32",
    3: "uint32",
    4: "int64",
    5: "uint64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "bfloat16",
}
SUM, PROD, MAX, MIN, AVG = range(5)
Values = np.ndarray[Any, Any]


def packed(values: Values, name: str) -> Values:
    """As the device has them."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if name == "bfloat16" else values.astype(name)


def every_type(
    comm: Any, group: tuple[Callable[[], Any], Callable[[], Any]], rank: int, ranks: int, place: Callable[[Values], int],
    fetch: Callable[[int, int], bytes],
) -> list[str]:  # fmt: skip
    """Names what came out wrong. Values are few and small, so that sums and products of them are exact in all types."""
    wrong = []
    for kind, name in TYPES.items():
        values = np.stack([(np.arange(COUNT) + r) % 3 + 1 for r in range(ranks)])
        own, size = packed(values[rank], name), packed(values[0], name).itemsize
        a, b, many = place(own), place(np.zeros_like(own)), place(np.zeros((ranks, COUNT), own.dtype))
        whole = place(np.stack([own] * ranks))

        def expect(what: str, at: int, right: Values, name: str = name, size: int = size) -> None:
            if fetch(at, right.size * size) != packed(right, name).tobytes():
                wrong.append(f"{what} of {name}")

        folded = {SUM: values.sum(0), PROD: values.prod(0), MAX: values.max(0), MIN: values.min(0)}
        for op, right in folded.items():
            comm.allReduce(a, b, COUNT, kind, op, 0)
            expect(f"allReduce by {op}", b, right)
            comm.reduce(a, b, COUNT, kind, op, ranks - 1, 0)
            if rank == ranks - 1:
                expect(f"reduce by {op}", b, right)
            comm.reduceScatter(whole, b, COUNT, kind, op, 0)
            expect(f"reduceScatter by {op}", b, right)
        # An average that is exact: all have the same.
        comm.broadcast(a, b, COUNT, kind, 1, 0)
        expect("broadcast", b, values[1])
        comm.allReduce(b, b, COUNT, kind, AVG, 0)
        expect("average", b, values[1])
        comm.allGather(a, many, COUNT, kind, 0)
        expect("allGather", many, values)
        group[0]()
        comm.send(a, COUNT, kind, (rank + 1) % ranks, 0)
        comm.recv(b, COUNT, kind, (rank - 1) % ranks, 0)
        group[1]()
        expect("send and recv", b, values[(rank - 1) % ranks])
        comm.bcast(b, COUNT, kind, ranks - 1, 0)
        expect("bcast", b, values[ranks - 2])
    return wrong


def all_are_done(folder: Path, rank: int, ranks: int) -> None:
    """Before one of them aborts."""
    (folder / f"done.{rank}").touch()
    until = time.monotonic() + SOON
    while not all((folder / f"done.{other}").exists() for other in range(ranks)):
        assert time.monotonic() < until, "not all are done"
        time.sleep(0.002)
