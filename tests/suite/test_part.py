"""What `make test` runs of a tree that hardly differs from one of which everything was green here, and when that is all."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patience import SOON

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import part
import setup
import stages
from check_layers import BELOW
from part import Books, Choice, Part

ROOT = Path(__file__).resolve().parents[2]
ENGINE = "csrc/engine/operation.cpp"
# Of the labels of CMakeLists.txt.
TESTS = [
    ("test_engine_1_of_2", ["proves_threads", "stands_on_api", "about_engine"]),
    ("test_engine_2_of_2", ["proves_threads", "stands_on_api", "about_engine"]),
    ("test_rings", ["proves_memory", "stands_on_collective", "about_engine"]),
    ("test_device_rank", ["proves_memory", "stands_on_api", "about_ccl"]),
    ("test_grown_ranks", ["proves_values", "stands_on_comm", "about_comm"]),
    ("test_link", ["proves_memory", "stands_on_link", "about_link"]),
    ("test_rehearsal", ["proves_memory", "stands_on_nothing", "about_rehearsal"]),
    ("interpose_spanning_init", ["proves_memory"]),
]


class Place:
    """A tree of git in which everything was green, and then somebody works."""

    def __init__(self, root: Path) -> None:
        self.root, self.books = root, Books(root / "build")
        (root / "build").mkdir()
        (root / ".gitignore").write_text("/build/\n")
        for name in (ENGINE, "csrc/base/lock.hpp", "docs/page.md", "tests/python/test_work.py", "tests/hosts.py"):
            self.write(name, "first")
        sources = "${here}/link_test.cpp ${here}/arena_test.cpp"
        self.write("tests/cpp/link.cmake", f"isthmus_test(test_link SOURCES {sources} FLOORS link)")
        self.write("tests/cpp/arena_test.cpp", "first")
        self.git("init", "-q")
        self.commit()

    def git(self, *words: str) -> str:
        me = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *me, *words], cwd=self.root, check=True, text=True, capture_output=True).stdout.strip()

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "words", "--allow-empty")
        return self.git("rev-parse", "HEAD")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def tree(self) -> part.Tree:
        return part.tree(self.root, self.root / "build" / "stamps")

    def everything(self, *outcomes: tuple[str, str, bool]) -> None:
        """A run of everything, from its beginning to its end."""
        self.books.begin_everything()
        self.books.end([("unit", "test_a:A.b", True), *outcomes], self.tree())

    def needed(self, **environment: str) -> Part | str:
        return part.needed(self.root, self.tree(), *self.books.read(), environment)

    def part(self) -> Part:
        answer = self.needed()
        assert isinstance(answer, Part), answer
        return answer


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_clean_clone_runs_everything(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    place.everything()
    assert isinstance(place.needed(), Part)
    clone = tmp_path_factory.mktemp("clone") / "it"
    place.git("clone", "-q", str(place.root), str(clone))
    books = Books(clone / "build")
    assert "no run of everything was green" in str(part.needed(clone, part.tree(clone), *books.read(), {}))


def test_ci_runs_everything_whatever_lies_there(place: Place) -> None:
    place.everything()
    assert place.needed(CI="true") == "this is CI"


@pytest.mark.parametrize("bad", [("unit", "test_a:A.c", False), ("unit", "test_a:A.b", False), ("ruff", "", False)])
def test_after_a_red_run_of_everything_everything_is_run(place: Place, bad: tuple[str, str, bool]) -> None:
    place.everything()
    place.everything(bad)
    assert "no run of everything was green" in str(place.needed())


def test_a_run_of_everything_that_does_not_end_leaves_no_green_tree(place: Place) -> None:
    place.everything()
    place.books.begin_everything()
    assert isinstance(place.needed(), str)


def test_a_green_tree_of_a_commit_that_is_no_ancestor_says_nothing(place: Place) -> None:
    first = place.git("rev-parse", "HEAD")
    place.write(ENGINE, "second")
    place.commit()
    place.everything()
    place.git("checkout", "-q", first)
    assert "is no ancestor of what is checked out" in str(place.needed())


def test_a_record_that_breaks_off_says_nothing(place: Place) -> None:
    place.everything()
    place.books.green.write_text(place.books.green.read_text()[:40])
    assert isinstance(place.needed(), str)


def test_where_git_knows_no_tree_everything_is_run(place: Place) -> None:
    place.everything()
    (place.root / ".git").rename(place.root / "no-git")
    assert place.needed() == "git does not know this tree"


def test_what_the_set_up_has_changed_runs_everything_but_for_the_package_which_is_of_the_tree(place: Place) -> None:
    place.write("build/stamps/torch", "2.13")
    place.write("build/stamps/package", "one")
    place.everything()
    place.write("build/stamps/package", "two")
    assert isinstance(place.needed(), Part)
    place.write("build/stamps/torch", "2.14")
    assert "the set-up" in str(place.needed())


@pytest.mark.parametrize("name", ["csrc/base/lock.hpp", "tests/hosts.py", "csrc/engine/CMakeLists.txt", "Makefile"])
def test_a_file_on_which_everything_may_stand_runs_everything_and_is_named(place: Place, name: str) -> None:
    place.everything()
    place.write(name, "second")
    assert place.needed() == f"{name} may matter to everything"


def test_many_files_are_no_small_change_and_changes_add_up_over_commits(place: Place) -> None:
    place.everything()
    for number in range(part.MOST):
        place.write(f"csrc/engine/new{number}.cpp", "new")
        place.commit()
    assert len(place.part().changed) == part.MOST
    place.books.end([("python", "tests/a.py::test_a", True)])  # a part that was green is no run of everything
    place.write("docs/page.md", "second")
    assert "files have changed" in str(place.needed())


def test_a_changed_floor_runs_whole_with_the_next_and_a_third_of_what_stands_on_it(place: Place) -> None:
    place.everything()
    place.write(ENGINE, "second")
    chosen = place.part()
    assert chosen.floors == {"engine"} and chosen.near == {"engine", "collective", "messages"}
    assert {f"tests/{name}" for name in part.SUBJECTS["engine"]} == chosen.files
    assert part.choose(chosen, "asan", TESTS) == Choice(
        whole=["test_engine_1_of_2", "test_engine_2_of_2", "test_rings", "interpose_spanning_init"],
        thirds=["test_device_rank", "test_grown_ranks"],
        left_out=["test_link", "test_rehearsal"],
    )


def test_a_test_that_was_changed_runs_whole(place: Place) -> None:
    place.everything()
    place.write("tests/python/test_work.py", "second")
    place.write("tests/cpp/arena_test.cpp", "second")
    chosen = place.part()
    assert chosen.files == {"tests/python/test_work.py"}
    assert part.choose(chosen, "asan", TESTS).whole == ["test_link", "interpose_spanning_init"]


def test_another_tree_has_another_third_and_three_are_the_whole(place: Place) -> None:
    place.everything()
    thirds = set()
    for number in range(30):
        place.write(ENGINE, str(number))
        thirds.add(place.part().third)
        assert place.part().third == place.part().third
    assert thirds == {0, 1, 2}


def test_what_failed_is_run_until_it_passes(place: Place) -> None:
    place.everything()
    place.write(ENGINE, "second")
    bad = [("tsan", f"test_link:Link.{case}", False) for case in "AB"] + [("python", "tests/a.py::test_a[x]", False)]
    place.books.end([*bad, ("tsan", "test_link:Link.C", True)])
    chosen = place.part()
    choice = part.choose(chosen, "tsan", TESTS)
    assert choice.again == {"test_link": "Link.A:Link.B"} and "test_link" in choice.names
    assert json.loads(chosen.of_pytest("python"))["failed"] == ["tests/a.py::test_a[x]"]
    place.books.end([("tsan", "test_link:Link.A", True), ("python", "tests/b.py::test_b", True)])
    assert place.part().failed == {"tsan": ["test_link:Link.B"], "python": ["tests/a.py::test_a[x]"]}
    place.everything()
    assert place.part().failed == {}


def test_a_name_of_several_cases_of_which_one_failed_has_failed(place: Place) -> None:
    place.everything()
    place.books.end([("asan", "test_a", False), ("asan", "test_a", True)])
    assert place.part().failed == {"asan": ["test_a"]}


def test_a_stage_that_failed_by_itself_runs_whole(place: Place) -> None:
    place.everything()
    place.books.end([("asan", "", False), ("python", "", False)])
    chosen = place.part()
    assert part.choose(chosen, "asan", TESTS).whole == [name for name, _ in TESTS]
    assert chosen.of_pytest("python") == "" and chosen.of_pytest("asan") != ""


def test_every_floor_has_python_files_and_those_are_there() -> None:
    assert set(part.SUBJECTS) == set(BELOW) - {"base"} | {"docs"}
    for floor, names in part.SUBJECTS.items():
        assert names and all((ROOT / "tests" / name).exists() for name in names), floor


def test_every_program_of_the_build_says_what_it_stands_on_and_what_it_is_about() -> None:
    said = subprocess.run(
        ["ctest", "--test-dir", setup.RELEASE, "--show-only=json-v1"], check=True, text=True, capture_output=True
    ).stdout
    labels = dict(part.listed(said))
    assert {"stands_on_api", "about_engine"} <= set(labels["test_engine_1_of_2"])
    assert {"stands_on_collective", "about_engine"} <= set(labels["test_rings"])
    assert {"stands_on_ccl", "about_ccl"} <= set(labels["test_rccl"])
    without = {name for name, own in labels.items() if not any(label.startswith("stands_on_") for label in own)}
    assert all(name.startswith(("c_client", "interpose_")) for name in without), without
    floors = {label.removeprefix("stands_on_") for own in labels.values() for label in own if label.startswith("stands_on_")}
    assert floors <= {*BELOW, "nothing"}
    changed = Part("abc", (ENGINE,), "0", frozenset({"engine"}))
    choice = part.choose(changed, "unit", labels.items())
    assert "test_steady" in choice.whole and "test_plan" in choice.left_out and "test_island" in choice.thirds


@pytest.fixture
def asked() -> Callable[..., argparse.Namespace]:
    nothing = {"stages": "", "only": "", "pytest": "", "all": False, "whole": ""}
    return lambda **more: argparse.Namespace(**nothing | more)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("isthmus_scripts_test", ROOT / "scripts" / "test.py")
    assert spec and spec.loader
    runner = importlib.util.module_from_spec(spec)  # by its path: Python has a `test` of its own
    monkeypatch.setitem(sys.modules, spec.name, runner)
    spec.loader.exec_module(runner)
    return runner


@pytest.mark.parametrize("of_it", [Part("abc", (ENGINE,), "0"), None], ids=["part", "whole"])
def test_in_a_part_the_sanitizers_run_beside_python_and_are_over_before_the_next_stage(
    of_it: Part | None, runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stages, "SUITE", tmp_path)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    log: list[str] = []
    python_runs, sanitizers_end = threading.Event(), threading.Event()

    def python(stage: stages.Stage) -> None:
        log.append("python begins")
        python_runs.set()
        assert not of_it or sanitizers_end.wait(SOON)
        log.append("python ends")

    def sanitizer(stage: stages.Stage) -> None:
        assert python_runs.wait(SOON)
        log.append(stage.name)
        if stage.name == "tsan":
            sanitizers_end.set()
            raise stages.Failed("on purpose")

    kinds = {name: stages.Kind(name, lambda stage: log.append(stage.name)) for name in ("unit", "demo")}
    kinds |= {"python": stages.Kind("python", python), **{n: stages.Kind(n, sanitizer) for n in ("asan", "tsan")}}
    order = ["unit", "python", "asan", "tsan", "demo"]
    monkeypatch.setattr(runner, "STAGES", {name: kinds[name] for name in order})
    lanes = runner.Lanes(order, stages.Run(part=of_it))
    lanes.run()
    python_log = ["asan", "tsan", "python ends"] if of_it else ["python ends", "asan", "tsan"]
    assert log == ["unit", "python begins", *python_log, "demo"]
    assert [bool(lanes.reasons[name]) for name in order] == [False, False, False, True, False]
    assert "on purpose" in capsys.readouterr().out


def test_whole_and_test_all_run_everything_and_who_asks_for_a_test_gets_it(
    place: Place, asked: Callable[..., argparse.Namespace], runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "ROOT", place.root)
    monkeypatch.delenv("CI", raising=False)
    place.everything()
    for words, outcome in [({"whole": "1"}, (False, True)), ({"all": True}, (False, True)), ({"only": "x"}, (False, False))]:
        extent = runner.extent(asked(**words), place.books, place.tree())
        assert (bool(extent.part), extent.everything) == outcome
    extent = runner.extent(asked(), place.books, place.tree())
    assert extent.part and not extent.everything
    assert "make test WHOLE=1" in extent.told[-1]
    monkeypatch.setenv("CI", "true")
    assert runner.extent(asked(), place.books, place.tree()).told == ["Everything is run: this is CI."]


def test_a_stage_of_ctest_runs_of_each_program_what_the_part_has_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SUITE", tmp_path)
    program = tmp_path / "program"
    told = "$GTEST_SHARD_INDEX/$GTEST_TOTAL_SHARDS $1 $2 $SUITE_PART"
    program.write_text(f'#!/bin/sh\necho "{told}" >> {tmp_path}/ran\n')
    program.chmod(0o755)
    run = ROOT / "tests" / "cpp" / "run.sh"
    lines = []
    for name, labels in TESTS:
        how = f"sh {run} {name} 2 1 1 {program} {name}" if name.startswith("test_") else f"{program} {name}"
        lines.append(f'add_test({name} {how})\nset_tests_properties({name} PROPERTIES LABELS "p;{";".join(labels)}")')
    (tmp_path / "CTestTestfile.cmake").write_text("\n".join([*lines, f"add_test(of_another_label {program} other)"]))
    again = {"tsan": ["test_link:Link.A", "interpose_spanning_init"]}
    chosen = Part("abc", (ENGINE,), "2", frozenset({"engine"}), frozenset({"tests/python/test_work.py"}), failed=again)
    stage = stages.Stage("tsan", stages.Run(share=0, part=chosen))  # of which this sanitizer takes the other half
    stage.ctest(tmp_path, "p", {})
    said = [line.split(" ") for line in (tmp_path / "ran").read_text().splitlines()]
    ran = {(name, shard, word if word.startswith("--") else "") for shard, name, word, *_ in said}
    whole, third = "1/2", "5/6"  # the second half of each product; and of that the last third
    assert ran == {
        *((name, whole, "") for name in ("test_engine_1_of_2", "test_engine_2_of_2", "test_rings")),
        *((name, third, "") for name in ("test_device_rank", "test_grown_ranks", "test_link")),
        ("test_link", "/", "--gtest_filter=Link.A"),
        ("interpose_spanning_init", "/", ""),
    }
    # A job that pytest runs is told by a variable; one that failed is whole.
    (told,) = re.findall(r"interpose_spanning_init  ({.*})", (tmp_path / "ran").read_text())
    assert json.loads(told)["whole"] == ["tests/interpose/test_spanning_init.py", "tests/python/test_work.py"]
    assert stage.left_out == "4 programs whole, a third of 3, 1 left out that stand on nothing that changed"


def test_a_stage_of_which_nothing_stands_on_what_changed_runs_nothing_and_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SUITE", tmp_path)
    (tmp_path / "CTestTestfile.cmake").write_text(
        'add_test(test_plan false)\nset_tests_properties(test_plan PROPERTIES LABELS "p;stands_on_plan;about_plan")\n'
    )
    stage = stages.Stage("unit", stages.Run(part=Part("abc", (ENGINE,), "0", frozenset({"engine"}))))
    stage.ctest(tmp_path, "p", {})
    assert stage.left_out == "0 programs whole, a third of 0, 1 left out that stand on nothing that changed"


TEST = "import pytest\n@pytest.mark.parametrize('a', range(9))\ndef test_x(a): pass\n"


def test_of_python_a_part_takes_a_sixth_and_of_jobs_of_a_sanitizer_a_third() -> None:
    chosen = Part("abc", (ENGINE,), "0", frozenset({"engine"}))
    assert [json.loads(chosen.of_pytest(stage))["of"] for stage in ("python", "asan", "tsan")] == [6, 3, 3]
    assert "one third in C++ (number 0), one sixth in Python" in " ".join(chosen.told())


def test_pytest_runs_some_files_whole_a_share_of_every_other_and_what_failed(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("test_a.py", "test_b.py"):
        (tests / name).write_text(TEST)
    for name in ("conftest.py", "share.py"):
        (tests / name).write_text((ROOT / "tests" / name).read_text())
    command = [sys.executable, "-m", "pytest", "-v", "-c", "/dev/null", "--rootdir", "."]
    ran = []
    for seed, workers in (("a", True), ("b", False), ("c", False)):
        told = {"whole": ["tests/test_a.py"], "seed": seed, "of": 3, "failed": ["tests/test_b.py::test_x[4]"]}
        said = subprocess.run(
            [*command, "-n", "2", "--dist", "loadscope", "--part", json.dumps(told)] if workers else command,
            cwd=tmp_path,
            env={**os.environ, **({} if workers else {"SUITE_PART": json.dumps(told)})},
            text=True,
            capture_output=True,
        ).stdout
        passed = [line for line in said.splitlines() if "PASSED" in line]
        names = set(re.findall(r"tests/test_\w\.py::test_x\[\d\]", "\n".join(passed)))
        assert {f"tests/test_a.py::test_x[{a}]" for a in range(9)} <= names, said
        assert "part of the suite: whole test_a.py, 1 that failed; of every other file one test in 3" in said
        ran.append({name for name in names if "test_b" in name})
    assert all("tests/test_b.py::test_x[4]" in names and len(names) in (3, 4) for names in ran), ran
    again = [*command, "--part", json.dumps(told), "--one-in", "2"]
    said = subprocess.run(again, cwd=tmp_path, text=True, capture_output=True).stdout
    names = set(re.findall(r"(tests/test_\w\.py::test_x\[\d\]) PASSED", said))
    assert {"tests/test_b.py::test_x[4]", *(f"tests/test_a.py::test_x[{a}]" for a in range(9))} <= names, said
    assert len(set().union(*ran)) > 4, "another seed has another share"
