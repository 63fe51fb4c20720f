#!/usr/bin/env python3
"""Everything that has to pass, in stages, one line each. pytest comes last: its summary is the last line and counts it all.

The stages' tests run one stage after the other. Their builds, and stages without a clock, run beside them at a low priority:
most tests of a communication library wait.

A stage writes its output to build/suite/<stage>.log and its outcome to build/suite/record.json. tests/suite turns that
record, and every GoogleTest case that a stage ran, into pytest cases. The package is built before (scripts/setup.py test).
How long the stages, pytest and all of it took is in build/suite/times.json, of the last run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import oneccl
from setup import ONECCL, ROOT, VENV, build_environment, warnings_are_errors

SUITE = ROOT / "build" / "suite"
JOBS = str(os.cpu_count() or 1)
COMMAND_SECONDS, BUILD_SECONDS = 2400, 7200  # what does not end is ended; how long a build takes is the machine's matter
DEMO_SECONDS = 240  # processor time of `make demo`, which depends on what else runs less than time does


class Failed(Exception):
    """A stage's command failed; the log has the reason."""


class Stage:
    """One stage at work: where its output goes and what its commands see."""

    def __init__(self, name: str, verbose: bool) -> None:
        self.name = name
        self.verbose = verbose
        self.beside = False  # other stages
        self.child: subprocess.Popen[bytes] | None = None
        self.log = SUITE / f"{name}.log"
        self.cases = SUITE / "gtest" / name
        self.log.write_text("")
        shutil.rmtree(self.cases, ignore_errors=True)

    def run(
        self,
        *command: str | Path,
        env: dict[str, str] | None = None,
        cwd: Path = ROOT,
        seconds: float = COMMAND_SECONDS,
    ) -> str:
        """Runs a command to its end, and all that it started if it fails to end. Returns what it said."""
        words = [str(c) for c in (*(("nice", "-n", "10") if self.beside else ()), *command)]
        with open(self.log, "a+") as log:
            log.write(f"$ {' '.join(words)}\n")
            log.flush()
            begin = log.tell()
            child = self.child = subprocess.Popen(
                words,
                cwd=cwd,
                env=build_environment() | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                log.write(f"it did not end within {seconds} s\n")
            finally:
                self.end()
            log.seek(begin)
            said = log.read()
        if child.returncode != 0:
            raise Failed(f"exit status {child.returncode}: {' '.join(words)}")
        return said

    def end(self) -> None:
        """Ends what runs of the stage."""
        if self.child and self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def python(self, *command: str | Path) -> str:
        return self.run(VENV / "bin" / "python", *command)

    def tests(self, build: Path, *select: str, before: tuple[str, ...] = (), env: dict[str, str] | None = None) -> None:
        """Runs ctest in `build`, keeping each program's cases for tests/suite."""
        self.cases.mkdir(parents=True)
        # GoogleTest names its file after the program, if the output is a folder.
        self.run(
            *before,
            *("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "-j", JOBS),
            *("--output-junit", self.cases / "ctest.junit"),
            *select,
            env={"GTEST_OUTPUT": f"xml:{self.cases}/"} | vendor_libraries() | (env or {}),
        )


def vendor_libraries() -> dict[str, str]:
    """Where the tests find the vendors' libraries that run without a device."""
    return {"TEST_ONECCL": str(oneccl.library(ONECCL))} if oneccl.complete(ONECCL) else {}


def configure(stage: Stage, build: Path, *options: str) -> None:
    stage.run(
        "cmake",
        "-S",
        ".",
        "-B",
        build,
        "-G",
        "Ninja",
        "-DISTHMUS_TESTS=ON",
        f"-DISTHMUS_WERROR={warnings_are_errors()}",
        *options,
    )


def compile_all(stage: Stage, build: Path, *options: str) -> None:
    stage.run("cmake", "--build", build, *options, seconds=BUILD_SECONDS)


def layers(stage: Stage) -> None:
    stage.python("scripts/check_layers.py")


def ruff(stage: Stage) -> None:
    stage.run("ruff", "check", ".")


def mypy(stage: Stage) -> None:
    stage.run("mypy")


def clang_format(stage: Stage) -> None:
    stage.python("scripts/format.py")


def tidy(stage: Stage) -> None:
    configure(stage, ROOT / "build" / "release")
    stage.python("scripts/tidy.py", ROOT / "build" / "release")


def unit(stage: Stage) -> None:
    build = ROOT / "build" / "release"  # the folder that the installed package was built in
    configure(stage, build)
    compile_all(stage, build)
    stage.tests(build)


def asan_build(stage: Stage) -> None:
    configure(stage, ROOT / "build" / "asan", "-DISTHMUS_SANITIZE=address", "-DISTHMUS_BENCH=OFF")
    compile_all(stage, ROOT / "build" / "asan")


def asan(stage: Stage) -> None:
    options = {"UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "detect_stack_use_after_return=1"}
    stage.tests(ROOT / "build" / "asan", env=options)


def tsan_build(stage: Stage) -> None:
    configure(stage, ROOT / "build" / "tsan", "-DISTHMUS_SANITIZE=thread", "-DISTHMUS_BENCH=OFF")
    compile_all(stage, ROOT / "build" / "tsan", "--target", "tests_threads")


def tsan(stage: Stage) -> None:
    # ThreadSanitizer's shadow wants a fixed address space; kernels that randomise 32 bits leave it no room.
    fixed = ("setarch", platform.machine(), "-R")
    allowed = subprocess.run([*fixed, "true"], capture_output=True).returncode == 0
    stage.tests(
        ROOT / "build" / "tsan",
        "-L",
        "threads",
        before=fixed if allowed else (),
        env={"TSAN_OPTIONS": f"halt_on_error=1 second_deadlock_stack=1 suppressions={ROOT / 'tests' / 'tsan.supp'}"},
    )


def aarch64(stage: Stage) -> None:
    build = ROOT / "build" / "aarch64"
    configure(stage, build, "-DISTHMUS_CORE_ONLY=ON", f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake' / 'aarch64.cmake'}")
    compile_all(stage, build)
    stage.tests(build)


def clean_install(stage: Stage) -> None:
    stage.python("scripts/clean_install.py", SUITE / "clean-install")


def demo(stage: Stage) -> None:
    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    before = used()
    said = stage.run("make", "demo")
    if "setup:" in said:
        raise Failed("make demo set something up that was set up already")
    if used() - before > DEMO_SECONDS:
        raise Failed(f"make demo took {used() - before:.0f} s of processor time, with everything built")


@dataclass(frozen=True)
class Kind:
    """What a stage does beside other stages, and then, when its turn comes and the other is done, alone."""

    title: str
    alone: Callable[[Stage], None] | None = None
    beside: Callable[[Stage], None] | None = None


STAGES = {
    "layers": Kind("who includes whom", layers),
    "ruff": Kind("Python style", ruff),
    "clang-format": Kind("C++ style", clang_format),
    "unit": Kind("C++ tests", unit),
    "tidy": Kind("C++ faults, clang-tidy", tidy),
    "asan": Kind("C++ tests, AddressSanitizer and UBSan", asan, asan_build),
    "tsan": Kind("C++ tests with threads, ThreadSanitizer", tsan, tsan_build),
    "clean-install": Kind("pip install in a fresh environment", None, clean_install),
    "aarch64": Kind("C++ tests on AArch64, emulated", None, aarch64),
    "mypy": Kind("Python types, strict", None, mypy),
    "demo": Kind("make demo", demo),  # it counts processor time: behind all that runs beside others
}


ON_DEMAND = {"tidy"}  # minutes of processor time; `make tidy`


def attempt(act: Callable[[Stage], None] | None, stage: Stage, beside: bool) -> tuple[str, float]:
    """Why it failed, or nothing, and how many seconds it took."""
    stage.beside = beside
    begin = time.monotonic()
    reason = ""
    if act:
        try:
            act(stage)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            reason = str(error)
    return reason, time.monotonic() - begin


def run_stage(stage: Stage, earlier: Future[tuple[str, float]] | None) -> dict[str, object]:
    kind = STAGES[stage.name]
    reason, seconds = earlier.result() if earlier else ("", 0.0)
    if not reason:
        reason, alone = attempt(kind.alone, stage, False)
        seconds += alone
    log = stage.log.read_text(errors="replace").splitlines()
    if reason:
        print("\n".join(f"    {line}" for line in log[-60:]), f"    {reason}", sep="\n")
    elif stage.verbose:
        print("\n".join(f"    {line}" for line in log if not line.startswith("$ ")))
    print(f"{'FAILED' if reason else 'ok':6} {kind.title:44} {seconds:7.1f} s", flush=True)
    return {"stage": stage.name, "reason": reason, "seconds": round(seconds, 1)}


def run_stages(names: list[str], verbose: bool) -> list[dict[str, object]]:
    stages = [Stage(name, verbose) for name in names]
    with ThreadPoolExecutor(1) as lane:
        beside = {s.name: lane.submit(attempt, STAGES[s.name].beside, s, True) for s in stages if STAGES[s.name].beside}
        try:
            return [run_stage(stage, beside.get(stage.name)) for stage in stages]
        except BaseException:  # an interrupt: a new session's processes do not see it
            lane.shutdown(wait=False, cancel_futures=True)
            for stage in stages:
                stage.end()
            raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = f"default: all but {' '.join(ON_DEMAND)}"
    parser.add_argument("--stages", default="", help=f"of {' '.join([*STAGES, 'pytest'])}; {default}")
    parser.add_argument("--pytest", default="", help="arguments for pytest")
    parser.add_argument("--verbose", action="store_true", help="show the output of stages that pass, too")
    arguments = parser.parse_args()
    names = arguments.stages.split() or [*(name for name in STAGES if name not in ON_DEMAND), "pytest"]
    unknown = [name for name in names if name not in STAGES and name != "pytest"]
    if unknown:
        parser.error(f"no such stage: {' '.join(unknown)}")
    SUITE.mkdir(parents=True, exist_ok=True)
    times = SUITE / "times.json"
    times.unlink(missing_ok=True)  # a run that is cut off has none
    begin = time.monotonic()
    records = run_stages([name for name in STAGES if name in names], arguments.verbose)
    (SUITE / "record.json").write_text(json.dumps(records, indent=1))
    stages = time.monotonic() - begin
    if "pytest" not in names:
        times.write_text(json.dumps({"stages": round(stages, 1), "pytest": None, "total": round(stages, 1)}, indent=1))
        return 1 if any(record["reason"] for record in records) else 0
    print(f"{'':6} {'all stages before pytest':44} {stages:7.1f} s", flush=True)
    # A sanitizer's prover would not load into Python: name the plain one.
    prover = ROOT / "build" / "release" / "tests" / "cpp" / "libisthmus_prover.so"
    env = build_environment() | {"SUITE_RECORD": str(SUITE), "PROVER_LIBRARY": str(prover)}
    command = [str(VENV / "bin" / "python"), "-m", "pytest", *arguments.pytest.split()]
    status = subprocess.run(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL).returncode
    total = time.monotonic() - begin
    times.write_text(
        json.dumps({"stages": round(stages, 1), "pytest": round(total - stages, 1), "total": round(total, 1)}, indent=1)
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
