"""What a vendor's runtime answers to each call of the interface test, and whether its simulation answers the same.

    python3 scripts/vendor_trace.py record TEST_DEVICE LIBVENDOR_TRACE --runtime cuda --out FILE     # any machine
    python3 scripts/vendor_trace.py compare FILE TEST_DEVICE LIBVENDOR_TRACE                         # without a GPU

record runs each case of the test alone, with tests/cpp/vendor_trace.cpp before it, and writes JSON. Of each case: the calls,
with those of their arguments that are plain numbers, what they returned, and how often so; and of each thread the first ones
in their order.

compare runs the same cases on the simulated runtime, and says for each case which call with which numbers gave other codes
there, or was made on one side alone. Whether something is done yet depends on the clock, so "not ready" is no answer that
could differ. The exit status is 1 where the two differ.

Standard library only: the recording part runs on machines that have nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SECONDS = 60.0  # of a case
FIRST = 100  # calls, of a thread, whose order is kept
# Which arguments of a call are numbers that say what is asked for; sizes too. Everything else is an address or a handle.
NUMBERS = {
    "cuInit": (0,),
    "cuDeviceGetAttribute": (1,),
    "cuStreamCreate": (1,),
    "cuStreamWaitValue64_v2": (3,),
    "cuStreamWriteValue64_v2": (3,),
    "cuMemHostRegister_v2": (2,),
    "cuMemcpyAsync": (2,),
    "cuEventCreate": (1,),
    "cuStreamWaitEvent": (2,),
    "cuPointerGetAttribute": (1,),
    "hipInit": (0,),
    "hipDeviceGetAttribute": (1,),
    "hipStreamCreateWithFlags": (1,),
    "hipHostRegister": (2,),
    "hipMemcpyAsync": (2, 3),
    "hipEventCreateWithFlags": (1,),
    "aclrtMemcpyAsync": (1, 3, 4),
}
NOT_READY = {"cu": 600, "hip": 600}
QUERIES = ("StreamQuery", "EventQuery")
TWO_DEVICES = ("LeavesAThreadTheDeviceThatItHasChosen",)  # cases that do nothing where there is one
# What these answer depends on nothing that a case does. So a program that is newer than a recording may make them in more
# cases, where the recording has the same answer in another case.
ANYWHERE = ("cuThreadExchangeStreamCaptureMode()", "hipThreadExchangeStreamCaptureMode()")
NO_CODES = ("aclrtGetSocName", "aclGetRecentErrMsg", "hipGetErrorName", "hipGetErrorString")  # they return text

Call = list[Any]  # [text, code, number left behind or None, times in a row]
Answers = dict[str, dict[str, int]]  # by call: how often it gave which code


def cases_of(program: Path, runtime: str) -> list[str]:
    """Of the runtime's own cases alone: those of its library's version and of other runtimes' make other calls."""
    command = [program, "--gtest_list_tests", "--gtest_filter=Runtimes/EveryRuntime.*"]
    said = subprocess.run(command, env=environment(runtime), capture_output=True, text=True, timeout=SECONDS, check=True)
    found, suite = [], ""
    for line in said.stdout.splitlines():
        if not line.startswith(" "):
            suite = line.split("#")[0].strip()
        elif suite.endswith("."):
            found.append(suite + line.split("#")[0].strip())
    if not found:
        raise SystemExit(f"vendor_trace: {program} has no case of the runtime {runtime}\n{said.stdout[-2000:]}")
    return found


def environment(runtime: str, **more: str) -> dict[str, str]:
    return {**os.environ, "TEST_RUNTIME": runtime, **more}


def read(lines: Iterable[str]) -> tuple[list[list[Call]], Answers]:
    """The first calls of each thread, in the order in which the threads made their first one; what all calls gave."""
    threads: dict[str, list[Call]] = {}
    answers: Answers = {}
    for line in lines:
        thread, name, *arguments, code, number = line.split()
        # An int leaves the upper half of its register as it was.
        numbers = [int(arguments[at], 16) & 0xFFFFFFFF for at in NUMBERS.get(name, ())]
        call = [f"{name}({', '.join(map(str, numbers))})", int(code), None if number == "-" else int(number), 1]
        mine = threads.setdefault(thread, [])
        gave = answers.setdefault(call[0], {})
        gave[code] = gave.get(code, 0) + 1
        if mine and mine[-1][:3] == call[:3]:
            mine[-1][3] += 1
        elif len(mine) < FIRST:
            mine.append(call)
    return list(threads.values()), answers


