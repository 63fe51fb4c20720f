"""torchft works on this library: its tests of a process group pass, and its Manager carries three replicas through losses.

torchft lies in build/torchft (scripts/torchft_packages.py), beside .venv.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from patience import SOON, patient

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "build" / "torchft"
COLLECTIVES = (
    "allgather",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall_base",
    "barrier",
    "broadcast",
    "broadcast_one",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "send/recv",
)
CASES = (
    *(f"test_collective_{name}" for name in COLLECTIVES),
    *(f"test_collective_with_resiliency_{name}" for name in COLLECTIVES),
    "test_gloo_apis_0_cpu",
    "test_gloo_timeout",
    "test_functional_collectives",
)
WHEELS = sys.version_info < (3, 14) and platform.machine() == "x86_64"  # of torchft 0.2.0
TOGETHER = "torchft"  # all cases are one process's


@pytest.fixture(scope="module", autouse=True)
def torchft() -> None:
    if not (FOLDER / "torchft").is_dir():
        reason = "no torchft in build/torchft: scripts/torchft_packages.py installs it, where there is a wheel of it"
        assert not os.environ.get("CI") or not WHEELS, reason
        pytest.skip(reason)


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(FOLDER), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@functools.cache
def outcomes() -> tuple[dict[str, str], str]:
    """What became of each of torchft's tests, and all that was said."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        said = subprocess.run(
            [sys.executable, HERE / "torchft_runner.py", out],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patient(200),
        )
        return json.loads(out.read_text()) if out.exists() else {}, said.stdout


@pytest.mark.timeout(patient(240))
@pytest.mark.parametrize("name", CASES)
def test_torchfts_own_test_of_a_process_group_passes(name: str) -> None:
    words, said = outcomes()
    assert words, said[-4000:]
    assert words[name] == "passed", said[-8000:]


def test_no_test_of_torchfts_is_forgotten() -> None:
    assert sorted(outcomes()[0]) == sorted(CASES)


class Process:
    """torchft_replica.py, spoken to by lines."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.errors = folder / f"{'-'.join(w.replace('/', '') for w in words[:2])}-{id(self)}.err"
        with self.errors.open("w") as errors:
            self.child = subprocess.Popen(
                [sys.executable, str(HERE / "torchft_replica.py"), *words],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.lines: Queue[dict[str, Any] | None] = Queue()
        self.told: list[dict[str, Any]] = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def next(self) -> dict[str, Any]:
        try:
            told = self.lines.get(timeout=SOON)
        except Empty:
            told = None
        assert told is not None, f"said nothing more\n{self.errors.read_text()[-6000:]}"
        self.told.append(told)
        return told

    def until(self, **wanted: Any) -> dict[str, Any]:
        """The first line from now on that has these values."""
        for _ in range(5000):
            told = self.next()
            if all(told.get(key) == value for key, value in wanted.items()):
                return told
        raise AssertionError(f"never said {wanted}; last {self.told[-3:]}")

    def stand(self) -> None:
        """Until the replica stands still, with the others in an operation that waits for it."""
        self.say("stand")
        self.until(stands=True)

    def say(self, word: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{word}\n")
        self.child.stdin.flush()

    def end(self) -> int:
        """Reads what it says until it has ended."""
        while (told := self.lines.get(timeout=patient(60))) is not None:
            self.told.append(told)
        return self.child.wait(SOON)

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGKILL)
        self.child.wait(SOON)
        self.reader.join(SOON)
        for end in (self.child.stdin, self.child.stdout):
            if end is not None:
                end.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def start(*words: str) -> Process:
        started.append(Process(tmp_path, *words))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_torchfts_manager_carries_three_replicas_through_a_kill_a_stop_and_their_return(start: Any) -> None:
    """Step by step each replica says how many took part, and a digest of its weights."""
    lighthouse = start("lighthouse", str(patient(1)))
    address = lighthouse.next()["address"]
    replicas = [start("replica", str(number), address, str(patient(3))) for number in range(3)]
    for one in replicas:
        one.until(participants=3, committed=True)

    killed = replicas[2]
    killed.stand()
    killed.child.send_signal(signal.SIGKILL)
    for one in replicas[:2]:
        assert "peer lost" in one.until(committed=False)["error"]
        one.until(participants=2, committed=True)
    replicas[2] = start("replica", "2", address, str(patient(3)))  # another process in its place
    for one in replicas:
        one.until(participants=3, committed=True)

    stopped = replicas[1]
    stopped.stand()
    stopped.child.send_signal(signal.SIGSTOP)
    for one in (replicas[0], replicas[2]):
        late = one.until(committed=False)["error"]
        assert "timeout" in late and ("has not called it" in late or "does not answer" in late), late
        one.until(participants=2, committed=True)
    stopped.child.send_signal(signal.SIGCONT)
    stopped.say("go on")
    for one in replicas:
        one.until(participants=3, committed=True)

    assert replicas[0].child.stdin is not None
    replicas[0].child.stdin.close()
    assert [one.end() for one in replicas] == [0, 0, 0]
    digests: dict[int, set[str]] = {}
    for one in (*replicas, killed):
        for told in one.told:
            if told["committed"]:
                digests.setdefault(told["step"], set()).add(told["digest"])
    assert len(digests) > 5 and all(len(found) == 1 for found in digests.values()), digests
