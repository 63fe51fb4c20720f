"""Ranks that are taken for far apart (ISTHMUS_FAR_US=0): the same results with many chunks under way, or why there are few
of them.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import isthmus
from ranks import run_processes
from test_staging import everything


def distance(comm: isthmus.Comm) -> dict[str, Any]:
    for count in (1, 20, 3000, 300_000):
        everything(comm, count)
    said = comm.topology()
    form = comm.explain("all_reduce", nbytes=1 << 20).data["form"] if comm.size > 1 and said["far"] else ""
    return {"form": form, "far": said["far"], "round_trip_us": said["round_trip_us"], "lost": said["staging"]["lost"]}


@pytest.mark.parametrize(("world", "islands"), [(2, "a,b"), (3, "a,b,a"), (3, "a,b,c"), (4, "a,a,b,b")])
def test_every_collective_and_messages_have_the_right_values(world: int, islands: str) -> None:
    env = {"ISTHMUS_FAR_US": "0"}
    groups = len(set(islands.split(",")))
    for said in run_processes(world, distance, islands=islands, bridge="tcp", env=env):
        assert said["far"] and said["round_trip_us"] > 0 and not said["lost"]
        # Between two groups one way costs no more bytes. Among three a way as short as loopback is not worth them.
        assert said["form"] == ("one way" if groups == 2 else "pieces")


def test_where_all_share_memory_nobody_is_far() -> None:
    for said in run_processes(2, distance, env={"ISTHMUS_FAR_US": "0"}):
        assert said == {"form": "", "far": False, "round_trip_us": 0, "lost": []}


def test_too_little_staging_memory_keeps_few_chunks_under_way_and_says_so() -> None:
    env = {"ISTHMUS_FAR_US": "0", "ISTHMUS_STAGING_BYTES": "16M"}
    for said in run_processes(2, distance, islands="a,b", bridge="tcp", env=env):
        assert not said["far"] and said["round_trip_us"] > 0
        assert any(re.search("few chunks under way .*ISTHMUS_STAGING_BYTES", text) for text in said["lost"]), said
