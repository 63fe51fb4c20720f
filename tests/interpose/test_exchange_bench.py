"""bench/exchange.py: it runs, both ways of an exchange give what was sent, and what it writes is marked as a rehearsal."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from doors import ROOT, preloaded
from patience import patient

pytestmark = pytest.mark.computes

PROGRAM = ROOT / "bench" / "exchange.py"


@pytest.fixture(scope="module")
def exchange() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exchange_bench", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(**seconds: list[float]) -> dict[str, Any]:
    return {"bytes": 1 << 20, "right": True, "seconds": seconds}


def test_the_ratio_is_the_median_of_the_turns_ratios(exchange: ModuleType) -> None:
    judged = exchange.judged("tcp", row(messages=[2.0, 30.0, 6.0], plan=[1.0, 10.0, 6.0]))
    assert judged["messages_over_plan"]["median"] == 2.0
    assert (judged["messages"]["median"], judged["messages"]["max"], judged["plan"]["min"]) == (6.0, 30.0, 1.0)


def test_a_wrong_result_is_said_in_its_line(exchange: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    judged = exchange.judged("shm", row(messages=[1.0, 1.0], plan=[1.0, 1.0]))
    exchange.show(judged)
    exchange.show(judged | {"right": False})
    right, wrong = capsys.readouterr().out.splitlines()
    assert wrong == f"{right}   WRONG"


@preloaded
@pytest.mark.everything
def test_the_benchmark_runs_and_its_rows_are_whole_right_and_marked_as_a_rehearsal(tmp_path: Path) -> None:
    out = tmp_path / "exchange.json"
    # A program of a user's finds the tests' modules by itself.
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, PROGRAM, "--quick", "--out", out],
        env=given,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert all(line.startswith("rehearsal") for line in ended.stdout.splitlines()), ended.stdout
    document = json.loads(out.read_text())
    assert document["simulated"] and document["rehearsal"].startswith("rehearsal")
    cases = {(one["bridge"], one["bytes"]) for one in document["rows"]}
    assert cases == {(bridge, size) for bridge in ("shm", "tcp") for size in (1 << 10, 1 << 20)}
    assert all(one["right"] and len(one[way]["seconds"]) == 4 for one in document["rows"] for way in ("messages", "plan"))
