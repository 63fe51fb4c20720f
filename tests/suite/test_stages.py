"""Every stage of the suite ended well, and every case that it ran passed: of GoogleTest, and of pytest."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

LINES = 60  # of what a program said that failed: a sanitizer's report, most often
SUITE = Path(os.environ["SUITE_RECORD"])
RECORD = json.loads((SUITE / "record.json").read_text())


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
        parts = googletest(stage, plain, folder / f"{name}.xml")
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


def cases() -> list[Case]:
    found = []
    for stage in RECORD["stages"]:
        folder = SUITE / "cases" / stage["stage"]
        found += (python if stage["stage"] == "python" else ctest)(stage["stage"], folder)
    return found


CASES = cases()


@pytest.mark.parametrize("stage", RECORD["stages"], ids=[stage["stage"] for stage in RECORD["stages"]])
def test_the_stage_passed(stage: dict[str, str], record_property: Callable[[str, object], None]) -> None:
    record_property("again", (stage["stage"], ""))
    assert not stage["reason"], f"{stage['reason']} (build/suite/{stage['stage']}.log)"


@pytest.mark.parametrize("case", CASES, ids=[f"{case.stage}-{case.name}" for case in CASES])
def test_the_case_passed(case: Case, record_property: Callable[[str, object], None]) -> None:
    record_property("again", (case.stage, case.only))
    if case.skipped:
        pytest.skip(case.skipped)
    if case.why:
        pytest.fail(case.why, pytrace=False)
