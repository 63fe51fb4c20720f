"""scripts/gpu_day.py: what is packed for a machine with a GPU is all that its parts need, and every step of them runs."""

from __future__ import annotations

import ast
import importlib.util
import json
import lzma
import os
import re
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from patience import SOON, patient

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "gpu_day.py"
BUILD = ROOT / "build" / "release"
ALL_PARTS = 5 * 540.0  # seconds of an idle machine; gpu_day.py multiplies them by the same factor


@pytest.fixture(scope="module")
def day() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_day", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def called(program: Path, *words: str | Path, cwd: Path = ROOT, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, program, *words],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(timeout),
        check=False,
    )


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the package of this Python and the programs that are built here."""
    if not (BUILD / "tests" / "cpp" / "test_device").is_file():
        why = "no interface test is built: cmake --build build/release --target test_device"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    made = tmp_path_factory.mktemp("gpu-day") / "kit"
    packed = called(PROGRAM, "pack", "--here", BUILD, "--kit", made)
    assert packed.returncode == 0, packed.stdout + packed.stderr
    assert "in all, of 60" in packed.stdout
    return made


def table_of(said: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in said.stdout.splitlines() if line.startswith("rehearsal: ") and "logs: " not in line]


def results_of(out: Path) -> Path:
    """What the steps have written, out of its archive. A machine that is lent gives eight files back."""
    assert sorted(path.name for path in out.iterdir()) == ["results.tar.gz", "table.json", "table.txt"]
    made = out.with_name("results")
    with tarfile.open(out / "results.tar.gz") as archive:
        archive.extractall(made)
    return made


def test_a_kit_has_all_that_its_steps_need_wherever_it_lies(kit: Path, tmp_path: Path) -> None:
    """Run out of its own folder, far from any checkout: the package, the tests and the programs are those of the kit."""
    out = tmp_path / "out"
    steps = ("--steps", "doctor", "runtime", "trace")
    said = called(kit / "gpu_day.py", "run", "check", "trace", "--rehearse", *steps, "--out", out, cwd=tmp_path)
    assert said.returncode == 0, said.stdout + said.stderr
    lines = table_of(said)
    assert [line.split()[1:3] for line in lines] == [["check", "doctor"], ["check", "runtime"], ["trace", "trace"]], lines
    assert all(line.endswith(" ok") for line in lines), lines
    assert (out / "table.txt").read_text().splitlines() == lines
    results = results_of(out)
    package = re.search(r"isthmus +\S+, (\S+)", (results / "check-doctor.txt").read_text())
    assert package and "isthmus-gpu-day-" in package[1], "the package is that of the kit, and not this Python's"
    trace = json.loads((results / "trace_cuda.json").read_text())
    assert trace["simulated"] and len(trace["cases"]) >= 15
    table = json.loads((out / "table.json").read_text())
    assert table["rehearsal"] is True and table["steps"][2][:3] == ["trace", "trace", "ok"]


@pytest.mark.everything
@pytest.mark.timeout(patient(ALL_PARTS + 600))
def test_every_step_of_every_part_runs_on_a_simulated_device(kit: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = called(kit / "gpu_day.py", "run", "--rehearse", "--out", out, cwd=tmp_path, timeout=ALL_PARTS + 120)
    assert said.returncode == 0, said.stdout[-8000:] + said.stderr
    lines = table_of(said)
    assert {line.split()[1] for line in lines} == {"check", "trace", "torch", "bench", "train"}, lines
    assert all(re.search(r" ok(, \d+ passed, \d+ failed, \d+ skipped)?$", line) for line in lines), lines
    results = results_of(out)
    for name in ("quick.json", "gpu.json", "gpu_one.json", "gpu_two.json", "ddp.json"):
        figures = json.loads((results / name).read_text())
        assert figures["simulated"] is True and figures["complete"] is True, name
    matrix = (results / "check-matrix.txt").read_text()
    assert "passed" in matrix and "failed" not in matrix, matrix[-2000:]


def test_a_step_that_fails_is_in_the_table_with_its_log_and_the_exit_status(kit: Path, tmp_path: Path) -> None:
    (kit / "test_device").rename(kit / "test_device.away")
    (kit / "test_device").write_text("#!/bin/sh\necho no driver here\nexit 3\n")
    try:
        words = ("run", "check", "--rehearse", "--steps", "runtime", "--out", tmp_path)
        said = called(kit / "gpu_day.py", *words, cwd=tmp_path)
    finally:
        (kit / "test_device.away").replace(kit / "test_device")
    assert said.returncode == 1
    assert "no driver here" in said.stdout and table_of(said)[0].endswith("failed, exit status 3"), said.stdout


def test_a_part_without_time_says_what_it_leaves_out(kit: Path, tmp_path: Path) -> None:
    words = ("run", "check", "--rehearse", "--steps", "doctor", "runtime", "--seconds", "5", "--out", tmp_path)
    said = called(kit / "gpu_day.py", *words, cwd=tmp_path)
    assert said.returncode == 1
    assert [line.split("s  ")[1] for line in table_of(said)] == ["left out: no time"] * 2, said.stdout


def test_an_unknown_part_or_step_is_refused_by_its_name() -> None:
    said = called(PROGRAM, "run", "cheque", "--rehearse")
    assert said.returncode == 2 and "no such part: cheque" in said.stderr
    said = called(PROGRAM, "run", "check", "--rehearse", "--steps", "runtim")
    assert said.returncode == 2 and "no such step: runtim; there are" in said.stderr
    said = called(PROGRAM, "run", "train", "--rehearse", "--steps", "doctor")
    assert said.returncode == 1 and "no step was run" in said.stdout


def test_parts_that_are_run_one_by_one_leave_one_table(day: ModuleType, tmp_path: Path) -> None:
    first = day.Table(tmp_path, False)
    first.note("check", "doctor", "ok", 1.0)
    first.note("check", "runtime", "failed, exit status 1", 2.0)
    again = day.Table(tmp_path, False)
    again.note("check", "runtime", "ok", 3.0)
    again.note("trace", "trace", "ok", 4.0)
    assert [row[1:3] for row in again.new] == [("runtime", "ok"), ("trace", "ok")]
    assert [line.split()[1] for line in (tmp_path / "table.txt").read_text().splitlines()] == ["doctor", "runtime", "trace"]
    assert day.Table(tmp_path, True).lines() == [], "a rehearsal's table and a measurement's are not mixed"


def archived(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as found:
        return {file.name: found.extractfile(file).read() for file in found}  # type: ignore[union-attr]


def test_parts_that_are_run_one_by_one_leave_one_archive(day: ModuleType, tmp_path: Path) -> None:
    archive = tmp_path / "results.tar.gz"
    for name, go_on in (("check", False), ("trace", True)):
        (folder := tmp_path / name).mkdir()
        results = day.Results(folder, archive, go_on)
        (folder / f"{name}.txt").write_text(name)
        results.keep()
    assert archived(archive) == {"check.txt": b"check", "trace.txt": b"trace"}
    archive.write_bytes(archive.read_bytes()[:30])  # damaged
    (folder := tmp_path / "torch").mkdir()
    day.Results(folder, archive, True).keep()
    assert archived(archive) == {} and not list(tmp_path.glob("*.new"))


def test_what_a_step_has_written_is_kept_while_it_runs(
    day: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a run that is killed leaves it."""
    monkeypatch.setattr(day, "KEPT_EVERY", 0.01)
    (folder := tmp_path / "written").mkdir()
    results = day.Results(folder, tmp_path / "results.tar.gz", False)
    ends = tmp_path / "ends"

    def keep() -> None:
        results.keep()
        if archived(results.archive).get("gpu.json") == b"half\n":
            ends.touch()

    step = day.Step(
        "slow", 1.0, ("sh", "-c", f"echo half > {folder / 'gpu.json'}; until [ -e {ends} ]; do sleep 0.01; done")
    )
    assert day.run_step(step, tmp_path, folder / "log", SOON, dict(os.environ), keep)[0] == "ok"


