"""Every dtype x op x collective against NumPy, compared bit for bit.

The full product runs on ranks that are threads; a pairwise cover runs on processes, over shared memory and over TCP between
islands. Every path gives the reference's bits, so all paths and all ranks give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import isthmus
import matrix
from isthmus import launch
from ranks import run_processes, run_threads
from reference import DTYPES

# Forced paths: one hop for all that fits, never one hop, and many small chunks.
PATHS = {
    "one hop": {"EAGER_BYTES": 65536},
    "slots": {"EAGER_BYTES": 0},
    "small chunks": {"EAGER_BYTES": 0, "CHUNK_BYTES": 4096},
}
# Where there is a bridge, also one that gives the islands very unequal shares of the work.
BRIDGED_PATHS = {**PATHS, "weights": {"EAGER_BYTES": 0, "CHUNK_BYTES": 8192, "BRIDGE_RATES": "a:9.5,b:1"}}


def paths_of(bridge: str | None) -> dict[str, dict[str, object]]:
    return dict(BRIDGED_PATHS if bridge == "tcp" else PATHS)


def run_cells(comm: isthmus.Comm, cells: Sequence[matrix.Cell], labels: Sequence[str | None]) -> int:
    for cell in cells:
        matrix.run_cell(comm, cell, labels)
    return len(cells)


@pytest.mark.product(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("collective", [*matrix.REDUCING, *matrix.MOVING])
def test_the_full_product_gives_the_references_bits_on_threads(
    collective: str, dtype: str, matrix_counts: dict[str, int]
) -> None:
    islands = "a:1,b:2"
    cells = [cell for cell in matrix.cells(collective) if cell.dtype == dtype]
    done = run_threads(3, run_cells, cells, launch.parse_islands(islands, 3), islands=islands)
    assert done == [len(cells)] * 3
    matrix_counts[f"threads, {collective}"] += len(cells)


def over_paths(comm: isthmus.Comm, cells: Sequence[matrix.Cell], labels: Sequence[str | None], bridge: str | None) -> int:
    """The cells on one communicator for each forced path, all in the same processes."""
    done = 0
    for name, settings in paths_of(bridge).items():
        unique_id = bytearray(isthmus.unique_id() if comm.rank == 0 else bytes(128))
        comm.broadcast(unique_id)
        options = {"island": labels[comm.rank], "bridge": bridge, "settings": settings, "name": name}
        with isthmus.init(comm.rank, comm.size, unique_id=bytes(unique_id), **options) as path:
            done += run_cells(path, cells, labels)
    return done


@pytest.mark.product(4)
@pytest.mark.parametrize(
    ("islands", "bridge"),
    [("a:3", None), ("a:1,b:2", "shm"), ("a:2,b:1", "tcp"), ("a,b,a", "tcp"), ("a,b,c", "tcp")],
    ids=["one island", "two islands, shared memory", "two islands, TCP", "interleaved islands, TCP", "three islands, TCP"],
)
def test_a_pairwise_cover_gives_the_references_bits_on_processes_and_every_forced_path(
    islands: str, bridge: str | None, matrix_counts: dict[str, int]
) -> None:
    labels = launch.parse_islands(islands, 3)
    cells = matrix.pairwise()
    done = run_processes(3, over_paths, cells, labels, bridge, islands=islands, bridge=bridge, timeout=300)
    paths = len(paths_of(bridge))
    assert done == [len(cells) * paths] * 3
    matrix_counts[f"processes, {islands} {bridge or ''}, {paths} paths".replace(" ,", ",")] = len(cells) * paths


def test_the_pairwise_cover_holds_every_pair_of_values() -> None:
    cells = matrix.pairwise()
    assert {cell.collective for cell in cells} == {*matrix.REDUCING, *matrix.MOVING}
    seen = {(cell.dtype, cell.op) for cell in cells}
    wanted = {(cell.dtype, cell.op) for cell in matrix.cells("all_reduce")}
    assert wanted <= seen


def test_the_order_of_the_sum_is_islands_then_ranks() -> None:
    """(x0 + x2) + x1 and (x0 + x1) + x2 differ in these numbers, and the islands decide which one it is."""

    def body(comm: isthmus.Comm) -> float:
        import numpy as np

        x = np.array([[1e8, 1.0, -1e8][comm.rank]], np.float32)
        return float(comm.all_reduce(x)[0])

    assert run_threads(3, body) == [0.0] * 3  # (1e8 + 1) - 1e8: the 1 is lost
    assert run_threads(3, body, islands="a,b,a") == [1.0] * 3  # (1e8 - 1e8) + 1
