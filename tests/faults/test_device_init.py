"""What a device rank's communicator is made of, where it cannot be made, is missing, or is of several versions."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import SOON

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import isthmus
from devices import DeviceArray, left_over, on_host, run_fleet, vendor
from events import until


def fails_at_init_and_then_works() -> tuple[str, float, dict[str, int]]:
    """What init says, and how long it takes; then another communicator sums, and ends."""
    said, begun = "nothing failed", time.monotonic()
    try:
        isthmus.init().destroy()
    except isthmus.Error as error:
        said = str(error)
    took = time.monotonic() - begun
    if not on_host():
        ctypes.CDLL("librehearsal.so").rehearsal_forgive()
    comm = isthmus.init(name="after")
    x: Any = np.full(1000, comm.rank + 1, np.float32)
    there = x if on_host() else DeviceArray.of(x)
    comm.all_reduce(there, "sum", there)
    assert ((x if on_host() else there.get()) == comm.size * (comm.size + 1) // 2).all()
    comm.destroy()
    del there
    return said, took, {} if on_host() else left_over()


@pytest.mark.parametrize(
    ("maker", "fault", "words"),
    [
        ("nvidia", "cuStreamCreate:1:999", "NVIDIA driver: cuStreamCreate failed with CUDA_ERROR_UNKNOWN (999"),
        ("nvidia", "cuEventCreate:1:999", "NVIDIA driver: cuEventCreate failed with CUDA_ERROR_UNKNOWN (999"),
        ("nvidia", "cuMemAlloc_v2:1:2", "NVIDIA driver: cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY (2"),
        ("nvidia", "cuMemHostRegister_v2:1:999", "NVIDIA driver: cuMemHostRegister failed with CUDA_ERROR_UNKNOWN (999"),
        ("nvidia", "ncclCommInitRankConfig:1:3", "nccl init: internal error"),
        ("amd", "hipEventCreateWithFlags:2:999", "AMD runtime: hipEventCreateWithFlags failed with hipErrorUnknown (999"),
        ("amd", "hipExtMallocWithFlags:1:2", "AMD runtime: hipExtMallocWithFlags failed with hipErrorOutOfMemory (2"),
        ("amd", "hipHostRegister:1:999", "AMD runtime: hipHostRegister failed with hipErrorUnknown (999"),
        ("amd", "ncclCommInitRankConfig:1:3", "rccl init: internal error"),
        ("ascend", "aclrtCreateStreamWithConfig:1:507015", "ACL: aclrtCreateStreamWithConfig failed with error 507015"),
        ("ascend", "HcclCommInitRootInfo:1:11", "hccl init: connection failed (11)"),
    ],
)
def test_what_one_rank_cannot_make_is_the_same_error_of_init_on_all_and_the_next_init_works(
    maker: str, fault: str, words: str
) -> None:
    """Nobody waits for that rank inside a library until his deadline, and who waited there does not say that it was late."""
    results = run_fleet(f"{maker}:2,cpu:1", fails_at_init_and_then_works, init=False, switches={"1:FAIL": fault})
    for rank, (said, took, left) in enumerate(results):
        assert said.startswith("init of 'world' on rank 1: ") and words in said, said
        assert took < SOON, took
        if fault.startswith("Hccl") and rank == 0 and left:
            # Its thread is inside HCCL's init, which nothing ends: its stream stays with it, and what it had reserved.
            assert left["stream"] <= 1 and left["allocation"] <= 1, left
            left["stream"] = left["allocation"] = 0
        assert not any(left.values()), left


def test_a_rank_that_fails_before_it_connects_is_waited_for_by_nobody() -> None:
    """Of two processes the one with the smaller id, which is random, connects."""
    switches = {"0:FAIL": "ncclGetUniqueId:1:3"}
    results = run_fleet("nvidia:2,cpu:3", fails_at_init_and_then_works, init=False, switches=switches)
    for said, took, left in results:
        assert said.startswith("init of 'world' on rank 0: "), said
        assert "internal error" in said, said
        assert took < SOON, took
        assert not any(left.values()), left


@pytest.mark.parametrize(
    ("fleet", "call"),
    [
        ("nvidia:2,cpu:1", "ncclCommInitRankConfig"),
        ("amd:3", "ncclCommInitRankConfig"),
        ("ascend:2,cpu:1", "HcclCommInitRootInfo"),
    ],
)
def test_a_rank_that_ends_while_the_others_wait_for_it_in_the_librarys_init_is_named_at_once(fleet: str, call: str) -> None:
    def end_inside() -> None:
        vendor()  # with it the simulation is loaded
        calls = ctypes.CDLL("librehearsal.so").rehearsal_calls
        calls.restype = ctypes.c_ulong
        until(lambda: calls(call.encode()) == 1)
        time.sleep(0.3)  # the others are there, too
        os.kill(os.getpid(), 9)

    def body() -> tuple[str, float]:
        if os.environ["RANK"] == "1":
            threading.Thread(target=end_inside, daemon=True).start()
        said, begun = "nothing was lost", time.monotonic()
        try:
            isthmus.init()
        except isthmus.PeerLostError as error:
            said = str(error)
        return said, time.monotonic() - begun

    slow = {"1:SLOW": f"{call}:1:600000"}
    first, killed, third = run_fleet(fleet, body, init=False, switches=slow, expect={1: -9})
    assert killed is None
    for said, took in (first, third):
        assert "rank 1" in said, said
        assert took < SOON, took


@pytest.mark.parametrize(
    ("maker", "family", "own"), [("nvidia", "nccl", "2.29.3"), ("amd", "rccl", "2.22.3")], ids=["nvidia", "amd"]
)
def test_versions_of_one_island_that_differ_are_warned_of_and_named_where_its_library_fails(
    tmp_path: Path, maker: str, family: str, own: str
) -> None:
    def body(folder: str) -> tuple[str, str]:
        said = Path(folder) / f"said.{os.environ['ISTHMUS_RANK']}"
        os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        outcome = "made"
        try:
            isthmus.init().destroy()
        except isthmus.Error as error:
            outcome = str(error)
        return outcome, said.read_text()

    fleet, other, env = f"{maker}:2,cpu:1", {"1:NCCL_VERSION": "22105"}, {"ISTHMUS_LOG": "warn"}
    versions = f"rank 0 has {family} {own}, rank 1 has {family} 2.21.5"
    warning = f"communicator 'world': {versions} of one island: libraries of several versions may not understand each other"
    made = run_fleet(fleet, body, str(tmp_path), init=False, env=env, switches=other)
    assert [outcome for outcome, _ in made] == ["made"] * 3
    assert [said.count(warning) for _, said in made] == [1, 0, 0], made
    broken = {**other, "1:FAIL": "ncclCommInitRankConfig:1:3"}
    for outcome, _ in run_fleet(fleet, body, str(tmp_path), init=False, env=env, switches=broken):
        assert f"{family} init: internal error" in outcome and f"; {versions}: install one version on all" in outcome, (
            outcome
        )


@pytest.mark.parametrize(
    ("maker", "family", "value", "times"),
    [("nvidia", "nccl", "1", 1), ("amd", "rccl", "0x1", 1), ("nvidia", "nccl", "0", 0)],
    ids=["nvidia", "amd", "nvidia off"],
)
def test_an_environment_that_makes_the_librarys_calls_block_is_warned_of_once(
    tmp_path: Path, maker: str, family: str, value: str, times: int
) -> None:
    """NVIDIA's library takes that variable over what the communicator asks for."""

    def body(folder: str) -> str:
        said = Path(folder) / f"said.{os.environ['ISTHMUS_RANK']}"
        os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        for name in ("first", "second"):
            isthmus.init(name=name).destroy()
        return said.read_text()

    env = {"ISTHMUS_LOG": "warn", "NCCL_COMM_BLOCKING": value}
    warning = f"{family}: NCCL_COMM_BLOCKING=1 in the environment makes the library's calls block"
    said = run_fleet(f"{maker}:2,cpu:1", body, str(tmp_path), init=False, env=env)
    assert [text.count(warning) for text in said] == [times, times, 0], said
    assert all("cannot be aborted" in text and "unset it" in text for text in said[:2] if times), said


