"""What the stages before pytest did (scripts/test.py), as pytest cases.

Without a record there is nothing to tell, so nothing is collected: `pytest tests` on its own runs the Python tests.
"""

import json
import os
from pathlib import Path

import pytest

collect_ignore = [] if os.environ.get("SUITE_RECORD") else ["test_stages.py", "test_layers.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    folder = os.environ.get("SUITE_RECORD")
    if not folder:
        return
    records = json.loads((Path(folder) / "record.json").read_text())
    terminalreporter.section("stages before these tests")
    for record in records:
        terminalreporter.write_line(f"{record['seconds']:8.1f} s  {record['stage']}{'  FAILED' if record['reason'] else ''}")
    total = sum(record["seconds"] for record in records)
    terminalreporter.write_line(f"{total:8.1f} s  in all, some of it beside the rest")
