"""What ISTHMUS_STORES is worth between two processors, near and far apart; writes bench/results/stores.json.

    python bench/stores.py            # some minutes on a quiet machine with two processors or more

The places of two ranks decide how data passes between them. On a virtual machine these places change by themselves. So the
runs are short and many:

1. The time in which one cache line changes its owner is measured (isthmus-bench --limit, nine times).
2. Each collective is timed with stores through the caches, with stores past them, and as measured (auto). The order moves on
   from round to round.
3. The time of step 1 is measured again.

Where the time is always below NEAR_NS, the processors share a cache. Where the time is always above FAR_NS, they share none.
Other rounds are left out. So a round that counts changed its place only if it changed back.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from circumstances import circumstances

ROOT = Path(__file__).resolve().parent.parent
MODES = ("auto", "cached", "streamed")
COLLECTIVES = ("broadcast", "all_gather", "sendrecv", "all_reduce")
SIZES = ("16K", "128K", "1M", "8M")
NEAR_NS, FAR_NS = 120.0, 180.0


def run(bench: str, *arguments: str, stores: str = "auto") -> str:
    environment = {**os.environ, "ISTHMUS_STORES": stores}
    done = subprocess.run([bench, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return done.stdout


def line_ns(bench: str) -> tuple[float, float]:
    """The best and the worst of nine."""
    said = json.loads(run(bench, "--limit", "--ranks", "2", "-e", "64K"))
    return float(said["latency_ns"]), float(said["slowest_latency_ns"])


def median_us(bench: str, collective: str, size: str, stores: str) -> float:
    """The median iteration of one run, out of place."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run(bench, collective, "-b", size, "-e", size, "--ranks", "2", "-c", "0", "--json", file.name, stores=stores)
        return float(json.loads(Path(file.name).read_text())["rows"][0]["out_of_place"]["p50_us"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bench", default=str(Path(sys.executable).parent / "isthmus-bench"), help="path of isthmus-bench")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "stores.json")
    args = parser.parse_args()
    made = circumstances()
    times: dict[str, dict[str, dict[str, list[float]]]] = {"near": {}, "far": {}}
    lines: dict[str, list[float]] = {"near": [], "far": []}
    left_out = 0
    rows = [(collective, size) for collective in COLLECTIVES for size in SIZES]
    after = line_ns(args.bench)
    for number in range(args.rounds):
        for row, (collective, size) in enumerate(rows):
            before = after
            got = {}
            for i in range(len(MODES)):
                mode = MODES[(i + number + row) % len(MODES)]
                got[mode] = median_us(args.bench, collective, size, mode)
            after = line_ns(args.bench)
            near, far = max(before[1], after[1]) < NEAR_NS, min(before[0], after[0]) > FAR_NS
            if not near and not far:
                left_out += 1
                continue
            place = "near" if near else "far"
            lines[place] += [before[0], after[0]]
            for mode, value in got.items():
                times[place].setdefault(f"{collective} {size}", {}).setdefault(mode, []).append(value)
    heads = " ".join(f"{mode:>9}" for mode in MODES)
    print(f"{'us, median of runs':22} {'runs':>6} {heads}  cached / auto, median and middle half")
    for place, table in times.items():
        if lines[place]:
            print(f"# {place}: a line changes owner in {statistics.median(lines[place]):.0f} ns")
        for name, modes in table.items():
            ratios = [c / a for c, a in zip(modes["cached"], modes["auto"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            medians = " ".join(f"{statistics.median(modes[mode]):9.2f}" for mode in MODES)
            print(f"{name:22} {len(ratios):6} {medians}  {middle:.2f} [{low:.2f} {high:.2f}]")
    print(f"# left out, in which it changed: {left_out}")
    result: dict[str, Any] = {
        **made,
        "line_ns": lines,
        "left_out": left_out,
        "us": times,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
