"""Sums by type and instruction set, beside copies of the same run; writes bench/results/kernels.json.

    python bench/kernels.py            # some minutes on a quiet machine; libbenchmark-dev and a build with tests (make test)
    python bench/kernels.py --count    # half a minute on any machine; valgrind and a build with tests

The program runs reduce_bench (kernels/) once, on one thread. reduce_bench sums two arrays into a third, and copies arrays of
the same sizes, all in random turns. Two sizes lie in a cache, and one lies in memory. Each figure is the median of the
repetitions.

- In a cache a type is compared with float32's elements a second, with the same instructions. The target is for the
  instruction set that Isthmus takes on this processor.
- In memory a type is compared with the fastest copy of the same run. The measure is bytes a second that are read and
  written: three for a sum, two for a copy.

A store through the caches also reads the line that it writes. These bytes are not counted. So a sum at the full rate of the
memory shows less than a copy past the caches. Each copy is listed.

With --count the program has no clock. valgrind counts the instructions of the reductions that reduce_work (kernels/) makes,
and the file's other parts stay as they are. A type is compared with float32 again: its part is float32's instructions for an
element, divided by its own. 1 means that a processor which is busy with instructions alone takes as long for both. (In a
cache and in memory a type of half the bytes does better than that.) Each part has a limit; the program ends with 1 where it
is not reached. valgrind knows no AVX-512 and counts on the processor that it runs on, so NEON has no figures from an x86.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from circumstances import circumstances

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
COUNTED = {"sse4": (2, 3, 4, 8), "avx2": (2, 3, 4, 8)}  # target: numbers of sources
# The least parts of float32's instructions for an element, with two to four sources and with eight.
LEAST_COUNTED = {
    **{("sse4", "bfloat16"): (0.62, 0.50), ("sse4", "float16"): (0.22, 0.22)},
    **{("avx2", "bfloat16"): (0.58, 0.45), ("avx2", "float16"): (0.56, 0.56)},
}
COUNTED_BYTES = 16 << 10


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


def instructions(work: Path, target: str, dtype: str, sources: int) -> float | None:
    """Of one element. None: this processor does not have the target."""
    turns = 9  # reduce_work's
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "counts"
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={found}"]
        tool += ["--toggle-collect=isthmus::reduce::reduce(*"]
        words = [*tool, str(work), target, dtype, str(sources), str(COUNTED_BYTES), "1"]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        if ended.returncode == 3:
            return None
        if ended.returncode:
            raise SystemExit(f"kernels: {shlex.join(words)} ended with {ended.returncode}\n{ended.stderr[-1500:]}")
        total = re.search(r"^(?:summary|totals): (\d+)", found.read_text(), re.MULTILINE)
    if not total or total[1] == "0":
        raise SystemExit("kernels: valgrind has counted nothing in isthmus::reduce::reduce; is reduce_work stripped?")
    return int(total[1]) / turns / (COUNTED_BYTES / BYTES[dtype])


def count(work: Path) -> list[dict[str, Any]]:
    rows = []
    for target, numbers in COUNTED.items():
        for sources in numbers:
            reference = instructions(work, target, "float32", sources)
            if reference is None:
                print(f"{target:8} not on this processor")
                break
            for dtype in ("float32", *JUDGED):
                mine = reference if dtype == "float32" else instructions(work, target, dtype, sources)
                assert mine is not None
                row = {"target": target, "dtype": dtype, "sources": sources, "bytes": COUNTED_BYTES}
                part, least = reference / mine, LEAST_COUNTED.get((target, dtype), (None, None))[sources > 4]
                rows.append({**row, "instructions_per_element": mine, "part_of_float32": part, "least": least})
                verdict = "" if least is None else "reached" if part >= least else "NOT reached"
                text = f"{target:8} {dtype:14} {sources} sources {mine:7.2f} instructions {part:6.2f}"
                print(f"{text}  {'' if least is None else f'{least:.2f} or more: '}{verdict}".rstrip())
    return rows


def reached(row: dict[str, Any], folds: list[dict[str, Any]], least: float) -> bool | None:
    """None: nothing is asked of it."""
    taken = min((other["target"] for other in folds), key=TARGETS.index)
    if row["target"] != taken or row["dtype"] not in JUDGED or row["bytes"] not in IN_CACHE:
        return None
    return bool(row["elements_of_float32"] >= least)


def show(copies: list[dict[str, Any]], folds: list[dict[str, Any]], least: float) -> None:
    print(f"{'':8} {'':14} {'bytes':>9} {'GB/s':>8} {'of copy':>8} {'Gelem/s':>8} {'of float32':>10}")
    for row in copies:
        print(f"{'':8} {row['what']:14} {row['bytes']:9} {row['bytes_per_second'] / 1e9:8.1f}")
    for row in folds:
        verdict = {None: "", True: "reached", False: "NOT reached"}[reached(row, folds, least)]
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
    programs = ROOT / "build" / "release" / "bench" / "kernels"
    parser.add_argument("--program", type=Path, default=programs / "reduce_bench", help="path of reduce_bench")
    parser.add_argument("--limit", type=float, default=LEAST, help=f"least part of float32's elements a second ({LEAST})")
    parser.add_argument("--count", action="store_true", help="instructions by valgrind, and no clock")
    parser.add_argument("--work", type=Path, default=programs / "reduce_work", help="path of reduce_work, for --count")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results" / "kernels.json"), help="- for no file")
    args = parser.parse_args()
    about = {**circumstances(), "processor": processor()}
    if args.count:
        if not args.work.is_file() or not shutil.which("valgrind"):
            parser.error(f"valgrind or {args.work} is not there: a build with tests makes the program")
        rows = count(args.work)
        if not rows:
            raise SystemExit("kernels: nothing was counted")
        write(args.out, {**kept(args.out), "instructions": {**about, "what": "instructions of an element", "rows": rows}})
        return 1 if any(row["least"] is not None and row["part_of_float32"] < row["least"] for row in rows) else 0
    if not args.program.is_file():
        parser.error(f"{args.program} is not there: a build with tests makes it where libbenchmark-dev is installed")
    if args.repetitions < 2:
        parser.error("--repetitions must be 2 or more")
    words = command(args.program, args.repetitions)
    ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    copies, folds = rows_of(medians(json.loads(ended.stdout)))
    show(copies, folds, args.limit)
    document = {
        **about,
        "runs": shlex.join([os.path.relpath(args.program, ROOT), *words[1:]]),
        "what": f"medians of {args.repetitions}; bytes of one array; bytes a second that are read and written",
        "copies": copies,
        "rows": folds,
    }
    write(args.out, {**document, **{key: value for key, value in kept(args.out).items() if key == "instructions"}})
    return 1 if any(reached(row, folds, args.limit) is False for row in folds) else 0


def kept(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(out).read_text()) if out != "-" and Path(out).is_file() else {}
    return found


def write(out: str, document: dict[str, Any]) -> None:
    if out == "-":
        return
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
