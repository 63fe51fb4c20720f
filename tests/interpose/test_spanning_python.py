"""Python programs that open the library by name and call it with ctypes, as vLLM and others do, on simulated vendors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from doors import DOORS, HERE, ROOT
from interpose_entries import read_table
from spanning import environment

ROWS = read_table(ROOT / "csrc" / "interpose" / "nccl.symbols")


def job(vendors: str, case: str, folder: Path, islands: str = "", program: str = "pynccl.py", **more: str) -> list[Any]:
    """What the ranks of a case found. A program other than pynccl.py is for NVIDIA's."""
    processes = []
    for number, letter in enumerate(vendors):
        given = environment(letter) | more | ({"ISTHMUS_ISLAND": islands[number]} if islands else {})
        script = HERE / (program if letter == "n" else "pynccl.py")
        words = [sys.executable, str(script), str(number), str(len(vendors)), str(folder), case]
        processes.append(subprocess.Popen(words, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        ended = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for number, process in enumerate(processes):
        assert process.returncode == 0, f"rank {number}: {ended[number]}"
    return [json.loads(out) for out, _ in ended]


def test_a_program_that_opens_the_library_by_its_name(tmp_path: Path) -> None:
    assert job("nan", "plain", tmp_path) == [[6.0] * 3] * 3


@pytest.fixture
def cupy() -> str:
    """Where the module of CuPy's wheel is."""
    folder = ROOT / "build" / "vendor-headers" / "cupy"
    if not list(folder.glob("cupy_backends/cuda/libs/nccl.*.so")):
        reason = "no CuPy in build/vendor-headers: scripts/vendor_headers.py fetches it"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    return str(folder)


def test_cupys_own_communicator_spans_vendors(cupy: str, tmp_path: Path) -> None:
    assert job("nan", "plain", tmp_path, program="cupy_rank.py", PYTHONPATH=cupy) == [[6.0] * 3] * 3


def test_cupys_own_communicator_does_all_that_it_can_between_islands(cupy: str, tmp_path: Path) -> None:
    found = job("nnn", "every_method", tmp_path, islands="xyx", program="cupy_rank.py", PYTHONPATH=cupy)
    for rank, told in enumerate(found):
        assert told.pop("asked") == [3, rank, 0, None]  # the last raises what is wrong
        assert told.pop("a root that is none") == "NCCL_ERROR_INVALID_ARGUMENT"
        assert set(told.values()) == {True}, f"rank {rank}: {told}"


def test_several_ids_and_a_configuration(tmp_path: Path) -> None:
    assert job("na", "scalable", tmp_path) == [[3.0] * 3] * 2


def test_the_meetings_of_further_ids_end(tmp_path: Path) -> None:
    found = job("nan", "several_ids", tmp_path)
    assert [told[:2] for told in found] == [[5, 0], [0, 0], [0, 0]]
    assert [told[2] for told in found] == [[6.0] * 3] * 3


def test_a_configuration_of_a_call_is_a_hint_unless_it_cannot_be_ignored(tmp_path: Path) -> None:
    for told, result in job("na", "with_config", tmp_path):
        assert [code for code, _ in told] == [0, 5, 5] and result == [6.0] * 3
        assert "forceAlgSelection" in told[1][1] and "launch completion event" in told[2][1]


def test_a_message_of_more_bytes_than_there_are_numbers_for_is_refused(tmp_path: Path) -> None:
    assert job("na", "too_long", tmp_path) == [[[4, 4, 4], [3.0] * 3]] * 2


def test_blocks_of_different_sizes_between_islands_of_amds(tmp_path: Path) -> None:
    found = job("aaa", "uneven", tmp_path, islands="xyx")
    for rank, got in enumerate(found):
        assert got == [float(10 * s + rank) for s in range(3) for _ in range(rank + 1)]


def test_all_devices_of_a_process_are_the_vendors(tmp_path: Path) -> None:
    assert job("n", "all_of_the_process", tmp_path) == [2]


@pytest.mark.parametrize("letter", ["n", "a"])
def test_every_other_function_refuses_our_communicator(letter: str, tmp_path: Path) -> None:
    """And says why; none hands it to the real library, where it would be a misuse that ends the process."""
    vendor = "nccl" if letter == "n" else "rccl"
    names = [row.name for row in ROWS if row.policy == "refuse" and row.is_in(vendor) and row.result in ("Result", "int")]
    assert len(names) >= 20
    for told, result in job(letter * 2, "vendors_own", tmp_path, islands="xy", NAMES=" ".join(names), ISTHMUS_LOG="off"):
        assert result == [3.0] * 3 and len(told) == len(names)
        for name, (code, text) in told.items():
            assert code in (5, -1) and text.startswith(f"{name}: this communicator spans several vendors"), name


def test_a_forked_child_may_take_part_in_the_census(tmp_path: Path) -> None:
    library = DOORS["nccl"].path.parents[1] / "csrc" / "api" / "libisthmus.so"
    assert job("n", "forked", tmp_path, LIBISTHMUS=str(library)) == [0]
