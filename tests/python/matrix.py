"""One cell of the matrix collective x dtype x op x count x in-place: run it on a rank, compare every bit with the reference.

Arrays lie between guard bytes, at odd addresses for odd counts, and inputs must come out unchanged.
"""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import isthmus
import reference as ref

REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v")
MOVING = (
    "broadcast", "all_gather", "all_gather_v", "all_to_all", "all_to_all_v",
    "gather", "gather_v", "scatter", "scatter_v", "send",
)  # fmt: skip
COUNTS = (0, 1, 3, 17, 1000, 4099, 70001)
_GUARD = 64
_LOCK = threading.Lock()


class Cell(NamedTuple):
    collective: str
    dtype: str
    op: str  # "" for collectives that only move data
    count: int
    in_place: bool


def cells(collective: str, counts: Sequence[int] = COUNTS) -> Iterator[Cell]:
    """The full product for one collective, less combinations without a meaning."""
    for dtype, count, in_place in itertools.product(ref.DTYPES, counts, (False, True)):
        if collective not in REDUCING:
            if not (in_place and collective in ("all_to_all_v", "send")):  # these have no in-place form
                yield Cell(collective, dtype, "", count, in_place)
            continue
        for op in ref.OPS:
            if ref.combines(dtype, op):
                yield Cell(collective, dtype, op, count, in_place)


def pairwise(counts: Sequence[int] = COUNTS, seed: int = 1) -> list[Cell]:
    """Cells in which every two values of two columns occur together, where that has a meaning."""
    everything = [cell for collective in (*REDUCING, *MOVING) for cell in cells(collective, counts)]

    def pairs(cell: Cell) -> set[tuple[int, object, int, object]]:
        return {(i, cell[i], j, cell[j]) for i, j in itertools.combinations(range(5), 2)}

    missing = set().union(*map(pairs, everything))
    chosen = []
    shuffled = random.Random(seed)
    while missing:
        best = max(shuffled.sample(everything, 60), key=lambda cell: len(pairs(cell) & missing))
        if not pairs(best) & missing:
            best = next(cell for cell in everything if pairs(cell) & missing)
        chosen.append(best)
        missing -= pairs(best)
    return chosen


class Guarded:
    """An array of `count` elements between guard bytes; at an odd address where count is odd."""

    def __init__(self, dtype: str, count: int, content: ref.Array | None = None) -> None:
        kind = ref.DTYPES[dtype]
        start = _GUARD + count % 2
        self._bytes = np.full(start + count * kind.itemsize + _GUARD, 0xA5, np.uint8)
        self._start, self._end = start, start + count * kind.itemsize
        self.array: ref.Array = self._bytes[start : self._end].view(kind)
        if content is not None:
            self._bytes[start : self._end] = ref.bits(content)

    def intact(self) -> bool:
        return bool((self._bytes[: self._start] == 0xA5).all() and (self._bytes[self._end :] == 0xA5).all())


@functools.lru_cache(maxsize=4096)
def _sample(dtype: str, count: int, seed: int) -> ref.Array:
    return ref.sample(dtype, count, seed)


@functools.lru_cache(maxsize=64)
def _reduced(dtype: str, op: str, count: int, world: int, groups: tuple[tuple[int, ...], ...]) -> ref.Array:
    inputs = [_sample(dtype, count, rank) for rank in range(world)]
    return ref.reduce(inputs, dtype, op, groups, [scale(dtype, rank) for rank in range(world)])


def scale(dtype: str, rank: int) -> float:
    return 3 + 7 * rank if dtype in ref.INTEGERS else 0.3 + 0.7 * rank


def uneven(count: int, world: int) -> list[int]:
    """Counts for the v-collectives: one is 0, none are equal."""
    return [0 if rank == world - 1 else count + 3 * rank if count else 0 for rank in range(world)]


def run_cell(comm: isthmus.Comm, cell: Cell, labels: Sequence[str | None]) -> None:
    """Collective. AssertionError where this rank's result is not the reference's, bit for bit."""
    groups = tuple(tuple(group) for group in ref.groups_of(labels))
    written, expected, untouched = _RUNNERS[cell.collective](comm, cell, groups)
    for buffer, content in untouched:
        assert buffer.intact() and (ref.bits(buffer.array) == ref.bits(content)).all(), f"{cell}: an input was changed"
    assert written.intact(), f"{cell}: bytes outside of the result were written"
    got, want = ref.bits(written.array), ref.bits(expected)
    if got.size != want.size or (got != want).any():
        size = ref.DTYPES[cell.dtype].itemsize
        at = int(np.flatnonzero(got != want)[0]) // size
        raise AssertionError(
            f"{cell} on rank {comm.rank} of {comm.size}: element {at} of {written.array.size} is {written.array[at]!r} "
            f"({got[at * size : (at + 1) * size].tobytes()[::-1].hex()}), must be {expected[at]!r} "
            f"({want[at * size : (at + 1) * size].tobytes()[::-1].hex()}); "
            f"{int((got != want).reshape(-1, size).any(axis=1).sum())} elements differ"
        )


