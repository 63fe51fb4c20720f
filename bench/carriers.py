"""What carries frames between two islands of one machine: TCP, UCX over TCP, UCX over shared memory, and Isthmus' own shared
memory, by turns; writes bench/results/carriers.json.

    python bench/carriers.py              # five minutes
    python bench/carriers.py --rounds 1   # shows that the program runs

Two islands of one rank each, on host memory. A figure is the time of an operation, the median of its calls (`p50_us` of
isthmus-bench); of the rounds the median, with the least and the most. The order changes from round to round. Beside them
stands a raw exchange over one TCP connection of the same bytes, without anything above the connection: the best of ten
variants, both ways at once.

One machine has no RDMA, so UCX has no transport here that Isthmus lacks. The figures say what UCX itself costs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from builds import times
from circumstances import circumstances
from peers import raw_exchange

ROOT = Path(__file__).resolve().parent.parent
TWO = ["--islands", "a:1,b:1"]
CARRIERS = {
    "tcp": (["--bridge", "tcp"], {}),
    "ucx, its tcp": (["--bridge", "ucx"], {"UCX_TLS": "tcp,self"}),
    "ucx, its shared memory": (["--bridge", "ucx"], {"UCX_TLS": "posix,cma,self"}),
    "shared memory": (["--bridge", "shm"], {}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=shutil.which("isthmus-bench"), help="isthmus-bench (default: of PATH)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="8,8K,256K,1M,16M,64M", help="in bytes, with commas; K and M are powers of 1024")
    parser.add_argument("--timeout", type=float, default=300, help="seconds, of one program")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "carriers.json")
    args = parser.parse_args()
    if not args.bench:
        parser.error("no isthmus-bench on PATH: make build puts one into .venv/bin")
    made = circumstances()
    sizes = args.sizes.split(",")
    figures: dict[tuple[str, int], dict[str, list[float]]] = {}
    raw: dict[int, list[float]] = {}
    for number in range(args.rounds):
        order = list(CARRIERS) if number % 2 == 0 else list(reversed(CARRIERS))
        for carrier in order:
            flags, variables = CARRIERS[carrier]
            found = times(args.bench, [*TWO, *flags], sizes, args.timeout, variables)
            for what, microseconds in found.items():
                figures.setdefault(what, {}).setdefault(carrier, []).append(microseconds)
        for size in sorted({size for _, size in figures if size >= 1 << 18}):
            rate = raw_exchange(args.bench, size, args.timeout, 21)["best_rate_bytes_per_s_each_way"]
            raw.setdefault(size, []).append(size / rate * 1e6)
    rows: list[dict[str, Any]] = []
    print(f"{'':12}{'bytes':>10}" + "".join(f"{carrier + ', us':>32}" for carrier in CARRIERS))
    for (collective, size), by in figures.items():
        row: dict[str, Any] = {"collective": collective, "bytes": size}
        shown = ""
        for carrier in CARRIERS:
            few, median, many = min(by[carrier]), statistics.median(by[carrier]), max(by[carrier])
            row[carrier] = {"us": median, "least": few, "most": many}
            shown += f"{f'{median:.1f} ({few:.1f} to {many:.1f})':>32}"
        rows.append(row)
        print(f"{collective:12}{size:10}{shown}")
    exchange = {size: {"us": statistics.median(us), "least": min(us), "most": max(us)} for size, us in raw.items()}
    for size, of in exchange.items():
        spread = f"{of['us']:.1f} ({of['least']:.1f} to {of['most']:.1f})"
        print(f"{'raw TCP':12}{size:10}{spread:>32} us, as many bytes each way at once")
    args.out.write_text(json.dumps({**made, "rounds": args.rounds, "rows": rows, "raw_tcp": exchange}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
