"""What the loss of a cable costs where two hosts have two, each with a data stream; writes bench/results/streams.json.

    sudo .venv/bin/python bench/streams.py             # some six minutes; root, for network namespaces
    sudo .venv/bin/python bench/streams.py --trials 3  # shows that the program runs
    sudo .venv/bin/python bench/streams.py --trials 100 --congestion reno  # the table of docs/howto/bench.md

Two network namespaces are the hosts, two pairs of virtual interfaces the cables, each shaped to the rate. Two ranks run
all_reduces one after another. A cable is lost in the middle of one: `silent`, where what is sent by it reaches nobody and no
host is told, or `down`, where both interfaces are.

    T2, T1    the time of an all_reduce over both cables, over the one that is left (medians)
    stall     how much longer the one in which the cable was lost took than (time until then) + (1 - that / T2) T1
    rest      T1 over one cable that is the only one from the start / T1 with the stream lost
    back      from the cable's return until both ranks have the stream again
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from circumstances import circumstances  # noqa: E402
from hosts import Hosts, Process, end, line, two_hosts  # noqa: E402

RANK = ROOT / "tests" / "net" / "streams_rank.py"
SETTLED = 3  # operations whose median is a time
LOSE = {"silent": lambda h: h.silence("second"), "down": lambda h: h.set_second_cable("down")}
RETURN = {"silent": lambda h: h.restore("second"), "down": lambda h: h.set_second_cable("up")}


def system_congestion() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


class Job:
    def __init__(self, hosts: Hosts, mib: int, interfaces: tuple[str, ...], congestion: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        names = [",".join(f"{name}{n}" for name in interfaces) for n in (0, 1)]
        log = f"{self.folder.name}/%r.log"  # nobody reads the ranks' stderr before their end
        both = {"ISTHMUS_TCP_STREAMS": "0", "ISTHMUS_TCP_CONGESTION": congestion, "ISTHMUS_LOG_FILE": log}
        settings = [{"ISTHMUS_INTERFACE": n, **both} for n in names]
        self.ranks: list[Process] = hosts.start_on((0, 1), settings, self.folder.name, str(mib), program=RANK)
        self.changes: list[list[Any]] = [[], []]

    def next(self) -> tuple[float, float]:
        """When the next all_reduce began, and how long it took."""
        said = [line(rank) for rank in self.ranks]
        assert all(one["right"] for one in said), said
        for known, one in zip(self.changes, said, strict=True):
            known.extend(one["changes"])
        begin = max(one["begin"] for one in said)
        return begin, max(one["begin"] + one["seconds"] for one in said) - begin

    def until(self, streams: list[bool]) -> None:
        while [known[-1][1] if known else None for known in self.changes] != [streams, streams]:
            self.next()

    def median(self) -> float:
        return statistics.median(self.next()[1] for _ in range(SETTLED))

    def close(self) -> None:
        Path(self.folder.name, "over").touch()
        for rank in self.ranks:
            rest, log = rank.communicate(timeout=60)
            assert rank.returncode == 0 and rest.splitlines()[-1] == '"well"', log
        self.folder.cleanup()


def trial(job: Job, hosts: Hosts, kind: str, alone: float) -> dict[str, float]:
    job.until([True, True])
    both = job.median()
    begin, _ = job.next()  # the next one begins soon after this one's end
    time.sleep(random.uniform(0.1, 0.7) * both)
    LOSE[kind](hosts)
    lost = time.monotonic()
    while (now := job.next())[0] + now[1] < lost:
        pass
    begin, took = now
    job.until([True, False])
    one = job.median()
    RETURN[kind](hosts)
    returned = time.monotonic()
    job.until([True, True])
    found = max(known[-1][0] for known in job.changes) - returned
    done = max(lost - begin, 0.0)
    stall = took - done - (1 - min(done / both, 1.0)) * one
    return {"both_s": both, "one_s": one, "stall_ms": 1e3 * stall, "rest": alone / one, "back_s": found}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--trials", type=int, default=40, help="of each kind")
    flags.add_argument("--mib", type=int, default=32, help="an all_reduce's size")
    flags.add_argument("--rate", type=float, default=100, help="of a cable, in 10^6 bytes a second")
    flags.add_argument("--congestion", default="", help="ISTHMUS_TCP_CONGESTION of both ranks")
    flags.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "streams.json")
    given = flags.parse_args()
    made = circumstances()
    with two_hosts() as hosts:
        hosts.add_second_cable()
        for cable in ("cable", "second"):
            hosts.shape(cable, given.rate)
        job = Job(hosts, given.mib, ("cable",), given.congestion)
        try:
            for _ in range(SETTLED):
                job.next()
            alone = statistics.median(job.next()[1] for _ in range(3 * SETTLED))
            job.close()
            print(f"one cable alone: {alone:.3f} s")
            rows: dict[str, list[dict[str, float]]] = {}
            job = Job(hosts, given.mib, ("cable", "second"), given.congestion)
            for kind in LOSE:
                rows[kind] = [trial(job, hosts, kind, alone) for _ in range(given.trials)]
            job.close()
        finally:
            end(job.ranks)
    table: dict[str, Any] = made
    table.update(mib=given.mib, rate_mbps=given.rate, trials=given.trials, alone_s=alone, kinds={})
    table["congestion"] = given.congestion or system_congestion()
    for kind, row in rows.items():
        all_of = {key: sorted(one[key] for one in row) for key in row[0]}
        table["kinds"][kind] = {}
        print(kind)
        for key, values in all_of.items():
            middle = statistics.median(values)
            table["kinds"][kind][key] = {"least": values[0], "median": middle, "worst": values[-1]}
            if len(values) >= 100:  # fewer have no hundredth
                table["kinds"][kind][key]["p99"] = values[-(-99 * len(values) // 100) - 1]
            print(f"  {key}: {middle:.3f} [{values[0]:.3f}, {values[-1]:.3f}]")
    given.output.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