def imported(program: Path, found: dict[Path, None]) -> dict[Path, None]:
    """The program and what it imports of its own folder, at whatever place."""
    if program in found:
        return found
    found[program] = None
    for node in ast.walk(ast.parse(program.read_text())):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if (file := program.with_name(f"{name}.py")).is_file():
                imported(file, found)
    return found


@pytest.mark.parametrize("program", ["gpu.py", "ddp.py"])
def test_what_is_packed_of_the_sources_has_every_module_of_the_benchmarks(
    day: ModuleType, program: str, tmp_path: Path
) -> None:
    needed = {str(file.relative_to(ROOT)) for file in imported(ROOT / "bench" / program, {})}
    assert {f"bench/{program}", "bench/circumstances.py", "bench/result_file.py"} <= needed
    day.pack_tree(tmp_path)
    with tarfile.open(tmp_path / "tree.tar.xz") as archive:
        assert needed <= set(archive.getnames())
        archive.extractall(tmp_path / "tree")
    said = called(tmp_path / "tree" / "bench" / program, "--help", cwd=tmp_path)
    assert said.returncode == 0 and "--rehearse" in said.stdout, said.stderr


def test_a_program_that_is_not_there_is_a_step_that_failed(day: ModuleType, tmp_path: Path) -> None:
    step = day.Step("machine", 9.0, ("no-such-program-anywhere",))
    said, _ = day.run_step(step, tmp_path, tmp_path / "log", 9.0, dict(os.environ))
    assert said.startswith("failed: it cannot be started: ") and "no-such-program-anywhere" in said


