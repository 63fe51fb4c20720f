"""Rehearsals whose islands are hosts with interfaces of a stated rate. Needs root, `ip` and `tc`, and network namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import isthmus
from hosts import missing
from isthmus import rehearse
from isthmus._hosts import Hosts
from patience import SOON

RANK = Path(__file__).with_name("links_rank.py")
MARK = "LINKS_TEST"  # in the environment of all that a test starts
OURS = os.stat("/proc/self/ns/net").st_ino


@pytest.fixture(autouse=True)
def _possible() -> None:
    try:
        Hosts({"a": 1.0}).close()
    except isthmus.Error as error:
        missing(str(error))


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(MARK, str(tmp_path))
    file = tmp_path / "links.json"
    file.write_text(json.dumps({"cpu": {"bridge_mbps": 40}, "b": {"bridge_mbps": 20}}))
    yield file
    deadline = time.monotonic() + SOON
    while (left := namespaces(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, "namespaces are left behind"


def namespaces(test: Path) -> set[int]:
    """Other than ours, of processes that a test has started: it lasts no longer than they do, since it has no name."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={test}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.add((process / "ns" / "net").stat().st_ino)
    return found - {OURS}


def test_islands_are_hosts_and_no_faster_than_their_bridges(links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_TIMEOUT", str(2 * SOON))
    nbytes = 4 << 20
    with rehearse.start([sys.executable, str(RANK), str(nbytes)], "cpu:2,cpu:1@b", links=links) as job:
        assert namespaces(links.parent), "the mark of this test is not seen"
        ended = job.wait(3 * SOON)
    assert [end.returncode for end in ended] == [0, 0, 0], [end.stderr[-2000:] for end in ended]
    ranks = [json.loads(end.stdout) for end in ended]
    # Both islands send and receive the whole; what the buckets let pass at once is free.
    least = (nbytes - 2 * (256 << 10)) / 20e6
    for rank in ranks:
        assert rank["x"] == 27.0 and rank["hosts"] == [[0, 1], [2]], rank
        assert rank["weights"] == {"cpu": 40.0, "b": 20.0}, rank
    # From the first rank that leaves the barrier to the last that has its result, in the faster of the rounds.
    rounds = zip(*(rank["times"] for rank in ranks), strict=True)
    seconds = min(max(end for _, end in times) - min(begin for begin, _ in times) for times in rounds)
    assert least <= seconds, ranks
    assert ranks[0]["namespace"] == ranks[1]["namespace"]
    assert len({rank["namespace"] for rank in ranks} | {OURS}) == 3
    assert [rank["local"] for rank in ranks] == [["0", "2"], ["1", "2"], ["0", "1"]]


def test_declared_rates_of_the_environment_go_first(links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_BRIDGE_RATES", "b:7")
    monkeypatch.setenv("ISTHMUS_TIMEOUT", str(2 * SOON))
    with rehearse.start([sys.executable, str(RANK), "1024"], "cpu:1,cpu:1@b", links=links) as job:
        ended = job.wait(3 * SOON)
    assert [end.returncode for end in ended] == [0, 0], [end.stderr[-2000:] for end in ended]
    assert json.loads(ended[0].stdout)["weights"] == {"cpu": 1.0, "b": 7.0}


def test_a_program_that_cannot_be_started_leaves_nothing(links: Path) -> None:
    with pytest.raises(isthmus.ArgumentError, match="cannot start no-such-program"):
        rehearse.start(["no-such-program"], "cpu:1,cpu:1@b", links=links)


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_nothing(links: Path, number: signal.Signals) -> None:
    over = links.parent / "over"
    waits = f"import os, time; print('ready', flush=True)\nwhile not os.path.exists({str(over)!r}): time.sleep(0.02)"
    program = [sys.executable, "-S", "-c", waits]
    command = [sys.executable, "-m", "isthmus", "rehearse", "--fleet", "cpu:1@b", "--links", str(links)]
    links.write_text('{"b": {"bridge_mbps": 1}}')
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    # A shell that starts a job in the background lets it ignore SIGINT, and so do all that the job starts.
    with subprocess.Popen([*command, "--", *program], preexec_fn=_heed_interrupts, **pipes) as job:
        assert job.stdout and "ready" in job.stdout.readline()
        job.send_signal(number)
        assert job.wait(2 * SOON) != 0
    if number == signal.SIGKILL:  # nobody could end the rank: it goes on until its own end, and its namespace until then
        over.touch()
