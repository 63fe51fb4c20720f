"""What a run of scripts/soak.py takes of the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import setup
import soak

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_takes_of_a_product_in_cpp_the_share_that_its_seed_chooses(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS"\n')
    program.chmod(0o755)
    said = set()
    for seed in map(str, range(20)):
        _, cpp = soak.halves(seed)
        assert cpp == soak.halves(seed)[1] and cpp.command[0] == "ctest"
        command = ["sh", ROOT / "tests" / "cpp" / "run.sh", "test_x", "3", "1", "1", program]
        environment = {"PATH": setup.build_environment()["PATH"], **cpp.variables}
        said.add(subprocess.run(command, env=environment, text=True, capture_output=True, check=True).stdout.strip())
    assert said == {"0 of 3", "1 of 3", "2 of 3"}


def test_a_run_leaves_out_what_computes_and_takes_what_waits() -> None:
    python, _ = soak.halves("7")
    begin = python.command.index("tests/faults")
    files = ["tests/python/test_islands.py", "tests/interpose/test_interpose_doctor.py"]
    assert str(ROOT / files[0]) in python.command[begin:]
    command = [*python.command[:begin], "-n", "0", "--collect-only", *files]
    ended = subprocess.run(command, cwd=ROOT, env=setup.build_environment(), text=True, capture_output=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "::test_ranks_may_leave_at_different_times" in ended.stdout
    assert "of_numpy" not in ended.stdout and "test_interpose_doctor" not in ended.stdout, ended.stdout
