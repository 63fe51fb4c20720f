"""What the stages did (scripts/test.py), as pytest cases: tests/suite/test_stages.py.

Without a record there is nothing to tell, so nothing is collected: `pytest tests` on its own runs the Python tests.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
collect_ignore = [] if os.environ.get("SUITE_RECORD") else ["test_stages.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long the stages took; and of each failure the stage, the case, the line that repeats it and the log, in short."""
    if not os.environ.get("SUITE_RECORD"):
        return
    import suite_times
    from test_stages import RECORD

    terminalreporter.section("stages")
    terminalreporter.write_line(suite_times.table())
    for line in RECORD.get("part", ()):
        terminalreporter.write_line(line)
    for stage in RECORD["stages"]:
        if stage.get("left_out"):
            terminalreporter.write_line(f"    {stage['stage']}: {stage['left_out']}")
    skipped = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    for why, cases in skipped.items():
        terminalreporter.write_line(f"{cases} skipped: {why}")
    failed = [report for report in terminalreporter.stats.get("failed", ()) if report.when == "call"]
    if not failed:
        return
    terminalreporter.section("what failed, and how to run it again")
    share = "" if RECORD["everything"] else f" SHARE={RECORD['share']}"
    goal = "test-all" if RECORD["everything"] else "test"
    told = set()
    for report in failed:
        stage, only = dict(report.user_properties).get("again", ("", ""))
        if not stage or (stage, only) in told:
            continue
        told.add((stage, only))
        one = f" ONLY={only!r}" if only else share
        terminalreporter.write_line(f"{stage}: {only or 'the stage'}")
        terminalreporter.write_line(f"    make {goal} STAGES={stage}{one}    # log: build/suite/{stage}.log")
