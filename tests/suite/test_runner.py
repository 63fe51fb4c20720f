"""The suite's own machinery: shares of long products, reports of stages, the lines that repeat a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from share import chosen

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import stages
import suite_cases
import suite_times

ROOT = Path(__file__).resolve().parents[2]
CASES = [f"test_x[{a}-{b}]" for a in range(7) for b in range(9)]


def test_shares_of_a_product_are_disjoint_and_together_all_of_it() -> None:
    shares = {frozenset(chosen(CASES, str(seed), 4)) for seed in range(50)}
    assert len(shares) == 4
    assert sum(len(share) for share in shares) == len(CASES) and frozenset().union(*shares) == set(CASES)


def test_a_seed_chooses_the_same_cases_whatever_their_order() -> None:
    assert chosen(CASES, "abc", 5) == chosen(reversed(CASES), "abc", 5)


@pytest.mark.parametrize("cases", [1, 2, 3])
def test_a_share_of_few_cases_is_not_empty(cases: int) -> None:
    assert all(chosen(CASES[:cases], str(seed), 8) for seed in range(20))


def test_without_a_share_a_product_is_whole() -> None:
    assert chosen(CASES, "all", 4) == set(CASES)


def shards(share: str, product: int, parts: int, **more: str) -> list[tuple[int, int]]:
    """(number of shards, the one that is run) of each part."""
    found = []
    for part in range(1, parts + 1):
        said = subprocess.run(
            ["sh", ROOT / "tests" / "cpp" / "run.sh", "test_x", str(product), str(part), str(parts), "env"],
            env={"PATH": os.environ["PATH"], "SUITE_SHARE": share, "SUITE_CASES": "/cases", **more},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        words = dict(line.partition("=")[::2] for line in said.splitlines())
        assert words["GTEST_OUTPUT"] == "xml:/cases/test_x.xml"
        found.append((int(words.get("GTEST_TOTAL_SHARDS", 1)), int(words.get("GTEST_SHARD_INDEX", 0))))
    return found


def test_parts_of_a_cpp_program_run_one_share_of_its_cases_together() -> None:
    assert shards("7", 1, 1) == [(1, 0)]
    assert shards("7", 1, 2) == [(2, 0), (2, 1)]
    every = [shards(str(share), 3, 2) for share in range(3)]
    assert sorted(sum(every, [])) == [(6, index) for index in range(6)]


@pytest.mark.parametrize("share", [0, 7, 67639959])
def test_a_sanitizer_takes_the_half_that_the_other_leaves_out(
    share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SUITE", tmp_path)
    halves = []
    for name in ("asan", "tsan"):
        stage, given = stages.Stage(name, stages.Run(share=share)), {}
        monkeypatch.setattr(stage, "run", lambda *_, env, given=given: given.update(env) or "")
        stage.ctest(tmp_path, "proves", {})
        halves += shards(given["SUITE_SHARE"], 2, 1)
    assert sorted(halves) == [(2, 0), (2, 1)]


def test_one_test_in_two_is_taken_of_a_file_and_another_share_takes_the_others() -> None:
    def collected(*words: str) -> frozenset[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--co", "-p", "no:cacheprovider", *words]
        command.append("tests/suite/test_layers.py")
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return frozenset(line for line in said.splitlines() if "::" in line)

    halves = {collected("--one-in", "2", "--share", str(share)) for share in range(5)}
    assert len(halves) == 2
    assert frozenset().union(*halves) == collected() and not frozenset.intersection(*halves)


def test_without_a_share_the_parts_run_all_of_it() -> None:
    assert shards("", 3, 2) == [(2, 0), (2, 1)]


def test_the_thirds_of_a_share_are_disjoint_and_together_the_share() -> None:
    """A shard of n is every n-th case: case i is of shard i modulo n."""
    thirds = [shards("1", 2, 3, SUITE_THIRD=str(third)) for third in range(3)]
    for part in range(3):
        (whole,) = [at for of, at in [shards("1", 2, 3)[part]] if of == 6]
        assert [of for of, _ in (third[part] for third in thirds)] == [18] * 3
        assert sorted(third[part][1] for third in thirds) == [whole, whole + 6, whole + 12]


def test_a_test_that_is_to_run_whole_runs_whole_beside_thirds_of_others() -> None:
    assert shards("1", 2, 1, SUITE_THIRD="2", SUITE_WHOLE="test_y test_x test_z") == shards("1", 2, 1)
    assert shards("1", 2, 1, SUITE_THIRD="2", SUITE_WHOLE="test_xx") != shards("1", 2, 1)


@pytest.mark.parametrize(("fails", "status"), [("no", 0), ("again", 3), ("then", 4)])
def test_what_failed_runs_first_and_any_failure_is_the_tests(tmp_path: Path, fails: str, status: int) -> None:
    (tmp_path / "test_x").write_text("A.a:A.b")
    program = tmp_path / "program"
    program.write_text(
        f"""#!/bin/sh
