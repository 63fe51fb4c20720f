"""Hosts that are far apart: the round trip is measured and agreed on, and then many chunks are under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hosts import Hosts, end, line, two_hosts
from patience import SOON

RANK = Path(__file__).with_name("far_rank.py")


def said(hosts: Hosts, places: Sequence[int], settings: Sequence[Mapping[str, str]], *counts: int) -> list[dict[str, Any]]:
    ranks = hosts.start_on(places, settings, *map(str, counts), program=RANK)
    try:
        return [line(rank) for rank in ranks]
    finally:
        end(ranks)


# A chunk is collected so many turns behind the one in which it is sent: 2 and 62. A rank that shares memory with another one
# copies it into its slot in a turn before that.
@pytest.mark.parametrize(("places", "near", "far"), [((0, 1), [2, 2], [62, 62]), ((0, 0, 1), [3, 3, 2], [31, 31, 30])])
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


def test_ranks_that_are_asked_for_unlike_distances_say_so() -> None:
    with two_hosts() as hosts:
        ranks = hosts.start_on((0, 1), [{"ISTHMUS_FAR_US": "0"}, {}], "7", program=RANK)
        try:
            for rank in ranks:
                _, error = rank.communicate(timeout=SOON)
                assert "settings that must be equal on all ranks differ" in error and "ISTHMUS_FAR_US" in error
        finally:
            end(ranks)
