"""Collectives between hosts that are far apart, with few and with many chunks under way; writes bench/results/far.json.

    sudo .venv/bin/python bench/far.py             # two minutes; root, for network namespaces and TUN devices
    sudo .venv/bin/python bench/far.py --repeats 1 # shows that the program runs

Two network namespaces are the hosts. Between them lies a cable that this program makes (tests/far_cable.py): a rate, a delay
each way, and a queue. The contenders are the same build with ISTHMUS_FAR_US at its default, and so high that no
distance is far; they alternate.

    near      seconds with few chunks under way
    far       seconds with many
    least     what crosses the cable one way / its rate, and a round trip (all_reduce) or half of one
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from circumstances import circumstances  # noqa: E402
from hosts import Hosts, end, line, two_hosts  # noqa: E402

RANK = ROOT / "bench" / "far_rank.py"
NEVER = "60000000"


def run(hosts: Hosts, from_us: str | None, words: list[str]) -> dict[str, Any]:
    settings = [{"ISTHMUS_INTERFACE": f"far{place}"} | ({"ISTHMUS_FAR_US": from_us} if from_us else {}) for place in (0, 1)]
    ranks = hosts.start_on((0, 1), settings, *words, program=RANK)
    try:
        said: dict[str, Any] = line(ranks[0])
        for rank in ranks:
            _, log = rank.communicate(timeout=600)
            assert rank.returncode == 0, log
        return said
    finally:
        end(ranks)


def least(name: str, rate: float, delay: float) -> float:
    """Seconds: of two ranks each sends the whole message in an all_reduce, and half of it in the others."""
    collective, mib = name.split()
    crosses = int(mib) << 20
    both_ways = collective == "all_reduce"
    return crosses / (1 if both_ways else 2) / rate + delay * (2 if both_ways else 1)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--delays", type=float, nargs="+", default=[1, 10, 40], help="ms each way")
    flags.add_argument("--rate", type=float, default=125, help="of the cable, in 10^6 bytes a second")
    flags.add_argument("--mib", type=int, nargs="+", default=[1, 16, 64])
    flags.add_argument("--rounds", type=int, default=2)
    flags.add_argument("--repeats", type=int, default=4)
    flags.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "far.json")
    given = flags.parse_args()
    table: dict[str, Any] = circumstances()
    table.update(rate_mbps=given.rate, rounds=given.rounds, repeats=given.repeats, cables=[])
    words = [str(given.repeats), *map(str, given.mib)]
    with two_hosts() as hosts:
        for delay in given.delays:
            near: dict[str, list[float]] = {}
            far: dict[str, list[float]] = {}
            with hosts.far_cable(delay_ms=delay, megabytes=given.rate):
                for _ in range(given.rounds):
                    for into, from_us in ((near, NEVER), (far, None)):
                        said = run(hosts, from_us, words)
                        assert said["far"] == (into is far), said
                        for name, seconds in said["seconds"].items():
                            into.setdefault(name, []).extend(seconds)
            print(f"{delay:g} ms each way, a round trip measured as {said['round_trip_us'] / 1e3:.1f} ms")
            rows = []
            for name in near:
                before, after = statistics.median(near[name]), statistics.median(far[name])
                bound = least(name, given.rate * 1e6, delay * 1e-3)
                rows.append({"name": name, "near_s": sorted(near[name]), "far_s": sorted(far[name]), "least_s": bound})
                print(
                    f"  {name:18} near {before * 1e3:8.1f} ms   far {after * 1e3:8.1f} [{min(far[name]) * 1e3:.1f}, "
                    f"{max(far[name]) * 1e3:.1f}]   {before / after:5.2f} times as fast   least {bound * 1e3:8.1f}"
                )
            table["cables"].append({"delay_ms": delay, "round_trip_us": said["round_trip_us"], "rows": rows})
    given.output.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
