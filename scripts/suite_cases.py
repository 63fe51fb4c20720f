"""The cases that the stages of a run had, by the reports of ctest, of GoogleTest and of pytest."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LINES = 60  # of what a program said that failed: a sanitizer's report, most often


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


def googletest(stage: str, program: str, report: Path) -> list[Case]:
    """The cases of one program's report. The cases that another part of the program has are not in it."""
    found = []
    root = read(report)
    for case in root.iter("testcase") if root is not None else ():
        if case.get("status") != "run":
            continue  # another shard's, or left out by the test's own filter
        name = f"{case.get('classname')}.{case.get('name')}"
        failures = [failure.get("message") or "failed" for failure in case.iter("failure")]
        if case.get("result") == "skipped":
            failures.append("was skipped")
        found.append(Case(stage, f"{program}-{name}", "\n".join(failures), only=f"{program}:{name}"))
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
        found += (python if stage == "python" else ctest)(stage, suite / "cases" / stage)
    return found
