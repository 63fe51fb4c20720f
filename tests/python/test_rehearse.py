"""`isthmus rehearse`: the fleet, what the ranks are told, and that all it prints is marked as a rehearsal's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import isthmus
from isthmus import launch, rehearse
from isthmus.cli import common, layout
from patience import SOON, patient

ECHO = "import os, sys; print('rank', os.environ['ISTHMUS_RANK']); print('oops', file=sys.stderr)"


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return program([sys.executable, "-m", "isthmus", *arguments], env)


def program(words: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, "COLUMNS": "200", **(env or {})}
    return subprocess.run(words, capture_output=True, text=True, timeout=patient(90), check=False, env=whole)


def members(text: str) -> list[tuple[str, str | None]]:
    return [(member.vendor, member.label) for member in rehearse.parse_fleet(text)]


def libraries(folder: Path) -> Path:
    """Files that have the names of the simulated libraries."""
    for name in (*rehearse.FILES["nvidia"], *rehearse.FILES["ascend"]):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return folder


def test_a_fleet_is_its_ranks_in_order() -> None:
    assert members("nvidia:2,cpu:1") == [("nvidia", None), ("nvidia", None), ("cpu", None)]
    assert members("nvidia:1,cpu:1,nvidia:1") == [("nvidia", None), ("cpu", None), ("nvidia", None)]
    assert members("nvidia:1@a, nvidia:1@b,oneccl:2@c-1") == [
        ("nvidia", "a"), ("nvidia", "b"), ("oneccl", "c-1"), ("oneccl", "c-1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not VENDOR:RANKS"),
        ("nvidia", "'nvidia' is not VENDOR:RANKS"),
        ("nvidia:two", "'nvidia:two' is not"),
        ("nvidia:-1", "'nvidia:-1' is not"),
        ("nvidia:1,,cpu:1", "'' is not"),
        ("nvidia:1@", "'nvidia:1@' is not"),
        ("nvidia:1@a b", "'nvidia:1@a b' is not"),
        ("nvidia:1:2", "'nvidia:1:2' is not"),
        ("cpu:0", "cpu:0 has no rank"),
        ("intel:2", "no vendor 'intel' is known; nvidia, amd, ascend, cpu, oneccl are"),
        ("cpu:1,gaudi:1", "no vendor 'gaudi' is known"),
    ],
)
def test_another_fleet_is_refused_in_one_sentence(text: str, complaint: str) -> None:
    with pytest.raises(isthmus.ArgumentError) as caught:
        rehearse.parse_fleet(text)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--fleet", "tpu:1"], "no vendor 'tpu'"),
        (["--fleet", "cpu:1", "--set", "JITTER_US"], "write NAME=VALUE"),
        (["--fleet", "cpu:1", "--set", "FLEET=none"], "'FLEET' is no switch"),
        (["--fleet", "cpu:1", "--set", "jitter=0"], "'jitter' is no switch"),
        (["--fleet", "cpu:1", "--set", "QUEUE=2"], "'QUEUE' is no switch; there are QUEUES, "),
    ],
)
def test_a_wrong_option_ends_with_2(arguments: list[str], complaint: str) -> None:
    ended = command("rehearse", *arguments, "--", sys.executable, "-c", ECHO)
    assert ended.returncode == 2 and not ended.stdout
    assert ended.stderr.startswith("isthmus rehearse: ") and complaint in ended.stderr and ended.stderr.count("\n") == 1


def test_a_rehearsal_needs_a_program_that_can_be_started() -> None:
    assert command("rehearse", "--fleet", "cpu:1").returncode == 2
    ended = command("rehearse", "--fleet", "cpu:1", "--", "no-such-program")
    assert ended.returncode == 2 and "cannot start no-such-program" in ended.stderr and "Traceback" not in ended.stderr


def test_missing_libraries_are_named(tmp_path: Path) -> None:
    ended = command(
        "rehearse", "--fleet", "cpu:1,nvidia:1", "--", sys.executable, "-c", ECHO, env={"REHEARSAL_LIBRARIES": str(tmp_path)}
    )
    assert ended.returncode == 1 and not ended.stdout
    assert f"{tmp_path}/librehearsal.so is missing" in ended.stderr and ended.stderr.count("\n") == 1


def test_every_line_is_marked_and_a_banner_comes_first() -> None:
    ended = command("rehearse", "--fleet", "cpu:1,oneccl:1", "--", sys.executable, "-c", ECHO)
    assert ended.returncode == 0, ended.stderr
    errors = ended.stderr.splitlines()
    assert errors[0] == "rehearsal: cpu:1,oneccl:1 — simulated vendors; no figure printed below is a measurement"
    assert sorted(errors[1:]) == ["[rehearsal 0 cpu] oops", "[rehearsal 1 oneccl] oops"]
    assert sorted(ended.stdout.splitlines()) == ["[rehearsal 0 cpu] rank 0", "[rehearsal 1 oneccl] rank 1"]


def test_a_fleet_of_cpus_works_together() -> None:
    program = "import isthmus; c = isthmus.init(); x = bytearray([1]); c.all_reduce(x, 'sum'); print(x[0]); c.destroy()"
    ended = command("rehearse", "--fleet", "cpu:2", "--bridge", "shm", "--", sys.executable, "-c", program)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["[rehearsal 0 cpu] 2", "[rehearsal 1 cpu] 2"]


def test_topo_of_a_rehearsal_says_so() -> None:
    topo = [sys.executable, "-m", "isthmus", "topo"]
    ended = command("rehearse", "--fleet", "cpu:1@a,cpu:1@b", "--bridge", "tcp", "--", *topo, "--json")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert all(line.startswith("[rehearsal 0 cpu] ") for line in lines)
    data = json.loads("\n".join(line.removeprefix("[rehearsal 0 cpu] ") for line in lines))
    assert data["rehearsal"] == "cpu:1@a,cpu:1@b" and [group["island"] for group in data["groups"]] == ["a", "b"]
    assert layout.Layout(data).title.endswith("(rehearsal of cpu:1@a,cpu:1@b)")


# `isthmus doctor` where there is no torch: to import it takes seconds, and none of this is about it.
ALONE = "import sys; sys.modules['torch'] = None; from isthmus.__main__ import main; sys.exit(main())"
DOCTOR = [sys.executable, "-c", ALONE, "doctor", "--no-test"]


@pytest.mark.parametrize(("vendor", "device", "waits"), [("ascend", "acl:0", False), ("nvidia", "cuda:0", True)])
def test_doctor_says_whether_a_devices_streams_wait_for_the_host(vendor: str, device: str, waits: bool) -> None:
    ended = command("rehearse", "--fleet", f"{vendor}:1", "--", *DOCTOR, env={"COLUMNS": "400"})
    said = " ".join(line.removeprefix(f"[rehearsal 0 {vendor}] ").strip() for line in ended.stdout.splitlines())
    assert f"ISTHMUS_DEVICE={device}, as this environment has it: a rank works on it" in said, ended.stdout + ended.stderr
    assert "ranks on host memory, where ISTHMUS_DEVICE=host" in said and "the default" not in said.split("torch")[0], said
    sentence = "its streams cannot wait for the host, so calls block until the exchange is done"
    assert (sentence not in said) == waits, said


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (None, "ranks on host memory; ISTHMUS_DEVICE=host, the default"),
        ("host", "ranks on host memory; ISTHMUS_DEVICE=host, as this environment has it"),
        ("cuda", "ISTHMUS_DEVICE=cuda, as this environment has it: a rank works on the one of its local number"),
        ("cuda:1", "ISTHMUS_DEVICE=cuda:1, as this environment has it: a rank works on it"),
        ("hip", "ISTHMUS_DEVICE=cuda:1 makes a rank work on it"),
    ],
)
def test_doctor_says_on_what_a_rank_would_work(chosen: str | None, words: str) -> None:
    """Here in a process that finds two simulated devices of NVIDIA's."""
    libraries = Path(isthmus.__file__).parent / "rehearsal" / "nvidia"
    env = {"LD_LIBRARY_PATH": str(libraries), "REHEARSAL_DEVICES": "2", "REHEARSAL_QUIET": "1", "COLUMNS": "400"}
    ended = program(DOCTOR, env=env | ({"ISTHMUS_DEVICE": chosen} if chosen else {}))
    assert words in " ".join(ended.stdout.split()), ended.stdout + ended.stderr


