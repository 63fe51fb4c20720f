"""Every stage of the suite ended well, and every case that it ran passed: of GoogleTest, and of pytest."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import suite_cases
from suite_cases import Case

SUITE = Path(os.environ["SUITE_RECORD"])
RECORD = json.loads((SUITE / "record.json").read_text())
CASES = suite_cases.cases(SUITE, [stage["stage"] for stage in RECORD["stages"]])


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
