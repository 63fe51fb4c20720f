"""One rank of test_hosts.py, test_island_hosts.py and test_containers.py. Says what it found as lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import isthmus


def listens() -> list[tuple[str, int]]:
    """The addresses and ports at which this process listens for TCP."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table, family in (("tcp", 4), ("tcp6", 6)):
        for row in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            words = row.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].split(":")
                found.add((readable(address, family), int(port, 16)))
    return sorted(found)


def readable(digits: str, family: int) -> str:
    import ipaddress

    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    raw = b"".join(words)
    return str(ipaddress.IPv4Address(raw) if family == 4 else ipaddress.IPv6Address(raw))


def meet_by_id() -> None:
    """Rank 0 says its unique id; the other reads it."""
    if os.environ["ISTHMUS_RANK"] == "0":
        identity = isthmus.unique_id()
        print(json.dumps(identity.hex()), flush=True)
    else:
        identity = bytes.fromhex(json.loads(sys.stdin.readline()))
    with isthmus.init(int(os.environ["ISTHMUS_RANK"]), 2, unique_id=identity) as comm:
        print(json.dumps(float(comm.all_reduce(np.ones(4))[0])), flush=True)


def right(comm: isthmus.Comm, count: int) -> bool:
    """Whether the collectives give what NumPy gives."""
    n, me = comm.size, comm.rank
    mine = [(np.arange(count) + r) % 5 + 1.0 for r in range(n)]
    total = np.sum(mine, 0)
    found = [
        (comm.all_reduce(mine[me].copy()), total),
        (comm.all_reduce(mine[me].copy(), "max"), np.max(mine, 0)),
        (comm.broadcast(mine[me].copy(), n - 1), mine[n - 1]),
        (comm.all_gather(mine[me]).reshape(-1), np.concatenate(mine)),
        (comm.reduce_scatter(np.tile(mine[me], n)), total),
    ]
    if me == 0:
        found.append((comm.reduce(mine[me].copy(), 0), total))
    else:
        comm.reduce(mine[me].copy(), 0)
    return all((np.asarray(got) == wanted).all() for got, wanted in found)


def of_islands(comm: isthmus.Comm) -> None:
    turned = comm.split(0, -comm.rank)  # a part that has all ranks, in the opposite order
    assert turned is not None
    topology = comm.topology()
    served = {group["ccl"]: group["ranks"] for group in topology["groups"] if group["ccl"]}
    print(
        json.dumps(
            {
                "right": [right(comm, count) for count in (7, 100_003)] + [right(turned, 1000)],
                "turned": turned.rank,
                "hosts": [host["ranks"] for host in topology["hosts"]],
                "served": served,
            }
        ),
        flush=True,
    )
    comm.destroy()


def wrong_blocks(comm: isthmus.Comm) -> list[str]:
    """The collectives that move blocks, as far as they give anything else than NumPy does."""
    n, me = comm.size, comm.rank

    def block(s: int, d: int, count: int) -> np.ndarray:
        return np.arange(count) * 10.0 + s + d / 8

    wrong = []
    for turn, unit in enumerate((1, 1000, 70_001)):
        sizes = [[(3 * s + 2 * d + turn) % 4 * unit for d in range(n)] for s in range(n)]
        x = np.concatenate([block(me, d, sizes[me][d]) for d in range(n)])
        got = comm.all_to_all_v(x, sizes[me], [sizes[s][me] for s in range(n)])
        if not np.array_equal(got, np.concatenate([block(s, me, sizes[s][me]) for s in range(n)])):
            wrong.append(f"all_to_all_v {unit}")
        x = np.stack([block(me, d, unit) for d in range(n)])
        if not np.array_equal(comm.all_to_all(x), np.stack([block(s, me, unit) for s in range(n)])):
            wrong.append(f"all_to_all {unit}")
        for root in range(n):
            gathered = comm.gather(block(me, root, unit), root)
            if me == root and not np.array_equal(gathered, np.stack([block(s, root, unit) for s in range(n)])):
                wrong.append(f"gather {unit} {root}")
    return wrong


