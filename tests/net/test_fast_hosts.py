"""Ranks of one host keep the fast path inside the host whatever other hosts the communicator has (hosts.py).

Two vendors on each of two hosts, whose devices are simulated. Receive slots are closed to the processes all the time, so a
processor that touched a message would end its process (ISTHMUS_GUARD_SLOTS). That no processor copies for collectives is
shown of their plans (tests/cpp/plan_proof_test.cpp); here, that what stays on a host goes by no link.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hosts import Hosts, end, line, two_hosts
from patience import SOON
from test_island_hosts import of_vendor

RANK = Path(__file__).with_name("fast_rank.py")
FRAMES = 20_000  # bytes of all that say where data lies
BYTES = 4 * 700_001  # of a block
# Blocks that cross between the hosts, in all. Each host gets a block of a broadcast or an all_gather once. Of an all_reduce
# half of the sums cross each way, and half of the results; of a reduce_scatter what a host, or an island on it, has summed
# for the blocks of the other. An island of two hosts spreads by its library what it has on one of them.
ACROSS = {
    "islands of two hosts": {"broadcast from 0": 0, "all_gather": 0, "all_reduce": 0, "reduce_scatter": 2}
    | {"all_to_all": 4, "scatter": 1, "gather": 1},
    "islands of one host": {"broadcast from 0": 1, "all_gather": 8, "all_reduce": 2, "reduce_scatter": 16}
    | {"all_to_all": 32, "scatter": 4, "gather": 4},
    "no libraries": {"broadcast from 0": 1, "all_gather": 4, "all_reduce": 2, "reduce_scatter": 4}
    | {"all_to_all": 8, "scatter": 2, "gather": 2},
}


def said_by(places: tuple[int, ...], vendors: tuple[str, ...], way: str) -> list[Any]:
    def environment(hosts: Hosts, vendor: str, place: int) -> dict[str, str]:
        labels = {"ISTHMUS_ISLAND": f"{vendor}-{place}"} if way == "islands of one host" else {}
        none = {"ISTHMUS_CCL": "none"} if way == "no libraries" else {}
        guard = {"ISTHMUS_GUARD_SLOTS": "on", "ISTHMUS_GROUP_WAIT_MS": "20000", "REHEARSAL_OWN_MAPPING": "1"}
        return {**of_vendor(hosts, vendor, labels=False), **labels, **none, **guard}

    with two_hosts() as hosts:
        settings = [environment(hosts, vendor, place) for vendor, place in zip(vendors, places, strict=True)]
        ranks = hosts.start_on(places, settings, program=RANK)
        try:
            said = [line(rank) for rank in ranks]
            for rank in ranks:
                assert rank.stdin is not None
                print(file=rank.stdin, flush=True)
            assert [rank.wait(SOON) for rank in ranks] == [0] * len(ranks)
            return said
        finally:
            end(ranks)


@pytest.mark.computes
@pytest.mark.parametrize(
    ("places", "vendors", "way"),
    [
        ((0, 0, 1, 1), ("nvidia", "amd") * 2, "islands of two hosts"),
        ((0, 0, 0, 0, 1, 1, 1, 1), ("nvidia", "nvidia", "amd", "amd") * 2, "islands of one host"),
        ((0, 0, 1, 1), ("nvidia", "amd") * 2, "no libraries"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_stays_on_a_host_goes_by_slots_that_no_processor_touches(
    places: tuple[int, ...], vendors: tuple[str, ...], way: str
) -> None:
    ranks = said_by(places, vendors, way)
    for me, said in enumerate(ranks):
        assert said["wrong"] == [], said
        assert bool(said["served"]) == (way != "no libraries"), said
        for other, place in enumerate(places):
            if other != me:
                assert said["links"][str(other)] == ("memory" if place == places[me] else "tcp"), said
        guarded, still = said["closed"]
        assert guarded > 0 and still == guarded, "a processor has opened receive slots"
        by_links = {what: size for what, size in said["inside"].items() if size > FRAMES}
        assert not by_links
    across = {what: sum(said["across"][what] for said in ranks) for what in ranks[0]["across"]}
    for what, blocks in ACROSS[way].items():
        assert blocks * BYTES <= across[what] <= blocks * BYTES * 1.02 + len(ranks) * FRAMES, (what, across)
