"""The stages of the suite: what each builds and runs. scripts/test.py orders them.

A stage writes its output to build/suite/<stage>.log, and ctest's and pytest's reports to build/suite/cases/<stage>.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import oneccl
import part
from setup import ONECCL, RELEASE, ROOT, VENV, build_environment, warnings_are_errors

SUITE = ROOT / "build" / "suite"
CORES = os.cpu_count() or 1
COMMAND_SECONDS, BUILD_SECONDS = 5400, 7200  # of an idle machine: what does not end is ended
TEST_SECONDS = 300  # of an idle machine: the limit of a program of ctest, and of a pytest case that ctest starts
LEFT_OUT = "part of the suite: "  # so begins what tests/conftest.py says of one
# Nanoseconds decide this test: nothing runs beside it.
OF_THE_CLOCK = (
    "tests/interpose/test_interpose_programs.py::test_a_door_adds_no_more_than_50_ns_to_a_call_with_1000_communicators_too"
)
DEMO_SECONDS = 50  # processor time of `make demo`, twice what it takes; it depends on what else runs less than time does


class Failed(Exception):
    """A stage's command failed; the log has the reason."""


@dataclass
class Run:
    """What was asked of this run of the suite."""

    everything: bool = False  # `make test-all`
    share: int = 0  # of each long product
    only: str = ""  # PROGRAM or PROGRAM:CASE of a C++ stage, or arguments of pytest
    patience: float = 1.0  # scripts/slowness.py
    workers: int = 2 * CORES  # of pytest: most of its tests wait
    pytest: list[str] = field(default_factory=list)
    verbose: bool = False
    part: part.Part | None = None  # of a tree that hardly differs from one of which everything was green


