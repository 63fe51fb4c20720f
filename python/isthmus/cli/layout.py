"""A communicator's topology, arranged for people: hosts hold islands, islands hold ranks, bridges join islands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LINK_NAMES = {"memory": "shared memory", "shm": "shared memory", "tcp": "TCP", "self": "one rank"}


@dataclass
class Rank:
    number: int
    device: str
    pid: int
    numa: int


@dataclass
class Island:
    label: str
    ranks: list[Rank]
    inside: str  # what joins its ranks; empty: there is one


@dataclass
class Host:
    name: str
    islands: list[Island] = field(default_factory=list)
    bridge: str = ""  # what joins the islands of this host; empty: there is one


class Layout:
    """Built from the dict of Comm.topology(), whose links may be those of all ranks (common.whole_topology)."""

    def __init__(self, topology: dict[str, Any]) -> None:
        ranks: list[dict[str, Any]] = topology["ranks"]
        names = {str(host["host"]): str(host.get("hostname") or host["host"]) for host in topology["hosts"]}
        links = {(link["from"], link["to"]): str(link["kind"]) for link in topology.get("links", ())}
        self.hosts = [Host(name) for name in names.values()]
        by_identity = dict(zip(names, self.hosts, strict=True))
        members: dict[str, list[list[int]]] = {identity: [] for identity in names}
        known: set[str] = set()
        for index, group in enumerate(topology["groups"]):
            numbers: list[int] = group["ranks"]
            alone = "all ranks" if len(topology["groups"]) == 1 else ""
            label = str(group.get("island") or alone or group.get("name") or f"#{index}")
            known.add(label)
            inside = _kinds(links, [[number] for number in numbers])
            if group.get("ccl") and len(numbers) > 1:
                inside = f"{group['ccl']} {ranks[numbers[0]].get('ccl_version', '')}".strip()
            island = Island(label, [_rank(number, ranks[number]) for number in numbers], inside)
            by_identity[str(group["host"])].islands.append(island)
            members[str(group["host"])].append(numbers)
        for identity, host in by_identity.items():
            if len(host.islands) > 1:
                host.bridge = _kinds(links, members[identity])
        self.bridge = _kinds(links, [[n for group in groups for n in group] for groups in members.values()])
        self.title = f"{_count(len(ranks), 'rank')} on {_count(len(known), 'island')} and {_count(len(self.hosts), 'host')}"
        if topology.get("rehearsal"):
            self.title += f" (rehearsal of {topology['rehearsal']})"


def _rank(number: int, info: dict[str, Any]) -> Rank:
    return Rank(number, str(info.get("device", "host")), int(info.get("pid", 0)), int(info.get("numa", -1)))


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
