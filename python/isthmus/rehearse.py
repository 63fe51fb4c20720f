"""A rehearsal runs a job of several vendors on any machine. Simulated vendors' libraries serve the ranks as real ones would.

>>> from isthmus import rehearse
>>> with rehearse.start(["python", "train.py"], "nvidia:2,cpu:1") as job:
...     results = job.wait(timeout=60)

Every line that a rehearsal prints is marked. Its times are those of a simulation, and no measurements.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import launch
from ._errors import ArgumentError, Error
from ._hosts import Hosts
from ._links import island_of, read_links

__all__ = ["Member", "banner", "folder", "parse_fleet", "start"]

VENDORS = ("nvidia", "amd", "ascend", "cpu", "oneccl")
FLEET = "REHEARSAL_FLEET"  # in every rank's environment; isthmus.cli marks its data with the value
# The files of each vendor's simulation, below folder(), and the device that a rank of the vendor works on.
FILES = {
    "nvidia": ("librehearsal.so", "nvidia/libcuda.so.1", "nvidia/libnccl.so.2"),
    "amd": ("librehearsal.so", *(f"amd/libamdhip64.so.{v}" for v in (5, 6, 7)), "amd/librccl.so.1"),
    "ascend": ("librehearsal.so", "ascend/libascendcl.so", "ascend/libhccl.so"),
}
DEVICES = {"nvidia": "cuda:0", "amd": "hip:0", "ascend": "acl:0"}

RATES = "ISTHMUS_BRIDGE_RATES"
PORT = 29500  # on the host of rank 0's island, where no other program listens

# The switches of the simulation. docs/explain/devices.md explains each.
SWITCHES = (
    "QUEUES", "QUEUE_DEPTH", "LOCKING", "SAME_ADDRESS", "OWN_MAPPING", "SCRIBBLE", "JITTER_US", "SEED", "LATENCY_US",
    "GATE_US", "COPY_GBPS", "COPY_OUT_GBPS", "COPY_IN_GBPS", "FABRIC_GBPS", "MEMORY", "DEVICES", "PINNED", "FAIL",
    "FAIL_FOR_GOOD", "FAIL_LATE", "HANG", "SLOW", "ABORT_ON_MISUSE", "QUIET", "TRACE", "CUDA_NO_STREAM_VALUES", "GFX",
    "HIP_WAIT_ANYWHERE", "HIP_NO_SIGNAL_MEMORY", "ACL_STREAM_VALUES", "ACL_NO_HOST_FUNC", "MEET",
    "NCCL_VERSION", "NCCL_GROUP_MS",
)  # fmt: skip

_ITEM = re.compile(r"(?P<vendor>[^:@,\s]+):(?P<count>[0-9]+)(?:@(?P<label>[^:@,\s]+))?")


@dataclass(frozen=True)
class Member:
    """One rank of a fleet. All ranks of one vendor without a label are one island."""

    vendor: str
    label: str | None = None


def parse_fleet(text: str) -> list[Member]:
    """The ranks of a fleet, in order. Raises ArgumentError where the text is no fleet.

    The text is "nvidia:2,cpu:1"; interleaved "cpu:1,nvidia:1,cpu:1"; with labels of islands "cpu:1@a,cpu:1@b".
    """
    members: list[Member] = []
    for part in text.split(","):
        item = _ITEM.fullmatch(part.strip())
        if item is None:
            raise ArgumentError(f"fleet {text}: '{part.strip()}' is not VENDOR:RANKS or VENDOR:RANKS@ISLAND")
        vendor, count = item["vendor"], int(item["count"])
        if vendor not in VENDORS:
            raise ArgumentError(f"fleet {text}: no vendor '{vendor}' is known; {', '.join(VENDORS)} are")
        if count < 1:
            raise ArgumentError(f"fleet {text}: {vendor}:{count} has no rank; write 1 or more")
        members += [Member(vendor, item["label"])] * count
    return members


def banner(fleet: str) -> str:
    return f"rehearsal: {fleet} — simulated vendors; no figure printed below is a measurement"


def folder() -> Path:
    """The folder of the simulated libraries: the one that REHEARSAL_LIBRARIES names, else the package's."""
    given = os.environ.get("REHEARSAL_LIBRARIES")
    return Path(given) if given else Path(__file__).resolve().parent / "rehearsal"