@pytest.mark.parametrize(
    ("env", "switches", "words"),
    [
        ({}, {"DEVICES": "0"}, "finds no device"),
        ({"ISTHMUS_DEVICE": "cuda:3"}, {}, "this process sees 1 device of that vendor (0 to 0)"),
        ({"ISTHMUS_DEVICE": "cuda:x"}, {}, "must be host, cuda, hip, acl, or one of these with :N"),
        (
            {"ISTHMUS_CCL": "nccl", "ISTHMUS_CCL_LIBRARY": "/nowhere/libnccl.so.2"},
            {},
            "/nowhere/libnccl.so.2 cannot be opened",
        ),
        ({"ISTHMUS_CCL": "oneccl"}, {}, "ISTHMUS_CCL=oneccl does not serve ranks on cuda:0"),
        ({}, {"FAIL": "ncclGetVersion:1:3"}, "does not tell its version"),
        ({}, {"PINNED": "4000000"}, "lower ISTHMUS_STAGING_BYTES"),
        ({}, {"FAIL": "ncclCommInitRankConfig:1:3"}, "nccl init: internal error"),
    ],
    ids=[
        "no device",
        "no such device",
        "no device's name",
        "no library",
        "another's library",
        "no version",
        "no memory to pin",
        "init fails",
    ],
)
def test_what_is_missing_is_said_in_one_sentence_by_every_rank(
    env: dict[str, str], switches: dict[str, str], words: str, fleet: str = "nvidia:2,cpu:1"
) -> None:
    def body(change: dict[str, str]) -> str:
        if not on_host():
            os.environ.update(change)
        try:
            with isthmus.init() as comm:
                return ",".join(group["ccl"] for group in comm.topology()["groups"])
        except isthmus.Error as error:
            return str(error)

    results = run_fleet(fleet, body, env, init=False, switches=switches)
    if words == "does not tell its version":  # auto: the ranks go on without it, and say so
        assert set(results) == {""}
        return
    for said in results:
        assert words in said and "\n" not in said.strip(), said


