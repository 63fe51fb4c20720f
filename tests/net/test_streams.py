"""Ranks on two hosts with two cables between them: a data stream over each, of which one is lost within operations."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts import Hosts, Process, end, line, two_hosts
from patience import SOON, patient

RANK = Path(__file__).with_name("streams_rank.py")
SETTINGS = [{"ISTHMUS_INTERFACE": f"cable{n},second{n}", "ISTHMUS_TIMEOUT": str(2 * SOON)} for n in (0, 1)]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts() as made:
        made.add_second_cable()
        yield made


def start(hosts: Hosts, folder: Path, mib: str = "64", **settings: str) -> list[Process]:
    each = {"ISTHMUS_TCP_STREAMS": "0", **settings}
    return hosts.start_on((0, 1), [{**own, **each} for own in SETTINGS], str(folder), mib, program=RANK)


def until(ranks: list[Process], what: Any, most: int = 400) -> list[Any]:
    """What the ranks said last, once `what` holds for what each said in one operation. All operations are right."""
    for _ in range(most):
        said = [line(rank) for rank in ranks]
        assert all(one["right"] for one in said), said
        if all(what(one) for one in said):
            return said
    raise AssertionError(said)


def counted_up(ranks: list[Process], of: str, before: list[Any], most: int = 400) -> list[Any]:
    """The same, once the second stream of each rank was "lost" or "back" once more than it said before."""
    for _ in range(most):
        said = until(ranks, lambda said: True)
        if all(now["streams"][1][of] > had["streams"][1][of] for now, had in zip(said, before, strict=True)):
            return said
    raise AssertionError(said)


def up(said: Any) -> list[bool]:
    return [stream["connected"] for stream in said["streams"]]


def says_how_long_it_delays_an_answer() -> bool:
    """Whether this kernel does, as Linux does from 6.15 on."""
    with socket.socket() as any_socket:
        try:
            return any_socket.getsockopt(socket.IPPROTO_TCP, 46) > 0  # TCP_DELACK_MAX_US
        except OSError:
            return False


def finish(ranks: list[Process], folder: Path) -> list[str]:
    """Ends the ranks well; what they have logged, which they do with their heartbeats."""
    before = [said["heartbeats"] for said in until(ranks, lambda said: all(up(said)))]
    while any(said["heartbeats"] < had + 3 for said, had in zip(until(ranks, lambda said: True), before, strict=True)):
        pass
    (folder / "over").touch()
    logs = []
    for rank in ranks:
        rest, log = rank.communicate(timeout=2 * SOON)
        assert rank.returncode == 0 and rest.splitlines()[-1] == '"well"', log
        logs.append(log)
    return logs


def expect_log(logs: list[str]) -> None:
    """The second stream is lost and comes back. A busy machine may take the first for silent for a moment."""
    for log in logs:
        first, second = ([line for line in log.splitlines() if f"data stream {n} of 2 to process" in line] for n in (1, 2))
        assert any("was lost (" in line for line in second) and any("is back" in line for line in second), log
        assert sum("was lost (" in line for line in first) == sum("is back" in line for line in first), log


def test_a_cable_that_is_pulled_out_loses_one_stream_and_plugged_in_brings_it_back(hosts: Hosts, tmp_path: Path) -> None:
    ranks = start(hosts, tmp_path)
    try:
        until(ranks, lambda said: up(said) == [True, True])
        hosts.set_second_cable("down")
        lost = until(ranks, lambda said: up(said) == [True, False])
        assert any("acknowledged nothing" in said["streams"][1]["why"] for said in lost), lost
        until(ranks, lambda said: True)  # one more by the one stream
        hosts.set_second_cable("up")
        back = until(ranks, lambda said: up(said) == [True, True])
        assert all(said["streams"][1]["lost"] >= 1 and said["streams"][1]["back"] >= 1 for said in back), back
        until(ranks, lambda said: True)
        expect_log(finish(ranks, tmp_path))
    finally:
        end(ranks)


def test_a_cable_that_brings_nothing_any_more_loses_one_stream_though_no_host_is_told(hosts: Hosts, tmp_path: Path) -> None:
    ranks = start(hosts, tmp_path)
    try:
        until(ranks, lambda said: up(said) == [True, True])
        hosts.silence("second")
        lost = until(ranks, lambda said: up(said) == [True, False])
        delay = "; it delays no answer by more than [0-9]+ ms" if says_how_long_it_delays_an_answer() else ""
        why = f"the peer's host has acknowledged nothing for [0-9]+ ms{delay}"
        assert any(re.fullmatch(why, said["streams"][1]["why"]) for said in lost), lost
        until(ranks, lambda said: True)
        hosts.restore("second")
        until(ranks, lambda said: up(said) == [True, True])
        until(ranks, lambda said: True)
        expect_log(finish(ranks, tmp_path))
    finally:
        end(ranks)


def test_the_streams_share_by_the_rates_that_their_cables_have_at_the_time(hosts: Hosts, tmp_path: Path) -> None:
    for cable in ("cable", "second"):
        hosts.shape(cable, 60)
    ranks = start(hosts, tmp_path, mib="32")
    share = [0.0]

    def shared(low: float, high: float) -> None:
        """Until the second cable carries such a part of three operations."""
        for _ in range(100):
            before = hosts.sent("cable"), hosts.sent("second")
            for _ in range(3):
                until(ranks, lambda said: True)
            first, second = hosts.sent("cable") - before[0], hosts.sent("second") - before[1]
            share.append(second / (first + second))
            if low <= share[-1] <= high:
                return
        raise AssertionError(share)

    try:
        until(ranks, lambda said: up(said) == [True, True])
        shared(0.4, 0.6)
        hosts.shape("second", 15)  # the link keeps its connections
        shared(0.12, 0.28)
        hosts.shape("cable", 15)
        shared(0.4, 0.6)
        hosts.shape("second", 60)
        shared(0.72, 0.88)
        for log in finish(ranks, tmp_path):  # a busy machine may take a slow cable for a silent one, for a moment
            assert log.count("was lost") == log.count("is back"), log
    finally:
        end(ranks)


def test_a_message_of_1_mib_goes_by_both_cables(hosts: Hosts, tmp_path: Path) -> None:
    for cable in ("cable", "second"):
        hosts.shape(cable, 60)
    ranks = start(hosts, tmp_path, mib="1")
    try:
        until(ranks, lambda said: up(said) == [True, True])
        share = 0.0
        for _ in range(20):
            before = hosts.sent("cable"), hosts.sent("second")
            for _ in range(10):
                until(ranks, lambda said: True)
            first, second = hosts.sent("cable") - before[0], hosts.sent("second") - before[1]
            share = second / (first + second)
            if 0.35 <= share <= 0.65:
                break
        assert 0.35 <= share <= 0.65
        finish(ranks, tmp_path)
    finally:
        end(ranks)


def test_the_control_connection_goes_on_over_the_other_cable(hosts: Hosts, tmp_path: Path) -> None:
    beat = round(patient(40))  # ms; a silent control connection is given up after a hundred
    ranks = start(hosts, tmp_path, mib="1", ISTHMUS_HEARTBEAT_MS=str(beat))
    try:
        until(ranks, lambda said: up(said) == [True, True])
        for cable in ("cable", "second"):
            hosts.silence(cable)
            twice_as_long = until(ranks, lambda said: up(said).count(False) == 1)[0]["begin"] + 0.2 * beat
            until(ranks, lambda said, over=twice_as_long: said["begin"] > over, most=30_000)
            hosts.restore(cable)
            until(ranks, lambda said: up(said) == [True, True], most=10_000)
        for log in finish(ranks, tmp_path):
            assert log.count("goes on over another address") >= 1, log
    finally:
        end(ranks)


def test_a_connection_that_is_reset_in_the_middle_of_an_operation_is_made_again(hosts: Hosts, tmp_path: Path) -> None:
    ranks = start(hosts, tmp_path)
    try:
        said = until(ranks, lambda said: up(said) == [True, True])
        (tmp_path / "reset").touch()
        for _ in range(400):
            before, said = said, until(ranks, lambda said: True)
            if said[0]["reset"]:  # in this operation
                break
        assert said[0]["reset"], said
        counted_up(ranks, "lost", before)
        counted_up(ranks, "back", before)
        expect_log(finish(ranks, tmp_path))
    finally:
        end(ranks)


def test_without_any_cable_the_peer_is_lost(hosts: Hosts, tmp_path: Path) -> None:
    ranks = start(hosts, tmp_path, ISTHMUS_HEARTBEAT_MS=str(round(patient(10))))
    try:
        until(ranks, lambda said: up(said) == [True, True])
        hosts.set_second_cable("down")
        hosts.cut()
        for rank in ranks:
            _, log = rank.communicate(timeout=4 * SOON)
            assert rank.returncode == 1 and "PeerLostError" in log and "is unreachable" in log, log
    finally:
        end(ranks)


def test_a_process_that_is_killed_is_lost_at_once_whatever_streams_it_had(hosts: Hosts, tmp_path: Path) -> None:
    ranks = start(hosts, tmp_path, ISTHMUS_TCP_STREAMS="4")
    try:
        until(ranks, lambda said: up(said) == [True] * 4)
        os.kill(ranks[1].pid, signal.SIGKILL)  # `ip netns exec` becomes the program
        _, log = ranks[0].communicate(timeout=2 * SOON)
        assert ranks[0].returncode == 1 and "PeerLostError" in log and "closed its control connection" in log, log
        # Of no stream, but one that a busy machine has taken for silent before, for a moment.
        assert log.count("was lost (") - log.count("is back") <= 1, log
    finally:
        end(ranks)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_unheard_is_lost_long_before_its_silence_would_tell(
    killed: int, hosts: Hosts, tmp_path: Path
) -> None:
    beat = round(patient(200))  # ms; a silent control connection is given up after a hundred
    ranks = start(hosts, tmp_path, ISTHMUS_HEARTBEAT_MS=str(beat))
    try:
        until(ranks, lambda said: up(said) == [True, True])
        hosts.silence("cable")  # the control connection's: it brings no word of the end
        os.kill(ranks[killed].pid, signal.SIGKILL)
        _, log = ranks[1 - killed].communicate(timeout=2 * SOON)
        assert ranks[1 - killed].returncode == 1 and "PeerLostError" in log, log
        # The first stream has perhaps been taken for silent before the second one ends. Then none is left.
        assert "refuses connections where it listened" in log or "its data connection broke" in log, log
    finally:
        end(ranks)
