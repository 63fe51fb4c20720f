"""vLLM's own wrapper of NCCL, as it is in its wheels from the first to the newest, on simulated vendors.

Nothing is preloaded: VLLM_NCCL_SO_PATH names the door, and the loader would find the vendor's library. What the ranks get is
compared with NumPy in vllm_rank.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import vllm_wrappers
from doors import DOORS, HERE, ROOT, preloaded
from patience import patient
from spanning import HANDED, SPANS, VENDORS, environment

FOLDER = ROOT / "build" / "vllm"
VERSIONS = vllm_wrappers.VERSIONS
SIMULATED = {"n": "2.29.3", "a": "2.22.3"}  # the version, as the wrapper says it
OPS = ("SUM", "PRODUCT", "MAX", "MIN")
pytestmark = [preloaded, pytest.mark.computes]  # ctypes opens a door of a sanitizer's only behind its runtime


def job(vendors: str, versions: Sequence[str], folder: Path) -> list[tuple[dict[str, Any], str]]:
    """What each rank found with each version of the wrapper, and what it logged."""
    if not vllm_wrappers.complete(FOLDER):
        reason = f"no vLLM in {FOLDER}: scripts/vllm_wrappers.py fetches it"
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    processes = []
    for number, letter in enumerate(vendors):
        given = environment(letter, behind=False) | {"ISTHMUS_LOG": "info"}
        given["VLLM_NCCL_SO_PATH"] = str(DOORS[VENDORS[letter]].path)
        words = [sys.executable, HERE / "vllm_rank.py", number, len(vendors), folder, FOLDER, " ".join(versions)]
        command = [str(word) for word in words]
        processes.append(subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        ended = [process.communicate(timeout=patient(240)) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for number, process in enumerate(processes):
        assert process.returncode == 0, f"rank {number}: {ended[number]}"
    return [(json.loads(out), err) for out, err in ended]


def able(version: str, last: bool) -> set[str]:
    """What a rank of that version compares with NumPy, so that nothing is left out unseen."""
    have = {f"all_reduce by {op}" for op in OPS} | ({"send and recv"} if last else set())
    if version == "0.6.3":
        return have
    have |= {"all_reduce by AVG", "broadcast", "all_gather", *(f"reduce_scatter by {op}" for op in OPS)}
    if version == "0.8.5":
        return have
    return (
        have | {"send and recv", "reduce_scatterv", "all_gatherv"} | ({f"reduce by {op}" for op in OPS} if last else set())
    )


def check(vendors: str, versions: Sequence[str], found: list[tuple[dict[str, Any], str]]) -> None:
    for rank, (letter, (told, _)) in enumerate(zip(vendors, found, strict=True)):
        for version in versions:
            assert told[version]["version"] == SIMULATED[letter]
            assert told[version]["wrong"] == [], f"rank {rank}, vLLM {version}"
            assert set(told[version]["done"]) == able(version, rank == len(vendors) - 1), version


def test_vllms_own_communicator_spans_vendors(tmp_path: Path) -> None:
    found = job("nan", VERSIONS, tmp_path)
    check("nan", VERSIONS, found)
    for rank, (told, logged) in enumerate(found):
        assert logged.count(SPANS) == len(VERSIONS) and HANDED not in logged, logged
        for version in VERSIONS:
            assert told[version]["a type that is none"].startswith("NCCL error: invalid argument"), version
        older, newest = [told[version] for version in VERSIONS[:2]], told[VERSIONS[-1]]
        # A window is none, and is taken back. The newest asks for properties, and has words beside the vendor's.
        assert [one["window"] for one in older] == ["not known"] * 2
        for version in VERSIONS[2:]:
            assert told[version]["window"] is None and told[version]["window given back"] is None
        assert newest["properties"] == [0, rank, 3, False, False, 0]
        assert "ncclAllReduce" in newest["a type that is none"], newest
        assert "ncclCommSuspend: this communicator spans several vendors" in newest["suspend"], newest


@pytest.mark.product(4)
@pytest.mark.parametrize("vendors", ["nn", "aa"])
def test_vllms_ranks_of_one_vendor_get_its_library(vendors: str, tmp_path: Path) -> None:
    found = job(vendors, VERSIONS[-1:], tmp_path)
    check(vendors, VERSIONS[-1:], found)
    assert all(logged.count(HANDED) == 1 and SPANS not in logged for _, logged in found), found
