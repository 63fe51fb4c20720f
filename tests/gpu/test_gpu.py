"""Real devices with their drivers and libraries, where this machine has them. Where it has none the same tests run on a
simulated device, with fewer combinations, so that they are known to run; their names say which it was.

Two ranks on one GPU are islands of their own: a library serves one rank a GPU; NCCL from 2.30 on can be told otherwise.
"""

from __future__ import annotations

import importlib.util
import json
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
from patience import patient
from said import HANDED, SPANS
from test_devices import behind_what_was_left
from test_islands import all_reduces, other_collectives

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize("where", [g for g in gpus() if g.runtime != "acl"], ids=str)
def test_an_operation_without_a_stream_comes_behind_what_the_vendors_calls_have_left_to_do(where: Gpus) -> None:
    env = {"REHEARSAL_QUEUES": "8"}
    assert where.run("gcg", behind_what_was_left, labels="abc", env=env) == [[[6], [3]], [[6], [1]], [[6], [2]]]


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
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(280), check=False)
    if not where.simulated and "torch finds no GPU" in ended.stderr:
        pytest.skip("this torch is built without the GPU's runtime")
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(out.read_text())
    assert result["simulated"] == where.simulated and result["complete"] is True
    assert {row["collective"] for row in result["rows"]} == {
        "all_reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "send_recv",
    }
    assert all(times > 0 for row in result["rows"] for each in row["seconds"].values() for times in each)
    assert all("isthmus" in row["seconds"] for row in result["rows"]) and min(result["products"]["broadcasts"]) > 0
    assert all("one_at_a_time" in row for row in result["rows"] if row["collective"] == "all_reduce" and row["asked"] == 8)
    if where.simulated:  # limits, which count from 16 MiB up, are measured at 1 MiB
        limited = {row["collective"]: row["limits"] for row in result["rows"] if row["asked"] == 1 << 20}
        sums = {"all_reduce": {"sums"}, "reduce_scatter": {"sums"}}
        for collective, rates in limited.items():
            assert set(rates) == {"out", "in", "both", "memory"} | sums.get(collective, set())
            assert all(len(of_rounds) == 1 and of_rounds[0] > 0 for of_rounds in rates.values())
        assert "verdicts" not in result and all(line.startswith("rehearsal: ") for line in ended.stdout.splitlines())


@everywhere
def test_an_unmodified_ddp_script_of_backend_nccl_learns_the_same_behind_the_front_door(where: Gpus, tmp_path: Path) -> None:
    """Bare, as one island, as two islands by label, and by gloo. Each time the log must say whose the communicators were.

    There is no torch for simulated CUDA. In its place all ranks are on the CPU and all is by gloo, which shows that the
    benchmark runs, and starts its programs behind the door.
    """
    torch = pytest.importorskip("torch")
    if not where.simulated and (where.runtime == "acl" or not torch.cuda.is_available()):
        pytest.skip("this torch sees no GPU of NVIDIA's or AMD's")
    out = tmp_path / "ddp.json"
    command = [sys.executable, ROOT / "bench" / "ddp.py", "--steps", "12", "--rounds", "1", "--patience", "60", "--out", out]
    command += ["--rehearse", "--contenders", "gloo", "two-islands"] if where.simulated else []
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(280), check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
    result = json.loads(out.read_text())
    assert result["simulated"] == where.simulated and result["complete"] is True and len(result["parameters"]) == 64
    assert all(len(steps) == 1 and steps[0] > 0 for steps in result["seconds"].values())
    said = result["said"]
    if where.simulated:
        assert said == {"gloo": [], "two-islands": []}
        assert all(line.startswith("rehearsal: ") for line in ended.stdout.splitlines())
        return
    loaded = tuple(map(int, result["versions"]["nccl"].split(".")))
    shares = where.count > 1 or (where.library == "nccl" and loaded >= MULTI_RANK)
    assert set(said) == {"gloo", "two-islands"} | ({"bare", "one-island"} if shares else set())
    for name, phrase in {"gloo": "", "bare": "", "one-island": HANDED, "two-islands": SPANS}.items():
        lines = said.get(name, [])
        assert len(lines) == (2 if phrase and name in said else 0), f"{name}: {lines}"
        assert all(f"rank {rank} of 2: " in line and phrase in line for rank, line in enumerate(lines)), f"{name}: {lines}"


def line_of_a_door(rank: int, text: str) -> str:
    return f"[isthmus {4711 + rank} info] interpose: ncclCommInitRankConfig, rank {rank} of 2: {text}\n"


THEIRS = f"NCCL {HANDED} (ranks 0 and 1: nccl 2.29.3)"
OURS = f"{SPANS} (rank 0: nccl 2.29.3, island island0; rank 1: nccl 2.29.3, island island1)"
DOUBTFUL = f"not all ranks came to the census (rank 0: nccl 2.29.3); taken for ranks without Isthmus, so NCCL {HANDED}. "
LOADED = "[isthmus 4711 info] interpose: NCCL 2.29.3 in /usr/lib/libnccl.so.2\n"


def both(text: str) -> str:
    """As it stands in a log, where ranks come in any order."""
    return LOADED + line_of_a_door(1, text) + "a line of the program's\n" + line_of_a_door(0, text)


@pytest.mark.parametrize(
    ("contender", "log", "good"),
    [
        ("bare", "a line of the program's\n", True),
        ("bare", LOADED, False),
        ("gloo", both(THEIRS), False),
        ("one-island", both(THEIRS), True),
        ("one-island", LOADED, False),
        ("one-island", both(OURS), False),
        ("one-island", both(DOUBTFUL), False),
        ("one-island", line_of_a_door(0, THEIRS), False),
        ("one-island", both(THEIRS) + line_of_a_door(0, THEIRS), False),
        ("two-islands", both(OURS), True),
        ("two-islands", both(THEIRS), False),
        ("two-islands", line_of_a_door(0, OURS) + line_of_a_door(1, THEIRS), False),
        ("two-islands", "", False),
    ],
)
def test_a_training_that_went_past_its_door_is_no_result(contender: str, log: str, good: bool) -> None:
    """What bench/ddp.py makes of the ranks' log: one line for each, of what the contender is for."""
    found = importlib.util.spec_from_file_location("bench_ddp", ROOT / "bench" / "ddp.py")
    assert found and found.loader
    bench = importlib.util.module_from_spec(found)
    found.loader.exec_module(bench)
    if good:
        assert len(bench.check_log(contender, log)) == (2 if "islan" in contender else 0)
        return
    with pytest.raises(SystemExit, match=f"ddp: {contender}: "):
        bench.check_log(contender, log)
