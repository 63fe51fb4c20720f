"""The cases that the stages of a run had, by the reports of ctest, of GoogleTest and of pytest."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LINES = 60  # of what a program said that failed: a sanitizer's report, most often
# The cases of GoogleTest that may be skipped, and what they then say: this kernel, or this user, cannot do it.
# Any other skip is a failure, and so is one of these for another reason. The summary of a run counts them by what they say.
MAY_BE_SKIPPED = {
    "test_net:Socket.KnowsWhetherItsInterfaceIsDown": ("networks of one's own need root",),
    "test_net:Socket.AnAnswerIsDelayedNoLongerThanTheKernelSaysThoughNobodyReads": (
        "the kernel does not say (Linux before 6.15)",
    ),
    "test_net_gate:Gate.ShutsTheUnixListenerToOtherUsers": (
        "needs root, to connect as another user",
        "this root may not become another user",
    ),
    "test_open_devices:StagingPages.LieOnTheNodeOfTheDevice": ("this kernel takes no node: ",),
    "test_open_devices:StagingPages.AreHugeOrSayWhyNot": ("the kernel may give huge pages, and has none now",),
}
UNSENT = ("nobody tells here what is not sent yet (SIOCOUTQNSD)",)
# The same of one stage: what its emulator does not pass on to the kernel.
MAY_BE_SKIPPED_IN = {
    "aarch64": {
        "test_net:Socket.WhatWaitsWhileNothingIsUnderWayIsStuckBeforeTheKernelTriesAgain": UNSENT,
        "test_net:Socket.WhatTheKernelHasNotSentIsLimited": UNSENT,
    }
}


@dataclass
class Case:
    stage: str
    name: str
    why: str = ""  # it failed
    skipped: str = ""  # why it was not run
    only: str = ""  # what to give to ONLY to run it again


def read(report: Path) -> ElementTree.Element | None:
    """The report, or None where a program died while it wrote, or before."""
    try:
        return ElementTree.parse(report).getroot()
    except (OSError, ElementTree.ParseError):
        return None


def sanitizer(said: str) -> str:
    """The beginning of the first report of a sanitizer, or nothing. A child's is in no report of GoogleTest's."""
    lines = said.splitlines()
    at = next((i for i, line in enumerate(lines) if re.search(r"(WARNING|ERROR): \w+Sanitizer|runtime error: ", line)), None)
    return "" if at is None else "\n".join(lines[at : at + LINES])


def may_be_skipped(stage: str, only: str, said: str) -> bool:
    """A case of GoogleTest, for what it said."""
    reasons = (*MAY_BE_SKIPPED.get(only, ()), *MAY_BE_SKIPPED_IN.get(stage, {}).get(only, ()))
    return any(said.startswith(reason) for reason in reasons)


def googletest(stage: str, program: str, report: Path) -> list[Case]:
    """The cases of one program's report. The cases that another part of the program has are not in it."""
    found = []
    root = read(report)
    for case in root.iter("testcase") if root is not None else ():
        if case.get("status") != "run":
            continue  # another shard's, or left out by the test's own filter
        name = f"{case.get('classname')}.{case.get('name')}"
        only, skipped = f"{program}:{name}", ""
        failures = [failure.get("message") or "failed" for failure in case.iter("failure")]
        if case.get("result") == "skipped":
            told = next((skip.get("message") or "" for skip in case.iter("skipped")), "")
            said = told.partition("\n")[2].strip()  # behind the file and the line
            if may_be_skipped(stage, only, said):
                skipped = said
            else:
                failures.append(f"was skipped: {said}; scripts/suite_cases.py has the skips that are allowed")
        found.append(Case(stage, f"{program}-{name}", "\n".join(failures), skipped, only=only))
    return found


def ctest(stage: str, folder: Path) -> list[Case]:
    """All that ctest ran. A program counts as its GoogleTest cases, or as one if it left no report of them."""
    found: list[Case] = []
    root = read(folder / "ctest.junit")
    for program in root.iter("testcase") if root is not None else ():
        name = program.get("name") or ""
        plain = re.sub(r"_\d+_of_\d+$", "", name)
        passed = program.get("status") == "run" and program.find("failure") is None
        parts = googletest(stage, plain, folder / f"{name}.xml") + googletest(stage, plain, folder / f"{name}.again.xml")
        # A program may fail with all its cases well: a sanitizer's report at exit, a time limit.
        said = program.findtext("system-out") or ""
        if not (parts or passed) or (not passed and not any(case.why for case in parts)):
            last = "\n".join(["failed, and said at last", *said.splitlines()[-LINES:]])
            parts.append(Case(stage, f"{plain}-the program", last, only=plain))
        elif not parts:
            parts.append(Case(stage, f"{plain}-the program", only=plain))
        if not passed and (report := sanitizer(said)):
            parts.append(Case(stage, f"{plain}-what a sanitizer said", report, only=plain))
        found += parts
    return found


def python(stage: str, folder: Path) -> list[Case]:
    """All that pytest ran."""
    found = []
    root = read(folder / "pytest.xml")
    for case in root.iter("testcase") if root is not None else ():
        place = case.get("file") or (case.get("classname") or "").replace(".", "/") + ".py"
        name = re.sub(r"@[^\]@]*$", "", f"{place}::{case.get('name')}")  # less the group of pytest-xdist
        failed = [bad.text or bad.get("message") or "failed" for kind in ("failure", "error") for bad in case.iter(kind)]
        skipped = next((skip.get("message") or "skipped" for skip in case.iter("skipped")), "")
        found.append(Case(stage, name, "\n".join(failed), skipped, only=name))
    return found


def cases(suite: Path, stages: Iterable[str]) -> list[Case]:
    """All that these stages ran, by what lies under build/suite/cases."""
    found = []
    for stage in stages:
        folder = suite / "cases" / stage
        found += (python if (folder / "pytest.xml").exists() else ctest)(stage, folder)
    return found