def test_a_step_says_how_many_of_its_tests_passed_and_what_its_exit_status_means(day: ModuleType, tmp_path: Path) -> None:
    cases = tmp_path / "cases.xml"
    suite = '<testsuites><testsuite tests="9" failures="1" errors="1" skipped="2"/></testsuites>'
    command = ("sh", "-c", f"echo '{suite}' > {cases}; exit 3")
    step = day.Step("some", 9.0, command, cases=str(cases), statuses=((3, "a miss"),))
    said, _ = day.run_step(step, tmp_path, tmp_path / "log", patient(9.0), dict(os.environ))
    assert said == "failed, a miss, 5 passed, 2 failed, 2 skipped"
    cases.write_text("<test")
    assert day.counts(cases) == day.counts(tmp_path / "nowhere") == ""
    none = day.Step("none", 9.0, ("true",), cases=str(cases))  # what a run before has written does not count
    assert day.run_step(none, tmp_path, tmp_path / "log", patient(9.0), dict(os.environ))[0] == "ok"
    assert day.is_good("ok, 9 passed, 0 failed, 2 skipped") and day.is_good("ok")
    assert not day.is_good("failed, exit status 1") and not day.is_good("ok, 0 passed, 0 failed, 9 skipped")


def test_pytorch_gets_its_nccl_back_from_a_run_that_was_killed(
    day: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "libnccl.so.2"
    theirs.write_bytes(b"theirs")
    (tmp_path / "kit").mkdir()
    monkeypatch.setattr(day, "KIT", tmp_path / "kit")
    with day.other_nccl(theirs) as said:
        assert said == "the kit has no NCCL (pack --nccl)"
    (tmp_path / "kit" / "libnccl.so.2.xz").write_bytes(lzma.compress(b"ours"))
    monkeypatch.setattr(day, "VERSIONS", "pass")
    with day.other_nccl(theirs) as said:
        assert said == "ok" and theirs.read_bytes() == b"ours"
        killed = theirs.read_bytes(), day.kept_of(theirs).read_bytes()
    assert theirs.read_bytes() == b"theirs" and not day.kept_of(theirs).exists()
    monkeypatch.setattr(day, "VERSIONS", "raise SystemExit(1)")
    with day.other_nccl(theirs) as said:
        assert said == "PyTorch does not take the kit's, and has its own" and theirs.read_bytes() == b"theirs"
    packed = tmp_path / "kit" / "libnccl.so.2.xz"
    packed.write_bytes(packed.read_bytes()[:20])  # damaged
    with day.other_nccl(theirs) as said:
        assert said.startswith("PyTorch has its own: ") and theirs.read_bytes() == b"theirs"
    assert sorted(file.name for file in tmp_path.glob("libnccl*")) == ["libnccl.so.2"]
    theirs.write_bytes(killed[0])
    day.kept_of(theirs).write_bytes(killed[1])
    day.restore(theirs)
    assert theirs.read_bytes() == b"theirs" and not day.kept_of(theirs).exists()


@pytest.mark.parametrize("rehearse", [False, True])
def test_no_part_has_steps_of_more_than_nine_minutes(day: ModuleType, rehearse: bool, tmp_path: Path) -> None:
    for part, steps in day.parts(tmp_path, rehearse, tmp_path).items():
        assert sum(step.seconds for step in steps) <= day.PART_SECONDS == 540, part
        assert len({step.name for step in steps}) == len(steps), part


@pytest.mark.parametrize("session", ["", "setsid "], ids=["in its session", "in a session of its own"])
@pytest.mark.parametrize("ending", ["wait", "true"], ids=["over its limit", "ended"])
def test_a_step_ends_with_all_that_it_has_started(day: ModuleType, session: str, ending: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    waits = f"until [ -s {pid} ]; do sleep 0.01; done; {ending}"
    step = day.Step("slow", 1.0, ("sh", "-c", f"{session}sh -c 'echo $$ > {pid}; exec sleep 1000' & {waits}"))
    limit = patient(10.0) if ending == "wait" else patient(60)
    said, took = day.run_step(step, tmp_path, tmp_path / "log", limit, dict(os.environ))
    assert said == (f"over its {limit:.0f} s" if ending == "wait" else "ok") and took < patient(60)
    until = time.monotonic() + SOON
    while (begun := pid.read_text()) and runs(int(begun)):  # a process that was killed ends a moment later
        assert time.monotonic() < until
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:  # it ends just now
        return False


def test_a_kit_of_more_than_60_mib_is_refused(day: ModuleType, tmp_path: Path) -> None:
    day.check_size(60 << 20, tmp_path)
    with pytest.raises(SystemExit, match="61.0 MiB; the kit is to have at most 60"):
        day.check_size(61 << 20, tmp_path)


def test_what_is_packed_of_wheels_is_pinned(day: ModuleType) -> None:
    pins = day.pinned(day.LACKED)
    assert [pin.split("==")[0] for pin in pins] == ["ml_dtypes", "pytest", "pytest-timeout", "cloudpickle"], pins
    assert all("==" in pin for pin in pins)


def test_a_wheel_of_the_kit_counts_only_where_its_module_is_missing(
    day: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    for module in ("nobody_has_this", "pytest"):
        with zipfile.ZipFile(tmp_path / "wheels" / f"{module}-0.1-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{module}/__init__.py", "")
    with zipfile.ZipFile(tmp_path / "isthmus-here.whl", "w") as archive:
        archive.writestr("isthmus/bin/program", "#!/bin/sh\n")
    monkeypatch.setattr(day, "KIT", tmp_path)
    day.unpack_package(site := tmp_path / "site")
    assert sorted(path.name for path in site.iterdir()) == ["isthmus", "nobody_has_this"]
    assert os.access(site / "isthmus" / "bin" / "program", os.X_OK)


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """A container of device code: kind, architecture, code."""
    inside = b""
    for kind, architecture, code in entries:
        header = struct.pack("<HHIQ", kind, 0, 64, len(code)) + struct.pack("<IIIIII", 0, 0, 0, architecture, 0, 0)
        inside += header.ljust(64, b"\0") + code
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inside)) + inside


def test_a_library_keeps_its_length_and_the_code_of_one_architecture_alone(day: ModuleType) -> None:
    code: list[Any] = [(2, 80, b"\x80" * 40), (2, 90, b"\x90" * 24), (1, 90, b"ptx " * 4)]
    library = b"elf" + container(*code) + b"data" + container((2, 90, b"\x91" * 8)) + b"end"
    kept = day.one_architecture(library, 90)
    assert len(kept) == len(library) and kept.startswith(b"elf") and kept.endswith(b"end")
    assert b"\x90" * 24 in kept and b"\x91" * 8 in kept and b"data" in kept
    assert b"\x80" not in kept[80:] and b"ptx" not in kept
    with pytest.raises(SystemExit, match="no machine code for architecture 70"):
        day.one_architecture(library, 70)