def test_data_is_marked_in_a_rehearsal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(rehearse.FLEET, raising=False)
    assert common.mark({"ok": True}) == {"ok": True}
    monkeypatch.setenv(rehearse.FLEET, "cpu:2")
    assert common.mark({"ok": True}) == {"ok": True, "rehearsal": "cpu:2"}
    assert json.loads(program([*DOCTOR, "--json"]).stdout)["rehearsal"] == "cpu:2"


def test_the_figures_of_a_benchmark_are_marked(tmp_path: Path) -> None:
    files = [tmp_path / "ours", tmp_path / "theirs"]
    bench = [str(Path(isthmus.__file__).parent / "bin" / "isthmus-bench"), *"all_reduce -b 1K -e 1K -n 2".split()]
    bench += ["--json", str(files[0]), "-J", str(files[1])]
    ended = command("rehearse", "--fleet", "cpu:2", "--", *bench)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for file in files:
        assert json.loads(file.read_text())["rehearsal"] == "cpu:2"
    assert json.loads(files[0].read_text())["simulated"] is True


def test_a_benchmark_says_that_it_measures_no_devices_memory(tmp_path: Path) -> None:
    file = tmp_path / "ours"
    bench = [str(Path(isthmus.__file__).parent / "bin" / "isthmus-bench"), *"all_reduce -b 1K -e 1K -n 2".split()]
    ended = command("rehearse", "--fleet", "amd:1,cpu:1", "--", *bench, "--json", str(file))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ranks = [line for line in ended.stdout.splitlines() if "#  Rank" in line]
    assert ranks[0].endswith("host memory; that of hip:0, which the rank works on, is not measured"), ranks
    assert ranks[1].endswith("host memory"), ranks
    found = json.loads(file.read_text())
    assert found["memory"] == "host" and found["devices_not_measured"] == [{"rank": 0, "device": "hip:0"}]


