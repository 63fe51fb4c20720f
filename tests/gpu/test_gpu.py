"""Real devices with their drivers and libraries, where this machine has them. Where it has none the same tests run on a
simulated device, with fewer combinations, so that they are known to run; their names say which it was.

Two ranks on one GPU are islands of their own: a library serves one rank a GPU; NCCL from 2.30 on can be told otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import isthmus
import matrix
from devices import DeviceArray, OnDevice, on_host, vendor
from gpu import Gpus, gpus
from test_islands import all_reduces, other_collectives

ROOT = Path(__file__).resolve().parents[2]
DDP = Path(__file__).with_name("ddp.py")
MULTI_RANK = (2, 30)  # NCCL's first version that serves two ranks on one GPU, if NCCL_MULTI_RANK_GPU_ENABLE is 1
FEWER = 40  # combinations on simulated devices, which tests/python has in full

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the ranks do not find this module
everywhere = pytest.mark.parametrize("where", gpus(), ids=str)


def cells(where: Gpus) -> list[matrix.Cell]:
    chosen = matrix.pairwise()
    return chosen[:FEWER] if where.simulated else chosen


def run_cells(comm: isthmus.Comm, chosen: list[matrix.Cell], labels: list[str | None]) -> int:
    here = comm if on_host() else OnDevice(comm)
    for cell in chosen:
        matrix.run_cell(here, cell, labels)
    return len(chosen)


@everywhere
@pytest.mark.parametrize(
    ("kinds", "labels", "bridge"),
    [("gg", "ab", None), ("ggc", "abc", "tcp"), ("gcg", "abc", None), ("cggc", "abca", "tcp")],
)
def test_the_matrix_on_device_memory_gives_the_references_bits(
    where: Gpus, kinds: str, labels: str, bridge: str | None
) -> None:
    chosen = cells(where)
    done = where.run(kinds, run_cells, chosen, list(labels), labels=labels, bridge=bridge)
    assert done == [len(chosen)] * len(kinds)


def without_a_library(comm: isthmus.Comm, chosen: list[matrix.Cell]) -> int:
    unique_id = bytearray(isthmus.unique_id() if comm.rank == 0 else bytes(128))
    comm.broadcast(unique_id)
    with isthmus.init(comm.rank, comm.size, unique_id=bytes(unique_id), settings={"CCL": "none"}) as plain:
        return run_cells(plain, chosen, ["a"] * comm.size)


@everywhere
def test_ranks_of_one_island_without_a_library_do_the_same(where: Gpus) -> None:
    chosen = cells(where)
    assert where.run("gcg", without_a_library, chosen, labels="abc") == [len(chosen)] * 3


def with_the_library(comm: isthmus.Comm) -> tuple[int, str]:
    here = comm if on_host() else OnDevice(comm)
    other_collectives(here)
    return all_reduces(here), str(comm.topology()["ranks"][0]["ccl"])


def version_of_the_library(comm: isthmus.Comm) -> tuple[int, ...]:
    return tuple(int(part) for part in str(comm.topology()["ranks"][0]["ccl_version"] or "0").split(".")[:2])


def how_two_ranks_share_a_gpu(where: Gpus) -> dict[str, str]:
    """The variables for an island of two ranks on the GPUs that there are; skips where its library serves none."""
    if where.simulated or where.count > 1:
        return {}
    if where.library != "nccl" or where.run("g", version_of_the_library)[0] < MULTI_RANK:
        pytest.skip(f"one GPU, and its {where.library} serves one rank on it (NCCL from 2.30 on can serve two)")
    return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}


@everywhere
@pytest.mark.parametrize(("kinds", "labels"), [("gg", "aa"), ("ggc", "aab")])
def test_an_island_that_the_vendors_library_serves(where: Gpus, kinds: str, labels: str) -> None:
    done = where.run(kinds, with_the_library, labels=labels, env=how_two_ranks_share_a_gpu(where))
    assert len({count for count, _ in done}) == 1 and done[0][0] > 0
    assert done[0][1] == where.library


def behind_a_held_stream(comm: isthmus.Comm) -> tuple[bool, float]:
    """A sum of what a stream has still to copy, read by a copy behind it; whether it was done before the stream went on."""
    count = 200_000
    mine = comm if on_host() else OnDevice(comm)
    mine.all_reduce(np.ones(count, np.float32))  # first calls may wait for the device
    if on_host():
        return False, float(comm.all_reduce(np.full(count, comm.rank + 1.0, np.float32))[-1])
    there, stream = vendor(), vendor().stream()
    x = DeviceArray.of(np.zeros(count, np.float32))
    given, back = np.full(count, comm.rank + 1.0, np.float32), np.zeros(count, np.float32)
    for array in (given, back):
        there.register(array.ctypes.data, array.nbytes)
    go_on = there.hold(stream)
    there.copy_in(x.address, given.ctypes.data, x.nbytes, stream)
    work = comm.all_reduce(x, "sum", x, async_op=True, stream=stream)
    there.copy_out(back.ctypes.data, x.address, x.nbytes, stream)
    time.sleep(0.1)
    early = work.done
    go_on()
    there.synchronize(stream)
    got = float(back[-1])
    work.wait()
    for array in (given, back):
        there.unregister(array.ctypes.data)
    return early, got


@pytest.mark.parametrize("where", [g for g in gpus() if g.runtime != "acl"], ids=str)  # whose calls wait for their stream
def test_an_operation_stands_on_the_users_stream_and_the_caller_waits_for_nothing(where: Gpus) -> None:
    assert where.run("gcg", behind_a_held_stream, labels="abc") == [(False, 6.0)] * 3


@everywhere
def test_the_benchmark_runs_and_all_its_numbers_are_right(where: Gpus, tmp_path: Path) -> None:
    if where.runtime == "acl" and not where.simulated:
        pytest.skip("bench/gpu.py knows torch for CUDA and for ROCm")
    pytest.importorskip("torch")
    out = tmp_path / "gpu.json"
    rehearse = ["--rehearse", {"cuda": "nvidia", "hip": "amd", "acl": "ascend"}[where.runtime]] if where.simulated else []
    command = [
        sys.executable,
        ROOT / "bench" / "gpu.py",
        *rehearse,
        "--quick",
        "--rounds",
        "1",
        "--block",
        "0.01",
        "--out",
        out,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if not where.simulated and "torch finds no GPU" in ended.stderr:
        pytest.skip("this torch is built without the GPU's runtime")
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(out.read_text())
    assert result["simulated"] == where.simulated
    assert {row["collective"] for row in result["rows"]} == {"all_reduce", "broadcast", "all_gather", "send_recv"}
    assert all(times > 0 for row in result["rows"] for each in row["seconds"].values() for times in each)
    assert all("isthmus" in row["seconds"] for row in result["rows"]) and result["products"]["broadcasts"] > 0
    if where.simulated:
        assert "verdicts" not in result and all(line.startswith("rehearsal: ") for line in ended.stdout.splitlines())


def ddp(command: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    """What the ranks' parameters are after the training, a line of hexadecimal digits for each."""
    ended = subprocess.run(
        [*command, str(folder)], env={**os.environ, **environment}, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return [(folder / f"rank{rank}").read_text() for rank in range(2)]


@everywhere
def test_an_unmodified_ddp_script_of_backend_nccl_learns_the_same_behind_the_front_door(where: Gpus, tmp_path: Path) -> None:
    """Bare, as one island, and as two islands by label. There is no torch for simulated CUDA: it takes the real thing."""
    torch = pytest.importorskip("torch")
    if where.simulated or not torch.cuda.is_available():
        pytest.skip("this torch sees no GPU")
    shared = how_two_ranks_share_a_gpu(where)
    runs = {}
    label = ["--no-python", "sh", "-c", f'ISTHMUS_ISLAND=i$RANK exec {sys.executable} {DDP} "$0"']
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    door = [sys.executable, "-m", "isthmus", "run", "--interpose", "--"]
    for name, command in {
        "bare": [*torchrun, str(DDP)],
        "one island": [*door, *torchrun, str(DDP)],
        "two islands": [*door, *torchrun, *label],
    }.items():
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        runs[name] = ddp(command, folder, shared)
        assert runs[name][0] == runs[name][1], f"{name}: the ranks differ"
    assert runs["one island"] == runs["bare"] and runs["two islands"] == runs["bare"]
