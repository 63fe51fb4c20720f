"""Ranks in process namespaces of their own that share a network, like containers of one pod: all of them are process 1."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from hosts import RANK, Process, end, line, missing
from isthmus import launch
from patience import SOON

# What is ended by its id is unshare, whose number is of our namespace; the rank ends with it.
APART = ["unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--"]


@pytest.fixture
def ranks() -> Iterator[list[Process]]:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        missing("process namespaces need root and util-linux's `unshare`")
    tried = subprocess.run([*APART, "true"], capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode != 0:
        missing(f"this kernel or container allows no process namespaces: {' '.join(tried.stderr.split())}")
    address = f"127.0.0.1:{launch.free_port()}"
    common = {"ISTHMUS_WORLD_SIZE": "2", "ISTHMUS_ADDRESS": address, "ISTHMUS_TIMEOUT": str(2 * SOON)}
    pipe = subprocess.PIPE
    started: list[Process] = []
    try:
        for rank in range(2):
            given = {**os.environ, **common, "ISTHMUS_RANK": str(rank)}
            command = [*APART, sys.executable, str(RANK), "containers"]
            started.append(subprocess.Popen(command, env=given, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        yield started
    finally:
        end(started)


@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_of_one_number_share_memory_and_one_that_is_killed_is_named_to_the_other(
    ranks: list[Process], victim: int
) -> None:
    for rank in ranks:
        said = line(rank)
        assert said["pid"] == 1 and said["pids"] == [1, 1], said
        assert said["hosts"] == [[0, 1]] and said["links"] == ["memory"] and said["right"] == [True, True], said
        assert line(rank) == "ready"
    time.sleep(0.2)  # of traffic
    ranks[victim].kill()
    survivor = ranks[1 - victim]
    said = line(survivor)
    assert said["kind"] == "PeerLostError" and f"rank {victim}" in said["text"], said
    assert survivor.wait(SOON) == 0