_Outcome = tuple[Guarded, ref.Array, list[tuple[Guarded, ref.Array]]]


def _options(comm: isthmus.Comm, cell: Cell) -> dict[str, Any]:
    return {"op": cell.op, "scale": scale(cell.dtype, comm.rank) if cell.op == "premul_sum" else None}


def _reference(cell: Cell, count: int, world: int, groups: tuple[tuple[int, ...], ...]) -> ref.Array:
    with _LOCK:  # ranks that are threads ask for the same at the same time
        return _reduced(cell.dtype, cell.op, count, world, groups)


def _all_reduce(comm: isthmus.Comm, cell: Cell, groups: tuple[tuple[int, ...], ...]) -> _Outcome:
    content = _sample(cell.dtype, cell.count, comm.rank)
    x = Guarded(cell.dtype, cell.count, content)
    out = x if cell.in_place else Guarded(cell.dtype, cell.count)
    result = comm.all_reduce(x.array, out=None if cell.in_place else out.array, **_options(comm, cell))
    assert result is out.array
    return out, _reference(cell, cell.count, comm.size, groups), [] if cell.in_place else [(x, content)]


def _reduce(comm: isthmus.Comm, cell: Cell, groups: tuple[tuple[int, ...], ...]) -> _Outcome:
    root = cell.count % comm.size
    content = _sample(cell.dtype, cell.count, comm.rank)
    x = Guarded(cell.dtype, cell.count, content)
    out = x if cell.in_place else Guarded(cell.dtype, cell.count)
    is_root = comm.rank == root
    result = comm.reduce(x.array, root, out=out.array if is_root and not cell.in_place else None, **_options(comm, cell))
    if not is_root:
        assert result is None
        return x, content, []
    assert result is out.array
    return out, _reference(cell, cell.count, comm.size, groups), [] if cell.in_place else [(x, content)]


def _reduce_scatter(comm: isthmus.Comm, cell: Cell, groups: tuple[tuple[int, ...], ...]) -> _Outcome:
    return _scatter_reduction(comm, cell, groups, [cell.count] * comm.size)


def _reduce_scatter_v(comm: isthmus.Comm, cell: Cell, groups: tuple[tuple[int, ...], ...]) -> _Outcome:
    return _scatter_reduction(comm, cell, groups, uneven(cell.count, comm.size))


def _scatter_reduction(comm: isthmus.Comm, cell: Cell, groups: tuple[tuple[int, ...], ...], counts: list[int]) -> _Outcome:
    begin, own = sum(counts[: comm.rank]), counts[comm.rank]
    content = _sample(cell.dtype, sum(counts), comm.rank)
    x = Guarded(cell.dtype, sum(counts), content)
    out = Guarded(cell.dtype, own)
    target = x.array[begin : begin + own] if cell.in_place else out.array
    if cell.collective == "reduce_scatter":
        comm.reduce_scatter(x.array, out=target, **_options(comm, cell))
    else:
        comm.reduce_scatter_v(x.array, counts, out=target, **_options(comm, cell))
    expected = _reference(cell, sum(counts), comm.size, groups)[begin : begin + own]
    if not cell.in_place:
        return out, expected, [(x, content)]
    assert x.intact(), f"{cell}: bytes outside of x were written"
    out.array[:] = target  # the other blocks of x may hold anything now
    return out, expected, []


def _broadcast(comm: isthmus.Comm, cell: Cell, _groups: object) -> _Outcome:
    root = cell.count % comm.size
    content = _sample(cell.dtype, cell.count, root)
    x = Guarded(cell.dtype, cell.count, content if comm.rank == root else None)
    if cell.in_place:
        comm.broadcast(x.array, root)
        return x, content, []
    out = Guarded(cell.dtype, cell.count)
    comm.broadcast(x.array if comm.rank == root else None, root, out=out.array)
    return out, content, [(x, content)] if comm.rank == root else []