def of_blocks(comm: isthmus.Comm) -> None:
    """Collectives that move blocks; then counts of an all_to_all_v that two ranks differ in."""
    n, me = comm.size, comm.rank
    wrong = wrong_blocks(comm)
    path = comm.explain("all_to_all_v", nbytes=8 << 20)
    give, take, other = [4] * n, [4] * n, int(sys.argv[2])
    if me == 0:
        give[other] = 10
    if me == other:
        take[0] = 11
    said = {"kind": "", "text": "no error"}
    try:
        comm.barrier()  # who is late is told of it here
        comm.all_to_all_v(np.ones(sum(give)), give, take)
    except isthmus.Error as error:
        said = {"kind": type(error).__name__, "text": str(error)}
    print(json.dumps({"wrong": wrong, "path": str(path), "differing": said}), flush=True)
    sys.stdin.readline()  # whoever ends is lost to the others, which may not have heard yet
    comm.destroy()


def of_containers(comm: isthmus.Comm) -> None:
    topology = comm.topology()
    found = {
        "pid": os.getpid(),
        "pids": [one["pid"] for one in topology["ranks"]],
        "hosts": [host["ranks"] for host in topology["hosts"]],
        "links": [one["kind"] for one in topology["links"] if one["to"] != comm.rank],
        "right": [right(comm, count) for count in (7, 100_003)],
    }
    print(json.dumps(found), flush=True)


def of_last_messages(comm: isthmus.Comm, count: int, length: int) -> None:
    """Rank 0 gives messages to its kernel and leaves; rank 1 has receives for all of them."""
    sys.stdin.readline()
    data = [np.full(length, n if comm.rank == 0 else 255, np.uint8) for n in range(count)]
    if comm.rank == 0:
        for work in [comm.send(x, 1, async_op=True) for x in data]:
            work.wait()
        comm.destroy()
        print(json.dumps("left"), flush=True)
        sys.stdin.readline()
        return
    for work in [comm.recv(x, 0, async_op=True) for x in data]:
        work.wait()
    print(json.dumps([int(x[-1]) for x in data]), flush=True)


def said_of(error: isthmus.Error) -> str:
    return json.dumps({"kind": type(error).__name__, "text": str(error), "ranks": error.ranks, "at": time.monotonic()})


def until_it_hears(comm: isthmus.Comm) -> None:
    """Rank 2 is in no call, says what it hears, and leaves when the test says so. The others wait for it in a barrier."""
    if comm.rank != 2:
        try:
            comm.barrier()
        except isthmus.Error as error:
            print(said_of(error), flush=True)
        sys.stdin.readline()
        return
    while comm.error is None:
        time.sleep(0.01)
    print(said_of(comm.error), flush=True)
    sys.stdin.readline()
    comm.destroy()
    sys.stdin.readline()


def until_messages_are_late(comm: isthmus.Comm, count: int) -> None:
    """The two ranks send each other a long message at one time."""
    comm.set_timeout(float(sys.stdin.readline()))
    try:
        received = comm.recv(np.zeros(count), 1 - comm.rank, async_op=True)
        comm.send(np.ones(count), 1 - comm.rank)
        received.wait()
    except isthmus.Error as error:
        print(said_of(error), flush=True)


def main() -> None:
    if sys.argv[1] == "by-id":
        return meet_by_id()
    comm = isthmus.init()
    if sys.argv[1] == "islands":
        return of_islands(comm)
    if sys.argv[1] == "blocks":
        return of_blocks(comm)
    if sys.argv[1] == "work":
        where = listens()
        total = comm.all_reduce(np.full(100_000, comm.rank + 1.0))
        topology = comm.topology()
        link = next(one["kind"] for one in topology["links"] if one["to"] != comm.rank)
        print(
            json.dumps({"sum": float(total[0]), "hosts": len(topology["hosts"]), "link": link, "listens": where}), flush=True
        )
        comm.destroy()
        return
    if sys.argv[1] == "containers":
        of_containers(comm)
    comm.barrier()
    print(json.dumps("ready"), flush=True)
    if sys.argv[1] == "last-messages":
        return of_last_messages(comm, *map(int, sys.argv[2:]))
    if sys.argv[1] == "until-heard":
        return until_it_hears(comm)
    if sys.argv[1] == "late-messages":
        return until_messages_are_late(comm, int(sys.argv[2]))
    x = np.ones(int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
    if sys.argv[1] == "until-deadline":
        comm.set_timeout(float(sys.stdin.readline()))  # said when the test has done what it is about
    try:
        while True:
            comm.all_reduce(x, "max")
    except isthmus.Error as error:
        print(said_of(error), flush=True)


if __name__ == "__main__":
    main()