def start(
    command: Sequence[str],
    fleet: str,
    *,
    bridge: str | None = None,
    switches: Mapping[str, str] | None = None,
    links: str | os.PathLike[str] | None = None,
    show: bool = False,
) -> launch.Job:
    """Starts one process of `command` for each rank of the fleet, on this machine.

    - **`fleet`**: "VENDOR:RANKS" or "VENDOR:RANKS@ISLAND", joined by commas, as "nvidia:2,cpu:1".
    - **`bridge`**: "auto", "shm", "tcp" or "ucx".
    - **`switches`**: switches of the simulation. {"JITTER_US": "0"} is REHEARSAL_JITTER_US=0 on all ranks. {"1:JITTER_US":
      "9"} is for rank 1 alone, and goes before a switch for all ranks.
    - **`links`**: a file with the rates of devices and of the bridges between islands (docs/explain/devices.md). With rates
      of bridges every island is a host of its own, and the caller must be root.
    - **`show`**: a banner, and every line of output behind "[rehearsal RANK VENDOR]", go to this process's output. Without
      `show`, Job.wait() returns the output.

    Raises ArgumentError for a wrong argument, and Error where the simulated libraries or the hosts cannot be had.
    """
    members = parse_fleet(fleet)
    given = _switches(switches or {}, len(members))
    rates = None if links is None else read_links(links, members, tuple(DEVICES))
    if rates and rates.bridges and bridge == "shm":
        raise ArgumentError("rehearsal: bridge=shm, but links with bridge_mbps make a host of every island")
    _check_files({member.vendor for member in members})
    each: list[dict[str, str | None]] = []
    for rank, member in enumerate(members):
        each.append({**_persona(member.vendor), **(rates.switches[rank] if rates else {}), **given[rank], FLEET: fleet})
    prefixes = [f"[rehearsal {rank} {member.vendor}] " for rank, member in enumerate(members)] if show else None
    labels: list[str | None] = [member.label for member in members]
    if not rates or not rates.bridges:
        if show:
            print(banner(fleet), file=sys.stderr, flush=True)
        return launch.start(command, len(members), islands=labels, bridge=bridge, each=each, prefixes=prefixes)
    islands = [island_of(member) for member in members]
    hosts = Hosts(rates.bridges)
    try:
        if show:
            print(banner(fleet), file=sys.stderr, flush=True)
        for rank, (mine, island) in enumerate(zip(each, islands, strict=True)):
            mine.update(LOCAL_RANK=str(islands[:rank].count(island)), LOCAL_WORLD_SIZE=str(islands.count(island)))
            if RATES not in os.environ:
                mine[RATES] = ",".join(f"{name}:{rate:.12g}" for name, rate in rates.bridges.items())
        job = launch.start(
            command,
            len(members),
            islands=islands,
            bridge=bridge,
            each=each,
            prefixes=prefixes,
            port=PORT,
            host=hosts.address(islands[0]),
            before=[hosts.before(island) for island in islands],
        )
    except BaseException:
        hosts.close()
        raise
    job.at_end.append(hosts.close)
    return job


def _switches(given: Mapping[str, str], ranks: int) -> list[dict[str, str]]:
    """The variables of every rank, in order: switches for all ranks, replaced by switches for that rank alone."""
    of_all: dict[str, str] = {}
    of_one: list[dict[str, str]] = [{} for _ in range(ranks)]
    for text, value in given.items():
        rank, colon, name = text.rpartition(":")
        short = name.removeprefix("REHEARSAL_")
        if short not in SWITCHES:
            raise ArgumentError(f"rehearsal: '{text}' is no switch; there are {', '.join(SWITCHES)}")
        if colon and not (rank.isdecimal() and int(rank) < ranks):
            raise ArgumentError(f"rehearsal: '{text}' is for no rank of the fleet, which has {ranks} (0 to {ranks - 1})")
        (of_one[int(rank)] if colon else of_all)[f"REHEARSAL_{short}"] = value
    return [{**of_all, **mine} for mine in of_one]


def _check_files(vendors: set[str]) -> None:
    for vendor in sorted(vendors & FILES.keys()):
        for name in FILES[vendor]:
            if not (folder() / name).is_file():
                raise Error(f"rehearsal: no simulated {vendor} libraries: {folder() / name} is missing; install anew")


def _persona(vendor: str) -> dict[str, str | None]:
    """The variables that make a process a rank of `vendor`. The value None: the variable must not be there."""
    common: dict[str, str | None] = {"PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1")}
    if vendor == "oneccl":
        return {**common, "ISTHMUS_DEVICE": "host", "ISTHMUS_CCL": "oneccl"}
    common.update(ISTHMUS_CCL=None, ISTHMUS_CCL_LIBRARY=None)
    if vendor == "cpu":
        return {**common, "ISTHMUS_DEVICE": "host"}
    before = os.environ.get("LD_LIBRARY_PATH")
    return {
        **common,
        "ISTHMUS_DEVICE": DEVICES[vendor],
        "LD_LIBRARY_PATH": os.pathsep.join([str(folder().resolve() / vendor), *([before] if before else [])]),
        "REHEARSAL_DEVICES": "1",
    }
