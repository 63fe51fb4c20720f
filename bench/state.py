"""What the state of `isthmus.elastic` costs the operations beside it, on a slow cable; writes bench/results/state.json.

    sudo .venv/bin/python bench/state.py             # half a minute; root, for network namespaces
    sudo .venv/bin/python bench/state.py --rounds 1  # shows that the program runs

Two network namespaces are the hosts, a pair of virtual interfaces the cable, shaped to the rate. Each of two ranks has two
communicators: on one it runs all_reduces one after another, on the other a state travels from rank 0 to rank 1. In each
round the all_reduces are timed without a state first, and then for as long as one travels.

    alone     an all_reduce without a state
    beside    an all_reduce while a state travels
    slower    the mean of those beside / the mean of those alone; may be 1.10
    state     how long the state takes; `least` is its bytes over the cable's rate
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
from hosts import end, line, two_hosts  # noqa: E402

RANK = ROOT / "bench" / "state_rank.py"
MOST_SLOWER = 1.10


def figures(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    p90 = ordered[int(0.9 * len(ordered))]
    return {"operations": len(times), "mean_s": statistics.mean(times), "median_s": statistics.median(times), "p90_s": p90}


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--mib", type=float, default=1, help="an all_reduce's size")
    flags.add_argument("--state-mib", type=int, default=16, help="the state's size")
    flags.add_argument("--rate", type=float, default=100, help="of the cable, in 10^6 bytes a second")
    flags.add_argument("--check", action="store_true", help="fails where the all_reduces are slower than they may be")
    flags.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "state.json")
    given = flags.parse_args()
    made = circumstances()
    words = [str(one) for one in (given.rounds, round(given.mib * (1 << 20)), given.state_mib << 20)]
    with two_hosts() as hosts:
        hosts.shape("cable", given.rate)
        ranks = hosts.start_on((0, 1), [{}, {}], *words, program=RANK)
        try:
            rounds: list[dict[str, Any]] = [line(ranks[0]) for _ in range(given.rounds)]
            for rank in ranks:
                _, log = rank.communicate(timeout=600)
                assert rank.returncode == 0, log
        finally:
            end(ranks)
    alone, beside = (figures([s for one in rounds for s in one[kind]]) for kind in ("alone", "beside"))
    slower = [statistics.mean(one["beside"]) / statistics.mean(one["alone"]) for one in rounds]
    state = [one["state"] for one in rounds]
    table: dict[str, Any] = made
    table.update(mib=given.mib, state_mib=given.state_mib, rate_mbps=given.rate, rounds=given.rounds)
    table.update(alone=alone, beside=beside, slower=sorted(slower), state_s=sorted(state))
    for name, row in (("alone", alone), ("beside", beside)):
        mean, middle, p90 = (1e3 * row[key] for key in ("mean_s", "median_s", "p90_s"))
        print(f"{name:8}{mean:9.2f} ms mean {middle:9.2f} median {p90:9.2f} p90")
    middle = statistics.median(slower)
    print(f"slower  {middle:9.3f} [{min(slower):.3f}, {max(slower):.3f}]   at most {MOST_SLOWER}")
    least = (given.state_mib << 20) / (given.rate * 1e6)
    print(f"state   {statistics.median(state):9.2f} s [{min(state):.2f}, {max(state):.2f}]   least {least:.2f} s")
    given.output.write_text(json.dumps(table, indent=1) + "\n")
    return 1 if given.check and middle > MOST_SLOWER else 0


if __name__ == "__main__":
    sys.exit(main())
