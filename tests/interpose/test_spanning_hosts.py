"""Communicators over two hosts: network namespaces with a data network between them, beside a management network that is the
default route and leads nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import ADDRESSES, Hosts, two_hosts
from spanning import Rank, check, fleet, given, run, summed

VARIABLES = {"n": "NCCL_SOCKET_IFNAME", "a": "NCCL_SOCKET_IFNAME", "h": "HCCL_SOCKET_IFNAME"}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with two_hosts(nowhere=True, default_route=True) as made:
        yield made


def job(vendors: str, hosts: Hosts) -> list[Rank]:
    """An all_reduce of ranks that alternate between the hosts; the last one makes the id."""
    ranks = fleet(vendors)
    ranks[-1].say("id")
    for number, rank in enumerate(ranks):
        rank.prefix = ["ip", "netns", "exec", hosts.names[number % 2]]
        rank.unset.append("ISTHMUS_INTERFACE")
        rank.environment |= {"ISTHMUS_LOG": "info", "REHEARSAL_MEET": f"/run/netns/{hosts.names[0]}"}
        rank.say("init", "all_reduce 7 0 5 0 0 0", "wait", "destroy")
        rank.inputs.append(given(number))
    return ranks


def ended_well(ranks: list[Rank]) -> None:
    check(ranks)
    assert all(rank.output == summed(len(ranks)) for rank in ranks)


@pytest.mark.parametrize("vendors", ["na", "an", "nh", "hn", "ah", "nana", "hhaa"])
def test_ranks_meet_over_the_data_network_though_the_default_route_leads_nowhere(
    vendors: str, hosts: Hosts, scripted: dict[str, Path]
) -> None:
    ranks = job(vendors, hosts)
    run(ranks, scripted)
    ended_well(ranks)
    assert any("tcp streams 1" in rank.logged for rank in ranks), ranks[0].logged


@pytest.mark.parametrize("vendors", ["na", "hn"])
@pytest.mark.parametrize(
    ("value", "gloo"),
    [("cable", ""), ("=cable0,cable1", ""), ("^nowhere", ""), ("^=nowhere0,nowhere1", ""), ("", "cable0,cable1")],
)
def test_isthmus_listens_at_the_interfaces_that_the_programs_library_was_told(
    vendors: str, value: str, gloo: str, hosts: Hosts, scripted: dict[str, Path]
) -> None:
    ranks = job(vendors, hosts)
    for letter, rank in zip(vendors, ranks, strict=True):
        rank.environment |= {VARIABLES[letter]: value} if value else {"GLOO_SOCKET_IFNAME": gloo}
    run(ranks, scripted)
    ended_well(ranks)
    for number, (letter, rank) in enumerate(zip(vendors, ranks, strict=True)):
        told = f"{VARIABLES[letter]}={value}" if value else f"GLOO_SOCKET_IFNAME={gloo}"
        assert f"interpose: {told}: Isthmus listens at cable{number}\n" in rank.logged, rank.logged
        assert "10.213.6." not in rank.logged, "the management network"


def test_a_variable_that_names_no_interface_is_told_and_not_followed(hosts: Hosts, scripted: dict[str, Path]) -> None:
    ranks = job("na", hosts)
    for rank in ranks:
        rank.environment["NCCL_SOCKET_IFNAME"] = "=ib0"
    run(ranks, scripted)
    ended_well(ranks)
    for rank in ranks:
        assert "NCCL_SOCKET_IFNAME==ib0 names no interface of this host that is up" in rank.logged, rank.logged


def test_isthmus_own_variable_comes_before_the_librarys(hosts: Hosts, scripted: dict[str, Path]) -> None:
    ranks = job("na", hosts)
    for number, rank in enumerate(ranks):
        rank.environment |= {"NCCL_SOCKET_IFNAME": "nowhere", "ISTHMUS_INTERFACE": ADDRESSES["IPv4"].format(number + 1)}
        rank.unset.clear()
    run(ranks, scripted)
    ended_well(ranks)


@pytest.mark.parametrize("vendors", ["nn", "aa", "hh"])
def test_one_vendors_ranks_on_two_hosts_hold_their_census_and_get_their_library(
    vendors: str, hosts: Hosts, scripted: dict[str, Path]
) -> None:
    """The simulated libraries meet in one network namespace, whichever the ranks are in."""
    ranks = job(vendors, hosts)
    run(ranks, scripted)
    ended_well(ranks)
    assert all("gets the communicator (ranks 0 and 1" in rank.logged for rank in ranks), ranks[0].logged
