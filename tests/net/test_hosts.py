"""Two hosts: network namespaces with one cable between them, which a test can cut. Needs root and `ip` (iproute2).

To Isthmus these are two hosts, since a host's identity is its boot and its network namespace: nothing is shared but TCP.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ADDRESSES = {"IPv4": "10.213.7.{}", "IPv6": "fd5a:213:7::{}"}
RANK = Path(__file__).with_name("host_rank.py")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


class Hosts:
    def __init__(self) -> None:
        self.names = [f"isthmus-{os.getpid()}-{n}" for n in (0, 1)]

    def build(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", "cable0", "netns", self.names[0], "type", "veth", "peer", "name", "cable1", "netns", self.names[1])
        for n, name in enumerate(self.names):
            ip("-n", name, "address", "add", ADDRESSES["IPv4"].format(n + 1) + "/24", "dev", f"cable{n}")
            ip("-n", name, "address", "add", ADDRESSES["IPv6"].format(n + 1) + "/64", "dev", f"cable{n}", "nodad")
            for link in ("lo", f"cable{n}"):
                ip("-n", name, "link", "set", link, "up")

    def cut(self) -> None:
        ip("-n", self.names[0], "link", "set", "cable0", "down")

    def remove(self) -> None:
        for name in self.names:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)

    def start(self, family: str, *arguments: str, settings: dict[str, str] | None = None) -> list[subprocess.Popen[str]]:
        """Rank n on host n; they meet at rank 0's address of that family."""
        host = ADDRESSES[family].format(1)
        address = f"[{host}]:29511" if family == "IPv6" else f"{host}:29511"
        ranks = []
        for n, name in enumerate(self.names):
            variables = {"ISTHMUS_RANK": str(n), "ISTHMUS_WORLD_SIZE": "2", "ISTHMUS_ADDRESS": address, **(settings or {})}
            command = ["ip", "netns", "exec", name, sys.executable, str(RANK), *arguments]
            pipe = subprocess.PIPE
            ranks.append(
                subprocess.Popen(command, env={**os.environ, **variables}, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            )
        return ranks


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2's `ip`")
    made = Hosts()
    try:
        made.build()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"this kernel or container allows no network namespaces: {error.stderr.strip()}")
    yield made
    made.remove()


def line(rank: subprocess.Popen[str]) -> Any:
    """The next line of a rank, which is JSON."""
    assert rank.stdout is not None
    said = rank.stdout.readline()
    if not said:
        _, error = rank.communicate(timeout=20)
        raise AssertionError(f"the rank ended with {rank.returncode}: {error[-3000:]}")
    return json.loads(said)


def end(ranks: list[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.communicate(timeout=20)


@pytest.mark.parametrize("family", ADDRESSES)
def test_ranks_find_each_other_and_listen_only_where_the_rendezvous_is(hosts: Hosts, family: str) -> None:
    ranks = hosts.start(family, "work")
    try:
        for n, rank in enumerate(ranks):
            said = line(rank)
            assert said["sum"] == 3.0 and said["hosts"] == 2 and said["link"] == "tcp", said
            assert said["listens"] == [ADDRESSES[family].format(n + 1)], said
            assert rank.wait(20) == 0
    finally:
        end(ranks)


def test_a_unique_id_leads_to_its_host_where_no_route_leads_out(hosts: Hosts) -> None:
    ranks = hosts.start("IPv4", "by-id", settings={"ISTHMUS_TIMEOUT": "20"})
    try:
        identity = line(ranks[0])
        assert ranks[1].stdin is not None
        ranks[1].stdin.write(json.dumps(identity) + "\n")
        ranks[1].stdin.flush()
        assert [line(rank) for rank in ranks] == [2.0, 2.0]
    finally:
        end(ranks)


@pytest.mark.parametrize("family", ADDRESSES)
def test_a_host_that_vanishes_is_lost_long_before_the_deadline(hosts: Hosts, family: str) -> None:
    """No packet says so: only that nothing is acknowledged any more for 100 heartbeats."""
    ranks = hosts.start(family, "until-error", settings={"ISTHMUS_HEARTBEAT_MS": "20", "ISTHMUS_TIMEOUT": "60"})
    try:
        for rank in ranks:
            assert line(rank) == "ready"
        time.sleep(0.3)
        cut = time.monotonic()
        hosts.cut()
        for n, rank in enumerate(ranks):
            said = line(rank)
            assert said["kind"] == "PeerLostError" and f"rank {1 - n}" in said["text"], said
            assert "unreachable" in said["text"], said
            assert 1 < said["at"] - cut < 10, said
    finally:
        end(ranks)


def test_a_process_that_is_stopped_on_another_host_is_late_and_not_lost(hosts: Hosts) -> None:
    """Its host acknowledges what it does not read, so only the operation's deadline ends the wait."""
    ranks = hosts.start("IPv4", "until-error", settings={"ISTHMUS_HEARTBEAT_MS": "10", "ISTHMUS_TIMEOUT": "3"})
    try:
        for rank in ranks:
            assert line(rank) == "ready"
        ranks[1].send_signal(signal.SIGSTOP)
        said = line(ranks[0])
        assert said["kind"] == "TimeoutError" and "rank 1" in said["text"] and "does not answer" in said["text"], said
    finally:
        end(ranks)