def _gathering(comm: isthmus.Comm, cell: Cell, _groups: object) -> _Outcome:
    v, rooted = cell.collective.endswith("_v"), cell.collective.startswith("gather")
    counts = uneven(cell.count, comm.size) if v else [cell.count] * comm.size
    root = cell.count % comm.size
    own, begin = counts[comm.rank], sum(counts[: comm.rank])
    parts = [_sample(cell.dtype, counts[rank], rank) for rank in range(comm.size)]
    expected = np.concatenate(parts)
    out = Guarded(cell.dtype, sum(counts))
    x = Guarded(cell.dtype, own, parts[comm.rank])
    has_result = not rooted or comm.rank == root
    source = x.array
    if cell.in_place and has_result:
        source = out.array[begin : begin + own]
        source[:] = parts[comm.rank]
    options: dict[str, Any] = {"out": out.array if has_result else None}
    if rooted:
        options["root"] = root
    if v:
        options["counts"] = counts
    result = getattr(comm, cell.collective)(source, **options)
    assert result is (out.array if has_result else None)
    return (out, expected, [(x, parts[comm.rank])]) if has_result else (x, parts[comm.rank], [])


def _scattering(comm: isthmus.Comm, cell: Cell, _groups: object) -> _Outcome:
    v = cell.collective == "scatter_v"
    counts = uneven(cell.count, comm.size) if v else [cell.count] * comm.size
    root = cell.count % comm.size
    own, begin = counts[comm.rank], sum(counts[: comm.rank])
    content = _sample(cell.dtype, sum(counts), root)
    x = Guarded(cell.dtype, sum(counts), content)
    out = Guarded(cell.dtype, own)
    is_root = comm.rank == root
    target = x.array[begin : begin + own] if is_root and cell.in_place else out.array
    if v:
        comm.scatter_v(x.array if is_root else None, counts, root, out=target)
    else:
        comm.scatter(x.array if is_root else None, root, out=target)
    if target is not out.array:
        out.array[:] = target
    return out, content[begin : begin + own], [(x, content)] if is_root else []


def _all_to_all(comm: isthmus.Comm, cell: Cell, _groups: object) -> _Outcome:
    n, world = cell.count, comm.size
    content = _sample(cell.dtype, n * world, comm.rank)
    expected = np.concatenate([_sample(cell.dtype, n * world, s)[comm.rank * n : (comm.rank + 1) * n] for s in range(world)])
    x = Guarded(cell.dtype, n * world, content)
    out = x if cell.in_place else Guarded(cell.dtype, n * world)
    comm.all_to_all(x.array, out=out.array)
    return out, expected, [] if cell.in_place else [(x, content)]


def _all_to_all_v(comm: isthmus.Comm, cell: Cell, _groups: object) -> _Outcome:
    world = comm.size

    def count(source: int, destination: int) -> int:
        return 0 if source == world - 1 and destination == 0 else cell.count + source + 2 * destination if cell.count else 0

    sent = [count(comm.rank, d) for d in range(world)]
    received = [count(s, comm.rank) for s in range(world)]
    content = _sample(cell.dtype, sum(sent), comm.rank)
    parts = []
    for s in range(world):
        theirs = [count(s, d) for d in range(world)]
        begin = sum(theirs[: comm.rank])
        parts.append(_sample(cell.dtype, sum(theirs), s)[begin : begin + theirs[comm.rank]])
    x = Guarded(cell.dtype, sum(sent), content)
    out = Guarded(cell.dtype, sum(received))
    comm.all_to_all_v(x.array, sent, received, out=out.array)
    return out, np.concatenate(parts), [(x, content)]


def _ring(comm: isthmus.Comm, x: object, out: object, following: int, before: int, tag: int) -> None:
    with isthmus.group():
        comm.send(x, following, tag=tag)
        comm.recv(out, before, tag=tag)


def _send(comm: isthmus.Comm, cell: Cell, _groups: object) -> _Outcome:
    """A ring: everybody sends to the next rank and receives from the one before."""
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    content = _sample(cell.dtype, cell.count, comm.rank)
    x = Guarded(cell.dtype, cell.count, content)
    out = Guarded(cell.dtype, cell.count)
    tag = 7 * (cell.count % 2)  # those with tag 0 take another way between devices
    getattr(comm, "ring", functools.partial(_ring, comm))(x.array, out.array, following, before, tag)
    return out, _sample(cell.dtype, cell.count, before), [(x, content)]


_RUNNERS = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_v": _reduce_scatter_v,
    "broadcast": _broadcast,
    "all_gather": _gathering,
    "all_gather_v": _gathering,
    "gather": _gathering,
    "gather_v": _gathering,
    "scatter": _scattering,
    "scatter_v": _scattering,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all_v,
    "send": _send,
}
