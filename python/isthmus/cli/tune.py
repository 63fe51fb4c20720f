"""`isthmus tune`: how fast this host and its devices are, as a profile that ISTHMUS_PROFILE names.

As ranks of a job it measures what only they can tell, and adds it to the profile: up to which size a message that crosses
between their islands is better sent whole.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import socket
import statistics
import subprocess
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import Comm, __version__, _core, init
from .._errors import Error
from ..rehearse import FLEET
from .bench import find_benchmark
from .common import under_launcher

SCHEMA = 1  # of the profile; csrc/topology/profile.hpp reads it
UNIT = "bytes/s"
_HOST = {
    "memory_copy": "one process, 64 MiB to 64 MiB; bytes copied",
    "shm_exchange": "two processes, slots of 256 KiB in shared memory; each way, both at once",
    "tcp_loopback": "two processes, one connection over the loopback interface, no network; each way, both at once",
}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "tune",
        help="measure this host, write a profile",
        description="Measures memory, reductions, shared memory and TCP (over loopback) of this host, and the copies "
        "and the library of the device that ISTHMUS_DEVICE names, or of every device. Run it once on each host, while "
        "nothing else runs there. Started as the ranks of a job (torchrun, mpirun, srun, isthmus rehearse) it measures up "
        "to which size messages between their islands are better sent whole, and adds that to the profile of each host. "
        "Ranks take the profile with ISTHMUS_PROFILE=FILE.",
    )
    parser.add_argument("--output", metavar="FILE", help="the profile (default isthmus-profile-HOST.json)")
    parser.add_argument("--seconds", type=_seconds, default=6.0, metavar="S", help="about how long (default 6)")
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.05 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}': expected seconds, from 0.05 to 3600")
    return seconds


def run(options: argparse.Namespace) -> int:
    if options.output and (Path(options.output).is_dir() or not Path(options.output).parent.is_dir()):
        raise Error(f"tune: the profile cannot be written: {options.output} is a folder, or in none")
    path = Path(options.output or f"isthmus-profile-{socket.gethostname()}.json")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise Error(f"tune: the profile cannot be written: {path.parent.resolve()} takes no new file; give another --output")
    if under_launcher():
        with init() as comm:
            if comm.size > 1:
                return tune_job(comm, path, options.seconds)
    profile = measure(options.seconds)
    write(path, profile)
    show(Console(), profile)
    print(f"profile: {path}; ranks on this host take it with ISTHMUS_PROFILE={path.resolve()}")
    return 0


def tune_job(comm: Comm, path: Path, seconds: float) -> int:
    """One rank of a job: the first of each host adds what they measured together to the profile there."""
    star = json.loads(comm._measure_leader_exchange(seconds))
    topology = comm.topology()
    first = [host["ranks"][0] for host in topology["hosts"]]
    simulated = simulated_library()
    if comm.rank in first:
        profile = read(path)
        profile["simulated"] = profile["simulated"] or simulated or FLEET in os.environ
        profile["date"] = now()
        link = star.pop("link")
        star["note"] = f"{star.pop('ranks')} ranks in {star.pop('islands')} groups: {layout(topology)}"
        profile.setdefault("star", {})[link] = star
        write(path, profile)
        if comm.rank == 0:
            show_leader_exchange(Console(), profile, link)
        print(f"profile: {path}; ranks on this host take it with ISTHMUS_PROFILE={path.resolve()}")
    comm.barrier()
    return 0


def layout(topology: dict[str, Any]) -> str:
    """Who was measured: "cuda:0 x 2 (nccl), host"."""
    groups = []
    for group in topology["groups"]:
        device = topology["ranks"][group["ranks"][0]]["device"]
        count = len(group["ranks"])
        groups.append(device + (f" x {count}" if count > 1 else "") + (f" ({group['ccl']})" if group["ccl"] else ""))
    return ", ".join(groups)


def read(path: Path) -> dict[str, Any]:
    """The profile that is to be added to; an empty one where there is none."""
    if not path.exists():
        return head([], [])
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
        if profile["schema"] == SCHEMA and isinstance(profile["entries"], list) and isinstance(profile["simulated"], bool):
            return dict(profile)
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise Error(f"tune: {path} is no profile of schema {SCHEMA} that could be added to; remove it, or give another --output")


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def head(entries: list[dict[str, Any]], missing: list[dict[str, Any]]) -> dict[str, Any]:
    fleet = os.environ.get(FLEET)
    return {
        "schema": SCHEMA,
        "isthmus": __version__,
        "host": socket.gethostname(),
        "date": now(),
        "simulated": fleet is not None or simulated_library(),
        **({"rehearsal": fleet} if fleet else {}),
        "entries": entries,
        "missing": missing,
    }


def measure(seconds: float) -> dict[str, Any]:
    """Everything that can be measured here, as a profile."""
    samples = [{"name": name, "samples": rates, "note": _HOST[name]} for name, rates in host_rates(seconds / 2).items()]
    found = json.loads(_core.measure(seconds / 2))
    return head([entry(**one) for one in [*samples, *found["entries"]]], found["missing"])


def host_rates(seconds: float) -> dict[str, list[float]]:
    """Samples of the rates between this host's processes, which isthmus-bench measures in processes of its own."""
    program = find_benchmark()
    if program is None:
        raise Error("tune: isthmus-bench is neither in the package nor on PATH; build it with `make build`")
    command, patience = [str(program), "--rates", f"{seconds:g}"], 60 + 20 * seconds
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        raise Error(f"tune: isthmus-bench --rates did not end within {patience:g} s") from None
    if ended.returncode != 0:
        raise Error(f"tune: isthmus-bench --rates ended with status {ended.returncode}: {ended.stderr.strip()}")
    rates: dict[str, list[float]] = json.loads(ended.stdout)
    return {name: rates[name] for name in _HOST}