@pytest.mark.parametrize(
    ("env", "switches", "words"),
    [
        ({}, {"DEVICES": "0"}, "AMD's runtime library is here but finds no device"),
        ({"ISTHMUS_DEVICE": "cuda:0"}, {}, "NVIDIA's driver library (libcuda.so.1) was not found"),
        ({"ISTHMUS_CCL": "nccl"}, {}, "ISTHMUS_CCL=nccl does not serve ranks on hip:0"),
        ({}, {"PINNED": "4000000"}, "lower ISTHMUS_STAGING_BYTES"),
    ],
    ids=["no device", "another's device", "another's library", "no memory to pin"],
)
def test_what_is_missing_of_amds_is_said_too(env: dict[str, str], switches: dict[str, str], words: str) -> None:
    test_what_is_missing_is_said_in_one_sentence_by_every_rank(env, switches, words, "amd:2,cpu:1")


@pytest.mark.parametrize(
    ("fleet", "devices"),
    [
        ("nvidia:2,amd:1,cpu:1", ["cuda:0", "cuda:0", "hip:0"]),
        ("nvidia:1,ascend:2,cpu:1", ["cuda:0", "acl:0", "acl:0"]),
    ],
)
def test_where_little_memory_can_be_pinned_the_pool_is_smaller_and_the_results_the_same(
    tmp_path: Path, fleet: str, devices: list[str]
) -> None:
    def body(folder: str) -> Any:
        errors = Path(folder) / f"errors.{os.environ['ISTHMUS_RANK']}"
        os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        with isthmus.init() as comm:
            limit = isthmus.context_stats()["staging_limit"]
            x: Any = np.full(2_000_000, comm.rank + 1.0, np.float32)
            x = x if on_host() else DeviceArray.of(x)
            for _ in range(3):
                comm.all_reduce(x, "max", x)
            inside = comm.split(comm.rank % 2, 0)
            assert inside is not None
            inside.all_reduce(x, "max", x)
            return limit, float((x if on_host() else x.get())[-1]), errors.read_text()

    pinned = {"PINNED": str(40 << 20)}
    results = run_fleet(fleet, body, str(tmp_path), init=False, switches=pinned, env={"ISTHMUS_LOG": "warn"})
    assert [limit >> 20 for limit, _, _ in results] == [32, 32, 32, 512]
    assert {value for _, value, _ in results} == {4.0}
    for name, (limit, _, said) in zip(devices, results[:-1], strict=True):
        warning = (
            f"only {limit} of {512 << 20} bytes of staging could be pinned for {name}; large operations take more steps"
        )
        assert said.count(warning) == 1 and "(ISTHMUS_STAGING_BYTES)" in said, said
    assert "pinned" not in results[-1][2]


def test_without_the_library_device_ranks_are_planned_one_by_one(tmp_path: Path) -> None:
    """Only the driver is there."""

    def body(folder: str) -> Any:
        ctypes.CDLL(f"{folder}/libcuda.so.1")
        with isthmus.init() as comm:
            x = DeviceArray.of(np.full(100_000, comm.rank + 1.0, np.float32))
            comm.all_reduce(x)
            return float(x.get()[-1]), [group["ccl"] for group in comm.topology()["groups"]]

    from isthmus import rehearse

    real = rehearse.folder()
    (tmp_path / "nvidia").mkdir()
    for name in ("librehearsal.so", "nvidia/libcuda.so.1"):
        (tmp_path / name).symlink_to(real / name)
    (tmp_path / "nvidia" / "libnccl.so.2").write_bytes(b"no library")
    results = run_fleet(
        "nvidia:2",
        body,
        str(real / "nvidia"),
        init=False,
        env={"REHEARSAL_LIBRARIES": str(tmp_path), "ISTHMUS_LOG": "error"},
    )
    assert results == [(3.0, [""])] * 2 or results == [(3.0, ["", ""])] * 2, results
