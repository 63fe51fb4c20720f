"""Ranks on two hosts, which are network namespaces (hosts.py): how they meet, and what they are told when one is gone."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from events import until
from hosts import ADDRESSES, Hosts, end, line, two_hosts
from patience import SOON, patient

PATIENT = {"ISTHMUS_TIMEOUT": str(2 * SOON)}


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_root_these_tests_fail_in_ci_and_are_skipped_elsewhere(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(outcome, match="network namespaces need root and iproute2's `ip`"), two_hosts():
        pass


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts() as made:
        yield made


@pytest.mark.parametrize("family", ADDRESSES)
def test_ranks_find_each_other_and_listen_only_where_the_rendezvous_is(hosts: Hosts, family: str) -> None:
    ranks = hosts.start(family, "work")
    try:
        for n, rank in enumerate(ranks):
            said = line(rank)
            assert said["sum"] == 3.0 and said["hosts"] == 2 and said["link"] == "tcp", said
            assert [address for address, _ in said["listens"]] == [ADDRESSES[family].format(n + 1)], said
            assert rank.wait(SOON) == 0
    finally:
        end(ranks)


def test_ranks_of_a_host_listen_at_ports_of_the_range_each_at_its_own(hosts: Hosts) -> None:
    settings = {"ISTHMUS_PORTS": "29510-29512", **PATIENT}  # the rendezvous is at 29511, and stays there
    ranks = hosts.start_on((0, 0, 1), [settings] * 3, "work")
    try:
        listens = [line(rank)["listens"] for rank in ranks]
        assert all(len(one) == 1 and one[0][1] in (29510, 29512) for one in listens), listens
        assert listens[0] != listens[1] and listens[0][0][0] == listens[1][0][0], listens
        assert [rank.wait(SOON) for rank in ranks] == [0] * 3
    finally:
        end(ranks)


def test_a_range_that_is_used_up_is_an_error_that_says_so(hosts: Hosts) -> None:
    settings = {"ISTHMUS_PORTS": "29600-29600", "ISTHMUS_TIMEOUT": str(patient(10))}
    ranks = hosts.start_on((0, 0), [settings] * 2, "work")
    try:
        errors = [rank.communicate(timeout=2 * SOON)[1] for rank in ranks]
        assert all(rank.returncode == 1 for rank in ranks), errors
        said = [error for error in errors if "ISTHMUS_PORTS=29600-29600: none of its 1 port is free" in error]
        assert len(said) == 1 and "ResourceError: rank " in said[0] and "Give a larger range" in said[0], errors
    finally:
        end(ranks)


def test_a_unique_id_leads_to_its_host_where_no_route_leads_out(hosts: Hosts) -> None:
    ranks = hosts.start("IPv4", "by-id", settings=PATIENT)
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
    ranks = hosts.start(family, "until-error", settings={"ISTHMUS_HEARTBEAT_MS": "20", **PATIENT})
    try:
        for rank in ranks:
            assert line(rank) == "ready"
        time.sleep(0.2)  # of traffic
        cut = time.monotonic()
        hosts.cut()
        for n, rank in enumerate(ranks):
            said = line(rank)
            assert said["kind"] == "PeerLostError" and f"rank {1 - n}" in said["text"], said
            assert f"rank {n} (" in said["text"] and ") does not reach rank " in said["text"], said
            assert "unreachable" in said["text"] and "check the path between these two hosts" in said["text"], said
            assert said["at"] - cut > 1, said
    finally:
        end(ranks)


def test_who_loses_the_way_to_a_rank_is_named_by_the_others_and_by_that_rank(hosts: Hosts) -> None:
    """The way is cut for so long that only rank 0 misses answers, as the others say little. Rank 2, which is beside it,
    hears of it, and tells rank 1 when the way is there again."""
    seldom, often = {"ISTHMUS_HEARTBEAT_MS": "60000", **PATIENT}, {"ISTHMUS_HEARTBEAT_MS": "20", **PATIENT}
    ranks = hosts.start_on((0, 1, 0), [often, seldom, seldom], "until-heard")
    try:
        for rank in ranks:
            assert line(rank) == "ready"
        time.sleep(0.2)
        hosts.silence("cable", [0])
        said = {n: line(ranks[n]) for n in (0, 2)}
        hosts.restore("cable", [0])
        assert ranks[2].stdin is not None
        print("leave", file=ranks[2].stdin, flush=True)
        said[1] = line(ranks[1])
        for n, one in said.items():
            assert one["kind"] == "PeerLostError" and one["ranks"] == [1], (n, one)
            cut = r"no longer reaches this rank" if n == 1 else r"does not reach rank 1 \(pid \d+ on [^)]+\)"
            said_there = rf"rank 0 \(pid \d+ on [^)]+\) {cut}: .*unreachable.*; check the path between"
            assert re.search(said_there, one["text"]), (n, one)
            assert "is gone" not in one["text"], (n, one)
    finally:
        end(ranks)


@pytest.mark.parametrize("mode", ["until-deadline", "late-messages"])
def test_a_network_that_is_slow_is_named_at_a_deadline(hosts: Hosts, mode: str) -> None:
    """Each rank waits for what the other sends, and both have called it."""
    ranks = hosts.start("IPv4", mode, str(1 << 20), settings=PATIENT)
    try:
        for rank in ranks:
            assert line(rank) == "ready"
        hosts.shape("cable", 0.5)
        for rank in ranks:
            assert rank.stdin is not None
            print(2, file=rank.stdin, flush=True)
        addresses = [ADDRESSES["IPv4"].format(n + 1) for n in (0, 1)]
        way = rf"the path between rank 0 \([^)]+, {addresses[0]}\) and rank 1 \([^)]+, {addresses[1]}\) is slow or blocked"
        for rank in ranks:
            said = line(rank)
            assert said["kind"] == "TimeoutError" and said["ranks"] == [], said
            assert re.search(way, said["text"]), said
            assert "several communicators" not in said["text"] and "ring" not in said["text"], said
    finally:
        end(ranks)


# What a process does not read fills its window, and a window that stays full ends a connection: so heartbeats to it stop.
# Then the kernel's probes tell whether its host is there, one a second, and one or two may be lost.
@pytest.mark.parametrize(
    ("seconds", "window", "outage"),
    [(3, None, None), (12, 16 << 10, None), (10, None, 1.5)],
    ids=["past the limit of a host that vanishes", "past a full window", "while no packet passes for a while"],
)
def test_a_process_that_is_stopped_on_another_host_is_late_and_not_lost(
    hosts: Hosts, seconds: int, window: int | None, outage: float | None
) -> None:
    """Its host acknowledges what it does not read, so only the operation's deadline ends the wait."""
    if window:
        hosts.set_receive_memory(1, window)
    ranks = hosts.start("IPv4", "until-deadline", settings={"ISTHMUS_HEARTBEAT_MS": "10", **PATIENT})
    try:
        for rank in ranks:
            assert line(rank) == "ready"
        ranks[1].send_signal(signal.SIGSTOP)
        assert ranks[0].stdin is not None
        print(seconds, file=ranks[0].stdin, flush=True)  # a host that vanishes is lost after one
        if outage:
            until(lambda: hosts.probes(0), "no more heartbeats")
            hosts.silence("cable")
            time.sleep(outage)
            hosts.restore("cable")
        said = line(ranks[0])
        assert said["kind"] == "TimeoutError" and "rank 1" in said["text"] and "does not answer" in said["text"], said
    finally:
        end(ranks)


def test_messages_that_a_slow_network_still_carries_come_though_their_sender_has_left(hosts: Hosts) -> None:
    """The word that it leaves goes by another connection, and comes seconds before the last of them."""
    count = 14
    ranks = hosts.start("IPv4", "last-messages", str(count), str(30_000), settings=PATIENT)
    try:
        for rank in ranks:
            assert line(rank) == "ready"
        hosts.shape("cable", 0.05, at_once=8 << 10, queue=24 << 10)
        for rank in ranks:
            assert rank.stdin is not None
            print("go", file=rank.stdin, flush=True)
        assert line(ranks[1]) == list(range(count))
        assert line(ranks[0]) == "left"
    finally:
        end(ranks)
