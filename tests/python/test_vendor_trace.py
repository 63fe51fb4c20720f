"""What a driver answers to the interface test is recorded, and its simulation is held against the recording.

scripts/vendor_trace.py makes such recordings; scripts/gpu_day.py has it done on a machine with a GPU. Those of real drivers
lie in bench/results.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "release" / "tests" / "cpp"
RECORDED = sorted((ROOT / "bench" / "results").glob("trace_*.json"))


@pytest.fixture(scope="module")
def trace() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vendor_trace", ROOT / "scripts" / "vendor_trace.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def recorded(trace: ModuleType, runtime: str, monkeypatch: pytest.MonkeyPatch, **switches: str) -> dict[str, Any]:
    if not (BUILT / "test_device").is_file():
        why = "no interface test is built: cmake --build build/release --target test_device"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    for name, value in switches.items():
        monkeypatch.setenv(f"REHEARSAL_{name}", value)
    found: dict[str, Any] = trace.record(BUILT / "test_device", BUILT / "libvendor_trace.so", runtime)
    for name in switches:
        monkeypatch.delenv(f"REHEARSAL_{name}")
    return found


@pytest.mark.parametrize("runtime", ["cuda", "hip", "acl"])
def test_a_recording_has_every_case_and_differs_from_no_other_whatever_the_delays(
    trace: ModuleType, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorded(trace, runtime, monkeypatch)
    second = recorded(trace, runtime, monkeypatch, SEED="77", JITTER_US="400")
    assert len(first["cases"]) >= 15 and first["simulated"]
    assert all(case["status"] == 0 for case in first["cases"].values()), first
    calls = {call for case in first["cases"].values() for call in case["answers"]}
    assert all(case["threads"][0] for case in first["cases"].values())
    prefix = {"cuda": "cu", "hip": "hip", "acl": "aclrt"}[runtime]
    assert len([call for call in calls if call.startswith(prefix)]) > 15, calls
    assert trace.differences(json.loads(json.dumps(first)), second) == []


def test_a_driver_that_answers_otherwise_is_told_by_case_call_and_codes(
    trace: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorded(trace, "cuda", monkeypatch)
    failing = recorded(trace, "cuda", monkeypatch, FAIL="cuEventCreate:1:2")
    lines = trace.differences(first, failing)
    codes = [line for line in lines if "cuEventCreate(2): [0], and [2]" in line]
    assert any("AnEventOrdersOneStreamBehindAnother" in line for line in codes), lines
    assert any("ended with 0, and with 1" in line for line in lines), lines


def test_the_first_calls_of_a_thread_are_kept_in_their_order_and_all_are_counted(trace: ModuleType) -> None:
    lines = ["7 cuInit ffffffff00000000 0 0 0 0 0 0 -", "7 cuDeviceGetAttribute 7ffe 5c 0 0 0 0 0 1"]
    lines += ["8 cuStreamQuery 1 0 0 0 0 0 600 -"] * 250 + ["8 cuStreamQuery 1 0 0 0 0 0 0 -"]
    lines += [f"7 cuMemcpyAsync 1 2 {n:x} 3 0 0 0 -" for n in range(200)]
    (first, second), answers = trace.read(lines)
    assert first[:2] == [["cuInit(0)", 0, None, 1], ["cuDeviceGetAttribute(92)", 0, 1, 1]]
    assert len(first) == trace.FIRST and first[-1] == ["cuMemcpyAsync(97)", 0, None, 1]
    assert second == [["cuStreamQuery()", 600, None, 250], ["cuStreamQuery()", 0, None, 1]]
    assert answers["cuStreamQuery()"] == {"600": 250, "0": 1} and len(answers) == 3 + 200


def test_a_call_that_one_side_alone_makes_and_a_case_that_one_side_lacks_are_told(trace: ModuleType) -> None:
    def recording(**queries: int) -> dict[str, Any]:
        answers = {"cuInit(0)": {"0": 1}}
        if queries:
            answers["cuStreamQuery()"] = {code[1:]: times for code, times in queries.items()}
        return {"runtime": "cuda", "cases": {"Case/cuda": {"status": 0, "answers": answers, "threads": []}}}

    first = recording(_600=7, _0=1)
    assert trace.differences(first, copy.deepcopy(first)) == []
    # How often it was not ready, and whether it was asked too early at all, is the clock's.
    early = recording(_600=2)
    assert trace.differences(first, early) == []
    assert trace.differences(first, recording(_999=1)) == ["Case/cuda: cuStreamQuery(): [0], and [999]"]
    assert trace.differences(first, recording()) == ["Case/cuda: cuStreamQuery(): made by the first alone"]
    more = {"runtime": "cuda", "cases": {**first["cases"], "Other/cuda": first["cases"]["Case/cuda"]}}
    assert trace.differences(first, more) == ["Other/cuda: only the second has it"]
    assert trace.differences(first, {"runtime": "hip", "cases": {}}) == ["one is of cuda, the other of hip"]


def test_a_call_whose_answer_depends_on_nothing_may_be_made_in_more_cases_where_it_gave_the_same_in_another(
    trace: ModuleType,
) -> None:
    aside = trace.ANYWHERE[0]

    def recording(*given: int | None) -> dict[str, Any]:
        cases = {}
        for number, code in enumerate(given):
            answers = {"cuInit(0)": {"0": 1}, **({} if code is None else {aside: {str(code): 1}})}
            cases[f"Case{number}/cuda"] = {"status": 0, "answers": answers, "threads": []}
        return {"runtime": "cuda", "cases": cases}

    assert trace.differences(recording(0, None), recording(0, 0)) == []
    assert trace.differences(recording(0, None), recording(0, 1)) == [f"Case1/cuda: {aside}: [0], and [1]"]
    assert trace.differences(recording(None, None), recording(None, 0)) == [f"Case1/cuda: {aside}: made by the second alone"]


def test_a_case_that_needs_two_devices_is_compared_where_both_have_two(trace: ModuleType) -> None:
    case = f"Runtimes/{trace.TWO_DEVICES[0]}/cuda"

    def recording(devices: int, calls: int) -> dict[str, Any]:
        threads = [[["cuInit(0)", 0, None, 1], ["cuDeviceGetCount()", 0, devices, 1]]]
        answers = {"cuInit(0)": {"0": 1}, **({"cuMemAlloc_v2()": {"0": calls}} if calls else {})}
        return {"runtime": "cuda", "cases": {case: {"status": 0, "answers": answers, "threads": threads}}}

    assert trace.devices(recording(2, 1)) == 2
    assert trace.differences(recording(1, 0), recording(2, 1)) == []
    assert trace.differences(recording(2, 0), recording(2, 1)) == [f"{case}: cuMemAlloc_v2(): made by the second alone"]


def test_the_simulated_driver_answers_as_the_real_one_did(trace: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    if not RECORDED:
        pytest.skip("no recording of a real driver yet: `scripts/gpu_day.py run trace` makes one where there is a GPU")
    for file in RECORDED:
        real = json.loads(file.read_text())
        assert not real["simulated"], file
        assert trace.differences(real, recorded(trace, real["runtime"], monkeypatch)) == [], file
