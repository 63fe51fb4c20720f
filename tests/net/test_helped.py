"""bench/helped.py: it runs, all that is exchanged is right whoever moves it, and its file has the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hosts import two_hosts
from patience import WHOLE

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "helped.py"


def test_the_benchmark_of_threads_that_help_between_hosts_runs_and_writes_its_figures(tmp_path: Path) -> None:
    with two_hosts():  # says what is missing here
        pass
    out = tmp_path / "helped.json"
    command = [sys.executable, PROGRAM, "--rounds", "1", "--repeats", "2", "--mib", "16", "--helpers", "2", "--output", out]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WHOLE, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    rates = json.loads(out.read_text())["rates"]
    assert set(rates["both ways"]) == {"one stream", "alone", "helped", "raw"}
    assert all(rate > 0 for values in rates["all_reduce"].values() for rate in values)
    assert rates["by helpers"]["helped"][0] > 0, "the helpers of a process reach its links"
