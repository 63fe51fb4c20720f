"""Jobs of PyTorch whose ranks are CUDA and ROCm builds: the calls of four versions, on simulated vendors and hosts.

ProcessGroupNCCL runs on no machine without its device, so pytorch_rank.py makes its calls, and pytorch_calls.py has them.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from doors import HERE, ROOT, preloaded
from hosts import Hosts, two_hosts
from patience import patient
from pytorch_calls import BUILDS, CUDA, RECORD, VERSIONS, color, functions, rows
from spanning import SPANS, environment

sys.path.append(str(ROOT / "scripts"))

from interpose_names import list_of, read_list  # noqa: E402

WHEELS = {"2.5": "2.5.1", "2.8": "2.8.0", "2.11": "2.11.0", "2.13": "2.13.0"}
# Of the same version, and of neighbours: the CUDA build's version, and the ROCm build's.
SAME = [(v, v) for v in VERSIONS]
NEXT = [pair for a, b in itertools.pairwise(VERSIONS) for pair in ((a, b), (b, a))]
PAIRS = [pytest.param(pair, id="-".join(pair)) for pair in SAME + NEXT]
INITS = {"lazy": "", "eager": "EAGER", "nonblocking": "NONBLOCKING", "both": "EAGER NONBLOCKING"}
# What a CUDA build imports for other ends: torch.cuda.comm, memory that is registered, symmetric memory, many ranks.
NOT_PLAYED = set(
    """
    ncclReduce ncclCommInitAll ncclCommInitRank ncclCommInitRankScalable ncclCommRegister ncclCommDeregister ncclMemAlloc
    ncclMemFree ncclCommWindowRegister ncclCommWindowDeregister ncclGroupSimulateEnd ncclCommShrink ncclDevCommCreate
    ncclDevCommDestroy ncclCommMemStats ncclCommResume ncclCommSuspend ncclGetLsaMultimemDevicePointer
    ncclGetPeerDevicePointer ncclPutSignal ncclSignal ncclWaitSignal
    """.split()
)
ALL_OF_IT = ["batch", "ddp", "fsdp2", "exchanges", "batch"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with two_hosts() as made:
        yield made


def agree(versions: Sequence[str]) -> bool:
    """Whether they choose the same color for a part in split_group."""
    return len({color(version, (0, 1), "split_group") for version in versions}) == 1


def job(
    vendors: str, versions: Sequence[str], flow: str, init: str, folder: Path, hosts: Hosts | None = None
) -> list[dict[str, Any]]:
    """What each rank did. Rank n is on host n % 2, where there are hosts."""
    processes = []
    for number, letter in enumerate(vendors):
        given = environment(letter) | {"ISTHMUS_LOG": "info", "TORCH": versions["na".index(letter)]}
        given["REHEARSAL_QUEUES"] = "16"  # a hardware queue for each stream, so that streams have no order but PyTorch's
        given |= dict.fromkeys([*INITS[init].split(), *(["SPLIT"] if agree(versions) else [])], "1")
        prefix: list[str] = []
        if hosts:
            del given["ISTHMUS_INTERFACE"]
            given["REHEARSAL_MEET"] = f"/run/netns/{hosts.names[0]}"
            prefix = ["ip", "netns", "exec", hosts.names[number % 2]]
        words = [sys.executable, HERE / "pytorch_rank.py", number, len(vendors), folder, flow]
        command = prefix + [str(word) for word in words]
        processes.append(subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        ended = [process.communicate(timeout=patient(120)) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for number, process in enumerate(processes):
        assert process.returncode == 0, f"rank {number}: {ended[number][0]}{ended[number][1][-3000:]}"
        assert SPANS in ended[number][1], f"rank {number}: no communicator spanned: {ended[number]}"
    return [json.loads(out) for out, _ in ended]


# ---- the record --------------------------------------------------------------------------------------------------------


def test_each_operation_has_one_row_for_each_build() -> None:
    for version, build, operation in itertools.product(VERSIONS, BUILDS, {row.operation for row in RECORD}):
        assert len(rows(version, build, operation)) == 1, (version, build, operation)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cuda_build_calls_nothing_that_its_wheel_does_not_import(version: str) -> None:
    """And what the wheel imports, and is not played, is known."""
    (wheel,) = [wheel for wheel in read_list(list_of("torch")) if wheel.version == WHEELS[version]]
    played = functions(version, CUDA)
    assert played <= wheel.names, played - wheel.names
    assert wheel.names - played <= NOT_PLAYED, wheel.names - played - NOT_PLAYED


# ---- jobs --------------------------------------------------------------------------------------------------------------


@preloaded
@pytest.mark.product(8)
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("where", ["one host", "two hosts"])
@pytest.mark.parametrize("versions", PAIRS)
def test_cuda_and_rocm_builds_train_together(
    versions: tuple[str, str], where: str, init: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """DDP, FSDP2, exchanges, messages, parts, and destroy_process_group, in one process a rank."""
    if init == "both" and "2.5" in versions:
        init = "nonblocking"  # 2.5 takes it for an error that ncclCommSplit does not block
    hosts = request.getfixturevalue("hosts") if where == "two hosts" else None
    vendors = "na" if hosts else "nana"
    for rank, told in enumerate(job(vendors, versions, "training", init, tmp_path, hosts)):
        assert told["done"][:5] == ALL_OF_IT, rank
        # Each rank is in one part or two, by each way that there is.
        ways = 2 if "EAGER" in INITS[init] and agree(versions) else 1
        parts = [r for r in (range(len(vendors) - 1), range(len(vendors) - 2, len(vendors))) if rank in r]
        assert len(told["done"][5:]) == ways * len(parts), told


@preloaded
@pytest.mark.product(20)
@pytest.mark.parametrize("init", ["lazy", "eager", "nonblocking"])
@pytest.mark.parametrize("where", ["one host", "two hosts"])
@pytest.mark.parametrize("versions", PAIRS)
def test_an_abort_with_something_in_flight_reaches_all_watchdogs_and_the_job_begins_anew(
    versions: tuple[str, str], where: str, init: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    hosts = request.getfixturevalue("hosts") if where == "two hosts" else None
    for told in job("ana" if hosts else "nan", versions, "interrupted", init, tmp_path, hosts):
        assert told["done"] == ["again"]


@preloaded
@pytest.mark.parametrize(("versions", "ranks"), [(("2.8", "2.11"), "1"), (("2.11", "2.13"), "2"), (("2.5", "2.8"), "2")])
def test_split_group_needs_versions_that_choose_the_same_color(
    versions: tuple[str, str], ranks: str, tmp_path: Path
) -> None:
    """The color is PyTorch's, and for ncclCommSplit other colors are other parts."""
    assert [told["done"] for told in job("na", versions, "apart", "eager", tmp_path)] == [[ranks]] * 2
