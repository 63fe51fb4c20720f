"""Every stage of the suite ended well, and every GoogleTest case that it ran passed."""

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

LINES = 60  # of what a program said that failed: a sanitizer's report, most often
SUITE = Path(os.environ["SUITE_RECORD"])
RECORDS = json.loads((SUITE / "record.json").read_text())


def googletest(report: Path) -> list[tuple[str, str]]:
    """(case, why it failed or nothing) of one program's report."""
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        failures = [failure.get("message") or "failed" for failure in case.iter("failure")]
        if case.get("status") != "run" or case.get("result") == "skipped":
            failures.append(f"was not run: {case.get('status')}, {case.get('result')}")
        found.append((f"{case.get('classname')}.{case.get('name')}", "\n".join(failures)))
    return found


def sanitizer(said: str) -> str:
    """The beginning of the first report of a sanitizer, or nothing. A child's is in no report of GoogleTest's."""
    lines = said.splitlines()
    at = next((i for i, line in enumerate(lines) if re.search(r"(WARNING|ERROR): \w+Sanitizer|runtime error: ", line)), None)
    return "" if at is None else "\n".join(lines[at : at + LINES])


def cases() -> list[tuple[str, str]]:
    """(name, why it failed or nothing) of all that ctest ran.

    A program counts as its GoogleTest cases; one that left no report of them, because it is of another kind or died, as one.
    """
    found = []
    for record in RECORDS:
        folder = SUITE / "gtest" / record["stage"]
        if not folder.is_dir():
            continue  # not a stage that runs ctest, or one that did not come so far: its own case says so
        for program in ElementTree.parse(folder / "ctest.junit").getroot().iter("testcase"):
            name, passed = program.get("name"), program.get("status") == "run" and program.find("failure") is None
            own = folder / f"{name}.xml"
            parts = googletest(own) if own.is_file() else []
            # A program may fail with all its cases well: a sanitizer's report at exit, a time limit.
            said = program.findtext("system-out") or ""
            if not parts or (not passed and not any(why for _, why in parts)):
                last = "\n".join(["failed, and said at last", *said.splitlines()[-LINES:]])
                parts.append(("the program", "" if passed else last))
            if not passed and (report := sanitizer(said)):
                parts.append(("what a sanitizer said", report))
            found += [(f"{record['stage']}-{name}-{case}", why) for case, why in parts]
    return found


CASES = cases()


@pytest.mark.parametrize("record", RECORDS, ids=[record["stage"] for record in RECORDS])
def test_the_stage_passed(record: dict) -> None:
    assert not record["reason"], f"{record['reason']} (build/suite/{record['stage']}.log)"


@pytest.mark.parametrize("why", [why for _, why in CASES], ids=[name for name, _ in CASES])
def test_the_cpp_case_passed(why: str) -> None:
    assert not why, why