class Stage:
    """One stage at work: where its output goes, what its commands see, and how much processor time they took."""

    def __init__(self, name: str, run: Run) -> None:
        self.name, self.asked = name, run
        self.build = ROOT / "build" / (f"{name}-all" if run.everything and name in ("asan", "tsan") else name)
        self.log = SUITE / f"{name}.log"
        self.cases = SUITE / "cases" / name
        self.beside = False  # what tests: at a low priority
        self.processor = 0.0
        self.left_out = ""  # of a run that takes a part of the suite: how much of this stage it took
        self.child: subprocess.Popen[bytes] | None = None
        self.log.write_text("")
        shutil.rmtree(self.cases, ignore_errors=True)

    def run(self, *command: str | Path, env: dict[str, str] | None = None, seconds: float = COMMAND_SECONDS) -> str:
        """Runs a command to its end, and all that it started if it fails to end. Returns what it said.

        `seconds` are those of an idle machine.
        """
        seconds *= self.asked.patience
        words = [str(c) for c in (*(("nice", "-n", "10") if self.beside else ()), *command)]
        with open(self.log, "a+") as log:
            log.write(f"$ {' '.join(words)}\n")
            log.flush()
            begin, until = log.tell(), time.monotonic() + seconds
            child = self.child = subprocess.Popen(
                words,
                cwd=ROOT,
                env=build_environment() | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            if self.beside:
                # Linux weighs sessions against each other first: `nice` orders what is in one.
                with suppress(OSError):
                    Path(f"/proc/{child.pid}/autogroup").write_text("10")
            try:
                status = self._wait(child, until)
            finally:
                self.end()
            if status is None:
                log.write(f"it did not end within {seconds:.0f} s\n")
            log.seek(begin)
            said = log.read()
        if status != 0:
            raise Failed(f"{'no end' if status is None else f'exit status {status}'}: {' '.join(words)}")
        return said

    def _wait(self, child: subprocess.Popen[bytes], until: float) -> int | None:
        """The exit status, or None if it does not end; counts the processor time of the command and its children."""
        while time.monotonic() < until:
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid:
                self.processor += used.ru_utime + used.ru_stime
                child.returncode = os.waitstatus_to_exitcode(status)
                return child.returncode
            time.sleep(0.05)
        return None

    def end(self) -> None:
        """Ends what runs of the stage."""
        if self.child and self.child.returncode is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def python(self, *command: str | Path, seconds: float = COMMAND_SECONDS) -> str:
        return self.run(VENV / "bin" / "python", *command, seconds=seconds)

    def configure(self, build: Path, *options: str) -> None:
        self.run(
            *("cmake", "-S", ".", "-B", build, "-G", "Ninja", "-DISTHMUS_TESTS=ON"),
            *(f"-DISTHMUS_WERROR={warnings_are_errors()}", f"-DISTHMUS_PATIENCE={math.ceil(self.asked.patience)}", *options),
        )

    def compile(self, build: Path, *targets: str) -> None:
        chosen = [word for target in targets for word in ("--target", target)]
        self.run("cmake", "--build", build, *chosen, seconds=BUILD_SECONDS)

    def ctest(
        self, build: Path, label: str, env: dict[str, str], before: tuple[str, ...] = (), patience: float = 1.0
    ) -> None:
        """Runs the tests with this label, some side by side: most of them wait. Keeps each one's cases for tests/suite."""
        program, _, case = self.asked.only.partition(":")
        chosen = ("-R", f"^{program}(_[0-9]+_of_[0-9]+)?$") if program else ("-L", label) if label else ()
        # Of a test that says SANITIZED one sanitizer takes what the other leaves out.
        share = self.asked.share + (self.name == "tsan")
        given: dict[str, str] = {} if self.asked.everything or program else {"SUITE_SHARE": str(share)}
        self.cases.mkdir(parents=True)
        if self.asked.part and not program:
            choice = self.choose(self.asked.part, build, chosen)
            if not choice.names:
                return
            chosen = ("-R", f"^({'|'.join(choice.names)})$")
            given |= self.given(self.asked.part, choice)
        self.run(
            *(*before, "ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "-j", str(CORES + 1)),
            *("--timeout", f"{TEST_SECONDS * self.asked.patience * patience:.0f}"),
            *("--output-junit", self.cases / "ctest.junit", *chosen),
            env={
                "SUITE_CASES": str(self.cases),
                "TEST_PATIENCE": f"{self.asked.patience * patience:.1f}",
                # Of the pytest that tests/cpp/interpose.cmake runs: it counts for more than the limit of pyproject.toml.
                "PYTEST_TIMEOUT": f"{TEST_SECONDS * self.asked.patience * patience:.0f}",
                **({"SUITE_CASE": case} if case else {}),
                **given,
                **vendor_libraries(),
                **env,
            },
        )

    def choose(self, chosen: part.Part, build: Path, asked: tuple[str, ...]) -> part.Choice:
        """What a part has of the tests that are asked for."""
        tests = part.listed(self.run("ctest", "--test-dir", build, "--show-only=json-v1", *asked))
        choice = part.choose(chosen, self.name, tests)
        self.left_out = choice.told()
        return choice

    def given(self, chosen: part.Part, choice: part.Choice) -> dict[str, str]:
        """What tells them: tests/cpp/run.sh those of GoogleTest, tests/conftest.py those that pytest runs."""
        again = self.cases / "again"
        again.mkdir()
        for name, cases in choice.again.items():
            (again / name).write_text(cases)
        begin = "interpose_"
        failed = chosen.failed.get(self.name, [])
        jobs = [name.removeprefix(begin) for name in failed if name.startswith(begin)]
        return {
            "SUITE_AGAIN": str(again),
            "SUITE_PART": chosen.of_pytest(self.name, [f"tests/interpose/test_{name}.py" for name in jobs]),
            "SUITE_THIRD": str(chosen.third),
            "SUITE_WHOLE": " ".join(choice.whole),
        }


def vendor_libraries() -> dict[str, str]:
    """Where the tests find the vendors' libraries that run without a device."""
    return {"TEST_ONECCL": str(oneccl.library(ONECCL))} if oneccl.complete(ONECCL) else {}


def layers(stage: Stage) -> None:
    stage.python("scripts/check_layers.py")
    stage.python("scripts/check_sizes.py")
    stage.python("scripts/check_names.py")


def ruff(stage: Stage) -> None:
    stage.run("ruff", "check", ".")


def mypy(stage: Stage) -> None:
    stage.run("mypy")


def clang_format(stage: Stage) -> None:
    stage.python("scripts/format.py")


def locks(stage: Stage) -> None:
    stage.python("scripts/check_locks.py")


def tidy(stage: Stage) -> None:
    python = f"-DPython_EXECUTABLE={VENV / 'bin' / 'python'}"
    # Warnings of clang's compiler are not asked for: they would be errors of clang-tidy, whatever .clang-tidy says.
    plain = ("-DISTHMUS_WERROR=OFF", "-DISTHMUS_UNITY=OFF")
    stage.configure(stage.build, *plain, "-DISTHMUS_PYTHON=ON", "-DISTHMUS_TORCH=AUTO", python)
    stage.compile(stage.build, "interpose_calls")  # headers that are made
    stage.python("scripts/tidy.py", stage.build, seconds=BUILD_SECONDS)


def unit_build(stage: Stage) -> None:
    stage.configure(RELEASE)
    if stage.asked.everything:
        stage.compile(RELEASE)
    else:
        stage.compile(RELEASE, "tests_prove_values", "isthmus_prover", "interpose_bench", "reduce_work", "test_device")


def unit(stage: Stage) -> None:
    stage.ctest(RELEASE, "" if stage.asked.everything else "proves_values", {})


def sanitizer_build(stage: Stage, sanitizer: str, some: str, all_of_it: tuple[str, ...]) -> None:
    everything = f"-DISTHMUS_SANITIZE_ALL={'ON' if stage.asked.everything else 'OFF'}"
    options = (everything, "-DISTHMUS_ASSERTIONS=ON", "-DISTHMUS_BENCH=OFF")
    stage.configure(stage.build, f"-DISTHMUS_SANITIZE={sanitizer}", *options)
    stage.compile(stage.build, *(all_of_it if stage.asked.everything else (some,)))


def asan_build(stage: Stage) -> None:
    sanitizer_build(stage, "address", "tests_prove_memory", ())


def asan(stage: Stage) -> None:
    # What a thread has in the variables of a library that was opened later lies in memory from malloc. Where that begins
    # 16 bytes behind the beginning of a page, GCC 12's leak check takes what stands before it for a header that glibc once
    # had, and crashes. Without this interception the check finds the memory by glibc's table, and finds leaks as before.
    check = "detect_stack_use_after_return=1:intercept_tls_get_addr=0"
    options = {"UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": check}
    stage.ctest(stage.build, "" if stage.asked.everything else "proves_memory", options, patience=3)


def tsan_build(stage: Stage) -> None:
    sanitizer_build(stage, "thread", "tests_prove_threads", ("tests_with_threads",))


def tsan(stage: Stage) -> None:
    # ThreadSanitizer's shadow wants a fixed address space; kernels that randomise 32 bits leave it no room.
    fixed = ("setarch", platform.machine(), "-R")
    allowed = subprocess.run([*fixed, "true"], capture_output=True).returncode == 0
    # By itself a program with a second thread sleeps for a second when it ends.
    options = f"halt_on_error=1 second_deadlock_stack=1 atexit_sleep_ms=20 suppressions={ROOT / 'tests' / 'tsan.supp'}"
    label = "with_threads" if stage.asked.everything else "proves_threads"
    stage.ctest(stage.build, label, {"TSAN_OPTIONS": options}, fixed if allowed else (), patience=5)


def aarch64_build(stage: Stage) -> None:
    stage.configure(stage.build, "-DISTHMUS_CORE_ONLY=ON", f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake' / 'aarch64.cmake'}")
    stage.compile(stage.build)


def aarch64(stage: Stage) -> None:
    stage.ctest(stage.build, "", {}, patience=5)


def install_build(stage: Stage) -> None:
    """What of it is hardly more than compiling, and only `make test-all` does."""
    if stage.asked.everything:
        stage.python("scripts/clean_install.py", SUITE / "install", "--from-sources", seconds=BUILD_SECONDS)
        stage.python("scripts/make_wheels.py", "--out", SUITE / "wheels", seconds=BUILD_SECONDS)


def install(stage: Stage) -> None:
    stage.python("scripts/clean_install.py", SUITE / "install")


def pytest(stage: Stage, words: list[str], env: dict[str, str]) -> str:
    stage.cases.mkdir(parents=True)
    return stage.run(
        *(VENV / "bin" / "python", "-m", "pytest", "-q", *words),
        *(f"--junitxml={stage.cases / 'pytest.xml'}", "-o", "junit_family=xunit1"),
        *("-o", f"timeout={2 * TEST_SECONDS * stage.asked.patience:.0f}"),
        env={"TEST_PATIENCE": str(stage.asked.patience), **env},
    )


def clock(stage: Stage) -> None:
    pytest(stage, ["--everything", stage.asked.only or OF_THE_CLOCK], {})


def python(stage: Stage) -> None:
    asked = stage.asked
    # A sanitizer's prover would not load into Python: name the plain one.
    prover = RELEASE / "tests" / "cpp" / "libisthmus_prover.so"
    share = ["--everything"] if asked.everything else ["--share", str(asked.share)]
    # By their names, so that what folders print at the end of a run is printed.
    folders = sorted({str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").glob("*/test_*.py")})
    chosen = [asked.only] if asked.only else [*folders, "-n", str(asked.workers), "--dist", "loadscope"]
    part = asked.part.of_pytest(stage.name) if asked.part and not asked.only else ""
    chosen += ["--part", part] if part else []  # workers are given words of the command, and no variable
    chosen += ["--deselect", OF_THE_CLOCK] if not asked.only else []
    said = pytest(stage, [*share, *chosen, *asked.pytest], {"PROVER_LIBRARY": str(prover)})
    if part:
        kept = [line for line in said.splitlines() if line.startswith(LEFT_OUT)]
        stage.left_out = kept[0].removeprefix(LEFT_OUT) if kept else ""


def demo(stage: Stage) -> None:
    before = stage.processor
    said = stage.run("make", "demo", env={"SURVIVES_SECONDS": "3"})  # other stages have the processors too
    if "setup:" in said:
        raise Failed("make demo set something up that was set up already")
    if (used := stage.processor - before) > DEMO_SECONDS * stage.asked.patience:
        raise Failed(f"make demo took {used:.0f} s of processor time, with everything built")


def docs(stage: Stage) -> None:
    stage.run("make", "docs")


@dataclass(frozen=True)
class Kind:
    """What a stage builds, at a low priority beside other stages' tests, and what it then runs."""

    title: str
    run: Callable[[Stage], None] | None = None
    build: Callable[[Stage], None] | None = None
    needs: str = ""  # the stage whose build it works with
    everything: bool = False  # `make test-all` alone
    alone: bool = False  # runs when everything is built, and nothing runs beside it


# In the order in which they are built, and begun.
STAGES = {
    "layers": Kind("who includes whom, how long things are, names", layers),
    "ruff": Kind("Python style", ruff),
    "clang-format": Kind("C++ style", clang_format),
    "unit": Kind("C++ tests", unit, unit_build),
    "python": Kind("Python tests", python, needs="unit"),
    "asan": Kind("C++ tests, AddressSanitizer and UBSan", asan, asan_build),
    "tsan": Kind("C++ tests with threads, ThreadSanitizer", tsan, tsan_build),
    "mypy": Kind("Python types, strict", None, mypy),
    "locks": Kind("C++ locks, clang -Wthread-safety", None, locks),
    "install": Kind("pip install in a fresh environment", install, install_build),
    "demo": Kind("make demo", demo),
    "aarch64": Kind("C++ tests on AArch64, emulated", aarch64, aarch64_build, everything=True),
    "tidy": Kind("C++ faults, clang-tidy", None, tidy, everything=True),
    "docs": Kind("the site of the documentation", docs, everything=True),
    "clock": Kind("what a door adds to a call, by the clock", clock, needs="unit", everything=True, alone=True),
}
