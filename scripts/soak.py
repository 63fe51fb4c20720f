#!/usr/bin/env python3
"""Are the tests that wait ever red by noise? Runs them again and again in random order, half of the time on a busy machine.

    python scripts/soak.py --runs 20

After `make test`, whose builds it takes: in Python fault tests, jobs of the front doors, hosts, rehearsals, device ranks,
beginnings and ends, but for what is marked `computes` (tests/conftest.py); in C++ what meets, waits and dies. Every
second run has four busy loops beside it, and a writer that fills the disk cache. A run takes a share of each long product,
in Python and in C++, that its seed chooses. Both halves of a run go at the same time. build/suite/soak/<seed>.<half>.log has
what each half said.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import share
import slowness
from setup import RELEASE, ROOT, VENV, build_environment
from stages import CORES, vendor_libraries

LOGS = ROOT / "build" / "suite" / "soak"
FOLDERS = ("tests/faults", "tests/interpose", "tests/net")
ONES = "rehears|device|island|staging|init|ending|failures|torchrun|dump|log"  # of tests/python
CPP = "bootstrap|meeting|net|process|sharing|device|hccl|nccl|rccl|rehearsal|island|ccl"
WRITER = """
import os, sys
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(512):
            file.write(os.urandom(1 << 20))
"""


@contextmanager
def noise(folder: Path) -> Iterator[None]:
    """Four processes that compute, and one that writes half a gigabyte again and again."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    loops.append(subprocess.Popen([sys.executable, "-c", WRITER, str(folder / "noise")]))
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        (folder / "noise").unlink(missing_ok=True)


@dataclass(frozen=True)
class Half:
    """One of the two commands of a run."""

    name: str  # also of its log
    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)


def halves(seed: str) -> tuple[Half, Half]:
    python = [str(VENV / "bin" / "python"), "-m", "pytest", "-q", "-n", str(3 * CORES), "--dist", "loadscope"]
    ones = [str(file) for file in sorted((ROOT / "tests" / "python").glob("test_*.py")) if re.search(ONES, file.name)]
    python += ["-o", "timeout=900"]  # pyproject.toml's is not of such a machine
    python += ["--shuffle", seed, "--share", seed, "-m", "not computes", *FOLDERS, *ones]
    cpp = ["ctest", "--test-dir", str(RELEASE), "--output-on-failure", "--schedule-random", "-j", str(CORES + 1), "-R", CPP]
    of_products = {"SUITE_SHARE": str(share.number(seed) % 1_000_000)}  # tests/cpp/run.sh
    return Half("python", python), Half("cpp", cpp, of_products)


def run(seed: str, patience: float) -> list[str]:
    """The halves that failed."""
    environment = build_environment() | {"TEST_PATIENCE": str(patience), **vendor_libraries()}
    under_way = []
    for half in halves(seed):
        with open(LOGS / f"{seed}.{half.name}.log", "w") as log:
            log.write(f"$ {' '.join(half.command)}\n")
            log.flush()
            its = environment | half.variables
            started = subprocess.Popen(half.command, cwd=ROOT, env=its, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            under_way.append((half, started))
    return [half.name for half, started in under_way if started.wait()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", default="", help="of the first run; the others follow from it (default: the time)")
    asked = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    build = ["cmake", "--build", str(RELEASE)]
    subprocess.run(build, cwd=ROOT, env=build_environment(), check=True, stdout=subprocess.DEVNULL)
    seed, patience, red = asked.seed or str(int(time.time())), slowness.measure(), 0
    for number in range(1, asked.runs + 1):
        name, busy = f"{seed}-{number}", number % 2 == 0
        begin = time.monotonic()
        if busy:
            with noise(LOGS):
                failed = run(name, patience)
        else:
            failed = run(name, patience)
        red += bool(failed)
        took = time.monotonic() - begin
        outcome = f"FAILED: {', '.join(failed)}" if failed else "ok"
        print(f"{number:3} {'busy' if busy else 'quiet':6} {took:6.0f} s  {outcome}", flush=True)
    print(f"{asked.runs} runs, {red} red; {LOGS.relative_to(ROOT)}")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