def record(program: Path, library: Path, runtime: str) -> dict[str, Any]:
    cases: dict[str, Any] = {}
    simulated = False
    for case in cases_of(program, runtime):
        with tempfile.TemporaryDirectory(prefix="isthmus-trace-") as folder:
            trace = Path(folder) / "calls"
            given = environment(runtime, LD_PRELOAD=str(library.resolve()), VENDOR_TRACE=str(trace))
            try:
                words = [program, f"--gtest_filter={case}"]
                ended = subprocess.run(words, env=given, capture_output=True, text=True, timeout=SECONDS, check=False)
            except subprocess.TimeoutExpired:
                print(f"vendor_trace: {case} did not end within {SECONDS:g} s", file=sys.stderr)
                cases[case] = {"status": 124, "answers": {}, "threads": []}
                continue
            lines = trace.read_text().splitlines() if trace.is_file() else []
        simulated |= "rehearsal: simulated" in ended.stderr
        if not lines:
            said = f"{case} made no call that {library.name} saw\n{ended.stdout}{ended.stderr}"
            print(f"vendor_trace: {said}", file=sys.stderr)
        threads, answers = read(lines)
        status = ended.returncode if lines else ended.returncode or 1
        cases[case] = {"status": status, "answers": answers, "threads": threads}
    return {"runtime": runtime, "simulated": simulated, "cases": cases}


def facts(case: dict[str, Any]) -> dict[str, set[int]]:
    """What each call with its numbers has given, whatever the thread."""
    found: dict[str, set[int]] = {}
    for text, gave in case["answers"].items():
        name = text.split("(")[0]
        if name in NO_CODES:
            continue
        vendor = next((prefix for prefix in NOT_READY if name.startswith(prefix)), "")
        asks = any(query in name for query in QUERIES)
        found[text] = {int(code) for code in gave if not (asks and int(code) == NOT_READY.get(vendor))}
    return found


def devices(recording: dict[str, Any]) -> int:
    """How many the runtime said that there are."""
    calls = (call for case in recording["cases"].values() for thread in case["threads"] for call in thread)
    return next((number for text, _, number, _ in calls if number and "Count()" in text and "Device" in text), 1)


def differences(real: dict[str, Any], simulated: dict[str, Any]) -> list[str]:
    """A line for each, that of the first recording first."""
    if real["runtime"] != simulated["runtime"]:
        return [f"one is of {real['runtime']}, the other of {simulated['runtime']}"]
    lines = []
    one = min(devices(real), devices(simulated)) < 2
    known = {call: codes for case in real["cases"].values() for call, codes in facts(case).items() if call in ANYWHERE}
    for case in sorted({*real["cases"], *simulated["cases"]}):
        if one and any(name in case for name in TWO_DEVICES):
            continue
        first, second = real["cases"].get(case), simulated["cases"].get(case)
        if first is None or second is None:
            lines.append(f"{case}: only {'the second' if first is None else 'the first'} has it")
            continue
        if first["status"] != second["status"]:
            lines.append(f"{case}: ended with {first['status']}, and with {second['status']}")
        here, there = facts(first), facts(second)
        for call in sorted({*here, *there}):
            # Where every answer was "not ready", no code is known.
            left, right = here.get(call), there.get(call)
            if left is None and call in known:
                left = known[call]
            if left is None or right is None:
                lines.append(f"{case}: {call}: made by {'the second' if left is None else 'the first'} alone")
            elif left and right and left != right:
                lines.append(f"{case}: {call}: {sorted(left)}, and {sorted(right)}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    comparing = commands.add_parser("compare")
    comparing.add_argument("recorded", type=Path)
    for each in (recording, comparing):
        each.add_argument("program", type=Path, help="test_device")
        each.add_argument("library", type=Path, help="libvendor_trace.so")
    recording.add_argument("--runtime", default="cuda", choices=["cuda", "hip", "acl"])
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--real", action="store_true", help="fails where the runtime turns out to be the simulated one")
    options = parser.parse_args()
    if options.command == "record":
        found = record(options.program, options.library, options.runtime)
        options.out.write_text(json.dumps(found) + "\n")
        calls = sum(sum(gave.values()) for case in found["cases"].values() for gave in case["answers"].values())
        whose = "the simulated" if found["simulated"] else "the"
        print(f"{len(found['cases'])} cases, {calls} calls of {whose} runtime {found['runtime']}: {options.out}")
        failed = [name for name, case in found["cases"].items() if case["status"]]
        if failed:
            print(f"vendor_trace: failed: {', '.join(failed)}", file=sys.stderr)
        return 1 if failed or (options.real and found["simulated"]) else 0
    recorded = json.loads(options.recorded.read_text())
    lines = differences(recorded, record(options.program, options.library, recorded["runtime"]))
    print("\n".join(lines) or f"{len(recorded['cases'])} cases: the two answer alike")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
