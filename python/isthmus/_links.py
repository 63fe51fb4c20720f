"""The links of a rehearsal: the rates of its devices and of the bridges between its islands, read from a file of JSON.

{"nvidia": {"copy_out_gbps": 12, "copy_in_gbps": 12, "fabric_gbps": 100, "latency_us": 10, "bridge_mbps": 400}, "amd": {...}}

The names are those of islands or of vendors. An entry for an island's label goes before the entry of its ranks' vendor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ._errors import ArgumentError

__all__ = ["Links", "island_of", "read_links"]

MOST_BYTES = 64 << 10  # the largest file
BRIDGE = "bridge_mbps"
# The keys of an entry. For each: the switch of the simulation that the key sets, the least value and the greatest.
KEYS: dict[str, tuple[str | None, float, float]] = {
    "copy_out_gbps": ("REHEARSAL_COPY_OUT_GBPS", 0.001, 10_000),
    "copy_in_gbps": ("REHEARSAL_COPY_IN_GBPS", 0.001, 10_000),
    "fabric_gbps": ("REHEARSAL_FABRIC_GBPS", 0.001, 10_000),
    "latency_us": ("REHEARSAL_LATENCY_US", 1, 1_000_000),
    "gate_us": ("REHEARSAL_GATE_US", 1, 1_000_000),
    BRIDGE: (None, 0.01, 100_000),
}


class Rank(Protocol):
    @property
    def vendor(self) -> str: ...
    @property
    def label(self) -> str | None: ...


@dataclass(frozen=True)
class Links:
    """`switches` are the simulation's variables, one dict for each rank. `bridges` are MB/s (10^6 bytes a second) by island.

    `bridges` is empty where the file has no rates of bridges.
    """

    switches: list[dict[str, str]]
    bridges: dict[str, float]


def island_of(rank: Rank) -> str:
    """The name of a rank's island in a file of links: the rank's label, or the rank's vendor where there is no label."""
    return rank.label or rank.vendor


def read_links(path: str | os.PathLike[str], ranks: Sequence[Rank], simulated: Sequence[str]) -> Links:
    """The links of a fleet, from the file. `simulated` are the vendors that have simulated devices.

    Raises ArgumentError where the file cannot be read, or does not fit the fleet.
    """
    rates = _parse(os.fspath(path), ranks, simulated)
    # The entry of a label goes before the entry of a vendor.
    own = [{**rates.get(rank.vendor, {}), **rates.get(rank.label or "", {})} for rank in ranks]
    switches = []
    for rank, mine in zip(ranks, own, strict=True):
        names = {name: KEYS[name][0] for name in mine if rank.vendor in simulated}
        switches.append({switch: f"{mine[name]:.12g}" for name, switch in names.items() if switch})
    return Links(switches, _bridges(os.fspath(path), ranks, own))


def _parse(path: str, ranks: Sequence[Rank], simulated: Sequence[str]) -> dict[str, dict[str, float]]:
    data = _load(path)
    if not isinstance(data, dict):
        raise ArgumentError(f"links {path}: expected an object of JSON, with an entry for each island")
    known = dict.fromkeys(name for rank in ranks for name in (rank.label, rank.vendor) if name)
    for name, entry in data.items():
        at = f"links {path}: {_short(name)}"
        if name not in known:
            raise ArgumentError(f"{at}: the fleet has no island and no vendor of this name; it has {', '.join(known)}")
        if not isinstance(entry, dict):
            raise ArgumentError(f"{at}: expected an object of JSON, with some of {', '.join(KEYS)}")
        device = any(rank.vendor in simulated for rank in ranks if name in (rank.label, rank.vendor))
        for key, value in entry.items():
            if key not in KEYS:
                raise ArgumentError(f"{at}.{_short(key)}: no such rate; there are {', '.join(KEYS)}")
            switch, least, most = KEYS[key]
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise ArgumentError(f"{at}.{key}: {_short(json.dumps(value))} is not a number from {least:g} to {most:g}")
            if switch and not device:
                raise ArgumentError(f"{at}.{key}: no rank of it has a simulated device; {BRIDGE} is all that it can have")
    return data


def _load(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ArgumentError(f"links {path}: cannot be read: {error.strerror}") from None
    if len(text) > MOST_BYTES:
        raise ArgumentError(f"links {path}: more than {MOST_BYTES >> 10} KiB")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ArgumentError(f"links {path}: {_short(name)} is there twice")
            found[name] = value
        return found

    try:
        return json.loads(text.decode(), object_pairs_hook=once)
    except RecursionError:
        raise ArgumentError(f"links {path}: not JSON of this kind: lists within lists") from None
    except ArgumentError:
        raise
    except ValueError as error:  # wrong JSON, wrong UTF-8, or a number with too many digits
        raise ArgumentError(f"links {path}: not JSON: {error}") from None


def _bridges(path: str, ranks: Sequence[Rank], own: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float | None] = {}
    for rank, mine in zip(ranks, own, strict=True):
        island, rate = island_of(rank), mine.get(BRIDGE)
        if found.setdefault(island, rate) != rate:
            raise ArgumentError(f"links {path}: {island}: its vendors differ in {BRIDGE}; give the island one of its own")
    missing = [island for island, rate in found.items() if rate is None]
    if len(missing) == len(found):
        return {}
    if missing:
        raise ArgumentError(f"links {path}: {missing[0]} has no {BRIDGE}; give it to all islands or to none")
    for rank in ranks:  # a rank without a label gets its vendor's name as the label
        if rank.label is None and any(other.label == rank.vendor for other in ranks):
            raise ArgumentError(f"links {path}: {rank.vendor} is a label and a vendor whose ranks have none; label them all")
    return {island: rate for island, rate in found.items() if rate is not None}


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
