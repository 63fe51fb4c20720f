"""Local ranks: how a job of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus import __main__, launch
from patience import SOON, patient

# Rank 1 fails. The others go on: they end `sys.argv[2]` seconds after it has ended.
PROGRAM = """
import os, sys, time
folder, after = sys.argv[1:]
name = os.path.join(folder, "rank 1")
if os.environ["RANK"] == "1":
    with open(name + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(name + ".new", name)
    sys.exit(3)
while not os.path.exists(name):
    time.sleep(0.01)
time.sleep(float(after))
"""


def codes(results: list[launch.Result]) -> list[int]:
    return [result.returncode for result in results]


def test_a_rank_that_fails_ends_the_ranks_before_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.2)
    begin = time.monotonic()
    with launch.start([sys.executable, "-S", "-c", PROGRAM, str(tmp_path), "600"], 3) as job:
        assert codes(job.wait(SOON)) == [-signal.SIGKILL, 3, -signal.SIGKILL]
    assert time.monotonic() - begin < SOON


def test_ranks_that_end_in_time_after_a_failure_are_not_killed(tmp_path: Path) -> None:
    with launch.start([sys.executable, "-S", "-c", PROGRAM, str(tmp_path), "0.3"], 2) as job:
        assert codes(job.wait(patient(60))) == [0, 3]


def test_a_job_that_is_to_keep_going_does_so_without_a_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.0)
    with launch.start([sys.executable, "-S", "-c", PROGRAM, str(tmp_path), "0.5"], 3) as job:
        assert codes(job.wait(patient(60), keep_going=True)) == [0, 3, 0]


def test_a_job_that_is_to_keep_going_ends_at_its_deadline_all_the_same(tmp_path: Path) -> None:
    with launch.start([sys.executable, "-S", "-c", PROGRAM, str(tmp_path), "600"], 2) as job:
        while not (tmp_path / "rank 1").exists():
            time.sleep(0.01)
        assert codes(job.wait(patient(1), keep_going=True)) == [-signal.SIGKILL, 3]


def test_a_result_says_whom_the_job_itself_has_killed_and_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.2)
    with launch.start([sys.executable, "-S", "-c", PROGRAM, str(tmp_path), "600"], 2) as job:
        zero, one = job.wait(SOON)
    assert zero.killed == "still ran 0.2 s after rank 1 had failed" and one.killed == "" and job.ended == [1, 0]
    with launch.start([sys.executable, "-S", "-c", "import time; time.sleep(600)"], 1) as job:
        assert job.wait(0.5)[0].killed == "still ran after 0.5 s, the timeout"
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"  # as the kernel kills where memory runs out
    with launch.start([sys.executable, "-S", "-c", suicide], 1) as job:
        (other,) = job.wait(SOON)
    assert other.returncode == -signal.SIGKILL and other.killed == ""


@pytest.mark.parametrize("words", ["launch --ranks 2", "rehearse --fleet cpu:2"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_the_command_line_has_the_flag(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: str,
    goes_on: bool,
) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.0)
    for name in ("ISTHMUS_RANK", "ISTHMUS_WORLD_SIZE", "ISTHMUS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    flag = ["--keep-going"] if goes_on else []
    program = [sys.executable, "-S", "-c", PROGRAM, str(tmp_path), "0.5" if goes_on else "600"]
    assert __main__.main([*words.split(), "--timeout", str(SOON), *flag, "--", *program]) == 1
    said = capfd.readouterr().out
    killed = "rank 0 still ran 0 s after rank 1 had failed, and was killed"
    assert "rank 1 ended with status 3" in said and (killed in said) != goes_on, said
    assert goes_on or said.index("rank 1 ended") < said.index("rank 0 still ran"), said  # in the order of their ends


# ---- what a rank has started -----------------------------------------------------------------------------------------


def lives(pid: int) -> bool:
    """Not where it has ended, and nobody has asked for its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def marked(mark: str) -> list[int]:
    """The processes that have this in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            pass
    return found


def until_there(file: Path) -> str:
    limit = time.monotonic() + SOON
    while not file.exists() or not file.read_text().endswith("\n"):
        assert time.monotonic() < limit, f"{file} has not come"
        time.sleep(0.01)
    return file.read_text()


def test_the_end_of_a_job_ends_what_a_shell_has_started(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f'sh -c "sleep 600; true" & echo $! > {tmp_path}/$RANK\nsleep 600\ntrue\n')
    mark = f"ISTHMUS_TEST_MARK={tmp_path}"
    with launch.start(["sh", str(script)], 2, env={"ISTHMUS_TEST_MARK": str(tmp_path)}):
        below = [int(until_there(tmp_path / str(rank))) for rank in range(2)]
        assert all(map(lives, below)) and len(marked(mark)) >= 4
    assert not any(map(lives, below)) and marked(mark) == []


def test_what_is_below_a_rank_ends_also_in_a_session_of_its_own_or_stopped(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "a = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "b = subprocess.Popen([sys.executable, '-S', '-c', "
        '"import os, signal; os.fork(); os.kill(os.getpid(), signal.SIGSTOP)"])\n'
        "open(sys.argv[1], 'w').write(f'{a.pid} {b.pid}\\n')\n"
        "time.sleep(600)"
    )
    mark = f"ISTHMUS_TEST_MARK={tmp_path}"
    command = [sys.executable, "-S", "-c", program, str(tmp_path / "pids")]
    with launch.start(command, 1, env={"ISTHMUS_TEST_MARK": str(tmp_path)}) as job:
        below = [int(pid) for pid in until_there(tmp_path / "pids").split()]
        assert all(map(lives, below))
        assert codes(job.wait(0.2)) == [-signal.SIGKILL]
        assert not any(map(lives, below)) and marked(mark) == []


def test_no_process_escapes_that_is_started_while_the_others_are_killed(tmp_path: Path) -> None:
    """Each rank starts processes without a pause, which start others."""
    script = f"echo > {tmp_path}/$RANK; while true; do (sleep 600; true) & done"
    mark = f"ISTHMUS_TEST_MARK={tmp_path}"
    with launch.start(["sh", "-c", script], 2, env={"ISTHMUS_TEST_MARK": str(tmp_path)}) as job:
        for rank in range(2):
            until_there(tmp_path / str(rank))
        job.kill()
        assert codes(job.wait()) == [-signal.SIGKILL] * 2 and marked(mark) == []


def test_other_children_of_this_process_live_on(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        with launch.start(["sh", "-c", f"echo > {tmp_path}/up; sleep 600; true"], 1):
            until_there(tmp_path / "up")
        assert other.poll() is None and lives(other.pid) and lives(os.getpid())
        other.kill()


IGNORES = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"


def test_ranks_that_fail_are_seen_also_where_who_started_the_command_ignores_the_end_of_children() -> None:
    words = [sys.executable, "-m", "isthmus", "launch", "--ranks", "2", "--", "false"]
    env = {k: v for k, v in os.environ.items() if k not in ("ISTHMUS_RANK", "ISTHMUS_WORLD_SIZE", "ISTHMUS_ADDRESS")}
    ended = subprocess.run(
        [sys.executable, "-S", "-c", IGNORES, *words], capture_output=True, text=True, timeout=SOON, check=False, env=env
    )
    assert ended.returncode == 1 and "rank 1 ended with status 1" in ended.stdout + ended.stderr, ended


def test_a_process_that_ignores_the_end_of_children_is_told_what_to_do() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(isthmus.ArgumentError, match="ignores SIGCHLD"):
            launch.start(["true"], 1)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_signal_that_comes_while_a_rank_is_started_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs the handler when fork and exec are done, and start() does not have the process yet."""
    started: list[int] = []

    class Signalled(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **more: Any) -> None:
            super().__init__(*words, **more)
            started.append(self.pid)
            if len(started) == 2:
                signal.raise_signal(signal.SIGTERM)

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    left: list[int] = []
    before = signal.signal(signal.SIGTERM, end)
    monkeypatch.setattr(subprocess, "Popen", Signalled)
    try:
        with pytest.raises(SystemExit):
            launch.start(["sleep", "600"], 3)
        left = [pid for pid in started if lives(pid)]
    finally:
        signal.signal(signal.SIGTERM, before)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert len(started) == 2 and left == []


def test_a_program_that_the_kernel_refuses_is_named_in_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    with pytest.raises(isthmus.ArgumentError, match=r"cannot start .*run\.sh: Exec format error; a script begins with #!"):
        launch.start([str(script)], 2)
