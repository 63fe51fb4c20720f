"""What a change costs: the isthmus-bench of two builds by turns, in one run; prints ratios.

    python bench/builds.py OLD NEW                       # paths of the two programs; a minute or two
    python bench/builds.py OLD NEW --rounds 5 --out bench/results/builds.json

OLD and NEW may be of any two commits that have the flags used here, built with the same flags. Each round runs both once for
each shape, and which comes first changes from round to round. A figure is the time of an operation, the median of its calls
(`p50_us`); the ratio of a round is NEW / OLD. Above 1 the newer build is slower. The least and the most of the rounds show
how much of it is the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from circumstances import circumstances
from peers import bench_json

SHAPES = {
    "two, shared memory": ["--ranks", "2"],
    "four, shared memory": ["--ranks", "4"],
    "two islands, tcp": ["--islands", "a:1,b:1", "--bridge", "tcp"],
}
COLLECTIVES = ("all_reduce", "all_gather", "sendrecv")
SIZES = "8,8K,1M,16M"


def times(
    bench: str, shape: list[str], sizes: list[str], timeout: float, variables: dict[str, str] | None = None
) -> dict[tuple[str, int], float]:
    """Microseconds, by collective and size in bytes."""
    found: dict[tuple[str, int], float] = {}
    for size in sizes:
        asked = [",".join(COLLECTIVES), *shape, "-b", size, "-e", size, "-c", "0"]
        for row in bench_json(bench, asked, timeout, variables)["rows"]:
            found[row["collective"], row["size"]] = row["out_of_place"]["p50_us"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", default=SIZES, help="in bytes, with commas; K and M are powers of 1024")
    parser.add_argument("--timeout", type=float, default=300, help="seconds, of one program")
    parser.add_argument("--out", type=Path, help="a file for the figures")
    args = parser.parse_args()
    made = circumstances(f"python bench/builds.py OLD NEW --rounds {args.rounds} --sizes {args.sizes}")
    figures: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for number in range(args.rounds):
        for name, shape in SHAPES.items():
            both: dict[str, dict[tuple[str, int], float]] = {}
            for which in ("old", "new") if number % 2 == 0 else ("new", "old"):
                both[which] = times(getattr(args, which), shape, args.sizes.split(","), args.timeout)
            for (collective, size), old in both["old"].items():
                pair = {"old": old, "new": both["new"][collective, size]}
                figures.setdefault((name, collective, size), []).append(pair)
    rows: list[dict[str, Any]] = []
    print(f"{'':22}{'':14}{'bytes':>10}{'old us':>12}{'new us':>12}   new / old (least to most)")
    for (name, collective, size), pairs in figures.items():
        ratios = [pair["new"] / pair["old"] for pair in pairs]
        old, new = (statistics.median(pair[which] for pair in pairs) for which in ("old", "new"))
        ratio = statistics.median(ratios)
        what = {"shape": name, "collective": collective, "bytes": size}
        of = {"old_us": old, "new_us": new, "ratio": ratio, "least": min(ratios), "most": max(ratios)}
        rows.append(what | {figure: float(f"{value:.4g}") for figure, value in of.items()})
        spread = f"{ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"{name:22}{collective:14}{size:10}{old:12.1f}{new:12.1f}   {spread}")
    mean = statistics.geometric_mean([row["ratio"] for row in rows])
    print(f"{'all, geometric mean':70}   {mean:.3f}")
    if args.out:
        document = {
            **made,
            "ratio": round(mean, 3),
            "rows": rows,
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
