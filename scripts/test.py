#!/usr/bin/env python3
"""Everything that has to pass, in stages (scripts/stages.py), a line each. The summary of pytest comes last and counts all.

Two lanes run at once: one builds, at a low priority; the other tests what is built. Most tests of a communication library
wait. A part of the suite has little to build: there the sanitizers' tests run beside the Python tests. The run goes on to
its end whatever fails, and closes with each failure and the line that repeats it. The package is built before
(scripts/setup.py test).

Of a long product of cases a run takes the share that the commit chooses; --share repeats that of another. --all (`make
test-all`) takes everything: whole products, all sanitizers over all tests, clang-tidy, AArch64, what asks the package index.

A tree that differs in few files from one that was green here runs a part of the suite (scripts/part.py), and says so;
--whole runs all of it.

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
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import part
import slowness
import suite_cases
import suite_times
from setup import ROOT, VENV, build_environment
from stages import STAGES, SUITE, Failed, Run, Stage

BESIDE_PYTHON = ("asan", "tsan")  # in a part of the suite
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
        """Runs a stage once what it needs is built. One that wants to be alone waits for all that is built."""
        for needed in built if STAGES[name].alone else (name, STAGES[name].needs):
            if needed in built:
                built[needed].result()
        self.attempt(name, build=False)
        with self.lock:
            self.tell(name)

    def tell(self, name: str) -> None:
        stage, reason = self.stages[name], self.reasons[name]
        if reason:
            print("\n".join(f"    {line}" for line in stage.log.read_text(errors="replace").splitlines()[-SHOWN:]))
            print(f"    {reason}\n    all of it: {stage.log.relative_to(ROOT)}")
        elif stage.asked.verbose:
            print(stage.log.read_text(errors="replace"))
        used = f"{self.seconds[name]:7.1f} s {stage.processor:8.1f} core-s"
        print(f"{'FAILED' if reason else 'ok':6} {STAGES[name].title:44} {used}", flush=True)

    def order(self) -> list[list[str]]:
        """The stages that run one after the other. Of several in a list all but the first are a lane of their own beside it.

        What has nothing to run reports when it is built; it comes last. In a part there is little to build, and tests of a
        communication library leave half of the processors: the sanitizers' run beside the Python tests.
        """
        names = sorted(self.stages, key=lambda n: STAGES[n].run is None)
        beside = [n for n in names if n in BESIDE_PYTHON]
        if "python" not in names or not self.stages["python"].asked.part:
            return [[name] for name in names]
        return [[name, *beside] if name == "python" else [name] for name in names if name not in beside]

    def run(self) -> None:
        with ThreadPoolExecutor(1) as lane, ThreadPoolExecutor(1) as second:
            built = {n: lane.submit(self.attempt, n, True) for n in self.stages if STAGES[n].build}
            try:
                for name, *others in self.order():
                    begun = [second.submit(self.go, other, built) for other in others]
                    self.go(name, built)
                    for other in begun:
                        other.result()
            except BaseException:  # an interrupt: a new session's processes do not see it
                for pool in (lane, second):
                    pool.shutdown(wait=False, cancel_futures=True)
                for stage in self.stages.values():
                    stage.end()
                raise

    def outcomes(self, complete: bool) -> list[tuple[str, str, bool]]:
        """(stage, case, whether it was well); the case "" is the stage, which failed by itself if none of its cases did.
        Not `complete`: of some cases alone, which says nothing good of their stages."""
        cases = [(case.stage, case.only, not case.why) for case in suite_cases.cases(SUITE, self.stages)]
        bad = {stage for stage, _, well in cases if not well}
        stages = [(name, "", not self.reasons[name] or name in bad) for name in self.stages]
        return [*cases, *(outcome for outcome in stages if complete or not outcome[2])]

    def records(self) -> list[dict[str, object]]:
        return [
            {
                "stage": name,
                "title": STAGES[name].title,
                "reason": self.reasons[name],
                "seconds": round(self.seconds[name], 1),
                "processor": round(stage.processor, 1),
                "left_out": stage.left_out,
            }
            for name, stage in self.stages.items()
        ]


@dataclass
class Extent:
    """How much of the suite a run takes, and what it says of that."""

    part: part.Part | None = None
    everything: bool = False
    told: list[str] = field(default_factory=list)

    @property
    def asked_for(self) -> bool:
        """Somebody has chosen stages or tests, and gets these."""
        return not (self.part or self.everything)


def extent(asked: argparse.Namespace, books: part.Books, now: part.Tree) -> Extent:
    if asked.stages or asked.only or asked.pytest:
        return Extent()
    of_it = "asked for" if asked.all or asked.whole else part.needed(ROOT, now, *books.read())
    if isinstance(of_it, part.Part):
        return Extent(of_it, told=of_it.told())
    return Extent(everything=True, told=[f"Everything is run: {of_it}."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="", help=f"of {' '.join(STAGES)}")
    parser.add_argument("--only", default="", help="of C++ stages: PROGRAM or PROGRAM:CASE; of the stage python: a test")
    parser.add_argument("--share", default="", help="a number, or a commit, that chooses the share of each long product")
    parser.add_argument("--all", action="store_true", help="everything, of whole products")
    parser.add_argument("--whole", default="", help="anything: run everything, also where little differs from a green tree")
    parser.add_argument("--pytest", default="", help="more arguments for the stage python")
    parser.add_argument("--verbose", action="store_true", help="show the output of stages that pass, too")
    asked = parser.parse_args()
    names = asked.stages.split() or [n for n, kind in STAGES.items() if asked.all or not kind.everything]
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"no such stage: {' '.join(unknown)}")
    here = commit()
    share = share_of(asked.share or here or "0")
    SUITE.mkdir(parents=True, exist_ok=True)
    books, now = part.Books(SUITE), part.tree(ROOT)
    of_it = extent(asked, books, now)
    if of_it.everything:
        books.begin_everything()
    begin = time.monotonic()
    factor = float(os.environ.get("TEST_PATIENCE") or slowness.measure())
    lanes = Lanes(
        [name for name in STAGES if name in names],
        Run(
            *(asked.all, share, asked.only, factor),
            pytest=shlex.split(asked.pytest),
            verbose=asked.verbose,
            part=of_it.part,
        ),
    )
    of = "whole products" if asked.all else f"share {share} of the long products (again: make test SHARE={share})"
    print(f"{here[:12] or 'no commit'}: {of}; patience {factor}", flush=True)
    for line in of_it.told:
        print(line, flush=True)
    lanes.run()
    total = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = {
        "commit": here,
        "share": share,
        "everything": asked.all,
        "patience": factor,
        "part": of_it.told if of_it.part else [],
        "seconds": round(total, 1),
        "processor": round(used.ru_utime + used.ru_stime, 1),
        "stages": lanes.records(),
    }
    suite_times.keep(record)
    print(f"{'':6} {'all of it':44} {total:7.1f} s {record['processor']:8.1f} core-s", flush=True)
    if total > LONG:
        print(f"This took over {LONG // 60} minutes.\n{suite_times.table()}", flush=True)
    whole = of_it.everything and part.tree(ROOT).name == now.name  # nobody has changed a file meanwhile
    books.end(lanes.outcomes(not of_it.asked_for), now if whole else None)
    return subprocess.run(
        [str(VENV / "bin" / "python"), "-m", "pytest", "-o", "addopts=", "--no-header", "-rN", "tests/suite/test_stages.py"],
        cwd=ROOT,
        env=build_environment() | {"SUITE_RECORD": str(SUITE)},
        stdin=subprocess.DEVNULL,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