def entry(name: str, samples: list[float], note: str) -> dict[str, Any]:
    return {
        "name": name,
        "unit": UNIT,
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "repetitions": len(samples),
        "note": note,
    }


def simulated_library() -> bool:
    """A rehearsal's libraries have been loaded into this process, however they got there."""
    maps = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    return any(os.path.basename(line.partition("/")[2]).startswith("librehearsal.so") for line in maps)


def write(path: Path, profile: dict[str, Any]) -> None:
    """Whole or not at all: a rank may read it at any time."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(profile, indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # on a read-only file system this fails too
            part.unlink()
        raise Error(f"tune: the profile cannot be written: {error}") from None


def banner(console: Console, profile: dict[str, Any]) -> None:
    if profile["simulated"]:
        console.print("[bold red]SIMULATED[/]: devices of a rehearsal; no figure below is a measurement of hardware")


def show_leader_exchange(console: Console, profile: dict[str, Any], link: str) -> None:
    banner(console, profile)
    star = profile["star"][link]
    table = Table(box=None, pad_edge=False)
    for column in ("bytes", "whole, us", "in pieces, us"):
        table.add_column(column, justify="right")
    for size, whole, pieces in zip(star["sizes"], star["star_us"], star["pieces_us"], strict=True):
        table.add_row(str(size), f"{whole:.1f}", f"{pieces:.1f}")
    console.print(table, highlight=False)
    spread = f"{star['min']} to {star['max']} in {star['repetitions']} sweeps"
    ends = f"leader exchange over {link} up to {star['bytes']} bytes"
    console.print(f"{ends} ({spread}; {escape(star['note'])})", highlight=False, soft_wrap=True)
    rates = "its rates are those it had" if profile["entries"] else "it has no rates"
    console.print(
        f"a job measures nothing else: {rates}. isthmus tune on a host by itself measures those of its memory, copies, "
        "TCP over loopback and libraries",
        highlight=False,
        soft_wrap=True,
    )


def show(console: Console, profile: dict[str, Any]) -> None:
    banner(console, profile)
    table = Table(box=None, pad_edge=False)
    table.add_column("GB/s")
    for column in ("median", "min", "max", "runs"):
        table.add_column(column, justify="right")
    table.add_column("what", overflow="fold")
    for one in profile["entries"]:
        figures = [f"{one[key] / 1e9:.2f}" for key in ("median", "min", "max")]
        table.add_row(escape(one["name"]), *figures, str(one["repetitions"]), escape(one["note"]))
    console.print(table, highlight=False)
    for one in profile["missing"]:
        console.print(f"[yellow]not measured[/] {escape(one['name'])}: {escape(one['text'])}", highlight=False)
