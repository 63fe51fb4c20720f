"""Sums by type and instruction set, beside copies of the same run; writes bench/results/kernels.json.

    python bench/kernels.py            # some minutes on a quiet machine; libbenchmark-dev and a build with tests (make test)

The program runs reduce_bench (kernels/) once, on one thread. reduce_bench sums two arrays into a third, and copies arrays of
the same sizes, all in random turns. Two sizes lie in a cache, and one lies in memory. Each figure is the median of the
repetitions.

- In a cache a type is compared with float32's elements a second, with the same instructions. The target is for the
  instruction set that Isthmus takes on this processor.
- In memory a type is compared with the fastest copy of the same run. The measure is bytes a second that are read and
  written: three for a sum, two for a copy.

A store through the caches also reads the line that it writes. These bytes are not counted. So a sum at the full rate of the
memory shows less than a copy past the caches. Each copy is listed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("avx512", "avx2", "sse4", "neon")  # the first of them that a processor has is taken there
IN_CACHE, IN_MEMORY = (16 << 10, 256 << 10), (64 << 20,)  # bytes of one array
COPIES = ("copy", "copy+stream", "memcpy")
BYTES = {
    **{"float32": 4, "float64": 8, "int32": 4, "int8": 1, "float16": 2, "bfloat16": 2},
    **{"float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8},
}
SOURCES = 2
LEAST = 0.8  # of float32's elements a second in a cache
JUDGED = ("bfloat16", "float16")


def command(program: Path, repetitions: int) -> list[str]:
    sizes = "|".join(map(str, IN_CACHE + IN_MEMORY))
    folds = f"({'|'.join(TARGETS)})/({'|'.join(BYTES)})/sum/{SOURCES}"
    return [
        str(program),
        f"--benchmark_filter=^({folds}|{'|'.join(map(re.escape, COPIES))})/({sizes})$",
        f"--benchmark_repetitions={repetitions}",
        "--benchmark_min_time=0.05",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_report_aggregates_only=true",
        "--benchmark_format=json",
    ]


def medians(document: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of each benchmark by its name: bytes a second, and how much they vary (standard deviation by mean)."""
    found: dict[str, dict[str, float]] = {}
    for entry in document["benchmarks"]:
        key = {"median": "bytes_per_second", "cv": "variation"}.get(entry.get("aggregate_name", ""))
        if key:
            found.setdefault(entry["run_name"], {})[key] = float(entry["bytes_per_second"])
    return found


def rows_of(found: dict[str, dict[str, float]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The copies, and the sums beside the fastest copy of their size and beside float32's."""
    copies: list[dict[str, Any]] = [
        {"what": name, "bytes": size, **found[f"{name}/{size}"]}
        for size in IN_CACHE + IN_MEMORY
        for name in COPIES
        if f"{name}/{size}" in found
    ]
    folds = []
    for name, figures in found.items():
        target, *rest = name.split("/")
        if target in COPIES:
            continue
        dtype, op, sources, size = rest
        same = [copy["bytes_per_second"] for copy in copies if copy["bytes"] == int(size)]
        if not same:
            raise SystemExit(f"kernels: the run has no copy of {size} bytes, so there is nothing to measure {name} by")
        reference = found[f"{target}/float32/{op}/{sources}/{size}"]["bytes_per_second"] / BYTES["float32"]
        elements = figures["bytes_per_second"] / BYTES[dtype]  # each of them is read twice and written once, as float32's
        folds.append(
            {
                "target": target,
                "dtype": dtype,
                "op": op,
                "sources": int(sources),
                "bytes": int(size),
                **figures,
                "elements_per_second": elements / (int(sources) + 1),
                "elements_of_float32": elements / reference,
                "copy_bytes_per_second": max(same),
                "of_copy": figures["bytes_per_second"] / max(same),
            }
        )
    if not folds:
        raise SystemExit("kernels: the run has no sum")
    return copies, sorted(folds, key=lambda row: (row["target"], row["dtype"], row["bytes"]))


def reached(row: dict[str, Any], folds: list[dict[str, Any]]) -> bool | None:
    """None: nothing is asked of it."""
    taken = min((other["target"] for other in folds), key=TARGETS.index)
    if row["target"] != taken or row["dtype"] not in JUDGED or row["bytes"] not in IN_CACHE:
        return None
    return bool(row["elements_of_float32"] >= LEAST)


def show(copies: list[dict[str, Any]], folds: list[dict[str, Any]]) -> None:
    print(f"{'':8} {'':14} {'bytes':>9} {'GB/s':>8} {'of copy':>8} {'Gelem/s':>8} {'of float32':>10}")
    for row in copies:
        print(f"{'':8} {row['what']:14} {row['bytes']:9} {row['bytes_per_second'] / 1e9:8.1f}")
    for row in folds:
        verdict = {None: "", True: "reached", False: "NOT reached"}[reached(row, folds)]
        rates = f"{row['bytes_per_second'] / 1e9:8.1f} {row['of_copy']:8.2f} {row['elements_per_second'] / 1e9:8.2f}"
        text = f"{row['target']:8} {row['dtype']:14} {row['bytes']:9} {rates} {row['elements_of_float32']:10.2f}  {verdict}"
        print(text.rstrip())


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9)
    program = ROOT / "build" / "release" / "bench" / "kernels" / "reduce_bench"
    parser.add_argument("--program", type=Path, default=program, help="path of reduce_bench")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "kernels.json")
    args = parser.parse_args()
    if not args.program.is_file():
        parser.error(f"{args.program} is not there: a build with tests makes it where libbenchmark-dev is installed")
    if args.repetitions < 2:
        parser.error("--repetitions must be 2 or more")
    load = os.getloadavg()[0]
    words = command(args.program, args.repetitions)
    ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    copies, folds = rows_of(medians(json.loads(ended.stdout)))
    show(copies, folds)
    document = {
        "command": shlex.join(["python", *sys.argv]),
        "runs": shlex.join([os.path.relpath(args.program, ROOT), *words[1:]]),
        "processor": processor(),
        "machine": {"processors": os.cpu_count(), "machine": platform.machine(), "kernel": platform.release(), "load": load},
        "date": time.strftime("%Y-%m-%d %H:%M:%S +0000", time.gmtime()),
        "what": f"medians of {args.repetitions}; bytes of one array; bytes a second that are read and written",
        "copies": copies,
        "rows": folds,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(reached(row, folds) is False for row in folds) else 0


if __name__ == "__main__":
    sys.exit(main())
