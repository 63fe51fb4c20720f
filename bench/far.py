"""Collectives between hosts that are far apart, with little and with much under way; writes bench/results/far.json.

    sudo .venv/bin/python bench/far.py             # a quarter of an hour; root, for network namespaces and TUN devices
    sudo .venv/bin/python bench/far.py --repeats 1 # shows that the program runs

Two network namespaces are the hosts. Between them lies a cable that this program makes (tests/far_cable.py): a rate, a delay
each way, and a queue. The contenders are the same build with other settings; they alternate.

    near      seconds with few chunks under way, by one connection (ISTHMUS_FAR_US so high that no distance is far)
    one       seconds with many chunks, by one connection (ISTHMUS_TCP_STREAMS=1)
    far       seconds with many chunks, by as many connections as the distance asks for: the defaults
    least     what crosses the cable one way / its rate, and the delay
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
CONTENDERS = {
    "near": {"ISTHMUS_FAR_US": "60000000", "ISTHMUS_TCP_STREAMS": "1"},
    "one": {"ISTHMUS_TCP_STREAMS": "1"},
    "far": {},
}


def run(hosts: Hosts, each: int, asked: dict[str, str], words: list[str]) -> dict[str, Any]:
    places = [place for place in (0, 1) for _ in range(each)]
    settings = [{"ISTHMUS_INTERFACE": f"far{place}"} | asked for place in places]
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
    return (int(mib) << 20) * parts / 2 / rate + delay


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--delays", type=float, nargs="+", default=[1, 10, 40], help="ms each way")
    flags.add_argument("--rate", type=float, default=125, help="of the cable, in 10^6 bytes a second")
    flags.add_argument("--queue-ms", type=float, default=100, help="what the cable holds before it drops packets")
    flags.add_argument("--each", type=int, default=1, help="ranks on each host")
    flags.add_argument("--mib", type=int, nargs="+", default=[1, 16, 64])
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--repeats", type=int, default=3)
    flags.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "far.json")
    given = flags.parse_args()
    table: dict[str, Any] = circumstances()
    table.update(rate_mbps=given.rate, queue_ms=given.queue_ms, ranks_each=given.each)
    table.update(rounds=given.rounds, repeats=given.repeats, cables=[])
    words = [str(given.repeats), *map(str, given.mib)]
    with two_hosts() as hosts:
        for delay in given.delays:
            seconds: dict[str, dict[str, list[float]]] = {contender: {} for contender in CONTENDERS}
            with hosts.far_cable(delay, given.rate, given.queue_ms):
                for _ in range(given.rounds):
                    for contender, asked in CONTENDERS.items():
                        said = run(hosts, given.each, asked, words)
                        assert said["far"] == (contender != "near"), said
                        for name, one in said["seconds"].items():
                            seconds[contender].setdefault(name, []).append(one)
            print(f"{delay:g} ms each way, a round trip measured as {said['round_trip_us'] / 1e3:.1f} ms")
            heads = "".join(f"{word:>24}" for word in (*CONTENDERS, "least"))
            print(f"{'':20}{heads}   {said['streams']} connections")
            rows = []
            for name in seconds["far"]:
                bound = least(name, given.each, given.rate * 1e6, delay * 1e-3)
                row = {f"{contender}_s": sorted(seconds[contender][name]) for contender in CONTENDERS}
                rows.append({"name": name, **row, "least_s": bound})
                shown = [f"{statistics.median(s) * 1e3:.1f} [{s[0] * 1e3:.1f}, {s[-1] * 1e3:.1f}]" for s in row.values()]
                print(f"  {name:18}" + "".join(f"{one:>24}" for one in shown) + f"{bound * 1e3:24.1f} ms")
            table["cables"].append({"delay_ms": delay, "round_trip_us": said["round_trip_us"], "rows": rows})
            table["cables"][-1]["connections"] = said["streams"]
    given.output.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
