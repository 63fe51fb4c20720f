"""Hosts that are far apart: the round trip is measured and agreed on, and then many chunks are under way."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hosts import Hosts, end, line, two_hosts
from patience import SOON, WHOLE

RANK, LAST, BESIDE = (Path(__file__).with_name(name) for name in ("far_rank.py", "last_rank.py", "beside_rank.py"))
BENCH = Path(__file__).resolve().parents[2] / "bench" / "far.py"


def said(
    hosts: Hosts, places: Sequence[int], settings: Sequence[Mapping[str, str]], *counts: int, program: Path = RANK
) -> list[dict[str, Any]]:
    ranks = hosts.start_on(places, settings, *map(str, counts), program=program)
    try:
        return [line(rank) for rank in ranks]
    finally:
        end(ranks)


# The last turn of a chunk of an all_reduce. Near, in pieces, what is sent is collected 2 turns on; far, one way, the sum is
# finished 31 turns on, or 15 where ranks share memory. A rank that does copies it into its slot in a turn before that.
@pytest.mark.parametrize(("places", "near", "far"), [((0, 1), [2, 2], [31, 31]), ((0, 0, 1), [3, 3, 2], [16, 16, 15])])
def test_over_a_long_cable_many_chunks_are_under_way_and_the_sums_are_right(
    places: tuple[int, ...], near: list[int], far: list[int]
) -> None:
    with two_hosts() as hosts, hosts.far_cable(delay_ms=5, megabytes=200):
        over = [{"ISTHMUS_INTERFACE": f"far{place}"} for place in places]
        for turns, one in zip(far, said(hosts, places, over, 7, 100_003, 3_000_001), strict=True):
            assert one["round_trip_us"] >= 10_000, one
            assert one == {**one, "far": True, "turns": turns, "right": True}
        close = [{"ISTHMUS_FAR_US": "60000000", **own} for own in over]
        for turns, one in zip(near, said(hosts, places, close, 7, 100_003), strict=True):
            assert one == {**one, "far": False, "turns": turns, "right": True}


def test_hosts_that_are_nearer_than_the_setting_says_are_not_far() -> None:
    with two_hosts() as hosts:
        for one in said(hosts, (0, 1), [{"ISTHMUS_FAR_US": "100000"}] * 2, 7, 100_003):
            assert one == {**one, "far": False, "turns": 2, "right": True}
            assert 0 < one["round_trip_us"] < 100_000


def test_a_long_way_has_as_many_connections_as_it_needs_at_least_and_as_many_as_a_setting_says() -> None:
    with two_hosts() as hosts, hosts.far_cable(delay_ms=5, megabytes=200):
        over = [{"ISTHMUS_INTERFACE": f"far{place}"} for place in (0, 1)]
        first, second = said(hosts, (0, 1), over, 7, 100_003, 3_000_001)
        # A round trip of 10 ms is 10 MB at a gigabyte a second. Beside other work it may look longer.
        assert math.ceil(10e6 / first["window"]) <= first["streams"][0] <= 8, first
        assert first["streams"] == second["streams"] and first["right"] and second["right"], (first, second)
        for one in said(hosts, (0, 1), [{**own, "ISTHMUS_TCP_STREAMS": "1"} for own in over], 7):
            assert one["streams"] == [1], one


# The last of it is under way for some time, and copied: the sender's call has long ended. By a slow way no piece comes for
# seconds, as all streams share it.
@pytest.mark.parametrize(("streams", "megabytes", "count"), [("1", 20, 3_000_001), ("2", 20, 3_000_001), ("8", 1, 750_001)])
def test_a_rank_that_sends_and_ends_at_once_has_sent_everything(streams: str, megabytes: float, count: int) -> None:
    with two_hosts() as hosts, hosts.far_cable(delay_ms=20, megabytes=megabytes):
        over = [{"ISTHMUS_INTERFACE": f"far{place}", "ISTHMUS_TCP_STREAMS": streams} for place in (0, 1)]
        _, last = said(hosts, (0, 1), over, count, program=LAST)
        assert last["right"], last


def test_messages_that_wait_for_their_receivers_leave_room_for_the_chunks_under_way() -> None:
    """Ten MiB of messages, of a link's window of 32 MiB, and an all_reduce that has half of the window under way."""
    with two_hosts() as hosts:
        for one in said(hosts, (0, 1), [{"ISTHMUS_FAR_US": "0"}] * 2, 640, 16 << 10, 16 << 20, program=BESIDE):
            assert one == {"far": True, "right": True}


def test_a_short_way_has_one_connection() -> None:
    with two_hosts() as hosts:
        for one in said(hosts, (0, 1), [{}] * 2, 7):
            assert one["streams"] == [1], one


def test_ranks_that_are_asked_for_unlike_distances_say_so() -> None:
    with two_hosts() as hosts:
        ranks = hosts.start_on((0, 1), [{"ISTHMUS_FAR_US": "0"}, {}], "7", program=RANK)
        try:
            for rank in ranks:
                _, error = rank.communicate(timeout=SOON)
                assert "settings that must be equal on all ranks differ" in error and "ISTHMUS_FAR_US" in error
        finally:
            end(ranks)


def test_the_benchmark_compares_little_and_much_under_way(tmp_path: Path) -> None:
    with two_hosts() as hosts, hosts.far_cable(delay_ms=1, megabytes=1):  # says what is missing here
        pass
    out = tmp_path / "far.json"
    words = ["--delays", "3", "--mib", "1", "--rounds", "1", "--repeats", "2", "--output", str(out)]
    ended = subprocess.run([sys.executable, str(BENCH), *words], capture_output=True, text=True, timeout=WHOLE, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (cable,) = json.loads(out.read_text())["cables"]
    assert cable["round_trip_us"] >= 6000 and 1 <= cable["connections"] <= 8
    assert [row["name"] for row in cable["rows"]] == ["all_reduce 1", "reduce_scatter 1", "all_gather 1", "all_to_all 1"]
    for row in cable["rows"]:
        assert all(len(row[contender]) == 1 and min(row[contender]) > 0 for contender in ("near_s", "one_s", "far_s"))
