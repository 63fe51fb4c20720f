"""bench/state.py: it runs, what travels comes whole, and its file has the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hosts import two_hosts
from patience import WHOLE

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "state.py"


def test_the_benchmark_of_a_state_beside_operations_runs_and_writes_its_figures(tmp_path: Path) -> None:
    with two_hosts():  # says what is missing here
        pass
    out = tmp_path / "state.json"
    command = [sys.executable, PROGRAM, "--rounds", "1", "--mib", "0.1", "--state-mib", "1", "--output", out]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WHOLE, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["alone", "beside", "slower", "state"]
    table = json.loads(out.read_text())
    assert table["beside"]["operations"] > 0 and len(table["slower"]) == len(table["state_s"]) == 1
