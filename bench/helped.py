"""What threads that help a TCP link with several connections bring; writes bench/results/helped.json.

    sudo .venv/bin/python bench/helped.py             # some two minutes; root, for network namespaces
    sudo .venv/bin/python bench/helped.py --rounds 1  # shows that the program runs

Two network namespaces are the hosts, a pair of virtual interfaces is the cable, so one machine has the work of both hosts
and of the cable. One rank on each host. The contenders are the same build with other settings; they alternate.

    one stream     one connection, by one thread
    alone          --streams connections, by one thread
    helped         the same, and --helpers threads that help (ISTHMUS_REDUCE_THREADS)

For each: GB/s of a message from rank 0 to rank 1, of one each way at once (each way), and of an all_reduce (its size over
its time). `by helpers` is the part of all bytes that they moved. Beside them stands `raw`: as many bytes each way at once
over one connection of the loopback interface, by two processes without Isthmus, the best of ten ways to do it.

    --each 0.2     the kernel gives each thread of a rank a fifth of a processor (cgroup v1), a millisecond of every five. So
                   more threads have more processor time, as on a machine with as many processors. `raw` is as ever.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from circumstances import circumstances  # noqa: E402
from hosts import Hosts, end, line, two_hosts  # noqa: E402
from peers import raw_exchange  # noqa: E402

LEAST_US = 1000  # the least share of a period that the kernel takes
RANK = ROOT / "bench" / "helped_rank.py"
BENCH = Path(sys.executable).with_name("isthmus-bench")


def hold(pid: int, part: float) -> Iterator[Path]:
    """Each thread of the process gets no more than that part of a processor: a group each, which the caller removes."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        group = Path(f"/sys/fs/cgroup/cpu/isthmus-{pid}-{thread.name}")
        group.mkdir()
        yield group
        (group / "cpu.cfs_period_us").write_text(str(round(LEAST_US / part)))
        (group / "cpu.cfs_quota_us").write_text(str(LEAST_US))
        (group / "tasks").write_text(thread.name)


def run(hosts: Hosts, settings: dict[str, str], words: list[str], part: float) -> dict[str, Any]:
    ranks = hosts.start_on((0, 1), [settings, settings], *words, program=RANK)
    groups: list[Path] = []
    try:
        for rank in ranks:
            assert line(rank) == "ready" and rank.stdin is not None
            if part < 1:
                groups.extend(hold(rank.pid, part))
        for rank in ranks:
            assert rank.stdin is not None
            print("go", file=rank.stdin, flush=True)
        said: dict[str, Any] = line(ranks[1])
        for rank in ranks:
            _, log = rank.communicate(timeout=120)
            assert rank.returncode == 0, log
        return said
    finally:
        end(ranks)
        for group in groups:
            group.rmdir()


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--mib", type=int, default=64)
    flags.add_argument("--streams", type=int, default=4)
    flags.add_argument("--helpers", type=int, default=1)
    flags.add_argument("--each", type=float, default=1, help="the part of a processor that each thread of a rank gets")
    flags.add_argument("--rounds", type=int, default=9)
    flags.add_argument("--repeats", type=int, default=8)
    flags.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "helped.json")
    given = flags.parse_args()
    several = {"ISTHMUS_TCP_STREAMS": str(given.streams)}
    contenders = {
        "one stream": {"ISTHMUS_TCP_STREAMS": "1", "ISTHMUS_REDUCE_THREADS": "0"},
        "alone": several | {"ISTHMUS_REDUCE_THREADS": "0"},
        "helped": several | {"ISTHMUS_REDUCE_THREADS": str(given.helpers)},
    }
    table: dict[str, Any] = circumstances()
    table.update(mib=given.mib, streams=given.streams, helpers=given.helpers, each=given.each)
    table.update(rounds=given.rounds, repeats=given.repeats)
    rates: dict[str, dict[str, list[float]]] = {}
    with two_hosts() as hosts:
        for _ in range(given.rounds):
            for contender, settings in contenders.items():
                said = run(hosts, settings, [str(given.repeats), str(given.mib)], given.each)
                assert said["streams"] == int(settings["ISTHMUS_TCP_STREAMS"]), said
                assert contender == "helped" or said["helped"] == 0, said
                for name, seconds in said["seconds"].items():
                    rate = (given.mib << 20) / seconds / 1e9
                    rates.setdefault(name, {}).setdefault(contender, []).append(rate)
                rates.setdefault("by helpers", {}).setdefault(contender, []).append(said["helped"])
            raw = raw_exchange(str(BENCH), given.mib << 20, 120, given.repeats)["best_rate_bytes_per_s_each_way"] / 1e9
            rates["both ways"].setdefault("raw", []).append(raw)
    for name, of in rates.items():
        print(name)
        for contender, values in of.items():
            values.sort()
            print(f"  {contender:12} {statistics.median(values):6.2f} [{values[0]:.2f}, {values[-1]:.2f}]")
    table["rates"] = rates
    given.output.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
