"""A communicator's topology, arranged for people: hosts hold islands, islands hold ranks, bridges join islands.

An island here is what plans treat as one: ranks that share memory and a label, or a vendor's library. So it lies on one
host, or, where a library serves it, on several. A host is a machine (or a container with a network of its own) and nothing
else; what a rank without a device works on is its CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LINK_NAMES = {"memory": "shared memory", "shm": "shared memory", "tcp": "TCP", "ucx": "UCX", "self": "one rank"}
CPU = "cpu"


@dataclass
class Rank:
    number: int
    device: str  # "cuda:0", "cpu"
    maker: str  # of the device, as its runtime says; empty: it has none
    device_name: str
    pid: int
    numa: int


@dataclass
class Island:
    """What lies of it on one host."""

    number: int  # equal for the parts of one island
    label: str
    ranks: list[Rank]
    whole: int  # its ranks on all hosts
    inside: str  # what joins its ranks; empty: there is one

    def size(self) -> str:
        here = _count(len(self.ranks), "rank")
        return here if self.whole == len(self.ranks) else f"{here} of {self.whole}"


@dataclass
class Host:
    name: str
    address: str = ""  # where other hosts reach it; empty: not known
    islands: list[Island] = field(default_factory=list)
    bridge: str = ""  # what joins the islands of this host; empty: there is one

    def title(self) -> str:
        return f"{self.name} ({self.address})" if self.address else self.name


class Layout:
    """Built from the dict of Comm.topology(), whose links may be those of all ranks (common.whole_topology)."""

    def __init__(self, topology: dict[str, Any]) -> None:
        ranks: list[dict[str, Any]] = topology["ranks"]
        links = {(link["from"], link["to"]): str(link["kind"]) for link in topology.get("links", ())}
        by_identity = _hosts(topology["hosts"], ranks)
        self.hosts = list(by_identity.values())
        members: dict[str, list[list[int]]] = {identity: [] for identity in by_identity}
        for index, group in enumerate(topology["groups"]):
            numbers: list[int] = group["ranks"]
            label = str(group.get("island") or _makers([ranks[number] for number in numbers]))
            inside = _kinds(links, [[number] for number in numbers])
            if group.get("ccl") and len(numbers) > 1:
                inside = f"{group['ccl']} {ranks[numbers[0]].get('ccl_version', '')}".strip()
            for identity, host in by_identity.items():
                here = [number for number in numbers if str(ranks[number]["host"]) == identity]
                if here:
                    shown = [_rank(number, ranks[number]) for number in here]
                    host.islands.append(Island(index, label, shown, len(numbers), inside))
                    members[identity].append(here)
        for identity, host in by_identity.items():
            if len(host.islands) > 1:
                host.bridge = _kinds(links, members[identity])
        self.bridge = _kinds(links, [[n for group in groups for n in group] for groups in members.values()])
        islands = _count(len(topology["groups"]), "island")
        self.title = f"{_count(len(ranks), 'rank')} on {islands} and {_count(len(self.hosts), 'host')}"
        if topology.get("rehearsal"):
            self.title += f" (rehearsal of {topology['rehearsal']})"


def _hosts(hosts: Sequence[dict[str, Any]], ranks: Sequence[dict[str, Any]]) -> dict[str, Host]:
    """By identity. Hosts of one name and one address, as containers may be, get the beginning of their identity as well."""
    made: dict[str, Host] = {}
    for info in hosts:
        address = next((str(rank.get("address", "")) for rank in ranks if rank["host"] == info["host"]), "")
        made[str(info["host"])] = Host(str(info.get("hostname") or info["host"]), address)
    alike = Counter(host.title() for host in made.values())
    for identity, host in made.items():
        if alike[host.title()] > 1:
            host.name += f" {identity[:8]}"
    return made


def _makers(ranks: Sequence[dict[str, Any]]) -> str:
    """The name of an island without a label: of the devices' makers, "cpu" where there is no device."""
    return " and ".join(dict.fromkeys(_maker(rank) or CPU for rank in ranks))


def _maker(info: dict[str, Any]) -> str:
    return "" if info.get("device", "host") == "host" else str(info.get("maker", ""))


def _rank(number: int, info: dict[str, Any]) -> Rank:
    device = str(info.get("device", "host"))
    return Rank(
        number,
        CPU if device == "host" else device,
        _maker(info),
        str(info.get("device_name", "")),
        int(info.get("pid", 0)),
        int(info.get("numa", -1)),
    )


def _kinds(links: dict[tuple[int, int], str], parts: list[list[int]]) -> str:
    """What joins ranks of different parts, as far as it is known; empty for a single part."""
    kinds = {
        links[a, b]
        for i, first in enumerate(parts)
        for j, second in enumerate(parts)
        for a in first
        for b in second
        if i != j and (a, b) in links
    }
    return " and ".join(sorted(LINK_NAMES.get(kind, kind) for kind in kinds))


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
