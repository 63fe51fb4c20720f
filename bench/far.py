"""Collectives between hosts that are far apart, with few and with many chunks under way; writes bench/results/far.json.

    sudo .venv/bin/python bench/far.py             # two minutes; root, for network namespaces and TUN devices
    sudo .venv/bin/python bench/far.py --repeats 1 # shows that the program runs

Two network namespaces are the hosts. Between them lies a cable that this program makes (tests/far_cable.py): a rate, a delay
each way, and a queue. The contenders are the same build with ISTHMUS_FAR_US at its default, and so high that no
distance is far; they alternate.

    near      seconds with few chunks under way
    far       seconds with many
    least     what crosses the cable one way / its rate, and the delay; of an all_reduce a round trip at least
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


def run(hosts: Hosts, each: int, from_us: str | None, words: list[str]) -> dict[str, Any]:
    places = [place for place in (0, 1) for _ in range(each)]
    settings = [{"ISTHMUS_INTERFACE": f"far{place}"} | ({"ISTHMUS_FAR_US": from_us} if from_us else {}) for place in places]
    ranks = hosts.start_on(places, settings, *words, program=RANK)
    try:
        said: dict[str, Any] = line(ranks[0])
        for rank in ranks:
            _, log = rank.communicate(timeout=600)
            assert rank.returncode == 0, log
        return said
    finally:
        end(ranks)


def least(name: str, each: int, rate: float, delay: float) -> float:
    """Seconds. In an all_reduce a host sends the whole message, else half of it, and in an all_to_all that of each rank."""
    collective, mib = name.split()
    parts = {"all_reduce": 2, "all_to_all": each}.get(collective, 1)
    one_way = (int(mib) << 20) * parts / 2 / rate + delay
    return max(one_way, 2 * delay) if collective == "all_reduce" else one_way


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--delays", type=float, nargs="+", default=[1, 10, 40], help="ms each way")
    flags.add_argument("--rate", type=float, default=125, help="of the cable, in 10^6 bytes a second")
    flags.add_argument("--queue-ms", type=float, default=100, help="what the cable holds before it drops packets")
    flags.add_argument("--each", type=int, default=1, help="ranks on each host")
    flags.add_argument("--mib", type=int, nargs="+", default=[1, 16, 64])
    flags.add_argument("--rounds", type=int, default=2)
    flags.add_argument("--repeats", type=int, default=4)
    flags.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "far.json")
    given = flags.parse_args()
    table: dict[str, Any] = circumstances()
    table.update(rate_mbps=given.rate, queue_ms=given.queue_ms, ranks_each=given.each)
    table.update(rounds=given.rounds, repeats=given.repeats, cables=[])
    words = [str(given.repeats), *map(str, given.mib)]
    with two_hosts() as hosts:
        for delay in given.delays:
            near: dict[str, list[float]] = {}
            far: dict[str, list[float]] = {}
            with hosts.far_cable(delay, given.rate, given.queue_ms):
                for _ in range(given.rounds):
                    for into, from_us in ((near, NEVER), (far, None)):
                        said = run(hosts, given.each, from_us, words)
                        assert said["far"] == (into is far), said
                        for name, seconds in said["seconds"].items():
                            into.setdefault(name, []).extend(seconds)
            print(f"{delay:g} ms each way, a round trip measured as {said['round_trip_us'] / 1e3:.1f} ms")
            rows = []
            for name in near:
                before, after = statistics.median(near[name]), statistics.median(far[name])
                bound = least(name, given.each, given.rate * 1e6, delay * 1e-3)
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
