"""What the log says, and where it says it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus import launch
from patience import SOON

# Rank 0 leaves, or dies, while rank 1 waits for a word; before that all have met.
PROGRAM = """
import os, signal, sys, isthmus
comm = isthmus.init()
comm.barrier()
if comm.rank == 1:
    sys.stdin.readline()
elif sys.argv[1:] == ["dies"]:
    os.kill(os.getpid(), signal.SIGKILL)
comm.destroy()
"""


def rank(number: int, address: str, env: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    inherited = {k: v for k, v in launch.environment(0, 1, 1).items() if not k.startswith("ISTHMUS_")}
    own = {"ISTHMUS_RANK": str(number), "ISTHMUS_WORLD_SIZE": "2", "ISTHMUS_ADDRESS": address, "ISTHMUS_LOG": "info"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**inherited, **own, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def survivors_log(env: dict[str, str], ending: str, *arguments: str) -> str:
    """Stderr of rank 1, which ends when it has said `ending` of rank 0."""
    address = f"127.0.0.1:{launch.free_port()}"
    both = [rank(number, address, env, *arguments) for number in range(2)]
    said: list[str] = []
    too_late = threading.Timer(SOON, both[1].kill)  # ends the reading
    too_late.start()
    try:
        assert both[1].stderr is not None
        for line in both[1].stderr:
            said.append(line)
            if ending in line:
                break
        said.append(both[1].communicate("go on\n", timeout=SOON)[1])
        both[0].communicate(timeout=SOON)
    finally:
        too_late.cancel()
        for process in both:
            process.kill()
            process.wait()
    return "".join(said)


def test_a_normal_end_is_no_loss() -> None:
    said = survivors_log({}, "process")
    assert re.search(r"process \d+ on host \S+ \(.*\) has ended its use of Isthmus\n", said), said
    assert "lost" not in said, said


def test_a_death_is_a_loss() -> None:
    said = survivors_log({}, "lost process", "dies")
    assert re.search(r"lost process \d+ on host \S+ \(.*\) ended", said), said
    assert "has ended its use" not in said, said


def test_each_line_names_the_rank_beside_the_process() -> None:
    said = survivors_log({}, "has ended its use")
    lines = [line for line in said.splitlines() if line.startswith("[isthmus ")]
    assert len(lines) > 1
    head = r"\[isthmus \d+ rank 1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info\] "
    assert all(re.match(head, line) for line in lines), said


def test_each_rank_has_its_own_log_file(tmp_path: Path) -> None:
    ended = []
    with launch.start(
        [sys.executable, "-c", "import isthmus; isthmus.init().barrier()"],
        2,
        env={"ISTHMUS_LOG": "info", "ISTHMUS_LOG_FILE": str(tmp_path / "%h.%r")},
    ) as job:
        ended = job.wait(SOON)
    assert [end.returncode for end in ended] == [0, 0], ended
    assert not any("[isthmus" in end.stderr for end in ended), ended
    files = sorted(tmp_path.iterdir())
    assert [file.name.rpartition(".")[2] for file in files] == ["0", "1"]
    for number, file in enumerate(files):
        assert f" rank {number} " in file.read_text() and "communicator 'world'" in file.read_text()


@pytest.mark.parametrize(
    ("pattern", "fault"), [("/tmp/%x", "%x stands for nothing; expected a path"), ("log%", "it ends with a lone %")]
)
def test_a_wrong_pattern_is_refused_in_words(pattern: str, fault: str) -> None:
    process = rank(0, "127.0.0.1:1", {"ISTHMUS_LOG_FILE": pattern})
    _, said = process.communicate(timeout=SOON)
    assert process.returncode != 0 and f"ConfigError: ISTHMUS_LOG_FILE={pattern}: {fault}" in said, said


def test_a_log_that_nobody_reads_stops_no_rank_and_says_how_much_was_lost(processes: Callable[..., list[Any]]) -> None:
    def body() -> tuple[float, str]:
        os.environ.update(ISTHMUS_LOG="debug", ISTHMUS_HEARTBEAT_MS="20")
        end, unread = os.pipe()
        os.set_blocking(unread, False)
        with suppress(BlockingIOError):
            while True:
                os.write(unread, b"\n" * 4096)
        os.set_blocking(unread, True)
        was = os.dup(2)
        os.dup2(unread, 2)
        comm = isthmus.init()
        x = comm.all_reduce(np.ones(1 << 20))
        split = comm.split(0)  # the log tells of it
        assert split is not None
        full = os.read(end, 1 << 20)
        split.destroy()
        again = comm.split(0)
        assert again is not None
        again.destroy()
        comm.destroy()
        os.dup2(was, 2)
        os.set_blocking(end, False)
        with suppress(BlockingIOError):
            while piece := os.read(end, 1 << 16):
                full += piece
        return float(x.min()), full.decode()

    for least, said in processes(2, body, init=False):
        assert least == 2.0
        assert re.search(r"warning\] \d+ lines were lost, since nobody has read the log\n", said), said