echo "$GTEST_OUTPUT $GTEST_TOTAL_SHARDS $*" >> {tmp_path}/log
case "$*" in *A.a*) [ {fails} = again ] && exit 3 ;; *) [ {fails} = then ] && exit 4 ;; esac
exit 0
"""
    )
    program.chmod(0o755)
    ended = subprocess.run(
        ["sh", ROOT / "tests" / "cpp" / "run.sh", "test_x", "1", "1", "1", program, "--gtest_filter=-Own"],
        env={"PATH": os.environ["PATH"], "SUITE_CASES": "/c", "SUITE_THIRD": "0", "SUITE_AGAIN": str(tmp_path)},
    )
    assert ended.returncode == status
    assert (tmp_path / "log").read_text().splitlines() == [
        "xml:/c/test_x.again.xml  --gtest_filter=-Own --gtest_filter=A.a:A.b",
        "xml:/c/test_x.xml 3 --gtest_filter=-Own",
    ]


JUNIT = """<testsuite>
<testcase name="test_good" status="run"/>
<testcase name="test_bad_1_of_2" status="fail"><failure/><system-out>boom</system-out></testcase>
<testcase name="test_cut" status="fail"><failure/><system-out>WARNING: ThreadSanitizer: data race
  at here</system-out></testcase>
</testsuite>"""
BAD = """<testsuites><testsuite><testcase classname="Bad" name="Falls" status="run" result="completed">
<failure message="1 is not 2"/></testcase><testcase classname="Bad" name="Other" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite>
<testcase file="tests/a.py" name="test_a[x]@group 1"><failure message="m">E assert 0</failure></testcase>
<testcase file="tests/a.py" name="test_b"/>
<testcase file="tests/a.py" name="test_c"><skipped message="not here"/></testcase>
</testsuite></testsuites>"""


def stage(name: str, reason: str = "", seconds: float = 10.0) -> dict[str, Any]:
    times = {"seconds": seconds, "processor": 2 * seconds}
    return {"stage": name, "title": name, "reason": reason, "left_out": f"some of {name}", **times}


def record(*stages: dict[str, Any]) -> dict[str, Any]:
    return {
        "commit": "abcdef0123456789",
        "share": 7,
        "everything": False,
        "part": ["a.cpp is all that differs.", "The rest is left out: `make test WHOLE=1` runs everything."],
        "seconds": 60.0,
        "processor": 100.0,
        "stages": stages,
    }


def test_a_red_run_names_stage_case_log_and_the_line_that_repeats_it(tmp_path: Path) -> None:
    """A report that breaks off is the failure of its program, and of nothing else."""
    (tmp_path / "record.json").write_text(json.dumps(record(stage("tsan", "exit status 8: ctest"), stage("python", "1"))))
    for place, text in {
        "tsan/ctest.junit": JUNIT,
        "tsan/test_bad_1_of_2.xml": BAD,
        "tsan/test_cut.xml": BAD[:90],
        "python/pytest.xml": PYTEST,
    }.items():
        (tmp_path / "cases" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cases" / place).write_text(text)
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rN", "-p", "no:cacheprovider"),
            *("--durations-min=3600", "tests/suite/test_stages.py"),  # the list of slow cases has names of good ones
        ],
        cwd=ROOT,
        env={**os.environ, "SUITE_RECORD": str(tmp_path)},
        text=True,
        capture_output=True,
    )
    said = run.stdout
    assert run.returncode == 1, said + run.stderr
    assert "make test STAGES=tsan ONLY='test_bad:Bad.Falls'    # log: build/suite/tsan.log" in said
    assert "make test STAGES=tsan ONLY='test_cut'" in said and "data race" in said
    assert "make test STAGES=python ONLY='tests/a.py::test_a[x]'" in said
    assert "make test STAGES=tsan SHARE=7 " in said
    # What was left out is told before them.
    assert "The rest is left out: `make test WHOLE=1` runs everything." in said and "tsan: some of tsan" in said
    assert "1 is not 2" in said and "E assert 0" in said and "Bad.Other" not in said and "test_good" not in said
    # Two stages, the case of Bad, test_cut and its sanitizer, test_a; test_good and test_b; test_c.
    assert "6 failed, 2 passed, 1 skipped" in said.splitlines()[-1]


def test_the_table_of_times_names_the_stages_that_grew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_times, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(suite_times, "BEFORE", tmp_path / "record.before.json")
    suite_times.keep(record(stage("unit"), stage("tsan")))
    suite_times.keep(record(stage("unit", seconds=90), stage("tsan")))
    suite_times.keep(record(stage("unit")))  # a part of a run is compared with nothing, and replaces no whole run before it
    assert "grew" not in suite_times.table()
    suite_times.keep(record(stage("unit"), stage("tsan")))
    suite_times.keep(record(stage("unit", seconds=90), stage("tsan")))
    lines = suite_times.table().splitlines()
    assert [line.split()[0] for line in lines if line.endswith("grew")] == ["unit"]


def test_the_table_says_so_where_nothing_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_times, "ROOT", tmp_path)
    monkeypatch.setattr(suite_times, "RECORD", tmp_path / "record.json")
    assert "no run" in suite_times.table()


def test_what_a_stage_runs_keeps_what_python_has_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SUITE", tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    said = stages.Stage("python", stages.Run()).run(sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)")
    assert said.split() == ["False"]


@pytest.mark.parametrize(
    ("stage", "said", "allowed"),
    [
        ("aarch64", suite_cases.UNSENT[0], True),
        ("unit", suite_cases.UNSENT[0], False),  # a kernel tells, and only the emulator does not
        ("aarch64", "no time for it today", False),
    ],
)
def test_a_case_of_googletest_may_be_skipped_for_a_reason_that_is_listed_alone(
    tmp_path: Path, stage: str, said: str, allowed: bool
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="WhatTheKernelHasNotSentIsLimited" classname="Socket" status="run" '
        f'result="skipped"><skipped message="net_test.cpp:1&#x0A;{said}"/></testcase></testsuite></testsuites>'
    )
    (case,) = suite_cases.googletest(stage, "test_net", report)
    assert (case.skipped, bool(case.why)) == ((said, False) if allowed else ("", True)), case
