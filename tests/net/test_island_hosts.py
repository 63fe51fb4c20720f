"""Islands that a library serves on two hosts (hosts.py).

Real oneCCL, whose connections must take the way that ours take; and the simulated libraries of devices, whose ranks meet in
the first host's namespace (REHEARSAL_MEET).
"""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import Hosts, end, line, two_hosts
from isthmus import rehearse
from patience import SOON

ONECCL = Path(__file__).resolve().parents[2] / "build" / "oneccl" / "libccl.so.2"


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if not ONECCL.exists():
        reason = "no oneCCL for this machine: make setup fetches it on x86-64"
        if os.environ.get("CI") and platform.machine() == "x86_64":
            pytest.fail(reason)
        pytest.skip(reason)
    with two_hosts(nowhere=True) as made:
        yield made


def ranks_of(islands: str) -> list[dict[str, str]]:
    """One letter a rank; capitals have the library."""
    served = {"ISTHMUS_CCL": "oneccl", "ISTHMUS_CCL_LIBRARY": str(ONECCL)}
    common = {"ISTHMUS_TIMEOUT": str(2 * SOON)}
    return [{"ISTHMUS_ISLAND": one, **common, **(served if one.isupper() else {})} for one in islands]


@pytest.mark.computes
@pytest.mark.parametrize(("islands", "places", "family"), [("AAbA", (0, 1, 1, 1), "IPv4"), ("AA", (0, 1), "IPv6")])
def test_an_island_on_two_hosts_gives_what_numpy_gives(
    hosts: Hosts, islands: str, places: tuple[int, ...], family: str
) -> None:
    ranks = hosts.start_on(places, ranks_of(islands), "islands", family=family)
    try:
        for number, rank in enumerate(ranks):
            said = line(rank)
            assert said["right"] == [True] * 3 and said["turned"] == len(ranks) - 1 - number, said
            assert said["hosts"] == [[r for r, place in enumerate(places) if place == host] for host in (0, 1)], said
            assert said["served"] == {"oneccl": [r for r, one in enumerate(islands) if one == "A"]}, said
        assert [rank.wait(SOON) for rank in ranks] == [0] * len(ranks)
    finally:
        end(ranks)


@pytest.mark.parametrize("count", [4, 1 << 20], ids=["small", "large"])
def test_a_rank_that_is_killed_is_named_on_both_hosts(hosts: Hosts, count: int) -> None:
    ranks = hosts.start_on((0, 1, 1), ranks_of("AAb"), "until-error", str(count))
    try:
        for rank in ranks:
            assert line(rank) == "ready"
        time.sleep(0.2)  # of traffic
        ranks[1].send_signal(signal.SIGKILL)
        for rank in (ranks[0], ranks[2]):
            said = line(rank)
            assert said["kind"] == "PeerLostError" and "rank 1" in said["text"], said
            assert rank.wait(SOON) == 0  # also with a thread that is stuck in the library
    finally:
        end(ranks)


@pytest.mark.computes
@pytest.mark.parametrize(
    ("vendors", "places", "islands"),
    [
        (("nvidia",) * 3, (0, 1, 1), "labels"),
        (("nvidia", "nvidia", "cpu"), (0, 1, 1), "labels"),
        (("nvidia", "nvidia", "cpu", "nvidia"), (0, 1, 0, 1), "labels"),
        (("nvidia", "nvidia", "cpu", "nvidia"), (0, 0, 0, 1), "labels"),
        (("amd", "ascend", "amd", "ascend"), (0, 0, 1, 1), "labels"),
        (("ascend", "ascend", "cpu"), (0, 1, 0), "labels"),
        # Without labels a host's ranks are one island where no library serves: then only blocks of the library's, and their
        # sizes, go to the other host.
        (("nvidia", "cpu", "nvidia"), (0, 0, 1), "no labels"),
    ],
    ids=lambda given: "-".join(str(one) for one in given) if isinstance(given, tuple) else given,
)
def test_blocks_inside_an_island_are_compared_across_hosts_and_its_librarys(
    vendors: tuple[str, ...], places: tuple[int, ...], islands: str
) -> None:
    other = vendors.index(vendors[0], 1)
    with two_hosts() as hosts:
        environments = [of_vendor(hosts, vendor, islands == "labels") for vendor in vendors]
        ranks = hosts.start_on(places, environments, "blocks", str(other))
        try:
            for rank, vendor in zip(ranks, vendors, strict=True):
                said = line(rank)
                assert said["wrong"] == [], said
                assert ("all_to_all_v of the group's blocks" in said["path"]) == (vendor != "cpu"), said["path"]
                assert said["differing"]["kind"] == "MismatchError", said
                assert "all_to_all_v" in said["differing"]["text"] and "rank 0" in said["differing"]["text"], said
                assert f"sends 10 elements to rank {other}, which expects 11" in said["differing"]["text"], said
            for rank in ranks:
                assert rank.stdin is not None
                print(file=rank.stdin, flush=True)
            assert [rank.wait(SOON) for rank in ranks] == [0] * len(ranks)
        finally:
            end(ranks)


def of_vendor(hosts: Hosts, vendor: str, labels: bool = True) -> dict[str, str]:
    common = {"ISTHMUS_TIMEOUT": str(2 * SOON), **({"ISTHMUS_ISLAND": vendor} if labels else {})}
    if vendor == "cpu":
        return {**common, "ISTHMUS_DEVICE": "host"}
    return {
        **common,
        "ISTHMUS_DEVICE": rehearse.DEVICES[vendor],
        "LD_LIBRARY_PATH": str(rehearse.folder() / vendor),
        "REHEARSAL_DEVICES": "1",
        "REHEARSAL_QUIET": "1",
        "REHEARSAL_MEET": f"/run/netns/{hosts.names[0]}",
    }
