#!/usr/bin/env python3
"""Everything that has to pass, in stages (scripts/stages.py), a line each. The summary of pytest comes last and counts all.

Two lanes run at once: one builds, at a low priority; the other tests what is built. Most tests of a communication library
wait. The run goes on to its end whatever fails, and closes with each failure and the line that repeats it. The package is
built before (scripts/setup.py test).

Of a long product of cases a run takes the share that the commit chooses; --share repeats that of another. --all (`make
test-all`) takes everything: whole products, all sanitizers over all tests, clang-tidy, AArch64, what asks the package index.

build/suite/record.json has the commit, and of each stage its outcome, wall time and processor time (scripts/suite_times.py
shows it beside the run before). tests/suite turns it, and every case that a stage ran, into pytest cases.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import slowness
import suite_times
from setup import ROOT, VENV, build_environment
from stages import STAGES, SUITE, Failed, Run, Stage

LONG = 40 * 60  # seconds of wall time: the stages that grew are named
SHOWN = 30  # lines of a failed stage


def commit() -> str:
    """The commit that is checked out, or nothing; a + behind it says that files differ from it."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True, capture_output=True)
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, text=True, capture_output=True)
    return "" if asked.returncode else asked.stdout.strip() + ("+" if changed.stdout.strip() else "")


def share_of(text: str) -> int:
    """The number behind --share, or behind a commit."""
    return int(text) if text.isdecimal() else int(text[:7], 16)


class Lanes:
    """Builds one after the other, and beside them tests, one stage after the other."""

    def __init__(self, names: list[str], asked: Run) -> None:
        self.stages = {name: Stage(name, asked) for name in names}
        self.seconds = dict.fromkeys(names, 0.0)
        self.reasons = dict.fromkeys(names, "")
        self.lock = threading.Lock()

    def attempt(self, name: str, build: bool) -> None:
        kind, stage = STAGES[name], self.stages[name]
        act = kind.build if build else kind.run
        if not act or self.reasons[name]:
            return
        stage.beside = build
        begin = time.monotonic()
        try:
            act(stage)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            self.reasons[name] = str(error)
        self.seconds[name] += time.monotonic() - begin

    def go(self, name: str, built: dict[str, Future[None]]) -> None:
        """Runs a stage once what it needs is built."""
        for needed in (name, STAGES[name].needs):
            if needed in built:
                built[needed].result()
        self.attempt(name, build=False)
        stage, reason = self.stages[name], self.reasons[name]
        if reason:
            print("\n".join(f"    {line}" for line in stage.log.read_text(errors="replace").splitlines()[-SHOWN:]))
            print(f"    {reason}\n    all of it: {stage.log.relative_to(ROOT)}")
        elif stage.asked.verbose:
            print(stage.log.read_text(errors="replace"))
        used = f"{self.seconds[name]:7.1f} s {stage.processor:8.1f} core-s"
        print(f"{'FAILED' if reason else 'ok':6} {STAGES[name].title:44} {used}", flush=True)

    def run(self) -> None:
        with ThreadPoolExecutor(1) as lane:
            built = {n: lane.submit(self.attempt, n, True) for n in self.stages if STAGES[n].build}
            try:
                # What has nothing to run reports when it is built; it comes last.
                for name in sorted(self.stages, key=lambda n: STAGES[n].run is None):
                    self.go(name, built)
            except BaseException:  # an interrupt: a new session's processes do not see it
                lane.shutdown(wait=False, cancel_futures=True)
                for stage in self.stages.values():
                    stage.end()
                raise

    def records(self) -> list[dict[str, object]]:
        return [
            {
                "stage": name,
                "title": STAGES[name].title,
                "reason": self.reasons[name],
                "seconds": round(self.seconds[name], 1),
                "processor": round(stage.processor, 1),
            }
            for name, stage in self.stages.items()
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="", help=f"of {' '.join(STAGES)}")
    parser.add_argument("--only", default="", help="of C++ stages: PROGRAM or PROGRAM:CASE; of the stage python: a test")
    parser.add_argument("--share", default="", help="a number, or a commit, that chooses the share of each long product")
    parser.add_argument("--all", action="store_true", help="everything, of whole products")
    parser.add_argument("--pytest", default="", help="more arguments for the stage python")
    parser.add_argument("--verbose", action="store_true", help="show the output of stages that pass, too")
    asked = parser.parse_args()
    names = asked.stages.split() or [n for n, kind in STAGES.items() if asked.all or not kind.everything]
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"no such stage: {' '.join(unknown)}")
    here = commit()
    share = share_of(asked.share or here or "0")
    SUITE.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    factor = float(os.environ.get("TEST_PATIENCE") or slowness.measure())
    lanes = Lanes(
        [name for name in STAGES if name in names],
        Run(asked.all, share, asked.only, factor, pytest=shlex.split(asked.pytest), verbose=asked.verbose),
    )
    of = "whole products" if asked.all else f"share {share} of the long products (again: make test SHARE={share})"
    print(f"{here[:12] or 'no commit'}: {of}; patience {factor}", flush=True)
    lanes.run()
    total = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = {
        "commit": here,
        "share": share,
        "everything": asked.all,
        "patience": factor,
        "seconds": round(total, 1),
        "processor": round(used.ru_utime + used.ru_stime, 1),
        "stages": lanes.records(),
    }
    suite_times.keep(record)
    print(f"{'':6} {'all of it':44} {total:7.1f} s {record['processor']:8.1f} core-s", flush=True)
    if total > LONG:
        print(f"This took over {LONG // 60} minutes.\n{suite_times.table()}", flush=True)
    return subprocess.run(
        [str(VENV / "bin" / "python"), "-m", "pytest", "-o", "addopts=", "--no-header", "-rN", "tests/suite/test_stages.py"],
        cwd=ROOT,
        env=build_environment() | {"SUITE_RECORD": str(SUITE)},
        stdin=subprocess.DEVNULL,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
