"""How soon the other ranks learn that one was killed or stopped: 200 kills and 20 stops; writes bench/results/kills.json.

    .venv/bin/python bench/kills.py            # two minutes or so

Each time four ranks run collectives without end, small or large, in shared memory or over TCP between two islands. One clock
(CLOCK_MONOTONIC) serves all. A rank that blames anybody but the victim ends the run.

A kill: a random rank gets SIGKILL at a random time. The rank has two sleeping forked children, as a DataLoader's workers
are. The figure is the time from the signal to the error on each other rank.

    victim      SIGKILL
    others         |<------------ the figure ------------>| PeerLostError

A stop: a random rank gets SIGSTOP. Every operation has a timeout of one second. The failing operation may have been
submitted before or after the signal, and its deadline runs from its submission. So the figure is how late the error is after
the deadline:

    victim                   SIGSTOP
    other rank  submits         |        deadline          error
                   |<------- 1 s ---------->|<- the figure ->|

The figure may be a little below zero: another rank may have submitted the operation first, and the deadline there ended the
operation for all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "faults"), str(ROOT / "tests")]

from circumstances import circumstances  # noqa: E402
from jobs import SHAPES, Me, Zygote, all_say, job  # noqa: E402

WORLD = 4
LIMIT = 0.25  # seconds: p99 after a kill, the largest after the deadline of a stop
TIMEOUT = 1.0  # seconds, of the operations that a stop ends


def body(me: Me, count: int, children: int, timeout: float | None) -> dict[str, Any]:
    """Collectives until one fails; how it did, and when it was submitted."""
    comm = me.init()
    x = np.ones(count, np.float32)
    gathered = np.empty(count * me.world, np.float32)
    forked = []
    for _ in range(children):
        forked.append(os.fork())
        if forked[-1] == 0:
            time.sleep(30)
            os._exit(0)
    me.send("ready", forked)
    calls = cycle(
        (
            lambda: comm.all_reduce(x, "max", timeout=timeout),
            lambda: comm.all_gather(x, gathered, timeout=timeout),
            lambda: comm.broadcast(x, 0, timeout=timeout),
            lambda: comm.barrier(timeout=timeout),
        )
    )
    submitted = 0.0

    def forever() -> None:
        nonlocal submitted
        for call in calls:
            submitted = time.monotonic()
            call()

    return {**me.caught(forever), "submitted": submitted}


def kill(zygote: Zygote, shape: str, count: int, victim: int, delay: float) -> list[float]:
    """Seconds from the kill to the error on each of the others."""
    with job(zygote, WORLD, lambda me: body(me, count, 2 if me.rank == victim else 0, None), shape) as ranks:
        children = all_say(ranks, "ready")[victim]
        try:
            time.sleep(delay)
            since = ranks[victim].signal(signal.SIGKILL)
            reports = [rank.result() for rank in ranks if rank.rank != victim]
            for child in children:
                os.kill(child, 0)  # they live on
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
    for report in reports:
        if report["kind"] != "PeerLostError" or f"rank {victim}" not in report["text"]:
            raise SystemExit(f"kills: rank {report['rank']} blames somebody else than rank {victim}: {report['text']}")
    return [report["at"] - since for report in reports]


def stop(zygote: Zygote, shape: str, count: int, victim: int, delay: float) -> list[float]:
    """Seconds from the deadline of the failing operation to the error on each of the others."""
    with job(zygote, WORLD, lambda me: body(me, count, 0, TIMEOUT), shape) as ranks:
        all_say(ranks, "ready")
        time.sleep(delay)
        ranks[victim].signal(signal.SIGSTOP)
        reports = [rank.result() for rank in ranks if rank.rank != victim]
    for report in reports:
        blamed = re.search(r"did not finish within [^:]*: (?:rank |\D*?\brank )(\d+)", report["text"])
        if report["kind"] != "TimeoutError" or not blamed or int(blamed[1]) != victim:
            raise SystemExit(
                f"kills: rank {report['rank']} does not blame rank {victim}: {report['kind']}: {report['text']}"
            )
    return [report["at"] - report["submitted"] - TIMEOUT for report in reports]


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def series(title: str, harm: Any, times: int, seed: int, quantiles: dict[str, float]) -> dict[str, dict[str, float]]:
    """`harm` done that often to jobs of every kind in turn; prints and returns a row for each kind and one for all."""
    chance = random.Random(seed)
    found: dict[str, list[float]] = {}
    zygote = Zygote()
    try:
        for number in range(times):
            shape, count = SHAPES[number % 2], (4, 1 << 18)[number // 2 % 2]
            late = harm(zygote, shape, count, chance.randrange(WORLD), chance.uniform(0.02, 0.2))
            found.setdefault(f"{shape}, {count * 4} bytes", []).extend(late)
    finally:
        zygote.close()
    print(f"{times} {title} of one of {WORLD} ranks on {os.cpu_count()} processors")
    print(f"{'':24}{'errors':>8}" + "".join(f"{name + ' ms':>10}" for name in (*quantiles, "max")))
    figures = {}
    for name, late in {**found, "all": [t for row in found.values() for t in row]}.items():
        row = {f"{key}_ms": round(quantile(late, q) * 1e3, 2) for key, q in {**quantiles, "max": 1.0}.items()}
        print(f"{name:24}{len(late):>8}" + "".join(f"{value:>10}" for value in row.values()))
        figures[name] = {"errors": len(late), **row}
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "kills.json")
    args = parser.parse_args()
    if min(args.kills, args.stops) < 0:
        parser.error("--kills and --stops must be at least 0")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    document: dict[str, Any] = circumstances(
        f"python bench/kills.py --kills {args.kills} --stops {args.stops} --seed {args.seed}"
    )
    reached = True
    for name, title, harm, times, judged, quantiles in (
        ("kills", "kills, two sleeping forked children each,", kill, args.kills, "p99", {"p50": 0.5, "p99": 0.99}),
        ("stops", f"stops, timeout {TIMEOUT:g} s, lateness,", stop, args.stops, "max", {"p50": 0.5}),
    ):
        if times:
            document[name] = series(title, harm, times, args.seed, quantiles)
            worst = document[name]["all"][f"{judged}_ms"]
            within = worst <= LIMIT * 1e3
            reached = reached and within
            print(f"{name}: {judged} {worst} ms: {'within' if within else 'NOT within'} {LIMIT * 1e3:.0f} ms\n")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