def test_every_switch_of_the_simulation_is_known_and_explained() -> None:
    root = Path(__file__).resolve().parents[2]
    sources = (root / "csrc" / "rehearsal").glob("*/*.cpp")
    read = {name for source in sources for name in re.findall(r'"REHEARSAL_([A-Z_]+)"', source.read_text())}
    assert read == set(rehearse.SWITCHES)
    page = (root / "docs" / "explain" / "devices.md").read_text()
    assert not [name for name in rehearse.SWITCHES if f"`{name}`" not in page]


def test_each_rank_has_the_variables_of_its_vendor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REHEARSAL_LIBRARIES", str(libraries(tmp_path)))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    monkeypatch.setenv("ISTHMUS_CCL", "oneccl")
    monkeypatch.setenv("ISTHMUS_CCL_LIBRARY", "/ccl")
    fleet = "nvidia:1,cpu:1@a,oneccl:1,ascend:1"
    program = [sys.executable, "-S", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    with rehearse.start(program, fleet, switches={"JITTER_US": "0", "REHEARSAL_SEED": "7"}) as job:
        nvidia, cpu, oneccl, ascend = [json.loads(result.stdout) for result in job.wait(patient(60))]
    assert nvidia["LD_LIBRARY_PATH"] == f"{tmp_path}/nvidia:/before" and nvidia["ISTHMUS_DEVICE"] == "cuda:0"
    assert nvidia["REHEARSAL_DEVICES"] == "1"
    assert "ISTHMUS_CCL" not in nvidia and "ISTHMUS_CCL_LIBRARY" not in nvidia and "ISTHMUS_ISLAND" not in nvidia
    assert cpu["LD_LIBRARY_PATH"] == "/before" and cpu["ISTHMUS_DEVICE"] == "host" and cpu["ISTHMUS_ISLAND"] == "a"
    assert "ISTHMUS_CCL" not in cpu and "REHEARSAL_DEVICES" not in cpu
    assert (oneccl["ISTHMUS_DEVICE"], oneccl["ISTHMUS_CCL"], oneccl["ISTHMUS_CCL_LIBRARY"]) == ("host", "oneccl", "/ccl")
    assert ascend["LD_LIBRARY_PATH"] == f"{tmp_path}/ascend:/before" and ascend["ISTHMUS_DEVICE"] == "acl:0"
    assert ascend["REHEARSAL_DEVICES"] == "1" and "ISTHMUS_CCL" not in ascend
    for rank in nvidia, cpu, oneccl, ascend:
        assert rank["REHEARSAL_FLEET"] == fleet
        assert rank["REHEARSAL_JITTER_US"] == "0" and rank["REHEARSAL_SEED"] == "7"


def test_a_switch_goes_before_what_a_vendor_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REHEARSAL_LIBRARIES", str(libraries(tmp_path)))
    program = [sys.executable, "-S", "-c", "import os; print(os.environ['REHEARSAL_DEVICES'])"]
    with rehearse.start(program, "nvidia:1", switches={"DEVICES": "4"}) as job:
        assert job.wait(patient(60))[0].stdout == "4\n"


def test_it_ends_as_launch_does() -> None:
    program = "import os, sys, time; r = int(os.environ['RANK']); time.sleep(300 * r) if r == 2 else sys.exit(3 * r)"
    deadline = str(patient(5))  # in which two interpreters start and end
    ended = command("rehearse", "--fleet", "cpu:3", "--timeout", deadline, "--", sys.executable, "-S", "-c", program)
    assert ended.returncode == 1
    assert "rehearse: rank 1 ended with status 3" in ended.stdout
    assert f"rehearse: rank 2 still ran after {float(deadline):g} s, the timeout, and was killed" in ended.stdout
    assert "rank 0" not in ended.stdout


def test_lines_are_passed_on_whole_and_when_they_come(capfd: pytest.CaptureFixture[str]) -> None:
    writes = ["a", "b\nc\r", "\nd\re\r", "f", "\n\ng\r\r\nlast"]
    program = f"import os, time; [(os.write(1, w.encode()), time.sleep(0.1)) for w in {writes!r}]"
    with launch.start([sys.executable, "-S", "-c", program], 1, prefixes=["> "]) as job:
        assert job.wait(patient(60))[0].returncode == 0
    assert capfd.readouterr().out == "> ab\n> c\r\n> d\r> e\r> f\n> \n> g\r> \r\n> last\n"


def test_much_output_is_passed_on_and_none_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys; sys.stdout.write('x' * 1_000_000 + '\\n'); [print(i) for i in range(50_000)]"
    with launch.start([sys.executable, "-S", "-c", program], 2, prefixes=["0 ", "1 "]) as job:
        assert [result.returncode for result in job.wait(patient(60))] == [0, 0]
    lines = capfd.readouterr().out.splitlines()
    for rank in "01":
        mine = [line[2:] for line in lines if line[:2] == f"{rank} "]
        assert mine == ["x" * 1_000_000, *map(str, range(50_000))]
    assert len(lines) == 2 * 50_001


def test_a_process_that_a_rank_leaves_behind_is_not_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid)"
    begin = time.monotonic()
    with launch.start([sys.executable, "-S", "-c", program], 1, prefixes=["> "]) as job:
        job.wait(patient(60))
    assert time.monotonic() - begin < SOON
    os.kill(int(capfd.readouterr().out.removeprefix("> ")), 9)


def test_nobody_reads_any_more(tmp_path: Path) -> None:
    """As with `| head -1`: the ranks notice, nothing hangs, nothing is lost in a traceback of ours."""
    program = [sys.executable, "-m", "isthmus", "rehearse", "--fleet", "cpu:1", "--timeout", "200", "--", "yes"]
    with open(tmp_path / "errors", "w+") as errors:
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=errors, text=True) as job:
            assert job.stdout and job.stdout.readline() == "[rehearsal 0 cpu] y\n"
            job.stdout.close()
            assert job.wait(2 * SOON) != 0
        errors.seek(0)
        assert "Traceback" not in errors.read()


def test_islands_prefixes_and_variables_are_one_for_each_rank() -> None:
    with pytest.raises(isthmus.ArgumentError, match="prefixes has 1 entries, but there are 2 ranks"):
        launch.start(["true"], 2, prefixes=["> "])
    with pytest.raises(isthmus.ArgumentError, match="each has 3"):
        launch.start(["true"], 2, each=[{}, {}, {}])
