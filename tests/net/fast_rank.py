"""One rank of test_fast_hosts.py. Says what it found as a line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import isthmus

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "python")]
from devices import DeviceArray, OnDevice, vendor  # noqa: E402


def closed() -> int:
    """Bytes of slots to which this process has no access now."""
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0] for line in maps if "memfd:isthmus" in line and " ---s " in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in (r.split("-") for r in ranges))


def sent(comm: isthmus.Comm, kind: str) -> int:
    return sum(link.get("bytes_sent", 0) for link in comm.topology()["links"] if link["kind"] == kind)


class Ops:
    """Operations of every kind, with the bytes that each has given to links inside the host and to other hosts."""

    def __init__(self, comm: isthmus.Comm) -> None:
        self.comm, self.wrong, self.inside, self.across = comm, [], {}, {}

    def done(self, what: str, well: bool) -> None:
        if not well:
            self.wrong.append(what)
        for kind, counts in (("memory", self.inside), ("tcp", self.across)):
            now = sent(self.comm, kind)
            counts[what] = now - self.before[kind]
        self.begin()

    def begin(self) -> None:
        self.comm.barrier()
        self.before = {kind: sent(self.comm, kind) for kind in ("memory", "tcp")}

    def collectives(self, count: int) -> None:
        where, n, me = OnDevice(self.comm), self.comm.size, self.comm.rank
        everybody = np.stack([np.arange(count, dtype=np.float32) % 1000 + r for r in range(n)])
        x, total = everybody[me], everybody.sum(axis=0, dtype=np.float32)
        self.begin()
        for root in (0, n - 1):
            y = x.copy()
            where.broadcast(y, root)
            self.done(f"broadcast from {root}", bool((y == everybody[root]).all()))
        y = np.zeros((n, count), np.float32)
        where.all_gather(x, y)
        self.done("all_gather", bool((y == everybody).all()))
        y = x.copy()
        where.all_reduce(y)
        self.done("all_reduce", bool((y == total).all()))
        y = np.zeros((n, count), np.float32)
        where.all_to_all(everybody * (me + 1), y)
        self.done("all_to_all", bool((y == np.stack([everybody[me] * (r + 1) for r in range(n)])).all()))
        y = np.zeros(count, np.float32)
        where.scatter(everybody if me == 0 else None, root=0, out=y)
        self.done("scatter", bool((y == everybody[me]).all()))
        y = np.zeros((n, count), np.float32)
        where.gather(x, 0, **({"out": y} if me == 0 else {}))
        self.done("gather", me != 0 or bool((y == everybody).all()))
        y = np.zeros(count, np.float32)
        where.reduce_scatter(np.tile(x, (n, 1)), out=y)
        self.done("reduce_scatter", bool((y == total).all()))

    def messages(self, neighbours: list[int]) -> None:
        """Around the ranks of this host."""
        comm, me = self.comm, self.comm.rank
        at = neighbours.index(me)
        before, after = neighbours[at - 1], neighbours[(at + 1) % len(neighbours)]
        self.begin()
        for count in (1, 5000, 1_000_003):
            for stream in (None, vendor().stream()):
                x, y = DeviceArray.of(np.arange(count, dtype=np.float32) + me), DeviceArray.of(np.zeros(count, np.float32))
                with isthmus.group():
                    comm.recv(y, before, stream=stream)
                    comm.send(x, after, stream=stream)
                if stream is not None:
                    vendor().synchronize(stream)
                right = bool((y.get() == np.arange(count, dtype=np.float32) + before).all())
                self.done(f"message of {count}, stream {stream is not None}", right)


def main() -> None:
    comm = isthmus.init()
    neighbours = next(host["ranks"] for host in comm.topology()["hosts"] if comm.rank in host["ranks"])
    ops = Ops(comm)
    guarded = closed()  # receive slots, closed all the time
    ops.messages(neighbours)
    still = closed()
    ops.collectives(7)
    ops.collectives(700_001)
    said = {"wrong": ops.wrong, "inside": ops.inside, "across": ops.across, "closed": [guarded, still]}
    said["served"] = [group["ccl"] for group in comm.topology()["groups"] if comm.rank in group["ranks"]][0]
    said["links"] = {link["to"]: link["kind"] for link in comm.topology()["links"]}
    print(json.dumps(said), flush=True)
    sys.stdin.readline()  # whoever ends is lost to the others
    comm.destroy()


if __name__ == "__main__":
    main()
