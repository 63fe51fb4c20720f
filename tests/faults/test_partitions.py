"""The network between two hosts is cut: of the two halves at most one goes on, also when the way is back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosts import ADDRESSES, Hosts, ip, two_hosts
from jobs import Zygote
from membership_cycles import Set
from patience import FACTOR

BEATS = str(round(60 * FACTOR))  # the way to a host is taken for cut after 100 of them


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts() as made:
        yield made


@pytest.mark.parametrize("silence", [False, True], ids=["acknowledgements", "silence"])
@pytest.mark.parametrize("halves", [(3, 2), (1, 3), (2, 2)], ids=str)
def test_of_two_halves_at_most_one_goes_on_also_once_the_way_is_back(
    zygote: Zygote, hosts: Hosts, halves: tuple[int, int], silence: bool
) -> None:
    """With silence watched each side closes the connections, and the other hears of it when the way is back."""
    job = Set(zygote, sum(halves))
    job.shape, job.silent = "shm", False
    watched = {"SILENCE_MS": str(70 * int(BEATS))} if silence else {}
    try:
        places = [place for place in (0, 1) for _ in range(halves[place])]
        ranks = [job.start(INTERFACE=f"cable{place}", HEARTBEAT_MS=BEATS, **watched) for place in places]
        for rank, one in enumerate(ranks):
            job.all_do([one], "enter", namespace=hosts.names[places[rank]])
            job.say([one], "init", rank=rank, world=len(ranks), address=ADDRESSES["IPv4"].format(1) + ":29511")
        for one in ranks:
            job.hear(one)
        job.members = ranks
        job.verify(settled=False)

        job.begin_work()
        hosts.cut()
        for told in job.end_work(ranks):
            assert told["kind"] == "PeerLostError", told
        got = job.all_try(ranks, "shrink", failed=[])
        more = 0 if halves[0] > halves[1] else 1
        goes_on = [one for one, place in zip(ranks, places, strict=True) if place == more and halves[0] != halves[1]]
        for one, (kind, value) in zip(ranks, got, strict=True):
            assert kind == ("done" if one in goes_on else "failed"), got
            if kind == "failed":
                assert value["kind"] == "PeerLostError" and "no more than half" in value["text"], value

        ip("-n", hosts.names[0], "link", "set", "cable0", "up")
        others = [one for one in ranks if one not in goes_on]
        for kind, value in job.all_try(others, "shrink", failed=[]):
            assert kind == "failed" and value["kind"] in ("PeerLostError", "AbortedError"), value
        if goes_on:
            job.members = goes_on
            job.verify(settled=False)
            job.all_do(others, "drop")
            ticket = job.ticket()
            job.say(others, "join", ticket=ticket)
            job.grow_by(others, ticket)
            job.verify(settled=False)
            assert len(job.members) == len(ranks)
    finally:
        for one in job.all:
            one.close()
